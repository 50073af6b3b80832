//! What this process remembers of the sessions that it serves.
//!
//! A process grants the leases of its own sessions, and learns of each that ends. So it counts
//! them, and a heartbeat compares its count with that of the session: it reads no lease, however
//! many there are. Three things make it read them once:
//!
//! - The two counts differ. The leases in the database decide, and the count begins anew with them.
//! - An answer was lost that may have granted or ended a lease.
//! - A caretaker of another process has taken a lease. It leaves a mark in the row of the session.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use abide_core::{Digest, Epoch, Lease, SessionId, Tally};
use abide_store::{
    Aside, Claimed, Commit, CommitOutcome, Committed, Error, ExecutionKey, Hold, Leased, Result, Submissions,
    Submit, Submitted,
};

#[derive(Default)]
pub(crate) struct Tallies(Mutex<HashMap<SessionId, Seat>>);

/// One session.
#[derive(Default)]
struct Seat {
    /// The number of its last claim.
    request: i64,
    /// Its leases; `None` when they have to be read.
    count: Option<Count>,
}

#[derive(Default)]
struct Count {
    tally: Tally,
    /// The epoch of each lease, and the heartbeats before it. A second answer counts nothing.
    held: HashMap<ExecutionKey, (Epoch, u64)>,
    /// How many leases others had taken when the count began.
    taken: i64,
}

impl Count {
    fn give(&mut self, key: ExecutionKey, epoch: Epoch) {
        if self.held.get(&key).is_some_and(|(known, _)| *known >= epoch) {
            return;
        }
        let given_beat = self.tally.give(key.0, epoch);
        if let Some((old, beat)) = self.held.insert(key, (epoch, given_beat)) {
            self.tally.end(key.0, old, beat);
        }
    }

    fn end(&mut self, key: ExecutionKey, epoch: Epoch) {
        if let Some((_, beat)) = self.held.remove(&key) {
            self.tally.end(key.0, epoch, beat);
        }
    }
}

/// A lease as the database has it.
pub(crate) struct Granted {
    pub(crate) key: ExecutionKey,
    pub(crate) epoch: Epoch,
    pub(crate) given_beat: u64,
}

/// The row of a session, after a heartbeat.
pub(crate) struct Beaten {
    pub(crate) beat_count: u64,
    pub(crate) taken: i64,
}

impl Tallies {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Seat>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a new session.
    pub(crate) fn open(&self, session: SessionId) {
        self.lock().insert(session, Seat { request: 0, count: Some(Count::default()) });
    }

    /// Forgets a session that is over.
    pub(crate) fn end(&self, session: SessionId) {
        self.lock().remove(&session);
    }

    /// Returns the number of the last claim of a session, if this process has seen one or has
    /// registered the session.
    pub(crate) fn last_request(&self, session: SessionId) -> Option<i64> {
        self.lock().get(&session).map(|seat| seat.request)
    }

    /// Remembers a claim before it leases anything: a repetition is answered with its leases.
    pub(crate) fn ask(&self, session: SessionId, request: i64) {
        self.lock().entry(session).or_default().request = request;
    }

    /// Counts a heartbeat. Returns the digest of the leases that are old enough for it, if it is
    /// known.
    pub(crate) fn beat(&self, session: SessionId, taken: i64) -> Option<Digest> {
        let mut seats = self.lock();
        let count = seats.get_mut(&session)?.count.as_mut()?;
        (count.taken == taken).then(|| count.tally.beat())
    }

    /// Begins the count of a session anew, with the leases that it has after a heartbeat. One that
    /// is granted at this moment may be missing, and makes the next heartbeat begin anew.
    pub(crate) fn begin(&self, session: SessionId, leases: &[Granted], beaten: &Beaten) {
        // The leases of the last heartbeats are given one heartbeat after the other.
        let from = if beaten.beat_count < 4 { 0 } else { beaten.beat_count - 2 };
        let old = leases.iter().filter(|lease| lease.given_beat < from);
        let mut tally = match from {
            0 => Tally::default(),
            _ => Tally::of(digest(old), from - 2),
        };
        for beat in from..=beaten.beat_count {
            if beat > from {
                tally.beat();
            }
            for lease in leases.iter().filter(|lease| lease.given_beat == beat) {
                tally.give(lease.key.0, lease.epoch);
            }
        }
        let held = leases.iter().map(|lease| (lease.key, (lease.epoch, lease.given_beat))).collect();
        let count = Count { tally, held, taken: beaten.taken };
        if let Some(seat) = self.lock().get_mut(&session) {
            seat.count = Some(count);
        }
    }

    /// Counts the leases that a submit has granted.
    pub(crate) fn submitted(&self, asked: &Asked, answer: &Result<Submissions>) {
        let Some(session) = asked.session else { return };
        let Some(submissions) = self.known(answer) else { return };
        for submitted in submissions {
            match submitted {
                Submitted::Started(_, Some(leased)) => self.give(std::slice::from_ref(leased.as_ref())),
                Submitted::Begun(key, begun) => {
                    if begun.is_err() || !asked.leaves {
                        self.change(session, |count| count.give(*key, Epoch(1)));
                    }
                    begun.iter().for_each(|committed| self.born(committed));
                }
                _ => {}
            }
        }
    }

    /// Counts the leases that a commit has granted and ended.
    pub(crate) fn committed(&self, key: ExecutionKey, asked: &Asked, answer: &Result<CommitOutcome>) {
        let Some(CommitOutcome::Committed(committed)) = self.known(answer) else { return };
        if let (true, Some(session)) = (asked.leaves, asked.session) {
            self.change(session, |count| count.end(key, asked.epoch));
        }
        self.born(committed);
    }

