//! Executions that may not begin before their time: a delayed start, the next attempt of a task.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::Builder;
use abide::prelude::*;
use abide::testing::Lab;

type Count = Arc<AtomicU32>;

fn count(ctx: &Ctx) -> u32 {
    ctx.state::<Count>().fetch_add(1, Ordering::SeqCst) + 1
}

#[workflow]
async fn flow(ctx: Ctx) -> Result<u32> {
    let n = count(&ctx);
    ctx.step("one", || async { Ok(()) }).await?;
    Ok(n)
}

#[task]
async fn job(ctx: Ctx) -> Result<u32> {
    Ok(count(&ctx))
}

#[task]
async fn fails(ctx: Ctx) -> Result<u32> {
    Err(Error::new(format!("attempt {}", count(&ctx))))
}

/// Runs `test` with a worker that counts how often code began.
fn run(test: impl AsyncFnOnce(&Lab, &Abide, &Count)) {
    Lab::run(1, |lab| async move {
        let begun = Count::default();
        let open = |builder: Builder| builder.state(begun.clone()).session_ttl(hours(30));
        let (_, abide) = lab.worker_with(open).await.unwrap();
        test(&lab, &abide, &begun).await;
    });
}

/// Sends everything that may arrive while an execution waits for its time.
async fn disturb(lab: &Lab, handle: &Handle<u32>) {
    handle.signal("x", &1u32).await.unwrap();
    lab.sleep(secs(5)).await;
    handle.pause().await.unwrap();
    lab.sleep(secs(5)).await;
    assert_eq!(handle.status().await.unwrap(), Status::Paused);
    handle.resume().await.unwrap();
    lab.sleep(secs(5)).await;
    // The next holder reads these two together.
    handle.pause().await.unwrap();
    handle.resume().await.unwrap();
    lab.sleep(secs(5)).await;
}

async fn check_delayed(lab: &Lab, handle: &Handle<u32>, begun: &Count) {
    lab.sleep(secs(5)).await;
    disturb(lab, handle).await;
    assert_eq!(handle.status().await.unwrap(), Status::Scheduled, "{}", handle.why().await.unwrap());
    let why = handle.why().await.unwrap();
    assert!(why.contains("is scheduled to start at"), "{why}");
    assert_eq!(begun.load(Ordering::SeqCst), 0, "its code was not called");
    lab.sleep(hours(2)).await;
    assert_eq!(handle.result().await.unwrap(), 1);
}

#[test]
fn a_delay_survives_signals_pause_and_resume() {
    run(async |lab, abide, begun| {
        let handle = abide.start(flow, ()).id("flow").delay(hours(2)).await.unwrap();
        check_delayed(lab, &handle, begun).await;
    });
    run(async |lab, abide, begun| {
        let handle = abide.start(job, ()).id("job").delay(hours(2)).await.unwrap();
        check_delayed(lab, &handle, begun).await;
    });
}

#[test]
fn the_pause_before_the_next_attempt_of_a_task_survives_signals_pause_and_resume() {
    run(async |lab, abide, begun| {
        let retry = Retry::fixed(hours(2)).max_attempts(2);
        let handle = abide.start(fails, ()).id("one").retry(retry).await.unwrap();
        lab.sleep(secs(5)).await;
        disturb(lab, &handle).await;
        assert_eq!(handle.status().await.unwrap(), Status::Sleeping, "{}", handle.why().await.unwrap());
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        lab.sleep(hours(2)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Failed);
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn a_task_that_is_retried_without_a_pause_ends() {
    run(async |lab, abide, begun| {
        let retry = Retry::fixed(Duration::ZERO).max_attempts(5);
        let handle = abide.start(fails, ()).id("one").retry(retry).await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Failed);
        assert_eq!(begun.load(Ordering::SeqCst), 5);
    });
}

#[test]
fn what_is_delayed_can_be_cancelled_at_once() {
    run(async |lab, abide, begun| {
        let handle = abide.start(flow, ()).id("one").delay(hours(2)).await.unwrap();
        lab.sleep(secs(5)).await;
        disturb(lab, &handle).await;
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
        assert_eq!(begun.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_deadline_may_come_before_the_delay_is_over() {
    run(async |lab, abide, begun| {
        let first = abide.start(flow, ()).id("flow").delay(hours(10)).deadline(hours(1)).await.unwrap();
        let second = abide.start(job, ()).id("job").delay(hours(10)).deadline(hours(1)).await.unwrap();
        lab.sleep(secs(5)).await;
        let why = first.why().await.unwrap();
        assert!(why.contains("is scheduled to start at 2025-06-16T01:"), "{why}");
        lab.sleep(hours(1)).await;
        for handle in [first, second] {
            assert_eq!(handle.status().await.unwrap(), Status::Failed, "{}", handle.why().await.unwrap());
        }
        assert_eq!(begun.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn what_has_begun_does_not_wait_again_when_the_clock_is_set_back() {
    #[workflow]
    async fn waits(ctx: Ctx) -> Result<u32> {
        ctx.step("one", || async { Ok(()) }).await?;
        ctx.recv("go").await
    }
    run(async |lab, abide, _| {
        let handle = abide.start(waits, ()).id("one").delay(secs(10)).await.unwrap();
        lab.sleep(secs(20)).await;
        lab.set_clock_back(hours(1));
        handle.signal("go", &7u32).await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.result().await.unwrap(), 7);
    });
}
