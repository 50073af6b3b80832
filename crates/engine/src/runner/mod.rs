//! Drives a workflow: polls its future, delivers outcomes in recorded order, records new ones.
//!
//! A runner is a state machine that one task polls. In a turn it takes in arrivals, polls the
//! code, delivers entries, and sends a commit. A replay delivers in the same order:
//!
//! - one entry is delivered between two polls of the code, live as well as in a replay;
//! - of due timers and arrived messages, the one that happened first is delivered first;
//! - an unrecorded operation starts only when the journal has nothing left for an open one;
//! - a closure starts only when everything before it is durable;
//! - recorded outcomes are delivered before a cancellation or a deadline that came after them, and
//!   nothing starts in between;
//! - no entry is numbered while a transaction is under way;
//! - once the code wants its next run, nothing more is received or begun for this one;
//! - when something is in the way, running closures end and are recorded, and nothing else happens.
//!
//! The [`Seat`] handles the matters of an execution that do not depend on its driver.

mod answers;
mod control;
mod live;
mod next;
mod outcome;
mod replay;
mod rest;
mod signals;
mod sites;
mod stage;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use abide_core::planted::{Bug, planted};
use abide_core::{
    Block, Body, By, Command, Cursor, EditFate, Entry, Event, ExecutionId, Failure, FailureKind, Few,
    KeyHasher, Message, MessageId, Name, Op, OpIndex, OpKind, Origin, Outcome, Payload, Refusal, Remedied,
    Remedy, SiteMark, Timestamp, Waits,
};
use abide_store::{Hold, Opening};

use crate::board::{Board, BoardState, Delivery, Interrupt, OpState, Request, RootWaker, Site};
use crate::driver::{Driver, End};
use crate::inbox::{Left, Letter};
use crate::journal::Journal;
use crate::line::Line;
use crate::mailbox::Order;
use crate::panics;
use crate::registry::{CodeFuture, WorkflowCode};
use crate::runtime::{BoxFuture, Moment};
use crate::seat::{Leave, Seat, Seated};
use crate::text_hasher::TextHasher;
use crate::tree::TOLD_COUNT_MAX;
use answers::Answers;
use replay::Edits;
use sites::RunSites;
use stage::{Active, Look, Stage, Timer, TimerKind};

/// Drives the executions of one workflow.
pub(crate) struct WorkflowDriver(pub(crate) Arc<dyn WorkflowCode>);

impl Driver for WorkflowDriver {
    fn begin(&self, seat: Seat, opening: Opening) -> BoxFuture<End> {
        let (code, signals) = (self.0.clone(), HashMap::default());
        let (journal, is_strict) = (Journal::new(seat.journal_of(), opening), code.is_strict());
        // Made where it stays, because it is large. Nothing between the two lines can panic, which
        // the compiler needs to know for that.
        let place = Box::<Runner>::new_uninit();
        let run = Run::new(journal, is_strict);
        let (idle_since, alarm, bell) = (None, None, None);
        let runner = Box::write(place, Runner { seat, code, run, signals, idle_since, alarm, bell });
        Box::into_pin(runner)
    }

    fn begins_with_plain_code(&self) -> bool {
        true
    }
}

struct Runner {
    seat: Seat,
    code: Arc<dyn WorkflowCode>,
    run: Run,
    /// Signals that nobody has received, by name. They are for the execution, in whichever run.
    signals: HashMap<Name, VecDeque<Signal>, TextHasher>,
    idle_since: Option<Moment>,
    /// Rings at the next timer.
    alarm: Option<(Timestamp, BoxFuture<()>)>,
    /// Rings when the next timeout is over, or when the runner has been idle for long enough.
    bell: Option<(Moment, BoxFuture<()>)>,
}

/// A signal that nobody has received.
struct Signal {
    id: MessageId,
    /// Its number in the store's order.
    number: u64,
    by: By,
    arrived_at: Timestamp,
    /// The payload, or the place where it was left.
    payload: Result<Payload, Left>,
}

