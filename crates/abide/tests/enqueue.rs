//! `enqueue_in` with `rusqlite`: a start exists if and only if the caller's transaction commits.

use std::path::Path;
use std::time::Duration;

use abide::ClientError;
use abide::prelude::*;
use abide::rusqlite::Connection;
use abide_core::Happening;
use abide_sqlite::SqliteStore;
use abide_store::conformance::TestClock;
use abide_store::{Feed, FeedFrom, FeedItem, View};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Where the workflows say that they have begun.
#[derive(Clone)]
struct Told(UnboundedSender<String>);

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Order {
    number: u64,
    note: Option<String>,
}

#[workflow]
async fn checkout(ctx: Ctx, order: Order) -> Result<u64> {
    ctx.state::<Told>().0.send(ctx.id().to_owned())?;
    let paid: u64 = ctx.recv("paid").await?;
    Ok(order.number + paid)
}

#[task]
async fn ship(ctx: Ctx, number: u64) -> Result<u64> {
    ctx.state::<Told>().0.send(ctx.id().to_owned())?;
    Ok(number)
}

struct World {
    folder: tempfile::TempDir,
    told: UnboundedReceiver<String>,
    tell: Told,
}

impl World {
    fn new() -> Self {
        let (tell, told) = unbounded_channel();
        Self { folder: tempfile::tempdir().unwrap(), told, tell: Told(tell) }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("app.db")
    }

    async fn worker(&self) -> Abide {
        let builder = Abide::builder(self.path().display().to_string());
        builder.state(self.tell.clone()).open().await.unwrap()
    }

    /// Returns a connection of the application's own, to the same file.
    fn connection(&self) -> Connection {
        let connection = Connection::open(self.path()).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection.execute_batch("CREATE TABLE IF NOT EXISTS orders (number INTEGER)").unwrap();
        connection
    }

    /// Waits until a workflow says that it has begun.
    #[expect(clippy::disallowed_methods, reason = "a test that waits for nothing fails")]
    async fn begun(&mut self) -> String {
        tokio::time::timeout(Duration::from_secs(30), self.told.recv()).await.expect("it begins").unwrap()
    }
}

fn order(number: u64) -> Order {
    Order { number, note: None }
}

