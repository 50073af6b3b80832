//! Rules for programs under all deployed editions: the auditor replays each run from its journal,
//! once for every edition that wrote to it.

use std::collections::{BTreeMap, BTreeSet};

use abide_core::{Block, Entry, Event, FailureKind, Op, Outcome};

use super::causes::{CurrentRuns, Run};
use super::{Books, Past, judge};
use crate::ending::GIVEN_UP;
use crate::history::Happened;
use crate::model::{self, Life, Moment, Replayed, Verdict};
use crate::program::Program;

/// Returns the edition that wrote each entry of each run. No edition wrote the first entry, which
/// is the start.
pub(super) fn authors(items: &[Happened]) -> BTreeMap<Run, Vec<usize>> {
    let mut place = CurrentRuns::default();
    let mut authors: BTreeMap<Run, Vec<usize>> = BTreeMap::new();
    for item in items {
        place.follow(item, |run, commit| {
            let of_run = authors.entry(run).or_default();
            for entry in &commit.entries {
                let length = usize::try_from(entry.seq).unwrap_or_default();
                of_run.resize(length.max(of_run.len()), 0);
                of_run[length - 1] = commit.edition;
            }
        });
    }
    authors
}

/// Replays each run of a program from its journal.
pub(super) fn programs(past: &Past, books: &Books) -> Vec<String> {
    let mut found = Vec::new();
    for ((run, journal), program) in (1..).zip(&past.runs).zip(&past.programs) {
        let say = |what: String| format!("{:?} run {run}: {what}", past.id);
        match program {
            None => {}
            Some(Ok(program)) => {
                let recorded = RunOf { books, id: &past.id, run, program, journal };
                found.extend(recorded.check().into_iter().map(say));
            }
            Some(Err(error)) => found.push(say(format!("its input is no program: {error}"))),
        }
    }
    found
}

/// Returns the moments of a run at which an outcome was recorded, each as seen by the edition that
/// recorded it.
pub(super) fn moments(past: &Past, books: &Books, run: u32) -> Vec<Moment> {
    let journal = past.runs.get(run as usize - 1).filter(|journal| !journal.is_empty());
    let (Some(program), Some(journal)) = (past.program(run), journal) else { return Vec::new() };
    let recorded = RunOf { books, id: &past.id, run, program, journal };
    let moments = |edition| recorded.live(edition, journal.len(), |life| model::moments(life, books));
    let authors = books.authors_of(&past.id, run);
    let wrote: BTreeSet<usize> = authors.iter().skip(1).copied().collect();
    wrote.into_iter().flat_map(moments).collect()
}

/// Returns the operations that the program of a run waits for, one list for each edition that
/// committed to the run. An edition that had nothing to record may still have reported its open
/// operations. Returns `None` if one of the editions does not wait.
pub(super) fn open_operations(books: &Books, id: &str, run: u32) -> Option<Vec<Vec<String>>> {
    let past = books.pasts.get(id)?;
    let (program, journal) = (past.program(run)?, past.runs.get(run as usize - 1)?);
    let recorded = RunOf { books, id, run, program, journal };
    let mut editions = BTreeSet::new();
    let mut place = CurrentRuns::default();
    for item in &books.items {
        place.follow(item, |of, commit| {
            if of.0 == id && of.1 == run {
                editions.insert(commit.edition);
            }
        });
    }
    let open =
        editions.into_iter().map(|edition| match recorded.replay(edition, journal.len()).ok()?.verdict {
            Verdict::Open(operations) => Some(operations),
            _ => None,
        });
    open.collect()
}

struct RunOf<'a> {
    books: &'a Books,
    id: &'a str,
    run: u32,
    program: &'a Program,
    journal: &'a [Entry],
}