    pub(crate) fn claimed(&self, answer: &Result<Claimed>) {
        if let Some(claimed) = self.known(answer) {
            self.give(&claimed.leased);
            self.give(&claimed.care);
        }
    }

    pub(crate) fn set_aside(&self, aside: &Aside, answer: &Result<()>) {
        if self.known(answer).is_some() {
            let Lease { session, epoch } = aside.lease;
            self.change(session, |count| count.end(aside.key, epoch));
        }
    }

    /// Returns an answer. After an error that may hide a grant, no count is known.
    fn known<'a, T>(&self, answer: &'a Result<T>) -> Option<&'a T> {
        if !matches!(answer, Ok(_) | Err(Error::Refused(_))) {
            self.lock().values_mut().for_each(|seat| seat.count = None);
        }
        answer.as_ref().ok()
    }

    fn change(&self, session: SessionId, change: impl FnOnce(&mut Count)) {
        if let Some(count) = self.lock().get_mut(&session).and_then(|seat| seat.count.as_mut()) {
            change(count);
        }
    }

    fn give(&self, leases: &[Leased]) {
        for Leased { key, lease, .. } in leases {
            self.change(lease.session, |count| count.give(*key, lease.epoch));
        }
    }

    fn born(&self, committed: &Committed) {
        for Leased { key, lease, .. } in committed.born.iter().map(AsRef::as_ref) {
            self.change(lease.session, |count| count.give(*key, lease.epoch));
        }
    }
}

pub(crate) fn digest<'a>(leases: impl Iterator<Item = &'a Granted>) -> Digest {
    leases.fold(Digest::default(), |sum, lease| sum.plus(Digest::of(lease.key.0, lease.epoch)))
}

/// What an operation asks of a lease.
pub(crate) struct Asked {
    session: Option<SessionId>,
    epoch: Epoch,
    /// Whether a commit leaves its lease.
    leaves: bool,
}

impl Asked {
    pub(crate) fn by_submit(submit: &Submit) -> Self {
        let first = submit.stretch.as_ref().and_then(|stretch| stretch.commit.as_ref());
        Self { session: submit.born_to, epoch: Epoch(1), leaves: first.is_some_and(leaves) }
    }

    pub(crate) fn by_commit(commit: &Commit) -> Self {
        let Lease { session, epoch } = commit.lease;
        Self { session: Some(session), epoch, leaves: leaves(commit) }
    }
}

fn leaves(commit: &Commit) -> bool {
    commit.hold != Hold::Keep || commit.changes.summary.status.is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(7);

    fn granted(key: u64, given_beat: u64) -> Granted {
        Granted { key: ExecutionKey(key), epoch: Epoch(1), given_beat }
    }

    fn sum(keys: &[u64]) -> Option<Digest> {
        Some(keys.iter().fold(Digest::default(), |sum, key| sum.plus(Digest::of(*key, Epoch(1)))))
    }

    /// A count that begins anew goes on as one that has seen every lease.
    #[test]
    fn leases_that_are_read_are_as_old_as_they_are() {
        for beat_count in 0..6 {
            let (read, seen) = (Tallies::default(), Tallies::default());
            read.open(SESSION);
            seen.open(SESSION);
            let mut leases = Vec::new();
            for beat in 0..=beat_count {
                if beat > 0 {
                    seen.beat(SESSION, 0);
                }
                leases.push(granted(beat + 10, beat));
                seen.change(SESSION, |count| count.give(ExecutionKey(beat + 10), Epoch(1)));
            }
            read.begin(SESSION, &leases, &Beaten { beat_count, taken: 0 });
            for round in 0..4 {
                let both = [&read, &seen].map(|tallies| tallies.beat(SESSION, 0));
                assert_eq!(both[0], both[1], "after {beat_count} heartbeats and {round}");
            }
            for key in 10..=beat_count + 10 {
                read.change(SESSION, |count| count.end(ExecutionKey(key), Epoch(1)));
            }
            assert_eq!(read.beat(SESSION, 0), sum(&[]));
        }
    }

    #[test]
    fn a_lost_answer_and_a_lease_that_was_taken_end_the_count() {
        let tallies = Tallies::default();
        tallies.open(SESSION);
        assert_eq!(tallies.beat(SESSION, 0), sum(&[]));
        assert_eq!(tallies.beat(SESSION, 1), None, "somebody took a lease");
        tallies.claimed(&Err(Error::Busy { what: "claim" }));
        assert_eq!(tallies.beat(SESSION, 0), None, "nobody knows what was granted");
    }

    #[test]
    fn an_answer_that_comes_twice_counts_once() {
        let tallies = Tallies::default();
        tallies.open(SESSION);
        for _ in 0..2 {
            tallies.change(SESSION, |count| count.give(ExecutionKey(1), Epoch(1)));
            tallies.change(SESSION, |count| count.give(ExecutionKey(2), Epoch(1)));
        }
        for _ in 0..2 {
            tallies.beat(SESSION, 0);
        }
        assert_eq!(tallies.beat(SESSION, 0), sum(&[1, 2]));
        for _ in 0..2 {
            tallies.change(SESSION, |count| count.end(ExecutionKey(1), Epoch(1)));
        }
        assert_eq!(tallies.beat(SESSION, 0), sum(&[2]));
    }
}
