//! A passed deadline and live code: the code sees the deadline as it sees a cancellation, has a
//! grace period to wind down, and the run fails with its deadline.

use std::sync::{Arc, Mutex, OnceLock};

use abide::prelude::*;
use abide::testing::{Lab, Machine, transact};
use abide::{Abide, Handle};
use abide_core::{Address, Bounds, Event, ExecutionId, FailureKind, Namespace};
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::{MemoryStore, MemoryTable};
use abide_store::{Read, Store, Target};
use tokio::sync::Notify;

#[derive(Default)]
struct World {
    may_end: Notify,
    said: Mutex<Vec<String>>,
}

impl World {
    fn say(&self, what: impl Into<String>) {
        self.said.lock().unwrap().push(what.into());
    }

    fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    /// Returns everything said, each thing once: a replay says it again.
    fn saw(&self) -> Vec<String> {
        let mut saw = Vec::new();
        for what in self.said() {
            if !saw.contains(&what) {
                saw.push(what);
            }
        }
        saw
    }
}

type SharedWorld = Arc<World>;

/// A guard that reports when it is dropped.
struct Dropped(SharedWorld, &'static str);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.say(format!("{} dropped", self.1));
    }
}

fn told<T>(result: &Result<T>) -> String {
    result.as_ref().map_or_else(|error| format!("{:?}", error.kind()), |_| "a result".to_owned())
}

#[workflow]
async fn patient(ctx: Ctx) -> Result<()> {
    let slept = ctx.sleep(hours(5)).await;
    ctx.state::<SharedWorld>().say(format!("the child saw {}", told(&slept)));
    slept
}

/// Waits in the given way, then cleans up for this many seconds.
#[workflow]
async fn careful(ctx: Ctx, (way, seconds): (String, u64)) -> Result<String> {
    let world = ctx.state::<SharedWorld>().clone();
    let waited: Result<()> = match way.as_str() {
        "step" => {
            let inner = world.clone();
            ctx.step("wait", move || {
                let guard = Dropped(inner.clone(), "step");
                async move {
                    guard.0.may_end.notified().await;
                    Ok(())
                }
            })
            .await
        }
        "signal" => ctx.recv("go").await,
        "child" => ctx.run(patient, ()).id("child").await,
        _ => ctx.sleep(hours(5)).await,
    };
    world.say(format!("saw {}", told(&waited)));
    let again = ctx.sleep(ms(1)).await;
    world.say(format!("then {}", told(&again)));
    let cleaned: Result<()> = ctx
        .shield(async {
            ctx.sleep(secs(seconds)).await?;
            ctx.step("clean", || async { Ok(()) }).await
        })
        .await;
    world.say(format!("cleaned with {}", told(&cleaned)));
    waited.map(|()| "done".to_owned())
}

async fn worker(lab: &Lab, world: &SharedWorld) -> (Machine, Abide) {
    lab.worker_with(|builder| builder.state(world.clone())).await.unwrap()
}

async fn started(abide: &Abide, way: &str, seconds: u64) -> Handle<String> {
    abide.start(careful, (way.to_owned(), seconds)).id("one").deadline(hours(1)).await.unwrap()
}

/// Returns the words of the journal, and the error at its end.
async fn journal(lab: &Lab, id: &str) -> (Vec<&'static str>, Option<(FailureKind, String)>) {
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new(id).unwrap() };
    let read = Read { target: Target::Address(address), run: None, from: 1, limit: 100, with_inbox: false };
    let found = lab.store().read(read).await.unwrap().unwrap();
    let events: Vec<_> = found.journal.iter().map(|record| record.entry().unwrap().event).collect();
    let failure = match events.last() {
        Some(Event::Failed(failure)) => Some((failure.kind, failure.to_string())),
        _ => None,
    };
    (events.iter().map(Event::word).collect(), failure)
}

async fn assert_deadline(lab: &Lab, handle: &Handle<String>) {
    assert_eq!(handle.status().await.unwrap(), Status::Failed, "{}", handle.why().await.unwrap());
    let (words, failure) = journal(lab, "one").await;
    assert_eq!(failure.map(|(kind, _)| kind), Some(FailureKind::Deadline), "{words:?}");
}

