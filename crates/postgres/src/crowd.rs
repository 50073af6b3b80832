//! Tables full of rows, for tests that count what a statement touches.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use crate::connection::Connection;
use crate::url::Place;
use crate::{Options, schema};

/// A schema that nobody else has, with connections as the store makes them.
pub(crate) struct Crowd {
    runtime: Runtime,
    pub(crate) url: String,
    pub(crate) connection: Connection,
    schema: String,
}

/// What a statement has touched: the rows that its scans returned, and the pages that they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touched {
    pub(crate) rows: i64,
    pub(crate) pages: i64,
    pub(crate) took: Duration,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// The counters of this transaction. They are not those of a time, so they are the same on every
/// machine.
const TOUCHED: &str = "
SELECT
    COALESCE(sum(pg_stat_get_xact_tuples_returned(c.oid)), 0)::BIGINT,
    COALESCE(sum(pg_stat_get_xact_blocks_fetched(c.oid)), 0)::BIGINT
FROM pg_class c
WHERE c.relnamespace = current_schema()::REGNAMESPACE AND c.relkind IN ('r', 'i')";

/// No plan may change because somebody has analyzed a table, and no dead row may go.
const NO_VACUUM: &str = "
DO $$
DECLARE
    one REGCLASS;
BEGIN
    FOR one IN SELECT oid FROM pg_class WHERE relnamespace = current_schema()::REGNAMESPACE AND relkind = 'r' LOOP
        EXECUTE pg_catalog.format('ALTER TABLE %s SET (autovacuum_enabled = FALSE)', one);
    END LOOP;
END $$";

const ANALYZE: &str = "
DO $$
DECLARE
    one REGCLASS;
BEGIN
    FOR one IN SELECT oid FROM pg_class WHERE relnamespace = current_schema()::REGNAMESPACE AND relkind = 'r' LOOP
        EXECUTE pg_catalog.format('ANALYZE %s', one);
    END LOOP;
END $$";

/// Rows of each table, for the numbers from $1 to $2. The session, the epoch and the version of an
/// execution with a low number are that number. Half of all is held, an eighth is ready, an eighth
/// sleeps, and the rest is over.
const ROWS: [&str; 12] = [
    "
INSERT INTO routes (ns, body)
SELECT 'default', convert_to('route ' || n, 'UTF8')
FROM generate_series($1::BIGINT, $2::BIGINT) n
WHERE n <= 16",
    "
INSERT INTO sessions (
    id, ns, name, ability, ttl_us, registered_at, expires_at, died, released, draining, beat_count, taken
)
SELECT n, 'default', 'worker', '', 1, 0, 1000000000, FALSE, FALSE, FALSE, 0, 0
FROM generate_series($1::BIGINT, $2::BIGINT) n
WHERE n <= 400",
    "
INSERT INTO executions (
    key, ns, id, route, rank, session, request, is_care, given_beat, epoch, version, run, status, listens,
    aside, wake_at, care_at, parent, parent_run, is_child, created_at, finished_at, takeovers, tags,
    summary, state
)
SELECT
    n, 'default', 'id ' || n, n % 16 + 1, n / 16 % 2, CASE WHEN n % 800 BETWEEN 1 AND 400 THEN n % 800 END, n,
    FALSE, 0, n, n, 1, 1, 2, n % 10000 = 9999,
    CASE WHEN n % 800 BETWEEN 501 AND 600 THEN n END, CASE WHEN n % 800 BETWEEN 501 AND 510 THEN n END,
    CASE WHEN n % 10 = 0 THEN n - 1 END, 1, n % 10 = 0, n, CASE WHEN n % 800 NOT BETWEEN 1 AND 600 THEN n END,
    0, NULL, 'summary', 'state'
FROM generate_series($1::BIGINT, $2::BIGINT) n",
    "
INSERT INTO journal (execution, run, seq, count, body)
SELECT n, 1, s, 1, 'entry'
FROM generate_series($1::BIGINT, $2::BIGINT) n, generate_series(1, 2) s",
    "
INSERT INTO inbox (execution, id, sort, body)
SELECT n, 'm ' || n, 0, CASE WHEN n % 800 BETWEEN 1 AND 500 THEN 'message'::BYTEA END
FROM generate_series($1::BIGINT, $2::BIGINT) n",
    "
INSERT INTO wakes (execution, route, rank, since, message, needs)
SELECT n, n % 16 + 1, n / 16 % 2, n, 'm ' || n, 0
FROM generate_series($1::BIGINT, $2::BIGINT) n
WHERE n % 800 BETWEEN 400 AND 500",
    "
INSERT INTO cares (execution, ns, at, message, while_held)
SELECT n, 'default', n, 'm ' || n, TRUE
FROM generate_series($1::BIGINT, $2::BIGINT) n
WHERE n % 20 = 0 OR n <= 16",
    "
INSERT INTO tags (execution, key, value)
SELECT n, 'customer', CASE WHEN n % 1000 = 1 THEN 'one of many' ELSE 'm ' || n END
FROM generate_series($1::BIGINT, $2::BIGINT) n",
    "
INSERT INTO feed (execution, run, at, happening, is_end)
SELECT n, 1, n, 1, n % 800 NOT BETWEEN 1 AND 600
FROM generate_series($1::BIGINT, $2::BIGINT) n",
    "
INSERT INTO feed (execution, run, at, happening, is_end, refused)
SELECT 0, 0, n, 11, FALSE, 'refused'
FROM generate_series($1::BIGINT, $2::BIGINT) n
WHERE n % 20 = 0",
    "
INSERT INTO intake (id, namespace, verb, execution, name, input, options, sender)
SELECT 'r ' || n, 'default', 'signal', 'id ' || n / 4, 'note', '1', '{}', 'ann'
FROM generate_series($1::BIGINT, $2::BIGINT) n",
    "
SELECT setval('execution_key', GREATEST($1, $2::BIGINT)), setval('session_id', GREATEST($1, $2::BIGINT))",
];

