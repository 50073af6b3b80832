//! How fast the store commits: `probe URL` prints commits a second of one execution and of 64 at a
//! time, and starts a second. It makes a schema `abide_probe` and leaves it there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abide_core::{
    Ability, Address, Body, By, Command, Execution, ExecutionId, Kind, Message, MessageId, Name, Namespace,
    Op, OpKind, Outcome, Payload, SessionId, StepRecord, Timestamp, codec,
};
use abide_postgres::{Options, PostgresStore};
use abide_store::conformance::block_on;
use abide_store::{
    Changes, Clock, Commit, CommitOutcome, Hold, Leased, Record, Store, Submit, Submitted, Worker,
};

/// A clock that stands still: nothing here waits for a time.
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000)
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

fn start(id: &str, session: SessionId) -> Submit {
    let to = Address { namespace: Namespace::default(), id: ExecutionId::new(id).expect("a good id") };
    let body = Body::Start(abide_core::fixture::flow().into());
    let messages = vec![Message::new(MessageId::of_start(), to, By("probe".into()), body)];
    Submit { messages, born_to: Some(session), alone: true, stretch: None }
}

fn begin(store: &PostgresStore, id: &str, session: SessionId) -> Leased {
    let mut submitted = block_on(store.submit(start(id, session))).expect("it is taken");
    match submitted.remove(0) {
        Submitted::Started(_, Some(leased)) => *leased,
        other => panic!("expected a newborn, found {other:?}"),
    }
}

/// Returns the commit of one more command.
fn commit(leased: &Leased, execution: &mut Execution, command: Command) -> Commit {
    let decision = execution.decide(command, Still.now()).expect("it is possible");
    let (entries, _) = decision.record(execution, Still.now());
    Commit {
        key: leased.key,
        lease: leased.lease,
        expected: leased.version,
        changes: Arc::new(Changes {
            records: entries.iter().map(Record::of).collect(),
            next: None,
            state: codec::encode(execution),
            summary: execution.summary(&[]),
            consumed: Vec::new(),
            outgoing: Vec::new(),
        }),
        born_slots: 0,
        hold: Hold::Keep,
        transaction: None,
        alone: false,
    }
}

fn step(nth: u32) -> Command {
    let op = Op { kind: OpKind::Step, name: name("step"), key: None, nth };
    let outcome = Outcome::Success(Payload::from("\"result\""));
    Command::RecordStep(StepRecord { op, outcome, attempt: 1, input: None })
}

/// Starts an execution, commits steps and ends it.
fn live(store: &PostgresStore, id: &str, (session, step_count): (SessionId, u32)) {
    let mut leased = begin(store, id, session);
    let mut execution = leased.execution.clone();
    let end = Command::Complete { result: Payload::from("1"), unused: Vec::new() };
    for command in (1..=step_count).map(step).chain([end]) {
        let commit = commit(&leased, &mut execution, command);
        let outcome = block_on(store.commit(commit)).expect("it is answered");
        assert!(matches!(outcome, CommitOutcome::Committed(_)), "{outcome:?}");
        leased.version = leased.version.next();
    }
}

#[expect(clippy::disallowed_methods, reason = "the probe measures real time")]
fn measure(store: &PostgresStore, session: SessionId, (round, live_count, step_count): (&str, u32, u32)) {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for n in 0..live_count {
            let id = [round, " ", &n.to_string()].concat();
            scope.spawn(move || live(store, &id, (session, step_count)));
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let commits = f64::from(live_count) * f64::from(step_count + 2);
    println!("{live_count:>4} at a time, {step_count:>5} steps each: {:>8.0} writes/s", commits / seconds);
}

fn main() {
    let url = std::env::args().nth(1).expect("the URL of a database");
    let separator = if url.contains('?') { "&" } else { "?" };
    let url = [&url, separator, "schema=abide_probe"].concat();
    let store = PostgresStore::open(&url, Arc::new(Still), Options::default()).expect("it can be opened");
    let start = abide_core::fixture::flow();
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: [start.lane].into(),
        runs: [(Kind::Workflow, start.name)].into(),
        capabilities: BTreeSet::new(),
        build: None,
    };
    let worker = Worker { name: name("probe"), ability, ttl: Duration::from_secs(3_600) };
    let session = block_on(store.register(worker)).expect("it is registered").session;
    let round = |text: &str| [text, " of ", &session.to_string()].concat();
    measure(&store, session, (&round("warm"), 1, 100));
    measure(&store, session, (&round("alone"), 1, 2_000));
    measure(&store, session, (&round("many"), 64, 300));
    measure(&store, session, (&round("more"), 256, 100));
    store.close();
}
