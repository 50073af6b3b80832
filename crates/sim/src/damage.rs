//! Damage on the disk of a world: one row no longer holds the bytes that were written. The
//! execution that owns the row stops and says so; no other execution is delayed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide::prelude::*;
use abide_core::By;
use abide_sqlite::flaw::Flaw;
use abide_sqlite::stepped::Fate;
use abide_sqlite::{Discarded, SqliteStore};
use abide_store::{ExecutionKey, Listed};
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};

use crate::database::Database;
use crate::ending::{executions, open};
use crate::history::Happened;
use crate::scenario::Target;
use crate::world::World;

/// A row of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// The row with its state.
    State,
    /// One row of its journal.
    Journal,
    /// An unread message.
    Message,
}

impl Part {
    /// Returns the flaw to make in such a row.
    fn flaw(self, Target(number): Target) -> Flaw {
        match self {
            Self::State => Flaw::State,
            Self::Journal => Flaw::Journal(number as u32 % 3),
            Self::Message => Flaw::Message,
        }
    }
}

/// Everything that the world knows about damage.
#[derive(Default)]
pub(crate) struct Damage {
    /// The executions whose rows were damaged.
    pub(crate) ids: BTreeSet<String>,
    /// The damaged executions that had already ended: they change no more.
    over: BTreeSet<String>,
    /// The id of every execution that was ever leased.
    names: BTreeMap<ExecutionKey, String>,
    /// The parents that asked to start each child. A child has several if its id was taken.
    parents: BTreeMap<String, BTreeSet<String>>,
}

impl Damage {
    pub(crate) fn name(&mut self, key: ExecutionKey, id: &str) {
        self.names.entry(key).or_insert_with(|| id.to_owned());
    }

    pub(crate) fn adopt(&mut self, parent: ExecutionKey, child: &str) {
        let parent = self.names.get(&parent).cloned();
        self.parents.entry(child.to_owned()).or_default().extend(parent);
    }

    /// Returns these executions and all their ancestors, which wait for them.
    fn kin(&self, of: &BTreeSet<String>) -> BTreeSet<String> {
        let mut kin = of.clone();
        loop {
            let above = kin.iter().filter_map(|id| self.parents.get(id)).flatten();
            let more: BTreeSet<String> = above.filter(|id| !kin.contains(*id)).cloned().collect();
            if more.is_empty() {
                return kin;
            }
            kin.extend(more);
        }
    }

    /// Returns the kin and every paused execution below them: the parent that paused it would have
    /// to resume it.
    fn waiting(&self, of: &BTreeSet<String>, open: &[Listed]) -> BTreeSet<String> {
        let mut waiting = self.kin(of);
        let paused = || open.iter().filter(|item| item.summary.status == Status::Paused);
        while let Some(more) = paused()
            .map(|item| item.address.id.as_str())
            .find(|id| !waiting.contains(*id) && self.is_child_of_any(id, &waiting))
        {
            waiting.insert(more.to_owned());
        }
        waiting
    }

    fn is_child_of_any(&self, id: &str, parents: &BTreeSet<String>) -> bool {
        self.parents.get(id).is_some_and(|of| of.iter().any(|parent| parents.contains(parent)))
    }
}

impl World {
    /// Damages a row of an execution, if one exists, and returns the id of that execution.
    pub(crate) fn damage(&self, part: Part, target: Target) -> Option<String> {
        let (id, database) = (self.known(target)?, self.database.as_ref()?);
        let is_done = part.flaw(target).make(&database.path(), &id, target.0);
        is_done.then(|| {
            self.lock().damage.ids.insert(id.clone());
            database.wrote();
            id
        })
    }

    /// Returns every execution that has not ended, as far as the store can be read.
    pub(crate) async fn open(&self) -> Vec<Listed> {
        let mut open = open(executions(&*self.store, None).await.unwrap_or_default());
        open.retain(|item| !self.lock().damage.over.contains(item.address.id.as_str()));
        open
    }

