//! Time and sleep in this program; the benchmark has a stopwatch of its own.

use std::time::Duration;

use abide_core::Timestamp;
use abide_engine::SystemClock;
use abide_store::Clock;

/// Returns the current time.
pub(crate) fn now() -> Timestamp {
    SystemClock.now()
}

/// Sleeps on this thread.
#[expect(clippy::disallowed_methods, reason = "the demo watches another process, which reports nothing")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Sleeps inside a step, in place of a call to the outside world.
#[expect(clippy::disallowed_methods, reason = "a closure of the demo's takes some time, like any real one")]
pub(crate) async fn work(duration: Duration) {
    tokio::time::sleep(duration).await;
}
