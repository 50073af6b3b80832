//! A database in a folder of its own, and workers that use it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use abide_core::fixture::flow;
use abide_core::{
    Ability, Address, Body, By, Command, Execution, ExecutionId, Kind, Lease, Message, MessageId, Name,
    Namespace, Op, OpKind, Outcome, Payload, SessionId, StepRecord, Version, codec,
};
use abide_sqlite::{Options, SqliteStore, StepConnection};
use abide_store::conformance::{TestClock, block_on};
use abide_store::{
    Beat, Changes, Claim, Claimed, Clock, Commit, CommitOutcome, ExecutionKey, Hold, Leased, Read, Record,
    Result, Retire, Snapshot, Store, Submissions, Submit, Submitted, Target, Transacted, Transaction, View,
    Worker,
};

pub(crate) struct Fixture {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) clock: Arc<TestClock>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder can be made"), clock: TestClock::new() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("abide.db")
    }

    pub(crate) fn open(&self) -> Arc<SqliteStore> {
        self.open_with(Options::default())
    }

    pub(crate) fn open_with(&self, options: Options) -> Arc<SqliteStore> {
        SqliteStore::open(&self.path(), self.clock.clone(), options).expect("the file can be opened")
    }

    /// Opens the file as any other program would.
    pub(crate) fn raw(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.path()).expect("the file can be opened")
    }

    pub(crate) fn seat(&self, store: &Arc<SqliteStore>) -> Seat {
        self.seat_of(store, worker())
    }

    pub(crate) fn seat_of(&self, store: &Arc<SqliteStore>, worker: Worker) -> Seat {
        let registered = block_on(store.register(worker)).expect("a worker is registered");
        Seat { store: store.clone(), clock: self.clock.clone(), session: registered.session, request: 0 }
    }
}

/// Returns the operation with which a parent starts its child.
pub(crate) fn kid() -> Op {
    Op { kind: OpKind::Child, name: name("child"), key: None, nth: 1 }
}

/// Returns the store after this SQL was run on its file.
pub(crate) fn damaged(fixture: &Fixture, store: &Arc<SqliteStore>, damage: &str) -> Arc<SqliteStore> {
    store.close();
    abide_sqlite::flaw::unbind(&fixture.raw());
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    fixture.open()
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub(crate) fn address(id: &str) -> Address {
    Address { namespace: Namespace::default(), id: ExecutionId::new(id).expect("an id") }
}

pub(crate) fn worker() -> Worker {
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: [name("default")].into(),
        runs: [(Kind::Workflow, name("flow"))].into(),
        capabilities: [].into(),
        build: None,
    };
    Worker { name: name("worker"), ability, ttl: Duration::from_secs(10) }
}

pub(crate) fn message(id: &str, to: &str, body: Body) -> Message {
    Message::new(MessageId::new(id), address(to), By::client(), body)
}

pub(crate) fn start(id: &str) -> Message {
    message("start", id, Body::Start(flow().into()))
}

pub(crate) fn signal(id: &str, to: &str) -> Message {
    message(id, to, Body::Signal { name: name("s"), payload: Payload::from("2") })
}

pub(crate) fn submit(store: &Arc<SqliteStore>, messages: Vec<Message>) -> Result<Submissions> {
    block_on(store.submit(Submit { messages, born_to: None, alone: false, stretch: None }))
}

pub(crate) fn look(store: &Arc<SqliteStore>, id: &str) -> Snapshot {
    let read =
        Read { target: Target::Address(address(id)), run: None, from: 1, limit: 10_000, with_inbox: true };
    block_on(store.read(read)).expect("it is read").expect("it exists")
}

pub(crate) fn step(nth: u32) -> Command {
    let op = Op { kind: OpKind::Step, name: name("step"), key: None, nth };
    let outcome = Outcome::Success(Payload::from("3"));
    Command::RecordStep(StepRecord { op, outcome, attempt: 1, input: None })
}

pub(crate) fn complete() -> Command {
    Command::Complete { result: Payload::from("4"), unused: Vec::new() }
}

/// A session.
pub(crate) struct Seat {
    pub(crate) store: Arc<SqliteStore>,
    clock: Arc<TestClock>,
    pub(crate) session: SessionId,
    request: u64,
}

/// An execution that a session holds.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) key: ExecutionKey,
    pub(crate) lease: Lease,
    pub(crate) version: Version,
    pub(crate) execution: Execution,
}

impl From<Leased> for Held {
    fn from(leased: Leased) -> Self {
        let Leased { key, lease, version, execution, .. } = leased;
        Self { key, lease, version, execution }
    }
}

impl Seat {
    /// The seat of a session that was registered before, perhaps in a store that was closed since.
    pub(crate) fn of(fixture: &Fixture, store: &Arc<SqliteStore>, session: SessionId) -> Self {
        Self { store: store.clone(), clock: fixture.clock.clone(), session, request: 0 }
    }

