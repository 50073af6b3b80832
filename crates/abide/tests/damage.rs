//! One damaged row of a file is set aside, by name, and delays nobody.

use abide::prelude::*;

#[workflow]
async fn quick(ctx: Ctx, nth: u64) -> Result<u64> {
    ctx.step("add", || async move { Ok(nth + 1) }).await
}

const OTHERS: std::ops::Range<u64> = 1..6;

#[expect(clippy::disallowed_methods, reason = "whether there is an answer at all is what is tested")]
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(secs(10), future).await.expect("whoever waits is told")
}

/// Damages something of the first of six executions, which nobody has run yet, and lets a worker run them.
async fn check(damage: &str, complaint: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let url = format!("sqlite:{}", path.display());
    let client = Abide::client(&url).await.unwrap();
    client.start(quick, 0).id("bad").await.unwrap();
    client.handle::<u64>("bad").signal("n", &1).await.unwrap();
    for nth in OTHERS {
        client.start(quick, nth).id(format!("q-{nth}")).await.unwrap();
    }
    rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
    let why = client.handle::<u64>("q-1").why().await.unwrap();
    assert!(
        why.starts_with("workflow \"q-1\" is ready since") && !why.contains("damaged"),
        "{damage}: {why}"
    );
    let worker = Abide::builder(&url).shutdown_grace(ms(1)).open().await.unwrap();
    for nth in OTHERS {
        assert_eq!(worker.handle::<u64>(&format!("q-{nth}")).result().await.unwrap(), nth + 1, "{damage}");
    }
    let why = worker.handle::<u64>("bad").why().await.unwrap();
    assert!(why.contains("is damaged") && why.contains(complaint), "{damage}: {why}");
    let error = soon(worker.handle::<u64>("bad").result()).await.unwrap_err();
    assert!(matches!(error, ClientError::Corrupt { .. }), "{damage}: {error:?}");
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_state_does_not_stop_the_others() {
    let damage = "UPDATE abide_executions SET state = x'0109ffffffff' WHERE id = 'bad'";
    check(damage, "the state of execution \"bad\" is damaged").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_message_does_not_stop_the_others() {
    check("UPDATE abide_inbox SET body = x'0109ffffffff'", "is damaged").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_journal_does_not_stop_the_others() {
    check("UPDATE abide_journal SET body = x'0109ffffffff' WHERE row = 1", "journal row 1 is damaged").await;
}
