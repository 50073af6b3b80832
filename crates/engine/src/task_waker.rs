//! The waker of a task that several parties wake.

use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// Holds the newest waker of one task.
#[derive(Debug, Default)]
pub(crate) struct TaskWaker(Mutex<Option<Waker>>);

impl TaskWaker {
    /// Remembers the waker of the task's last poll.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return;
        }
        let former = known.replace(waker.clone());
        drop(known);
        // Outside of the lock: it may be the last one to hold values of users.
        drop(former);
    }

    /// Has the task polled again.
    pub(crate) fn wake(&self) {
        // Cloned out of the lock: the waker may run the task at once, which registers again.
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = known {
            waker.wake();
        }
    }
}
