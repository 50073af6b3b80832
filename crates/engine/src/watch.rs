//! Whoever waits for an execution to end.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use abide_core::{Event, ExecutionId};
use tokio::sync::oneshot;

/// Callers that wait, by the id that they wait for.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<HashMap<ExecutionId, Vec<oneshot::Sender<Option<Event>>>>>);

impl Watchers {
    /// Resolves with the event that ended the execution, or with `None` when it is worth looking again.
    pub(crate) fn watch(&self, id: &ExecutionId) -> oneshot::Receiver<Option<Event>> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.lock();
        let senders = waiting.entry(id.clone()).or_default();
        // Callers that gave up are swept out here, so that an execution asked for a million times holds one entry.
        senders.retain(|sender| !sender.is_closed());
        senders.push(sender);
        receiver
    }

    /// Tells everybody who waits for `id` how it ended.
    pub(crate) fn ended(&self, id: &ExecutionId, event: &Event) {
        let senders = self.lock().remove(id).unwrap_or_default();
        for sender in senders {
            // Whoever no longer listens does not need to know.
            let _ = sender.send(Some(event.clone()));
        }
    }

    /// Has everybody look again.
    pub(crate) fn look_again(&self) {
        let all = std::mem::take(&mut *self.lock());
        for sender in all.into_values().flatten() {
            let _ = sender.send(None);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ExecutionId, Vec<oneshot::Sender<Option<Event>>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
