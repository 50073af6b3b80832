//! Programs: the code of simulated workflows and tasks, as data, so that a program can be generated
//! at random, printed, cut down and run again.

use serde::{Deserialize, Serialize};

/// One run of a simulated workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The number that earlier runs added up to.
    pub carry: u64,
    /// The work of this run.
    pub body: Expr,
    /// The program of the next run: this one ends by continue-as-new.
    pub next: Option<Box<Program>>,
    /// Work beside the body, which is still alive when the next run is wanted.
    #[serde(default)]
    pub held: Option<Box<Expr>>,
}

/// An expression that evaluates to a number or an error. Numbers are mixed in the order in which
/// they come, so the result of a run is a fingerprint of everything that it saw.
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
        /// The duration.
        ms: u64,
        /// The name of the timer, unless it has the usual one.
        name: Option<String>,
    },
    /// `ctx.sleep_until`, this long after `ctx.now()`.
    SleepUntil {
        /// The duration.
        ms: u64,
    },
    /// `ctx.recv`.
    Receive {
        /// The name of the signal.
        name: String,
        /// The time after which it stops waiting.
        timeout_ms: Option<u64>,
        /// Whether it waits for a text rather than a number.
        #[serde(default)]
        is_text: bool,
    },
    /// `ctx.run`.
    Run(Child),
    /// `ctx.start`, with other work before the wait for the result, if it waits.
    Start {
        /// The child.
        child: Child,
        /// The work before the wait for its result.
        meanwhile: Box<Expr>,
        /// Whether the parent waits for its result.
        is_awaited: bool,
    },
    /// `ctx.random()`, at this place in the program.
    Random(u32),
    /// `ctx.uuid()`, at this place in the program.
    Uuid(u32),
    /// `ctx.now()`.
    Now,
    /// Expressions one after the other.
    Sequence(Vec<Expr>),
    /// `join!`.
    Join(Vec<Expr>),
    /// `select!` of two or three.
    Select(Vec<Expr>),
    /// `FuturesUnordered`.
    Unordered(Vec<Expr>),
    /// Continues with another expression after an error.
    Catch {
        /// The expression that may fail.
        body: Box<Expr>,
        /// The expression after an error.
        otherwise: Box<Expr>,
        /// Whether it catches a cancellation too; otherwise it passes the cancellation on after
        /// `otherwise`.
        is_stubborn: bool,
    },
    /// `ctx.shield`.
    Shield(Box<Expr>),
    /// An expression that runs if `ctx.patched` returns true.
    Patched {
        /// The change.
        change: String,
        /// The expression that the change adds.
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
    /// Its place in the program, which is unique.
    pub node: u32,
    /// Its name, which other steps may share.
    pub name: String,
    /// The work of the closure.
    pub work: Work,
    /// Its retry policy.
    pub retry: Option<Pauses>,
    /// The timeout of one attempt.
    pub timeout_ms: Option<u64>,
    /// Whether it declares its input.
    pub has_input: bool,
    /// Whether its result is a text rather than a number.
    #[serde(default)]
    pub is_text: bool,
    /// Whether it converts a result of the other type.
    #[serde(default)]
    pub upgrades: bool,
    /// Whether its code decides which errors deserve another attempt: all but panics and timeouts.
    #[serde(default)]
    pub is_asked: bool,
}

/// The work of a closure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// The number that it returns, mixed with the number of its runs.
    pub value: u64,
    /// How long it takes.
    pub delay_ms: u64,
    /// How many of its first runs fail, on any machine.
    pub failure_count: u32,
    /// The way in which they fail.
    pub way: Way,
}

/// The way in which a closure fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// With an error that allows another attempt.
    Error,
    /// With an error that allows no other attempt.
    Fatal,
    /// With a panic.
    Panic,
    /// With a result that cannot be serialized, so an operator has to decide about it.
    Unwritable,
}

