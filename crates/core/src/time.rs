//! Points in time, as the stores keep them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time: microseconds since the Unix epoch.
///
/// Arithmetic saturates: a sleep of `Duration::MAX` is due at [`Timestamp::MAX`], never in the
/// past.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The latest point in time that can be represented.
    pub const MAX: Self = Self(i64::MAX);

    /// Returns the point `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns the point `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Returns microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns milliseconds since the Unix epoch, rounded down.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// Returns this point plus `duration`.
    pub fn after(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// Returns this point minus `duration`.
    pub fn before(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros))
    }

    /// Returns the earlier of two points, or the only one that there is.
    pub fn sooner(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        [one, other].into_iter().flatten().min()
    }

    /// Returns how long after `earlier` this point is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_seconds(f)?;
        write!(f, ".{:03}Z", self.0.rem_euclid(1_000_000) / 1_000)
    }
}

/// The same text to the microsecond: points that differ look different in a failed assertion.
impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_seconds(f)?;
        write!(f, ".{:06}Z", self.0.rem_euclid(1_000_000))
    }
}

impl Timestamp {
    /// Writes date and time to the second.
    fn write_seconds(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(1_000_000);
        let (year, month, day) = civil(seconds.div_euclid(86_400));
        let of_day = seconds.rem_euclid(86_400);
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

/// Returns the proleptic Gregorian date of a day counted from 1970-01-01.
fn civil(day: i64) -> (i64, i64, i64) {
    // Counting from 0000-03-01 puts the leap day last, so every month length is a formula.
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_utc_with_milliseconds() {
        let rows = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_794_700_799_999, "2026-11-14T23:59:59.999Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ];
        for (millis, expected) in rows {
            assert_eq!(Timestamp::from_millis(millis).to_string(), expected);
        }
    }

    #[test]
    fn debug_is_utc_with_microseconds() {
        let rows = [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_007, "2000-02-29T00:00:00.000007Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ];
        for (micros, expected) in rows {
            assert_eq!(format!("{:?}", Timestamp::from_micros(micros)), expected);
        }
    }

    #[test]
    fn the_sooner_of_two_points_may_be_the_only_one() {
        let (early, late) = (Some(Timestamp::from_millis(1)), Some(Timestamp::from_millis(2)));
        let rows = [(early, late, early), (late, early, early), (None, late, late), (late, None, late)];
        for (one, other, expected) in rows {
            assert_eq!(Timestamp::sooner(one, other), expected);
        }
        assert_eq!(Timestamp::sooner(None, None), None);
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::from_millis(1).after(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_micros(-2).before(Duration::MAX), Timestamp::from_micros(i64::MIN));
        assert_eq!(Timestamp::from_millis(1).since(Timestamp::from_millis(2)), Duration::ZERO);
    }
}
