//! Executions on lanes that nobody serves, and executions whose holder does not listen: any engine
//! looks after them without their code.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use abide::prelude::*;
use abide::testing::{Lab, Machine};
use abide::{Abide, Handle};
use abide_core::{Address, Event, ExecutionId, FailureKind, Namespace};
use abide_store::{Read, Target};
use tokio::sync::Notify;

#[derive(Default)]
struct World {
    has_begun: Notify,
    may_go_on: Mutex<Option<mpsc::Receiver<()>>>,
    ended_count: AtomicU32,
    saw: Mutex<Vec<String>>,
}

type SharedWorld = Arc<World>;

#[workflow]
async fn waits(ctx: Ctx) -> Result<u32> {
    let got: Result<u32> = ctx.recv("go").await;
    if got.as_ref().is_err_and(Error::is_cancelled) {
        ctx.state::<SharedWorld>().saw.lock().unwrap().push("cancelled".to_owned());
    }
    got
}

/// Leaves an execution on a lane that nobody serves any longer, and starts a worker of another
/// lane.
async fn orphan(lab: &Lab) -> (Abide, Handle<u32>) {
    let (machine, abide) = old_worker(lab).await;
    abide.start(waits, ()).id("one").lane("old").await.unwrap();
    lab.sleep(secs(10)).await;
    lab.crash(machine);
    let (_, abide) = lab.worker().await.unwrap();
    lab.sleep(secs(60)).await;
    let handle = abide.handle("one");
    assert_eq!(handle.status().await.unwrap(), Status::Waiting);
    (abide, handle)
}

async fn old_worker(lab: &Lab) -> (Machine, Abide) {
    lab.worker_with(|builder| builder.lanes(["old"]).state(SharedWorld::default())).await.unwrap()
}

/// Returns the events of the newest run.
async fn journal(lab: &Lab, id: &str) -> Vec<Event> {
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new(id).unwrap() };
    let read = Read { target: Target::Address(address), run: None, from: 1, limit: 100, with_inbox: false };
    let found = lab.store().read(read).await.unwrap().unwrap();
    found.journal.iter().map(|record| record.entry().unwrap().event).collect()
}

#[test]
fn terminate_needs_no_code() {
    Lab::run(1, |lab| async move {
        let (_abide, handle) = orphan(&lab).await;
        handle.terminate("no longer wanted").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled, "{}", handle.why().await.unwrap());
        let error = handle.result().await.unwrap_err();
        assert!(error.to_string().contains("no longer wanted"), "{error}");
    });
}

#[test]
fn terminate_needs_no_code_that_was_ever_there() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(waits, ()).id("one").lane("old").await.unwrap();
        handle.terminate("a mistake").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

#[test]
fn pause_and_resume_need_no_code() {
    Lab::run(1, |lab| async move {
        let (_abide, handle) = orphan(&lab).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        let (_, _old) = old_worker(&lab).await;
        handle.signal("go", &7).await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused, "its code is there, but it is paused");
        handle.resume().await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 7);
    });
}

#[test]
fn what_was_resumed_without_code_goes_on_when_the_code_comes() {
    Lab::run(1, |lab| async move {
        let (_abide, handle) = orphan(&lab).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        handle.resume().await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Running, "{}", handle.why().await.unwrap());
        handle.signal("go", &7).await.unwrap();
        let (_, _old) = old_worker(&lab).await;
        assert_eq!(handle.result().await.unwrap(), 7);
    });
}

#[test]
fn delayed_start_stays_delayed_when_it_was_paused_without_code() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(waits, ()).id("one").lane("old").delay(hours(1)).await.unwrap();
        handle.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        handle.resume().await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Scheduled, "{}", handle.why().await.unwrap());
    });
}

