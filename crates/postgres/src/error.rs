//! The errors of opening a store, and the meaning of PostgreSQL's complaints to a caller.

use std::fmt;

use abide_core::Refusal;
use abide_core::codec::DecodeError;
use abide_store::Error;
use tokio_postgres::error::{Severity, SqlState};

/// The reason why a store could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL says something that this program does not understand.
    Url {
        /// The part, and the fault in it.
        what: String,
    },
    /// TLS cannot be set up as the URL says.
    Tls {
        /// The part, and the fault in it.
        what: String,
    },
    /// The server cannot be reached, or refuses the connection.
    Unreachable {
        /// Its complaint.
        source: tokio_postgres::Error,
    },
    /// The server is too old.
    OldServer {
        /// Its version, as PostgreSQL counts.
        found: i32,
        /// The oldest version that is known to work.
        least: i32,
    },
    /// The database has another encoding than UTF-8.
    Encoding {
        /// Its encoding.
        found: String,
    },
    /// The schema does not exist, and it may not be created.
    MissingSchema {
        /// Its name.
        schema: String,
    },
    /// A newer version of abide has written the schema.
    NewerSchema {
        /// Its name.
        schema: String,
        /// Its version.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// The schema cannot be created or read.
    Unusable {
        /// Its name.
        schema: String,
        /// The complaint.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The process cannot start the thread of the store.
    Thread(std::io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { what } => write!(f, "the URL of the store is wrong: {what}"),
            Self::Tls { what } => write!(f, "TLS cannot be set up: {what}"),
            Self::Unreachable { source } => {
                write!(f, "the PostgreSQL server cannot be used: {}", words(source))
            }
            Self::OldServer { found, least } => {
                let (found, least) = (version(*found), version(*least));
                write!(f, "the PostgreSQL server has version {found}, abide needs {least} or later")
            }
            Self::Encoding { found } => write!(f, "the database has the encoding {found}, abide needs UTF8"),
            Self::MissingSchema { schema } => write!(f, "there is no schema {schema:?}"),
            Self::NewerSchema { schema, found, known } => write!(
                f,
                "a newer version of abide has written schema {schema:?}: it has version {found}, \
                 this program knows versions up to {known}"
            ),
            Self::Unusable { schema, source } => write!(f, "schema {schema:?} cannot be used: {source}"),
            Self::Thread(source) => write!(f, "the thread of the store cannot be started: {source}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreachable { source } => Some(source),
            Self::Unusable { source, .. } => Some(source.as_ref()),
            Self::Thread(source) => Some(source),
            _ => None,
        }
    }
}

/// Returns a version as people write it. PostgreSQL counted otherwise before 10.
fn version(number: i32) -> String {
    match (number / 10_000, number % 10_000) {
        (major, 0) => major.to_string(),
        (major, minor) if major >= 10 => format!("{major}.{minor}"),
        (major, rest) => format!("{major}.{}.{}", rest / 100, rest % 100),
    }
}

/// Returns the server's own words, or those of everybody on the way to it.
fn words(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| chain(error), |complaint| complaint.message().to_owned())
}

/// Returns an error with all its causes: PostgreSQL's own words are the last of them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// An error of the client of PostgreSQL that says the server's own words.
#[derive(Debug)]
pub(crate) struct Said(pub(crate) tokio_postgres::Error);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&words(&self.0))
    }
}

impl std::error::Error for Said {}

/// The reason why an operation ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// This is the answer.
    Told(Error),
    /// Others were faster: the facts have to be read again.
    Raced,
    /// It has to be done alone, step by step, in a transaction of its own.
    Alone,
    /// The database's complaint.
    Database(tokio_postgres::Error),
}

/// Whether an operation changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reads,
    Writes,
}

impl Stop {
    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Told(Error::Corrupt { what: what.into() })
    }

    pub(crate) fn undecodable(what: impl fmt::Display, error: &DecodeError) -> Self {
        let what = format!("{what}: {error}");
        Self::Told(if error.is_newer() { Error::Newer { what } } else { Error::Corrupt { what } })
    }

    /// Whether it says that the requested rows cannot be understood.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Self::Told(Error::Corrupt { .. } | Error::Newer { .. }))
    }

    /// Whether trying again at once may help. Nothing was written.
    pub(crate) fn is_race(&self) -> bool {
        match self {
            Self::Raced | Self::Alone => true,
            Self::Told(_) => false,
            Self::Database(error) => error.code().is_some_and(is_race),
        }
    }

    /// Returns the answer to the caller of an operation.
    pub(crate) fn told(self, what: &'static str, kind: Kind) -> Error {
        let source = match self {
            Self::Told(error) => return error,
            Self::Raced | Self::Alone => return Error::Busy { what },
            Self::Database(source) => source,
        };
        let Some(complaint) = source.as_db_error() else {
            // The connection is gone. Whether the server got the request is unknown.
            return match kind {
                Kind::Reads => Error::Unavailable { what, source: Said(source).into() },
                Kind::Writes => Error::Indeterminate { what, source: Said(source).into() },
            };
        };
        let code = complaint.code();
        if is_race(code) {
            return Error::Busy { what };
        }
        if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED {
            return Error::Unread { what, source: Said(source).into() };
        }
        // A backend that is told to end may say so after it has committed. Any other error means
        // that the statement was rolled back.
        let is_sure = complaint.parsed_severity() == Some(Severity::Error);
        match kind {
            Kind::Writes if !is_sure => Error::Indeterminate { what, source: Said(source).into() },
            _ => Error::Unavailable { what, source: Said(source).into() },
        }
    }
}

/// Whether a complaint says that others did something at the same time. A division by zero is how
/// our own statements say so; see `sql::APPLY`.
fn is_race(code: &SqlState) -> bool {
    [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::UNIQUE_VIOLATION,
        SqlState::DIVISION_BY_ZERO,
        SqlState::LOCK_NOT_AVAILABLE,
    ]
    .contains(code)
}

impl From<tokio_postgres::Error> for Stop {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Told(refusal.into())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Told(error)
    }
}
