//! The options of an engine, with names and defaults.

use std::collections::BTreeSet;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Bounds, Name, Namespace, Retry, text};
use abide_store::IdleHook;

use crate::quarantine::SUSPECT_TAKEOVER_COUNT;

/// The options of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tenant that it works for.
    pub namespace: Namespace,
    /// Its worker's name, for people.
    pub worker_name: Name,
    /// The lanes that it serves.
    pub lanes: BTreeSet<Name>,
    /// Its further capabilities.
    pub capabilities: BTreeSet<Name>,
    /// The version of the program. Each build tries a blocked execution once.
    pub build: Name,
    /// Bounds on the size of records.
    pub bounds: Bounds,
    /// The policy of steps and tasks that have none of their own.
    pub default_retry: Retry,
    /// The most executions in memory at a time.
    pub execution_count_max: usize,
    /// The most requests of clients that are under way at a time; further ones wait for their turn.
    pub request_count_max: usize,
    /// How many bytes of its unread messages one execution keeps in memory. The rest is read again
    /// when the code wants it.
    pub mail_bytes_max: usize,
    /// How long an execution that only waits stays in memory.
    pub park_after: Duration,
    /// How long a caller that hosts its execution, and was woken, may leave it unpolled before it
    /// runs on a task of its own. Zero: no code is ever called on the task of a caller.
    pub host_patience: Duration,
    /// Whether the code of a workflow may begin before its start is written. If it kills its
    /// process there, nothing is known of it, and its deaths are not counted.
    pub begins_early: bool,
    /// How long an execution stays in memory beyond that for an await that is no operation, such as
    /// a timer of another library. It is reported if it wakes the code meanwhile.
    pub foreign_patience: Duration,
    /// How long an execution waits before it publishes the object of its wait.
    pub announce_after: Duration,
    /// How long the worker's session lives without a heartbeat.
    pub session_ttl: Duration,
    /// How often to look for dead sessions.
    pub sweep_every: Duration,
    /// How often the feed is read for callers that wait for a result, if no hint announces news:
    /// hints may fail.
    pub follow_every: Duration,
    /// How often callers that wait for a result look without being woken.
    pub look_again_every: Duration,
    /// How often in a row the store may refuse a commit for good, or the driver may panic, before
    /// an execution is blocked. Each time, the unrecorded steps run again.
    pub failure_count_max: u32,
    /// How long a shutdown waits for closures that run.
    pub shutdown_grace: Duration,
    /// How many sessions in a row have to die with an execution, without progress of it, to make it
    /// a suspect. A suspect runs alone.
    pub suspect_takeover_count: u32,
    /// How long a suspect lets others go on before they have to leave for it, and then how long it
    /// waits for that before it lets them go on again. Twice as long after each further takeover,
    /// and after each unsuccessful wait.
    pub suspect_wait: Duration,
    /// The longest time that others are kept out for a suspect that runs and makes no progress.
    pub suspect_alone_max: Duration,
    /// How long a suspect rests after its worker died while it ran alone. Twice as long after each
    /// further death.
    pub suspect_rest: Duration,
    /// The number of deaths of its worker, while it ran alone, that blocks an execution.
    pub suspect_death_count_max: u32,
    /// What to do when the engine has become idle.
    pub on_idle: Option<IdleHook>,
}

impl Default for Options {
    fn default() -> Self {
        let name = |text| Name::new(text).expect("a literal name");
        Self {
            namespace: Namespace::default(),
            worker_name: name("worker"),
            lanes: [name("default")].into(),
            capabilities: BTreeSet::new(),
            build: name("unnamed"),
            bounds: Bounds::default(),
            default_retry: Retry::never(),
            execution_count_max: 5_000,
            request_count_max: 50_000,
            mail_bytes_max: 1 << 20,
            park_after: Duration::from_secs(1),
            host_patience: Duration::from_secs(1),
            begins_early: false,
            foreign_patience: Duration::from_secs(60),
            announce_after: Duration::from_millis(20),
            session_ttl: Duration::from_secs(15),
            sweep_every: Duration::from_secs(2),
            follow_every: Duration::from_secs(5),
            look_again_every: Duration::from_secs(60),
            failure_count_max: 5,
            shutdown_grace: Duration::from_secs(10),
            suspect_takeover_count: SUSPECT_TAKEOVER_COUNT,
            suspect_wait: Duration::from_millis(20),
            suspect_alone_max: Duration::from_secs(60),
            suspect_rest: Duration::from_millis(500),
            suspect_death_count_max: 5,
            on_idle: None,
        }
    }
}

impl Options {
    /// The shortest life of a session. Three heartbeats fit into it, each of which is written to
    /// the store.
    pub const SESSION_TTL_MIN: Duration = Duration::from_millis(50);

    /// The smallest bound on payloads: that of a function without input or result.
    pub const PAYLOAD_BYTES_MIN: usize = "null".len();

    /// Whether code may be called on the task of a caller.
    pub(crate) fn calls_code_on_callers(&self) -> bool {
        !self.host_patience.is_zero()
    }

    /// Returns an error that names the first impossible option.
    pub fn check(&self) -> Result<(), String> {
        if self.lanes.is_empty() {
            return Err("the list of lanes is empty: a worker serves at least one".to_owned());
        }
        if self.bounds.payload_bytes_max < Self::PAYLOAD_BYTES_MIN {
            let (found, min) = (self.bounds.payload_bytes_max, Self::PAYLOAD_BYTES_MIN);
            return Err(format!(
                "the payload_bytes_max is {found}, but must be at least {min}: even null has {min} bytes"
            ));
        }
        if self.session_ttl < Self::SESSION_TTL_MIN && !planted(Bug::SessionOfZero) {
            let (found, min) = (text::duration(self.session_ttl), text::duration(Self::SESSION_TTL_MIN));
            return Err(format!("the session_ttl is {found}, but must be at least {min}"));
        }
        let bounds = [
            ("execution_count_max", self.execution_count_max == 0),
            ("request_count_max", self.request_count_max == 0),
            ("entry_count_max", self.bounds.entry_count_max == 0),
        ];
        match bounds.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((name, _)) => Err(format!("the {name} is 0, but must be at least 1")),
            None => Ok(()),
        }
    }

    /// Turns off everything that recurs, for a virtual clock: such a clock jumps from one timer to
    /// the next, and a month of heartbeats is long.
    pub fn without_recurrence(mut self) -> Self {
        const NEVER: Duration = Duration::from_secs(3_600 * 24 * 365 * 1_000);
        self.session_ttl = NEVER * 3;
        self.sweep_every = NEVER;
        self.follow_every = NEVER;
        self.look_again_every = NEVER;
        self
    }
}
