//! The queue before the writer, and the ways in which it is made to work.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;

use abide_core::planted::{Bug, planted};
use abide_store::{Answer, Error, IdleHook};
use tokio::sync::Semaphore;

use super::{Jobs, Writer, run};
use crate::batch::Shared;
use crate::job::{Operation, Ticket, queue};
use crate::os::Stopwatch;

/// The writer with its queue.
pub(crate) struct WriteQueue {
    writer: Mutex<Writer>,
    queue: Mutex<QueuedJobs>,
    arrived: Condvar,
    room: Arc<Semaphore>,
    batch_count_max: usize,
    stopwatch: Stopwatch,
    drive: Drive,
}

/// The code that makes the writer work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drive {
    /// A thread of its own, and callers that are alone.
    Thread,
    /// Code that steps it, and callers that are alone.
    Steps,
    /// Every caller.
    Caller,
}

#[derive(Default)]
pub(crate) struct QueuedJobs {
    pub(crate) urgent: VecDeque<Ticket>,
    pub(crate) ordinary: VecDeque<Ticket>,
    pub(crate) closed: bool,
    asleep: bool,
    /// To be called by the writer's thread, when it has nothing else to do.
    idle: Option<IdleHook>,
    /// The waker of the code that steps the writer, while the queue is empty.
    pub(crate) waker: Option<Waker>,
}

/// What the writer's thread does next.
enum Turn {
    Jobs,
    Idle(IdleHook),
}

/// The treatment of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheduling {
    /// It waits for its turn.
    Queued,
    /// Its caller has nothing else to do, and may do it itself.
    Alone,
    /// It goes before all others, and needs no room: there is at most one a session.
    Urgent,
}

impl WriteQueue {
    pub(crate) fn new(writer: Writer, shared: &Shared, drive: Drive) -> Self {
        let room = Arc::new(Semaphore::new(shared.options.queue_count_max.min(Semaphore::MAX_PERMITS)));
        let batch_count_max = shared.options.batch_count_max.max(1);
        let (writer, queue, stopwatch) = (Mutex::new(writer), Mutex::default(), shared.stopwatch.clone());
        Self { writer, queue, arrived: Condvar::new(), room, batch_count_max, stopwatch, drive }
    }

    /// Submits an operation. It is on its way when this returns, unless the queue is full.
    pub(crate) fn submit<O: Operation>(
        self: &Arc<Self>,
        operation: O,
        scheduling: Scheduling,
    ) -> Answer<O::Output> {
        if self.is_closed() {
            return Answer::ready(Err(Error::Closed));
        }
        let (job, answer) = queue(operation, self.stopwatch.now());
        if self.drive == Drive::Caller {
            run(self.lock_writer(), |writer| writer.run(vec![job]));
            return answer;
        }
        match self.run_alone(job, scheduling) {
            None => answer,
            Some(waiting) if scheduling == Scheduling::Urgent => {
                self.push(waiting, scheduling);
                answer
            }
            Some(waiting) => self.enqueue(waiting, answer),
        }
    }

    /// Puts a job into the queue, now or when it has room.
    fn enqueue<T: Send + 'static>(self: &Arc<Self>, job: Ticket, answer: Answer<T>) -> Answer<T> {
        if let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() {
            job.admit(permit);
            self.push(job, Scheduling::Queued);
            return answer;
        }
        let writes = Arc::clone(self);
        Answer::new(async move {
            let permit = Arc::clone(&writes.room).acquire_owned().await.map_err(|_| Error::Closed)?;
            job.admit(permit);
            writes.push(job, Scheduling::Queued);
            answer.await
        })
    }

    /// Runs a job on the calling thread if its caller is alone. Returns it otherwise.
    fn run_alone(&self, job: Ticket, scheduling: Scheduling) -> Option<Ticket> {
        if scheduling != Scheduling::Alone {
            return Some(job);
        }
        let Some(writer) = self.try_lock_writer() else { return Some(job) };
        // Looked at under the writer's mutex: all earlier calls have been applied.
        if !self.lock_queue().is_empty() {
            return Some(job);
        }
        run(writer, |writer| writer.run_at_once(job)).flatten()
    }

    fn push(&self, job: Ticket, scheduling: Scheduling) {
        let mut queue = self.lock_queue();
        if queue.closed {
            drop(queue);
            job.refuse().into_iter().for_each(Waker::wake);
            return;
        }
        match scheduling {
            Scheduling::Urgent if !planted(Bug::HeartbeatInLine) => queue.urgent.push_back(job),
            Scheduling::Urgent | Scheduling::Queued | Scheduling::Alone => queue.ordinary.push_back(job),
        }
        let (asleep, waker) = (queue.asleep, queue.waker.take());
        drop(queue);
        if asleep {
            self.arrived.notify_one();
        }
        waker.into_iter().for_each(Waker::wake);
    }

    /// Does the work of the writer's thread, until the store is closed and the queue empty.
    pub(crate) fn serve(&self) {
        while let Some(turn) = self.next_turn() {
            let writer = self.lock_writer();
            if let Turn::Idle(hook) = turn {
                run(writer, Writer::shrink);
                hook.call();
                continue;
            }
            // Taken under the writer's mutex: a caller that finds the queue empty has nobody before
            // it.
            let jobs = self.take_batch();
            run(writer, |writer| writer.run(jobs));
        }
    }

    fn next_turn(&self) -> Option<Turn> {
        let mut queue = self.lock_queue();
        loop {
            match queue.idle.take() {
                _ if !queue.is_empty() => return Some(Turn::Jobs),
                _ if queue.closed => return None,
                Some(hook) => return Some(Turn::Idle(hook)),
                None => {}
            }
            queue.asleep = true;
            queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.asleep = false;
        }
    }

    /// Lets the writer's thread shrink, unless there is work before.
    pub(crate) fn idle(&self, hook: &IdleHook) {
        self.lock_queue().idle = Some(hook.clone());
        self.arrived.notify_one();
    }

    /// Returns the next jobs that share a transaction. A user's closure only ever comes first: it
    /// can end the transaction, and then all jobs before it, perhaps other closures, would run
    /// again.
    pub(crate) fn take_batch(&self) -> Jobs {
        let mut queue = self.lock_queue();
        let mut jobs: Jobs = queue.urgent.drain(..).collect();
        while jobs.len() < self.batch_count_max {
            match queue.ordinary.front() {
                Some(job) if jobs.is_empty() || !job.runs_user_code() => {}
                _ => break,
            }
            jobs.extend(queue.ordinary.pop_front());
        }
        jobs
    }

    pub(crate) fn drive(&self) -> Drive {
        self.drive
    }

    pub(crate) fn close(&self) {
        self.lock_queue().closed = true;
        self.arrived.notify_all();
        self.room.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock_queue().closed
    }

    /// Locks the writer, for work between transactions.
    pub(crate) fn lock_writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the writer, if nobody uses it.
    pub(crate) fn try_lock_writer(&self) -> Option<MutexGuard<'_, Writer>> {
        match self.writer.try_lock() {
            Ok(writer) => Some(writer),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        }
    }

    pub(crate) fn lock_queue(&self) -> MutexGuard<'_, QueuedJobs> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedJobs {
    pub(crate) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.ordinary.is_empty()
    }
}
