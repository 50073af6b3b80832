//! The reason that a command failed, and its exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use abide::ClientError;
use abide_core::Refusal;
use abide_sqlite::OpenError;
use abide_store::Error;

/// The exit codes, which scripts rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// The reader of stdout is gone, which is not a fault.
    Quiet = 0,
    /// The operation failed, the store is damaged, or the demo did not keep its promise.
    Failed = 1,
    /// The command line is invalid.
    Usage = 2,
    /// The execution does not exist.
    Unknown = 3,
    /// The operation is not possible in the current state, or over a limit.
    Refused = 4,
    /// The store cannot be opened, is busy, or is out of reach.
    Unavailable = 5,
    /// A torture found a broken promise.
    Violated = 6,
    /// The execution whose result was requested failed or was cancelled.
    Ended = 7,
    /// The execution whose result was requested has not ended.
    Unfinished = 8,
    /// A torture was interrupted before it found anything. Ctrl-C ends any process with this code.
    Interrupted = 130,
}

/// A command that failed.
#[derive(Debug)]
pub(crate) struct CommandError {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl CommandError {
    pub(crate) fn new(code: Code, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }

    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        Self::new(Code::Failed, message)
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Code::Usage, message)
    }

    /// Converts an error of sending something to an execution. Neither a refusal nor a store names
    /// the execution on its own.
    pub(crate) fn about(id: &abide_core::ExecutionId, error: Error) -> Self {
        let unavailable = |message| Self::new(Code::Unavailable, message);
        match error {
            Error::Refused(refusal @ (Refusal::Unknown { .. } | Refusal::Conflict { .. })) => {
                Error::Refused(refusal).into()
            }
            Error::Refused(refusal) => Self::new(code_of(&refusal), format!("execution {id:?}: {refusal}")),
            Error::Busy { .. } => {
                unavailable(format!("{id:?} was told nothing: the store is kept busy by others"))
            }
            Error::Unavailable { source, .. } => {
                unavailable(format!("{id:?} was told nothing: the store is unavailable: {source}"))
            }
            Error::Unread { source, .. } => {
                unavailable(format!("{id:?} was told nothing: it cannot be read now: {source}"))
            }
            Error::Indeterminate { source, .. } => {
                unavailable(format!("it is not known whether {id:?} was told: {source}"))
            }
            error => error.into(),
        }
    }

    /// Prints the message on stderr, in one line.
    pub(crate) fn report(&self) -> ExitCode {
        if self.code != Code::Quiet {
            crate::output::say(format_args!("{}", abide_core::text::clean(&self.message)));
        }
        ExitCode::from(self.code as u8)
    }
}

fn code_of(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::Unknown { .. } => Code::Unknown,
        Refusal::InvalidName(_) => Code::Usage,
        _ => Code::Refused,
    }
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Refused(refusal) => code_of(refusal),
            Error::Busy { .. }
            | Error::Unavailable { .. }
            | Error::Unread { .. }
            | Error::Indeterminate { .. }
            | Error::Closed => Code::Unavailable,
            Error::Corrupt { .. } | Error::Newer { .. } => Code::Failed,
        };
        Self::new(code, error)
    }
}

impl From<OpenError> for CommandError {
    fn from(error: OpenError) -> Self {
        let code = match &error {
            OpenError::Exists(_) => Code::Refused,
            _ => Code::Unavailable,
        };
        Self::new(code, error)
    }
}

impl From<abide_postgres::OpenError> for CommandError {
    fn from(error: abide_postgres::OpenError) -> Self {
        let code = match &error {
            abide_postgres::OpenError::Url { .. } => Code::Usage,
            _ => Code::Unavailable,
        };
        Self::new(code, error)
    }
}

impl From<ClientError> for CommandError {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Unknown { .. } => Code::Unknown,
            ClientError::Conflict { .. } | ClientError::Refused { .. } => Code::Refused,
            ClientError::Invalid { .. } => Code::Usage,
            ClientError::NoStore { .. }
            | ClientError::Open { .. }
            | ClientError::Unavailable { .. }
            | ClientError::Indeterminate { .. } => Code::Unavailable,
            _ => Code::Failed,
        };
        Self::new(code, error)
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        let code = if error.kind() == io::ErrorKind::BrokenPipe { Code::Quiet } else { Code::Failed };
        Self::new(code, error)
    }
}

#[cfg(test)]
mod tests {
    use abide_core::{ExecutionId, Status};

    use super::*;

    #[test]
    fn exit_codes_say_what_can_be_done() {
        let id = ExecutionId::new("x").unwrap();
        let unavailable = || Error::Unavailable { what: "submit", source: "the disk is full".into() };
        let indeterminate = || Error::Indeterminate { what: "submit", source: "the disk is gone".into() };
        let rows = [
            (Error::Refused(Refusal::Unknown { id: id.clone() }), 3, r#"there is no execution "x""#),
            (
                Error::Refused(Refusal::Finished { status: Status::Failed }),
                4,
                r#"execution "x": it is failed already"#,
            ),
            (Error::Busy { what: "submit" }, 5, r#""x" was told nothing: the store is kept busy by others"#),
            (unavailable(), 5, r#""x" was told nothing: the store is unavailable: the disk is full"#),
            (indeterminate(), 5, r#"it is not known whether "x" was told: the disk is gone"#),
            (Error::Corrupt { what: "row 3".to_owned() }, 1, "the store is damaged: row 3"),
        ];
        for (error, code, message) in rows {
            let failure = CommandError::about(&id, error);
            assert_eq!((failure.code as u8, failure.message.as_str()), (code, message));
        }
    }

    #[test]
    fn a_closed_pipe_is_no_fault() {
        assert_eq!(CommandError::from(io::Error::from(io::ErrorKind::BrokenPipe)).code, Code::Quiet);
    }
}
