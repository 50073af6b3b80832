//! The auditor: goes through everything that happened and reports every broken rule.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use abide::prelude::*;
use abide_core::{Entry, Event, FailureKind, Outcome, Payload, RejectedSignal, Remedied, Remedy, Start};
use abide_store::conformance::recorded_by;
use abide_store::{Feed, FeedFrom, Listed, Snapshot, View};

use crate::database;
use crate::edition::Edition;
use crate::history::{Closure, Commit, Draw, Happened, Spot};
use crate::model::{self, Knowledge, Replayed, Verdict};
use crate::program::Program;
use crate::scenario::Scenario;
use crate::world::World;

mod care;
mod causes;
mod clients;
mod commits;
mod decisions;
mod delays;
mod editions;
mod evidence;
#[cfg(test)]
mod falsified;
mod firsts;
mod kin;
mod order;
mod orders;
mod pauses;
mod priorities;
mod requests;
mod retries;
mod strands;
pub(crate) mod table;
mod timeouts;

pub(crate) use evidence::Evidence;

/// How long a real process may stand still between a look at its clock and the entry that it
/// records. Torture stops processes for seconds; in the simulator no time passes there.
const SLACK: Duration = Duration::from_secs(60);

/// The whole record of one execution.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Past {
    pub(crate) id: String,
    pub(crate) status: Status,
    /// The journals of its runs, oldest first.
    pub(crate) runs: Vec<Vec<Entry>>,
    /// The program of each run, if it runs one; parsed once, because the auditor replays it often.
    programs: Vec<Option<Result<Program, String>>>,
}

impl Past {
    pub(crate) fn new(id: String, status: Status, runs: Vec<Vec<Entry>>) -> Self {
        let programs = runs.iter().map(|journal| program_of(journal)).collect();
        Self { id, status, runs, programs }
    }

    /// Returns the program of a run, or `None` if the run executes something else.
    fn program(&self, run: u32) -> Option<&Program> {
        self.programs.get(run as usize - 1)?.as_ref()?.as_ref().ok()
    }

    /// Returns how a run was started.
    fn start(&self, run: u32) -> Option<&Start> {
        match &self.runs.get(run as usize - 1)?.first()?.event {
            Event::Started(start) => Some(start),
            _ => None,
        }
    }

    /// Whether this run of a parent started the execution.
    fn is_child_of(&self, parent: &str, run: u32) -> bool {
        let first = self.runs.first().and_then(|journal| journal.first());
        let Some(Event::Started(start)) = first.map(|entry| &entry.event) else { return false };
        start.parent.as_ref().is_some_and(|found| found.id.as_str() == parent && found.run == run)
    }

    /// Returns the id of the execution that started this one, if another one did.
    fn parent(&self) -> Option<String> {
        let first = self.runs.first().and_then(|journal| journal.first());
        let Some(Event::Started(start)) = first.map(|entry| &entry.event) else { return None };
        start.parent.as_ref().map(|parent| parent.id.to_string())
    }

    /// Returns the terminal event of each run, or `None` for a run that has not ended.
    pub(crate) fn ends(&self) -> impl Iterator<Item = Option<&Event>> {
        self.runs
            .iter()
            .map(|journal| journal.last().map(|entry| &entry.event).filter(|event| event.is_terminal()))
    }
}

/// The records that the auditor goes through.
pub(crate) struct Books {
    pub(crate) pasts: BTreeMap<String, Past>,
    pub(crate) items: Vec<Happened>,
    /// The builds of the program, without the first.
    pub(super) editions: Vec<Edition>,
    /// The ids of executions with damaged rows, which are not among the pasts.
    pub(super) damaged: BTreeSet<String>,
    authors: BTreeMap<causes::Run, Vec<usize>>,
    drawn: BTreeMap<Draw, u64>,
    run_counts: BTreeMap<Spot, u64>,
    /// The faults found in the actions of closures.
    found: Vec<String>,
    /// Whether the items contain everything that the store took.
    is_watched: bool,
    /// Whether every execution had time to end: an execution that is still open never will.
    is_at_rest: bool,
}

impl Knowledge for Books {
    fn drawn(&self, draw: &Draw) -> Option<u64> {
        self.drawn.get(draw).copied()
    }

    fn run_count(&self, spot: &Spot) -> u64 {
        self.run_counts.get(spot).copied().unwrap_or_default()
    }

    fn start_of(&self, id: &str) -> Option<&Start> {
        self.pasts.get(id)?.start(1)
    }

    fn slack(&self) -> Duration {
        if self.is_watched { Duration::ZERO } else { SLACK }
    }
}

