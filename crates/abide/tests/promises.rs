//! The promises of the README, by name, each on the in-memory store, on SQLite and on PostgreSQL.
//!
//! P2 on PostgreSQL is `server_faults`: its servers lose everything but their disks.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abide::prelude::*;
use abide::testing::{Lab, Machine};
use abide_core::Bounds;
use abide_sqlite::SqliteStore;
use abide_store::conformance::{self, Recorded};
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Store};
use tokio::sync::Notify;

#[cfg(feature = "postgres")]
mod server_store;

/// The gates of the steps, and the record of what they did.
#[derive(Default)]
struct World {
    run_count: AtomicU32,
    begun: Notify,
    may_end: Notify,
}

type Shared = Arc<World>;

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, Bounds::default())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

/// What makes a store.
type Make = fn(Arc<dyn Clock>) -> Arc<dyn Store>;

/// Every kind of store.
const STORES: &[Make] = &[
    memory,
    sqlite,
    #[cfg(feature = "postgres")]
    server_store::postgres,
];

/// Runs a test on every kind of store.
fn on_all<Fut: Future<Output = ()>>(test: impl Fn(Lab, Shared) -> Fut) {
    for make in STORES {
        Lab::run_on(1, make, |lab| test(lab, Shared::default()));
    }
}

async fn worker(lab: &Lab, world: &Shared) -> (Machine, Abide) {
    lab.worker_with(|builder| builder.state(world.clone()).session_ttl(secs(3))).await.unwrap()
}

#[workflow]
async fn counted(ctx: Ctx) -> Result<u32> {
    let world = ctx.state::<Shared>();
    let n = ctx.step("count", || async { Ok(world.run_count.fetch_add(1, Ordering::Relaxed)) }).await?;
    ctx.sleep(secs(10)).await?;
    ctx.step("after", || async { Ok(()) }).await?;
    Ok(n)
}

#[test]
fn p1_recorded_once() {
    on_all(async |lab, world| {
        let (mut machine, abide) = worker(&lab, &world).await;
        abide.start(counted, ()).id("one").await.unwrap();
        for _ in 0..3 {
            lab.sleep(secs(2)).await;
            lab.crash(machine);
            machine = worker(&lab, &world).await.0;
        }
        let (_, abide) = worker(&lab, &world).await;
        assert_eq!(abide.handle::<u32>("one").result().await.unwrap(), 0);
        assert_eq!(world.run_count.load(Ordering::Relaxed), 1);
    });
}

/// Copies what a crash at this moment would leave: the files, and nothing that is only in memory.
fn crash_image(folder: &Path) -> (tempfile::TempDir, String) {
    let image = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        // The index of the log is shared memory, which does not outlive a machine.
        if !entry.path().to_string_lossy().ends_with("-shm") {
            std::fs::copy(entry.path(), image.path().join(entry.file_name())).unwrap();
        }
    }
    let url = format!("sqlite:{}", image.path().join("app.db").display());
    (image, url)
}

/// The machine is lost at the very moment of an answer, and another one opens the files on its
/// disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_acknowledged_means_durable() {
    let folder = tempfile::tempdir().unwrap();
    let first = Abide::open(&format!("sqlite:{}", folder.path().join("app.db").display())).await.unwrap();
    let handle = first.start(waits, ()).id("one").await.unwrap();
    let started = crash_image(folder.path());
    handle.signal("n", &7u64).await.unwrap();
    let signalled = crash_image(folder.path());
    assert_eq!(handle.result().await.unwrap(), 7);
    let ended = crash_image(folder.path());

    let second = Abide::open(&started.1).await.unwrap();
    second.handle::<u64>("one").signal("n", &8u64).await.unwrap();
    assert_eq!(second.handle::<u64>("one").result().await.unwrap(), 8);
    let second = Abide::open(&signalled.1).await.unwrap();
    assert_eq!(second.handle::<u64>("one").result().await.unwrap(), 7);
    let second = Abide::client(&ended.1).await.unwrap();
    assert_eq!(second.handle::<u64>("one").status().await.unwrap(), Status::Completed);
}

