//! A user's error, in the form that the database keeps.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use crate::Payload;
use crate::grow::growable;
use crate::planted::{Bug, planted};

/// The kind of a failure. The numbers are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// An error that the user's code returned; retried as far as the policy allows.
    Error,
    /// An error that the user's code marked as final; not retried.
    Fatal,
    /// The attempt took longer than its timeout.
    Timeout,
    /// The user's code panicked.
    Panic,
    /// The execution, or the awaited child, was cancelled.
    Cancelled,
    /// The execution passed its deadline.
    Deadline,
}

impl FailureKind {
    /// Returns the word for this kind in messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Fatal => "fatal",
            Self::Timeout => "timeout",
            Self::Panic => "panic",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
        }
    }
}

/// A recorded error. Only a pointer: most values that may hold one hold a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Failure(Box<Details>);

/// The type of an error, its message and chain of causes, and the value of a typed error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The name of the Rust type of the error.
    pub type_name: String,
    /// Its message.
    pub message: String,
    /// The messages of its causes, outermost first.
    pub chain: Vec<String>,
    /// The serialized error value, for typed errors.
    pub value: Option<Payload>,
    /// The place of the failure, if known.
    pub at: Option<Origin>,
}

/// The place of a failure: the innermost one that abide knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The workflow or task, as in `workflow "checkout"`. Empty as long as only the line is known
    /// (see [`Failure::arising_at`]).
    pub code: String,
    /// The operation, as in `step "charge"`, if the failure was in one.
    pub op: Option<String>,
    /// The number of the attempt, from 1, if attempts are counted there.
    pub attempt: Option<u32>,
    /// The place where the code asked for the operation, such as `src/shop.rs:41`. The place where
    /// the error arose, if it was in no operation; the place of the panic, if it was one. Only
    /// people read it.
    pub site: Option<String>,
}

growable!(Origin {
    fields: code, op, attempt, site;
    gained: ;
});

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(op) = &self.op {
            write!(f, "{op} of ")?;
        }
        f.write_str(&self.code)?;
        self.attempt.iter().try_for_each(|attempt| write!(f, ", attempt {attempt}"))?;
        self.site.iter().try_for_each(|site| write!(f, ", at {site}"))
    }
}

growable!(Details {
    fields: kind, type_name, message, chain, value;
    gained: 1 => at;
});

impl Failure {
    /// Creates a failure that abide itself reports.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let type_name = "abide::Error".to_owned();
        Details { kind, type_name, message: message.into(), chain: Vec::new(), value: None, at: None }.into()
    }

    /// Returns the same failure with the line that it arose in, until its whole place is known. A
    /// place that is known stays.
    pub fn arising_at(mut self, site: impl FnOnce() -> String) -> Self {
        self.at.get_or_insert_with(|| {
            let (code, site) = (String::new(), Some(site()));
            Origin { code, op: None, attempt: None, site }
        });
        self
    }

    /// Returns the same failure. Without a place it gets this one: the innermost place counts. A
    /// panic keeps its own line; any other failure in an operation gets the line of the call.
    pub fn located(mut self, place: impl FnOnce() -> Origin) -> Self {
        if self.at.as_ref().is_some_and(|at| !at.code.is_empty()) || planted(Bug::PlaceUntold) {
            return self;
        }
        let own = self.at.take().and_then(|at| at.site);
        let mut place = place();
        place.site = match self.kind {
            FailureKind::Panic => own.or(place.site),
            _ => place.site.or(own),
        };
        self.at = Some(place);
        self
    }

    /// Whether another attempt may follow.
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
        self.chain.iter().try_for_each(|cause| write!(f, ": {cause}"))?;
        // Only in the full form, `{:#}`: code compares the message alone.
        let place = self.at.as_ref().filter(|_| f.alternate());
        place.map_or(Ok(()), |at| write!(f, " ({at})"))
    }
}