/// Returns everything that is wrong with a world that has come to its end.
pub(crate) async fn audit(world: &Arc<World>, scenario: &Scenario) -> Vec<String> {
    let mut found = Evidence::of(world, scenario).await.check(scenario);
    found.extend(database::verify(world));
    found
}

/// Returns the operations that the program of an execution waits for, one list for each edition
/// that may run it. The model derives them from the journal.
pub(crate) async fn open_operations(world: &World, found: &Snapshot) -> Option<Vec<Vec<String>>> {
    let (address, run) = (found.execution.address(), found.execution.run());
    let records = recorded_by(&*world.store, address, run).await.ok()?;
    let journal: Vec<Entry> = records.iter().filter_map(|record| record.entry().ok()).collect();
    let id = address.id.to_string();
    let mut runs = vec![Vec::new(); run as usize];
    runs[run as usize - 1] = journal;
    let pasts = BTreeMap::from([(id.clone(), Past::new(id.clone(), found.summary.status, runs))]);
    let items = world.history.lock().items.clone();
    let editions = world.lock().builds.editions.clone();
    editions::open_operations(&Books { editions, ..Books::new(pasts, items) }, &id, run)
}

/// Prints every journal, for a reader who looks into a violation.
impl fmt::Display for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what is recorded:")?;
        for past in self.pasts.values() {
            for (run, journal) in (1..).zip(&past.runs) {
                write!(f, "\n  {:?} run {run}:", past.id)?;
                for entry in journal {
                    let op = entry.event.op().map(ToString::to_string).unwrap_or_default();
                    write!(f, "\n    {} {} {} {op}", entry.seq, entry.at, entry.event.word())?;
                }
            }
        }
        Ok(())
    }
}

/// Reads the records of these executions.
pub(crate) async fn pasts(view: &(impl View + ?Sized), executions: Vec<Listed>) -> BTreeMap<String, Past> {
    let mut pasts = BTreeMap::new();
    for item in executions {
        let mut runs = Vec::new();
        for run in 1..=item.run.unwrap_or_default() {
            let records = recorded_by(view, &item.address, run).await.unwrap_or_default();
            runs.push(records.iter().filter_map(|record| record.entry().ok()).collect());
        }
        let id = item.address.id.to_string();
        pasts.insert(id.clone(), Past::new(id, item.summary.status, runs));
    }
    pasts
}

impl Books {
    pub(crate) fn new(pasts: BTreeMap<String, Past>, items: Vec<Happened>) -> Self {
        let (drawn, run_counts) = (BTreeMap::new(), BTreeMap::new());
        let (authors, editions) = (editions::authors(&items), Vec::new());
        let (damaged, found, is_watched, is_at_rest) = (BTreeSet::new(), Vec::new(), true, true);
        Self { pasts, items, editions, damaged, authors, drawn, run_counts, found, is_watched, is_at_rest }
            .counted()
    }

    /// Creates the books of a world that nobody watched and that may have been interrupted.
    pub(crate) fn unwatched(pasts: BTreeMap<String, Past>, items: Vec<Happened>, is_at_rest: bool) -> Self {
        Self { is_watched: false, is_at_rest, ..Self::new(pasts, items) }
    }

    /// Applies the rules that need only the journals, the actions of closures and the answers to
    /// clients. They hold no matter who wrote these down.
    pub(crate) fn check(&self, scenario: &Scenario) -> Vec<String> {
        let mut found = self.found.clone();
        for past in self.pasts.values() {
            found.extend(journals(past));
            found.extend(children(past, self));
            found.extend(editions::programs(past, self));
        }
        found.extend(names(self));
        found.extend(orders::check(self));
        found.extend(clients::check(self, scenario));
        found.extend(delays::check(self, scenario));
        found
    }

    /// Whether an execution with this id exists.
    fn exists(&self, id: &str) -> bool {
        self.pasts.contains_key(id) || self.damaged.contains(id)
    }

