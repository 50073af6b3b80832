//! Runs one workflow: polls its future, delivers outcomes in recorded order, records what is new.
//!
//! A runner is a state machine that is polled by one task. Each turn does one thing: take in what arrived, poll the
//! code, deliver one entry, or send one commit. The order of the turns is the order in which a replay repeats them:
//!
//! - one entry is delivered between two polls of the code, live as well as in a replay;
//! - an unrecorded operation starts only when the journal has nothing left for an open one;
//! - a closure starts only when everything before it is durable.

mod control;
mod live;
mod next;
mod replay;
mod rest;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use abide_core::{
    Address, Block, Body, Command, Cursor, Entry, Event, ExecutionId, Failure, FailureKind, KeyHasher,
    Message, MessageId, Name, Op, OpKey, Payload, Phase, Refusal, Remedied, Remedy, Timestamp, Waiting,
};
use abide_store::{Hold, Leased};

use crate::board::{Board, Delivery, Request, SlotState, State};
use crate::engine::Inner;
use crate::inbox::Inbox;
use crate::journal::Journal;
use crate::ledger::{Flushed, Ledger, Terms};
use crate::mailbox::{Mailbox, Order};
use crate::panics;
use crate::presence::Presence;
use crate::registry::{CodeFuture, WorkflowCode};
use crate::runtime::{BoxFuture, Moment};

/// How a runner ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The execution is finished, and this was its last entry.
    Finished(Event),
    /// The lease was given back.
    Released,
    /// The store will never take what was to be committed.
    Failed(String),
    /// The lease is lost; whoever has it now goes on.
    Lost(String),
}

pub(crate) struct Runner {
    engine: Arc<Inner>,
    code: Arc<dyn WorkflowCode>,
    ledger: Ledger,
    mailbox: Arc<Mailbox>,
    journal: Journal,
    /// The code's future and the board that it shares with us; nothing while paused or blocked from the start.
    active: Option<Active>,
    /// What the code returned.
    result: Option<Result<Payload, Failure>>,
    cursor: Cursor,
    is_replaying: bool,
    /// Opened operations that the journal knows nothing of, to be started.
    unsettled: VecDeque<u64>,
    /// Closures that may start as soon as everything before them is durable.
    startable: VecDeque<u64>,
    /// Recorded outcomes that the code has not seen yet.
    undelivered: VecDeque<Entry>,
    /// The transaction step that is being committed.
    transacting: Option<OpKey>,
    slots: HashMap<OpKey, u64, KeyHasher>,
    timers: BinaryHeap<Reverse<(Timestamp, u64, TimerKind)>>,
    /// When attempts take too long: the slot and the number of the attempt.
    timeouts: BinaryHeap<Reverse<(Moment, u64, u32)>>,
    inbox: Inbox,
    signals: HashMap<Name, VecDeque<(MessageId, Payload)>>,
    signal_waiters: BTreeMap<Name, VecDeque<u64>>,
    /// Outcomes of children that nobody has asked for yet, in order of arrival.
    results: VecDeque<(OpKey, Message)>,
    /// Children that were started and have no outcome yet.
    children: BTreeMap<OpKey, ExecutionId>,
    /// Results of children that the code gave up waiting for.
    given_up: Vec<(Op, ExecutionId)>,
    /// Recorded operations that the code has not asked for until its end, as far as they were read again.
    unused: Vec<Op>,
    /// Timers that came due while the execution was paused.
    held_timers: Vec<(Timestamp, u64, TimerKind)>,
    /// When the cancellation was recorded that the code has not seen yet.
    cancelled_at: Option<Timestamp>,
    order: Order,
    idle_since: Option<Moment>,
    published: Option<Vec<Waiting>>,
    /// Rings at the next timer.
    alarm: Option<(Timestamp, BoxFuture<()>)>,
    /// Rings when the next timeout is over, or when it has been idle for long enough.
    bell: Option<(Moment, BoxFuture<()>)>,
    /// The final commit was sent; this is what it means.
    closing: Option<Box<End>>,
    presence: Presence,
}

struct Active {
    board: Board,
    future: Option<CodeFuture>,
    waker: Waker,
}

/// What a timer of a slot means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TimerKind {
    /// The next attempt of a step may start.
    Retry,
    /// A sleep is over, or the patience for a signal.
    Due,
    /// The execution takes too long; belongs to no slot.
    Deadline,
}

/// What a turn did.
enum Turn {
    Progress,
    Idle,
    End(End),
}

/// How many turns are taken before other tasks get theirs.
const TURN_COUNT_MAX: usize = 256;

