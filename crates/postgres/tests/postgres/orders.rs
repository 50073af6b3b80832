//! No wake-up is lost and nothing is read twice, in whatever order the statements of several
//! processes happen. Each process has a store and a connection of its own, and a proxy that stops
//! its writing statements before they begin and before they commit. So each test goes through all
//! orders of these steps, of operations as they are.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::ToSocketAddrs;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use abide_core::{Ability, Address, Body, Command, ExecutionId, Kind, Payload, SessionId};
use abide_postgres::{Options, PostgresStore};
use abide_store::conformance::{TestClock, block_on, bounds};
use abide_store::{Claim, Commit, CommitOutcome, Error, Hold, Leased, Retire, Store, Worker};
use tokio::runtime::{Builder, Runtime};

use crate::fixture::{Raw, Schema, options, place_of, server};
use crate::isolation::{message, name, parking, signal, submit};
use crate::wire::gates::Gates;

/// How long a step may take before somebody looks whether it waits for a lock.
const LOOK: Duration = Duration::from_millis(5);

/// How often somebody looks, before the step counts as lost.
const LOOK_COUNT_MAX: u32 = 6_000;

/// What one process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Sends a message.
    Submit,
    /// Commits what it has read, keeps its lease, and parks later.
    Keep,
    /// Commits what it has read, and parks.
    Park,
    /// Commits what it has read, and ends the execution.
    End,
    /// Claims, and parks later.
    Claim,
    /// Claims, commits what it finds, and parks.
    Work,
    /// Ends the session of the holder, and claims.
    TakeOver,
    /// Sends a commit that somebody else sends too: its sender has got no answer and asks again.
    /// It reads nothing.
    Copy,
}

impl Part {
    /// Whether the process holds the execution beforehand.
    fn holds(self) -> bool {
        matches!(self, Self::Keep | Self::Park | Self::End)
    }

    /// How many steps it has: each writing statement begins and commits.
    fn step_count(self) -> usize {
        match self {
            Self::Work => 4,
            Self::TakeOver => 5,
            _ => 2,
        }
    }
}

/// When an operation reads what it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// Directly before its first statement that writes.
    Late,
    /// In a step of their own, so that others come in between.
    Early,
}

/// The history of the execution of one order.
#[derive(Default)]
struct Ledger {
    accepted: Vec<String>,
    read: Vec<String>,
    held: Vec<(usize, Leased)>,
    has_ended: bool,
    /// The process whose session was ended by another.
    deposed: Option<usize>,
    wrong: Vec<String>,
}

type Book = Arc<Mutex<Ledger>>;

fn lock(book: &Book) -> MutexGuard<'_, Ledger> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One process.
struct Process {
    number: usize,
    application: String,
    store: Arc<PostgresStore>,
    gates: Gates,
    session: SessionId,
    request: u64,
    clock: Arc<TestClock>,
    standing: Standing,
}

enum Standing {
    /// It has not begun.
    Before,
    AtGate(Operation),
    /// It waits for a lock that another one holds.
    Blocked(Operation),
    Done,
}

type Operation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The processes of a test.
struct Crowd {
    processes: Vec<Process>,
    looker: Raw,
    runtime: Runtime,
    /// After the stores: they are closed before it goes.
    _schema: Schema,
}

impl Crowd {
    fn new(count: usize) -> Self {
        let (schema, clock) = (Schema::new(), TestClock::new());
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let processes = (0..count).map(|number| Process::new(number, &schema, &clock, &runtime)).collect();
        let looker = Raw::of(&schema);
        Self { processes, looker, runtime, _schema: schema }
    }

    /// Goes through every order of the steps of these parts, and returns how many there are.
    fn every_order(&mut self, parts: &[Part], reads: Reads) -> usize {
        let steps = parts.iter().enumerate().flat_map(|(nth, part)| {
            std::iter::repeat_n(nth, part.step_count() + usize::from(reads == Reads::Early))
        });
        let mut order: Vec<usize> = steps.collect();
        let mut count = 0;
        loop {
            if !is_renamed(&order, parts) {
                count += 1;
                let wrong = self.one(&order, (parts, reads, count));
                assert!(wrong.is_empty(), "{parts:?} in the order {order:?}, {reads:?}: {wrong:?}");
            }
            if !advance(&mut order) {
                return count;
            }
        }
    }

