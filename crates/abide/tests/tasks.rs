//! Messages that reach a task while its function runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::Builder;
use abide::prelude::*;
use abide::testing::Lab;
use abide_core::{Address, Body, Bounds, ExecutionId, Namespace};
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{PageBounds, Read, Snapshot, Store, Target};
use tokio::sync::Semaphore;

struct World {
    begun: AtomicU32,
    gate: Semaphore,
}

type Shared = Arc<World>;

/// Runs until the gate lets it through.
#[task]
async fn gated(ctx: Ctx) -> Result<u32> {
    let world = ctx.state::<Shared>();
    let n = world.begun.fetch_add(1, Ordering::SeqCst) + 1;
    world.gate.acquire().await?.forget();
    Ok(n)
}

/// Returns its time.
#[task]
async fn clock(ctx: Ctx) -> Result<String> {
    Ok(ctx.now().to_string())
}

#[workflow]
async fn parent(ctx: Ctx) -> Result<String> {
    let ended = ctx.run(gated, ()).id("one").deadline(secs(60)).await;
    Ok(ended.map_or_else(|error| format!("{:?}", error.kind()), |n| n.to_string()))
}

fn run(test: impl AsyncFnOnce(&Lab, &Abide, &World)) {
    Lab::run(1, |lab| async move {
        let world = Shared::new(World { begun: AtomicU32::new(0), gate: Semaphore::new(0) });
        let open = |builder: Builder| builder.state(world.clone()).session_ttl(hours(1));
        let (_, abide) = lab.worker_with(open).await.unwrap();
        test(&lab, &abide, &world).await;
    });
}

