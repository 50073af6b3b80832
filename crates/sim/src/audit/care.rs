//! Rules for executions that end without their code, and for tasks, deadlines and the next run,
//! about which no program says anything.

use std::collections::{BTreeMap, BTreeSet};

use abide_core::{Entry, Event, FailureKind, Kind, Start};
use abide_store::ExecutionKey;

use super::causes::{self, Run};
use super::{Books, Commit, Happened, Past};
use crate::ask::CANCEL_REASON;
use crate::history::Spot;
use crate::model::{self, Knowledge};
use crate::program::Job;

/// How long after its deadline an execution may go on. It covers the longest time to wind down, all
/// faults that delay the wind-down, and clocks that differ.
const LATE_MS_MAX: i64 = 45_000;

pub(super) fn check(books: &Books) -> Vec<String> {
    let Followed { unseen, mut found, .. } = Followed::through(books);
    for past in books.pasts.values() {
        for (run, journal) in (1..).zip(&past.runs) {
            let Some(Entry { event: Event::Started(start), .. }) = journal.first() else { continue };
            let place = CurrentRuns { past, run, start, journal };
            let is_unseen = unseen.contains(&(past.id.clone(), run));
            let wrong = [place.unseen(is_unseen), place.late(), place.next(), place.task(books)];
            found.extend(wrong.into_iter().flatten().map(|what| format!("{:?} run {run}: {what}", past.id)));
        }
    }
    found
}

struct CurrentRuns<'a> {
    past: &'a Past,
    run: u32,
    start: &'a Start,
    journal: &'a [Entry],
}

impl CurrentRuns<'_> {
    fn end(&self) -> Option<&Entry> {
        self.journal.last().filter(|entry| entry.event.is_terminal())
    }

    /// Checks that code which has begun sees a cancellation, unless it is blocked.
    fn unseen(&self, has_begun: bool) -> Option<String> {
        let is_shown = self
            .journal
            .iter()
            .any(|entry| matches!(entry.event, Event::CancelRequested { .. } | Event::Blocked { .. }));
        let is_wrong = has_begun && !is_shown && self.start.kind == Kind::Workflow;
        is_wrong.then(|| "it was cancelled without its code, which had begun".to_owned())
    }

    /// Checks that nothing goes on long after its deadline. If a slow start made the execution
    /// begin after its deadline, the time counts from the beginning.
    fn late(&self) -> Option<String> {
        let (end, deadline_at) = (self.end()?, self.start.deadline_at?.max(self.journal.first()?.at));
        let is_expired =
            matches!(&end.event, Event::Failed(failure) if failure.kind == FailureKind::Deadline);
        let late_ms = (end.at.as_micros() - deadline_at.as_micros()) / 1_000;
        let is_wrong = !is_expired && late_ms > LATE_MS_MAX;
        is_wrong.then(|| format!("it ended {late_ms} ms after its deadline, and not with that"))
    }

    /// Checks that the next run has the input with which this run ended.
    fn next(&self) -> Option<String> {
        let Event::ContinuedAsNew { input } = &self.end()?.event else { return None };
        let next = self.past.runs.get(self.run as usize)?.first()?;
        let is_same = matches!(&next.event, Event::Started(start) if start.input == *input);
        (!is_same).then(|| "the next run has another input than it ended with".to_owned())
    }

    /// Checks that a task ends in a way that its function allows.
    fn task(&self, books: &Books) -> Option<String> {
        if self.start.name.as_str() != "job" {
            return None;
        }
        let job: Job = serde_json::from_slice(self.start.input.as_bytes()).ok()?;
        let run_count =
            books.run_count(&Spot { id: self.past.id.clone(), run: self.run, node: job.node, edition: 0 });
        let outcome = match &self.end()?.event {
            Event::Completed { result, .. } => model::number(result).map(Ok),
            Event::Failed(failure) if failure.kind != FailureKind::Deadline => Ok(Err(failure.kind)),
            _ => return None,
        };
        let possible = outcome.and_then(|outcome| model::possible_end(outcome, &job.work, run_count));
        possible.err().map(|why| format!("its function cannot end so: {why}"))
    }
}

