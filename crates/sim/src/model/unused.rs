//! The recorded operations that a run leaves unused.

use std::collections::{BTreeMap, BTreeSet};

use abide_core::{Entry, Event, Outcome, Remedied};

use super::{Id, Life, id_of, is_delivery};

/// Returns the recorded operations whose entries reached no code, and whether the record must list
/// each of them as unused. No operation waited for the entries in `pending`. `is_asked_for` says
/// whether the code asked for an operation.
pub(super) fn unused(
    life: &Life<'_>,
    pending: &[&Entry],
    is_asked_for: impl Fn(&Id) -> bool,
) -> BTreeMap<String, bool> {
    let left = pending.iter().filter(|entry| !is_lost(&entry.event) && !is_withdrawn(entry, life.journal));
    let left = left.filter_map(|entry| Some((entry.event.op()?.to_string(), !life.is_own(entry))));
    let begun = begun(life.journal).into_iter().filter(|(id, _)| !is_asked_for(id));
    let begun = begun.filter_map(|(_, entry)| Some((entry.event.op()?.to_string(), !life.is_own(entry))));
    undecided(life.journal).into_iter().map(|op| (op, false)).chain(begun).chain(left).collect()
}

/// Returns the operations that were begun and have no outcome, with the last entry of each.
fn begun(journal: &[Entry]) -> BTreeMap<Id, &Entry> {
    let mut begun = BTreeMap::new();
    for entry in journal {
        let Some(id) = entry.event.op().map(id_of) else { continue };
        match &entry.event {
            Event::AttemptFailed { .. } | Event::TimerSet { .. } => drop(begun.insert(id, entry)),
            event if is_delivery(event) => drop(begun.remove(&id)),
            _ => {}
        }
    }
    begun
}

/// Returns the operations whose result could not be recorded and about which nobody decided. Code
/// that waited for such an operation never got an outcome.
fn undecided(journal: &[Entry]) -> BTreeSet<String> {
    let mut undecided = BTreeSet::new();
    for entry in journal {
        match &entry.event {
            Event::StepRecorded(record) if is_lost(&entry.event) => {
                undecided.insert(record.op.to_string());
            }
            Event::Unblocked { remedied: Some(Remedied { op, .. }), .. } => {
                undecided.remove(&op.to_string());
            }
            _ => {}
        }
    }
    undecided
}

/// Whether an operator supplied a result for a step and later decided otherwise.
fn is_withdrawn(entry: &Entry, journal: &[Entry]) -> bool {
    let decided = |entry: &Entry| match &entry.event {
        Event::Unblocked { remedied: Some(Remedied { op, .. }), .. } => Some(op.clone()),
        _ => None,
    };
    let Some(op) = decided(entry) else { return false };
    journal.iter().any(|later| later.seq > entry.seq && decided(later).as_ref() == Some(&op))
}

pub(super) fn is_lost(event: &Event) -> bool {
    matches!(event, Event::StepRecorded(record) if matches!(record.outcome, Outcome::Unrecordable(_)))
}
