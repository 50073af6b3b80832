//! Closures of steps, and their wakers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::time::Duration;

use abide_core::{Failure, FailureKind};

use super::{OpState, Shared};
use crate::runtime::Runtime;

/// The waker that a step's closure is polled with.
pub(super) struct StepWaker {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
}

impl Wake for StepWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.shared.woken.add(self.id);
        self.shared.mailbox.task.wake();
    }
}

/// Operations whose closures asked to be polled.
#[derive(Default)]
pub(super) struct Woken {
    ids: Mutex<Vec<u64>>,
    /// Whether there are any. The runner asks before every poll of the code, and mostly there are
    /// none.
    is_any: AtomicBool,
}

impl Woken {
    pub(super) fn add(&self, id: u64) {
        let mut ids = self.lock();
        ids.push(id);
        self.is_any.store(true, Ordering::Release);
    }

    pub(super) fn has_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> Vec<u64> {
        if !self.has_any() {
            return Vec::new();
        }
        let mut ids = self.lock();
        // Both change together, under the lock: an operation that asks later is seen later.
        self.is_any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *ids)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Whether a closure waits for the outside world. It does not if nothing holds its waker, or if
    /// only waits inside this engine do: then nothing outside will ever wake it.
    pub(crate) fn waits_outside(&self, runtime: &dyn Runtime) -> bool {
        self.lock().slots.values().filter(|slot| matches!(slot.state, OpState::Running { .. })).any(|slot| {
            slot.closure
                .as_ref()
                .is_some_and(|waker| waker.strong_count() > 1 + runtime.inside_count(waker.as_ptr().addr()))
        })
    }
}

/// Returns the failure of an attempt that took too long.
pub(crate) fn timed_out(after: Duration) -> Failure {
    let message = match after {
        Duration::ZERO => "the attempt was due at once: its timeout is 0".to_owned(),
        after => format!("the attempt took longer than {after:?}"),
    };
    Failure::new(FailureKind::Timeout, message)
}
