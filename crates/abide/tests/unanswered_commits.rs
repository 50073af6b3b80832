//! Events that reach a workflow while one of its commits is under way: there is one commit at a
//! time, and nobody hears of anything before it is durable.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::Bounds;
use abide_sqlite::SqliteStore;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Store};
use tokio::sync::Semaphore;

/// The faults and gates that the test controls, and the counts of what ran.
struct World {
    is_unanswered: AtomicBool,
    may_end: Semaphore,
    run_count: AtomicU32,
}

type Shared = Arc<World>;

impl World {
    fn new() -> Shared {
        let (is_unanswered, may_end) = (AtomicBool::new(true), Semaphore::new(0));
        Shared::new(Self { is_unanswered, may_end, run_count: AtomicU32::new(0) })
    }
}

/// Makes a store whose commits meet `fault` until the test says otherwise.
fn unanswered(store: Arc<dyn Store>, world: &Shared, fault: Fault) -> Arc<dyn Store> {
    let world = world.clone();
    FaultyStore::deciding(store, move |name| {
        let is_unanswered = name == "commit" && world.is_unanswered.load(Ordering::Relaxed);
        if is_unanswered { fault } else { Fault::None }
    })
}

/// Runs two steps: one ends at once, the other when it may.
#[workflow]
async fn both(ctx: Ctx) -> Result<u32> {
    let world = ctx.state::<Shared>();
    let (quick, slow) =
        futures_util::join!(step(&ctx, "quick", None), step(&ctx, "slow", Some(&world.may_end)));
    Ok(quick? + slow?)
}

async fn step(ctx: &Ctx, name: &str, gate: Option<&Semaphore>) -> Result<u32> {
    let world = ctx.state::<Shared>();
    ctx.step(name, || async {
        if let Some(gate) = gate {
            gate.acquire().await?.forget();
        }
        Ok(world.run_count.fetch_add(1, Ordering::Relaxed))
    })
    .await
}

/// Starts a workflow from another machine, so that its first commit does not go with its start.
async fn by_client<W: abide::Workflow<Input = ()>>(lab: &Lab, workflow: W, id: &str) -> Handle<W::Output> {
    lab.client().await.unwrap().start(workflow, ()).id(id).await.unwrap()
}

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, Bounds::default())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

/// Lets `event` happen while the commit of the first step is under way. Returns how the execution
/// ended, for each outcome of that commit.
fn ended(event: impl AsyncFn(&Lab, &Shared, &Handle<u32>)) -> Vec<Status> {
    let mut ends = Vec::new();
    for make in [memory, sqlite] {
        // The commit has not happened, or has happened without an answer: neither may be taken for
        // the next commit.
        for fault in [Fault::Unavailable, Fault::Indeterminate] {
            let world = World::new();
            let faulty = |clock| unanswered(make(clock), &world, fault);
            ends.push(Lab::run_on(1, faulty, |lab| end(lab, &world, &event)));
            assert!(world.run_count.load(Ordering::Relaxed) <= 2, "no step ran twice");
        }
    }
    ends
}

async fn end(lab: Lab, world: &Shared, event: &impl AsyncFn(&Lab, &Shared, &Handle<u32>)) -> Status {
    let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
    let handle = abide.start(both, ()).id("one").deadline(minutes(1)).await.unwrap();
    lab.sleep(secs(1)).await;
    event(&lab, world, &handle).await;
    lab.sleep(secs(1)).await;
    assert_eq!(handle.status().await.unwrap(), Status::Running, "nothing is told before it is durable");
    world.is_unanswered.store(false, Ordering::Relaxed);
    lab.sleep(secs(10)).await;
    handle.status().await.unwrap()
}

#[test]
fn a_workflow_that_ends_waits_for_the_commit_under_way() {
    let ends = ended(async |_, world, _| world.may_end.add_permits(1));
    assert_eq!(ends, [Status::Completed; 4]);
}

#[test]
fn a_termination_waits_for_the_commit_under_way() {
    let ends = ended(async |_, _, handle| handle.terminate("enough").await.unwrap());
    assert_eq!(ends, [Status::Cancelled; 4]);
}

