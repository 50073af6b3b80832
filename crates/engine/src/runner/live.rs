//! The new part of a run.

use std::time::Duration;

use super::*;
use crate::board::{Inside, StepOptions, UserTransaction, timed_out};
use abide_core::{
    FailedAttempt, Mismatch, Note, OpKind, Outcome, Parent, StepRecord, Unrecordable, child_id, codec, text,
};
use abide_store::{Record, Transacted, Transaction};

/// The maximum number of operations kept in mind because they may have been renamed.
const BEGUN_COUNT_MAX: usize = 8;

impl Runner {
    /// Does one new thing. Returns `true` if there may be more.
    pub(super) fn live(&mut self) -> bool {
        let has_unrecorded = |active: &Active| active.board.0.has_unrecorded();
        if self.run.stage.active().is_some_and(has_unrecorded) {
            return self.record_patches() || self.record_finished();
        }
        if !self.seat.may_run() {
            return false;
        }
        if self.give_up() {
            return true;
        }
        if self.deliver_recorded() {
            return true;
        }
        self.take_mail();
        // All waits of one poll are open at the same moment, so none of them is served before the
        // last one is known. A child is started only when nothing else has come: perhaps the code
        // no longer wants it then.
        self.settle() || self.take_outcome() || self.settle_start() || self.start_closures()
    }

    /// Lets the code see the first recorded entry that it has not seen.
    pub(super) fn deliver_recorded(&mut self) -> bool {
        let Some(entry) = self.run.undelivered.pop_front() else { return false };
        match Interrupt::of(&entry.event) {
            Some(interrupt) => self.interrupt(interrupt, entry.at),
            // The operation that waited for it may have been dropped; then the entry is unused.
            None => self.deliver(&entry, None),
        };
        true
    }

    /// Sorts arrived messages. Nothing else takes them: a runner that cannot use a message leaves
    /// it unread until it can.
    pub(super) fn take_mail(&mut self) {
        while let Some(letter) = self.seat.next_letter() {
            let Message { id, body, arrived_at, .. } = &letter.message;
            match body {
                Body::Signal { name, payload } => {
                    let payload = letter.left.map_or_else(|| Ok(payload.clone()), Err);
                    let (id, by, number) = (id.clone(), letter.message.by.clone(), letter.number);
                    let signal = Signal { id, number, by, arrived_at: *arrived_at, payload };
                    self.signals.entry(name.clone()).or_default().push_back(signal);
                }
                Body::ChildDone { run, op, .. } => {
                    let key = op.index();
                    let is_of_run = *run == self.seat.execution().run();
                    if is_of_run && self.run.children.contains_key(&key) {
                        self.run.answers.add(key, letter);
                    } else {
                        if is_of_run {
                            self.run.given_up.known.remove(&key);
                        }
                        // Nobody waits for it any longer; unread, it would be looked at for ever.
                        if !planted(Bug::LateAnswerUnread) {
                            self.seat.consume(letter.message.id);
                        }
                    }
                }
                // No code waits for other messages.
                _ => self.seat.consume(letter.message.id),
            }
        }
    }

    /// Asks a child that nobody waits for any longer to stop. While the execution is paused, this
    /// waits with everything else.
    pub(super) fn give_up(&mut self) -> bool {
        let given_up = self.run.stage.active_mut().and_then(|active| active.given_up.pop());
        let Some((op, child, site)) = given_up else { return false };
        let key = op.index();
        let is_awaited = self.run.children.contains_key(&key);
        if is_awaited && !self.run.cursor.take_note(&op).is_ok_and(|note| note.cancelled) {
            let _ = self.decide_from(Some(site), Command::CancelChild { op, child });
            self.drop_answer(key);
        }
        true
    }

    /// Consumes the answer of a child that was given up after it had answered: nobody asks for the
    /// answer any longer.
    fn drop_answer(&mut self, key: OpIndex) {
        if self.run.children.contains_key(&key) || planted(Bug::LateAnswerUnread) {
            return;
        }
        if let Some(letter) = self.run.answers.remove_of(key) {
            self.run.given_up.known.remove(&key);
            self.seat.consume(letter.message.id);
        }
    }

    /// Records which changes of the code the run takes, before anything begins that depends on
    /// them. Answers found in a replay are recorded when the replay is over: until then, another
    /// replay finds the same ones.
    fn record_patches(&mut self) -> bool {
        let Some(active) = self.run.stage.active() else { return false };
        let patches = active.board.0.take_patches();
        let has_new = !patches.is_empty();
        for (patch, site) in patches {
            // A refusal means that the run has ended.
            let _ = self.decide_from(Some(site), patch.record());
        }
        has_new
    }

