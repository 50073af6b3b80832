//! Drives a task: runs it whole, and again when it fails.

use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use abide_core::planted::{Bug, planted};
use abide_core::{Block, Command, Entry, Event, Failure, Op, OpKind, Origin, Payload, Timestamp, Waiting};
use abide_store::{Hold, Opening};

use crate::alarm::ring;
use crate::driver::{Driver, End};
use crate::mailbox::{Mailbox, Order};
use crate::panics;
use crate::registry::{CodeFuture, TaskAttempt, TaskCode};
use crate::runtime::BoxFuture;
use crate::seat::{Leave, Seat};

/// Drives the executions of one task.
pub(crate) struct TaskDriver(pub(crate) Arc<dyn TaskCode>);

impl Driver for TaskDriver {
    fn begin(&self, seat: Seat, opening: Opening) -> BoxFuture<End> {
        let start = match opening.first_entry().map(|first| first.event) {
            Ok(Event::Started(start)) => start,
            Ok(other) => return over(End::damaged(format!("its journal begins with {}", other.word()))),
            Err(error) => return over(End::from(error)),
        };
        let (code, input) = (self.0.clone(), start.input.clone());
        let is_minded = seat.engine.runtime.minds_outside();
        let waker = is_minded.then(|| Arc::new(CodeWaker(seat.mailbox().clone())));
        let began_at = seat.now();
        let runner = TaskRunner { seat, code, input, future: None, began_at, alarm: None, waker };
        Box::pin(runner.run())
    }
}

fn over(end: End) -> BoxFuture<End> {
    Box::pin(ready(end))
}

struct TaskRunner {
    seat: Seat,
    code: Arc<dyn TaskCode>,
    input: Payload,
    future: Option<CodeFuture>,
    /// When the attempt under way began.
    began_at: Timestamp,
    /// Rings when the deadline has to be seen to.
    alarm: Option<(Timestamp, BoxFuture<()>)>,
    /// The waker that the code is polled with, if the runtime asks who waits for the outside world.
    waker: Option<Arc<CodeWaker>>,
}

/// Wakes the task of a runner on behalf of its code.
struct CodeWaker(Arc<Mailbox>);

impl Wake for CodeWaker {
    fn wake(self: Arc<Self>) {
        self.0.task.wake();
    }
}

