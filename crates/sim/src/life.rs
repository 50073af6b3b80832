//! The life of a world: machines boot, clients ask, faults strike, and at last everything has to
//! end.

use std::sync::Arc;

use abide::prelude::*;
use abide::testing::simulated;
use abide_core::{Address, Block, ExecutionId, Namespace, Phase, Waiting};
use abide_engine::Runtime;
use abide_store::{Clock, Listed, Read, Snapshot};

use crate::api::{ApiName, called};
use crate::ask::{DropAt, perform};
use crate::code::{self, Probe, Witness};
use crate::database::Process;
use crate::ending::{Ending, executions, reasons};
use crate::generate::SESSION_TTL_MS;
use crate::history::{Answer, Happened, OnMachine};
use crate::machine::MachineStore;
use crate::quiet;
use crate::remains::Remains;
use crate::scenario::{Action, Actor, Ask, Scenario, Target, WorkerSpec};
use crate::table::TableKind;
use crate::why::BELIEVED_MS;
use crate::world::World;

/// The place of the client and of the first worker that let everything end.
const LAST: u32 = 1_000;

/// How many seconds everything may take to end once the faults are over. A build looks for blocked
/// executions every five minutes at least.
const END_SECONDS_MAX: u64 = 700;

/// After this many deaths in a row an execution waits until it can run alone.
pub(crate) const SUSPECT_TAKEOVER_COUNT: u32 = 2;

/// How many seconds after the end of everything a machine may still keep state. The follower of the
/// feed only checks now and then whether anything still waits.
const REMAIN_SECONDS_MAX: u64 = 120;

impl World {
    /// Opens a machine at a place.
    pub(crate) fn boot(self: &Arc<Self>, actor: Actor) {
        let machine = self.new_machine(actor);
        let world = self.clone();
        let runtime = self.sim.process(machine);
        let spec = self.spec_of(actor);
        let edition = self.install(machine, actor);
        if let Some(spec) = spec.filter(|_| !self.is_healed()) {
            self.set_skew(machine, spec.skew_ms);
        }
        runtime.clone().spawn(Box::pin(async move {
            let process = world.opened(machine).await;
            loop {
                let store = MachineStore::of(&world, machine, process.as_ref());
                let witness = world.witness(machine);
                let probe = Probe {
                    witness: witness.clone(),
                    runtime: runtime.clone(),
                    table: if process.is_some() { TableKind::Sqlite } else { TableKind::Memory },
                    edition: edition.clone(),
                };
                let (builder, mut calls) = builder(spec, machine, probe);
                let builder = simulated(builder, runtime.clone(), store);
                let opened = match actor {
                    Actor::Worker(_) => builder.open().await,
                    Actor::Client(_) => builder.client().await,
                };
                if let Ok(abide) = opened {
                    calls.push(("Builder", if let Actor::Worker(_) = actor { "open" } else { "client" }));
                    witness.came(&calls);
                    if let Some(booted) = world.lock().machines.get_mut(&machine) {
                        booted.abide = Some(abide);
                    }
                    return;
                }
                runtime.sleep(ms(20)).await;
            }
        }));
    }

    /// Opens the database on a machine. `None` for the store in memory, which all machines share.
    async fn opened(self: &Arc<Self>, machine: u32) -> Option<Arc<Process>> {
        let database = self.database.as_ref()?;
        loop {
            if let Ok(process) = Process::boot(self, database, machine) {
                if let Some(booted) = self.lock().machines.get_mut(&machine) {
                    booted.process = Some(process.clone());
                }
                return Some(process);
            }
            self.sim.process(machine).sleep(ms(20)).await;
        }
    }

    /// Returns the recorder for the code on a machine.
    fn witness(&self, machine: u32) -> Arc<dyn Witness> {
        Arc::new(OnMachine { machine, sim: self.sim.clone(), history: self.history.clone() })
    }