/// Facts that follow from the order in which things happened. A fault may have taken a seat out of
/// memory, so only the stretch between two faults counts.
#[derive(Default)]
struct Followed<'a> {
    /// The runs whose closures have begun.
    begun: BTreeSet<Run>,
    /// The id of each execution.
    names: BTreeMap<ExecutionKey, &'a str>,
    /// The tasks whose functions have begun, as machine, id and run.
    tasks: BTreeSet<(u32, &'a str, u32)>,
    /// The runs that were cancelled after one of their closures had begun.
    unseen: BTreeSet<Run>,
    /// The leases of caretakers.
    cared: BTreeSet<(ExecutionKey, u64)>,
    found: Vec<String>,
}

impl<'a> Followed<'a> {
    fn through(books: &'a Books) -> Self {
        let mut followed = Self::default();
        let mut place = causes::CurrentRuns::default();
        for item in &books.items {
            match item {
                Happened::Leased { id, key, .. } => {
                    followed.names.insert(*key, id);
                    followed.tasks.retain(|(_, task, _)| task != id);
                }
                Happened::Cared { key, epoch } => {
                    followed.cared.insert((*key, *epoch));
                }
                Happened::Reread { leases } => {
                    followed.cared.retain(|lease| !leases.contains(lease));
                }
                // A session that the store believed gone for a moment still has its leases. A task
                // whose outcome it could not record runs again.
                Happened::Fenced { machine, key } => {
                    let name = followed.names.get(key).copied();
                    followed.tasks.retain(|(by, task, _)| by != machine || Some(*task) != name);
                }
                Happened::Struck { .. } => {
                    followed.begun.clear();
                    followed.tasks.clear();
                }
                Happened::Began { machine, closure, .. } => followed.began(books, *machine, &closure.spot),
                _ => {}
            }
            place.follow(item, |run, commit| followed.committed(run, commit));
        }
        followed
    }

    fn began(&mut self, books: &Books, machine: u32, spot: &'a Spot) {
        self.begun.insert((spot.id.clone(), spot.run));
        // The function of a task begins once for each attempt under one lease.
        if is_task(books, spot) && !self.tasks.insert((machine, &spot.id, spot.run)) {
            let (id, run) = (&spot.id, spot.run);
            self.found.push(format!("{id:?} run {run}: its function began twice under one lease"));
        }
    }

    fn committed(&mut self, run: Run, commit: &Commit) {
        let is_requested = |entry: &&Entry| matches!(entry.event, Event::CancelRequested { .. });
        if self.cared.contains(&(commit.key, commit.epoch))
            && commit.entries.iter().any(|entry| is_requested(&entry))
        {
            let (id, run) = &run;
            self.found
                .push(format!("{id:?} run {run}: a caretaker took a cancellation, which is for the code"));
        }
        if commit.entries.iter().any(is_failed_attempt) {
            self.tasks.retain(|(_, id, _)| *id != run.0);
        }
        if commit.entries.iter().any(is_cancelled) && self.begun.contains(&run) {
            self.unseen.insert(run);
        }
    }
}

fn is_failed_attempt(entry: &Entry) -> bool {
    matches!(entry.event, Event::AttemptFailed { .. })
}

fn is_cancelled(entry: &Entry) -> bool {
    matches!(&entry.event, Event::Cancelled { reason, .. } if reason == CANCEL_REASON)
}

pub(super) fn is_task(books: &Books, spot: &Spot) -> bool {
    let journal = books.pasts.get(&spot.id).and_then(|past| past.runs.get(spot.run as usize - 1));
    let start = journal.and_then(|journal| journal.first());
    matches!(start.map(|entry| &entry.event), Some(Event::Started(start)) if start.kind == Kind::Task)
}