#[test]
fn a_deadline_waits_for_the_commit_under_way() {
    // The code is yet to see the deadline, or its grace period is over as well and the run ends.
    for passed in [minutes(1), minutes(2)] {
        let ends = ended(async |lab, _, _| lab.sleep(passed).await);
        assert_eq!(ends, [Status::Failed; 4]);
    }
}

#[workflow]
async fn one_after_the_other(ctx: Ctx) -> Result<u32> {
    Ok(step(&ctx, "first", None).await? + step(&ctx, "second", None).await?)
}

/// Durable before effect: whatever the code does with a result, the next closure waits until that
/// result is recorded.
#[test]
fn no_closure_begins_before_the_result_before_it_is_durable() {
    for make in [memory, sqlite] {
        for fault in [Fault::Unavailable, Fault::Indeterminate] {
            let world = World::new();
            let faulty = |clock| unanswered(make(clock), &world, fault);
            Lab::run_on(1, faulty, |lab| {
                let world = world.clone();
                async move {
                    let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
                    let handle = abide.start(one_after_the_other, ()).id("one").await.unwrap();
                    lab.sleep(secs(5)).await;
                    assert_eq!(world.run_count.load(Ordering::Relaxed), 1, "the second began too early");
                    world.is_unanswered.store(false, Ordering::Relaxed);
                    assert_eq!(handle.result().await.unwrap(), 1);
                }
            });
        }
    }
}

#[workflow]
async fn wide(ctx: Ctx, width: u32) -> Result<u32> {
    let names: Vec<_> = (0..width).map(|n| n.to_string()).collect();
    let steps = names.iter().map(|name| step(&ctx, name, None));
    Ok(futures_util::future::try_join_all(steps).await?.into_iter().sum())
}

/// A caller that hears that nothing was changed sends its signal again, under another id.
#[test]
fn a_signal_that_may_have_arrived_is_not_said_to_have_failed() {
    let then = [Fault::Unavailable, Fault::Unread, Fault::Corrupt];
    for (make, then) in then.into_iter().flat_map(|then| [(memory as fn(_) -> _, then), (sqlite, then)]) {
        let faults = Arc::new(AtomicU32::new(0));
        let left = faults.clone();
        let faulty = |clock| -> Arc<dyn Store> {
            FaultyStore::deciding(make(clock), move |name| {
                if name != "submit" || left.load(Ordering::Relaxed) == 0 {
                    return Fault::None;
                }
                match left.fetch_sub(1, Ordering::Relaxed) {
                    FAULT_COUNT => Fault::Indeterminate,
                    _ => then,
                }
            })
        };
        Lab::run_on(1, faulty, |lab| async move {
            let (_, abide) = lab.worker().await.unwrap();
            let handle = abide.start(receives, ()).id("one").await.unwrap();
            faults.store(FAULT_COUNT, Ordering::Relaxed);
            let error = handle.signal("n", &7u64).await.unwrap_err();
            assert!(matches!(error, ClientError::Indeterminate { .. }), "{error}");
            assert_eq!(handle.result().await.unwrap(), 7);
        });
    }
}

/// A number of faults above the number of times that a client tries.
const FAULT_COUNT: u32 = 20;

#[workflow]
async fn receives(ctx: Ctx) -> Result<u64> {
    ctx.recv("n").await
}

/// There are more steps than one commit takes: an execution with recorded results that its code has
/// not seen waits for nothing.
#[test]
fn what_commits_in_the_middle_of_its_work_is_running() {
    let world = &World::new();
    let faulty = |clock| unanswered(memory(clock), world, Fault::Indeterminate);
    Lab::run_on(1, faulty, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        let handle = abide.start(wide, 200).id("wide").await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Running);
        world.is_unanswered.store(false, Ordering::Relaxed);
        assert_eq!(handle.result().await.unwrap(), 199 * 200 / 2);
    });
}

