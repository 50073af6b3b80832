//! A scenario: programs, actions from outside, and faults. It holds all decisions of a seed as
//! data, so a failing scenario can be cut down piece by piece.

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::damage::Part;
use crate::edition::Edition;
use crate::program::{Code, Pauses, StartWith};

/// Everything that happens in one simulated world, except for the order of tasks that are ready at
/// the same time. That order follows from the seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scenario {
    /// The seed of the order of tasks and of every random number.
    pub seed: u64,
    /// The number of an order of tasks other than the seed's own. A scenario that is cut down keeps
    /// its seed, and may need another order to fail.
    #[serde(default)]
    pub order: u64,
    /// The workers. A worker that died comes back as another machine.
    pub workers: Vec<WorkerSpec>,
    /// The number of processes that only start and watch.
    pub client_count: u32,
    /// The executions that may be started.
    pub roots: Vec<Root>,
    /// The actions from outside.
    pub actions: Vec<Action>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// The most unread messages of one execution.
    pub inbox_count_max: usize,
    /// The store of the world.
    #[serde(default)]
    pub store: StoreSpec,
    /// The builds of the program that may be deployed, apart from the first: the next is number 1.
    #[serde(default)]
    pub editions: Vec<Edition>,
}

/// A store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreSpec {
    /// The store in memory, which is the specification.
    #[default]
    Memory,
    /// SQLite: one file, and a writing connection for each machine.
    Sqlite(SqliteSpec),
}

/// The configuration of SQLite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SqliteSpec {
    /// The most operations that wait for a writer.
    pub queue_count_max: usize,
    /// The most operations in one transaction.
    pub batch_count_max: usize,
    /// The size at which the log is restarted.
    pub log_bytes_max: u64,
}

impl Default for SqliteSpec {
    fn default() -> Self {
        Self { queue_count_max: 1_000, batch_count_max: 1_000, log_bytes_max: 1 << 20 }
    }
}

/// The configuration of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSpec {
    /// The most executions in its memory.
    pub execution_count_max: usize,
    /// The most requests under way.
    pub request_count_max: usize,
    /// How long an execution that only waits stays in memory.
    pub park_after_ms: u64,
    /// How long a shutdown waits for closures.
    pub grace_ms: u64,
    /// The error of its clock.
    pub skew_ms: i64,
    /// Whether it serves every lane and has every capability.
    #[serde(default = "yes")]
    pub is_able: bool,
    /// The most unread messages of one execution in its memory, unless it is the default.
    #[serde(default)]
    pub mail_bytes_max: Option<usize>,
    /// How long code may wind down after a deadline, unless it is the default.
    #[serde(default)]
    pub deadline_grace_ms: Option<u64>,
    /// The policy of steps and tasks that set none, if any.
    #[serde(default)]
    pub default_retry: Option<Pauses>,
}

/// The value for scenarios that were saved before the field existed.
fn yes() -> bool {
    true
}

/// An execution that may be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// Its id.
    pub id: String,
    /// The code that it runs.
    pub code: Code,
    /// How it is started.
    pub options: StartWith,
}

/// An action from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// A number that stays the same when other actions are removed.
    pub number: u64,
    /// The time of the action.
    pub at_ms: u64,
    /// The process that asks.
    pub by: Actor,
    /// The request.
    pub what: Ask,
    /// The poll at which the caller drops its future.
    pub dropped_at_poll: Option<u32>,
    /// Whether a signal carries its number as a text, which not all code can read.
    #[serde(default)]
    pub is_text: bool,
}

/// The process that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Actor {
    /// A process that only starts and watches.
    Client(u32),
    /// The program around a worker.
    Worker(u32),
}