    fn one(&mut self, order: &[usize], (parts, reads, nth): (&[Part], Reads, usize)) -> Vec<String> {
        let book = Book::default();
        let label: String = parts.iter().map(|part| format!("{part:?} ")).collect();
        let id = ExecutionId::new(format!("{label}{reads:?} {nth}")).expect("a good id");
        let to = Address { id, ..signal("").to };
        let runtime = self.runtime.handle().clone();
        runtime.block_on(async {
            self.prepare(parts, &to, &book).await;
            let mut operations: BTreeMap<usize, Operation> = BTreeMap::new();
            for (nth, part) in parts.iter().enumerate() {
                let deposed =
                    parts.iter().position(|part| part.holds()).map(|nth| self.processes[nth].session);
                operations.insert(nth, self.processes[nth].begin(*part, &to, (&book, deposed)));
            }
            for nth in order {
                self.step(*nth, operations.remove(nth), reads).await;
            }
            // A process that was kept waiting by a lock has steps left.
            while let Some(nth) = self.unfinished(parts.len()) {
                self.step(nth, None, reads).await;
            }
            self.finish(&book).await;
        });
        let mut ledger = lock(&book);
        ledger.judge();
        std::mem::take(&mut ledger.wrong)
    }

    /// Starts the execution, with one message to read. A process that is to hold it takes it.
    async fn prepare(&mut self, parts: &[Part], to: &Address, book: &Book) {
        let start = Body::Start(abide_core::fixture::flow().into());
        let first = &self.processes[0].store;
        first
            .submit(submit(vec![abide_core::Message { to: to.clone(), ..message("start", start) }]))
            .await
            .expect("it is started");
        send(first, to, "m", book).await;
        for (process, part) in self.processes.iter_mut().zip(parts) {
            process.standing = Standing::Before;
            if parts.contains(&Part::TakeOver) {
                // The last order has ended its session.
                process.session = register(&process.store).await;
            }
            if part.holds() || (*part == Part::Copy && process.number == 0) {
                while lock(book).held.is_empty() {
                    let claim = process.next_claim();
                    take(process.number, &process.store, claim, book).await;
                    assert!(lock(book).wrong.is_empty(), "{:?}", lock(book).wrong);
                }
            }
        }
        self.processes.iter().for_each(|process| process.gates.shut());
    }

    /// Lets one process take a step. What it would be kept from by a lock is no step.
    async fn step(&mut self, nth: usize, operation: Option<Operation>, reads: Reads) {
        let process = &mut self.processes[nth];
        let is_first = operation.is_some();
        match std::mem::replace(&mut process.standing, Standing::Done) {
            Standing::Before => {
                let operation = operation.expect("it begins once");
                process.settle(operation, &mut self.looker).await;
            }
            Standing::AtGate(operation) => {
                process.gates.permit();
                process.settle(operation, &mut self.looker).await;
            }
            Standing::Blocked(operation) => process.settle(operation, &mut self.looker).await,
            Standing::Done => {}
        }
        if is_first && reads == Reads::Late && matches!(self.processes[nth].standing, Standing::AtGate(_)) {
            Box::pin(self.step(nth, None, reads)).await;
        }
        // A lock that was given back lets others arrive where they were going.
        for process in &mut self.processes {
            if matches!(process.standing, Standing::Blocked(_)) {
                let Standing::Blocked(operation) = std::mem::replace(&mut process.standing, Standing::Done)
                else {
                    unreachable!("it was blocked");
                };
                process.settle(operation, &mut self.looker).await;
            }
        }
    }

