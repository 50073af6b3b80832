//! What the steps of a test do, seen from outside.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::{Lab, Machine};
use abide_core::{Address, ExecutionId, Namespace};
use abide_store::{Read, Snapshot, Target, Workers};
use tokio::sync::Notify;

/// What the steps of a test do, seen from outside.
pub(crate) struct World {
    pub(crate) lab: Lab,
    /// Where the worker lives that was opened last.
    pub(crate) machine: Mutex<Option<Machine>>,
    /// The executions that run a step now, with their takeovers when it began.
    pub(crate) running: Mutex<BTreeMap<String, u32>>,
    /// How often each step has begun, and the code of each poison.
    pub(crate) begun: Mutex<BTreeMap<String, u32>>,
    /// Who was there when an execution began a step.
    pub(crate) beside: Mutex<Vec<(String, Company)>>,
    pub(crate) died: Notify,
}

/// Who is there when a step begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Company {
    /// Of the execution itself.
    pub(crate) takeover_count: u32,
    /// The others that run a step, with their takeovers.
    pub(crate) running: BTreeMap<String, u32>,
    /// How many executions the worker holds.
    pub(crate) lease_count: u64,
}

impl Company {
    /// A suspect is alone.
    pub(crate) fn is_right(&self) -> bool {
        self.running.is_empty() || (self.takeover_count < 2 && self.running.values().all(|count| *count < 2))
    }

    /// Only the execution itself is there.
    pub(crate) fn is_nobody(&self) -> bool {
        self.running.is_empty() && self.lease_count == 1
    }
}

pub(crate) type Shared = Arc<World>;

/// Takes an execution out of those that run.
pub(crate) struct Running<'a>(&'a World, String);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.lock().unwrap().remove(&self.1);
    }
}

impl World {
    /// A step begins, and ends when what this gives is dropped.
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

    /// How many executions the newest session holds.
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

    /// The process dies.
    pub(crate) async fn die(&self) {
        let machine = self.machine.lock().unwrap().expect("a worker was opened");
        self.lab.crash(machine);
        self.died.notify_one();
        std::future::pending::<()>().await;
    }

    /// The company of this execution, each time it began a step.
    pub(crate) fn company(&self, id: &str) -> Vec<Company> {
        let beside = self.beside.lock().unwrap();
        beside.iter().filter(|(of, _)| of == id).map(|(_, company)| company.clone()).collect()
    }

    /// The order in which steps began, since the `from`th.
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
