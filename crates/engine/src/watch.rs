//! Callers that wait for an execution to end.
//!
//! The engine wakes the callers of executions in this process. One [follower](crate::follower) of
//! the store's feed wakes the callers of all others, however many wait: nobody polls the store for
//! each of them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use abide_core::planted::{Bug, planted};
use abide_core::{Event, ExecutionId};
use tokio::sync::{Notify, oneshot};

use crate::runtime::Runtime;
use crate::text_hasher::TextHasher;

/// The waiting callers, by the id that they wait for.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    state: Mutex<Watched>,
    /// Notified when these watchers are dropped: no caller is left.
    pub(crate) dropped: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Watched {
    waiting: HashMap<ExecutionId, Vec<Watcher>, TextHasher>,
    /// Whether a follower is under way.
    is_followed: bool,
}

#[derive(Debug)]
struct Watcher {
    sender: oneshot::Sender<Option<Event>>,
    place: Whereabouts,
}

/// The place of an execution, as far as its waiting caller knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// This engine holds the execution, and wakes the caller when it ends or leaves.
    Here,
    /// The execution may be anywhere: the feed reports its end.
    Elsewhere,
}

/// A waiting caller. If it stops waiting, or need not wait, it leaves nothing behind.
pub(crate) struct Watch<'a> {
    watchers: &'a Watchers,
    id: &'a ExecutionId,
    /// The channel, until it has delivered.
    receiver: Option<oneshot::Receiver<Option<Event>>>,
}

impl Watch<'_> {
    /// Returns the event that ended the execution, or `None` when it is worth looking again.
    pub(crate) async fn told(mut self, runtime: &dyn Runtime) -> Option<Event> {
        let told = match &mut self.receiver {
            Some(receiver) => Telling { receiver, runtime, held: None }.await,
            None => None,
        };
        self.receiver = None;
        told
    }
}

/// The wait itself. It reports to a virtual clock that it waits for nothing outside this engine.
struct Telling<'a> {
    receiver: &'a mut oneshot::Receiver<Option<Event>>,
    runtime: &'a dyn Runtime,
    /// The address of the data of the waker that it holds, if the runtime minds.
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
    pub(crate) fn watch<'a>(&'a self, id: &'a ExecutionId, place: Whereabouts) -> Watch<'a> {
        let (sender, receiver) = oneshot::channel();
        self.lock().waiting.entry(id.clone()).or_default().push(Watcher { sender, place });
        Watch { watchers: self, id, receiver: Some(receiver) }
    }

    /// Removes the callers that no longer wait for `id`.
    fn sweep(&self, id: &ExecutionId) {
        let mut state = self.lock();
        if let Some(watchers) = state.waiting.get_mut(id) {
            watchers.retain(|watcher| !watcher.sender.is_closed());
            if watchers.is_empty() {
                state.waiting.remove(id);
            }
        }
    }

    /// Sends the last event of `id` to all its waiting callers.
    pub(crate) fn ended(&self, id: &ExecutionId, event: &Event) {
        let watchers = self.lock().waiting.remove(id).unwrap_or_default();
        for watcher in watchers {
            // A caller that is gone does not need to know.
            let _ = watcher.sender.send(Some(event.clone()));
        }
    }

    /// Wakes the callers that believe `id` to be at `place`, so that they look again.
    pub(crate) fn look(&self, id: &ExecutionId, place: Whereabouts) {
        let mut state = self.lock();
        if let Some(watchers) = state.waiting.get_mut(id) {
            look_again(watchers.extract_if(.., |watcher| watcher.place == place));
            if watchers.is_empty() {
                state.waiting.remove(id);
            }
        }
    }

    /// Wakes the callers that wait for executions elsewhere, so that they look again.
    pub(crate) fn look_elsewhere(&self) {
        self.lock().waiting.retain(|_, watchers| {
            look_again(watchers.extract_if(.., |watcher| watcher.place == Whereabouts::Elsewhere));
            !watchers.is_empty()
        });
    }

    /// Wakes all callers, so that they look again.
    pub(crate) fn look_again(&self) {
        let all = std::mem::take(&mut self.lock().waiting);
        look_again(all.into_values().flatten());
    }

    /// Returns the number of executions that callers wait for.
    pub(crate) fn count(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Records that a caller waits for an execution elsewhere. Returns `true` if nobody follows the
    /// feed yet: then the caller has to start a follower.
    pub(crate) fn wants_follower(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_followed, true)
    }

    /// Whether any caller waits for an execution elsewhere. If not, the follower may end, and the
    /// next caller starts another.
    pub(crate) fn goes_on(&self, may_end: bool) -> bool {
        let mut state = self.lock();
        let is_elsewhere = |watcher: &Watcher| watcher.place == Whereabouts::Elsewhere;
        let is_wanted = state.waiting.values().flatten().any(is_elsewhere);
        state.is_followed = is_wanted || !may_end;
        is_wanted
    }

    /// Records that the follower has ended, even if callers still wait.
    pub(crate) fn follower_ended(&self) {
        self.lock().is_followed = false;
        self.look_elsewhere();
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
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