#[workflow]
async fn waits(ctx: Ctx) -> Result<u64> {
    ctx.recv("n").await
}

#[workflow]
async fn slow(ctx: Ctx) -> Result<u32> {
    let world = ctx.state::<Shared>();
    ctx.step("slow", || async {
        let nth = world.run_count.fetch_add(1, Ordering::Relaxed) + 1;
        world.begun.notify_one();
        world.may_end.notified().await;
        Ok(nth)
    })
    .await
}

#[test]
fn p3_one_writer() {
    on_all(async |lab, world| {
        let (stopped, abide) = worker(&lab, &world).await;
        abide.start(slow, ()).id("one").await.unwrap();
        world.begun.notified().await;
        // The machine is stopped in the middle of the step, past its time to live; another worker
        // takes over and runs the step again.
        lab.freeze(stopped);
        let (_, other) = worker(&lab, &world).await;
        world.begun.notified().await;
        // The stopped machine goes on first and finishes its step: its record and its completion
        // are refused.
        lab.thaw(stopped);
        world.may_end.notify_waiters();
        assert_eq!(other.handle::<u32>("one").result().await.unwrap(), 2);
        let all = recorded(&lab).await;
        let ends = all.iter().filter(|item| item.record.entry().unwrap().event.is_terminal()).count();
        assert_eq!((all.len(), ends), (3, 1), "started, recorded and completed, once: {all:#?}");
    });
}

#[test]
fn p4_terminal_is_final() {
    on_all(async |lab, world| {
        let (_, abide) = worker(&lab, &world).await;
        let handle = abide.start(waits, ()).id("one").await.unwrap();
        handle.signal("n", &1u64).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 1);
        let before = recorded(&lab).await;
        assert!(handle.signal("n", &2u64).await.is_err());
        assert!(handle.cancel("late").await.is_err());
        assert!(handle.terminate("late").await.is_err());
        assert!(handle.pause().await.is_err());
        assert!(handle.resume().await.is_err());
        assert!(handle.unblock().await.is_err());
        assert_eq!(abide.run(waits, ()).id("one").await.unwrap(), 1, "the same start gets the stored result");
        lab.sleep(hours(1)).await;
        assert_eq!(recorded(&lab).await, before);
        assert_eq!(handle.status().await.unwrap(), Status::Completed);
    });
}

#[workflow]
async fn counts_down(ctx: Ctx, left: u64) -> Result<u64> {
    let world = ctx.state::<Shared>();
    ctx.step("count", || async { Ok(world.run_count.fetch_add(1, Ordering::Relaxed)) }).await?;
    if left == 0 { ctx.recv("n").await } else { ctx.continue_as_new(left - 1).await }
}

#[test]
fn p4_continue_as_new_opens_the_next_run() {
    on_all(async |lab, world| {
        let (machine, abide) = worker(&lab, &world).await;
        abide.start(counts_down, 3).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        lab.crash(machine);
        let (_, abide) = worker(&lab, &world).await;
        let handle = abide.handle::<u64>("one");
        handle.signal("n", &7u64).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 7, "a handle shows the last run");
        assert_eq!(world.run_count.load(Ordering::Relaxed), 4, "each run recorded its own step, once");
        assert_eq!(
            ends(&lab).await,
            ["continued-as-new", "continued-as-new", "continued-as-new", "completed"]
        );
        assert_eq!(abide.run(counts_down, 3).id("one").await.unwrap(), 7, "the same start, the same result");
        assert_eq!(abide.list(Filter::all()).await.unwrap()[0].run, Some(4));
    });
}

/// Returns everything that is recorded.
async fn recorded(lab: &Lab) -> Vec<Recorded> {
    conformance::recorded(&**lab.store(), &abide_core::Namespace::default()).await.unwrap()
}

