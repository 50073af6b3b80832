//! Opening a store: schemas that are made, and stores that are refused by name.

use abide_core::Namespace;
use abide_postgres::{OpenError, Options, PostgresStore};
use abide_store::conformance::{TestClock, block_on, bounds};
use abide_store::{View, Workers};

use crate::fixture::{Raw, Schema, options, server};

fn complaint(url: &str, options: Options) -> String {
    match PostgresStore::open(url, TestClock::new(), options) {
        Ok(_) => "it was opened".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_schema_is_made_once_and_found_again() {
    let schema = Schema::new();
    for _ in 0..2 {
        schema.open(TestClock::new(), options(bounds()));
    }
}

#[test]
fn two_processes_that_open_an_empty_database_make_one_schema() {
    let schema = Schema::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| schema.open(TestClock::new(), options(bounds())));
        }
    });
}

#[test]
fn a_schema_that_is_missing_is_refused_unless_it_may_be_made() {
    let schema = Schema::new();
    let found = complaint(&schema.url(), Options { create: false, ..options(bounds()) });
    assert!(found.starts_with("there is no schema"), "{found}");
    schema.open(TestClock::new(), options(bounds()));
    schema.open(TestClock::new(), Options { create: false, ..options(bounds()) });
}

#[test]
fn a_newer_schema_is_refused_by_name() {
    let schema = Schema::new();
    schema.open(TestClock::new(), options(bounds()));
    Raw::of(&schema).run("INSERT INTO migrations VALUES (1000)");
    let error = PostgresStore::open(&schema.url(), TestClock::new(), options(bounds()));
    assert!(matches!(error, Err(OpenError::NewerSchema { found: 1_000, .. })));
}

/// A deploy runs two versions of a program side by side.
#[test]
fn a_newer_schema_that_older_programs_understand_is_used() {
    let schema = Schema::new();
    let running = schema.open(TestClock::new(), options(bounds()));
    Raw::of(&schema).run("INSERT INTO migrations VALUES (1000, 1)");
    schema.open(TestClock::new(), options(bounds()));
    // The one that was opened before goes on too.
    let all = Workers { namespace: Namespace::default(), after: None, limit: 10 };
    block_on(running.workers(all)).expect("it works");
    let found = PostgresStore::migrate(&schema.url(), false).expect("there is nothing to do");
    assert_eq!((found.found, found.steps.len()), (1_000, 0));
}

#[test]
fn a_migration_says_what_it_would_do_and_does_it_once() {
    let schema = Schema::new();
    let dry = PostgresStore::migrate(&schema.url(), true).expect("it may be made");
    assert_eq!((dry.found, dry.steps.first()), (0, Some(&"create the tables")));
    let found = complaint(&schema.url(), Options { create: false, ..options(bounds()) });
    assert!(found.starts_with("there is no schema"), "nothing was done: {found}");
    assert_eq!(PostgresStore::migrate(&schema.url(), false).expect("it may be made"), dry);
    let again = PostgresStore::migrate(&schema.url(), false).expect("it is there");
    assert_eq!((again.found, again.steps.len()), (again.known, 0));
    schema.open(TestClock::new(), Options { create: false, ..options(bounds()) });
    Raw::of(&schema).run("INSERT INTO migrations VALUES (1000)");
    let error = PostgresStore::migrate(&schema.url(), true);
    assert!(matches!(error, Err(OpenError::NewerSchema { found: 1_000, .. })));
}

#[test]
fn what_cannot_be_reached_is_refused_by_name() {
    let with = |parameter: &str| {
        let server = server();
        let separator = if server.contains('?') { "&" } else { "?" };
        complaint(&[&server, separator, parameter].concat(), options(bounds()))
    };
    let found = with("shema=typo");
    assert!(found.contains("shema"), "{found}");
    let found = complaint("postgres://nobody@127.0.0.1:1/none", options(bounds()));
    assert!(found.contains("cannot be used"), "{found}");
    let found = with("dbname=no_such_database");
    assert!(found.contains("no_such_database"), "{found}");
}

#[test]
fn a_store_can_be_opened_and_closed_inside_a_runtime() {
    let schema = Schema::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = schema.open(TestClock::new(), options(bounds()));
        store.close();
    });
}
