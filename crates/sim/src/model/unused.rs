//! What a run leaves unused of what is recorded.

use std::collections::{BTreeMap, BTreeSet};

use abide_core::{Entry, Event, Outcome, Remedied};

use super::Life;

/// The recorded operations whose outcome was given to nobody, and whether each must be told as unused; `pending` is what no operation waited for.
pub(super) fn unused(life: &Life<'_>, pending: &[&Entry]) -> BTreeMap<String, bool> {
    let left = pending.iter().filter(|entry| !is_lost(&entry.event) && !is_withdrawn(entry, life.journal));
    let left = left.filter_map(|entry| Some((entry.event.op()?.to_string(), !life.is_own(entry))));
    undecided(life.journal).into_iter().map(|op| (op, false)).chain(left).collect()
}

/// The operations whose result could not be recorded and that nobody decided about: whoever waited for one has not got it.
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

/// Whether somebody has decided otherwise about a step that somebody had given a result.
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
