//! The store as one machine sees it: an operation may fail, come late, happen twice or be the last
//! act of the machine. The effects on the real store are recorded here.

use std::future::pending;
use std::sync::Arc;

use abide::ms;
use abide_core::{Body, Entry, Event, Kind, Refusal, SessionId, Timestamp};
use abide_engine::Runtime;
use abide_store::faults::FaultyStore;
use abide_store::{
    Answer, Aside, Beat, Claim, Claimed, Clock, Commit, CommitOutcome, Committed, Error, ExecutionKey, Feed,
    FeedPage, Heartbeat, Hold, Import, Imported, InboxPage, InboxRead, LeasePage, Leased, Leases, List,
    Listing, Notice, Prune, Read, Registered, Retire, Snapshot, Store, Stretch, Submissions, Submit,
    Submitted, TakeIn, TakenIn, Trouble, View, Worker, WorkerRow, Workers,
};
use futures_util::FutureExt;

use crate::database::{Database, Process};
use crate::history::{self, Arrival, Happened};
use crate::queue::ReadyBefore;
use crate::scenario::Wrong;
use crate::world::{Verdict, World};

/// The operations that write nothing.
const READS: [&str; 6] = ["read", "inbox", "list", "feed", "workers", "leases"];

/// The operations in which an execution moves on.
const MOVES: [&str; 3] = ["commit", "submit", "claim"];

/// The store of one machine.
pub(crate) struct MachineStore {
    machine: u32,
    world: Arc<World>,
    store: Arc<dyn Store>,
    /// The process whose writer answers, if the store is SQLite.
    process: Option<Arc<Process>>,
}

impl MachineStore {
    /// Returns the store of `machine`. Its notices may fail too.
    pub(crate) fn of(world: &Arc<World>, machine: u32, process: Option<&Arc<Process>>) -> Arc<dyn Store> {
        let store = process.map_or_else(|| world.store.clone(), |process| process.store.clone());
        let store = Arc::new(Self { machine, world: world.clone(), store, process: process.cloned() });
        let world = world.clone();
        FaultyStore::disturbing(store, move |_| world.decide_notice())
    }

    fn pass<T: Send + 'static>(
        &self,
        what: &'static str,
        operation: impl Fn(&dyn Store) -> Answer<T> + Send + 'static,
        observe: impl Fn(&World, u32, &T) + Send + Sync + 'static,
    ) -> Answer<T> {
        let (machine, world, store, process) =
            (self.machine, self.world.clone(), self.store.clone(), self.process.clone());
        let observe = Arc::new(observe);
        let happen = move || -> Answer<T> {
            let mut answer = operation(&*store);
            match ((&mut answer).now_or_never(), &process) {
                (Some(answered), _) => {
                    if let Ok(value) = &answered {
                        observe(&world, machine, value);
                    }
                    if !READS.contains(&what) {
                        world.database.iter().for_each(Database::wrote);
                    }
                    Answer::ready(answered)
                }
                (None, None) => answer,
                (None, Some(process)) => {
                    let (world, observe) = (world.clone(), observe.clone());
                    process.watch(answer, what, move |value| observe(&world, machine, value))
                }
            }
        };
        // The request is under way before its fate is decided: a kill strikes it.
        let request = MOVES.contains(&what).then(|| self.world.history.request(self.machine));
        let answer = match self.world.decide(self.machine, what) {
            Verdict::Happen => match self.world.latency_ms() {
                0 => happen(),
                late_ms => self.go_wrong(what, Wrong::AnswerLate { ms: late_ms }, happen),
            },
            Verdict::Nobody => Answer::new(pending()),
            Verdict::Wrong(wrong) => self.go_wrong(what, wrong, happen),
        };
        match request {
            None => answer,
            Some(request) => Answer::new(answer.inspect(move |_| drop(request))),
        }
    }

    fn go_wrong<T: Send + 'static>(
        &self,
        what: &'static str,
        wrong: Wrong,
        happen: impl Fn() -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let runtime = self.world.sim.process(self.machine);
        match wrong {
            Wrong::AnswerLost => {
                let answer = happen();
                Answer::new(async move {
                    drop(answer.await);
                    Err(Error::Indeterminate { what, source: "the answer was lost".into() })
                })
            }
            Wrong::AnswerLate { ms: late_ms } => {
                let answer = happen();
                Answer::new(async move {
                    runtime.sleep(ms(late_ms)).await;
                    answer.await
                })
            }
            Wrong::HappensLate { ms: late_ms } => self.happen_late(late_ms, happen),
            Wrong::Repeated => {
                drop(happen());
                happen()
            }
            Wrong::KillBefore { restart_ms } => {
                self.world.doom(self.machine, restart_ms);
                Answer::new(pending())
            }
            Wrong::Kill { restart_ms } => {
                drop(happen());
                if let (Some(process), Some(database)) = (&self.process, &self.world.database) {
                    process.flush(database);
                }
                self.world.doom(self.machine, restart_ms);
                Answer::new(pending())
            }
            Wrong::Freeze { ms } => {
                let answer = happen();
                self.world.freeze(self.machine, ms);
                answer
            }
            Wrong::Unread { .. } => Answer::ready(Err(Error::Unread { what, source: "a bad sector".into() })),
            _ => Answer::ready(Err(Error::Unavailable { what, source: "out of reach".into() })),
        }
    }

    /// Lets an operation happen later, even if its sender dies meanwhile, unless it waits in a
    /// queue in the sender's memory.
    fn happen_late<T: Send + 'static>(
        &self,
        late_ms: u64,
        happen: impl Fn() -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let network = match &self.process {
            Some(_) => self.world.sim.process(self.machine),
            None => self.world.sim.process(0),
        };
        network.clone().spawn(Box::pin(async move {
            network.sleep(ms(late_ms)).await;
            let answer = happen();
            // The receiver may be gone.
            let _ = sender.send(answer.await);
        }));
        Answer::new(async move {
            match receiver.await {
                Ok(answer) => answer,
                Err(_) => pending().await,
            }
        })
    }
}

