//! When to try again.

use std::time::Duration;

use crate::grow::growable;
use crate::hash::Hash;
use crate::planted::{Bug, planted};
use crate::{Address, Op, RetryOptions, Timestamp};

/// How often, and after which pauses, a failed step or task is tried again.
///
/// Attempts are counted in the journal, so that a crash or a deploy neither forgets one nor begins
/// anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    first_delay: Duration,
    factor: u32,
    delay_max: Duration,
    attempt_count_max: u32,
    /// The part of a pause that is left to chance, in millionths.
    jitter: Option<u32>,
    elapsed_max: Option<Duration>,
}

growable!(Retry {
    fields: first_delay, factor, delay_max, attempt_count_max;
    gained: 1 => jitter, 2 => elapsed_max;
});

/// The facts about a failed attempt that a policy needs.
#[derive(Clone, Copy, Debug)]
pub struct FailedAttempt {
    /// Its number, from 1.
    pub number: u32,
    /// When the first attempt began.
    pub first_at: Timestamp,
    /// When this one ended.
    pub failed_at: Timestamp,
    /// A number without a pattern, for [`Retry::jitter`]; see [`chance`].
    pub chance: u64,
}

/// The whole of a pause, in the unit of [`Retry::jitter`].
const WHOLE: u32 = 1_000_000;

impl Retry {
    /// Creates a policy without a second attempt.
    pub fn never() -> Self {
        Self::fixed(Duration::ZERO).max_attempts(1)
    }

    /// Creates a policy with the same pause after each attempt, and at most
    /// [`Retry::ATTEMPTS_DEFAULT`] attempts.
    pub fn fixed(delay: Duration) -> Self {
        Self {
            first_delay: delay,
            factor: 1,
            delay_max: delay,
            attempt_count_max: Self::ATTEMPTS_DEFAULT,
            jitter: None,
            elapsed_max: None,
        }
    }

    /// Creates a policy whose pause doubles after each attempt, up to an hour, with at most
    /// [`Retry::ATTEMPTS_DEFAULT`] attempts.
    pub fn exponential(first_delay: Duration) -> Self {
        let delay_max = Duration::from_secs(3_600).max(first_delay);
        Self { factor: 2, delay_max, ..Self::fixed(first_delay) }
    }

    /// Creates a policy whose pauses double from a second up to an hour, with no last attempt.
    ///
    /// Each failed attempt is an entry of the journal. A step that never succeeds is blocked in the
    /// end, by `entry_count_max`; at a pause of an hour that takes centuries.
    pub fn forever() -> Self {
        Self::exponential(Duration::from_secs(1)).max_attempts(match planted(Bug::ForeverEnds) {
            true => Self::ATTEMPTS_DEFAULT,
            false => Self::ATTEMPTS_UNLIMITED,
        })
    }

    /// The default number of attempts.
    pub const ATTEMPTS_DEFAULT: u32 = 10;

    /// As many attempts as it takes, for [`Retry::max_attempts`].
    pub const ATTEMPTS_UNLIMITED: u32 = u32::MAX;

    /// Allows at most `count` attempts in all, including the first. Zero counts as one.
    pub fn max_attempts(mut self, count: u32) -> Self {
        self.attempt_count_max = count.max(1);
        self
    }

