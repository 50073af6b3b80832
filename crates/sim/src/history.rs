//! The history of a simulated world, in one order: closures that ran, commits and messages that the
//! store took, answers to clients. The engine knows nothing of it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_core::{Body, By, Entry, Message, MessageId, Op, SessionId, Timestamp};
use abide_engine::sim::Sim;
use abide_store::{Clock, ExecutionKey};
use serde::{Deserialize, Serialize};

use crate::api::ApiName;
use crate::code::Witness;
use crate::model::{Id, id_of};

/// One execution, run and place in its program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Spot {
    pub(crate) id: String,
    pub(crate) run: u32,
    pub(crate) node: u32,
    /// The edition of the program that runs there.
    #[serde(default)]
    pub(crate) edition: usize,
}

/// A closure that begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Closure {
    pub(crate) spot: Spot,
    /// Its idempotency key.
    pub(crate) key: String,
    /// Whether it runs on the blocking pool, where it may have waited for a thread.
    #[serde(default)]
    pub(crate) is_blocking: bool,
}

/// Returns the idempotency key of a step. Its parts escape the separators.
pub(crate) fn key_of(id: &str, run: u32, op: &Op) -> String {
    let escaped = |text: &str| text.replace('%', "%25").replace('/', "%2F").replace('=', "%3D");
    let key = op.key.as_ref().map(|key| format!("={}", escaped(key.as_str()))).unwrap_or_default();
    format!("default/{}/{run}/{}{key}/{}", escaped(id), escaped(op.name.as_str()), op.nth)
}

/// A draw of a random number: its value follows from these fields alone. Code that ran ahead of its
/// journal and was lost may have reached the same place by another path, after another number of
/// draws.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Draw {
    pub(crate) id: String,
    pub(crate) run: u32,
    /// How many draws of the run came before it.
    pub(crate) nth: u32,
    pub(crate) is_uuid: bool,
    /// The kind and the idempotency key of the step in which the draw happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inside: Option<String>,
}

/// The number of draws of a run since it was loaded.
#[derive(Default)]
pub(crate) struct Draws(AtomicU32);

impl Draws {
    pub(crate) fn random(&self, id: &str, run: u32) -> Draw {
        Draw {
            id: id.to_owned(),
            run,
            nth: self.0.fetch_add(1, Ordering::Relaxed),
            is_uuid: false,
            inside: None,
        }
    }

    /// Counts two draws: a UUID consists of two numbers.
    pub(crate) fn uuid(&self, id: &str, run: u32) -> Draw {
        Draw {
            id: id.to_owned(),
            run,
            nth: self.0.fetch_add(2, Ordering::Relaxed),
            is_uuid: true,
            inside: None,
        }
    }
}

/// An event in the history of a world.
#[derive(Clone, Debug)]
pub(crate) enum Happened {
    /// A closure began.
    Began { machine: u32, closure: Closure, at: Option<Timestamp> },
    /// A program drew a random number or a UUID.
    Drew { draw: Draw, value: u64 },
    /// The code of a run learned the id of its child.
    Named { parent: String, run: u32, child: String },
    /// A start was sent, and with it the start of this child by code that had begun before. None of
    /// that happens if the start is refused or attaches.
    Tried { parent: String, child: String },
    /// The store granted a lease.
    Leased { machine: u32, session: SessionId, key: ExecutionKey, id: String, run: u32, epoch: u64 },
    /// The lease of the event before went to a caretaker, which has none of the code.
    Cared { key: ExecutionKey, epoch: u64 },
    /// A machine read which leases it holds. It takes up those that no answer told it of, with the
    /// code if it has the code, whatever they were granted for.
    Reread { leases: Vec<(ExecutionKey, u64)> },
    /// A claim received these executions and left those ready ones behind.
    Claimed { given: Vec<Ready>, left: Vec<Ready> },
    /// The store granted the lease of a new execution to the machine that started it.
    Born { id: String, at: Timestamp },
    /// The world ended an execution that it had damaged, under this name and with this reason.
    Discarded { id: String, by: By, reason: String },
    /// The store took a commit.
    Committed(Box<Commit>),
    /// The store refused a commit: its lease was not valid at that moment.
    Fenced { machine: u32, key: ExecutionKey },
    /// The store took a new message.
    Accepted { message: Box<Message> },
    /// The store took a new signal or a new answer of a child.
    Arrived(Box<Arrival>),
    /// A client made a request, at this time on its clock.
    Asked { action: usize, at: Timestamp },
    /// A client got an answer.
    Answered { action: usize, answer: Answer },
    /// A client got an untrue answer.
    Wrong(String),
    /// A fault struck.
    Struck { what: String, at_work: AtWork },
}