/// A retry policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pauses {
    /// The most attempts in total.
    pub attempt_count_max: u32,
    /// The pause between two attempts.
    pub delay_ms: u64,
    /// Whether attempts are unlimited instead.
    #[serde(default)]
    pub is_forever: bool,
    /// The random share of a pause, in percent.
    #[serde(default)]
    pub jitter: u8,
    /// The time after the first attempt from which on no other begins.
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
    /// Whether it fails after its write.
    pub fails: bool,
}

/// A child of a workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    /// The code that it runs.
    pub code: Code,
    /// How it is started.
    pub options: StartWith,
    /// The place in the program from which its own id is made.
    #[serde(default)]
    pub named: Option<u32>,
    /// The key that distinguishes it from other children.
    #[serde(default)]
    pub key: Option<u64>,
    /// Whether an execution that was started with another input will do.
    #[serde(default)]
    pub is_any: bool,
    /// The id that it has instead, which another execution may have.
    #[serde(default)]
    pub taken: Option<String>,
}

/// Returns the name of an operation and its key. A program writes both, and the former names, as
/// one name, such as `s0n<s0[1]`.
pub(crate) fn keyed(name: &str) -> (&str, Option<&str>) {
    let (names, key) = split(name);
    (names.split('<').next().unwrap_or(names), key)
}

/// Returns the former names of an operation.
pub(crate) fn old_names(name: &str) -> Vec<&str> {
    split(name).0.split('<').skip(1).collect()
}

fn split(name: &str) -> (&str, Option<&str>) {
    match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
        Some((names, key)) => (names, Some(key)),
        None => (name, None),
    }
}

/// The code of an execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Code {
    /// The workflow `program`.
    Workflow(Box<Program>),
    /// The task `job`.
    Task(Job),
}

/// The code of a simulated task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its place in the program.
    pub node: u32,
    /// The work of its closure.
    pub work: Work,
}

/// The options with which an execution is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartWith {
    /// The priority; higher goes first.
    pub priority: i16,
    /// The delay before it starts.
    pub delay_ms: Option<u64>,
    /// The time after which it fails unless it is done.
    pub deadline_ms: Option<u64>,
    /// The policy of a task.
    pub retry: Option<Pauses>,
    /// Whether it waits in a lane that not every worker serves.
    #[serde(default)]
    pub is_aside: bool,
    /// Whether it requires a capability that not every worker has.
    #[serde(default)]
    pub is_demanding: bool,
    /// Whether it can be found by a tag.
    #[serde(default)]
    pub is_tagged: bool,
}

impl Program {
    /// Returns every expression that a run of this program, or a later run, may evaluate.
    pub fn exprs(&self) -> Vec<&Expr> {
        let mut found = Vec::new();
        self.collect(&mut found);
        found
    }

    /// Whether it may use this id, which another execution may have, for a child.
    pub(crate) fn takes(&self, id: &str) -> bool {
        self.exprs().into_iter().any(|expr| match expr {
            Expr::Run(child) | Expr::Start { child, .. } => child.taken.as_deref() == Some(id),
            _ => false,
        })
    }

    /// Applies a change to this run and to later ones.
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
    /// Applies a change to every child of this run and of later ones, and to their children.
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
    /// Applies a change to every expression of this run, of later ones and of children.
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

    /// Returns the id that the code of a run chooses for the child, if it chooses one. An id that
    /// is not taken belongs to one place in one run.
    pub(crate) fn id(&self, parent: &str, run: u32) -> Option<String> {
        self.taken.clone().or_else(|| Some(format!("{parent}-{run}-{}", self.named?)))
    }

    fn collect<'a>(&'a self, found: &mut Vec<&'a Expr>) {
        if let Code::Workflow(program) = &self.code {
            program.collect(found);
        }
    }
}

/// Mixes the next number into the number so far; the order counts.
pub fn mix(before: u64, next: u64) -> u64 {
    (before.rotate_left(5) ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Mixes all numbers, in order.
pub fn mixed(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(1, mix)
}
