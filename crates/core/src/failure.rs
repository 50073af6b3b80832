//! An error of the user's, as it survives the database.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use crate::Payload;
use crate::grow::growable;

/// Why something failed. The numbers are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// An error that the user's code returned; retried as far as the policy goes.
    Error,
    /// An error that the user's code marked as final; not retried.
    Fatal,
    /// The attempt took longer than its timeout.
    Timeout,
    /// The user's code panicked.
    Panic,
    /// The execution, or the child that was waited for, was cancelled.
    Cancelled,
    /// The execution passed its deadline.
    Deadline,
}

/// A recorded error. Only a pointer: whatever may hold one holds a success most of the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Failure(Box<Details>);

/// Of an error: its type, message and chain of causes, and the value when it was a typed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// Why.
    pub kind: FailureKind,
    /// The name of the Rust type of the error.
    pub type_name: String,
    /// Its message.
    pub message: String,
    /// The messages of its causes, outermost first.
    pub chain: Vec<String>,
    /// The serialized error value, for typed errors.
    pub value: Option<Payload>,
}

growable!(Details {
    fields: kind, type_name, message, chain, value;
    gained: ;
});

impl Failure {
    /// A failure that abide itself reports.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let type_name = "abide::Error".to_owned();
        Details { kind, type_name, message: message.into(), chain: Vec::new(), value: None }.into()
    }

    /// Whether another attempt may be made.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, FailureKind::Error | FailureKind::Timeout | FailureKind::Panic)
    }
}

impl From<Details> for Failure {
    fn from(details: Details) -> Self {
        Self(Box::new(details))
    }
}

impl Deref for Failure {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

impl DerefMut for Failure {
    fn deref_mut(&mut self) -> &mut Details {
        &mut self.0
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.chain.iter().try_for_each(|cause| write!(f, ": {cause}"))
    }
}
