//! The execution state machine: which event may follow which.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::grow::growable;
use crate::planted::{Bug, planted};
use crate::text::Digits;
use crate::tree::Inherited;
use crate::{
    Address, Block, Body, By, Command, Decision, Descent, Entry, Event, Failure, FailureKind, Kind, Message,
    MessageId, Name, Parent, Patch, Payload, Refusal, Remedied, Remedy, Retry, Route, Start, Status,
    StepRecord, StepRemedy, Timestamp, text,
};

/// The state of one execution: the sum of its journal.
///
/// It is small, because a store writes it with every commit. The input and all other data of the
/// user stay in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    address: Address,
    kind: Kind,
    name: Name,
    lane: Name,
    requires: Vec<Name>,
    priority: i16,
    /// The earliest time at which its code begins. Until the first progress is recorded this is the
    /// delay of the start, later the pause of a task before its next attempt.
    start_at: Option<Timestamp>,
    deadline_at: Option<Timestamp>,
    retry: Option<Retry>,
    parent: Option<Parent>,
    run: u32,
    entry_count: u64,
    attempt_count: u32,
    /// Children that were started and have not been recorded as finished.
    pub(crate) open_child_count: u32,
    /// The last order of its parent.
    pub(crate) inherited: Option<Inherited>,
    pub(crate) phase: Phase,
    /// The builds that were blocked where it stands, the newest last.
    pub(crate) tried: Option<Vec<Name>>,
    /// The changes of the code that the run takes, and the changes that it does not take.
    pub(crate) patches: Option<Vec<Patch>>,
    /// The number of entries at the end of the journal that the code does not see.
    pub(crate) unseen_count: u32,
    /// For a task with a failed attempt: when the first attempt began.
    first_attempt_at: Option<Timestamp>,
}

growable!(Execution {
    fields: kind, name, lane, requires, priority, start_at, deadline_at, retry, parent, run, entry_count, attempt_count,
        open_child_count, inherited, phase, unseen_count;
    gained: 1 => tried, 2 => patches, 3 => first_attempt_at;
    not_written: address = nowhere();
});

/// The phase of an execution's life. The order of the variants is written to disk: new ones go
/// last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// It runs or waits.
    Running,
    /// It starts nothing new until resumed.
    Paused {
        /// The person or program that paused it.
        by: By,
        /// The reason.
        reason: String,
        /// Whether somebody paused this very execution; otherwise its parent is paused.
        is_own: bool,
    },
    /// Its code winds down.
    Cancelling {
        /// The requester.
        by: By,
        /// The reason.
        reason: String,
    },
    /// It cannot go on until something about its code or data changes.
    Blocked {
        /// The obstacle.
        reason: Box<Block>,
        /// The cancellation that was under way, by whom and why.
        cancelling: Option<(By, String)>,
        /// The pause that holds when it is no longer blocked, by whom and why.
        paused: Option<(By, String)>,
    },
    /// It ended with a result.
    Completed,
    /// It ended with an error.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// Its run ended and the next one begins.
    Continued,
    /// Its deadline has passed, and its code winds down.
    Expiring {
        /// The end of the grace period. Code that still runs then is dropped.
        until: Timestamp,
    },
}

impl Phase {
    /// Whether code runs, or would run if a worker had it.
    pub fn is_active(&self) -> bool {
        matches!(self, Self::Running | Self::Cancelling { .. } | Self::Expiring { .. })
    }
}

fn nowhere() -> Address {
    let id = crate::ExecutionId::composed("?");
    Address { namespace: crate::Namespace::default(), id }
}

impl Execution {
    /// Returns the first run of an execution that begins with `start`, and its first entry.
    pub fn start(address: Address, start: impl Into<Arc<Start>>, now: Timestamp) -> (Self, Entry) {
        Self::begin(address, 1, start.into(), now)
    }

    pub(crate) fn begin(address: Address, run: u32, start: Arc<Start>, now: Timestamp) -> (Self, Entry) {
        let mut execution = Self::before(address, run, &start);
        let entry = Entry::new(1, now, Event::Started(start));
        execution.apply(&entry);
        (execution, entry)
    }

