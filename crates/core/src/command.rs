//! Commands to an execution, and their consequences.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::grow::growable;
use crate::{
    ContentHash, Event, ExecutionId, Failure, Fingerprint, Foreign, InvalidName, Message, MessageId, Name,
    NameClash, Op, Outcome, Payload, RejectedSignal, Start, Status, StepRecord, Timestamp, TooLarge,
    TreeOrder, Words, text,
};

/// A change that the holder of the lease wants to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A step has its final outcome.
    RecordStep(StepRecord),
    /// An attempt of a step or task failed, and another one follows.
    FailAttempt {
        /// The step or task.
        op: Op,
        /// The number of the failed attempt.
        attempt: u32,
        /// The failure.
        failure: Failure,
        /// When the next attempt is due.
        retry_at: Timestamp,
        /// When the first attempt began.
        first_at: Timestamp,
    },
    /// A sleep begins, or a receipt with a timeout.
    SetTimer {
        /// The sleep or receipt.
        op: Op,
        /// When it is over.
        due_at: Timestamp,
    },
    /// A sleep is over, or a receipt timed out.
    FireTimer {
        /// The sleep or receipt.
        op: Op,
    },
    /// A signal is taken from the inbox.
    ReceiveSignal {
        /// The receipt.
        op: Op,
        /// The message that carried it.
        message: MessageId,
        /// Its value.
        payload: Payload,
    },
    /// A signal is taken from the inbox and set aside, because the code cannot read it.
    RejectSignal(Box<RejectedSignal>),
    /// A child must start.
    StartChild {
        /// The start.
        op: Op,
        /// The id of the child.
        child: ExecutionId,
        /// The start of the child.
        start: Arc<Start>,
    },
    /// A child has its outcome.
    FinishChild {
        /// The wait for the result.
        op: Op,
        /// The outcome.
        outcome: Outcome,
    },
    /// A child is no longer wanted.
    CancelChild {
        /// The wait for the result that was given up.
        op: Op,
        /// The id of the child.
        child: ExecutionId,
    },
    /// Start nothing new until resumed.
    Pause {
        /// The requester.
        by: By,
        /// The reason.
        reason: String,
    },
    /// Go on after a pause.
    Resume {
        /// The requester.
        by: By,
    },
    /// The parent was paused, or goes on.
    Inherit {
        /// The sender of the order.
        by: By,
        /// The number of the parent's order; see [`TreeOrder`].
        number: u64,
        /// The reason for the parent's pause; `None` when the parent goes on.
        pause: Option<String>,
    },
    /// Let the workflow's code wind down.
    Cancel {
        /// The requester.
        by: By,
        /// The reason.
        reason: String,
    },
    /// End at once, without the workflow's code.
    Terminate {
        /// The requester.
        by: By,
        /// The reason.
        reason: String,
    },
    /// The deadline has passed: let the code see it, and wind down.
    ShowDeadline {
        /// The end of the grace period. Code that still runs then is dropped.
        until: Timestamp,
    },
    /// The deadline has passed, and either no code can see it or the grace period is over.
    ExpireDeadline,
    /// The execution cannot go on with this code or data.
    Block {
        /// The obstacle.
        reason: Block,
        /// The build that found it.
        build: Option<Name>,
    },
    /// Try again to get past the obstacle.
    Unblock {
        /// The requester.
        by: By,
        /// The decision about a step whose result could not be recorded, if it is blocked at one.
        step: Option<StepRemedy>,
    },
    /// The workflow or task returned a result.
    Complete {
        /// The result.
        result: Payload,
        /// Recorded operations that the code never asked for.
        unused: Vec<Op>,
    },
    /// The workflow or task returned an error.
    Fail(Failure),
    /// The workflow wants a next run with an empty journal.
    ContinueAsNew {
        /// The input of the next run.
        input: Payload,
    },
    /// An event that only the driver understands.
    RecordForeign(Foreign),
}

/// A step to decide about, and the decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRemedy {
    /// The step, as people write it; see [`Op::is_called`].
    pub step: String,
    /// The decision.
    pub remedy: Remedy,
}

/// The decision about an operation that blocks the execution: a step that has run but whose result
/// could not be recorded, or an operation that was recorded with another input. The order of the
/// variants is written to disk: new ones go last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Remedy {
    /// It runs once more, and its new result is recorded.
    Rerun,
    /// It does not run again: this is its result.
    Edit(Payload),
    /// The recorded outcome is accepted, although the code now has another input for the operation.
    Accept,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rerun => f.write_str("to run again"),
            Self::Edit(result) => write!(f, "with the result {}", result.excerpt()),
            Self::Accept => f.write_str("with the outcome that was recorded"),
        }
    }
}

/// The consequences of a command: an event to append and messages to send, in one commit. There is
/// none of either if the command changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The event to append.
    pub event: Option<Event>,
    /// The message to send with the same commit.
    pub outgoing: Option<Message>,
    /// The order for the open children of the run.
    pub tree: Option<TreeOrder>,
}

