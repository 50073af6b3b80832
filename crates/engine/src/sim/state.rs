//! The state of a simulated world: its time, its tasks and its chance.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;
use std::time::Duration;

use abide_core::Timestamp;
use abide_core::planted::{Bug, planted};

use super::{MAIN, Task};
use crate::runtime::Moment;

/// The least time in which only rests end before the world counts as still. A rest may end for a
/// part of the recurring work only, and the rarest part comes round once a minute.
const STILL_AFTER: Duration = Duration::from_secs(600);

/// The moment and the number of a timer.
pub(super) type TimerKey = (Moment, u64);

pub(super) struct WorldState {
    pub(super) moment: Moment,
    /// The wall clock's time at the first moment. A test may set it.
    pub(super) wall: Timestamp,
    /// The difference of each process's wall clock from that of the world, in microseconds.
    pub(super) skews: BTreeMap<u32, i64>,
    random: u64,
    pub(super) next_task: u64,
    pub(super) tasks: BTreeMap<u64, Task>,
    pub(super) ready: BTreeSet<u64>,
    /// The stopped processes, and their tasks that would be ready.
    pub(super) frozen: BTreeMap<u32, BTreeSet<u64>>,
    pub(super) timers: BTreeMap<TimerKey, Waker>,
    /// The timers that follow the wall clock.
    pub(super) wall_timers: BTreeSet<TimerKey>,
    /// The rests that will end, on their own clock, which does not count skipped time.
    rests: BTreeMap<TimerKey, Rest>,
    /// The time skipped so far.
    skipped: Duration,
    /// The last moment, on the clock of rests, when something happened other than the end of a
    /// rest.
    happened_at: Moment,
    /// The number of changes at that moment.
    change_count: u64,
    /// The last moment, on the clock of rests, when a session might still have been found dead.
    unsettled_at: Moment,
    next_timer: u64,
    /// The number of executions whose code waits for the outside world.
    pub(super) outside_count: i64,
    /// How long, in real time, the clock has waited for the outside world since it last woke a
    /// task.
    pub(super) waited: Duration,
    /// The number of waits inside this world that hold each waker.
    pub(super) inside: BTreeMap<usize, usize>,
    /// The process that is being killed.
    pub(super) dying: Option<u32>,
    /// Whether the world stops before its next poll.
    pub(super) is_stopped: bool,
}

/// A rest that will end.
struct Rest {
    waker: Waker,
    set_at: Moment,
}

/// The end of a wait.
#[derive(Clone, Copy)]
pub(super) enum Due {
    /// The wall clock of a process shows this time.
    At { at: Timestamp, group: u32 },
    /// The monotonic clock reaches this moment.
    Moment(Moment),
    /// The clock of rests reaches this moment.
    Rest(Moment),
}

