//! What an execution begins with.

use serde::{Deserialize, Serialize};

use crate::grow::growable;
use crate::{ExecutionId, Kind, Limits, Name, Op, OpKind, Payload, Refusal, Retry, Timestamp};

/// Everything that is said when an execution is started. It becomes the first entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Workflow or task.
    pub kind: Kind,
    /// The name it is registered under.
    pub name: Name,
    /// What it is called with.
    pub input: Payload,
    /// The queue it waits in.
    pub lane: Name,
    /// What a worker must be able to do to take it.
    pub requires: Vec<Name>,
    /// Higher goes first within a lane.
    pub priority: i16,
    /// Not before this.
    pub start_at: Option<Timestamp>,
    /// Failed if not finished by then.
    pub deadline_at: Option<Timestamp>,
    /// For a task: when to try again.
    pub retry: Option<Retry>,
    /// What it can be found by.
    pub tags: Vec<Tag>,
    /// Who waits for its outcome.
    pub parent: Option<Parent>,
}

growable!(Start {
    fields: kind, name, input, lane, requires, priority, start_at, deadline_at, retry, tags, parent;
    gained: ;
});

/// A name and a value that executions can be found by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// The name.
    pub key: Name,
    /// The value.
    pub value: Name,
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
    /// The number of its entry that says that it started the child. Orders that it gave before are not for this one.
    pub entry: u64,
    /// The number of its last order that earlier runs of the child have heard.
    pub heard: Option<u64>,
}

growable!(Parent {
    fields: id, run, op, entry;
    gained: 1 => heard;
});

impl Parent {
    /// Of the first run of a child.
    pub fn new(id: ExecutionId, run: u32, op: Op, entry: u64) -> Self {
        Self { id, run, op, entry, heard: None }
    }

    /// Whether both are the same wait of the same run.
    fn is(&self, other: &Self) -> bool {
        (&self.id, self.run, &self.op) == (&other.id, other.run, &other.op)
    }
}

impl Start {
    /// A start that says no more than what is to run: in lane `default`, at once, and for nobody.
    pub fn of(kind: Kind, name: Name, input: Payload) -> Self {
        Self {
            kind,
            name,
            input,
            lane: Name::new("default").expect("a literal name"),
            requires: Vec::new(),
            priority: 0,
            start_at: None,
            deadline_at: None,
            retry: None,
            tags: Vec::new(),
            parent: None,
        }
    }

    /// Checks everything that has a limit.
    pub fn check(&self, limits: &Limits) -> Result<(), Refusal> {
        limits.check_payload(format_args!("the input of {:?}", self.name), &self.input)?;
        limits.check("tag_count_max", "the number of tags", (self.tags.len(), limits.tag_count_max))?;
        let required = (self.requires.len(), limits.requires_count_max);
        limits.check("requires_count_max", "the number of required capabilities", required)?;
        Ok(())
    }
}

/// Whether a start finds its execution there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartMatch {
    /// The same workflow and input: the caller is attached to what exists.
    Attach,
    /// Something else has the id.
    Conflict(Refusal),
}

/// Compares a start with the one that an existing execution began with.
///
/// Only what is executed counts: lane, priority or tags of a repeated start may differ, because retrying callers
/// compute delays and deadlines anew.
pub fn start_matches(id: &ExecutionId, existing: &Start, requested: &Start) -> StartMatch {
    let same = existing.kind == requested.kind
        && existing.name == requested.name
        && existing.input == requested.input
        && match (&existing.parent, &requested.parent) {
            (Some(existing), Some(requested)) => existing.is(requested),
            (existing, requested) => existing.is_none() && requested.is_none(),
        };
    if same {
        return StartMatch::Attach;
    }
    let (existing, requested) = (describe(existing), describe(requested));
    StartMatch::Conflict(Refusal::Conflict { id: id.clone(), existing, requested })
}

/// Everything that is compared, so that two that differ differ in words too.
fn describe(start: &Start) -> String {
    let parent = start.parent.as_ref().map(|Parent { id, run, op, .. }| {
        let op = Op { kind: OpKind::Child, ..op.clone() };
        format!(" as child of {id:?} (run {run}, {op})")
    });
    let parent = parent.unwrap_or_default();
    format!("{} {:?} with input {}{parent}", start.kind.word(), start.name, start.input.excerpt())
}

/// The id of a child that was not given one: unique to the parent, its run and the operation.
pub fn child_id(parent: &ExecutionId, run: u32, op: &Op) -> ExecutionId {
    // Not by `format!`: see `Execution::message_to`.
    let (run, nth) = (run.to_string(), op.nth.to_string());
    ExecutionId::composed(&[parent.as_str(), "/", &run, "/", op.name.as_str(), "/", &nth].concat())
}