/// The author of an order or message: a user, a program, a parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct By(pub Words);

impl By {
    /// Returns the name for programs that use the library and set no other name.
    pub fn client() -> Self {
        Self(Words::fixed(&"client"))
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The obstacle that keeps an execution from going on. The order of the variants is written to
/// disk: new ones go last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Block {
    /// The code does not match the journal.
    Mismatch {
        /// The operation in the journal.
        expected: String,
        /// The operation that the code asks for.
        found: String,
    },
    /// Recorded data cannot be read as the type that the code wants.
    Undecodable {
        /// The owner of the data.
        what: String,
        /// The type that the code wants.
        expected: String,
        /// The recorded data, or its beginning, and the complaint.
        found: String,
    },
    /// A step ran, but its result could not be recorded.
    Unrecordable {
        /// The step.
        op: Op,
        /// The limit or the serializer's complaint.
        reason: String,
    },
    /// The workflow awaits a future that is not an operation of its `ctx`.
    ForeignAwait {
        /// The workflow.
        workflow: String,
        /// The operation that it asked for last, as in `after step "pay" (at src/shop.rs:41)`, if
        /// it asked for any.
        last: Option<String>,
    },
    /// One name is used for two kinds of operation.
    NameClash {
        /// The names and kinds.
        clash: NameClash,
        /// Where the code asks for the second operation.
        site: String,
    },
    /// The code used a durable operation in a place where it cannot work: inside a step, or on a
    /// task of the runtime.
    Misplaced {
        /// The operation.
        op: String,
        /// The place.
        place: String,
    },
    /// A limit of the journal or of a payload was reached.
    Limit {
        /// The value that is too large, and its limit.
        reason: String,
    },
    /// The execution kills its worker.
    Poison {
        /// The number and times of the deaths, and its last known activity, if there is one.
        reason: String,
    },
    /// The code asks for an operation with another input than it was recorded with.
    OtherInput(Box<OtherInput>),
}

/// An operation that the code asks for with another input than it was recorded with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherInput {
    /// The operation.
    pub op: Op,
    /// The input that it was recorded with.
    pub recorded: Fingerprint,
    /// The input that the code has for it.
    pub declared: Fingerprint,
    /// Where the code asked for it when it was recorded, if that is known.
    pub recorded_site: Option<String>,
    /// Where the code asks for it now.
    pub site: Option<String>,
}

growable!(OtherInput {
    fields: op, recorded, declared;
    gained: 1 => recorded_site, 2 => site;
});

impl Block {
    /// Returns the step whose result could not be recorded, if that is the obstacle.
    pub fn lost(&self) -> Option<&Op> {
        match self {
            Self::Unrecordable { op, .. } => Some(op),
            _ => None,
        }
    }

    /// Returns the operation that somebody may decide about, and the input that the code has for it
    /// if that input is the obstacle.
    pub(crate) fn decidable(&self) -> Option<(&Op, Option<ContentHash>)> {
        match self {
            Self::Unrecordable { op, .. } => Some((op, None)),
            Self::OtherInput(other) => Some((&other.op, Some(other.declared.hash))),
            _ => None,
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch { expected, found } => {
                write!(f, "the code no longer matches its journal: expected {expected}, found {found}")
            }
            Self::Undecodable { what, expected, found } => {
                write!(f, "{what} cannot be read: expected {expected}, found {found}")
            }
            Self::Unrecordable { op, reason } => {
                write!(f, "{op} has run, but its result could not be recorded: {reason}")
            }
            Self::ForeignAwait { workflow, last } => {
                write!(f, "workflow {workflow:?} awaits something that is not a ctx operation")?;
                last.iter().try_for_each(|last| write!(f, ", {last}"))?;
                f.write_str("; put it into a step, or use ctx.sleep for time")
            }
            Self::NameClash { clash, site } => write!(f, "{clash} (at {site})"),
            Self::Misplaced { op, place } => write!(f, "{op} is used {place}, where nothing can be recorded"),
            Self::Limit { reason } | Self::Poison { reason } => f.write_str(reason),
            Self::OtherInput(other) => {
                let OtherInput { op, recorded, declared, .. } = other.as_ref();
                write!(f, "the code no longer matches its journal: {op} was recorded with input {recorded}")?;
                write!(f, ", the code has {declared}")?;
                match (&other.recorded_site, &other.site) {
                    (Some(recorded), Some(now)) => write!(f, " (recorded at {recorded}, now at {now})"),
                    (_, site) => f.write_str(&text::at(site.as_deref())),
                }
            }
        }
    }
}

