//! The state that is left when everything has ended: none of it may grow with each execution that
//! comes and goes.

use abide::testing::kept;
use abide_core::{Body, Message, Namespace};
use abide_engine::Kept;
use abide_store::{WorkerRow, Workers};

use crate::ending::executions;
use crate::whole::whole;
use crate::world::World;

/// The state left in memory and in the store.
#[cfg_attr(test, derive(Default))]
pub(crate) struct Remains {
    /// The state that each machine keeps.
    machines: Vec<(u32, Kept)>,
    /// The worker of each session, and the number of its leases.
    sessions: Vec<(String, u64)>,
    /// The number of unread signals of each execution.
    unread: Vec<(String, usize)>,
    /// The most unread signals of one execution.
    unread_count_max: usize,
    /// The unanswered actions of live processes.
    unanswered: Vec<u64>,
}

impl Remains {
    pub(crate) async fn of(world: &World, unread_count_max: usize) -> Self {
        let open: Vec<_> = {
            let state = world.lock();
            let open = state.machines.iter().filter_map(|(number, one)| Some((*number, one.abide.clone()?)));
            open.collect()
        };
        let machines = open.iter().map(|(number, abide)| (*number, kept(abide))).collect();
        let all = Workers { namespace: Namespace::default(), after: None, limit: usize::MAX };
        let rows = world.store.workers(all).await.unwrap_or_default();
        let leases = |row: &WorkerRow| (row.worker.name.to_string(), row.lease_count);
        let unanswered = open.iter().flat_map(|(number, _)| world.history.unanswered(*number)).collect();
        let (sessions, unread) = (rows.iter().map(leases).collect(), unread(world).await);
        Self { machines, sessions, unread, unread_count_max, unanswered }
    }

    /// Returns all violations.
    pub(crate) fn check(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (machine, kept) in self.machines.iter().filter(|(_, kept)| *kept != Kept::default()) {
            found.push(format!("everything has ended, but machine {machine} keeps {kept:?}"));
        }
        for (name, count) in self.sessions.iter().filter(|(_, count)| *count > 0) {
            found.push(format!("everything has ended, but {name} holds {count} leases"));
        }
        // Unwanted signals stay in the inbox for a retry.
        for (id, count) in self.unread.iter().filter(|(_, count)| *count > self.unread_count_max) {
            found.push(format!("{id:?} has ended with {count} unread signals"));
        }
        for number in &self.unanswered {
            found.push(format!("everything has ended, but action {number} is not answered"));
        }
        found
    }
}

async fn unread(world: &World) -> Vec<(String, usize)> {
    let mut unread = Vec::new();
    for item in executions(&*world.store, None).await.unwrap_or_default() {
        if let Ok(Some(found)) = whole(&*world.store, item.key).await {
            let is_signal = |message: &&Message| matches!(message.body, Body::Signal { .. });
            let count = found.inbox.messages.iter().filter(is_signal).count();
            unread.push((item.address.id.to_string(), count));
        }
    }
    unread
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that sound remains pass, and that a change to them causes a complaint.
    fn check(change: impl Fn(&mut Remains), complaint: &str) {
        let mut remains = Remains { machines: vec![(1, Kept::default())], ..Remains::default() };
        remains.sessions.push(("worker-1".to_owned(), 0));
        assert_eq!(remains.check(), Vec::<String>::new());
        change(&mut remains);
        let found = remains.check();
        assert!(found.len() == 1 && found[0].contains(complaint), "{found:?}");
    }

    #[test]
    fn whatever_is_kept_is_told() {
        check(|remains| remains.machines[0].1.resident_count = 1, "resident_count: 1");
        check(|remains| remains.machines[0].1.early_count = 1, "early_count: 1");
        check(|remains| remains.machines[0].1.wanted_count = 1, "wanted_count: 1");
        check(|remains| remains.machines[0].1.failure_count = 1, "failure_count: 1");
        check(|remains| remains.machines[0].1.watched_count = 1, "watched_count: 1");
        check(|remains| remains.machines[0].1.request_count = 1, "request_count: 1");
        check(|remains| remains.sessions[0].1 = 1, "worker-1 holds 1 leases");
        check(|remains| remains.unread.push(("a".to_owned(), 1)), "has ended with 1 unread signals");
        check(|remains| remains.unanswered.push(7), "action 7 is not answered");
    }
}
