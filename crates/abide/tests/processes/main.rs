//! Real processes, real files, real signals.
//!
//! The test binary starts itself again: a child is this same program with the one test `role`, and
//! an environment variable says what to be. The parent kills, stops and continues its children, and
//! looks into the store without writing to it.

mod busy;
mod chains;
mod clock;
mod effects;
mod failed_syncs;
mod flows;
mod full_disk;
mod idle;
mod kills;
mod lock_files;
mod look;
mod pairs;
mod poison;
mod process;
mod restart;
mod roles;
mod shutdown;
mod stops;
mod unusable;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The entry of a child; otherwise a test that does nothing.
#[test]
fn role() {
    roles::play();
}

static TURN: Mutex<()> = Mutex::new(());

/// Waits for this test's turn: times are measured here, so one test runs at a time.
fn my_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a parent in its turn, on a runtime of its own.
fn in_turn<T>(test: impl Future<Output = T>) -> T {
    let _turn = my_turn();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test)
}
