//! Tables whose rows stand in the order of a key of several columns.
//!
//! A flipped byte of such a key leaves its row where it was: a walk through the table meets it, and nobody who looks for it finds it, neither to
//! read nor to delete it. Others that stand beside it may be missed too. Written anew, every row stands where it is found.

use rusqlite::{Connection, params_from_iter};

use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::rows::Raw;
use crate::sql;

/// A table in the order of its key, whose columns come first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    key_count: usize,
    all: &'static str,
    has: &'static str,
    clear: &'static str,
    insert: &'static str,
}

pub(crate) const INBOX: Table = Table {
    name: "the messages",
    key_count: 2,
    all: sql::ORDER_INBOX,
    has: sql::INBOX_SEEN,
    clear: sql::ORDER_INBOX_CLEAR,
    insert: sql::ORDER_INBOX_INSERT,
};
const RUNS: Table = Table {
    name: "the earlier runs",
    key_count: 2,
    all: sql::ORDER_RUNS,
    has: sql::RUN_CHAIN,
    clear: sql::ORDER_RUNS_CLEAR,
    insert: sql::RUN_ENDED,
};
/// Those whose rows nothing else tells. Tags are derived: see [`super::retag`].
pub(crate) const TABLES: [Table; 2] = [INBOX, RUNS];

impl Table {
    /// Whether every row is found by its key.
    pub(crate) fn is_in_order(&self, connection: &Connection) -> Result<bool, Stop> {
        let (mut all, mut has) = (connection.prepare_cached(self.all)?, connection.prepare_cached(self.has)?);
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let key = (0..self.key_count).map(|index| Raw::read(row, index));
            let key = key.collect::<rusqlite::Result<Vec<Raw>>>()?;
            if !has.exists(params_from_iter(key))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes every row anew. All of them are in memory for that, which only a damaged store needs.
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

/// Puts a table in order. Fails where two rows have the same key now, or one has none.
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
