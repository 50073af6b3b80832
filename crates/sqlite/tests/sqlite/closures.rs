//! The changes that a user's closure may make to the schema, the effects of foreign keys on it, and
//! the time that it may take beside others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use abide_core::{Body, Payload};
use abide_sqlite::stepped::{Fate, Stepped};
use abide_sqlite::{Options, SqliteStore, StepConnection};
use abide_store::conformance::block_on;
use abide_store::{CommitOutcome, Error, Result, Store, Submit, Trouble, View};

use crate::fixture::{Fixture, Seat, flow, look, message, step};
use crate::sheaves::{Bench, check};

/// Runs `text` as a transaction step of execution `id`. Returns the store's answer, and the result
/// that the closure received.
fn run(fixture: &Fixture, store: &Arc<SqliteStore>, (id, text): (&str, &'static str)) -> Result<String> {
    let seat = fixture.seat(store);
    let held = seat.born(id);
    let outcome = block_on(store.commit(seat.transaction(&held, move |tx| tx.execute_batch(text))))?;
    assert!(matches!(outcome, CommitOutcome::Committed(_)), "{text}");
    Ok(format!("{:?}", look(store, id).journal.pop().expect("a record").entry().expect("an entry")))
}

fn is_done(told: &str) -> bool {
    told.contains("Payload(ok)")
}

/// Opens a store whose writer works when it is stepped: operations sent before a step share a
/// transaction.
fn stepped(fixture: &Fixture, options: Options) -> Arc<SqliteStore> {
    let still = || Duration::ZERO;
    SqliteStore::stepped(&fixture.path(), fixture.clock.clone(), options, still)
        .expect("the file can be opened")
}

/// Returns the number that a query returns.
fn number(fixture: &Fixture, query: &str) -> i64 {
    fixture.raw().query_row(query, [], |row| row.get(0)).expect("it is counted")
}

#[test]
fn nothing_of_abides_own_is_within_reach_by_another_way() {
    let fixture = Fixture::new();
    let store = fixture.open();
    fixture.raw().execute_batch("CREATE TABLE stock (item TEXT)").expect("a table");
    let forbidden = [
        "REINDEX",
        "REINDEX abide_names",
        "REINDEX sqlite_autoindex_abide_executions_1",
        "ANALYZE",
        "CREATE VIRTUAL TABLE abide USING fts5(x)",
        "CREATE TABLE mine AS SELECT body FROM abide_journal",
        "INSERT INTO stock SELECT id FROM abide_executions",
        "SELECT load_extension('mine')",
        "UPDATE sqlite_schema SET sql = ''",
        "DELETE FROM sqlite_schema",
        "PRAGMA defer_foreign_keys = ON",
        "PRAGMA foreign_keys = OFF",
        "PRAGMA recursive_triggers = ON",
        "PRAGMA writable_schema = ON",
        "PRAGMA data_version = 7",
        "SELECT * FROM pragma_table_info('abide_journal')",
        "VACUUM INTO 'mine.db'",
        "DETACH main",
    ];
    for (nth, text) in forbidden.into_iter().enumerate() {
        let told = run(&fixture, &store, (&format!("{nth}"), text)).expect("it is recorded");
        assert!(!is_done(&told), "{text} was allowed");
    }
    assert!(store.verify().expect("it is looked at").is_sound());
}

/// A closure may end the transaction. Everything before it is then undone, and happens again.
#[test]
fn a_closure_undoes_nothing_before_it() {
    let bench = Bench::new();
    bench.fixture.raw().execute_batch("CREATE TABLE stock (item TEXT UNIQUE)").expect("a table");
    let mut held = bench.born(&["a", "b", "c"].map(str::to_owned));
    let mut plain = held.split_off(2);
    let runs = Arc::new(AtomicU32::new(0));
    let closure = |text: &'static str| {
        let runs = runs.clone();
        move |tx: &StepConnection| {
            runs.fetch_add(1, Ordering::Relaxed);
            tx.execute_batch(text)
        }
    };
    let ends = "INSERT INTO stock VALUES ('x'); INSERT OR ROLLBACK INTO stock VALUES ('x')";
    let draft = bench.seat.draft(&mut plain[0], vec![step(1)]);
    let answers = [
        draft,
        bench.seat.transaction(&held[0], closure("INSERT INTO stock VALUES ('a')")),
        bench.seat.transaction(&held[1], closure(ends)),
    ]
    .map(|commit| bench.commit(commit));
    for run_count in 0..3 {
        assert_eq!(bench.store.step(Fate::Committed), Stepped::Done);
        assert_eq!(runs.load(Ordering::Relaxed), run_count);
    }
    assert_eq!(bench.store.step(Fate::Committed), Stepped::Idle);
    let answers: Vec<_> = answers.into_iter().map(block_on).collect();
    assert!(answers[..2].iter().all(Result::is_ok), "{answers:?}");
    check(answers.into_iter().take(2).map(|answer| answer.expect("it is done")).collect());
}

