//! What code can want of its runner.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{ExecutionId, Failure, Fingerprint, Outcome, Payload, Retry, Start, Timestamp};

/// Reports why the code cannot read the payload of a signal.
pub type CheckSignal = dyn Fn(&Payload) -> Result<(), Rejection> + Send + Sync;

/// What the code wants.
pub enum Request {
    /// To run a closure and have its result recorded.
    Step(StepOptions),
    /// To run a closure inside the store's transaction.
    Transaction(UserTransaction),
    /// To wait for a duration, from now.
    Sleep(Duration),
    /// To wait for a point in time.
    SleepUntil(Timestamp),
    /// To wait for a signal, perhaps only for so long.
    Signal {
        /// How long.
        timeout: Option<Duration>,
        /// Says of what a signal carries whether the code can read it.
        check: Arc<CheckSignal>,
    },
    /// To start a child.
    Child {
        /// How; its parent is filled in, and so are the times that count from its start.
        start: Box<Start>,
        /// Not before this long from its start.
        delay: Option<Duration>,
        /// Failed if not finished this long from its start.
        deadline: Option<Duration>,
        /// Its id, if it is to have a certain one.
        id: Option<ExecutionId>,
        /// Whether a child that was recorded with another input will do.
        any_input: bool,
    },
    /// To wait for the result of a child.
    ChildResult {
        /// Its id.
        child: ExecutionId,
    },
}

/// Why the code cannot read a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The type that it waits for.
    pub expected: String,
    /// Why the signal is none.
    pub complaint: String,
}

/// A user's closure, made ready to run inside the store: it gives the outcome and whether to keep the writes.
pub type UserTransaction = Arc<dyn Fn(&dyn std::any::Any) -> (bool, Outcome) + Send + Sync>;

/// How a step is run.
#[derive(Clone, Debug, Default)]
pub struct StepOptions {
    /// When to try again; the engine's default when not said.
    pub retry: Option<Retry>,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// The declared input.
    pub input: Option<Fingerprint>,
    /// Whether the policy is followed after a failure.
    pub retry_if: Option<RetryIf>,
}

/// A question to the user's code: whether another attempt makes sense after a failure. An error: the code panicked.
#[derive(Clone)]
pub struct RetryIf(pub Arc<Predicate>);

/// See [`RetryIf`].
pub type Predicate = dyn Fn(&Failure) -> Result<bool, Failure> + Send + Sync;

impl std::fmt::Debug for RetryIf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RetryIf")
    }
}
