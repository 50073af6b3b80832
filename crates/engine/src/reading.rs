//! Reads that are repeated while the store cannot answer them.

use std::task::{Context, Poll};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_store::{Answer, Error, Store};

use crate::runtime::{BoxFuture, Runtime};

/// How long to wait before a read is repeated.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::{Arc, Mutex};

    use abide_core::{Bounds, Timestamp};
    use abide_store::memory::MemoryStore;

    use super::*;
    use crate::sim::Sim;

    struct Zero;

    impl abide_store::Clock for Zero {
        fn now(&self) -> Timestamp {
            Timestamp::default()
        }
    }

    /// The answers to come, the last one first.
    type Answers = Arc<Mutex<Vec<Result<u32, Error>>>>;

    /// Reads until there is an answer. Returns it, and the number of answers that are left.
    fn read(mut answers: Vec<Result<u32, Error>>) -> (Result<u32, Error>, usize) {
        answers.reverse();
        let answers: Answers = Arc::new(Mutex::new(answers));
        let store = MemoryStore::new(Arc::new(Zero), Bounds::default());
        let sim = Sim::new(1);
        let runtime = sim.process(1);
        let ask = |_: &dyn Store, answers: Answers| -> Answer<u32> {
            Answer::ready(answers.lock().unwrap().pop().expect("nobody asks again after an answer"))
        };
        let mut reading = Reading::new(&*store, answers.clone(), ask);
        let answer = sim.block_on(poll_fn(|cx| reading.poll(&*store, &*runtime, cx)));
        (answer, answers.lock().unwrap().len())
    }

    fn busy() -> Result<u32, Error> {
        Err(Error::Busy { what: "read" })
    }

    fn unread() -> Result<u32, Error> {
        Err(Error::Unread { what: "read", source: "a bad sector".into() })
    }

    #[test]
    fn a_store_that_is_busy_is_asked_without_a_bound() {
        let answers = (0..4 * UNREAD_COUNT_MAX).map(|_| busy()).chain([Ok(7)]).collect();
        assert!(matches!(read(answers), (Ok(7), 0)));
    }

    #[test]
    fn rows_that_stay_unreadable_are_given_up() {
        let answers = (0..2 * UNREAD_COUNT_MAX).flat_map(|_| [busy(), unread()]).collect();
        let (answer, left_count) = read(answers);
        assert!(matches!(answer, Err(Error::Unread { .. })), "{answer:?}");
        assert_eq!(left_count, 2 * UNREAD_COUNT_MAX as usize, "only unread rows count");
    }

    #[test]
    fn rows_that_are_read_in_time_are_an_answer() {
        let answers = (1..UNREAD_COUNT_MAX).map(|_| unread()).chain([Ok(7)]).collect();
        assert!(matches!(read(answers), (Ok(7), 0)));
    }

    #[test]
    fn damage_is_not_asked_for_again() {
        let damaged = || Err(Error::Corrupt { what: "a row".to_owned() });
        assert!(matches!(read(vec![damaged(), Ok(7)]), (Err(Error::Corrupt { .. }), 1)));
    }
}
