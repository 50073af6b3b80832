//! Callers may drop their futures at any await, and an engine may be shut down at any time: nothing
//! is stranded.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide::Builder;
use abide::prelude::*;
use abide::testing::Lab;
use abide_core::Bounds;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use tokio::sync::Notify;

#[workflow]
async fn quick(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.step("one", || async { Ok(n) }).await
}

#[workflow]
async fn waits_for_go(ctx: Ctx) -> Result<u64> {
    ctx.recv("go").await
}

/// Polls a future this many times and drops it. Returns whether it had an answer by then.
async fn poll_and_drop<F: Future>(future: F, poll_count: u32) -> bool {
    let mut future: Pin<Box<F>> = Box::pin(future);
    for _ in 0..poll_count {
        if futures_util::poll!(&mut future).is_ready() {
            return true;
        }
    }
    false
}

/// Runs a test in a lab whose store answers late: three polls for each submit.
fn late<Fut: Future>(test: impl FnOnce(Lab) -> Fut) -> Fut::Output {
    let store = |clock| {
        let inner = MemoryStore::new(clock, Bounds::default());
        FaultyStore::deciding(inner, |what| match what {
            "submit" => Fault::Delay { poll_count: 3 },
            _ => Fault::None,
        }) as Arc<dyn abide_store::Store>
    };
    Lab::run_on(7, store, test)
}

#[test]
fn a_dropped_start_is_run() {
    late(|lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        for poll_count in 1..=3 {
            let id = format!("start-{poll_count}");
            let start = abide.start(quick, 1).id(&id);
            assert!(!poll_and_drop(start.into_future(), poll_count).await, "it is dropped half way");
            lab.sleep(secs(1)).await;
            assert_eq!(abide.handle::<u64>(&id).status().await.unwrap(), Status::Completed, "{id}");
        }
    });
}

#[test]
fn a_dropped_run_is_run() {
    late(|lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        for poll_count in 1..=4 {
            let id = format!("run-{poll_count}");
            assert!(!poll_and_drop(abide.run(quick, 1).id(&id).into_future(), poll_count).await);
            lab.sleep(secs(1)).await;
            assert_eq!(abide.handle::<u64>(&id).status().await.unwrap(), Status::Completed, "{id}");
        }
    });
}

#[test]
fn a_dropped_signal_arrives_and_a_dropped_wait_harms_nobody() {
    late(|lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(waits_for_go, ()).id("one").await.unwrap();
        assert!(!poll_and_drop(handle.result(), 2).await);
        assert!(!poll_and_drop(handle.signal("go", &5u64).into_future(), 1).await);
        assert_eq!(handle.result().await.unwrap(), 5);
    });
}

/// Requests that the engine has taken over die with its machine, like everything else there.
#[test]
fn a_dropped_start_dies_with_its_machine_and_is_taken_over() {
    late(|lab| async move {
        let (machine, abide) = lab.worker().await.unwrap();
        assert!(!poll_and_drop(abide.start(quick, 1).id("one").into_future(), 1).await);
        drop(abide);
        lab.crash(machine);
        let (_, abide) = lab.worker().await.unwrap();
        assert_eq!(abide.handle::<u64>("one").result().await.unwrap(), 1);
    });
}

/// When nobody knows the outcome of a start, its caller hears that; the engine goes on asking, and
/// takes the lease that the start brought.
#[test]
fn a_start_of_unknown_outcome_is_seen_through() {
    let store = |clock| {
        let inner = MemoryStore::new(clock, Bounds::default());
        let submit_count = AtomicU32::new(0);
        FaultyStore::deciding(inner, move |what| match what {
            "submit" if submit_count.fetch_add(1, Ordering::Relaxed) < 20 => Fault::Indeterminate,
            _ => Fault::None,
        }) as Arc<dyn abide_store::Store>
    };
    Lab::run_on(7, store, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let error = abide.start(quick, 1).id("one").await.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("unknown"), "{error}");
        lab.sleep(secs(10)).await;
        assert_eq!(abide.handle::<u64>("one").status().await.unwrap(), Status::Completed);
    });
}

/// Requests that the engine goes on with take room like every other request, so an outage does not
/// pile them up.
#[test]
fn requests_of_unknown_outcome_are_bounded() {
    let store = |clock| {
        let inner = MemoryStore::new(clock, Bounds::default());
        let submit_count = AtomicU32::new(0);
        FaultyStore::deciding(inner, move |what| match what {
            "submit" if submit_count.fetch_add(1, Ordering::Relaxed) < 30 => Fault::Indeterminate,
            _ => Fault::None,
        }) as Arc<dyn abide_store::Store>
    };
    Lab::run_on(7, store, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.request_count_max(1)).await.unwrap();
        assert!(abide.start(quick, 1).id("one").await.is_err(), "nobody knows");
        // This start waits until the first one is answered, and does not meet the outage itself.
        assert_eq!(abide.run(quick, 2).id("two").await.unwrap(), 2);
    });
}

