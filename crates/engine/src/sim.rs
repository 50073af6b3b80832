//! A runtime that owns time, order and chance: the same seed leads to the same run.
//!
//! One thread polls all tasks, in an order that the seed decides. When nothing is ready, the clock
//! jumps to the next timer. Tasks belong to groups; killing a group is the crash of a process.

mod outside;
mod state;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use abide_core::Timestamp;
use abide_core::planted::{Bug, planted};
use abide_store::Clock;

pub use outside::Outside;
use state::{Due, TimerKey, WorldState};

use crate::runtime::{BoxFuture, Moment, Runtime};

/// The world that simulated processes live in.
#[derive(Clone)]
pub struct Sim(Arc<World>);

struct World {
    state: Mutex<WorldState>,
    /// Signalled when something outside the simulation wakes a task.
    woken: Condvar,
    /// The outside world, if the simulation takes it into account.
    outside: Option<Outside>,
    /// The function that is called before each poll.
    observer: Mutex<Option<Observer>>,
    /// The store whose time may be skipped, and the world outside it.
    skipping: OnceLock<(Box<dyn Skipping>, Outside)>,
}

/// A store that misses nothing while a virtual clock skips idle time.
pub trait Skipping: Send + Sync {
    /// Counts the changes, except for the heartbeats of sessions.
    fn change_count(&self) -> u64;

    /// Lengthens the life of every session by the time to be skipped, because its heartbeats will
    /// be missing. Returns `false` if one of them is missing already.
    fn skip(&self, by: Duration) -> bool;

    /// Returns the longest life of a session without a heartbeat. Returns `None` while recurring
    /// work may still find one that has no heartbeats any more.
    fn longest_life(&self) -> Option<Duration>;
}

/// A function that is called with the process before each poll; 0 stands for the caller of
/// `block_on`. It may [kill](Sim::kill) or [freeze](Sim::freeze) that process, which is then not
/// polled.
type Observer = Box<dyn FnMut(u32) + Send>;

struct Task {
    group: u32,
    /// The future; `None` while it is being polled.
    future: Option<BoxFuture<()>>,
}

/// The task of the caller of `block_on`.
const MAIN: u64 = 0;

