//! Indexes anew: all that is in them is in the tables.

use std::time::Duration;

use rusqlite::Connection;

use crate::batch::Batch;
use crate::copies::{self, Copy};
use crate::error::Stop;
use crate::job::Operation;
use crate::sql;

/// Indexes are not made anew more often than this: it takes long where there is much, and what it does not help once it does not help again.
pub(crate) const PAUSE: Duration = Duration::from_secs(60);

/// What SQLite says of a page that two tables or indexes lead to, if there is one. Whatever empties one of them then gives a page of the other back, with all
/// that stands there: nothing may be made anew.
pub(crate) fn shared_page(connection: &Connection) -> rusqlite::Result<Option<String>> {
    // How the pages hang together comes first, and all of it at once.
    let structure: String = connection.prepare(sql::STRUCTURE)?.query_row([], |row| row.get(0))?;
    Ok(structure.lines().find(|line| line.contains("2nd reference to page")).map(str::to_owned))
}

/// Makes every index anew from its table, inside a transaction; tells those that could not be. Where that is so with `copies`, it may succeed without them
/// in another transaction: SQLite writes nothing more in one that has met what it cannot read.
pub(crate) fn rebuild(connection: &Connection, copies: &[Copy]) -> Vec<String> {
    let mut failed = remake(connection, &sql::REINDEX);
    failed.extend(rebuild_inbox(connection, copies).unwrap_or_else(|error| vec![error.to_string()]));
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

/// The same for the inbox, whose indexes may have told what its rows do not tell any more.
fn rebuild_inbox(connection: &Connection, copies: &[Copy]) -> rusqlite::Result<Vec<String>> {
    if copies.is_empty() {
        return Ok(remake(connection, &sql::REINDEX_INBOX));
    }
    copies::put_back(connection, copies).map(|()| Vec::new())
}

/// Makes one index anew, by a statement of [`sql::REINDEX`], or those of the inbox.
pub(crate) enum RebuildWork {
    One(&'static str),
    Inbox(Vec<Copy>),
}

impl Operation for RebuildWork {
    /// Those that could not be.
    type Output = Vec<String>;
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Vec<String>, Stop> {
        batch.readable(|batch| match self {
            Self::One(statement) => Ok(batch.connection.execute_batch(statement).map(|()| Vec::new())?),
            Self::Inbox(copies) => {
                batch.caches.inboxes.clear();
                Ok(rebuild_inbox(batch.connection, copies)?)
            }
        })
    }
}
