//! The one error type of user code.

use std::error::Error as StdError;
use std::fmt;

use abide_core::{Details, Failure, FailureKind, Origin};
use abide_engine::{Interrupt, Site};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::data;

/// The result of everything in workflows, steps and tasks.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn StdError + Send + Sync>;

/// An error in user code. `?` makes one of any [`std::error::Error`], of an `anyhow::Error`, a
/// `Box<dyn Error + Send + Sync>`, a `String` and a `&str`: of every type that converts into such a
/// box.
///
/// ```
/// # use abide::prelude::*;
/// fn amount(text: &str) -> Result<u32> {
///     let amount = text.parse()?;
///     if amount == 0 {
///         Err("nothing to pay")?;
///     }
///     Ok(amount)
/// }
/// assert_eq!(amount("0").unwrap_err().message(), "nothing to pay");
/// ```
///
/// The database keeps the type's name, the message, the chain of causes, and the value of a
/// [typed](Error::typed) error. By default a failed step is retried as far as its policy allows;
/// [`Error::fatal`] ends that.
///
/// Inside of another error it keeps its kind and its value if that error returns it as its
/// [`source`](std::error::Error::source). `impl std::error::Error for Refused {}` returns none: a
/// cancellation in a `Refused` is then a plain error.
///
/// It is not a `std::error::Error` itself, because each of those converts into it. It dereferences
/// to one, and [`Error::into_std`] turns it into one.
pub struct Error(Plain);

impl Error {
    /// Returns an error with this message, to be retried if the policy allows.
    #[track_caller]
    pub fn new(message: impl fmt::Display) -> Self {
        Self::arising(Failure::new(FailureKind::Error, message.to_string()))
    }

    /// Returns an error with this message that no retry can mend.
    #[track_caller]
    pub fn fatal(message: impl fmt::Display) -> Self {
        Self::arising(Failure::new(FailureKind::Fatal, message.to_string()))
    }

    /// Returns an error that keeps `value` for [`Error::get`] and
    /// [`ClientError::get`](crate::ClientError::get).
    #[track_caller]
    pub fn typed<E: Serialize>(value: E) -> Self {
        let type_name = std::any::type_name::<E>().to_owned();
        // Without its parameters, which have paths of their own.
        let path = type_name.split('<').next().unwrap_or_default();
        let short = path.rsplit("::").next().unwrap_or_default().to_owned();
        let (message, value) = match data::encode(&value) {
            Ok(payload) => (format!("{short} {}", payload.excerpt()), Some(payload)),
            Err(error) => (format!("{short} (which does not serialize: {error})"), None),
        };
        let (kind, chain) = (FailureKind::Error, Vec::new());
        Self::arising(Details { kind, type_name, message, chain, value, at: None }.into())
    }

    /// Returns the same error, not to be retried.
    pub fn into_fatal(mut self) -> Self {
        self.0.0.0.kind = FailureKind::Fatal;
        self
    }