/// Starts one execution, passes its deadline, and lets code that winds down for three seconds end.
fn check_seen(way: &str, saw: &[&str], words: &[&str]) {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = worker(&lab, &world).await;
        let handle = started(&abide, way, 3).await;
        lab.sleep(hours(1) + secs(1)).await;
        assert!(!handle.status().await.unwrap().is_terminal(), "it winds down");
        let why = handle.why().await.unwrap();
        assert!(why.contains("is past its deadline, ends at "), "{why}");
        lab.sleep(secs(3)).await;
        assert_deadline(&lab, &handle).await;
        assert_eq!(world.saw(), saw);
        assert_eq!(journal(&lab, "one").await.0, words);
    });
}

#[test]
fn code_in_a_step_sees_its_deadline_and_cleans_up() {
    let saw = ["step dropped", "saw Deadline", "then Deadline", "cleaned with a result"];
    let words = ["started", "deadline-passed", "timer-set", "timer-fired", "step-recorded", "failed"];
    check_seen("step", &saw, &words);
}

#[test]
fn code_that_sleeps_out_of_memory_sees_its_deadline() {
    let saw = ["saw Deadline", "then Deadline", "cleaned with a result"];
    let words =
        ["started", "timer-set", "deadline-passed", "timer-set", "timer-fired", "step-recorded", "failed"];
    check_seen("sleep", &saw, &words);
}

#[test]
fn child_is_asked_to_stop_when_the_deadline_of_its_parent_has_passed() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = worker(&lab, &world).await;
        let handle = started(&abide, "child", 3).await;
        lab.sleep(hours(1) + secs(1)).await;
        let child: Handle<String> = abide.handle("child");
        assert_eq!(child.status().await.unwrap(), Status::Cancelled, "{}", child.why().await.unwrap());
        assert!(!handle.status().await.unwrap().is_terminal(), "it winds down");
        lab.sleep(secs(3)).await;
        assert_deadline(&lab, &handle).await;
        let saw = ["saw Deadline", "then Deadline", "the child saw Cancelled", "cleaned with a result"];
        assert_eq!(world.saw(), saw);
    });
}

#[test]
fn what_still_runs_after_the_grace_is_dropped() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = worker(&lab, &world).await;
        let handle = started(&abide, "step", 60).await;
        lab.sleep(hours(1) + ms(9_900)).await;
        assert!(!handle.status().await.unwrap().is_terminal(), "it winds down");
        lab.sleep(ms(200)).await;
        assert_deadline(&lab, &handle).await;
        lab.sleep(minutes(5)).await;
        assert_eq!(world.saw(), ["step dropped", "saw Deadline", "then Deadline"]);
    });
}

#[test]
fn the_grace_can_be_set() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let options = |builder: abide::Builder| builder.state(world.clone()).deadline_grace_ms(500);
        let (_, abide) = lab.worker_with(options).await.unwrap();
        let handle = started(&abide, "step", 3).await;
        lab.sleep(hours(1) + ms(600)).await;
        assert_deadline(&lab, &handle).await;
    });
}

/// Returns a result that comes too late.
#[workflow]
async fn returns_anyway(ctx: Ctx) -> Result<String> {
    match ctx.sleep(hours(5)).await {
        Err(error) if error.is_deadline() => Ok("in spite of it".to_owned()),
        other => other.map(|()| "slept".to_owned()),
    }
}

#[test]
fn result_after_the_deadline_is_none() {
    Lab::run(1, |lab| async move {
        let (_, abide) = worker(&lab, &SharedWorld::default()).await;
        let handle = abide.start(returns_anyway, ()).id("one").deadline(hours(1)).await.unwrap();
        lab.sleep(hours(1) + secs(1)).await;
        assert_deadline(&lab, &handle).await;
    });
}

#[workflow]
async fn fails_to_clean_up(ctx: Ctx) -> Result<String> {
    let _ = ctx.sleep(hours(5)).await;
    Err(Error::new("the bin is full"))
}

#[test]
fn error_of_the_clean_up_is_told_with_the_deadline() {
    Lab::run(1, |lab| async move {
        let (_, abide) = worker(&lab, &SharedWorld::default()).await;
        let handle = abide.start(fails_to_clean_up, ()).id("one").deadline(hours(1)).await.unwrap();
        lab.sleep(hours(1) + secs(1)).await;
        assert_deadline(&lab, &handle).await;
        let (_, failure) = journal(&lab, "one").await;
        assert!(failure.unwrap().1.ends_with("has passed: the bin is full"));
    });
}

