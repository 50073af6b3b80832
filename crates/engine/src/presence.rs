//! The share of a runner in the engine's gauges.

use std::sync::Arc;

use crate::engine::Inner;

/// Counts one runner as runnable, and its user's code as waiting for the outside world, while they
/// are so.
pub(crate) struct Presence {
    engine: Arc<Inner>,
    is_runnable: bool,
    awaits_outside: bool,
}

impl Presence {
    pub(crate) fn new(engine: Arc<Inner>) -> Self {
        Self { engine, is_runnable: false, awaits_outside: false }
    }

    /// Marks the runner as runnable: it is about to be polled.
    pub(crate) fn begin(&mut self) {
        self.set(true, false);
    }

    /// Sets, after a poll, whether the runner has work under way and whether its user's code waits
    /// for the outside world.
    pub(crate) fn set(&mut self, is_runnable: bool, awaits_outside: bool) {
        if self.is_runnable != is_runnable {
            self.is_runnable = is_runnable;
            self.engine.count_runnable(is_runnable);
        }
        if self.awaits_outside != awaits_outside {
            self.awaits_outside = awaits_outside;
            self.engine.runtime.count_outside(if awaits_outside { 1 } else { -1 });
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.set(false, false);
    }
}
