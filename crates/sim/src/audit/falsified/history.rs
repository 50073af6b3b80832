//! Falsified happenings, answers and feeds.

use abide_core::{By, Entry, Event, Outcome, SessionId};

use super::{Evidence, Happened, nth_entry, nth_item};
use crate::history::{Answer, Closure, Commit, Ready};
use crate::scenario::{Ask, Scenario};

fn nth_commit(evidence: &Evidence, nth: usize, find: impl Fn(&Commit) -> bool) -> Option<(usize, Commit)> {
    let index = nth_item(evidence, nth, |item| matches!(item, Happened::Committed(commit) if find(commit)))?;
    let Happened::Committed(commit) = &evidence.items[index] else { return None };
    Some((index, (**commit).clone()))
}

/// Returns the index of the n-th signal with this answer.
fn nth_signal(evidence: &Evidence, scenario: &Scenario, nth: usize, answer: &Answer) -> Option<usize> {
    nth_item(evidence, nth, |item| match item {
        Happened::Answered { action, answer: given } => {
            matches!(scenario.actions[*action].what, Ask::Signal(..)) && given == answer
        }
        _ => false,
    })
}

/// Returns the number of the signal in an accepted message.
fn signal_of(item: &Happened) -> Option<u64> {
    let Happened::Accepted { message } = item else { return None };
    match &message.body {
        abide_core::Body::Signal { payload, .. } => crate::model::number(payload).ok(),
        _ => None,
    }
}

/// Makes an execution be born long before it begins.
pub(super) fn begins_late(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| matches!(item, Happened::Born { .. }))?;
    if let Happened::Born { at, .. } = &mut evidence.items[index] {
        *at = abide_core::Timestamp::from_micros(at.as_micros() - 2_000_000);
    }
    Some(())
}

pub(super) fn signal_not_taken(evidence: &mut Evidence, scenario: &Scenario, nth: usize) -> Option<()> {
    let index = nth_signal(evidence, scenario, nth, &Answer::Done)?;
    let Happened::Answered { action, .. } = &evidence.items[index] else { return None };
    let number = scenario.actions[*action].number;
    evidence.items.retain(|item| signal_of(item) != Some(number));
    Some(())
}

pub(super) fn signal_refused(evidence: &mut Evidence, scenario: &Scenario, nth: usize) -> Option<()> {
    let index = nth_signal(evidence, scenario, nth, &Answer::Done)?;
    if let Happened::Answered { answer, .. } = &mut evidence.items[index] {
        *answer = Answer::Refused("no".to_owned());
    }
    Some(())
}

pub(super) fn start_of_nothing(evidence: &mut Evidence, scenario: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| match item {
        Happened::Answered { action, answer: Answer::Done } => {
            matches!(scenario.actions[*action].what, Ask::Start(_))
        }
        _ => false,
    })?;
    let Happened::Answered { action, .. } = &evidence.items[index] else { return None };
    if let Ask::Start(root) = scenario.actions[*action].what {
        evidence.pasts.remove(&scenario.roots[root].id);
    }
    Some(())
}

pub(super) fn result_of_nobody(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index =
        nth_item(evidence, nth, |item| matches!(item, Happened::Answered { answer: Answer::Result(_), .. }))?;
    if let Happened::Answered { answer: Answer::Result(value), .. } = &mut evidence.items[index] {
        *value ^= 1;
    }
    Some(())
}

pub(super) fn epoch_twice(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| matches!(item, Happened::Leased { .. }))?;
    let mut other = evidence.items[index].clone();
    if let Happened::Leased { session, .. } = &mut other {
        *session = SessionId(u64::MAX);
    }
    // The copy goes before the true lease, so that only the grant of the epoch is wrong.
    evidence.items.insert(index, other);
    Some(())
}

/// Adds a commit without entries behind the n-th one.
fn add_commit(evidence: &mut Evidence, nth: usize, change: impl Fn(&mut Commit)) -> Option<()> {
    let (index, mut commit) = nth_commit(evidence, nth, |commit| commit.epoch > 1 && commit.expected > 0)?;
    commit.entries.clear();
    commit.next = None;
    change(&mut commit);
    evidence.items.insert(index + 1, Happened::Committed(Box::new(commit)));
    Some(())
}

