//! Rules for the order in which things happened: one writer per epoch, nothing after the end, no
//! closure after its record, signals in the order of arrival.

use std::collections::{BTreeMap, BTreeSet};

use abide_core::{Body, Event, OpKind, Remedied, Remedy, SessionId};
use abide_store::ExecutionKey;

use super::causes::{CurrentRuns, Run};
use super::{Books, Commit, Happened};
use crate::history::key_of;
use crate::model;

pub(super) fn check(books: &Books) -> Vec<String> {
    let (mut book, mut place) = (Book::default(), CurrentRuns::default());
    for item in &books.items {
        place.follow(item, |run, commit| book.committed(run, commit));
        match item {
            Happened::Leased { machine, session, key, id, epoch, .. } => {
                book.leased((*machine, id.clone()), *session, (*key, *epoch));
            }
            Happened::Began { machine, closure, .. } => {
                book.began(*machine, &closure.spot.id, &closure.key);
            }
            _ => {}
        }
    }
    let mut found = book.found;
    found.extend(signals(books));
    found
}

#[derive(Default)]
struct Book {
    found: Vec<String>,
    /// The session that was granted each epoch.
    epochs: BTreeMap<(ExecutionKey, u64), SessionId>,
    /// The newest epoch that each machine knows of.
    known_epochs: BTreeMap<(u32, String), u64>,
    /// The name of the last commit of each execution.
    last: BTreeMap<ExecutionKey, (u64, u64)>,
    /// The runs that have ended.
    ended: BTreeSet<(ExecutionKey, u32)>,
    /// The epoch under which the outcome of a step was recorded, by idempotency key.
    recorded: BTreeMap<String, u64>,
}

impl Book {
    fn leased(&mut self, by: (u32, String), session: SessionId, (key, epoch): (ExecutionKey, u64)) {
        let before = self.epochs.insert((key, epoch), session);
        if before.is_some_and(|before| before != session) {
            self.found.push(format!("epoch {epoch} of {key:?} was given to two sessions"));
        }
        let known = self.known_epochs.entry(by).or_default();
        *known = epoch.max(*known);
    }

    fn committed(&mut self, run: Run, commit: &Commit) {
        let (Commit { key, epoch, expected, .. }, id) = (commit, &run.0);
        if let Some((last_epoch, last_expected)) = self.last.insert(*key, commit.name()) {
            if *epoch < last_epoch {
                self.found
                    .push(format!("{id:?}: a commit of epoch {epoch} was taken after one of {last_epoch}"));
            }
            if *expected <= last_expected {
                self.found.push(format!("{id:?}: a commit at version {expected} follows {last_expected}"));
            }
        }
        if self.epochs.get(&(*key, *epoch)).is_some_and(|session| *session != commit.session) {
            self.found
                .push(format!("{id:?}: session {} wrote in an epoch that is not its own", commit.session));
        }
        for entry in &commit.entries {
            if self.ended.contains(&(*key, run.1)) {
                self.found.push(format!("{id:?}: {} was written after its end", entry.event.word()));
            }
            if entry.event.is_terminal() {
                self.ended.insert((*key, run.1));
            }
            // A step and a transaction of one name have the same key, and only steps begin here.
            if let Event::StepRecorded(record) = &entry.event
                && record.op.kind == OpKind::Step
            {
                let step = key_of(id, run.1, &record.op);
                self.recorded.insert(step, *epoch);
            }
            if let Event::Unblocked { remedied: Some(Remedied { op, remedy: Remedy::Rerun, .. }), .. } =
                &entry.event
            {
                self.recorded.remove(&key_of(id, run.1, op));
            }
        }
    }

    /// Checks that a closure does not run on a machine that knows of its record. A machine knows of
    /// a record that was made before its own lease or by the machine itself.
    fn began(&mut self, machine: u32, id: &str, step: &str) {
        let Some(epoch) = self.recorded.get(step) else { return };
        let known = self.known_epochs.get(&(machine, id.to_owned())).copied().unwrap_or(0);
        if known >= *epoch {
            self.found.push(format!("{step} ran on machine {machine} after its result was recorded"));
        }
    }
}

/// Checks that executions receive or set aside signals in the order in which the store took them,
/// each once.
fn signals(books: &Books) -> Vec<String> {
    let mut taken: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    for item in &books.items {
        if let Happened::Accepted { message } = item
            && let Body::Signal { name, payload } = &message.body
        {
            let value = model::number(payload).unwrap_or_default();
            taken.entry((message.to.id.to_string(), name.to_string())).or_default().push(value);
        }
    }
    let mut found = Vec::new();
    for past in books.pasts.values() {
        let mut received: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for entry in past.runs.iter().flatten() {
            if let Some((op, payload)) = model::taken_signal(&entry.event) {
                received
                    // A renamed wait takes the signals of its old name.
                    .entry(op.name.as_str().trim_end_matches('n').to_owned())
                    .or_default()
                    .push(model::number(payload).unwrap_or_default());
            }
        }
        for (name, values) in received {
            let sent = taken.get(&(past.id.clone(), name.clone())).cloned().unwrap_or_default();
            if !sent.starts_with(&values) {
                found.push(format!(
                    "{:?} received {values:?} as {name:?}, but {sent:?} is what came",
                    past.id
                ));
            }
        }
    }
    found
}
