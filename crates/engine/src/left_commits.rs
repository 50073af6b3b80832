//! Commits whose driver is gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_core::planted::{Bug, planted};
use abide_core::{Address, Epoch};
use abide_store::ExecutionKey;

use crate::engine::Inner;
use crate::ledger::InFlight;

/// Commits under way that nobody waits for, by execution and lease.
#[derive(Default)]
pub(crate) struct LeftCommits(Mutex<HashMap<(ExecutionKey, Epoch), InFlight>>);

impl LeftCommits {
    pub(crate) fn put(&self, under: (ExecutionKey, Epoch), commit: InFlight) {
        self.lock().insert(under, commit);
    }

    pub(crate) fn take(&self, under: (ExecutionKey, Epoch)) -> Option<InFlight> {
        self.lock().remove(&under)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(ExecutionKey, Epoch), InFlight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Waits for the commit that a driver has left behind, in a panic or because it could not read
    /// its records.
    ///
    /// The next driver may begin under the same lease. From the records before that commit, its own
    /// first commit would have the same name: the store would take it for a repetition, and
    /// acknowledge entries that it has not written.
    pub(crate) async fn await_left_commit(self: &Arc<Self>, commit: InFlight, address: &Address) {
        if !planted(Bug::CommitLeftBehind) {
            self.recover_all(commit.answered(self, address).await);
        }
    }
}