/// The writes of a transaction step and its entry commit together, so the engine can send either
/// again.
#[test]
fn a_transaction_whose_commit_is_unanswered_happens_once() {
    for (fault, run_count) in [(Fault::Unavailable, 1), (Fault::Indeterminate, 1)] {
        let world = &World::new();
        let faulty = |clock| unanswered(sqlite(clock), world, fault);
        Lab::run_on(1, faulty, |lab| async move {
            let (_, _worker) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
            let handle = by_client(&lab, books, "one").await;
            lab.sleep(secs(5)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Running);
            world.is_unanswered.store(false, Ordering::Relaxed);
            assert_eq!(handle.result().await.unwrap(), 1);
        });
        assert_eq!(world.run_count.load(Ordering::Relaxed), run_count, "{fault:?}");
    }
}

/// Writes a row, and returns the number of rows then.
#[workflow]
async fn books(ctx: Ctx) -> Result<u32> {
    let world = Shared::clone(ctx.state::<Shared>());
    ctx.sqlite("book", move |tx| {
        world.run_count.fetch_add(1, Ordering::Relaxed);
        tx.execute_batch("CREATE TABLE IF NOT EXISTS ledger (n); INSERT INTO ledger VALUES (1)")?;
        Ok(tx.query_row("SELECT COUNT(*) FROM ledger", [], |row| row.get(0))?)
    })
    .await
}

/// A commit that the store never takes is not tried forever: the unrecorded steps would run each
/// time.
#[test]
fn a_commit_that_fails_for_good_blocks_its_execution() {
    for (workflow, limit) in [(Failing::Step, 5), (Failing::Transaction, 0)] {
        let world = &World::new();
        let faulty = |clock| unanswered(sqlite(clock), world, Fault::Corrupt);
        Lab::run_on(1, faulty, |lab| async move {
            let (_, _worker) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
            let handle = match workflow {
                Failing::Step => by_client(&lab, counts, "one").await,
                Failing::Transaction => by_client(&lab, books, "one").await,
            };
            lab.sleep(hours(1)).await;
            assert_eq!(world.run_count.load(Ordering::Relaxed), limit, "it was tried so often");
            world.is_unanswered.store(false, Ordering::Relaxed);
            lab.sleep(minutes(2)).await;
            let why = handle.why().await.unwrap();
            assert!(why.contains("blocked") && why.contains("an injected fault of commit"), "{why}");
            handle.unblock().await.unwrap();
            assert_eq!(handle.result().await.unwrap(), 1);
        });
        assert_eq!(world.run_count.load(Ordering::Relaxed), limit + 1);
    }
}

#[derive(Clone, Copy)]
enum Failing {
    Step,
    Transaction,
}

#[workflow]
async fn counts(ctx: Ctx) -> Result<u32> {
    let world = ctx.state::<Shared>();
    ctx.step("count", || async {
        world.run_count.fetch_add(1, Ordering::Relaxed);
        Ok(1)
    })
    .await
}

#[workflow]
async fn kid(ctx: Ctx) -> Result<u32> {
    step(&ctx, "kid", None).await
}

/// Leaves memory with the commit that starts its child.
#[workflow]
async fn leaves(ctx: Ctx) -> Result<u32> {
    let child = ctx.start(kid, ()).id("kid").await?;
    ctx.sleep(hours(1)).await?;
    child.result().await
}

/// The commit that starts a child and parks its parent has happened without an answer. A signal
/// wakes the parent before the commit is sent again, so the second one is fenced: the child was
/// started all the same.
#[test]
fn a_child_is_not_stranded_when_the_commit_that_started_it_is_fenced() {
    for make in [memory, sqlite] {
        let world = World::new();
        let told = world.clone();
        let faulty = move |clock| {
            FaultyStore::deciding(make(clock), move |name| {
                let is_first = name == "commit" && told.is_unanswered.swap(false, Ordering::Relaxed);
                if is_first { Fault::Indeterminate } else { Fault::None }
            }) as Arc<dyn Store>
        };
        Lab::run_on(1, faulty, |lab| async move {
            let with_state = |builder: abide::Builder| builder.state(world.clone()).session_ttl(hours(10));
            let (_, abide) = lab.worker_with(with_state).await.unwrap();
            let parent = abide.start(leaves, ()).id("parent").await.unwrap();
            lab.sleep(ms(5)).await;
            parent.signal("wake", &()).await.unwrap();
            lab.sleep(secs(10)).await;
            let child = abide.handle::<u32>("kid");
            assert_eq!(child.status().await.unwrap(), Status::Completed, "{}", child.why().await.unwrap());
        });
    }
}

