//! The record of what the steps of a test did, and who ran beside them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::{Lab, Machine};
use abide_core::{Address, ExecutionId, Message, Namespace};
use abide_store::{Read, Snapshot, Target, Workers};
use tokio::sync::Notify;

/// The record of what the steps of a test did, and who ran beside them.
pub(crate) struct World {
    pub(crate) lab: Lab,
    /// The machine of the worker that was opened last.
    pub(crate) machine: Mutex<Option<Machine>>,
    /// The executions that run a step now, with their takeover counts when it began.
    pub(crate) running: Mutex<BTreeMap<String, u32>>,
    /// The number of times that each step, and the code of each poison, has begun.
    pub(crate) begun: Mutex<BTreeMap<String, u32>>,
    /// The company of each execution when it began a step.
    pub(crate) beside: Mutex<Vec<(String, Company)>>,
    pub(crate) died: Notify,
}

/// The executions beside one that begins a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Company {
    /// The takeover count of the execution itself.
    pub(crate) takeover_count: u32,
    /// The others that run a step, with their takeover counts.
    pub(crate) running: BTreeMap<String, u32>,
    /// The number of executions that the worker holds.
    pub(crate) lease_count: u64,
}

impl Company {
    /// Whether the rule holds that a suspect runs alone.
    pub(crate) fn is_right(&self) -> bool {
        self.running.is_empty() || (self.takeover_count < 2 && self.running.values().all(|count| *count < 2))
    }

    /// Whether the worker holds only this execution.
    pub(crate) fn is_nobody(&self) -> bool {
        self.running.is_empty() && self.lease_count == 1
    }
}

pub(crate) type Shared = Arc<World>;

/// A guard that removes an execution from the running ones.
pub(crate) struct Running<'a>(&'a World, String);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.lock().unwrap().remove(&self.1);
    }
}

impl World {
    /// Records that a step begins; it ends when the returned guard is dropped.
    pub(crate) async fn enter(&self, ctx: &Ctx) -> Running<'_> {
        let id = ctx.id().to_owned();
        let takeover_count = self.snapshot(&id).await.takeover_count;
        let lease_count = self.lease_count().await;
        *self.begun.lock().unwrap().entry(ctx.idempotency_key()).or_default() += 1;
        let mut running = self.running.lock().unwrap();
        let company = Company { takeover_count, running: running.clone(), lease_count };
        self.beside.lock().unwrap().push((id.clone(), company));
        running.insert(id.clone(), takeover_count);
        Running(self, id)
    }

    /// Returns the number of executions that the newest session holds.
    pub(crate) async fn lease_count(&self) -> u64 {
        let workers = Workers { namespace: Namespace::default(), after: None, limit: 1_000 };
        loop {
            if let Ok(rows) = self.lab.store().workers(workers.clone()).await {
                return rows.last().unwrap().lease_count;
            }
        }
    }

    pub(crate) async fn snapshot(&self, id: &str) -> Snapshot {
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new(id).unwrap() };
        let read = Read { target: Target::Address(address), run: None, from: 0, limit: 0, with_inbox: false };
        loop {
            if let Ok(found) = self.lab.store().read(read.clone()).await {
                return found.unwrap();
            }
        }
    }

    /// Returns the unread messages of an execution.
    pub(crate) async fn unread(&self, id: &str) -> Vec<Message> {
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new(id).unwrap() };
        let read = Read { target: Target::Address(address), run: None, from: 0, limit: 0, with_inbox: true };
        self.lab.store().read(read).await.unwrap().unwrap().inbox.messages
    }

    /// Kills the process.
    pub(crate) async fn die(&self) {
        let machine = self.machine.lock().unwrap().expect("a worker was opened");
        self.lab.crash(machine);
        self.died.notify_one();
        std::future::pending::<()>().await;
    }

    /// Returns the company of this execution, each time it began a step.
    pub(crate) fn company(&self, id: &str) -> Vec<Company> {
        let beside = self.beside.lock().unwrap();
        beside.iter().filter(|(of, _)| of == id).map(|(_, company)| company.clone()).collect()
    }

    /// Returns the order in which steps began, from the `from`th on.
    pub(crate) fn order(&self, from: usize) -> Vec<String> {
        self.beside.lock().unwrap()[from..].iter().map(|(id, _)| id.clone()).collect()
    }

    pub(crate) fn begun_count(&self) -> usize {
        self.beside.lock().unwrap().len()
    }

    pub(crate) fn check(&self) {
        let beside = self.beside.lock().unwrap();
        let wrong: Vec<_> = beside.iter().filter(|(_, company)| !company.is_right()).collect();
        assert!(wrong.is_empty(), "suspects were not alone: {wrong:#?}");
    }
}