impl Crowd {
    /// Makes the schema, and fills it with `count` executions that the server knows about.
    pub(crate) fn of(count: i64) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let schema = ["abide_crowd", &std::process::id().to_string(), &number.to_string()].join("_");
        let server =
            std::env::var("ABIDE_TEST_POSTGRES").expect("run this as `cargo xtask postgres -- cargo test …`");
        let separator = if server.contains('?') { "&" } else { "?" };
        let url = [&server, separator, "schema=", &schema].concat();
        let place = Place::parse(&url, 5_000).expect("the URL of the server is right");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        let connection = runtime.block_on(async {
            let made = schema::open(&place, &Options::default()).await.expect("the schema can be made");
            made.run(NO_VACUUM).await.expect("the tables are ours");
            Connection::open(&place).await.expect("the server can be reached")
        });
        let mut crowd = Self { runtime, url, connection, schema };
        crowd.grow(1, count);
        crowd.run(ANALYZE);
        crowd
    }

    /// Another connection of the store.
    pub(crate) fn connect(&self) -> Connection {
        let place = Place::parse(&self.url, 5_000).expect("the URL of the server is right");
        self.wait(Connection::open(&place)).expect("the server can be reached")
    }

    pub(crate) fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime.block_on(what)
    }

    /// Adds the executions with these numbers.
    pub(crate) fn grow(&mut self, from: i64, to: i64) {
        for rows in ROWS {
            self.runtime
                .block_on(self.connection.client.query(rows, &[&from, &to]))
                .expect("the rows are right");
        }
    }

    pub(crate) fn run(&self, statements: &'static str) {
        self.wait(self.connection.run(statements)).expect("the statements are right");
    }

    /// Returns what `operation` touches on `connection`. It is undone.
    pub(crate) async fn touched(connection: &Connection, operation: impl Future<Output = ()>) -> Touched {
        Self::counted(connection, operation, crate::sql::ROLLBACK).await
    }

    /// Returns what `operation` touches on `connection`.
    pub(crate) async fn spent(connection: &Connection, operation: impl Future<Output = ()>) -> Touched {
        Self::counted(connection, operation, crate::sql::COMMIT).await
    }

    #[expect(clippy::disallowed_methods, reason = "the test measures how long the server takes")]
    async fn counted(
        connection: &Connection,
        operation: impl Future<Output = ()>,
        end: &'static str,
    ) -> Touched {
        connection.run(crate::sql::BEGIN).await.expect("a transaction begins");
        let before = counters(connection).await;
        let began = Instant::now();
        operation.await;
        let took = began.elapsed();
        let after = counters(connection).await;
        connection.run(end).await.expect("a transaction ends");
        Touched { rows: after.0 - before.0, pages: after.1 - before.1, took }
    }
}

/// Returns the rows and the pages that this transaction has touched.
pub(crate) async fn counters(connection: &Connection) -> (i64, i64) {
    let row = connection.row(TOUCHED, &[]).await.expect("the counters can be read");
    (row.get(0), row.get(1))
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let (name, connection) = (self.schema.as_str(), &self.connection);
        let dropped = self.runtime.block_on(async {
            connection.client.query("SELECT set_config('abide.schema', $1, FALSE)", &[&name]).await?;
            let drop = "DO $$ BEGIN EXECUTE pg_catalog.format('DROP SCHEMA %I CASCADE', \
                        current_setting('abide.schema')); END $$";
            connection.client.batch_execute(drop).await
        });
        dropped.expect("the schema is ours");
    }
}
