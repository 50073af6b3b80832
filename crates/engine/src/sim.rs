//! A runtime that owns time, order and chance: the same seed gives the same run.
//!
//! One thread polls all tasks, in an order that the seed decides. When nothing is ready the clock jumps to the next timer.
//! Tasks belong to groups; killing a group is the crash of a process.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use abide_core::Timestamp;
use abide_store::Clock;

use crate::runtime::{BoxFuture, Moment, Runtime};

/// The world that simulated processes live in.
#[derive(Clone)]
pub struct Sim(Arc<World>);

struct World {
    state: Mutex<State>,
    /// Signalled when something outside of the simulation wakes a task.
    woken: Condvar,
    /// How long to wait, in real time, for user code that waits for the outside world before the clock jumps.
    patience: Duration,
    /// Whoever is told of each poll.
    observer: Mutex<Option<Observer>>,
}

/// Is told, before each poll, of which process it is; 0 for the caller of `block_on`. It may [kill](Sim::kill) or [freeze](Sim::freeze) that one: then it is not polled.
type Observer = Box<dyn FnMut(u32) + Send>;

struct State {
    moment: Moment,
    /// What the wall clock shows at the first moment. Somebody may set it.
    wall: Timestamp,
    /// By how many microseconds the wall clocks of processes differ from that of the world.
    skews: BTreeMap<u32, i64>,
    random: u64,
    next_task: u64,
    tasks: BTreeMap<u64, Task>,
    ready: BTreeSet<u64>,
    /// Processes that are stopped, and what of them would be ready.
    frozen: BTreeMap<u32, BTreeSet<u64>>,
    timers: BTreeMap<(Moment, u64), Waker>,
    /// Those of them that follow the wall clock.
    wall_timers: BTreeSet<(Moment, u64)>,
    next_timer: u64,
    outside_count: i64,
    /// The process that is being killed.
    dying: Option<u32>,
}

struct Task {
    group: u32,
    /// Nothing while it is being polled.
    future: Option<BoxFuture<()>>,
}

/// The task that the caller of `block_on` is.
const MAIN: u64 = 0;