/// How many entries and messages may wait for the code to pause: more are committed while it goes on.
const NEWS_COUNT_MAX: usize = 128;

impl Runner {
    pub(crate) fn new(
        engine: Arc<Inner>,
        code: Arc<dyn WorkflowCode>,
        mailbox: Arc<Mailbox>,
        mut leased: Leased,
    ) -> Self {
        let journal = Journal::new(engine.store.clone(), &mut leased);
        let page = std::mem::take(&mut leased.inbox);
        let inbox = Inbox::new(engine.store.clone(), engine.runtime.clone(), leased.key, page);
        let ledger = Ledger::new(&engine, leased);
        let mut runner = Self {
            presence: Presence::new(engine.clone()),
            cursor: Cursor::new(code.is_strict()),
            code,
            engine,
            ledger,
            mailbox,
            inbox,
            journal,
            active: None,
            result: None,
            is_replaying: true,
            unsettled: VecDeque::new(),
            startable: VecDeque::new(),
            undelivered: VecDeque::new(),
            transacting: None,
            slots: HashMap::default(),
            timers: BinaryHeap::new(),
            timeouts: BinaryHeap::new(),
            signals: HashMap::new(),
            signal_waiters: BTreeMap::new(),
            results: VecDeque::new(),
            children: BTreeMap::new(),
            given_up: Vec::new(),
            unused: Vec::new(),
            held_timers: Vec::new(),
            cancelled_at: None,
            order: Order::Run,
            idle_since: None,
            published: None,
            alarm: None,
            bell: None,
            closing: None,
        };
        if let Some(deadline_at) = runner.ledger.execution().deadline_at() {
            runner.timers.push(Reverse((deadline_at, u64::MAX, TimerKind::Deadline)));
        }
        runner
    }

    /// Runs until the execution is finished, released or lost.
    pub(crate) fn run(mut self) -> impl Future<Output = End> + Send {
        std::future::poll_fn(move |cx| self.poll(cx))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.mailbox.task.register(cx.waker());
        self.presence.begin();
        for _ in 0..TURN_COUNT_MAX {
            match self.turn(cx) {
                Turn::Progress => self.idle_since = None,
                Turn::Idle => {
                    let is_outside = self.running_count() > 0;
                    self.presence.set(self.ledger.is_busy(), is_outside);
                    return Poll::Pending;
                }
                Turn::End(end) => {
                    self.evict();
                    self.presence.set(false, false);
                    return Poll::Ready(end);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Turn {
        if let Poll::Ready(flushed) = self.ledger.poll(cx) {
            return self.flushed(flushed);
        }
        self.take_mail();
        if self.order == Order::Abandon {
            return Turn::End(End::Lost("the session is over".to_owned()));
        }
        if self.closing.is_some() {
            return Turn::Idle;
        }
        if let Err(error) = self.inbox.poll(cx) {
            return Turn::End(End::Lost(error.to_string()));
        }
        if (self.is_replaying || self.cursor.is_wanted()) && self.may_run() {
            if let Some(turn) = self.replay(cx) {
                return turn;
            }
        } else if self.control() || self.fire_timers() || self.fire_timeouts() {
            return Turn::Progress;
        }
        if self.ledger.news_count() >= NEWS_COUNT_MAX && !self.ledger.is_busy() {
            self.send(Hold::Keep, None);
            return Turn::Progress;
        }
        if self.active.is_some() && self.poll_code() {
            return Turn::Progress;
        }
        if !self.is_replaying && (self.is_over_length() || self.live()) {
            return Turn::Progress;
        }
        self.rest(cx)
    }

    /// A journal that is too long stops visibly, before it is longer.
    fn is_over_length(&mut self) -> bool {
        let (found, max) =
            (self.ledger.execution().entry_count(), self.engine.options.limits.entry_count_max);
        if found < max || !self.may_run() || self.active.is_none() {
            return false;
        }
        let reason =
            format!("the journal has reached the limit entry_count_max: {found} entries, at most {max}");
        self.block(Block::Limit { reason })
    }

    /// Whether the execution's phase lets its code run.
    fn may_run(&self) -> bool {
        matches!(self.ledger.execution().phase(), Phase::Running | Phase::Cancelling { .. })
    }

    /// Polls the code if it has a reason to be polled, and looks at what it did.
    fn poll_code(&mut self) -> bool {
        let Some(active) = &mut self.active else { return false };
        let shared = active.board.0.clone();
        // What has returned is not polled again, whatever it woke before; the turn counts, so that a replay goes on.
        let Some(future) = &mut active.future else { return shared.take_reason_to_poll() };
        if shared.has_foreign_wake() {
            return self.block(Block::ForeignAwait { workflow: self.code.name().to_owned() });
        }
        if !shared.take_reason_to_poll() {
            return false;
        }
        let mut cx = Context::from_waker(&active.waker);
        let polled = shared.as_polling(|| catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx))));
        self.result = match polled {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(result)) => Some(result),
            Err(panic) => Some(Err(panics::failure(panic.as_ref()))),
        };
        if self.result.is_some() {
            active.future = None;
        }
        self.take_in();
        let state = shared.lock();
        if let Some(reason) = state.block.clone() {
            drop(state);
            return self.block(reason);
        }
        let waits_for_nothing = state.slots.is_empty() && !state.wants_next();
        drop(state);
        if self.result.is_none() && waits_for_nothing && !shared.is_to_be_polled() {
            return self.block(Block::ForeignAwait { workflow: self.code.name().to_owned() });
        }
        true
    }