    /// Records the outcome of one attempt that has ended.
    pub(super) fn record_finished(&mut self) -> bool {
        let Some(active) = self.run.stage.active() else { return false };
        let (op, site, outcome, options, (attempt, first_at)) = {
            let mut guard = active.board.0.lock();
            let state = &mut *guard;
            let Some(id) = state.finished.pop_front() else { return false };
            let Some(slot) = state.slots.get_mut(&id) else { return true };
            let OpState::Done { attempt, outcome } = std::mem::replace(&mut slot.state, OpState::Waiting)
            else {
                return true;
            };
            slot.attempt_count = attempt;
            let Request::Step(options) = &slot.request else { return true };
            let first_at = slot.first_at.unwrap_or_else(|| self.seat.now());
            let (op, site) = (slot.op.clone(), slot.site);
            let outcome = outcome.located(|| site.place(self.code.name(), &op, Some(attempt)));
            (op, Some(site), outcome, options.clone(), (attempt, first_at))
        };
        let outcome = self.checked(&op, outcome);
        let failed = || self.seat.failed_attempt(&op, attempt, first_at);
        let (outcome, retry_at) = self.judged(outcome, failed, &options);
        if let Some(retry_at) = retry_at {
            let Outcome::Failure(failure) = outcome else { unreachable!("only failures are retried") };
            let key = op.index();
            let command = Command::FailAttempt { op, attempt, failure, retry_at, first_at };
            if self.decide_from(site, command).is_ok()
                && let Some(active) = self.run.stage.active_mut()
            {
                let id = active.slots.get(&key).copied();
                active.timers.extend(id.map(|id| Reverse(Timer::of_retry(id, retry_at))));
            }
            return true;
        }
        let record = StepRecord { op, outcome, attempt, input: options.input };
        if let Ok(entry) = self.decide_from(site, Command::RecordStep(record)) {
            self.run.undelivered.extend(entry);
        }
        true
    }

    /// Turns a result over the limit into an unrecordable outcome: its effect has happened.
    fn checked(&self, op: &Op, outcome: Outcome) -> Outcome {
        let Outcome::Success(payload) = &outcome else { return outcome };
        match self.seat.engine.options.bounds.check_payload(format_args!("the result of {op}"), payload) {
            Ok(()) => outcome,
            Err(large) => Outcome::Unrecordable(Unrecordable { reason: large.to_string() }),
        }
    }

    /// Returns the outcome of an attempt, and when the next attempt begins, if one does. `failed`
    /// describes the attempt, if it has failed: few do.
    fn judged(
        &self,
        outcome: Outcome,
        failed: impl FnOnce() -> FailedAttempt,
        options: &StepOptions,
    ) -> (Outcome, Option<Timestamp>) {
        let Outcome::Failure(failure) = &outcome else { return (outcome, None) };
        let retry = options.retry.as_ref().unwrap_or(&self.seat.engine.options.default_retry);
        let Some(retry_at) = retry.next_at(&failed()).filter(|_| failure.is_retryable()) else {
            return (outcome, None);
        };
        match options.retry_if.as_ref().map_or(Ok(true), |retry_if| (retry_if.0)(failure)) {
            Ok(is_wanted) => (outcome, Some(retry_at).filter(|_| is_wanted || planted(Bug::RetryIfIgnored))),
            Err(mut panic) => {
                // The error of the attempt remains known: nobody has judged it.
                panic.chain = [&failure.message].into_iter().chain(&failure.chain).cloned().collect();
                let place = failure.at.clone();
                (Outcome::Failure(panic.located(|| place.unwrap_or_else(|| self.place()))), None)
            }
        }
    }

    /// Delivers the entry of a decision.
    pub(super) fn deliver_new(&mut self, entry: Option<Entry>) {
        if let Some(entry) = entry {
            self.deliver(&entry, None);
        }
    }

    /// Begins one operation without an outcome in the journal, other than the start of a child.
    fn settle(&mut self) -> bool {
        let unsettled = self.run.stage.active_mut().and_then(|active| active.unsettled.pop_front());
        unsettled.is_some_and(|id| self.settle_slot(id))
    }

    /// Starts one child that the journal does not have.
    fn settle_start(&mut self) -> bool {
        let unstarted = self.run.stage.active_mut().and_then(|active| active.unstarted.pop_front());
        unstarted.is_some_and(|id| self.settle_slot(id))
    }