impl Sim {
    /// A world that begins at a fixed time and whose every choice follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with_patience(seed, Duration::ZERO)
    }

    /// A world whose clock waits, in real time, for closures that wait for the outside world.
    pub fn with_patience(seed: u64, patience: Duration) -> Self {
        let state = State {
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
            next_timer: 0,
            outside_count: 0,
            dying: None,
        };
        let (state, observer) = (Mutex::new(state), Mutex::default());
        Self(Arc::new(World { state, woken: Condvar::new(), patience, observer }))
    }

    /// Has `observer` told of each poll, before it happens, of which process it is; 0 for the caller of [`block_on`](Sim::block_on). It may kill or freeze
    /// that process: then the poll does not happen.
    pub fn observe(&self, observer: impl FnMut(u32) + Send + 'static) {
        *self.0.observer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(observer));
    }

    /// A simulated process: what it spawns dies with it.
    pub fn process(&self, group: u32) -> Arc<SimProcess> {
        Arc::new(SimProcess { sim: self.clone(), group })
    }

    /// Drops every task of a process, wherever it is.
    pub fn kill(&self, group: u32) {
        let dead = {
            let mut state = self.lock();
            let ids: Vec<_> =
                state.tasks.iter().filter(|(_, task)| task.group == group).map(|(id, _)| *id).collect();
            state.dying = Some(group);
            ids.iter().filter_map(|id| state.tasks.remove(id)).collect::<Vec<_>>()
        };
        // Destructors run without the lock: they may wake, and what they spawn dies too.
        drop(dead);
        self.lock().dying = None;
    }

    /// Stops a process where it is, as SIGSTOP does: time goes on without it.
    pub fn freeze(&self, group: u32) {
        self.lock().frozen.entry(group).or_default();
    }

    /// Lets a stopped process go on.
    pub fn thaw(&self, group: u32) {
        let mut state = self.lock();
        let woken = state.frozen.remove(&group).unwrap_or_default();
        state.ready.extend(woken);
    }

    /// Sets the wall clock of the world forward. No time passes by that.
    pub fn set_clock_forward(&self, by: Duration) {
        self.set_clock(|wall| wall.after(by));
    }

    /// Sets the wall clock of the world back.
    pub fn set_clock_back(&self, by: Duration) {
        self.set_clock(|wall| wall.before(by));
    }

    /// Has the wall clock of one process differ from that of the world.
    pub fn set_skew(&self, group: u32, skew: Skew) {
        self.change_clocks(|state| {
            state.skews.insert(group, skew.micros());
        });
    }

    fn set_clock(&self, change: impl FnOnce(Timestamp) -> Timestamp) {
        self.change_clocks(|state| state.wall = change(state.wall));
    }

    fn change_clocks(&self, change: impl FnOnce(&mut State)) {
        let woken: Vec<_> = {
            let mut guard = self.lock();
            let state = &mut *guard;
            change(state);
            // They look at the clock, and wait anew.
            let timers = std::mem::take(&mut state.wall_timers);
            timers.iter().filter_map(|timer| state.timers.remove(timer)).collect()
        };
        // Wakers lock the state themselves.
        woken.into_iter().for_each(Waker::wake);
    }

    /// The next random number.
    pub fn random(&self) -> u64 {
        self.lock().next_random()
    }

    /// Runs `future`, and everything that is spawned meanwhile, until it is done.
    ///
    /// # Panics
    /// If nothing can ever move again.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        self.lock().ready.insert(MAIN);
        loop {
            let Some(id) = self.next_ready() else { continue };
            let waker = Waker::from(Arc::new(SimWaker { world: self.0.clone(), id }));
            let mut cx = Context::from_waker(&waker);
            if id == MAIN {
                self.tell_observer(0);
                if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
                    return value;
                }
                continue;
            }
            if !self.may_poll(id) {
                continue;
            }
            let Some(mut running) = self.lock().tasks.get_mut(&id).and_then(|task| task.future.take()) else {
                continue;
            };
            let polled = running.as_mut().poll(&mut cx);
            let mut state = self.lock();
            match polled {
                Poll::Ready(()) => drop(state.tasks.remove(&id)),
                // It may have been killed while it ran.
                Poll::Pending => match state.tasks.get_mut(&id) {
                    Some(task) => task.future = Some(running),
                    None => {
                        drop(state);
                        drop(running);
                    }
                },
            }
        }
    }

    fn tell_observer(&self, group: u32) {
        if let Some(observer) = &mut *self.0.observer.lock().unwrap_or_else(PoisonError::into_inner) {
            observer(group);
        }
    }

    /// Tells the observer of a poll. `false`: its process was frozen by that. A process that was killed has no tasks.
    fn may_poll(&self, id: u64) -> bool {
        let Some(group) = self.lock().tasks.get(&id).map(|task| task.group) else { return false };
        self.tell_observer(group);
        match self.lock().frozen.get_mut(&group) {
            Some(held) => {
                held.insert(id);
                false
            }
            None => true,
        }
    }

    /// A task that is ready, chosen by chance; lets time pass if there is none.
    fn next_ready(&self) -> Option<u64> {
        let mut state = self.lock();
        if state.ready.is_empty() && state.outside_count > 0 && !self.0.patience.is_zero() {
            let waited =
                self.0.woken.wait_timeout_while(state, self.0.patience, |state| state.ready.is_empty());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.ready.is_empty() {
            let due = state.pass_time();
            // Wakers lock the state themselves.
            drop(state);
            due.into_iter().for_each(Waker::wake);
            return None;
        }
        let nth = usize::try_from(state.next_random() % state.ready.len() as u64).unwrap_or_default();
        let id = state.ready.iter().nth(nth).copied()?;
        state.ready.remove(&id);
        let group = state.tasks.get(&id).map(|task| task.group);
        match group.and_then(|group| state.frozen.get_mut(&group)) {
            Some(held) => {
                held.insert(id);
                None
            }
            None => Some(id),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Jumps to the next timer and takes the wakers that are due then.
    fn pass_time(&mut self) -> Vec<Waker> {
        let Some((&(at, _), _)) = self.timers.first_key_value() else {
            panic!("the simulation stands still: nothing is ready and no timer is set");
        };
        self.moment = self.moment.max(at);
        let later = self.timers.split_off(&(at, u64::MAX));
        self.wall_timers = self.wall_timers.split_off(&(at, u64::MAX));
        std::mem::replace(&mut self.timers, later).into_values().collect()
    }

    /// What the wall clock of the world shows.
    fn now(&self) -> Timestamp {
        self.wall.after(self.moment.since(Moment::new(Duration::ZERO)))
    }

    /// What the wall clock of a process shows.
    fn now_of(&self, group: u32) -> Timestamp {
        let skew = self.skews.get(&group).copied().unwrap_or_default();
        Timestamp::from_micros(self.now().as_micros().saturating_add(skew))
    }

    /// Sets a timer, unless it is due.
    fn set_timer(&mut self, due: Due, waker: &Waker) -> Option<(Moment, u64)> {
        let at = match due {
            Due::At { at, group } => self.moment.after(at.since(self.now_of(group))),
            Due::Moment(at) => at,
        };
        if at <= self.moment {
            return None;
        }
        self.next_timer += 1;
        let timer = (at, self.next_timer);
        self.timers.insert(timer, waker.clone());
        if let Due::At { .. } = due {
            self.wall_timers.insert(timer);
        }
        Some(timer)
    }

    fn forget_timer(&mut self, timer: (Moment, u64)) -> Option<Waker> {
        self.wall_timers.remove(&timer);
        self.timers.remove(&timer)
    }

    /// xorshift64*: short, and good enough to vary an order.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

struct SimWaker {
    world: Arc<World>,
    id: u64,
}

impl Wake for SimWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.world.state.lock().unwrap_or_else(PoisonError::into_inner).ready.insert(self.id);
        self.world.woken.notify_one();
    }
}

/// By how much a wall clock is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// It shows a later time than it is.
    Ahead(Duration),
    /// It shows an earlier time than it is.
    Behind(Duration),
}

