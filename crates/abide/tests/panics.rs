//! Panics outside of every call of user code: in the destructors of its values.

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

/// Drops a transaction whose closure cannot be dropped.
#[workflow]
async fn gives_up(ctx: Ctx) -> Result<()> {
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

/// It is said where it stands, and nothing else waits for it.
#[test]
fn an_execution_whose_runner_panics_does_not_stay_running() {
    Lab::run_on_each(1, |lab| async move {
        let state = lab.clone();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(state)).await.unwrap();
        let handle = abide.start(gives_up, ()).id("one").await.unwrap();
        lab.sleep(minutes(5)).await;
        let (status, why) = (handle.status().await.unwrap(), handle.why().await.unwrap());
        assert!(matches!(status, Status::Blocked | Status::Completed), "{status:?} {why}");
        handle.terminate("enough").await.ok();
    });
}
