//! What the application does when its worker has become idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::prelude::*;
use abide::testing::Lab;

#[workflow]
async fn quick(ctx: Ctx) -> Result<u64> {
    ctx.step("one", || async { Ok(1) }).await
}

#[workflow]
async fn sleeps(ctx: Ctx, seconds: u64) -> Result<()> {
    ctx.sleep(secs(seconds)).await
}

/// Opens a worker, and counts how often it was idle.
async fn counted(lab: &Lab) -> (Abide, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let counting = count.clone();
    let hook = move || _ = counting.fetch_add(1, Ordering::Relaxed);
    let (_, abide) = lab.worker_with(|builder| builder.on_idle(hook)).await.unwrap();
    (abide, count)
}

/// Long enough for a worker without work to be idle.
const LONG: Duration = Duration::from_secs(10);

#[test]
fn the_hook_is_called_once_after_work() {
    Lab::run_on_each(1, async |lab: Lab| {
        let (abide, count) = counted(&lab).await;
        lab.sleep(LONG).await;
        assert_eq!(count.load(Ordering::Relaxed), 0, "it had no work");
        for expected in 1..4 {
            abide.run(quick, ()).await.unwrap();
            assert_eq!(count.load(Ordering::Relaxed), expected - 1, "it has just worked");
            lab.sleep(LONG).await;
            assert_eq!(count.load(Ordering::Relaxed), expected);
            lab.sleep(LONG * 6).await;
            assert_eq!(count.load(Ordering::Relaxed), expected, "it is idle as before");
        }
    });
}

#[test]
fn a_worker_whose_executions_sleep_is_idle() {
    Lab::run(1, async |lab: Lab| {
        let (abide, count) = counted(&lab).await;
        let handle = abide.start(sleeps, 100).await.unwrap();
        lab.sleep(LONG).await;
        assert_eq!(count.load(Ordering::Relaxed), 1);
        handle.result().await.unwrap();
        lab.sleep(LONG).await;
        assert_eq!(count.load(Ordering::Relaxed), 2, "it has worked again");
    });
}

#[test]
fn a_hook_that_panics_harms_nothing() {
    Lab::run(1, async |lab: Lab| {
        let (_, abide) = lab.worker_with(|builder| builder.on_idle(|| panic!("a bad hook"))).await.unwrap();
        for _ in 0..2 {
            assert_eq!(abide.run(quick, ()).await.unwrap(), 1);
            lab.sleep(LONG).await;
        }
    });
}
