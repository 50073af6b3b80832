//! An execution that is in somebody's way can always be ended, and `why` says how.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide::prelude::*;
use abide::testing::{Lab, Machine};
use abide_core::{Address, Bounds, ExecutionId, Lease, Namespace};
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Aside, Clock, Read, Store, Target, Unreadable};
use futures_util::join;
use tokio::sync::{Notify, Semaphore};

/// The gates that the test opens, and the record of what the closures did.
struct World {
    /// Lets the step "long" end.
    long: Semaphore,
    /// Wakes a workflow that awaits something other than a ctx operation.
    foreign: Notify,
    was_dropped: AtomicBool,
}

type Shared = Arc<World>;

/// A guard that records when its closure is dropped halfway.
struct Running<'a>(&'a World);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.was_dropped.store(true, Ordering::Relaxed);
    }
}

async fn long(ctx: &Ctx) -> Result<()> {
    let world = ctx.state::<Shared>();
    ctx.step("long", || async {
        let running = Running(world);
        world.long.acquire().await?.forget();
        std::mem::forget(running);
        Ok(())
    })
    .await
}

/// Awaits something other than a ctx operation beside a step, and is blocked when that wakes it.
#[workflow]
async fn strays(ctx: Ctx) -> Result<()> {
    let stray = async {
        ctx.state::<Shared>().foreign.notified().await;
        std::future::pending::<Result<()>>().await
    };
    let (long, stray) = join!(long(&ctx), stray);
    long.and(stray)
}

/// Awaits something other than a ctx operation, with nothing beside it.
#[workflow]
async fn stops(ctx: Ctx) -> Result<()> {
    ctx.sleep(ms(50)).await?;
    std::future::pending().await
}

/// Awaits something other than a ctx operation beside a wait that may last for days, as
/// `tokio::time::timeout` does.
#[workflow]
async fn races(ctx: Ctx, sleeps: bool) -> Result<()> {
    let world = ctx.state::<Shared>();
    select! {
        got = ctx.recv("go"), if !sleeps => got,
        slept = ctx.sleep(days(30)), if sleeps => slept,
        () = world.foreign.notified() => Ok(()),
    }
}

/// Waits for long through a combinator that holds wakers of its own, and beside one that is empty.
#[workflow]
async fn combines(ctx: Ctx) -> Result<()> {
    let mut waits = futures_util::stream::FuturesUnordered::new();
    for name in ["a", "b"] {
        waits.push(ctx.recv::<()>(name).into_future());
    }
    while let Some(got) = futures_util::StreamExt::next(&mut waits).await {
        got?;
    }
    // It is empty now, and still holds the waker of its last poll.
    ctx.recv::<()>("c").await?;
    drop(waits);
    ctx.recv("d").await
}

#[workflow]
async fn parent(ctx: Ctx) -> Result<()> {
    ctx.run(strays, ()).id("one").await
}

/// Awaits something other than a ctx operation in its clean-up.
#[workflow]
async fn cleans_up(ctx: Ctx) -> Result<()> {
    let got: Result<()> = ctx.recv("go").await;
    ctx.shield(std::future::pending::<()>()).await;
    got
}

async fn worker(lab: &Lab, world: &Shared) -> (Machine, Abide) {
    let options = |builder: abide::Builder| builder.state(world.clone()).session_ttl(secs(3)).build("a");
    lab.worker_with(options).await.unwrap()
}

fn world() -> Shared {
    Arc::new(World { long: Semaphore::new(0), foreign: Notify::new(), was_dropped: AtomicBool::new(false) })
}

/// Returns the journal of "one" in words.
async fn journal(lab: &Lab) -> String {
    let id = ExecutionId::new("one").unwrap();
    let target = Target::Address(Address { namespace: Namespace::default(), id });
    let read = Read { target, run: None, from: 1, limit: 100, with_inbox: false };
    let records = lab.store().read(read).await.unwrap().unwrap().journal;
    let words = records.iter().map(|record| record.entry().unwrap().event.word());
    words.collect::<Vec<_>>().join(", ")
}

