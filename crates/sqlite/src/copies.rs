//! Copies of damaged inbox rows in the indexes.
//!
//! The id of a message and its place in the order of arrival are both in its row and in an index. A
//! flipped byte of the row leaves the index intact, and the checksum reveals which of the two is
//! right. A rebuilt index would repeat the damage, so its data is saved first.

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::mail::is_sound;
use crate::rows::{number, text};
use crate::sql;

/// The original columns of a damaged row of the inbox.
pub(crate) struct Copy {
    row: i64,
    execution: i64,
    id: String,
    /// The place in the order of arrival; nothing if the index does not contain it.
    arrived: Option<i64>,
}

/// Reads the copies of damaged rows from the indexes, as far as these are readable. Not for use
/// inside a transaction that writes: after SQLite has met an unreadable index, it writes nothing
/// more in the same transaction.
pub(crate) fn told(connection: &Connection) -> Vec<Copy> {
    let mut copies = Vec::new();
    for statement in [sql::COPIES_OF_IDS, sql::COPIES_OF_PLACES] {
        // An unreadable index has nothing more to offer.
        let _ = tell(connection, statement, &mut copies);
    }
    copies
}

fn tell(connection: &Connection, statement: &str, copies: &mut Vec<Copy>) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(statement)?;
    let mut entries = statement.query([])?;
    while let Some(entry) = entries.next()? {
        let (Some(row), Some(execution), Ok(id)) = (number(entry, 0)?, number(entry, 1)?, text(entry, 2))
        else {
            continue;
        };
        let copy = Copy { row, execution, id: id.to_owned(), arrived: number(entry, 3)? };
        if copy.place(connection)?.is_some() {
            copies.push(copy);
        }
    }
    Ok(())
}

impl Copy {
    /// Returns its place in the order of arrival, if that makes a damaged row intact.
    fn place(&self, connection: &Connection) -> rusqlite::Result<Option<i64>> {
        let mut statement = connection.prepare_cached(sql::INBOX_ROW)?;
        let place = statement.query_row([self.row], |found| {
            let Some(arrived) = self.arrived.or(number(found, 2)?) else { return Ok(None) };
            let body = found.get_ref(3)?;
            let is_damaged = || match (number(found, 0), text(found, 1), number(found, 2)) {
                (Ok(Some(execution)), Ok(id), Ok(Some(arrived))) => !is_sound((execution, id, arrived), body),
                _ => true,
            };
            let is_better = is_sound((self.execution, &self.id, arrived), body) && is_damaged();
            Ok(is_better.then_some(arrived))
        });
        Ok(place.optional()?.flatten())
    }
}

/// Restores the copies and rebuilds the indexes; all of it or nothing. The indexes are dropped
/// meanwhile: as long as they are wrong, a change of a row removes the entry of another.
pub(crate) fn put_back(connection: &Connection, copies: &[Copy]) -> rusqlite::Result<()> {
    connection.execute_batch(sql::REMAKE)?;
    let done = put_back_without_indexes(connection, copies);
    connection.execute_batch(if done.is_ok() { sql::REMAKE_RELEASE } else { sql::REMAKE_ROLLBACK })?;
    done
}

fn put_back_without_indexes(connection: &Connection, copies: &[Copy]) -> rusqlite::Result<()> {
    let indexes = connection
        .prepare(sql::INBOX_INDEXES)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<(String, String)>>>()?;
    indexes.iter().try_for_each(|(name, _)| connection.execute_batch(&format!("DROP INDEX {name}")))?;
    let mut put_back = connection.prepare(sql::INBOX_PUT_BACK)?;
    for copy in copies {
        // Check again: another operation may have written since.
        if let Some(place) = copy.place(connection)? {
            put_back.execute(params![copy.row, copy.execution, copy.id, place])?;
        }
    }
    indexes.iter().try_for_each(|(_, made)| connection.execute_batch(made))
}
