//! The time limit of a transaction step.

use std::time::Duration;

use tokio::time::Instant;

/// The end of the time that a transaction step has, its SQL included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    ends_at: Instant,
    limit_ms: u64,
}

impl Deadline {
    #[expect(clippy::disallowed_methods, reason = "how long a closure takes is no time of the data")]
    pub(crate) fn after(limit_ms: u64) -> Self {
        Self { ends_at: Instant::now() + Duration::from_millis(limit_ms), limit_ms }
    }

    #[expect(clippy::disallowed_methods, reason = "how long a closure takes is no time of the data")]
    pub(crate) fn is_over(self) -> bool {
        Instant::now() >= self.ends_at
    }

    /// Runs something that must end by then. `None` says that it was dropped.
    #[expect(clippy::disallowed_methods, reason = "how long a closure takes is no time of the data")]
    pub(crate) async fn bound<T>(self, work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout_at(self.ends_at, work).await.ok()
    }

    pub(crate) fn complaint(self) -> String {
        format!("the transaction step took longer than transaction_ms_max, {} ms", self.limit_ms)
    }
}
