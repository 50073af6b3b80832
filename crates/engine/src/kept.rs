//! The sizes of a process's memory, for tests that nothing grows without bound.

use crate::client::Client;
use crate::engine::Inner;

/// Counts of the things that a process has in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Executions.
    pub resident_count: usize,
    /// Executions with mail whose lease is not known yet.
    pub early_count: usize,
    /// Executions that are looked for, because they may be leased to this process.
    pub wanted_count: usize,
    /// Executions whose last commit failed for good.
    pub failure_count: usize,
    /// Executions that somebody waits for.
    pub watched_count: usize,
    /// Requests under way.
    pub request_count: usize,
}

impl Client {
    /// Returns how much is in memory now.
    #[doc(hidden)]
    pub fn kept(&self) -> Kept {
        Kept {
            watched_count: self.watchers.count(),
            request_count: self.requests.count(),
            ..self.engine.as_ref().map(|engine| kept_by(&engine.0)).unwrap_or_default()
        }
    }
}

fn kept_by(inner: &Inner) -> Kept {
    let failure_count = inner.failures.len();
    let residents = inner.residents();
    let (early_count, wanted_count) = residents.expected_counts();
    Kept { resident_count: residents.count(), early_count, wanted_count, failure_count, ..Kept::default() }
}
