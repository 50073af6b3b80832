//! Whoever waits for an execution to end.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use abide_core::{Event, ExecutionId};
use tokio::sync::oneshot;

/// Callers that wait, by the id that they wait for.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<HashMap<ExecutionId, Vec<Watcher>>>);

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
    /// Anywhere: whenever another process has written, it may have ended.
    Elsewhere,
}

impl Watchers {
    /// Resolves with the event that ended the execution, or with `None` when it is worth looking again.
    pub(crate) fn watch(&self, id: &ExecutionId, place: Place) -> oneshot::Receiver<Option<Event>> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.lock();
        let watchers = waiting.entry(id.clone()).or_default();
        // Callers that gave up are swept out here, so that an execution asked for a million times holds one entry.
        watchers.retain(|watcher| !watcher.sender.is_closed());
        watchers.push(Watcher { sender, place });
        receiver
    }

    /// Tells everybody who waits for `id` how it ended.
    pub(crate) fn ended(&self, id: &ExecutionId, event: &Event) {
        let watchers = self.lock().remove(id).unwrap_or_default();
        for watcher in watchers {
            // Whoever no longer listens does not need to know.
            let _ = watcher.sender.send(Some(event.clone()));
        }
    }

    /// Has those look again who believe that `id` is here.
    pub(crate) fn left(&self, id: &ExecutionId) {
        let mut waiting = self.lock();
        if let Some(watchers) = waiting.get_mut(id) {
            look_again(watchers.extract_if(.., |watcher| watcher.place == Place::Here));
        }
    }

    /// Has those look again who wait for something that other processes may have ended.
    pub(crate) fn look_elsewhere(&self) {
        for watchers in self.lock().values_mut() {
            look_again(watchers.extract_if(.., |watcher| watcher.place == Place::Elsewhere));
        }
    }

    /// Has everybody look again.
    pub(crate) fn look_again(&self) {
        let all = std::mem::take(&mut *self.lock());
        look_again(all.into_values().flatten());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ExecutionId, Vec<Watcher>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn look_again(watchers: impl Iterator<Item = Watcher>) {
    for watcher in watchers {
        let _ = watcher.sender.send(None);
    }
}
