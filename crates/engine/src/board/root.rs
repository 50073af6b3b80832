//! The waker that a workflow's own future is polled with.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Wake, Waker};

use super::{Shared, this_thread};

/// The waker that the workflow's own future is polled with.
///
/// Every wake that belongs to an operation comes from the runner, on the thread that polls. A wake
/// from anywhere else means that the workflow awaits something whose outcome is not recorded.
pub(crate) struct RootWaker {
    root: Arc<Root>,
    waker: Waker,
    /// How often the workflow was polled with it.
    poll_count: u64,
}

/// Counted by its clones, so it is no part of the board, which others hold too.
struct Root(Arc<Shared>);

impl RootWaker {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let root = Arc::new(Root(shared.clone()));
        let waker = Waker::from(root.clone());
        Self { root, waker, poll_count: 0 }
    }

    /// Returns the waker for one poll.
    pub(crate) fn for_poll(&mut self) -> &Waker {
        self.poll_count += 1;
        &self.waker
    }

    /// Replaces it by another one, and has the workflow polled with that: a future that is still
    /// awaited takes the new waker, and a future that is over, such as a `FuturesUnordered` without
    /// members, keeps the old one. Does nothing if only the last poll can have passed it on.
    pub(crate) fn renew(&mut self) {
        if self.poll_count > 1 {
            let shared = self.root.0.clone();
            *self = Self::new(&shared);
            shared.again.store(true, Ordering::Release);
            shared.mailbox.task.wake();
        }
    }

    /// Whether something other than the open operations waits for a chance to wake the workflow.
    /// When the execution leaves memory, that would be forgotten.
    ///
    /// A combinator such as `FuturesUnordered` polls operations with wakers of its own, and holds
    /// this one for them. Beside an operation with such a waker nothing can be said.
    pub(crate) fn is_held_elsewhere(&self) -> bool {
        // Two of the references are this struct's own.
        let held_count = Arc::strong_count(&self.root) - 2;
        if held_count == 0 {
            return false;
        }
        let state = self.root.0.lock();
        let mut wakers = state.slots.values().filter_map(|slot| slot.waker.as_ref());
        let mut operation_count = 0;
        let are_ours = wakers.all(|waker| {
            operation_count += 1;
            waker.will_wake(&self.waker)
        });
        are_ours && held_count > operation_count
    }
}

impl Wake for Root {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let shared = &self.0;
        if shared.polling_thread.load(Ordering::Relaxed) == this_thread() {
            shared.again.store(true, Ordering::Release);
        } else {
            shared.foreign.store(true, Ordering::Release);
            shared.mailbox.task.wake();
        }
    }
}
