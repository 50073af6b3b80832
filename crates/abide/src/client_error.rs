//! Errors of calls from outside of workflows, grouped by the caller's remedy.

use std::fmt;

use abide_core::{InvalidName, Refusal};
use serde::de::DeserializeOwned;

use crate::Error;

/// An error of a call from outside. Its variants say what the caller can do.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The execution failed with this error. Another call returns the same.
    Failed {
        /// The id of the execution.
        id: String,
        /// Its error.
        error: Error,
    },
    /// The execution was cancelled. Another call returns the same.
    Cancelled {
        /// The id of the execution.
        id: String,
        /// The author and the reason of the cancellation.
        reason: String,
    },
    /// The execution is blocked, and every live build of the program that serves it has tried. Wait
    /// again after a fixed deploy, or after somebody has unblocked it.
    Blocked {
        /// The id of the execution.
        id: String,
        /// The obstacle.
        reason: String,
    },
    /// No execution has this id.
    Unknown {
        /// The id.
        id: String,
    },
    /// No workflow or task of this name is registered here, or by a worker of the store.
    UnknownCode {
        /// The name.
        name: String,
    },
    /// The id is taken by another workflow or another input.
    Conflict {
        /// Both sides.
        message: String,
    },
    /// The execution's state does not allow the request: it has ended, is not paused, has reached a
    /// limit …
    Refused {
        /// The id of the execution.
        id: String,
        /// Why.
        message: String,
    },
    /// An argument is not valid: a name, an id, a tag, an option.
    Invalid {
        /// The argument and the reason.
        message: String,
    },
    /// A value does not serialize, or a result is not of the requested type.
    Data {
        /// The value and the reason.
        message: String,
    },
    /// The store does not exist, and a client creates none. A worker does, or `abide restore`.
    NoStore {
        /// The URL of the store.
        url: String,
    },
    /// The store cannot be opened.
    Open {
        /// The URL of the store.
        url: String,
        /// Why.
        message: String,
    },
    /// The store is busy or out of reach, or cannot read the requested data now. Nothing was
    /// changed; try again later.
    Unavailable {
        /// The store's complaint.
        source: abide_store::Error,
    },
    /// The request may have been carried out. Send it again with the same id: a repetition changes
    /// nothing.
    Indeterminate {
        /// The store's complaint.
        source: abide_store::Error,
    },
    /// The store contains data that this program cannot read: it is damaged (see `abide verify`),
    /// or a newer version of abide wrote it.
    Corrupt {
        /// The store's complaint.
        source: abide_store::Error,
    },
    /// `shutdown` was called.
    Closed,
}

impl ClientError {
    /// Returns the value of a failed execution's [typed](Error::typed) error, if it is an `E`.
    pub fn get<E: DeserializeOwned>(&self) -> Option<E> {
        match self {
            Self::Failed { error, .. } => error.get(),
            _ => None,
        }
    }

    /// Whether the same call can succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Indeterminate { .. })
    }

    pub(crate) fn of(id: &str, error: abide_store::Error) -> Self {
        match error {
            abide_store::Error::Refused(refusal) => Self::refused(id, refusal),
            abide_store::Error::Busy { .. }
            | abide_store::Error::Unavailable { .. }
            | abide_store::Error::Unread { .. } => Self::Unavailable { source: error },
            abide_store::Error::Indeterminate { .. } => Self::Indeterminate { source: error },
            abide_store::Error::Corrupt { .. } | abide_store::Error::Newer { .. } => {
                Self::Corrupt { source: error }
            }
            abide_store::Error::Closed => Self::Closed,
        }
    }

    fn refused(id: &str, refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unknown { id } => Self::Unknown { id: id.to_string() },
            Refusal::Conflict { .. } => Self::Conflict { message: refusal.to_string() },
            Refusal::InvalidName(invalid) => invalid.into(),
            Refusal::GivenUp { reason } => Self::Blocked { id: id.to_owned(), reason },
            other => Self::Refused { id: id.to_owned(), message: other.to_string() },
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { id, error } => write!(f, "execution {id:?} failed: {error:#}"),
            Self::Cancelled { id, reason } => write!(f, "execution {id:?} was cancelled {reason}"),
            Self::Blocked { id, reason } => write!(f, "execution {id:?} is blocked: {reason}"),
            Self::Unknown { id } => write!(f, "there is no execution {id:?}"),
            Self::UnknownCode { name } => {
                write!(f, "no workflow or task {name:?} is registered here or by a worker")
            }
            Self::Conflict { message } => write!(f, "execution {message}"),
            Self::Refused { id, message } => write!(f, "execution {id:?}: {message}"),
            Self::Invalid { message } | Self::Data { message } => f.write_str(message),
            Self::NoStore { url } => write!(f, "there is no store {url:?}: a client creates none"),
            Self::Open { url, message } => write!(f, "the store {url:?} cannot be opened: {message}"),
            Self::Unavailable { source } | Self::Indeterminate { source } | Self::Corrupt { source } => {
                source.fmt(f)
            }
            Self::Closed => f.write_str("abide was shut down"),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // This error prints the source's text itself: as its source, the text would appear
            // twice in a printed chain.
            Self::Unavailable { source } | Self::Indeterminate { source } | Self::Corrupt { source } => {
                std::error::Error::source(source)
            }
            _ => None,
        }
    }
}

impl From<InvalidName> for ClientError {
    fn from(invalid: InvalidName) -> Self {
        Self::Invalid { message: invalid.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints the whole chain, as many programs do.
    #[test]
    fn nothing_in_a_chain_is_said_twice() {
        let error = ClientError::of("x", abide_store::Error::Corrupt { what: "row 3".to_owned() });
        let mut said = vec![error.to_string()];
        let mut next = std::error::Error::source(&error);
        while let Some(source) = next {
            said.push(source.to_string());
            next = source.source();
        }
        assert_eq!(said, ["the store is damaged: row 3"]);
    }
}