impl World {
    fn leased(&self, machine: u32, leased: &Leased) {
        let (session, epoch) = (leased.lease.session, leased.lease.epoch.0);
        let mut state = self.lock();
        state.held.insert(leased.key, machine);
        state.given.insert((leased.key, epoch));
        state.damage.name(leased.key, leased.address().id.as_str());
        drop(state);
        let (key, id, run) = (leased.key, leased.address().id.to_string(), leased.execution.run());
        self.history.add(Happened::Leased { machine, session, key, id, run, epoch });
    }

    fn arrived(&self, message: &abide_core::Message, asked_at: Timestamp) {
        if let Some(arrival) = Arrival::of(message, (asked_at, self.sim.now())) {
            self.history.add(Happened::Arrived(Box::new(arrival)));
        }
    }

    fn submitted(&self, machine: u32, (submit, asked_at): (&Submit, Timestamp), answers: &[Submitted]) {
        if let (Some(stretch), [answer]) = (&submit.stretch, answers) {
            *self.history.lock().met.entry(fate_of(stretch, answer)).or_default() += 1;
        }
        for (message, answer) in submit.messages.iter().zip(answers) {
            match answer {
                Submitted::Started(_, leased) => {
                    self.accepted(message);
                    if let Some(leased) = leased {
                        self.leased(machine, leased);
                        let id = leased.address().id.to_string();
                        self.history.add(Happened::Born { id, at: self.sim.now() });
                    }
                }
                Submitted::Begun(key, committed) => {
                    self.accepted(message);
                    self.begun(machine, (submit, asked_at), (*key, committed.as_deref()));
                }
                Submitted::Delivered(_) => {
                    self.accepted(message);
                    self.arrived(message, asked_at);
                }
                Submitted::Attached(_) | Submitted::Duplicate(_) => {}
            }
        }
    }

    /// Records the children of an execution that has begun before its start.
    fn tried(&self, submit: &Submit) {
        let commit = submit.stretch.iter().find_map(|stretch| stretch.commit.as_ref());
        let outgoing = commit.iter().flat_map(|commit| &commit.changes.outgoing);
        for child in outgoing.filter(|message| matches!(message.body, Body::Start(_))) {
            let (parent, child) = (submit.messages[0].to.id.to_string(), child.to.id.to_string());
            self.history.add(Happened::Tried { parent, child });
        }
    }

