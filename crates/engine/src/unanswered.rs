//! Starts whose callers do not come back for the answer.
//!
//! A caller may stop polling without dropping its future, as a `select!` does in the body of
//! another branch. The answer to its start then lies in that future. It may be a lease, and until
//! somebody takes it, nobody runs the execution.
//!
//! So a start that is offered to this engine leaves its address here until its answer is taken. If
//! that takes longer than `host_patience`, the engine looks into the store, and goes on from the
//! records of whatever is leased to it and not in memory. Whichever comes first, the late answer or
//! the look, opens the one seat of a lease.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use abide_core::Address;
use abide_core::planted::{Bug, planted};

use crate::engine::Inner;

/// The pause between two looks, if callers need not poll at all.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The most pauses between two looks at one start.
const PAUSES_MAX: u32 = 32;

/// The starts that are under way.
#[derive(Default)]
pub(crate) struct Unanswered(Mutex<State>);

#[derive(Default)]
struct State {
    starts: Vec<Option<Waiting>>,
    free: Vec<usize>,
    /// Whether somebody looks for those that take long.
    is_watched: bool,
}

struct Waiting {
    address: Address,
    /// How many pauses it has waited for.
    pause_count: u32,
}

impl Waiting {
    /// Counts a pause, and returns whether to look now. The first pause began before the start.
    fn is_due(&mut self) -> bool {
        self.pause_count = self.pause_count.saturating_add(1);
        let count = self.pause_count;
        count > 1
            && if count < PAUSES_MAX { count.is_power_of_two() } else { count.is_multiple_of(PAUSES_MAX) }
    }
}

/// A start that is under way until this is dropped.
pub(crate) struct Expected {
    engine: Arc<Inner>,
    place: usize,
}

impl Unanswered {
    pub(crate) fn expect(engine: &Arc<Inner>, address: &Address) -> Expected {
        let waiting = Waiting { address: address.clone(), pause_count: 0 };
        let mut state = engine.hosts.unanswered.lock();
        let place = match state.free.pop() {
            Some(place) => {
                state.starts[place] = Some(waiting);
                place
            }
            None => {
                state.starts.push(Some(waiting));
                state.starts.len() - 1
            }
        };
        let is_watched = std::mem::replace(&mut state.is_watched, true);
        drop(state);
        if !is_watched {
            engine.runtime.spawn(Box::pin(watch(Arc::downgrade(engine))));
        }
        Expected { engine: engine.clone(), place }
    }

    /// Counts a pause for each start that is under way. Returns those that are to be looked for:
    /// more and more rarely, because a store that does not answer is not helped by reads. Returns
    /// `None` if nothing is under way any more.
    fn look(&self) -> Option<Vec<Address>> {
        let mut state = self.lock();
        if state.free.len() == state.starts.len() {
            *state = State::default();
            return None;
        }
        let due = |waiting: &mut Waiting| waiting.is_due().then(|| waiting.address.clone());
        Some(state.starts.iter_mut().flatten().filter_map(due).collect())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let mut state = self.engine.hosts.unanswered.lock();
        state.starts[self.place] = None;
        state.free.push(self.place);
    }
}

/// Looks for starts that take long, as long as there are starts.
async fn watch(engine: Weak<Inner>) {
    while let Some(inner) = engine.upgrade() {
        let pause = inner.runtime.sleep(inner.options.host_patience.max(PAUSE_MIN));
        drop(inner);
        pause.await;
        let Some(inner) = engine.upgrade() else { return };
        let Some(late) = inner.hosts.unanswered.look() else { return };
        if !planted(Bug::AnswerUnmissed) {
            inner.recover_all(late);
        }
    }
}