    /// Allows no pause longer than `delay`.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.delay_max = delay;
        self
    }

    /// Makes each pause `factor` times as long as the one before it.
    pub fn factor(mut self, factor: u32) -> Self {
        self.factor = factor.max(1);
        self
    }

    /// Shortens each pause at random by up to this part of it, so that operations that failed
    /// together do not run again together: `0.2` leaves between 80 % and all of a pause, `1.0`
    /// between nothing and all of it. Less than 0, or not a number, counts as 0, and more than 1
    /// as 1.
    ///
    /// The random part is derived from the id of the execution, the step and the attempt, so a
    /// repeated test has the same pauses.
    pub fn jitter(mut self, part: f64) -> Self {
        let millionths = (part.clamp(0.0, 1.0) * f64::from(WHOLE)).round();
        // The cast turns "not a number" into 0.
        self.jitter = Some(millionths as u32).filter(|millionths| *millionths > 0);
        self
    }

    /// Plans no attempt for a time when this much, or more, has passed since the first one began,
    /// including restarts. With zero there is no second attempt. An attempt that was planned in
    /// time is made even if nobody could run it then.
    pub fn max_elapsed(mut self, elapsed: Duration) -> Self {
        self.elapsed_max = Some(elapsed);
        self
    }

    /// Returns the pause after failed attempt number `attempt` (the first is 1), before chance
    /// shortens it. Returns `None` if that attempt was the last.
    pub fn delay_after(&self, attempt: u32) -> Option<Duration> {
        let is_limited = self.attempt_count_max != Self::ATTEMPTS_UNLIMITED;
        if is_limited && attempt >= self.attempt_count_max {
            return None;
        }
        let growth = self.factor.checked_pow(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        Some(self.first_delay.saturating_mul(growth).min(self.delay_max))
    }

    /// Returns when the next attempt begins, or `None` if this one was the last.
    pub fn next_at(&self, failed: &FailedAttempt) -> Option<Timestamp> {
        let delay = self.shortened(self.delay_after(failed.number)?, failed.chance);
        let next_at = failed.failed_at.after(delay);
        let is_late = |elapsed_max| next_at.since(failed.first_at) >= elapsed_max;
        (!self.elapsed_max.is_some_and(is_late)).then_some(next_at)
    }

    /// Returns the policy as JSON has it.
    pub(crate) fn options(&self) -> RetryOptions {
        let millis = |delay: Duration| delay.as_secs_f64() * 1_000.0;
        RetryOptions {
            first_delay_ms: millis(self.first_delay),
            factor: Some(self.factor),
            max_delay_ms: Some(millis(self.delay_max)),
            max_attempts: Some(self.attempt_count_max),
            jitter: self.jitter.map(|millionths| f64::from(millionths) / f64::from(WHOLE)),
            max_elapsed_ms: self.elapsed_max.map(millis),
        }
    }

    fn shortened(&self, delay: Duration, chance: u64) -> Duration {
        let Some(jitter) = self.jitter.filter(|_| !planted(Bug::JitterIgnored)) else { return delay };
        // A duration has less than 2^94 nanoseconds: nothing is multiplied by 2^32 before it is
        // divided.
        let most = delay.as_nanos() / u128::from(WHOLE) * u128::from(jitter)
            + delay.as_nanos() % u128::from(WHOLE) * u128::from(jitter) / u128::from(WHOLE);
        let cut = (most >> 32) * u128::from(chance >> 32)
            + (((most & 0xffff_ffff) * u128::from(chance >> 32)) >> 32);
        delay.saturating_sub(nanos(cut))
    }
}

fn nanos(count: u128) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    let seconds = u64::try_from(count / SECOND).unwrap_or(u64::MAX);
    Duration::new(seconds, (count % SECOND) as u32)
}