    /// Begins the operation in a slot. Returns `true` if it did so or nothing is left to do.
    fn settle_slot(&mut self, id: u64) -> bool {
        let Some((op, key)) = self.open_with_index(id) else { return true };
        if let Some(recorded) = self.other_kind(id, &op) {
            let found = self.told(id, &op);
            let number = self.run.cursor.skipped_site(recorded.index());
            let expected = format!("{recorded}{}", text::at(self.run.sites.text(number)));
            return self.block(Block::Mismatch { expected, found });
        }
        if let Some(reason) = self.run.cursor.obstacle() {
            return self.block(reason);
        }
        let note = match self.run.cursor.take_note(&op) {
            Ok(note) => note,
            Err(Mismatch { expected }) => {
                let found = self.told(id, &op);
                return self.block(Block::Mismatch { expected: expected.to_string(), found });
            }
        };
        if self.run.cursor.has_left() && self.run.begun.len() < BEGUN_COUNT_MAX {
            self.run.begun.push(op.clone());
        }
        match self.request(id) {
            Some(Wanted::Closure) => self.settle_closure(id, &note),
            Some(Wanted::Timer(after)) => self.settle_timer(id, op, note.due_at, after),
            Some(Wanted::Signal(None))
                if note.due_at.is_some() && self.code.is_strict() && !planted(Bug::TimeoutDropped) =>
            {
                let (expected, found) = (format!("timeout of {op}"), op.to_string());
                return self.block(Block::Mismatch { expected, found });
            }
            Some(Wanted::Signal(timeout)) => self.settle_signal(id, op, note.due_at, timeout),
            Some(Wanted::Child(start, child)) => self.settle_child((id, key), op, (start, child)),
            Some(Wanted::Result) if note.cancelled && !planted(Bug::GivenUpAwaited) => {
                self.settle_given_up(op);
            }
            Some(Wanted::Result) | None => {}
        }
        true
    }

    /// Fails the wait for a child that was given up before a change of the code: nobody has read or
    /// will read the child's answer.
    fn settle_given_up(&mut self, op: Op) {
        if self.is_over_length() {
            return;
        }
        let child =
            self.run.given_up.known.get(&op.index()).map(|child| format!(" {child:?}")).unwrap_or_default();
        let message = format!("child{child} was given up before this code waited for it");
        let outcome = Outcome::Failure(Failure::new(FailureKind::Cancelled, message));
        let site = self.site(&op);
        if let Ok(entry) = self.decide_from(site, Command::FinishChild { op, outcome }) {
            self.deliver_new(entry);
        }
    }

    /// Returns the operation of another kind that the journal has under this name and number.
    /// Children are named after their workflow, and exempt.
    fn other_kind(&self, id: u64, op: &Op) -> Option<Op> {
        const NAMED: [OpKind; 4] = [OpKind::Step, OpKind::Transaction, OpKind::Timer, OpKind::Signal];
        if !NAMED.contains(&op.kind) || !self.run.cursor.has_skipped() {
            return None;
        }
        let names = self.run.stage.active().map(|active| active.names(id)).unwrap_or_default();
        let kinds = || NAMED.into_iter().filter(|kind| *kind != op.kind);
        let others = names.iter().flat_map(|op| kinds().map(|kind| of_kind(op, kind)));
        others.into_iter().find(|other| self.run.cursor.is_skipped(other.index()))
    }

    /// Describes the operation in a slot, with the line that asks for it.
    fn told(&self, id: u64, op: &Op) -> String {
        self.site_of(id).map_or_else(|| op.to_string(), |site| format!("{op} (at {site})"))
    }

    fn request(&mut self, id: u64) -> Option<Wanted> {
        let mut state = self.run.stage.active()?.board.0.lock();
        let slot = state.slots.get_mut(&id)?;
        Some(match &mut slot.request {
            Request::Step(_) | Request::Transaction(_) => Wanted::Closure,
            Request::Sleep(duration) => Wanted::Timer(Due::After(*duration)),
            Request::SleepUntil(at) => Wanted::Timer(Due::At(*at)),
            Request::Signal { timeout, .. } => Wanted::Signal(*timeout),
            Request::Child { start, id, delay, deadline, .. } => {
                let execution = self.seat.execution();
                let (address, run, entry) =
                    (execution.address(), execution.run(), execution.entry_count() + 1);
                // In place: nobody else has it yet.
                let whole = Arc::make_mut(start);
                whole.parent = Some(Parent::new(address.id.clone(), run, slot.op.child_result(), entry));
                // Times that count from the child's start begin now, however long ago the code
                // asked for it. The clock is read only for those.
                whole.start_at = delay.map(|delay| self.seat.now().after(delay));
                whole.deadline_at = deadline.map(|deadline| self.seat.now().after(deadline));
                let child = id.clone().unwrap_or_else(|| child_id(&address.id, run, &slot.op));
                Wanted::Child(start.clone(), child)
            }
            Request::ChildResult { .. } => Wanted::Result,
        })
    }