/// The state of one run. The next run begins with a new one.
struct Run {
    journal: Journal,
    cursor: Cursor,
    edits: Edits,
    sites: RunSites,
    stage: Stage,
    /// Entries recorded since the journal was read and not yet seen by the code: outcomes, a
    /// cancellation, the deadline.
    undelivered: Line<Entry>,
    /// Children that were started and have no outcome yet.
    children: HashMap<OpIndex, ExecutionId, KeyHasher>,
    given_up: GivenUp,
    /// Outcomes of children that no code has asked for yet, in order of arrival.
    answers: Answers,
    /// Recorded operations that the code had not asked for at its end, as far as read again.
    unused: Vec<Op>,
    /// The last entry of the journal that shows how far the code came.
    seen_to: u64,
    /// The first operations that began while the journal had entries not asked for by the code.
    begun: Vec<Op>,
    announced: Option<Waits>,
}

impl Run {
    #[inline(always)]
    fn new(journal: Journal, is_strict: bool) -> Self {
        Self {
            journal,
            cursor: Cursor::new(is_strict),
            edits: Edits::default(),
            sites: RunSites::default(),
            stage: Stage::default(),
            undelivered: Line::default(),
            children: HashMap::default(),
            given_up: GivenUp::default(),
            answers: Answers::default(),
            unused: Vec::new(),
            seen_to: 0,
            begun: Vec::new(),
            announced: None,
        }
    }

    /// Tracks which children are open and which places are named, from an entry that was just
    /// recorded or passed.
    fn follow(&mut self, entry: &Entry) {
        self.sites.learn(entry);
        match &entry.event {
            Event::ChildStarted { op, child, .. } => {
                self.children.insert(op.index_as(OpKind::ChildResult), child.clone());
            }
            Event::ChildFinished { op, .. } => _ = self.children.remove(&op.index()),
            Event::ChildCancelled { op } => {
                if let Some((key, child)) = self.children.remove_entry(&op.index()) {
                    self.given_up.add(key, child);
                }
            }
            _ => {}
        }
    }
}

/// Children that nobody waits for any longer and that have not reported their end. They wind down,
/// and orders for the whole tree concern them too. No journal records that one of them has ended,
/// so a replay finds all of them again.
#[derive(Default)]
struct GivenUp {
    known: BTreeMap<OpIndex, ExecutionId>,
    /// Whether there are more than one commit sends orders to. Then the orders are sent by the
    /// execution that asks the store for all children.
    is_more: bool,
}

impl GivenUp {
    fn add(&mut self, key: OpIndex, child: ExecutionId) {
        if self.known.len() < TOLD_COUNT_MAX {
            self.known.insert(key, child);
        } else {
            self.is_more = true;
        }
    }
}

/// The result of a turn.
enum TurnResult {
    Progress,
    Idle,
    End(End),
}

/// The number of turns after which other tasks get theirs. A turn may poll the code several times.
const TURN_COUNT_MAX: usize = 64;

/// The number of entries and messages that may wait for the code to pause. More are committed while
/// the code goes on.
const NEWS_COUNT_MAX: usize = 128;

