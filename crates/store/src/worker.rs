//! The worker registry.

use std::time::Duration;

use abide_core::{Ability, Digest, Epoch, Name, Namespace, SessionId, Timestamp};

use crate::ExecutionKey;

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

/// A sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Whose.
    pub session: SessionId,
    /// What the session believes it holds, as [`abide_core::Tally::beat`] gives it. Without one, nothing is compared, and no lease grows older by it.
    pub digest: Option<Digest>,
    /// It takes nothing more, because it shuts down. A session that has said so once drains until it
    /// ends, also when a beat that was sent before arrives later.
    pub is_draining: bool,
}

impl Beat {
    /// A sign of life, and nothing else.
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
        /// Whether the session holds what it believes it holds.
        leases: Agreement,
    },
    /// There is no such session, or it has expired or was retired: register anew.
    NotRegistered,
}

/// Whether a session holds what it believes it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// It does, or it did not say.
    Agreed,
    /// It does not, or it did not when its heartbeat was sent: what was given back at that moment makes a difference too. Look at the
    /// [leases](crate::View::leases) that were given before this heartbeat; later ones are too young.
    Differs {
        /// The number of that heartbeat, as in [`HeldLease::given_beat`].
        young_from: u64,
    },
}

/// Which leases to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leases {
    /// Of this session.
    pub session: SessionId,
    /// After this place; `None` for the beginning.
    pub after: Option<LeaseCursor>,
    /// At most so many. A store may give fewer, but at least one if there is one.
    pub limit: usize,
}

/// A place among the leases of a session, as the store that gave it understands it. A lease keeps its place for as long as it is held: whoever reads page after
/// page meets each that was held all the while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseCursor(pub [u64; 3]);

/// A part of what a session holds.
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
    /// Of which execution.
    pub key: ExecutionKey,
    /// Which lease of it.
    pub epoch: Epoch,
    /// After how many heartbeats of the session it was given.
    pub given_beat: u64,
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
    /// Whether it shuts down: it keeps what it holds for a while, and takes nothing more.
    pub is_draining: bool,
    /// How many executions it holds.
    pub lease_count: u64,
    /// Why what it offers cannot be told: its row is damaged, or a newer version of abide wrote it. Then it offers nothing that is known here.
    pub damage: Option<String>,
}

impl WorkerRow {
    /// Whether the session may write at `now`.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.retired.is_none() && now < self.expires_at
    }

    /// Whether the session may still take something at `now`.
    pub fn takes_more(&self, now: Timestamp) -> bool {
        self.is_live(now) && !self.is_draining
    }
}
