//! The common parts of this crate's unit tests.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{
    Ability, Address, Body, By, Command, ExecutionId, Failure, FailureKind, Kind, Message, MessageId, Name,
    Namespace, Op, OpKind, Parent, Payload, SessionId, Start, codec,
};
use abide_store::conformance::{TestClock, block_on};
use abide_store::{
    Changes, Claim, Clock as _, Commit, CommitOutcome, Hold, Leased, Record, Result, Store, Submissions,
    Submit, Worker,
};

use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::writer::Scheduling;
use crate::{Options, SqliteStore};

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// Registers a worker of a lane, with the code of `flow`.
pub(crate) fn register(store: &SqliteStore, lane: &str) -> SessionId {
    block_on(store.register(worker(lane))).expect("a worker is registered").session
}

/// Returns a worker of a lane, with the code of `flow`.
pub(crate) fn worker(lane: &str) -> Worker {
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: [name(lane)].into(),
        runs: [(Kind::Workflow, name("flow"))].into(),
        capabilities: [].into(),
        build: None,
    };
    Worker { name: name("worker"), ability, ttl: Duration::from_secs(10) }
}

pub(crate) fn message(id: &str, to: &str, body: Body) -> Message {
    let to = Address { namespace: Namespace::default(), id: ExecutionId::new(to).expect("an id") };
    Message::new(MessageId::new(id), to, By::client(), body)
}

pub(crate) fn start(store: &SqliteStore, id: &str) {
    submit(store, start_of(id));
}

pub(crate) fn start_of(id: &str) -> Message {
    let start = abide_core::fixture::flow();
    message("start", id, Body::Start(start.into()))
}

pub(crate) fn submit(store: &SqliteStore, message: Message) {
    try_submit(store, message).expect("it is taken");
}

pub(crate) fn try_submit(store: &SqliteStore, message: Message) -> Result<Submissions> {
    block_on(store.submit(Submit { messages: vec![message], born_to: None, alone: false, stretch: None }))
}

/// Opens two stores on one file, as two processes would.
pub(crate) fn pair() -> (tempfile::TempDir, Arc<SqliteStore>, Arc<SqliteStore>) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let open = || {
        SqliteStore::open(&folder.path().join("a.db"), TestClock::new(), Options::default())
            .expect("the file can be opened")
    };
    let (ours, theirs) = (open(), open());
    (folder, ours, theirs)
}

/// Returns a commit that changes nothing but the version.
pub(crate) fn commit_of(leased: &Leased, hold: Hold, outgoing: Vec<Message>) -> Commit {
    let changes = Changes {
        records: Default::default(),
        next: None,
        state: codec::encode(&leased.execution),
        summary: leased.execution.summary(&[]),
        consumed: Vec::new(),
        outgoing,
    };
    Commit {
        key: leased.key,
        lease: leased.lease,
        expected: leased.version,
        changes: Arc::new(changes),
        born_slots: 0,
        hold,
        transaction: None,
        alone: false,
    }
}

/// Returns a claim of one execution.
pub(crate) fn claim_of(session: SessionId) -> Claim {
    Claim { session, request: 1, slots: 1, care_slots: 0, with_mail: false, sweep: false }
}

/// Starts an execution `p` and its child `k`, which the session holds.
pub(crate) fn parent_and_child(store: &SqliteStore, session: SessionId) -> (Leased, Leased) {
    let (parent, mut children) = parent_and_children(store, session, &["k"]);
    (parent, children.remove(0))
}

/// Starts an execution `p` and its children, which the session holds.
pub(crate) fn parent_and_children(
    store: &SqliteStore,
    session: SessionId,
    ids: &[&str],
) -> (Leased, Vec<Leased>) {
    start(store, "p");
    let parent = block_on(store.claim(claim_of(session))).expect("it is answered").leased.remove(0);
    let child = |(id, nth): (&&str, u32)| {
        let op = Op { kind: OpKind::Child, name: name("child"), key: None, nth };
        let of = Parent::new(ExecutionId::new("p").expect("an id"), 1, op.child_result(), 2);
        let start = Start { parent: Some(of), ..abide_core::fixture::flow() };
        message("start", id, Body::Start(start.into()))
    };
    let starts = ids.iter().zip(1..).map(child).collect();
    let commit = Commit { born_slots: ids.len(), ..commit_of(&parent, Hold::Keep, starts) };
    match block_on(store.commit(commit)).expect("it is answered") {
        CommitOutcome::Committed(committed) => {
            (parent, committed.born.into_iter().map(|born| *born).collect())
        }
        CommitOutcome::Fenced(fence) => panic!("fenced: {fence}"),
    }
}

/// Returns a commit that completes a child, with its answer.
pub(crate) fn end_of(child: Leased) -> Commit {
    ended_by(child, Command::Complete { result: Payload::from("4"), unused: Vec::new() })
}

/// Returns a commit that fails a child, with its answer.
pub(crate) fn failure_of(child: Leased) -> Commit {
    ended_by(child, Command::Fail(Failure::new(FailureKind::Error, "no")))
}

fn ended_by(mut child: Leased, command: Command) -> Commit {
    let now = TestClock::new().now();
    let decision = child.execution.decide(command, now).expect("it may end");
    let outgoing = decision.outgoing.clone().into_iter().collect();
    let (entry, _) = decision.record(&mut child.execution, now);
    let mut commit = commit_of(&child, Hold::Keep, outgoing);
    Arc::make_mut(&mut commit.changes).records = entry.iter().map(Record::of).collect();
    commit
}

/// Runs a function inside a transaction of the writer.
pub(crate) fn inside<T: Send + 'static>(
    store: &SqliteStore,
    work: impl FnMut(&mut Batch<'_>) -> std::result::Result<T, Stop> + Send + 'static,
) -> Result<T> {
    block_on(store.write(Inside(Box::new(work)), Scheduling::Queued))
}

type Work<T> = dyn FnMut(&mut Batch<'_>) -> std::result::Result<T, Stop> + Send;

struct Inside<T>(Box<Work<T>>);

impl<T: Send + 'static> Operation for Inside<T> {
    type Output = T;
    const WHAT: &'static str = "test";

    fn apply(&mut self, batch: &mut Batch<'_>) -> std::result::Result<T, Stop> {
        self.0(batch)
    }
}
