//! Requests of code to its runner.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{ExecutionId, Failure, Fingerprint, Outcome, Payload, Retry, Start, Timestamp};

/// A check that reports why the code cannot read the payload of a signal.
pub type CheckSignal = dyn Fn(&Payload) -> Result<(), Rejection> + Send + Sync;

/// A request of the code.
pub enum Request {
    /// To run a closure and have its result recorded.
    Step(StepOptions),
    /// To run a closure inside the store's transaction.
    Transaction(UserTransaction),
    /// To wait for a duration, from now.
    Sleep(Duration),
    /// To wait for a point in time.
    SleepUntil(Timestamp),
    /// To wait for a signal, perhaps with a timeout.
    Signal {
        /// The timeout.
        timeout: Option<Duration>,
        /// Reports whether the code can read the payload of a signal.
        check: Arc<CheckSignal>,
    },
    /// To start a child.
    Child {
        /// The child's start. The runner adds the parent and the times that count from it.
        start: Arc<Start>,
        /// The time from its start before which the child does not run.
        delay: Option<Duration>,
        /// The time from its start after which the child fails if it has not finished.
        deadline: Option<Duration>,
        /// Its id, if the code chose one.
        id: Option<ExecutionId>,
        /// Whether a child that was recorded with another input is accepted.
        any_input: bool,
    },
    /// To wait for the result of a child.
    ChildResult {
        /// The id of the child.
        child: ExecutionId,
    },
}

/// The reason why the code cannot read a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The type that the code waits for.
    pub expected: String,
    /// The reason why the signal is not of that type.
    pub complaint: String,
}

/// A user's closure, ready to run inside the store: returns whether to keep the writes, and the
/// outcome.
pub type UserTransaction = Arc<dyn Fn(&dyn std::any::Any) -> (bool, Outcome) + Send + Sync>;

/// Options of a step.
#[derive(Clone, Debug, Default)]
pub struct StepOptions {
    /// The retry policy; `None` stands for the engine's default.
    pub retry: Option<Retry>,
    /// The time limit of one attempt.
    pub timeout: Option<Duration>,
    /// The declared input.
    pub input: Option<Box<Fingerprint>>,
    /// Decides whether the policy is followed after a failure.
    pub retry_if: Option<RetryIf>,
}

/// A question to the user's code: whether another attempt makes sense after a failure. An error
/// means that the code panicked.
#[derive(Clone)]
pub struct RetryIf(pub Arc<Predicate>);

/// See [`RetryIf`].
pub type Predicate = dyn Fn(&Failure) -> Result<bool, Failure> + Send + Sync;

impl std::fmt::Debug for RetryIf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RetryIf")
    }
}
