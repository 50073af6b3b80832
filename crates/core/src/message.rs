//! Messages that arrive from outside in an execution's inbox.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::grow::growable;
use crate::{
    Bounds, By, Command, Descent, ExecutionId, Name, Namespace, Op, Outcome, Payload, Refusal, Remedy, Start,
    StepRemedy, Timestamp, Words,
};

/// The address of an execution.
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

/// The sender's name for a message. Sending a message with the same name again changes nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(Words);

impl MessageId {
    /// Creates the id with this text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into().into())
    }

    /// Returns the id of a start from outside.
    pub const fn of_start() -> Self {
        Self(Words::fixed(&"start"))
    }

    /// Returns the id of a signal to which its sender gave a key: sending it again changes nothing.
    /// The parts are in quotes, with a backslash before each quote and backslash in them, so no two
    /// pairs share an id. Ids are on disk: `{:?}` would escape what a version of Unicode says.
    pub fn of_signal(name: &Name, key: &Name) -> Self {
        let quoted = |part: &Name| part.as_str().replace('\\', r"\\").replace('"', r#"\""#);
        Self(format!("signal \"{}\" \"{}\"", quoted(name), quoted(key)).into())
    }

    /// Returns the text of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A message and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender's name for it, unique at its target.
    pub id: MessageId,
    /// The target.
    pub to: Address,
    /// The sender.
    pub by: By,
    /// When the store took it. The sender does not know the time, and sets the default.
    pub arrived_at: Timestamp,
    /// The content.
    pub body: Body,
    /// The parent that its target must have, if it is an order from a parent.
    pub descent: Option<Box<Descent>>,
}

growable!(Message {
    fields: id, to, by, arrived_at, body;
    gained: 1 => descent;
});

impl Message {
    /// Creates a message that has not arrived yet.
    pub fn new(id: MessageId, to: Address, by: By, body: Body) -> Self {
        Self { id, to, by, arrived_at: Timestamp::default(), body, descent: None }
    }

    /// Returns the message in the form that its target receives.
    pub fn arrived(self, now: Timestamp) -> Self {
        Self { arrived_at: now, ..self }
    }

    /// Returns the command for an order, which any engine can apply; `None` for other messages.
    pub fn control(&self) -> Option<Command> {
        let by = || self.by.clone();
        Some(match &self.body {
            Body::Pause { reason } => Command::Pause { by: by(), reason: reason.clone() },
            Body::Resume => Command::Resume { by: by() },
            Body::Inherit { number, pause } => {
                Command::Inherit { by: by(), number: *number, pause: pause.clone() }
            }
            Body::Cancel { reason } => Command::Cancel { by: by(), reason: reason.clone() },
            Body::Terminate { reason } => Command::Terminate { by: by(), reason: reason.clone() },
            Body::Unblock { step } => Command::Unblock { by: by(), step: step.clone() },
            Body::Start(_) | Body::Signal { .. } | Body::ChildDone { .. } | Body::Retry => return None,
        })
    }

    /// Checks the size of the message's contents.
    pub fn check(&self, bounds: &Bounds) -> Result<(), Refusal> {
        self.check_texts(bounds)?;
        match &self.body {
            Body::Start(start) => start.check(bounds),
            Body::Signal { name, payload } => {
                Ok(bounds.check_payload(format_args!("the signal {name:?}"), payload)?)
            }
            Body::Unblock { step: Some(StepRemedy { step, remedy: Remedy::Edit(result) }) } => {
                let step = crate::text::excerpt(step, 80);
                Ok(bounds.check_payload(format_args!("the result of step {step:?}"), result)?)
            }
            _ => Ok(()),
        }
    }
}

/// The content of a message. The order of the variants is written to disk: new ones go last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Create the execution.
    Start(Arc<Start>),
    /// A value under a name, for `recv`.
    Signal {
        /// The name.
        name: Name,
        /// The value.
        payload: Payload,
    },
    /// A child has its outcome, or its start was refused.
    ChildDone {
        /// The run of the parent that waits for it: a later one has other children.
        run: u32,
        /// The parent's wait for the result.
        op: Op,
        /// The outcome.
        outcome: Outcome,
    },
    /// Start nothing new until resumed.
    Pause {
        /// The reason.
        reason: String,
    },
    /// Go on after a pause.
    Resume,
    /// The parent was paused, or goes on.
    Inherit {
        /// The number of the parent's order; see [`TreeOrder`](crate::TreeOrder).
        number: u64,
        /// The reason for the parent's pause; `None` when the parent goes on.
        pause: Option<String>,
    },
    /// Let the workflow's code wind down.
    Cancel {
        /// The reason.
        reason: String,
    },
    /// End at once, without the workflow's code.
    Terminate {
        /// The reason.
        reason: String,
    },
    /// Try again to get past the obstacle.
    Unblock {
        /// The decision about a step whose result could not be recorded, if it is blocked at one.
        step: Option<StepRemedy>,
    },
    /// Open the next run of a failed or cancelled execution.
    Retry,
}

