//! What this process remembers of the sessions that it serves.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use abide_core::SessionId;

#[derive(Default)]
pub(crate) struct Tallies(Mutex<HashMap<SessionId, Tally>>);

/// One session.
#[derive(Default)]
struct Tally {
    /// The number of its last claim.
    request: i64,
}

impl Tallies {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Tally>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a new session.
    pub(crate) fn open(&self, session: SessionId) {
        self.lock().insert(session, Tally::default());
    }

    /// Forgets a session that is over.
    pub(crate) fn end(&self, session: SessionId) {
        self.lock().remove(&session);
    }

    /// Returns the number of the last claim of a session, if this process has seen one or has
    /// registered the session.
    pub(crate) fn last_request(&self, session: SessionId) -> Option<i64> {
        self.lock().get(&session).map(|tally| tally.request)
    }

    /// Remembers a claim before it leases anything: a repetition is answered with its leases.
    pub(crate) fn ask(&self, session: SessionId, request: i64) {
        self.lock().entry(session).or_default().request = request;
    }
}
