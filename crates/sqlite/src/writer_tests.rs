//! Tests of the writer.

use std::collections::HashMap;
use std::time::SystemTime;

use abide_core::{Body, Payload, SessionId, Tally};
use abide_store::Error;
use abide_store::conformance::{TestClock, block_on};
use abide_store::{Agreement, Beat, Claim, Heartbeat, Notice, Retire, Store, Submitted};

use super::*;
use crate::fixture::{inside, message, name, pair, register, start, start_of, submit, try_submit};
use crate::job::Operation;
use crate::lockfile::{self, Absences, Sign};
use crate::schema::PAGE_BYTES;
use crate::stepped::Stepped;
use crate::{Options, SqliteStore};

/// Only the poll thread looks here: this store writes nothing.
#[test]
fn what_others_write_while_there_is_no_connection_is_news() {
    let (_folder, ours, theirs) = pair();
    let session = register(&ours, "default");
    let writes = ours.writes().unwrap();
    let mut writer = writes.lock_writer();
    writer.look_up().unwrap();
    writer.give_up();
    start(&theirs, "a");
    drop(writer);
    assert_eq!(block_on(ours.wait(session)).unwrap(), [Notice::Changed]);
}

/// With its last connection SQLite also copies and deletes the log, which shows here.
#[test]
fn a_connection_that_is_given_up_keeps_the_index_of_the_log_until_the_next_one_is_attached() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let log = crate::wal::log_path(&path);
    let store = SqliteStore::open(&path, TestClock::new(), Options::default()).unwrap();
    start(&store, "a");
    let mut writer = store.writes().unwrap().lock_writer();
    writer.give_up();
    assert!(log.exists());
    writer.look_up().unwrap();
    assert!(writer.former.is_none() && log.exists());
    drop(writer);
    store.close();
    assert!(!log.exists(), "a store that is closed keeps nothing");
}

/// Another program has kept the log from being deleted. It does not know whether the log was
/// synced.
#[test]
fn p2_a_log_that_nobody_of_us_was_attached_to_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let store = SqliteStore::open(&path, TestClock::new(), Options::default()).unwrap();
    start(&store, "a");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.query_row("SELECT count(*) FROM abide_meta", [], |_| Ok(())).unwrap();
    let mut writer = store.writes().unwrap().lock_writer();
    // A connection that is inside a transaction is closed at once.
    writer.connection().unwrap().execute_batch("BEGIN IMMEDIATE").unwrap();
    writer.give_up();
    let log = std::fs::OpenOptions::new().append(true).open(crate::wal::log_path(&path)).unwrap();
    log.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    writer.look_up().unwrap();
    assert_ne!(log.metadata().unwrap().modified().unwrap(), SystemTime::UNIX_EPOCH);
}

#[test]
fn a_session_that_has_ended_leaves_nothing_behind() {
    let (folder, ours, _theirs) = pair();
    let session = register(&ours, "default");
    let claim = Claim { session, request: 1, slots: 9, care_slots: 9, with_mail: false, sweep: false };
    block_on(ours.claim(claim)).unwrap();
    let shared = ours.writes().unwrap().lock_writer().shared.clone();
    assert!(!shared.absences.lock().unwrap().is_gone(session, Sign::Nothing, shared.stopwatch.now()));
    retire(&ours, session).unwrap();
    assert_eq!(*shared.requests.lock().unwrap(), HashMap::new());
    assert_eq!(format!("{:?}", shared.absences.lock().unwrap()), format!("{:?}", Absences::default()));
    assert_eq!(lockfile::sessions(&folder.path().join("a.db")).unwrap(), []);
}

/// Makes the next COMMIT happen, while SQLite reports that it did not.
fn deny_next_commit(store: &SqliteStore) {
    fn fail(_: &rusqlite::hooks::Wal, _: i32) -> rusqlite::Result<()> {
        Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR), None))
    }
    let writer = store.writes().unwrap().lock_writer();
    writer.connection().unwrap().wal_hook(Some(fail));
}

/// Makes the next COMMIT fail without a word from SQLite on whether it happened.
fn fail_next_commit(store: &SqliteStore) {
    use rusqlite::hooks::{AuthAction, AuthContext, Authorization, TransactionOperation};
    let refuse = |context: AuthContext<'_>| match context.action {
        AuthAction::Transaction { operation: TransactionOperation::Unknown } => Authorization::Deny,
        _ => Authorization::Allow,
    };
    let writer = store.writes().unwrap().lock_writer();
    writer.connection().unwrap().authorizer(Some(refuse)).unwrap();
}

