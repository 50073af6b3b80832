//! Counts of the work that stores do, for benchmarks: unlike times, they are the same on every
//! machine.
//!
//! They are of the whole process, because a benchmark has one store at a time and does not hold its
//! connections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};

static COUNTS_STATEMENTS: AtomicBool = AtomicBool::new(false);
static STATEMENT_COUNT: AtomicU64 = AtomicU64::new(0);
static SYNC_COUNT: AtomicU64 = AtomicU64::new(0);

/// The syncs of one checkpoint: the log before the pages are copied, the database file after it.
pub(crate) const SYNCS_PER_CHECKPOINT: u64 = 2;

/// The counts since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of statements that connections ran. Only connections of stores that were opened
    /// after [`count_statements`] count.
    pub statements: u64,
    /// The number of syncs: one for each commit that wrote, two for each checkpoint, one for a log
    /// that was found when a store was opened.
    pub syncs: u64,
}

/// Counts the statements of stores that are opened from now on. It costs each statement some
/// instructions.
pub fn count_statements() {
    COUNTS_STATEMENTS.store(true, Ordering::Relaxed);
}

/// Counts no statements of stores that are opened from now on.
pub fn ignore_statements() {
    COUNTS_STATEMENTS.store(false, Ordering::Relaxed);
}

/// Returns the counts.
pub fn counts() -> Counts {
    Counts { statements: STATEMENT_COUNT.load(Ordering::Relaxed), syncs: SYNC_COUNT.load(Ordering::Relaxed) }
}

/// Counts the statements of this connection, if somebody wants that.
pub(crate) fn attach(connection: &Connection) {
    if COUNTS_STATEMENTS.load(Ordering::Relaxed) {
        connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(count_statement));
    }
}

fn count_statement(_: TraceEvent<'_>) {
    STATEMENT_COUNT.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn count_syncs(count: u64) {
    SYNC_COUNT.fetch_add(count, Ordering::Relaxed);
}
