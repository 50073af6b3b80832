//! Indexes anew: all that is in them is in the tables.

use std::time::Duration;

use rusqlite::Connection;

use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::sql;

/// Indexes are not made anew more often than this: it takes long where there is much, and what it does not help once it does not help again.
pub(crate) const PAUSE: Duration = Duration::from_secs(60);

/// Makes every index anew from its table, inside a transaction; tells those that could not be. They are made one by one, because two rows that damage has
/// made alike keep one index from being made and no other.
pub(crate) fn rebuild(connection: &Connection) -> Vec<String> {
    let rebuilt = sql::REINDEX.iter().map(|statement| connection.execute_batch(statement));
    let failed: Vec<String> = rebuilt.filter_map(|done| done.err().map(|error| error.to_string())).collect();
    if failed.is_empty() {
        tracing::warn!("the indexes were not what the tables are, and were made anew");
    } else {
        tracing::error!(?failed, "some indexes cannot be made anew");
    }
    failed
}

/// Makes one index anew, by a statement of [`sql::REINDEX`].
pub(crate) struct RebuildWork(pub(crate) &'static str);

impl Operation for RebuildWork {
    type Output = ();
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<(), Stop> {
        batch.readable(|batch| Ok(batch.connection.execute_batch(self.0)?))
    }
}
