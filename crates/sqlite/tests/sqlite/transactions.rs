//! User closures inside the store's transaction.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use abide_core::{Epoch, Execution, Lease, MessageId, Refusal, Version};
use abide_sqlite::{SqliteStore, StepConnection};
use abide_store::conformance::block_on;
use abide_store::{Answer, Clock, CommitOutcome, Error, ExecutionKey, Store, Stretch, Submit, Submitted};

use crate::fixture::{Fixture, Held, Seat, address, flow, look, start, step, worker};

#[test]
fn writes_of_a_step_and_its_record_commit_together() {
    let fixture = Fixture::new();
    let store = fixture.open();
    fixture.raw().execute_batch("CREATE TABLE stock (item TEXT UNIQUE)").unwrap();
    let seat = fixture.seat(&store);
    let held = seat.born("a");
    let commit =
        seat.transaction(&held, |tx| tx.execute("INSERT INTO stock VALUES ('nail')", []).map(|_| ()));
    let CommitOutcome::Committed(committed) = block_on(store.commit(commit)).unwrap() else {
        panic!("fenced")
    };
    assert_eq!(committed.transacted, look(&store, "a").journal.pop());
    let count = |fixture: &Fixture| -> i64 {
        fixture.raw().query_row("SELECT COUNT(*) FROM stock", [], |row| row.get(0)).unwrap()
    };
    assert_eq!(count(&fixture), 1);
    // The commit is repeated because its answer was lost: the closure does not run again, and the
    // same record is returned.
    let again = seat.transaction(&held, |_| panic!("it ran already"));
    let CommitOutcome::Committed(repeated) = block_on(store.commit(again)).unwrap() else { panic!("fenced") };
    assert_eq!(repeated.transacted, committed.transacted);
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_fenced_step_does_not_run() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    let stale = held.clone();
    seat.record(&mut held, vec![step(1)]);
    seat.record(&mut held, vec![step(2)]);
    let commit = seat.transaction(&stale, |_| panic!("it has no right to run"));
    assert!(matches!(block_on(store.commit(commit)).unwrap(), CommitOutcome::Fenced(_)));
}

#[test]
fn what_a_step_may_not_do_fails_in_the_step_and_leaves_no_trace() {
    let fixture = Fixture::new();
    let store = fixture.open();
    fixture.raw().execute_batch("CREATE TABLE stock (item TEXT UNIQUE)").unwrap();
    let seat = fixture.seat(&store);
    let forbidden = [
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT mine",
        "RELEASE abide_operation",
        "PRAGMA synchronous = OFF",
        "PRAGMA user_version = 7",
        "ATTACH ':memory:' AS other",
        "DROP TABLE abide_journal",
        "DELETE FROM abide_executions",
        "UPDATE Abide_Executions SET epoch = 99",
        "SELECT body FROM abide_journal",
        "ALTER TABLE abide_journal RENAME TO mine",
        "CREATE TRIGGER mine AFTER INSERT ON abide_journal BEGIN DELETE FROM stock; END",
        "CREATE INDEX mine ON abide_journal (seq)",
        "VACUUM",
        "CREATE TEMP TABLE secret (x)",
        "CREATE TEMP TABLE abide_executions (x)",
        "CREATE TEMP VIEW stock AS SELECT 1",
        "CREATE TEMP TRIGGER mine AFTER INSERT ON stock BEGIN SELECT 1; END",
        "CREATE TABLE temp.secret (x)",
        "CREATE TABLE abide_mine (x)",
        "CREATE VIEW abide_mine AS SELECT 1",
        "CREATE INDEX abide_mine ON stock (item)",
        "CREATE TRIGGER abide_mine AFTER INSERT ON stock BEGIN SELECT 1; END",
        "CREATE VIEW mine AS SELECT body FROM abide_journal; SELECT body FROM mine",
        "DROP INDEX abide_executions_place",
        "ALTER TABLE abide_sessions ADD COLUMN mine",
        "ANALYZE abide_executions",
        "ANALYZE stock; INSERT INTO sqlite_stat1 VALUES ('abide_executions', 'abide_executions_place', '1 1 1')",
        "ANALYZE stock; UPDATE sqlite_stat1 SET tbl = 'abide_executions'",
    ];
    for (nth, text) in forbidden.into_iter().enumerate() {
        let id = format!("{nth}");
        let held = seat.born(&id);
        let commit = seat.transaction(&held, move |tx| {
            tx.execute("INSERT INTO stock VALUES ('nail')", [])?;
            tx.execute_batch(text)
        });
        assert!(matches!(block_on(store.commit(commit)).unwrap(), CommitOutcome::Committed(_)), "{text}");
        let last = look(&store, &id).journal.pop().unwrap().entry().unwrap();
        let said = format!("{last:?}");
        assert!(!said.contains("Payload(ok)"), "{text} was allowed");
        let left: i64 = fixture.raw().query_row("SELECT COUNT(*) FROM stock", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 0, "{text}");
    }
    // The rules end with the step.
    seat.retire();
    assert!(store.verify().unwrap().is_sound());
}