/// A request from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Starts this root, or attaches to it.
    Start(usize),
    /// Starts this root and waits for its result.
    Run(usize),
    /// Starts this root by the name of its code, without options.
    Named(usize),
    /// Starts other code under the id of this root.
    Conflict(usize),
    /// Waits for the result of an execution.
    Result(Target),
    /// Sends a signal; its value is the number of the action.
    Signal(Target, String),
    /// Pauses.
    Pause(Target),
    /// Resumes.
    Resume(Target),
    /// Cancels.
    Cancel(Target),
    /// Terminates.
    Terminate(Target),
    /// Retries.
    Retry(Target),
    /// Unblocks.
    Unblock(Target),
    /// Runs the step again whose result could not be recorded.
    Rerun(Target),
    /// Supplies the result of the step whose own could not be recorded: the number of the action.
    Edit(Target),
    /// Accepts the recorded outcome of an operation that the code asks for with another input.
    Accept(Target),
    /// Asks for the status.
    Status(Target),
    /// Asks `why`.
    Why(Target),
    /// Lists the executions.
    List,
    /// Shuts down the worker that asks.
    Shutdown,
    /// Ends the worker that asks; it comes back with another build of the program.
    Deploy(Deploy),
}

/// A deploy to one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deploy {
    /// The number of the edition.
    pub edition: usize,
    /// Whether the old process is killed; otherwise it shuts down.
    pub is_killed: bool,
}

/// An index into the executions that exist, children included, modulo their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target(pub usize);

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The moment of the fault.
    pub when: When,
    /// The kind of fault.
    pub what: Wrong,
}

/// The moment of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum When {
    /// At the n-th operation of the store, to the machine that asked for it. Every other kill waits
    /// for a machine with work under way.
    Operation(u64),
    /// At the n-th poll of workers that hold a lease or have work under way, to the polled worker.
    /// A kill waits for work under way.
    Poll(u64),
    /// At the n-th notice.
    Notice(u64),
    /// At this time, to every machine.
    Time(u64),
    /// At the n-th transaction of a writer of SQLite, to its machine.
    Batch(u64),
    /// At the n-th commit that appends to a journal, once it has happened, to the machine that sent
    /// it.
    Record(u64),
    /// At the n-th time that a machine that shuts down ends its session, to that machine.
    Retire(u64),
}

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wrong {
    /// The operation does not happen, and fails.
    Unavailable,
    /// The operation happens, and its answer is lost.
    AnswerLost,
    /// The operation happens, and its answer comes later.
    AnswerLate {
        /// The delay.
        ms: u64,
    },
    /// The operation happens later, even if the machine that asked for it is dead by then.
    HappensLate {
        /// The delay.
        ms: u64,
    },
    /// The operation happens twice.
    Repeated,
    /// The machine dies before its operation happens.
    KillBefore {
        /// The time until it comes back.
        restart_ms: u64,
    },
    /// The machine dies after its operation has happened, or at this poll.
    Kill {
        /// The time until it comes back.
        restart_ms: u64,
    },
    /// The machine stops, and goes on later.
    Freeze {
        /// The duration.
        ms: u64,
    },
    /// The clock of the machine jumps to this offset from the true time.
    Skew {
        /// The offset.
        ms: i64,
    },
    /// The clock of the store, and with it every clock, is set.
    ClockStep {
        /// The change.
        ms: i64,
    },
    /// No operation happens for a while.
    Outage {
        /// The duration.
        ms: u64,
    },
    /// No execution can be read for a while, although the store works.
    Unread {
        /// The duration.
        ms: u64,
    },
    /// The notice never comes.
    NoticeLost,
    /// The notice comes twice.
    NoticeRepeated,
    /// The notice comes after later ones.
    NoticeLate,
    /// The notice comes before earlier ones.
    NoticeOvertakes,
    /// The machine dies in the middle of a transaction.
    KillInBatch {
        /// The time until it comes back.
        restart_ms: u64,
    },
    /// COMMIT fails without a known outcome.
    CommitUnknown {
        /// Whether the commit happened.
        happens: bool,
    },
    /// The disk is full for a while.
    Full {
        /// The duration.
        ms: u64,
    },
    /// Another process writes for a while.
    Locked {
        /// The duration.
        ms: u64,
    },
    /// A byte of a row on the disk changes.
    Damage {
        /// The execution that owns the row.
        of: Target,
        /// The kind of row.
        part: Part,
    },
}

impl Scenario {
    /// Returns an error if the scenario makes no sense.
    pub fn check(&self) -> Result<(), String> {
        if self.workers.is_empty() {
            return Err("there is no worker".to_owned());
        }
        for action in &self.actions {
            if let Ask::Start(root) | Ask::Run(root) | Ask::Named(root) | Ask::Conflict(root) = action.what
                && root >= self.roots.len()
            {
                return Err(format!("action {}: there is no root {root}", action.number));
            }
            if let Ask::Deploy(Deploy { edition, .. }) = action.what
                && edition > self.editions.len()
            {
                return Err(format!("action {}: there is no edition {edition}", action.number));
            }
        }
        Ok(())
    }
}

