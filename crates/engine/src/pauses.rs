//! Pauses between the tries of something that fails again and again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(60);

/// Returns the pause after so many failures in a row: each is twice as long as the one before it,
/// up to a minute.
pub(crate) fn after(failure_count: u32) -> Duration {
    FIRST.saturating_mul(1 << failure_count.saturating_sub(1).min(10)).min(LONGEST)
}

/// The failures in a row of one thing that is tried until it succeeds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pauses {
    failure_count: u32,
}

impl Pauses {
    /// Counts a failure, and returns the pause before the next try.
    pub(crate) fn next(&mut self) -> Duration {
        self.failure_count = self.failure_count.saturating_add(1);
        after(self.failure_count)
    }

    /// Whether the next failure is the first one in a row, which is to be reported: the others
    /// would only fill the log.
    pub(crate) fn is_first(&self) -> bool {
        self.failure_count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let mut pauses = Pauses::default();
        assert!(pauses.is_first());
        let millis: Vec<_> = (0..12).map(|_| pauses.next().as_millis()).collect();
        assert_eq!(
            millis,
            [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 60_000, 60_000, 60_000]
        );
        assert!(!pauses.is_first());
        assert_eq!(after(u32::MAX), LONGEST);
    }
}