/// Returns the last events of the runs, in order.
async fn ends(lab: &Lab) -> Vec<&'static str> {
    let all = recorded(lab).await;
    let events = all.iter().map(|item| item.record.entry().unwrap().event);
    events.filter(abide_core::Event::is_terminal).map(|event| event.word()).collect()
}

#[workflow]
async fn fails_once(ctx: Ctx) -> Result<u32> {
    let world = ctx.state::<Shared>();
    let run = ctx.step("run", || async { Ok(world.run_count.fetch_add(1, Ordering::Relaxed)) }).await?;
    if run == 0 { Err(Error::new("no")) } else { Ok(run) }
}

#[test]
fn p4_retry_opens_the_next_run_of_what_failed_or_was_cancelled() {
    on_all(async |lab, world| {
        let (_, abide) = worker(&lab, &world).await;
        let handle = abide.start(fails_once, ()).id("one").await.unwrap();
        assert!(matches!(handle.result().await, Err(ClientError::Failed { .. })));
        let failed = recorded(&lab).await;
        handle.retry().await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 1);
        let all = recorded(&lab).await;
        assert_eq!(all[..failed.len()], failed, "the run that failed is as it was");
        let refused = handle.retry().await.unwrap_err();
        assert!(matches!(&refused, ClientError::Refused { .. }), "{refused}");
        assert_eq!(refused.to_string(), r#"execution "one": it is completed already"#);
        let other = abide.start(waits, ()).id("two").await.unwrap();
        lab.sleep(secs(1)).await;
        let refused = other.retry().await.unwrap_err().to_string();
        assert!(refused.contains("it has not ended"), "{refused}");
        other.cancel("enough").await.unwrap();
        assert!(matches!(other.result().await, Err(ClientError::Cancelled { .. })));
        other.retry().await.unwrap();
        other.signal("n", &9u64).await.unwrap();
        assert_eq!(other.result().await.unwrap(), 9);
        assert_eq!(ends(&lab).await, ["failed", "completed", "cancelled", "completed"]);
    });
}

#[workflow]
async fn misbehaves(ctx: Ctx) -> Result<()> {
    ctx.step("x", || async { Ok(()) }).await?;
    ctx.sleep(ms(1)).named("x").await
}

#[workflow]
async fn sleeps(ctx: Ctx) -> Result<()> {
    ctx.sleep(days(30)).await
}

#[workflow]
async fn parent(ctx: Ctx) -> Result<u64> {
    ctx.run(waits, ()).id("child").await
}

