//! A test's view of the code that it runs, and its replacements for steps.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_core::planted::{Bug, planted};
use abide_core::{Name, Op, OpKind, Outcome};
use abide_engine::{Request, StepOptions, UserTransaction, panics};

use crate::op_name::OpName;

/// A call of a mocked step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MockCall {
    /// The id of the execution.
    pub id: String,
    /// The name of the step.
    pub name: String,
    /// The key of the step, if it has one, as `abide show` prints it.
    pub key: Option<String>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
}

/// A function that returns the outcome of a mocked step in place of its closure.
pub(crate) type StepMock = Arc<dyn Fn(MockCall) -> Outcome + Send + Sync>;

/// The eyes and hands of a test inside of the code. Absent in production.
pub(crate) struct Probe {
    steps: BTreeMap<String, StepMock>,
    /// Whether closures without a mock never run.
    is_replay: bool,
    seen: Mutex<Seen>,
}

/// An operation that the code asked for.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) op: Op,
    /// The same operation under its old names.
    pub(crate) olds: Vec<Op>,
}

impl Asked {
    /// Returns the operation under all of its names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Op> {
        [&self.op].into_iter().chain(&self.olds)
    }
}

#[derive(Default)]
struct Seen {
    /// The opened operations in order, with the id of the execution.
    opened: Vec<(String, Asked)>,
    /// The names of mocks that were used.
    used: BTreeSet<String>,
}

impl Probe {
    pub(crate) fn new(steps: BTreeMap<String, StepMock>, is_replay: bool) -> Self {
        Self { steps, is_replay, seen: Mutex::default() }
    }

    /// Records that the code opened an operation.
    pub(crate) fn open(&self, id: &str, op: &Op, old_names: &[Name]) {
        let olds = old_names.iter().map(|name| op.under(name)).collect();
        self.lock().opened.push((id.to_owned(), Asked { op: op.clone(), olds }));
    }

    /// Returns the operations that an execution opened, in order.
    pub(crate) fn opened_by(&self, id: &str) -> Vec<Asked> {
        let of_id = |(by, op): &(String, Asked)| (by == id).then(|| op.clone());
        self.lock().opened.iter().filter_map(of_id).collect()
    }

    /// Returns the replacement for a closure that is about to run; `None` if the closure itself
    /// runs.
    pub(crate) fn stead(&self, id: &str, op: &Op, attempt: u32) -> Option<Stead> {
        let key = op.key.as_ref().map(Name::to_string);
        let call = MockCall { id: id.to_owned(), name: op.name.to_string(), key, attempt };
        match self.steps.get(op.name.as_str()) {
            Some(mock) if !planted(Bug::MockedStepRuns) => Some(Stead::Outcome(self.call(mock, call))),
            _ => (self.is_replay && !planted(Bug::ReplayRunsSteps)).then_some(Stead::Nothing),
        }
    }

    /// Returns the request of a transaction step.
    pub(crate) fn transaction(self: &Arc<Self>, id: &str, name: &OpName, run: &UserTransaction) -> Request {
        let named = name.name.as_ref().ok();
        let mock = named.and_then(|named| Some((named, self.steps.get(named.0.as_str())?)));
        let Some(((name, key), mock)) = mock else {
            // A step that never begins: its closure does not reach the store.
            let never = || Request::Step(StepOptions::default());
            return if self.is_replay { never() } else { Request::Transaction(run.clone()) };
        };
        let key = key.as_ref().map(Name::to_string);
        let call = MockCall { id: id.to_owned(), name: name.to_string(), key, attempt: 1 };
        let (probe, mock) = (self.clone(), mock.clone());
        Request::Transaction(Arc::new(move |_| {
            let outcome = probe.call(&mock, call.clone());
            (matches!(outcome, Outcome::Success(_)), outcome)
        }))
    }

    fn call(&self, mock: &StepMock, call: MockCall) -> Outcome {
        self.lock().used.insert(call.name.clone());
        catch_unwind(AssertUnwindSafe(|| mock(call)))
            .unwrap_or_else(|panic| Outcome::Failure(panics::failure(panic)))
    }

    /// Names a mock that no step used, if any.
    pub(crate) fn unused(&self) -> Option<String> {
        let seen = self.lock();
        let name =
            self.steps.keys().find(|name| !seen.used.contains(*name) && !planted(Bug::UnusedMockPasses))?;
        let is_step = |op: &Op| matches!(op.kind, OpKind::Step | OpKind::Transaction);
        let steps: BTreeSet<String> = seen
            .opened
            .iter()
            .filter(|(_, asked)| is_step(&asked.op))
            .map(|(_, asked)| format!("{:?}", asked.op.name))
            .collect();
        let steps: Vec<_> = steps.into_iter().collect();
        let there = match steps.is_empty() {
            true => "no code came to any step".to_owned(),
            false => format!("the code came to {}", steps.join(", ")),
        };
        Some(format!("the mock of step {name:?} was never used: {there}"))
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A replacement for a closure.
pub(crate) enum Stead {
    /// The outcome in place of the closure's own.
    Outcome(Outcome),
    /// None: the closure never ends.
    Nothing,
}