/// The sort of a message. A store knows it without reading the contents of the message, which may
/// be large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// For the code of any run.
    Signal,
    /// For any engine to apply; see [`Message::control`].
    Order,
    /// For the code of one run.
    Answer,
    /// Never in an inbox.
    Passing,
}

impl Sort {
    /// Whether a message that a failed or cancelled run left unread is for the run that a retry
    /// opens. Orders and answers were for the run that has ended: a late cancellation of that run
    /// must not end the new one.
    pub fn outlives_failure(self) -> bool {
        self == Self::Signal
    }
}

impl Body {
    /// Returns the sort of a message with this content.
    pub fn sort(&self) -> Sort {
        match self {
            Self::Signal { .. } => Sort::Signal,
            Self::Pause { .. }
            | Self::Resume
            | Self::Inherit { .. }
            | Self::Cancel { .. }
            | Self::Terminate { .. }
            | Self::Unblock { .. } => Sort::Order,
            Self::ChildDone { .. } => Sort::Answer,
            Self::Start(_) | Self::Retry => Sort::Passing,
        }
    }

    /// Whether this is an order that any engine can apply; see [`Message::control`].
    pub fn is_control(&self) -> bool {
        self.sort() == Sort::Order
    }

    /// Returns the number of bytes that it carries for the code: a value, or an error.
    pub fn carried_bytes(&self) -> usize {
        match self {
            Self::Signal { payload, .. } | Self::ChildDone { outcome: Outcome::Success(payload), .. } => {
                payload.as_bytes().len()
            }
            Self::ChildDone { outcome: Outcome::Failure(failure), .. } => {
                let texts = failure.type_name.len() + failure.message.len();
                let causes: usize = failure.chain.iter().map(String::len).sum();
                texts + causes + failure.value.as_ref().map_or(0, |value| value.as_bytes().len())
            }
            _ => 0,
        }
    }

    /// Returns the same content without the values for the code.
    pub fn emptied(self) -> Self {
        let empty = || Payload::from(Vec::new());
        match self {
            Self::Signal { name, .. } => Self::Signal { name, payload: empty() },
            Self::ChildDone { run, op, .. } => {
                Self::ChildDone { run, op, outcome: Outcome::Success(empty()) }
            }
            other => other,
        }
    }

    /// Returns the only run that this message is for, if there is just one.
    pub fn addressed_run(&self) -> Option<u32> {
        match self {
            Self::ChildDone { run, .. } => Some(*run),
            _ => None,
        }
    }

    /// Returns the word for this message in texts that people read.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Start(_) => "start",
            Self::Signal { .. } => "signal",
            Self::ChildDone { .. } => "child-done",
            Self::Pause { .. } => "pause",
            Self::Resume => "resume",
            Self::Inherit { pause: Some(_), .. } => "pause",
            Self::Inherit { pause: None, .. } => "resume",
            Self::Cancel { .. } => "cancel",
            Self::Terminate { .. } => "terminate",
            Self::Unblock { .. } => "unblock",
            Self::Retry => "retry",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_signal_with_a_key_is_the_same_in_every_version() {
        for (name, key, expected) in [
            ("approval", "k1", r#"signal "approval" "k1""#),
            ("a b", "c", r#"signal "a b" "c""#),
            (r#"a" "b"#, "c", r#"signal "a\" \"b" "c""#),
            (r"a\", "b", r#"signal "a\\" "b""#),
            ("cafe\u{301}", "\u{e000}", "signal \"cafe\u{301}\" \"\u{e000}\""),
        ] {
            let name_of = |text: &str| Name::new(text).unwrap();
            assert_eq!(MessageId::of_signal(&name_of(name), &name_of(key)).as_str(), expected);
        }
    }
}
