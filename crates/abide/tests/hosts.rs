//! A caller that waits for a run polls the execution on its own task. Whatever the caller does, the
//! execution goes on.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;

use abide::prelude::*;
use tokio::runtime::Runtime;
use tokio::sync::{Barrier, Notify};

/// The two sides of a step that waits.
#[derive(Default)]
struct Gate {
    has_begun: Notify,
    may_end: Notify,
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

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap()
}

async fn open<S: Send + Sync + 'static>(state: S) -> Abide {
    Abide::builder("sqlite::memory:").state(state).park_after(ms(20)).open().await.unwrap()
}

#[test]
fn a_caller_is_the_host_of_what_it_waits_for() {
    runtime().block_on(async {
        let abide = open(()).await;
        let hosted = tokio::spawn(async move {
            let mine = tokio::task::id().to_string();
            (mine.clone(), abide.run(whose, ()).await.unwrap())
        });
        let (caller, host) = hosted.await.unwrap();
        assert_eq!(caller, host);
    });
}

#[test]
fn a_hosted_execution_goes_on_when_its_caller_is_dropped() {
    runtime().block_on(async {
        let gate = Arc::new(Gate::default());
        let abide = open(gate.clone()).await;
        let caller = tokio::spawn(abide.run(gated, 1).id("a").into_future());
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
        let caller = tokio::spawn(async move {
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
        let builder = Abide::builder("sqlite::memory:").state(gate.clone()).park_after(hours(1));
        let abide = builder.shutdown_grace(secs(60)).open().await.unwrap();
        let caller = tokio::spawn(async move {
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

#[test]
fn a_task_that_waits_for_many_hosts_one_of_them() {
    runtime().block_on(async {
        let state = Arc::new(Barrier::new(2));
        let abide = Abide::builder("sqlite::memory:").state(state).open().await.unwrap();
        let both = tokio::spawn(async move {
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
