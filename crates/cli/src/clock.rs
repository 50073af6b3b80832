//! The home of time in this program.

use std::time::Duration;

use abide_core::Timestamp;
use abide_engine::SystemClock;
use abide_store::Clock;

/// The time now.
pub(crate) fn now() -> Timestamp {
    SystemClock.now()
}

/// Waits on this thread.
#[expect(
    clippy::disallowed_methods,
    reason = "the demo watches another process, which tells nobody what it does"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Waits inside a step, as a step does that talks to the world outside.
#[expect(clippy::disallowed_methods, reason = "a closure of the demo's takes some time, like any real one")]
pub(crate) async fn work(duration: Duration) {
    tokio::time::sleep(duration).await;
}
