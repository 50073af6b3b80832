//! Executions that were born leased and have had no commit since.
//!
//! Most executions are short, and their first commit is their last one. The index of places would
//! gain a row at their birth and lose it at their end, which is a fifth of SQLite's work for them.
//! So the place of such an execution is the negative of its holder's, and the index leaves it out.
//! An execution *settles* when it gets its positive place: with its first commit, with its first
//! message, or when it is two heartbeats old.
//!
//! The end of a session has to find them without the index. Keys only grow, so it looks at the rows
//! from `newborn_from` on, which the session's row says. That number is never too high:
//!
//! - Only the store that registered a session leases newborns to it, and knows all of them here.
//! - Each heartbeat writes the lowest key among them, in the transaction that it belongs to. A
//!   later newborn has a greater key.
//! - When a transaction is undone, the changes here are undone with it. When its outcome is
//!   unknown, everything here is forgotten, and the next heartbeat counts the rows.
//!
//! It is seldom much too low, because old newborns settle.

mod ordered;

use abide_core::planted::{Bug, planted};
use abide_core::{Epoch, SessionId};
use rusqlite::{Connection, OptionalExtension};

use crate::batch::Batch;
use crate::caches::BySession;
use crate::error::Stop;
use crate::place::{self, Holder, Place};
use crate::rows::{integer, number};
use crate::sql;

pub(crate) use ordered::Ordered;

/// The most newborns that settle with one heartbeat.
const SETTLED_COUNT_MAX: usize = 128;

#[derive(Debug, Default)]
pub(crate) struct Newborns {
    known: BySession<Ordered>,
    /// The changes of the current transaction, to be undone with it.
    changes: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Opened(SessionId),
    Closed(SessionId, Ordered),
    Added(SessionId, i64),
    Removed(SessionId, i64, u64),
}

impl Newborns {
    /// Begins to keep the newborns of a session.
    pub(crate) fn open(&mut self, session: SessionId, known: Ordered) {
        self.close(session);
        self.known.insert(session, known);
        self.changes.push(Change::Opened(session));
    }

    pub(crate) fn close(&mut self, session: SessionId) {
        if let Some(known) = self.known.remove(&session) {
            self.changes.push(Change::Closed(session, known));
        }
    }

    /// Adds a newborn, unless its session is to be counted anew.
    pub(crate) fn add(&mut self, session: SessionId, key: i64, beat: u64) {
        if let Some(known) = self.known.get_mut(&session) {
            known.insert(key, beat);
            self.changes.push(Change::Added(session, key));
        }
    }

    /// Removes an execution that is no newborn any longer, if it was one.
    pub(crate) fn remove(&mut self, session: SessionId, key: i64) {
        let known = self.known.get_mut(&session);
        if let Some(beat) = known.and_then(|known| known.remove(key)) {
            self.changes.push(Change::Removed(session, key, beat));
        }
    }

    /// Returns the lowest key of a session's newborns.
    fn first(&self, session: SessionId) -> Option<i64> {
        self.known.get(&session)?.first()
    }

    /// Returns the key from which on a session has newborns, if they are known here. The number in
    /// the row of the session is as old as its last heartbeat.
    pub(crate) fn all_from(&self, session: SessionId) -> Option<i64> {
        self.known.get(&session).map(|known| known.first().unwrap_or(i64::MAX))
    }

    /// Returns the newborns of a session that are old enough to settle, up to a bound.
    fn old(&self, session: SessionId, beat_count: u64) -> Vec<i64> {
        let known = self.known.get(&session).into_iter().flat_map(Ordered::iter);
        let old = known.take_while(|(_, beat)| beat + 2 <= beat_count);
        old.take(SETTLED_COUNT_MAX).map(|(key, _)| key).collect()
    }

    pub(crate) fn mark(&self) -> usize {
        self.changes.len()
    }

    /// Undoes the changes since a mark.
    pub(crate) fn undo_to(&mut self, mark: usize) {
        if planted(Bug::NewbornsNotUndone) {
            return self.changes.truncate(mark);
        }
        for change in self.changes.drain(mark..).rev() {
            match change {
                Change::Opened(session) => _ = self.known.remove(&session),
                Change::Closed(session, known) => _ = self.known.insert(session, known),
                Change::Added(session, key) => {
                    self.known.entry(session).and_modify(|known| _ = known.remove(key));
                }
                Change::Removed(session, key, beat) => {
                    self.known.entry(session).and_modify(|known| known.insert(key, beat));
                }
            }
        }
    }

