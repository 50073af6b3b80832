//! The answers of `why` about workers and trees, whichever process asks.

use std::sync::Arc;

use abide::prelude::*;
use abide::testing::Lab;
use abide_store::Prune;
use futures_util::join;
use tokio::sync::Semaphore;

/// Lets the step "long" end.
type Gate = Arc<Semaphore>;

#[workflow]
async fn long(ctx: Ctx) -> Result<()> {
    let gate = ctx.state::<Gate>();
    ctx.step("long", || async {
        gate.acquire().await?.forget();
        Ok(())
    })
    .await
}

#[workflow]
async fn long_child(ctx: Ctx) -> Result<()> {
    ctx.run(long, ()).id("child").await
}

/// Awaits something other than a ctx operation, and is blocked.
#[workflow]
async fn stops(ctx: Ctx) -> Result<()> {
    ctx.sleep(ms(50)).await?;
    std::future::pending().await
}

#[workflow]
async fn stopping_child(ctx: Ctx) -> Result<()> {
    ctx.run(stops, ()).id("child").await
}

#[workflow]
async fn quick(_ctx: Ctx) -> Result<u32> {
    Ok(1)
}

#[test]
fn a_worker_that_shuts_down_is_next_for_nothing() {
    Lab::run_on_each(1, |lab| async move {
        let gate = Gate::new(Semaphore::new(0));
        let options = |builder: abide::Builder| builder.state(gate.clone()).shutdown_grace(hours(1));
        let (_, worker) = lab.worker_with(options).await.unwrap();
        worker.start(long, ()).id("held").await.unwrap();
        lab.sleep(secs(1)).await;
        let client = lab.client().await.unwrap();
        let look = async {
            // The first wait is shorter than the time to the next heartbeat, the second covers
            // several.
            for wait in [ms(100), secs(60)] {
                lab.sleep(wait).await;
                let queued = client.start(quick, ()).id("queued").await.unwrap();
                for asked in [&client, &worker] {
                    let why = asked.handle::<u32>("queued").why().await.unwrap();
                    let end =
                        "but no live worker can run it: worker \"worker\" (session 1) is shutting down.";
                    assert!(why.ends_with(end), "{why}");
                }
                let held = client.handle::<()>("held").why().await.unwrap();
                assert!(held.contains("held by worker \"worker\" (session 1)"), "{held}");
                drop(queued);
            }
            gate.add_permits(1);
        };
        join!(worker.shutdown(), look);
    });
}

#[test]
fn a_parents_pause_is_told_of_a_blocked_child() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let parent = abide.start(stopping_child, ()).id("parent").await.unwrap();
        lab.sleep(secs(5)).await;
        let child = abide.handle::<()>("child");
        assert_eq!(child.status().await.unwrap(), Status::Blocked);
        parent.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        let why = child.why().await.unwrap();
        let paused = r#"; it was paused by parent "parent", and stays so until its parent goes on."#;
        assert!(why.ends_with(paused), "{why}");
        parent.resume().await.unwrap();
        lab.sleep(secs(5)).await;
        let why = child.why().await.unwrap();
        assert!(!why.contains("paused"), "{why}");
    });
}

#[test]
fn the_holder_of_a_parent_is_not_told_behind_that_of_its_child() {
    Lab::run(1, |lab| async move {
        let gate = Gate::new(Semaphore::new(0));
        let options = |builder: abide::Builder| builder.state(gate.clone()).park_after(hours(1));
        let (_, abide) = lab.worker_with(options).await.unwrap();
        let parent = abide.start(long_child, ()).id("parent").await.unwrap();
        lab.sleep(secs(5)).await;
        let expected =
            "workflow \"parent\" is held by worker \"worker\" (session 1), waiting for child \"child\" (at ";
        let child = "), which is running on worker \"worker\" (session 1) since entry 1 (started) at ";
        let why = parent.why().await.unwrap();
        assert!(why.starts_with(expected) && why.contains(child) && why.ends_with(" ago)."), "{why}");
    });
}