/// An authorizer hears of the names in these only when they are used: by a step, which then fails,
/// or by another program.
#[test]
fn nothing_is_made_that_leads_to_a_table_of_abides_own() {
    let fixture = Fixture::new();
    let store = fixture.open();
    fixture.raw().execute_batch("CREATE TABLE stock (item TEXT)").expect("a table");
    let before = number(&fixture, "SELECT COUNT(*) FROM sqlite_schema");
    let refused = [
        "CREATE VIEW mine AS SELECT body FROM Abide_Journal",
        "CREATE TRIGGER mine AFTER INSERT ON stock BEGIN DELETE FROM abide_journal; END",
        "CREATE TABLE mine (e INTEGER REFERENCES abide_executions (key))",
        "ALTER TABLE stock ADD COLUMN e INTEGER REFERENCES abide_executions (key)",
        "CREATE VIRTUAL TABLE mine USING fts5(x); ALTER TABLE mine RENAME TO abide",
        "CREATE VIRTUAL TABLE mine USING fts5(id, content = 'abide_executions')",
        "CREATE VIRTUAL TABLE mine USING fts4(content='Abide_Executions', id)",
    ];
    for (nth, text) in refused.into_iter().enumerate() {
        let error = run(&fixture, &store, (&format!("{nth}"), text)).expect_err(text);
        assert!(matches!(error, Error::Refused(_)), "{text}: {error:?}");
        assert!(error.to_string().contains("that names a table of abide's"), "{text}: {error}");
        assert_eq!(number(&fixture, "SELECT COUNT(*) FROM sqlite_schema"), before, "{text} left a trace");
    }
    assert!(store.verify().expect("it is looked at").is_sound());
}

#[test]
fn names_that_only_resemble_abides_own_are_the_users() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let allowed = [
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, abide_id TEXT, parent INTEGER REFERENCES orders (id))",
        "CREATE VIEW started AS SELECT abide_id FROM orders WHERE abide_id IS NOT NULL",
        "CREATE TRIGGER begun AFTER INSERT ON orders BEGIN UPDATE orders SET abide_id = 'x' WHERE id = NEW.id; END",
        "INSERT INTO orders (id) VALUES (1); SELECT abide_id FROM started",
        "CREATE VIRTUAL TABLE notes USING fts5(text)",
        "INSERT INTO notes VALUES ('a nail'), ('a screw')",
        "UPDATE notes SET text = 'two nails' WHERE rowid = 1",
        "SELECT text FROM notes WHERE notes MATCH 'nails'",
        "DELETE FROM notes WHERE rowid = 2",
        "DROP TABLE notes",
        "CREATE VIRTUAL TABLE boxes USING rtree(id, left, right); INSERT INTO boxes VALUES (1, 0, 1); DROP TABLE boxes",
    ];
    for (nth, text) in allowed.into_iter().enumerate() {
        let told = run(&fixture, &store, (&format!("{nth}"), text)).expect(text);
        assert!(is_done(&told), "{text}: {told}");
    }
    assert!(store.verify().expect("it is looked at").is_sound());
}

/// A count from before another program changed the schema says nothing about this step.
#[test]
fn what_another_program_made_is_not_blamed_on_a_step() {
    let fixture = Fixture::new();
    let store = fixture.open();
    fixture.raw().execute_batch("CREATE TABLE stock (item TEXT)").expect("a table");
    run(&fixture, &store, ("first", "ALTER TABLE stock ADD COLUMN a")).expect("it is done");
    fixture.raw().execute_batch("CREATE VIEW theirs AS SELECT id FROM abide_executions").expect("a view");
    run(&fixture, &store, ("second", "ALTER TABLE stock ADD COLUMN b")).expect("it is done");
    run(&fixture, &store, ("third", "DROP VIEW theirs")).expect("it is done");
    run(&fixture, &store, ("fourth", "ALTER TABLE stock ADD COLUMN c")).expect("it is done");
    run(&fixture, &store, ("fifth", "CREATE VIEW ours AS SELECT id FROM abide_executions"))
        .expect_err("ours");
}