#[workflow]
async fn blocks_in_its_clean_up(ctx: Ctx) -> Result<String> {
    let _ = ctx.sleep(hours(5)).await;
    std::future::pending().await
}

#[test]
fn what_blocks_in_its_clean_up_fails_at_once() {
    Lab::run(1, |lab| async move {
        let (_, abide) = worker(&lab, &SharedWorld::default()).await;
        let handle = abide.start(blocks_in_its_clean_up, ()).id("one").deadline(hours(1)).await.unwrap();
        lab.sleep(hours(1) + secs(1)).await;
        assert_deadline(&lab, &handle).await;
    });
}

#[test]
fn paused_code_sees_its_deadline() {
    for pause_at in [minutes(10), hours(1) - ms(1)] {
        Lab::run(1, |lab| async move {
            let world = SharedWorld::default();
            let (_, abide) = worker(&lab, &world).await;
            let handle = started(&abide, "signal", 3).await;
            lab.sleep(pause_at).await;
            handle.pause().await.unwrap();
            lab.sleep(hours(1) + secs(1) - pause_at).await;
            assert!(!handle.status().await.unwrap().is_terminal(), "it winds down");
            lab.sleep(secs(3)).await;
            assert_deadline(&lab, &handle).await;
            assert_eq!(world.saw(), ["saw Deadline", "then Deadline", "cleaned with a result"]);
        });
    }
}

#[test]
fn deadline_that_passed_during_downtime_is_seen_by_the_code_that_comes() {
    Lab::run(1, |lab| async move {
        let (machine, abide) = worker(&lab, &SharedWorld::default()).await;
        started(&abide, "sleep", 3).await;
        lab.sleep(minutes(10)).await;
        lab.crash(machine);
        lab.sleep(hours(2)).await;
        let world = SharedWorld::default();
        let (_, abide) = worker(&lab, &world).await;
        let handle: Handle<String> = abide.handle("one");
        lab.sleep(secs(1)).await;
        assert!(!handle.status().await.unwrap().is_terminal(), "it winds down");
        lab.sleep(secs(5)).await;
        assert_deadline(&lab, &handle).await;
        assert_eq!(world.saw(), ["saw Deadline", "then Deadline", "cleaned with a result"]);
    });
}

/// The grace period is recorded when it begins. A crash does not begin it anew, and a replay sees
/// the deadline where the code saw it first.
#[test]
fn clean_up_that_a_crash_interrupted_goes_on_within_the_same_grace() {
    let saw = ["saw Deadline", "then Deadline", "cleaned with a result"];
    for (crash_at, saw) in [(secs(2), &saw[..]), (secs(9), &saw[..0])] {
        Lab::run(1, |lab| async move {
            let options = |builder: abide::Builder| builder.session_ttl(secs(3));
            let first = lab.worker_with(|builder| options(builder).state(SharedWorld::default())).await;
            let (machine, abide) = first.unwrap();
            started(&abide, "sleep", 8).await;
            lab.sleep(hours(1) + crash_at).await;
            lab.crash(machine);
            let world = SharedWorld::default();
            let second = lab.worker_with(|builder| options(builder).state(world.clone())).await;
            let (_, abide) = second.unwrap();
            lab.sleep(secs(12) - crash_at).await;
            let handle: Handle<String> = abide.handle("one");
            assert_deadline(&lab, &handle).await;
            let (words, _) = journal(&lab, "one").await;
            assert_eq!(words.iter().filter(|word| **word == "deadline-passed").count(), 1, "{words:?}");
            assert_eq!(world.saw(), saw);
        });
    }
}

#[test]
fn deadline_that_passes_during_a_cancel_gives_its_clean_up_the_grace() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = worker(&lab, &world).await;
        let handle = started(&abide, "signal", 60).await;
        lab.sleep(hours(1) - secs(2)).await;
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(11)).await;
        assert!(!handle.status().await.unwrap().is_terminal(), "it winds down");
        lab.sleep(secs(2)).await;
        assert_deadline(&lab, &handle).await;
        assert_eq!(world.saw(), ["saw Cancelled", "then Cancelled"]);
    });
}