#[workflow]
async fn sleeps_long(ctx: Ctx) -> Result<()> {
    ctx.sleep(hours(9)).await
}

#[workflow]
async fn stuck_beside_sleeper(ctx: Ctx) -> Result<()> {
    let sleeper = ctx.run(sleeps_long, ()).id("sleeper");
    let stuck = ctx.run(stops, ()).id("stuck");
    let (slept, stopped) = futures_util::join!(sleeper.into_future(), stuck.into_future());
    slept.and(stopped)
}

#[test]
fn a_parent_names_its_blocked_child_first_wherever_that_stands() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let parent = abide.start(stuck_beside_sleeper, ()).id("parent").await.unwrap();
        lab.sleep(secs(5)).await;
        let why = parent.why().await.unwrap();
        assert!(why.contains(r#"child "stuck" "#) && why.contains(", which is blocked since "), "{why}");
        assert!(!why.contains("sleeping"), "{why}");
    });
}

/// Waits for a signal.
#[workflow]
async fn told_to_end(ctx: Ctx) -> Result<()> {
    ctx.recv("end").await
}

#[workflow]
async fn two_children(ctx: Ctx) -> Result<()> {
    let sleeper = ctx.run(sleeps_long, ()).id("sleeper");
    let second = ctx.run(told_to_end, ()).id("second");
    let (slept, ended) = futures_util::join!(sleeper.into_future(), second.into_future());
    slept.and(ended)
}

#[test]
fn a_paused_child_is_described_rather_than_one_that_sleeps() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let parent = abide.start(two_children, ()).id("parent").await.unwrap();
        lab.sleep(secs(5)).await;
        let why = parent.why().await.unwrap();
        assert!(why.contains("sleeping") && !why.contains("signal"), "{why}");
        abide.handle::<()>("second").pause().await.unwrap();
        lab.sleep(secs(5)).await;
        let why = parent.why().await.unwrap();
        assert!(why.contains(r#"child "second" "#) && why.contains(", which is paused "), "{why}");
        assert!(!why.contains("sleeping"), "{why}");
    });
}

/// The child ended, and was deleted before its parent could read that.
#[test]
fn a_missing_child_is_described_rather_than_one_that_sleeps() {
    Lab::run(1, |lab| async move {
        let options = |builder: abide::Builder| builder.lanes(["parents"]).park_after(hours(1));
        let (machine, parents) = lab.worker_with(options).await.unwrap();
        let _children = lab.worker().await.unwrap();
        parents.start(two_children, ()).id("parent").lane("parents").await.unwrap();
        lab.sleep(secs(5)).await;
        lab.freeze(machine);
        let client = lab.client().await.unwrap();
        client.handle::<()>("second").signal("end", &()).await.unwrap();
        lab.sleep(secs(1)).await;
        let ended = Prune { finished_before: lab.now(), limit: 1 };
        assert_eq!(lab.store().prune(ended).await.unwrap(), 1);
        let why = client.handle::<()>("parent").why().await.unwrap();
        assert!(why.contains(r#"child "second" "#) && why.contains(", which does not exist"), "{why}");
        assert!(!why.contains("sleeping"), "{why}");
    });
}

#[workflow]
async fn parent_of(ctx: Ctx, count: u64) -> Result<()> {
    futures_util::future::try_join_all((0..count).map(|n| ctx.run(sleeps_long, ()).key(&n).into_future()))
        .await?;
    Ok(())
}

#[test]
fn a_parent_of_many_says_how_many_children_are_open() {
    Lab::run_on_each(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        for (count, is_told) in [(8, false), (9, true), (30, true)] {
            let parent = abide.start(parent_of, count).await.unwrap();
            lab.sleep(secs(10)).await;
            let why = parent.why().await.unwrap();
            assert_eq!(why.contains(&format!(" ({count} children are open)")), is_told, "{why}");
        }
    });
}
