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
}

/// The changes of a transaction up to a savepoint.
pub(crate) struct Mark(Vec<(SessionId, Option<Tally>)>);

/// A lease, as the place of its holder describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) session: SessionId,
    pub(crate) epoch: Epoch,
    /// The number of the session's heartbeats before the lease.
    pub(crate) beat: u64,
}

impl Tallies {
    pub(crate) fn open(&mut self, session: SessionId, tally: Tally) {
        self.close(session);
        self.changed.push((session, Some(tally)));
    }

    pub(crate) fn close(&mut self, session: SessionId) {
        self.changed.retain(|(of, _)| *of != session);
        self.changed.push((session, None));
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

    pub(crate) fn end(&mut self, key: i64, given: Given) {
        if let Some(tally) = self.of(given.session) {
            tally.end(unsigned(key), given.epoch, given.beat);
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
        Mark(self.changed.clone())
    }

    /// Restores the changes after a rollback to the savepoint.
    pub(crate) fn undo_to(&mut self, mark: Mark) {
        self.changed = mark.0;
    }

    /// Keeps the changes after COMMIT.
    pub(crate) fn keep(&mut self) {
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
    }

    /// Drops all tallies, because the outcome of the last transaction is unknown.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Counts the leases of a session from the rows. `taken` covers the leases that others have taken
/// from it so far; it is added because the comparison subtracts it again.
pub(crate) fn counted(connection: &Connection, session: SessionId, taken: Digest) -> rusqlite::Result<Tally> {
    let mut statement = connection.prepare_cached(sql::SESSION_LEASES_AFTER)?;
    let mut rows = statement.query([place::held(session), -1, -1, -1])?;
    let (mut old, mut beat_count) = (taken, 0);
    while let Some(row) = rows.next()? {
        // An unreadable lease belongs to nobody.
        let (Ok(epoch), Ok(place)) = (epoch(row, 1), Place::read(row, 2)) else { continue };
        old = old.plus(Digest::of(unsigned(row.get(0)?), epoch));
        let beat = place.holder().map_or(0, |holder| holder.beat);
        beat_count = beat_count.max(beat + 1);
    }
    Ok(Tally::of(old, beat_count))
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
