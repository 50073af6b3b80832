//! The entries of a journal.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::grow::growable;
use crate::{
    Block, By, ContentHash, ExecutionId, Failure, Fingerprint, MessageId, Name, Op, OpKind, Payload, Remedy,
    SiteMark, Start, Timestamp,
};

/// One numbered entry of a run's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the run, from 1.
    pub seq: u64,
    /// When it was decided.
    pub at: Timestamp,
    /// The event.
    pub event: Event,
    /// Where the code asked for its operation, if that is known.
    pub site: Option<SiteMark>,
}

growable!(Entry {
    fields: seq, at, event;
    gained: 1 => site;
});

impl Entry {
    /// Returns an entry that comes from no place in the code.
    pub fn new(seq: u64, at: Timestamp, event: Event) -> Self {
        Self { seq, at, event, site: None }
    }
}

/// An event in a journal. The order of the variants is written to disk: new ones go last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The run began.
    Started(Arc<Start>),
    /// A step or transaction has its final outcome.
    StepRecorded(StepRecord),
    /// An attempt of a step or of a whole task failed, and another one follows.
    AttemptFailed {
        /// The step or task.
        op: Op,
        /// The number of the failed attempt, from 1.
        attempt: u32,
        /// The failure.
        failure: Failure,
        /// When the next attempt is due.
        retry_at: Timestamp,
        /// When the first attempt began.
        first_at: Timestamp,
    },
    /// A sleep began, or a receipt with a timeout.
    TimerSet {
        /// The sleep or receipt.
        op: Op,
        /// When it is over.
        due_at: Timestamp,
    },
    /// A sleep is over, or a receipt timed out.
    TimerFired {
        /// The sleep or receipt.
        op: Op,
    },
    /// A signal was taken from the inbox.
    SignalReceived {
        /// The receipt.
        op: Op,
        /// The message that carried it.
        message: MessageId,
        /// Its value.
        payload: Payload,
    },
    /// A child was started.
    ChildStarted {
        /// The start.
        op: Op,
        /// The id of the child.
        child: ExecutionId,
        /// The input of the child.
        input: Box<Fingerprint>,
    },
    /// A child that the workflow waited for has its outcome, or could not be started.
    ChildFinished {
        /// The wait for the result.
        op: Op,
        /// Its outcome.
        outcome: Outcome,
    },
    /// The workflow no longer wants a child, and has asked it to stop.
    ChildCancelled {
        /// The wait for the result that was given up.
        op: Op,
    },
    /// Somebody paused the execution.
    Paused {
        /// The author of the order.
        by: By,
        /// The reason.
        reason: String,
    },
    /// Somebody let a paused execution go on.
    Resumed {
        /// The author of the order.
        by: By,
    },
    /// Somebody asked for cancellation; the workflow's code sees it.
    CancelRequested {
        /// The author of the order.
        by: By,
        /// The reason.
        reason: String,
    },
    /// The execution cannot go on until something about its code or data changes.
    Blocked {
        /// The obstacle.
        reason: Block,
        /// The build that found it.
        build: Option<Name>,
    },
    /// The obstacle is believed gone.
    Unblocked {
        /// The author of the order.
        by: By,
        /// The decision about the step whose result could not be recorded, if that was the
        /// obstacle.
        remedied: Option<Remedied>,
    },
    /// The run ended with a result.
    Completed {
        /// The result.
        result: Payload,
        /// Recorded operations that the finishing code never asked for; a bounded excerpt.
        unused: Vec<Op>,
    },
    /// The run ended with an error.
    Failed(Failure),
    /// The run was cancelled.
    Cancelled {
        /// The requester.
        by: By,
        /// The reason.
        reason: String,
    },
    /// The run ended and the next run began with this input.
    ContinuedAsNew {
        /// The input of the next run.
        input: Payload,
    },
    /// The run before this one failed or was cancelled, and somebody retried it.
    Retried {
        /// The author of the order.
        by: By,
    },
    /// An event that only the driver of this execution understands.
    Foreign(Foreign),
    /// Its parent was paused, or goes on.
    Inherited {
        /// The reason for the parent's pause; `None` when the parent goes on.
        pause: Option<String>,
        /// The parent.
        by: By,
        /// The number of the parent's order.
        number: u64,
    },
    /// The deadline has passed; the code sees it.
    DeadlinePassed {
        /// The end of the grace period. Code that still runs then is dropped.
        until: Timestamp,
    },
    /// A signal was taken from the inbox and set aside, because the waiting code could not read it.
    /// The wait goes on.
    SignalRejected(Box<RejectedSignal>),
}

/// A signal that the code could not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedSignal {
    /// The receipt, which goes on.
    pub op: Op,
    /// The message that carried it.
    pub message: MessageId,
    /// The sender.
    pub by: By,
    /// When it arrived.
    pub arrived_at: Timestamp,
    /// Its value.
    pub payload: Payload,
    /// The type that the code waited for.
    pub expected: String,
    /// The error of the attempt to read it.
    pub complaint: String,
}

growable!(RejectedSignal {
    fields: op, message, by, arrived_at, payload, expected, complaint;
    gained: ;
});

impl fmt::Display for RejectedSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { payload, expected, complaint, .. } = self;
        write!(f, "expected {expected}, found {} ({complaint})", payload.excerpt())
    }
}

