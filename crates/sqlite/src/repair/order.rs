//! Tables whose rows are ordered by a key that nothing else repeats.
//!
//! A flipped byte of such a key leaves its row where it was. A walk through the table meets the
//! row, but no lookup finds it, neither to read nor to delete it. Lookups of its neighbours may
//! fail too. After a rewrite, every row is where it is found.

use rusqlite::{Connection, params_from_iter};

use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::rows::Raw;
use crate::sql;

/// A table that is ordered by its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// The statement for all keys, in the order of the rows.
    keys: &'static str,
    has: &'static str,
    all: &'static str,
    clear: &'static str,
    insert: &'static str,
}

const INBOX: Table = Table {
    name: "the messages",
    keys: sql::ORDER_INBOX_KEYS,
    has: sql::INBOX_ROW,
    all: sql::ORDER_INBOX,
    clear: sql::ORDER_INBOX_CLEAR,
    insert: sql::ORDER_INBOX_INSERT,
};
const RUNS: Table = Table {
    name: "the earlier runs",
    keys: sql::ORDER_RUNS_KEYS,
    has: sql::RUN_CHAIN,
    all: sql::ORDER_RUNS,
    clear: sql::ORDER_RUNS_CLEAR,
    insert: sql::RUN_ENDED,
};
/// The tables whose rows nothing else repeats. Tags are derived: see [`super::retag`].
pub(crate) const TABLES: [Table; 2] = [INBOX, RUNS];

impl Table {
    /// Whether every row is found by its key.
    pub(crate) fn is_in_order(&self, connection: &Connection) -> Result<bool, Stop> {
        let mut keys = connection.prepare_cached(self.keys)?;
        let mut has = connection.prepare_cached(self.has)?;
        let column_count = keys.column_count();
        let mut rows = keys.query([])?;
        while let Some(row) = rows.next()? {
            let key = (0..column_count).map(|index| Raw::read(row, index));
            let key = key.collect::<rusqlite::Result<Vec<Raw>>>()?;
            if !has.exists(params_from_iter(key))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Rewrites every row. All of them are in memory meanwhile, which only a damaged store needs.
    pub(crate) fn put_in_order(&self, batch: &Batch<'_>) -> Result<(), Stop> {
        let connection = batch.connection;
        let mut all = connection.prepare_cached(self.all)?;
        let column_count = all.column_count();
        let read = all.query_map([], |row| (0..column_count).map(|index| Raw::read(row, index)).collect())?;
        let rows = read.collect::<rusqlite::Result<Vec<Vec<Raw>>>>()?;
        connection.prepare_cached(self.clear)?.execute([])?;
        let mut insert = connection.prepare_cached(self.insert)?;
        for row in rows {
            insert.execute(params_from_iter(row))?;
        }
        Ok(())
    }
}

/// Reorders a table. Fails if two rows now have the same key, or if one has none.
pub(crate) struct OrderWork(pub(crate) Table);

impl Operation for OrderWork {
    type Output = ();
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<(), Stop> {
        batch.caches.inboxes.clear();
        batch.readable(|batch| self.0.put_in_order(batch)).map_err(|stop| match stop.damage() {
            Some(damage) => Stop::corrupt(damage),
            None => stop,
        })
    }
}
