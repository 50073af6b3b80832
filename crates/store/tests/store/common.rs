//! Helpers that the tests of this crate share.

use std::time::Duration;

use abide_core::{
    Ability, Address, Body, By, Entry, Execution, ExecutionId, Kind, Message, MessageId, Name, Namespace,
    Payload, Start, Timestamp,
};
use abide_store::Worker;

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn flow() -> Start {
    Start { lane: name("main"), ..abide_core::fixture::flow() }
}

fn address(id: &str) -> Address {
    Address { namespace: Namespace::default(), id: ExecutionId::new(id).expect("an id") }
}

/// Returns a start of workflow `flow`.
pub(crate) fn start(id: &str) -> Message {
    Message::new(MessageId::new("start"), address(id), By::client(), Body::Start(flow().into()))
}

/// Returns a signal.
pub(crate) fn signal(id: &str, to: &str) -> Message {
    let body = Body::Signal { name: name("go"), payload: Payload::from("1") };
    Message::new(MessageId::new(id), address(to), By::client(), body)
}

/// Returns the execution and the first entry that such a start creates.
pub(crate) fn begun(id: &str) -> (Execution, Entry) {
    Execution::start(address(id), flow(), Timestamp::from_millis(0))
}

/// Returns a worker for workflow `flow`.
pub(crate) fn worker() -> Worker {
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: [name("main")].into(),
        runs: [(Kind::Workflow, name("flow"))].into(),
        capabilities: [].into(),
        build: None,
    };
    Worker { name: name("worker"), ability, ttl: Duration::from_secs(10) }
}
