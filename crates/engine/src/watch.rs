//! Whoever waits for an execution to end.
//!
//! What runs in this process is told by its engine. What runs anywhere else is told by one [follower](crate::follower) of the store's feed, however
//! many wait: nobody asks the store again and again for each of them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use abide_core::planted::{Bug, planted};
use abide_core::{Event, ExecutionId};
use tokio::sync::{Notify, oneshot};

use crate::runtime::Runtime;

/// Callers that wait, by the id that they wait for.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    state: Mutex<State>,
    /// Nobody is left who could wait.
    pub(crate) dropped: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<ExecutionId, Vec<Watcher>>,
    /// A follower is under way.
    is_followed: bool,
}

#[derive(Debug)]
struct Watcher {
    sender: oneshot::Sender<Option<Event>>,
    place: Place,
}

/// Where an execution is, as far as somebody who waits for it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This engine holds it, and tells when it ends or leaves.
    Here,
    /// Anywhere: the feed tells.
    Elsewhere,
}

/// A caller that waits. Whoever gives up, or need not wait, leaves nothing behind.
pub(crate) struct Watch<'a> {
    watchers: &'a Watchers,
    id: &'a ExecutionId,
    /// Until it is told.
    receiver: Option<oneshot::Receiver<Option<Event>>>,
}

impl Watch<'_> {
    /// The event that ended the execution, or `None` when it is worth looking again.
    pub(crate) async fn told(mut self, runtime: &dyn Runtime) -> Option<Event> {
        let told = match &mut self.receiver {
            Some(receiver) => Telling { receiver, runtime, held: None }.await,
            None => None,
        };
        self.receiver = None;
        told
    }
}

/// The wait itself. It says to a virtual clock that nobody outside of this engine is waited for.
struct Telling<'a> {
    receiver: &'a mut oneshot::Receiver<Option<Event>>,
    runtime: &'a dyn Runtime,
    /// Where the data of the waker is that it holds, where anybody minds.
    held: Option<usize>,
}

impl Telling<'_> {
    fn hold(&mut self, waker: Option<&Waker>) {
        if let Some(held) = self.held.take() {
            self.runtime.wait_inside(held, false);
        }
        if let Some(waker) = waker.filter(|_| self.runtime.minds_outside()) {
            let waker = waker.data().addr();
            self.runtime.wait_inside(waker, true);
            self.held = Some(waker);
        }
    }
}

impl Future for Telling<'_> {
    type Output = Option<Event>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let told = Pin::new(&mut *self.receiver).poll(cx);
        self.hold(told.is_pending().then_some(cx.waker()));
        told.map(|told| told.ok().flatten())
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.hold(None);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(receiver) = self.receiver.take().filter(|_| !planted(Bug::WatchersKept)) {
            drop(receiver);
            self.watchers.sweep(self.id);
        }
    }
}

impl Watchers {
    /// Waits for an execution, which is at `place` as far as the caller knows.
    pub(crate) fn watch<'a>(&'a self, id: &'a ExecutionId, place: Place) -> Watch<'a> {
        let (sender, receiver) = oneshot::channel();
        self.lock().waiting.entry(id.clone()).or_default().push(Watcher { sender, place });
        Watch { watchers: self, id, receiver: Some(receiver) }
    }

    /// Takes those out who no longer wait for `id`.
    fn sweep(&self, id: &ExecutionId) {
        let mut state = self.lock();
        if let Some(watchers) = state.waiting.get_mut(id) {
            watchers.retain(|watcher| !watcher.sender.is_closed());
            if watchers.is_empty() {
                state.waiting.remove(id);
            }
        }
    }

    /// Tells everybody who waits for `id` how it ended.
    pub(crate) fn ended(&self, id: &ExecutionId, event: &Event) {
        let watchers = self.lock().waiting.remove(id).unwrap_or_default();
        for watcher in watchers {
            // Whoever no longer listens does not need to know.
            let _ = watcher.sender.send(Some(event.clone()));
        }
    }

    /// Has those look again who believe that `id` is at `place`.
    pub(crate) fn look(&self, id: &ExecutionId, place: Place) {
        let mut state = self.lock();
        if let Some(watchers) = state.waiting.get_mut(id) {
            look_again(watchers.extract_if(.., |watcher| watcher.place == place));
            if watchers.is_empty() {
                state.waiting.remove(id);
            }
        }
    }

    /// Has those look again who wait for something that is elsewhere.
    pub(crate) fn look_elsewhere(&self) {
        self.lock().waiting.retain(|_, watchers| {
            look_again(watchers.extract_if(.., |watcher| watcher.place == Place::Elsewhere));
            !watchers.is_empty()
        });
    }

    /// Has everybody look again.
    pub(crate) fn look_again(&self) {
        let all = std::mem::take(&mut self.lock().waiting);
        look_again(all.into_values().flatten());
    }

    /// For how many executions somebody waits.
    pub(crate) fn count(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Somebody waits for what is elsewhere. `true`: nobody follows the feed yet, and the caller has to see to it.
    pub(crate) fn wants_follower(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_followed, true)
    }

    /// Whether anybody waits for what is elsewhere. If not, the caller may end; then the next who waits begins anew.
    pub(crate) fn goes_on(&self, may_end: bool) -> bool {
        let mut state = self.lock();
        let is_elsewhere = |watcher: &Watcher| watcher.place == Place::Elsewhere;
        let is_wanted = state.waiting.values().flatten().any(is_elsewhere);
        state.is_followed = is_wanted || !may_end;
        is_wanted
    }

    /// The follower ends, whoever waits.
    pub(crate) fn follower_ended(&self) {
        self.lock().is_followed = false;
        self.look_elsewhere();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.dropped.notify_one();
    }
}

fn look_again(watchers: impl Iterator<Item = Watcher>) {
    for watcher in watchers {
        let _ = watcher.sender.send(None);
    }
}