/// Uses real threads: the writer of the file answers later than the first poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_starts_are_run_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let abide = Abide::open(&format!("sqlite:{}", folder.path().join("a.db").display())).await.unwrap();
    let mut dropped_count = 0;
    for wave in 0..20 {
        let mut starts: Vec<_> =
            (0..20u64).map(|n| abide.start(quick, n).id(format!("{wave}-{n}")).into_future()).collect();
        for start in &mut starts {
            dropped_count += u32::from(futures_util::poll!(start).is_pending());
        }
        drop(starts);
    }
    assert!(dropped_count > 0, "some had no answer yet");
    for wave in 0..20 {
        for n in 0..20 {
            let handle = abide.handle::<u64>(&format!("{wave}-{n}"));
            // A start that was dropped may arrive a moment later.
            while handle.status().await.is_err() {
                tokio::task::yield_now().await;
            }
            assert_eq!(handle.result().await.unwrap(), n);
        }
    }
    abide.shutdown().await;
}

#[derive(Default)]
struct Slow {
    run_count: AtomicU32,
    has_begun: Notify,
    may_end: Notify,
}

#[workflow]
async fn slow(ctx: Ctx) -> Result<u32> {
    let slow = ctx.state::<Arc<Slow>>();
    ctx.step("slow", || async {
        let count = slow.run_count.fetch_add(1, Ordering::Relaxed) + 1;
        slow.has_begun.notify_one();
        slow.may_end.notified().await;
        Ok(count)
    })
    .await
}

/// The grace period is many times the life of the session.
#[test]
fn a_shutdown_keeps_its_session_alive_for_the_whole_grace_period() {
    Lab::run(1, |lab| async move {
        let state = Arc::new(Slow::default());
        let (_, abide) = lab
            .worker_with(|builder| builder.state(state.clone()).session_ttl(secs(2)).shutdown_grace(secs(60)))
            .await
            .unwrap();
        let (_, other) =
            lab.worker_with(|builder| builder.state(state.clone()).lanes(["other"])).await.unwrap();
        abide.start(slow, ()).id("one").await.unwrap();
        state.has_begun.notified().await;
        let shutdown = abide.shutdown();
        let step_ends = async {
            lab.sleep(secs(30)).await;
            state.may_end.notify_one();
        };
        futures_util::join!(shutdown, step_ends);
        assert_eq!(other.handle::<u32>("one").status().await.unwrap(), Status::Completed);
        assert_eq!(state.run_count.load(Ordering::Relaxed), 1);
    });
}

/// The number of calls of each step of [`drained`], and the gates that let them end.
#[derive(Default)]
struct Steps {
    called: Mutex<Vec<&'static str>>,
    first_may_end: Notify,
    long_may_end: Notify,
}

impl Steps {
    fn call(&self, name: &'static str) {
        self.called.lock().unwrap().push(name);
    }

    fn called(&self) -> Vec<&'static str> {
        let mut called = self.called.lock().unwrap().clone();
        called.sort_unstable();
        called
    }
}

#[workflow]
async fn drained(ctx: Ctx) -> Result<()> {
    let steps = ctx.state::<Arc<Steps>>();
    let long = ctx.step("long", || async {
        steps.call("long");
        steps.long_may_end.notified().await;
        Ok(())
    });
    let two = async {
        ctx.step("first", || async {
            steps.call("first");
            steps.first_may_end.notified().await;
            Ok(())
        })
        .await?;
        ctx.step("later", || async {
            steps.call("later");
            Ok(())
        })
        .await
    };
    let (long, two) = futures_util::join!(long, two);
    long.and(two)
}

