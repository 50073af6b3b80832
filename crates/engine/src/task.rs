//! Runs one task: whole, and again when it fails.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

use abide_core::{Block, Command, Event, Failure, Op, OpKind, Payload, Phase, Waiting};
use abide_store::{Hold, Leased};

use crate::engine::Inner;
use crate::inbox::Inbox;
use crate::ledger::{Flushed, Ledger, Terms};
use crate::mailbox::{Mailbox, Order};
use crate::panics;
use crate::presence::Presence;
use crate::registry::{CodeFuture, TaskAttempt, TaskCode};
use crate::runner::End;
use crate::runtime::BoxFuture;

pub(crate) struct TaskRunner {
    engine: Arc<Inner>,
    code: Arc<dyn TaskCode>,
    ledger: Ledger,
    mailbox: Arc<Mailbox>,
    input: Payload,
    future: Option<CodeFuture>,
    inbox: Inbox,
    order: Order,
    deadline: Option<BoxFuture<()>>,
    closing: Option<End>,
    presence: Presence,
}

impl TaskRunner {
    pub(crate) fn new(
        engine: Arc<Inner>,
        code: Arc<dyn TaskCode>,
        mailbox: Arc<Mailbox>,
        mut leased: Leased,
    ) -> Result<Self, String> {
        let first = match leased.first.take() {
            Some(entry) => *entry,
            None => {
                let record = leased.journal.first().ok_or("its journal is empty")?;
                record.entry().map_err(|error| error.to_string())?
            }
        };
        let Event::Started(start) = first.event else {
            return Err("its journal does not begin with its start".to_owned());
        };
        let page = std::mem::take(&mut leased.inbox);
        let inbox = Inbox::new(engine.store.clone(), engine.runtime.clone(), leased.key, page);
        let ledger = Ledger::new(&engine, leased);
        let deadline = ledger.execution().deadline_at().map(|at| engine.runtime.sleep_until(at));
        Ok(Self {
            code,
            ledger,
            mailbox,
            input: start.input.clone(),
            future: None,
            inbox,
            order: Order::Run,
            deadline,
            closing: None,
            presence: Presence::new(engine.clone()),
            engine,
        })
    }

    /// Runs until the task is finished, released or lost.
    pub(crate) fn run(mut self) -> impl Future<Output = End> + Send {
        std::future::poll_fn(move |cx| {
            self.mailbox.task.register(cx.waker());
            self.presence.begin();
            let polled = self.poll(cx);
            let is_pending = polled.is_pending();
            self.presence.set(is_pending && self.ledger.is_busy(), is_pending && self.future.is_some());
            polled
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if let Poll::Ready(flushed) = self.ledger.poll(cx) {
                return Poll::Ready(self.flushed(flushed));
            }
            if self.ledger.is_busy() {
                return Poll::Pending;
            }
            let (arrivals, order) = self.mailbox.take();
            self.inbox.arrive(arrivals);
            self.order = self.order.max(order);
            if self.order == Order::Abandon {
                return Poll::Ready(End::Lost("the session is over".to_owned()));
            }
            if let Err(error) = self.inbox.poll(cx) {
                return Poll::Ready(End::Lost(error.to_string()));
            }
            if self.obey_mail() || self.expire(cx) {
                continue;
            }
            let is_paused = !matches!(self.ledger.execution().phase(), Phase::Running);
            if is_paused && self.future.is_none() {
                // What is unread and not known here would wake it at once.
                if !self.inbox.is_complete() {
                    return Poll::Pending;
                }
                self.release(Hold::Park { seen_count: 0 });
                continue;
            }
            if self.order == Order::Leave || (self.order == Order::Drain && self.future.is_none()) {
                self.release(Hold::Yield);
                continue;
            }
            let result = std::task::ready!(self.poll_code(cx));
            self.ended(result);
        }
    }

    /// Applies control messages; a task has no use for any other. `true`: something is to be committed.
    fn obey_mail(&mut self) -> bool {
        while let Some(message) = self.inbox.next() {
            let command = message.control();
            self.ledger.consume(message.id);
            let entries = command.map(|command| self.ledger.decide(command)).and_then(Result::ok);
            let last = entries.and_then(|entries| entries.into_iter().next_back());
            if let Some(entry) = last.filter(|entry| entry.event.is_terminal()) {
                self.future = None;
                self.finish(entry.event);
                return true;
            }
        }
        false
    }

    fn expire(&mut self, cx: &mut Context<'_>) -> bool {
        let is_due = self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready());
        if !is_due {
            return false;
        }
        self.deadline = None;
        self.end_with(Command::ExpireDeadline)
    }