    fn unfinished(&self, count: usize) -> Option<usize> {
        let is_left = |process: &&Process| !matches!(process.standing, Standing::Done);
        let left: Vec<&Process> = self.processes[..count].iter().filter(is_left).collect();
        let free = left.iter().find(|process| !matches!(process.standing, Standing::Blocked(_)));
        free.or(left.first()).map(|process| process.number)
    }

    /// Lets everybody who holds the execution read and park, until it is not ready any longer.
    async fn finish(&mut self, book: &Book) {
        self.processes.iter().for_each(|process| process.gates.open());
        loop {
            let held = lock(book).held.pop();
            if let Some((nth, leased)) = held {
                let process = &self.processes[nth];
                let commit = commit_of(&leased, &process.clock, Part::Park);
                write(nth, &process.store, commit, book).await;
                continue;
            }
            let last = self.processes.last_mut().expect("there are processes");
            let claim = last.next_claim();
            take(last.number, &last.store, claim, book).await;
            // A process may look where it has heard of something, and hear of the rest later.
            if lock(book).held.is_empty() && !is_ready(&mut self.looker) {
                return;
            }
        }
    }
}

/// Whether the tables say that an execution is ready.
fn is_ready(looker: &mut Raw) -> bool {
    let ready = "SELECT 1 FROM wakes w JOIN executions e ON e.key = w.execution \
                 WHERE e.session IS NULL AND NOT e.aside AND e.listens >= w.needs";
    tokio::task::block_in_place(|| !looker.query(ready, &[]).is_empty())
}

impl Ledger {
    /// Whatever was acknowledged is read, and once. Only what comes beside the end is not.
    fn judge(&mut self) {
        for id in &self.accepted {
            let count = self.read.iter().filter(|read| *read == id).count();
            if count > 1 || (count == 0 && !self.has_ended) {
                self.wrong.push(format!("{id} was read {count} times"));
            }
        }
    }
}

async fn register(store: &Arc<PostgresStore>) -> SessionId {
    let start = abide_core::fixture::flow();
    let ability = Ability {
        namespace: abide_core::Namespace::default(),
        lanes: [start.lane.clone()].into(),
        runs: [(Kind::Workflow, start.name.clone())].into(),
        capabilities: std::collections::BTreeSet::new(),
        build: None,
    };
    let worker = Worker { name: name("worker"), ability, ttl: Duration::from_secs(3_600) };
    store.register(worker).await.expect("a worker is registered").session
}

async fn send(store: &Arc<PostgresStore>, to: &Address, id: &str, book: &Book) {
    let note = abide_core::Message { to: to.clone(), ..signal(id) };
    match store.submit(submit(vec![note])).await {
        Ok(_) => lock(book).accepted.push(id.to_owned()),
        Err(Error::Refused(_)) => {}
        Err(error) => lock(book).wrong.push(format!("{id}: {error}")),
    }
}

async fn take(nth: usize, store: &Arc<PostgresStore>, claim: Claim, book: &Book) {
    match store.claim(claim).await {
        Ok(claimed) => lock(book).held.extend(claimed.leased.into_iter().map(|leased| (nth, leased))),
        Err(error) => lock(book).wrong.push(format!("a claim: {error}")),
    }
}

async fn write(nth: usize, store: &Arc<PostgresStore>, commit: Commit, book: &Book) {
    let outcome = store.commit(commit.clone()).await;
    let mut ledger = lock(book);
    let may_fail = ledger.has_ended || ledger.deposed == Some(nth);
    match outcome {
        Ok(CommitOutcome::Committed(_)) => {
            ledger.has_ended |= commit.changes.summary.status.is_terminal();
            ledger.read.extend(commit.changes.consumed.iter().map(|id| id.as_str().to_owned()));
        }
        Ok(CommitOutcome::Fenced(_)) if may_fail => {}
        other => ledger.wrong.push(format!("a commit of process {nth}: {other:?}")),
    }
}

