//! Measures pauses of the engine's own that executions spend parked.
//!
//! The store wakes a parked execution by the wall clock. If that is set back, the pause would last
//! as much longer. The engine that parked it therefore also measures the pause on a clock that
//! nobody can set, and names it to the store when it is over
//! ([`Claim::rested`](abide_store::Claim)).
//! What an engine has measured is lost with it; then the wall clock alone decides.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_core::Timestamp;
use abide_core::planted::{Bug, planted};
use abide_store::ExecutionKey;

use crate::engine::Inner;
use crate::runtime::Moment;

/// The most pauses that one claim ends.
const ENDED_COUNT: usize = 64;

/// How long it is remembered that a pause is over. Another worker may take the execution first, so
/// not every pause is asked about.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The pauses that this engine has begun.
#[derive(Debug, Default)]
pub(crate) struct Pauses(Mutex<BTreeMap<ExecutionKey, Pause>>);

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Moment,
    /// Its end by the wall clock, as it was recorded.
    recorded: Timestamp,
    /// Whether the store knows that it is over.
    is_told: bool,
}

impl Pauses {
    /// Begins a pause of this execution, which ends at `recorded` by the wall clock.
    pub(crate) fn begin(&self, key: ExecutionKey, recorded: Timestamp, (now, length): (Moment, Duration)) {
        if planted(Bug::PauseOnWallClock) {
            return;
        }
        let mut pauses = self.lock();
        pauses.retain(|_, pause| now < pause.until.after(REMEMBERED));
        pauses.insert(key, Pause { until: now.after(length), recorded, is_told: false });
    }

    /// Returns when the next pause is over that the store has to be told of.
    pub(crate) fn next_at(&self) -> Option<Moment> {
        self.lock().values().filter(|pause| !pause.is_told).map(|pause| pause.until).min()
    }

    /// Returns the executions whose pauses are over and that the store has to be told of.
    pub(crate) fn ended(&self, now: Moment) -> Vec<ExecutionKey> {
        let pauses = self.lock();
        let ended = pauses.iter().filter(|(_, pause)| !pause.is_told && pause.until <= now);
        ended.map(|(key, _)| *key).take(ENDED_COUNT).collect()
    }

    /// Records that the store was told of these.
    pub(crate) fn told(&self, keys: &[ExecutionKey]) {
        let mut pauses = self.lock();
        for key in keys {
            pauses.entry(*key).and_modify(|pause| pause.is_told = true);
        }
    }

    /// Forgets the pause of this execution, which is looked at. Returns how much of the pause is
    /// left, unless another worker has recorded another one since.
    pub(crate) fn take(&self, key: ExecutionKey, recorded: Timestamp, now: Moment) -> Option<Duration> {
        let pause = self.lock().remove(&key).filter(|pause| pause.recorded == recorded);
        pause.map(|pause| pause.until.since(now))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ExecutionKey, Pause>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Begins to measure the pause of an execution that is about to be parked, and ends at `until`
    /// by the wall clock.
    pub(crate) fn begin_pause(&self, key: ExecutionKey, until: Timestamp, measured: (Moment, Duration)) {
        self.pauses.begin(key, until, measured);
        // The dispatcher sets its alarm anew.
        self.kick.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds))
    }

    const A: ExecutionKey = ExecutionKey(1);
    const B: ExecutionKey = ExecutionKey(2);

    #[test]
    fn a_pause_is_told_once_and_known_until_it_is_asked_about() {
        let pauses = Pauses::default();
        let (of_a, of_b) = (Timestamp::from_millis(4_000), Timestamp::from_millis(9_000));
        pauses.begin(A, of_a, (at(0), Duration::from_secs(4)));
        pauses.begin(B, of_b, (at(0), Duration::from_secs(9)));
        assert_eq!((pauses.ended(at(3)), pauses.next_at()), (vec![], Some(at(4))));
        assert_eq!(pauses.ended(at(4)), [A]);
        pauses.told(&[A]);
        assert_eq!((pauses.ended(at(5)), pauses.next_at()), (vec![], Some(at(9))));
        assert_eq!(pauses.take(A, of_a, at(5)), Some(Duration::ZERO));
        assert_eq!(pauses.take(A, of_a, at(5)), None, "it was asked about");
        assert_eq!(pauses.take(B, of_b, at(5)), Some(Duration::from_secs(4)));
        pauses.begin(A, of_a, (at(6), Duration::from_secs(4)));
        assert_eq!(pauses.take(A, of_b, at(10)), None, "another worker has begun another pause");
        assert_eq!(pauses.next_at(), None);
    }

    #[test]
    fn a_pause_that_nobody_asks_about_is_forgotten() {
        let pauses = Pauses::default();
        pauses.begin(A, Timestamp::from_millis(1), (at(0), Duration::from_secs(1)));
        pauses.begin(B, Timestamp::from_millis(2), (at(700), Duration::from_secs(1)));
        assert_eq!(pauses.ended(at(701)), [B]);
    }
}
