//! An operation on its way through the writer.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use abide_store::{Error, Result};
use tokio::sync::OwnedSemaphorePermit;

use crate::batch::Batch;
use crate::error::{BatchFailure, Stop};
use crate::os::Moment;

/// An operation that the writer does inside a transaction.
pub(crate) trait Operation: Send + 'static {
    type Output: Send + 'static;
    /// Its name in errors.
    const WHAT: &'static str;

    /// Applies it. The writer may call this again after the transaction was rolled back, so it
    /// consumes nothing. It refuses before it writes, because a refusal does not roll back.
    fn apply(&mut self, batch: &mut Batch<'_>) -> std::result::Result<Self::Output, Stop>;

    /// Whether it runs a closure of the user, which can end the transaction.
    fn runs_user_code(&self) -> bool {
        false
    }

    /// Whether it has found the cause of its failure, and can do without it. True once for each
    /// failure.
    fn can_do_without(&mut self) -> bool {
        false
    }
}

/// An operation without its type.
pub(crate) trait Job: Send {
    /// Applies it. A refusal is kept as its answer; an error says why the transaction cannot go on.
    fn apply(&mut self, batch: &mut Batch<'_>) -> std::result::Result<(), Failed>;
    /// Delivers the answer, because the transaction is durable. Returns the waker of its caller.
    fn answer(self: Box<Self>) -> Option<Waker>;
    fn fail(self: Box<Self>, failure: &BatchFailure) -> Option<Waker>;
    /// Answers that the store is closed.
    fn refuse(self: Box<Self>) -> Option<Waker>;
    fn runs_user_code(&self) -> bool;
    fn can_do_without(&mut self) -> bool;
    fn queued_at(&self) -> Moment;
    fn admit(&mut self, permit: OwnedSemaphorePermit);
}

/// The reason why a transaction cannot go on.
#[derive(Debug)]
pub(crate) enum Failed {
    /// SQLite failed, perhaps because of an earlier operation of the same transaction.
    Sql(BatchFailure),
    /// This operation is at fault, and only this one.
    Broken(BatchFailure),
}

pub(crate) struct Queued<O: Operation> {
    operation: O,
    output: Option<Result<O::Output>>,
    sender: Sender<O::Output>,
    queued_at: Moment,
    // Returns its place in the queue when the operation is answered.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Returns the job of an operation, and the receiver of its answer.
pub(crate) fn queue<O: Operation>(operation: O, queued_at: Moment) -> (Box<Queued<O>>, Receiver<O::Output>) {
    let slot = Arc::new(Mutex::new(AnswerCell::Waiting(None)));
    let sender = Sender { slot: Arc::clone(&slot), what: O::WHAT };
    (Box::new(Queued { operation, output: None, sender, queued_at, _permit: None }), Receiver(slot))
}

impl<O: Operation> Job for Queued<O> {
    fn apply(&mut self, batch: &mut Batch<'_>) -> std::result::Result<(), Failed> {
        self.output = match self.operation.apply(batch) {
            Ok(output) => Some(Ok(output)),
            Err(Stop::Refused(error)) => Some(Err(error)),
            Err(Stop::Sql(error)) => return Err(Failed::Sql(BatchFailure::of(&error))),
            Err(Stop::Broken(failure)) => return Err(Failed::Broken(failure)),
        };
        Ok(())
    }

    fn answer(self: Box<Self>) -> Option<Waker> {
        self.sender.send(self.output.unwrap_or(Err(Error::Closed)))
    }

    fn fail(self: Box<Self>, failure: &BatchFailure) -> Option<Waker> {
        self.sender.send(Err(failure.error(O::WHAT)))
    }

    fn refuse(self: Box<Self>) -> Option<Waker> {
        self.sender.send(Err(Error::Closed))
    }

    fn runs_user_code(&self) -> bool {
        self.operation.runs_user_code()
    }

    fn can_do_without(&mut self) -> bool {
        self.operation.can_do_without()
    }

    fn queued_at(&self) -> Moment {
        self.queued_at
    }

    fn admit(&mut self, permit: OwnedSemaphorePermit) {
        self._permit = Some(permit);
    }
}

/// The place of an answer. A channel would wake its receiver with each answer, and on a busy
/// machine every answer of a batch would cost two thread switches. Here all answers are put first,
/// and then all receivers are woken.
#[derive(Debug)]
enum AnswerCell<T> {
    Waiting(Option<Waker>),
    Answered(Result<T>),
    Taken,
}

#[derive(Debug)]
struct Sender<T> {
    slot: Arc<Mutex<AnswerCell<T>>>,
    what: &'static str,
}

/// The answer of an operation. Dropping it does not undo the operation.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Mutex<AnswerCell<T>>>);

impl<T> Sender<T> {
    fn send(&self, answer: Result<T>) -> Option<Waker> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *slot, AnswerCell::Answered(answer)) {
            AnswerCell::Waiting(waker) => waker,
            AnswerCell::Answered(_) | AnswerCell::Taken => None,
        }
    }
}

/// A job that is dropped unanswered was lost in a panic. Another attempt would end in the same way,
/// and no caller should try for ever.
impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let AnswerCell::Waiting(waker) = &mut *slot {
            let waker = waker.take();
            let what = format!("{}: the writer panicked, and it is unknown whether it happened", self.what);
            *slot = AnswerCell::Answered(Err(Error::Corrupt { what }));
            drop(slot);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *slot, AnswerCell::Taken) {
            AnswerCell::Answered(answer) => Poll::Ready(answer),
            AnswerCell::Waiting(_) => {
                *slot = AnswerCell::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            AnswerCell::Taken => Poll::Ready(Err(Error::Closed)),
        }
    }
}
