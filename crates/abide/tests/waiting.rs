//! One follower of the feed serves all clients that wait for executions elsewhere.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::{Ability, Bounds, Kind, Name, Namespace};
use abide_sqlite::SqliteStore;
use abide_store::faults::{Chances, Fault, FaultyStore, NoticeFault};
use abide_store::memory::MemoryStore;
use abide_store::{Aside, Claim, Clock, Leased, Notice, Store, Unreadable, Worker};

const COUNT: u64 = 100;

#[workflow]
async fn waits(ctx: Ctx, n: u64) -> Result<u64> {
    let more: u64 = ctx.recv("go").await?;
    if more == 0 { ctx.continue_as_new(n + 1).await } else { Ok(n + more) }
}

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, Bounds::default())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

/// Starts a worker, and a process that runs nothing and only waits.
async fn two(lab: &Lab) -> (Abide, Abide) {
    let (_, worker) = lab.worker().await.unwrap();
    let (_, watcher) = lab.worker_with(|builder| builder.lanes(["none"])).await.unwrap();
    (worker, watcher)
}

#[test]
fn whoever_waits_elsewhere_asks_the_store_for_nothing_until_something_happens() {
    for make in [memory as fn(_) -> _, sqlite] {
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = reads.clone();
        let counting = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
            FaultyStore::deciding(make(clock), move |what| {
                if what == "read" {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                Fault::None
            })
        };
        Lab::run_on(1, counting, |lab| async move {
            let (worker, watcher) = two(&lab).await;
            for n in 0..COUNT {
                worker.start(waits, n).id(format!("{n}")).await.unwrap();
            }
            let results = (0..COUNT).map(|n| {
                let handle = watcher.handle::<u64>(&format!("{n}"));
                async move { handle.result().await.unwrap() }
            });
            let waiting = futures_util::future::join_all(results);
            let telling = async {
                lab.sleep(secs(5)).await;
                let before = reads.load(Ordering::Relaxed);
                lab.sleep(secs(40)).await;
                assert_eq!(reads.load(Ordering::Relaxed), before, "nothing happened");
                for n in 0..COUNT {
                    worker.handle::<u64>(&format!("{n}")).signal("go", &(n % 2)).await.unwrap();
                    worker.handle::<u64>(&format!("{n}")).signal("go", &1u64).await.unwrap();
                }
            };
            let (found, ()) = futures_util::join!(waiting, telling);
            let expected = |n: u64| if n.is_multiple_of(2) { n + 2 } else { n + 1 };
            assert_eq!(found, (0..COUNT).map(expected).collect::<Vec<_>>());
        });
    }
}

#[test]
fn whoever_waits_elsewhere_hears_of_the_end_though_no_hint_ever_comes() {
    for make in [memory as fn(_) -> _, sqlite] {
        let deaf = |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
            FaultyStore::disturbing(make(clock), |notice| match notice {
                Notice::Changed => NoticeFault::Lose,
                Notice::Ready | Notice::Intake | Notice::Message { .. } => NoticeFault::None,
            })
        };
        Lab::run_on(1, deaf, |lab| async move {
            let (worker, watcher) = two(&lab).await;
            worker.start(waits, 1).id("one").await.unwrap();
            let handle = watcher.handle::<u64>("one");
            let telling = async {
                lab.sleep(secs(3)).await;
                worker.handle::<u64>("one").signal("go", &1u64).await.unwrap();
            };
            tokio::select! {
                biased;
                (result, ()) = async { futures_util::join!(handle.result(), telling) } => assert_eq!(result.unwrap(), 2),
                () = lab.sleep(secs(15)) => panic!("it is stuck"),
            }
        });
    }
}