#[test]
fn cancel_after_the_deadline_changes_nothing() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = worker(&lab, &world).await;
        let handle = started(&abide, "signal", 5).await;
        lab.sleep(hours(1) + secs(1)).await;
        handle.cancel("enough").await.unwrap();
        assert!(handle.pause().await.unwrap_err().to_string().contains("its deadline has passed"));
        lab.sleep(secs(5)).await;
        assert_deadline(&lab, &handle).await;
        assert_eq!(world.saw(), ["saw Deadline", "then Deadline", "cleaned with a result"]);
    });
}

#[test]
fn terminate_after_the_deadline_ends_it_at_once() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = worker(&lab, &world).await;
        let handle = started(&abide, "signal", 5).await;
        lab.sleep(hours(1) + secs(1)).await;
        handle.terminate("now").await.unwrap();
        lab.sleep(ms(100)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
        assert_eq!(world.saw(), ["saw Deadline", "then Deadline"]);
    });
}

#[test]
fn code_that_nobody_called_before_the_deadline_is_not_called() {
    Lab::run(1, |lab| async move {
        let client = lab.client().await.unwrap();
        let handle = started(&client, "signal", 3).await;
        lab.sleep(hours(2)).await;
        let world = SharedWorld::default();
        let (_, _abide) = worker(&lab, &world).await;
        lab.sleep(secs(1)).await;
        assert_deadline(&lab, &handle).await;
        assert!(world.saw().is_empty());
    });
}

/// Has its deadline pass while its transaction is under way.
#[workflow]
async fn writes(ctx: Ctx) -> Result<String> {
    let (world, lab) = (ctx.state::<SharedWorld>().clone(), ctx.state::<Lab>().clone());
    let written: Result<()> = transact(&ctx, "write", move |table| {
        lab.set_clock_forward(secs(20));
        table.downcast_ref::<MemoryTable>().expect("a table").put("k", "v");
        Ok(())
    })
    .await;
    world.say(format!("saw {}", told(&written)));
    let slept = ctx.sleep(hours(1)).await;
    world.say(format!("then {}", told(&slept)));
    slept.map(|()| "done".to_owned())
}

#[test]
fn transaction_that_was_under_way_is_seen_before_the_deadline() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let options =
            |builder: abide::Builder| builder.state(world.clone()).state(lab.clone()).session_ttl(hours(1));
        let (_, abide) = lab.worker_with(options).await.unwrap();
        let handle = abide.start(writes, ()).id("one").deadline(secs(10)).await.unwrap();
        lab.sleep(secs(2)).await;
        assert_deadline(&lab, &handle).await;
        assert_eq!(world.saw(), ["saw a result", "then Deadline"]);
        assert_eq!(
            journal(&lab, "one").await.0,
            ["started", "step-recorded", "deadline-passed", "failed"],
            "what was recorded goes first"
        );
    });
}

/// Runs until it may end, and then fails if `fails` says so.
#[task]
async fn busy(ctx: Ctx, fails: bool) -> Result<String> {
    let guard = Dropped(ctx.state::<SharedWorld>().clone(), "task");
    guard.0.say("begun");
    guard.0.may_end.notified().await;
    if fails { Err(Error::new("no")) } else { Ok("done".to_owned()) }
}

async fn busy_task(abide: &Abide, fails: bool) -> Handle<String> {
    let retry = Retry::fixed(ms(1)).max_attempts(5);
    abide.start(busy, fails).id("one").retry(retry).deadline(hours(1)).await.unwrap()
}

#[test]
fn task_is_dropped_after_the_grace() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = worker(&lab, &world).await;
        let handle = busy_task(&abide, false).await;
        lab.sleep(hours(1) + ms(9_900)).await;
        assert_eq!(world.said(), ["begun"]);
        lab.sleep(ms(200)).await;
        assert_deadline(&lab, &handle).await;
        assert_eq!(world.said(), ["begun", "task dropped"]);
    });
}

