//! Counts of the work that stores do, for benchmarks: unlike times, they are the same on every
//! machine. They are of the whole process.

use std::sync::atomic::{AtomicU64, Ordering};

static STATEMENT_COUNT: AtomicU64 = AtomicU64::new(0);

/// Returns the number of statements that stores of this process have sent since it began.
pub fn statements() -> u64 {
    STATEMENT_COUNT.load(Ordering::Relaxed)
}

pub(crate) fn count_statement() {
    STATEMENT_COUNT.fetch_add(1, Ordering::Relaxed);
}
