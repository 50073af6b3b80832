//! The start of an execution.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::grow::growable;
use crate::planted::{Bug, planted};
use crate::text::Digits;
use crate::{
    Bounds, ContentHash, Entry, Event, ExecutionId, Fingerprint, InvalidName, Kind, Name, Op, OpKind,
    Payload, Refusal, Retry, Timestamp,
};

/// All options of a start. It becomes the first entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Workflow or task.
    pub kind: Kind,
    /// The name it is registered under.
    pub name: Name,
    /// The argument of the call.
    pub input: Payload,
    /// The hash by which the input is compared with the input of another start.
    pub input_hash: ContentHash,
    /// The queue it waits in.
    pub lane: Name,
    /// The capabilities that a worker must have to take it.
    pub requires: Vec<Name>,
    /// Higher goes first within a lane.
    pub priority: i16,
    /// The earliest time at which it begins.
    pub start_at: Option<Timestamp>,
    /// The time by which it must finish. Otherwise it fails.
    pub deadline_at: Option<Timestamp>,
    /// The policy for retries, for a task.
    pub retry: Option<Retry>,
    /// The tags by which it can be found.
    pub tags: Vec<Tag>,
    /// The parent that waits for its outcome.
    pub parent: Option<Parent>,
    /// When it was discarded, because it was damaged. Its progress is lost and its runs are counted
    /// anew. If its input could not be read, the input is now `null`, which no caller passed.
    pub discarded_at: Option<Timestamp>,
    /// The names that its code was registered under before.
    pub old_names: Option<Vec<Name>>,
}

growable!(Start {
    fields: kind, name, input, input_hash, lane, requires, priority, start_at, deadline_at, retry, tags, parent;
    gained: 1 => discarded_at, 2 => old_names;
});

/// A name and a value that executions can be found by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// The name.
    pub key: Name,
    /// The value.
    pub value: Name,
}

impl Tag {
    /// Checks that no key occurs twice: an execution is found by one value of each.
    pub fn check_keys(tags: &[Self]) -> Result<(), InvalidName> {
        if tags.len() < 2 {
            return Ok(());
        }
        let mut known = BTreeSet::new();
        match tags.iter().find(|tag| !known.insert(&tag.key) && !planted(Bug::TagTwiceTaken)) {
            Some(tag) => Err(InvalidName::because("tag key", tag.key.as_str(), "is given twice")),
            None => Ok(()),
        }
    }
}

/// The execution that started another one and waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its id, in the same namespace.
    pub id: ExecutionId,
    /// Its run: a later run does not get an earlier one's answers.
    pub run: u32,
    /// Its wait for the result.
    pub op: Op,
    /// The number of the parent's entry that started the child. Earlier orders of the parent are
    /// not for this child.
    pub entry: u64,
    /// The number of its last order that earlier runs of the child have heard.
    pub heard: Option<u64>,
}

growable!(Parent {
    fields: id, run, op, entry;
    gained: 1 => heard;
});

impl Parent {
    /// Creates the parent of the first run of a child.
    pub fn new(id: ExecutionId, run: u32, op: Op, entry: u64) -> Self {
        Self { id, run, op, entry, heard: None }
    }

    /// Returns the parent of a child whose own record of it is lost, from the journal of the
    /// parent's run.
    ///
    /// Several starts may name the child. All but one found its id taken, and have that as their
    /// outcome. So the child came from the first start without an outcome.
    pub fn told_by((id, run): (ExecutionId, u32), journal: &[Entry], child: &ExecutionId) -> Option<Self> {
        let starts = journal.iter().filter_map(|entry| match &entry.event {
            Event::ChildStarted { op, child: started, .. } if started == child => {
                Some((op.child_result(), entry.seq))
            }
            _ => None,
        });
        let is_open = |wait: &Op| {
            let ends = |event: &Event| matches!(event, Event::ChildFinished { op, .. } if op == wait);
            !journal.iter().any(|entry| ends(&entry.event))
        };
        let mut starts: Vec<(Op, u64)> = starts.collect();
        let own = starts.iter().position(|(wait, _)| is_open(wait)).unwrap_or(0);
        (own < starts.len()).then(|| starts.swap_remove(own)).map(|(op, entry)| Self::new(id, run, op, entry))
    }

    /// Whether both are the same wait of the same run.
    fn is(&self, other: &Self) -> bool {
        (&self.id, self.run, &self.op) == (&other.id, other.run, &other.op)
    }
}

impl Start {
    /// Creates a start with default options: in lane `default`, at once, and without a parent. Its
    /// input is compared byte for byte.
    pub fn of(kind: Kind, name: Name, input: Payload) -> Self {
        Self {
            kind,
            name,
            input_hash: ContentHash::of(input.as_bytes()),
            input,
            lane: Name::new("default").expect("a literal name"),
            requires: Vec::new(),
            priority: 0,
            start_at: None,
            deadline_at: None,
            retry: None,
            tags: Vec::new(),
            parent: None,
            discarded_at: None,
            old_names: None,
        }
    }

    /// Returns the same start with another input, which is compared byte for byte.
    pub fn with_input(self, input: Payload) -> Self {
        Self { input_hash: ContentHash::of(input.as_bytes()), input, ..self }
    }

