//! What arrives from outside at an execution's inbox.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    By, Command, ExecutionId, Limits, Name, Namespace, Op, Outcome, Payload, Refusal, Remedy, Start,
};

/// Where an execution lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Address {
    /// Its tenant.
    pub namespace: Namespace,
    /// Its id there.
    pub id: ExecutionId,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.id)
    }
}

/// The sender's name for a message. Sending the same one again changes nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(Arc<str>);

impl MessageId {
    /// The id with this text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The text of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A message and where it goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The sender's name for it, unique at its target.
    pub id: MessageId,
    /// Where it goes.
    pub to: Address,
    /// What it says.
    pub body: Body,
}

/// What a message says. The order of the variants is written to disk: new ones go last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Begin to exist.
    Start(Arc<Start>),
    /// A value under a name, for `recv`.
    Signal {
        /// The name.
        name: Name,
        /// The value.
        payload: Payload,
    },
    /// A child of its parent's first run has its outcome, or its start was refused. As it was written before there were further runs.
    ChildDone {
        /// The parent's wait for the result.
        op: Op,
        /// The outcome.
        outcome: Outcome,
    },
    /// Start nothing new until resumed.
    Pause {
        /// Who asks.
        by: By,
        /// Why.
        reason: String,
    },
    /// Go on after a pause.
    Resume {
        /// Who asks.
        by: By,
    },
    /// Let the workflow's code wind down.
    Cancel {
        /// Who asks.
        by: By,
        /// Why.
        reason: String,
    },
    /// End at once, without the workflow's code.
    Terminate {
        /// Who asks.
        by: By,
        /// Why.
        reason: String,
    },
    /// Try again what was blocked.
    Unblock {
        /// Who asks.
        by: By,
    },
    /// Go on after a step whose result could not be recorded.
    UnblockStep {
        /// Who decides.
        by: By,
        /// The step, as people write it; see [`Op::is_called`].
        step: String,
        /// What becomes of it.
        remedy: Remedy,
    },
    /// A child has its outcome, or its start was refused.
    ChildEnded {
        /// The run of the parent that waits for it: a later one has other children.
        run: u32,
        /// The parent's wait for the result.
        op: Op,
        /// The outcome.
        outcome: Outcome,
    },
    /// Open the next run of what failed or was cancelled.
    Retry {
        /// Who asks.
        by: By,
    },
}

impl Body {
    /// The command that this message stands for, when it is control: what any engine can apply.
    pub fn control(&self) -> Option<Command> {
        Some(match self.clone() {
            Self::Pause { by, reason } => Command::Pause { by, reason },
            Self::Resume { by } => Command::Resume { by },
            Self::Cancel { by, reason } => Command::Cancel { by, reason },
            Self::Terminate { by, reason } => Command::Terminate { by, reason },
            Self::Unblock { by } => Command::Unblock { by },
            Self::UnblockStep { by, step, remedy } => Command::UnblockStep { by, step, remedy },
            Self::Start(_)
            | Self::Signal { .. }
            | Self::ChildDone { .. }
            | Self::ChildEnded { .. }
            | Self::Retry { .. } => return None,
        })
    }

    /// The only run that this message is for, if it is for one.
    pub fn addressed_run(&self) -> Option<u32> {
        match self {
            Self::ChildDone { .. } => Some(1),
            Self::ChildEnded { run, .. } => Some(*run),
            _ => None,
        }
    }

    /// Whether a message that a failed or cancelled run left unread is for the run that a retry opens. Orders and answers were for the
    /// run that has ended: a late cancellation of that one must not end the new one.
    pub fn outlives_failure(&self) -> bool {
        matches!(self, Self::Signal { .. })
    }

    /// Checks the size of what this message carries.
    pub fn check(&self, limits: &Limits) -> Result<(), Refusal> {
        self.check_texts(limits)?;
        match self {
            Self::Start(start) => start.check(limits),
            Self::Signal { name, payload } => {
                Ok(limits.check_payload(format_args!("the signal {name:?}"), payload)?)
            }
            Self::UnblockStep { step, remedy: Remedy::Edit(result), .. } => {
                let step = crate::text::excerpt(step, 80);
                Ok(limits.check_payload(format_args!("the result of step {step:?}"), result)?)
            }
            _ => Ok(()),
        }
    }

    /// The word for this message in texts that people read.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Start(_) => "start",
            Self::Signal { .. } => "signal",
            Self::ChildDone { .. } | Self::ChildEnded { .. } => "child-done",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
            Self::Cancel { .. } => "cancel",
            Self::Terminate { .. } => "terminate",
            Self::Unblock { .. } | Self::UnblockStep { .. } => "unblock",
            Self::Retry { .. } => "retry",
        }
    }
}
