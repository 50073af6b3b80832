//! Rebuilds indexes: everything in them is also in the tables.

use std::time::Duration;

use rusqlite::Connection;

use crate::batch::Batch;
use crate::copies::{self, Copy};
use crate::error::Stop;
use crate::job::Operation;
use crate::sql;

/// The minimum time between two rebuilds: one takes long on a large file, and if it did not help
/// once, it will not help again.
pub(crate) const PAUSE: Duration = Duration::from_secs(60);

/// The most problems that SQLite reports for a file: the number in [`sql::STRUCTURE`].
const COMPLAINT_COUNT_MAX: usize = 100_000;

/// Returns SQLite's complaint about a page that two tables or indexes share, if there is one. Then
/// nothing may be rebuilt: emptying one of them would free a page of the other, with all its rows.
pub(crate) fn shared_page(connection: &Connection) -> rusqlite::Result<Option<String>> {
    // The structure of the pages comes first, in one row.
    let structure: String = connection.prepare(sql::STRUCTURE)?.query_row([], |row| row.get(0))?;
    Ok(shared_in(&structure).map(str::to_owned))
}

/// Returns the complaint about a shared page. If there are so many complaints that SQLite has
/// omitted some, a shared page may be among the omitted ones.
fn shared_in(complaints: &str) -> Option<&str> {
    let shared = complaints.lines().find(|line| line.contains("2nd reference to page"));
    shared.or_else(|| complaints.lines().nth(COMPLAINT_COUNT_MAX - 1))
}

/// Rebuilds every index from its table, inside a transaction. Returns the ones that failed. If this
/// fails with `copies`, it may succeed without them in another transaction: SQLite writes nothing
/// more in a transaction that has met unreadable data.
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

/// Rebuilds indexes one by one: two rows that damage has made equal prevent only one of them.
fn remake(connection: &Connection, statements: &[&str]) -> Vec<String> {
    let made = statements.iter().map(|statement| connection.execute_batch(statement));
    made.filter_map(|done| done.err().map(|error| error.to_string())).collect()
}

/// Rebuilds the indexes of the inbox, which may contain data that its rows have lost.
fn rebuild_inbox(connection: &Connection, copies: &[Copy]) -> rusqlite::Result<Vec<String>> {
    if copies.is_empty() {
        return Ok(remake(connection, &sql::REINDEX_INBOX));
    }
    copies::put_back(connection, copies).map(|()| Vec::new())
}

/// Rebuilds one index, by a statement of [`sql::REINDEX`], or those of the inbox.
pub(crate) enum RebuildWork {
    One(&'static str),
    Inbox(Vec<Copy>),
}

impl Operation for RebuildWork {
    /// The indexes that failed.
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

#[cfg(test)]
mod tests {
    use super::*;
    /// That of a file that abide did not make.
    const PAGE_BYTES: usize = 4_096;

    /// Four tables, each of several pages.
    const TABLES: &str = "
CREATE TABLE a (x);
WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 2000) INSERT INTO a SELECT x FROM n;
CREATE TABLE b AS SELECT x FROM a;
CREATE TABLE c AS SELECT x FROM a;
CREATE TABLE d AS SELECT x FROM a;
";

    /// Returns the offsets of the page numbers of the direct children of a table's root page.
    fn numbers(path: &std::path::Path, bytes: &[u8], table: &str) -> Vec<usize> {
        let found = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
        let raw = Connection::open(path).unwrap();
        let root: u32 = raw.query_row(found, [table], |row| row.get(0)).unwrap();
        let begin = (root as usize - 1) * PAGE_BYTES;
        let number = |at: usize| usize::from(u16::from_be_bytes(bytes[at..][..2].try_into().unwrap()));
        (0..number(begin + 3)).map(|nth| begin + number(begin + 12 + 2 * nth)).collect()
    }

    fn below(bytes: &[u8], cell: usize) -> usize {
        (u32::from_be_bytes(bytes[cell..][..4].try_into().unwrap()) as usize - 1) * PAGE_BYTES
    }

    /// Two tables lead to one page, and all cells of some other pages are out of bounds: SQLite
    /// complains about each of them.
    #[test]
    fn a_shared_page_is_told_however_much_else_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        Connection::open(&path).unwrap().execute_batch(TABLES).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let [of_a, of_b, of_c, of_d] = ["a", "b", "c", "d"].map(|table| numbers(&path, &bytes, table));
        let leaf: [u8; 4] = bytes[of_b[0]..][..4].try_into().unwrap();
        bytes[of_c[0]..][..4].copy_from_slice(&leaf);
        for leaf in [of_a[1], of_b[1], of_c[1], of_d[1]].map(|cell| below(&bytes, cell)) {
            bytes[leaf + 8..][..400].fill(0xff);
        }
        std::fs::write(&path, &bytes).unwrap();
        let told = shared_page(&Connection::open(&path).unwrap()).unwrap();
        assert!(told.is_some_and(|told| told.contains("2nd reference to page")));
    }

    #[test]
    fn too_many_complaints_are_taken_for_a_shared_page() {
        assert!(sql::STRUCTURE.contains(&COMPLAINT_COUNT_MAX.to_string()));
        let complaints = |count| vec!["Tree 2 page 7: somewhere else"; count].join("\n");
        assert_eq!(shared_in(&complaints(COMPLAINT_COUNT_MAX - 1)), None);
        assert_eq!(shared_in(&complaints(COMPLAINT_COUNT_MAX)), Some("Tree 2 page 7: somewhere else"));
    }
}
