//! Commits that a store will never take.
//!
//! What was not recorded runs again, and meets the same again: without a bound a step would run for ever. Such an execution is
//! blocked instead, with what the store said.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_core::{Block, Command, Version};
use abide_store::{ExecutionKey, Hold, Leased};

use crate::driver::End;
use crate::engine::Inner;
use crate::ledger::Ledger;

/// The executions whose last commit failed for good.
#[derive(Default)]
pub(crate) struct Failures {
    /// Whether there are any, for those who begin one of the many executions that never fail.
    exist: AtomicBool,
    by_key: Mutex<HashMap<ExecutionKey, Failed>>,
}

struct Failed {
    count: u32,
    /// What was recorded before it. A later version is progress.
    version: Option<Version>,
    why: String,
}

const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(60);

impl Failures {
    /// Counts a failure; how long to wait before the execution is looked at again.
    pub(crate) fn count(&self, key: ExecutionKey, why: String) -> Duration {
        let mut by_key = self.lock();
        let failed = by_key.entry(key).or_insert(Failed { count: 0, version: None, why: String::new() });
        failed.count += 1;
        failed.why = why;
        self.exist.store(true, Ordering::Release);
        PAUSE_FIRST.saturating_mul(1 << (failed.count - 1).min(10)).min(PAUSE_MAX)
    }

    pub(crate) fn forget(&self, key: ExecutionKey) {
        if self.exist.load(Ordering::Acquire) {
            let mut by_key = self.lock();
            by_key.remove(&key);
            self.exist.store(!by_key.is_empty(), Ordering::Release);
        }
    }

    /// Why an execution is to be blocked instead of run.
    pub(crate) fn verdict(&self, leased: &Leased, count_max: u32) -> Option<String> {
        if !self.exist.load(Ordering::Acquire) {
            return None;
        }
        let mut by_key = self.lock();
        let failed = by_key.get_mut(&leased.key)?;
        if failed.version.is_some_and(|version| version != leased.version) {
            failed.count = 1;
        }
        failed.version = Some(leased.version);
        let Failed { count, why, .. } = failed;
        (*count >= count_max).then(|| {
            format!("the store refused a commit {count} times, at most commit_failure_count_max = {count_max}: {why}")
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ExecutionKey, Failed>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Blocks an execution without running anything of it, and gives it back: whoever takes it next looks after it as after everything
/// that is blocked.
pub(crate) async fn block(engine: Arc<Inner>, leased: Leased, reason: Block) -> End {
    tracing::error!(address = %leased.address(), %reason, "an execution is blocked");
    let mut ledger = Ledger::new(&engine, leased);
    // A refusal means that its phase lets nothing run anyway.
    let _ = ledger.decide(Command::block(reason));
    let summary = ledger.execution().summary(&[]);
    ledger.leave(summary, Hold::Yield).await
}
