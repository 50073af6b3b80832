//! The deletable parts of an execution that SQLite cannot read whole.

use abide_core::Address;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Stop, read_or_not};
use crate::interned::Interned;
use crate::journal;
use crate::legible::meant_by;
use crate::rows::Raw;
use crate::{sheaf, sql};

/// The parts that SQLite can read, and so can free. The rest stays: a transaction that meets it is
/// never committed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Salvage {
    pub(super) key: i64,
    pub(super) journal: Vec<i64>,
    /// The first row of its journal, if that can be read.
    pub(super) first: Option<i64>,
    pub(super) inbox: Vec<Raw>,
    pub(super) has_runs: bool,
    pub(super) has_tags: bool,
}

impl Salvage {
    /// Looks for the parts with a read-only connection. Returns nothing for an unknown execution.
    pub(crate) fn of(connection: &Connection, address: &Address) -> Result<Option<Self>, Stop> {
        let Some(namespace) = Interned::load(connection)?.find(&address.namespace)? else { return Ok(None) };
        let mut by_id = connection.prepare_cached(sql::EXECUTION_KEY)?;
        let found = by_id.query_row(params![namespace, address.id.as_str()], |row| row.get(0)).optional()?;
        let Some(key) = found.or(meant_by(&address.id)) else { return Ok(None) };
        let rows = journal::rows_of(connection, key)?;
        let mut journal = Vec::new();
        for row in &rows {
            if read_or_not(sheaf::find(connection, *row, |_| Ok(())))?.is_some() {
                journal.push(*row);
            }
        }
        let first = rows.first().copied().filter(|first| journal.first() == Some(first));
        let inbox = read_or_not(readable_ids(connection, key))?.unwrap_or_default();
        let has_runs = read_or_not(scan(connection, sql::ORDER_RUNS))?.is_some();
        let has_tags = read_or_not(scan(connection, sql::TAGS))?.is_some();
        Ok(Some(Self { key, journal, first, inbox, has_runs, has_tags }))
    }
}

/// Returns the ids of the readable messages.
fn readable_ids(connection: &Connection, key: i64) -> Result<Vec<Raw>, Stop> {
    let mut statement = connection.prepare_cached(sql::DISCARD_INBOX_IDS)?;
    let ids = statement.query_map([key], |row| Raw::read(row, 0))?.collect::<rusqlite::Result<Vec<Raw>>>()?;
    let mut body = connection.prepare_cached(sql::DISCARD_MESSAGE_BODY)?;
    let mut readable = Vec::new();
    for id in ids {
        if read_or_not(body.exists(params![key, id]).map_err(Stop::from))?.is_some() {
            readable.push(id);
        }
    }
    Ok(readable)
}

/// Scans a whole table, like a delete without an index.
fn scan(connection: &Connection, text: &'static str) -> Result<(), Stop> {
    let mut statement = connection.prepare_cached(text)?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}
