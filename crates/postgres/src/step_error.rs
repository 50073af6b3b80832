//! What went wrong with a statement of a transaction step.

use std::fmt;

use tokio_postgres::error::SqlState;

/// The reason why a statement of a transaction step was not carried out.
#[derive(Debug)]
pub struct StepError(Problem);

#[derive(Debug)]
enum Problem {
    /// It was not sent.
    Refused(String),
    /// The server, or the connection to it, has failed.
    Database(tokio_postgres::Error),
}

impl StepError {
    pub(crate) fn refused(what: impl Into<String>) -> Self {
        Self(Problem::Refused(what.into()))
    }

    /// Returns what a person should read of an error: the server's own words, if there are any.
    pub(crate) fn text_of(error: &tokio_postgres::Error) -> String {
        error.as_db_error().map_or_else(|| error.to_string(), |complaint| complaint.message().to_owned())
    }

    /// Returns the error of the client of PostgreSQL, if the statement was sent.
    pub fn database(&self) -> Option<&tokio_postgres::Error> {
        match &self.0 {
            Problem::Refused(_) => None,
            Problem::Database(error) => Some(error),
        }
    }

    /// Returns the code of the server's complaint: `SqlState::UNIQUE_VIOLATION` and the like.
    pub fn code(&self) -> Option<&SqlState> {
        self.database()?.code()
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Problem::Refused(what) => f.write_str(what),
            Problem::Database(error) => f.write_str(&Self::text_of(error)),
        }
    }
}

impl std::error::Error for StepError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Problem::Refused(_) => None,
            // The server's complaint is shown above.
            Problem::Database(error) if error.as_db_error().is_some() => None,
            Problem::Database(error) => error.source(),
        }
    }
}

impl From<tokio_postgres::Error> for StepError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self(Problem::Database(error))
    }
}