    /// Returns a program as an edition runs it.
    fn edited<'a>(&self, edition: usize, program: &'a Program) -> Cow<'a, Program> {
        match edition.checked_sub(1).and_then(|index| self.editions.get(index)) {
            Some(edition) => Cow::Owned(edition.of(program)),
            None => Cow::Borrowed(program),
        }
    }

    /// Returns the edition that wrote each entry of a run.
    fn authors_of(&self, id: &str, run: u32) -> &[usize] {
        self.authors.get(&(id.to_owned(), run)).map(Vec::as_slice).unwrap_or_default()
    }

    /// Counts closures and collects draws. A draw must return the same number in every replay.
    fn counted(mut self) -> Self {
        let mut found = Vec::new();
        let mut keys: BTreeMap<(&str, usize), &Spot> = BTreeMap::new();
        for item in &self.items {
            match item {
                Happened::Began { closure: Closure { spot, key, .. }, .. } => {
                    *self.run_counts.entry(spot.clone()).or_default() += 1;
                    if keys.insert((key, spot.edition), spot).is_some_and(|other| other != spot) {
                        found.push(format!("the idempotency key {key:?} belongs to two steps"));
                    }
                }
                Happened::Wrong(what) => found.push(what.clone()),
                Happened::Drew { draw, value } => {
                    let before = self.drawn.insert(draw.clone(), *value);
                    if before.is_some_and(|before| before != *value) {
                        found.push(format!("{draw:?} gave another number in a replay"));
                    }
                }
                _ => {}
            }
        }
        self.found = found;
        self
    }
}

/// Checks the rules that need only the journals of one execution.
fn journals(past: &Past) -> Vec<String> {
    let mut found = Vec::new();
    let id = &past.id;
    for (run, journal) in (1..).zip(&past.runs) {
        let mut say = |what: String| found.push(format!("{id:?} run {run}: {what}"));
        let mut delivered = BTreeSet::new();
        let mut attempts: BTreeMap<String, u32> = BTreeMap::new();
        let mut due: BTreeMap<String, i64> = BTreeMap::new();
        for (seq, entry) in (1..).zip(journal) {
            if entry.seq != seq {
                say(format!("entry {seq} has the number {}", entry.seq));
            }
            if entry.event.is_terminal() && seq != journal.len() as u64 {
                say(format!("entry {seq} ends it, but {} follow", journal.len() as u64 - seq));
            }
            let op = entry.event.op().map(ToString::to_string).unwrap_or_default();
            match &entry.event {
                Event::StepRecorded(record) => {
                    let before = attempts.get(&op).copied().unwrap_or(0);
                    if record.attempt != before + 1 {
                        say(format!("{op} is recorded with attempt {}", record.attempt));
                    }
                    if let Outcome::Unrecordable(_) = record.outcome {
                        attempts.remove(&op);
                    }
                }
                // An operator decided that the step runs again, so it may be recorded again.
                Event::Unblocked { remedied: Some(Remedied { remedy: Remedy::Rerun, .. }), .. }
                    if !delivered.remove(&("step-recorded", op.clone())) =>
                {
                    say(format!("{op} was to run again, but had not run"));
                }
                Event::AttemptFailed { attempt, .. } => {
                    let before = attempts.entry(op.clone()).or_default();
                    if *attempt != *before + 1 {
                        say(format!("attempt {attempt} of {op} follows {before}"));
                    }
                    *before = *attempt;
                }
                Event::TimerSet { due_at, .. } => {
                    let before = due.insert(op.clone(), due_at.as_micros());
                    if before.is_some() {
                        say(format!("{op} was set twice"));
                    }
                }
                Event::SignalRejected(rejected) if is_readable(rejected) => {
                    say(format!("{op} set aside what it can read: {rejected}"));
                }
                Event::TimerFired { .. } if due.get(&op).is_none_or(|due| entry.at.as_micros() < *due) => {
                    say(format!("{op} fired before it was due, or was never set"));
                }
                _ => {}
            }
            if is_once(&entry.event) && !delivered.insert((entry.event.word(), op.clone())) {
                say(format!("{op} is recorded twice"));
            }
            if let Event::TimerFired { .. } | Event::SignalReceived { .. } = entry.event
                && !delivered.insert(("signal or timer", op.clone()))
            {
                say(format!("{op} has two outcomes"));
            }
        }
        if !matches!(journal.first().map(|entry| &entry.event), Some(Event::Started(_))) {
            say("it does not begin with its start".to_owned());
        }
    }
    found
}

/// Whether the code could have read a rejected signal. The expected type says whether the code
/// waited for a text or a number.
fn is_readable(rejected: &RejectedSignal) -> bool {
    rejected.expected.ends_with("<true>") == model::is_text_in(&rejected.payload)
}

fn is_once(event: &Event) -> bool {
    matches!(
        event,
        Event::StepRecorded(_)
            | Event::ChildStarted { .. }
            | Event::ChildFinished { .. }
            | Event::ChildCancelled { .. }
    )
}