    /// Folds a run's entries. The first must be [`Event::Started`].
    pub fn fold<'a>(
        address: Address,
        run: u32,
        entries: impl IntoIterator<Item = &'a Entry>,
    ) -> Option<Self> {
        let mut entries = entries.into_iter().peekable();
        let Event::Started(start) = &entries.peek()?.event else { return None };
        let mut execution = Self::before(address, run, start);
        entries.for_each(|entry| execution.apply(entry));
        Some(execution)
    }

    fn before(address: Address, run: u32, start: &Start) -> Self {
        let Start { kind, name, lane, requires, priority, start_at, deadline_at, retry, parent, .. } = start;
        Self {
            address,
            kind: *kind,
            name: name.clone(),
            lane: lane.clone(),
            requires: requires.clone(),
            priority: *priority,
            start_at: *start_at,
            deadline_at: *deadline_at,
            retry: retry.clone(),
            parent: parent.clone(),
            run,
            entry_count: 0,
            attempt_count: 0,
            open_child_count: 0,
            inherited: parent.as_ref().and_then(Inherited::heard_by),
            phase: Phase::Running,
            tried: None,
            patches: None,
            unseen_count: 0,
            first_attempt_at: None,
        }
    }

    /// Returns the consequences of `command` at `now`. Reads only its arguments.
    pub fn decide(&self, command: Command, now: Timestamp) -> Result<Decision, Refusal> {
        let is_terminate = matches!(command, Command::Terminate { .. });
        let mut decision = self.decide_in_phase(command, now)?;
        decision.tree = self.tree_order(&decision, is_terminate);
        Ok(decision)
    }

    fn decide_in_phase(&self, command: Command, now: Timestamp) -> Result<Decision, Refusal> {
        match &self.phase {
            Phase::Completed | Phase::Failed | Phase::Cancelled | Phase::Continued => {
                Err(Refusal::Finished { status: self.status() })
            }
            Phase::Running => self.decide_running(command, now),
            Phase::Paused { is_own, .. } => self.decide_paused(*is_own, command, now),
            Phase::Cancelling { by, reason } => self.decide_cancelling((by, reason), command, now),
            Phase::Blocked { reason, .. } => self.decide_blocked(reason, command, now),
            Phase::Expiring { .. } => self.decide_expiring(command, now),
        }
    }

    fn decide_running(&self, command: Command, now: Timestamp) -> Result<Decision, Refusal> {
        match command {
            Command::Pause { by, reason } => Ok(Event::Paused { by, reason }.into()),
            Command::Resume { .. } => Err(Refusal::NotPaused),
            Command::Inherit { .. } => self.inherit(command),
            // Neither a task nor code that was not called yet has a place to see it.
            Command::Cancel { by, reason } if self.kind == Kind::Task || self.is_delayed(now) => {
                Ok(self.cancelled(by, reason))
            }
            Command::Cancel { by, reason } => Ok(Event::CancelRequested { by, reason }.into()),
            Command::Block { reason, build } => Ok(Event::Blocked { reason, build }.into()),
            Command::Unblock { .. } => Err(Refusal::NotBlocked),
            other => self.decide_work(other, now),
        }
    }

    /// Decides during a pause. Running closures may finish and be recorded; nothing else moves.
    fn decide_paused(&self, is_own: bool, command: Command, now: Timestamp) -> Result<Decision, Refusal> {
        match command {
            Command::Pause { .. } if is_own && !self.has_tree() => Ok(Decision::default()),
            // It stays paused when its parent goes on, and its children hear of it again.
            Command::Pause { by, reason } => Ok(Event::Paused { by, reason }.into()),
            Command::Inherit { .. } => self.inherit(command),
            Command::Resume { by } => Ok(Event::Resumed { by }.into()),
            Command::Cancel { by, reason } if planted(Bug::PausedCancelUnseen) => {
                Ok(self.cancelled(by, reason))
            }
            Command::Cancel { by, reason } if self.kind == Kind::Task || self.is_delayed(now) => {
                Ok(self.cancelled(by, reason))
            }
            Command::Cancel { by, reason } => Ok(Event::CancelRequested { by, reason }.into()),
            Command::Unblock { .. } => Err(Refusal::NotBlocked),
            Command::RecordStep(_)
            | Command::RecordForeign(_)
            | Command::FailAttempt { .. }
            | Command::Terminate { .. }
            | Command::ShowDeadline { .. }
            | Command::ExpireDeadline => self.decide_work(command, now),
            // A task as a whole is one closure, which may finish.
            Command::Complete { .. } | Command::Fail(_) if self.kind == Kind::Task => {
                self.decide_work(command, now)
            }
            _ => Err(Refusal::Paused),
        }
    }

    fn decide_cancelling(
        &self,
        (by, reason): (&By, &str),
        command: Command,
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        match command {
            Command::Pause { .. } => Err(Refusal::Cancelling),
            Command::Resume { .. } => Err(Refusal::NotPaused),
            Command::Cancel { .. } | Command::Inherit { .. } => Ok(Decision::default()),
            Command::Block { reason, build } => Ok(Event::Blocked { reason, build }.into()),
            Command::Unblock { .. } => Err(Refusal::NotBlocked),
            // The workflow let the cancellation through; any other error is a failure of its
            // clean-up.
            Command::Fail(failure) if failure.kind == FailureKind::Cancelled => {
                Ok(self.cancelled(by.clone(), reason.to_owned()))
            }
            Command::ContinueAsNew { .. } => Err(Refusal::Cancelling),
            other => self.decide_work(other, now),
        }
    }

    /// Decides during a block. As during a pause, running closures may finish and be recorded;
    /// nothing else moves.
    fn decide_blocked(&self, current: &Block, command: Command, now: Timestamp) -> Result<Decision, Refusal> {
        match command {
            Command::Unblock { by, step } => self.unblock(current, by, step),
            Command::Block { reason, build } if reason == *current && self.has_tried(build.as_ref()) => {
                Ok(Decision::default())
            }
            Command::Block { reason, build } => Ok(Event::Blocked { reason, build }.into()),
            // Its code cannot run, so it cannot see the cancellation either.
            Command::Cancel { by, reason } => Ok(self.cancelled(by, reason)),
            Command::Pause { .. } | Command::Resume { .. } => self.decide_pause_of_blocked(command),
            Command::Inherit { .. } => self.inherit(command),
            Command::Terminate { .. } | Command::ExpireDeadline => self.decide_work(command, now),
            // The step that blocks it has run: only a decision about the step goes on from there.
            Command::RecordStep(StepRecord { ref op, .. }) | Command::FailAttempt { ref op, .. }
                if self.kind == Kind::Task || current.lost() == Some(op) =>
            {
                Err(Refusal::Blocked)
            }
            Command::RecordStep(_) | Command::FailAttempt { .. } | Command::RecordForeign(_) => {
                self.decide_work(command, now)
            }
            // Its code cannot run, so it cannot see the deadline either.
            Command::ShowDeadline { .. } => self.expire(now),
            _ => Err(Refusal::Blocked),
        }
    }

    /// Decides about an unblock. Somebody may have fixed the code meanwhile. But a step whose
    /// result could not be recorded has had its effect, and only a person can know whether that
    /// effect may happen again.
    fn unblock(&self, current: &Block, by: By, step: Option<StepRemedy>) -> Result<Decision, Refusal> {
        let id = &self.address.id;
        let remedied = match (current.decidable(), step) {
            (Some((op, _)), None) if current.lost().is_some() => {
                return Err(Refusal::Undecided { id: id.clone(), op: op.clone() });
            }
            (_, None) => None,
            (Some((op, declared)), Some(StepRemedy { step, remedy })) if op.is_called(&step) => {
                if declared.is_some() != (remedy == Remedy::Accept) {
                    let ways_on = text::ways_on(id, current).unwrap_or_default();
                    return Err(Refusal::NotThisWay { remedy, block: current.to_string(), ways_on });
                }
                Some(Remedied { op: op.clone(), remedy, declared: declared.map(Box::new) })
            }
            (found, Some(StepRemedy { step, .. })) => {
                return Err(Refusal::NotThisStep { step, op: found.map(|(op, _)| op.clone()) });
            }
        };
        Ok(Event::Unblocked { by, remedied }.into())
    }

    /// Decides a command in the same way for every phase that allows it.
    pub(crate) fn decide_work(&self, command: Command, now: Timestamp) -> Result<Decision, Refusal> {
        match command {
            Command::Terminate { by, reason } => Ok(self.cancelled(by, reason)),
            Command::ShowDeadline { until } => self.show_deadline(until, now),
            Command::ExpireDeadline => self.expire(now),
            Command::Complete { result, unused } => Ok(self.completed(result, unused)),
            Command::Fail(failure) => Ok(self.failed(failure)),
            Command::FailAttempt { op, attempt, failure, retry_at, first_at } => {
                Ok(Event::AttemptFailed { op, attempt, failure, retry_at, first_at }.into())
            }
            _ if self.kind == Kind::Task => Err(Refusal::NotAWorkflow),
            Command::RecordStep(record) => Ok(Event::StepRecorded(record).into()),
            Command::SetTimer { op, due_at } => Ok(Event::TimerSet { op, due_at }.into()),
            Command::FireTimer { op } => Ok(Event::TimerFired { op }.into()),
            Command::ReceiveSignal { op, message, payload } => {
                Ok(Event::SignalReceived { op, message, payload }.into())
            }
            Command::RejectSignal(rejected) => Ok(Event::SignalRejected(rejected).into()),
            Command::StartChild { op, child, start } => {
                let input = start.fingerprint();
                let message = self.message_to(child.clone(), "start", (self.as_parent(), Body::Start(start)));
                Ok(Decision::new(Event::ChildStarted { op, child, input: Box::new(input) }, Some(message)))
            }
            Command::FinishChild { op, outcome } => Ok(Event::ChildFinished { op, outcome }.into()),
            Command::CancelChild { op, child } => {
                let body = Body::Cancel { reason: "no longer wanted by its parent".to_owned() };
                let (parent, before) = (self.address.id.clone(), self.entry_count + 1);
                let descent = Descent { parent, run: self.run, before, op: Some(op.clone()) };
                let message = self.message_to(child, "cancel", (self.as_parent(), body));
                let message = Message { descent: Some(descent.into()), ..message };
                Ok(Decision::new(Event::ChildCancelled { op }, Some(message)))
            }
            Command::ContinueAsNew { input } => Ok(Event::ContinuedAsNew { input }.into()),
            Command::RecordForeign(foreign) => Ok(Event::Foreign(foreign).into()),
            Command::Pause { .. }
            | Command::Resume { .. }
            | Command::Inherit { .. }
            | Command::Cancel { .. }
            | Command::Block { .. }
            | Command::Unblock { .. } => unreachable!("every phase decides about control itself"),
        }
    }

    fn completed(&self, result: Payload, unused: Vec<crate::Op>) -> Decision {
        self.ended(Event::Completed { result, unused })
    }

    pub(crate) fn failed(&self, failure: Failure) -> Decision {
        self.ended(Event::Failed(failure))
    }

    fn cancelled(&self, by: By, reason: String) -> Decision {
        self.ended(Event::Cancelled { by, reason })
    }

    fn ended(&self, end: Event) -> Decision {
        let outgoing = self.answer(&end);
        Decision::new(end, outgoing)
    }

    /// Creates a message. Its deterministic id makes a repetition harmless; the run in the id
    /// separates the messages of later runs.
    pub(crate) fn message_to(&self, id: crate::ExecutionId, what: &str, (by, body): (By, Body)) -> Message {
        let run = Digits::of(self.run);
        let parts = [what, ":", self.address.id.as_str(), ":", run.as_str()];
        let to = Address { namespace: self.address.namespace.clone(), id };
        Message::new(text::joined(&parts, |name| MessageId::new(name)), to, by, body)
    }

    /// Returns the name under which its children know it.
    pub fn as_parent(&self) -> By {
        By(text::titled("parent", &self.address.id))
    }

    /// Folds one recorded entry. Total: every recorded entry can be applied.
    pub fn apply(&mut self, entry: &Entry) {
        self.entry_count = entry.seq;
        self.apply_patch(entry);
        let is_lifted = matches!(entry.event, Event::Resumed { .. }) && planted(Bug::ResumeStartsEarly);
        if entry.event.op().is_some() || is_lifted {
            // It has begun: a clock that is set back does not make it wait for its start again.
            self.start_at = None;
        }
        let is_blocked = matches!(self.phase, Phase::Blocked { .. });
        let is_decided = matches!(entry.event, Event::Unblocked { remedied: Some(_), .. })
            && !planted(Bug::DecisionLeavesTried);
        if entry.event.op().is_some() && (!is_blocked || is_decided) && !planted(Bug::TriedKept) {
            // A closure that still ran at the block records its result without getting past the
            // block. A decision about a step gets past it.
            self.tried = None;
        }
        match &entry.event {
            Event::AttemptFailed { op, attempt, retry_at, first_at, .. }
                if op.kind == crate::OpKind::Task =>
            {
                self.attempt_count = *attempt;
                self.first_attempt_at = Some(*first_at);
                self.start_at = Some(*retry_at);
            }
            Event::Paused { by, reason } => self.apply_paused(by, reason),
            Event::CancelRequested { by, reason } => {
                self.phase = Phase::Cancelling { by: by.clone(), reason: reason.clone() };
            }
            Event::DeadlinePassed { until } => self.phase = Phase::Expiring { until: *until },
            Event::Resumed { .. } => self.apply_resumed(),
            Event::Inherited { by, number, pause } => self.apply_inherited(by, *number, pause.as_ref()),
            Event::Blocked { reason, build } => {
                self.try_by(build.as_ref());
                let (cancelling, paused) = (self.cancellation(), self.own_pause());
                self.phase = Phase::Blocked { reason: Box::new(reason.clone()), cancelling, paused };
            }
            Event::Unblocked { .. } => {
                self.phase = match (self.cancellation(), self.own_pause()) {
                    (Some((by, reason)), _) => Phase::Cancelling { by, reason },
                    (None, Some((by, reason))) => Phase::Paused { by, reason, is_own: true },
                    (None, None) => self.unhindered(),
                };
            }
            Event::Completed { .. } => self.phase = Phase::Completed,
            Event::Failed(_) => self.phase = Phase::Failed,
            Event::Cancelled { .. } => self.phase = Phase::Cancelled,
            Event::ContinuedAsNew { .. } => self.phase = Phase::Continued,
            Event::ChildStarted { .. } => {
                self.open_child_count = self.open_child_count.saturating_add(1);
            }
            Event::ChildFinished { .. } => self.open_child_count = self.open_child_count.saturating_sub(1),
            Event::Started(_)
            | Event::StepRecorded(_)
            | Event::AttemptFailed { .. }
            | Event::TimerSet { .. }
            | Event::TimerFired { .. }
            | Event::SignalReceived { .. }
            | Event::SignalRejected(_)
            | Event::ChildCancelled { .. }
            | Event::Retried { .. }
            | Event::Foreign(_) => {}
        }
    }

    pub(crate) fn cancellation(&self) -> Option<(By, String)> {
        match &self.phase {
            Phase::Cancelling { by, reason } => Some((by.clone(), reason.clone())),
            Phase::Blocked { cancelling, .. } => cancelling.clone(),
            _ => None,
        }
    }
}