/// The engine must hear of it: without the refusal it would run the same code again, and again.
#[test]
fn a_refused_step_of_a_first_stretch_leaves_the_start_and_is_told() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let at = fixture.clock.now();
    let (execution, _) = Execution::start(address("a"), flow(), at);
    let lease = Lease { session: seat.session, epoch: Epoch(1) };
    let unborn = Held { key: ExecutionKey(0), lease, version: Version(0), execution };
    let commit = seat
        .transaction(&unborn, |tx| tx.execute_batch("CREATE VIEW mine AS SELECT body FROM abide_journal"));
    let stretch = Some(Box::new(Stretch { at, commit: Some(commit) }));
    let submit = Submit { messages: vec![start("a")], born_to: Some(seat.session), alone: true, stretch };
    let submitted = block_on(store.submit(submit)).unwrap();
    let [Submitted::Begun(key, Err(Refusal::Unsupported { .. }))] = submitted[..] else {
        panic!("{submitted:?}")
    };
    let found = look(&store, "a");
    assert_eq!((found.key, found.journal.len(), found.lease.version), (key, 1, Version(0)));
    assert_eq!(found.lease.session, Some(seat.session));
    assert_eq!(store.verify().unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_step_may_change_the_schema_of_its_own_tables() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let allowed = [
        "CREATE TABLE stock (item TEXT, n INTEGER)",
        "CREATE INDEX stock_item ON stock (item)",
        "INSERT INTO stock VALUES ('nail', 1), ('screw', 2)",
        "ALTER TABLE stock ADD COLUMN place TEXT NOT NULL DEFAULT 'shelf'",
        "ALTER TABLE stock RENAME COLUMN n TO amount",
        "ALTER TABLE stock RENAME TO stocks",
        "CREATE VIEW few AS SELECT item FROM stocks WHERE amount < 2",
        "SELECT item FROM few",
        "CREATE TABLE log (item TEXT)",
        "CREATE TRIGGER logged AFTER INSERT ON stocks BEGIN INSERT INTO log VALUES (NEW.item); END",
        "INSERT INTO stocks (item, amount) VALUES ('nut', 3)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT COUNT(*) FROM n",
        "SELECT item FROM stocks ORDER BY amount",
        "REINDEX stocks",
        "DROP VIEW few",
        "ALTER TABLE stocks DROP COLUMN place",
        "DROP INDEX stock_item",
        "ANALYZE stocks",
        "DROP TABLE stocks",
        "CREATE TABLE numbered (id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT)",
        "INSERT INTO numbered (item) VALUES ('nail'), ('screw')",
        "UPDATE sqlite_sequence SET seq = 9 WHERE name = 'numbered'",
        "INSERT INTO numbered (item) VALUES ('nut') RETURNING CASE id WHEN 10 THEN id ELSE abs(-9223372036854775808) END",
        "ALTER TABLE numbered RENAME TO counted",
        "DROP TABLE counted",
    ];
    for (nth, text) in allowed.into_iter().enumerate() {
        let id = format!("{nth}");
        let held = seat.born(&id);
        let commit = seat.transaction(&held, move |tx| tx.execute_batch(text));
        assert!(matches!(block_on(store.commit(commit)).unwrap(), CommitOutcome::Committed(_)), "{text}");
        let last = look(&store, &id).journal.pop().unwrap().entry().unwrap();
        assert!(format!("{last:?}").contains("Payload(ok)"), "{text}: {last:?}");
    }
}

#[test]
fn a_step_cannot_take_a_name_of_abides_own() {
    let fixture = Fixture::new();
    let store = fixture.open();
    fixture.raw().execute_batch("CREATE TABLE stock (item TEXT); CREATE TABLE other (item TEXT)").unwrap();
    let seat = fixture.seat(&store);
    let rename = |id: &str, text: &'static str| {
        let held = seat.born(id);
        block_on(store.commit(seat.transaction(&held, move |tx| tx.execute_batch(text))))
    };
    let error = rename("a", "ALTER TABLE stock RENAME TO Abide_stock").unwrap_err();
    assert!(error.to_string().contains("a name that begins with"), "{error}");
    assert_eq!(stock(&fixture), 0, "it still has its name");
    let outcome = rename("b", "ALTER TABLE other RENAME TO another");
    assert!(matches!(outcome, Ok(CommitOutcome::Committed(_))), "{outcome:?}");
}