/// Checks that the execution was cancelled, with this journal.
async fn cancelled(lab: &Lab, handle: &Handle<()>, expected: &str) {
    lab.sleep(secs(5)).await;
    let why = handle.why().await.unwrap();
    assert_eq!(handle.status().await.unwrap(), Status::Cancelled, "{why} {}", journal(lab).await);
    assert_eq!(journal(lab).await, expected);
}

/// Records more than fits into a page of a journal, and then ends or is blocked.
#[workflow]
async fn bulky(ctx: Ctx, ends: bool) -> Result<u32> {
    for _ in 0..6 {
        ctx.step("bulk", || async { Ok("x".repeat(400 << 10)) }).await?;
    }
    if ends {
        return Ok(7);
    }
    ctx.sleep(ms(50)).await?;
    std::future::pending().await
}

#[test]
fn why_reads_a_large_journal_to_its_end() {
    let sqlite = |clock| -> Arc<dyn Store> {
        abide_sqlite::SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
    };
    Lab::run_on(1, sqlite, |lab| async move {
        let (_machine, abide) = lab.worker().await.unwrap();
        let ended = abide.start(bulky, true).id("ended").await.unwrap();
        assert_eq!(ended.result().await.unwrap(), 7);
        let why = ended.why().await.unwrap();
        assert!(why.starts_with("workflow \"ended\" completed at 2025-06-15T"), "{why}");
        assert!(why.ends_with("with the result 7."), "{why}");
        let blocked = abide.start(bulky, false).id("blocked").await.unwrap();
        lab.sleep(secs(5)).await;
        blocked.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        let why = blocked.why().await.unwrap();
        assert!(why.contains("since 2025-06-15T"), "{why}");
    });
}

#[test]
fn a_cancel_of_what_is_blocked_waits_for_no_unblock() {
    Lab::run_on_each(1, |lab| async move {
        let world = world();
        let (_, abide) = worker(&lab, &world).await;
        let handle = abide.start(strays, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        world.foreign.notify_one();
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        handle.unblock().await.unwrap();
        lab.sleep(secs(1)).await;
        handle.cancel("enough").await.unwrap();
        cancelled(&lab, &handle, "started, blocked, cancelled").await;
        assert!(world.was_dropped.load(Ordering::Relaxed), "with the closures that still run");
    });
}

#[test]
fn a_cancelled_parent_leaves_no_child_blocked_behind_an_unblock() {
    Lab::run_on_each(1, |lab| async move {
        let world = world();
        let (_, abide) = worker(&lab, &world).await;
        let handle = abide.start(parent, ()).id("parent").await.unwrap();
        lab.sleep(secs(1)).await;
        world.foreign.notify_one();
        lab.sleep(secs(1)).await;
        let child = abide.handle::<()>("one");
        assert_eq!(child.status().await.unwrap(), Status::Blocked);
        child.unblock().await.unwrap();
        handle.cancel("enough").await.unwrap();
        cancelled(&lab, &child, "started, blocked, cancelled").await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

/// It would be forgotten if the execution left memory, and the code would wait for ever. So the
/// execution stays for longer than others do, but not for ever either.
#[test]
fn an_await_that_is_not_recorded_is_reported_if_it_wakes_within_a_minute() {
    for sleeps in [false, true] {
        Lab::run_on_each(1, |lab| async move {
            let world = world();
            let (_, abide) = worker(&lab, &world).await;
            let handle = abide.start(races, sleeps).id("one").await.unwrap();
            lab.sleep(secs(30)).await;
            world.foreign.notify_waiters();
            lab.sleep(secs(1)).await;
            let why = handle.why().await.unwrap();
            assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
            assert!(why.contains("awaits something that is not a ctx operation"), "{why}");
        });
    }
}

/// Two branches share a lock: one waits for long while the other holds it.
#[workflow]
async fn shares(ctx: Ctx) -> Result<()> {
    let gate = tokio::sync::Mutex::new(());
    let first = async {
        let _held = gate.lock().await;
        ctx.sleep(hours(1)).named("one").await
    };
    let second = async {
        let _held = gate.lock().await;
        ctx.sleep(secs(1)).named("two").await
    };
    let (first, second) = join!(first, second);
    first.and(second)
}

/// It looks like an await that is not recorded. It must not fill the worker for ever.
#[test]
fn a_lock_between_branches_keeps_code_in_memory_only_for_a_while() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.execution_count_max(2)).await.unwrap();
        for id in ["a", "b"] {
            abide.start(shares, ()).id(id).await.unwrap();
        }
        lab.sleep(minutes(2)).await;
        assert_eq!(abide.run(bulky, true).id("c").await.unwrap(), 7);
        let handle = abide.handle::<()>("a");
        assert_eq!(handle.status().await.unwrap(), Status::Sleeping);
        handle.result().await.unwrap();
    });
}

