//! What the indexes of the inbox tell of messages whose rows are damaged.
//!
//! The id of a message and its place in the order of arrival stand in its row and in an index. A flipped byte of the row leaves the index as it was,
//! and the checksum says which of the two is right. An index that is made anew would repeat the damage, so that what it tells is kept before.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::mail::is_sound;
use crate::rows::{number, text};
use crate::sql;

/// The columns of a damaged row of the inbox, as they were.
pub(crate) struct Copy {
    row: i64,
    execution: i64,
    id: String,
    arrived: i64,
}

/// What the indexes tell of damaged rows.
pub(crate) fn told(connection: &Connection) -> rusqlite::Result<Vec<Copy>> {
    let mut copies = Vec::new();
    for statement in [sql::COPIES_OF_IDS, sql::COPIES_OF_PLACES] {
        let mut statement = connection.prepare_cached(statement)?;
        let mut entries = statement.query([])?;
        while let Some(entry) = entries.next()? {
            copies.extend(better(connection, entry)?);
        }
    }
    Ok(copies)
}

/// The entry of an index, if the row that it is for is damaged and would be sound with it.
fn better(connection: &Connection, entry: &Row<'_>) -> rusqlite::Result<Option<Copy>> {
    let (Some(row), Some(execution), Ok(id)) = (number(entry, 0)?, number(entry, 1)?, text(entry, 2)) else {
        return Ok(None);
    };
    let place = number(entry, 3)?;
    let mut statement = connection.prepare_cached(sql::INBOX_ROW)?;
    let copy = statement.query_row([row], |found| {
        let Some(arrived) = place.or(number(found, 2)?) else { return Ok(None) };
        let body = found.get_ref(3)?;
        let is_damaged = || match (number(found, 0), text(found, 1), number(found, 2)) {
            (Ok(Some(execution)), Ok(id), Ok(Some(arrived))) => !is_sound((execution, id, arrived), body),
            _ => true,
        };
        let is_better = is_sound((execution, id, arrived), body) && is_damaged();
        Ok(is_better.then(|| Copy { row, execution, id: id.to_owned(), arrived }))
    });
    Ok(copy.optional()?.flatten())
}

/// Puts back what the indexes have told, and makes them anew; all of it or nothing. The indexes are gone meanwhile: while they are wrong, a row that is
/// changed takes the entry of another with it.
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
    for Copy { row, execution, id, arrived } in copies {
        put_back.execute(params![row, execution, id, arrived])?;
    }
    indexes.iter().try_for_each(|(_, made)| connection.execute_batch(made))
}
