//! Falsified times and options of executions.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{Entry, Event, FailureKind, Op, OpKind, Outcome, Start, Timestamp};

use super::{Evidence, Happened, nth_entry, nth_item};
use crate::history::key_of;
use crate::scenario::Scenario;

const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Makes a timer fire a moment before it is due.
pub(super) fn timer_early(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let is_fired = |event: &Event| matches!(event, Event::TimerFired { .. });
    let (journal, index) = nth_entry(evidence, nth, |_, _, entry| is_fired(&entry.event))?;
    let op = journal[index].event.op().cloned();
    let due_at = journal.iter().find_map(|entry| match &entry.event {
        Event::TimerSet { op: set, due_at } if Some(set) == op.as_ref() => Some(*due_at),
        _ => None,
    });
    journal[index].at = due_at?.before(Duration::from_micros(1));
    Some(())
}

pub(super) fn timer_moved(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_due(evidence, nth, |_| true, |due_at| due_at.before(MILLISECOND))
}

/// Makes the time of a wait longer. A sleep may have asked for a point in time, and then no clock
/// is compared.
pub(super) fn wait_longer(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_due(evidence, nth, |op| op.kind == OpKind::Signal, |due_at| due_at.after(MILLISECOND))
}

/// Changes the time at which the n-th timer of these operations is due.
fn change_due(
    evidence: &mut Evidence,
    nth: usize,
    is_wanted: fn(&Op) -> bool,
    change: fn(Timestamp) -> Timestamp,
) -> Option<()> {
    let is_set = |event: &Event| matches!(event, Event::TimerSet { op, .. } if is_wanted(op));
    let (journal, index) = nth_entry(evidence, nth, |_, _, entry| is_set(&entry.event))?;
    if let Event::TimerSet { due_at, .. } = &mut journal[index].event {
        *due_at = change(*due_at);
    }
    Some(())
}

/// Changes the n-th start that is of interest.
fn change_start(
    evidence: &mut Evidence,
    nth: usize,
    is_wanted: impl Fn(&Start) -> bool,
    change: impl FnOnce(&mut Start),
) -> Option<()> {
    let (journal, index) = nth_entry(
        evidence,
        nth,
        |_, _, entry| matches!(&entry.event, Event::Started(start) if is_wanted(start)),
    )?;
    if let Event::Started(start) = &mut journal[index].event {
        change(Arc::make_mut(start));
    }
    Some(())
}

fn sooner(start: &mut Start) {
    start.start_at = start.start_at.map(|start_at| start_at.before(MILLISECOND));
}

fn later(start: &mut Start) {
    start.start_at = start.start_at.map(|start_at| start_at.after(MILLISECOND));
}

fn is_delayed_child(start: &Start) -> bool {
    start.start_at.is_some() && start.parent.is_some()
}

fn is_delayed_root(start: &Start) -> bool {
    start.start_at.is_some() && start.parent.is_none()
}

pub(super) fn child_moved(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_start(evidence, nth, is_delayed_child, sooner)
}

pub(super) fn child_later(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_start(evidence, nth, is_delayed_child, later)
}

pub(super) fn root_moved(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_start(evidence, nth, is_delayed_root, sooner)
}

pub(super) fn root_later(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_start(evidence, nth, is_delayed_root, later)
}

pub(super) fn other_policy(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_start(evidence, nth, |start| start.retry.is_some(), |start| start.retry = None)
}

/// Makes a later run wait for the time at which it was opened.
pub(super) fn next_delayed(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let run = evidence.pasts.values_mut().filter_map(|past| past.runs.get_mut(1)).nth(nth)?;
    let first = run.first_mut()?;
    if let Event::Started(start) = &mut first.event {
        Arc::make_mut(start).start_at = Some(first.at);
    }
    Some(())
}

/// Lets an execution be claimed with another priority than it was started with.
pub(super) fn other_priority(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let is_given = |item: &Happened| matches!(item, Happened::Claimed { given, .. } if !given.is_empty());
    let index = nth_item(evidence, nth, is_given)?;
    if let Happened::Claimed { given, .. } = &mut evidence.items[index] {
        given.first_mut()?.priority += 1;
    }
    Some(())
}

pub(super) fn other_options(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let run = evidence.pasts.values_mut().filter_map(|past| past.runs.get_mut(1)).nth(nth)?;
    if let Event::Started(start) = &mut run.first_mut()?.event {
        Arc::make_mut(start).priority += 1;
    }
    Some(())
}

pub(super) fn other_tags(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    evidence.tags.values_mut().filter(|tags| !tags.is_empty()).nth(nth)?.clear();
    Some(())
}

pub(super) fn deadline_early(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_deadline(evidence, nth, |entry, deadline_at| {
        let Event::DeadlinePassed { until } = &mut entry.event else { return };
        let grace = until.since(entry.at);
        entry.at = deadline_at.before(Duration::from_micros(1));
        *until = entry.at.after(grace);
    })
}

