//! Rules for the causes of closures: a closure begins only when the store has everything that led
//! its code there.
//!
//! The auditor replays everything that was durable when the closure began. If the code does not
//! reach the step, the closure relied on something that a crash would have undone.

use std::collections::{BTreeMap, BTreeSet};

use abide_core::SessionId;
use abide_store::ExecutionKey;

use super::{Books, Commit, Happened};
use crate::history::{Closure, LastCommits, Spot};
use crate::model::{self, Life};

/// A run of an execution.
pub(super) type Run = (String, u32);

pub(super) fn check(books: &Books) -> Vec<String> {
    let mut views = Views::of(books);
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for item in &books.items {
        match item {
            Happened::Began { machine, closure: Closure { spot, key, .. }, .. } => {
                let length = views.length(*machine, spot);
                // All attempts of a step under one lease begin at the same place: one check is
                // enough.
                if seen.insert((key, length, spot.edition)) && !is_reached(books, spot, length, key) {
                    found.push(format!("{key} began before what led there was durable"));
                }
            }
            item => views.follow(item),
        }
    }
    found
}

/// The parts of the journals that were durable and that each machine can know. A machine that was
/// stopped for long goes on from the journal of its own lease: it does not know the entries that
/// another machine has added since.
struct Views {
    beginnings: BTreeMap<Run, u64>,
    durable: BTreeMap<Run, u64>,
    machines: BTreeMap<SessionId, u32>,
    views: BTreeMap<(u32, Run), u64>,
    place: CurrentRuns,
}

impl Views {
    fn of(books: &Books) -> Self {
        let (beginnings, place) = (beginnings(books), CurrentRuns::default());
        let (machines, views) = (BTreeMap::new(), BTreeMap::new());
        Self { durable: beginnings.clone(), beginnings, machines, views, place }
    }

    fn follow(&mut self, item: &Happened) {
        let Self { durable, machines, views, place, .. } = self;
        if let Happened::Leased { machine, session, id, run, .. } = item {
            let run = (id.clone(), *run);
            let length = durable.get(&run).copied().unwrap_or(1);
            machines.insert(*session, *machine);
            views.insert((*machine, run), length);
        }
        place.follow(item, |run, commit| {
            let length = durable.entry(run.clone()).or_insert(1);
            *length = commit.entries.last().map_or(*length, |entry| entry.seq.max(*length));
            if let Some(machine) = machines.get(&commit.session) {
                views.insert((*machine, run), *length);
            }
        });
    }

    /// Returns the length of the journal that a machine can know. Without a lease of this run, the
    /// machine has opened the run itself.
    fn length(&self, machine: u32, spot: &Spot) -> u64 {
        let run = (spot.id.clone(), spot.run);
        let opened = || self.beginnings.get(&run).copied().unwrap_or(1);
        self.views.get(&(machine, run.clone())).copied().unwrap_or_else(opened)
    }
}

/// Returns the length of each journal before the first commit to it. The journal of a retry begins
/// with the entries that it keeps.
fn beginnings(books: &Books) -> BTreeMap<Run, u64> {
    let mut place = CurrentRuns::default();
    let mut beginnings = BTreeMap::new();
    for past in books.pasts.values() {
        for (run, journal) in (1..).zip(&past.runs) {
            beginnings.insert((past.id.clone(), run), journal.len() as u64);
        }
    }
    for item in &books.items {
        place.follow(item, |run, commit| {
            if let (Some(first), Some(length)) = (commit.entries.first(), beginnings.get_mut(&run)) {
                *length = (first.seq - 1).min(*length);
            }
        });
    }
    beginnings
}

/// The current run of each execution.
#[derive(Default)]
pub(super) struct CurrentRuns {
    runs: BTreeMap<ExecutionKey, Run>,
    last: LastCommits,
}

impl CurrentRuns {
    /// Calls `committed` with each commit and its run, but not with a repetition: a commit that is
    /// sent again changes nothing, and leads to no further run.
    pub(super) fn follow(&mut self, item: &Happened, mut committed: impl FnMut(Run, &Commit)) {
        match item {
            Happened::Leased { key, id, run, .. } => {
                self.runs.insert(*key, (id.clone(), *run));
            }
            Happened::Committed(commit) => {
                if !self.last.is_new(commit) {
                    return;
                }
                let Some(run) = self.runs.get_mut(&commit.key) else { return };
                committed(run.clone(), commit);
                run.1 += u32::from(commit.next.is_some());
            }
            _ => {}
        }
    }
}

/// Whether the code reaches a step in a replay of the first `length` entries of its journal.
fn is_reached(books: &Books, spot: &Spot, length: u64, key: &str) -> bool {
    let Spot { id, run, edition, .. } = spot;
    let Some(past) = books.pasts.get(id) else { return true };
    let journal = past.runs.get(*run as usize - 1).and_then(|journal| journal.get(..length as usize));
    let (Some(journal), Some(program)) = (journal, past.program(*run)) else { return true };
    let (program, edition) = (&books.edited(*edition, program), *edition);
    let authors = books.authors_of(id, *run);
    let life = Life { id, run: *run, program, edition, journal, authors };
    let mut parts = key.rsplit('/');
    let (Some(nth), Some(name)) = (parts.next().and_then(|nth| nth.parse().ok()), parts.next()) else {
        return true;
    };
    let name = name.split_once('=').map_or_else(|| name.to_owned(), |(name, key)| format!("{name}[{key}]"));
    model::reaches(&life, books, (&name, nth))
}