/// The work of a machine when a fault strikes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AtWork {
    /// It holds no lease.
    #[default]
    Idle,
    /// It holds a lease, and perhaps only waits.
    Leased,
    /// One of its closures runs, or the store has one of its commits, submits or claims under way.
    UnderWay,
}

/// A signal, or an answer of a child, that the store took.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) id: MessageId,
    /// The execution that receives it.
    pub(crate) to: String,
    /// The name of the signal.
    pub(crate) signals: Option<String>,
    /// The run and the operation that the child answers.
    pub(crate) answers: Option<(u32, Id)>,
    /// When the store was asked to take it: it did not arrive before.
    pub(crate) asked_at: Timestamp,
    /// When it was first observed: it did not arrive later.
    pub(crate) at: Timestamp,
}

impl Arrival {
    /// Returns the arrival of a message between these times, if it is a signal or an answer.
    pub(crate) fn of(message: &Message, (asked_at, at): (Timestamp, Timestamp)) -> Option<Self> {
        let (signals, answers) = match &message.body {
            Body::Signal { name, .. } => (Some(name.to_string()), None),
            Body::ChildDone { run, op, .. } => (None, Some((*run, id_of(op)))),
            _ => return None,
        };
        let (id, to) = (message.id.clone(), message.to.id.to_string());
        Some(Self { id, to, signals, answers, asked_at, at })
    }
}

/// An execution that a worker may claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) id: String,
    /// The name of its code.
    pub(crate) name: String,
    pub(crate) lane: String,
    /// The capabilities that a worker needs.
    pub(crate) requires: BTreeSet<String>,
    pub(crate) priority: i16,
    /// When it became ready, and its number in the store, unless the claim itself made it ready.
    pub(crate) since: Option<(i64, u64)>,
}

/// A commit that the store took.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    pub(crate) session: SessionId,
    /// The edition of the machine that wrote it.
    pub(crate) edition: usize,
    pub(crate) key: ExecutionKey,
    pub(crate) epoch: u64,
    pub(crate) expected: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) next: Option<Entry>,
    /// The messages to children, or to the executions that notify them: their parent has ended, or
    /// no longer wants them.
    pub(crate) told: Vec<Message>,
    pub(crate) at: Timestamp,
}

impl Commit {
    /// Returns the name of the commit in its execution: epoch and version. A commit that is sent
    /// again, because its answer was lost, has the same.
    pub(crate) fn name(&self) -> (u64, u64) {
        (self.epoch, self.expected)
    }
}

/// The answer to a client, as far as the auditor needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The request was carried out.
    Done,
    /// The request was carried out with this sentence as the answer.
    Told(String),
    /// The execution completed with this result.
    Result(u64),
    /// The execution failed.
    Failed(String),
    /// The execution was cancelled.
    Cancelled,
    /// The request was not carried out, because it makes no sense.
    Refused(String),
    /// The request was not carried out, because the store was out of reach.
    Unavailable,
    /// The outcome is unknown.
    Unknown,
    /// The caller dropped its future.
    Dropped,
}

impl Answer {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Done | Self::Told(_) => "done",
            Self::Result(_) => "result",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
            Self::Refused(_) => "refused",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
            Self::Dropped => "dropped",
        }
    }
}

/// All events, and a hash of the order of everything else.
#[derive(Default)]
pub(crate) struct History(Mutex<Log>);