/// SQLite's bookkeeping for user tables belongs to the user, so abide must not depend on it.
#[test]
fn a_step_cannot_use_up_the_numbers_of_sessions() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let held = seat.born("a");
    let commit = seat.transaction(&held, |tx| {
        tx.execute_batch("CREATE TABLE mine (id INTEGER PRIMARY KEY AUTOINCREMENT)")?;
        tx.execute_batch(
            "UPDATE sqlite_sequence SET seq = 9223372036854775807;
             INSERT INTO sqlite_sequence VALUES ('abide_sessions', 9223372036854775807)",
        )
    });
    block_on(store.commit(commit)).unwrap();
    fixture.seat(&store);
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_step_that_ends_the_transaction_fails_alone() {
    let fixture = Fixture::new();
    let store = fixture.open();
    fixture
        .raw()
        .execute_batch("CREATE TABLE stock (item TEXT UNIQUE); INSERT INTO stock VALUES ('nail')")
        .unwrap();
    let seat = fixture.seat(&store);
    let held = seat.born("a");
    let other = fixture.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let queue = |id: &str| {
        store.submit(Submit { messages: vec![start(id)], born_to: None, alone: false, stretch: None })
    };
    let before = queue("before");
    let ends = store.commit(seat.transaction(&held, |tx| {
        tx.execute("INSERT OR ROLLBACK INTO stock VALUES ('nail')", []).map(|_| ())
    }));
    let after = queue("after");
    drop(other);
    block_on(before).unwrap();
    let error = block_on(ends).unwrap_err();
    assert!(error.to_string().contains("ended the transaction"), "{error}");
    block_on(after).unwrap();
    assert_eq!(look(&store, "a").lease.version, held.version, "nothing was recorded");
    for id in ["before", "after"] {
        assert_eq!(look(&store, id).journal.len(), 1);
    }
    assert!(store.verify().unwrap().is_sound());
}

/// Otherwise, each remaining statement of the closure would run as a transaction of its own.
#[test]
fn nothing_is_written_after_a_statement_has_ended_the_transaction() {
    const ENDS: &str = "INSERT OR ROLLBACK INTO stock VALUES ('nail')";
    const AFTER: &str = "INSERT INTO led VALUES ('after')";
    let fixture = Fixture::new();
    let store = fixture.open();
    let tables = "CREATE TABLE led (what TEXT);
                  CREATE TABLE stock (item TEXT UNIQUE);
                  INSERT INTO stock VALUES ('nail');
                  CREATE TABLE trap (x);
                  CREATE TRIGGER sprung AFTER INSERT ON trap BEGIN SELECT RAISE(ROLLBACK, 'sprung'); END";
    fixture.raw().execute_batch(tables).unwrap();
    let seat = fixture.seat(&store);
    fn ended(tx: &StepConnection) {
        assert!(tx.execute(ENDS, []).is_err());
    }
    let closures: [(&str, Closure); 7] = [
        ("execute", |tx| {
            ended(tx);
            tx.execute(AFTER, []).map(|_| ())
        }),
        ("a trigger", |tx| {
            assert!(tx.execute("INSERT INTO trap VALUES (1)", []).is_err());
            tx.execute(AFTER, []).map(|_| ())
        }),
        ("a batch", |tx| {
            ended(tx);
            tx.execute_batch("INSERT INTO led VALUES ('after'); CREATE TABLE more (x)")
        }),
        ("prepared before", |tx| {
            let mut after = tx.prepare(AFTER)?;
            ended(tx);
            after.execute([]).map(|_| ())
        }),
        ("rows that are not yet asked for", |tx| {
            let mut after = tx.prepare("INSERT INTO led VALUES ('after') RETURNING what")?;
            let rows = after.query_map([], |_| Ok(()))?;
            ended(tx);
            assert_eq!(rows.filter(Result::is_ok).count(), 0);
            Ok(())
        }),
        ("a parameter that ends it", |tx| {
            let ends = std::iter::once_with(|| {
                ended(tx);
                "after"
            });
            tx.execute("INSERT INTO led VALUES (?1)", rusqlite::params_from_iter(ends)).map(|_| ())
        }),
        ("no word of any of it", |tx| {
            ended(tx);
            let _ = tx.query_row("INSERT INTO led VALUES ('after') RETURNING what", [], |_| Ok(()));
            let _ = tx.execute_batch(AFTER);
            Ok(())
        }),
    ];
    for (what, closure) in closures {
        let held = seat.born(what);
        let commit = seat.transaction(&held, move |tx| {
            tx.execute("INSERT INTO led VALUES ('before')", [])?;
            closure(tx)
        });
        let error = block_on(store.commit(commit)).unwrap_err();
        assert!(error.to_string().contains("ended the transaction"), "{what}: {error}");
        let left: i64 = fixture.raw().query_row("SELECT COUNT(*) FROM led", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 0, "{what} left a trace");
    }
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_panic_in_a_step_costs_nobody_else_anything() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    let commit = seat.transaction(&held, |_| panic!("on purpose"));
    assert!(matches!(block_on(store.commit(commit)), Err(Error::Refused(_))));
    seat.record(&mut held, vec![step(1)]);
    assert_eq!(look(&store, "a").journal.len(), 2);
}

