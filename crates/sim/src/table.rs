//! The table of the programs, like a table that a user of SQLite keeps.

use abide::SqliteTransaction;
use abide::prelude::*;

pub(crate) const CREATE: &str =
    "CREATE TABLE IF NOT EXISTS counted (key TEXT PRIMARY KEY, count INTEGER NOT NULL)";
const COUNT_UP: &str =
    "INSERT INTO counted (key, count) VALUES (?1, 1) ON CONFLICT (key) DO UPDATE SET count = count + 1";
const COUNT_OF: &str = "SELECT coalesce(sum(count), 0) FROM counted WHERE key = ?1";

/// Increments the count of a key and returns it.
pub(crate) fn count_up(table: &SqliteTransaction<'_>, key: &str) -> Result<u64> {
    table.execute_batch(CREATE)?;
    table.execute(COUNT_UP, [key])?;
    count_of(table, key)
}

/// Returns the count of a key.
pub(crate) fn count_of(table: &SqliteTransaction<'_>, key: &str) -> Result<u64> {
    table.execute_batch(CREATE)?;
    let count: i64 = table.query_row(COUNT_OF, [key], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}