    /// Performs an action in the process that asks for it.
    fn ask(self: &Arc<Self>, index: usize, action: &Action, scenario: &Arc<Scenario>) {
        let Some((machine, abide)) = self.at(action.by) else { return };
        let (by, is_shutdown) = (action.by, matches!(action.what, Ask::Shutdown | Ask::Deploy(_)));
        if let Ask::Deploy(deploy) = action.what {
            self.deploy(machine, by, deploy);
            if deploy.is_killed {
                self.history.add(Happened::Answered { action: index, answer: Answer::Done });
                return;
            }
        }
        let (world, scenario, action) = (self.clone(), scenario.clone(), action.clone());
        let (number, dropped_at_poll) = (action.number, action.dropped_at_poll);
        let asked = async move {
            let id = world.fitting(&action.what).await;
            if let Some(id) = &id {
                world.history.lock().targets.insert(action.number, id.clone());
            }
            world.meet(&action.what, id.as_deref()).await;
            let is_why = matches!(action.what, Ask::Why(_));
            let asked = if is_why { world.before_why(id.as_deref()) } else { None };
            let at = world.sim.process(machine).now();
            world.history.add(Happened::Asked { action: index, at });
            let answer = perform(&abide, &action, &scenario, id, &*world.witness(machine)).await;
            world.after_why(asked, &answer).await;
            answer
        };
        let (history, number) = (self.history.clone(), (machine, number));
        let asked = DropAt::new(asked, dropped_at_poll);
        history.lock().asked.insert(number);
        self.sim.process(machine).spawn(Box::pin(async move {
            let answer = asked.await;
            history.lock().asked.remove(&number);
            history.add(Happened::Answered { action: index, answer });
        }));
        if is_shutdown {
            self.replace_later(machine, by);
        }
    }

    /// Returns the target of an action. Most actions make sense only in a certain state, so an
    /// execution in that state is preferred.
    async fn fitting(&self, what: &Ask) -> Option<String> {
        let target = what.target()?;
        let fits: fn(Status) -> bool = match what {
            Ask::Resume(_) => |status| status == Status::Paused,
            Ask::Unblock(_) | Ask::Rerun(_) | Ask::Edit(_) => |status| status == Status::Blocked,
            Ask::Accept(_) => return self.with_other_input(target).await,
            Ask::Retry(_) => |status| matches!(status, Status::Failed | Status::Cancelled),
            Ask::Signal(_, name) if target.0.is_multiple_of(2) => return self.waiting(target, name).await,
            _ => return self.known(target),
        };
        let all = executions(&*self.store, None).await.unwrap_or_default();
        let listed = all.into_iter().filter(|item| fits(item.summary.status));
        let fitting: Vec<String> = listed.map(|item| item.address.id.to_string()).collect();
        match fitting.len() {
            0 => self.known(target),
            count => fitting.into_iter().nth(target.0 % count),
        }
    }

    /// Returns an execution that is blocked because its code asks for something with another input,
    /// or else any execution.
    async fn with_other_input(&self, target: Target) -> Option<String> {
        let mut fitting = Vec::new();
        for item in executions(&*self.store, None).await.unwrap_or_default() {
            if item.summary.status != Status::Blocked {
                continue;
            }
            let found = self.snapshot(item.address.id.as_str()).await;
            if let Some(Phase::Blocked { reason, .. }) = found.as_ref().map(|found| found.execution.phase())
                && let Block::OtherInput(_) = **reason
            {
                fitting.push(item.address.id.to_string());
            }
        }
        match fitting.len() {
            0 => self.known(target),
            count => fitting.into_iter().nth(target.0 % count),
        }
    }

    /// Returns an execution that waits for a signal of this name, or else any execution.
    async fn waiting(&self, target: Target, name: &str) -> Option<String> {
        let all = executions(&*self.store, None).await.unwrap_or_default();
        let waits = |item: &Listed| {
            let mut waits = item.summary.waiting.iter();
            waits.any(|wait| matches!(wait, Waiting::Signal { name: wanted, .. } if wanted.as_str().trim_end_matches('n') == name))
        };
        let fitting: Vec<_> = all.into_iter().filter(waits).collect();
        match fitting.len() {
            0 => self.known(target),
            count => fitting.get(target.0 % count).map(|item| item.address.id.to_string()),
        }
    }

