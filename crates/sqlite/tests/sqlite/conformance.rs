//! The conformance table of every store, on a file and in memory.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abide_core::{Bounds, Enqueued};
use abide_sqlite::{Options, SqliteStore, StepConnection};
use abide_store::Store;
use abide_store::conformance::{
    TestClock, UserTable, block_on, bounds, check_all_with, check_intake, differential, differential_bounds,
    page_bounds,
};

/// A user table in the same file.
const TABLE: UserTable = UserTable {
    put: |connection, key, value| {
        let tx = connection_of(connection);
        tx.execute_batch("CREATE TABLE IF NOT EXISTS users_own (key TEXT PRIMARY KEY, value TEXT)").unwrap();
        tx.execute("INSERT OR REPLACE INTO users_own VALUES (?1, ?2)", [key, value]).unwrap();
    },
    get: |connection, key| {
        let tx = connection_of(connection);
        tx.execute_batch("CREATE TABLE IF NOT EXISTS users_own (key TEXT PRIMARY KEY, value TEXT)").unwrap();
        let found = tx.query_rows("SELECT value FROM users_own WHERE key = ?1", [key], |row| row.get(0));
        found.unwrap().pop()
    },
};

fn connection_of(connection: &dyn Any) -> &StepConnection {
    connection.downcast_ref().expect("an SQLite store hands out its connection")
}

fn in_memory(bounds: Bounds) -> impl Fn(Arc<TestClock>) -> Arc<dyn Store> {
    move |clock| {
        let options = Options { bounds: bounds.clone(), page_bounds: page_bounds(), ..Options::default() };
        SqliteStore::in_memory(clock, options).expect("a database in memory can be opened")
    }
}

fn in_files(folder: &tempfile::TempDir, bounds: Bounds) -> impl Fn(Arc<TestClock>) -> Arc<dyn Store> {
    let number = AtomicUsize::new(0);
    move |clock| {
        let path = folder.path().join(format!("{}.db", number.fetch_add(1, Ordering::Relaxed)));
        let options = Options { bounds: bounds.clone(), page_bounds: page_bounds(), ..Options::default() };
        SqliteStore::open(&path, clock, options).expect("a new file can be opened")
    }
}

#[test]
fn a_store_in_memory_passes_every_case() {
    check_all_with(TABLE, in_memory(bounds()));
}

#[test]
fn a_store_in_a_file_passes_every_case() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    check_all_with(TABLE, in_files(&folder, bounds()));
}

#[test]
fn a_store_in_memory_takes_rows_in() {
    check_intake(|clock| {
        let options = Options { bounds: bounds(), page_bounds: page_bounds(), ..Options::default() };
        let store = SqliteStore::in_memory(clock, options).expect("a database in memory can be opened");
        let door = store.clone();
        (store, Box::new(move |rows| block_on(door.enqueue(rows.to_vec())).expect("they can be put")))
    });
}

/// The rows come from a connection of somebody else.
#[test]
fn a_store_in_a_file_takes_rows_in() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let number = AtomicUsize::new(0);
    check_intake(|clock| {
        let path = folder.path().join(format!("{}.db", number.fetch_add(1, Ordering::Relaxed)));
        let options = Options { bounds: bounds(), page_bounds: page_bounds(), ..Options::default() };
        let store = SqliteStore::open(&path, clock, options).expect("a new file can be opened");
        let door = move |rows: &[Enqueued]| {
            let mut theirs = rusqlite::Connection::open(&path).unwrap();
            let tx = theirs.transaction().unwrap();
            rows.iter().try_for_each(|row| abide_sqlite::enqueue(&tx, row)).expect("they can be put");
            tx.commit().unwrap();
        };
        (store, Box::new(door))
    });
}

#[test]
fn random_operations_do_the_same_as_in_the_reference_store() {
    for seed in 0..40 {
        differential(seed, 300, TABLE, in_memory(differential_bounds()));
    }
}

#[test]
fn random_operations_on_a_file_do_the_same_as_in_the_reference_store() {
    for seed in 100..104 {
        let folder = tempfile::tempdir().expect("a folder can be made");
        differential(seed, 200, TABLE, in_files(&folder, differential_bounds()));
    }
}
