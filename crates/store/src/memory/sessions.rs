//! The worker registry.

use std::collections::BTreeSet;

use abide_core::{Epoch, Refusal, SessionId, Timestamp, check_reason};

use super::state::State;
use crate::{ExecutionKey, Heartbeat, Registered, Result, Retire, Worker, WorkerRow, Workers};

pub(super) struct Session {
    pub(super) worker: Worker,
    pub(super) registered_at: Timestamp,
    pub(super) expires_at: Timestamp,
    pub(super) retired: Option<String>,
    pub(super) held: BTreeSet<ExecutionKey>,
    /// The last claim.
    pub(super) request: u64,
    /// What the last claim gave.
    pub(super) given: Vec<(ExecutionKey, Epoch)>,
    /// What the last claim gave to be looked after.
    pub(super) given_care: Vec<(ExecutionKey, Epoch)>,
}

/// How a session ended. What it held is a suspect only if it died: an orderly end burdens nobody.
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

impl State {
    pub(super) fn register(&mut self, worker: Worker, now: Timestamp) -> Registered {
        let (session, expires_at) = (self.next_session(), now.after(worker.ttl));
        let made = Session {
            worker,
            registered_at: now,
            expires_at,
            retired: None,
            held: BTreeSet::new(),
            request: 0,
            given: Vec::new(),
            given_care: Vec::new(),
        };
        self.sessions.insert(session, made);
        Registered { session, expires_at }
    }

    /// The session, if it may write now.
    pub(super) fn live(&self, session: SessionId, now: Timestamp) -> Result<&Session> {
        let found = self.sessions.get(&session).filter(|found| found.is_live(now));
        found.ok_or_else(|| Refusal::Unsupported { what: format!("session {session} is not live") }.into())
    }

    pub(super) fn heartbeat(&mut self, session: SessionId, now: Timestamp) -> Heartbeat {
        match self.sessions.get_mut(&session) {
            Some(found) if found.is_live(now) => {
                // A clock that was set back must not take away what was promised.
                found.expires_at = found.expires_at.max(now.after(found.worker.ttl));
                Heartbeat::Refreshed { expires_at: found.expires_at, lease_count: found.held.len() as u64 }
            }
            Some(_) | None => Heartbeat::NotRegistered,
        }
    }

    pub(super) fn retire(&mut self, retire: &Retire, now: Timestamp) -> Result<()> {
        check_reason("reason", &retire.reason).map_err(Refusal::from)?;
        self.end(retire.session, Ending::Orderly, &retire.reason, now);
        Ok(())
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
        for key in found.held.clone() {
            self.change(key, |row| row.release(ending, now));
        }
        self.notices.close(session);
    }

    pub(super) fn workers(&self, workers: &Workers) -> Vec<WorkerRow> {
        let after = workers.after.map_or(SessionId(0), SessionId::next);
        let wanted = self.sessions.range(after..);
        let wanted = wanted.filter(|(_, found)| found.worker.ability.namespace == workers.namespace);
        let row = |(session, found): (&SessionId, &Session)| WorkerRow {
            session: *session,
            worker: found.worker.clone(),
            registered_at: found.registered_at,
            expires_at: found.expires_at,
            retired: found.retired.clone(),
            lease_count: found.held.len() as u64,
        };
        wanted.take(workers.limit).map(row).collect()
    }
}