impl WorldState {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            moment: Moment::new(Duration::ZERO),
            wall: Timestamp::from_millis(1_750_000_000_000),
            skews: BTreeMap::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            next_task: MAIN + 1,
            tasks: BTreeMap::new(),
            ready: BTreeSet::new(),
            frozen: BTreeMap::new(),
            timers: BTreeMap::new(),
            wall_timers: BTreeSet::new(),
            rests: BTreeMap::new(),
            skipped: Duration::ZERO,
            happened_at: Moment::new(Duration::ZERO),
            change_count: 0,
            unsettled_at: Moment::new(Duration::ZERO),
            next_timer: 0,
            outside_count: 0,
            waited: Duration::ZERO,
            inside: BTreeMap::new(),
            dying: None,
            is_stopped: false,
        }
    }

    /// Jumps to the next timer and takes the wakers that are due then. Returns `None` if no timer
    /// is set.
    pub(super) fn pass_time(&mut self) -> Option<Vec<Waker>> {
        self.moment = self.moment.max(self.next_at()?);
        let later = self.timers.split_off(&(self.moment, u64::MAX));
        let due = std::mem::replace(&mut self.timers, later);
        self.wall_timers = self.wall_timers.split_off(&(self.moment, u64::MAX));
        let later = self.rests.split_off(&(self.rest_moment(), u64::MAX));
        let rested = std::mem::replace(&mut self.rests, later);
        if !due.is_empty() {
            self.happened_at = self.rest_moment();
        }
        Some(due.into_values().chain(rested.into_values().map(|rest| rest.waker)).collect())
    }

    /// Returns when the next timer is due.
    pub(super) fn next_at(&self) -> Option<Moment> {
        let rest = self.rests.first_key_value().map(|((at, _), _)| at.after(self.skipped));
        [self.next_event_at(), rest].into_iter().flatten().min()
    }

    /// Returns when the next timer is due that does more than end a rest.
    pub(super) fn next_event_at(&self) -> Option<Moment> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns the moment on the clock of rests.
    pub(super) fn rest_moment(&self) -> Moment {
        Moment::new(self.moment.since(Moment::new(self.skipped)))
    }

    /// Returns how much time can be skipped because only rests end in it, each of which has ended
    /// before without any change since.
    pub(super) fn skippable(&mut self, change_count: u64) -> Option<Duration> {
        if self.change_count != change_count {
            (self.change_count, self.happened_at) = (change_count, self.rest_moment());
        }
        let (next_at, event_at) = (self.next_at()?, self.next_event_at()?);
        let is_quiet = next_at < event_at && self.rests.values().all(|rest| rest.set_at > self.happened_at);
        is_quiet.then(|| event_at.since(self.moment))
    }

    /// Whether nothing can happen any more: no timer is set but for rests, and each of these has
    /// ended for long enough without any change. `longest_life` is that of a session, or `None`
    /// while one may be found dead.
    ///
    /// An execution that is due later needs no rule, because a worker that could run it has set a
    /// timer. The end of a session whose process is gone has no timer. But no such session seems to
    /// have its heartbeats for as long as it lives without them, and this waits three times as
    /// long: a lease whose answer was lost is found by the third heartbeat.
    pub(super) fn is_still(&mut self, longest_life: Option<Duration>) -> bool {
        let longest_life = longest_life.or(planted(Bug::DeadSessionUnawaited).then_some(Duration::ZERO));
        let Some(life) = longest_life else {
            self.unsettled_at = self.rest_moment();
            return self.next_at().is_none();
        };
        let quiet_from = self.happened_at.max(self.unsettled_at);
        let is_long = self.rest_moment().since(quiet_from) >= STILL_AFTER.max(life.saturating_mul(3));
        let is_quiet = is_long && self.rests.values().all(|rest| rest.set_at > quiet_from);
        self.next_event_at().is_none() && (is_quiet || self.rests.is_empty())
    }

    /// Lets time pass without ending rests.
    pub(super) fn skip(&mut self, by: Duration) {
        self.skipped += by;
        self.moment = self.moment.after(by);
    }

    /// Counts one more wait inside this world that holds a waker, or one less.
    pub(super) fn count_inside(&mut self, waker: usize, is_waiting: bool) {
        let count = self.inside.entry(waker).or_default();
        *count = if is_waiting { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.inside.remove(&waker);
        }
    }

    /// Returns the time on the wall clock of the world.
    pub(super) fn now(&self) -> Timestamp {
        self.wall.after(self.moment.since(Moment::new(Duration::ZERO)))
    }

    /// Returns the time on the wall clock of a process.
    pub(super) fn now_of(&self, group: u32) -> Timestamp {
        let skew = self.skews.get(&group).copied().unwrap_or_default();
        Timestamp::from_micros(self.now().as_micros().saturating_add(skew))
    }

    /// Sets a timer, unless it is already due.
    pub(super) fn set_timer(&mut self, due: Due, waker: &Waker) -> Option<TimerKey> {
        let (at, moment) = match due {
            Due::At { at, group } => (self.moment.after(at.since(self.now_of(group))), self.moment),
            Due::Moment(at) => (at, self.moment),
            Due::Rest(at) => (at, self.rest_moment()),
        };
        if at <= moment {
            return None;
        }
        self.next_timer += 1;
        let (timer, waker) = ((at, self.next_timer), waker.clone());
        match due {
            Due::Rest(_) => _ = self.rests.insert(timer, Rest { waker, set_at: moment }),
            Due::At { .. } | Due::Moment(_) => _ = self.timers.insert(timer, waker),
        }
        if let Due::At { .. } = due {
            self.wall_timers.insert(timer);
        }
        Some(timer)
    }

    pub(super) fn forget_timer(&mut self, timer: TimerKey) -> Option<Waker> {
        self.wall_timers.remove(&timer);
        // No two timers share a number.
        self.timers.remove(&timer).or_else(|| self.rests.remove(&timer).map(|rest| rest.waker))
    }

    /// xorshift64*: short, and good enough to vary an order.
    pub(super) fn next_random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