const FAMILY: &str = "
    CREATE TABLE mother (id INTEGER PRIMARY KEY);
    CREATE TABLE child (id INTEGER PRIMARY KEY, mother INTEGER REFERENCES mother (id) DEFERRABLE INITIALLY DEFERRED);
    CREATE TABLE stock (item TEXT);
    PRAGMA foreign_keys = OFF;
    INSERT INTO child VALUES (1, 77)";

#[test]
fn deferred_foreign_keys_are_held_against_the_step_that_breaks_them() {
    let fixture = Fixture::new();
    let store = fixture.open();
    fixture.raw().execute_batch(FAMILY).expect("tables");
    let rows = [
        // A violation from before is not the step's fault.
        ("INSERT INTO stock VALUES ('nail')", true),
        ("INSERT INTO mother VALUES (5); INSERT INTO child VALUES (5, 5)", true),
        ("INSERT INTO child VALUES (6, 6); INSERT INTO mother VALUES (6)", true),
        ("UPDATE child SET id = 9 WHERE id = 1", true),
        ("INSERT INTO child VALUES (7, 99)", false),
        ("UPDATE child SET mother = 98 WHERE id = 9", false),
        ("DELETE FROM mother WHERE id = 5", false),
        ("DROP TABLE mother", false),
        ("INSERT INTO child VALUES (8, 8); DROP TABLE child; DROP TABLE mother", true),
    ];
    for (nth, (text, is_sound)) in rows.into_iter().enumerate() {
        let outcome = run(&fixture, &store, (&format!("{nth}"), text));
        match outcome {
            Ok(told) => assert!(is_sound && is_done(&told), "{text}: {told}"),
            Err(error) => {
                assert!(!is_sound && matches!(error, Error::Refused(_)), "{text}: {error:?}");
                assert!(
                    error.to_string().contains("leaves a deferred foreign key broken"),
                    "{text}: {error}"
                );
            }
        }
    }
    assert_eq!(number(&fixture, "SELECT COUNT(*) FROM stock"), 1);
    assert!(store.verify().expect("it is looked at").is_sound());
}

/// COMMIT reports it, which all operations of a batch share. The culprit is known: no other
/// operation runs a closure, and no closure runs twice to find out.
#[test]
fn a_broken_deferred_foreign_key_costs_its_neighbours_nothing_but_time() {
    let fixture = Fixture::new();
    let store = fixture.open();
    fixture.raw().execute_batch(FAMILY).expect("tables");
    let seat = fixture.seat(&store);
    let (guilty, mut neighbour) = (seat.born("guilty"), seat.born("neighbour"));
    store.close();
    let store = stepped(&fixture, Options::default());
    let seat = Seat::of(&fixture, &store, seat.session);
    let run_count = Arc::new(AtomicU32::new(0));
    let counted = run_count.clone();
    let mut bad = seat.transaction(&guilty, move |tx| {
        counted.fetch_add(1, Ordering::Relaxed);
        tx.execute("INSERT INTO child VALUES (7, 99)", []).map(|_| ())
    });
    bad.alone = false;
    let mut good = seat.draft(&mut neighbour, vec![step(1)]);
    good.alone = false;
    let (bad, good) = (store.commit(bad), store.commit(good));
    assert_eq!(store.step(Fate::Committed), Stepped::Done);
    assert!(matches!(block_on(bad), Err(Error::Refused(_))));
    assert!(matches!(block_on(good), Ok(CommitOutcome::Committed(_))));
    assert_eq!(run_count.load(Ordering::Relaxed), 1);
}

/// Waits inside a closure, like one that asks a slow service.
fn dawdle(duration: Duration) {
    let (_sender, silence) = mpsc::channel::<()>();
    assert!(silence.recv_timeout(duration).is_err());
}

type Closure = fn(&StepConnection) -> rusqlite::Result<()>;