/// Such waits do leave memory, and sooner than an await that is not recorded would.
#[test]
fn combinators_with_wakers_of_their_own_keep_nothing_in_memory() {
    Lab::run_on_each(1, |lab| async move {
        let (_, abide) = worker(&lab, &world()).await;
        let handle = abide.start(combines, ()).id("one").await.unwrap();
        let id = ExecutionId::new("one").unwrap();
        let target = Target::Address(Address { namespace: Namespace::default(), id });
        for name in ["b", "a", "c", "d"] {
            lab.sleep(secs(20)).await;
            let read = Read { target: target.clone(), run: None, from: 1, limit: 1, with_inbox: false };
            let snapshot = lab.store().read(read).await.unwrap().unwrap();
            assert_eq!(snapshot.lease.session, None, "nobody holds it before {name}");
            handle.signal(name, &()).await.unwrap();
        }
        handle.result().await.unwrap();
    });
}

/// Leaves "one" blocked, with no holder.
async fn left_blocked(lab: &Lab) -> Handle<()> {
    let (_, abide) = worker(lab, &world()).await;
    abide.start(stops, ()).id("one").await.unwrap();
    lab.sleep(secs(5)).await;
    abide.shutdown().await;
    let handle = lab.client().await.unwrap().handle("one");
    assert_eq!(handle.status().await.unwrap(), Status::Blocked);
    handle
}

#[test]
fn an_unread_unblock_does_not_save_what_is_cancelled() {
    Lab::run_on_each(1, |lab| async move {
        let handle = left_blocked(&lab).await;
        handle.unblock().await.unwrap();
        handle.cancel("enough").await.unwrap();
        let (_, _abide) = worker(&lab, &world()).await;
        cancelled(&lab, &handle, "started, timer-set, timer-fired, blocked, cancelled").await;
    });
}

#[test]
fn a_cancel_of_what_is_blocked_needs_no_code() {
    Lab::run_on_each(1, |lab| async move {
        let handle = left_blocked(&lab).await;
        let (_, _other) = lab.worker_with(|builder| builder.lanes(["other"]).build("a")).await.unwrap();
        handle.cancel("enough").await.unwrap();
        cancelled(&lab, &handle, "started, timer-set, timer-fired, blocked, cancelled").await;
    });
}

/// The code reaches its obstacle before the cancellation, which another build may get to see.
#[test]
fn an_unblock_that_did_not_help_leaves_what_is_cancelled_to_a_second_cancel() {
    Lab::run_on_each(1, |lab| async move {
        let handle = left_blocked(&lab).await;
        let (_, _other) = lab.worker_with(|builder| builder.lanes(["other"]).build("a")).await.unwrap();
        handle.unblock().await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Running, "unblocked without its code");
        handle.cancel("enough").await.unwrap();
        let (_, _abide) = worker(&lab, &world()).await;
        lab.sleep(secs(5)).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains("a second cancel, or a terminate, ends it as it is"), "{why}");
        handle.cancel("enough").await.unwrap();
        let expected =
            "started, timer-set, timer-fired, blocked, unblocked, cancel-requested, blocked, cancelled";
        cancelled(&lab, &handle, expected).await;
    });
}