impl Scenario {
    /// Returns the same scenario with this prefix on its ids.
    #[cfg(unix)]
    pub(crate) fn under(mut self, prefix: &str) -> Self {
        for root in &mut self.roots {
            root.id.insert_str(0, prefix);
            if let Code::Workflow(program) = &mut root.code {
                program
                    .each_child(&mut |child| child.taken.iter_mut().for_each(|id| id.insert_str(0, prefix)));
            }
        }
        self
    }

    /// Returns the same scenario with all times divided by a factor. Fields named `ms`, or with
    /// names that end in `_ms`, are times.
    pub(crate) fn faster(self, times: u64) -> Self {
        let hastened = serde_json::to_value(&self).ok().map(|mut value| {
            hasten(&mut value, times);
            value
        });
        hastened.and_then(|value| serde_json::from_value(value).ok()).unwrap_or(self)
    }
}

fn hasten(value: &mut Value, times: u64) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| hasten(value, times)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_u64() {
                    Some(ms) if name == "ms" || name.ends_with("_ms") => *value = ms.div_ceil(times).into(),
                    _ => hasten(value, times),
                }
            }
        }
        _ => {}
    }
}

impl Wrong {
    /// Returns its name in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::AnswerLost => "answer lost",
            Self::AnswerLate { .. } => "answer late",
            Self::HappensLate { .. } => "happens late",
            Self::Repeated => "repeated",
            Self::KillBefore { .. } => "kill before",
            Self::Kill { .. } => "kill",
            Self::Freeze { .. } => "freeze",
            Self::Skew { .. } => "skew",
            Self::ClockStep { .. } => "clock step",
            Self::Outage { .. } => "outage",
            Self::Unread { .. } => "unread",
            Self::NoticeLost => "notice lost",
            Self::NoticeRepeated => "notice repeated",
            Self::NoticeLate => "notice late",
            Self::NoticeOvertakes => "notice overtakes",
            Self::KillInBatch { .. } => "kill in batch",
            Self::CommitUnknown { happens: true } => "commit unheard",
            Self::CommitUnknown { happens: false } => "commit unwritten",
            Self::Full { .. } => "disk full",
            Self::Locked { .. } => "locked",
            Self::Damage { part: Part::State, .. } => "damage of a state",
            Self::Damage { part: Part::Journal, .. } => "damage of a journal",
            Self::Damage { part: Part::Message, .. } => "damage of a message",
        }
    }
}

impl Ask {
    /// Returns the target execution, unless the request names a root.
    pub fn target(&self) -> Option<Target> {
        match self {
            Self::Result(target)
            | Self::Signal(target, _)
            | Self::Pause(target)
            | Self::Resume(target)
            | Self::Cancel(target)
            | Self::Terminate(target)
            | Self::Retry(target)
            | Self::Unblock(target)
            | Self::Rerun(target)
            | Self::Edit(target)
            | Self::Accept(target)
            | Self::Status(target)
            | Self::Why(target) => Some(*target),
            Self::Start(_)
            | Self::Run(_)
            | Self::Named(_)
            | Self::Conflict(_)
            | Self::List
            | Self::Shutdown
            | Self::Deploy(_) => None,
        }
    }

    /// Returns its name in tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Start(_) => "start",
            Self::Run(_) => "run",
            Self::Named(_) => "start by name",
            Self::Conflict(_) => "conflict",
            Self::Result(_) => "result",
            Self::Signal(..) => "signal",
            Self::Pause(_) => "pause",
            Self::Resume(_) => "resume",
            Self::Cancel(_) => "cancel",
            Self::Terminate(_) => "terminate",
            Self::Retry(_) => "retry",
            Self::Unblock(_) => "unblock",
            Self::Rerun(_) => "rerun",
            Self::Edit(_) => "edit",
            Self::Accept(_) => "accept",
            Self::Status(_) => "status",
            Self::Why(_) => "why",
            Self::List => "list",
            Self::Shutdown => "shutdown",
            Self::Deploy(_) => "deploy",
        }
    }
}
