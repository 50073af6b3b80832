//! Rules for the options of executions: one that a client started has what some client asked for,
//! counted from the time of the request, and every later run has what the run before it had. The
//! model compares children with what their parent asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use abide_core::{Event, Start, Tag, Timestamp};

use super::{Books, Happened, Past};
use crate::model::wrong_start;
use crate::program::StartWith;
use crate::scenario::{Ask, Scenario};

/// The tags with which the store lists each execution.
pub(super) type Tags = BTreeMap<String, Vec<Tag>>;

pub(super) fn check(books: &Books, scenario: &Scenario, tags: &Tags) -> Vec<String> {
    let mut found = queued(books);
    for past in books.pasts.values() {
        found.extend(later_runs(past));
        if tags.get(&past.id).is_some_and(|tags| past.start(1).is_none_or(|start| start.tags != *tags)) {
            found.push(format!("{:?} is listed with other tags than it has", past.id));
        }
        let Some(start) = past.start(1).filter(|start| start.parent.is_none()) else { continue };
        let asked = requests(books, scenario, &past.id);
        let wrong = asked.iter().map(|(options, at)| wrong_start(options, *at, start, Duration::ZERO));
        let wrong: Option<Vec<_>> = wrong.collect();
        if let Some(what) = wrong.as_ref().and_then(|wrong| wrong.first()) {
            found.push(format!("{:?} was started with another {what} than asked for", past.id));
        }
    }
    found
}

/// Checks that an execution waits for a worker with the options of its start.
fn queued(books: &Books) -> Vec<String> {
    let mut found = BTreeSet::new();
    let claims = books.items.iter().filter_map(|item| match item {
        Happened::Claimed { given, left } => Some(given.iter().chain(left)),
        _ => None,
    });
    for ready in claims.flatten() {
        let Some(start) = books.pasts.get(&ready.id).and_then(|past| past.start(1)) else { continue };
        let requires: BTreeSet<String> = start.requires.iter().map(ToString::to_string).collect();
        let is_same = ready.lane == start.lane.as_str() && ready.requires == requires;
        if !is_same || ready.priority != start.priority {
            found.insert(format!("{:?} waits in the queue with other options than it has", ready.id));
        }
    }
    found.into_iter().collect()
}

/// Returns the options of each request to start this execution, and the time of the request on the
/// clock of the client.
fn requests(books: &Books, scenario: &Scenario, id: &str) -> Vec<(StartWith, Timestamp)> {
    let requests = books.items.iter().filter_map(|item| {
        let Happened::Asked { action, at } = item else { return None };
        let (root, has_options) = match scenario.actions.get(*action)?.what {
            Ask::Start(root) | Ask::Run(root) => (root, true),
            Ask::Named(root) | Ask::Conflict(root) => (root, false),
            _ => return None,
        };
        let root = scenario.roots.get(root).filter(|root| root.id == id)?;
        Some((if has_options { root.options } else { StartWith::default() }, *at))
    });
    requests.collect()
}

/// Checks that each run has the options of the run before it. A retry has as long until its
/// deadline as that run had; the deadline of an execution that continues stays.
fn later_runs(past: &Past) -> Vec<String> {
    let mut found = Vec::new();
    for (run, pair) in (2..).zip(past.runs.windows(2)) {
        let (Some(before), Some(after)) = (past.start(run - 1), past.start(run)) else { continue };
        let began_at = |journal: &[abide_core::Entry]| journal.first().map(|entry| entry.at);
        let (Some(before_at), Some(after_at)) = (began_at(&pair[0]), began_at(&pair[1])) else { continue };
        let is_retry = pair[1].iter().any(|entry| matches!(entry.event, Event::Retried { .. }));
        let anew = |deadline_at: Timestamp| match is_retry {
            true => after_at.after(deadline_at.since(before_at)),
            false => deadline_at,
        };
        let is_same = options(before) == options(after);
        if !is_same || before.deadline_at.map(anew) != after.deadline_at || after.start_at.is_some() {
            found.push(format!("{:?} run {run} has other options than the run before it", past.id));
        }
    }
    found
}

/// Returns the options that no time changes.
fn options(start: &Start) -> impl PartialEq {
    (start.priority, start.lane.clone(), start.requires.clone(), start.tags.clone(), start.retry.clone())
}