/// While it drains, an engine lets closures end and begins none: the next step of one branch waits
/// for the next engine, although another branch keeps the execution here.
#[test]
fn no_closure_begins_while_an_engine_drains() {
    Lab::run(1, |lab| async move {
        let steps = Arc::new(Steps::default());
        let with_steps = |builder: Builder| builder.state(steps.clone()).shutdown_grace(secs(60));
        let (_, abide) = lab.worker_with(with_steps).await.unwrap();
        abide.start(drained, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(steps.called(), ["first", "long"]);
        let ends = async {
            lab.sleep(secs(1)).await;
            steps.first_may_end.notify_one();
            lab.sleep(secs(10)).await;
            assert_eq!(steps.called(), ["first", "long"], "a closure began while the engine drained");
            steps.long_may_end.notify_one();
        };
        futures_util::join!(abide.shutdown(), ends);
        assert_eq!(steps.called(), ["first", "long"]);
        let (_, abide) = lab.worker_with(with_steps).await.unwrap();
        abide.handle::<()>("one").result().await.unwrap();
        assert_eq!(steps.called(), ["first", "later", "long"], "each was called once");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_shutdowns_at_once_end_together() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    let state = Arc::new(Slow::default());
    let abide = Abide::builder(&url).state(state.clone()).open().await.unwrap();
    abide.start(slow, ()).id("one").await.unwrap();
    state.has_begun.notified().await;
    let (one, other) = (abide.clone(), abide.clone());
    let mut first = Box::pin(one.shutdown());
    let mut second = Box::pin(other.shutdown());
    assert!(futures_util::poll!(&mut first).is_pending());
    assert!(futures_util::poll!(&mut second).is_pending(), "the second waits for the first");
    state.may_end.notify_one();
    futures_util::join!(first, second);
    let abide = Abide::builder(&url).state(state.clone()).open().await.unwrap();
    assert_eq!(abide.handle::<u32>("one").result().await.unwrap(), 1);
    assert_eq!(state.run_count.load(Ordering::Relaxed), 1);
}

/// A caller that stops waiting for a shutdown does not stop it.
#[test]
fn a_dropped_shutdown_goes_on() {
    Lab::run(1, |lab| async move {
        let state = Arc::new(Slow::default());
        let (_, abide) = lab.worker_with(|builder| builder.state(state.clone())).await.unwrap();
        abide.start(slow, ()).id("one").await.unwrap();
        state.has_begun.notified().await;
        assert!(!poll_and_drop(abide.shutdown(), 1).await);
        lab.sleep(Duration::from_secs(30)).await;
        let (_, abide) = lab.worker_with(|builder| builder.state(state.clone())).await.unwrap();
        state.has_begun.notified().await;
        state.may_end.notify_one();
        assert_eq!(abide.handle::<u32>("one").result().await.unwrap(), 2);
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The heartbeat has a thread of its own, which must not hold the leases of a stopped engine
/// forever.
#[test]
#[expect(clippy::disallowed_methods, reason = "a heart that beats on would hold it for ever")]
fn what_ran_in_a_runtime_that_has_ended_goes_on_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    let state = Arc::new(Slow::default());
    let first = runtime();
    let deserted = first.block_on(async {
        let abide = Abide::builder(&url).state(state.clone()).open().await.unwrap();
        abide.start(slow, ()).id("one").await.unwrap();
        state.has_begun.notified().await;
        abide
    });
    drop(first);
    runtime().block_on(async {
        let abide = Abide::builder(&url).state(state.clone()).open().await.unwrap();
        let begun = tokio::time::timeout(Duration::from_secs(30), state.has_begun.notified()).await;
        assert!(begun.is_ok(), "{}", abide.handle::<u32>("one").why().await.unwrap());
        let told = deserted.handle::<u32>("one").result().await.unwrap_err().to_string();
        assert!(told.contains("shut down"), "{told}");
        deserted.shutdown().await;
        state.may_end.notify_one();
        assert_eq!(abide.handle::<u32>("one").result().await.unwrap(), 2);
    });
}

/// The runtime of a worker ends during a patient shutdown, called from that runtime or from
/// another.
#[test]
#[expect(clippy::disallowed_methods, reason = "a shutdown that nobody ends would wait for an hour")]
fn what_ran_in_a_runtime_that_ends_during_a_shutdown_goes_on_elsewhere() {
    for is_from_there in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("a.db").display());
        let state = Arc::new(Slow::default());
        let open = async || {
            let builder = Abide::builder(&url).state(state.clone()).shutdown_grace(hours(1));
            builder.open().await.unwrap()
        };
        let (first, second) = (runtime(), runtime());
        let deserted = first.block_on(async {
            let abide = open().await;
            abide.start(slow, ()).id("one").await.unwrap();
            state.has_begun.notified().await;
            abide
        });
        let mut shutdown = Box::pin(deserted.shutdown());
        let begins = async { assert!(futures_util::poll!(&mut shutdown).is_pending()) };
        if is_from_there {
            first.block_on(begins);
            // The runtime, which is about to end, has to see the shutdown through.
            drop(shutdown);
            shutdown = Box::pin(deserted.shutdown());
        } else {
            second.block_on(begins);
        }
        drop(first);
        second.block_on(async {
            let told = tokio::time::timeout(Duration::from_secs(30), shutdown).await;
            assert!(told.is_ok(), "it waits for what nobody runs: {is_from_there}");
            let abide = open().await;
            let begun = tokio::time::timeout(Duration::from_secs(30), state.has_begun.notified()).await;
            assert!(begun.is_ok(), "{}", abide.handle::<u32>("one").why().await.unwrap());
            state.may_end.notify_one();
            assert_eq!(abide.handle::<u32>("one").result().await.unwrap(), 2);
        });
    }
}