    /// Announces to the cursor what the code opened and what it gave up.
    fn take_in(&mut self) {
        let Some(active) = &self.active else { return };
        let mut state = active.board.0.lock();
        let State { opened, slots, .. } = &mut *state;
        for id in opened.drain(..) {
            let Some(slot) = slots.get(&id) else { continue };
            let key = slot.op.key();
            self.slots.insert(key, id);
            self.cursor.open(key);
            self.unsettled.push_back(id);
        }
        for slot in std::mem::take(&mut state.dropped) {
            let key = slot.op.key();
            self.slots.remove(&key);
            self.cursor.close(key);
            if let Request::ChildResult { child } = slot.request {
                self.given_up.push((slot.op, child));
            }
        }
    }

    /// Hands one recorded entry to the operation that waits for it. `false`: nobody does.
    fn deliver(&mut self, entry: &Entry) -> bool {
        let Some(op) = entry.event.op() else { return false };
        let Some(id) = self.slots.remove(&op.key()) else { return false };
        if self.unsettled.front() == Some(&id) {
            self.unsettled.pop_front();
        }
        let Some(active) = &self.active else { return false };
        let shared = active.board.0.clone();
        let declared = shared.lock().slots.get(&id).and_then(|slot| slot.input_hash());
        if entry.contradicts_input(declared) {
            let expected = format!("{op} with the input that it was recorded with");
            return self.block(Block::Mismatch { expected, found: format!("{op} with another input") });
        }
        let delivery = match delivery_of(&entry.event) {
            Ok(delivery) => delivery,
            Err(reason) => return self.block(reason),
        };
        shared.deliver(id, delivery, entry.at);
        true
    }

    /// Looks at an entry that was just recorded or passed: which children are open follows from it.
    fn follow(&mut self, entry: &Entry) {
        match &entry.event {
            Event::CancelRequested { .. } => self.cancelled_at = Some(entry.at),
            Event::ChildStarted { op, child } => {
                self.children.insert(op.child_result().key(), child.clone());
            }
            Event::ChildFinished { op, .. } | Event::ChildCancelled { op } => {
                self.children.remove(&op.key());
            }
            _ => {}
        }
    }

    /// Decides a command of the code's and follows what it gave. A refusal means that the phase changed meanwhile.
    fn decide(&mut self, command: Command) -> Result<Vec<Entry>, Refusal> {
        let entries = self.ledger.decide(command)?;
        for entry in &entries {
            self.follow(entry);
        }
        Ok(entries)
    }

    /// Stops until somebody changes the code or the data.
    fn block(&mut self, reason: Block) -> bool {
        tracing::warn!(execution = %self.ledger.execution().address(), %reason, "an execution is blocked");
        self.evict();
        if self.decide(Command::Block(reason)).is_err() {
            // The phase allows no block, for example because it is paused: it will be found again.
            self.order = self.order.max(Order::Leave);
        }
        true
    }

    /// Drops the code without treating that as its own doing.
    fn evict(&mut self) {
        if let Some(active) = self.active.take() {
            active.board.0.lock().evicting = true;
            // User code runs in destructors too, and may panic there.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(active.future)));
            // A slot's waker leads back to the board: left there, neither would ever be freed.
            drop(std::mem::take(&mut active.board.0.lock().slots));
        }
    }