/// Makes an execution fail by its deadline just before the deadline.
pub(super) fn failed_early(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let is_shown = |entry: &Entry| matches!(entry.event, Event::DeadlinePassed { .. });
    let is_struck = |entry: &Entry| matches!(&entry.event, Event::Failed(failure) if failure.kind == FailureKind::Deadline);
    let (journal, index) =
        nth_entry(evidence, nth, |_, journal, entry| is_struck(entry) && !journal.iter().any(is_shown))?;
    let Event::Started(start) = &journal.first()?.event else { return None };
    let deadline_at = start.deadline_at?;
    journal[index].at = deadline_at.before(Duration::from_micros(1));
    Some(())
}

pub(super) fn grace_longer(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_deadline(evidence, nth, |entry, _| {
        let Event::DeadlinePassed { until } = &mut entry.event else { return };
        *until = until.after(MILLISECOND);
    })
}

/// Changes the n-th entry that shows a deadline.
fn change_deadline(
    evidence: &mut Evidence,
    nth: usize,
    change: impl FnOnce(&mut Entry, Timestamp),
) -> Option<()> {
    let is_shown = |event: &Event| matches!(event, Event::DeadlinePassed { .. });
    let (journal, index) = nth_entry(evidence, nth, |_, _, entry| is_shown(&entry.event))?;
    let Event::Started(start) = &journal.first()?.event else { return None };
    let deadline_at = start.deadline_at?;
    change(&mut journal[index], deadline_at);
    Some(())
}

/// Moves the n-th entry that is of interest, in a run with a deadline, an hour on.
fn move_on(evidence: &mut Evidence, nth: usize, is_wanted: impl Fn(&Event) -> bool) -> Option<()> {
    let (journal, index) = nth_entry(evidence, nth, |_, journal, entry| {
        let first = journal.first().map(|entry| &entry.event);
        let has_deadline = matches!(first, Some(Event::Started(start)) if start.deadline_at.is_some());
        has_deadline && is_wanted(&entry.event)
    })?;
    journal[index].at = journal[index].at.after(HOUR);
    if let Event::AttemptFailed { retry_at, .. } = &mut journal[index].event {
        *retry_at = retry_at.after(HOUR);
    }
    Some(())
}

pub(super) fn end_too_late(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    move_on(evidence, nth, |event| matches!(event, Event::Cancelled { .. }))
}

pub(super) fn work_too_late(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    move_on(evidence, nth, |event| matches!(event, Event::StepRecorded(_)))
}

pub(super) fn attempt_behind_deadline(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    move_on(evidence, nth, |event| matches!(event, Event::AttemptFailed { .. }))
}

/// Makes an attempt fail by a timeout that failed in another way.
pub(super) fn timeout_of_nobody(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let is_failed = |event: &Event| matches!(event, Event::AttemptFailed { .. });
    let (journal, index) = nth_entry(evidence, nth, |_, _, entry| is_failed(&entry.event))?;
    if let Event::AttemptFailed { failure, .. } = &mut journal[index].event {
        failure.kind = FailureKind::Timeout;
    }
    Some(())
}

/// Makes the closure of a step that timed out begin just before.
pub(super) fn begun_before_timeout(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_begin(evidence, nth, true, |ended_at| ended_at.before(MILLISECOND))
}

/// Makes the closure of a step that did not time out begin long before.
pub(super) fn begun_long_ago(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_begin(evidence, nth, false, |ended_at| ended_at.before(HOUR))
}

/// Changes the time at which the only closure of a recorded step began.
fn change_begin(
    evidence: &mut Evidence,
    nth: usize,
    is_timeout: bool,
    change: impl FnOnce(Timestamp) -> Timestamp,
) -> Option<()> {
    let ends_so = |entry: &Entry| match &entry.event {
        Event::StepRecorded(record) if record.op.kind == OpKind::Step && record.attempt == 1 => {
            let kind = match &record.outcome {
                Outcome::Failure(failure) => Some(failure.kind),
                _ => None,
            };
            (kind == Some(FailureKind::Timeout)) == is_timeout
        }
        _ => false,
    };
    let mut ends = Vec::new();
    for past in evidence.pasts.values() {
        for (run, journal) in (1..).zip(&past.runs) {
            let recorded = journal.iter().filter(|entry| ends_so(entry));
            ends.extend(
                recorded.filter_map(|entry| Some((key_of(&past.id, run, entry.event.op()?), entry.at))),
            );
        }
    }
    let (wanted, ended_at) = ends.into_iter().nth(nth)?;
    let is_begin = |item: &Happened| matches!(item, Happened::Began { closure, .. } if closure.key == wanted);
    let Some(index) = nth_item(evidence, 0, is_begin) else { return Some(()) };
    if let Happened::Began { at, .. } = &mut evidence.items[index] {
        *at = Some(change(ended_at));
    }
    Some(())
}
