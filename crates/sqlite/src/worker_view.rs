//! The reads of sessions and of their leases.

use std::collections::BTreeSet;
use std::time::Duration;

use abide_core::{Ability, Name, Namespace, SessionId};
use abide_store::{ExecutionKey, HeldLease, LeaseCursor, LeasePage, Leases, Worker, WorkerRow, Workers};
use rusqlite::types::Type;
use rusqlite::{Row, Rows};

use crate::batch::GONE;
use crate::error::{Stop, complaint};
use crate::place::{self, Holder, Place};
use crate::rows::{count, decoded, epoch, integer, timestamp, unsigned};
use crate::view::View;
use crate::{newborns, sql};

impl View<'_> {
    pub(crate) fn workers(&self, workers: &Workers) -> Result<Vec<WorkerRow>, Stop> {
        let interned = self.interned(|interned| interned.known(&workers.namespace).is_some())?;
        let Some(namespace) = interned.find(&workers.namespace)? else { return Ok(Vec::new()) };
        let after = workers.after.map_or(0, |session| integer(session.0));
        let mut statement = self.connection.prepare_cached(sql::SESSIONS)?;
        let mut held = self.connection.prepare_cached(sql::SESSION_LEASE_COUNT)?;
        let mut newborns = self.connection.prepare_cached(sql::NEWBORN_COUNT)?;
        let rows = statement.query_map([namespace, after, integer(workers.limit as u64)], |row| {
            let mut found = registered(row, &workers.namespace)?;
            // A gone session must not appear alive until the next claim ends it.
            let is_gone = found.retired.is_none() && self.shared.is_gone(found.session);
            found.retired = found.retired.or_else(|| is_gone.then(|| GONE.to_owned()));
            if found.retired.is_none() || is_gone {
                let indexed: i64 = held.query_row([place::held(found.session)], |row| row.get(0))?;
                let newborn =
                    [place::newborn(found.session), newborns::from(self.connection, found.session)?];
                let newborn: i64 = newborns.query_row(newborn, |row| row.get(0))?;
                found.lease_count = unsigned(indexed + newborn);
            }
            Ok(found)
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    pub(crate) fn leases(&self, leases: &Leases) -> Result<LeasePage, Stop> {
        let held = place::held(leases.session);
        let count_max = leases.limit.min(self.shared.options.page_bounds.lease_page_count_max);
        // One more row shows whether there are more.
        let limit = |found: &[_]| integer((count_max + 1 - found.len()) as u64);
        let mut found = Vec::new();
        // Newborns come first: one that settles between two pages is then seen twice. The other way
        // round it would not be seen at all.
        let newborn_after = match leases.after {
            None => Some(-1),
            Some(LeaseCursor([NEWBORN_RANK, _, key])) => Some(integer(key)),
            Some(_) => None,
        };
        if let Some(key) = newborn_after {
            let from = newborns::from(self.connection, leases.session)?;
            let mut newborn = self.connection.prepare_cached(sql::NEWBORNS_AFTER)?;
            let limit_newborn = limit(&found);
            collect(newborn.query([place::newborn(leases.session), from, key, limit_newborn])?, &mut found)?;
        }
        let [rank, place_at, key] = match leases.after {
            Some(LeaseCursor(after)) if newborn_after.is_none() => after.map(integer),
            _ => [-1; 3],
        };
        // Leases granted between two heartbeats share a place: the index finds the next of them
        // only in a query for just this place.
        let mut beside = self.connection.prepare_cached(sql::SESSION_LEASES_BESIDE)?;
        let limit_beside = limit(&found);
        collect(beside.query([held, rank, place_at, key, limit_beside])?, &mut found)?;
        let mut after = self.connection.prepare_cached(sql::SESSION_LEASES_AFTER)?;
        let limit_after = limit(&found);
        collect(after.query([held, rank, place_at, limit_after])?, &mut found)?;
        let has_more = found.len() > count_max;
        found.truncate(count_max);
        let next = found.last().filter(|_| has_more).map(|last| last.cursor);
        Ok(LeasePage { leases: found.into_iter().map(|lease| lease.held).collect(), next })
    }
}

/// Adds the leases of some rows. The next claim that meets an unreadable one sets it aside.
fn collect(mut rows: Rows<'_>, found: &mut Vec<Lease>) -> rusqlite::Result<()> {
    while let Some(row) = rows.next()? {
        found.extend(Lease::read(row).ok());
    }
    Ok(())
}

/// The rank of newborns in the list. No claim has this number.
const NEWBORN_RANK: u64 = u64::MAX;

/// A lease, and its place in the list.
struct Lease {
    held: HeldLease,
    cursor: LeaseCursor,
}

impl Lease {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let (key, epoch) = (count(row, 0)?, epoch(row, 1)?);
        let holder = Place::read(row, 2)?.holder();
        let given_beat = holder.map_or(0, |holder| holder.beat);
        let cursor = match holder {
            Some(Holder { is_newborn: true, .. }) => LeaseCursor([NEWBORN_RANK, 0, key]),
            _ => LeaseCursor([count(row, 3)?, count(row, 4)?, key]),
        };
        Ok(Self { held: HeldLease { key: ExecutionKey(key), epoch, given_beat }, cursor })
    }
}

/// Returns a session as far as its row can be read: `id, name, ability, ttl_us, registered_at,
/// expires_at, retired, draining`, in this order. An unreadable session does not hide the others.
fn registered(row: &Row<'_>, namespace: &Namespace) -> rusqlite::Result<WorkerRow> {
    let session = SessionId(unsigned(row.get(0)?));
    let (worker, damage) = match worker(row) {
        Ok(worker) => (worker, None),
        Err(error) => (nobody(namespace), Some(complaint(&error))),
    };
    Ok(WorkerRow {
        session,
        worker,
        // A session without a time, or with a reason of the wrong type, is dead.
        registered_at: timestamp(row, 4).unwrap_or_default(),
        expires_at: timestamp(row, 5).unwrap_or_default(),
        retired: row.get(6).unwrap_or_else(|_| Some("?".to_owned())),
        is_draining: row.get(7).unwrap_or_default(),
        lease_count: 0,
        damage,
    })
}

/// Returns the worker in the row of a session.
pub(crate) fn worker(row: &Row<'_>) -> rusqlite::Result<Worker> {
    let name: String = row.get(1)?;
    let name = Name::new(name)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(1, Type::Text, error.into()))?;
    // Read only to report a row as damaged in which one of them has another type.
    let (_, _, _) = (timestamp(row, 4)?, timestamp(row, 5)?, row.get::<_, Option<String>>(6)?);
    let _: bool = row.get(7)?;
    Ok(Worker { name, ability: decoded(row, 2)?, ttl: Duration::from_micros(count(row, 3)?) })
}

/// Returns a worker that offers nothing.
fn nobody(namespace: &Namespace) -> Worker {
    let ability = Ability {
        namespace: namespace.clone(),
        lanes: BTreeSet::new(),
        runs: BTreeSet::new(),
        capabilities: BTreeSet::new(),
        build: None,
    };
    Worker { name: Name::new("?").expect("a name"), ability, ttl: Duration::ZERO }
}