#[test]
fn cancel_of_what_only_a_caretaker_has_held_needs_no_code() {
    for is_resumed in [false, true] {
        Lab::run(1, |lab| async move {
            let (_, abide) = lab.worker().await.unwrap();
            let handle = abide.start(waits, ()).id("one").lane("old").await.unwrap();
            handle.pause().await.unwrap();
            lab.sleep(secs(5)).await;
            if is_resumed {
                handle.resume().await.unwrap();
                lab.sleep(secs(5)).await;
            }
            handle.cancel("no longer wanted").await.unwrap();
            lab.sleep(secs(5)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Cancelled, "{}", handle.why().await.unwrap());
        });
    }
}

#[test]
fn cancel_of_what_code_has_held_since_is_for_the_code() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(waits, ()).id("one").lane("old").await.unwrap();
        handle.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        handle.resume().await.unwrap();
        let (machine, _old) = old_worker(&lab).await;
        lab.sleep(secs(60)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting);
        lab.crash(machine);
        handle.pause().await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused, "a caretaker has held it once more");
        handle.cancel("no longer wanted").await.unwrap();
        lab.sleep(secs(60)).await;
        let why = handle.why().await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Status::Paused, "{why}");
        assert!(why.contains("for its code to see"), "{why}");
    });
}

#[test]
fn passed_deadline_needs_no_code() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(waits, ()).id("one").lane("old").deadline(hours(1)).await.unwrap();
        lab.sleep(hours(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Running, "whoever has the code has its time");
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Failed);
        let journal = journal(&lab, "one").await;
        let Some(Event::Failed(failure)) = journal.last() else { panic!("it failed: {journal:?}") };
        assert_eq!(failure.kind, FailureKind::Deadline);
    });
}

#[test]
fn deadline_is_seen_by_live_code_at_once() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.state(SharedWorld::default())).await.unwrap();
        let handle = abide.start(waits, ()).id("one").deadline(hours(1)).await.unwrap();
        lab.sleep(hours(1) + ms(100)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Failed);
    });
}

#[test]
fn cancel_of_what_has_run_waits_for_its_code() {
    Lab::run(1, |lab| async move {
        let (_abide, handle) = orphan(&lab).await;
        handle.cancel("enough").await.unwrap();
        lab.sleep(hours(1)).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains("unread: cancel by client: enough, which is for its code to see"), "{why}");
        assert!(!handle.status().await.unwrap().is_terminal());
        let world = SharedWorld::default();
        let (_, _old) = lab.worker_with(|builder| builder.lanes(["old"]).state(world.clone())).await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
        assert_eq!(*world.saw.lock().unwrap(), ["cancelled"]);
    });
}

