//! Rules for what the store acknowledged: every entry of a commit that it took stands unchanged in
//! its journal, and a commit that was sent again is the same one.
//!
//! The other rules believe the journals. Without these two, a store could acknowledge one result
//! and keep another.

use std::collections::BTreeMap;

use abide_core::Entry;

use super::causes::{CurrentRuns, Run};
use super::{Books, Commit, Happened};

pub(super) fn check(books: &Books) -> Vec<String> {
    let mut place = CurrentRuns::default();
    let mut taken: BTreeMap<_, &Commit> = BTreeMap::new();
    let mut found = Vec::new();
    for item in &books.items {
        place.follow(item, |run, commit| found.extend(missing(books, &run, commit)));
        let Happened::Committed(commit) = item else { continue };
        let before = taken.entry((commit.key, commit.name())).or_insert(commit);
        if (&before.entries, &before.next) != (&commit.entries, &commit.next) {
            let (key, (epoch, version)) = (commit.key, commit.name());
            let entries = (&before.entries, &commit.entries);
            found.push(format!("{key:?}: two commits of epoch {epoch} have version {version}: {entries:?}"));
        }
    }
    found
}

/// Returns the entries of a commit that its journals do not have. The journals of damaged
/// executions prove nothing, and are not in the books.
fn missing(books: &Books, (id, run): &Run, commit: &Commit) -> Vec<String> {
    let Some(past) = books.pasts.get(id) else { return Vec::new() };
    let stands = |run: u32, entry: &Entry| {
        let index = usize::try_from(entry.seq - 1).unwrap_or(usize::MAX);
        past.runs.get(run as usize - 1).and_then(|journal| journal.get(index)) == Some(entry)
    };
    let own = commit.entries.iter().map(|entry| (*run, entry));
    let all = own.chain(commit.next.iter().map(|entry| (run + 1, entry)));
    let missing = all.filter(|(run, entry)| !stands(*run, entry));
    missing
        .map(|(run, entry)| {
            let (seq, word) = (entry.seq, entry.event.word());
            format!("{id:?} run {run}: entry {seq}, {word}, was acknowledged, but the journal has another")
        })
        .collect()
}
