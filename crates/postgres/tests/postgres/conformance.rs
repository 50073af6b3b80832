//! The conformance table of every store, and random operations.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{panic, thread};

use abide_core::{Bounds, Enqueued};
use abide_postgres::{Intake, Options, PostgresStore, Verification};
use abide_store::Store;
use abide_store::conformance::{
    Case, Subject, TestClock, block_on, bounds, cases, check_intake, differential, differential_bounds,
};

use tokio_postgres::types::ToSql;

use crate::fixture::{Raw, Schema, TABLE, options};

/// How many cases run at a time. Most of a case waits for the disk.
pub(crate) const PARALLEL: usize = 6;

/// Runs one case in a schema of its own. What it leaves must be sound: above all, whatever waits
/// for a message or a timer has a wake.
fn passes(case: &Case, url_of: impl Fn(&Schema) -> String) -> bool {
    let schema = Schema::new();
    let clock = TestClock::new();
    let store = PostgresStore::open(&url_of(&schema), clock.clone(), options(bounds()));
    let store = store.expect("the store can be opened");
    let subject = Subject { store: store.clone(), clock, table: TABLE };
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        (case.run)(&subject);
        assert_eq!(unexpected(verified(&schema)), Vec::<String>::new());
    }));
    store.close();
    println!("{} {}", if outcome.is_ok() { "ok    " } else { "FAILED" }, case.name);
    outcome.is_ok()
}

/// Returns the problems that no case makes on purpose: some set a healthy execution aside.
fn unexpected(found: Verification) -> Vec<String> {
    let aside = "it was set aside because it could not be read, and can be read now";
    found.problems.into_iter().filter(|problem| !problem.ends_with(aside)).collect()
}

/// Verifies a store through a connection of its own: the case may have closed the store.
fn verified(schema: &Schema) -> Verification {
    let store = schema.open(TestClock::new(), options(bounds()));
    let found = block_on(store.verify());
    store.close();
    found.expect("it can be read")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_store_passes_every_case() {
    all_pass(Schema::url);
}

/// Runs all cases in stores with these URLs.
pub(crate) fn all_pass(url_of: impl Fn(&Schema) -> String + Sync) {
    let wanted = std::env::var("ABIDE_TEST_CASE").unwrap_or_default();
    let all: Vec<&Case> = cases().filter(|case| case.name.contains(&wanted)).collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                while let Some(case) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !passes(case, &url_of) {
                        lock(&failed).push(case.name);
                    }
                }
            });
        }
    });
    let failed = lock(&failed);
    assert!(failed.is_empty(), "{} cases failed:\n  {}", failed.len(), failed.join("\n  "));
}

/// The rows come from a connection of somebody else.
#[test]
fn the_store_takes_rows_in() {
    check_intake(|clock| {
        let schema = Schema::new();
        let store = schema.open(clock, options(bounds()));
        let intake = Intake::of(&schema.url()).expect("it names a schema");
        let door = move |rows: &[Enqueued]| {
            let mut raw = Raw::of(&schema);
            raw.run("BEGIN");
            for Enqueued { id, namespace, verb, execution, name, input, options, sender } in rows {
                let parameters: [&(dyn ToSql + Sync); 8] =
                    [id, namespace, verb, execution, name, input, options, sender];
                raw.query(intake.statement(), &parameters);
            }
            raw.run("COMMIT");
        };
        (store, Box::new(door))
    });
}

/// A claim that takes leases from the dead, and one that meets damage, use no second connection: it
/// would wait for itself.
#[test]
fn one_connection_is_enough() {
    let takeovers = cases().filter(|case| case.name.contains("sweep") || case.name.contains("expired"));
    for case in takeovers {
        let schema = Schema::new();
        let clock = TestClock::new();
        let options = Options { connection_count_max: 1, ..options(bounds()) };
        let store: Arc<dyn Store> = schema.open(clock.clone(), options);
        (case.run)(&Subject { store: store.clone(), clock, table: TABLE });
        store.close();
    }
}

fn in_schema(schema: &Schema, bounds: Bounds) -> impl Fn(Arc<TestClock>) -> Arc<dyn Store> {
    move |clock| schema.open(clock, options(bounds.clone()))
}

#[test]
fn random_operations_do_the_same_as_in_the_reference_store() {
    let from: u64 = std::env::var("ABIDE_TEST_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    for seed in from..from + 8 {
        let schema = Schema::new();
        differential(seed, 300, TABLE, in_schema(&schema, differential_bounds()));
    }
}