    /// Records a start whose execution has begun before, and the first commit that came with it.
    fn begun(
        &self,
        machine: u32,
        (submit, asked_at): (&Submit, Timestamp),
        (key, committed): (ExecutionKey, Result<&Committed, &Refusal>),
    ) {
        let (Some(stretch), [message], Some(session)) =
            (&submit.stretch, submit.messages.as_slice(), submit.born_to)
        else {
            unreachable!("only a stretch begins with its start")
        };
        let id = message.to.id.to_string();
        let mut state = self.lock();
        state.held.insert(key, machine);
        state.given.insert((key, 1));
        state.damage.name(key, &id);
        drop(state);
        self.history.add(Happened::Leased { machine, session, key, id: id.clone(), run: 1, epoch: 1 });
        self.history.add(Happened::Born { id, at: self.sim.now() });
        if let (Some(commit), Ok(committed)) = (stretch.commit_of(key), committed) {
            self.committed(machine, (&commit, asked_at), &CommitOutcome::Committed(committed.clone()));
        }
    }

    fn accepted(&self, message: &abide_core::Message) {
        if let Body::Start(_) = message.body {
            self.know(message.to.id.as_str());
        }
        self.history.trace((message.to.id.as_str(), message.body.word()));
        self.history.add(Happened::Accepted { message: Box::new(message.clone()) });
    }

    fn know(&self, id: &str) {
        let mut state = self.lock();
        if !state.known.iter().any(|known| known == id) {
            state.known.push(id.to_owned());
        }
    }

    fn committed(&self, machine: u32, (commit, asked_at): (&Commit, Timestamp), outcome: &CommitOutcome) {
        let CommitOutcome::Committed(committed) = outcome else {
            self.history.add(Happened::Fenced { machine, key: commit.key });
            return;
        };
        let changes = &commit.changes;
        let records = changes.records.iter().chain(&committed.transacted);
        let entries: Vec<Entry> = records.filter_map(|record| record.entry().ok()).collect();
        for entry in &entries {
            self.history.trace((commit.key.0, entry.seq, entry.event.word()));
            if let Event::ChildStarted { child, .. } = &entry.event {
                self.know(child.as_str());
                self.lock().damage.adopt(commit.key, child.as_str());
            }
        }
        self.history.add(Happened::Committed(Box::new(history::Commit {
            session: commit.lease.session,
            edition: self.edition_of(machine),
            key: commit.key,
            epoch: commit.lease.epoch.0,
            expected: commit.expected.0,
            entries,
            next: changes.next.as_ref().and_then(|record| record.entry().ok()),
            told: changes.outgoing.iter().filter(|message| is_for_children(&message.body)).cloned().collect(),
            at: self.sim.now(),
        })));
        changes.outgoing.iter().for_each(|message| self.arrived(message, asked_at));
        let is_over = commit.hold != Hold::Keep || changes.summary.status.is_terminal();
        let mut state = self.lock();
        if is_over && state.held.get(&commit.key) == Some(&machine) {
            state.held.remove(&commit.key);
        }
        drop(state);
        committed.born.iter().for_each(|leased| self.leased(machine, leased));
        if !changes.records.is_empty() || committed.transacted.is_some() {
            self.recorded(machine);
        }
    }
}

/// Returns what came with a start, and how that ended.
fn fate_of(stretch: &Stretch, answer: &Submitted) -> (&'static str, &'static str) {
    let what = match &stretch.commit {
        None => "first stretch without a commit",
        Some(commit) if commit.transaction.is_some() => "first transaction",
        Some(commit) if commit.changes.summary.status.is_terminal() => "first stretch to the end",
        Some(commit) if commit.hold != Hold::Keep => "first stretch that leaves memory",
        Some(commit) if !commit.changes.outgoing.is_empty() => "first stretch with messages",
        Some(_) => "first stretch",
    };
    let fate = match answer {
        Submitted::Begun(_, Ok(_)) => "happened",
        Submitted::Begun(_, Err(_)) => "refused",
        Submitted::Started(..) => "left out",
        _ => "attached",
    };
    (what, fate)
}

/// Whether a message ends children, or starts an execution that notifies them.
fn is_for_children(body: &Body) -> bool {
    match body {
        Body::Cancel { .. } | Body::Terminate { .. } => true,
        Body::Start(start) => start.kind == Kind::Builtin,
        _ => false,
    }
}

