//! A scenario: programs, what happens to them from outside, and what goes wrong. Everything that a seed decides, as data: a failing one is cut down piece by piece.

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::damage::Part;
use crate::edition::Edition;
use crate::program::{Code, Pauses, StartWith};

/// Everything that happens in one simulated world, but for the order of what is ready at the same time, which follows from the seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scenario {
    /// What the order of tasks, and every random number, follow from.
    pub seed: u64,
    /// Another order of tasks than the one that the seed gives, by this number. What is cut down keeps its
    /// seed, and may need another order to fail.
    #[serde(default)]
    pub order: u64,
    /// The workers; one that died comes back as another machine.
    pub workers: Vec<WorkerSpec>,
    /// How many processes there are that only start and watch.
    pub client_count: u32,
    /// What may be started.
    pub roots: Vec<Root>,
    /// What is asked from outside.
    pub actions: Vec<Action>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// The most unread messages of one execution.
    pub inbox_count_max: usize,
    /// The store that everything lives on.
    #[serde(default)]
    pub store: StoreSpec,
    /// The builds of the program that may be deployed, beside the first one: the next is number 1.
    #[serde(default)]
    pub editions: Vec<Edition>,
}

/// A store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreSpec {
    /// The one in memory, which is the specification.
    #[default]
    Memory,
    /// SQLite: a file, and for each machine a connection that writes.
    Sqlite(SqliteSpec),
}

/// How SQLite is set up.
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

/// How a worker is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSpec {
    /// The most executions in its memory.
    pub execution_count_max: usize,
    /// The most requests under way.
    pub request_count_max: usize,
    /// How long what only waits stays in memory.
    pub park_after_ms: u64,
    /// How long a shutdown waits for closures.
    pub grace_ms: u64,
    /// By how much its clock is wrong.
    pub skew_ms: i64,
    /// Serves every lane and can do everything.
    #[serde(default = "yes")]
    pub is_able: bool,
    /// How much unread mail of one execution it keeps in memory, if not as much as usual.
    #[serde(default)]
    pub mail_bytes_max: Option<usize>,
    /// How long code may wind down after a deadline, if not as long as usual.
    #[serde(default)]
    pub deadline_grace_ms: Option<u64>,
    /// The policy of steps and tasks that have none, if any.
    #[serde(default)]
    pub default_retry: Option<Pauses>,
}

/// Workers of scenarios that were written down before there was a choice.
fn yes() -> bool {
    true
}

/// An execution that may be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// Its id.
    pub id: String,
    /// What it runs.
    pub code: Code,
    /// How it is started.
    pub options: StartWith,
}

/// Something that is asked from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// A name for it that stays when others are taken away.
    pub number: u64,
    /// When.
    pub at_ms: u64,
    /// By which process.
    pub by: Actor,
    /// What.
    pub what: Ask,
    /// The caller drops its future at this poll.
    pub dropped_at_poll: Option<u32>,
    /// Of a signal: it carries its number as a text, which not everybody can read.
    #[serde(default)]
    pub is_text: bool,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Actor {
    /// A process that only starts and watches.
    Client(u32),
    /// The program around a worker.
    Worker(u32),
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Starts this root, or attaches to it.
    Start(usize),
    /// Starts this root and waits for its result.
    Run(usize),
    /// Starts this root by the name of its code, without options.
    Named(usize),
    /// Starts something else under the id of this root.
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
    /// Has the step run again whose result could not be recorded.
    Rerun(Target),
    /// Gives the result of the step whose own could not be recorded: the number of the action.
    Edit(Target),
    /// Asks how it stands.
    Status(Target),
    /// Asks why.
    Why(Target),
    /// Lists what there is.
    List,
    /// Shuts the worker down that asks.
    Shutdown,
    /// Ends the worker that asks, which comes back with another build of the program.
    Deploy(Deploy),
}

/// A deploy to one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deploy {
    /// The number of the edition.
    pub edition: usize,
    /// Whether the process before is killed; else it shuts down.
    pub is_killed: bool,
}

/// The n-th of the executions that exist, children included, counted around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target(pub usize);

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// When.
    pub when: When,
    /// What.
    pub what: Wrong,
}

/// When something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum When {
    /// At the n-th operation of the store, to whoever asked for it; every other kill waits for somebody with work under way.
    Operation(u64),
    /// At the n-th poll of workers with work under way, to the one that is polled.
    Poll(u64),
    /// At the n-th notice.
    Notice(u64),
    /// At this time, to everybody.
    Time(u64),
    /// At the n-th transaction of a writer of SQLite, to its machine.
    Batch(u64),
    /// At the n-th commit that appends to a journal, once it has happened, to the machine that sent it.
    Record(u64),
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wrong {
    /// The operation does not happen, and fails.
    Unavailable,
    /// The operation happens, and its answer is lost.
    AnswerLost,
    /// The operation happens, and its answer comes later.
    AnswerLate {
        /// So much later.
        ms: u64,
    },
    /// The operation happens later, even if whoever asked for it is dead by then.
    HappensLate {
        /// So much later.
        ms: u64,
    },
    /// The operation happens twice.
    Repeated,
    /// The machine dies before its operation happens.
    KillBefore {
        /// It comes back after this.
        restart_ms: u64,
    },
    /// The machine dies after its operation has happened, or at this poll.
    Kill {
        /// It comes back after this.
        restart_ms: u64,
    },
    /// The machine stops, and goes on later.
    Freeze {
        /// So much later.
        ms: u64,
    },
    /// The clock of the machine jumps to this difference from the true time.
    Skew {
        /// The difference.
        ms: i64,
    },
    /// The clock of the store, and with it every clock, is set.
    ClockStep {
        /// By this much.
        ms: i64,
    },
    /// No operation happens for so long.
    Outage {
        /// For so long.
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
        /// It comes back after this.
        restart_ms: u64,
    },
    /// COMMIT fails so that nobody knows what happened.
    CommitUnknown {
        /// Whether it did happen.
        happens: bool,
    },
    /// The disk is full for so long.
    Full {
        /// For so long.
        ms: u64,
    },
    /// Another process writes for so long.
    Locked {
        /// For so long.
        ms: u64,
    },
    /// A byte of a row on the disk changes.
    Damage {
        /// Whose.
        of: Target,
        /// Which of its rows.
        part: Part,
    },
}

impl Scenario {
    /// Says what makes no sense in it.
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
    /// The same, with ids that begin with this.
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

    /// The same, with everything that takes time so many times as fast. Whatever is called `ms`, or ends in `_ms`, is a time.
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
    /// Its name in tables.
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
    /// The execution that it is about, unless it names a root.
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

    /// Its name in tables.
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
            Self::Status(_) => "status",
            Self::Why(_) => "why",
            Self::List => "list",
            Self::Shutdown => "shutdown",
            Self::Deploy(_) => "deploy",
        }
    }
}