#[test]
fn a_step_that_takes_too_long_costs_its_neighbours_nothing_but_time() {
    const LIMIT_MS: u64 = 50;
    let closures: [(&str, Closure); 2] = [
        ("in Rust", |tx| {
            tx.execute("INSERT INTO stock VALUES ('nail')", [])?;
            dawdle(Duration::from_millis(2 * LIMIT_MS));
            Ok(())
        }),
        // When an INSERT is interrupted, SQLite rolls back the whole transaction.
        ("in SQL", |tx| {
            let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) INSERT INTO stock SELECT i FROM n";
            tx.execute(endless, []).map(|_| ())
        }),
    ];
    for (what, closure) in closures {
        let fixture = Fixture::new();
        let store = fixture.open();
        fixture.raw().execute_batch("CREATE TABLE stock (item TEXT)").expect("a table");
        let seat = fixture.seat(&store);
        let (guilty, mut neighbour) = (seat.born("guilty"), seat.born("neighbour"));
        store.close();
        let store = stepped(&fixture, Options { transaction_ms_max: LIMIT_MS, ..Options::default() });
        let seat = Seat::of(&fixture, &store, seat.session);
        let mut bad = seat.transaction(&guilty, closure);
        bad.alone = false;
        let mut good = seat.draft(&mut neighbour, vec![step(1)]);
        good.alone = false;
        let (bad, good) = (store.commit(bad), store.commit(good));
        assert_eq!(store.step(Fate::Committed), Stepped::Done);
        let error = block_on(bad).expect_err(what);
        assert!(error.to_string().contains("took longer than transaction_ms_max, 50 ms"), "{what}: {error}");
        assert!(matches!(block_on(good), Ok(CommitOutcome::Committed(_))), "{what}");
        assert_eq!(number(&fixture, "SELECT COUNT(*) FROM stock"), 0, "{what} left a trace");
    }
}

/// The statement would end, but long after the limit.
#[test]
fn the_time_limit_interrupts_a_statement() {
    const LONG: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000000) SELECT COUNT(*) FROM n";
    let fixture = Fixture::new();
    let store = fixture.open_with(Options { transaction_ms_max: 50, ..Options::default() });
    let seat = fixture.seat(&store);
    let held = seat.born("long");
    let (told, tells) = mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let closure = move |tx: &StepConnection| {
        let counted = tx.query_row(LONG, [], |row| row.get::<_, i64>(0));
        told.lock().expect("nobody panics").send(counted.map_err(|error| error.to_string())).expect("heard");
        Ok(())
    };
    block_on(store.commit(seat.transaction(&held, closure))).expect_err("it took too long");
    assert_eq!(tells.recv().expect("the closure ran"), Err("interrupted".to_owned()));
}

#[test]
fn a_closure_that_runs_for_long_is_told_while_it_runs() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let held = seat.born("slow");
    let (seen, sees) = mpsc::channel();
    let (seen, watched) = (std::sync::Mutex::new(seen), store.clone());
    let mut commit = seat.transaction(&held, move |_| {
        let seen = seen.lock().expect("nobody panics with it");
        let told = || block_on(watched.trouble()).expect("it is told");
        seen.send(told()).expect("somebody listens");
        dawdle(Duration::from_millis(1_050));
        seen.send(told()).expect("somebody listens");
        Ok(())
    });
    commit.alone = false;
    block_on(store.commit(commit)).expect("it is committed");
    assert_eq!(sees.recv(), Ok(None));
    assert!(matches!(sees.recv(), Ok(Some(Trouble::Occupied { by, .. })) if by == held.key));
    assert_eq!(block_on(store.trouble()).expect("it is told"), None);
}

#[test]
fn a_full_disk_is_told_until_something_was_written() {
    let fixture = Fixture::new();
    fixture.open().close();
    let store = stepped(&fixture, Options::default());
    let trouble = || block_on(store.trouble()).expect("it is told");
    let submit = |id: &str, fate| {
        let text = "z".repeat(100_000);
        let start = flow().with_input(Payload::from(text.as_str()));
        let messages = vec![message("start", id, Body::Start(start.into()))];
        let answer = store.submit(Submit { messages, born_to: None, alone: false, stretch: None });
        assert_eq!(store.step(fate), Stepped::Done);
        block_on(answer)
    };
    assert_eq!(trouble(), None);
    assert!(matches!(submit("a", Fate::Full), Err(Error::Unavailable { .. })));
    let Some(Trouble::Failing { complaint, .. }) = trouble() else { panic!("{:?}", trouble()) };
    assert_eq!(complaint, "database or disk is full");
    submit("a", Fate::Committed).expect("there is room");
}