/// Returns a commit that reads everything that its holder has found.
fn commit_of(leased: &Leased, clock: &TestClock, part: Part) -> Commit {
    let found = leased.inbox.messages.iter().filter(|message| matches!(message.body, Body::Signal { .. }));
    let ids: Vec<&str> = found.map(|message| message.id.as_str()).collect();
    let commands = match part {
        Part::End => vec![Command::Complete { result: Payload::from("1"), unused: Vec::new() }],
        _ => Vec::new(),
    };
    let hold = if part == Part::Keep { Hold::Keep } else { Hold::Park { seen: Vec::new() } };
    Commit { hold, ..parking(leased, clock, (&ids, commands)) }
}

/// Returns the commit of the first process again. Its holder goes on from behind it.
fn copied(book: &Book, clock: &TestClock, nth: usize) -> Commit {
    let mut ledger = lock(book);
    let (_, leased) = ledger.held.last_mut().expect("the first one holds the execution");
    let mut before = leased.clone();
    if nth > 0 {
        before.version = abide_core::Version(leased.version.0 - 1);
    } else {
        leased.version = leased.version.next();
    }
    before.inbox.messages.clear();
    commit_of(&before, clock, Part::Keep)
}

impl Process {
    fn new(number: usize, schema: &Schema, clock: &Arc<TestClock>, runtime: &Runtime) -> Self {
        let url = server();
        let place = place_of(&url);
        let address = place.to_socket_addrs().expect("the URL names host and port").next();
        let gates = runtime.block_on(Gates::before(address.expect("it has an address")));
        let application = [&schema.0, "_", &number.to_string()].concat();
        let through = url.replace(place, &["127.0.0.1:", &gates.port.to_string()].concat());
        let separator = if through.contains('?') { "&" } else { "?" };
        let url =
            [&through, separator, "application_name=", &application, "&sslmode=disable&schema=", &schema.0]
                .concat();
        let options = Options { poll_ms: 50, connection_count_max: 2, ..options(bounds()) };
        let store = PostgresStore::open(&url, clock.clone(), options).expect("the store can be opened");
        let session = block_on(register(&store));
        let clock = clock.clone();
        Self { number, application, store, gates, session, request: 0, clock, standing: Standing::Done }
    }

    fn next_claim(&mut self) -> Claim {
        self.request += 1;
        let (session, request) = (self.session, self.request);
        Claim { session, request, slots: 1, care_slots: 0, with_mail: false, sweep: false }
    }

    /// Makes its operation, which does nothing yet.
    fn begin(&mut self, part: Part, to: &Address, (book, deposed): (&Book, Option<SessionId>)) -> Operation {
        let (nth, store, clock) = (self.number, Arc::clone(&self.store), self.clock.clone());
        let (to, book, claim) = (to.clone(), Arc::clone(book), self.next_claim());
        match part {
            Part::Submit => Box::pin(async move { send(&store, &to, &format!("m{nth}"), &book).await }),
            Part::Keep | Part::Park | Part::End => {
                let (_, leased) = lock(&book).held.pop().expect("it holds the execution");
                let commit = commit_of(&leased, &clock, part);
                Box::pin(async move {
                    write(nth, &store, commit, &book).await;
                    if part == Part::Keep {
                        let mut next = leased;
                        next.version = next.version.next();
                        next.inbox.messages.clear();
                        lock(&book).held.push((nth, next));
                    }
                })
            }
            Part::Copy => {
                let commit = copied(&book, &clock, nth);
                Box::pin(async move { write(nth, &store, commit, &book).await })
            }
            Part::Claim => Box::pin(async move { take(nth, &store, claim, &book).await }),
            Part::Work => Box::pin(async move {
                take(nth, &store, claim, &book).await;
                let own = lock(&book).held.pop_if(|(holder, _)| *holder == nth);
                if let Some((_, leased)) = own {
                    write(nth, &store, commit_of(&leased, &clock, Part::Park), &book).await;
                }
            }),
            Part::TakeOver => Box::pin(async move {
                lock(&book).deposed = Some(0);
                let session = deposed.expect("somebody holds it");
                let retired = store.retire(Retire { session, reason: "over".to_owned() }).await;
                retired.expect("a session may be ended");
                take(nth, &store, claim, &book).await;
            }),
        }
    }

