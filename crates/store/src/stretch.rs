//! The first stretch of an execution, which happens with its start.

use abide_core::Timestamp;
use abide_core::planted::{Bug, planted};

use crate::{Commit, ExecutionKey, Submitted};

/// What the code of an execution has done before the execution exists: up to its first commit.
///
/// The session of an offer begins the code before it asks for the start. So both happen in one
/// transaction, which is all that a short execution needs. Nothing else may come of the code until
/// the start is durable: it is thrown away when the start is refused, attaches, or is not leased to
/// this session.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// When the execution begins. Its code has seen this time, so its first entry has it, and not
    /// the time at which the store applies the start.
    pub at: Timestamp,
    /// The first commit, if the code has come so far, at version 0 under the first epoch. The store
    /// knows its [key](Commit::key).
    pub commit: Option<Commit>,
}

impl Stretch {
    /// Returns the time at which the execution begins, if the store would apply its start at `now`.
    pub fn begins_at(&self, now: Timestamp) -> Timestamp {
        if planted(Bug::StretchAtOtherTime) { now } else { self.at }
    }

    /// Returns the execution that the stretch belongs to, if its start ended like this: only a
    /// newborn that was leased in the same transaction.
    pub fn of(&self, started: &Submitted) -> Option<ExecutionKey> {
        match started {
            Submitted::Started(key, Some(_)) => Some(*key),
            Submitted::Attached(key) if planted(Bug::StretchOfAttached) => Some(*key),
            _ => None,
        }
    }

    /// Returns the first commit of the execution with this key.
    pub fn commit_of(&self, key: ExecutionKey) -> Option<Commit> {
        self.commit.clone().map(|commit| Commit { key, ..commit })
    }
}