async fn feed(path: &Path) -> Vec<FeedItem> {
    let options = abide_sqlite::Options { read_only: true, ..Default::default() };
    let store = SqliteStore::open(path, TestClock::new(), options).unwrap();
    let page = store.feed(Feed { from: FeedFrom::Beginning, limit: 1_000 }).await.unwrap();
    store.close();
    page.items
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_and_a_signal_exist_if_and_only_if_the_transaction_commits() {
    let mut world = World::new();
    let abide = world.worker().await;
    let mut database = world.connection();
    for (id, commits) in [("lost", false), ("kept", true)] {
        let tx = database.transaction().unwrap();
        tx.execute("INSERT INTO orders VALUES (1)", []).unwrap();
        let handle = abide.start(checkout, order(1)).id(id).enqueue_in(&tx).await.unwrap();
        abide.handle::<u64>(id).signal("paid", &7_u64).enqueue_in(&tx).await.unwrap();
        assert_eq!(handle.id(), id);
        if commits { tx.commit().unwrap() } else { tx.rollback().unwrap() }
    }
    assert_eq!(world.begun().await, "kept");
    assert_eq!(abide.handle::<u64>("kept").result().await.unwrap(), 8);
    let lost = abide.handle::<u64>("lost").status().await;
    assert!(matches!(lost, Err(ClientError::Unknown { .. })), "{lost:?}");
    let count: i64 = database.query_row("SELECT COUNT(*) FROM orders", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 1, "the caller's own writes went along");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_wait_for_the_first_worker() {
    let mut world = World::new();
    world.worker().await.shutdown().await;
    let client = Abide::client(&world.path().display().to_string()).await.unwrap();
    let database = world.connection();
    // Without a transaction, each statement is one. Nothing has to be awaited.
    let handle = client.start(ship, 5).enqueue_in(&database).into_inner().unwrap();
    assert!(matches!(handle.status().await, Err(ClientError::Unknown { .. })), "nobody has taken it");
    let worker = world.worker().await;
    assert_eq!(world.begun().await, handle.id());
    assert_eq!(worker.handle::<u64>(handle.id()).result().await.unwrap(), 5);
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enqueued_start_is_the_same_as_one_that_is_sent() {
    let mut world = World::new();
    let abide = world.worker().await;
    let database = world.connection();
    let start = || {
        let start = abide.start(checkout, order(3)).id("o-3").lane("default").priority(4);
        start.deadline(hours(2)).tag("customer", "c7")
    };
    start().enqueue_in(&database).await.unwrap();
    assert_eq!(world.begun().await, "o-3");
    // The input is compared as its type is: a field that is null does not count.
    let sent = start().await.unwrap();
    assert!(sent.is_attached());
    assert_eq!(sent.differences(), [""; 0]);
    let other = abide.start(checkout, order(4)).id("o-3").enqueue_in(&database).await.unwrap();
    other.signal("paid", &0_u64).idempotency_key("k").enqueue_in(&database).await.unwrap();
    other.signal("paid", &9_u64).idempotency_key("k").await.unwrap();
    let result = other.result().await.unwrap();
    assert!(result == 3 || result == 12, "one of the two was first: {result}");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_when_it_is_taken_is_in_the_feed() {
    let mut world = World::new();
    let abide = world.worker().await;
    let database = world.connection();
    abide.handle::<u64>("nobody").signal("paid", &1_u64).enqueue_in(&database).await.unwrap();
    // It does not block the row behind it.
    abide.start(ship, 1).id("behind").enqueue_in(&database).await.unwrap();
    assert_eq!(world.begun().await, "behind");
    let items = feed(&world.path()).await;
    let refused: Vec<_> = items.iter().filter(|item| item.happening == Happening::Refused).collect();
    assert_eq!(refused.len(), 1, "{items:?}");
    let reason = &refused[0].refused.as_ref().expect("it says why").reason;
    assert_eq!(
        (refused[0].address.id.as_str(), reason.as_str()),
        ("nobody", "there is no execution \"nobody\"")
    );
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_another_database_is_refused() {
    let world = World::new();
    let abide = world.worker().await;
    let elsewhere = Connection::open_in_memory().unwrap();
    let refused = abide.start(ship, 1).id("x").enqueue_in(&elsewhere).into_inner();
    let said = refused.expect_err("it would never be taken").to_string();
    assert!(said.contains("the transaction is one of \"\", and the store is"), "{said}");
    let in_memory = Abide::builder("sqlite::memory:").state(world.tell.clone()).open().await.unwrap();
    let refused = in_memory.start(ship, 1).id("x").enqueue_in(&world.connection()).into_inner();
    let said = refused.expect_err("it would never be taken").to_string();
    assert!(said.contains("nobody else has a connection to a store in memory"), "{said}");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_refused_before_it_is_written() {
    let world = World::new();
    let abide = world.worker().await;
    let database = world.connection();
    let refused = abide.start(ship, 1).id("a\nb").enqueue_in(&database).into_inner();
    assert!(matches!(refused, Err(ClientError::Invalid { .. })), "{refused:?}");
    let refused = abide.handle::<u64>("a").signal("", &1).enqueue_in(&database).into_inner();
    assert!(matches!(refused, Err(ClientError::Invalid { .. })), "{refused:?}");
    let count: i64 = database.query_row("SELECT COUNT(*) FROM abide_intake", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 0);
    abide.shutdown().await;
}

/// Any program that has SQLite can do this. The table refuses a row that is certainly wrong, by the
/// name of a constraint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_sql_starts_and_signals() {
    let mut world = World::new();
    let abide = world.worker().await;
    let mut database = world.connection();
    let tx = database.transaction().unwrap();
    tx.execute_batch(
        "INSERT INTO abide_intake (verb, execution, name, input)
         VALUES ('start', 'o-1', 'checkout', json_object('number', 1));
         INSERT INTO abide_intake (verb, execution, name, input, options)
         VALUES ('signal', 'o-1', 'paid', '9', '{\"key\": \"k\"}');
         INSERT INTO abide_intake (verb, name, input, options)
         VALUES ('start', 'ship', '4', '{\"kind\": \"task\"}')",
    )
    .unwrap();
    tx.commit().unwrap();
    let begun = [world.begun().await, world.begun().await];
    assert!(begun.contains(&"o-1".to_owned()), "{begun:?}");
    assert_eq!(abide.handle::<u64>("o-1").result().await.unwrap(), 10);
    for (columns, constraint) in [
        ("'sing', 'a', 'b', '1'", "verb_is_start_or_signal"),
        ("'start', '', 'b', '1'", "execution_of_1_to_255_bytes"),
        ("'start', char(10), 'b', '1'", "execution_without_control_characters"),
        ("'start', 'a' || char(0), 'b', '1'", "execution_without_control_characters"),
        ("'start', x'41', 'b', '1'", "execution_of_1_to_255_bytes"),
        ("'start', 'a', '', '1'", "name_of_1_to_255_bytes"),
        ("'start', 'a', 'b' || char(127), '1'", "name_without_control_characters"),
        ("'start', 'a', 'b', '{'", "input_is_json"),
    ] {
        let insert =
            ["INSERT INTO abide_intake (verb, execution, name, input) VALUES (", columns, ")"].concat();
        let said = database.execute_batch(&insert).expect_err(columns).to_string();
        assert!(said.contains(constraint), "{columns}: {said}");
    }
    abide.shutdown().await;
}