    /// Keeps the changes after COMMIT.
    pub(crate) fn keep(&mut self) {
        self.changes.clear();
    }
}

/// The row of a newborn.
pub(crate) struct Found {
    pub(crate) key: i64,
    /// Its epoch and the number of heartbeats before its birth, if they can be read.
    pub(crate) lease: Option<(Epoch, u64)>,
}

/// Returns the newborns of a session from their rows.
pub(crate) fn found(connection: &Connection, session: SessionId) -> rusqlite::Result<Vec<Found>> {
    let mut statement = connection.prepare_cached(sql::NEWBORNS_AFTER)?;
    let from = from(connection, session)?;
    let mut rows = statement.query([place::newborn(session), from, -1, -1])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let lease = match (crate::rows::epoch(row, 1), Place::read(row, 2)) {
            (Ok(epoch), Ok(place)) => Some((epoch, place.holder().map_or(0, |holder| holder.beat))),
            _ => None,
        };
        found.push(Found { key: row.get(0)?, lease });
    }
    Ok(found)
}

/// Returns the key from which on a session has newborns. All rows are looked at for a session whose
/// row cannot tell.
pub(crate) fn from(connection: &Connection, session: SessionId) -> rusqlite::Result<i64> {
    let mut statement = connection.prepare_cached(sql::SESSION_NEWBORN_FROM)?;
    let from = statement.query_row([integer(session.0)], |row| number(row, 0)).optional()?;
    Ok(from.flatten().unwrap_or(0))
}

impl Batch<'_> {
    /// Moves a newborn to its place in the index. Does nothing for any other execution.
    pub(crate) fn settle(&mut self, (key, epoch): (i64, Option<Epoch>), place: Place) -> Result<(), Stop> {
        let newborn = place.holder().filter(|holder| holder.is_newborn);
        let Some(holder) = newborn.filter(|_| !planted(Bug::NewbornUnsettled)) else { return Ok(()) };
        self.relocate((key, epoch), (place, Place::Held(holder.settled())))?;
        self.settled(key, holder.session);
        Ok(())
    }

    fn settled(&mut self, key: i64, session: SessionId) {
        self.tallies.newborns.remove(session, key);
        if let Some(cached) = self.caches.rows.get_mut(&key) {
            cached.state.is_newborn = false;
        }
    }

    /// Settles the old newborns of a session after a heartbeat, and writes from where on there are
    /// others.
    pub(crate) fn settle_old(&mut self, session: SessionId, beat_count: u64) -> Result<(), Stop> {
        for key in self.tallies.newborns.old(session, beat_count) {
            // Another process may have taken it, or settled it by a message.
            let mut settle = self.connection.prepare_cached(sql::NEWBORN_SETTLE)?;
            settle.execute([key, place::newborn(session)])?;
            drop(settle);
            self.caches.targets.remove(&key);
            self.settled(key, session);
        }
        let from = match self.tallies.newborns.first(session) {
            Some(first) if !planted(Bug::NewbornsPassedOver) => first,
            _ => self.caches.execution_key_max(self.connection)? + 1,
        };
        self.connection.prepare_cached(sql::SESSION_RAISE)?.execute([integer(session.0), from])?;
        Ok(())
    }
}