/// The visible state.
impl Execution {
    /// Returns its address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Restores its address after its state was read from a row that knows the address.
    pub fn at(mut self, address: Address) -> Self {
        self.address = address;
        self
    }

    /// Returns its phase.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Returns the number of its run, from 1.
    pub fn run(&self) -> u32 {
        self.run
    }

    /// Returns the number of entries in the run's journal.
    pub fn entry_count(&self) -> u64 {
        self.entry_count
    }

    /// Returns the number of failed attempts, for a task.
    pub fn attempt_count(&self) -> u32 {
        self.attempt_count
    }

    /// Returns when the first attempt began, for a task with a failed attempt.
    pub fn first_attempt_at(&self) -> Option<Timestamp> {
        self.first_attempt_at
    }

    /// Returns the number of children that were started and have not been recorded as finished.
    pub fn open_child_count(&self) -> u32 {
        self.open_child_count
    }

    /// Returns whether it is a workflow or a task.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the name it is registered under.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns its priority. Higher goes first within a lane.
    pub fn priority(&self) -> i16 {
        self.priority
    }

    /// Returns the policy for retries, for a task.
    pub fn retry(&self) -> Option<&Retry> {
        self.retry.as_ref()
    }

    /// Returns the parent that waits for its outcome.
    pub fn parent(&self) -> Option<&Parent> {
        self.parent.as_ref()
    }