impl Skew {
    fn micros(self) -> i64 {
        let micros = |by: Duration| i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        match self {
            Self::Ahead(by) => micros(by),
            Self::Behind(by) => -micros(by),
        }
    }
}

/// One simulated process: the runtime of an engine.
pub struct SimProcess {
    sim: Sim,
    group: u32,
}

impl Clock for SimProcess {
    fn now(&self) -> Timestamp {
        self.sim.lock().now_of(self.group)
    }
}

impl Clock for Sim {
    fn now(&self) -> Timestamp {
        self.lock().now()
    }
}

impl Runtime for SimProcess {
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()> {
        let due = Due::At { at, group: self.group };
        Box::pin(SimSleep { sim: self.sim.clone(), due, timer: None })
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<()> {
        let due = Due::Moment(self.moment().after(duration));
        Box::pin(SimSleep { sim: self.sim.clone(), due, timer: None })
    }

    fn moment(&self) -> Moment {
        self.sim.lock().moment
    }

    fn spawn(&self, future: BoxFuture<()>) {
        let mut state = self.sim.lock();
        if state.dying == Some(self.group) {
            drop(state);
            drop(future);
            return;
        }
        let id = state.next_task;
        state.next_task += 1;
        state.tasks.insert(id, Task { group: self.group, future: Some(future) });
        state.ready.insert(id);
    }

    fn spawn_urgent(&self, _name: &str, future: BoxFuture<()>) {
        self.spawn(future);
    }

    fn random(&self) -> u64 {
        self.sim.random()
    }

    fn count_outside(&self, change: i64) {
        self.sim.lock().outside_count += change;
    }
}

/// When a wait is over.
#[derive(Clone, Copy)]
enum Due {
    /// When the wall clock of a process shows this.
    At { at: Timestamp, group: u32 },
    /// When so much time has passed.
    Moment(Moment),
}

struct SimSleep {
    sim: Sim,
    due: Due,
    timer: Option<(Moment, u64)>,
}

impl Future for SimSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let sim = self.sim.clone();
        let mut state = sim.lock();
        if let Some(timer) = self.timer.take() {
            state.forget_timer(timer);
        }
        self.timer = state.set_timer(self.due, cx.waker());
        if self.timer.is_none() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for SimSleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            let waker = self.sim.lock().forget_timer(timer);
            drop(waker);
        }
    }
}