#[test]
fn p5_never_silently_stuck() {
    on_all(async |lab, world| {
        let (_, abide) = worker(&lab, &world).await;
        abide.start(waits, ()).id("waits").await.unwrap();
        abide.start(misbehaves, ()).id("blocked").await.unwrap();
        abide.start(sleeps, ()).id("sleeps").await.unwrap();
        abide.start(parent, ()).id("parent").await.unwrap();
        abide.start(waits, ()).id("elsewhere").lane("gpu").await.unwrap();
        let paused = abide.start(waits, ()).id("paused").await.unwrap();
        paused.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        let rows = [
            ("waits", r#"waiting for signal "n""#),
            ("blocked", r#"the name "x" is used for a step and for a timer"#),
            ("sleeps", "sleeping until 2025-07-15T15:06:40"),
            ("parent", r#"waiting for child "child""#),
            ("paused", "by client"),
            ("elsewhere", r#"does not serve lane "gpu""#),
        ];
        for (id, expected) in rows {
            let why = abide.handle::<()>(id).why().await.unwrap();
            assert!(why.contains(expected), "{id}: {why}");
        }
    });
}

#[test]
fn p6_a_refusal_leaves_no_trace() {
    on_all(async |lab, world| {
        let (_, abide) = worker(&lab, &world).await;
        abide.start(waits, ()).id("one").await.unwrap();
        lab.sleep(secs(5)).await;
        let before = recorded(&lab).await;
        let listed = abide.list(Filter::all()).await.unwrap();
        assert!(abide.start(counted, ()).id("one").await.is_err(), "another workflow under the same id");
        assert!(abide.start(waits, ()).id("").await.is_err());
        assert!(abide.handle::<()>("nobody").signal("n", &1).await.is_err());
        assert!(abide.handle::<()>("one").resume().await.is_err());
        assert!(abide.handle::<()>("one").unblock().await.is_err());
        assert!(abide.handle::<()>("one").signal("n", &"x".repeat(5 << 20)).await.is_err());
        lab.sleep(secs(5)).await;
        assert_eq!(recorded(&lab).await, before);
        assert_eq!(abide.list(Filter::all()).await.unwrap(), listed);
    });
}

/// The store on PostgreSQL looks at its database by real time, which a virtual clock leaves behind.
/// `idle::p7_an_idle_engine_sends_at_most_one_statement_a_second` of its own tests counts there.
#[test]
fn p7_idle_is_free() {
    let operation_count = Arc::new(AtomicU64::new(0));
    for make in &STORES[..2] {
        let counter = operation_count.clone();
        let counting = |clock| -> Arc<dyn Store> {
            FaultyStore::deciding(make(clock), move |name| {
                // A wait is no query: the store wakes it.
                if name != "wait" {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                Fault::None
            })
        };
        let count = operation_count.clone();
        Lab::run_on(1, counting, |lab| async move {
            let (_, abide) = lab.worker().await.unwrap();
            for n in 0..50 {
                abide.start(sleeps, ()).id(format!("s-{n}")).await.unwrap();
                abide.start(waits, ()).id(format!("w-{n}")).await.unwrap();
            }
            lab.sleep(secs(60)).await;
            count.store(0, Ordering::Relaxed);
            lab.sleep(secs(600)).await;
            // There is one empty claim every two seconds, one heartbeat every five and one look at
            // blocked executions every minute, whatever sleeps and waits. The time may begin just
            // before one of each.
            let operations = count.load(Ordering::Relaxed);
            assert!(operations <= 301 + 121 + 11, "{operations} operations in 600 idle seconds");
        });
    }
}

#[test]
fn p8_bounded() {
    on_all(async |lab, world| {
        let (_, abide) =
            lab.worker_with(|builder| builder.state(world.clone()).execution_count_max(10)).await.unwrap();
        for n in 0..200 {
            abide.start(sleeps, ()).id(format!("s-{n}")).await.unwrap();
        }
        let error = abide.run(echo, "x".repeat(5 << 20)).await.unwrap_err();
        assert!(error.to_string().contains("payload_bytes_max"), "{error}");
        lab.sleep(secs(60)).await;
        // Nobody holds sleeping executions: they cost no memory here.
        let session = lab.store().workers(all_workers()).await.unwrap();
        assert_eq!(session.iter().map(|row| row.lease_count).sum::<u64>(), 0);
        assert_eq!(abide.list(Filter::all().status(Status::Sleeping).take(1_000)).await.unwrap().len(), 200);
    });
}

/// The bound on executions in memory delays the next one no longer than the last one takes to
/// leave.
#[test]
fn p8_a_full_worker_takes_the_next_as_soon_as_one_has_ended() {
    on_all(async |lab, _| {
        let (_, starter) = lab.worker_with(|builder| builder.lanes(["elsewhere"])).await.unwrap();
        for n in 0..40 {
            starter.start(echo, "hello".to_owned()).id(format!("e-{n}")).await.unwrap();
        }
        let _worker = lab.worker_with(|builder| builder.execution_count_max(1)).await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(starter.list(Filter::completed()).await.unwrap().len(), 40);
    });
}

#[workflow]
async fn echo(_ctx: Ctx, text: String) -> Result<String> {
    Ok(text)
}

fn all_workers() -> abide_store::Workers {
    abide_store::Workers { namespace: abide_core::Namespace::default(), after: None, limit: 100 }
}