/// The feed cannot be read at first. Its end, from which it is followed, is then behind the end of
/// the execution.
#[test]
fn whoever_waits_elsewhere_hears_of_an_end_before_the_first_look_at_the_feed() {
    for make in [memory as fn(_) -> _, sqlite] {
        let is_down = Arc::new(AtomicBool::new(true));
        let down = is_down.clone();
        let without_feed = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
            FaultyStore::deciding(make(clock), move |what| {
                if what == "feed" && down.load(Ordering::Relaxed) { Fault::Unavailable } else { Fault::None }
            })
        };
        Lab::run_on(1, without_feed, |lab| async move {
            let (worker, watcher) = two(&lab).await;
            let started = worker.start(waits, 1).id("one").await.unwrap();
            let telling = async {
                lab.sleep(secs(3)).await;
                started.signal("go", &1u64).await.unwrap();
                lab.sleep(secs(3)).await;
                is_down.store(false, Ordering::Relaxed);
            };
            let handle = watcher.handle::<u64>("one");
            tokio::select! {
                biased;
                (result, ()) = async { futures_util::join!(handle.result(), telling) } => assert_eq!(result.unwrap(), 2),
                () = lab.sleep(secs(15)) => panic!("it is stuck"),
            }
        });
    }
}

#[test]
fn whoever_waits_elsewhere_hears_of_the_end_on_a_store_that_fails_now_and_then() {
    for (seed, make) in (0..30).flat_map(|seed| [(seed, memory as fn(_) -> _), (seed, sqlite)]) {
        let chances = Chances {
            unavailable_permille: 100,
            indeterminate_permille: 100,
            notice_lose_permille: 300,
            ..Chances::default()
        };
        let faulty =
            |clock: Arc<dyn Clock>| -> Arc<dyn Store> { FaultyStore::seeded(make(clock), seed, chances) };
        Lab::run_on(seed, faulty, |lab| async move {
            let opened = async |lane| loop {
                if let Ok((_, abide)) = lab.worker_with(|builder| builder.lanes([lane])).await {
                    break abide;
                }
            };
            let (worker, watcher) = (opened("default").await, opened("none").await);
            while worker.start(waits, 1).id("one").await.is_err() {}
            let handle = watcher.handle::<u64>("one");
            let telling = async {
                lab.sleep(secs(3)).await;
                while worker.handle::<u64>("one").signal("go", &1u64).await.is_err() {}
            };
            let waiting = async {
                loop {
                    match handle.result().await {
                        Ok(result) => break result,
                        Err(error) => assert!(error.is_transient(), "seed {seed}: {error}"),
                    }
                }
            };
            tokio::select! {
                biased;
                (result, ()) = async { futures_util::join!(waiting, telling) } => assert_eq!(result, 2, "seed {seed}"),
                () = lab.sleep(minutes(2)) => panic!("seed {seed}: it is stuck"),
            }
        });
    }
}

/// A caller that no longer waits costs nothing, and the next one is served.
#[test]
fn whoever_comes_after_all_have_left_is_served() {
    Lab::run(1, |lab| async move {
        let (worker, watcher) = two(&lab).await;
        worker.start(waits, 1).id("one").await.unwrap();
        let handle = watcher.handle::<u64>("one");
        for wait in [secs(1), minutes(3), hours(1)] {
            tokio::select! {
                biased;
                _ = handle.result() => panic!("it has not ended"),
                () = lab.sleep(secs(2)) => {}
            }
            lab.sleep(wait).await;
        }
        let telling = async {
            lab.sleep(secs(3)).await;
            worker.handle::<u64>("one").signal("go", &1u64).await.unwrap();
        };
        assert_eq!(futures_util::join!(handle.result(), telling).0.unwrap(), 2);
    });
}

/// A store that is always busy wakes its followers all the time: a follower that nobody wants has
/// to notice that nevertheless.
#[test]
fn nobody_follows_a_busy_store_when_nobody_waits() {
    let feeds = Arc::new(AtomicUsize::new(0));
    let counted = feeds.clone();
    let counting = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
        FaultyStore::deciding(memory(clock), move |what| {
            if what == "feed" {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Fault::None
        })
    };
    Lab::run_on(1, counting, |lab| async move {
        let (worker, watcher) = two(&lab).await;
        let mut started = 0;
        let mut keep_busy = async |count: u64| {
            for _ in 0..count {
                worker.start(waits, started).id(format!("{started}")).await.unwrap();
                started += 1;
                lab.sleep(secs(1)).await;
            }
        };
        keep_busy(1).await;
        let handle = watcher.handle::<u64>("0");
        tokio::select! {
            biased;
            _ = handle.result() => panic!("it has not ended"),
            () = keep_busy(3) => {}
        }
        assert_ne!(feeds.load(Ordering::Relaxed), 0, "somebody waited");
        keep_busy(20).await;
        let before = feeds.load(Ordering::Relaxed);
        keep_busy(20).await;
        assert_eq!(feeds.load(Ordering::Relaxed), before, "nobody waits");
    });
}

