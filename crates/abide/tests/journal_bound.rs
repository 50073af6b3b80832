//! A journal at `entry_count_max`: nothing new begins, but the run can end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::Builder;
use abide::prelude::*;
use abide::testing::Lab;

/// The number of steps that, with the start, fills the journal.
const STEP_COUNT: u32 = 3;
const ENTRY_COUNT_MAX: u64 = 1 + STEP_COUNT as u64;

type Count = Arc<AtomicU32>;

async fn fill(ctx: &Ctx) -> Result<()> {
    for _ in 0..STEP_COUNT {
        ctx.step("fill", || async { Ok(()) }).await?;
    }
    Ok(())
}

/// Fills its journal, and then does what `then` says.
#[workflow]
async fn full(ctx: Ctx, then: String) -> Result<u32> {
    if ctx.run_number() == 2 {
        return Ok(2);
    }
    if then == "beside" {
        // The slow step ends when the other steps are recorded.
        let gate = tokio::sync::Semaphore::new(0);
        let slow = ctx.step("slow", || async {
            gate.acquire().await?.forget();
            Ok(())
        });
        let rest = async {
            fill(&ctx).await?;
            gate.add_permits(1);
            Ok(())
        };
        futures_util::try_join!(slow, rest)?;
        return Ok(1);
    }
    fill(&ctx).await?;
    match then.as_str() {
        "end" => Ok(1),
        "fail" => Err(Error::new("it failed")),
        "continue" => ctx.continue_as_new("end".to_owned()).await,
        "step" => ctx.step("more", || async { Ok(1) }).await,
        "sleep" => ctx.sleep(secs(1)).await.map(|()| 1),
        "child" => ctx.run(one, ()).await,
        "signal" => ctx.recv("go").await,
        other => unreachable!("{other}"),
    }
}

#[task]
async fn one(_ctx: Ctx) -> Result<u32> {
    Ok(1)
}

#[workflow]
async fn retries(ctx: Ctx) -> Result<u32> {
    let count = ctx.state::<Count>();
    let step = ctx.step("fails", || async {
        count.fetch_add(1, Ordering::SeqCst);
        Err(Error::new("no"))
    });
    step.retry(Retry::fixed(ms(10))).await
}

fn bounded(builder: Builder) -> Builder {
    builder.entry_count_max(ENTRY_COUNT_MAX).state(Count::default())
}

async fn status(lab: &Lab, abide: &Abide, then: &str) -> (Handle<u32>, Status) {
    let handle = abide.start(full, then.to_owned()).id(then).await.unwrap();
    lab.sleep(secs(20)).await;
    let status = handle.status().await.unwrap();
    (handle, status)
}

#[test]
fn a_run_at_the_bound_can_end() {
    let rows = [("end", Ok(1)), ("continue", Ok(2)), ("fail", Err("it failed")), ("beside", Ok(1))];
    for (then, expected) in rows {
        Lab::run(1, |lab| async move {
            let (_, abide) = lab.worker_with(bounded).await.unwrap();
            let (handle, _) = status(&lab, &abide, then).await;
            match (handle.status().await.unwrap(), expected) {
                (Status::Completed, Ok(expected)) => assert_eq!(handle.result().await.unwrap(), expected),
                (Status::Failed, Err(expected)) => {
                    let said = handle.result().await.unwrap_err().to_string();
                    assert!(said.contains(expected), "{said}");
                }
                (status, _) => panic!("{then}: {status}, {}", handle.why().await.unwrap()),
            }
        });
    }
}

#[test]
fn nothing_new_begins_at_the_bound() {
    for then in ["step", "sleep", "child", "signal"] {
        Lab::run(1, |lab| async move {
            let (machine, abide) = lab.worker_with(bounded).await.unwrap();
            let (handle, status) = status(&lab, &abide, then).await;
            let status = match then {
                // The workflow can wait until the signal arrives.
                "signal" => {
                    assert_eq!(status, Status::Waiting, "{then}");
                    handle.signal("go", &1u32).await.unwrap();
                    lab.sleep(secs(5)).await;
                    handle.status().await.unwrap()
                }
                _ => status,
            };
            assert_eq!(status, Status::Blocked, "{then}: {}", handle.why().await.unwrap());
            let why = handle.why().await.unwrap();
            assert!(why.contains("entry_count_max: 4 entries, at most 4"), "{then}: {why}");
            lab.crash(machine);
            let (_, abide) = lab.worker_with(|builder| builder.state(Count::default())).await.unwrap();
            lab.sleep(secs(60)).await;
            assert_eq!(abide.handle::<u32>(then).result().await.unwrap(), 1, "{then}");
        });
    }
}

#[test]
fn what_waits_at_the_bound_can_be_cancelled() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker_with(bounded).await.unwrap();
        let (handle, _) = status(&lab, &abide, "signal").await;
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled, "{}", handle.why().await.unwrap());
    });
}

#[test]
fn attempts_are_bounded_by_the_journal() {
    Lab::run(1, |lab| async move {
        let count = Count::default();
        let open = |builder: Builder| builder.entry_count_max(10).state(count.clone());
        let (_, abide) = lab.worker_with(open).await.unwrap();
        let handle = abide.start(retries, ()).id("one").await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        assert_eq!(count.load(Ordering::SeqCst), 9);
    });
}

#[task]
async fn retried(ctx: Ctx) -> Result<u32> {
    ctx.state::<Count>().fetch_add(1, Ordering::SeqCst);
    Err(Error::new("no"))
}

#[test]
fn attempts_of_a_task_are_bounded_by_its_journal() {
    Lab::run(1, |lab| async move {
        let count = Count::default();
        let open = |builder: Builder| builder.entry_count_max(10).state(count.clone());
        let (_, abide) = lab.worker_with(open).await.unwrap();
        let retry = Retry::forever().max_delay(ms(10));
        let handle = abide.start(retried, ()).id("one").retry(retry).await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{}", handle.why().await.unwrap());
        assert_eq!(count.load(Ordering::SeqCst), 9);
    });
}
