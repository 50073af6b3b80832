//! The first stretch of an execution, in the transaction that creates it.

use abide_core::Timestamp;
use abide_store::{CommitOutcome, Error, Stretch, Submitted};

use super::commit::CommitWork;
use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;

/// A stretch, prepared on the caller's thread.
pub(super) struct StretchWork {
    stretch: Stretch,
    commit: Option<CommitWork>,
}

impl StretchWork {
    pub(super) fn new(mut stretch: Stretch) -> Self {
        let commit = stretch.commit.take().map(CommitWork::new);
        Self { stretch, commit }
    }

    pub(super) fn begins_at(&self, now: Timestamp) -> Timestamp {
        self.stretch.begins_at(now)
    }

    pub(super) fn runs_user_code(&self) -> bool {
        self.commit.as_ref().is_some_and(Operation::runs_user_code)
    }

    /// Applies the first commit, if the start has created and leased its execution. A refusal is
    /// the commit's alone: it has written nothing, and the start stays.
    pub(super) fn follow(&mut self, batch: &mut Batch<'_>, started: Submitted) -> Result<Submitted, Stop> {
        let Some(key) = self.stretch.of(&started) else { return Ok(started) };
        let Some(commit) = &mut self.commit else { return Ok(Submitted::Begun(key, Ok(Box::default()))) };
        commit.belongs_to(key);
        if commit.reads_journal() {
            batch.bind_sheaf()?;
        }
        match commit.apply(batch) {
            Ok(CommitOutcome::Committed(committed)) => Ok(Submitted::Begun(key, Ok(Box::new(committed)))),
            Err(Stop::Refused(Error::Refused(refusal))) => Ok(Submitted::Begun(key, Err(refusal))),
            Ok(CommitOutcome::Fenced(_)) | Err(Stop::Refused(_)) => Ok(started),
            Err(stop) => Err(stop),
        }
    }
}
