//! The outside world of a simulation: real time, and threads that do not belong to it.

use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use abide_core::planted::{Bug, planted};

use super::state::WorldState;
use super::{Next, SimWaker};
use crate::runtime::Stopwatch;

/// The world outside a simulated one.
pub struct Outside {
    /// How long, in real time, the clock waits for the outside world to wake a task before it
    /// jumps.
    pub patience: Duration,
    /// Whether something runs outside that may still act on the simulation.
    pub is_busy: Box<dyn Fn() -> bool + Send + Sync>,
}

/// How often to ask whether something still runs outside: its end wakes no task here.
const ASK_EVERY: Duration = Duration::from_millis(5);

impl Outside {
    /// Waits for the outside world, at most until the next timer. Meanwhile virtual time passes as
    /// real time does: a timeout is neither early nor late.
    pub(super) fn follow<'a>(
        &self,
        woken: &Condvar,
        state: MutexGuard<'a, WorldState>,
    ) -> MutexGuard<'a, WorldState> {
        let left = self.patience.saturating_sub(state.waited);
        let until_timer = state.next_at().map(|at| at.since(state.moment));
        let longest = until_timer.map_or(left, |until_timer| until_timer.min(left));
        let stopwatch = Stopwatch::start();
        let mut state = wait(woken, state, longest);
        let is_woken = !state.ready.is_empty();
        // Never pass the next timer: its task is woken at exactly that moment.
        let passed = if is_woken { stopwatch.elapsed().min(longest) } else { longest };
        state.waited = if is_woken { Duration::ZERO } else { state.waited + passed };
        state.moment = state.moment.after(passed);
        state
    }

    /// Waits for the outside world when nothing can happen in this one: the future of `block_on`
    /// may wait for something outside.
    pub(super) fn wait_for_main(
        &self,
        woken: &Condvar,
        mut state: MutexGuard<'_, WorldState>,
        main: &Arc<SimWaker>,
    ) -> Next {
        let stopwatch = Stopwatch::start();
        loop {
            if !state.ready.is_empty() {
                return Next::Again;
            }
            // One reference is ours. The outside holds another, unless a wait inside this world
            // does.
            let held_count = Arc::strong_count(main) - 1;
            let is_awaited = held_count > state.inside.values().sum() || (self.is_busy)();
            // A clock that does not follow the outside has not waited for any closure yet.
            let is_awaited = is_awaited || (state.outside_count > 0 && state.waited < self.patience);
            let is_awaited = is_awaited || planted(Bug::StillnessAwaited);
            if !is_awaited || stopwatch.elapsed() >= self.patience {
                return Next::Still;
            }
            state = wait(woken, state, ASK_EVERY);
        }
    }
}

/// Waits until a task is ready, at most for this long.
fn wait<'a>(
    woken: &Condvar,
    state: MutexGuard<'a, WorldState>,
    longest: Duration,
) -> MutexGuard<'a, WorldState> {
    let waited = woken.wait_timeout_while(state, longest, |state| state.ready.is_empty());
    waited.unwrap_or_else(PoisonError::into_inner).0
}
