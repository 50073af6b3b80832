//! The home of real time in these tests.
#![expect(clippy::disallowed_methods, reason = "servers that are killed live in real time")]

use std::future::Future;
use std::time::{Duration, Instant};

pub(crate) async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// Returns how long something took. It must not take longer than `limit`.
pub(crate) async fn timed(limit: Duration, what: &str, work: impl Future<Output = ()>) -> Duration {
    let began = Instant::now();
    let ended = tokio::time::timeout(limit, work).await;
    assert!(ended.is_ok(), "{what}: not within {limit:?}");
    began.elapsed()
}

/// Starts a task, which ends with the runtime of its test.
pub(crate) fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}
