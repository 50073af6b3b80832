//! The clean-up of a cancelled execution is owed: code that is blocked on its way there leaves it
//! to a build that gets there.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::prelude::*;
use abide::testing::{Lab, Machine};

/// The state of a build: whether its code is fixed, and what it has undone.
struct Build {
    is_fixed: bool,
    undone_count: Arc<AtomicU32>,
}

async fn undo(ctx: &Ctx) -> Result<()> {
    let undone_count = ctx.state::<Build>().undone_count.clone();
    ctx.step("undo", || async {
        undone_count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })
    .await
}

/// Awaits something other than a ctx operation in the old code, which is blocked there.
async fn stray(ctx: &Ctx) {
    if !ctx.state::<Build>().is_fixed {
        pending::<()>().await;
    }
}

#[workflow]
async fn books(ctx: Ctx) -> Result<u32> {
    ctx.step("book", || async { Ok(1) }).await?;
    stray(&ctx).await;
    let got = ctx.recv("go").await;
    if got.is_err() {
        ctx.shield(undo(&ctx)).await?;
    }
    got
}

#[workflow]
async fn kid(ctx: Ctx) -> Result<u32> {
    let got = ctx.recv("go").await;
    if got.is_err() {
        ctx.shield(async {
            ctx.step("first", || async { Ok(()) }).await?;
            stray(&ctx).await;
            undo(&ctx).await
        })
        .await?;
    }
    got
}

#[workflow]
async fn boss(ctx: Ctx) -> Result<u32> {
    let got = ctx.run(kid, ()).id("kid").await;
    if got.is_err() {
        ctx.shield(ctx.sleep(secs(60))).await?;
    }
    got
}

async fn worker(lab: &Lab, name: &str, undone_count: &Arc<AtomicU32>) -> (Machine, Abide) {
    let build = Build { is_fixed: name == "fixed", undone_count: undone_count.clone() };
    let open =
        |builder: abide::Builder| builder.build(name).state(build).session_ttl(secs(3)).park_after(ms(100));
    lab.worker_with(open).await.unwrap()
}

/// The build that gets past the block is away for a moment, and the other one takes the cancelled
/// execution.
#[test]
fn a_build_that_does_not_get_there_ends_nothing_that_another_could_clean_up() {
    Lab::run_on_each(1, |lab| async move {
        let undone_count = Arc::default();
        let (_, bad) = worker(&lab, "bad", &undone_count).await;
        let handle = bad.start(books, ()).id("one").await.unwrap();
        lab.sleep(secs(5)).await;
        let (_, fixed) = worker(&lab, "fixed", &undone_count).await;
        lab.sleep(secs(20)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting);
        fixed.shutdown().await;
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(2)).await;
        let (_, _fixed) = worker(&lab, "fixed", &undone_count).await;
        lab.sleep(secs(30)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled, "{}", handle.why().await.unwrap());
        assert_eq!(undone_count.load(Ordering::Relaxed), 1);
    });
}

/// The way in which a parent ends while its child is blocked in its clean-up.
#[derive(Clone, Copy, Debug)]
enum Way {
    Cancelled,
    PastItsDeadline,
    CancelledPastItsDeadline,
    CancelledAndTerminated,
}

/// Checks a child of a parent that winds down. The parent sends its order then, and again when it
/// ends, with no decision in between. Only a terminate ends the blocked child.
fn check(way: Way, ended: Status, is_owed: bool) {
    Lab::run_on_each(1, |lab| async move {
        let undone_count = Arc::default();
        let (_, bad) = worker(&lab, "bad", &undone_count).await;
        let start = bad.start(boss, ()).id("boss");
        let handle = match way {
            Way::Cancelled | Way::CancelledAndTerminated => start.await.unwrap(),
            Way::PastItsDeadline | Way::CancelledPastItsDeadline => start.deadline(secs(20)).await.unwrap(),
        };
        let child = bad.handle::<u32>("kid");
        lab.sleep(secs(5)).await;
        if !matches!(way, Way::PastItsDeadline) {
            handle.cancel("enough").await.unwrap();
        }
        lab.sleep(secs(20)).await;
        let why = child.why().await.unwrap();
        assert_eq!(child.status().await.unwrap(), Status::Blocked, "{way:?}: {why}");
        if matches!(way, Way::CancelledAndTerminated) {
            handle.terminate("enough").await.unwrap();
        }
        lab.sleep(secs(80)).await;
        assert_eq!(handle.status().await.unwrap(), ended, "{way:?}: {}", handle.why().await.unwrap());
        let expected = if is_owed { Status::Blocked } else { Status::Cancelled };
        let why = child.why().await.unwrap();
        assert_eq!(child.status().await.unwrap(), expected, "{way:?}: {why}");
        let (_, _fixed) = worker(&lab, "fixed", &undone_count).await;
        lab.sleep(secs(30)).await;
        let why = child.why().await.unwrap();
        assert_eq!(child.status().await.unwrap(), Status::Cancelled, "{way:?}: {why}");
        assert_eq!(undone_count.load(Ordering::Relaxed), u32::from(is_owed), "{way:?}");
    });
}

#[test]
fn the_end_of_a_parent_is_no_second_cancel() {
    check(Way::Cancelled, Status::Cancelled, true);
}

#[test]
fn the_deadline_of_a_parent_is_no_second_cancel() {
    check(Way::PastItsDeadline, Status::Failed, true);
    check(Way::CancelledPastItsDeadline, Status::Failed, true);
}

#[test]
fn the_termination_of_a_parent_ends_a_clean_up_that_is_blocked() {
    check(Way::CancelledAndTerminated, Status::Cancelled, false);
}
