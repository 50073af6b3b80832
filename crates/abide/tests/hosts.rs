//! A caller that waits for a run polls the execution on its own task. Whatever the caller does, the
//! execution goes on.

#![expect(clippy::disallowed_methods, reason = "hosts are tasks of tokio")]

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide::Builder;
use abide::prelude::*;
use tokio::runtime::Runtime;
use tokio::sync::{Barrier, Notify};
use tokio::task::JoinHandle;

/// The two sides of a step that waits.
#[derive(Default)]
struct Gate {
    has_begun: Notify,
    may_end: Notify,
    is_asked: AtomicBool,
    has_polled: Notify,
    is_over: Notify,
}

#[workflow]
async fn gated(ctx: Ctx, n: u64) -> Result<u64> {
    let gate = ctx.state::<Arc<Gate>>();
    let first = ctx.step("first", || async { Ok(n) }).await?;
    ctx.step("wait", || async {
        gate.has_begun.notify_one();
        gate.may_end.notified().await;
        Ok(first + 1)
    })
    .await
}

/// Returns the number of the task that it runs on.
#[workflow]
async fn whose(ctx: Ctx) -> Result<String> {
    ctx.step("task", || async { Ok(tokio::task::id().to_string()) }).await
}

/// Waits until two executions are in the step at the same time. Returns the number of its task.
#[workflow]
async fn meets(ctx: Ctx, _n: u64) -> Result<String> {
    let barrier = ctx.state::<Arc<Barrier>>();
    ctx.step("meet", || async {
        barrier.wait().await;
        Ok(tokio::task::id().to_string())
    })
    .await
}

#[workflow]
async fn sleeps_inside(ctx: Ctx) -> Result<u64> {
    ctx.step("sleep", || async {
        tokio::time::sleep(ms(1)).await;
        Ok(1)
    })
    .await
}

/// Waits for something that comes soon, unless it never comes.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(secs(20), future).await.expect("it comes soon")
}

fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(future)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap()
}

async fn open<S: Send + Sync + 'static>(state: S) -> Abide {
    opened(Abide::builder("sqlite::memory:").state(state).host_patience(ms(20))).await
}

/// Opens a worker, and waits until it knows the tasks of its runtime.
async fn opened(builder: Builder) -> Abide {
    let abide = builder.open().await.unwrap();
    soon(async {
        while !is_host(abide.clone()).await {
            tokio::task::yield_now().await;
        }
    })
    .await;
    abide
}

/// Whether a task that waits for a run is its host.
async fn is_host(abide: Abide) -> bool {
    let caller = async move { tokio::task::id().to_string() == abide.run(whose, ()).await.unwrap() };
    spawn(caller).await.unwrap()
}

#[test]
fn a_caller_is_the_host_of_what_it_waits_for() {
    runtime().block_on(async {
        let abide = open(()).await;
        assert!(is_host(abide).await);
    });
}

