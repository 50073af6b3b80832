//! `enqueue_in` with `tokio_postgres`, and the SQL functions, from Rust and from Python.
#![cfg(feature = "postgres")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::ClientError;
use abide::prelude::*;
use abide::tokio_postgres::{Client, NoTls, connect};
use abide_core::Happening;
use abide_postgres::PostgresStore;
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

/// Returns the URL of the server that the tests may use.
fn server() -> String {
    let missing = "this test needs a server: run it as `cargo xtask postgres -- cargo test …`, \
                   or set ABIDE_TEST_POSTGRES to the URL of one";
    std::env::var("ABIDE_TEST_POSTGRES").unwrap_or_else(|_| panic!("{missing}"))
}

/// A database of its own, because the schema in it is called `abide`, as users call it.
struct World {
    database: String,
    told: UnboundedReceiver<String>,
    tell: Told,
}

#[expect(clippy::disallowed_methods, reason = "it moves the bytes, and ends with its client")]
async fn connected(url: &str) -> Client {
    let (client, connection) = connect(url, NoTls).await.expect("the server can be reached");
    tokio::spawn(async move { drop(connection.await) });
    client
}

impl World {
    async fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        let database = ["abide_enqueue", &std::process::id().to_string(), &number].join("_");
        let create = ["CREATE DATABASE ", &database].concat();
        connected(&server()).await.batch_execute(&create).await.expect("a database can be made");
        let (tell, told) = unbounded_channel();
        Self { database, told, tell: Told(tell) }
    }

    /// Returns the URL of the database.
    fn url(&self) -> String {
        let server = server();
        let separator = if server.contains('?') { "&" } else { "?" };
        [&server, separator, "dbname=", &self.database].concat()
    }

    async fn worker(&self) -> Abide {
        Abide::builder(self.url()).state(self.tell.clone()).open().await.expect("the store opens")
    }

    /// Waits until a workflow says that it has begun.
    #[expect(clippy::disallowed_methods, reason = "a test that waits for nothing fails")]
    async fn begun(&mut self) -> String {
        tokio::time::timeout(Duration::from_secs(30), self.told.recv()).await.expect("it begins").unwrap()
    }

    async fn feed(&self) -> Vec<FeedItem> {
        let store = PostgresStore::open(&self.url(), TestClock::new(), Default::default()).unwrap();
        let page = store.feed(Feed { from: FeedFrom::Beginning, limit: 1_000 }).await.unwrap();
        store.close();
        page.items
    }

    async fn end(self) {
        let drop = ["DROP DATABASE ", &self.database, " WITH (FORCE)"].concat();
        connected(&server()).await.batch_execute(&drop).await.expect("it can be dropped");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_and_a_signal_exist_if_and_only_if_the_transaction_commits() {
    let mut world = World::new().await;
    let abide = world.worker().await;
    let mut database = connected(&world.url()).await;
    database.batch_execute("CREATE TABLE orders (number BIGINT)").await.unwrap();
    for (id, commits) in [("lost", false), ("kept", true)] {
        let tx = database.transaction().await.unwrap();
        tx.execute("INSERT INTO orders VALUES (1)", &[]).await.unwrap();
        let order = Order { number: 1, note: None };
        let handle = abide.start(checkout, order).id(id).enqueue_in(&tx).await.unwrap();
        abide.handle::<u64>(id).signal("paid", &7_u64).enqueue_in(&tx).await.unwrap();
        assert_eq!(handle.id(), id);
        if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    }
    assert_eq!(world.begun().await, "kept");
    assert_eq!(abide.handle::<u64>("kept").result().await.unwrap(), 8);
    let lost = abide.handle::<u64>("lost").status().await;
    assert!(matches!(lost, Err(ClientError::Unknown { .. })), "{lost:?}");
    let count = database.query_one("SELECT count(*) FROM orders", &[]).await.unwrap();
    assert_eq!(count.get::<_, i64>(0), 1, "the caller's own writes went along");
    abide.shutdown().await;
    world.end().await;
}

/// The options of the functions are those of a start in Rust.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_functions_start_what_rust_would_start() {
    let mut world = World::new().await;
    let abide = world.worker().await;
    let database = connected(&world.url()).await;
    let start = "SELECT abide.start('checkout', '{\"note\": null, \"number\": 3}', id => 'o-3', priority => 4, \
                 lane => 'default', deadline => '2 hours', tags => '{\"customer\": \"c7\"}')";
    let id: String = database.query_one(start, &[]).await.unwrap().get(0);
    assert_eq!((id.as_str(), world.begun().await.as_str()), ("o-3", "o-3"));
    let sent = abide.start(checkout, Order { number: 3, note: None }).id("o-3").priority(4);
    let sent = sent.deadline(hours(2)).tag("customer", "c7").await.unwrap();
    assert!(sent.is_attached());
    assert_eq!(sent.differences(), [""; 0]);
    let task = "SELECT abide.start('ship', '5', kind => 'task', retry => '{\"first_delay_ms\": 10}')";
    let id: String = database.query_one(task, &[]).await.unwrap().get(0);
    assert_eq!(world.begun().await, id);
    database.query_one("SELECT abide.signal('o-3', 'paid', '4', key => 'k')", &[]).await.unwrap();
    assert_eq!(sent.result().await.unwrap(), 7);
    abide.shutdown().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_when_it_is_taken_is_in_the_feed() {
    let mut world = World::new().await;
    let abide = world.worker().await;
    let database = connected(&world.url()).await;
    let row = database.query_one("SELECT abide.signal('nobody', 'paid', '1')", &[]).await.unwrap();
    database.query_one("SELECT abide.start('ship', '1', 'behind', 'task')", &[]).await.unwrap();
    assert_eq!(world.begun().await, "behind");
    let items = world.feed().await;
    let refused: Vec<_> = items.iter().filter(|item| item.happening == Happening::Refused).collect();
    assert_eq!(refused.len(), 1, "{items:?}");
    let told = refused[0].refused.as_ref().expect("it says why");
    assert_eq!((told.id.as_str(), told.reason.as_str()), (row.get(0), "there is no execution \"nobody\""));
    abide.shutdown().await;
    world.end().await;
}

/// Whatever is certainly wrong is refused where it is written, in the words of a constraint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_refused_where_it_is_written() {
    let world = World::new().await;
    world.worker().await.shutdown().await;
    let database = connected(&world.url()).await;
    for (call, expected) in [
        ("start('', '1')", "name_of_1_to_255_bytes"),
        ("start('a', '{')", "invalid input syntax for type json"),
        ("start('a', '1', '')", "execution_of_1_to_255_bytes"),
        ("start('a', '1', E'a\\nb')", "execution_without_control_characters"),
        ("start('a', '1', repeat('x', 256))", "execution_of_1_to_255_bytes"),
        ("start('a', '1', namespace => '')", "namespace_of_1_to_255_bytes"),
        ("start(NULL)", "null value in column \"name\""),
        ("start('a', '1', sender => '')", "sender_of_1_to_255_bytes"),
        ("signal('', 'a')", "execution_of_1_to_255_bytes"),
        ("signal('a', E'a\\x7f')", "name_without_control_characters"),
        ("enqueue('i', 'n', 'sing', 'e', 'n', '1', '{}', 's')", "verb_is_start_or_signal"),
        ("enqueue('i', 'n', 'start', 'e', 'n', '1', '[]', 's')", "options_are_a_json_object"),
    ] {
        let error = database.batch_execute(&["SELECT abide.", call].concat()).await.expect_err(call);
        let said = error.as_db_error().expect("the server says it").message().to_owned();
        assert!(said.contains(expected), "{call}: {said}");
    }
    let count = database.query_one("SELECT count(*) FROM abide.intake", &[]).await.unwrap();
    assert_eq!(count.get::<_, i64>(0), 0);
    world.end().await;
}