    /// Records the state of the execution that an action meets.
    async fn meet(&self, what: &Ask, id: Option<&str>) {
        let Some(id) = id else { return };
        if let Some(snapshot) = self.snapshot(id).await {
            let stood = phase_of(&snapshot);
            *self.history.lock().met.entry((what.word(), stood)).or_default() += 1;
        }
    }

    /// Returns the state of an execution, without its journal and its inbox.
    async fn snapshot(&self, id: &str) -> Option<Snapshot> {
        let id = ExecutionId::new(id).ok()?;
        let target = abide_store::Target::Address(Address { namespace: Namespace::default(), id });
        let read = Read { target, run: None, from: u64::MAX, limit: 0, with_inbox: false };
        self.store.read(read).await.ok()?
    }

    /// Replaces a process that shuts down, some time later.
    fn replace_later(self: &Arc<Self>, machine: u32, actor: Actor) {
        let grace_ms = self.spec_of(actor).map_or(0, |spec| spec.grace_ms);
        let world = self.clone();
        self.runtime().spawn(Box::pin(async move {
            world.runtime().sleep(ms(grace_ms + 6_000)).await;
            world.kill(machine, 10);
        }));
    }
}

/// Returns a word for the state of an execution.
fn phase_of(snapshot: &Snapshot) -> &'static str {
    match snapshot.execution.phase() {
        Phase::Paused { .. } => "paused",
        Phase::Cancelling { .. } => "cancelling",
        Phase::Expiring { .. } => "expiring",
        Phase::Blocked { .. } => "blocked",
        _ => snapshot.summary.status.word(),
    }
}

/// Sets up a machine, and returns the calls that this took. Most options have their default values.
fn builder(spec: Option<WorkerSpec>, machine: u32, probe: Probe) -> (abide::Builder, Vec<ApiName>) {
    let mut calls = vec![("Abide", "builder")];
    let mut builder = Abide::builder("memory");
    called!(calls, builder = Builder::session_ttl(ms(SESSION_TTL_MS)));
    called!(calls, builder = Builder::namespace("default"));
    called!(calls, builder = Builder::worker_name(&format!("worker-{machine}")));
    called!(calls, builder = Builder::build(&format!("edition-{}", probe.edition.0)));
    called!(calls, builder = Builder::workflow(code::program));
    called!(calls, builder = Builder::task(code::job));
    called!(calls, builder = Builder::state(probe));
    called!(calls, builder = Builder::payload_bytes_max(4 << 20));
    called!(calls, builder = Builder::failure_bytes_max(64 << 10));
    called!(calls, builder = Builder::entry_count_max(10_000_000));
    called!(calls, builder = Builder::site_count_max(2));
    called!(calls, builder = Builder::terminate_grace_ms(2_000));
    called!(calls, builder = Builder::suspect_takeover_count(SUSPECT_TAKEOVER_COUNT));
    called!(calls, builder = Builder::suspect_death_count_max(5));
    called!(calls, builder = Builder::begin_early());
    called!(calls, builder = Builder::busy_ms_max(5_000));
    called!(calls, builder = Builder::transaction_ms_max(SESSION_TTL_MS / 3));
    if spec.is_none_or(|spec| spec.is_able) {
        called!(calls, builder = Builder::lanes(code::LANES));
        called!(calls, builder = Builder::capabilities([code::CAPABILITY]));
    }
    let Some(spec) = spec else { return (builder, calls) };
    called!(calls, builder = Builder::execution_count_max(spec.execution_count_max));
    called!(calls, builder = Builder::request_count_max(spec.request_count_max));
    called!(calls, builder = Builder::park_after(ms(spec.park_after_ms)));
    called!(calls, builder = Builder::shutdown_grace(ms(spec.grace_ms)));
    if let Some(bytes) = spec.mail_bytes_max {
        called!(calls, builder = Builder::mail_bytes_max(bytes));
    }
    if let Some(grace_ms) = spec.deadline_grace_ms {
        called!(calls, builder = Builder::deadline_grace_ms(grace_ms));
    }
    if let Some(retry) = spec.default_retry {
        called!(calls, builder = Builder::default_retry(code::policy(retry)));
    }
    (builder, calls)
}