pub(super) fn stale_epoch(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let given = evidence.items.iter().filter_map(|item| match item {
        Happened::Leased { key, epoch, session, .. } => Some((*key, *epoch, *session)),
        _ => None,
    });
    let given: Vec<_> = given.collect();
    add_commit(evidence, nth, |commit| {
        let before = given.iter().rev().find(|(key, epoch, _)| *key == commit.key && *epoch < commit.epoch);
        if let Some((_, epoch, session)) = before {
            (commit.epoch, commit.session) = (*epoch, *session);
            commit.expected += 1;
        }
    })
}

pub(super) fn version_twice(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    add_commit(evidence, nth, |commit| commit.expected -= 1)
}

pub(super) fn foreign_session(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (index, mut commit) = nth_commit(evidence, nth, |_| true)?;
    commit.session = SessionId(u64::MAX);
    evidence.items[index] = Happened::Committed(Box::new(commit));
    Some(())
}

pub(super) fn commit_after_end(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let is_end = |commit: &Commit| {
        commit.next.is_none() && commit.entries.iter().any(|entry| entry.event.is_terminal())
    };
    let (index, mut commit) = nth_commit(evidence, nth, is_end)?;
    commit.expected += 1;
    // The journal has this entry, so that only the time of the commit is wrong.
    commit.entries.truncate(1);
    evidence.items.insert(index + 1, Happened::Committed(Box::new(commit)));
    Some(())
}

/// Returns the index of the n-th commit with the result of a step, and its entries with another
/// result.
fn other_result(evidence: &Evidence, nth: usize) -> Option<(usize, Vec<Entry>)> {
    let is_result = |entry: &Entry| matches!(&entry.event, Event::StepRecorded(record) if matches!(record.outcome, Outcome::Success(_)));
    let (index, mut commit) = nth_commit(evidence, nth, |commit| commit.entries.iter().any(is_result))?;
    let entry = commit.entries.iter_mut().find(|entry| is_result(entry))?;
    if let Event::StepRecorded(record) = &mut entry.event {
        record.outcome = Outcome::Success(super::payload(u64::MAX));
    }
    Some((index, commit.entries))
}

pub(super) fn other_acknowledged(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (index, entries) = other_result(evidence, nth)?;
    if let Happened::Committed(commit) = &mut evidence.items[index] {
        commit.entries = entries;
    }
    Some(())
}

/// Makes the store acknowledge a next run that begins with something else.
pub(super) fn other_next_acknowledged(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (index, mut commit) = nth_commit(evidence, nth, |commit| commit.next.is_some())?;
    commit.next.as_mut()?.event = Event::Resumed { by: By("me".into()) };
    evidence.items[index] = Happened::Committed(Box::new(commit));
    Some(())
}

/// Makes the store take another commit for a repetition of the one before it.
pub(super) fn name_twice(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (index, entries) = other_result(evidence, nth)?;
    let mut again = evidence.items[index].clone();
    if let Happened::Committed(commit) = &mut again {
        commit.entries = entries;
    }
    evidence.items.insert(index + 1, again);
    Some(())
}

pub(super) fn closure_after_record(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(
        evidence,
        nth,
        |item| matches!(item, Happened::Began { closure, .. } if closure.key.starts_with("default/")),
    )?;
    let again = evidence.items[index].clone();
    evidence.items.push(again);
    Some(())
}

/// Swaps two successive signals of one name to one execution.
pub(super) fn signals_swapped(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let accepted = |item: &Happened| match item {
        Happened::Accepted { message } => match &message.body {
            abide_core::Body::Signal { name, .. } => Some((message.to.id.to_string(), name.to_string())),
            _ => None,
        },
        _ => None,
    };
    let places: Vec<_> = evidence.items.iter().enumerate().collect();
    let mut pairs = Vec::new();
    for (one, item) in &places {
        let Some(name) = accepted(item) else { continue };
        let later = places[one + 1..].iter().find(|(_, other)| accepted(other).as_ref() == Some(&name));
        pairs.extend(later.map(|(two, _)| (*one, *two)));
    }
    let (one, two) = pairs.into_iter().nth(nth)?;
    evidence.items.swap(one, two);
    Some(())
}