    /// Returns the same error as a [`std::error::Error`], for code that needs one:
    /// `anyhow::Error::from(error.into_std())`, or `result.map_err(Error::into_std)?` in a function
    /// that returns `Box<dyn Error + Send + Sync>`. Converted back by `?`, it is the original
    /// error, also in a chain of others.
    pub fn into_std(self) -> impl StdError + Send + Sync + 'static {
        self.0
    }

    /// Returns the value of a [typed](Error::typed) error, if it is an `E`.
    pub fn get<E: DeserializeOwned>(&self) -> Option<E> {
        value_of(self.failure())
    }

    /// Returns the kind of the failure: an error, a timeout, a panic, a cancellation …
    pub fn kind(&self) -> FailureKind {
        self.failure().kind
    }

    /// Whether the execution, or the awaited child, is being cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.kind() == FailureKind::Cancelled
    }

    /// Whether the deadline of the execution, or of the awaited child, has passed.
    pub fn is_deadline(&self) -> bool {
        self.kind() == FailureKind::Deadline
    }

    /// Whether something took too long.
    pub fn is_timeout(&self) -> bool {
        self.kind() == FailureKind::Timeout
    }

    /// Returns the message, without its causes.
    pub fn message(&self) -> &str {
        &self.failure().message
    }

    /// Returns the messages of its causes, outermost first.
    pub fn chain(&self) -> impl Iterator<Item = &str> {
        self.failure().chain.iter().map(String::as_str)
    }

    /// Returns the name of the original Rust type.
    pub fn type_name(&self) -> &str {
        &self.failure().type_name
    }

    /// Returns the place of the failure: the workflow or task, the operation, the attempt, and the
    /// file and line of the call. An error that a workflow or task returns of its own has the line
    /// that it arose in, and a panic has its own line. `None` before the error came out of an
    /// operation. `{:#}` and `{:?}` show it behind the message.
    pub fn origin(&self) -> Option<&Origin> {
        self.failure().at.as_ref()
    }

    pub(crate) fn from_failure(failure: Failure) -> Self {
        Self(Plain(Note(failure, None)))
    }

    /// Returns an error of the caller's caller.
    #[track_caller]
    fn arising(failure: Failure) -> Self {
        Self::from_failure(failure).arising_at(Site::caller())
    }

    /// Returns an error of abide's own that no retry can mend: a line in abide helps nobody.
    pub(crate) fn refusal(message: impl fmt::Display) -> Self {
        Self::from_failure(Failure::new(FailureKind::Fatal, message.to_string()))
    }

    /// Returns the same error with the line that it arose in.
    pub(crate) fn arising_at(mut self, site: Site) -> Self {
        self.0.0.1 = Some(site);
        self
    }

    /// Returns the same error with its place, unless it has one.
    pub(crate) fn located(self, place: impl FnOnce() -> Origin) -> Self {
        Self::from_failure(self.into_failure().located(place))
    }

    /// Returns the recorded form. It knows the line that the error arose in.
    pub(crate) fn into_failure(self) -> Failure {
        let Note(failure, site) = self.0.0;
        match site {
            Some(site) => failure.arising_at(|| site.to_string()),
            None => failure,
        }
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.0.0.0
    }

    fn of_kind(mut self, kind: FailureKind) -> Self {
        self.0.0.0.kind = kind;
        self
    }

    /// Returns the error that operations return to code that has to wind down.
    pub(crate) fn interrupted(interrupt: Interrupt) -> Self {
        let (kind, message) = match interrupt {
            Interrupt::Cancel => (FailureKind::Cancelled, "the execution is being cancelled"),
            Interrupt::Deadline => (FailureKind::Deadline, "the deadline of the execution has passed"),
            Interrupt::Gone => (FailureKind::Fatal, "the execution has ended or left memory"),
        };
        Self::from_failure(Failure::new(kind, message))
    }

    /// Converts an error and its causes. If one of them was an [`Error`] before, the result has the
    /// same kind and value, and includes the messages of the errors around it.
    #[track_caller]
    fn of(error: &(dyn StdError + 'static), type_name: &str) -> Self {
        let mut texts = Vec::new();
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some((known, site)) = known(error) {
                return Self(Plain(Note(around(texts, known.clone()), site)));
            }
            texts.push(error.to_string());
            next = error.source();
        }
        let chain = texts.split_off(1);
        let (kind, message) = (FailureKind::Error, texts.pop().unwrap_or_default());
        let type_name = type_name.to_owned();
        Self::arising(Details { kind, type_name, message, chain, value: None, at: None }.into())
    }
}

/// Returns the record of an error that was an [`Error`] before, and the line that it arose in: one
/// that was only wrapped on its way, or that came from another execution.
fn known<'a>(error: &'a (dyn StdError + 'static)) -> Option<(&'a Failure, Option<Site>)> {
    if let Some(Plain(Note(failure, site))) = error.downcast_ref() {
        return Some((failure, *site));
    }
    if let Some(Note(failure, site)) = error.downcast_ref() {
        return Some((failure, *site));
    }
    match error.downcast_ref() {
        Some(crate::ClientError::Failed { error, .. }) => Some((error.failure(), None)),
        _ => None,
    }
}

