//! One process of a torture, from inside: a worker or a client that obeys the orders on its
//! standard input, until it is killed or its parent is gone.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide::StoreUrl;
use abide::prelude::*;
use abide_engine::{Runtime, TokioRuntime};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::effects::{Effects, Line};
use super::scenario_of;
use crate::ask::{DropAt, perform};
use crate::code::{CAPABILITY, LANES, PANIC, Probe, Witness};
use crate::history::{Closure, Draw};
use crate::scenario::{Ask, Scenario, WorkerSpec};
use crate::table::TableKind;

/// How often a process tries to open its store, and how long it waits in between.
const OPEN_COUNT_MAX: u32 = 300;
const OPEN_EVERY_MS: u64 = 100;

/// A process writes this to its standard output once it dies with its parent.
const READY: &[u8] = b"ready\n";

/// The role of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Role {
    /// The number of the process.
    pub(crate) machine: u32,
    /// The configuration of a worker; `None` for a client.
    pub(crate) worker: Option<WorkerSpec>,
    pub(crate) url: String,
    pub(crate) effects: PathBuf,
    pub(crate) session_ttl_ms: u64,
    /// The prefix of this torture's ids.
    pub(crate) prefix: String,
    pub(crate) seed: u64,
}

impl Role {
    fn table(&self) -> TableKind {
        match self.url.parse() {
            Ok(StoreUrl::Postgres(_)) => TableKind::Postgres,
            _ => TableKind::Sqlite,
        }
    }
}

/// An action that a process has to perform.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) scenario: u64,
    pub(crate) action: usize,
    /// The target execution.
    pub(crate) id: Option<String>,
}

/// Plays the role that the first line of the standard input describes. Does not return while its
/// parent lives.
pub fn play() -> std::result::Result<(), String> {
    // The parent may die while this process is stopped, and then nothing else ends it. No process
    // is stopped before it has said below that it is ready.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| error.to_string())?;
    let mut first = String::new();
    std::io::stdin().lock().read_line(&mut first).map_err(|error| error.to_string())?;
    let role: Role = serde_json::from_str(&first).map_err(|_| {
        "this is a process of `abide torture`, which tells it on its standard input what to be".to_owned()
    })?;
    // A parent that died before the signal was set reads no longer, and this fails.
    std::io::stdout()
        .write_all(READY)
        .and_then(|()| std::io::stdout().flush())
        .map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let runtime = TokioRuntime::current().ok_or("there is no runtime")?;
        Actor::new(role, runtime).map_err(|error| error.to_string())?.live(orders()).await
    })
}

/// Reads the lines of the standard input. The process ends when its parent is gone.
#[expect(
    clippy::disallowed_methods,
    reason = "reading from a parent blocks a thread until the process ends with it"
)]
fn orders() -> UnboundedReceiver<Order> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
            if let Ok(order) = serde_json::from_str(&line) {
                // The receiver is gone while the store is being closed.
                let _ = sender.send(order);
            }
        }
        std::process::exit(0);
    });
    receiver
}

struct Actor {
    role: Role,
    runtime: Arc<dyn Runtime>,
    outside: Arc<Outside>,
}

impl Actor {
    fn new(role: Role, runtime: Arc<dyn Runtime>) -> std::io::Result<Self> {
        let mut effects = Effects::open(&role.effects)?;
        let what = if role.worker.is_some() { "worker" } else { "client" };
        let (machine, pid) = (role.machine, std::process::id());
        effects.append(Line::Booted { machine, pid, what: what.to_owned() })?;
        tell_panics(Effects::open(&role.effects)?, machine);
        Ok(Self { role, runtime, outside: Arc::new(Outside { machine, effects: Mutex::new(effects) }) })
    }

    async fn live(self, mut orders: UnboundedReceiver<Order>) -> std::result::Result<(), String> {
        let abide = self.open().await?;
        while let Some(order) = orders.recv().await {
            let scenario = scenario_of(self.role.seed, order.scenario, &self.role.prefix);
            let (abide, outside) = (abide.clone(), self.outside.clone());
            self.runtime.spawn(Box::pin(async move { outside.ask(&abide, &scenario, order).await }));
        }
        Ok(())
    }

    async fn open(&self) -> std::result::Result<Abide, String> {
        let mut count = 0;
        loop {
            let opened = match self.role.worker {
                Some(_) => self.builder().open().await,
                None => self.builder().client().await,
            };
            let error = match opened {
                Ok(abide) => return Ok(abide),
                Err(error) => error,
            };
            count += 1;
            if count == OPEN_COUNT_MAX {
                let what = format!("the store could not be opened: {error}");
                self.outside.tell(Line::Failed { machine: self.role.machine, what: what.clone() });
                return Err(what);
            }
            self.runtime.sleep(ms(OPEN_EVERY_MS)).await;
        }
    }

    fn builder(&self) -> abide::Builder {
        let (witness, runtime) = (self.outside.clone(), self.runtime.clone());
        let probe = Probe { witness, runtime, table: self.role.table(), edition: Default::default() };
        let builder = Abide::builder(&self.role.url)
            .session_ttl(ms(self.role.session_ttl_ms))
            .worker_name(&format!("{}{}", self.role.prefix, self.role.machine))
            .lanes(LANES)
            .capabilities([CAPABILITY])
            .begin_early()
            .state(probe);
        match self.role.worker {
            None => builder,
            Some(spec) => builder
                .execution_count_max(spec.execution_count_max)
                .request_count_max(spec.request_count_max)
                .park_after(ms(spec.park_after_ms))
                .shutdown_grace(ms(spec.grace_ms)),
        }
    }
}

/// Reports panics. A panic of a program is part of it; any other is a violation.
fn tell_panics(effects: Effects, machine: u32) {
    let effects = Mutex::new(effects);
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(PANIC) {
            let mut effects = effects.lock().unwrap_or_else(PoisonError::into_inner);
            // A process that cannot report its panic has ended anyway.
            let _ = effects.append(Line::Failed { machine, what: panic.to_string() });
        }
    }));
}

/// The world outside, as a process sees it.
struct Outside {
    machine: u32,
    effects: Mutex<Effects>,
}

impl Outside {
    fn lock(&self) -> MutexGuard<'_, Effects> {
        self.effects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, line: Line) {
        self.lock().append(line).expect("the file of effects can be written");
    }

    async fn ask(&self, abide: &Abide, scenario: &Scenario, order: Order) {
        let Some(action) = scenario.actions.get(order.action) else { return };
        self.tell(Line::Asked { scenario: order.scenario, action: order.action, id: order.id.clone() });
        let asked = perform(abide, action, scenario, order.id, self);
        let answer = DropAt::new(asked, action.dropped_at_poll).await;
        self.tell(Line::Answered { scenario: order.scenario, action: order.action, answer });
        if action.what == Ask::Shutdown {
            std::process::exit(0);
        }
    }
}

impl Witness for Outside {
    fn begin(&self, closure: Closure) -> u64 {
        self.lock().begin(self.machine, closure).expect("the file of effects can be written")
    }

    fn count_open(&self, change: i64) {
        if change < 0 {
            self.tell(Line::Ended { machine: self.machine });
        }
    }

    fn drew(&self, draw: Draw, value: u64) {
        self.tell(Line::Drew { draw, value });
    }
}