#[test]
fn paused_execution_keeps_its_cancel_for_the_code() {
    Lab::run(1, |lab| async move {
        let (_abide, handle) = orphan(&lab).await;
        handle.cancel("enough").await.unwrap();
        handle.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        let (_, _old) = old_worker(&lab).await;
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

#[test]
fn cancel_of_what_nobody_ever_held_needs_no_code() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(waits, ()).id("one").lane("old").await.unwrap();
        handle.cancel("a mistake").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

#[test]
fn terminate_behind_a_cancel_needs_no_code() {
    Lab::run(1, |lab| async move {
        let (_abide, handle) = orphan(&lab).await;
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(5)).await;
        handle.terminate("now").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

#[test]
fn order_behind_many_signals_is_found() {
    Lab::run(1, |lab| async move {
        let (_abide, handle) = orphan(&lab).await;
        for n in 0..50 {
            handle.signal("other", &n).await.unwrap();
        }
        handle.terminate("flooded").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

/// The store in memory returns eight messages per page.
#[test]
fn why_tells_of_an_order_behind_many_signals() {
    Lab::run(1, |lab| async move {
        let (_abide, handle) = orphan(&lab).await;
        for n in 0..50 {
            handle.signal("other", &n).await.unwrap();
        }
        handle.cancel("enough").await.unwrap();
        let why = handle.why().await.unwrap();
        let unread =
            r#"; unread: signal "other" (50), cancel by client: enough, which is for its code to see"#;
        assert!(why.contains(unread), "{why}");
        for n in 0..1_000 {
            handle.signal("other", &n).await.unwrap();
        }
        let why = handle.why().await.unwrap();
        assert!(why.contains(r#"cancel by client: enough and more, which is"#), "{why}");
    });
}

#[workflow]
async fn mother(ctx: Ctx) -> Result<u32> {
    ctx.run(waits, ()).id("child").lane("old").await
}

#[test]
fn tree_needs_no_code() {
    Lab::run(1, |lab| async move {
        let (machine, abide) = old_worker(&lab).await;
        abide.start(mother, ()).id("mother").lane("old").await.unwrap();
        lab.sleep(secs(10)).await;
        lab.crash(machine);
        let (_, abide) = lab.worker().await.unwrap();
        let (parent, child): (Handle<u32>, Handle<u32>) = (abide.handle("mother"), abide.handle("child"));
        parent.pause().await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(child.status().await.unwrap(), Status::Paused, "{}", child.why().await.unwrap());
        parent.resume().await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(child.status().await.unwrap(), Status::Running, "{}", child.why().await.unwrap());
        parent.terminate("enough").await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(parent.status().await.unwrap(), Status::Cancelled);
        assert_eq!(child.status().await.unwrap(), Status::Cancelled, "{}", child.why().await.unwrap());
    });
}

#[test]
fn terminate_of_what_a_frozen_worker_holds_is_applied_by_another() {
    Lab::run(1, |lab| async move {
        let (machine, frozen) = old_worker(&lab).await;
        let (_, abide) = lab.worker().await.unwrap();
        frozen.start(waits, ()).id("one").lane("old").await.unwrap();
        lab.freeze(machine);
        let handle: Handle<u32> = abide.handle("one");
        handle.terminate("stuck").await.unwrap();
        lab.sleep(ms(1_900)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Running, "its holder has its time");
        lab.sleep(ms(200)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
        lab.thaw(machine);
        lab.sleep(secs(10)).await;
        assert!(matches!(journal(&lab, "one").await.last(), Some(Event::Cancelled { .. })));
    });
}

#[task]
async fn occupies(ctx: Ctx) -> Result<()> {
    ctx.state::<SharedWorld>().has_begun.notified().await;
    Ok(())
}

#[test]
fn queued_execution_can_be_terminated_while_its_worker_is_full() {
    Lab::run(1, |lab| async move {
        let options = |builder: abide::Builder| builder.execution_count_max(1).state(SharedWorld::default());
        let (_, abide) = lab.worker_with(options).await.unwrap();
        abide.start(occupies, ()).id("first").await.unwrap();
        let second = abide.start(occupies, ()).id("second").await.unwrap();
        second.terminate("changed my mind").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(second.status().await.unwrap(), Status::Cancelled, "{}", second.why().await.unwrap());
    });
}

#[workflow]
async fn blocks_its_thread(ctx: Ctx) -> Result<()> {
    let world = ctx.state::<SharedWorld>();
    ctx.step("block", || async {
        let may_go_on = world.may_go_on.lock().unwrap().take().expect("it runs once");
        world.has_begun.notify_one();
        let _ = may_go_on.recv();
        world.ended_count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    })
    .await
}

/// The only engine is the one with the blocked thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn step_that_blocks_its_thread_loses_its_execution_to_a_terminate() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("abide.db").display());
    let (go_on, may_go_on) = mpsc::channel();
    let world = Arc::new(World { may_go_on: Mutex::new(Some(may_go_on)), ..World::default() });
    let abide = Abide::builder(&url).state(world.clone()).terminate_grace_ms(100).open().await.unwrap();
    let client = Abide::client(&url).await.unwrap();
    abide.start(blocks_its_thread, ()).id("one").await.unwrap();
    world.has_begun.notified().await;
    let handle = client.handle::<()>("one");
    handle.terminate("stuck").await.unwrap();
    let error = handle.result().await.unwrap_err();
    assert!(error.to_string().contains("stuck"), "{error}");
    assert_eq!(world.ended_count.load(Ordering::SeqCst), 0, "the step still runs");
    go_on.send(()).unwrap();
    abide.shutdown().await;
    assert_eq!(handle.status().await.unwrap(), Status::Cancelled, "what it did is not recorded");
}
