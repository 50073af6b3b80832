//! The only place in the benchmark that reads the clock.

use std::time::{Duration, Instant};

/// A stopwatch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    pub(super) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Returns the median; of an even number of values, the mean of the two in the middle.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.len() % 2, values.get(middle)) {
        (_, None) => 0.0,
        (0, Some(upper)) => (values[middle - 1] + upper) / 2.0,
        (_, Some(only)) => *only,
    }
}

/// Returns the value that this part of all values does not exceed.
pub(super) fn quantile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let rank = (values.len() as f64 * part).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let rows = [(vec![], 0.0), (vec![3.0], 3.0), (vec![9.0, 1.0], 5.0), (vec![5.0, 100.0, 1.0], 5.0)];
        for (values, expected) in rows {
            assert_eq!(median(values), expected);
        }
    }

    #[test]
    fn a_quantile_has_the_other_values_above_it() {
        let hundred: Vec<_> = (1..=100).rev().map(f64::from).collect();
        let rows = [(vec![], 0.0), (vec![3.0], 3.0), (vec![9.0, 1.0], 9.0), (hundred, 99.0)];
        for (values, expected) in rows {
            assert_eq!(quantile(values, 0.99), expected);
        }
    }
}
