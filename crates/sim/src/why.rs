//! Checks whether `why` is true. Its sentence is compared with the simulator's own knowledge: the
//! live machines, the holders of leases, and the operations that a program waits for according to
//! the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide::prelude::*;
use abide_store::{ExecutionKey, Snapshot};

use crate::audit;
use crate::generate::SESSION_TTL_MS;
use crate::history::{Answer, Happened, Ready};
use crate::world::World;

/// How long a dead machine may still count as alive: the life of its session, plus the difference
/// of clocks.
pub(crate) const BELIEVED_MS: u64 = SESSION_TTL_MS + 10_000;

/// The states in which an execution stands still, and the words of `why` for each.
const STATES: [(Status, &str); 5] = [
    (Status::Completed, " completed at "),
    (Status::Failed, " failed at "),
    (Status::Cancelled, " was cancelled at "),
    (Status::Paused, " is paused"),
    (Status::Blocked, " is blocked"),
];

/// The execution that `why` was asked about and the queue for workers, both before the answer.
pub(crate) struct Asked(Snapshot, Vec<(ExecutionKey, Ready)>);

impl World {
    /// Records the state of the execution before `why` is asked.
    pub(crate) fn before_why(&self, id: Option<&str>) -> Option<Asked> {
        Some(Asked(self.now(id?)?, self.ready()))
    }

    /// Compares the sentence with the known state, unless that has changed meanwhile.
    pub(crate) async fn after_why(self: &Arc<Self>, asked: Option<Asked>, answer: &Answer) {
        let (Some(Asked(before, queue)), Answer::Told(sentence)) = (asked, answer) else { return };
        let ended = awaited_child(sentence).and_then(|id| self.now(id)).filter(is_over);
        let id = before.execution.address().id.clone();
        let Some(after) = self.now(id.as_str()) else { return };
        let is_same = before.lease == after.lease;
        if !is_same || before.ready_at != after.ready_at || before.summary.status != after.summary.status {
            return;
        }
        if own_words(sentence).contains(" is damaged") {
            if !self.lock().damage.ids.contains(id.as_str()) {
                self.history
                    .add(Happened::Wrong(format!("why says {sentence:?}, but nobody has damaged it")));
            }
            return;
        }
        let mut untrue = self.untrue(sentence, &after);
        if untrue.is_none() && queue == self.ready() {
            untrue = wrong_place(sentence, &after, &queue);
        }
        // Of an execution that rests after deaths, `why` reports its activity when its worker died.
        let is_after_deaths = own_words(sentence).contains(" is resting until ");
        if untrue.is_none() && is_resting(&after) && !is_after_deaths {
            untrue = match ended {
                Some(child) => Some(format!("{:?} has ended", child.execution.address().id)),
                None => self.unwanted(sentence, &after).await,
            };
        }
        if let Some(untrue) = untrue {
            self.history.add(Happened::Wrong(format!("why says {sentence:?}, but {untrue}")));
        }
    }

    /// Returns the contradiction between the sentence and the known state or holder.
    fn untrue(&self, sentence: &str, found: &Snapshot) -> Option<String> {
        let (status, own) = (found.summary.status, own_words(sentence));
        let is_told = |of: &Status| STATES.iter().any(|(known, word)| known == of && own.contains(word));
        let is_state = STATES.iter().any(|(known, _)| *known == status);
        let is_other = STATES.iter().any(|(known, _)| *known != status && is_told(known));
        if is_other || is_state != is_told(&status) {
            return Some(format!("it is {status}"));
        }
        self.untrue_holder(sentence, found).filter(|_| !is_state)
    }