/// Returns the chance of an attempt. It has no pattern across executions, operations and attempts,
/// and is the same on every call.
pub fn chance(address: &Address, run: u32, op: &Op, attempt: u32) -> u64 {
    let part = |hash: Hash, text: &str| hash.with(text.as_bytes()).with(&[0]);
    let hash = part(part(Hash::new(), address.namespace.as_str()), address.id.as_str());
    let hash = hash.with(&run.to_le_bytes()).with(&op.index().0.to_le_bytes());
    hash.with(&attempt.to_le_bytes()).finish()
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

    const START: Timestamp = Timestamp::from_millis(1_000_000);

    fn failed(number: u32, after_ms: u64) -> FailedAttempt {
        let failed_at = START.after(Duration::from_millis(after_ms));
        FailedAttempt { number, first_at: START, failed_at, chance: u64::MAX }
    }

    fn pause(retry: &Retry, failed: FailedAttempt) -> Option<Duration> {
        retry.next_at(&failed).map(|at| at.since(failed.failed_at))
    }

    #[test]
    fn forever_has_no_last_attempt() {
        for attempt in [1, 2, 13, 4_000_000, u32::MAX - 1, u32::MAX] {
            let delay = Retry::forever().delay_after(attempt).unwrap();
            assert!(delay >= Duration::from_secs(1) && delay <= Duration::from_secs(3_600));
        }
        assert_eq!(Retry::forever().max_attempts(2).delay_after(2), None);
    }

    #[test]
    fn jitter_shortens_a_pause_by_its_part_at_most() {
        let second = Duration::from_secs(1);
        let rows: [(f64, u64, u64); 9] = [
            (0.0, u64::MAX, 1_000),
            (-3.0, u64::MAX, 1_000),
            (f64::NAN, u64::MAX, 1_000),
            (0.2, 0, 1_000),
            (0.2, u64::MAX / 2, 900),
            (0.2, u64::MAX, 800),
            (1.0, u64::MAX, 0),
            (7.5, u64::MAX / 2, 500),
            (f64::INFINITY, 0, 1_000),
        ];
        for (part, chance, expected_ms) in rows {
            let retry = Retry::fixed(second).jitter(part);
            let found = pause(&retry, FailedAttempt { chance, ..failed(1, 0) }).unwrap();
            let expected = Duration::from_millis(expected_ms);
            assert!(found.abs_diff(expected) < Duration::from_micros(2), "{part} {chance}: {found:?}");
        }
    }

    #[test]
    fn jitter_of_the_longest_pause_does_not_overflow() {
        let retry = Retry::fixed(Duration::MAX).jitter(1.0);
        assert!(retry.shortened(Duration::MAX, u64::MAX) < Duration::from_secs(1 << 33));
        assert_eq!(retry.shortened(Duration::MAX, 0), Duration::MAX);
        assert_eq!(retry.shortened(Duration::ZERO, u64::MAX), Duration::ZERO);
    }

    #[test]
    fn no_attempt_begins_after_the_longest_time() {
        let retry = |elapsed_max| Retry::fixed(Duration::from_secs(1)).max_elapsed(elapsed_max);
        let ten = retry(Duration::from_secs(10));
        assert_eq!(pause(&ten, failed(1, 0)), Some(Duration::from_secs(1)));
        assert_eq!(pause(&ten, failed(1, 8_999)), Some(Duration::from_secs(1)));
        assert_eq!(pause(&ten, failed(1, 9_000)), None);
        assert_eq!(pause(&ten, failed(10, 1_000)), None);
        assert_eq!(pause(&retry(Duration::ZERO), failed(1, 0)), None);
        let at_once = Retry::fixed(Duration::ZERO).max_elapsed(Duration::ZERO);
        assert_eq!(pause(&at_once, failed(1, 0)), None);
        assert!(pause(&retry(Duration::MAX), failed(1, u64::MAX / 2_000)).is_some());
        // The clock was set back since.
        let before = FailedAttempt { first_at: START.after(Duration::from_secs(60)), ..failed(1, 0) };
        assert_eq!(pause(&ten, before), Some(Duration::from_secs(1)));
    }

    #[test]
    fn chance_differs_between_executions_operations_and_attempts() {
        let of = |id: &str, run, name: &str, attempt| {
            let address =
                Address { namespace: crate::Namespace::default(), id: crate::ExecutionId::new(id).unwrap() };
            let name = crate::Name::new(name).unwrap();
            chance(&address, run, &Op { kind: crate::OpKind::Step, name, key: None, nth: 1 }, attempt)
        };
        assert_eq!(of("a", 1, "pay", 1), of("a", 1, "pay", 1));
        let others =
            [of("b", 1, "pay", 1), of("a", 2, "pay", 1), of("a", 1, "ship", 1), of("a", 1, "pay", 2)];
        for (nth, other) in others.iter().enumerate() {
            assert_ne!(of("a", 1, "pay", 1), *other);
            assert!(!others[nth + 1..].contains(other));
        }
        // A thousand executions that failed together are spread over the whole pause.
        let buckets: std::collections::BTreeSet<_> =
            (0..1_000).map(|n| of(&format!("order-{n}"), 1, "pay", 1) >> 59).collect();
        assert_eq!(buckets.len(), 32);
    }

    #[test]
    fn never_is_one_attempt() {
        assert_eq!(Retry::never().delay_after(1), None);
        assert_eq!(Retry::fixed(Duration::ZERO).max_attempts(0).delay_after(1), None);
    }
}