/// Wraps a failure in errors with these messages, the outermost first.
fn around(mut texts: Vec<String>, mut failure: Failure) -> Failure {
    // A wrapper that hides the error itself repeats its message, and its note follows as the
    // source.
    texts.pop_if(|text| *text == failure.message);
    if texts.is_empty() {
        return failure;
    }
    let inner = std::mem::take(&mut failure.message);
    texts.push(inner);
    texts.append(&mut failure.chain);
    failure.chain = texts.split_off(1);
    failure.message = texts.pop().unwrap_or_default();
    failure
}

/// Returns the typed value of a failure.
pub(crate) fn value_of<E: DeserializeOwned>(failure: &Failure) -> Option<E> {
    failure.value.as_ref().and_then(|value| data::decode(value).ok())
}

/// Coherent with `From<T> for T`: only this crate could make an [`Error`] convert into a `Source`,
/// and it does not.
impl<E: Into<Source>> From<E> for Error {
    #[track_caller]
    fn from(error: E) -> Self {
        let source: Source = error.into();
        Self::of(source.as_ref(), std::any::type_name::<E>())
    }
}

impl From<Error> for Box<dyn StdError> {
    fn from(error: Error) -> Self {
        Box::new(error.0)
    }
}

impl std::ops::Deref for Error {
    type Target = dyn StdError + Send + Sync + 'static;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure().fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.failure())?;
        if self.kind() == FailureKind::Error { Ok(()) } else { write!(f, " ({:?})", self.kind()) }
    }
}

impl Clone for Error {
    fn clone(&self) -> Self {
        let Note(failure, site) = &self.0.0;
        Self(Plain(Note(failure.clone(), *site)))
    }
}

/// An [`Error`] as a [`std::error::Error`].
#[derive(Debug)]
struct Plain(Note);

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.0.message)
    }
}

impl StdError for Plain {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.has_words().then_some(&self.0 as _)
    }
}

/// The part of an error behind its message: its causes and its kind. It is a source of its own,
/// because some wrappers hide their inner error and show only its sources. Beside it, the line that
/// the error arose in, until its place is known.
#[derive(Debug)]
struct Note(Failure, Option<Site>);

impl Note {
    fn has_words(&self) -> bool {
        let Self(failure, _) = self;
        let is_plain = failure.kind == FailureKind::Error && failure.value.is_none();
        !is_plain || !failure.chain.is_empty() || failure.at.is_some()
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(failure, _) = self;
        f.write_str(&failure.chain.join(": "))?;
        let kind = match (failure.kind, &failure.value) {
            (FailureKind::Error, None) => None,
            (FailureKind::Error, Some(_)) => Some(failure.type_name.clone()),
            (kind, _) => Some(kind.word().to_owned()),
        };
        let place = failure.at.as_ref().map(Origin::to_string);
        let told: Vec<String> = kind.into_iter().chain(place).collect();
        if told.is_empty() {
            return Ok(());
        }
        let space = if failure.chain.is_empty() { "" } else { " " };
        write!(f, "{space}({})", told.join("; "))
    }
}

impl StdError for Note {}

/// Declares for any error whether another attempt makes sense.
///
/// Both methods overwrite the [kind](Error::kind) of the error and keep everything else. A timeout
/// is no [timeout](Error::is_timeout) afterwards, and a workflow that returns a cancellation so
/// marked fails. So they are for the errors of your own calls, not for those of `ctx`.
pub trait ResultExt<T> {
    /// Makes the error final, whatever its kind was: no retry.
    #[track_caller]
    fn or_fatal(self) -> Result<T>;

    /// Makes the error transient, whatever its kind was: retried as far as the policy allows.
    #[track_caller]
    fn or_retry(self) -> Result<T>;
}

impl<T, E: Into<Error>> ResultExt<T> for std::result::Result<T, E> {
    #[track_caller]
    fn or_fatal(self) -> Result<T> {
        match self {
            Ok(value) => Ok(value),
            // Not in a closure: its line would be this one.
            Err(error) => Err(error.into().of_kind(FailureKind::Fatal)),
        }
    }

    #[track_caller]
    fn or_retry(self) -> Result<T> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(error.into().of_kind(FailureKind::Error)),
        }
    }
}
