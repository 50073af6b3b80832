//! What a board may have for its runner, which asks at every turn. Mostly it has nothing, and then
//! its state is not locked.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{BoardState, Shared};

/// Set under the lock of the state.
#[derive(Default)]
pub(super) struct Hints {
    /// A decision of the code or an ended closure may have to be recorded.
    unrecorded: AtomicBool,
    /// The code may want a next run.
    next: AtomicBool,
}

impl Hints {
    pub(super) fn note_unrecorded(&self) {
        self.unrecorded.store(true, Ordering::Release);
    }

    pub(super) fn note_next(&self) {
        self.next.store(true, Ordering::Release);
    }
}

impl BoardState {
    /// Whether the code wants a next run.
    pub(crate) fn wants_next(&self) -> bool {
        self.next.is_some()
    }
}

/// The runner's side.
impl Shared {
    /// Whether the code wants a next run.
    pub(crate) fn wants_next(&self) -> bool {
        self.hints.next.load(Ordering::Acquire) && self.lock().wants_next()
    }

    /// Adds an operation whose closure has ended.
    pub(crate) fn add_finished(&self, state: &mut BoardState, id: u64) {
        state.finished.push_back(id);
        self.hints.note_unrecorded();
    }

    /// Whether the code has decided something, or a closure has ended, that is to be recorded.
    pub(crate) fn has_unrecorded(&self) -> bool {
        if !self.hints.unrecorded.load(Ordering::Acquire) {
            return false;
        }
        let state = self.lock();
        let has_any = state.patches.has_new() || !state.finished.is_empty();
        self.hints.unrecorded.store(has_any, Ordering::Relaxed);
        has_any
    }
}
