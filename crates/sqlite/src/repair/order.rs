//! The earlier runs, whose rows stand in the order of a key of two columns.
//!
//! A flipped byte of such a key leaves its row where it was: a walk through the table meets it, and nobody who looks for it finds it, neither to
//! read nor to delete it. Others that stand beside it may be missed too. Written anew, every row stands where it is found.
//!
//! Tags stand so too, and are derived: see [`super::retag`].

use rusqlite::{Connection, params_from_iter};

use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::rows::Raw;
use crate::sql;

/// The columns of the key come first.
const KEY_COUNT: usize = 2;

/// Whether every earlier run is found by its key.
pub(crate) fn is_in_order(connection: &Connection) -> Result<bool, Stop> {
    let mut all = connection.prepare_cached(sql::ORDER_RUNS)?;
    let mut has = connection.prepare_cached(sql::RUN_CHAIN)?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let key = (0..KEY_COUNT).map(|index| Raw::read(row, index));
        let key = key.collect::<rusqlite::Result<Vec<Raw>>>()?;
        if !has.exists(params_from_iter(key))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes every row anew. All of them are in memory for that, which only a damaged store needs.
fn put_in_order(connection: &Connection) -> Result<(), Stop> {
    let mut all = connection.prepare_cached(sql::ORDER_RUNS)?;
    let column_count = all.column_count();
    let read = all.query_map([], |row| (0..column_count).map(|index| Raw::read(row, index)).collect())?;
    let rows = read.collect::<rusqlite::Result<Vec<Vec<Raw>>>>()?;
    connection.prepare_cached(sql::ORDER_RUNS_CLEAR)?.execute([])?;
    let mut insert = connection.prepare_cached(sql::RUN_ENDED)?;
    for row in rows {
        insert.execute(params_from_iter(row))?;
    }
    Ok(())
}

/// Puts the earlier runs in order. Fails where two rows have the same key now, or one has none.
pub(crate) struct OrderWork;

impl Operation for OrderWork {
    type Output = ();
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<(), Stop> {
        batch.readable(|batch| put_in_order(batch.connection)).map_err(|stop| match stop.damage() {
            Some(damage) => Stop::corrupt(damage),
            None => stop,
        })
    }
}
