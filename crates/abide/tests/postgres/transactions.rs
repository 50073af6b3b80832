//! `ctx.postgres`, as a workflow meets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::PostgresError;
use abide::prelude::*;
use abide::tokio_postgres::error::SqlState;
use tokio::sync::Barrier;

use crate::server::Place;

/// Counts how often a closure ran.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicU32>);

impl Runs {
    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Writes a row, then runs `statements`.
#[workflow]
async fn writes(ctx: Ctx, statements: String) -> Result<u32> {
    let runs = ctx.state::<Runs>().clone();
    ctx.postgres("write", async move |tx| {
        runs.0.fetch_add(1, Ordering::Relaxed);
        tx.execute("INSERT INTO stock VALUES ($1)", &[&"nail"]).await?;
        tx.batch_execute(&statements).await?;
        Ok(1)
    })
    .await
}

/// Does the same, and does not look at what became of it.
#[workflow]
async fn swallows(ctx: Ctx, statements: String) -> Result<u32> {
    ctx.postgres("write", async move |tx| {
        tx.execute("INSERT INTO stock VALUES ($1)", &[&"nail"]).await?;
        drop(tx.batch_execute(&statements).await);
        Ok(1)
    })
    .await
}

const STOCK: &str = "CREATE TABLE stock (item TEXT NOT NULL)";
const STOCK_COUNT: &str = "SELECT count(*) FROM stock";

async fn with_stock(test: &str) -> (Place, Abide, Runs) {
    let (place, runs) = (Place::new(test).await, Runs::default());
    place.run(STOCK).await;
    let abide = place.builder().state(runs.clone()).open().await.unwrap();
    (place, abide, runs)
}

async fn refused(abide: &Abide, statements: &str) -> String {
    abide.run(writes, statements.to_owned()).await.expect_err(statements).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_writes_of_a_step_and_its_record_commit_together() {
    let (place, abide, runs) = with_stock("together").await;
    assert_eq!(abide.run(writes, "INSERT INTO stock VALUES ('screw')".to_owned()).id("a").await.unwrap(), 1);
    assert_eq!(place.count(STOCK_COUNT).await, 2);
    assert_eq!(runs.count(), 1);
    // Another engine finds the record, and runs nothing.
    abide.shutdown().await;
    let again = place.builder().state(runs.clone()).open().await.unwrap();
    assert_eq!(again.handle::<u32>("a").result().await.unwrap(), 1);
    assert_eq!((place.count(STOCK_COUNT).await, runs.count()), (2, 1));
    again.shutdown().await;
}

#[workflow]
async fn fails(ctx: Ctx, how: String) -> Result<String> {
    ctx.postgres("write", async move |tx| {
        tx.execute("INSERT INTO stock VALUES ('nail')", &[]).await?;
        match how.as_str() {
            "error" => Err(Error::fatal("it does not please")),
            "panic" => panic!("it does not please"),
            _ => Ok("x".repeat(5_000_000)),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_step_that_fails_leaves_nothing() {
    let (place, abide, _) = with_stock("fails").await;
    for (how, said) in
        [("error", "it does not please"), ("panic", "it does not please"), ("large", "payload_bytes_max")]
    {
        let error = abide.run(fails, how.to_owned()).await.err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(said)), "{how}: {error:?}");
        assert_eq!(place.count(STOCK_COUNT).await, 0, "{how}");
    }
    abide.shutdown().await;
}

/// Each would end the transaction, or concern what lies beyond it.
const CONTROL: [&str; 12] = [
    "COMMIT",
    "END",
    "ROLLBACK",
    "ABORT",
    "BEGIN",
    "START TRANSACTION",
    "PREPARE TRANSACTION 'mine'",
    "SELECT 1; /* now */ COMMIT; BEGIN",
    "SELECT $$;$$, E'\\';'; ROLLBACK",
    "DO $$ BEGIN COMMIT; END $$",
    "RELEASE SAVEPOINT abide_step",
    "DISCARD ALL",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_would_end_the_transaction_is_refused_and_nothing_stays() {
    let (place, abide, _) = with_stock("control").await;
    for statements in CONTROL {
        let error = refused(&abide, statements).await;
        let is_told = error.contains("a transaction step may not run")
            || error.contains("invalid transaction termination");
        assert!(is_told, "{statements}: {error}");
        assert_eq!(place.count(STOCK_COUNT).await, 0, "{statements}");
    }
    abide.shutdown().await;
}

/// The server reads this text otherwise than those who look at it before it is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_was_ended_unseen_is_noticed_before_the_record() {
    let (place, abide, _) = with_stock("unseen").await;
    let hidden = "SET LOCAL standard_conforming_strings = off".to_owned();
    let sly = r"SELECT '\''; COMMIT; BEGIN; SELECT '\''".to_owned();
    // What runs in one batch is read at once, so the setting needs a batch of its own.
    let error = abide.run(in_two, (hidden, sly)).id("a").await.unwrap_err().to_string();
    assert!(error.contains("ended the transaction"), "{error}");
    abide.shutdown().await;
    assert!(verified(&place).await.is_empty());
}

#[workflow]
async fn in_two(ctx: Ctx, (first, second): (String, String)) -> Result<()> {
    ctx.postgres("write", async move |tx| {
        tx.batch_execute(&first).await?;
        tx.batch_execute(&second).await?;
        Ok(())
    })
    .await
}

async fn verified(place: &Place) -> Vec<String> {
    // Opening and closing block for a moment, and nothing else runs on this thread.
    let store = abide_postgres::PostgresStore::open(&place.url(), Arc::new(Still), Default::default());
    let store = store.expect("the store can be opened");
    let found = store.verify().await.expect("it can be read");
    store.close();
    found.problems
}

struct Still;

impl abide_store::Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(0)
    }
}

/// Each touches a table of abide's, or adds one.
const TOUCHES: [&str; 16] = [
    "DELETE FROM abide.executions",
    "UPDATE abide.executions SET epoch = 99 WHERE FALSE",
    "INSERT INTO abide.migrations VALUES (99)",
    "SELECT body FROM abide.journal",
    "SELECT 1 FROM abide.executions FOR UPDATE",
    "TRUNCATE abide.tags",
    "LOCK TABLE abide.feed IN SHARE MODE",
    "LOCK TABLE abide.feed IN ACCESS SHARE MODE",
    "DROP TABLE abide.journal",
    "ALTER TABLE abide.journal ADD COLUMN mine TEXT",
    "CREATE INDEX mine ON abide.journal (body)",
    "CREATE TABLE abide.mine (x INT)",
    "DROP SCHEMA abide CASCADE",
    "CREATE TABLE mine (key BIGINT REFERENCES abide.executions)",
    "CREATE TRIGGER mine BEFORE INSERT ON abide.feed EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "SELECT nextval('abide.feed_place')",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_touches_abides_own_tables_fails_and_nothing_stays() {
    let (place, abide, runs) = with_stock("touches").await;
    for statements in TOUCHES {
        let error = refused(
            &abide,
            &statements.replace("abide.", "abide_touches.").replace("SCHEMA abide", "SCHEMA abide_touches"),
        )
        .await;
        assert!(error.contains("touched"), "{statements}: {error}");
        assert_eq!(place.count(STOCK_COUNT).await, 0, "{statements}");
    }
    abide.shutdown().await;
    // Where the step goes with its start, abide has written all of its tables before.
    let early = place.builder().state(runs).begin_early().open().await.unwrap();
    for statements in
        ["UPDATE abide_touches.executions SET epoch = 99", "SELECT 1 FROM abide_touches.journal"]
    {
        let error = refused(&early, statements).await;
        assert!(error.contains("touched"), "{statements}: {error}");
    }
    early.shutdown().await;
    assert_eq!(verified(&place).await, Vec::<String>::new());
    assert_eq!(place.count(STOCK_COUNT).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_may_do_anything_else() {
    let (place, abide, _) = with_stock("allowed").await;
    let allowed = [
        "ALTER TABLE stock ADD COLUMN place TEXT NOT NULL DEFAULT 'shelf'",
        "CREATE TABLE log (item TEXT); CREATE INDEX log_item ON log (item); INSERT INTO log SELECT item FROM stock",
        "CREATE FUNCTION one() RETURNS INT LANGUAGE sql AS $$ SELECT 1; $$",
        "DO $$ BEGIN PERFORM one(); END; $$",
        "SAVEPOINT mine; INSERT INTO log VALUES ('x'); ROLLBACK TO mine; RELEASE mine",
        "CREATE TEMP TABLE mine (x INT) ON COMMIT DROP; INSERT INTO mine VALUES (1)",
        "SET LOCAL lock_timeout = '1s'; SELECT item FROM stock FOR UPDATE",
        "DECLARE c CURSOR FOR SELECT item FROM stock; FETCH ALL FROM c",
        "NOTIFY somebody, 'x'",
        "ANALYZE stock",
        "TRUNCATE log; DROP TABLE log",
    ];
    for (statements, count) in allowed.into_iter().zip(1..) {
        assert_eq!(abide.run(writes, statements.to_owned()).await.expect(statements), 1);
        assert_eq!(place.count(STOCK_COUNT).await, count, "{statements}");
    }
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_goes_on_after_a_failed_statement_fails() {
    let (place, abide, _) = with_stock("swallows").await;
    let error = abide.run(swallows, "SELECT 1 / 0".to_owned()).await.unwrap_err().to_string();
    assert!(error.contains("went on after one of its statements had failed"), "{error}");
    assert_eq!(place.count(STOCK_COUNT).await, 0);
    abide.run(saves, ()).await.unwrap();
    assert_eq!(place.count(STOCK_COUNT).await, 1, "what came before the savepoint stays");
    abide.shutdown().await;
}

/// Undoes the failed statement itself.
#[workflow]
async fn saves(ctx: Ctx) -> Result<()> {
    ctx.postgres("write", async |tx| {
        tx.execute("INSERT INTO stock VALUES ('nail')", &[]).await?;
        tx.batch_execute("SAVEPOINT mine").await?;
        let error: PostgresError = tx.execute("INSERT INTO stock VALUES (NULL)", &[]).await.unwrap_err();
        assert_eq!(error.code().map(SqlState::code), Some("23502"));
        Ok(tx.batch_execute("ROLLBACK TO mine").await?)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deferred_constraint_that_stays_broken_is_an_error_of_its_step() {
    let (place, abide, _) = with_stock("deferred").await;
    place
        .run(
            "CREATE TABLE mother (id INT PRIMARY KEY);
             CREATE TABLE child (mother INT REFERENCES mother (id) DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
    let error = refused(&abide, "INSERT INTO child VALUES (99)").await;
    assert!(error.contains("leaves a deferred constraint broken: "), "{error}");
    assert_eq!(place.count(STOCK_COUNT).await, 0);
    abide
        .run(writes, "INSERT INTO child VALUES (1); INSERT INTO mother VALUES (1)".to_owned())
        .await
        .unwrap();
    abide.shutdown().await;
}

/// The next step may get the same connection, and abide's own statements do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_a_step_sets_outlives_it() {
    let (place, abide, _) = with_stock("session").await;
    place.run("DO $$ BEGIN IF to_regrole('abide_nobody') IS NULL THEN CREATE ROLE abide_nobody; END IF; END $$; GRANT INSERT ON stock TO abide_nobody").await;
    let sets = [
        "SET search_path = pg_catalog",
        "SET client_encoding = 'LATIN1'; SET statement_timeout = 1; SET synchronous_commit = off",
        "SET ROLE abide_nobody",
        "SET LOCAL ROLE abide_nobody",
        "SET SESSION AUTHORIZATION abide_nobody",
        "SET TRANSACTION READ ONLY",
        "CREATE TEMP TABLE stock (item TEXT)",
        "SELECT pg_advisory_lock(4711)",
        "LISTEN somebody",
        "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
    ];
    for (statements, count) in sets.into_iter().zip(1..) {
        abide.run(writes, statements.to_owned()).await.expect(statements);
        assert_eq!(place.count(STOCK_COUNT).await, count, "{statements}");
        let left = abide.run(looks, ()).await.expect(statements);
        assert_eq!(left, "own_session, 0, UTF8, on, 0, 0", "{statements}");
    }
    let held =
        place.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711").await;
    assert_eq!(held, 0);
    // A step that fails leaves no lock either.
    refused(&abide, "SELECT pg_advisory_lock(4711); SELECT 1 / 0").await;
    let held =
        place.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711").await;
    assert_eq!(held, 0);
    abide.shutdown().await;
}

#[workflow]
async fn looks(ctx: Ctx) -> Result<String> {
    ctx.postgres("look", async |tx| {
        let row = tx.query_one(
            "SELECT concat_ws(', ', current_setting('search_path'), current_setting('statement_timeout'),
                 current_setting('client_encoding'), current_setting('synchronous_commit'),
                 (SELECT count(*) FROM pg_cursors WHERE name <> ''), (SELECT count(*) FROM pg_listening_channels()))",
            &[],
        );
        Ok(row.await?.get(0))
    })
    .await
}

#[workflow]
async fn slow(ctx: Ctx, how: String) -> Result<()> {
    ctx.postgres("slow", async move |tx| {
        tx.execute("INSERT INTO stock VALUES ('nail')", &[]).await?;
        match how.as_str() {
            "sql" => drop(tx.execute("SELECT pg_sleep(60)", &[]).await?),
            "swallowed" => drop(tx.execute("SELECT pg_sleep(60)", &[]).await),
            "waits" => std::future::pending().await,
            _ => {
                let (_sender, silence) = std::sync::mpsc::channel::<()>();
                assert!(silence.recv_timeout(ms(500)).is_err());
            }
        }
        Ok(())
    })
    .await
}

#[expect(clippy::disallowed_methods, reason = "a statement that is not cancelled would take a minute")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_takes_too_long_fails_and_nothing_stays() {
    let place = Place::new("slow").await;
    place.run(STOCK).await;
    let abide = place.builder().transaction_ms_max(300).open().await.unwrap();
    for how in ["sql", "swallowed", "waits", "blocks"] {
        let run = abide.run(slow, how.to_owned()).into_future();
        let told = tokio::time::timeout(secs(30), run).await.expect("the statement is cancelled");
        let error = told.expect_err(how).to_string();
        assert!(error.contains("took longer than transaction_ms_max, 300 ms"), "{how}: {error}");
        assert_eq!(place.count(STOCK_COUNT).await, 0, "{how}");
    }
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)' AND state = 'active' AND pid <> pg_backend_pid()";
    assert_eq!(place.count(sleeping).await, 0, "the statement was cancelled");
    abide.shutdown().await;
}

#[workflow]
async fn moves(ctx: Ctx, (from, to): (String, String)) -> Result<()> {
    let (runs, both) = (ctx.state::<Runs>().clone(), ctx.state::<Arc<Barrier>>().clone());
    ctx.postgres("move", async move |tx| {
        let run = runs.0.fetch_add(1, Ordering::Relaxed);
        tx.execute("UPDATE place SET free = free - 1 WHERE name = $1", &[&from]).await?;
        if run < 2 {
            both.wait().await;
        }
        tx.execute("UPDATE place SET free = free + 1 WHERE name = $1", &[&to]).await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_victim_of_a_deadlock_runs_again() {
    let (place, runs) = (Place::new("deadlock").await, Runs::default());
    place.run("CREATE TABLE place (name TEXT, free INT); INSERT INTO place VALUES ('a', 5), ('b', 5)").await;
    let both = Arc::new(Barrier::new(2));
    let abide = place.builder().state(runs.clone()).state(both).open().await.unwrap();
    let (a, b) = ("a".to_owned(), "b".to_owned());
    let (one, two) = tokio::join!(abide.run(moves, (a.clone(), b.clone())), abide.run(moves, (b, a)));
    one.unwrap();
    two.unwrap();
    assert_eq!(runs.count(), 3, "one of them ran twice");
    assert_eq!(place.count("SELECT count(*) FROM place WHERE free = 5").await, 2);
    abide.shutdown().await;
}

/// Does something once: a number that was drawn is not given back by a rollback.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_runs_again_when_the_server_failed_it() {
    let (place, abide, runs) = with_stock("again").await;
    place.run("CREATE SEQUENCE drawn").await;
    let once = |what: &str| ["DO $$ BEGIN IF nextval('drawn') = 1 THEN ", what, "; END IF; END $$"].concat();
    let faults = [
        "RAISE EXCEPTION USING ERRCODE = '40001'",
        "RAISE EXCEPTION USING ERRCODE = '53100'",
        "PERFORM pg_terminate_backend(pg_backend_pid())",
    ];
    for (fault, count) in faults.into_iter().zip(1..) {
        place.run("SELECT setval('drawn', 1, FALSE)").await;
        abide.run(writes, once(fault)).await.expect(fault);
        assert_eq!(place.count(STOCK_COUNT).await, i64::from(count), "{fault}");
        assert_eq!(runs.count(), 2 * count, "{fault}");
        // The same if the closure looks away.
        place.run("SELECT setval('drawn', 1, FALSE)").await;
    }
    abide.shutdown().await;
}

#[workflow]
async fn on_sqlite(ctx: Ctx) -> Result<()> {
    ctx.sqlite("write", |tx| Ok(tx.execute_batch("CREATE TABLE stock (x)")?)).await
}

#[workflow]
async fn on_postgres(ctx: Ctx) -> Result<()> {
    ctx.postgres("write", async |tx| Ok(tx.batch_execute("CREATE TABLE stock (x INT)").await?)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_on_the_wrong_store_is_refused_by_name() {
    let place = Place::new("wrong").await;
    let abide = place.open().await;
    let error = abide.run(on_sqlite, ()).await.unwrap_err().to_string();
    assert!(error.contains("ctx.sqlite needs a SQLite store"), "{error}");
    abide.shutdown().await;
    assert_eq!(place.count("SELECT count(*) FROM pg_class WHERE relname = 'stock' AND relnamespace = 'own_wrong'::regnamespace").await, 0);
    let folder = tempfile::tempdir().unwrap();
    for url in [format!("sqlite:{}", folder.path().join("app.db").display()), "sqlite::memory:".to_owned()] {
        let abide = Abide::open(&url).await.unwrap();
        let error = abide.run(on_postgres, ()).await.unwrap_err().to_string();
        assert!(error.contains("ctx.postgres needs a PostgreSQL store"), "{error}");
        abide.shutdown().await;
    }
}
