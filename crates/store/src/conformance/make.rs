//! Short ways to make the objects of the cases.

use std::collections::BTreeSet;
use std::time::Duration;

use abide_core::{
    Ability, Address, Body, By, Command, ExecutionId, Kind, Message, MessageId, Name, Namespace, Op, OpKind,
    Outcome, Parent, Payload, Start, StepRecord, Tag, Timestamp,
};

use crate::{List, Worker};

pub(crate) const TTL: Duration = Duration::from_secs(10);

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("cases use good names")
}

pub(crate) fn names(texts: &[&str]) -> BTreeSet<Name> {
    texts.iter().map(|text| name(text)).collect()
}

pub(crate) fn address(id: &str) -> Address {
    let id = ExecutionId::new(id).expect("cases use good ids");
    Address { namespace: Namespace::default(), id }
}

pub(crate) fn tag(key: &str, value: &str) -> Tag {
    Tag { key: name(key), value: name(value) }
}

/// Returns a start of workflow `flow` in lane `main`.
pub(crate) fn flow() -> Start {
    Start { lane: name("main"), ..abide_core::fixture::flow() }
}

/// Returns a start of workflow `flow` that only workers with all of `requires` can run.
pub(crate) fn requiring(requires: &[&str]) -> Start {
    Start { requires: requires.iter().map(|text| name(text)).collect(), ..flow() }
}

/// Returns a start that is delayed until `start_at`.
pub(crate) fn delayed(start_at: Timestamp) -> Start {
    Start { start_at: Some(start_at), ..flow() }
}

/// Returns a start whose outcome `parent` waits for, under the operation `op`.
pub(crate) fn child_of(parent: &str, op: &str) -> Start {
    let op = Op { kind: OpKind::ChildResult, name: name(op), key: None, nth: 1 };
    Start { parent: Some(Parent::new(address(parent).id, 1, op, 2)), ..flow() }
}

/// Returns a worker for workflow `flow` in lane `main`.
pub(crate) fn worker() -> Worker {
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: names(&["main"]),
        runs: [(Kind::Workflow, name("flow"))].into(),
        capabilities: BTreeSet::new(),
        build: None,
    };
    Worker { name: name("worker"), ability, ttl: TTL }
}

/// Returns a worker for workflow `flow` in lane `main` with additional capabilities.
pub(crate) fn capable(capabilities: &[&str]) -> Worker {
    let mut worker = worker();
    worker.ability.capabilities = names(capabilities);
    worker
}

pub(crate) fn message(id: &str, to: &str, body: Body) -> Message {
    Message::new(MessageId::new(id), address(to), by(), body)
}

pub(crate) fn start_of(id: &str, start: Start) -> Message {
    message(&format!("start {id}"), id, Body::Start(start.into()))
}

/// Returns a signal `note` whose payload is its own message id.
pub(crate) fn signal(id: &str, to: &str) -> Message {
    message(id, to, Body::Signal { name: name("note"), payload: Payload::from(id) })
}

pub(crate) fn by() -> By {
    By("ann".into())
}

pub(crate) fn pause(to: &str) -> Message {
    message("pause", to, Body::Pause { reason: "stop".to_owned() })
}

pub(crate) fn resume(to: &str) -> Message {
    message("resume", to, Body::Resume)
}

pub(crate) fn cancel(to: &str) -> Message {
    message("cancel", to, Body::Cancel { reason: "enough".to_owned() })
}

pub(crate) fn terminate(to: &str) -> Message {
    message("terminate", to, Body::Terminate { reason: "enough".to_owned() })
}

pub(crate) fn step(text: &str) -> Command {
    let op = Op { kind: OpKind::Step, name: name(text), key: None, nth: 1 };
    let outcome = Outcome::Success(Payload::from(text));
    Command::RecordStep(StepRecord { op, outcome, attempt: 1, input: None })
}

pub(crate) fn complete() -> Command {
    Command::Complete { result: Payload::from("done"), unused: Vec::new() }
}

/// Asks for every execution, oldest first.
pub(crate) fn everything() -> List {
    List::of(Namespace::default(), 1_000)
}
