//! Leases for those who ask.

use abide_core::{Epoch, Message, SessionId, Timestamp, care, codec};

use super::row::Place;
use super::state::State;
use crate::{Claim, Claimed, ExecutionKey, Leased, Result};

impl State {
    pub(super) fn claim(&mut self, claim: &Claim, now: Timestamp) -> Result<Claimed> {
        // Before anything is swept: a session that is dead itself changes nothing (P6).
        let last_request = self.live(claim.session, now)?.request;
        if claim.sweep {
            self.sweep(now);
        }
        self.promote(claim.session, now);
        if claim.request > last_request {
            self.give(claim, now);
            self.give_care(claim, now);
        }
        Ok(self.claimed(claim, now))
    }

    /// Due timers of what the session could run make it ready, since when they were due.
    fn promote(&mut self, session: SessionId, now: Timestamp) {
        let ability = &self.sessions.get(&session).expect("it was found to be live").worker.ability;
        let due = self.timers.iter().take_while(|(wake_at, _)| *wake_at <= now);
        let served = due.filter(|(_, key)| ability.serves(&self.row(*key).route));
        let due: Vec<_> = served.copied().collect();
        for (wake_at, key) in due {
            self.change(key, |row| {
                row.ready_at = Some(wake_at);
                row.wake_at = None;
            });
        }
    }

    fn give(&mut self, claim: &Claim, now: Timestamp) {
        let mut given = Vec::new();
        let mut bytes = 0;
        while given.len() < claim.slots
            && bytes < self.bounds.claim_bytes_max
            && let Some(key) = self.first_for(claim.session)
        {
            bytes += self.lease(key, claim.session, now);
            given.push((key, self.row(key).lease.epoch));
        }
        let session = self.sessions.get_mut(&claim.session).expect("it was found to be live");
        session.request = claim.request;
        session.given = given;
    }

    /// Gives a lease; says how large what goes with it is.
    fn lease(&mut self, key: ExecutionKey, session: SessionId, now: Timestamp) -> usize {
        let limits = self.limits.clone();
        self.change(key, |row| row.lease_to(session, &limits, now));
        size(&self.row(key).leased(&self.bounds))
    }

    /// Looks at what is to be looked at, one after the other, and gives what a caretaker has to do something for.
    fn give_care(&mut self, claim: &Claim, now: Timestamp) {
        let mut given = Vec::new();
        let mut bytes = 0;
        while given.len() < claim.care_slots
            && bytes < self.bounds.claim_bytes_max
            && let Some((care_at, key)) = self.first_care(claim.session)
            && care_at <= now
        {
            match self.row(key).look(&self.limits, now) {
                care::Look::Take => {
                    bytes += self.lease(key, claim.session, now);
                    given.push((key, self.row(key).lease.epoch));
                }
                care::Look::Later(at) => self.change(key, |row| row.summary.care_at = at),
            }
        }
        self.sessions.get_mut(&claim.session).expect("it was found to be live").given_care = given;
    }

    /// What is next to be looked at in the namespace of the session.
    fn first_care(&self, session: SessionId) -> Option<(Timestamp, ExecutionKey)> {
        let namespace = &self.sessions.get(&session)?.worker.ability.namespace;
        self.cares.get(namespace)?.first().copied()
    }

    /// The first of the queues that the session serves.
    fn first_for(&self, session: SessionId) -> Option<ExecutionKey> {
        let ability = &self.sessions.get(&session)?.worker.ability;
        let queues = self.queues.iter().filter(|(route, _)| ability.serves(route));
        let first: Option<&Place> = queues.filter_map(|(_, queue)| queue.first()).min();
        first.map(|(_, _, key)| *key)
    }

    fn claimed(&self, claim: &Claim, now: Timestamp) -> Claimed {
        let session = self.sessions.get(&claim.session).expect("it was found to be live");
        // An older request than the last gives nothing: nobody waits for its answer any more.
        let is_last = claim.request == session.request;
        let is_held = |(key, epoch): &&(ExecutionKey, Epoch)| {
            is_last && session.held.contains(key) && self.row(*key).lease.epoch == *epoch
        };
        let told = |given: &[(ExecutionKey, Epoch)]| -> Vec<Leased> {
            let still_held = given.iter().filter(is_held);
            still_held.map(|(key, _)| self.row(*key).leased(&self.bounds)).collect()
        };
        let (leased, care) = (told(&session.given), told(&session.given_care));
        let is_new = |key: &ExecutionKey| leased.iter().chain(&care).any(|lease| lease.key == *key);
        let before = session.held.iter().filter(|key| !is_new(key));
        let newest = |key: &ExecutionKey| Some((*key, self.row(*key).inbox.last()?.1.id.clone()));
        Claimed {
            mail: before.filter(|_| claim.with_mail).filter_map(newest).collect(),
            leased,
            care,
            next_care_at: self.first_care(claim.session).map(|(care_at, _)| care_at),
            more: self.first_for(claim.session).is_some(),
            next_wake_at: self.next_wake_at(claim.session, now),
        }
    }

    fn next_wake_at(&self, session: SessionId, now: Timestamp) -> Option<Timestamp> {
        let ability = &self.sessions.get(&session)?.worker.ability;
        let mut future = self.timers.iter().filter(|(wake_at, _)| *wake_at > now);
        let served = future.find(|(_, key)| ability.serves(&self.row(*key).route));
        served.map(|(wake_at, _)| *wake_at)
    }
}

/// What counts towards the bound of a claim.
fn size(leased: &Leased) -> usize {
    let journal: usize = leased.journal.iter().map(|record| record.bytes.len()).sum();
    journal + leased.inbox.messages.iter().map(message_size).sum::<usize>()
}

/// How large a message is on disk, or would be.
pub(super) fn message_size(message: &Message) -> usize {
    codec::encode(message).len()
}