/// The clean-up is owed: a fixed build runs it, and a second cancel ends the execution without it.
#[test]
fn a_clean_up_that_is_blocked_waits_for_somebody() {
    Lab::run_on_each(1, |lab| async move {
        let (_, abide) = worker(&lab, &world()).await;
        let handle = abide.start(cleans_up, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(1)).await;
        for _ in 0..2 {
            assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{}", journal(&lab).await);
            let why = handle.why().await.unwrap();
            let said = "it is being cancelled by client: enough, and a second cancel, or a terminate, ends it as it is";
            assert!(why.contains(said), "{why}");
            handle.unblock().await.unwrap();
            lab.sleep(secs(1)).await;
        }
        handle.cancel("enough").await.unwrap();
        let expected =
            "started, cancel-requested, blocked, unblocked, blocked, unblocked, blocked, cancelled";
        cancelled(&lab, &handle, expected).await;
    });
}

#[workflow]
async fn tries_twice(ctx: Ctx) -> Result<()> {
    let world = ctx.state::<Shared>();
    let step = ctx.step("flaky", || async {
        if !world.was_dropped.swap(true, Ordering::Relaxed) {
            return Err(std::io::Error::other("503").into());
        }
        world.long.acquire().await?.forget();
        Ok(())
    });
    step.retry(Retry::fixed(ms(200))).await
}

