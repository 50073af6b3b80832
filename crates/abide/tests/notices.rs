//! Notices are hints: they may come late, twice, or not at all, and each signal is still received
//! once and in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::Bounds;
use abide_sqlite::SqliteStore;
use abide_store::faults::{Chances, Fault, FaultyStore, NoticeFault};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Notice, Store};
use tokio::sync::Notify;

const SIGNAL_COUNT: u64 = 12;
/// The seeds: with some of them the store has to refuse a commit that reads a late copy.
const SEEDS: std::ops::Range<u64> = 90..140;

/// Keeps the worker claiming.
#[workflow]
async fn comes_and_goes(ctx: Ctx) -> Result<()> {
    loop {
        ctx.sleep(ms(30)).await?;
    }
}

#[workflow]
async fn adds_up(ctx: Ctx) -> Result<u64> {
    let mut sum = 0;
    for _ in 0..SIGNAL_COUNT {
        sum += ctx.recv::<u64>("n").await?;
    }
    Ok(sum)
}

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, Bounds::default())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

/// A copy may be on its way, in a notice or in the inbox that a claim returns, while its execution
/// leaves memory and comes back.
#[test]
fn p1_a_signal_is_received_once_however_late_its_copies_come() {
    for (seed, make) in SEEDS.flat_map(|seed| [(seed, memory as fn(_) -> _), (seed, sqlite)]) {
        let slow = Chances { delay_permille: 500, delay_poll_count_max: 100, ..Chances::default() };
        let faulty =
            |clock: Arc<dyn Clock>| -> Arc<dyn Store> { FaultyStore::seeded(make(clock), seed, slow) };
        Lab::run_on(seed, faulty, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.park_after(ms(seed % 3 * 5))).await.unwrap();
            for n in 0..4 {
                abide.start(comes_and_goes, ()).id(format!("restless-{n}")).await.unwrap();
                lab.sleep(ms(7)).await;
            }
            let handle = abide.start(adds_up, ()).id("one").await.unwrap();
            for n in 0..SIGNAL_COUNT {
                handle.signal("n", &(1u64 << n)).await.unwrap();
                lab.sleep(ms(lab.random() % 12)).await;
            }
            tokio::select! {
                biased;
                result = handle.result() => assert_eq!(result.unwrap(), (1 << SIGNAL_COUNT) - 1, "seed {seed}"),
                () = lab.sleep(minutes(1)) => panic!("seed {seed}: it is stuck"),
            }
        });
    }
}

#[derive(Default)]
struct Attempts {
    begun_count: AtomicU32,
    may_end: Notify,
}

/// Fails once, and then returns how often it has begun.
#[task]
async fn fails_once(ctx: Ctx) -> Result<u32> {
    let attempts = ctx.state::<Arc<Attempts>>();
    let begun_count = attempts.begun_count.fetch_add(1, Ordering::Relaxed) + 1;
    attempts.may_end.notified().await;
    if begun_count == 1 { Err(Error::new("not yet")) } else { Ok(begun_count) }
}

/// The first attempt has already read the signal when the notice of it comes, during the second
/// attempt.
#[test]
fn a_task_runs_once_more_for_no_late_notice() {
    for make in [memory, sqlite] {
        let mut is_first = true;
        let late = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
            FaultyStore::disturbing(make(clock), move |notice| match notice {
                Notice::Message { .. } if std::mem::take(&mut is_first) => NoticeFault::Delay,
                _ => NoticeFault::None,
            })
        };
        Lab::run_on(1, late, |lab| async move {
            let attempts = Arc::new(Attempts::default());
            let retry = Retry::exponential(ms(500)).max_attempts(9);
            let open = |builder: abide::Builder| builder.state(attempts.clone()).default_retry(retry);
            let (_, abide) = lab.worker_with(open).await.unwrap();
            let other = abide.start(adds_up, ()).id("other").await.unwrap();
            let handle = abide.start(fails_once, ()).id("task").await.unwrap();
            handle.signal("n", &1).await.unwrap();
            lab.sleep(secs(5)).await;
            attempts.may_end.notify_one();
            lab.sleep(ms(100)).await;
            // This signal releases the notice that was held back.
            other.signal("n", &1).await.unwrap();
            lab.sleep(secs(60)).await;
            for _ in 0..10 {
                attempts.may_end.notify_one();
                lab.sleep(secs(60)).await;
            }
            assert_eq!(handle.result().await.unwrap(), 2);
        });
    }
}