    /// Ends the run with what the code returned.
    fn finish(&mut self, result: Result<Payload, Failure>, cx: &mut Context<'_>) -> Turn {
        let limit = self.engine.options.limits.check_payload(
            "the result of the workflow",
            match &result {
                Ok(payload) => payload,
                Err(_) => &self.engine.empty_payload,
            },
        );
        if let Err(large) = limit {
            self.block(Block::Limit { reason: large.to_string() });
            return Turn::Progress;
        }
        let command = match result {
            Ok(result) => match self.poll_unused(cx) {
                Poll::Ready(Ok(unused)) => Command::Complete { result, unused },
                Poll::Ready(Err(error)) => return Turn::End(End::Lost(error.to_string())),
                Poll::Pending => {
                    self.result = Some(Ok(result));
                    return Turn::Idle;
                }
            },
            Err(failure) => Command::Fail(failure),
        };
        self.close(command)
    }

    /// Sends the commit that ends the run.
    fn close(&mut self, command: Command) -> Turn {
        match self.decide(command) {
            Ok(entries) => {
                self.cancel_children();
                let last = entries.into_iter().next_back().map(|entry| entry.event);
                self.evict();
                self.send(Hold::Keep, last.map(End::Finished));
                Turn::Progress
            }
            Err(refusal) => Turn::End(End::Lost(format!("the end of the run was refused: {refusal}"))),
        }
    }

    /// Children do not outlive the run that waits for them.
    fn cancel_children(&mut self) {
        if self.children.is_empty() {
            return;
        }
        let (address, run) = (self.ledger.execution().address().clone(), self.ledger.execution().run());
        let by = self.ledger.execution().as_parent();
        for child in std::mem::take(&mut self.children).into_values() {
            let id = MessageId::new(format!("end:{}:{run}", address.id));
            let to = Address { namespace: address.namespace.clone(), id: child };
            let reason = "its parent has ended".to_owned();
            self.ledger.emit(Message::new(id, to, by.clone(), Body::Cancel { reason }));
        }
    }

    fn send(&mut self, hold: Hold, closing: Option<End>) {
        let waiting = self.waiting();
        let mut summary = self.ledger.execution().summary(&waiting);
        if self.may_run() {
            summary.wake_at = self.next_timer();
        }
        self.published = Some(waiting);
        // What gives others something to do is no longer alone.
        let alone = self.ledger.has_little_news() && self.engine.is_alone();
        let terms = Terms { summary, hold, born_slots: self.engine.free_slots(), alone };
        self.ledger.flush(terms);
        self.closing = closing.map(Box::new);
    }

    fn flushed(&mut self, flushed: Flushed) -> Turn {
        match flushed {
            Flushed::Committed { committed, stranded } => {
                self.engine.adopt(committed.born);
                self.engine.recover_all(stranded);
                if self.engine.is_shut()
                    && (committed.transacted.is_some() || self.ledger.durable_count() > self.journal.end())
                {
                    // What has made progress is no suspect any longer.
                    self.engine.reopen(self.ledger.key);
                }
                if let Some(record) = committed.transacted {
                    return self.transacted(&record);
                }
                match self.closing.take() {
                    Some(end) => Turn::End(*end),
                    None => Turn::Progress,
                }
            }
            Flushed::Refused(refusal) => self.refused(&refusal),
            Flushed::Failed(why) => Turn::End(End::Failed(why)),
            Flushed::Lost(why) => Turn::End(End::Lost(why)),
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.evict();
    }
}

/// What an entry means to the code.
fn delivery_of(event: &Event) -> Result<Delivery, Block> {
    Ok(match event {
        Event::StepRecorded(record) => match &record.outcome {
            abide_core::Outcome::Unrecordable(lost) => {
                return Err(Block::Unrecordable { op: record.op.clone(), reason: lost.reason.clone() });
            }
            outcome => Delivery::Outcome(outcome.clone()),
        },
        Event::TimerFired { .. } => Delivery::Due,
        Event::SignalReceived { payload, .. } => {
            Delivery::Outcome(abide_core::Outcome::Success(payload.clone()))
        }
        Event::ChildStarted { child, .. } => Delivery::Started(child.clone()),
        Event::ChildFinished { outcome, .. } => Delivery::Outcome(outcome.clone()),
        Event::Unblocked { remedied: Some(Remedied { remedy: Remedy::Edit(result), .. }), .. } => {
            Delivery::Outcome(abide_core::Outcome::Success(result.clone()))
        }
        other => unreachable!("{} is delivered to nobody", other.word()),
    })
}

/// A failure that the runner itself gives to the code.
fn fatal(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Fatal, message)
}

/// The operation of the same name and number, of another kind.
fn of_kind(op: &Op, kind: abide_core::OpKind) -> Op {
    Op { kind, ..op.clone() }
}