    fn settle_closure(&mut self, id: u64, note: &Note) {
        let is_doubted =
            self.seat.is_suspected() && note.due_at.is_none_or(|retry_at| retry_at <= self.seat.now());
        let Some(active) = self.run.stage.active_mut() else { return };
        if is_doubted {
            active.doubt(id, note.attempt_count);
        }
        if let Some(slot) = active.board.0.lock().slots.get_mut(&id) {
            slot.attempt_count = if planted(Bug::AttemptsForgotten) { 0 } else { note.attempt_count };
            slot.first_at = note.first_at.filter(|_| !planted(Bug::FirstAttemptForgotten));
        }
        match note.due_at {
            Some(due_at) => active.timers.push(Reverse(Timer::of_retry(id, due_at))),
            None => active.startable.push_back(id),
        }
    }

    fn settle_timer(&mut self, id: u64, op: Op, recorded: Option<Timestamp>, due: Due) {
        let recorded = recorded.filter(|_| !planted(Bug::TimerSetAgain));
        let due_at = recorded.unwrap_or_else(|| match due {
            Due::After(duration) => self.seat.now().after(duration),
            Due::At(at) => at,
        });
        if recorded.is_none() {
            let site = self.site_of(id);
            if self.is_over_length() || self.decide_from(site, Command::SetTimer { op, due_at }).is_err() {
                return;
            }
        }
        let counts_from_now = recorded.is_none() && matches!(due, Due::After(_));
        let known = if counts_from_now { self.seat.last_number() } else { 0 };
        if let Some(active) = self.run.stage.active_mut() {
            active.timers.push(Reverse(Timer { due_at, id, kind: TimerKind::Due, known }));
        }
    }

    fn settle_signal(&mut self, id: u64, op: Op, recorded: Option<Timestamp>, timeout: Option<Duration>) {
        if let Some(active) = self.run.stage.active_mut() {
            active.wait_for_signal(id);
        }
        if let Some(timeout) = timeout {
            self.settle_timer(id, op, recorded, Due::After(timeout));
        }
    }

    fn settle_child(
        &mut self,
        (id, key): (u64, OpIndex),
        op: Op,
        (start, child): (Arc<abide_core::Start>, ExecutionId),
    ) {
        let site = self.site_of(id);
        if self.is_over_length() {
            return;
        }
        if let Ok(Some(entry)) = self.decide_from(site, Command::StartChild { op, child, start })
            && let Some(op) = entry.event.op()
        {
            self.deliver_to((op, key), &entry, None);
        }
    }

    /// Lets closures start once everything before them is durable.
    fn start_closures(&mut self) -> bool {
        let is_durable =
            self.seat.is_durable() || self.begins_with_transaction() || planted(Bug::EffectBeforeDurable);
        let Some(active) = self.run.stage.active_mut() else { return false };
        let is_wanted = self.seat.order() == Order::Run || planted(Bug::ClosuresWhileDraining);
        if active.startable.is_empty() || !is_durable || !is_wanted || !self.seat.engine.is_alive() {
            return false;
        }
        if self.is_over_length() {
            return true;
        }
        let Some(active) = self.run.stage.active_mut() else { return false };
        let shared = active.board.0.clone();
        let mut has_started = false;
        while let Some(id) = active.startable.pop_front() {
            let mut state = shared.lock();
            let Some(slot) = state.slots.get_mut(&id) else { continue };
            let attempt = slot.attempt_count + 1;
            slot.first_at.get_or_insert_with(|| self.seat.now());
            match &slot.request {
                // The closure has no time at all, and a closure that has not begun has no effect.
                Request::Step(options)
                    if options.timeout == Some(Duration::ZERO) && !planted(Bug::ZeroTimeoutBegins) =>
                {
                    let outcome = Outcome::Failure(timed_out(Duration::ZERO));
                    slot.state = OpState::Done { attempt, outcome };
                    shared.add_finished(&mut state, id);
                    has_started = true;
                }
                Request::Step(options) => {
                    let runtime = &self.seat.engine.runtime;
                    let ends_at = options.timeout.map(|timeout| runtime.moment().after(timeout));
                    active.timeouts.extend(ends_at.map(|at| Reverse((at, id, attempt))));
                    slot.state = OpState::Go { attempt };
                    drop(state);
                    shared.wake_slot(id);
                    has_started = true;
                }
                // A transaction waits until everything before it is durable and nothing else is on
                // its way: its entry must be the next.
                Request::Transaction(_) if self.seat.is_busy() || self.seat.has_news() => {
                    drop(state);
                    active.startable.push_front(id);
                    break;
                }
                Request::Transaction(transaction) => {
                    let (op, site, transaction) = (slot.op.clone(), slot.site, transaction.clone());
                    drop(state);
                    self.transact(op, site, transaction);
                    return true;
                }
                _ => {}
            }
        }
        has_started
    }