    fn untrue_holder(&self, sentence: &str, found: &Snapshot) -> Option<String> {
        let own = own_words(sentence);
        let told = [" is running on worker \"worker-", ", held by worker \"worker-"];
        let (_, rest) = told.iter().find_map(|words| own.split_once(words))?;
        let machine: u32 = rest.split('"').next()?.parse().ok()?;
        let state = self.lock();
        if let Some(holder) = state.held.get(&found.key).filter(|holder| **holder != machine) {
            return Some(format!("machine {holder} holds it"));
        }
        let died_at = state.deaths.get(&machine)?;
        let ago_ms = (self.now_micros() - died_at) / 1_000;
        (ago_ms > BELIEVED_MS as i64).then(|| format!("that machine died {ago_ms} ms ago"))
    }

    /// Returns the contradiction between the waits in the sentence and the waits of the program
    /// according to the model.
    async fn unwanted(self: &Arc<Self>, sentence: &str, found: &Snapshot) -> Option<String> {
        let own = own_words(sentence);
        let told = told_waits(own);
        if told.is_empty() {
            return None;
        }
        let open = audit::open_operations(self, found).await?;
        // `why` prints only the name of an operation with a key.
        let is_told = |op: &String, told: &String| {
            op.starts_with(told) || op.starts_with(&format!("{}[", told.trim_end_matches('"')))
        };
        let waits = |open: &Vec<String>| told.iter().all(|told| open.iter().any(|op| is_told(op, told)));
        let is_true = open.is_empty() || open.iter().any(waits);
        (!is_true).then(|| format!("its program waits for {open:?}"))
    }
}

/// Returns the part about the execution itself, without the child that it waits for.
fn own_words(sentence: &str) -> &str {
    sentence.split(", which ").next().unwrap_or_default()
}

/// Returns the quoted words that follow these.
fn quoted<'a>(sentence: &'a str, words: &str) -> Option<&'a str> {
    let (_, rest) = sentence.split_once(words)?;
    rest.split('"').next()
}

fn awaited_child(sentence: &str) -> Option<&str> {
    quoted(own_words(sentence), "waiting for child \"")
}

/// Returns the waits in a sentence, as prefixes of the model's names for them.
fn told_waits(own: &str) -> Vec<String> {
    let signal = quoted(own, "waiting for signal \"").map(|name| format!("(\"signal\", {name:?}"));
    let attempt = own.split_once(" for attempt ").and_then(|(_, rest)| quoted(rest, " of \""));
    let attempt = attempt.map(|name| format!("(\"step\", {name:?}"));
    let child = awaited_child(own).map(|_| "(\"result\"".to_owned());
    let sleep = own.contains("sleeping until ").then(|| "(\"timer\"".to_owned());
    [signal, attempt, child, sleep].into_iter().flatten().collect()
}

/// Whether an execution has no holder and is not ready for one.
fn is_resting(found: &Snapshot) -> bool {
    found.lease.session.is_none()
        && found.ready_at.is_none()
        && matches!(found.summary.status, Status::Waiting | Status::Sleeping)
}

fn is_over(found: &Snapshot) -> bool {
    found.summary.status.is_terminal()
}

/// Returns the contradiction between the sentence and the number of executions ahead in the queue.
fn wrong_place(sentence: &str, found: &Snapshot, queue: &[(ExecutionKey, Ready)]) -> Option<String> {
    let own = own_words(sentence);
    let told: usize = match own.split_once(" behind ") {
        Some((_, rest)) => rest.split(' ').next()?.parse().ok()?,
        None if own.contains(" and next in its queue ") => 0,
        None => return None,
    };
    let (_, this) = queue.iter().find(|(key, _)| *key == found.key)?;
    let is_alike = |other: &&Ready| {
        (&other.name, &other.lane, &other.requires) == (&this.name, &this.lane, &this.requires)
    };
    let rank = |ready: &Ready| (-i32::from(ready.priority), ready.since.map(|(at, _)| at));
    let others = queue.iter().filter(|(key, _)| *key != found.key).map(|(_, other)| other);
    let ahead = others.filter(is_alike).filter(|other| rank(other) < rank(this)).count();
    (ahead != told).then(|| format!("{ahead} are before it"))
}

/// The time of death of each machine.
pub(crate) type Deaths = BTreeMap<u32, i64>;
