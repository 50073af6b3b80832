//! The writer's notes on how its transactions end.

use super::{Attempt, Jobs, Writer};
use crate::error::{BatchFailure, Meaning};

impl Writer {
    /// Applies the jobs in the transaction that has begun, ends it, and remembers whether it was
    /// written.
    pub(super) fn attempt(&mut self, jobs: &mut Jobs) -> Attempt {
        let attempt = self.apply(jobs);
        self.note(match &attempt {
            Attempt::Done => Ok(()),
            Attempt::Blame(_, failure) | Attempt::Unclear(failure) | Attempt::All(failure) => Err(failure),
        });
        attempt
    }

    /// Records whether a transaction was written. A transaction that found no room may find some in
    /// the log, once the log is copied into the database file.
    pub(super) fn note(&self, outcome: Result<(), &BatchFailure>) {
        let Err(failure) = outcome else { return self.shared.troubles.written() };
        let now = (self.shared.clock.now(), self.shared.stopwatch.now());
        self.shared.troubles.failed(failure, now);
        if failure.meaning == Meaning::Unavailable
            && let (Some(wal), Some(writer)) = (&self.wal, &self.connection)
        {
            wal.relieve(&writer.connection);
        }
    }
}