/// Lives through a scenario. Its results are in the store and in the history.
pub(crate) async fn live(world: Arc<World>, scenario: Arc<Scenario>) -> Result<(), String> {
    world.lock().specs = scenario.workers.clone();
    world.lock().builds.editions = scenario.editions.clone();
    for index in 0..scenario.workers.len() {
        world.boot(Actor::Worker(u32::try_from(index).unwrap_or(0)));
    }
    for index in 0..scenario.client_count {
        world.boot(Actor::Client(index));
    }
    world.schedule();
    for (index, action) in scenario.actions.iter().enumerate() {
        let (world, scenario, action) = (world.clone(), scenario.clone(), action.clone());
        let runtime = world.runtime();
        runtime.clone().spawn(Box::pin(async move {
            runtime.sleep(ms(1 + action.at_ms)).await;
            world.ask(index, &action, &scenario);
        }));
    }
    let last_ms = scenario.actions.iter().map(|action| action.at_ms).max().unwrap_or(0);
    world.runtime().sleep(ms(last_ms + 2_000)).await;
    world.heal();
    world.boot_each_build(LAST);
    world.boot(Actor::Client(LAST));
    see_to_the_end(&world, scenario.inbox_count_max).await
}

/// Waits until nothing is kept, and fails with everything that still is.
async fn see_what_remains(world: &World, inbox_count_max: usize) -> Result<(), String> {
    let mut found = Vec::new();
    for _ in 0..REMAIN_SECONDS_MAX {
        found = Remains::of(world, inbox_count_max).await.check();
        if found.is_empty() {
            return Ok(());
        }
        world.runtime().sleep(secs(1)).await;
    }
    Err(found.join("\n"))
}

/// Lets everything end, and fails with the executions that do not.
async fn see_to_the_end(world: &World, inbox_count_max: usize) -> Result<(), String> {
    // By then every waiting execution is visible as one.
    world.runtime().sleep(secs(6)).await;
    let mut found = quiet::check(world).await;
    if !found.is_empty() {
        // A machine that died last still counts as alive for a while. Until then no other machine
        // delivers its messages.
        world.runtime().sleep(ms(BELIEVED_MS)).await;
        let still = quiet::check(world).await;
        found.retain(|wrong| still.contains(wrong));
    }
    if !found.is_empty() {
        return Err(found.join("\n") + &told_of_open(world).await);
    }
    let mut ending = Ending::default();
    for _ in 0..END_SECONDS_MAX {
        world.runtime().sleep(secs(1)).await;
        let open = world.open().await;
        if open.is_empty() {
            return see_what_remains(world, inbox_count_max).await;
        }
        let Some((_, abide)) = world.at(Actor::Client(LAST)) else { continue };
        if let Some(aside) = world.set_aside(&abide, &open).await {
            world.mend(&abide, aside).await?;
        } else {
            let open = quiet::helpable(world, open).await;
            ending.help(&abide, &*world.runtime(), open).await;
        }
    }
    let story = format!("after {END_SECONDS_MAX} seconds without a fault it has not ended:");
    Err(story + &told_of_open(world).await)
}

/// Returns a report on all executions that have not ended.
async fn told_of_open(world: &World) -> String {
    let open = world.open().await;
    match world.at(Actor::Client(LAST)) {
        Some((_, abide)) => reasons(&abide, open).await,
        None => String::new(),
    }
}
