//! What a test sees of the code that it runs, and what it puts in the place of steps.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_core::{Op, OpKind, Outcome};
use abide_engine::{Request, StepOptions, UserTransaction, panics};

use crate::op_name::OpName;

/// A call of a mocked step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MockCall {
    /// The id of the execution.
    pub id: String,
    /// The name of the step.
    pub name: String,
    /// The number of the attempt, from 1.
    pub attempt: u32,
}

/// What a mocked step gives instead of its closure.
pub(crate) type StepMock = Arc<dyn Fn(MockCall) -> Outcome + Send + Sync>;

/// The eyes and hands of a test inside of the code. There is none in production.
pub(crate) struct Probe {
    steps: BTreeMap<String, StepMock>,
    /// No closure runs that is not mocked.
    is_replay: bool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// What was opened, by the id of the execution, in order.
    opened: Vec<(String, Op)>,
    /// The names of mocks that were used.
    used: BTreeSet<String>,
}

impl Probe {
    pub(crate) fn new(steps: BTreeMap<String, StepMock>, is_replay: bool) -> Self {
        Self { steps, is_replay, seen: Mutex::default() }
    }

    /// The code opened an operation.
    pub(crate) fn open(&self, id: &str, op: &Op) {
        self.lock().opened.push((id.to_owned(), op.clone()));
    }

    /// What an execution opened, in order.
    pub(crate) fn opened_by(&self, id: &str) -> Vec<Op> {
        let of_id = |(by, op): &(String, Op)| (by == id).then(|| op.clone());
        self.lock().opened.iter().filter_map(of_id).collect()
    }

    /// What becomes of a closure that is about to run: `None` when it does.
    pub(crate) fn stead(&self, id: &str, op: &Op, attempt: u32) -> Option<Stead> {
        let call = MockCall { id: id.to_owned(), name: op.name.to_string(), attempt };
        match self.steps.get(op.name.as_str()) {
            Some(mock) => Some(Stead::Outcome(self.call(mock, call))),
            None => self.is_replay.then_some(Stead::Nothing),
        }
    }

    /// What a transaction step asks the runner for.
    pub(crate) fn transaction(self: &Arc<Self>, id: &str, name: &OpName, run: &UserTransaction) -> Request {
        let mock = name.0.as_ref().ok().and_then(|(name, _)| Some((name, self.steps.get(name.as_str())?)));
        let Some((name, mock)) = mock else {
            // A step that never begins: its closure does not reach the store.
            let never = || Request::Step(StepOptions::default());
            return if self.is_replay { never() } else { Request::Transaction(run.clone()) };
        };
        let call = MockCall { id: id.to_owned(), name: name.to_string(), attempt: 1 };
        let (probe, mock) = (self.clone(), mock.clone());
        Request::Transaction(Arc::new(move |_| {
            let outcome = probe.call(&mock, call.clone());
            (matches!(outcome, Outcome::Success(_)), outcome)
        }))
    }

    fn call(&self, mock: &StepMock, call: MockCall) -> Outcome {
        self.lock().used.insert(call.name.clone());
        catch_unwind(AssertUnwindSafe(|| mock(call)))
            .unwrap_or_else(|panic| Outcome::Failure(panics::failure(panic.as_ref())))
    }

    /// Says which mock nobody used, if there is one.
    pub(crate) fn unused(&self) -> Option<String> {
        let seen = self.lock();
        let name = self.steps.keys().find(|name| !seen.used.contains(*name))?;
        let is_step = |op: &Op| matches!(op.kind, OpKind::Step | OpKind::Transaction);
        let steps: BTreeSet<String> = seen
            .opened
            .iter()
            .filter(|(_, op)| is_step(op))
            .map(|(_, op)| format!("{:?}", op.name))
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

/// What happens instead of a closure.
pub(crate) enum Stead {
    /// This is its outcome.
    Outcome(Outcome),
    /// Nothing: it never ends.
    Nothing,
}
