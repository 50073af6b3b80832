//! Indexes anew: all that is in them is in the tables.

use std::time::Duration;

use rusqlite::Connection;

use crate::batch::Batch;
use crate::copies;
use crate::error::Stop;
use crate::job::Operation;
use crate::sql;

/// Indexes are not made anew more often than this: it takes long where there is much, and what it does not help once it does not help again.
pub(crate) const PAUSE: Duration = Duration::from_secs(60);

/// Makes every index anew from its table, inside a transaction; tells those that could not be.
pub(crate) fn rebuild(connection: &Connection) -> Vec<String> {
    let mut failed = remake(connection, &sql::REINDEX);
    failed.extend(rebuild_inbox(connection));
    if failed.is_empty() {
        tracing::warn!("the indexes were not what the tables are, and were made anew");
    } else {
        tracing::error!(?failed, "some indexes cannot be made anew");
    }
    failed
}

/// Indexes are made one by one, because two rows that damage has made alike keep one index from being made and no other.
fn remake(connection: &Connection, statements: &[&str]) -> Vec<String> {
    let made = statements.iter().map(|statement| connection.execute_batch(statement));
    made.filter_map(|done| done.err().map(|error| error.to_string())).collect()
}

/// The same for the inbox, whose indexes may tell what its rows do not tell any more.
fn rebuild_inbox(connection: &Connection) -> Vec<String> {
    // One that cannot be read tells nothing.
    let copies = copies::told(connection).unwrap_or_default();
    if !copies.is_empty() && copies::put_back(connection, &copies).is_ok() {
        return Vec::new();
    }
    remake(connection, &sql::REINDEX_INBOX)
}

/// Makes one index anew, by a statement of [`sql::REINDEX`], or those of the inbox.
pub(crate) enum RebuildWork {
    One(&'static str),
    Inbox,
}

impl Operation for RebuildWork {
    /// Those that could not be.
    type Output = Vec<String>;
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Vec<String>, Stop> {
        batch.readable(|batch| match self {
            Self::One(statement) => Ok(batch.connection.execute_batch(statement).map(|()| Vec::new())?),
            Self::Inbox => {
                batch.caches.inboxes.clear();
                Ok(rebuild_inbox(batch.connection))
            }
        })
    }
}
