//! Programs: what simulated workflows and tasks do, as data, so that they can be made by chance, printed, cut down and run again.

use serde::{Deserialize, Serialize};

/// What one run of a simulated workflow does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// What earlier runs added up to.
    pub carry: u64,
    /// What this run does.
    pub body: Expr,
    /// What the next run does: this one ends by continue-as-new.
    pub next: Option<Box<Program>>,
    /// What goes on beside the body, and is still alive when the next run is wanted.
    #[serde(default)]
    pub held: Option<Box<Expr>>,
}

/// Something that gives a number or an error. Numbers are mixed in the order in which they come, so that the result of a run is a fingerprint of everything that
/// it saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expr {
    /// A number.
    Value(u64),
    /// `ctx.step`.
    Step(Step),
    /// `ctx.blocking`.
    Blocking(Step),
    /// A transaction step.
    Transact(Transact),
    /// `ctx.sleep`.
    Sleep {
        /// For so long.
        ms: u64,
        /// Under a name of its own.
        name: Option<String>,
    },
    /// `ctx.sleep_until`, so long after `ctx.now()`.
    SleepUntil {
        /// So long.
        ms: u64,
    },
    /// `ctx.recv`.
    Receive {
        /// The name of the signal.
        name: String,
        /// Gives up after so long.
        timeout_ms: Option<u64>,
        /// Whether it waits for a text, and not for a number.
        #[serde(default)]
        is_text: bool,
    },
    /// `ctx.run`.
    Run(Child),
    /// `ctx.start`, and something else before the result is waited for, or not.
    Start {
        /// The child.
        child: Child,
        /// What is done before its result is waited for.
        meanwhile: Box<Expr>,
        /// Whether its result is waited for.
        is_awaited: bool,
    },
    /// `ctx.random()`, at this place of the program.
    Random(u32),
    /// `ctx.uuid()`, at this place of the program.
    Uuid(u32),
    /// `ctx.now()`.
    Now,
    /// One after the other.
    Sequence(Vec<Expr>),
    /// `join!`.
    Join(Vec<Expr>),
    /// `select!` of two or three.
    Select(Vec<Expr>),
    /// `FuturesUnordered`.
    Unordered(Vec<Expr>),
    /// Goes on with something else after an error.
    Catch {
        /// What may fail.
        body: Box<Expr>,
        /// What is done then.
        otherwise: Box<Expr>,
        /// Whether a cancellation is caught too; otherwise it is passed on after that.
        is_stubborn: bool,
    },
    /// `ctx.shield`.
    Shield(Box<Expr>),
    /// What is done if `ctx.patched` says so.
    Patched {
        /// The change.
        change: String,
        /// What it changes.
        body: Box<Expr>,
    },
    /// Fails.
    Fail {
        /// The place in the program.
        node: u32,
    },
}

/// A closure whose result is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its place in the program, which no other has.
    pub node: u32,
    /// Its name, which others may have too.
    pub name: String,
    /// What the closure does.
    pub work: Work,
    /// Its policy.
    pub retry: Option<Pauses>,
    /// Of one attempt.
    pub timeout_ms: Option<u64>,
    /// Whether it declares its input.
    pub has_input: bool,
    /// Whether its result is a text, and not a number.
    #[serde(default)]
    pub is_text: bool,
    /// Whether it converts a result of the other type.
    #[serde(default)]
    pub upgrades: bool,
    /// Whether its code says which errors are worth another attempt: those that are no panic and no timeout.
    #[serde(default)]
    pub is_asked: bool,
}

/// What a closure does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// What it gives, mixed with how often it has run.
    pub value: u64,
    /// How long it takes.
    pub delay_ms: u64,
    /// So many of its first runs fail, whoever runs them.
    pub failure_count: u32,
    /// How they fail.
    pub way: Way,
}