    /// Waits until the operation stands at a gate, waits for a lock, or is done.
    async fn settle(&mut self, mut operation: Operation, looker: &mut Raw) {
        for _ in 0..LOOK_COUNT_MAX {
            let arrived = &mut self.gates.arrived;
            let went = poll_fn(|context| {
                if operation.as_mut().poll(context).is_ready() {
                    return Poll::Ready(true);
                }
                arrived.poll_recv(context).map(|_| false)
            });
            match within(LOOK, went).await {
                Some(true) => return self.standing = Standing::Done,
                Some(false) => return self.standing = Standing::AtGate(operation),
                None if waits(looker, &self.application) => {
                    return self.standing = Standing::Blocked(operation);
                }
                None => {}
            }
        }
        panic!("process {} does not go on", self.number);
    }
}

#[expect(clippy::disallowed_methods, reason = "only a look at the server says that a statement waits there")]
async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

fn waits(looker: &mut Raw, application: &str) -> bool {
    let waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'";
    tokio::task::block_in_place(|| !looker.query(waits, &[&application]).is_empty())
}

/// Whether the order is another one with the names of two messages exchanged.
fn is_renamed(order: &[usize], parts: &[Part]) -> bool {
    let first = |nth: usize| order.iter().position(|step| *step == nth);
    let submits: Vec<usize> = (0..parts.len()).filter(|nth| parts[*nth] == Part::Submit).collect();
    !submits.is_sorted_by_key(|nth| first(*nth))
}

/// Makes the next order, as in a dictionary, if there is one.
fn advance(order: &mut [usize]) -> bool {
    let Some(turn) = (1..order.len()).rev().find(|at| order[at - 1] < order[*at]) else { return false };
    let next = (turn..order.len()).rev().find(|at| order[*at] > order[turn - 1]).unwrap_or(turn);
    order.swap(turn - 1, next);
    order[turn..].reverse();
    true
}

/// 2,520 orders, which are half as many up to the names of the two messages.
#[test]
fn p2_two_messages_a_park_and_a_claim_in_every_order() {
    let parts = [Part::Park, Part::Submit, Part::Submit, Part::Claim];
    assert_eq!(Crowd::new(4).every_order(&parts, Reads::Late), 1_260);
}

#[test]
fn p2_a_message_a_park_and_a_claim_that_read_early_in_every_order() {
    let parts = [Part::Park, Part::Submit, Part::Claim];
    assert_eq!(Crowd::new(3).every_order(&parts, Reads::Early), 1_680);
}

/// A holder that keeps the execution, and one that ends it.
#[test]
fn p2_a_message_a_commit_and_a_claim_in_every_order() {
    let mut crowd = Crowd::new(3);
    for commit in [Part::Keep, Part::End] {
        assert_eq!(crowd.every_order(&[commit, Part::Submit, Part::Claim], Reads::Late), 90);
    }
}

/// A claim that finds what another one has just read and parked reads it as it is then.
#[test]
fn p2_two_claims_and_a_message_are_read_once_in_every_order() {
    let mut crowd = Crowd::new(3);
    assert_eq!(crowd.every_order(&[Part::Work, Part::Claim, Part::Submit], Reads::Late), 420);
    assert_eq!(crowd.every_order(&[Part::Work, Part::Claim], Reads::Early), 56);
}

#[test]
fn p3_a_commit_and_a_takeover_in_every_order() {
    let mut crowd = Crowd::new(2);
    assert_eq!(crowd.every_order(&[Part::Park, Part::TakeOver], Reads::Early), 84);
    assert_eq!(crowd.every_order(&[Part::Keep, Part::TakeOver], Reads::Early), 84);
}

/// The first copy may still be under way when the second one comes.
#[test]
fn p3_a_commit_and_its_repetition_are_written_once_in_every_order() {
    assert_eq!(Crowd::new(2).every_order(&[Part::Copy, Part::Copy], Reads::Early), 20);
}
