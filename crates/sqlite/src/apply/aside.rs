//! `set_aside`: what cannot be read delays nobody.

use abide_core::Epoch;
use abide_store::Aside;
use rusqlite::OptionalExtension;

use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::place::{Columns, Place};
use crate::rows::{count, integer};
use crate::sql;
use crate::tallies::Given;

pub(crate) struct AsideWork(pub(crate) Aside);

impl Operation for AsideWork {
    type Output = ();
    const WHAT: &'static str = "set aside";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<(), Stop> {
        let Aside { key, lease, damage } = &self.0;
        let key = integer(key.0);
        let mut statement = batch.connection.prepare_cached(sql::EXECUTION_PLACE)?;
        let given = statement
            .query_row([key], |row| Ok(Place::read(row, 1)?.given(Epoch(count(row.get(0)?)))))
            .optional()?;
        drop(statement);
        let is_held = |given: &Given| (given.session, given.epoch) == (lease.session, lease.epoch);
        match given.flatten().filter(is_held) {
            Some(given) => Ok(set_aside(batch, (key, Some(given)), damage)?),
            None => Ok(()),
        }
    }
}

/// Puts a damaged execution where no claim looks, and takes it from whoever holds it.
pub(super) fn set_aside(
    batch: &mut Batch<'_>,
    (key, former): (i64, Option<Given>),
    damage: &str,
) -> rusqlite::Result<()> {
    tracing::error!(execution = key, damage, "an execution is damaged and was set aside");
    let Columns { place, rank, since } = Place::Damaged(batch.now()).columns();
    batch.connection.prepare_cached(sql::SET_ASIDE)?.execute([key, place, rank, since])?;
    if let Some(former) = former {
        batch.take_away(key, former)?;
    }
    batch.caches.hot.remove(&key);
    batch.caches.targets.remove(&key);
    Ok(())
}
