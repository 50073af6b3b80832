//! The code that an engine can run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_core::{Ability, Address, Block, Failure, Kind, Name, Payload};
use abide_store::Clock;

use crate::board::Board;
use crate::driver::Driver;
use crate::runner::WorkflowDriver;
use crate::runtime::BoxFuture;
use crate::task::TaskDriver;
use crate::tree::{self, TreeDriver};

/// A workflow's code under way.
pub type CodeFuture = BoxFuture<Result<Payload, Failure>>;

/// A registered workflow: an async function over a [`Board`].
pub trait WorkflowCode: Send + Sync + 'static {
    /// Returns the name that it is registered under.
    fn name(&self) -> &str;

    /// Whether it demands the recorded order and every entry.
    fn is_strict(&self) -> bool;

    /// Begins a run, or begins to replay one.
    fn call(&self, board: Board, input: &Payload) -> Result<CodeFuture, Block>;
}

/// A registered task: an async function that runs whole.
pub trait TaskCode: Send + Sync + 'static {
    /// Returns the name that it is registered under.
    fn name(&self) -> &str;

    /// Begins an attempt.
    fn call(&self, attempt: TaskAttempt, input: &Payload) -> Result<CodeFuture, Block>;
}

/// One attempt of a task.
#[derive(Clone)]
pub struct TaskAttempt {
    /// The address of the execution.
    pub address: Address,
    /// Its run.
    pub run: u32,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// Everything that an engine can run, by name.
#[derive(Clone, Default)]
pub struct Registry {
    drivers: BTreeMap<(Kind, Name), Arc<dyn Driver>>,
}

impl Registry {
    /// Adds a workflow; returns false if the name is taken.
    pub fn add_workflow(&mut self, name: Name, code: Arc<dyn WorkflowCode>) -> bool {
        self.add(Kind::Workflow, name, Arc::new(WorkflowDriver(code)))
    }

    /// Adds a task; returns false if the name is taken.
    pub fn add_task(&mut self, name: Name, code: Arc<dyn TaskCode>) -> bool {
        self.add(Kind::Task, name, Arc::new(TaskDriver(code)))
    }

    /// Adds the driver of executions of this name; returns false if the name is taken.
    /// [`Ability::ANY`] stands for every name of the kind that has no driver of its own.
    pub fn add(&mut self, kind: Kind, name: Name, driver: Arc<dyn Driver>) -> bool {
        self.drivers.insert((kind, name), driver).is_none()
    }

    /// Adds the code that every engine has.
    pub(crate) fn with_builtins(mut self) -> Self {
        self.add(Kind::Builtin, tree::name(), Arc::new(TreeDriver));
        self
    }

    /// Returns the driver of executions of this name.
    pub(crate) fn driver(&self, kind: Kind, name: &Name) -> Option<&Arc<dyn Driver>> {
        let any = || Name::new(Ability::ANY).expect("a literal name");
        self.drivers.get(&(kind, name.clone())).or_else(|| self.drivers.get(&(kind, any())))
    }

    /// Returns all names, as a worker offers them.
    pub fn names(&self) -> BTreeSet<(Kind, Name)> {
        self.drivers.keys().cloned().collect()
    }
}
