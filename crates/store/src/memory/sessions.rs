//! The worker registry.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use abide_core::{Digest, Epoch, Refusal, SessionId, Tally, Timestamp, check_reason};

use super::row::Row;
use super::state::MemoryState;
use crate::{
    Agreement, Aside, Beat, ExecutionKey, Heartbeat, HeldLease, LeaseCursor, LeasePage, Leases, Registered,
    Result, Retire, Worker, WorkerRow, Workers,
};

pub(super) struct Session {
    pub(super) worker: Worker,
    pub(super) registered_at: Timestamp,
    pub(super) expires_at: Timestamp,
    pub(super) retired: Option<String>,
    pub(super) is_draining: bool,
    pub(super) held: BTreeSet<ExecutionKey>,
    /// The same leases, counted for the heartbeat.
    pub(super) tally: Tally,
    /// The number of the last claim.
    pub(super) request: u64,
    /// The leases of the last claim.
    pub(super) given: Vec<(ExecutionKey, Epoch)>,
    /// The leases of the last claim that are for care.
    pub(super) given_care: Vec<(ExecutionKey, Epoch)>,
}

/// The way a session ended. Only a death makes the executions that it held suspects; an orderly end
/// does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It was retired.
    Orderly,
    /// Its time passed without a heartbeat.
    Death,
}

impl Session {
    fn is_live(&self, now: Timestamp) -> bool {
        self.retired.is_none() && now < self.expires_at
    }
}

impl MemoryState {
    pub(super) fn register(&mut self, worker: Worker, now: Timestamp) -> Registered {
        self.change_count += 1;
        let (session, expires_at) = (self.next_session(), now.after(worker.ttl));
        let made = Session {
            worker,
            registered_at: now,
            expires_at,
            retired: None,
            is_draining: false,
            held: BTreeSet::new(),
            tally: Tally::default(),
            request: 0,
            given: Vec::new(),
            given_care: Vec::new(),
        };
        self.sessions.insert(session, made);
        Registered { session, expires_at }
    }

    /// Returns the session, if it may write now.
    pub(super) fn live(&self, session: SessionId, now: Timestamp) -> Result<&Session> {
        let found = self.sessions.get(&session).filter(|found| found.is_live(now));
        found.ok_or_else(|| Refusal::Unsupported { what: format!("session {session} is not live") }.into())
    }

    pub(super) fn heartbeat(&mut self, beat: Beat, now: Timestamp) -> Heartbeat {
        // Summed lease by lease, to expose a change of a lease that was not counted.
        let old = cfg!(debug_assertions).then(|| self.old_leases(beat.session));
        match self.sessions.get_mut(&beat.session) {
            Some(found) if found.is_live(now) => {
                // A clock that was set back must not shorten the promised life.
                found.expires_at = found.expires_at.max(now.after(found.worker.ttl));
                found.is_draining |= beat.is_draining;
                let leases = match beat.digest {
                    None => Agreement::Agreed,
                    Some(believed) => {
                        let young_from = found.tally.young_from();
                        let held = found.tally.beat();
                        assert_eq!(held, old.unwrap_or(held), "session {} is counted", beat.session);
                        if held == believed { Agreement::Agreed } else { Agreement::Differs { young_from } }
                    }
                };
                Heartbeat::Refreshed { expires_at: found.expires_at, leases }
            }
            Some(_) | None => Heartbeat::NotRegistered,
        }
    }

    /// Returns the digest of a session's leases that are not young, summed lease by lease.
    fn old_leases(&self, session: SessionId) -> Digest {
        let Some(found) = self.sessions.get(&session) else { return Digest::default() };
        let rows = found.held.iter().map(|key| self.row(*key));
        let old = rows.filter(|row| row.given_beat < found.tally.young_from());
        old.fold(Digest::default(), |sum, row| sum.plus(Digest::of(row.key.0, row.lease.epoch)))
    }

