//! The report of a torture.

use std::path::PathBuf;
use std::time::Duration;

use abide_core::Timestamp;
use serde_json::{Value, json};

/// The outcome of a torture.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed of the torture.
    pub seed: u64,
    /// When it began.
    pub began_at: Timestamp,
    /// How long it took.
    pub duration: Duration,
    /// How often everything was allowed to end and was audited.
    pub rounds: u32,
    /// The number of scenarios that began.
    pub scenarios: u64,
    /// The number of executions, children included.
    pub executions: u64,
    /// The number of operations: closures that began, and requests of clients.
    pub operations: u64,
    /// The number of recorded journal entries.
    pub entries: u64,
    /// The number of processes that were started.
    pub processes: u64,
    /// The number of processes that were killed.
    pub kills: u64,
    /// The number of killed processes that had a closure under way.
    pub kills_under_way: u64,
    /// The number of killed clients.
    pub client_kills: u64,
    /// The number of processes that were stopped and continued.
    pub stops: u64,
    /// Whether it was ended early: executions that were open then are not known to end.
    pub is_interrupted: bool,
    /// The violations.
    pub violations: Vec<Violation>,
    /// The folder with the evidence, if there are violations.
    pub kept: Option<PathBuf>,
}

/// A violation.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The round in which it was found.
    pub round: u32,
    /// The seed of its scenario, if it belongs to one.
    pub scenario: Option<u64>,
    /// The description.
    pub what: String,
    /// The scenario, and what happened in it.
    pub story: String,
}

/// The progress of a torture.
pub struct Progress<'a> {
    /// The current activity.
    pub what: &'static str,
    /// The time since the beginning.
    pub elapsed: Duration,
    /// The intended duration.
    pub duration: Duration,
    /// The report so far.
    pub report: &'a Report,
}

impl Report {
    pub(crate) fn new(seed: u64, began_at: Timestamp) -> Self {
        Self {
            seed,
            began_at,
            duration: Duration::ZERO,
            rounds: 0,
            scenarios: 0,
            executions: 0,
            operations: 0,
            entries: 0,
            processes: 0,
            kills: 0,
            kills_under_way: 0,
            client_kills: 0,
            stops: 0,
            is_interrupted: false,
            violations: Vec::new(),
            kept: None,
        }
    }

    /// Returns the report as a document.
    pub fn document(&self) -> Value {
        let violations = self.violations.iter().map(|violation| {
            json!({
                "round": violation.round,
                "scenario_seed": violation.scenario,
                "what": violation.what,
                "story": violation.story,
            })
        });
        json!({
            "seed": self.seed,
            "version": env!("CARGO_PKG_VERSION"),
            "began_at": self.began_at.to_string(),
            "duration_ms": u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
            "interrupted": self.is_interrupted,
            "rounds": self.rounds,
            "scenarios": self.scenarios,
            "executions": self.executions,
            "operations": self.operations,
            "entries": self.entries,
            "processes": self.processes,
            "kills": self.kills,
            "kills_under_way": self.kills_under_way,
            "client_kills": self.client_kills,
            "stops": self.stops,
            "sound": self.violations.is_empty(),
            "violations": violations.collect::<Vec<_>>(),
            "kept": self.kept,
        })
    }
}