    /// Whether both start the same code, which may have been renamed between them.
    fn is_same_code(&self, other: &Self) -> bool {
        let has_been = |one: &Self, name: &Name| one.old_names.iter().flatten().any(|old| old == name);
        self.kind == other.kind
            && (self.name == other.name || has_been(self, &other.name) || has_been(other, &self.name))
    }

    /// Returns the parent's record of the input.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::new(self.input_hash, &self.input)
    }

    /// Whether an execution may begin like this once more. A discarded execution may not: it would
    /// use keys and ids of its lost runs a second time.
    pub(crate) fn may_be_repeated(&self) -> Result<(), Refusal> {
        if self.discarded_at.is_some() { Err(Refusal::Discarded) } else { Ok(()) }
    }

    /// Checks everything that has a limit.
    pub fn check(&self, bounds: &Bounds) -> Result<(), Refusal> {
        bounds.check_payload(format_args!("the input of {:?}", self.name), &self.input)?;
        bounds.check("tag_count_max", "the number of tags", (self.tags.len(), bounds.tag_count_max))?;
        Tag::check_keys(&self.tags)?;
        let required = (self.requires.len(), bounds.requires_count_max);
        bounds.check("requires_count_max", "the number of required capabilities", required)?;
        Ok(())
    }
}

/// The comparison of a start with an existing execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartMatch {
    /// The same code and input: the caller attaches to the existing execution.
    Attach,
    /// Another execution has the id.
    Conflict(Refusal),
}

/// Compares a start with the one that an existing execution began with.
///
/// Only the code, the input and the parent count. Lane, priority or tags of a repeated start may
/// differ, because retrying callers compute delays and deadlines anew.
pub fn start_matches(id: &ExecutionId, existing: &Start, requested: &Start) -> StartMatch {
    let same = existing.may_be_repeated().is_ok()
        && existing.is_same_code(requested)
        && existing.input_hash == requested.input_hash
        && match (&existing.parent, &requested.parent) {
            (Some(existing), Some(requested)) => existing.is(requested),
            (existing, requested) => existing.is_none() && requested.is_none(),
        };
    if same || planted(Bug::TakenIdAttached) {
        return StartMatch::Attach;
    }
    let (existing, requested) = (describe(existing), describe(requested));
    StartMatch::Conflict(Refusal::Conflict { id: id.clone(), existing, requested })
}

/// Describes everything that is compared, so that two different starts have different descriptions.
fn describe(start: &Start) -> String {
    let parent = start.parent.as_ref().map(|Parent { id, run, op, .. }| {
        let op = Op { kind: OpKind::Child, ..op.clone() };
        format!(" as child of {id:?} (run {run}, {op})")
    });
    let (parent, kind, name) = (parent.unwrap_or_default(), start.kind.word(), &start.name);
    if start.may_be_repeated().is_err() {
        return format!("{kind} {name:?}{parent}, which was damaged and discarded");
    }
    format!("{kind} {name:?} with input {}{parent}", start.input.excerpt())
}

/// Returns the id of a child whose start names none: unique to the parent, its run and the
/// operation.
pub fn child_id(parent: &ExecutionId, run: u32, op: &Op) -> ExecutionId {
    op.path_behind([parent.as_str(), "/", Digits::of(run).as_str(), "/"], ExecutionId::composed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, FailureKind, Outcome};

    fn id(text: &str) -> ExecutionId {
        ExecutionId::new(text).expect("an id")
    }

    fn op(nth: u32) -> Op {
        Op { kind: OpKind::Child, name: Name::new("kid").expect("a name"), key: None, nth }
    }

    fn started(nth: u32, child: &str) -> Event {
        let input = Fingerprint::of(&Payload::from("1"));
        Event::ChildStarted { op: op(nth), child: id(child), input: input.into() }
    }

    fn ended(nth: u32) -> Event {
        let outcome = Outcome::Failure(Failure::new(FailureKind::Error, "its id is taken"));
        Event::ChildFinished { op: op(nth).child_result(), outcome }
    }

    fn given_up(nth: u32) -> Event {
        Event::ChildCancelled { op: op(nth).child_result() }
    }

    #[test]
    fn a_parent_tells_which_of_its_waits_is_for_a_child() {
        let rows = [
            (vec![], None),
            (vec![started(1, "b")], None),
            (vec![started(1, "b"), started(2, "a")], Some((2, 2))),
            (vec![started(1, "a"), ended(1), started(2, "a")], Some((2, 3))),
            (vec![started(1, "a"), started(2, "a"), ended(2)], Some((1, 1))),
            (vec![started(1, "a"), started(2, "a")], Some((1, 1))),
            (vec![started(1, "a"), given_up(1)], Some((1, 1))),
            (vec![started(1, "a"), ended(1)], Some((1, 1))),
        ];
        for (events, told) in rows {
            let entry = |(event, seq)| Entry::new(seq, Timestamp::default(), event);
            let journal: Vec<Entry> = events.into_iter().zip(1..).map(entry).collect();
            let expected = told.map(|(nth, entry)| Parent::new(id("boss"), 3, op(nth).child_result(), entry));
            assert_eq!(Parent::told_by((id("boss"), 3), &journal, &id("a")), expected, "{journal:?}");
        }
    }
}
