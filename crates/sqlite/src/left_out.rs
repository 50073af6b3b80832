//! Executions that SQLite could not read, and that are left out for a while.
//!
//! A failing read says nothing about the contents of a row: SQLite calls a page malformed also when
//! the disk did not return it. Only a row that was read and fails its check is damaged, and set
//! aside for good. An execution that could not be read is tried again, each time after a longer
//! pause.

use std::time::Duration;

use abide_core::Timestamp;

use crate::caches::ByKey;

const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The executions that the writer leaves out. A rollback takes nothing of it back: the next
/// transaction has to leave out the executions that this one could not read.
#[derive(Debug)]
pub(crate) struct LeftOut {
    pauses: ByKey<Pause>,
    put_count: usize,
    count_max: usize,
}

#[derive(Debug)]
struct Pause {
    failure_count: u32,
    until: Timestamp,
}

impl Pause {
    /// Whether the pause still lasts. A clock that was set back makes no pause longer.
    fn lasts(&self, now: Timestamp) -> bool {
        self.until > now && self.until <= now.after(PAUSE_MAX)
    }

    /// Whether it has ended so recently that the next one has to be longer.
    fn is_remembered(&self, now: Timestamp) -> bool {
        self.until <= now && now < self.until.after(PAUSE_MAX)
    }
}

impl LeftOut {
    /// Remembers at most `count_max` executions from one claim to the next.
    pub(crate) fn new(count_max: usize) -> Self {
        Self { pauses: ByKey::default(), put_count: 0, count_max }
    }

    /// Leaves an execution out, and returns until when.
    pub(crate) fn put(&mut self, key: i64, now: Timestamp) -> Timestamp {
        self.put_count += 1;
        let pause = self.pauses.entry(key).or_insert(Pause { failure_count: 0, until: now });
        let length = PAUSE_FIRST.saturating_mul(1 << pause.failure_count.min(10)).min(PAUSE_MAX);
        pause.failure_count = pause.failure_count.saturating_add(1);
        pause.until = now.after(length);
        pause.until
    }

    /// Returns how often an execution was left out.
    pub(crate) fn put_count(&self) -> usize {
        self.put_count
    }

    /// Forgets an execution that could be read.
    pub(crate) fn forget(&mut self, key: i64) {
        if !self.pauses.is_empty() {
            self.pauses.remove(&key);
        }
    }

    /// Forgets executions that were not tried again for long after their pauses: another process
    /// runs them, or has ended them. Forgets pauses from before the clock was set back, too. If
    /// there are still too many, those that would be tried soonest go.
    pub(crate) fn trim(&mut self, now: Timestamp) {
        if self.pauses.is_empty() {
            return;
        }
        self.pauses.retain(|_, pause| pause.lasts(now) || pause.is_remembered(now));
        let excess = self.pauses.len().saturating_sub(self.count_max);
        if excess > 0 {
            let mut ends: Vec<_> = self.pauses.iter().map(|(key, pause)| (pause.until, *key)).collect();
            ends.sort_unstable();
            for (_, key) in &ends[..excess] {
                self.pauses.remove(key);
            }
        }
    }

    /// Whether an execution is left out now.
    pub(crate) fn has(&self, key: i64, now: Timestamp) -> bool {
        !self.pauses.is_empty() && self.pauses.get(&key).is_some_and(|pause| pause.lasts(now))
    }

    /// Returns when the next of them is tried again.
    pub(crate) fn next_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.pauses.values().filter(|pause| pause.lasts(now)).map(|pause| pause.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_end() {
        let mut left_out = LeftOut::new(9);
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let until = left_out.put(7, now);
            assert!(left_out.has(7, now) && !left_out.has(7, until) && !left_out.has(8, now));
            assert_eq!(left_out.next_at(now), Some(until));
            pauses.push(until.since(now).as_secs());
            now = until;
            left_out.trim(now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(left_out.next_at(now), None, "it is tried now");
        left_out.forget(7);
        assert_eq!(left_out.put(7, now), now.after(PAUSE_FIRST));
    }

    #[test]
    fn what_was_not_tried_again_is_forgotten() {
        let mut left_out = LeftOut::new(9);
        let until = left_out.put(7, at(0));
        for (now, count) in [(at(0), 1), (until, 1), (until.after(PAUSE_MAX), 0)] {
            left_out.trim(now);
            assert_eq!(left_out.pauses.len(), count, "{now:?}");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_pause_longer() {
        let mut left_out = LeftOut::new(9);
        let until = left_out.put(7, at(1_000));
        for (now, is_left_out) in [(at(1_000), true), (until.before(PAUSE_MAX), true), (at(940), false)] {
            assert_eq!(left_out.has(7, now), is_left_out, "{now:?}");
            assert_eq!(left_out.next_at(now), is_left_out.then_some(until), "{now:?}");
        }
        left_out.trim(at(941));
        assert_eq!(left_out.pauses.len(), 1);
        left_out.trim(at(940));
        assert_eq!(left_out.pauses.len(), 0);
    }

    #[test]
    fn those_whose_pauses_end_first_make_room() {
        let mut left_out = LeftOut::new(2);
        for key in [4, 3, 2, 1] {
            left_out.put(key, at(10 - key));
        }
        let has = |left_out: &LeftOut| [1, 2, 3, 4].map(|key| left_out.pauses.contains_key(&key));
        assert_eq!(has(&left_out), [true; 4], "a claim can do without all that it has met");
        left_out.trim(at(9));
        assert_eq!(has(&left_out), [true, true, false, false]);
        left_out.trim(at(9));
        assert_eq!((has(&left_out), left_out.put_count()), ([true, true, false, false], 4));
    }
}
