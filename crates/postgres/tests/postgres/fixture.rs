//! The server, and a schema for each test.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide_core::Bounds;
use abide_postgres::{Options, PostgresStore, StepConnection};
use abide_store::conformance::{TestClock, UserTable, page_bounds};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Row, SimpleQueryMessage};

/// Returns the URL of the server that the tests may use.
pub(crate) fn server() -> String {
    let missing = "the tests of abide-postgres need a server: run them as `cargo xtask postgres -- cargo test …`, \
                   or set ABIDE_TEST_POSTGRES to the URL of one";
    std::env::var("ABIDE_TEST_POSTGRES").unwrap_or_else(|_| panic!("{missing}"))
}

/// Returns the host and port of a URL.
pub(crate) fn place_of(url: &str) -> &str {
    url.split_once('@').map_or("", |(_, rest)| rest.split(['/', '?']).next().unwrap_or(rest))
}

/// How often a test looks for somebody who waits, which takes some seconds.
const LOOK_COUNT_MAX: usize = 20_000;

/// A connection of somebody else, whose calls wait for the server.
pub(crate) struct Raw {
    runtime: Runtime,
    client: Client,
    /// Moves the bytes while somebody waits.
    bytes: Pin<Box<dyn Future<Output = ()>>>,
}

impl Raw {
    pub(crate) fn open() -> Self {
        Self::at(&server())
    }

    pub(crate) fn at(url: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        let opened = runtime.block_on(tokio_postgres::connect(url, NoTls));
        let (client, connection) = opened.expect("the server can be reached");
        let bytes = Box::pin(async move { drop(connection.await) });
        Self { runtime, client, bytes }
    }

    /// Opens a connection that finds the tables of a store.
    pub(crate) fn of(schema: &Schema) -> Self {
        let mut raw = Self::open();
        raw.query("SELECT set_config('search_path', $1, FALSE)", &[&schema.0]);
        raw
    }

    pub(crate) fn run(&mut self, statements: &str) {
        let (runtime, bytes) = (&self.runtime, &mut self.bytes);
        runtime.block_on(async {
            tokio::select! {
                ended = self.client.batch_execute(statements) => ended.expect("the statements are right"),
                () = bytes => panic!("the connection has ended"),
            }
        });
    }

    pub(crate) fn query(&mut self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        let (runtime, bytes) = (&self.runtime, &mut self.bytes);
        runtime.block_on(async {
            tokio::select! {
                rows = self.client.query(statement, parameters) => rows.expect("the statement is right"),
                () = bytes => panic!("the connection has ended"),
            }
        })
    }

    /// Runs a statement without preparing it, and returns its only row.
    pub(crate) fn texts(&mut self, statement: &str) -> Vec<String> {
        let (runtime, bytes) = (&self.runtime, &mut self.bytes);
        let messages = runtime.block_on(async {
            tokio::select! {
                messages = self.client.simple_query(statement) => messages.expect("the statement is right"),
                () = bytes => panic!("the connection has ended"),
            }
        });
        let row = messages.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = row.expect("there is a row");
        (0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect()
    }

    /// Waits until some statement of the schema's store waits for a lock.
    pub(crate) fn until_somebody_waits(&mut self, schema: &Schema) {
        let waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'";
        // Within a transaction, the server goes on showing what it showed first.
        let anew = "SELECT pg_stat_clear_snapshot()";
        let mut look = || self.query(anew, &[]).len() + self.query(waits, &[&schema.0]).len() > 1;
        let waits = (0..LOOK_COUNT_MAX).any(|_| look());
        assert!(waits, "nobody waits for the lock");
    }
}

/// A schema that nobody else has, which goes when the test ends.
pub(crate) struct Schema(pub(crate) String);

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Schema {
    pub(crate) fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Raw::open().run(TABLE_CREATE);
        Self(["abide_test", &std::process::id().to_string(), &number.to_string()].join("_"))
    }

    pub(crate) fn url(&self) -> String {
        let server = server();
        let separator = if server.contains('?') { "&" } else { "?" };
        [&server, separator, "application_name=", &self.0, "&schema=", &self.0].concat()
    }

    pub(crate) fn open(&self, clock: Arc<TestClock>, options: Options) -> Arc<PostgresStore> {
        PostgresStore::open(&self.url(), clock, options).expect("the store can be opened")
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let mut raw = Raw::open();
        raw.query("DELETE FROM abide_users_own WHERE test = $1", &[&self.0]);
        raw.query("SELECT set_config('abide.schema', $1, FALSE)", &[&self.0]);
        raw.run(
            "DO $$ BEGIN EXECUTE pg_catalog.format('DROP SCHEMA IF EXISTS %I CASCADE', \
             current_setting('abide.schema')); END $$",
        );
    }
}

pub(crate) fn options(bounds: Bounds) -> Options {
    Options { bounds, page_bounds: page_bounds(), connection_count_max: 3, ..Options::default() }
}

/// The user's table. Each test has its own rows in it, by the name that its connections go by.
pub(crate) const TABLE: UserTable = UserTable {
    put: |connection, key, value| {
        let put = "INSERT INTO abide_users_own VALUES (current_setting('application_name'), $1, $2) \
                   ON CONFLICT (test, key) DO UPDATE SET value = EXCLUDED.value";
        let connection = connection_of(connection);
        let done = connection.block_on(connection.execute(put, &[&key, &value]));
        done.expect("there is time").expect("the table is there");
    },
    get: |connection, key| {
        let get =
            "SELECT value FROM abide_users_own WHERE test = current_setting('application_name') AND key = $1";
        let connection = connection_of(connection);
        let found = connection.block_on(connection.query_opt(get, &[&key])).expect("there is time");
        found.expect("the table is there").map(|row| row.get(0))
    },
};

/// Makes the user's table. Of several tests at a time, one makes it and the others find it.
const TABLE_CREATE: &str = "
SELECT pg_advisory_xact_lock(77);
CREATE TABLE IF NOT EXISTS abide_users_own (test TEXT, key TEXT, value TEXT, PRIMARY KEY (test, key))";

fn connection_of(connection: &dyn Any) -> &StepConnection {
    connection.downcast_ref().expect("a PostgreSQL store hands out its connection")
}
