//! What every store must do, on a file and in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abide_core::Limits;
use abide_sqlite::{Options, SqliteStore};
use abide_store::Store;
use abide_store::conformance::{TestClock, bounds, check_all, differential, differential_limits, limits};

fn in_memory(limits: Limits) -> impl Fn(Arc<TestClock>) -> Arc<dyn Store> {
    move |clock| {
        let options = Options { limits: limits.clone(), bounds: bounds(), ..Options::default() };
        SqliteStore::in_memory(clock, options).expect("a database in memory can be opened")
    }
}

fn in_files(folder: &tempfile::TempDir, limits: Limits) -> impl Fn(Arc<TestClock>) -> Arc<dyn Store> {
    let number = AtomicUsize::new(0);
    move |clock| {
        let path = folder.path().join(format!("{}.db", number.fetch_add(1, Ordering::Relaxed)));
        let options = Options { limits: limits.clone(), bounds: bounds(), ..Options::default() };
        SqliteStore::open(&path, clock, options).expect("a new file can be opened")
    }
}

#[test]
fn a_store_in_memory_passes_every_case() {
    check_all(in_memory(limits()));
}

#[test]
fn a_store_in_a_file_passes_every_case() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    check_all(in_files(&folder, limits()));
}

#[test]
fn random_operations_do_the_same_as_in_the_reference_store() {
    for seed in 0..40 {
        differential(seed, 300, in_memory(differential_limits()));
    }
}

#[test]
fn random_operations_on_a_file_do_the_same_as_in_the_reference_store() {
    for seed in 100..104 {
        let folder = tempfile::tempdir().expect("a folder can be made");
        differential(seed, 200, in_files(&folder, differential_limits()));
    }
}