impl Holder {
    /// Returns the holder of the same execution in the index.
    pub(crate) fn settled(self) -> Self {
        Self { is_newborn: false, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use abide_core::{Body, Digest, Payload};
    use abide_store::conformance::block_on;
    use abide_store::{Beat, Claim, Heartbeat, Leases, Store, Submit, Submitted, View};

    use super::*;
    use crate::SqliteStore;
    use crate::fixture::{inside, message, name, pair, register, start_of, submit, try_submit};

    /// Starts an execution that is born to the session, and returns its key.
    fn born(store: &SqliteStore, session: SessionId, id: &str) -> i64 {
        let submit =
            Submit { messages: vec![start_of(id)], born_to: Some(session), alone: false, stretch: None };
        match block_on(store.submit(submit)).unwrap().pop() {
            Some(Submitted::Started(key, Some(_))) => integer(key.0),
            other => panic!("not born leased: {other:?}"),
        }
    }

    fn beat(store: &SqliteStore, session: SessionId) {
        let digest = Some(Digest::default());
        let beat = block_on(store.heartbeat(Beat { digest, ..Beat::of(session) })).unwrap();
        assert!(matches!(beat, Heartbeat::Refreshed { .. }), "{beat:?}");
    }

    fn is_newborn(store: &SqliteStore, key: i64) -> bool {
        let place = move |batch: &mut Batch<'_>| {
            let mut statement = batch.connection.prepare_cached(sql::EXECUTION_PLACE)?;
            Ok(statement.query_row([key], |row| Place::read(row, 1))?)
        };
        inside(store, place).unwrap().holder().expect("it is held").is_newborn
    }

    fn from_of(store: &SqliteStore, session: SessionId) -> i64 {
        inside(store, move |batch| Ok(from(batch.connection, session)?)).unwrap()
    }

    fn leases(store: &Arc<SqliteStore>, session: SessionId, limit: usize) -> Vec<u64> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = block_on(store.leases(Leases { session, after, limit })).unwrap();
            found.extend(page.leases.iter().map(|held| held.key.0));
            after = page.next;
            if after.is_none() {
                return found;
            }
        }
    }

    /// Returns how many executions a new session can claim.
    fn claimed_count(store: &SqliteStore) -> usize {
        let session = register(store, "default");
        let claim = Claim { session, request: 1, slots: 9, care_slots: 0, with_mail: false, sweep: false };
        block_on(store.claim(claim)).unwrap().leased.len()
    }

    #[test]
    fn newborns_settle_at_their_second_heartbeat() {
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        let first = born(&ours, session, "a");
        assert!(is_newborn(&ours, first));
        assert_eq!(from_of(&ours, session), first);
        beat(&ours, session);
        let second = born(&ours, session, "b");
        assert!(is_newborn(&ours, first) && from_of(&ours, session) == first);
        beat(&ours, session);
        assert!(!is_newborn(&ours, first) && is_newborn(&ours, second));
        assert_eq!(from_of(&ours, session), second);
        beat(&ours, session);
        assert!(!is_newborn(&ours, second));
        assert_eq!(from_of(&ours, session), second + 1, "the next one has this key");
    }

    #[test]
    fn newborns_that_are_not_settled_yet_hold_the_search_back() {
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        let keys: Vec<_> =
            (0..=SETTLED_COUNT_MAX).map(|nth| born(&ours, session, &format!("{nth}"))).collect();
        beat(&ours, session);
        beat(&ours, session);
        let last = keys[SETTLED_COUNT_MAX];
        assert!(!is_newborn(&ours, keys[0]) && is_newborn(&ours, last));
        assert_eq!(from_of(&ours, session), last);
    }

    #[test]
    fn every_lease_is_listed_however_large_the_pages_are() {
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        for id in ["a", "b", "c"] {
            born(&ours, session, id);
        }
        beat(&ours, session);
        beat(&ours, session);
        for id in ["d", "e", "f"] {
            born(&ours, session, id);
        }
        for limit in [1, 2, 3, 4, 100] {
            let mut found = leases(&ours, session, limit);
            found.sort_unstable();
            assert_eq!(found, [1, 2, 3, 4, 5, 6], "pages of {limit}");
        }
    }

    /// The search for mail of held executions goes through the index.
    #[test]
    fn a_message_of_any_sender_settles_a_newborn() {
        for is_theirs in [false, true] {
            let (_folder, ours, theirs) = pair();
            let session = register(&ours, "default");
            let key = born(&ours, session, "a");
            let signal = Body::Signal { name: name("s"), payload: Payload::from("1") };
            submit(if is_theirs { &theirs } else { &ours }, message("m", "a", signal));
            assert!(!is_newborn(&ours, key), "theirs: {is_theirs}");
        }
    }

    #[test]
    fn a_refused_start_is_no_newborn() {
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        let signal = Body::Signal { name: name("s"), payload: Payload::from("1") };
        let messages = vec![start_of("a"), message("m", "unknown", signal)];
        block_on(ours.submit(Submit { messages, born_to: Some(session), alone: false, stretch: None }))
            .unwrap_err();
        let known = inside(&ours, move |batch| Ok(batch.tallies.newborns.first(session)));
        assert_eq!(known.unwrap(), None);
        try_submit(&ours, start_of("b")).unwrap();
    }

    /// After a commit of unknown outcome, nobody knows which newborns there are.
    #[test]
    fn newborns_are_found_again_by_their_rows() {
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        let key = born(&ours, session, "a");
        let forget = |batch: &mut Batch<'_>| {
            batch.tallies.forget();
            Ok(())
        };
        inside(&ours, forget).unwrap();
        let later = born(&ours, session, "b");
        assert!(is_newborn(&ours, key) && is_newborn(&ours, later));
        // Counted from the rows, no lease is younger than the last heartbeat.
        beat(&ours, session);
        assert!(!is_newborn(&ours, key) && !is_newborn(&ours, later));
        assert_eq!(from_of(&ours, session), later + 1);
    }

    #[test]
    fn a_session_that_ends_looks_at_no_row_before_its_newborns() {
        let (_folder, ours, theirs) = pair();
        let session = register(&ours, "default");
        let keys = ["a", "b", "c"].map(|id| born(&ours, session, id));
        let first_end = move |batch: &mut Batch<'_>| {
            let tallies = &mut batch.tallies;
            tallies.newborns.remove(session, keys[0]);
            Ok((tallies.newborns.all_from(session), from(batch.connection, session)?, keys[1]))
        };
        let (known, written, second) = inside(&ours, first_end).unwrap();
        assert_eq!((known, written), (Some(second), second - 1));
        // Others know only the number in the row.
        let of_others = inside(&theirs, move |batch| Ok(batch.tallies.newborns.all_from(session)));
        assert_eq!(of_others.unwrap(), None);
    }

    /// A session that counts its leases anew does not know whose lease a damaged row shows.
    #[test]
    fn a_damaged_newborn_is_not_lost_when_its_session_ends() {
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        let key = born(&ours, session, "a");
        let damage = |batch: &mut Batch<'_>| {
            batch.connection.execute_batch("UPDATE abide_executions SET epoch = 'x'")?;
            batch.tallies.forget();
            Ok(())
        };
        inside(&ours, damage).unwrap();
        beat(&ours, session);
        let reason = "it is over".to_owned();
        block_on(ours.retire(abide_store::Retire { session, reason })).unwrap();
        let place = move |batch: &mut Batch<'_>| {
            let mut statement = batch.connection.prepare_cached(sql::EXECUTION_PLACE)?;
            Ok(statement.query_row([key], |row| Place::read(row, 1))?)
        };
        assert!(matches!(inside(&ours, place).unwrap(), Place::Ready(..)));
    }

    #[test]
    fn a_newborn_that_the_end_of_its_session_would_not_find_is_told() {
        let (_folder, ours, theirs) = pair();
        let session = register(&ours, "default");
        born(&ours, session, "a");
        assert!(theirs.verify().unwrap().is_sound());
        let damage = |batch: &mut Batch<'_>| {
            let text = "UPDATE abide_sessions SET newborn_from = newborn_from + 1024";
            Ok(batch.connection.execute_batch(text)?)
        };
        inside(&ours, damage).unwrap();
        let problems = theirs.verify().unwrap().problems;
        let expected = format!("the end of session {session} would not find it");
        assert!(problems.iter().any(|problem| problem.contains(&expected)), "{problems:?}");
        // The next sign of life says it anew.
        beat(&ours, session);
        assert!(theirs.verify().unwrap().is_sound());
        // There is none of a dead process. A repair makes the execution ready for others.
        inside(&ours, damage).unwrap();
        ours.close();
        drop(ours);
        let repairs = block_on(theirs.repair()).unwrap();
        assert!(repairs.left.is_empty(), "{repairs:?}");
        assert!(theirs.verify().unwrap().is_sound());
        assert_eq!(claimed_count(&theirs), 1);
    }

    /// A commit or a message settles a newborn. If that is undone, a death must find it.
    #[test]
    fn what_is_undone_leaves_newborns_as_they_were() {
        let (_folder, ours, theirs) = pair();
        let session = register(&ours, "default");
        let key = born(&ours, session, "a");
        let settle_and_fail = move |batch: &mut Batch<'_>| -> Result<(), Stop> {
            batch.tallies.newborns.remove(session, key);
            Err(Stop::corrupt("it is undone".to_owned()))
        };
        inside(&ours, settle_and_fail).unwrap_err();
        let first = inside(&ours, move |batch| Ok(batch.tallies.newborns.first(session))).unwrap();
        assert_eq!(first, Some(key));
        beat(&ours, session);
        assert!(theirs.verify().unwrap().is_sound());
    }

    #[test]
    fn the_newborns_of_a_session_that_ends_are_ready_for_others() {
        let (_folder, ours, theirs) = pair();
        let session = register(&ours, "default");
        born(&ours, session, "old");
        beat(&ours, session);
        beat(&ours, session);
        born(&ours, session, "young");
        let reason = "it is over".to_owned();
        block_on(theirs.retire(abide_store::Retire { session, reason })).unwrap();
        assert_eq!(claimed_count(&theirs), 2);
    }
}
