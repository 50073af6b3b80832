//! The executions that wait for a worker when one claims. Only the store in memory shows them:
//! there nothing happens between the look and the claim.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use abide_core::{Address, Execution, ExecutionId, Namespace};
use abide_store::{ExecutionKey, Leased, Read, Snapshot, Target};
use futures_util::FutureExt;

use crate::history::{Happened, Ready};
use crate::world::World;

/// The executions that were ready before a claim.
#[derive(Default)]
pub(crate) struct ReadyBefore(Mutex<Vec<(ExecutionKey, Ready)>>);

impl ReadyBefore {
    fn lock(&self) -> MutexGuard<'_, Vec<(ExecutionKey, Ready)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the ready executions.
    pub(crate) fn look(&self, world: &World) {
        *self.lock() = match world.database {
            None => world.ready(),
            // Others may come between the look and the claim, or after the claim in the same
            // transaction.
            Some(_) => Vec::new(),
        };
    }
}

impl World {
    /// Returns all executions that are ready and have no holder.
    pub(crate) fn ready(&self) -> Vec<(ExecutionKey, Ready)> {
        let known = self.lock().known.clone();
        let found = known.iter().filter_map(|id| self.now(id));
        let ready = found.filter(|found| found.lease.session.is_none() && found.ready_at.is_some());
        let since = |found: &Snapshot| Some((found.ready_at?.as_micros(), found.key.0));
        ready.map(|found| (found.key, Ready::new(&found.execution, since(&found)))).collect()
    }

    /// Returns the current state of an execution.
    pub(crate) fn now(&self, id: &str) -> Option<Snapshot> {
        let id = ExecutionId::new(id).ok()?;
        let target = Target::Address(Address { namespace: Namespace::default(), id });
        let read = Read { target, run: None, from: 0, limit: 0, with_inbox: false };
        self.store.read(read).now_or_never()?.ok().flatten()
    }

    /// Records the executions that a claim received and those that it left behind. A repeated claim
    /// receives the same executions again.
    pub(crate) fn claimed(&self, queue: &ReadyBefore, leased: &[Leased]) {
        let before = queue.lock();
        let is_new = |one: &&Leased| !self.lock().given.contains(&(one.key, one.lease.epoch.0));
        let new: Vec<&Leased> = leased.iter().filter(is_new).collect();
        if before.is_empty() || new.is_empty() {
            return;
        }
        let since = |key| before.iter().find(|(other, _)| *other == key).and_then(|(_, ready)| ready.since);
        let given = new.iter().map(|one| Ready::new(&one.execution, since(one.key))).collect();
        let is_left = |key| !leased.iter().any(|one| one.key == key);
        let left = before.iter().filter(|(key, _)| is_left(*key)).map(|(_, ready)| ready.clone()).collect();
        self.history.add(Happened::Claimed { given, left });
    }
}

impl Ready {
    fn new(execution: &Execution, since: Option<(i64, u64)>) -> Self {
        let route = execution.route();
        Self {
            id: execution.address().id.to_string(),
            name: route.name.to_string(),
            lane: route.lane.to_string(),
            requires: route.requires.iter().map(ToString::to_string).collect::<BTreeSet<_>>(),
            priority: execution.priority(),
            since,
        }
    }
}
