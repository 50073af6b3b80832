//! Measures pauses of the engine's own that executions spend parked.
//!
//! The store wakes a parked execution by the wall clock. If that is set back, the pause would last
//! as much longer. The engine that parked it therefore also measures the pause on a clock that
//! nobody can set, and names it to the store when it is over
//! ([`Claim::rested`](abide_store::Claim)).
//! What an engine has measured is lost with it; then the wall clock alone decides.

use std::collections::{BTreeSet, HashMap};
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
pub(crate) struct Pauses(Mutex<Begun>);

#[derive(Debug, Default)]
struct Begun {
    by_key: HashMap<ExecutionKey, Pause>,
    /// All of them, by their ends.
    ends: BTreeSet<(Moment, ExecutionKey)>,
    /// Those whose ends the store does not know yet.
    untold: BTreeSet<(Moment, ExecutionKey)>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Moment,
    /// Its end by the wall clock, as it was recorded.
    recorded: Timestamp,
}

impl Begun {
    fn remove(&mut self, key: ExecutionKey) -> Option<Pause> {
        let pause = self.by_key.remove(&key)?;
        self.ends.remove(&(pause.until, key));
        self.untold.remove(&(pause.until, key));
        Some(pause)
    }

    /// Forgets pauses that nobody has asked about for long.
    fn forget(&mut self, now: Moment) {
        while let Some((until, key)) = self.ends.first().copied()
            && until.after(REMEMBERED) <= now
        {
            self.remove(key);
        }
    }
}

impl Pauses {
    /// Begins a pause of this execution, which ends at `recorded` by the wall clock.
    pub(crate) fn begin(&self, key: ExecutionKey, recorded: Timestamp, (now, length): (Moment, Duration)) {
        if planted(Bug::PauseOnWallClock) {
            return;
        }
        let (mut begun, until) = (self.lock(), now.after(length));
        begun.forget(now);
        begun.remove(key);
        begun.by_key.insert(key, Pause { until, recorded });
        begun.ends.insert((until, key));
        begun.untold.insert((until, key));
    }

    /// Returns when the next pause is over that the store has to be told of.
    pub(crate) fn next_at(&self) -> Option<Moment> {
        self.lock().untold.first().map(|(until, _)| *until)
    }

    /// Returns the executions whose pauses are over and that the store has to be told of.
    pub(crate) fn ended(&self, now: Moment) -> Vec<ExecutionKey> {
        let begun = self.lock();
        let ended = begun.untold.iter().take_while(|(until, _)| *until <= now);
        ended.map(|(_, key)| *key).take(ENDED_COUNT).collect()
    }

    /// Records that the store was told of these.
    pub(crate) fn told(&self, keys: &[ExecutionKey]) {
        let mut begun = self.lock();
        for key in keys {
            if let Some(Pause { until, .. }) = begun.by_key.get(key).copied() {
                begun.untold.remove(&(until, *key));
            }
        }
    }

    /// Forgets the pause of this execution, which is looked at. Returns how much of the pause is
    /// left, unless another worker has recorded another one since.
    pub(crate) fn take(&self, key: ExecutionKey, recorded: Timestamp, now: Moment) -> Option<Duration> {
        let pause = self.lock().remove(key).filter(|pause| pause.recorded == recorded);
        pause.map(|pause| pause.until.since(now))
    }

    fn lock(&self) -> MutexGuard<'_, Begun> {
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