/// Takes longer than a read of a record, and less time than a slow heartbeat.
#[workflow]
async fn slow_kid(ctx: Ctx) -> Result<u32> {
    let world = ctx.state::<Shared>();
    ctx.step("slow", || async {
        world.run_count.fetch_add(1, Ordering::Relaxed);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        Ok(1)
    })
    .await
}

#[workflow]
async fn parent_of_one(ctx: Ctx) -> Result<u32> {
    ctx.run(slow_kid, ()).await
}

/// The commit that starts a child is repeated, and its answer brings the child. A look for the
/// child at the same time reads the record before the child has run, and is slow: the record is old
/// by then, and must not begin the child again.
#[test]
fn a_child_that_was_looked_for_and_told_of_runs_once() {
    for make in [memory, sqlite] {
        for seed in 0..50 {
            let world = World::new();
            let told = world.clone();
            let faulty = move |clock| {
                FaultyStore::deciding(make(clock), move |name| match name {
                    "commit" if told.is_unanswered.swap(false, Ordering::Relaxed) => Fault::Unavailable,
                    "heartbeat" => Fault::Delay { poll_count: 100 },
                    _ => Fault::None,
                }) as Arc<dyn Store>
            };
            let ran = world.clone();
            Lab::run_on(seed, faulty, |lab| async move {
                let (_, _worker) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
                by_client(&lab, parent_of_one, "parent").await.result().await.unwrap();
                lab.sleep(secs(10)).await;
            });
            assert_eq!(ran.run_count.load(Ordering::Relaxed), 1, "seed {seed}");
        }
    }
}

/// The commit that starts a child has happened, and is reported as failed. The answer to its
/// repetition brings the child, and is late: meanwhile the session is over, and another worker has
/// run the child to its end.
#[test]
fn a_child_that_has_ended_is_not_begun_by_a_late_answer() {
    for make in [memory, sqlite] {
        let (world, store) = (World::new(), Arc::new(OnceLock::new()));
        let (ran, healed) = (world.clone(), store.clone());
        let mut commit_count = 0;
        let faulty = move |clock| {
            let faulty = FaultyStore::deciding(make(clock), move |name| {
                commit_count += u32::from(name == "commit");
                match (name, commit_count) {
                    ("commit", 1) => Fault::Indeterminate,
                    ("commit", 2) => Fault::Hold,
                    ("heartbeat", _) => Fault::Unavailable,
                    _ => Fault::None,
                }
            });
            store.get_or_init(|| faulty).clone() as Arc<dyn Store>
        };
        Lab::run_on(1, faulty, |lab| async move {
            let lives = |ttl| {
                let world = world.clone();
                move |builder: abide::Builder| builder.state(world).session_ttl(ttl)
            };
            let (_, _worker) = lab.worker_with(lives(hours(1))).await.unwrap();
            let parent = by_client(&lab, parent_of_one, "parent").await;
            lab.sleep(secs(5)).await;
            assert_eq!(world.run_count.load(Ordering::Relaxed), 0, "nobody knows of the child");
            // Its worker does not know, and its own clock says that it is alive.
            let all = abide_store::Workers { namespace: Default::default(), after: None, limit: 9 };
            let session = lab.store().workers(all).await.unwrap()[0].session;
            let reason = "gone".to_owned();
            lab.store().retire(abide_store::Retire { session, reason }).await.unwrap();
            let _other = lab.worker_with(lives(hours(1))).await.unwrap();
            lab.sleep(secs(10)).await;
            assert_eq!(parent.status().await.unwrap(), Status::Completed, "{}", parent.why().await.unwrap());
            healed.get().unwrap().heal();
            lab.sleep(secs(10)).await;
        });
        assert_eq!(ran.run_count.load(Ordering::Relaxed), 1, "the child ran once more after its end");
    }
}
