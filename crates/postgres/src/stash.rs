//! Keys that were drawn beforehand, so that a start that comes alone need not wait for one.

use std::sync::{Mutex, PoisonError};

use abide_core::Timestamp;

/// How long a key may lie here. Executions are listed by their keys, and other processes draw
/// theirs meanwhile, so a list is in order to about so much.
const AGE_US_MAX: i64 = 1_000_000;

/// How many keys are drawn beyond those that are needed. The server writes every 32nd key to its
/// disk.
const SPARE_COUNT: i64 = 31;

/// Keys in ascending order. They are used in that order, and all of them are forgotten before
/// others are drawn, so that a later start of this process has a larger key.
#[derive(Debug, Default)]
pub(crate) struct Stash(Mutex<Spare>);

#[derive(Debug, Default)]
struct Spare {
    keys: std::collections::VecDeque<i64>,
    drawn_at: i64,
}

impl Stash {
    /// Returns so many keys, or how many have to be drawn.
    pub(crate) fn take(&self, count: i64, now: Timestamp) -> Result<Vec<i64>, i64> {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = now.as_micros() - spare.drawn_at;
        let wanted = usize::try_from(count).unwrap_or(0);
        if spare.keys.len() < wanted || !(0..=AGE_US_MAX).contains(&age) {
            spare.keys.clear();
            return Err(count + SPARE_COUNT);
        }
        Ok(spare.keys.drain(..wanted).collect())
    }

    /// Returns so many of the keys that were drawn, and keeps the others.
    pub(crate) fn keep(&self, mut drawn: Vec<i64>, count: i64, now: Timestamp) -> Vec<i64> {
        let rest = drawn.split_off(drawn.len().min(usize::try_from(count).unwrap_or(0)));
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Two that draw at the same time: the later keys are kept.
        if spare.keys.back() < rest.last() {
            *spare = Spare { keys: rest.into(), drawn_at: now.as_micros() };
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn a_later_key_is_larger() {
        let stash = Stash::default();
        assert_eq!(stash.take(2, at(0)), Err(33));
        assert_eq!(stash.keep((1..=33).collect(), 2, at(0)), [1, 2]);
        assert_eq!(stash.take(1, at(1)), Ok(vec![3]));
        assert_eq!(stash.take(100, at(2)), Err(131), "too few");
        assert_eq!(stash.take(1, at(3)), Err(32), "all of them are forgotten");
        // Another one that draws comes back first, with later keys.
        assert_eq!(stash.keep((165..=196).collect(), 1, at(4)), [165]);
        assert_eq!(stash.keep((34..=164).collect(), 100, at(4)).len(), 100);
        assert_eq!(stash.take(1, at(5)), Ok(vec![166]));
    }

    #[test]
    fn a_key_does_not_lie_for_long() {
        for later in [AGE_US_MAX + 1, -1] {
            let stash = Stash::default();
            assert_eq!(stash.keep(vec![1, 2], 1, at(10)), [1]);
            assert_eq!(stash.take(1, at(10 + later)), Err(32), "{later}");
        }
    }
}
