//! Reads that are repeated while the store cannot answer them.

use std::task::{Context, Poll};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_store::{Answer, Error, Store};

use crate::runtime::{BoxFuture, Runtime};

/// How long to wait before a read is repeated.
const PAUSE: Duration = Duration::from_millis(100);

/// How often rows that cannot be read are asked for: five seconds long.
pub(crate) const UNREAD_COUNT_MAX: u32 = 50;

/// A read that is repeated until the store answers.
///
/// The code whose execution reads goes on meanwhile. It is not begun anew for a disk that is full
/// or a store that is busy, because its unrecorded steps would run again. Rows that cannot be read
/// although the store works are another matter: they may stay so, and somebody should know.
pub(crate) struct Reading<Q, T> {
    request: Q,
    ask: fn(&dyn Store, Q) -> Answer<T>,
    answer: Answer<T>,
    pause: Option<BoxFuture<()>>,
    unread_count: u32,
}

impl<Q: Clone, T> Reading<Q, T> {
    pub(crate) fn new(store: &dyn Store, request: Q, ask: fn(&dyn Store, Q) -> Answer<T>) -> Self {
        let answer = ask(store, request.clone());
        Self { request, ask, answer, pause: None, unread_count: 0 }
    }

    /// Returns the request.
    pub(crate) fn request(&self) -> &Q {
        &self.request
    }

    /// Polls for the answer.
    pub(crate) fn poll(
        &mut self,
        store: &dyn Store,
        runtime: &dyn Runtime,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, Error>> {
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(cx));
                self.pause = None;
                self.answer = (self.ask)(store, self.request.clone());
            }
            match std::task::ready!(self.answer.as_mut().poll(cx)) {
                Err(error) if error.is_transient() && self.is_to_be_repeated(&error) => {
                    tracing::debug!(%error, "a read is repeated");
                    self.pause = Some(runtime.sleep(PAUSE));
                }
                answer => return Poll::Ready(answer),
            }
        }
    }

    fn is_to_be_repeated(&mut self, error: &Error) -> bool {
        self.unread_count += u32::from(error.is_of_one());
        self.unread_count < UNREAD_COUNT_MAX && !planted(Bug::ReadNotRepeated)
    }
}