/// Checks that every child answers or ends with its parent, and that every answer is the end of the
/// child.
fn children(past: &Past, books: &Books) -> Vec<String> {
    let pasts = &books.pasts;
    let mut found = Vec::new();
    for (run, journal) in (1..).zip(&past.runs) {
        let mut started: BTreeMap<String, String> = BTreeMap::new();
        for entry in journal {
            match &entry.event {
                Event::ChildStarted { op, child, .. } => {
                    started.insert(op.child_result().to_string(), child.to_string());
                }
                Event::ChildFinished { op, outcome } => {
                    let id = started.get(&op.to_string());
                    let wrong = match id.and_then(|id| pasts.get(id)) {
                        _ if id.is_some_and(|id| books.damaged.contains(id)) => None,
                        _ if editions::is_changed_child(journal, op, outcome) => None,
                        Some(child) if !child.is_child_of(&past.id, run) => {
                            (!is_refusal(outcome)).then_some("somebody else has its id")
                        }
                        Some(child) if child.ends().flatten().any(|end| answers(end, outcome)) => None,
                        _ => Some("did not end so"),
                    };
                    found.extend(wrong.map(|wrong| {
                        format!("{:?} run {run}: {op} was answered with {outcome}, but {wrong}", past.id)
                    }));
                }
                _ => {}
            }
        }
        let is_over = journal.last().is_some_and(|entry| entry.event.is_terminal());
        for id in started.values() {
            match pasts.get(id) {
                None if books.damaged.contains(id) => {}
                None => found.push(format!("{:?} run {run}: its child {id:?} never existed", past.id)),
                Some(child) if is_over && books.is_at_rest && !child.status.is_terminal() => {
                    found.push(format!(
                        "{:?} run {run} has ended, but its child {id:?} is {}",
                        past.id, child.status
                    ));
                }
                Some(_) => {}
            }
        }
    }
    found
}

/// Checks the child ids that code saw. Such an id is in a `ChildStarted` entry of the journal. If
/// the code ran ahead of its journal and the run was lost, it is an id that the code may have
/// chosen. The code of a start that was refused belongs to no journal.
fn names(books: &Books) -> Vec<String> {
    let mut found = Vec::new();
    for item in &books.items {
        let Happened::Named { parent, run, child } = item else { continue };
        let Some(past) = books.pasts.get(parent) else { continue };
        // A run that was never recorded was lost as a whole.
        let Some(journal) = past.runs.get(*run as usize - 1) else { continue };
        let is_started = |entry: &Entry| match &entry.event {
            Event::ChildStarted { child: id, .. } => id.as_str() == child,
            _ => false,
        };
        let is_own =
            [format!("{parent}/{run}/"), format!("{parent}-{run}-")].iter().any(|own| child.starts_with(own));
        let is_taken = || past.program(*run).is_some_and(|program| program.takes(child));
        let is_tried = || {
            let of_parent = |item: &Happened| matches!(item, Happened::Tried { parent: of, child: id } if of == parent && id == child);
            books.items.iter().any(of_parent)
        };
        if !journal.iter().any(is_started) && !is_own && !is_taken() && !is_tried() {
            found.push(format!("{parent:?} run {run} was told that {child:?} is its child"));
        }
    }
    found
}

/// Whether an outcome is the answer for a child that could not be started.
fn is_refusal(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failure(answer) if answer.kind == FailureKind::Fatal
        && answer.message.contains(" was not started: "))
}

/// Whether this outcome is the answer of a child that ended with this event.
fn answers(end: &Event, outcome: &Outcome) -> bool {
    match (end, outcome) {
        (Event::Completed { result, .. }, Outcome::Success(payload)) => result == payload,
        (Event::Failed(failure), Outcome::Failure(answer)) => failure == answer,
        (Event::Cancelled { .. }, Outcome::Failure(answer)) => answer.kind == FailureKind::Cancelled,
        _ => false,
    }
}

/// Parses the program of a journal; `None` if the journal belongs to other code.
fn program_of(journal: &[Entry]) -> Option<Result<Program, String>> {
    let Some(Entry { event: Event::Started(start), .. }) = journal.first() else { return None };
    let is_program = start.name.as_str() == "program";
    let read = || serde_json::from_slice(start.input.as_bytes()).map_err(|error| error.to_string());
    is_program.then(read)
}

