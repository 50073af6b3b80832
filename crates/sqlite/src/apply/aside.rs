//! `set_aside`: what cannot be read delays nobody.

use abide_core::Epoch;
use abide_store::Aside;
use rusqlite::OptionalExtension;

use crate::batch::Batch;
use crate::error::Stop;
use crate::glance::number;
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
        let is_held = |given: &Given| (given.session, given.epoch) == (lease.session, lease.epoch);
        match given(batch, key)?.filter(is_held) {
            Some(given) => set_aside(batch, (key, Some(given)), damage),
            None => Ok(()),
        }
    }
}

/// The same for what was found where no lease is known.
pub(super) fn set_aside_any(batch: &mut Batch<'_>, key: i64, damage: &str) -> Result<(), Stop> {
    let former = given(batch, key)?;
    set_aside(batch, (key, former), damage)
}

/// The lease of whoever holds an execution.
fn given(batch: &mut Batch<'_>, key: i64) -> Result<Option<Given>, Stop> {
    let mut statement = batch.connection.prepare_cached(sql::EXECUTION_PLACE)?;
    let found = statement.query_row([key], |row| Ok((Place::read(row, 1), number(row, 0)?))).optional()?;
    drop(statement);
    Ok(match found {
        Some((Ok(place), Some(epoch))) => place.given(Epoch(count(epoch))),
        Some((Ok(Place::Held(_)), None) | (Err(_), _)) => {
            // Somebody may hold it, who is known no longer: what everybody holds is counted anew.
            batch.tallies.forget();
            None
        }
        Some((Ok(_), None)) | None => None,
    })
}

/// Puts a damaged execution where no claim looks, and takes it from whoever holds it.
pub(super) fn set_aside(
    batch: &mut Batch<'_>,
    (key, former): (i64, Option<Given>),
    damage: &str,
) -> Result<(), Stop> {
    tracing::error!(execution = key, damage, "an execution is damaged and was set aside");
    let Columns { place, rank, since } = Place::Damaged(batch.now()).columns();
    if batch.connection.prepare_cached(sql::SET_ASIDE)?.execute([key, place, rank, since])? == 0 {
        return Err(Stop::stale_index(key));
    }
    if let Some(former) = former {
        batch.take_away(key, former)?;
    }
    batch.caches.hot.remove(&key);
    batch.caches.targets.remove(&key);
    Ok(())
}