/// A caller that has sent its start and does something else does not hear that it was given the
/// lease.
#[test]
fn a_start_whose_caller_does_not_come_back_runs() {
    for patience in [ms(20), Duration::ZERO] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let url = format!("sqlite:{}", path.display());
        runtime().block_on(async {
            // Its heartbeats, which would also find the lease, are far apart.
            let builder = Abide::builder(&url).host_patience(patience).session_ttl(hours(1));
            let abide = builder.open().await.unwrap();
            let mut run = pin!(abide.run(whose, ()).id("a").into_future());
            assert!(futures_util::poll!(&mut run).is_pending());
            soon(async {
                while abide.handle::<String>("a").status().await.is_err() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            let end = soon(abide.handle::<String>("a").result()).await.unwrap();
            assert_eq!(soon(run).await.unwrap(), end);
        });
    }
}

#[test]
fn a_caller_hears_of_an_end_in_the_grace_of_a_shutdown() {
    runtime().block_on(async {
        let gate = Arc::new(Gate::default());
        let builder = Abide::builder("sqlite::memory:").state(gate.clone()).host_patience(hours(1));
        let abide = opened(builder.shutdown_grace(secs(60))).await;
        let caller = spawn(async move {
            let mut run = pin!(abide.run(gated, 1).id("a").into_future());
            tokio::select! {
                biased;
                _ = &mut run => panic!("its step may not end"),
                () = gate.has_begun.notified() => {}
            }
            let mut shutdown = pin!(abide.shutdown());
            assert!(futures_util::poll!(&mut shutdown).is_pending());
            assert!(futures_util::poll!(&mut run).is_pending(), "it has left this task, and goes on");
            gate.may_end.notify_one();
            tokio::join!(run, shutdown).0
        });
        assert_eq!(soon(caller).await.unwrap().unwrap(), 2);
    });
}

#[test]
fn a_hosted_execution_goes_on_when_its_caller_is_dropped() {
    runtime().block_on(async {
        let gate = Arc::new(Gate::default());
        let abide = open(gate.clone()).await;
        let caller = spawn(abide.run(gated, 1).id("a").into_future());
        gate.has_begun.notified().await;
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        gate.may_end.notify_one();
        assert_eq!(soon(abide.handle::<u64>("a").result()).await.unwrap(), 2);
    });
}

#[test]
fn a_caller_that_does_not_poll_holds_up_nobody() {
    runtime().block_on(async {
        let gate = Arc::new(Gate::default());
        let abide = open(gate.clone()).await;
        let caller = spawn(async move {
            let mut run = pin!(abide.run(gated, 1).id("a").into_future());
            tokio::select! {
                biased;
                _ = &mut run => panic!("its step may not end"),
                () = gate.has_begun.notified() => {}
            }
            // The branch of a `select!` that takes its time.
            gate.may_end.notify_one();
            let elsewhere = soon(abide.handle::<u64>("a").result()).await.unwrap();
            (elsewhere, soon(run).await.unwrap())
        });
        assert_eq!(caller.await.unwrap(), (2, 2));
    });
}

#[test]
fn a_shutdown_waits_for_no_caller() {
    runtime().block_on(async {
        let gate = Arc::new(Gate::default());
        // Long enough that only the shutdown can have moved it.
        let builder = Abide::builder("sqlite::memory:").state(gate.clone()).host_patience(hours(1));
        let abide = opened(builder.shutdown_grace(secs(60))).await;
        let caller = spawn(async move {
            let mut run = pin!(abide.run(gated, 1).id("a").into_future());
            tokio::select! {
                biased;
                _ = &mut run => panic!("its step may not end"),
                () = gate.has_begun.notified() => {}
            }
            gate.may_end.notify_one();
            abide.shutdown().await;
        });
        soon(caller).await.unwrap();
    });
}

/// Stays in one poll until somebody has asked for the shutdown.
#[workflow]
async fn is_polled_for_long(ctx: Ctx) -> Result<u64> {
    let gate = ctx.state::<Arc<Gate>>();
    ctx.step("wait", || async {
        gate.has_begun.notify_one();
        while !gate.is_asked.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        gate.may_end.notified().await;
        Ok(1)
    })
    .await
}

#[test]
fn a_shutdown_during_a_poll_waits_for_no_caller() {
    runtime().block_on(async {
        let gate = Arc::new(Gate::default());
        let builder = Abide::builder("sqlite::memory:").state(gate.clone()).host_patience(hours(1));
        let abide = opened(builder.shutdown_grace(secs(60))).await;
        let (calling, over) = (abide.clone(), gate.clone());
        let caller = spawn(async move {
            let mut run = pin!(calling.run(is_polled_for_long, ()).id("a").into_future());
            let _ = futures_util::poll!(&mut run);
            over.has_polled.notify_one();
            // Not polled again until the shutdown is over.
            soon(over.is_over.notified()).await;
        });
        gate.has_begun.notified().await;
        let mut shutdown = pin!(abide.shutdown());
        assert!(futures_util::poll!(&mut shutdown).is_pending());
        gate.is_asked.store(true, Ordering::Release);
        gate.has_polled.notified().await;
        gate.may_end.notify_one();
        soon(shutdown).await;
        gate.is_over.notify_one();
        soon(caller).await.unwrap();
    });
}

/// On one thread, a caller that never waits would keep all others from theirs.
#[test]
fn a_caller_of_many_runs_gives_others_a_turn() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let abide = open(()).await;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let caller = spawn(async move {
            for count in 0..1_000 {
                if over.load(Ordering::Relaxed) {
                    return count;
                }
                abide.run(whose, ()).await.unwrap();
            }
            panic!("nobody else had a turn");
        });
        // Behind the caller in line.
        let other = spawn(async move { is_over.store(true, Ordering::Relaxed) });
        assert!(caller.await.unwrap() > 0);
        other.await.unwrap();
    });
}

