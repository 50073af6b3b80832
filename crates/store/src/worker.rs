//! The worker registry.

use std::time::Duration;

use abide_core::{Ability, Digest, Epoch, Name, Namespace, SessionId, Timestamp};

use crate::ExecutionKey;

/// A process that wants to run executions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its name, for people.
    pub name: Name,
    /// The work that it offers to do.
    pub ability: Ability,
    /// How long its session lives without a heartbeat.
    pub ttl: Duration,
}

/// A new session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The session.
    pub session: SessionId,
    /// When it expires without a heartbeat.
    pub expires_at: Timestamp,
}

/// A sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The session.
    pub session: SessionId,
    /// The digest of the leases that the session believes it holds, as [`abide_core::Tally::beat`]
    /// returns it. Without a digest, nothing is compared and no lease ages.
    pub digest: Option<Digest>,
    /// Whether the session takes no more executions, because it shuts down. Once it has said so, it
    /// drains until it ends, even when a beat that was sent earlier arrives later.
    pub is_draining: bool,
}

impl Beat {
    /// Creates a sign of life and nothing else.
    pub fn of(session: SessionId) -> Self {
        Self { session, digest: None, is_draining: false }
    }
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// The session lives on.
    Refreshed {
        /// When it expires without another heartbeat.
        expires_at: Timestamp,
        /// Whether the session holds the leases that it believes it holds.
        leases: Agreement,
    },
    /// There is no such session, or it has expired or was retired: register anew.
    NotRegistered,
}

/// The comparison of the leases that a session holds with those that it believes it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// They agree, or the session sent no digest.
    Agreed,
    /// They differ, or differed when the heartbeat was sent: a lease that was released at that
    /// moment makes a difference too. Look at the [leases](crate::View::leases) of the session.
    Differs {
        /// Leases granted from this heartbeat on ([`HeldLease::given_beat`]) are too young to be
        /// missed.
        young_from: u64,
    },
}

/// A request for the leases of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leases {
    /// The session.
    pub session: SessionId,
    /// The place after which the page begins; `None` for the beginning.
    pub after: Option<LeaseCursor>,
    /// The most leases wanted. A store may return fewer, but at least one if there is one.
    pub limit: usize,
}

/// A place among the leases of a session, as the store that returned it understands it. A lease
/// keeps its place for as long as it is held: a reader that goes from page to page meets each lease
/// that was held all the while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseCursor(pub [u64; 3]);

/// A page of the leases of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasePage {
    /// The leases.
    pub leases: Vec<HeldLease>,
    /// Where to go on; `None` at the end.
    pub next: Option<LeaseCursor>,
}

/// One lease of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// The execution.
    pub key: ExecutionKey,
    /// The epoch of the lease.
    pub epoch: Epoch,
    /// The number of the session's heartbeats before the lease was granted.
    pub given_beat: u64,
}

/// A session that is to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retire {
    /// The session.
    pub session: SessionId,
    /// The reason; at most 255 bytes without control characters.
    pub reason: String,
}

/// A request for sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Their namespace.
    pub namespace: Namespace,
    /// The session after which the page begins, in order of session numbers.
    pub after: Option<SessionId>,
    /// The most sessions wanted.
    pub limit: usize,
}

/// A session, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRow {
    /// The session.
    pub session: SessionId,
    /// Its worker.
    pub worker: Worker,
    /// When it was created.
    pub registered_at: Timestamp,
    /// When it expires, or expired.
    pub expires_at: Timestamp,
    /// Why it was retired.
    pub retired: Option<String>,
    /// Whether it shuts down: it keeps its executions for a while and takes no more.
    pub is_draining: bool,
    /// The number of executions that it holds.
    pub lease_count: u64,
    /// Why its ability cannot be read: its row is damaged, or a newer version of abide wrote it.
    /// Then it offers nothing that this program knows.
    pub damage: Option<String>,
}

impl WorkerRow {
    /// Whether the session may write at `now`.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.retired.is_none() && now < self.expires_at
    }

    /// Whether the session may still take executions at `now`.
    pub fn takes_more(&self, now: Timestamp) -> bool {
        self.is_live(now) && !self.is_draining
    }
}
