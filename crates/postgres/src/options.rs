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
    /// The most connections, besides the one that listens.
    pub connection_count_max: usize,
    /// The most batches of submits and commits that are written at the same time.
    pub writer_count_max: usize,
    /// The most operations in one batch.
    pub batch_count_max: usize,
    /// How often an operation is tried that others disturb, before it fails as busy.
    pub attempt_count_max: u32,
    /// How long the opening of a connection may take.
    pub connect_ms_max: u64,
    /// The most notices that wait for a session. On overflow it only learns that something changed.
    pub notice_count_max: usize,
    /// How long a transaction step may run, its SQL included.
    pub transaction_ms_max: u64,
    /// The most transaction steps that run at the same time. Each keeps a connection.
    pub transaction_count_max: usize,
    /// How often the process looks for changes whose notices were lost. A claim of an idle engine
    /// is such a look too, and takes the place of one.
    pub poll_ms: u64,
    /// The most executions that one claim looks at for care.
    pub care_count_max: usize,
    /// The most executions that one page of a list looks at.
    pub list_scan_count_max: usize,
    /// Create the schema if it does not exist. Without this, a schema that is missing is refused.
    pub create: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bounds: Bounds::default(),
            page_bounds: PageBounds::default(),
            connection_count_max: 6,
            writer_count_max: 2,
            batch_count_max: 512,
            attempt_count_max: 20,
            connect_ms_max: 5_000,
            notice_count_max: 65_536,
            transaction_ms_max: 5_000,
            transaction_count_max: 3,
            poll_ms: 2_000,
            care_count_max: 10_000,
            list_scan_count_max: 20_000,
            create: true,
        }
    }
}

impl Options {
    /// Returns how many transaction steps may run at the same time: others need a connection too.
    pub(crate) fn transaction_count(&self) -> usize {
        self.transaction_count_max.min(self.connection_count_max.saturating_sub(1)).max(1)
    }
}