impl RunOf<'_> {
    fn check(&self) -> Vec<String> {
        let mut found = Vec::new();
        let authors = self.books.authors_of(self.id, self.run);
        let author = |index: usize| authors.get(index).copied().unwrap_or_default();
        let last = self.journal.len() - 1;
        let wrote: BTreeSet<usize> = (1.min(last)..=last).map(author).collect();
        for edition in wrote {
            // The edition has not seen entries that others wrote later.
            let seen = (0..=last).rev().find(|index| author(*index) == edition).unwrap_or_default();
            match self.replay(edition, seen + 1) {
                Ok(replayed) if seen == last => found.extend(judge(&replayed, self.journal)),
                Ok(_) => {}
                Err(why) => found.push(why),
            }
        }
        for (index, entry) in self.journal.iter().enumerate() {
            if is_mismatch(&entry.event) && !self.is_stuck(author(index), index) {
                found.push(format!("entry {} says that edition {} does not fit", entry.seq, author(index)));
            }
        }
        found.extend(self.given_up());
        found
    }

    /// Replays the first `length` entries with an edition.
    fn replay(&self, edition: usize, length: usize) -> Result<Replayed, String> {
        self.live(edition, length, |life| model::replay(life, self.books))
    }

    fn live<T>(&self, edition: usize, length: usize, look: impl FnOnce(&Life<'_>) -> T) -> T {
        look(&Life {
            id: self.id,
            run: self.run,
            program: &self.books.edited(edition, self.program),
            edition,
            journal: &self.journal[..length],
            authors: self.books.authors_of(self.id, self.run),
        })
    }

    fn is_stuck(&self, edition: usize, length: usize) -> bool {
        let replayed = self.replay(edition, length);
        replayed.is_ok_and(|replayed| matches!(replayed.verdict, Verdict::Stuck(_)))
    }

    /// Checks a run that was given up as blocked: no build that was live at the end could have
    /// continued it.
    fn given_up(&self) -> Option<String> {
        let is_phase =
            |entry: &&Entry| matches!(entry.event, Event::Blocked { .. } | Event::Unblocked { .. });
        let phase = self.journal.iter().rev().find(is_phase)?;
        let (last, before) = self.journal.split_last()?;
        let is_given_up = matches!(&last.event, Event::Cancelled { reason, .. } if reason == GIVEN_UP);
        if !is_given_up || !is_mismatch(&phase.event) {
            return None;
        }
        let fits = (0..=self.books.editions.len()).find(|edition| !self.is_stuck(*edition, before.len()))?;
        Some(format!("it was given up as blocked, but edition {fits} fits it"))
    }
}

fn is_mismatch(event: &Event) -> bool {
    let Event::Blocked { reason, .. } = event else { return false };
    matches!(
        reason,
        Block::Mismatch { .. } | Block::Undecodable { .. } | Block::NameClash { .. } | Block::OtherInput(_)
    )
}

/// Compares the unused operations in the record of a completed run with those of the model. If the
/// code gave up an operation whose outcome was recorded meanwhile, only a replay reports the
/// operation as unused.
pub(super) fn wrongly_unused(told: &[Op], replayed: &Replayed) -> Option<String> {
    const TOLD_COUNT_MAX: usize = 32;
    let told: BTreeSet<String> = told.iter().map(ToString::to_string).collect();
    let used = told.iter().find(|op| !replayed.unused.contains_key(*op));
    let untold = replayed.unused.iter().find(|(op, is_told)| **is_told && !told.contains(*op));
    match (used, untold) {
        (Some(op), _) => Some(format!("{op} is told as unused, but was used")),
        (_, Some((op, _))) if told.len() < TOLD_COUNT_MAX => {
            Some(format!("{op} was not used, and nobody tells"))
        }
        _ => None,
    }
}

/// Whether the answer of a child comes from a change of the code and not from the child. Either
/// older code gave up the child and later code waits for it: the later code sees the child as
/// cancelled. Or the store refused the start because the chosen id belongs to an earlier child: the
/// next edition may reach the same place again as another operation.
pub(super) fn is_changed_child(journal: &[Entry], op: &Op, outcome: &Outcome) -> bool {
    let is_cancelled = matches!(outcome, Outcome::Failure(answer) if answer.kind == FailureKind::Cancelled);
    let is_given_up =
        |entry: &Entry| matches!(&entry.event, Event::ChildCancelled { op: given_up } if given_up == op);
    if is_cancelled && journal.iter().any(is_given_up) {
        return true;
    }
    let started = |entry: &Entry| match &entry.event {
        Event::ChildStarted { op, child, .. } => Some((op.child_result(), child.clone())),
        _ => None,
    };
    let all: Vec<_> = journal.iter().filter_map(started).collect();
    let id = all.iter().find(|(of, _)| of == op).map(|(_, id)| id);
    all.iter().filter(|(_, other)| Some(other) == id).count() > 1
}
