//! When to try again.

use std::time::Duration;

use crate::grow::growable;

/// How often, and after which pauses, a failed step or task is tried again.
///
/// ```
/// use std::time::Duration;
/// use abide_core::Retry;
/// let retry = Retry::exponential(Duration::from_millis(100)).max_attempts(5);
/// assert_eq!(retry.delay_after(3), Some(Duration::from_millis(400)));
/// assert_eq!(retry.delay_after(5), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    first_delay: Duration,
    factor: u32,
    delay_max: Duration,
    attempt_count_max: u32,
}

growable!(Retry {
    fields: first_delay, factor, delay_max, attempt_count_max;
    gained: ;
});

impl Retry {
    /// No second attempt.
    pub fn never() -> Self {
        Self::fixed(Duration::ZERO).max_attempts(1)
    }

    /// The same pause after each attempt, at most [`Retry::ATTEMPTS_DEFAULT`] attempts.
    pub fn fixed(delay: Duration) -> Self {
        Self { first_delay: delay, factor: 1, delay_max: delay, attempt_count_max: Self::ATTEMPTS_DEFAULT }
    }

    /// A pause that doubles after each attempt, up to an hour, at most [`Retry::ATTEMPTS_DEFAULT`] attempts.
    pub fn exponential(first_delay: Duration) -> Self {
        Self {
            first_delay,
            factor: 2,
            delay_max: Duration::from_secs(3_600).max(first_delay),
            attempt_count_max: Self::ATTEMPTS_DEFAULT,
        }
    }

    /// How many attempts are made when nothing else is said.
    pub const ATTEMPTS_DEFAULT: u32 = 10;

    /// At most `count` attempts in all, the first included. Zero counts as one.
    pub fn max_attempts(mut self, count: u32) -> Self {
        self.attempt_count_max = count.max(1);
        self
    }

    /// No pause is longer than `delay`.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.delay_max = delay;
        self
    }

    /// Each pause is `factor` times the one before it.
    pub fn factor(mut self, factor: u32) -> Self {
        self.factor = factor.max(1);
        self
    }

    /// The pause after failed attempt number `attempt` (the first is 1), or `None` when it was the last.
    pub fn delay_after(&self, attempt: u32) -> Option<Duration> {
        if attempt >= self.attempt_count_max {
            return None;
        }
        let growth = self.factor.checked_pow(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        Some(self.first_delay.saturating_mul(growth).min(self.delay_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_their_bound_and_end() {
        let retry =
            Retry::exponential(Duration::from_secs(1)).max_attempts(6).max_delay(Duration::from_secs(5));
        let delays: Vec<_> = (1..=6).map(|attempt| retry.delay_after(attempt).map(|d| d.as_secs())).collect();
        assert_eq!(delays, [Some(1), Some(2), Some(4), Some(5), Some(5), None]);
    }

    #[test]
    fn huge_attempts_do_not_overflow() {
        let retry = Retry::exponential(Duration::from_secs(1)).max_attempts(u32::MAX);
        assert_eq!(retry.delay_after(4_000_000), Some(Duration::from_secs(3_600)));
    }

    #[test]
    fn never_is_one_attempt() {
        assert_eq!(Retry::never().delay_after(1), None);
        assert_eq!(Retry::fixed(Duration::ZERO).max_attempts(0).delay_after(1), None);
    }
}