/// Work that the clock triggers must not follow every event: each look for damaged executions is a
/// query to the store.
#[test]
fn a_busy_store_is_not_asked_for_what_is_damaged_at_each_of_its_commits() {
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = lists.clone();
    let counting = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
        FaultyStore::deciding(memory(clock), move |what| {
            if what == "list" {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Fault::None
        })
    };
    Lab::run_on(1, counting, |lab| async move {
        let (worker, watcher) = two(&lab).await;
        worker.start(waits, 0).id("awaited").await.unwrap();
        let handle = watcher.handle::<u64>("awaited");
        let keep_busy = async {
            lab.sleep(secs(1)).await;
            let before = lists.load(Ordering::Relaxed);
            for n in 0..200 {
                worker.start(waits, n).id(format!("{n}")).await.unwrap();
                lab.sleep(ms(100)).await;
            }
            lists.load(Ordering::Relaxed) - before
        };
        let count = tokio::select! {
            biased;
            _ = handle.result() => panic!("it has not ended"),
            count = keep_busy => count,
        };
        // This lasts twenty seconds, and without a hint the feed is read every five.
        assert!((3..=5).contains(&count), "{count} times");
    });
}

/// Sets aside everything that a worker can claim.
async fn set_all_aside(store: &dyn Store) -> usize {
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: [Name::new("default").unwrap()].into(),
        runs: [(Kind::Workflow, Name::new("waits").unwrap())].into(),
        capabilities: [].into(),
        build: None,
    };
    let worker = Worker { name: Name::new("other").unwrap(), ability, ttl: minutes(1) };
    let session = store.register(worker).await.unwrap().session;
    let (mut request, mut count) = (0, 0);
    loop {
        request += 1;
        let claim = Claim { session, request, slots: 1_000, care_slots: 0, with_mail: false, sweep: false };
        let claimed = store.claim(claim).await.unwrap();
        for Leased { key, lease, .. } in claimed.leased {
            let unreadable = Unreadable::Damaged("a hole".to_owned());
            store.set_aside(Aside { key, lease, unreadable }).await.unwrap();
            count += 1;
        }
        if !claimed.more {
            return count;
        }
    }
}

/// More executions are damaged than one query returns, and the client waits for the last of them.
#[test]
fn whoever_waits_for_something_damaged_is_told_however_much_is() {
    const DAMAGED_COUNT: u64 = 600;
    for make in [memory as fn(_) -> _, sqlite] {
        let store = Arc::new(OnceLock::new());
        let made = store.clone();
        let keeping = move |clock| made.get_or_init(|| make(clock)).clone();
        Lab::run_on(1, keeping, |lab| async move {
            let (_, watcher) = lab.worker_with(|builder| builder.lanes(["none"])).await.unwrap();
            for n in 0..DAMAGED_COUNT {
                watcher.start(waits, n).id(format!("{n}")).await.unwrap();
            }
            let handle = watcher.handle::<u64>(&format!("{}", DAMAGED_COUNT - 1));
            let damaging = async {
                lab.sleep(secs(1)).await;
                assert_eq!(set_all_aside(&**store.get().unwrap()).await as u64, DAMAGED_COUNT);
                // Three queries take place, long before any client looks again.
                lab.sleep(secs(20)).await;
            };
            tokio::select! {
                biased;
                result = handle.result() => assert!(matches!(result, Err(ClientError::Corrupt { .. })), "{result:?}"),
                () = damaging => panic!("nobody tells that it is damaged"),
            }
        });
    }
}

#[workflow]
async fn asks(ctx: Ctx) -> Result<u64> {
    ctx.run(waits, 1).id("child").await
}