impl Sim {
    /// Creates a world that begins at a fixed time, and whose every choice follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::make(seed, None)
    }

    /// Creates a world beside an outside world. While a closure waits for the outside, virtual time
    /// passes as real time does. When nothing can happen any more,
    /// [`try_block_on`](Sim::try_block_on) ends.
    pub fn beside(seed: u64, outside: Outside) -> Self {
        Self::make(seed, Some(outside))
    }

    fn make(seed: u64, outside: Option<Outside>) -> Self {
        let (state, observer) = (Mutex::new(WorldState::new(seed)), Mutex::default());
        let (woken, skipping) = (Condvar::new(), OnceLock::new());
        Self(Arc::new(World { state, woken, outside, observer, skipping }))
    }

    /// Skips idle time from now on. Recurring work that finds nothing (heartbeats, looks for dead
    /// sessions) is left out: months pass as fast as a minute. `skipping` speaks for the store that
    /// all processes share.
    ///
    /// When only such work is left and it finds nothing, [`try_block_on`](Sim::try_block_on) ends,
    /// unless the `outside` world still acts. Time does not wait for that world.
    pub fn skip_rests(&self, skipping: impl Skipping + 'static, outside: Outside) {
        let _ = self.0.skipping.set((Box::new(skipping), outside));
    }

    /// Calls `observer` with the process before each poll; 0 stands for the caller of
    /// [`block_on`](Sim::block_on). The observer may kill or freeze that process: then the poll
    /// does not happen.
    pub fn observe(&self, observer: impl FnMut(u32) + Send + 'static) {
        *self.0.observer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(observer));
    }

    /// Creates a simulated process: every task that it spawns dies with it.
    pub fn process(&self, group: u32) -> Arc<SimProcess> {
        Arc::new(SimProcess { sim: self.clone(), group })
    }

    /// Drops every task of a process, wherever the task stands.
    pub fn kill(&self, group: u32) {
        let dead = {
            let mut state = self.lock();
            let ids: Vec<_> =
                state.tasks.iter().filter(|(_, task)| task.group == group).map(|(id, _)| *id).collect();
            state.dying = Some(group);
            ids.iter().filter_map(|id| state.tasks.remove(id)).collect::<Vec<_>>()
        };
        // Destructors run without the lock: they may wake tasks, and tasks that they spawn die too.
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

    /// Sets the wall clock of the world forward. No time passes.
    pub fn set_clock_forward(&self, by: Duration) {
        self.set_clock(|wall| wall.after(by));
    }

    /// Sets the wall clock of the world back.
    pub fn set_clock_back(&self, by: Duration) {
        self.set_clock(|wall| wall.before(by));
    }

    /// Makes the wall clock of one process differ from that of the world.
    pub fn set_skew(&self, group: u32, skew: Skew) {
        self.change_clocks(|state| {
            state.skews.insert(group, skew.micros());
        });
    }

    fn set_clock(&self, change: impl FnOnce(Timestamp) -> Timestamp) {
        self.change_clocks(|state| state.wall = change(state.wall));
    }

    fn change_clocks(&self, change: impl FnOnce(&mut WorldState)) {
        let woken: Vec<_> = {
            let mut guard = self.lock();
            let state = &mut *guard;
            change(state);
            // The woken tasks look at the clock, and wait anew.
            let timers = std::mem::take(&mut state.wall_timers);
            timers.iter().filter_map(|timer| state.timers.remove(timer)).collect()
        };
        // Wakers lock the state themselves.
        woken.into_iter().for_each(Waker::wake);
    }

    /// Returns the next random number.
    pub fn random(&self) -> u64 {
        self.lock().next_random()
    }

    /// Runs `future`, and everything spawned meanwhile, until it is done.
    ///
    /// # Panics
    /// If nothing can ever move again.
    #[track_caller]
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let still = "the simulation stands still: nothing is ready and no timer is set";
        self.try_block_on(pin!(future)).expect(still)
    }

    /// Stops the world before its next poll: [`try_block_on`](Sim::try_block_on) ends, and no more
    /// time passes. The next call goes on from this moment.
    pub fn stop(&self) {
        self.lock().is_stopped = true;
    }

    /// Runs `future` like [`block_on`](Sim::block_on), but returns when nothing can ever move
    /// again, or the world is [stopped](Sim::stop).
    pub fn try_block_on<T>(&self, mut future: Pin<&mut impl Future<Output = T>>) -> Result<T, Still> {
        self.lock().ready.insert(MAIN);
        let main = Arc::new(SimWaker { world: self.0.clone(), id: MAIN });
        loop {
            match self.next(&main) {
                Next::Again => {}
                Next::Still => return Err(Still),
                Next::Poll(MAIN) => {
                    self.tell_observer(0);
                    let waker = Waker::from(main.clone());
                    if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        return Ok(value);
                    }
                }
                Next::Poll(id) if self.may_poll(id) => self.poll_task(id),
                Next::Poll(_) => {}
            }
        }
    }

    fn poll_task(&self, id: u64) {
        let waker = Waker::from(Arc::new(SimWaker { world: self.0.clone(), id }));
        let Some(mut running) = self.lock().tasks.get_mut(&id).and_then(|task| task.future.take()) else {
            return;
        };
        let polled = running.as_mut().poll(&mut Context::from_waker(&waker));
        let mut state = self.lock();
        match polled {
            Poll::Ready(()) => drop(state.tasks.remove(&id)),
            // The task may have been killed while it ran.
            Poll::Pending => match state.tasks.get_mut(&id) {
                Some(task) => task.future = Some(running),
                None => {
                    drop(state);
                    drop(running);
                }
            },
        }
    }

    fn tell_observer(&self, group: u32) {
        if let Some(observer) = &mut *self.0.observer.lock().unwrap_or_else(PoisonError::into_inner) {
            observer(group);
        }
    }

    /// Calls the observer before a poll. Returns `false` if the observer froze the process. A
    /// killed process has no tasks.
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

    /// Picks a ready task at random; lets time pass if there is none.
    fn next(&self, main: &Arc<SimWaker>) -> Next {
        let mut state = self.lock();
        if std::mem::take(&mut state.is_stopped) {
            return Next::Still;
        }
        if state.ready.is_empty() {
            return self.let_time_pass(state, main);
        }
        let nth = usize::try_from(state.next_random() % state.ready.len() as u64).unwrap_or_default();
        let Some(id) = state.ready.iter().nth(nth).copied() else { return Next::Again };
        state.ready.remove(&id);
        let group = state.tasks.get(&id).map(|task| task.group);
        match group.and_then(|group| state.frozen.get_mut(&group)) {
            Some(held) => {
                held.insert(id);
                Next::Again
            }
            None => Next::Poll(id),
        }
    }

    fn let_time_pass<'a>(&'a self, mut state: MutexGuard<'a, WorldState>, main: &Arc<SimWaker>) -> Next {
        if let Some(outside) = &self.0.outside {
            let is_awaited = state.outside_count > 0 && !planted(Bug::ClockOvertakesStep);
            if is_awaited && state.waited < outside.patience {
                state = outside.follow(&self.0.woken, state);
                if !state.ready.is_empty() || state.next_at().is_none_or(|at| state.moment < at) {
                    return Next::Again;
                }
            } else if state.next_event_at().is_none() {
                return outside.wait_for_main(&self.0.woken, state, main);
            }
        }
        if let Some((skipping, outside)) = self.0.skipping.get() {
            // `skipping` looks at the clock, which locks the state.
            drop(state);
            let (change_count, longest_life) = (skipping.change_count(), skipping.longest_life());
            let by = self.lock().skippable(change_count);
            let most =
                if planted(Bug::RestsBarelySkipped) { Duration::from_secs(200) } else { Duration::MAX };
            let by = by.map(|by| by.min(most)).filter(|by| skipping.skip(*by));
            state = self.lock();
            by.into_iter().for_each(|by| state.skip(by));
            if state.is_still(longest_life) {
                return outside.wait_for_main(&self.0.woken, state, main);
            }
        }
        let due = state.pass_time();
        // Wakers lock the state themselves.
        drop(state);
        match due {
            Some(due) => due.into_iter().for_each(Waker::wake),
            None => return Next::Still,
        }
        Next::Again
    }

    fn lock(&self) -> MutexGuard<'_, WorldState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error when nothing can ever move again, or the world is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Still;

