//! Rules for deadlines and for the timeouts of steps: neither strikes before its time, and nothing
//! goes on behind it. Times of two machines are compared only where all clocks agree, and an end
//! that comes too late is told only of a machine that never stands still.

use std::collections::BTreeMap;
use std::time::Duration;

use abide_core::{Bounds, Entry, Event, FailureKind, OpKind, Outcome, StepRecord, Timestamp};

use super::delays::has_true_clocks;
use super::table::own_exprs;
use super::{Books, Closure, Happened};
use crate::history::{Spot, key_of};
use crate::program::{Expr, Step};
use crate::scenario::{Scenario, Wrong};

pub(super) fn check(books: &Books, scenario: &Scenario) -> Vec<String> {
    let graces = graces(scenario);
    let attempts = has_true_clocks(scenario).then(|| Attempts::of(books, scenario));
    let mut found = Vec::new();
    for past in books.pasts.values() {
        for (run, journal) in (1..).zip(&past.runs) {
            let deadline_at = past.start(run).and_then(|start| start.deadline_at);
            let wrong = journal.iter().filter_map(|entry| wrong_deadline(entry, deadline_at, &graces));
            let late = deadline_at.into_iter().filter_map(|deadline_at| too_late(journal, deadline_at));
            let attempts = attempts.iter().flat_map(|attempts| attempts.wrong((&past.id, run), journal));
            let all = wrong.chain(late).chain(attempts);
            found.extend(all.map(|what| format!("{:?} run {run}: {what}", past.id)));
        }
    }
    found
}

/// Returns the times that code may have to wind down, on some worker.
fn graces(scenario: &Scenario) -> Vec<Duration> {
    let of = |grace_ms: Option<u64>| grace_ms.unwrap_or(Bounds::default().deadline_grace_ms);
    // The worker that comes at the end has the usual one.
    let graces = scenario.workers.iter().map(|worker| of(worker.deadline_grace_ms)).chain([of(None)]);
    graces.map(Duration::from_millis).collect()
}

fn wrong_deadline(entry: &Entry, deadline_at: Option<Timestamp>, graces: &[Duration]) -> Option<String> {
    let Event::DeadlinePassed { until } = &entry.event else { return None };
    if deadline_at.is_none_or(|deadline_at| entry.at < deadline_at) {
        return Some(format!("entry {} shows a deadline that has not passed", entry.seq));
    }
    let is_grace = graces.contains(&until.since(entry.at));
    (!is_grace).then(|| format!("entry {} gives a time to wind down that nobody set", entry.seq))
}

/// Checks that the code of a run records nothing more once its deadline and the time to wind down
/// are over. People may still pause, cancel and unblock it before a worker applies the deadline.
fn too_late(journal: &[Entry], deadline_at: Timestamp) -> Option<String> {
    let shown_until = journal.iter().find_map(|entry| match entry.event {
        Event::DeadlinePassed { until } => Some(until),
        _ => None,
    });
    let over_at = shown_until.unwrap_or(deadline_at);
    let is_work = |event: &Event| match event {
        Event::Failed(failure) => failure.kind != FailureKind::Deadline,
        Event::Completed { .. } | Event::ContinuedAsNew { .. } | Event::TimerSet { .. } => true,
        Event::AttemptFailed { .. } => true,
        // A person's decision is no work of the code, even if it brings the result of a step.
        Event::Unblocked { .. } => false,
        event => event.is_delivery(),
    };
    let late = journal.iter().find(|entry| entry.at > over_at && is_work(&entry.event))?;
    let (seq, word) = (late.seq, late.event.word());
    Some(format!("entry {seq}: {word} at {}, but its time was over at {over_at}", late.at))
}

/// The attempts of steps with a timeout.
struct Attempts<'a> {
    books: &'a Books,
    /// The times at which the closure of an idempotency key began, each with its place.
    began: BTreeMap<&'a str, Vec<(Timestamp, &'a Spot)>>,
    /// Whether a machine may stand still, so that a closure ends behind its timeout.
    may_stop: bool,
    /// Whether the answer to a commit may be late. A step that ends beside a transaction under way
    /// is recorded behind it.
    may_wait: bool,
}

impl<'a> Attempts<'a> {
    fn of(books: &'a Books, scenario: &Scenario) -> Self {
        let mut began: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for item in &books.items {
            if let Happened::Began { closure: Closure { spot, key, .. }, at: Some(at), .. } = item {
                began.entry(key).or_default().push((*at, spot));
            }
        }
        let may_stop = scenario.faults.iter().any(|fault| matches!(fault.what, Wrong::Freeze { .. }));
        let is_late = |what: &Wrong| matches!(what, Wrong::HappensLate { .. } | Wrong::AnswerLate { .. });
        let may_wait = scenario.faults.iter().any(|fault| is_late(&fault.what));
        Self { books, began, may_stop, may_wait }
    }

    /// Returns the attempts of a run that ended too early or too late.
    fn wrong(&self, (id, run): (&str, u32), journal: &[Entry]) -> Vec<String> {
        let is_transaction =
            |entry: &Entry| entry.event.op().is_some_and(|op| op.kind == OpKind::Transaction);
        let first = journal.iter().find(|entry| is_transaction(entry)).map(|entry| entry.seq);
        let may_wait = |entry: &Entry| self.may_wait && first.is_some_and(|first| first < entry.seq);
        let wrong =
            |entry: &Entry| self.wrong_end(key_of(id, run, entry.event.op()?), (entry, may_wait(entry)));
        journal.iter().filter_map(wrong).collect()
    }

    fn wrong_end(&self, key: String, (entry, may_wait): (&Entry, bool)) -> Option<String> {
        let kind = match &entry.event {
            Event::AttemptFailed { op, failure, .. } if op.kind == OpKind::Step => Some(failure.kind),
            Event::StepRecorded(StepRecord { op, outcome, .. }) if op.kind == OpKind::Step => match outcome {
                Outcome::Failure(failure) => Some(failure.kind),
                _ => None,
            },
            _ => return None,
        };
        let began = self.began.get(key.as_str())?;
        // The next attempt may begin at the moment at which this one fails.
        let is_timeout = kind == Some(FailureKind::Timeout);
        let is_before = |at: Timestamp| at < entry.at || (at == entry.at && !is_timeout);
        let (began_at, spot) = began.iter().rfind(|(at, _)| is_before(*at))?;
        let taken = entry.at.since(*began_at);
        let timeout = self.step_at(spot)?.timeout_ms.map(Duration::from_millis);
        let what = match (kind, timeout) {
            (Some(FailureKind::Timeout), None) => "timed out, though it has no timeout",
            (Some(FailureKind::Timeout), Some(timeout)) if taken < timeout => "timed out too early",
            (Some(FailureKind::Timeout), _) => return None,
            (_, Some(timeout)) if taken > timeout && !self.may_stop && !may_wait => {
                "ended behind its timeout"
            }
            _ => return None,
        };
        Some(format!("entry {}: {key} {what}: after {taken:?}", entry.seq))
    }

    /// Returns the step at a place of a program.
    fn step_at(&self, spot: &Spot) -> Option<Step> {
        let program = self.books.pasts.get(&spot.id)?.program(spot.run)?;
        let edited = self.books.edited(spot.edition, program);
        let mut steps = own_exprs(&edited).into_iter().filter_map(|expr| match expr {
            Expr::Step(step) | Expr::Blocking(step) => Some(step),
            _ => None,
        });
        steps.find(|step| step.node == spot.node).cloned()
    }
}