/// Compares the end of a run with the verdict of the model.
fn judge(replayed: &Replayed, journal: &[Entry]) -> Option<String> {
    let (end, verdict) = (&journal.last()?.event, &replayed.verdict);
    if let Event::Completed { unused, .. } = end
        && let Some(wrong) = editions::wrongly_unused(unused, replayed)
    {
        return Some(wrong);
    }
    let is_right = match (end, verdict) {
        // A run fails with its passed deadline, no matter how its code ends.
        (Event::Failed(failure), _) if failure.kind == FailureKind::Deadline && is_overdue(journal) => true,
        (_, _) if is_expired(journal) && end.is_terminal() => ended_from_outside(end, journal),
        (Event::Completed { result, .. }, Verdict::Completed(value)) => model::number(result) == Ok(*value),
        (Event::Failed(failure), Verdict::Failed(number)) => failure.kind as u64 == *number,
        (Event::ContinuedAsNew { input }, Verdict::Continued(next)) => is_program(input, next),
        (Event::Cancelled { .. }, Verdict::Failed(number)) => {
            *number == FailureKind::Cancelled as u64 || ended_from_outside(end, journal)
        }
        (Event::Cancelled { .. }, _) => ended_from_outside(end, journal),
        (end, _) => !end.is_terminal(),
    };
    (!is_right).then(|| format!("it ended with {end:?}, but {verdict:?} is what its journal adds up to"))
}

/// Whether the run was ended from outside, and not because its code let a cancellation through.
fn ended_from_outside(end: &Event, journal: &[Entry]) -> bool {
    let Event::Cancelled { by, reason } = end else { return false };
    let is_phase = |entry: &&Entry| matches!(entry.event, Event::Blocked { .. } | Event::Unblocked { .. });
    let phase = journal.iter().rev().find(is_phase).map(|entry| &entry.event);
    // Blocked code lets nothing through: a second cancellation ends the run, whatever its reason.
    if let Some(Event::Blocked { .. }) = phase {
        return true;
    }
    !journal.iter().any(|entry| match &entry.event {
        Event::CancelRequested { by: asked_by, reason: asked } => asked_by == by && asked == reason,
        _ => false,
    })
}

/// Whether the deadline had passed at the last entry. Once its passing is recorded, a clock that
/// goes back changes nothing.
fn is_overdue(journal: &[Entry]) -> bool {
    let Some((first, last)) = journal.first().zip(journal.last()) else { return false };
    let Event::Started(start) = &first.event else { return false };
    is_expired(journal) || start.deadline_at.is_some_and(|deadline_at| deadline_at <= last.at)
}

fn is_expired(journal: &[Entry]) -> bool {
    journal.iter().any(|entry| matches!(entry.event, Event::DeadlinePassed { .. }))
}

fn is_program(input: &Payload, program: &Program) -> bool {
    serde_json::from_slice::<Program>(input.as_bytes()).is_ok_and(|found| found == *program)
}

/// The begins and ends of runs according to the feed.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Told {
    begins: BTreeMap<(String, u32), u32>,
    ends: BTreeMap<(String, u32), Vec<&'static str>>,
}

impl Told {
    /// Reads the feed to its end.
    pub(crate) async fn read(view: &(impl View + ?Sized), mut from: FeedFrom) -> Self {
        let mut told = Self { begins: BTreeMap::new(), ends: BTreeMap::new() };
        loop {
            let Ok(page) = view.feed(Feed { from, limit: 1_000 }).await else { return told };
            for item in &page.items {
                let run = (item.address.id.to_string(), item.run);
                match item.happening.word() {
                    "began" => *told.begins.entry(run).or_default() += 1,
                    word @ ("completed" | "failed" | "cancelled" | "continued") => {
                        told.ends.entry(run).or_default().push(word);
                    }
                    _ => {}
                }
            }
            from = FeedFrom::After(page.next);
            if page.is_end {
                return told;
            }
        }
    }

    /// Checks that the feed reports one beginning and one end of each run.
    pub(crate) fn check(&self, books: &Books) -> Vec<String> {
        let mut found = Vec::new();
        for past in books.pasts.values() {
            for (run, end) in (1..).zip(past.ends()) {
                let key = (past.id.clone(), run);
                let began = self.begins.get(&key).copied().unwrap_or_default();
                if began != 1 {
                    found.push(format!("the feed tells {began} times that {:?} run {run} began", past.id));
                }
                let told = self.ends.get(&key).map(Vec::as_slice).unwrap_or_default();
                let expected: Vec<_> = end
                    .map(|event| if event.word() == "continued-as-new" { "continued" } else { event.word() })
                    .into_iter()
                    .collect();
                if told != expected {
                    found.push(format!(
                        "the feed tells {told:?} of {:?} run {run}, which ended with {expected:?}",
                        past.id
                    ));
                }
            }
        }
        found
    }
}