    /// Returns the time by which it must finish. Otherwise it fails.
    pub fn deadline_at(&self) -> Option<Timestamp> {
        self.deadline_at
    }

    /// Returns the route that decides which workers may take it.
    pub fn route(&self) -> Route {
        Route {
            namespace: self.address.namespace.clone(),
            lane: self.lane.clone(),
            kind: self.kind,
            name: self.name.clone(),
            requires: self.requires.iter().cloned().collect(),
        }
    }

    /// Whether the run has ended.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Completed | Phase::Failed | Phase::Cancelled | Phase::Continued)
    }

    /// Whether its code may not begin yet: its start was delayed, or its next attempt as a task is
    /// not due.
    pub fn is_delayed(&self, now: Timestamp) -> bool {
        self.start_at.is_some_and(|start_at| start_at > now)
    }

    /// Returns the earliest time at which its code begins, or begins again.
    pub fn start_at(&self) -> Option<Timestamp> {
        self.start_at
    }

    pub(crate) fn status(&self) -> Status {
        match self.phase {
            Phase::Running | Phase::Cancelling { .. } | Phase::Expiring { .. } => Status::Running,
            Phase::Paused { .. } => Status::Paused,
            Phase::Blocked { .. } => Status::Blocked,
            Phase::Completed | Phase::Continued => Status::Completed,
            Phase::Failed => Status::Failed,
            Phase::Cancelled => Status::Cancelled,
        }
    }
}