/// A decision about an operation that the execution was blocked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedied {
    /// The operation.
    pub op: Op,
    /// The decision.
    pub remedy: Remedy,
    /// The input that the code declared, if the decision accepts a record with another input.
    pub declared: Option<Box<ContentHash>>,
}

/// An entry of a driver's own kind. A program that does not know the driver can still number, show,
/// copy and fold it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// The driver's word for the event, which `show` prints.
    pub kind: Name,
    /// The operation that it belongs to, if any.
    pub op: Option<Op>,
    /// The event, as the driver writes it.
    pub payload: Payload,
}

impl Event {
    /// Returns the word for this event in journals that people read.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Started(_) => "started",
            Self::StepRecorded(_) => "step-recorded",
            Self::AttemptFailed { .. } => "attempt-failed",
            Self::TimerSet { .. } => "timer-set",
            Self::TimerFired { .. } => "timer-fired",
            Self::SignalReceived { .. } => "signal-received",
            Self::SignalRejected(_) => "signal-rejected",
            Self::ChildStarted { .. } => "child-started",
            Self::ChildFinished { .. } => "child-finished",
            Self::ChildCancelled { .. } => "child-cancelled",
            Self::Paused { .. } => "paused",
            Self::Resumed { .. } => "resumed",
            Self::Inherited { pause: Some(_), .. } => "paused",
            Self::Inherited { pause: None, .. } => "resumed",
            Self::CancelRequested { .. } => "cancel-requested",
            Self::Blocked { .. } => "blocked",
            Self::Unblocked { .. } => "unblocked",
            Self::Completed { .. } => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled { .. } => "cancelled",
            Self::ContinuedAsNew { .. } => "continued-as-new",
            Self::Retried { .. } => "retried",
            Self::Foreign(_) => "foreign",
            Self::DeadlinePassed { .. } => "deadline-passed",
        }
    }

    /// Returns the operation that this event belongs to, if any.
    pub fn op(&self) -> Option<&Op> {
        match self {
            Self::StepRecorded(StepRecord { op, .. })
            | Self::AttemptFailed { op, .. }
            | Self::TimerSet { op, .. }
            | Self::TimerFired { op }
            | Self::SignalReceived { op, .. }
            | Self::ChildStarted { op, .. }
            | Self::ChildFinished { op, .. }
            | Self::ChildCancelled { op }
            | Self::Unblocked { remedied: Some(Remedied { op, .. }), .. } => Some(op),
            Self::SignalRejected(rejected) => Some(&rejected.op),
            Self::Foreign(foreign) => foreign.op.as_ref(),
            _ => None,
        }
    }

    /// Whether this event closes its operation and is delivered to the workflow's code. A result
    /// that could not be recorded is not delivered: its operation stays open until somebody has
    /// decided about it.
    pub fn is_delivery(&self) -> bool {
        match self {
            Self::StepRecorded(record) => !matches!(record.outcome, Outcome::Unrecordable(_)),
            Self::Unblocked { remedied: Some(Remedied { remedy, .. }), .. } => {
                matches!(remedy, Remedy::Edit(_))
            }
            Self::TimerFired { .. }
            | Self::SignalReceived { .. }
            | Self::ChildStarted { .. }
            | Self::ChildFinished { .. } => true,
            _ => false,
        }
    }

    /// Whether this event ends its run.
    pub fn is_terminal(&self) -> bool {
        matches!(
            self,
            Self::Completed { .. } | Self::Failed(_) | Self::Cancelled { .. } | Self::ContinuedAsNew { .. }
        )
    }
}

/// The final outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// The step.
    pub op: Op,
    /// Its outcome.
    pub outcome: Outcome,
    /// The number of the attempt that had this outcome, from 1.
    pub attempt: u32,
    /// The input that the code declared for the step, if any.
    pub input: Option<Box<Fingerprint>>,
}

growable!(StepRecord {
    fields: op, outcome, attempt, input;
    gained: ;
});

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// With a result.
    Success(Payload),
    /// With an error.
    Failure(Failure),
    /// The step ran, but its result could not be recorded. Only an operator's decision lets the run
    /// go on.
    Unrecordable(Unrecordable),
}

/// The reason why a result could not be recorded although the effect has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unrecordable {
    /// One sentence that names the limit or the serializer's complaint.
    pub reason: String,
}

impl Outcome {
    /// Returns the same outcome. A failure without a place gets this one.
    pub fn located(self, place: impl FnOnce() -> crate::Origin) -> Self {
        match self {
            Self::Failure(failure) => Self::Failure(failure.located(place)),
            other => other,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success(payload) => f.write_str(&payload.excerpt()),
            Self::Failure(failure) => write!(f, "error: {failure}"),
            Self::Unrecordable(Unrecordable { reason }) => write!(f, "not recordable: {reason}"),
        }
    }
}

impl Event {
    /// Returns the recorded input, if it is compared with the input that the code declares.
    pub fn input(&self) -> Option<&Fingerprint> {
        match self {
            Self::StepRecorded(StepRecord { input, op, .. }) if op.kind != OpKind::Task => input.as_deref(),
            Self::ChildStarted { input, .. } => Some(input),
            _ => None,
        }
    }
}