#[test]
fn task_that_ends_within_the_grace_has_failed_and_is_not_tried_again() {
    for fails in [false, true] {
        Lab::run(1, |lab| async move {
            let world = SharedWorld::default();
            let (_, abide) = worker(&lab, &world).await;
            let handle = busy_task(&abide, fails).await;
            lab.sleep(hours(1) + secs(5)).await;
            world.may_end.notify_one();
            lab.sleep(secs(1)).await;
            assert_deadline(&lab, &handle).await;
            lab.sleep(secs(10)).await;
            assert_eq!(world.said(), ["begun", "task dropped"]);
        });
    }
}

/// The worker dies within the grace period: nobody runs the task any more, and it does not begin
/// again.
#[test]
fn task_whose_worker_dies_after_its_deadline_does_not_begin_again() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let open = |builder: abide::Builder| {
            builder.state(world.clone()).deadline_grace_ms(3_600_000).session_ttl(secs(3))
        };
        let (machine, abide) = lab.worker_with(open).await.unwrap();
        busy_task(&abide, false).await;
        lab.sleep(hours(1) + secs(5)).await;
        lab.crash(machine);
        let (_, abide) = lab.worker_with(open).await.unwrap();
        lab.sleep(secs(30)).await;
        assert_deadline(&lab, &abide.handle("one")).await;
        let begun_count = world.said().iter().filter(|what| *what == "begun").count();
        assert_eq!(begun_count, 1, "it began again");
    });
}

#[test]
fn paused_task_that_runs_has_its_grace() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = worker(&lab, &world).await;
        let handle = busy_task(&abide, false).await;
        lab.sleep(minutes(10)).await;
        handle.pause().await.unwrap();
        lab.sleep(minutes(50) + secs(5)).await;
        assert!(!handle.status().await.unwrap().is_terminal());
        lab.sleep(secs(6)).await;
        assert_deadline(&lab, &handle).await;
        assert_eq!(world.said(), ["begun", "task dropped"]);
    });
}

#[workflow]
async fn late_starter(ctx: Ctx) -> Result<String> {
    let world = ctx.state::<SharedWorld>();
    ctx.step("first", || async {
        world.may_end.notified().await;
        Ok(())
    })
    .await?;
    ctx.run(prompt, ()).deadline(secs(10)).await
}

#[workflow]
async fn prompt(ctx: Ctx) -> Result<String> {
    ctx.sleep(secs(5)).await?;
    Ok("in time".to_owned())
}

/// The step ends while its workflow is paused: the last time that the code saw is an hour old when
/// it starts the child.
#[test]
fn the_deadline_of_a_child_counts_from_its_start() {
    Lab::run_on_each(21, async |lab| {
        let world = SharedWorld::default();
        let state = world.clone();
        let (_, abide) = lab.worker_with(|builder| builder.state(state)).await.unwrap();
        let handle = abide.start(late_starter, ()).id("p").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(1)).await;
        world.may_end.notify_one();
        lab.sleep(hours(1)).await;
        handle.resume().await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "in time");
    });
}

#[workflow]
async fn sleeps_beside_a_step(ctx: Ctx) -> Result<()> {
    let (slept, noted) =
        futures_util::join!(ctx.sleep(secs(2)).into_future(), ctx.step("note", || async { Ok(()) }));
    slept.and(noted)
}

#[test]
fn a_deadline_goes_before_a_timer_that_is_due_later_even_if_a_commit_takes_longer_than_both() {
    let mut commit_count = 0;
    let held = Arc::new(OnceLock::new());
    let healed = held.clone();
    let faulty = move |clock| {
        let faulty = FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |name| {
            commit_count += u32::from(name == "commit");
            if (name, commit_count) == ("commit", 2) { Fault::Hold } else { Fault::None }
        });
        held.get_or_init(|| faulty).clone() as Arc<dyn Store>
    };
    Lab::run_on(1, faulty, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let late = abide.start(sleeps_beside_a_step, ()).id("late").deadline(secs(1)).await.unwrap();
        lab.sleep(secs(3)).await;
        // Mail has the runner look at everything.
        late.signal("news", &()).await.unwrap();
        lab.sleep(secs(1)).await;
        healed.get().unwrap().heal();
        lab.sleep(secs(1)).await;
        let (events, _) = journal(&lab, "late").await;
        assert_eq!(events, ["started", "timer-set", "step-recorded", "deadline-passed", "failed"]);
    });
}
