//! Every bound of this store, with its name and default.

use abide_core::Bounds;
use abide_store::PageBounds;

/// The settings with which a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bounds on recorded data.
    pub bounds: Bounds,
    /// Bounds on inboxes and claims.
    pub page_bounds: PageBounds,
    /// How long an operation waits for other writing processes before it fails as busy.
    pub busy_ms_max: u64,
    /// The most operations that wait for the writer. Further ones wait in their callers.
    pub queue_count_max: usize,
    /// The most operations in one transaction.
    pub batch_count_max: usize,
    /// The most connections, and threads, that read.
    pub reader_count_max: usize,
    /// The size to which the write-ahead log is extended before it is needed: overwriting a log
    /// syncs twice as fast as extending it.
    pub wal_bytes_presized: u64,
    /// Size the log when the store is opened, instead of when about a megabyte of it has been used.
    pub wal_presized_at_open: bool,
    /// The size at which the log is written back to the database file and restarted.
    pub wal_bytes_max: u64,
    /// The most notices that wait for a session. On overflow it only learns that something changed.
    pub notice_count_max: usize,
    /// The longest that one transaction step may run.
    pub transaction_ms_max: u64,
    /// The most due timers that one claim makes ready.
    pub due_count_max: usize,
    /// The most unreadable executions that a claim remembers from earlier claims. With more, some
    /// are tried again too soon.
    pub left_out_count_max: usize,
    /// The most executions that one page of a list looks at.
    pub list_scan_count_max: usize,
    /// Create the store if it does not exist. Without this, a file that is missing or has no tables
    /// of abide is refused and left as it is.
    pub create: bool,
    /// Only read: nothing is created, migrated or written.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bounds: Bounds::default(),
            page_bounds: PageBounds::default(),
            busy_ms_max: 5_000,
            queue_count_max: 65_536,
            batch_count_max: 1_024,
            reader_count_max: 4,
            wal_bytes_presized: 64 << 20,
            wal_presized_at_open: false,
            wal_bytes_max: 64 << 20,
            notice_count_max: 65_536,
            transaction_ms_max: 5_000,
            due_count_max: 10_000,
            left_out_count_max: 100_000,
            list_scan_count_max: 20_000,
            create: true,
            read_only: false,
        }
    }
}
