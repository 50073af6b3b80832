//! Finds the row that an operator means: by its id, or by its number if it has lost its id.

use abide_core::Address;
use rusqlite::{OptionalExtension, params};

use crate::batch::Batch;
use crate::error::Stop;
use crate::journal;
use crate::legible::{LegibleRow, meant_by};
use crate::sql;
use crate::view::address;

/// The row that is meant, and the address of its execution.
pub(super) struct Meant {
    pub(super) legible: LegibleRow,
    pub(super) namespace: i64,
    pub(super) address: Address,
}

/// Finds the row that `asked` means. A row that has lost its id is named by its number, and gets
/// its own id back if its journal contains it.
pub(super) fn meant(batch: &mut Batch<'_>, asked: &Address) -> Result<Option<Meant>, Stop> {
    let (connection, interned) = (batch.connection, batch.caches.interned(batch.connection)?);
    let Some(namespace) = interned.find(&asked.namespace)? else { return Ok(None) };
    let mut by_id = connection.prepare_cached(sql::EXECUTION_KEY)?;
    let found = by_id.query_row(params![namespace, asked.id.as_str()], |row| row.get(0)).optional()?;
    let key = found.or(meant_by(&asked.id));
    let Some(legible) = key.map(|key| LegibleRow::find(connection, key)).transpose()?.flatten() else {
        return Ok(None);
    };
    let as_asked = |legible| Some(Meant { legible, namespace, address: asked.clone() });
    if found.is_some() {
        return Ok(as_asked(legible));
    }
    let first = journal::first_row(connection, legible.key)?;
    let owner = first.and_then(|row| journal::owner(connection, (row, legible.key)).ok());
    let Some((namespace, id)) = owner else { return Ok(as_asked(legible)) };
    let address = address(interned, namespace, &id)?;
    Ok(Some(Meant { legible, namespace, address }))
}
