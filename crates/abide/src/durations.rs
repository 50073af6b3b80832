//! Short names for durations.

use std::time::Duration;

/// `count` milliseconds.
pub const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// `count` seconds.
pub const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// `count` minutes.
pub const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count.saturating_mul(60))
}

/// `count` hours.
pub const fn hours(count: u64) -> Duration {
    Duration::from_secs(count.saturating_mul(3_600))
}

/// `count` days of 24 hours.
pub const fn days(count: u64) -> Duration {
    Duration::from_secs(count.saturating_mul(86_400))
}
