//! Rules for executions that are born leased: they begin at once, and not when a heartbeat finds a
//! lease that nobody runs. The rules hold until the first fault, on workers that take everything.

use std::collections::BTreeMap;

use abide_core::Timestamp;

use super::causes::CurrentRuns;
use super::{Books, Happened};
use crate::scenario::{Ask, Scenario, WorkerSpec};

/// How long an execution may take to begin. A heartbeat finds a lease that nobody runs after a
/// second.
const BEGINS_MS: i64 = 800;
/// How long the rules look at a world.
const LOOK_MS: i64 = 3_000;

pub(super) fn check(books: &Books, scenario: &Scenario) -> Vec<String> {
    if !scenario.workers.iter().all(takes_everything) || ends_early(scenario) {
        return Vec::new();
    }
    let mut quiet = Quiet::default();
    for item in &books.items {
        let (at, sign) = match item {
            Happened::Struck { .. } => break,
            Happened::Born { at, .. } => (*at, None),
            Happened::Began { closure, at: Some(at), .. } => (*at, Some(closure.spot.id.clone())),
            Happened::Committed(commit) => (commit.at, quiet.name(item)),
            _ => {
                quiet.name(item);
                continue;
            }
        };
        if !quiet.is_looked_at(at) {
            break;
        }
        quiet.wait_until(at);
        if let Some(id) = sign {
            quiet.born.remove(&id);
        }
        if let Happened::Born { id, at } = item {
            quiet.born.insert(id.clone(), *at);
        }
    }
    quiet.found
}

fn takes_everything(worker: &WorkerSpec) -> bool {
    worker.execution_count_max >= 1_000 && worker.request_count_max >= 1_000
}

/// Whether a worker shuts down while the rules look at the world.
fn ends_early(scenario: &Scenario) -> bool {
    let early = scenario.actions.iter().filter(|action| (action.at_ms as i64) < LOOK_MS + BEGINS_MS);
    early.into_iter().any(|action| matches!(action.what, Ask::Shutdown | Ask::Deploy(_)))
}

/// A world in which nothing has gone wrong yet.
#[derive(Default)]
struct Quiet {
    began_at: Option<Timestamp>,
    /// The executions that were born and have not begun, each with the time of its birth.
    born: BTreeMap<String, Timestamp>,
    place: CurrentRuns,
    found: Vec<String>,
}

impl Quiet {
    fn is_looked_at(&mut self, at: Timestamp) -> bool {
        ms_between(*self.began_at.get_or_insert(at), at) < LOOK_MS
    }

    /// Returns the id of the execution that committed, if the item is a commit.
    fn name(&mut self, item: &Happened) -> Option<String> {
        let mut name = None;
        self.place.follow(item, |(id, _), _| name = Some(id));
        name
    }

    fn wait_until(&mut self, at: Timestamp) {
        let late = self.born.iter().filter(|(_, since)| ms_between(**since, at) > BEGINS_MS);
        let late: Vec<String> = late.map(|(id, _)| id.clone()).collect();
        for id in late {
            self.born.remove(&id);
            self.found.push(format!("{id:?} was born leased, but nobody began it"));
        }
    }
}

fn ms_between(from: Timestamp, to: Timestamp) -> i64 {
    (to.as_micros() - from.as_micros()) / 1_000
}
