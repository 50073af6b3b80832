//! Panics outside of every call of user code: in the destructors of its values.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::prelude::*;
use abide::testing::{Lab, transact};

/// A value that must not be given up.
#[derive(Clone)]
struct Touchy;

impl Drop for Touchy {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("do not drop me");
        }
    }
}

/// How often the code was begun.
#[derive(Clone, Debug, Default)]
struct Begun(Arc<AtomicU32>);

#[task]
async fn holds(ctx: Ctx) -> Result<()> {
    let _touchy = Touchy;
    ctx.state::<Lab>().sleep(days(365)).await;
    Ok(())
}

/// The code is dropped to end it. The order counts, whatever the code does then.
#[test]
fn a_task_that_panics_when_it_is_dropped_is_cancelled() {
    Lab::run_on_each(1, |lab| async move {
        let state = lab.clone();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(state)).await.unwrap();
        let handle = abide.start(holds, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(30)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled, "{}", handle.why().await.unwrap());
    });
}

#[test]
fn a_task_that_panics_when_it_is_dropped_ends_at_its_deadline() {
    Lab::run_on_each(1, |lab| async move {
        let state = lab.clone();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(state)).await.unwrap();
        let handle = abide.start(holds, ()).id("one").deadline(secs(5)).await.unwrap();
        lab.sleep(minutes(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Failed, "{}", handle.why().await.unwrap());
    });
}

/// Drops a transaction whose closure cannot be dropped, and counts how often it was begun.
#[workflow]
async fn gives_up(ctx: Ctx) -> Result<()> {
    ctx.state::<Begun>().0.fetch_add(1, Ordering::Relaxed);
    let touchy = Touchy;
    let transacted = transact(&ctx, "book", move |_| {
        let _held = &touchy;
        Ok(())
    });
    tokio::select! {
        biased;
        slept = ctx.sleep(ms(0)) => slept,
        transacted = transacted => transacted,
    }
}

#[workflow]
async fn waits_for_it(ctx: Ctx) -> Result<()> {
    ctx.run(gives_up, ()).await
}

/// Each go runs unrecorded steps again, so there are `failure_count_max` of them. Then `why` says
/// what happens and where.
#[test]
fn an_execution_whose_runner_panics_each_time_is_blocked() {
    Lab::run_on_each(1, |lab| async move {
        let begun = Begun::default();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(begun.clone())).await.unwrap();
        let handle = abide.start(gives_up, ()).id("one").await.unwrap();
        lab.sleep(minutes(5)).await;
        let why = handle.why().await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
        assert!(why.contains("panicked 5 times, at most failure_count_max = 5: do not drop me"), "{why}");
        assert!(why.contains("tests/panics.rs:"), "{why}");
        assert_eq!(begun.0.load(Ordering::Relaxed), 5);
        handle.terminate("enough").await.unwrap();
        lab.sleep(minutes(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

#[test]
fn a_parent_says_that_it_waits_for_a_child_whose_runner_panics() {
    Lab::run_on_each(1, |lab| async move {
        let (_machine, abide) = lab.worker_with(|builder| builder.state(Begun::default())).await.unwrap();
        let parent = abide.start(waits_for_it, ()).id("parent").await.unwrap();
        lab.sleep(minutes(5)).await;
        let why = parent.why().await.unwrap();
        assert!(why.contains("is blocked") && why.contains("do not drop me"), "{why}");
        parent.cancel("enough").await.unwrap();
        lab.sleep(minutes(5)).await;
        assert_eq!(parent.status().await.unwrap(), Status::Cancelled, "{}", parent.why().await.unwrap());
        let open = abide.list(Filter::all()).await.unwrap();
        assert!(open.iter().all(|listed| listed.status.is_terminal()), "{open:?}");
    });
}

/// A shutdown waits for nobody who panics, and the next worker takes over at once.
#[test]
fn a_worker_shuts_down_between_two_panics() {
    Lab::run_on_each(1, |lab| async move {
        let begun = Begun::default();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(begun.clone())).await.unwrap();
        abide.start(gives_up, ()).id("one").await.unwrap();
        lab.sleep(ms(50)).await;
        abide.shutdown().await;
        let before = begun.0.load(Ordering::Relaxed);
        assert!((1..5).contains(&before), "{before}");
        let (_machine, abide) = lab.worker_with(|builder| builder.state(begun.clone())).await.unwrap();
        lab.sleep(minutes(5)).await;
        let handle = abide.handle::<()>("one");
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{}", handle.why().await.unwrap());
        assert_eq!(begun.0.load(Ordering::Relaxed), before + 5, "each worker counts its own");
        handle.terminate("enough").await.unwrap();
    });
}
