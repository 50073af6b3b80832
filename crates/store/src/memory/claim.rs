//! Leases for sessions that claim.

use abide_core::{Epoch, Message, SessionId, Timestamp, care, codec};

use super::row::QueuePosition;
use super::state::MemoryState;
use crate::{Claim, Claimed, ExecutionKey, Leased, Opening, Result};

impl MemoryState {
    pub(super) fn claim(&mut self, claim: &Claim, now: Timestamp) -> Result<Claimed> {
        // Checked before the sweep: a claim of a dead session changes nothing (P6).
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

    /// Makes executions that the session could run ready when their timers are due, as of the due
    /// time.
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
            && bytes < self.page_bounds.claim_bytes_max
            && let Some(key) = self.first_for(claim.session)
        {
            bytes += self.lease(key, claim.session, now);
            given.push((key, self.row(key).lease.epoch));
        }
        let session = self.sessions.get_mut(&claim.session).expect("it was found to be live");
        session.request = claim.request;
        session.given = given;
    }

    /// Grants a lease. Returns the size of the journal and the inbox that go with it.
    fn lease(&mut self, key: ExecutionKey, session: SessionId, now: Timestamp) -> usize {
        let bounds = self.bounds.clone();
        self.change(key, |row| row.lease_to(session, &bounds, now));
        size(&self.row(key).leased(&self.page_bounds))
    }

    /// Looks at executions whose `care_at` has come, one after the other, and leases those that
    /// need a caretaker.
    fn give_care(&mut self, claim: &Claim, now: Timestamp) {
        let mut given = Vec::new();
        let mut bytes = 0;
        while given.len() < claim.care_slots
            && bytes < self.page_bounds.claim_bytes_max
            && let Some((care_at, key)) = self.first_care(claim.session)
            && care_at <= now
        {
            match self.row(key).look(&self.bounds, now) {
                care::Look::Take => {
                    bytes += self.lease(key, claim.session, now);
                    given.push((key, self.row(key).lease.epoch));
                }
                care::Look::Later(at) => self.change(key, |row| row.summary.care_at = at),
            }
        }
        self.sessions.get_mut(&claim.session).expect("it was found to be live").given_care = given;
    }

    /// Returns the next execution to look at in the session's namespace.
    fn first_care(&self, session: SessionId) -> Option<(Timestamp, ExecutionKey)> {
        let namespace = &self.sessions.get(&session)?.worker.ability.namespace;
        self.cares.get(namespace)?.first().copied()
    }

    /// Returns the first execution in the queues that the session serves.
    fn first_for(&self, session: SessionId) -> Option<ExecutionKey> {
        let ability = &self.sessions.get(&session)?.worker.ability;
        let queues = self.queues.iter().filter(|(route, _)| ability.serves(route));
        let first: Option<&QueuePosition> = queues.filter_map(|(_, queue)| queue.first()).min();
        first.map(|(_, _, key)| *key)
    }

    fn claimed(&self, claim: &Claim, now: Timestamp) -> Claimed {
        let session = self.sessions.get(&claim.session).expect("it was found to be live");
        // An older request than the last returns no leases: nobody waits for its answer any more.
        let is_last = claim.request == session.request;
        let is_held = |(key, epoch): &&(ExecutionKey, Epoch)| {
            is_last && session.held.contains(key) && self.row(*key).lease.epoch == *epoch
        };
        let told = |given: &[(ExecutionKey, Epoch)]| -> Vec<Leased> {
            let still_held = given.iter().filter(is_held);
            still_held.map(|(key, _)| self.row(*key).leased(&self.page_bounds)).collect()
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
            intake: claim.sweep && !self.intake.is_empty(),
        }
    }

    fn next_wake_at(&self, session: SessionId, now: Timestamp) -> Option<Timestamp> {
        let ability = &self.sessions.get(&session)?.worker.ability;
        let mut future = self.timers.iter().filter(|(wake_at, _)| *wake_at > now);
        let served = future.find(|(_, key)| ability.serves(&self.row(*key).route));
        served.map(|(wake_at, _)| *wake_at)
    }
}

/// Returns the size that counts towards the bound of a claim.
fn size(leased: &Leased) -> usize {
    let journal: usize = match &leased.opening {
        Opening::Born(entry) => entry.encode().len(),
        Opening::Page(records) => records.iter().map(|record| record.bytes.len()).sum(),
    };
    journal + leased.inbox.messages.iter().map(message_size).sum::<usize>()
}

/// Returns the size that a message has on disk.
pub(super) fn message_size(message: &Message) -> usize {
    codec::encode(message).len()
}
