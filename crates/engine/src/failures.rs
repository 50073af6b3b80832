//! Commits that a store will never take, records that it cannot read, and drivers that panic.
//!
//! An unrecorded step runs again, and meets the same error or panic again: without a bound it would
//! run forever. Such an execution is blocked instead, with the error of the store or the panic as
//! the reason.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Block, Command};
use abide_store::{ExecutionKey, Hold, Leased};

use crate::driver::End;
use crate::engine::Inner;
use crate::ledger::Ledger;
use crate::pauses;

/// The executions that had to begin anew for such a reason.
#[derive(Default)]
pub(crate) struct Failures {
    /// Whether there are any: a fast check for the many executions that never fail.
    exist: AtomicBool,
    by_key: Mutex<HashMap<ExecutionKey, Failed>>,
    /// Whether the last answer to a commit was that it could not be written now.
    is_unsent: AtomicBool,
}

/// What fails again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failing {
    Commit,
    Read,
    Driver,
}

struct Failed {
    count: u32,
    failing: Failing,
    /// The run and its recorded entries before the failure. More of them are progress.
    ///
    /// The version says nothing: a suspect raises it before each go, when it records that it runs
    /// alone.
    recorded: Option<(u32, u64)>,
    why: String,
}

impl Failures {
    /// Notes that a commit could not be written now. Returns whether it is the first since one went
    /// through.
    pub(crate) fn is_first_unsent(&self) -> bool {
        !self.is_unsent.swap(true, Ordering::Relaxed)
    }

    /// Notes that a commit was answered.
    pub(crate) fn sent(&self) {
        if self.is_unsent.load(Ordering::Relaxed) {
            self.is_unsent.store(false, Ordering::Relaxed);
        }
    }

    /// Counts a failure, and returns how long to wait before the execution is looked at again.
    pub(crate) fn count(&self, key: ExecutionKey, failing: Failing, why: String) -> Duration {
        let mut by_key = self.lock();
        let failed =
            by_key.entry(key).or_insert(Failed { count: 0, failing, recorded: None, why: String::new() });
        failed.count += 1;
        (failed.failing, failed.why) = (failing, why);
        self.exist.store(true, Ordering::Release);
        pauses::after(failed.count)
    }

    /// Returns the number of such executions.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn forget(&self, key: ExecutionKey) {
        if self.exist.load(Ordering::Acquire) {
            let mut by_key = self.lock();
            by_key.remove(&key);
            self.exist.store(!by_key.is_empty(), Ordering::Release);
        }
    }

    /// Lets the count begin anew if the execution has recorded more since the last call.
    pub(crate) fn note_progress(&self, leased: &Leased) {
        if !self.exist.load(Ordering::Acquire) {
            return;
        }
        let mut by_key = self.lock();
        let Some(failed) = by_key.get_mut(&leased.key) else { return };
        let is_deceived = planted(Bug::VersionIsProgress);
        let count = if is_deceived { leased.version.0 } else { leased.execution.entry_count() };
        let recorded = (leased.execution.run(), count);
        let has_progress = failed.recorded.is_some_and(|before| before != recorded);
        if has_progress && !planted(Bug::FailureCountKept) {
            failed.count = 1;
        }
        failed.recorded = Some(recorded);
    }

    /// Returns why an execution is to be blocked instead of run.
    pub(crate) fn reason_to_block(&self, key: ExecutionKey, count_max: u32) -> Option<String> {
        if !self.exist.load(Ordering::Acquire) {
            return None;
        }
        let by_key = self.lock();
        let Failed { count, failing, why, .. } = by_key.get(&key)?;
        let what = match failing {
            Failing::Commit => "the store refused a commit",
            Failing::Read => "its records could not be read",
            Failing::Driver => "its driver panicked",
        };
        (*count >= count_max && !planted(Bug::FailuresUnbounded))
            .then(|| format!("{what} {count} times, at most failure_count_max = {count_max}: {why}"))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ExecutionKey, Failed>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Blocks an execution without running anything of it, and leaves it until the next order. An order
/// that came before takes effect at once.
pub(crate) async fn block(engine: Arc<Inner>, leased: Box<Leased>, reason: Block) -> End {
    let mut ledger = Ledger::new(&engine, leased);
    // A refusal means that the phase lets nothing run anyway.
    let _ = ledger.decide(Command::block(reason));
    let summary = ledger.execution().summary(&[]);
    ledger.leave(summary, Hold::Park { seen: Vec::new() }).await
}

#[cfg(test)]
mod tests {
    use abide_core::{
        Address, By, Entry, Epoch, Event, Execution, ExecutionId, Lease, Namespace, SessionId, Timestamp,
        Version,
    };
    use abide_store::{InboxPage, Opening};

    use super::*;

    const KEY: ExecutionKey = ExecutionKey(7);

    fn at((version, entry_count): (u64, u64)) -> Leased {
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new("a").unwrap() };
        let start = abide_core::fixture::flow();
        let mut execution = Execution::start(address, start, Timestamp::default()).0;
        execution.apply(&Entry::new(entry_count, Timestamp::default(), Event::Resumed { by: By::client() }));
        Leased {
            key: KEY,
            lease: Lease { session: SessionId(1), epoch: Epoch(1) },
            version: Version(version),
            takeover_count: 0,
            suspicion: None,
            unclaimed: None,
            execution,
            opening: Opening::default(),
            is_first: true,
            inbox: InboxPage::default(),
        }
    }

    /// Counts one failure after the other at these numbers of entries, and checks whether each
    /// blocks. Every go of a suspect raises the version.
    fn check(entry_counts: &[u64], expected: &[bool]) {
        let failures = Failures::default();
        let blocked = (10..).zip(entry_counts).map(|(version, entry_count)| {
            failures.count(KEY, Failing::Commit, "full".to_owned());
            failures.note_progress(&at((version, *entry_count)));
            failures.reason_to_block(KEY, 3).is_some()
        });
        assert_eq!(blocked.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn failures_at_one_place_are_bounded() {
        check(&[5, 5, 5], &[false, false, true]);
    }

    #[test]
    fn progress_makes_the_count_begin_anew() {
        check(&[5, 5, 6, 6, 7, 7], &[false; 6]);
        check(&[5, 5, 6, 6, 6], &[false, false, false, false, true]);
    }
}