fn nothing<T>(_: &World, _: u32, _: &T) {}

impl Store for MachineStore {
    fn submit(&self, submit: Submit) -> Answer<Submissions> {
        self.world.tried(&submit);
        let (sent, asked_at) = (submit.clone(), self.world.sim.now());
        let observe = move |world: &World, machine, answers: &Submissions| {
            world.submitted(machine, (&sent, asked_at), answers);
        };
        self.pass("submit", move |store| store.submit(submit.clone()), observe)
    }

    fn claim(&self, claim: Claim) -> Answer<Claimed> {
        let queue = Arc::new(ReadyBefore::default());
        let seen = queue.clone();
        let observe = move |world: &World, machine, claimed: &Claimed| {
            world.claimed(&seen, &claimed.leased);
            claimed.leased.iter().for_each(|leased| world.leased(machine, leased));
            for leased in &claimed.care {
                world.leased(machine, leased);
                let (key, epoch) = (leased.key, leased.lease.epoch.0);
                world.history.add(Happened::Cared { key, epoch });
            }
        };
        let world = self.world.clone();
        let happen = move |store: &dyn Store| {
            queue.look(&world);
            store.claim(claim.clone())
        };
        self.pass("claim", happen, observe)
    }

    fn commit(&self, commit: Commit) -> Answer<CommitOutcome> {
        let (sent, asked_at) = (commit.clone(), self.world.sim.now());
        let observe = move |world: &World, machine, outcome: &CommitOutcome| {
            world.committed(machine, (&sent, asked_at), outcome);
        };
        self.pass("commit", move |store| store.commit(commit.clone()), observe)
    }

    fn set_aside(&self, aside: Aside) -> Answer<()> {
        self.pass("set_aside", move |store| store.set_aside(aside.clone()), nothing)
    }

    fn register(&self, worker: Worker) -> Answer<Registered> {
        self.pass("register", move |store| store.register(worker.clone()), nothing)
    }

    fn heartbeat(&self, beat: Beat) -> Answer<Heartbeat> {
        self.pass("heartbeat", move |store| store.heartbeat(beat), nothing)
    }

    fn retire(&self, retire: Retire) -> Answer<()> {
        self.pass("retire", move |store| store.retire(retire.clone()), nothing)
    }

    fn prune(&self, prune: Prune) -> Answer<u64> {
        self.pass("prune", move |store| store.prune(prune), nothing)
    }

    fn import(&self, import: Import) -> Answer<Imported> {
        self.pass("import", move |store| store.import(import.clone()), nothing)
    }

    fn take_in(&self, take_in: TakeIn) -> Answer<TakenIn> {
        self.pass("take_in", move |store| store.take_in(take_in), nothing)
    }

    fn wait(&self, session: SessionId) -> Answer<Vec<Notice>> {
        self.store.wait(session)
    }

    /// The store outlives its machines.
    fn close(&self) {}
}

impl View for MachineStore {
    fn read(&self, read: Read) -> Answer<Option<Snapshot>> {
        self.pass("read", move |store| store.read(read.clone()), nothing)
    }

    fn inbox(&self, inbox: InboxRead) -> Answer<InboxPage> {
        self.pass("inbox", move |store| store.inbox(inbox), nothing)
    }

    fn list(&self, list: List) -> Answer<Listing> {
        self.pass("list", move |store| store.list(list.clone()), nothing)
    }

    fn feed(&self, feed: Feed) -> Answer<FeedPage> {
        self.pass("feed", move |store| store.feed(feed), nothing)
    }

    fn changed(&self) -> Answer<()> {
        self.store.changed()
    }

    fn workers(&self, workers: Workers) -> Answer<Vec<WorkerRow>> {
        self.pass("workers", move |store| store.workers(workers.clone()), nothing)
    }

    fn leases(&self, leases: Leases) -> Answer<LeasePage> {
        let observe = |world: &World, _, page: &LeasePage| {
            let leases = page.leases.iter().map(|held| (held.key, held.epoch.0)).collect();
            world.history.add(Happened::Reread { leases });
        };
        self.pass("leases", move |store| store.leases(leases), observe)
    }

    fn trouble(&self) -> Answer<Option<Trouble>> {
        self.store.trouble()
    }
}