/// The reason why a request was refused. A refusal changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The run has ended.
    Finished {
        /// The final status.
        status: Status,
    },
    /// It has not ended, so it cannot be retried.
    NotEnded,
    /// It was damaged and discarded, so it cannot be retried.
    Discarded,
    /// The message is for a run that is not the current one.
    OtherRun {
        /// The current run.
        current: u32,
    },
    /// It is paused.
    Paused,
    /// It is not paused.
    NotPaused,
    /// It is being cancelled.
    Cancelling,
    /// Its deadline has passed, and its code winds down.
    Expiring,
    /// It is blocked.
    Blocked,
    /// It is blocked, and no live build of the program can go on with it.
    GivenUp {
        /// The obstacle.
        reason: String,
    },
    /// It is not blocked.
    NotBlocked,
    /// Somebody has already unblocked it, and the order is still unread.
    UnblockUnread,
    /// It has no deadline, or the deadline has not passed.
    NotDue,
    /// A task has no journal for this.
    NotAWorkflow,
    /// It is an order for children of another execution, or for older ones.
    NotAChild {
        /// The parent of the children that the order is for.
        of: ExecutionId,
    },
    /// Another execution has the id.
    Conflict {
        /// The id.
        id: ExecutionId,
        /// The value of the existing execution.
        existing: String,
        /// The requested value.
        requested: String,
    },
    /// There is no such execution.
    Unknown {
        /// The id.
        id: ExecutionId,
    },
    /// The execution is blocked at a step whose result could not be recorded, and somebody has to
    /// decide about that step.
    Undecided {
        /// The execution.
        id: ExecutionId,
        /// The step.
        op: Op,
    },
    /// It is not blocked at this step, so nobody can decide about the step.
    NotThisStep {
        /// The step that was named.
        step: String,
        /// The step that it is blocked at, if it is blocked at one.
        op: Option<Op>,
    },
    /// It is blocked at this operation, but the obstacle does not allow this decision.
    NotThisWay {
        /// The decision.
        remedy: Remedy,
        /// The obstacle.
        block: String,
        /// The possible decisions.
        ways_on: String,
    },
    /// The parts of the request contradict each other.
    Unsound {
        /// The execution.
        id: ExecutionId,
        /// The fault.
        what: String,
    },
    /// A value is over its limit.
    TooLarge(TooLarge),
    /// A name is not valid.
    InvalidName(InvalidName),
    /// The store does not support the request.
    Unsupported {
        /// The request, and a way to achieve it.
        what: String,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished { status } => write!(f, "it is {status} already"),
            Self::Discarded => f.write_str("it was damaged, and was discarded"),
            Self::NotEnded => {
                f.write_str("it has not ended; only what has failed or was cancelled can be retried")
            }
            Self::OtherRun { current } => {
                write!(f, "the run that it is for is over, run {current} is current")
            }
            Self::Paused => f.write_str("it is paused"),
            Self::NotPaused => f.write_str("it is not paused"),
            Self::Cancelling => f.write_str("it is being cancelled"),
            Self::Expiring => f.write_str("its deadline has passed"),
            Self::Blocked => f.write_str("it is blocked"),
            Self::GivenUp { reason } => write!(f, "it is blocked: {reason}"),
            Self::NotBlocked => f.write_str("it is not blocked"),
            Self::UnblockUnread => f.write_str("it was unblocked already, which nobody has read yet"),
            Self::NotDue => f.write_str("its deadline has not passed"),
            Self::NotAWorkflow => f.write_str("it is a task, which has no journal of its own"),
            Self::NotAChild { of } => write!(f, "it is none of the children of {of:?} that were meant"),
            Self::Conflict { id, existing, requested } => {
                write!(f, "{id:?} exists as {existing}, the request is for {requested}")
            }
            Self::Unknown { id } => write!(f, "there is no execution {id:?}"),
            Self::Undecided { id, op } => {
                let ways_on = text::ways_on_without_result(id, op);
                write!(f, "{op} has run, but its result could not be recorded; to go on: {ways_on}")
            }
            Self::NotThisStep { step, op } => {
                let step = text::excerpt(step, 80);
                write!(f, "it is not blocked at a step {step:?}, and a recorded result never changes")?;
                op.iter().try_for_each(|op| write!(f, "; it is blocked at {op}"))
            }
            Self::NotThisWay { remedy, block, ways_on } => {
                write!(f, "it cannot go on {remedy}: {block}; to go on: {ways_on}")
            }
            Self::Unsound { id, what } => write!(f, "{id:?} cannot be taken: {what}"),
            Self::TooLarge(large) => large.fmt(f),
            Self::InvalidName(invalid) => invalid.fmt(f),
            Self::Unsupported { what } => f.write_str(what),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<TooLarge> for Refusal {
    fn from(large: TooLarge) -> Self {
        Self::TooLarge(large)
    }
}

impl From<InvalidName> for Refusal {
    fn from(invalid: InvalidName) -> Self {
        Self::InvalidName(invalid)
    }
}