impl TaskRunner {
    /// Runs until the task is finished, released or lost.
    fn run(mut self) -> impl Future<Output = End> + Send {
        std::future::poll_fn(move |cx| {
            self.seat.enter(cx);
            let polled = self.poll(cx);
            match &polled {
                Poll::Pending => {
                    let waits_outside = self.waits_outside();
                    self.seat.leave(waits_outside);
                }
                Poll::Ready(_) => self.seat.vacate(),
            }
            polled
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if let Poll::Ready(end) = self.seat.poll_end(cx) {
                return Poll::Ready(end);
            }
            if self.seat.is_busy() {
                return Poll::Pending;
            }
            let has_begun = self.future.is_some();
            if let Some(entries) = self.seat.obey(has_begun).or_else(|| self.seat.expire(has_begun)) {
                self.obeyed(entries);
                continue;
            }
            ring(&mut self.alarm, self.seat.expires_at(), |at| self.seat.sleep_until(at), cx);
            // A task reads no other message. Its sender was promised that it is kept: it stays
            // unread, where people see it.
            let mut is_hurried = false;
            while self.seat.next_letter().is_some() {
                is_hurried = planted(Bug::SignalEndsBackOff);
                self.future.take_if(|_| planted(Bug::TaskRestartsOnMail));
            }
            let order = self.seat.order();
            if order == Order::Leave || (order == Order::Drain && self.future.is_none()) {
                self.release(Hold::Yield);
                continue;
            }
            if !self.seat.may_run() && self.future.is_none() && !is_hurried {
                // Unread mail that is not known here would wake it at once.
                if !self.seat.has_all_mail() {
                    return Poll::Pending;
                }
                self.release(self.seat.parked());
                continue;
            }
            // A change of phase is committed at once: the function may run for long.
            if self.seat.has_news() && self.future.is_some() && !planted(Bug::TaskPauseUntold) {
                self.keep();
                continue;
            }
            let result = std::task::ready!(self.poll_code(cx));
            self.ended(result);
        }
    }

    /// Whether the code waits for the outside world, if the runtime asks; see
    /// [`waits_outside`](crate::board::Shared::waits_outside).
    fn waits_outside(&self) -> bool {
        let runtime = &self.seat.engine.runtime;
        let waits = |waker: &Arc<CodeWaker>| {
            Arc::strong_count(waker) > 1 + runtime.inside_count(Arc::as_ptr(waker).addr())
        };
        self.future.is_some() && self.waker.as_ref().is_some_and(waits)
    }

    /// Follows an order that was applied.
    fn obeyed(&mut self, entry: Option<Entry>) {
        let Some(last) = entry else { return };
        if last.event.is_terminal() {
            panics::drop_caught(self.future.take());
            self.seat.finish(last.event);
        }
    }

    /// Commits the news of a task that goes on.
    fn keep(&mut self) {
        let name = self.seat.execution().name().clone();
        let attempt = self.seat.execution().attempt_count() + 1;
        self.seat.send(Leave::keep(&[Waiting::Step { name, attempt }]));
    }

    fn poll_code(&mut self, cx: &mut Context<'_>) -> Poll<Result<Payload, TaskEnd>> {
        if self.future.is_none() {
            // The next sign of life wakes it.
            if !self.seat.engine.is_alive() {
                return Poll::Pending;
            }
            // Each failed attempt is an entry: a task that is retried forever stops visibly.
            let is_tried = self.seat.execution().attempt_count() > 0;
            if let Some(reason) = self.seat.over_length().filter(|_| is_tried) {
                return Poll::Ready(Err(TaskEnd::Block(reason)));
            }
            self.began_at = self.seat.now();
            let execution = self.seat.execution();
            let (address, run) = (execution.address().clone(), execution.run());
            let clock = self.seat.engine.runtime.clone();
            let attempt = TaskAttempt { address, run, attempt: execution.attempt_count() + 1, clock };
            match catch_unwind(AssertUnwindSafe(|| self.code.call(attempt, &self.input))) {
                Ok(Ok(future)) => self.future = Some(future),
                Ok(Err(block)) => return Poll::Ready(Err(TaskEnd::Block(block))),
                Err(panic) => return Poll::Ready(Err(TaskEnd::Failure(panics::failure(panic)))),
            }
        }
        let Some(future) = &mut self.future else { return Poll::Pending };
        let own = self.waker.clone().map(Waker::from);
        let mut cx = Context::from_waker(own.as_ref().unwrap_or(cx.waker()));
        let result = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(result)) => result.map_err(TaskEnd::Failure),
            Err(panic) => Err(TaskEnd::Failure(panics::failure(panic))),
        };
        panics::drop_caught(self.future.take());
        Poll::Ready(result)
    }

    /// Records the end of an attempt.
    fn ended(&mut self, result: Result<Payload, TaskEnd>) {
        let bounds = &self.seat.engine.options.bounds;
        match result {
            Ok(result) => match bounds.check_payload("the result of the task", &result) {
                Ok(()) => self.end_with(Command::Complete { result, unused: Vec::new() }),
                Err(large) => self.block(Block::Limit { reason: large.to_string() }),
            },
            Err(TaskEnd::Block(reason)) => self.block(reason),
            Err(TaskEnd::Failure(failure)) => self.fail(failure),
        }
    }

    fn fail(&mut self, failure: Failure) {
        let execution = self.seat.execution();
        let attempt = execution.attempt_count() + 1;
        let retry = execution.retry().unwrap_or(&self.seat.engine.options.default_retry);
        let name = execution.name().clone();
        let code = format!("task {:?}", name.as_str());
        let failure = failure.located(|| Origin { code, op: None, attempt: Some(attempt), site: None });
        let op = Op { kind: OpKind::Task, name: name.clone(), key: None, nth: 1 };
        let first_at = execution.first_attempt_at().unwrap_or(self.began_at);
        let failed = self.seat.failed_attempt(&op, attempt, first_at);
        let Some(retry_at) = retry.next_at(&failed).filter(|_| failure.is_retryable()) else {
            return self.end_with(Command::Fail(failure));
        };
        let command = Command::FailAttempt { op, attempt, failure, retry_at, first_at };
        let Ok(entries) = self.seat.decide(command) else { return };
        if let Some(end) = entries.into_iter().find(|entry| entry.event.is_terminal()) {
            self.seat.finish(end.event);
        } else {
            let waiting = [Waiting::Retry { name, attempt: attempt + 1, at: retry_at }];
            let (hold, end) = (self.seat.parked(), Some(End::Released));
            self.seat.send(Leave { hold, waiting: &waiting, wake_at: Some(retry_at), end });
        }
    }

    fn block(&mut self, reason: Block) {
        // Whatever the phase is, the lease is returned.
        let _ = self.seat.decide(Command::block(reason));
        self.release(self.seat.parked());
    }

    fn end_with(&mut self, command: Command) {
        if let Ok(entries) = self.seat.decide(command)
            && let Some(last) = entries.into_iter().next_back()
        {
            self.seat.finish(last.event);
        }
    }

    fn release(&mut self, hold: Hold) {
        self.seat.send(Leave { hold, waiting: &[], wake_at: None, end: Some(End::Released) });
    }
}

enum TaskEnd {
    Failure(Failure),
    Block(Block),
}
