//! `set_aside`: an execution that cannot be read delays nobody.

use abide_core::care;
use abide_store::{Aside, NEWER_PAUSE, Unreadable};
use rusqlite::OptionalExtension;

use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::place::{Columns, Place};
use crate::rows::{epoch, integer};
use crate::sql;
use crate::tallies::Given;

pub(crate) struct AsideWork(pub(crate) Aside);

impl Operation for AsideWork {
    type Output = ();
    const WHAT: &'static str = "set aside";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<(), Stop> {
        let Aside { key, lease, unreadable } = &self.0;
        let key = integer(key.0);
        let is_held = |given: &Given| (given.session, given.epoch) == (lease.session, lease.epoch);
        let given = match holding(batch, key)? {
            Holding::By(given) if is_held(&given) => Some(given),
            // An unreadable holding is damage in its own right, regardless of who finds it.
            Holding::Unreadable => None,
            Holding::By(_) | Holding::Nobody => return Ok(()),
        };
        match (unreadable, given) {
            (Unreadable::Damaged(damage), given) => set_aside(batch, (key, given), damage),
            (Unreadable::Newer(_), Some(given)) => put_off(batch, (key, given)),
            (Unreadable::Newer(_), None) => Ok(()),
        }
    }
}

/// Takes an execution from a holder that is too old to read it, and offers it again after a while.
fn put_off(batch: &mut Batch<'_>, (key, given): (i64, Given)) -> Result<(), Stop> {
    batch.settle_answers(key)?;
    let now = batch.now();
    let (until, look_at) = (now.after(NEWER_PAUSE), now.after(care::ORDER_GRACE));
    let mut statement = batch.connection.prepare_cached(sql::PUT_OFF_HELD)?;
    let route = statement.query_row([key, until.as_micros(), look_at.as_micros()], |row| row.get(0))?;
    drop(statement);
    batch.take_away(key, given)?;
    batch.caches.rows.remove(&key);
    batch.caches.targets.remove(&key);
    batch.announce(route)?;
    batch.announce_care(route)?;
    Ok(())
}

/// Sets an execution aside that was found damaged where no lease is known.
pub(super) fn set_aside_any(batch: &mut Batch<'_>, key: i64, damage: &str) -> Result<(), Stop> {
    let former = match holding(batch, key)? {
        Holding::By(given) => Some(given),
        Holding::Unreadable | Holding::Nobody => None,
    };
    set_aside(batch, (key, former), damage)
}

/// The holder of an execution.
enum Holding {
    By(Given),
    Nobody,
    /// A session may hold it, but its place or its epoch is too damaged to say which.
    Unreadable,
}

fn holding(batch: &mut Batch<'_>, key: i64) -> Result<Holding, Stop> {
    let mut statement = batch.connection.prepare_cached(sql::EXECUTION_PLACE)?;
    let found = statement.query_row([key], |row| Ok((Place::read(row, 1), epoch(row, 0)))).optional()?;
    drop(statement);
    Ok(match found {
        Some((Ok(place), Ok(epoch))) => place.given(epoch).map_or(Holding::Nobody, Holding::By),
        Some((Ok(Place::Held(_)), Err(_)) | (Err(_), _)) => {
            // The leases of every session are counted anew.
            batch.tallies.forget();
            Holding::Unreadable
        }
        Some((Ok(_), Err(_))) | None => Holding::Nobody,
    })
}

/// Puts a damaged execution where no claim looks, and takes it from its holder.
pub(super) fn set_aside(
    batch: &mut Batch<'_>,
    (key, former): (i64, Option<Given>),
    damage: &str,
) -> Result<(), Stop> {
    tracing::error!(key, damage, "an execution is damaged and was set aside");
    let Columns { place, rank, place_at } = Place::Damaged(batch.now()).columns();
    if batch.connection.prepare_cached(sql::SET_ASIDE)?.execute([key, place, rank, place_at])? == 0 {
        return Err(Stop::stale_index(key));
    }
    if let Some(former) = former {
        batch.take_away(key, former)?;
    }
    batch.caches.rows.remove(&key);
    batch.caches.targets.remove(&key);
    Ok(())
}
