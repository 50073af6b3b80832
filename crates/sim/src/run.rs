//! One scenario from its beginning to its verdict.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_core::{Entry, Event};
use abide_store::ExecutionKey;

use crate::api::ApiName;
use crate::audit;
use crate::history::{AtWork, Happened, Log};
use crate::life;
use crate::scenario::Scenario;
use crate::world::World;

/// The outcome of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The violations; empty if all is well.
    pub violations: Vec<String>,
    /// A hash of everything that happened, in order.
    pub trace_hash: u64,
    /// Whether the store was SQLite.
    pub is_on_sqlite: bool,
    /// The number of operations of the store.
    pub operation_count: u64,
    /// Each fault that struck, with its place, and the work of the machine at that moment.
    pub faults: Vec<(String, AtWork)>,
    /// Each request from outside, and its answer.
    pub answers: Vec<Answered>,
    /// The target of each action, by the number of the action.
    pub targets: Targets,
    /// Each recorded event, with the phase of its execution.
    pub events: Vec<String>,
    /// Each pair of operations of one run that were open at once, and how often.
    pub pairs: Vec<(String, u64)>,
    /// Each request, with the state of the execution that it met, and how often.
    pub met: Vec<(String, u64)>,
    /// Each call of the public API that came to a recorded outcome, and how often.
    pub calls: Vec<(String, u64)>,
}

/// The ids of target executions, by the number of the action.
pub type Targets = BTreeMap<u64, String>;

/// A request from outside, and its answer.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The number of the action.
    pub action: u64,
    /// The kind of request, in a word.
    pub ask: &'static str,
    /// The kind of answer, in a word.
    pub answer: &'static str,
}

impl Answered {
    /// Returns its name in tables.
    pub fn word(&self) -> String {
        format!("{}: {}", self.ask, self.answer)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, at_work) in &self.faults {
            let work = match at_work {
                AtWork::Idle => "",
                AtWork::Leased => ", with a lease",
                AtWork::UnderWay => ", with work under way",
            };
            writeln!(f, "struck: {what}{work}")?;
        }
        for Answered { action, ask, answer } in &self.answers {
            let of = self.targets.get(action).map(|id| format!(" of {id}")).unwrap_or_default();
            writeln!(f, "asked (action {action}): {ask}{of}: {answer}")?;
        }
        for violation in &self.violations {
            writeln!(f, "WRONG: {violation}")?;
        }
        write!(f, "{} operations, trace {:016x}", self.operation_count, self.trace_hash)
    }
}

/// Prints nothing about panics of simulated code, which are part of the world. A panic that ends a
/// world is in its report.
pub fn quiet_panics() {
    std::panic::set_hook(abide_engine::panics::noting(Box::new(|_| {})));
}

/// Lives through a scenario and judges it.
pub fn run(scenario: &Scenario) -> Report {
    let lived = catch_unwind(AssertUnwindSafe(|| live(scenario)));
    lived.unwrap_or_else(|panic| {
        let violations =
            vec![format!("a panic while the world was made or ended: {}", text_of(panic.as_ref()))];
        Report { violations, ..Report::default() }
    })
}

/// Lives through a scenario. A panic during its life is part of the report; a panic while its world
/// is created or ended is not caught.
fn live(scenario: &Scenario) -> Report {
    let world = World::new(scenario);
    let scenario = Arc::new(scenario.clone());
    let lived = catch_unwind(AssertUnwindSafe(|| {
        world.sim.block_on(async {
            let stuck = life::live(world.clone(), scenario.clone()).await.err();
            let mut violations: Vec<String> = stuck.into_iter().collect();
            violations.extend(audit::audit(&world, &scenario).await);
            violations
        })
    }));
    let violations = lived.unwrap_or_else(|panic| vec![format!("a panic: {}", text_of(panic.as_ref()))]);
    world.end();
    let trace_hash = world.history.trace_hash();
    let log = world.history.lock();
    Report {
        violations,
        trace_hash,
        is_on_sqlite: world.database.is_some(),
        operation_count: log.operation_count,
        faults: faults_of(&log),
        answers: answers_of(&log, &scenario),
        targets: log.targets.clone(),
        events: events_of(&log),
        pairs: log.pairs.iter().map(|((one, two), count)| (format!("{one} beside {two}"), *count)).collect(),
        met: log.met.iter().map(|((what, stood), count)| (format!("{what} ({stood})"), *count)).collect(),
        calls: calls_of(&log),
    }
}