type Closure = fn(&StepConnection) -> rusqlite::Result<()>;

/// Waits inside a closure, like a call to a slow service.
fn dawdle(duration: Duration) {
    let (_sender, silence) = mpsc::channel::<()>();
    assert!(silence.recv_timeout(duration).is_err());
}

/// No heartbeat gets past a closure that keeps the writer. The failure has to be recorded after it,
/// under the same lease.
#[test]
fn a_session_does_not_expire_behind_its_own_closure() {
    // In quarters of the time to live: since the last sign of life, and the length of the closure.
    for (before, length) in [(0, 16), (3, 2), (2, 3)] {
        let fixture = Fixture::new();
        let store = fixture.open_with(abide_sqlite::Options { transaction_ms_max: 50, ..Default::default() });
        let seat = fixture.seat(&store);
        let mut held = seat.born("a");
        let (clock, quarter) = (fixture.clock.clone(), worker().ttl / 4);
        clock.advance(quarter * before);
        let commit = seat.transaction(&held, move |_| {
            clock.advance(quarter * length);
            dawdle(Duration::from_millis(60));
            Ok(())
        });
        let error = block_on(store.commit(commit)).unwrap_err();
        assert!(error.to_string().contains("took longer than transaction_ms_max"), "{error}");
        seat.record(&mut held, vec![step(1)]);
        assert!(fixture.seat(&fixture.open()).claim(true).leased.is_empty(), "it is held");
    }
}

#[test]
fn a_step_that_takes_too_long_fails_whatever_it_says() {
    const LIMIT: Duration = Duration::from_millis(50);
    const ENDLESS: &str =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n";
    let fixture = Fixture::new();
    let store = fixture.open_with(abide_sqlite::Options { transaction_ms_max: 50, ..Default::default() });
    fixture.raw().execute_batch("CREATE TABLE stock (item TEXT)").unwrap();
    let seat = fixture.seat(&store);
    let closures: [(&str, Closure); 4] = [
        ("one endless statement", |tx| tx.query_row(ENDLESS, [], |_| Ok(()))),
        ("one endless statement, and no word of it", |tx| {
            let _ = tx.query_row(ENDLESS, [], |_| Ok(()));
            Ok(())
        }),
        ("short statements without end", |tx| {
            loop {
                tx.execute("INSERT INTO stock VALUES ('nail')", [])?;
            }
        }),
        ("no statement", |tx| {
            tx.execute("INSERT INTO stock VALUES ('nail')", [])?;
            dawdle(LIMIT * 2);
            Ok(())
        }),
    ];
    for (what, closure) in closures {
        let mut held = seat.born(what);
        let error = block_on(store.commit(seat.transaction(&held, closure))).unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{what}: {error:?}");
        assert!(error.to_string().contains("took longer than transaction_ms_max, 50 ms"), "{what}: {error}");
        assert_eq!(stock(&fixture), 0, "{what} left a trace");
        seat.record(&mut held, vec![step(1)]);
    }
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_broken_foreign_key_fails_in_the_step() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let tables = "CREATE TABLE mother (id INTEGER PRIMARY KEY);
                  CREATE TABLE child (mother INTEGER REFERENCES mother (id))";
    fixture.raw().execute_batch(tables).unwrap();
    let seat = fixture.seat(&store);
    let held = seat.born("a");
    let commit = seat.transaction(&held, |tx| tx.execute("INSERT INTO child VALUES (99)", []).map(|_| ()));
    assert!(matches!(block_on(store.commit(commit)).unwrap(), CommitOutcome::Committed(_)));
    let last = look(&store, "a").journal.pop().unwrap().entry().unwrap();
    assert!(format!("{last:?}").contains("FOREIGN KEY constraint failed"), "{last:?}");
}

