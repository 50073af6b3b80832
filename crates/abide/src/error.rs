//! The one error type of user code.

use std::error::Error as StdError;
use std::fmt;

use abide_core::{Details, Failure, FailureKind};
use abide_engine::Interrupt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::data;

/// The result of everything in workflows, steps and tasks.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn StdError + Send + Sync>;

/// An error in user code: anything that is a [`std::error::Error`] becomes one by `?`.
///
/// What is recorded of it survives the database: the type's name, the message, the chain of causes, and the value of a
/// [typed](Error::typed) one. By default it is retried as far as the step's policy goes; [`Error::fatal`] ends that.
pub struct Error(Failure);

impl Error {
    /// An error with this message, to be retried if the policy allows.
    pub fn new(message: impl fmt::Display) -> Self {
        Self::from_failure(Failure::new(FailureKind::Error, message.to_string()))
    }

    /// An error with this message that no retry can mend.
    pub fn fatal(message: impl fmt::Display) -> Self {
        Self::from_failure(Failure::new(FailureKind::Fatal, message.to_string()))
    }

    /// An error that keeps `value`, which [`Error::get`] and [`ClientError::get`](crate::ClientError::get) give back.
    pub fn typed<E: Serialize>(value: E) -> Self {
        let type_name = std::any::type_name::<E>().to_owned();
        let short = type_name.rsplit("::").next().unwrap_or_default().to_owned();
        let (message, value) = match data::encode(&value) {
            Ok(payload) => (format!("{short} {}", payload.excerpt()), Some(payload)),
            Err(error) => (format!("{short} (which does not serialize: {error})"), None),
        };
        let (kind, chain) = (FailureKind::Error, Vec::new());
        Self::from_failure(Details { kind, type_name, message, chain, value }.into())
    }

    /// The same error, not to be retried.
    pub fn into_fatal(mut self) -> Self {
        self.0.kind = FailureKind::Fatal;
        self
    }

    /// The value of a [typed](Error::typed) error, if it is an `E`.
    pub fn get<E: DeserializeOwned>(&self) -> Option<E> {
        value_of(&self.0)
    }

    /// Why: an error, a timeout, a panic, a cancellation …
    pub fn kind(&self) -> FailureKind {
        self.0.kind
    }

    /// Whether the execution, or the child that was waited for, is being cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.kind == FailureKind::Cancelled
    }

    /// Whether the deadline has passed: that of the execution, or of the child that was waited for.
    pub fn is_deadline(&self) -> bool {
        self.0.kind == FailureKind::Deadline
    }

    /// Whether something took too long.
    pub fn is_timeout(&self) -> bool {
        self.0.kind == FailureKind::Timeout
    }

    /// The message, without its causes.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The messages of its causes, outermost first.
    pub fn chain(&self) -> impl Iterator<Item = &str> {
        self.0.chain.iter().map(String::as_str)
    }

    /// The name of the Rust type that it was.
    pub fn type_name(&self) -> &str {
        &self.0.type_name
    }

    pub(crate) fn from_failure(failure: Failure) -> Self {
        Self(failure)
    }

    pub(crate) fn into_failure(self) -> Failure {
        self.0
    }

    /// What an operation gives to code that is to wind down.
    pub(crate) fn interrupted(interrupt: Interrupt) -> Self {
        let (kind, message) = match interrupt {
            Interrupt::Cancel => (FailureKind::Cancelled, "the execution is being cancelled"),
            Interrupt::Deadline => (FailureKind::Deadline, "the deadline of the execution has passed"),
            Interrupt::Gone => (FailureKind::Fatal, "the execution has ended or left memory"),
        };
        Self::from_failure(Failure::new(kind, message))
    }

    fn of(error: &(dyn StdError + 'static), type_name: &str, kind: FailureKind) -> Self {
        let mut chain = Vec::new();
        let mut cause = error.source();
        while let Some(source) = cause {
            chain.push(source.to_string());
            cause = source.source();
        }
        let (type_name, message) = (type_name.to_owned(), error.to_string());
        Self::from_failure(Details { kind, type_name, message, chain, value: None }.into())
    }
}

/// The typed value of a failure.
pub(crate) fn value_of<E: DeserializeOwned>(failure: &Failure) -> Option<E> {
    failure.value.as_ref().and_then(|value| data::decode(value).ok())
}

impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        let any: &dyn std::any::Any = &error;
        // What came out of another execution, or was only wrapped on its way, keeps what it was.
        if let Some(wrapped) = any.downcast_ref::<Wrapped>() {
            return Self::from_failure(wrapped.0.clone());
        }
        if let Some(crate::ClientError::Failed { error, .. }) = any.downcast_ref::<crate::ClientError>() {
            return Self::from_failure(error.0.clone());
        }
        Self::of(&error, std::any::type_name::<E>(), FailureKind::Error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        if self.0.kind == FailureKind::Error { Ok(()) } else { write!(f, " ({:?})", self.0.kind) }
    }
}

impl Clone for Error {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// An [`Error`] as a [`std::error::Error`], which it cannot be itself: every such error converts into it.
#[derive(Debug)]
struct Wrapped(Failure);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Wrapped {}

impl From<Error> for Source {
    fn from(error: Error) -> Self {
        Box::new(Wrapped(error.0))
    }
}

/// Says of any error whether another attempt makes sense.
pub trait ResultExt<T> {
    /// The error is final: no retry.
    fn or_fatal(self) -> Result<T>;

    /// The error is passing: retry as far as the policy goes.
    fn or_retry(self) -> Result<T>;
}

impl<T, E: Into<Source>> ResultExt<T> for std::result::Result<T, E> {
    fn or_fatal(self) -> Result<T> {
        self.map_err(|error| marked::<E>(error.into(), FailureKind::Fatal))
    }

    fn or_retry(self) -> Result<T> {
        self.map_err(|error| marked::<E>(error.into(), FailureKind::Error))
    }
}

fn marked<E>(source: Source, kind: FailureKind) -> Error {
    match source.downcast::<Wrapped>() {
        Ok(wrapped) => {
            let mut failure = wrapped.0;
            failure.kind = kind;
            Error::from_failure(failure)
        }
        Err(source) => Error::of(source.as_ref(), std::any::type_name::<E>(), kind),
    }
}