pub(super) fn odd_signal_received(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::SignalReceived { .. }))?;
    if let Event::SignalReceived { payload, .. } = &mut journal[index].event {
        let number = crate::model::number(payload).ok()?;
        let is_text = crate::model::is_text_in(payload);
        *payload = if is_text { super::payload(number) } else { text(number) };
    }
    Some(())
}

pub(super) fn set_aside_for_nothing(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let rejected = nth_rejected(evidence, nth)?;
    let is_text = crate::model::is_text_in(&rejected.payload);
    rejected.expected = format!("Written<{is_text}>");
    Some(())
}

pub(super) fn another_set_aside(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let rejected = nth_rejected(evidence, nth)?;
    let is_text = crate::model::is_text_in(&rejected.payload);
    rejected.payload = if is_text { text(u64::MAX) } else { super::payload(u64::MAX) };
    Some(())
}

fn nth_rejected(evidence: &mut Evidence, nth: usize) -> Option<&mut abide_core::RejectedSignal> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::SignalRejected(_)))?;
    match &mut journal[index].event {
        Event::SignalRejected(rejected) => Some(rejected),
        _ => None,
    }
}

fn text(number: u64) -> abide_core::Payload {
    abide_core::Payload::from(format!("\"{number}\"").as_str())
}

pub(super) fn signal_lost(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| signal_of(item).is_some())?;
    evidence.items.remove(index);
    Some(())
}

pub(super) fn closure_too_early(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(
        evidence,
        nth,
        |item| matches!(item, Happened::Began { closure, .. } if closure.key.starts_with("default/")),
    )?;
    let began = evidence.items.remove(index);
    let Happened::Began { closure: Closure { spot, .. }, .. } = &began else { return None };
    let given = nth_item(
        evidence,
        0,
        |item| matches!(item, Happened::Leased { id, run, .. } if *id == spot.id && *run == spot.run),
    );
    evidence.items.insert(given.map_or(0, |given| given + 1), began);
    Some(())
}

pub(super) fn begins_twice(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    *evidence.told.begins.values_mut().nth(nth)? += 1;
    Some(())
}

pub(super) fn ends_twice(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let ends = evidence.told.ends.values_mut().nth(nth)?;
    ends.push("completed");
    Some(())
}

pub(super) fn end_untold(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    evidence.told.ends.values_mut().nth(nth)?.clear();
    Some(())
}

fn change_count(evidence: &mut Evidence, nth: usize, (from, to): (u64, u64)) -> Option<()> {
    let counts = evidence.counts.as_mut().ok()?;
    *counts.values_mut().filter(|count| **count == from).nth(nth)? = to;
    Some(())
}

pub(super) fn wrote_twice(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_count(evidence, nth, (1, 2))
}

pub(super) fn wrote_nothing(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_count(evidence, nth, (1, 0))
}

pub(super) fn function_twice(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| matches!(item, Happened::Began { .. }))?;
    let again = evidence.items[index].clone();
    evidence.items.insert(index + 1, again);
    Some(())
}

/// Makes the n-th claim leave an execution behind that differs from the first claimed one only by
/// `change`.
fn leave_behind(evidence: &mut Evidence, nth: usize, change: impl Fn(&mut Ready)) -> Option<()> {
    let index = nth_item(
        evidence,
        nth,
        |item| matches!(item, Happened::Claimed { given, .. } if given.iter().any(|one| one.since.is_some())),
    )?;
    if let Happened::Claimed { given, left } = &mut evidence.items[index] {
        let mut other = given.iter().find(|one| one.since.is_some())?.clone();
        change(&mut other);
        left.push(other);
    }
    Some(())
}

pub(super) fn left_behind(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    leave_behind(evidence, nth, |other| {
        // Nobody compares the options of somebody unknown.
        other.id = "somebody urgent".to_owned();
        other.priority += 1;
        other.since = other.since.map(|(at, key)| (at + 1, key));
    })
}

pub(super) fn older_left_behind(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    leave_behind(evidence, nth, |other| other.since = other.since.map(|(at, key)| (at - 1, key)))
}
