//! The table of the programs, like a table that a user keeps.

use abide::SqliteTransaction;
use abide::prelude::*;

/// The kinds of stores whose tables transaction steps write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableKind {
    Memory,
    Sqlite,
    Postgres,
}

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

/// The same table in the memory store.
pub(crate) mod memory {
    use std::any::Any;

    use abide::prelude::*;
    use abide_store::memory::MemoryTable;

    /// Returns the table of a transaction step.
    pub(crate) fn of(connection: &dyn Any) -> Result<&MemoryTable> {
        connection.downcast_ref().ok_or_else(|| Error::fatal("there is no table"))
    }

    pub(crate) fn count_up(table: &MemoryTable, key: &str) -> u64 {
        let count = count_of(table, key) + 1;
        table.put(key, &count.to_string());
        count
    }

    pub(crate) fn count_of(table: &MemoryTable, key: &str) -> u64 {
        table.get(key).and_then(|text| text.parse().ok()).unwrap_or_default()
    }
}

/// The same table on a PostgreSQL server.
pub(crate) mod server {
    use std::any::Any;

    use abide::prelude::*;
    use abide_postgres::StepConnection;

    const EXISTS: &str = "SELECT to_regclass('abide_torture_counted') IS NOT NULL";
    /// Of several that make the table at a time, one does and the others find it.
    const CREATE: &str = "
SELECT pg_advisory_xact_lock(7417);
CREATE TABLE IF NOT EXISTS abide_torture_counted (key TEXT PRIMARY KEY, count BIGINT NOT NULL)";
    const COUNT_UP: &str = "
INSERT INTO abide_torture_counted (key, count)
VALUES ($1, 1)
ON CONFLICT (key) DO UPDATE SET count = abide_torture_counted.count + 1";
    const COUNT_OF: &str = "
SELECT count
FROM abide_torture_counted
WHERE key = $1";

    /// Returns the connection of a transaction step.
    pub(crate) fn of(connection: &dyn Any) -> Result<&StepConnection> {
        connection.downcast_ref().ok_or_else(|| Error::fatal("there is no table"))
    }

    pub(crate) fn count_up(table: &StepConnection, key: &str) -> Result<u64> {
        create(table)?;
        table.block_on(table.execute(COUNT_UP, &[&key]))??;
        count_of(table, key)
    }

    pub(crate) fn count_of(table: &StepConnection, key: &str) -> Result<u64> {
        create(table)?;
        let found = table.block_on(table.query_opt(COUNT_OF, &[&key]))??;
        let count: i64 = found.map_or(0, |row| row.get(0));
        Ok(count.unsigned_abs())
    }

    fn create(table: &StepConnection) -> Result<()> {
        let exists: bool = table.block_on(table.query_one(EXISTS, &[]))??.get(0);
        if exists { Ok(()) } else { Ok(table.block_on(table.batch_execute(CREATE))??) }
    }
}
