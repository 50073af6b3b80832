//! Pauses between the tries of something that fails again and again.

use std::time::Duration;

use abide_store::Error;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(60);
/// The longest pause while the store itself fails: everything goes on soon after it works again.
pub(crate) const LONGEST_OF_STORE: Duration = Duration::from_secs(2);

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
    /// Counts a failure, and returns the pause before the next try. The pauses are short if the
    /// store fails, and not only some of its rows.
    pub(crate) fn next(&mut self, error: &Error) -> Duration {
        self.failure_count = self.failure_count.saturating_add(1);
        after(self.failure_count).min(if error.is_of_one() { LONGEST } else { LONGEST_OF_STORE })
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
        let unread = Error::Unread { what: "read", source: "a bad sector".into() };
        let mut pauses = Pauses::default();
        assert!(pauses.is_first());
        let millis: Vec<_> = (0..12).map(|_| pauses.next(&unread).as_millis()).collect();
        assert_eq!(
            millis,
            [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 60_000, 60_000, 60_000]
        );
        assert!(!pauses.is_first());
        assert_eq!(after(u32::MAX), LONGEST);
        let busy = Error::Busy { what: "read" };
        assert_eq!(pauses.next(&busy), LONGEST_OF_STORE);
    }
}
