//! What became of a torture.

use std::path::PathBuf;
use std::time::Duration;

use abide_core::Timestamp;
use serde_json::{Value, json};

/// What became of a torture.
#[derive(Clone, Debug)]
pub struct Report {
    /// What everything followed from.
    pub seed: u64,
    /// When it began.
    pub began_at: Timestamp,
    /// How long it took.
    pub duration: Duration,
    /// How often everything was let end and audited.
    pub rounds: u32,
    /// How many scenarios were begun.
    pub scenarios: u64,
    /// How many executions there were, children included.
    pub executions: u64,
    /// How many operations: closures that began, and things that clients asked for.
    pub operations: u64,
    /// How many journal entries were recorded.
    pub entries: u64,
    /// How many processes were started.
    pub processes: u64,
    /// How many processes were killed.
    pub kills: u64,
    /// How many of them had a closure under way.
    pub kills_under_way: u64,
    /// How many of the killed were clients.
    pub client_kills: u64,
    /// How many were stopped and continued.
    pub stops: u64,
    /// Somebody ended it before its time: what had not ended by then is not known to end.
    pub is_interrupted: bool,
    /// What must not be.
    pub violations: Vec<Violation>,
    /// The evidence, if something must not be.
    pub kept: Option<PathBuf>,
}

/// Something that must not be.
#[derive(Clone, Debug)]
pub struct Violation {
    /// In which round.
    pub round: u32,
    /// The seed of its scenario, if it belongs to one.
    pub scenario: Option<u64>,
    /// What.
    pub what: String,
    /// The scenario, and what happened in it.
    pub story: String,
}

/// How far a torture is.
pub struct Progress<'a> {
    /// What is done now.
    pub what: &'static str,
    /// For how long it has gone on.
    pub elapsed: Duration,
    /// For how long it is to go on.
    pub duration: Duration,
    /// What there is up to now.
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

    /// The report as a document.
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