tokio::task_local! {
    static CALLER: u64;
}

/// Returns what its code and its step see of the caller.
#[workflow]
async fn sees(ctx: Ctx) -> Result<(Option<u64>, Option<u64>)> {
    let seen = || CALLER.try_with(|value| *value).ok();
    let in_code = seen();
    let in_step = ctx.step("block", || async { Ok(tokio::task::block_in_place(seen)) }).await?;
    Ok((in_code, in_step))
}

/// Its task has locals, and may not block in place.
#[test]
fn without_patience_no_code_is_called_on_the_task_of_a_caller() {
    let local = tokio::task::LocalSet::new();
    let runtime = runtime();
    local.block_on(&runtime, async {
        let abide = Abide::builder("sqlite::memory:").host_patience(ms(0)).open().await.unwrap();
        assert!(!is_host(abide.clone()).await);
        let caller = tokio::task::spawn_local(CALLER.scope(7, abide.run(sees, ()).into_future()));
        assert_eq!(soon(caller).await.unwrap().unwrap(), (None, None));
    });
}

/// Returns the thread of a transaction.
#[workflow]
async fn transacts(ctx: Ctx) -> Result<String> {
    ctx.sqlite("thread", |_| Ok(format!("{:?}", std::thread::current().id()))).await
}

/// Its timers and sockets would wait for the disk.
#[test]
fn the_only_thread_of_a_runtime_commits_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let builder = Abide::builder(format!("sqlite:{}", folder.path().join("a.db").display()));
        let abide = opened(builder).await;
        let caller = spawn(abide.run(transacts, ()).into_future());
        assert_ne!(caller.await.unwrap().unwrap(), format!("{:?}", std::thread::current().id()));
    });
}

/// A thread that blocks on a run outlives its runtime, and has no timers then.
#[test]
fn a_thread_that_blocks_is_no_host() {
    runtime().block_on(async {
        let abide = open(()).await;
        let blocking = tokio::task::spawn_blocking(move || {
            let mine = tokio::task::id().to_string();
            let task = tokio::runtime::Handle::current().block_on(abide.run(whose, ()).into_future());
            (mine, task.unwrap())
        });
        let (caller, host) = blocking.await.unwrap();
        assert_ne!(caller, host);
    });
}

#[test]
fn a_task_that_waits_for_many_hosts_one_of_them() {
    runtime().block_on(async {
        let state = Arc::new(Barrier::new(2));
        let abide = opened(Abide::builder("sqlite::memory:").state(state)).await;
        let both = spawn(async move {
            let mine = tokio::task::id().to_string();
            let runs = [1, 2].map(|n| abide.run(meets, n).into_future());
            let tasks = futures_util::future::join_all(runs).await;
            tasks.into_iter().filter(|task| *task.as_ref().unwrap() == mine).count()
        });
        let hosted_count = soon(both).await.unwrap();
        assert_eq!(hosted_count, 1);
    });
}

#[test]
fn code_runs_on_the_runtime_that_abide_was_opened_in() {
    let home = runtime();
    let abide = home.block_on(open(()));
    // A runtime without timers.
    let elsewhere = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let caller = elsewhere.spawn(abide.run(sleeps_inside, ()).into_future());
    assert_eq!(elsewhere.block_on(caller).unwrap().unwrap(), 1);
}