fn is_unknown<T>(answer: &abide_store::Result<T>) -> bool {
    matches!(answer, Err(Error::Indeterminate { .. }))
}

fn retire(store: &SqliteStore, session: SessionId) -> abide_store::Result<()> {
    block_on(store.retire(Retire { session, reason: "done".to_owned() }))
}

#[test]
fn a_commit_of_unknown_outcome_is_told_as_such() {
    let (_folder, ours, _theirs) = pair();
    deny_next_commit(&ours);
    assert!(is_unknown(&try_submit(&ours, start_of("a"))));
    let again = try_submit(&ours, start_of("a")).unwrap();
    assert!(matches!(again[..], [Submitted::Attached(_)]), "it has happened: {again:?}");
}

#[test]
fn nothing_takes_effect_before_its_commit_has_happened() {
    let (_folder, ours, _theirs) = pair();
    let session = register(&ours, "default");
    fail_next_commit(&ours);
    assert!(is_unknown(&retire(&ours, session)));
    assert_eq!(block_on(ours.wait(session)).unwrap(), [Notice::Changed], "it lives");
    assert!(retire(&ours, session).is_ok());
    assert!(block_on(ours.wait(session)).is_err(), "it has ended");
}

/// The answer to a claim is lost, and the claim is repeated. From then on both sides count the
/// same.
#[test]
fn what_is_held_is_counted_anew_after_a_commit_of_unknown_outcome() {
    let (_folder, ours, _theirs) = pair();
    let session = register(&ours, "default");
    start(&ours, "a");
    let mut believed = Tally::default();
    let beat = |believed: &mut Tally| {
        let digest = Some(believed.beat());
        block_on(ours.heartbeat(Beat { digest, ..Beat::of(session) })).unwrap()
    };
    beat(&mut believed);
    deny_next_commit(&ours);
    let claim = Claim { session, request: 1, slots: 9, care_slots: 9, with_mail: false, sweep: false };
    assert!(is_unknown(&block_on(ours.claim(claim.clone()))));
    let leased = block_on(ours.claim(claim)).unwrap().leased;
    believed.give(leased[0].key.0, leased[0].lease.epoch);
    beat(&mut believed);
    beat(&mut believed);
    beat(&mut believed);
    let Heartbeat::Refreshed { leases, .. } = beat(&mut believed) else { panic!("it lives") };
    assert_eq!(leases, Agreement::Agreed);
}

struct Panics;

impl Operation for Panics {
    type Output = ();
    const WHAT: &'static str = "panic";

    fn apply(&mut self, _: &mut Batch<'_>) -> Result<(), crate::error::Stop> {
        panic!("on purpose")
    }
}

#[test]
fn an_operation_that_panics_is_not_told_as_a_store_that_is_closed() {
    let (_folder, ours, _theirs) = pair();
    for scheduling in [Scheduling::Queued, Scheduling::Alone, Scheduling::Urgent] {
        let outcome = block_on(ours.write(Panics, scheduling));
        assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{scheduling:?}: {outcome:?}");
    }
    start(&ours, "a");
    ours.close();
    assert!(matches!(block_on(ours.write(Panics, Scheduling::Queued)), Err(Error::Closed)));
}

#[test]
fn after_a_panic_everything_is_news() {
    let (_folder, ours, _theirs) = pair();
    let session = register(&ours, "default");
    let writes = ours.writes().unwrap();
    run(writes.lock_writer(), |writer| {
        writer.begin().unwrap();
        panic!("on purpose");
    });
    assert_eq!(block_on(ours.wait(session)).unwrap(), [Notice::Changed]);
    start(&ours, "a");
}

/// Nobody could write any longer: an open transaction cannot begin a second time.
#[test]
fn indexes_that_could_not_be_made_anew_leave_no_transaction_open() {
    let (_folder, ours, _theirs) = pair();
    let mut writer = ours.writes().unwrap().lock_writer();
    writer.fate = Fate::Unwritten;
    assert!(!writer.mend());
    writer.fate = Fate::Committed;
    drop(writer);
    start(&ours, "a");
}

/// SQLite rolls back on its own when a read fails. An operation that still believes itself in a
/// transaction writes nothing after that.
#[test]
fn p3_nothing_is_written_once_sqlite_has_ended_the_transaction() {
    let (_folder, ours, _theirs) = pair();
    start(&ours, "a");
    for statement in ["UPDATE abide_executions SET epoch = 7", "SELECT epoch FROM abide_executions"] {
        let outcome = inside(&ours, move |batch| {
            batch.connection.execute_batch("ROLLBACK")?;
            Ok(batch.connection.execute_batch(statement)?)
        });
        assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{statement}: {outcome:?}");
    }
    let epoch = |batch: &mut Batch<'_>| {
        Ok(batch
            .connection
            .query_row("SELECT epoch FROM abide_executions", [], |row| row.get::<_, i64>(0))?)
    };
    assert_eq!(inside(&ours, epoch).unwrap(), 0);
    start(&ours, "b");
}

