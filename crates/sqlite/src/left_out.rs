//! Executions that SQLite could not read, and that are left out for a while.
//!
//! A failing read says nothing about what was written: SQLite calls a page malformed also when the disk did not give it. Only a row that was read and
//! is not what was written is damaged, and set aside for good. What could not be read is tried again, each time after a longer pause.

use std::collections::HashMap;
use std::time::Duration;

use abide_core::{KeyHasher, Timestamp};

/// The most that are left out; when more cannot be read, it is the file that cannot.
const COUNT_MAX: usize = 1_000;
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct LeftOut(HashMap<i64, Pause, KeyHasher>);

#[derive(Debug)]
struct Pause {
    failure_count: u32,
    until: Timestamp,
}

impl LeftOut {
    /// Leaves an execution out; until when, or nothing when too many are.
    pub(crate) fn put(&mut self, key: i64, now: Timestamp) -> Option<Timestamp> {
        if self.0.len() >= COUNT_MAX && !self.0.contains_key(&key) {
            return None;
        }
        let pause = self.0.entry(key).or_insert(Pause { failure_count: 0, until: now });
        let length = PAUSE_FIRST.saturating_mul(1 << pause.failure_count.min(10)).min(PAUSE_MAX);
        pause.failure_count += 1;
        pause.until = now.after(length);
        Some(pause.until)
    }

    /// It could be read.
    pub(crate) fn forget(&mut self, key: i64) {
        if !self.0.is_empty() {
            self.0.remove(&key);
        }
    }

    /// Whether it is to be left alone now. A clock that was set back makes no pause longer.
    pub(crate) fn has(&self, key: i64, now: Timestamp) -> bool {
        !self.0.is_empty()
            && self.0.get(&key).is_some_and(|pause| pause.until > now && pause.until <= now.after(PAUSE_MAX))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// When the next of them is tried again.
    pub(crate) fn next_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.0.values().map(|pause| pause.until).filter(|until| *until > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_end() {
        let mut left_out = LeftOut::default();
        let mut now = Timestamp::from_millis(0);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let until = left_out.put(7, now).unwrap();
            assert!(left_out.has(7, now) && !left_out.has(7, until) && !left_out.has(8, now));
            assert_eq!(left_out.next_at(now), Some(until));
            pauses.push(until.since(now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        left_out.forget(7);
        assert_eq!(left_out.put(7, now), Some(now.after(PAUSE_FIRST)));
    }

    #[test]
    fn at_most_so_many_are_left_out() {
        let mut left_out = LeftOut::default();
        let now = Timestamp::from_millis(0);
        assert!((0..COUNT_MAX as i64).all(|key| left_out.put(key, now).is_some()));
        assert_eq!((left_out.put(-1, now), left_out.count()), (None, COUNT_MAX));
        assert!(left_out.put(0, now).is_some());
    }
}
