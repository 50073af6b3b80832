//! The code that an engine can run.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use abide_core::{Address, Block, Failure, Kind, Name, Payload};

use crate::board::Board;
use crate::runtime::BoxFuture;

/// A workflow's code under way.
pub type CodeFuture = BoxFuture<Result<Payload, Failure>>;

/// A registered workflow: an async function over a [`Board`].
pub trait WorkflowCode: Send + Sync + 'static {
    /// The name it is registered under.
    fn name(&self) -> &str;

    /// Whether it demands the recorded order and every entry.
    fn is_strict(&self) -> bool;

    /// Begins a run, or begins to replay one.
    fn call(&self, board: Board, input: &Payload) -> Result<CodeFuture, Block>;
}

/// A registered task: an async function that runs whole.
pub trait TaskCode: Send + Sync + 'static {
    /// The name it is registered under.
    fn name(&self) -> &str;

    /// Begins an attempt.
    fn call(&self, attempt: TaskAttempt, input: &Payload) -> Result<CodeFuture, Block>;
}

/// One attempt of a task.
#[derive(Clone, Debug)]
pub struct TaskAttempt {
    /// Where the execution lives.
    pub address: Address,
    /// Its run.
    pub run: u32,
    /// The number of the attempt, from 1.
    pub attempt: u32,
}

/// Everything that an engine can run, by name.
#[derive(Clone, Default)]
pub struct Registry {
    workflows: HashMap<Name, Arc<dyn WorkflowCode>>,
    tasks: HashMap<Name, Arc<dyn TaskCode>>,
}

impl Registry {
    /// Adds a workflow; says no if the name is taken.
    pub fn add_workflow(&mut self, name: Name, code: Arc<dyn WorkflowCode>) -> bool {
        self.workflows.insert(name, code).is_none()
    }

    /// Adds a task; says no if the name is taken.
    pub fn add_task(&mut self, name: Name, code: Arc<dyn TaskCode>) -> bool {
        self.tasks.insert(name, code).is_none()
    }

    /// The workflow of this name.
    pub fn workflow(&self, name: &Name) -> Option<&Arc<dyn WorkflowCode>> {
        self.workflows.get(name)
    }

    /// The task of this name.
    pub fn task(&self, name: &Name) -> Option<&Arc<dyn TaskCode>> {
        self.tasks.get(name)
    }

    /// All names, as a worker offers them.
    pub fn names(&self) -> BTreeSet<(Kind, Name)> {
        let workflows = self.workflows.keys().map(|name| (Kind::Workflow, name.clone()));
        workflows.chain(self.tasks.keys().map(|name| (Kind::Task, name.clone()))).collect()
    }
}
