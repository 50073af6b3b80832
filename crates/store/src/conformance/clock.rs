//! A clock that tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use abide_core::Timestamp;

use crate::Clock;

/// A clock that stands still until a test moves it.
#[derive(Debug)]
pub struct TestClock {
    micros: AtomicI64,
}

impl TestClock {
    /// Creates a clock at 2026-01-01.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { micros: AtomicI64::new(1_767_225_600_000_000) })
    }

    /// Moves it forward.
    pub fn advance(&self, duration: Duration) {
        self.micros.store(self.now().after(duration).as_micros(), Ordering::SeqCst);
    }

    /// Sets it back.
    pub fn set_back(&self, duration: Duration) {
        let micros = i64::try_from(duration.as_micros()).expect("a test sets it back by less");
        self.micros.fetch_sub(micros, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros.load(Ordering::SeqCst))
    }
}
