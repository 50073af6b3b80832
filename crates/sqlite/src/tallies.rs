//! The leases of this store's sessions, counted for their heartbeats.
//!
//! Unlike [`crate::caches`], the tallies survive writes of others: counting 100,000 leases again at
//! each heartbeat would block the writer for longer than everything else. This is sound because
//! only its own store leases executions to a session; any other process that takes one away writes
//! that into the session's row (`taken`), which each heartbeat reads.

use abide_core::{Digest, Epoch, SessionId, Tally};
use rusqlite::{Connection, OptionalExtension};

use crate::batch::Batch;
use crate::caches::BySession;
use crate::newborns::{self, Newborns};
use crate::place::{self, Place};
use crate::rows::{epoch, integer, number, unsigned};
use crate::sql;

/// The tallies, both as of the last transaction and within the current one.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    durable: BySession<Tally>,
    /// The tallies of the sessions that the current transaction concerns, mostly one; `None` for a
    /// session that it ends.
    changed: Vec<(SessionId, Option<Tally>)>,
    /// The leases that the index of places does not have.
    pub(crate) newborns: Newborns,
}

/// The changes of a transaction up to a savepoint.
pub(crate) struct Mark(Vec<(SessionId, Option<Tally>)>, usize);

/// A lease, as the place of its holder describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) session: SessionId,
    pub(crate) epoch: Epoch,
    /// The number of the session's heartbeats before the lease.
    pub(crate) beat: u64,
}

impl Tallies {
    pub(crate) fn open(&mut self, session: SessionId, (tally, newborns): (Tally, newborns::Ordered)) {
        self.set(session, Some(tally));
        self.newborns.open(session, newborns);
    }

    pub(crate) fn close(&mut self, session: SessionId) {
        self.set(session, None);
        self.newborns.close(session);
    }

    fn set(&mut self, session: SessionId, tally: Option<Tally>) {
        self.changed.retain(|(of, _)| *of != session);
        self.changed.push((session, tally));
    }

    /// Returns the number of heartbeats of a session; 0 for a session that is not counted here.
    pub(crate) fn beat_count(&mut self, session: SessionId) -> u64 {
        self.of(session).map_or(0, |tally| tally.beat_count())
    }

    pub(crate) fn give(&mut self, key: i64, session: SessionId, epoch: Epoch) {
        if let Some(tally) = self.of(session) {
            tally.give(unsigned(key), epoch);
        }
    }

    /// Counts the lease that an execution is born with.
    pub(crate) fn bear(&mut self, key: i64, session: SessionId, epoch: Epoch) {
        if let Some(tally) = self.of(session) {
            let beat = tally.give(unsigned(key), epoch);
            self.newborns.add(session, key, beat);
        }
    }

    pub(crate) fn end(&mut self, key: i64, given: Given) {
        if let Some(tally) = self.of(given.session) {
            tally.end(unsigned(key), given.epoch, given.beat);
            self.newborns.remove(given.session, key);
        }
    }

    /// Returns the tally of a session in the current transaction. After a commit of unknown outcome
    /// there is none, until the next heartbeat.
    pub(crate) fn of(&mut self, session: SessionId) -> Option<&mut Tally> {
        let known = self.changed.iter().position(|(of, _)| *of == session);
        let index = match known {
            Some(index) => index,
            None => {
                let tally = *self.durable.get(&session)?;
                self.changed.push((session, Some(tally)));
                self.changed.len() - 1
            }
        };
        self.changed[index].1.as_mut()
    }

    /// Saves the changes before a savepoint.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.changed.clone(), self.newborns.mark())
    }

    /// Restores the changes after a rollback to the savepoint.
    pub(crate) fn undo_to(&mut self, mark: Mark) {
        self.changed = mark.0;
        self.newborns.undo_to(mark.1);
    }

    /// Keeps the changes after COMMIT.
    pub(crate) fn keep(&mut self) {
        self.newborns.keep();
        for (session, tally) in self.changed.drain(..) {
            match tally {
                Some(tally) => self.durable.insert(session, tally),
                None => self.durable.remove(&session),
            };
        }
    }

    /// Drops the changes after ROLLBACK.
    pub(crate) fn undo(&mut self) {
        self.changed.clear();
        self.newborns.undo_to(0);
    }

    /// Drops all tallies, because the outcome of the last transaction is unknown.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Counts the leases of a session from the rows. `taken` covers the leases that others have taken
/// from it so far; it is added because the comparison subtracts it again.
pub(crate) fn counted(
    connection: &Connection,
    session: SessionId,
    taken: Digest,
) -> rusqlite::Result<(Tally, newborns::Ordered)> {
    let mut statement = connection.prepare_cached(sql::SESSION_LEASES_AFTER)?;
    let mut rows = statement.query([place::held(session), -1, -1, -1])?;
    let (mut old, mut last_beat) = (taken, 0);
    let mut count = |key, epoch, beat| {
        old = old.plus(Digest::of(unsigned(key), epoch));
        last_beat = last_beat.max(beat);
    };
    while let Some(row) = rows.next()? {
        // An unreadable lease belongs to nobody.
        let (Ok(epoch), Ok(place)) = (epoch(row, 1), Place::read(row, 2)) else { continue };
        count(row.get(0)?, epoch, place.holder().map_or(0, |holder| holder.beat));
    }
    let mut newborns = newborns::Ordered::default();
    for newborns::Found { key, lease } in newborns::found(connection, session)? {
        // An unreadable lease belongs to nobody. But its row must be found when the session ends.
        newborns.insert(key, lease.map_or(0, |(_, beat)| beat));
        lease.into_iter().for_each(|(epoch, beat)| count(key, epoch, beat));
    }
    Ok((Tally::of(old, last_beat), newborns))
}

impl Batch<'_> {
    /// Takes a lease away from its holder.
    pub(crate) fn take_away(&mut self, key: i64, given: Given) -> rusqlite::Result<()> {
        if self.shared.notices.holds(given.session) {
            self.tallies.end(key, given);
            return Ok(());
        }
        // Another process counts the leases of that session, and reads this at its next heartbeat.
        let id = integer(given.session.0);
        let mut statement = self.connection.prepare_cached(sql::SESSION_TAKEN)?;
        let taken = statement.query_row([id], |row| number(row, 0)).optional()?.flatten();
        // A session that is gone or unreadable is over: there is nobody to inform.
        let Some(taken) = taken else { return Ok(()) };
        let taken = taken_digest(taken).plus(Digest::of(unsigned(key), given.epoch));
        let mut statement = self.connection.prepare_cached(sql::SESSION_TAKE)?;
        statement.execute([id, taken.0.cast_signed()])?;
        Ok(())
    }
}

/// Returns the digest of the leases that others took from a session, from its row.
pub(crate) fn taken_digest(taken: i64) -> Digest {
    Digest(taken.cast_unsigned())
}