/// Only COMMIT finds the violation, and the whole batch shares it.
#[test]
fn a_deferred_foreign_key_that_stays_broken_fails_alone() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let tables = "CREATE TABLE stock (item TEXT);
                  CREATE TABLE mother (id INTEGER PRIMARY KEY);
                  CREATE TABLE child (mother INTEGER REFERENCES mother (id) DEFERRABLE INITIALLY DEFERRED)";
    fixture.raw().execute_batch(tables).unwrap();
    let seat = fixture.seat(&store);
    let (first, guilty, mut innocent) = (seat.born("first"), seat.born("guilty"), seat.born("innocent"));
    let gate = Gate::shut(&store, &seat, &first);
    gate.entered.recv().unwrap();
    let mut bad = seat.transaction(&guilty, |tx| tx.execute("INSERT INTO child VALUES (99)", []).map(|_| ()));
    bad.alone = false;
    let mut good = seat.draft(&mut innocent, vec![step(1)]);
    good.alone = false;
    let (bad, good) = (store.commit(bad), store.commit(good));
    gate.open();
    let error = block_on(bad).unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    assert!(error.to_string().contains("FOREIGN KEY constraint failed"), "{error}");
    assert!(matches!(block_on(good), Ok(CommitOutcome::Committed(_))));
    assert_eq!(look(&store, "guilty").journal.len(), 1);
    let left: i64 = fixture.raw().query_row("SELECT COUNT(*) FROM child", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

/// Blocks the writer inside a transaction step, so that later operations share one transaction.
struct Gate {
    entered: mpsc::Receiver<()>,
    leave: mpsc::Sender<()>,
    answer: Answer<CommitOutcome>,
}

impl Gate {
    fn shut(store: &Arc<SqliteStore>, seat: &Seat, held: &Held) -> Self {
        let (enter, entered) = mpsc::channel();
        let (leave, left) = mpsc::channel();
        let ends = Mutex::new((enter, left));
        let mut commit = seat.transaction(held, move |_| {
            let ends = ends.lock().unwrap();
            ends.0.send(()).unwrap();
            ends.1.recv().unwrap();
            Ok(())
        });
        commit.alone = false;
        Self { entered, leave, answer: store.commit(commit) }
    }

    fn open(self) {
        self.leave.send(()).unwrap();
        assert!(matches!(block_on(self.answer), Ok(CommitOutcome::Committed(_))));
    }
}

fn stock(fixture: &Fixture) -> i64 {
    fixture.raw().query_row("SELECT COUNT(*) FROM stock", [], |row| row.get(0)).unwrap()
}

#[test]
fn an_innocent_transaction_is_run_again_when_a_neighbour_fails() {
    let fixture = Fixture::new();
    let store = fixture.open();
    fixture.raw().execute_batch("CREATE TABLE stock (item TEXT UNIQUE)").unwrap();
    let seat = fixture.seat(&store);
    let (first, innocent, mut guilty) = (seat.born("first"), seat.born("innocent"), seat.born("guilty"));
    let gate = Gate::shut(&store, &seat, &first);
    gate.entered.recv().unwrap();
    let run_count = Arc::new(AtomicU32::new(0));
    let counted = run_count.clone();
    let mut good = seat.transaction(&innocent, move |tx| {
        counted.fetch_add(1, Ordering::Relaxed);
        tx.execute("INSERT INTO stock VALUES ('nail')", []).map(|_| ())
    });
    good.alone = false;
    let mut bad = seat.draft(&mut guilty, vec![step(1)]);
    Arc::get_mut(&mut bad.changes).unwrap().consumed.push(MessageId::new("never came"));
    bad.alone = false;
    let (good, bad) = (store.commit(good), store.commit(bad));
    gate.open();
    assert!(matches!(block_on(bad), Err(Error::Corrupt { .. })));
    let Ok(CommitOutcome::Committed(committed)) = block_on(good) else {
        panic!("it failed with its neighbour")
    };
    assert_eq!(run_count.load(Ordering::Relaxed), 2, "they shared a transaction, which was rolled back");
    assert_eq!(stock(&fixture), 1, "its writes happen once");
    assert_eq!(committed.transacted, look(&store, "innocent").journal.pop());
    assert!(store.verify().unwrap().is_sound());
}
