//! Every bound on recorded data, with its name and default.

use std::fmt;
use std::time::Duration;

use crate::{Body, Payload};

/// Bounds on recorded data. Each can be set when a store is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The largest input, step result or signal, in bytes.
    pub payload_bytes_max: usize,
    /// The number of bytes that are kept of the texts of one error, and the largest value of a
    /// typed error. Never more than the bound of a payload.
    pub failure_bytes_max: usize,
    /// The most tags of one execution.
    pub tag_count_max: usize,
    /// The most capabilities that one execution may require.
    pub requires_count_max: usize,
    /// The most unread messages of one execution.
    pub inbox_count_max: usize,
    /// The most entries of one run's journal.
    pub entry_count_max: u64,
    /// The most places in the code that the entries of one run name. An entry that comes from
    /// another place names none.
    pub site_count_max: u32,
    /// How long the live session that holds an execution has to apply a terminate, in milliseconds.
    /// After that another engine, or a caretaker of the same one, takes the lease and applies it.
    pub terminate_grace_ms: u64,
    /// How long code that has seen its deadline pass may wind down, in milliseconds. Code that
    /// still runs then is dropped.
    pub deadline_grace_ms: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            payload_bytes_max: 4 << 20,
            failure_bytes_max: 64 << 10,
            tag_count_max: 64,
            requires_count_max: 32,
            inbox_count_max: 100_000,
            entry_count_max: 10_000_000,
            site_count_max: 1_000,
            terminate_grace_ms: 2_000,
            deadline_grace_ms: 10_000,
        }
    }
}

impl Bounds {
    /// Returns how long the holder of an execution has to apply a terminate.
    pub fn terminate_grace(&self) -> Duration {
        Duration::from_millis(self.terminate_grace_ms)
    }

    /// Returns how long code that has seen its deadline pass may wind down.
    pub fn deadline_grace(&self) -> Duration {
        Duration::from_millis(self.deadline_grace_ms)
    }

    /// Returns how many unread messages an inbox may hold and still accept one like `body`.
    ///
    /// Control has a reserve: somebody must be able to end an execution that is flooded with
    /// signals. The outcome of a child is always accepted: if it were refused, its parent would
    /// wait for ever, and there are never more outcomes than children. A retry takes no room: it is
    /// read when it arrives.
    pub fn inbox_room(&self, body: &Body) -> usize {
        const CONTROL_RESERVE: usize = 100;
        match body {
            Body::ChildDone { .. } | Body::Retry => usize::MAX,
            body if body.is_control() => self.inbox_count_max + CONTROL_RESERVE,
            _ => self.inbox_count_max,
        }
    }

    /// Checks the size of one payload; `what` names it in the error.
    pub fn check_payload(&self, what: impl fmt::Display, payload: &Payload) -> Result<(), TooLarge> {
        self.check("payload_bytes_max", what, (payload.as_bytes().len(), self.payload_bytes_max))
    }

    pub(crate) fn check(
        &self,
        limit: &'static str,
        what: impl fmt::Display,
        (found, max): (usize, usize),
    ) -> Result<(), TooLarge> {
        if found <= max {
            return Ok(());
        }
        Err(TooLarge { what: what.to_string(), limit, found, max })
    }
}

/// The error about a value over its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// The thing that is too large, for example `input of "order-42"`.
    pub what: String,
    /// The name of the limit.
    pub limit: &'static str,
    /// Its size.
    pub found: usize,
    /// The largest allowed size.
    pub max: usize,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is over the limit {}: {}, at most {}", self.what, self.limit, self.found, self.max)
    }
}

impl std::error::Error for TooLarge {}
