//! The syncs of one workflow at a time on an idle worker. They are counted for the whole process,
//! so this file has one test.

#![expect(clippy::disallowed_methods, reason = "hosts are tasks of tokio")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide::prelude::*;

const COUNT: u64 = 40;

/// Heartbeats sync too, now and then.
const HEARTBEAT_COUNT_MAX: u64 = 10;

#[workflow]
async fn returns(_ctx: Ctx, n: u64) -> Result<u64> {
    Ok(n)
}

#[workflow]
async fn steps(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.step("one", || async move { Ok(n) }).await
}

/// Counts the calls of its closure and the rows that it leaves.
#[workflow]
async fn transacts(ctx: Ctx, n: u64) -> Result<u64> {
    let called = ctx.state::<Arc<AtomicU64>>().clone();
    ctx.sqlite("insert", move |tx| {
        called.fetch_add(1, Ordering::Relaxed);
        tx.execute("INSERT INTO notes VALUES (?1)", [n.cast_signed()])?;
        Ok(tx.query_row("SELECT count(*) FROM notes", [], |row| row.get::<_, i64>(0))?.unsigned_abs())
    })
    .await
}

#[workflow]
async fn prepares(ctx: Ctx) -> Result<()> {
    ctx.sqlite("create", |tx| Ok(tx.execute_batch("CREATE TABLE notes (n INTEGER)")?)).await
}

#[workflow]
async fn whose(ctx: Ctx) -> Result<String> {
    ctx.step("task", || async { Ok(tokio::task::id().to_string()) }).await
}

/// Checks how many syncs there were since `before`, at so many for each workflow.
#[track_caller]
fn check_syncs(before: u64, each: u64) {
    let found = synced() - before;
    let expected = each * COUNT..each * COUNT + HEARTBEAT_COUNT_MAX;
    assert!(expected.contains(&found), "{found} syncs for {COUNT} workflows");
}

fn synced() -> u64 {
    abide_sqlite::counters::counts().syncs
}

async fn check(abide: Abide, called: Arc<AtomicU64>) {
    // The runtime has shown its tasks when it hosts a run.
    while abide.run(whose, ()).await.unwrap() != tokio::task::id().to_string() {
        tokio::task::yield_now().await;
    }
    abide.run(prepares, ()).await.unwrap();
    let before = synced();
    for n in 1..=COUNT {
        assert_eq!(abide.run(returns, n).await.unwrap(), n);
    }
    check_syncs(before, 1);
    let before = synced();
    for n in 1..=COUNT {
        assert_eq!(abide.run(transacts, n).await.unwrap(), n, "it wrote once");
    }
    // The second commit has the end.
    check_syncs(before, 2);
    assert_eq!(called.load(Ordering::Relaxed), COUNT);
    let before = synced();
    for n in 1..=COUNT {
        assert_eq!(abide.run(steps, n).await.unwrap(), n);
    }
    // No closure runs before its start is durable.
    check_syncs(before, 2);
}

#[test]
fn what_a_workflow_does_first_shares_the_sync_of_its_start() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("one.db").display());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let called = Arc::new(AtomicU64::new(0));
        let abide = Abide::builder(&url).begin_early().state(called.clone()).open().await.unwrap();
        tokio::spawn(check(abide.clone(), called)).await.unwrap();
        abide.shutdown().await;
    });
}
