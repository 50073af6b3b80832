//! One damaged row of a file is set aside by name, and delays no other execution.

use std::path::PathBuf;
use std::sync::Arc;

use abide::prelude::*;
use abide_core::{Address, By, ExecutionId, Namespace};
use abide_sqlite::{Discarded, Options, SqliteStore};
use abide_store::conformance::TestClock;
use tokio::sync::Semaphore;

#[workflow]
async fn quick(ctx: Ctx, nth: u64) -> Result<u64> {
    ctx.step("add", || async move { Ok(nth + 1) }).await
}

const OTHERS: std::ops::Range<u64> = 1..6;

#[expect(clippy::disallowed_methods, reason = "it tests whether there is an answer at all")]
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(secs(50), future).await.expect("whoever waits is told")
}

/// Damages a row of the first of six executions, none of which has run yet, and lets a worker run
/// them.
async fn check(damage: &str, complaint: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let url = format!("sqlite:{}", path.display());
    create(&path);
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

/// Reports that it has begun, and waits.
#[workflow]
async fn waits(ctx: Ctx) -> Result<u64> {
    let begun = ctx.state::<Arc<Semaphore>>();
    ctx.step("begin", async || {
        begun.add_permits(1);
        Ok(())
    })
    .await?;
    ctx.recv("finish").await
}

#[workflow]
async fn asks(ctx: Ctx) -> Result<u64> {
    ctx.run(waits, ()).id("kid").await
}

/// Starts a child under an id that another execution may have, and ends without looking at it.
#[workflow]
async fn careless(ctx: Ctx) -> Result<u64> {
    ctx.start(waits, ()).id("kid").await?;
    Ok(1)
}

/// A file that contains a damaged state, which can be rebuilt.
struct StoreFolder(tempfile::TempDir);

impl StoreFolder {
    fn path(&self) -> PathBuf {
        self.0.path().join("app.db")
    }

    async fn worker(&self) -> (Abide, Arc<Semaphore>) {
        let begun = Arc::new(Semaphore::new(0));
        let url = format!("sqlite:{}", self.path().display());
        let builder = Abide::builder(url).state(begun.clone()).shutdown_grace(ms(1));
        (builder.open().await.unwrap(), begun)
    }

    /// Starts a worker beside an execution whose state was damaged while no worker was running.
    async fn damaged(id: &str, start: impl AsyncFnOnce(&Abide)) -> (Self, Abide) {
        let place = Self(tempfile::tempdir().unwrap());
        let (worker, begun) = place.worker().await;
        start(&worker).await;
        soon(begun.acquire()).await.unwrap().forget();
        worker.shutdown().await;
        let damage = "UPDATE abide_executions SET state = x'0109ffffffff' WHERE id = ?1";
        rusqlite::Connection::open(place.path()).unwrap().execute(damage, [id]).unwrap();
        let (worker, _) = place.worker().await;
        (place, worker)
    }

    /// Opens the store as another process would.
    fn store(&self) -> Arc<SqliteStore> {
        SqliteStore::open(&self.path(), TestClock::new(), Options::default()).unwrap()
    }

    /// Checks that the execution is reported as damaged and can be ended.
    async fn is_set_aside(&self, worker: &Abide, id: &str) {
        let handle = worker.handle::<u64>(id);
        let error = soon(handle.result()).await.unwrap_err();
        assert!(matches!(error, ClientError::Corrupt { .. }), "{error:?}");
        let listed = worker.list(Filter::default()).await.unwrap();
        let found = listed.iter().find(|listed| listed.id == id).unwrap();
        assert_eq!(found.status, Status::Damaged);
        let why = handle.why().await.unwrap();
        assert!(why.contains("is damaged"), "{why}");
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new(id).unwrap() };
        let (by, reason) = (By::client(), "beyond repair".to_owned());
        let store = self.store();
        assert_eq!(store.discard(&address, by, reason).await.unwrap(), Discarded::Ended);
        store.close();
        let error = soon(handle.result()).await.unwrap_err();
        assert!(matches!(error, ClientError::Cancelled { .. }), "{error:?}");
    }

    async fn repair(&self) {
        let store = self.store();
        let repairs = store.repair().await.unwrap();
        assert_eq!((repairs.rebuilt.len(), repairs.left.len()), (1, 0), "{repairs:?}");
        store.close();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_to_a_damaged_parent_is_there_when_it_is_repaired() {
    let (place, worker) =
        StoreFolder::damaged("mother", async |abide| drop(abide.start(asks, ()).id("mother").await.unwrap()))
            .await;
    let kid = worker.handle::<u64>("kid");
    kid.signal("finish", &7).await.unwrap();
    assert_eq!(soon(kid.result()).await.unwrap(), 7);
    place.repair().await;
    assert_eq!(soon(worker.handle::<u64>("mother").result()).await.unwrap(), 7);
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_to_a_damaged_child_is_obeyed_when_it_is_repaired() {
    let (place, worker) =
        StoreFolder::damaged("kid", async |abide| drop(abide.start(asks, ()).id("mother").await.unwrap()))
            .await;
    let mother = worker.handle::<u64>("mother");
    mother.terminate("enough").await.unwrap();
    assert!(matches!(soon(mother.result()).await, Err(ClientError::Cancelled { .. })));
    place.repair().await;
    let ended = soon(worker.handle::<u64>("kid").result()).await;
    assert!(matches!(ended, Err(ClientError::Cancelled { .. })), "{ended:?}");
    worker.shutdown().await;
}

/// The state was unreadable when the order came, so intake could not see whose child this was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_to_something_damaged_that_is_no_child_is_not_obeyed() {
    let (place, worker) =
        StoreFolder::damaged("kid", async |abide| drop(abide.start(waits, ()).id("kid").await.unwrap()))
            .await;
    assert_eq!(soon(worker.run(careless, ()).id("stranger").into_future()).await.unwrap(), 1);
    place.repair().await;
    let kid = worker.handle::<u64>("kid");
    kid.signal("finish", &7).await.unwrap();
    assert_eq!(soon(kid.result()).await.unwrap(), 7);
    worker.shutdown().await;
}

/// The worker has the execution in memory, and reads its inbox when another process sends a
/// message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_message_to_what_is_held_is_set_aside() {
    let place = StoreFolder(tempfile::tempdir().unwrap());
    let (worker, begun) = place.worker().await;
    let handle = worker.start(waits, ()).id("held").await.unwrap();
    soon(begun.acquire()).await.unwrap().forget();
    handle.signal("other", &1).await.unwrap();
    let damage = "UPDATE abide_inbox SET body = x'0109ffffffff'";
    assert_eq!(rusqlite::Connection::open(place.path()).unwrap().execute(damage, []).unwrap(), 1);
    let client = Abide::client(&format!("sqlite:{}", place.path().display())).await.unwrap();
    client.handle::<u64>("held").signal("finish", &7).await.unwrap();
    place.is_set_aside(&worker, "held").await;
    worker.shutdown().await;
}

/// Fills more than one page of a journal.
#[workflow]
async fn long(ctx: Ctx) -> Result<u64> {
    for _ in 0..3 {
        let steps = (0..30).map(|_| ctx.step("read", async || Ok("x".repeat(30_000))));
        futures_util::future::try_join_all(steps).await?;
    }
    ctx.run(waits, ()).await
}

/// A claim looks at the first page only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_end_of_a_journal_is_set_aside() {
    let place = StoreFolder(tempfile::tempdir().unwrap());
    let (worker, begun) = place.worker().await;
    worker.start(long, ()).id("long").await.unwrap();
    soon(begun.acquire()).await.unwrap().forget();
    worker.shutdown().await;
    let damage = "UPDATE abide_journal SET body = x'0109ffffffff' WHERE row = (
        SELECT MAX(row) - 1 FROM abide_journal WHERE execution = 1)";
    let database = rusqlite::Connection::open(place.path()).unwrap();
    abide_sqlite::flaw::unbind(&database);
    assert_eq!(database.execute(damage, []).unwrap(), 1);
    let (worker, _) = place.worker().await;
    place.is_set_aside(&worker, "long").await;
    worker.shutdown().await;
}

/// Makes an empty store: a client creates none, and a worker would take the started executions.
fn create(path: &std::path::Path) {
    let clock = Arc::new(abide_engine::SystemClock);
    let store = SqliteStore::open(path, clock, Options::default());
    store.expect("the store can be made").close();
}
