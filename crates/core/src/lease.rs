//! The right to write: sessions, epochs and versions.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::planted::{Bug, planted};

macro_rules! numbers {
    ($($(#[$doc:meta])* $type:ident;)*) => {$(
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $type(pub u64);

        impl $type {
            /// Returns the next number.
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )*};
}

numbers! {
    /// One registration of a worker process. Never reused.
    SessionId;
    /// The number of times that an execution was leased. Only grows.
    Epoch;
    /// The number of commits of an execution. Only grows.
    Version;
}

/// The right of a worker to write one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The session that holds it.
    pub session: SessionId,
    /// The number of this lease of the execution.
    pub epoch: Epoch,
}

/// A store's record of the right to write one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The session that holds the lease now.
    pub session: Option<SessionId>,
    /// The epoch of the newest lease.
    pub epoch: Epoch,
    /// The number of commits so far.
    pub version: Version,
}

/// The decision about a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The write may be applied.
    Open,
    /// The write was applied before and its answer was lost: answer again.
    Applied,
    /// Another lease was granted since.
    StaleEpoch {
        /// The writer's epoch.
        found: Epoch,
        /// The newest epoch.
        current: Epoch,
    },
    /// The lease was returned or taken away, and nobody has it now.
    Released,
    /// The writer's picture of the execution is not the newest.
    StaleVersion {
        /// The writer's version.
        found: Version,
        /// The newest version.
        current: Version,
    },
    /// The writer's session has expired or was retired.
    DeadSession(SessionId),
}

impl Lease {
    /// Whether no code of the execution was called before this lease: nobody held it, or only
    /// caretakers did, up to [`cared_epoch`](crate::Summary::cared_epoch).
    pub fn is_first(&self, cared_epoch: Option<Epoch>) -> bool {
        self.epoch == cared_epoch.unwrap_or_default().next()
    }
}

impl LeaseRow {
    /// Whether the next lease would be the [first](Lease::is_first).
    pub fn is_untouched(&self, cared_epoch: Option<Epoch>) -> bool {
        self.epoch == cared_epoch.unwrap_or_default()
    }

    /// Decides about a write that was prepared at `expected`. No clock takes part:
    /// `session_is_live` was decided from the session's row in the same transaction.
    pub fn fence(&self, lease: Lease, expected: Version, session_is_live: bool) -> Fence {
        if lease.epoch != self.epoch && !planted(Bug::StaleEpochWrites) {
            return Fence::StaleEpoch { found: lease.epoch, current: self.epoch };
        }
        // Under one epoch only the holder writes, one commit at a time, so the next version is its
        // own.
        if self.version == expected.next() {
            return Fence::Applied;
        }
        if self.version != expected {
            return Fence::StaleVersion { found: expected, current: self.version };
        }
        if !session_is_live && !planted(Bug::DeadSessionWrites) {
            return Fence::DeadSession(lease.session);
        }
        match self.session {
            Some(session) if session == lease.session => Fence::Open,
            Some(_) | None => Fence::Released,
        }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::Applied => f.write_str("applied before"),
            Self::StaleEpoch { found, current } => write!(f, "epoch {found} is stale, current is {current}"),
            Self::Released => f.write_str("its lease was released"),
            Self::StaleVersion { found, current } => {
                write!(f, "version {found} is stale, current is {current}")
            }
            Self::DeadSession(session) => write!(f, "session {session} is no longer live"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_live_holder_of_the_newest_epoch_and_version_may_write() {
        let row = LeaseRow { session: Some(SessionId(7)), epoch: Epoch(3), version: Version(10) };
        let lease = |session, epoch| Lease { session: SessionId(session), epoch: Epoch(epoch) };
        let released = LeaseRow { session: None, ..row };
        let rows = [
            (row, lease(7, 3), 10, true, Fence::Open),
            (row, lease(7, 3), 9, true, Fence::Applied),
            (released, lease(7, 3), 9, false, Fence::Applied),
            (row, lease(7, 2), 10, true, Fence::StaleEpoch { found: Epoch(2), current: Epoch(3) }),
            (row, lease(7, 2), 9, true, Fence::StaleEpoch { found: Epoch(2), current: Epoch(3) }),
            (row, lease(7, 3), 8, true, Fence::StaleVersion { found: Version(8), current: Version(10) }),
            (row, lease(7, 3), 10, false, Fence::DeadSession(SessionId(7))),
            (row, lease(8, 3), 10, true, Fence::Released),
            (released, lease(7, 3), 10, true, Fence::Released),
        ];
        for (row, lease, expected, live, outcome) in rows {
            assert_eq!(row.fence(lease, Version(expected), live), outcome, "{row:?} {lease:?} {expected}");
        }
    }
}
