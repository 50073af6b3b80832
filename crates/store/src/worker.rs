//! The worker registry.

use std::time::Duration;

use abide_core::{Ability, Name, Namespace, SessionId, Timestamp};

/// A process that wants to run executions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its name, for people.
    pub name: Name,
    /// What it offers.
    pub ability: Ability,
    /// How long its session lives without a heartbeat.
    pub ttl: Duration,
}

/// A session that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The session.
    pub session: SessionId,
    /// When it expires without a heartbeat.
    pub expires_at: Timestamp,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// The session lives on.
    Refreshed {
        /// When it expires without another heartbeat.
        expires_at: Timestamp,
        /// How many executions it holds.
        lease_count: u64,
    },
    /// There is no such session, or it has expired or was retired: register anew.
    NotRegistered,
}

/// A session that is to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retire {
    /// Which.
    pub session: SessionId,
    /// Why; at most 255 bytes without control characters.
    pub reason: String,
}

/// Which sessions to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Of this tenant.
    pub namespace: Namespace,
    /// After this session, in order of their numbers.
    pub after: Option<SessionId>,
    /// At most so many.
    pub limit: usize,
}

/// A session, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRow {
    /// The session.
    pub session: SessionId,
    /// Its worker.
    pub worker: Worker,
    /// When it was made.
    pub registered_at: Timestamp,
    /// When it expires, or expired.
    pub expires_at: Timestamp,
    /// Why it was retired.
    pub retired: Option<String>,
    /// How many executions it holds.
    pub lease_count: u64,
}

impl WorkerRow {
    /// Whether the session may write at `now`.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.retired.is_none() && now < self.expires_at
    }
}