#[workflow]
async fn collects(ctx: Ctx) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    for _ in 0..SIGNAL_COUNT {
        all.push(ctx.recv("n").await?);
    }
    Ok(all)
}

#[test]
fn signals_are_received_in_the_order_in_which_they_came_even_if_notices_are_lost() {
    for (seed, make) in SEEDS.flat_map(|seed| [(seed, memory as fn(_) -> _), (seed, sqlite)]) {
        let lossy = Chances { indeterminate_permille: 60, ..Chances::default() };
        let faulty =
            |clock: Arc<dyn Clock>| -> Arc<dyn Store> { FaultyStore::seeded(make(clock), seed, lossy) };
        Lab::run_on(seed, faulty, |lab| async move {
            let (_, abide) = loop {
                if let Ok(opened) = lab.worker_with(|builder| builder).await {
                    break opened;
                }
            };
            let handle = abide.start(collects, ()).id("one").await.unwrap();
            for n in 0..SIGNAL_COUNT {
                handle.signal("n", &n).await.unwrap();
                lab.sleep(ms(lab.random() % 300)).await;
            }
            let received = loop {
                match handle.result().await {
                    Ok(received) => break received,
                    Err(error) => assert!(error.is_transient(), "seed {seed}: {error}"),
                }
            };
            assert_eq!(received, (0..SIGNAL_COUNT).collect::<Vec<_>>(), "seed {seed}");
        });
    }
}

/// Sends the signals some time apart, and returns the ones that the workflow received.
async fn collected(lab: &Lab, abide: &Abide, pause_ms_max: u64) -> Vec<u64> {
    let handle = abide.start(collects, ()).id("one").await.unwrap();
    for n in 0..SIGNAL_COUNT {
        handle.signal("n", &n).await.unwrap();
        lab.sleep(ms(lab.random() % pause_ms_max)).await;
    }
    tokio::select! {
        biased;
        result = handle.result() => result.unwrap(),
        () = lab.sleep(minutes(1)) => panic!("it is stuck"),
    }
}

#[test]
fn signals_are_received_in_order_however_notices_are_lost_delayed_doubled_or_mixed_up_in_silence() {
    for (seed, make) in SEEDS.flat_map(|seed| [(seed, memory as fn(_) -> _), (seed, sqlite)]) {
        let rough = Chances {
            notice_lose_permille: 200,
            notice_delay_permille: 200,
            notice_repeat_permille: 200,
            notice_overtake_permille: 200,
            ..Chances::default()
        };
        let faulty =
            |clock: Arc<dyn Clock>| -> Arc<dyn Store> { FaultyStore::seeded(make(clock), seed, rough) };
        Lab::run_on(seed, faulty, |lab| async move {
            let (_, abide) =
                lab.worker_with(|builder| builder.park_after(secs(seed % 2 * 60))).await.unwrap();
            let received = collected(&lab, &abide, 1 + seed % 5 * 50).await;
            assert_eq!(received, (0..SIGNAL_COUNT).collect::<Vec<_>>(), "seed {seed}");
        });
    }
}

#[test]
fn a_signal_whose_notice_is_lost_is_received_before_a_later_one() {
    for make in [memory as fn(_) -> _, sqlite] {
        let mut message_count = 0;
        let first_is_lost = move |notice: &Notice| match notice {
            Notice::Message { .. } => {
                message_count += 1;
                if message_count == 1 { NoticeFault::Lose } else { NoticeFault::None }
            }
            Notice::Ready | Notice::Changed | Notice::Intake => NoticeFault::None,
        };
        let faulty =
            |clock: Arc<dyn Clock>| -> Arc<dyn Store> { FaultyStore::disturbing(make(clock), first_is_lost) };
        Lab::run_on(1, faulty, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.park_after(minutes(5))).await.unwrap();
            assert_eq!(collected(&lab, &abide, 1).await, (0..SIGNAL_COUNT).collect::<Vec<_>>());
        });
    }
}