/// The next action of a world.
enum Next {
    /// Poll this task.
    Poll(u64),
    /// Look again.
    Again,
    /// End: nothing can happen any more, or the world is stopped.
    Still,
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

/// The error of a wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// The clock shows a later time.
    Ahead(Duration),
    /// The clock shows an earlier time.
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

    fn rest(&self, duration: Duration) -> BoxFuture<()> {
        let due = Due::Rest(self.sim.lock().rest_moment().after(duration));
        Box::pin(SimSleep { sim: self.sim.clone(), due, timer: None })
    }

    fn moment(&self) -> Moment {
        self.sim.lock().moment
    }

    fn rest_moment(&self) -> Moment {
        self.sim.lock().rest_moment()
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

    /// Every task is one of this runtime.
    fn may_begin_code(&self, _: &Waker) -> bool {
        true
    }

    fn random(&self) -> u64 {
        self.sim.random()
    }

    fn minds_outside(&self) -> bool {
        self.sim.0.outside.is_some() || self.sim.0.skipping.get().is_some()
    }

    fn count_outside(&self, change: i64) {
        self.sim.lock().outside_count += change;
    }

    fn wait_inside(&self, waker: usize, is_waiting: bool) {
        self.sim.lock().count_inside(waker, is_waiting);
    }

    fn inside_count(&self, waker: usize) -> usize {
        self.sim.lock().inside.get(&waker).copied().unwrap_or_default()
    }
}

struct SimSleep {
    sim: Sim,
    due: Due,
    timer: Option<TimerKey>,
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