    pub(super) fn leases(&self, leases: &Leases) -> LeasePage {
        let Some(found) = self.sessions.get(&leases.session) else { return LeasePage::default() };
        let after = leases
            .after
            .map_or(Bound::Unbounded, |LeaseCursor([key, ..])| Bound::Excluded(ExecutionKey(key)));
        let mut rest = found.held.range((after, Bound::Unbounded));
        let told = rest.by_ref().take(leases.limit.min(self.page_bounds.lease_page_count_max)).map(|key| {
            let row = self.row(*key);
            HeldLease { key: *key, epoch: row.lease.epoch, given_beat: row.given_beat }
        });
        let told: Vec<_> = told.collect();
        let next = told.last().filter(|_| rest.next().is_some()).map(|last| LeaseCursor([last.key.0, 0, 0]));
        LeasePage { leases: told, next }
    }

    pub(super) fn retire(&mut self, retire: &Retire, now: Timestamp) -> Result<()> {
        check_reason("reason", &retire.reason).map_err(Refusal::from)?;
        self.end(retire.session, Ending::Orderly, &retire.reason, now);
        Ok(())
    }

    /// Takes an execution from a holder that cannot read it.
    pub(super) fn set_aside(&mut self, aside: &Aside, now: Timestamp) {
        let Aside { key, lease, unreadable } = aside;
        if self.rows.get(key).and_then(Row::holder) == Some((lease.session, lease.epoch)) {
            self.change(*key, |row| row.set_aside(unreadable, now));
        }
    }

    /// Extends every session by the time that a virtual clock skips. Returns `false`, and changes
    /// nothing, when a live session has missed a heartbeat, or when live sessions have not yet
    /// swept a dead one.
    pub(super) fn skip(&mut self, by: Duration, now: Timestamp) -> bool {
        let open = || self.sessions.values().filter(|found| found.retired.is_none());
        // Three heartbeats fit into one life.
        let is_fresh = |found: &Session| now.after(found.worker.ttl * 2 / 3) <= found.expires_at;
        if open().any(|found| found.is_live(now)) && !open().all(is_fresh) {
            return false;
        }
        for found in self.sessions.values_mut().filter(|found| found.is_live(now)) {
            found.expires_at = found.expires_at.after(by);
        }
        true
    }

    /// Returns the longest life of an open session without a heartbeat. Returns `None` when live
    /// sessions will sweep another one, or may do so: it has missed a heartbeat, or lives for
    /// longer because the clock was set back.
    pub(super) fn longest_life(&self, now: Timestamp) -> Option<Duration> {
        let open = || self.sessions.values().filter(|found| found.retired.is_none());
        // Three heartbeats fit into one life, so at least two thirds of it are left.
        let is_kept = |found: &Session| {
            let ttl = found.worker.ttl;
            (ttl / 2..=ttl).contains(&found.expires_at.since(now))
        };
        let is_settled = !open().any(|found| found.is_live(now)) || open().all(is_kept);
        is_settled.then(|| open().map(|found| found.worker.ttl).max().unwrap_or_default())
    }

    /// Ends the sessions that have expired.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        let expired = |found: &Session| found.retired.is_none() && !found.is_live(now);
        let dead: Vec<_> =
            self.sessions.iter().filter(|(_, found)| expired(found)).map(|(id, _)| *id).collect();
        dead.into_iter().for_each(|session| self.end(session, Ending::Death, "expired", now));
    }

    fn end(&mut self, session: SessionId, ending: Ending, reason: &str, now: Timestamp) {
        let Some(found) = self.sessions.get_mut(&session).filter(|found| found.retired.is_none()) else {
            return;
        };
        found.retired = Some(reason.to_owned());
        self.change_count += 1;
        for key in found.held.clone() {
            self.change(key, |row| row.release(ending, now));
        }
        self.notices.close(session);
    }

    pub(super) fn workers(&self, workers: &Workers) -> Vec<WorkerRow> {
        let after = workers.after.map_or(Bound::Unbounded, Bound::Excluded);
        let wanted = self.sessions.range((after, Bound::Unbounded));
        let wanted = wanted.filter(|(_, found)| found.worker.ability.namespace == workers.namespace);
        let row = |(session, found): (&SessionId, &Session)| WorkerRow {
            session: *session,
            worker: found.worker.clone(),
            registered_at: found.registered_at,
            expires_at: found.expires_at,
            retired: found.retired.clone(),
            is_draining: found.is_draining,
            lease_count: found.held.len() as u64,
            damage: None,
        };
        wanted.take(workers.limit).map(row).collect()
    }
}