/// How a closure fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// With an error that may be tried again.
    Error,
    /// With one that may not.
    Fatal,
    /// By a panic.
    Panic,
    /// It gives a result that cannot be written down: somebody has to decide about it.
    Unwritable,
}

/// A retry policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pauses {
    /// So many attempts in all.
    pub attempt_count_max: u32,
    /// The pause between two of them.
    pub delay_ms: u64,
    /// As many attempts as it takes, instead.
    #[serde(default)]
    pub is_forever: bool,
    /// How much of a pause is left to chance, in percent.
    #[serde(default)]
    pub jitter: u8,
    /// No attempt begins so long after the first.
    #[serde(default)]
    pub elapsed_ms_max: Option<u64>,
}

/// A transaction step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transact {
    /// Its place in the program.
    pub node: u32,
    /// Its name.
    pub name: String,
    /// Writes, and then fails.
    pub fails: bool,
}

/// A child of a workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    /// What it is.
    pub code: Code,
    /// How it is started.
    pub options: StartWith,
    /// The place in the program that gives it an id of its own.
    #[serde(default)]
    pub named: Option<u32>,
    /// What tells it apart from other children.
    #[serde(default)]
    pub key: Option<u64>,
    /// Whether one that was started with another input will do.
    #[serde(default)]
    pub is_any: bool,
    /// The id that it is given instead, which somebody else may have.
    #[serde(default)]
    pub taken: Option<String>,
}

/// The name of an operation and its key. A program writes both, and the names that it had before, as one name, such as `s0n<s0[1]`.
pub(crate) fn keyed(name: &str) -> (&str, Option<&str>) {
    let (names, key) = split(name);
    (names.split('<').next().unwrap_or(names), key)
}

/// The names that an operation had before.
pub(crate) fn old_names(name: &str) -> Vec<&str> {
    split(name).0.split('<').skip(1).collect()
}

fn split(name: &str) -> (&str, Option<&str>) {
    match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
        Some((names, key)) => (names, Some(key)),
        None => (name, None),
    }
}

/// What an execution runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Code {
    /// The workflow `program`.
    Workflow(Box<Program>),
    /// The task `job`.
    Task(Job),
}

/// What a simulated task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its place in the program.
    pub node: u32,
    /// What it does.
    pub work: Work,
}

/// How an execution is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartWith {
    /// Higher goes first.
    pub priority: i16,
    /// Not before this long.
    pub delay_ms: Option<u64>,
    /// Fails when it is not done after this long.
    pub deadline_ms: Option<u64>,
    /// The policy of a task.
    pub retry: Option<Pauses>,
    /// Waits in a lane that not every worker serves.
    #[serde(default)]
    pub is_aside: bool,
    /// Requires what not every worker can do.
    #[serde(default)]
    pub is_demanding: bool,
    /// Can be found by a tag.
    #[serde(default)]
    pub is_tagged: bool,
}

impl Program {
    /// Everything that a run of this program, and the runs after it, may ask for.
    pub fn exprs(&self) -> Vec<&Expr> {
        let mut found = Vec::new();
        self.collect(&mut found);
        found
    }

    /// Whether it may give this id, which somebody else may have, to a child.
    pub(crate) fn takes(&self, id: &str) -> bool {
        self.exprs().into_iter().any(|expr| match expr {
            Expr::Run(child) | Expr::Start { child, .. } => child.taken.as_deref() == Some(id),
            _ => false,
        })
    }

    /// Does something to this run and to those after it.
    pub fn each_run(&mut self, change: &mut dyn FnMut(&mut Self)) {
        change(self);
        if let Some(next) = &mut self.next {
            next.each_run(change);
        }
    }

    fn collect<'a>(&'a self, found: &mut Vec<&'a Expr>) {
        self.body.collect(found);
        if let Some(held) = &self.held {
            held.collect(found);
        }
        if let Some(next) = &self.next {
            next.collect(found);
        }
    }
}