    /// Returns the open executions that damage has stopped, provided that all other open executions
    /// only wait for them.
    pub(crate) async fn set_aside<'a>(&self, abide: &Abide, open: &'a [Listed]) -> Option<Vec<&'a Listed>> {
        let mut aside = Vec::new();
        for item in open {
            if self.is_aside(abide, item).await {
                aside.push(item);
            }
        }
        let ids: BTreeSet<String> = aside.iter().map(|item| item.address.id.to_string()).collect();
        let waiting = self.lock().damage.waiting(&ids, open);
        let waits = |item: &Listed| waiting.contains(item.address.id.as_str());
        (!aside.is_empty() && open.iter().all(waits)).then_some(aside)
    }

    /// Whether an execution is set aside, or is blocked at a point where nothing reads the damaged
    /// row and therefore nothing sets it aside.
    async fn is_aside(&self, abide: &Abide, item: &Listed) -> bool {
        let id = item.address.id.as_str();
        match item.summary.status {
            Status::Damaged => true,
            Status::Blocked if self.lock().damage.ids.contains(id) => {
                abide.handle::<u64>(id).why().await.is_ok_and(|why| why.contains(" is damaged"))
            }
            _ => false,
        }
    }

    /// Repairs the executions that can be repaired and ends the others. Fails if an execution that
    /// is set aside was not damaged, or if its `why` does not mention the damage.
    pub(crate) async fn mend(&self, abide: &Abide, aside: Vec<&Listed>) -> Result<(), String> {
        let Some(truth) = &self.truth else { return Ok(()) };
        for item in &aside {
            let id = item.address.id.as_str();
            if !self.lock().damage.ids.contains(id) {
                return Err(format!("{id:?} is set aside, but nobody has damaged it"));
            }
            let why = abide.handle::<u64>(id).why().await.unwrap_or_else(|error| error.to_string());
            if !why.contains("damaged") {
                return Err(format!("{id:?} is damaged, but why says {why:?}"));
            }
        }
        let repaired = stepped(truth, truth.repair()).await.map_err(|error| error.to_string())?;
        self.history.trace(repaired.rebuilt.len());
        for item in aside {
            let (by, reason) = (By("the world".into()), "it is damaged".to_owned());
            let id = item.address.id.to_string();
            self.history.add(Happened::Discarded { id, by: by.clone(), reason: reason.clone() });
            let discarded = stepped(truth, truth.discard(&item.address, by, reason)).await;
            match discarded {
                // A rebuilt execution goes on.
                Ok(Discarded::Ended | Discarded::Sound | Discarded::Held) => {}
                Ok(Discarded::Over) => {
                    self.lock().damage.over.insert(item.address.id.to_string());
                }
                other => {
                    return Err(format!("{:?} cannot be discarded: {other:?}", item.address.id.as_str()));
                }
            }
        }
        self.database.iter().for_each(Database::wrote);
        Ok(())
    }
}

/// Runs work on the store itself, whose writer no machine drives.
async fn stepped<T>(truth: &Arc<SqliteStore>, work: impl Future<Output = T>) -> T {
    let mut work = Box::pin(work);
    loop {
        if let Some(done) = (&mut work).now_or_never() {
            return done;
        }
        truth.step(Fate::Committed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Code, Expr, Job, Program, StartWith, Way, Work};
    use crate::scenario::{Action, Actor, Ask, Fault, Root, Scenario, StoreSpec, When, Wrong};
    use crate::{quiet_panics, run, scenario};

    /// A workflow that sleeps for four seconds and is damaged after one, and a task beside it.
    fn damaged(part: Part) -> Scenario {
        let sleep = Expr::Sleep { ms: 4_000, name: None };
        let body = Expr::Sequence(vec![Expr::Now, sleep, Expr::Now]);
        let work = Work { value: 7, delay_ms: 2_500, failure_count: 0, way: Way::Error };
        let codes = [
            Code::Workflow(Box::new(Program { carry: 1, body, next: None, held: None })),
            Code::Task(Job { node: 1, work }),
        ];
        let options = StartWith::default();
        let root = |(nth, code)| Root { id: format!("r{nth}"), code, options };
        let ask = |(number, what)| Action {
            number,
            at_ms: number * 100,
            by: Actor::Client(0),
            what,
            dropped_at_poll: None,
            is_text: false,
        };
        let asks = [Ask::Start(0), Ask::Signal(Target(0), "q0".to_owned()), Ask::Start(1)];
        Scenario {
            client_count: 1,
            roots: (0..).zip(codes).map(root).collect(),
            actions: (1..).zip(asks).map(ask).collect(),
            faults: vec![Fault { when: When::Time(1_000), what: Wrong::Damage { of: Target(0), part } }],
            store: StoreSpec::Sqlite(Default::default()),
            editions: Vec::new(),
            ..scenario(0)
        }
    }

    #[test]
    fn what_is_damaged_says_so_and_delays_nobody() {
        quiet_panics();
        for part in [Part::State, Part::Journal, Part::Message] {
            let report = run(&damaged(part));
            assert!(report.violations.is_empty(), "{part:?}: {report}");
            assert_eq!(report.faults.len(), 1, "{part:?}: {report}");
        }
    }
}
