//! Falsified orders: their sender, their target, and the execution that follows them.

use abide_core::{Body, Event};

use super::{Evidence, Happened, nth_entry, nth_item};
use crate::scenario::Scenario;

/// Makes a child of a terminated parent say that its parent ended in another way.
pub(super) fn terminate_as_cancel(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) = nth_entry(
        evidence,
        nth,
        |_, _, entry| matches!(&entry.event, Event::Cancelled { reason, .. } if reason == "its parent was terminated"),
    )?;
    if let Event::Cancelled { reason, .. } = &mut journal[index].event {
        *reason = "its parent has ended".to_owned();
    }
    Some(())
}

/// Makes an execution end without sending orders to its children.
pub(super) fn child_untold(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| match item {
        Happened::Committed(commit) => {
            !commit.told.is_empty() && commit.entries.last().is_some_and(|entry| entry.event.is_terminal())
        }
        _ => false,
    })?;
    if let Happened::Committed(commit) = &mut evidence.items[index] {
        commit.told.clear();
    }
    Some(())
}

pub(super) fn cancel_of_nobody(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| match item {
        Happened::Accepted { message } => matches!(message.body, Body::Cancel { .. }),
        _ => false,
    })?;
    evidence.items.remove(index);
    Some(())
}

/// Makes the last closure before a pause begin once more behind it.
pub(super) fn begins_paused(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| match item {
        Happened::Committed(commit) => {
            commit.entries.iter().any(|entry| matches!(entry.event, Event::Paused { .. }))
        }
        _ => false,
    })?;
    let Happened::Committed(commit) = &evidence.items[index] else { return None };
    let is_leased = |item: &Happened| match item {
        Happened::Leased { key, id, .. } if *key == commit.key => Some(id.clone()),
        _ => None,
    };
    let id = evidence.items[..index].iter().find_map(is_leased)?;
    let is_begun =
        |item: &&Happened| matches!(item, Happened::Began { closure, .. } if closure.spot.id == id);
    let Some(began) = evidence.items[..index].iter().rfind(is_begun).cloned() else { return Some(()) };
    evidence.items.insert(index + 1, began);
    Some(())
}

/// Returns the index of the n-th decision about a step that the store took.
fn nth_decision(evidence: &Evidence, nth: usize) -> Option<usize> {
    nth_item(evidence, nth, |item| match item {
        Happened::Accepted { message } => matches!(message.body, Body::Unblock { step: Some(_) }),
        _ => false,
    })
}

pub(super) fn decision_twice(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_decision(evidence, nth)?;
    let decision = evidence.items[index].clone();
    evidence.items.insert(index, decision);
    Some(())
}

pub(super) fn decision_lost(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_decision(evidence, nth)?;
    let decision = evidence.items[index].clone();
    evidence.items.push(decision);
    Some(())
}

/// Makes a caretaker, which has no code, the holder that showed a cancellation to the code.
pub(super) fn cancelled_by_care(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| match item {
        Happened::Committed(commit) => {
            commit.entries.iter().any(|entry| matches!(entry.event, Event::CancelRequested { .. }))
        }
        _ => false,
    })?;
    let Happened::Committed(commit) = &evidence.items[index] else { return None };
    let cared = Happened::Cared { key: commit.key, epoch: commit.epoch };
    evidence.items.insert(index, cared);
    Some(())
}