/// Fails once, with a code of SQLite's.
struct FailsOnce {
    code: Option<i32>,
    /// Whether it can do without the object that made it fail.
    learns: bool,
}

impl Operation for FailsOnce {
    type Output = ();
    const WHAT: &'static str = "test";

    fn apply(&mut self, _: &mut Batch<'_>) -> Result<(), crate::error::Stop> {
        let failed = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        self.code.take().map_or(Ok(()), |code| Err(failed(code).into()))
    }

    fn can_do_without(&mut self) -> bool {
        std::mem::take(&mut self.learns)
    }
}

fn stepped() -> (tempfile::TempDir, Arc<SqliteStore>) {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("a.db"), TestClock::new());
    let store = SqliteStore::stepped(&path, clock, Options::default(), || Duration::ZERO).unwrap();
    (folder, store)
}

/// Only the code that drives the writer rebuilds indexes: that takes long in a large file, and a
/// caller that is alone may be on a thread of its runtime.
#[test]
fn a_caller_that_is_alone_leaves_a_malformed_file_to_the_writer() {
    let (_folder, store) = stepped();
    let fails = FailsOnce { code: Some(rusqlite::ffi::SQLITE_CORRUPT), learns: false };
    let answer = store.write(fails, Scheduling::Alone);
    assert_eq!(store.step(Fate::Committed), Stepped::Done, "it waits for the writer");
    block_on(answer).unwrap();
}

#[test]
fn who_can_do_without_what_failed_is_done_again_also_when_nobody_is_beside_it() {
    for learns in [true, false] {
        let (_folder, store) = stepped();
        let fails = FailsOnce { code: Some(rusqlite::ffi::SQLITE_IOERR_READ), learns };
        let answer = store.write(fails, Scheduling::Queued);
        assert_eq!(store.step(Fate::Committed), Stepped::Done);
        assert_eq!(block_on(answer).is_ok(), learns);
    }
}

/// Returns the first page below the root page of a table or index, and the place of its number in
/// the file.
fn first_child(path: &Path, bytes: &[u8], name: &str) -> (usize, [u8; 4]) {
    let found = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let raw = rusqlite::Connection::open(path).unwrap();
    let root: u32 = raw.query_row(found, [name], |row| row.get(0)).unwrap();
    let begin = (root as usize - 1) * PAGE_BYTES;
    assert!([2, 5].contains(&bytes[begin]), "{name} has pages below its first");
    let at = begin + usize::from(u16::from_be_bytes(bytes[begin + 12..][..2].try_into().unwrap()));
    (at, bytes[at..][..4].try_into().unwrap())
}

/// An index leads to a page of its table. A rebuild of the index would free that page, with
/// everything on it.
#[test]
fn p2_a_worker_makes_nothing_anew_that_leads_to_the_pages_of_a_table() {
    let (folder, ours, theirs) = pair();
    for nth in 0..120 {
        let id = format!("q-{nth}");
        start(&ours, &id);
        for nth in 0..5 {
            let body = Body::Signal { name: name("s"), payload: Payload::from("1") };
            submit(&ours, message(&format!("messageid{nth}"), &id, body));
        }
    }
    ours.close();
    theirs.close();
    let path = folder.path().join("a.db");
    let raw = || rusqlite::Connection::open(&path).unwrap();
    raw().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let (at, _) = first_child(&path, &bytes, "abide_inbox_ids");
    let (_, leaf) = first_child(&path, &bytes, "abide_inbox");
    bytes[at..][..4].copy_from_slice(&leaf);
    std::fs::write(&path, &bytes).unwrap();
    let count = "SELECT COUNT(*) FROM abide_inbox NOT INDEXED";
    let count = || raw().query_row(count, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count(), 600);
    let store = SqliteStore::stepped(&path, TestClock::new(), Options::default(), || Duration::ZERO).unwrap();
    let fails = FailsOnce { code: Some(rusqlite::ffi::SQLITE_CORRUPT), learns: false };
    let answer = store.write(fails, Scheduling::Queued);
    assert_eq!(store.step(Fate::Committed), Stepped::Done);
    drop(answer);
    store.close();
    assert_eq!(count(), 600, "signals that were taken are gone");
}
