//! Operations of the model.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use super::{Expected, Failed, Id, ModelState, OpenOp, renamed, wrong_due};
use crate::program::keyed;

/// An operation that waits for its outcome. To drop it is to give it up.
pub(super) struct Operation {
    pub(super) state: Arc<Mutex<ModelState>>,
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) expected: Option<Expected>,
    pub(super) id: Option<Id>,
}

impl Operation {
    fn open(&mut self) {
        let id = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let other = match self.kind {
                "step" => "transaction",
                "transaction" => "step",
                _ => "",
            };
            let (name, _) = keyed(&self.name);
            if state.uses.keys().any(|(kind, used)| *kind == other && keyed(used).0 == name) {
                state.clash = Some(name.to_owned());
            }
            state.check_old_names(self.kind, &self.name);
            let (name, key) = keyed(&self.name);
            let count = state.uses.entry((self.kind, renamed::with_key(name, key))).or_default();
            *count += 1;
            let nth = *count;
            let own = (self.kind, renamed::with_key(name, key), nth);
            // A closure that runs may be recorded under either name.
            state.ever.insert(own);
            state.known_as(self.kind, &self.name, nth)
        };
        self.open_as(id);
    }

    pub(super) fn open_as(&mut self, id: Id) {
        let Some(expected) = self.expected.take() else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_shielded = state.shield_depth > 0;
        let outcome = state.interrupt.filter(|_| !is_shielded).map(|kind| Err(Failed(kind)));
        state.opened_count += 1;
        let number = state.opened_count;
        state.ever.insert(id.clone());
        let wrong = state.set.get(&id).and_then(|set| wrong_due(&expected, set, state.slack));
        state.wrong = state.wrong.take().or(wrong);
        state.open.insert(id.clone(), OpenOp { number, is_shielded, expected, outcome, waker: None });
        drop(state);
        self.id = Some(id);
    }

    pub(super) fn nth(&self) -> u32 {
        self.id.as_ref().map_or(0, |id| id.2)
    }
}

impl Future for Operation {
    type Output = Result<u64, Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.id.is_none() {
            self.open();
        }
        let Some(id) = self.id.clone() else { return Poll::Pending };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = state.open.get_mut(&id) else { return Poll::Pending };
        match slot.outcome.take() {
            Some(outcome) => {
                state.open.remove(&id);
                Poll::Ready(outcome)
            }
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).open.remove(id);
        }
    }
}
