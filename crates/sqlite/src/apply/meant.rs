//! Which row an operator means: by its id, or by its number where it has lost its id.

use abide_core::Address;
use rusqlite::{OptionalExtension, params};

use crate::batch::Batch;
use crate::error::Stop;
use crate::glance::meant_by;
use crate::journal;
use crate::sql;
use crate::view::address;
use crate::wreck::Wreck;

/// The row that is meant, and whose it is.
pub(super) struct Meant {
    pub(super) wreck: Wreck,
    pub(super) namespace: i64,
    pub(super) address: Address,
}

/// Finds the row that `asked` means. What has lost its id is meant by its number, and has its own id again if its journal tells.
pub(super) fn meant(batch: &mut Batch<'_>, asked: &Address) -> Result<Option<Meant>, Stop> {
    let (connection, interned) = (batch.connection, batch.caches.interned(batch.connection)?);
    let Some(namespace) = interned.find(&asked.namespace)? else { return Ok(None) };
    let mut by_id = connection.prepare_cached(sql::EXECUTION_KEY)?;
    let found = by_id.query_row(params![namespace, asked.id.as_str()], |row| row.get(0)).optional()?;
    let key = found.or(meant_by(&asked.id));
    let Some(wreck) = key.map(|key| Wreck::find(connection, key)).transpose()?.flatten() else {
        return Ok(None);
    };
    let as_asked = |wreck| Some(Meant { wreck, namespace, address: asked.clone() });
    if found.is_some() {
        return Ok(as_asked(wreck));
    }
    let first = journal::first_row(connection, wreck.key)?;
    let owner = first.and_then(|row| journal::owner(connection, (row, wreck.key)).ok());
    let Some((namespace, id)) = owner else { return Ok(as_asked(wreck)) };
    let address = address(interned, namespace, &id)?;
    Ok(Some(Meant { wreck, namespace, address }))
}
