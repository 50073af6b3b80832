//! What must hold for what no program says: deadlines, the next run, tasks.

use abide_core::{Entry, Event, FailureKind, Start};

use super::{Books, Past};
use crate::history::Spot;
use crate::model::{self, Knowledge};
use crate::program::Job;

/// How long after its deadline an execution may go on: the longest time to wind down, everything that goes wrong before it does no longer, and clocks that differ.
const LATE_MS_MAX: i64 = 45_000;

pub(super) fn check(books: &Books) -> Vec<String> {
    let mut found = Vec::new();
    for past in books.pasts.values() {
        for (run, journal) in (1..).zip(&past.runs) {
            let Some(Entry { event: Event::Started(start), .. }) = journal.first() else { continue };
            let place = Place { past, run, start, journal };
            let wrong = [place.late(), place.next(), place.task(books)];
            found.extend(wrong.into_iter().flatten().map(|what| format!("{:?} run {run}: {what}", past.id)));
        }
    }
    found
}

struct Place<'a> {
    past: &'a Past,
    run: u32,
    start: &'a Start,
    journal: &'a [Entry],
}

impl Place<'_> {
    fn end(&self) -> Option<&Entry> {
        self.journal.last().filter(|entry| entry.event.is_terminal())
    }

    /// Nothing goes on long after its deadline.
    fn late(&self) -> Option<String> {
        let (end, deadline_at) = (self.end()?, self.start.deadline_at?);
        let is_expired =
            matches!(&end.event, Event::Failed(failure) if failure.kind == FailureKind::Deadline);
        let late_ms = (end.at.as_micros() - deadline_at.as_micros()) / 1_000;
        let is_wrong = !is_expired && late_ms > LATE_MS_MAX;
        is_wrong.then(|| format!("it ended {late_ms} ms after its deadline, and not with that"))
    }

    /// The next run has the input that this one ended with.
    fn next(&self) -> Option<String> {
        let Event::ContinuedAsNew { input } = &self.end()?.event else { return None };
        let next = self.past.runs.get(self.run as usize)?.first()?;
        let is_same = matches!(&next.event, Event::Started(start) if start.input == *input);
        (!is_same).then(|| "the next run has another input than it ended with".to_owned())
    }

    /// A task ends as its function may.
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
