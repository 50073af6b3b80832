//! Errors of the seam, grouped by what the caller can do about them.

use std::error::Error as StdError;
use std::fmt;

use abide_core::Refusal;

/// The result of every operation of a store.
pub type Result<T> = std::result::Result<T, Error>;

type Source = Box<dyn StdError + Send + Sync>;

/// The reason why a store did not carry out an operation.
#[derive(Debug)]
pub enum Error {
    /// The request makes no sense in the current state; asking again will not help. Nothing was
    /// changed.
    Refused(Refusal),
    /// Others kept the store occupied for longer than `busy_ms_max`. Nothing was changed; try again
    /// later.
    Busy {
        /// The operation.
        what: &'static str,
    },
    /// The database cannot be used now: the disk is full, the file is read-only, the connection is
    /// gone. Nothing was changed; try again when the cause is gone.
    Unavailable {
        /// The operation.
        what: &'static str,
        /// The database's complaint.
        source: Source,
    },
    /// The database works, but the requested rows cannot be read now: SQLite finds a page
    /// malformed, or the disk did not return it. That says nothing about the written data. Other
    /// rows may be readable. Nothing was changed; try again later.
    Unread {
        /// The operation.
        what: &'static str,
        /// The database's complaint.
        source: Source,
    },
    /// The operation may have happened. Ask again with the same ids: a repetition changes nothing.
    Indeterminate {
        /// The operation.
        what: &'static str,
        /// The database's complaint.
        source: Source,
    },
    /// The database contains data that no version of this program writes.
    Corrupt {
        /// The row, and the fault in it.
        what: String,
    },
    /// A newer version of abide wrote the requested data: a program of that version can read it.
    Newer {
        /// The part that this program does not know.
        what: String,
    },
    /// The store was closed.
    Closed,
}

impl Error {
    /// Whether asking again later can help.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Busy { .. } | Self::Unavailable { .. } | Self::Unread { .. } | Self::Indeterminate { .. }
        )
    }

    /// Whether the error concerns only the requested rows, not the store: another execution may be
    /// readable.
    pub fn is_of_one(&self) -> bool {
        matches!(self, Self::Unread { .. } | Self::Corrupt { .. } | Self::Newer { .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Busy { what } => write!(f, "{what}: the store is kept busy by others"),
            Self::Unavailable { what, source } => write!(f, "{what}: the store is unavailable: {source}"),
            Self::Unread { what, source } => write!(f, "{what}: it cannot be read now: {source}"),
            Self::Indeterminate { what, source } => write!(f, "{what}: the outcome is unknown: {source}"),
            Self::Corrupt { what } => write!(f, "the store is damaged: {what}"),
            Self::Newer { what } => f.write_str(what),
            Self::Closed => f.write_str("the store is closed"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Unavailable { source, .. }
            | Self::Unread { source, .. }
            | Self::Indeterminate { source, .. } => Some(source.as_ref()),
            Self::Busy { .. } | Self::Corrupt { .. } | Self::Newer { .. } | Self::Closed => None,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
