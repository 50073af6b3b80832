//! What a simulated world knows: its time, its tasks and its chance.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;
use std::time::Duration;

use abide_core::Timestamp;

use super::{MAIN, Task};
use crate::runtime::Moment;

/// The moment and the number of a timer.
pub(super) type TimerKey = (Moment, u64);

pub(super) struct State {
    pub(super) moment: Moment,
    /// What the wall clock shows at the first moment. Somebody may set it.
    pub(super) wall: Timestamp,
    /// By how many microseconds the wall clocks of processes differ from that of the world.
    pub(super) skews: BTreeMap<u32, i64>,
    random: u64,
    pub(super) next_task: u64,
    pub(super) tasks: BTreeMap<u64, Task>,
    pub(super) ready: BTreeSet<u64>,
    /// Processes that are stopped, and what of them would be ready.
    pub(super) frozen: BTreeMap<u32, BTreeSet<u64>>,
    pub(super) timers: BTreeMap<TimerKey, Waker>,
    /// Those of them that follow the wall clock.
    pub(super) wall_timers: BTreeSet<TimerKey>,
    /// What ends rests, on a clock of their own, which does not count what was skipped.
    rests: BTreeMap<TimerKey, Rest>,
    /// How much time was skipped.
    skipped: Duration,
    /// When something last happened but for the end of a rest, on the same clock as rests.
    happened_at: Moment,
    /// What was counted then of what had changed.
    change_count: u64,
    next_timer: u64,
    /// How many executions have code that waits for the outside world.
    pub(super) outside_count: i64,
    /// How long, in real time, the clock has waited for the outside world since that last woke somebody.
    pub(super) waited: Duration,
    /// How often each waker is held by a wait for something inside this world.
    pub(super) inside: BTreeMap<usize, usize>,
    /// The process that is being killed.
    pub(super) dying: Option<u32>,
}

/// A rest that will end.
struct Rest {
    waker: Waker,
    set_at: Moment,
}

/// When a wait is over.
#[derive(Clone, Copy)]
pub(super) enum Due {
    /// When the wall clock of a process shows this.
    At { at: Timestamp, group: u32 },
    /// When so much time has passed.
    Moment(Moment),
    /// The same on the clock of rests.
    Rest(Moment),
}

impl State {
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
            next_timer: 0,
            outside_count: 0,
            waited: Duration::ZERO,
            inside: BTreeMap::new(),
            dying: None,
        }
    }

    /// Jumps to the next timer and takes the wakers that are due then. `None`: no timer is set.
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

    /// When the next timer is due.
    pub(super) fn next_at(&self) -> Option<Moment> {
        let rest = self.rests.first_key_value().map(|((at, _), _)| at.after(self.skipped));
        [self.next_event_at(), rest].into_iter().flatten().min()
    }

    /// When the next timer is due that does more than end a rest.
    pub(super) fn next_event_at(&self) -> Option<Moment> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    /// How far the clock of rests is.
    pub(super) fn rest_moment(&self) -> Moment {
        Moment::new(self.moment.since(Moment::new(self.skipped)))
    }

    /// How much time can be skipped because nothing but rests ends in it, each of which has ended before without
    /// anything changing since.
    pub(super) fn skippable(&mut self, change_count: u64) -> Option<Duration> {
        if self.change_count != change_count {
            (self.change_count, self.happened_at) = (change_count, self.rest_moment());
        }
        let (next_at, event_at) = (self.next_at()?, self.next_event_at()?);
        let is_quiet = next_at < event_at && self.rests.values().all(|rest| rest.set_at > self.happened_at);
        is_quiet.then(|| event_at.since(self.moment))
    }

    /// Lets time pass in which rests go on.
    pub(super) fn skip(&mut self, by: Duration) {
        self.skipped += by;
        self.moment = self.moment.after(by);
    }

    /// A waker is held by one more wait for something inside this world, or by one less.
    pub(super) fn count_inside(&mut self, waker: usize, is_waiting: bool) {
        let count = self.inside.entry(waker).or_default();
        *count = if is_waiting { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.inside.remove(&waker);
        }
    }

    /// What the wall clock of the world shows.
    pub(super) fn now(&self) -> Timestamp {
        self.wall.after(self.moment.since(Moment::new(Duration::ZERO)))
    }

    /// What the wall clock of a process shows.
    pub(super) fn now_of(&self, group: u32) -> Timestamp {
        let skew = self.skews.get(&group).copied().unwrap_or_default();
        Timestamp::from_micros(self.now().as_micros().saturating_add(skew))
    }

    /// Sets a timer, unless it is due.
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
        // No two timers have one number.
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