/// A role that may use the schema, and nothing in it, can enqueue. Temporary objects of its own do
/// not get in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_without_rights_to_the_tables_can_enqueue() {
    let mut world = World::new().await;
    let abide = world.worker().await;
    let database = connected(&world.url()).await;
    let role = &world.database.clone();
    let made =
        ["CREATE ROLE ", role, "; GRANT USAGE ON SCHEMA abide TO ", role, "; SET ROLE ", role].concat();
    database.batch_execute(&made).await.unwrap();
    database.batch_execute("CREATE TEMPORARY TABLE intake (x INT)").await.unwrap();
    let read = database.query("SELECT * FROM abide.intake", &[]).await.expect_err("it has no right");
    assert!(read.to_string().contains("db error"), "{read}");
    database.query_one("SELECT abide.start('ship', '1', 'r', 'task')", &[]).await.unwrap();
    assert_eq!(world.begun().await, "r");
    abide.shutdown().await;
    let gone = ["RESET ROLE; DROP OWNED BY ", role, "; DROP ROLE ", role].concat();
    database.batch_execute(&gone).await.unwrap();
    drop(database);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_notices_rows_are_found_by_looking() {
    let mut world = World::new().await;
    let deaf = [world.url().as_str(), "&listen=off"].concat();
    let abide = Abide::builder(deaf).state(world.tell.clone()).open().await.expect("the store opens");
    let database = connected(&world.url()).await;
    database.query_one("SELECT abide.start('ship', '1', 'quiet', 'task')", &[]).await.unwrap();
    assert_eq!(world.begun().await, "quiet");
    abide.shutdown().await;
    world.end().await;
}

fn done(command: &mut Command) -> Output {
    let ended = command.output().expect("the program can be started");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{command:?}: {said}");
    ended
}

/// Returns a Python that has psycopg: that of the system, or one that is made once.
fn python() -> PathBuf {
    let has_psycopg = |python: &Path| {
        let found = Command::new(python).args(["-c", "import psycopg"]).output();
        found.is_ok_and(|ended| ended.status.success())
    };
    let system = PathBuf::from("python3");
    if has_psycopg(&system) {
        return system;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("psycopg");
    let python = folder.join("bin").join("python");
    if !has_psycopg(&python) {
        done(Command::new(&system).args(["-m", "venv", "--clear"]).arg(&folder));
        done(Command::new(&python).args(["-m", "pip", "install", "--quiet", "psycopg[binary]>=3.1,<4"]));
    }
    python
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_in_python_places_and_pays_an_order() {
    let mut world = World::new().await;
    let abide = world.worker().await;
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/enqueue.py");
    let url = world.url();
    let run = || done(Command::new(python()).arg(example).args([url.as_str(), "order-42"]));
    let said = String::from_utf8(tokio::task::block_in_place(run).stdout).unwrap();
    assert_eq!(said, "nothing was started: the customer has left\norder-42 was placed and paid\n");
    assert_eq!(world.begun().await, "order-42");
    let order = abide.handle::<u64>("order-42");
    assert_eq!(order.result().await.unwrap(), 42);
    assert_eq!(abide.list(Filter::all().tag("source", "python")).await.unwrap().len(), 1);
    let lost = abide.handle::<u64>("rolled-back-order-42").status().await;
    assert!(matches!(lost, Err(ClientError::Unknown { .. })), "{lost:?}");
    abide.shutdown().await;
    world.end().await;
}