impl Expr {
    fn collect<'a>(&'a self, found: &mut Vec<&'a Expr>) {
        found.push(self);
        match self {
            Self::Sequence(parts) | Self::Join(parts) | Self::Select(parts) | Self::Unordered(parts) => {
                parts.iter().for_each(|part| part.collect(found));
            }
            Self::Catch { body, otherwise, .. } => {
                body.collect(found);
                otherwise.collect(found);
            }
            Self::Shield(body) | Self::Patched { body, .. } => body.collect(found),
            Self::Run(child) => child.collect(found),
            Self::Start { child, meanwhile, .. } => {
                child.collect(found);
                meanwhile.collect(found);
            }
            _ => {}
        }
    }
}

impl Program {
    /// Does something to every child of this run and of those after it, and to theirs.
    pub fn each_child(&mut self, change: &mut dyn FnMut(&mut Child)) {
        self.body.each_child(change);
        if let Some(held) = &mut self.held {
            held.each_child(change);
        }
        if let Some(next) = &mut self.next {
            next.each_child(change);
        }
    }
}

impl Expr {
    fn each_child(&mut self, change: &mut dyn FnMut(&mut Child)) {
        match self {
            Self::Sequence(parts) | Self::Join(parts) | Self::Select(parts) | Self::Unordered(parts) => {
                parts.iter_mut().for_each(|part| part.each_child(change));
            }
            Self::Catch { body, otherwise, .. } => {
                body.each_child(change);
                otherwise.each_child(change);
            }
            Self::Shield(body) | Self::Patched { body, .. } => body.each_child(change),
            Self::Run(child) => child.each_child(change),
            Self::Start { child, meanwhile, .. } => {
                child.each_child(change);
                meanwhile.each_child(change);
            }
            _ => {}
        }
    }
}

impl Program {
    /// Does something to every expression of this run, of those after it and of children.
    pub fn each_expr(&mut self, change: &mut dyn FnMut(&mut Expr)) {
        self.body.each_expr(change);
        if let Some(held) = &mut self.held {
            held.each_expr(change);
        }
        if let Some(next) = &mut self.next {
            next.each_expr(change);
        }
    }
}

impl Expr {
    fn each_expr(&mut self, change: &mut dyn FnMut(&mut Expr)) {
        change(self);
        match self {
            Self::Sequence(parts) | Self::Join(parts) | Self::Select(parts) | Self::Unordered(parts) => {
                parts.iter_mut().for_each(|part| part.each_expr(change));
            }
            Self::Catch { body, otherwise, .. } => {
                body.each_expr(change);
                otherwise.each_expr(change);
            }
            Self::Shield(cleanup) => cleanup.each_expr(change),
            Self::Run(child) => child.each_expr(change),
            Self::Start { child, meanwhile, .. } => {
                child.each_expr(change);
                meanwhile.each_expr(change);
            }
            _ => {}
        }
    }
}

impl Child {
    fn each_expr(&mut self, change: &mut dyn FnMut(&mut Expr)) {
        if let Code::Workflow(program) = &mut self.code {
            program.each_expr(change);
        }
    }

    fn each_child(&mut self, change: &mut dyn FnMut(&mut Child)) {
        change(self);
        if let Code::Workflow(program) = &mut self.code {
            program.each_child(change);
        }
    }

    /// The id that the code of a run gives it, if it does. One that is not taken belongs to one place in one run.
    pub(crate) fn id(&self, parent: &str, run: u32) -> Option<String> {
        self.taken.clone().or_else(|| Some(format!("{parent}-{run}-{}", self.named?)))
    }

    fn collect<'a>(&'a self, found: &mut Vec<&'a Expr>) {
        if let Code::Workflow(program) = &self.code {
            program.collect(found);
        }
    }
}

/// Mixes the next number into what was there before; the order counts.
pub fn mix(before: u64, next: u64) -> u64 {
    (before.rotate_left(5) ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Mixes all of them, in order.
pub fn mixed(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(1, mix)
}