#[test]
fn a_pause_is_seen_while_the_function_runs_to_its_end() {
    run(async |lab, abide, world| {
        let handle = abide.start(gated, ()).id("one").await.unwrap();
        lab.sleep(secs(5)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        let why = handle.why().await.unwrap();
        assert!(why.contains("is paused"), "{why}");
        world.gate.add_permits(1);
        lab.sleep(secs(5)).await;
        assert_eq!(handle.result().await.unwrap(), 1, "what has run is not thrown away");
    });
}

#[test]
fn a_failed_attempt_of_a_paused_task_is_followed_by_the_next_after_the_resume() {
    #[task]
    async fn fails_once(ctx: Ctx) -> Result<u32> {
        let world = ctx.state::<Shared>();
        let n = world.begun.fetch_add(1, Ordering::SeqCst) + 1;
        world.gate.acquire().await?.forget();
        if n == 1 { Err(Error::new("no")) } else { Ok(n) }
    }
    run(async |lab, abide, world| {
        let retry = Retry::fixed(secs(1)).max_attempts(3);
        let handle = abide.start(fails_once, ()).id("one").retry(retry).await.unwrap();
        lab.sleep(secs(5)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        world.gate.add_permits(10);
        lab.sleep(secs(60)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        assert_eq!(world.begun.load(Ordering::SeqCst), 1, "nothing new begins");
        handle.resume().await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.result().await.unwrap(), 2);
    });
}

#[test]
fn a_deadline_ends_a_function_that_runs() {
    run(async |lab, abide, world| {
        let handle = abide.start(gated, ()).id("one").deadline(secs(60)).await.unwrap();
        lab.sleep(secs(69)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Running, "it has its grace");
        lab.sleep(secs(2)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Failed);
        world.gate.add_permits(1);
        lab.sleep(secs(5)).await;
        let said = handle.result().await.unwrap_err().to_string();
        assert!(said.contains("the deadline"), "{said}");
    });
}

#[test]
fn a_deadline_ends_a_task_that_is_paused() {
    run(async |lab, abide, _| {
        let handle = abide.start(gated, ()).id("one").deadline(secs(60)).await.unwrap();
        lab.sleep(secs(5)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(70)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Failed, "{}", handle.why().await.unwrap());
    });
}

#[test]
fn a_parent_is_told_of_the_deadline_of_its_task() {
    run(async |lab, abide, _| {
        let handle = abide.start(parent, ()).id("parent").await.unwrap();
        lab.sleep(secs(80)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
        assert_eq!(handle.result().await.unwrap(), "Deadline");
    });
}

#[test]
fn signals_do_no_harm() {
    run(async |lab, abide, world| {
        let handle = abide.start(gated, ()).id("one").await.unwrap();
        for n in 0..50u32 {
            handle.signal("x", &n).await.unwrap();
            lab.sleep(ms(u64::from(n) * 7 % 40)).await;
        }
        world.gate.add_permits(5);
        for n in 0..5u32 {
            // The task may have ended by then.
            let _ = handle.signal("x", &n).await;
        }
        assert_eq!(handle.result().await.unwrap(), 1);
        assert_eq!(world.begun.load(Ordering::SeqCst), 1, "it ran once");
    });
}

async fn look(lab: &Lab) -> Snapshot {
    let (namespace, id) = (Namespace::default(), ExecutionId::new("one").unwrap());
    let target = Target::Address(Address { namespace, id });
    let read = Read { target, run: None, from: 0, limit: 0, with_inbox: true };
    lab.store().read(read).await.unwrap().unwrap()
}

/// Returns the first page of unread signals, by name.
async fn unread(lab: &Lab) -> Vec<String> {
    let found = look(lab).await;
    let name = |body: Body| match body {
        Body::Signal { name, .. } => name.to_string(),
        other => panic!("{other:?}"),
    };
    found.inbox.messages.into_iter().map(|message| name(message.body)).collect()
}

/// A task reads no signals. Acknowledged signals are still not thrown away: they stay where people
/// look for them, whatever the task goes through.
#[test]
fn signals_to_a_task_stay_unread() {
    #[task]
    async fn stumbles(ctx: Ctx) -> Result<u32> {
        let world = ctx.state::<Shared>();
        let n = world.begun.fetch_add(1, Ordering::SeqCst) + 1;
        world.gate.acquire().await?.forget();
        if n < 4 { Err(Error::new("no")) } else { Ok(n) }
    }
    Lab::run_on_each(1, |lab| async move {
        let world = Shared::new(World { begun: AtomicU32::new(0), gate: Semaphore::new(0) });
        let open = || lab.worker_with(|builder| builder.state(world.clone()));
        let (machine, abide) = open().await.unwrap();
        let retry = Retry::fixed(hours(1)).max_attempts(2);
        let handle = abide.start(stumbles, ()).id("one").retry(retry).await.unwrap();
        lab.sleep(secs(5)).await;
        handle.signal("running", &1).await.unwrap();
        lab.sleep(secs(5)).await;
        let mut sent = vec!["running"];
        assert_eq!(unread(&lab).await, sent);
        handle.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        handle.signal("paused", &1).await.unwrap();
        sent.push("paused");
        lab.sleep(secs(5)).await;
        assert_eq!(unread(&lab).await, sent);

        lab.crash(machine);
        let (machine, abide) = open().await.unwrap();
        let handle = abide.handle::<u32>("one");
        lab.sleep(secs(60)).await;
        assert_eq!(unread(&lab).await, sent, "after a restart");
        handle.signal("parked", &1).await.unwrap();
        sent.push("parked");
        lab.crash(machine);
        let (_, abide) = open().await.unwrap();
        let handle = abide.handle::<u32>("one");
        lab.sleep(secs(60)).await;
        assert_eq!(unread(&lab).await, sent, "after another one");
        let why = handle.why().await.unwrap();
        assert!(
            why.contains(r#"unread: signal "running" that a task never reads, signal "paused""#),
            "{why}"
        );

        handle.resume().await.unwrap();
        world.gate.add_permits(10);
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Sleeping);
        handle.signal("sleeping", &1).await.unwrap();
        sent.push("sleeping");
        lab.sleep(secs(60)).await;
        assert_eq!(world.begun.load(Ordering::SeqCst), 2, "no signal ends its pause");
        lab.sleep(hours(2)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Failed);
        assert_eq!(unread(&lab).await, sent, "of what has failed");
        handle.retry().await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 4);
        assert_eq!(unread(&lab).await, sent, "of what is completed");
    });
}

/// An unread message that the parking seat did not know would wake the task at once. The pages of
/// the inbox come slowly.
#[test]
fn each_attempt_of_a_task_with_much_mail_has_one_lease() {
    #[task]
    async fn fails(_ctx: Ctx) -> Result<u32> {
        Err(Error::new("no"))
    }
    let slow = |name| if name == "inbox" { Fault::Delay { poll_count: 3 } } else { Fault::None };
    let page_bounds = PageBounds { inbox_page_count_max: 1, ..PageBounds::default() };
    let store = |time| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::bounded(time, Bounds::default(), page_bounds), slow)
    };
    Lab::run_on(1, store, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let retry = Retry::fixed(hours(2)).max_attempts(3);
        let start = abide.start(fails, ()).id("one").retry(retry).delay(hours(1));
        let handle = start.await.unwrap();
        for _ in 0..3 {
            handle.signal("unread", &1).await.unwrap();
        }
        lab.sleep(secs(60)).await;
        let epoch_before = look(&lab).await.lease.epoch.0;
        for attempt in 1..=3 {
            lab.sleep(hours(2)).await;
            let sleeps = if attempt < 3 { Status::Sleeping } else { Status::Failed };
            assert_eq!(handle.status().await.unwrap(), sleeps);
            assert_eq!(look(&lab).await.lease.epoch.0, epoch_before + attempt, "after attempt {attempt}");
        }
        assert_eq!(unread(&lab).await.len(), 1, "of a page");
    });
}

#[test]
fn the_time_of_a_task_is_that_of_its_engine() {
    run(async |_, abide, _| {
        let told = abide.run(clock, ()).await.unwrap();
        assert!(told.starts_with("2025-06-15T"), "{told}");
    });
}

#[task]
async fn writes(_ctx: Ctx, length: usize) -> Result<String> {
    Ok("x".repeat(length))
}

/// It has run, and running it again would change nothing.
#[test]
fn p8_a_task_whose_result_is_too_large_is_blocked() {
    Lab::run_on_each(1, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.payload_bytes_max(1_000)).await.unwrap();
        assert_eq!(abide.run(writes, 900).id("small").await.unwrap().len(), 900);
        let handle = abide.start(writes, 1_000).id("large").await.unwrap();
        lab.sleep(secs(5)).await;
        let why = handle.why().await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
        assert!(why.contains("the result of the task") && why.contains("payload_bytes_max"), "{why}");
    });
}
