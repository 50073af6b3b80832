//! Events of executions for the logs of the application. They are logged when they are durable: a
//! mere decision may turn out otherwise.
//!
//! Levels: `debug` for normal progress, of which there is much; `info` for events that somebody
//! asked for; `warn` for events that somebody should know of.

use abide_core::planted::{Bug, planted};
use abide_core::{Address, Event, Failure, Outcome, text};
use tracing::Level;

/// An event that is worth a line.
pub(crate) enum News {
    ChildStarted { child: String },
    AttemptFailed { op: String, attempt: u32, error: String, at: Option<String>, will_retry: bool },
    Blocked { reason: String },
    Completed,
    Continued,
    Failed { error: String, at: Option<String> },
    Cancelled { by: String },
}

impl News {
    /// Returns the line for an event; nothing if no subscriber listens at its level.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        match event {
            event if planted(Bug::EndUnlogged) && event.is_terminal() => None,
            Event::AttemptFailed { .. } if planted(Bug::AttemptUnlogged) => None,
            Event::Blocked { .. } if planted(Bug::BlockUnlogged) => None,
            Event::ChildStarted { child, .. } if tracing::enabled!(Level::DEBUG) => {
                Some(Self::ChildStarted { child: child.to_string() })
            }
            Event::Completed { .. } if tracing::enabled!(Level::DEBUG) => Some(Self::Completed),
            Event::ContinuedAsNew { .. } if tracing::enabled!(Level::DEBUG) => Some(Self::Continued),
            Event::Cancelled { by, reason } if tracing::enabled!(Level::INFO) => {
                Some(Self::Cancelled { by: text::clean(&text::by_whom(by, reason)).into_owned() })
            }
            Event::AttemptFailed { op, attempt, failure, .. } if tracing::enabled!(Level::WARN) => {
                let (op, error, at) = (op.to_string(), said(failure), site_of(failure));
                Some(Self::AttemptFailed { op, attempt: *attempt, error, at, will_retry: true })
            }
            Event::StepRecorded(record) if tracing::enabled!(Level::WARN) => match &record.outcome {
                Outcome::Failure(failure) => {
                    let (op, attempt, error) = (record.op.to_string(), record.attempt, said(failure));
                    let at = site_of(failure);
                    Some(Self::AttemptFailed { op, attempt, error, at, will_retry: false })
                }
                Outcome::Success(_) | Outcome::Unrecordable(_) => None,
            },
            Event::Blocked { reason, .. } if tracing::enabled!(Level::WARN) => {
                Some(Self::Blocked { reason: text::clean(&reason.to_string()).into_owned() })
            }
            Event::Failed(failure) if tracing::enabled!(Level::WARN) => {
                Some(Self::Failed { error: said(failure), at: place_of(failure) })
            }
            _ => None,
        }
    }

    /// Logs it.
    pub(crate) fn tell(self, address: &Address, run: u32) {
        let (namespace, execution) = (address.namespace.as_str(), address.id.as_str());
        match self {
            Self::ChildStarted { child } => {
                tracing::debug!(namespace, execution, run, child, "a child was started");
            }
            Self::AttemptFailed { op, attempt, error, at, will_retry } => {
                tracing::warn!(
                    namespace,
                    execution,
                    run,
                    op,
                    attempt,
                    error,
                    at,
                    will_retry,
                    "an attempt failed"
                );
            }
            Self::Blocked { reason } => {
                tracing::warn!(namespace, execution, run, reason, "an execution is blocked");
            }
            Self::Completed => tracing::debug!(namespace, execution, run, "an execution completed"),
            Self::Continued => tracing::debug!(namespace, execution, run, "an execution continues as new"),
            Self::Failed { error, at } => {
                tracing::warn!(namespace, execution, run, error, at, "an execution failed");
            }
            Self::Cancelled { by } => {
                tracing::info!(namespace, execution, run, by, "an execution was cancelled");
            }
        }
    }
}

/// Returns an error as one line of bounded length.
fn said(failure: &Failure) -> String {
    const CHARS: usize = 1_000;
    text::excerpt(&failure.to_string(), CHARS)
}

/// Returns file and line of the operation that failed; nothing if they are unknown.
fn site_of(failure: &Failure) -> Option<String> {
    failure.at.as_ref().and_then(|at| at.site.as_deref()).map(cleaned)
}

/// Returns the place of a failure, in words. An execution that fails before it begins has none.
fn place_of(failure: &Failure) -> Option<String> {
    failure.at.as_ref().map(|at| cleaned(&at.to_string()))
}

fn cleaned(text: &str) -> String {
    text::clean(text).into_owned()
}