#[derive(Default)]
pub(crate) struct Log {
    pub(crate) items: Vec<Happened>,
    /// How often the closure at each place ran.
    run_counts: BTreeMap<Spot, u64>,
    /// How many closures of each machine are under way.
    pub(crate) open_counts: BTreeMap<u32, i64>,
    /// How many commits, submits and claims of each machine are under way.
    pub(crate) request_counts: BTreeMap<u32, u64>,
    trace: DefaultHasher,
    pub(crate) operation_count: u64,
    /// The unanswered actions of each machine.
    pub(crate) asked: BTreeSet<(u32, u64)>,
    /// The target of each action, by the number of the action.
    pub(crate) targets: BTreeMap<u64, String>,
    /// How often two operations of one run were open at once.
    pub(crate) pairs: BTreeMap<(&'static str, &'static str), u64>,
    /// How often each request met an execution in each state.
    pub(crate) met: BTreeMap<(&'static str, &'static str), u64>,
    /// How often each call of the public API came to a recorded outcome.
    pub(crate) calls: BTreeMap<ApiName, u64>,
}

impl Log {
    /// Returns every commit once.
    pub(crate) fn commits(&self) -> impl Iterator<Item = &Commit> {
        let mut last = LastCommits::default();
        let commits = self.items.iter().filter_map(|item| match item {
            Happened::Committed(commit) => Some(&**commit),
            _ => None,
        });
        commits.filter(move |commit| last.is_new(commit))
    }
}

/// The name of the last commit of each execution.
#[derive(Default)]
pub(crate) struct LastCommits(BTreeMap<ExecutionKey, (u64, u64)>);

impl LastCommits {
    /// Whether a commit is no repetition: one that is sent again changes nothing.
    pub(crate) fn is_new(&mut self, commit: &Commit) -> bool {
        self.0.insert(commit.key, commit.name()) != Some(commit.name())
    }
}

impl History {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, happened: Happened) {
        self.lock().items.push(happened);
    }

    /// Counts a request of a machine as under way until the guard is dropped.
    pub(crate) fn request(self: &Arc<Self>, machine: u32) -> Request {
        *self.lock().request_counts.entry(machine).or_default() += 1;
        Request(self.clone(), machine)
    }

    /// Whether a machine runs a closure or waits for the store to write.
    pub(crate) fn is_under_way(&self, machine: u32) -> bool {
        let log = self.lock();
        log.open_counts.get(&machine).is_some_and(|count| *count > 0)
            || log.request_counts.get(&machine).is_some_and(|count| *count > 0)
    }

    /// Returns the unanswered actions of a machine.
    pub(crate) fn unanswered(&self, machine: u32) -> Vec<u64> {
        self.lock().asked.iter().filter(|(by, _)| *by == machine).map(|(_, number)| *number).collect()
    }

    /// Adds a value to the hash by which two runs of a seed are compared.
    pub(crate) fn trace(&self, what: impl Hash) {
        what.hash(&mut self.lock().trace);
    }

    pub(crate) fn trace_hash(&self) -> u64 {
        self.lock().trace.finish()
    }
}

/// A request to the store that is under way.
pub(crate) struct Request(Arc<History>, u32);

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(count) = self.0.lock().request_counts.get_mut(&self.1) {
            *count -= 1;
        }
    }
}

/// The history as the code on one machine sees it.
pub(crate) struct OnMachine {
    pub(crate) machine: u32,
    pub(crate) sim: Sim,
    pub(crate) history: Arc<History>,
}

impl Witness for OnMachine {
    fn begin(&self, closure: Closure) -> u64 {
        let machine = self.machine;
        let mut log = self.history.lock();
        let count = log.run_counts.entry(closure.spot.clone()).or_default();
        *count += 1;
        let nth = *count;
        (machine, &closure.spot, nth).hash(&mut log.trace);
        log.items.push(Happened::Began { machine, closure, at: Some(self.sim.now()) });
        nth
    }

    fn count_open(&self, change: i64) {
        *self.history.lock().open_counts.entry(self.machine).or_default() += change;
    }

    fn drew(&self, draw: Draw, value: u64) {
        self.history.add(Happened::Drew { draw, value });
    }

    fn named(&self, parent: &str, run: u32, child: &str) {
        self.history.add(Happened::Named { parent: parent.to_owned(), run, child: child.to_owned() });
    }

    fn beside(&self, opened: &'static str, open: &[&'static str]) {
        let mut log = self.history.lock();
        for other in open {
            *log.pairs.entry((opened.min(other), opened.max(other))).or_default() += 1;
        }
    }

    fn came(&self, calls: &[ApiName]) {
        let mut log = self.history.lock();
        for call in calls {
            *log.calls.entry(*call).or_default() += 1;
        }
    }
}
