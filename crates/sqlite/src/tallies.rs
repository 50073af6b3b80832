//! What the sessions of this store hold, counted for their heartbeats.
//!
//! Unlike what is in [`crate::caches`], it outlives what others write: counting 100,000 leases anew with each heartbeat would hold up the writer for
//! longer than everything else. That is sound because a session is given leases by its own store alone; whoever else takes one from it writes that
//! into the session's row (`taken`), which each heartbeat reads.

use abide_core::{Digest, Epoch, SessionId, Tally};
use rusqlite::{Connection, OptionalExtension};

use crate::batch::Batch;
use crate::caches::BySession;
use crate::place::{self, Place};
use crate::rows::{epoch, integer, number, unsigned};
use crate::sql;

/// The tallies, as they were when the last transaction ended, and as they are in the one under way.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    durable: BySession<Tally>,
    /// Of the sessions that the transaction under way concerns, mostly one; `None` for one that it ends.
    changed: Vec<(SessionId, Option<Tally>)>,
}

/// What a transaction has changed so far.
pub(crate) struct Mark(Vec<(SessionId, Option<Tally>)>);

/// A lease that is given by moving an execution to the place of its holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) session: SessionId,
    pub(crate) epoch: Epoch,
    /// After how many heartbeats of the session.
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

    /// How many heartbeats a session has given; 0 of one that is not counted here.
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

    /// The tally of a session in the transaction under way. After a commit of unknown outcome there is none, until the next heartbeat.
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

    /// Before a savepoint.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.changed.clone())
    }

    /// After a rollback to the savepoint.
    pub(crate) fn undo_to(&mut self, mark: Mark) {
        self.changed = mark.0;
    }

    /// After COMMIT.
    pub(crate) fn keep(&mut self) {
        for (session, tally) in self.changed.drain(..) {
            match tally {
                Some(tally) => self.durable.insert(session, tally),
                None => self.durable.remove(&session),
            };
        }
    }

    /// After ROLLBACK.
    pub(crate) fn undo(&mut self) {
        self.changed.clear();
    }

    /// Nobody knows whether the last transaction happened.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Counts what a session holds, from the rows. `taken` is what others took from it so far: it is taken away again by whoever compares.
pub(crate) fn counted(connection: &Connection, session: SessionId, taken: Digest) -> rusqlite::Result<Tally> {
    let mut statement = connection.prepare_cached(sql::SESSION_LEASES_AFTER)?;
    let mut rows = statement.query([place::held(session), -1, -1, -1])?;
    let (mut old, mut beat_count) = (taken, 0);
    while let Some(row) = rows.next()? {
        // A lease that cannot be read is nobody's.
        let (Ok(epoch), Ok(place)) = (epoch(row, 1), Place::read(row, 2)) else { continue };
        old = old.plus(Digest::of(unsigned(row.get(0)?), epoch));
        let beat = place.holder().map_or(0, |holder| holder.beat);
        beat_count = beat_count.max(beat + 1);
    }
    Ok(Tally::of(old, beat_count))
}

impl Batch<'_> {
    /// A lease is taken away from whoever holds it.
    pub(crate) fn take_away(&mut self, key: i64, given: Given) -> rusqlite::Result<()> {
        if self.shared.notices.holds(given.session) {
            self.tallies.end(key, given);
            return Ok(());
        }
        // Another process counts what that session holds, and reads this with its next heartbeat.
        let id = integer(given.session.0);
        let mut statement = self.connection.prepare_cached(sql::SESSION_TAKEN)?;
        let taken = statement.query_row([id], |row| number(row, 0)).optional()?.flatten();
        // A session that is gone, or cannot be read, is over: nobody is left to be told.
        let Some(taken) = taken else { return Ok(()) };
        let taken = taken_digest(taken).plus(Digest::of(unsigned(key), given.epoch));
        let mut statement = self.connection.prepare_cached(sql::SESSION_TAKE)?;
        statement.execute([id, taken.0.cast_signed()])?;
        Ok(())
    }
}

/// What others took from a session, as its row has it.
pub(crate) fn taken_digest(taken: i64) -> Digest {
    Digest(taken.cast_unsigned())
}