    /// Whether a transaction step may go with the start of the execution, which does not exist: it
    /// is the first thing that happens.
    fn begins_with_transaction(&self) -> bool {
        if !self.seat.is_unborn() || self.seat.is_busy() || self.seat.has_news() {
            return false;
        }
        let Some(active) = self.run.stage.active() else { return false };
        let first = active.startable.front();
        let state = active.board.0.lock();
        let first = first.and_then(|id| state.slots.get(id));
        first.is_some_and(|slot| matches!(slot.request, Request::Transaction(_)))
    }

    /// Sends a user's transaction to the store: its writes and its record commit together.
    fn transact(&mut self, op: Op, site: Site, transaction: UserTransaction) {
        let (before, now) = (self.seat.execution().clone(), self.seat.now());
        let (bounds, code) = (self.seat.engine.options.bounds.clone(), self.code.clone());
        let (key, mark) = (op.index(), self.mark(site));
        let Some(board) = self.run.stage.active().map(|active| active.board.clone()) else { return };
        self.run.stage.transact(key);
        let run = move |connection: &dyn std::any::Any| {
            let mut execution = before.clone();
            let (keep, outcome) = Inside::new(&board, &op).enter(|| transaction(connection));
            let (keep, outcome) = match &outcome {
                // Unlike a step's effects, these can still be undone.
                Outcome::Success(payload) => {
                    match bounds.check_payload(format_args!("the result of {op}"), payload) {
                        Ok(()) => (keep, outcome),
                        Err(large) => (false, Outcome::Failure(fatal(large.to_string()))),
                    }
                }
                _ => (keep, outcome),
            };
            let outcome = outcome.located(|| site.place(code.name(), &op, None));
            let record = StepRecord { op: op.clone(), outcome, attempt: 1, input: None };
            let command = Command::RecordStep(record).bounded(&bounds);
            let decision = execution.decide(command, now).unwrap_or_default();
            let (entry, _) = decision.record_from(mark.clone(), &mut execution, now);
            let record =
                Record::of(entry.as_ref().expect("a step may be recorded: the phase was checked before"));
            Transacted { keep, record, state: codec::encode(&execution) }
        };
        let (waiting, sites) = self.waiting();
        self.seat.set_sites(sites.filter(|_| !planted(Bug::PlacesLostByTransaction)));
        self.tell_open(Some(key));
        self.seat.transact(&waiting, Transaction(Arc::new(run)));
    }

    /// Takes the record of a transaction step.
    pub(super) fn transacted(&mut self, record: &Record) -> TurnResult {
        self.run.stage.go_live();
        match record.entry() {
            Ok(entry) => {
                self.seat.transacted(&entry);
                self.run.sites.learn(&entry);
                self.run.undelivered.push_back(entry);
                TurnResult::Progress
            }
            Err(error) => TurnResult::End(End::from(error)),
        }
    }

    /// Handles a refused commit: a transaction step on the wrong store fails, anything else is a
    /// bug in abide.
    pub(super) fn refused(&mut self, refusal: &Refusal) -> TurnResult {
        let Some((active, key)) = self.run.stage.transacting() else {
            return TurnResult::End(End::Failed(format!("a commit was refused: {refusal}")));
        };
        let op = active.slots.get(&key).and_then(|id| active.open_op(*id));
        let site = op.as_ref().and_then(|op| active.site(op));
        self.run.stage.go_live();
        if let Some(op) = op {
            let outcome = Outcome::Failure(fatal(refusal.to_string()));
            let record = StepRecord { op, outcome, attempt: 1, input: None };
            if let Ok(entry) = self.decide_from(site, Command::RecordStep(record)) {
                self.run.undelivered.extend(entry);
            }
        }
        TurnResult::Progress
    }
}

/// The way to begin an operation without a record.
enum Wanted {
    Closure,
    Timer(Due),
    Signal(Option<Duration>),
    Child(Arc<abide_core::Start>, ExecutionId),
    Result,
}

#[derive(Clone, Copy)]
enum Due {
    After(Duration),
    At(Timestamp),
}