    pub(crate) fn born(&self, id: &str) -> Held {
        let submit =
            Submit { messages: vec![start(id)], born_to: Some(self.session), alone: true, stretch: None };
        match block_on(self.store.submit(submit)).expect("it is started").pop() {
            Some(Submitted::Started(_, Some(leased))) => Held::from(*leased),
            other => panic!("not born leased: {other:?}"),
        }
    }

    pub(crate) fn claim(&mut self, sweep: bool) -> Claimed {
        self.request += 1;
        let claim = Claim {
            session: self.session,
            request: self.request,
            slots: 20_000,
            care_slots: 0,
            with_mail: true,
            sweep,
        };
        block_on(self.store.claim(claim)).expect("a live session may claim")
    }

    /// Claims executions, including those that need care.
    pub(crate) fn claim_with_care(&mut self) -> Vec<Leased> {
        self.request += 1;
        let (session, request) = (self.session, self.request);
        let claim = Claim { session, request, slots: 1_000, care_slots: 1_000, with_mail: true, sweep: true };
        let Claimed { mut leased, care, .. } =
            block_on(self.store.claim(claim)).expect("a live session may claim");
        leased.extend(care);
        leased
    }

    /// Prepares the commit that records `commands`, but does not send it.
    pub(crate) fn draft(&self, held: &mut Held, commands: Vec<Command>) -> Commit {
        let now = self.clock.now();
        let expected = held.version;
        let mut records = Vec::new();
        for command in commands {
            let decision = held.execution.decide(command, now).expect("it may be decided");
            let (entry, _) = decision.record(&mut held.execution, now);
            records.extend(entry.iter().map(Record::of));
        }
        held.version = expected.next();
        Commit {
            key: held.key,
            lease: held.lease,
            expected,
            changes: Arc::new(Changes {
                records: records.into(),
                next: None,
                state: codec::encode(&held.execution),
                summary: held.execution.summary(&[]),
                consumed: Vec::new(),
                outgoing: Vec::new(),
            }),
            born_slots: 0,
            hold: Hold::Keep,
            transaction: None,
            alone: true,
        }
    }

    pub(crate) fn commit(&self, held: &mut Held, commands: Vec<Command>) -> CommitOutcome {
        let draft = self.draft(held, commands);
        block_on(self.store.commit(draft)).expect("it is answered")
    }

    pub(crate) fn record(&self, held: &mut Held, commands: Vec<Command>) {
        match self.commit(held, commands) {
            CommitOutcome::Committed(_) => {}
            CommitOutcome::Fenced(fence) => panic!("fenced: {fence}"),
        }
    }

    /// Records `commands`, ends the run, and begins the next one.
    pub(crate) fn continue_as_new(&self, held: &mut Held, mut commands: Vec<Command>) {
        let (input, now) = (Payload::from("next"), self.clock.now());
        commands.push(Command::ContinueAsNew { input: input.clone() });
        let mut commit = self.draft(held, commands);
        let (next, first) = held.execution.continued(&flow(), input, now);
        held.execution = next;
        let changes = Arc::get_mut(&mut commit.changes).expect("it was not sent yet");
        changes.next = Some(Record::of(&first));
        changes.state = codec::encode(&held.execution);
        changes.summary = held.execution.summary(&[]);
        match block_on(self.store.commit(commit)).expect("it is answered") {
            CommitOutcome::Committed(_) => {}
            CommitOutcome::Fenced(fence) => panic!("fenced: {fence}"),
        }
    }

    /// Prepares a transaction step that runs `work`, and is kept if `work` succeeds.
    pub(crate) fn transaction(
        &self,
        held: &Held,
        work: impl Fn(&StepConnection) -> rusqlite::Result<()> + Send + Sync + 'static,
    ) -> Commit {
        let (before, now) = (held.clone(), self.clock.now());
        let run = move |connection: &dyn std::any::Any| {
            let mut after = before.clone();
            let connection = connection.downcast_ref().expect("an SQLite store hands out its connection");
            let outcome = work(connection);
            let keep = outcome.is_ok();
            let text = outcome.err().map_or_else(|| "ok".to_owned(), |error| error.to_string());
            let op = Op { kind: OpKind::Transaction, name: name("tx"), key: None, nth: 1 };
            let outcome = Outcome::Success(Payload::from(text.as_str()));
            let record = StepRecord { op, outcome, attempt: 1, input: None };
            let decision =
                after.execution.decide(Command::RecordStep(record), now).expect("it may be decided");
            let (entry, _) = decision.record(&mut after.execution, now);
            Transacted {
                keep,
                record: Record::of(&entry.expect("a step is an entry")),
                state: codec::encode(&after.execution),
            }
        };
        let mut held = held.clone();
        Commit { transaction: Some(Transaction(Arc::new(run))), ..self.draft(&mut held, Vec::new()) }
    }

    /// Sends a heartbeat, after which no row is behind its journal, unless there are very many.
    pub(crate) fn beat(&self) {
        block_on(self.store.heartbeat(Beat::of(self.session))).expect("a heartbeat is answered");
    }

    pub(crate) fn retire(&self) {
        let retire = Retire { session: self.session, reason: "done".to_owned() };
        block_on(self.store.retire(retire)).expect("a session may be retired");
    }
}
