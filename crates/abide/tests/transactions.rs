//! `ctx.sqlite`, as a workflow meets it.

use std::sync::Arc;
use std::sync::mpsc;

use abide::prelude::*;
use tokio::sync::Notify;

/// A closure waits here for a while, as one that asks a slow service does.
fn dawdle(duration: std::time::Duration) {
    let (_sender, silence) = mpsc::channel::<()>();
    assert!(silence.recv_timeout(duration).is_err());
}

#[derive(Clone, Default)]
struct Begun(Arc<Notify>);

#[workflow]
async fn slow(ctx: Ctx, millis: u64) -> Result<()> {
    let begun = ctx.state::<Begun>().clone();
    ctx.sqlite("slow", move |tx| {
        begun.0.notify_one();
        tx.execute_batch("CREATE TABLE IF NOT EXISTS slow (x)")?;
        dawdle(ms(millis));
        Ok(())
    })
    .await
}

#[workflow]
async fn quick(ctx: Ctx) -> Result<()> {
    ctx.recv::<()>("never").await
}

/// Looks at what the step left behind, and goes on.
#[workflow]
async fn family(ctx: Ctx) -> Result<String> {
    let broken = ctx.sqlite("break", |tx| {
        tx.execute_batch(
            "CREATE TABLE mother (id INTEGER PRIMARY KEY);
             CREATE TABLE child (mother REFERENCES mother (id) DEFERRABLE INITIALLY DEFERRED);
             INSERT INTO child VALUES (99)",
        )?;
        Ok(())
    });
    let error = broken.await.expect_err("it breaks a foreign key");
    let left: i64 = ctx
        .sqlite("look", |tx| {
            Ok(tx
                .query_row("SELECT COUNT(*) FROM sqlite_schema WHERE name = 'child'", [], |row| row.get(0))?)
        })
        .await?;
    Ok(format!("{left} left: {error}"))
}

fn url(folder: &tempfile::TempDir) -> String {
    format!("sqlite:{}", folder.path().join("app.db").display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deferred_foreign_key_that_stays_broken_is_an_error_of_its_step() {
    let folder = tempfile::tempdir().unwrap();
    let abide = Abide::builder(url(&folder)).state(Begun::default()).open().await.unwrap();
    let told = abide.run(family, ()).id("one").await.unwrap();
    assert!(told.starts_with("0 left: "), "{told}");
    assert!(told.contains("leaves a deferred foreign key broken"), "{told}");
    abide.shutdown().await;
}

/// A session that lives for a short time shortens the limit with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_of_a_transaction_is_a_third_of_a_short_session() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Abide::builder(url(&folder)).state(Begun::default()).session_ttl(ms(900));
    let abide = builder.open().await.unwrap();
    let error = abide.run(slow, 320).id("one").await.unwrap_err();
    assert!(error.to_string().contains("took longer than transaction_ms_max, 300 ms"), "{error}");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_transaction_is_told_by_why_of_itself_and_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let begun = Begun::default();
    let abide = Abide::builder(url(&folder)).state(begun.clone()).open().await.unwrap();
    let other = abide.start(quick, ()).id("other").await.unwrap();
    let handle = abide.start(slow, 2_500).id("slow").await.unwrap();
    begun.0.notified().await;
    let told = async |handle: &Handle<()>, words: &str| loop {
        let why = handle.why().await.unwrap();
        if why.contains(words) {
            return;
        }
        assert!(!why.contains(" completed "), "{why}");
        tokio::task::yield_now().await;
    };
    told(&handle, " its transaction step runs, and keeps the writer of the store").await;
    told(&other, " a transaction step of \"slow\" keeps the writer of the store").await;
    handle.result().await.unwrap();
    abide.shutdown().await;
}