#[workflow]
async fn counts(ctx: Ctx, count: u64) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(ctx.recv("n").await?);
    }
    Ok(all)
}

/// The reference store returns eight messages per page.
#[test]
fn an_inbox_of_many_pages_is_received_whole_and_in_order() {
    const COUNT: u64 = 100;
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(counts, COUNT + 20).id("one").delay(secs(9)).await.unwrap();
        for n in 0..COUNT {
            handle.signal("n", &n).await.unwrap();
        }
        lab.sleep(secs(9)).await;
        for n in COUNT..COUNT + 20 {
            handle.signal("n", &n).await.unwrap();
        }
        assert_eq!(handle.result().await.unwrap(), (0..COUNT + 20).collect::<Vec<_>>());
    });
}

/// A paused execution whose unread messages fill more than one page stays out of memory.
#[test]
fn a_paused_execution_with_many_pages_of_signals_rests() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(counts, 50).id("one").await.unwrap();
        lab.sleep(secs(9)).await;
        handle.pause().await.unwrap();
        for n in 0..50 {
            handle.signal("n", &n).await.unwrap();
        }
        lab.sleep(secs(9)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        handle.resume().await.unwrap();
        assert_eq!(handle.result().await.unwrap(), (0..50).collect::<Vec<_>>());
    });
}

/// The second process is another connection to the same file: the first one does not know what it
/// wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_of_two_processes_are_received_in_the_order_in_which_they_were_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("app.db").display());
    let worker = Abide::builder(&url).park_after(ms(1)).open().await.unwrap();
    let other = Abide::client(&url).await.unwrap();
    for n in 0..30 {
        worker.start(comes_and_goes, ()).id(format!("restless-{n}")).await.unwrap();
    }
    for n in 0..50 {
        let id = format!("two-{n}");
        let handle = worker.start(counts, 2).id(&id).await.unwrap();
        other.handle::<Vec<u64>>(&id).signal("n", &1u64).await.unwrap();
        handle.signal("n", &2u64).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), [1, 2], "{id}");
    }
    worker.shutdown().await;
}

/// Every answer to a wait for notices is lost with its notices, and the error is all that comes.
#[test]
fn a_signal_whose_notice_is_lost_with_an_error_is_received_soon() {
    for make in [memory as fn(_) -> _, sqlite] {
        let faulty = |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
            FaultyStore::deciding(make(clock), |what| match what {
                "wait" => Fault::Indeterminate,
                _ => Fault::None,
            })
        };
        Lab::run_on(1, faulty, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.park_after(minutes(5))).await.unwrap();
            let handle = abide.start(counts, 1).id("one").await.unwrap();
            lab.sleep(ms(1_300)).await;
            handle.signal("n", &7u64).await.unwrap();
            lab.sleep(ms(200)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Completed);
        });
    }
}

#[workflow]
async fn twice(_ctx: Ctx, n: u64) -> Result<u64> {
    Ok(2 * n)
}

#[workflow]
async fn has_children(ctx: Ctx) -> Result<u64> {
    let mut children = Vec::new();
    for n in 0..SIGNAL_COUNT {
        children.push(ctx.start(twice, n).await?);
    }
    let mut sum = 0;
    for child in children {
        sum += child.result().await?;
    }
    Ok(sum)
}

/// One poll of the runner finds both. The notice has woken it, and will not do so again.
#[test]
fn a_notice_that_comes_with_the_answer_to_a_commit_is_taken_at_once() {
    for (seed, make) in SEEDS.flat_map(|seed| [(seed, memory as fn(_) -> _), (seed, sqlite)]) {
        let slow = Chances { delay_permille: 500, delay_poll_count_max: 10, ..Chances::default() };
        let faulty =
            |clock: Arc<dyn Clock>| -> Arc<dyn Store> { FaultyStore::seeded(make(clock), seed, slow) };
        Lab::run_on(seed, faulty, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder).await.unwrap();
            for nth in 0..10 {
                let began_at = lab.now();
                let sum = abide.run(has_children, ()).await.unwrap();
                assert_eq!(sum, SIGNAL_COUNT * (SIGNAL_COUNT - 1), "seed {seed}");
                assert_eq!(lab.now(), began_at, "seed {seed}: run {nth} waited for a look at the inbox");
            }
        });
    }
}