/// Each read in turn fails: first the reads of the parent, then those of the child.
#[test]
fn why_says_of_the_child_that_it_cannot_be_read() {
    let unread_at = Arc::new(AtomicUsize::new(usize::MAX));
    let left = unread_at.clone();
    let failing = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
        FaultyStore::deciding(memory(clock), move |what| match what {
            "read" if left.fetch_sub(1, Ordering::Relaxed) == 0 => Fault::Unread,
            _ => Fault::None,
        })
    };
    Lab::run_on(1, failing, |lab| async move {
        let (_machine, worker) = lab.worker().await.unwrap();
        let handle = worker.start(asks, ()).id("parent").await.unwrap();
        lab.sleep(minutes(1)).await;
        let mut said = Vec::new();
        for count in 0..8 {
            unread_at.store(count, Ordering::Relaxed);
            said.push(handle.why().await.unwrap());
        }
        unread_at.store(usize::MAX, Ordering::Relaxed);
        said.dedup();
        let [of_parent, of_child, whole] = &said[..] else { panic!("{said:?}") };
        assert!(of_parent.starts_with(r#""parent" cannot be read now"#), "{of_parent}");
        let expected = r#"workflow "parent" is waiting for child "child" (at "#;
        assert!(of_child.starts_with(expected), "{of_child}");
        assert!(of_child.contains("), which cannot be read now: "), "{of_child}");
        assert!(whole.contains(r#"), which is waiting for signal "go" (at "#), "{whole}");
    });
}

/// An execution that cannot be read, while others can, is reported as such. A store that is out of
/// reach is an error, whatever was asked for. The error says which it is: nothing else is asked.
#[test]
fn why_tells_an_execution_that_cannot_be_read_from_a_store_that_cannot() {
    let (is_unread, is_away) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (unread, away) = (is_unread.clone(), is_away.clone());
    let failing = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
        FaultyStore::deciding(memory(clock), move |what| match what {
            "read" if away.load(Ordering::Relaxed) => Fault::Unavailable,
            "read" if unread.load(Ordering::Relaxed) => Fault::Unread,
            _ => Fault::None,
        })
    };
    Lab::run_on(1, failing, |lab| async move {
        let (_machine, worker) = lab.worker().await.unwrap();
        let handle = worker.start(waits, 1).id("one").await.unwrap();
        is_unread.store(true, Ordering::Relaxed);
        let why = handle.why().await.unwrap();
        assert!(why.contains("cannot be read now, and is tried again"), "{why}");
        is_away.store(true, Ordering::Relaxed);
        let error = handle.why().await.unwrap_err();
        assert!(matches!(error, ClientError::Unavailable { .. }), "{error:?}");
        is_unread.store(false, Ordering::Relaxed);
        is_away.store(false, Ordering::Relaxed);
    });
}

/// Does not leave memory.
#[workflow]
async fn stays(ctx: Ctx) -> Result<()> {
    ctx.step("stay", std::future::pending).await
}

/// The caller waits in the process that holds the execution. It leaves memory there, and goes on in
/// another process, because the first one is full.
#[test]
fn whoever_waits_here_follows_an_execution_that_leaves() {
    for make in [memory, sqlite] {
        Lab::run_on(1, make, |lab| async move {
            let full = |builder: abide::Builder| builder.execution_count_max(1).park_after(secs(1));
            let (_, here) = lab.worker_with(full).await.unwrap();
            let handle = here.start(waits, 0).id("one").await.unwrap();
            let leaves = async {
                lab.sleep(secs(5)).await;
                here.start(stays, ()).id("two").await.unwrap();
                lab.sleep(secs(1)).await;
                let (_, elsewhere) = lab.worker().await.unwrap();
                elsewhere.handle::<u64>("one").signal("go", &7u64).await.unwrap();
                (lab.now(), elsewhere)
            };
            let waiting = async { (handle.result().await.unwrap(), lab.now()) };
            let ((sent_at, _elsewhere), (result, told_at)) = futures_util::join!(leaves, waiting);
            assert_eq!(result, 7);
            let took = told_at.since(sent_at);
            assert!(took < secs(5), "it was told after {took:?}");
        });
    }
}
