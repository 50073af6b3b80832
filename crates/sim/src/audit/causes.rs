//! What must hold for why things happened: a closure begins only when the store has everything that led its code there.
//!
//! Whatever was durable at that moment is replayed. If the code does not come to the step, it has come there by something that a crash would have undone.

use std::collections::{BTreeMap, BTreeSet};

use abide_store::ExecutionKey;

use super::{Books, Commit, Happened};
use crate::history::Spot;
use crate::model::{self, Life};

/// A run of an execution.
pub(super) type Run = (String, u32);

pub(super) fn check(books: &Books) -> Vec<String> {
    let mut durable = beginnings(books);
    let mut place = Place::default();
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for item in &books.items {
        match item {
            Happened::Began { spot, key, .. } => {
                let run = (spot.id.clone(), spot.run);
                let length = durable.get(&run).copied().unwrap_or(1);
                // Zombies apart, a step is tried again and again at the same place.
                if seen.insert((key, length, spot.edition)) && !is_reached(books, spot, length, key) {
                    found.push(format!("{key} began before what led there was durable"));
                }
            }
            item => place.follow(item, |run, commit| {
                let length = durable.entry(run).or_insert(1);
                *length = commit.entries.last().map_or(*length, |entry| entry.seq.max(*length));
            }),
        }
    }
    found
}

/// How long each journal was before anybody committed to it: a retry begins with what it keeps.
fn beginnings(books: &Books) -> BTreeMap<Run, u64> {
    let mut place = Place::default();
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

/// Which run each execution is in.
#[derive(Default)]
pub(super) struct Place {
    runs: BTreeMap<ExecutionKey, Run>,
    /// The epoch and version of the last commit of each: one that is sent again because its answer was lost leads to no further run.
    last: BTreeMap<ExecutionKey, (u64, u64)>,
}

impl Place {
    pub(super) fn follow(&mut self, item: &Happened, mut committed: impl FnMut(Run, &Commit)) {
        match item {
            Happened::Leased { key, id, run, .. } => {
                self.runs.insert(*key, (id.clone(), *run));
            }
            Happened::Committed(commit) => {
                let name = (commit.epoch, commit.expected);
                if self.last.insert(commit.key, name) == Some(name) {
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

/// Whether the code comes to a step when so many entries of its journal are replayed.
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