#[test]
fn the_attempt_that_runs_is_told() {
    Lab::run_on_each(1, |lab| async move {
        let (_, abide) = worker(&lab, &world()).await;
        let handle = abide.start(tries_twice, ()).id("one").await.unwrap();
        lab.sleep(secs(3)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Running);
        for why in [
            handle.why().await.unwrap(),
            lab.client().await.unwrap().handle::<()>("one").why().await.unwrap(),
        ] {
            assert!(why.contains(r#"is running attempt 2 of "flaky", which was due at"#), "{why}");
        }
    });
}

/// Uses a durable operation inside a step until it is fixed.
#[workflow]
async fn nests(ctx: Ctx, kind: String) -> Result<u32> {
    let (world, kind) = (ctx.state::<Shared>(), kind.as_str());
    let outer = ctx.step("outer", || async {
        if world.was_dropped.load(Ordering::Relaxed) {
            return Ok(2);
        }
        let inner = || ctx.step("inner", || async { Ok(1) });
        match kind {
            "shield" => ctx.shield(inner()).await,
            "sleep" => ctx.sleep(ms(1)).await.map(|()| 1),
            "transaction" => abide::testing::transact(&ctx, "row", |_| Ok(1)).await,
            "continue" => ctx.continue_as_new(kind).await,
            _ => inner().await,
        }
    });
    outer.await
}

#[task]
async fn one(_ctx: Ctx) -> Result<u32> {
    Ok(1)
}

#[workflow]
async fn waits_in_a_step(ctx: Ctx) -> Result<u32> {
    let child = std::sync::Mutex::new(Some(ctx.start(one, ()).await?));
    let wait = || child.lock().unwrap().take().expect("it runs once").result();
    ctx.step("outer", || async { wait().await }).await
}

/// Entries of the child would be skipped with the step.
#[test]
fn a_step_that_waits_for_a_child_is_blocked() {
    Lab::run_on_each(1, |lab| async move {
        let (_, abide) = worker(&lab, &world()).await;
        let handle = abide.start(waits_in_a_step, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains(r#"is used inside step "outer", where nothing can be recorded"#), "{why}");
    });
}

#[test]
fn a_step_that_uses_a_durable_operation_holds_nobody_up() {
    for kind in ["step", "shield", "sleep", "transaction", "continue"] {
        Lab::run_on_each(1, |lab| async move {
            let world = world();
            let (_, abide) = worker(&lab, &world).await;
            let handle = abide.start(nests, kind.to_owned()).id("one").await.unwrap();
            lab.sleep(secs(1)).await;
            let why = handle.why().await.unwrap();
            assert!(why.contains(r#"is used inside step "outer", where nothing can be recorded"#), "{why}");
            handle.unblock().await.unwrap();
            lab.sleep(secs(1)).await;
            assert_eq!(journal(&lab).await, "started, blocked, unblocked, blocked", "{kind}");
            world.was_dropped.store(true, Ordering::Relaxed);
            handle.unblock().await.unwrap();
            lab.sleep(secs(1)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
            assert_eq!(handle.result().await.unwrap(), 2, "the step was not recorded before");
        });
    }
}

#[workflow]
async fn listens(ctx: Ctx) -> Result<u32> {
    ctx.recv("go").await
}

#[test]
fn who_waits_elsewhere_is_told_of_a_set_aside() {
    let memory = |clock| -> Arc<dyn Store> { MemoryStore::new(clock, Bounds::default()) };
    // The time is twice as long as a client leaves the feed unread.
    check_told_of_set_aside(memory, 0, secs(10));
}

/// A store that had to go through the other executions would look at two of them per query.
#[test]
fn who_waits_elsewhere_is_told_of_a_set_aside_behind_many_others() {
    let sqlite = |clock| -> Arc<dyn Store> {
        let options = abide_sqlite::Options { list_scan_count_max: 2, ..abide_sqlite::Options::default() };
        abide_sqlite::SqliteStore::in_memory(clock, options).unwrap()
    };
    check_told_of_set_aside(sqlite, 8, secs(10));
}

fn check_told_of_set_aside(
    make: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>,
    other_count: u32,
    within: Duration,
) {
    Lab::run_on(1, make, |lab| async move {
        let (machine, abide) = lab.worker().await.unwrap();
        for nth in 0..other_count {
            abide.start(listens, ()).id(format!("other-{nth}")).await.unwrap();
        }
        abide.start(listens, ()).id("x").await.unwrap();
        let client = lab.client().await.unwrap();
        let handle = client.handle::<u32>("x");
        let set_aside = async {
            // The execution is still in memory.
            lab.sleep(ms(500)).await;
            lab.crash(machine);
            let address = Address { namespace: Namespace::default(), id: ExecutionId::new("x").unwrap() };
            let target = Target::Address(address);
            let read = Read { target, run: None, from: 0, limit: 0, with_inbox: false };
            let found = lab.store().read(read).await.unwrap().unwrap();
            let lease = Lease { session: found.lease.session.unwrap(), epoch: found.lease.epoch };
            let aside =
                Aside { key: found.key, lease, unreadable: Unreadable::Damaged("on purpose".to_owned()) };
            lab.store().set_aside(aside).await.unwrap();
            lab.sleep(within).await;
        };
        let told = tokio::select! {
            biased;
            told = handle.result() => told.unwrap_err(),
            () = set_aside => panic!("nobody has told"),
        };
        assert!(matches!(told, ClientError::Corrupt { .. }), "{told:?}");
    });
}

/// The engine asks again when a store is away for a moment. If it kept the lease instead, the lease
/// would be found and the execution would meet the same fault again.
#[test]
fn what_cannot_be_read_is_set_aside_when_the_store_is_back() {
    #[workflow]
    async fn short(ctx: Ctx) -> Result<u32> {
        ctx.step("x", || async { Ok(1) }).await
    }
    let mut faults = std::collections::VecDeque::from([
        ("commit", Fault::Corrupt),
        ("read", Fault::Corrupt),
        ("set_aside", Fault::Unavailable),
        ("set_aside", Fault::Unavailable),
    ]);
    let decide = move |name| match faults.front() {
        Some((of, _)) if *of == name => faults.pop_front().map_or(Fault::None, |(_, fault)| fault),
        _ => Fault::None,
    };
    let store = |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), decide)
    };
    Lab::run_on(1, store, |lab| async move {
        let (_machine, abide) = lab.worker().await.unwrap();
        let handle = abide.start(short, ()).id("x").await.unwrap();
        lab.sleep(minutes(2)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Damaged);
    });
}