/// Runs until the execution is finished, released or lost. A runner is large, so it is the future
/// itself and is not moved into one.
impl Future for Runner {
    type Output = End;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        self.seat.enter(cx);
        for nth in 0..TURN_COUNT_MAX {
            let seated = match nth == 0 || self.seat.has_to_take_in() {
                true => self.seat.poll(cx),
                false => Poll::Pending,
            };
            let turn = match seated {
                Poll::Ready(seated) => self.seated(seated),
                Poll::Pending => self.turn(cx),
            };
            match turn {
                TurnResult::Progress => self.idle_since = None,
                TurnResult::Idle => {
                    let waits_outside = self.waits_outside();
                    self.seat.leave(waits_outside);
                    return Poll::Pending;
                }
                TurnResult::End(end) => {
                    self.evict();
                    self.seat.vacate();
                    return Poll::Ready(end);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Runner {
    fn turn(&mut self, cx: &mut Context<'_>) -> TurnResult {
        if self.seat.is_closing() {
            return TurnResult::Idle;
        }
        if self.run.stage.transacting().is_some() && !planted(Bug::EntryNumberTwice) {
            // The store's answer wakes us. Anything that ends meanwhile is recorded behind it.
            return if self.poll_code() { TurnResult::Progress } else { TurnResult::Idle };
        }
        if self.run.stage.is_halted() {
            return self.wind_down(cx);
        }
        // Orders that arrived before the code is called go first: perhaps it is never to be called.
        if self.run.stage.is_absent() && self.obey() {
            return TurnResult::Progress;
        }
        if self.is_replay_due() {
            if let Some(turn) = self.replay_on(cx) {
                return turn;
            }
        } else if self.obey() {
            return TurnResult::Progress;
        } else if self.wants_next() {
            return self.end_for_next(cx);
        } else if self.fire_timeouts() {
            return TurnResult::Progress;
        }
        if self.seat.news_count() >= NEWS_COUNT_MAX && !self.seat.is_busy() {
            self.send(Hold::Keep, None);
            return TurnResult::Progress;
        }
        let is_live = self.run.stage.is_live() || planted(Bug::EntryNumberTwice);
        if is_live && !self.seat.waits_to_expire() {
            if !self.go_on() {
                return TurnResult::Progress;
            }
        } else if self.is_code_ready() && self.poll_code() {
            return TurnResult::Progress;
        }
        // Closures that asked to be polled come after new entries: one that always asks would
        // starve its siblings.
        let is_leaving = self.seat.order() == Order::Leave;
        if !is_leaving && (self.commit_before_closures() || self.poll_code()) {
            return TurnResult::Progress;
        }
        self.rest(cx)
    }

    /// Does new things, and lets the code see them. Returns whether nothing more can be done;
    /// `false` if there may be more, and it is for the next turn. Orders and answers wait for that
    /// too: they may as well have come a moment later.
    fn go_on(&mut self) -> bool {
        // Enough for a step from the answer to one commit to the next commit.
        const DONE_COUNT_MAX: usize = 16;
        for done_count in 0..DONE_COUNT_MAX {
            if done_count > 0 && self.is_for_next_turn() {
                return false;
            }
            let has_done = if self.is_code_ready() { self.poll_code() } else { self.live() };
            if !has_done {
                return true;
            }
            self.idle_since = None;
        }
        false
    }

    /// Whether something else goes before new things, since the turn began.
    fn is_for_next_turn(&self) -> bool {
        let is_late = || self.seat.expires_at().is_some_and(|at| at <= self.seat.now());
        let has_timeouts = || self.run.stage.active().is_some_and(|active| !active.timeouts.is_empty());
        !self.run.stage.is_live()
            || self.seat.news_count() >= NEWS_COUNT_MAX
            || self.run.cursor.is_wanted()
            || has_timeouts()
            || self.wants_next()
            || is_late()
    }

    /// Blocks the run if its journal is too long, and returns whether it is. The run stops visibly,
    /// before anything new begins: begun operations are recorded, and the run can end.
    fn is_over_length(&mut self) -> bool {
        match self.seat.over_length() {
            Some(reason) => self.block(reason),
            None => false,
        }
    }

    /// Whether the code itself has something to do, and not only one of its closures.
    fn is_code_ready(&self) -> bool {
        self.run.stage.active().is_some_and(|active| active.board.0.is_to_be_polled())
    }

    /// Commits decided entries if a closure wants to be polled. Otherwise they would wait until no
    /// closure wants that.
    fn commit_before_closures(&mut self) -> bool {
        let is_asked = self.run.stage.active().is_some_and(|active| active.board.0.has_woken());
        let is_due = is_asked && self.run.stage.is_live() && self.seat.has_news() && !self.seat.is_busy();
        if is_due {
            self.send(Hold::Keep, None);
        }
        is_due
    }

    /// Whether a recorded entry is to be delivered, or the code to be called, before anything new
    /// is done.
    fn is_replay_due(&self) -> bool {
        (!self.run.stage.is_live() || self.run.cursor.is_wanted()) && self.seat.may_run()
    }

    fn seated(&mut self, seated: Seated) -> TurnResult {
        match seated {
            Seated::Committed(None) => TurnResult::Progress,
            Seated::Committed(Some(record)) => self.transacted(&record),
            Seated::Refused(refusal) => self.refused(&refusal),
            Seated::Ended(end) => TurnResult::End(end),
        }
    }

    /// Polls the code if it has a reason to be polled, and takes in its new and dropped operations.
    fn poll_code(&mut self) -> bool {
        let is_halted = self.run.stage.is_halted();
        let Some(active) = self.run.stage.active_mut() else { return false };
        let Active { board: Board(shared), future, waker, .. } = &mut *active;
        // Returned code is not polled again, whatever it woke before. The turn counts, so that a
        // replay goes on.
        let Some(code) = future else { return shared.take_reason_to_poll() };
        if shared.has_foreign_wake() && !is_halted {
            let reason = shared.lock().foreign_await(self.code.name());
            return self.block_later(reason);
        }
        if !shared.take_reason_to_poll() {
            return false;
        }
        let cursor = &self.run.cursor;
        // Entries that newer code has not asked for yet say nothing about the order in which older
        // code came to them.
        shared.set_behind(cursor.passed() < self.run.seen_to || cursor.has_skipped());
        let mut cx = Context::from_waker(waker.for_poll());
        let polled = shared.as_polling(|| catch_unwind(AssertUnwindSafe(|| code.as_mut().poll(&mut cx))));
        active.result = match polled {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(result)) => Some(result),
            Err(panic) => Some(Err(panics::failure(panic))),
        };
        if active.result.is_some() {
            active.future = None;
        }
        if !active.take_in(&mut self.run.cursor) || is_halted {
            return true;
        }
        match active.fault(self.code.name()) {
            Some(reason) => self.block_later(reason),
            None => true,
        }
    }

    /// Blocks, but not while a transaction is under way, because the block would be numbered. The
    /// reason is found again when the transaction is over.
    fn block_later(&mut self, reason: Block) -> bool {
        match self.run.stage.transacting() {
            Some((active, _)) => {
                active.board.0.lock().block.get_or_insert(reason);
                false
            }
            None => self.block(reason),
        }
    }

    /// Delivers one recorded entry to the operation that waits for it. `false`: none does.
    fn deliver(&mut self, entry: &Entry, fate: Option<EditFate>) -> bool {
        entry.event.op().is_some_and(|op| self.deliver_to((op, op.index()), entry, fate))
    }

    /// Does the same for an entry of the operation `op`, whose index is `key`.
    fn deliver_to(&mut self, (op, key): (&Op, OpIndex), entry: &Entry, fate: Option<EditFate>) -> bool {
        let Some(active) = self.run.stage.active_mut() else { return false };
        let Some(id) = active.slots.get(&key).copied() else { return false };
        let (known, obstacle) = match delivery_of(&entry.event, fate) {
            Ok(delivery) => (active.board.0.deliver(id, (op, delivery), entry.at), None),
            Err(reason) => (active.know(id, op), Some(reason)),
        };
        if let Err(found) = known {
            return self.block(Block::Mismatch { expected: op.to_string(), found });
        }
        active.close(key);
        for queue in [&mut active.unsettled, &mut active.unstarted] {
            queue.pop_front_if(|front| *front == id);
        }
        obstacle.is_none_or(|reason| self.block(reason))
    }

    /// Decides a command of the runner itself.
    fn decide(&mut self, command: Command) -> Result<Option<Entry>, Refusal> {
        self.decide_from(None, command)
    }

    /// Decides a command of the code, which asked for it at this place, and follows the entry. A
    /// refusal means that the phase changed meanwhile.
    fn decide_from(&mut self, site: Option<Site>, command: Command) -> Result<Option<Entry>, Refusal> {
        let is_numbered = self.run.stage.transacting().is_none();
        debug_assert!(is_numbered || planted(Bug::EntryNumberTwice), "its number is not known yet");
        let site = site.and_then(|site| self.mark(site));
        let entry = self.seat.decide_from(site, command)?;
        entry.iter().for_each(|entry| self.run.follow(entry));
        Ok(entry)
    }

    /// Returns where the code asked for an open operation.
    fn site(&self, op: &Op) -> Option<Site> {
        self.run.stage.active()?.site(op)
    }

    /// Returns where the code asked for the operation in a slot.
    fn site_of(&self, id: u64) -> Option<Site> {
        self.run.stage.active()?.site_of(id)
    }

    /// Returns the mark of an entry that comes from this place.
    fn mark(&mut self, site: Site) -> Option<SiteMark> {
        self.run.sites.mark(site, self.seat.engine.options.bounds.site_count_max)
    }

    /// Stops until somebody changes the code or the data. Running closures may end.
    fn block(&mut self, reason: Block) -> bool {
        tracing::debug!(address = %self.seat.execution().address(), %reason, "an execution is to be blocked");
        if let Err(refusal) = self.decide(Command::block(reason)) {
            // The phase allows no block, for example because the execution is paused. The reason
            // will be found again.
            tracing::debug!(address = %self.seat.execution().address(), %refusal, "it goes no further here");
        }
        self.run.stage.halt();
        true
    }

    /// Drops the code without treating the drop as the code's own act.
    fn evict(&mut self) {
        self.run.stage.evict();
    }

    /// Ends the run with the result of the code.
    fn finish(&mut self, result: Result<Payload, Failure>, cx: &mut Context<'_>) -> TurnResult {
        if planted(Bug::EndAtBoundBlocked) && self.is_over_length() {
            return TurnResult::Progress;
        }
        let bounds = &self.seat.engine.options.bounds;
        let limit = match &result {
            Ok(payload) => bounds.check_payload("the result of the workflow", payload),
            Err(_) => Ok(()),
        };
        if let Err(large) = limit {
            self.block(Block::Limit { reason: large.to_string() });
            return TurnResult::Progress;
        }
        let command = match result {
            Ok(result) => match self.poll_unused(cx) {
                Poll::Ready(Ok(unused)) => Command::Complete { result, unused },
                Poll::Ready(Err(error)) => return TurnResult::End(End::from(error)),
                Poll::Pending => {
                    if let Some(active) = self.run.stage.active_mut() {
                        active.result = Some(Ok(result));
                    }
                    return TurnResult::Idle;
                }
            },
            Err(failure) => Command::Fail(failure.located(|| self.place())),
        };
        match self.decide(command) {
            Ok(entry) => {
                entry.into_iter().for_each(|entry| self.end(entry.event));
                TurnResult::Progress
            }
            Err(refusal) => TurnResult::End(End::Lost(format!("the end of the run was refused: {refusal}"))),
        }
    }

    /// Returns the place of a failure outside every operation.
    fn place(&self) -> Origin {
        let code = format!("workflow {:?}", self.code.name());
        Origin { code, op: None, attempt: None, site: None }
    }

    /// Commits the decided end of the execution.
    fn end(&mut self, event: Event) {
        self.tell_children();
        let unclaimed = self.unclaimed();
        if let Some(unclaimed) = &unclaimed {
            tracing::warn!(address = %self.seat.execution().address(), "{unclaimed}");
        }
        self.seat.set_unclaimed(unclaimed);
        self.evict();
        self.seat.finish(event);
    }

    fn send(&mut self, hold: Hold, end: Option<End>) {
        self.tell_children();
        let is_parked = matches!(hold, Hold::Park { .. });
        let (waiting, sites) = if is_parked { self.waiting_at_rest() } else { self.waiting() };
        self.seat.set_sites(sites);
        let wake_at = self.next_timer();
        self.tell_open(None);
        let unclaimed = self.unclaimed();
        self.seat.set_unclaimed(unclaimed);
        self.seat.send(Leave { hold, waiting: &waiting, wake_at, end });
        self.run.announced = Some(waiting);
    }

    /// Reports to the seat of a suspect, before a commit, whether closures are open. Before the
    /// commit of a transaction, its own closure does not count.
    fn tell_open(&mut self, transaction: Option<OpIndex>) {
        if self.seat.is_suspected() {
            let active = self.run.stage.active_mut();
            let has_open = active.is_some_and(|active| active.has_unproven(transaction));
            self.seat.set_open(has_open);
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.evict();
    }
}

/// Returns what to deliver to the code for an entry, or why the entry blocks the run.
fn delivery_of(event: &Event, fate: Option<EditFate>) -> Result<Delivery, Block> {
    Ok(match event {
        Event::StepRecorded(record) => match &record.outcome {
            Outcome::Unrecordable(lost) => {
                return Err(Block::Unrecordable { op: record.op.clone(), reason: lost.reason.clone() });
            }
            outcome => Delivery::Outcome(outcome.clone()),
        },
        Event::TimerFired { .. } => Delivery::Due,
        Event::SignalReceived { payload, .. } => Delivery::Outcome(Outcome::Success(payload.clone())),
        Event::ChildStarted { child, .. } => Delivery::Started(child.clone()),
        Event::ChildFinished { outcome, .. } => Delivery::Outcome(outcome.clone()),
        Event::Unblocked { remedied: Some(Remedied { remedy: Remedy::Edit(result), .. }), .. } => {
            match fate {
                Some(EditFate::Kept) => Delivery::Outcome(Outcome::Success(result.clone())),
                _ => Delivery::Edited(result.clone()),
            }
        }
        other => unreachable!("{} is delivered to nobody", other.word()),
    })
}

/// Creates a failure that the code sees and the runner itself caused.
fn fatal(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Fatal, message)
}

/// Returns the operation of the same name and number, but of another kind.
fn of_kind(op: &Op, kind: OpKind) -> Op {
    Op { kind, ..op.clone() }
}