    fn poll_code(&mut self, cx: &mut Context<'_>) -> Poll<Result<Payload, TaskEnd>> {
        if self.future.is_none() {
            let execution = self.ledger.execution();
            let (address, run) = (execution.address().clone(), execution.run());
            let attempt = TaskAttempt { address, run, attempt: execution.attempt_count() + 1 };
            match catch_unwind(AssertUnwindSafe(|| self.code.call(attempt, &self.input))) {
                Ok(Ok(future)) => self.future = Some(future),
                Ok(Err(block)) => return Poll::Ready(Err(TaskEnd::Block(block))),
                Err(panic) => return Poll::Ready(Err(TaskEnd::Failure(panics::failure(panic.as_ref())))),
            }
        }
        let Some(future) = &mut self.future else { return Poll::Pending };
        let result = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(result)) => result.map_err(TaskEnd::Failure),
            Err(panic) => Err(TaskEnd::Failure(panics::failure(panic.as_ref()))),
        };
        self.future = None;
        Poll::Ready(result)
    }

    /// Records how an attempt ended.
    fn ended(&mut self, result: Result<Payload, TaskEnd>) {
        match result {
            Ok(result) => match self.engine.options.limits.check_payload("the result of the task", &result) {
                Ok(()) => drop(self.end_with(Command::Complete { result, unused: Vec::new() })),
                Err(large) => self.block(Block::Limit { reason: large.to_string() }),
            },
            Err(TaskEnd::Block(reason)) => self.block(reason),
            Err(TaskEnd::Failure(failure)) => self.fail(failure),
        }
    }

    fn fail(&mut self, failure: Failure) {
        let attempt = self.ledger.execution().attempt_count() + 1;
        let retry = self.ledger.execution().retry().unwrap_or(&self.engine.options.default_retry);
        let delay = retry.delay_after(attempt).filter(|_| failure.is_retryable());
        let Some(delay) = delay else {
            self.end_with(Command::Fail(failure));
            return;
        };
        let retry_at = self.ledger.now().after(delay);
        let name = self.ledger.execution().name().clone();
        let op = Op { kind: OpKind::Task, name: name.clone(), nth: 1 };
        if self.ledger.decide(Command::FailAttempt { op, attempt, failure, retry_at }).is_ok() {
            let waiting = [Waiting::Retry { name, attempt: attempt + 1, at: retry_at }];
            self.send(Hold::Park { seen_count: 0 }, &waiting, End::Released);
        }
    }

    fn block(&mut self, reason: Block) {
        // Whatever the phase says, the lease goes back.
        let _ = self.ledger.decide(Command::Block(reason));
        self.release(Hold::Park { seen_count: 0 });
    }

    fn end_with(&mut self, command: Command) -> bool {
        match self.ledger.decide(command) {
            Ok(entries) => {
                self.future = None;
                if let Some(entry) = entries.into_iter().next_back() {
                    self.finish(entry.event);
                }
                true
            }
            Err(_) => false,
        }
    }

    fn finish(&mut self, event: Event) {
        self.send(Hold::Keep, &[], End::Finished(event));
    }

    fn release(&mut self, hold: Hold) {
        self.send(hold, &[], End::Released);
    }

    fn send(&mut self, hold: Hold, waiting: &[Waiting], closing: End) {
        let summary = self.ledger.execution().summary(waiting);
        self.ledger.flush(Terms { summary, hold, born_slots: 0, alone: self.engine.is_alone() });
        self.closing = Some(closing);
    }

    fn flushed(&mut self, flushed: Flushed) -> End {
        match flushed {
            Flushed::Committed { .. } => self.closing.take().unwrap_or(End::Released),
            Flushed::Refused(refusal) => End::Failed(format!("a commit was refused: {refusal}")),
            Flushed::Failed(why) => End::Failed(why),
            Flushed::Lost(why) => End::Lost(why),
        }
    }
}

enum TaskEnd {
    Failure(Failure),
    Block(Block),
}