/// Returns the evidence for the auditor from a scenario that ends well.
#[cfg(test)]
pub(crate) fn evidence(scenario: &Scenario) -> audit::Evidence {
    let world = World::new(scenario);
    let scenario = Arc::new(scenario.clone());
    let told = world.sim.block_on(async {
        life::live(world.clone(), scenario.clone()).await.expect("it comes to its end");
        audit::Evidence::of(&world, &scenario).await
    });
    world.end();
    told
}

fn calls_of(log: &Log) -> Vec<(String, u64)> {
    let name = |(of, method): &ApiName| format!("{of}::{method}");
    let mut calls: Vec<_> = log.calls.iter().map(|(call, count)| (name(call), *count)).collect();
    // Continue-as-new never returns: its recorded outcome is the next run.
    let is_next = |entry: &&Entry| matches!(entry.event, Event::ContinuedAsNew { .. });
    let next_count = log.commits().flat_map(|commit| &commit.entries).filter(is_next).count() as u64;
    calls.extend((next_count > 0).then(|| (name(&("Ctx", "continue_as_new")), next_count)));
    calls
}

fn faults_of(log: &Log) -> Vec<(String, AtWork)> {
    let faults = log.items.iter().filter_map(|item| match item {
        Happened::Struck { what, at_work } => Some((what.clone(), *at_work)),
        _ => None,
    });
    faults.collect()
}

fn answers_of(log: &Log, scenario: &Scenario) -> Vec<Answered> {
    let answers = log.items.iter().filter_map(|item| match item {
        Happened::Answered { action, answer } => {
            let asked = &scenario.actions[*action];
            Some(Answered { action: asked.number, ask: asked.what.word(), answer: answer.word() })
        }
        _ => None,
    });
    answers.collect()
}

/// Returns the recorded events, each with the phase of its execution.
fn events_of(log: &Log) -> Vec<String> {
    let mut phases: BTreeMap<ExecutionKey, RecordedPhase> = BTreeMap::new();
    let mut events = Vec::new();
    for commit in log.commits() {
        let phase = phases.entry(commit.key).or_default();
        for entry in &commit.entries {
            events.push(format!("{} ({})", entry.event.word(), phase.word()));
            phase.follow(&entry.event);
        }
    }
    events
}

/// The phase of an execution, according to its records.
#[derive(Default)]
struct RecordedPhase {
    is_blocked: bool,
    beneath: Beneath,
}

/// The phase of an execution without a block.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Beneath {
    #[default]
    Running,
    Paused {
        /// Whether somebody paused this very execution, and not its parent.
        is_own: bool,
    },
    Cancelling,
    Expiring,
}

impl RecordedPhase {
    fn word(&self) -> &'static str {
        match self.beneath {
            _ if self.is_blocked => "blocked",
            Beneath::Running => "running",
            Beneath::Paused { .. } => "paused",
            Beneath::Cancelling => "cancelling",
            Beneath::Expiring => "expiring",
        }
    }

    fn follow(&mut self, event: &Event) {
        self.beneath = match (event, self.beneath) {
            (Event::Paused { .. }, Beneath::Running | Beneath::Paused { .. }) => {
                Beneath::Paused { is_own: true }
            }
            (Event::Inherited { pause: Some(_), .. }, Beneath::Running) => Beneath::Paused { is_own: false },
            (Event::Resumed { .. }, Beneath::Paused { .. })
            | (Event::Inherited { pause: None, .. }, Beneath::Paused { is_own: false }) => Beneath::Running,
            (Event::CancelRequested { .. }, _) => Beneath::Cancelling,
            (Event::DeadlinePassed { .. }, _) => Beneath::Expiring,
            // Another run may follow.
            (event, _) if event.is_terminal() => Beneath::Running,
            (_, beneath) => beneath,
        };
        self.is_blocked = match event {
            Event::Blocked { .. } => true,
            Event::Unblocked { .. } => false,
            event => self.is_blocked && !event.is_terminal(),
        };
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of unknown kind").to_owned()
}
