//! An operation on its way through the writer.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use abide_store::{Answer, Error, Result, Unanswered};
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

    /// Whether it reads the journal. One that mostly does not binds the sheaf itself where it does.
    fn reads_journal(&self) -> bool {
        true
    }

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
pub(crate) trait Job: Send + Sync {
    /// Applies it. A refusal is kept as its answer; an error says why the transaction cannot go on.
    fn apply(&self, batch: &mut Batch<'_>) -> std::result::Result<(), Failed>;
    /// Delivers the answer, because the transaction is durable. Returns the waker of its caller.
    fn answer(&self) -> Option<Waker>;
    fn fail(&self, failure: &BatchFailure) -> Option<Waker>;
    /// Answers that the store is closed.
    fn refuse(&self) -> Option<Waker>;
    /// Answers that nobody knows what became of it, if it has no answer yet.
    fn lose(&self) -> Option<Waker>;
    fn runs_user_code(&self) -> bool;
    fn can_do_without(&self) -> bool;
    fn queued_at(&self) -> Moment;
    fn admit(&self, permit: OwnedSemaphorePermit);
}

/// The writer's hold on an operation. An operation that the writer lets go of unanswered was lost
/// in a panic. Another attempt would end in the same way, and no caller should try for ever.
pub(crate) struct Ticket(Arc<dyn Job>);

impl Deref for Ticket {
    type Target = dyn Job;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.lose().into_iter().for_each(Waker::wake);
    }
}

/// The reason why a transaction cannot go on.
#[derive(Debug)]
pub(crate) enum Failed {
    /// SQLite failed, perhaps because of an earlier operation of the same transaction.
    Sql(BatchFailure),
    /// This operation is at fault, and only this one.
    Broken(BatchFailure),
}

/// An operation with its answer. The writer and the caller share it, so that an operation takes
/// memory once.
struct Queued<O: Operation> {
    /// Only the writer's side looks into it, so its lock keeps nobody waiting.
    work: Mutex<Work<O>>,
    answer: Mutex<AnswerCell<O::Output>>,
    queued_at: Moment,
}

struct Work<O: Operation> {
    /// Dropped by the caller with the answer, and not by the writer: what it is made of was
    /// allocated on the caller's thread, and other threads free it at a multiple of the cost.
    operation: O,
    output: Option<Result<O::Output>>,
    /// Returns its place in the queue when the operation is answered.
    permit: Option<OwnedSemaphorePermit>,
}

/// Returns the job of an operation, and its answer.
pub(crate) fn queue<O: Operation>(operation: O, queued_at: Moment) -> (Ticket, Answer<O::Output>) {
    let work = Mutex::new(Work { operation, output: None, permit: None });
    let queued = Arc::new(Queued { work, answer: Mutex::new(AnswerCell::Waiting(None)), queued_at });
    (Ticket(queued.clone()), Answer::of(queued))
}

impl<O: Operation> Queued<O> {
    fn work(&self) -> MutexGuard<'_, Work<O>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the answer, and returns the waker of the caller.
    fn put(&self, answer: Result<O::Output>) -> Option<Waker> {
        let permit = self.work().permit.take();
        drop(permit);
        let mut cell = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *cell, AnswerCell::Answered(answer)) {
            AnswerCell::Waiting(waker) => waker,
            AnswerCell::Answered(_) | AnswerCell::Taken => None,
        }
    }
}

impl<O: Operation> Job for Queued<O> {
    fn apply(&self, batch: &mut Batch<'_>) -> std::result::Result<(), Failed> {
        let mut work = self.work();
        let bound = if work.operation.reads_journal() { batch.bind_sheaf() } else { Ok(()) };
        work.output = match bound.map_err(Stop::from).and_then(|()| work.operation.apply(batch)) {
            Ok(output) => Some(Ok(output)),
            Err(Stop::Refused(error)) => Some(Err(error)),
            Err(Stop::Sql(error)) => return Err(Failed::Sql(BatchFailure::of(&error))),
            Err(Stop::Broken(failure)) => return Err(Failed::Broken(failure)),
        };
        Ok(())
    }

    fn answer(&self) -> Option<Waker> {
        let output = self.work().output.take();
        self.put(output.unwrap_or(Err(Error::Closed)))
    }

    fn fail(&self, failure: &BatchFailure) -> Option<Waker> {
        self.put(Err(failure.error(O::WHAT)))
    }

    fn refuse(&self) -> Option<Waker> {
        self.put(Err(Error::Closed))
    }

    fn lose(&self) -> Option<Waker> {
        let is_waiting = |cell: &AnswerCell<_>| matches!(cell, AnswerCell::Waiting(_));
        if !is_waiting(&self.answer.lock().unwrap_or_else(PoisonError::into_inner)) {
            return None;
        }
        let what = format!("{}: the writer panicked, and it is unknown whether it happened", O::WHAT);
        self.put(Err(Error::Corrupt { what }))
    }

    fn runs_user_code(&self) -> bool {
        self.work().operation.runs_user_code()
    }

    fn can_do_without(&self) -> bool {
        self.work().operation.can_do_without()
    }

    fn queued_at(&self) -> Moment {
        self.queued_at
    }

    fn admit(&self, permit: OwnedSemaphorePermit) {
        self.work().permit = Some(permit);
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

impl<O: Operation> Unanswered<O::Output> for Queued<O> {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<O::Output>> {
        let mut cell = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *cell {
            AnswerCell::Waiting(waker) => {
                match waker {
                    Some(known) => known.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            AnswerCell::Answered(_) => match std::mem::replace(&mut *cell, AnswerCell::Taken) {
                AnswerCell::Answered(answer) => Poll::Ready(answer),
                AnswerCell::Waiting(_) | AnswerCell::Taken => unreachable!("it was just seen"),
            },
            AnswerCell::Taken => Poll::Ready(Err(Error::Closed)),
        }
    }
}
