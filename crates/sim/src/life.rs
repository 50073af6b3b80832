//! The life of a world: machines boot, clients ask, things go wrong, and at last everything has to end.

use std::sync::Arc;

use abide::prelude::*;
use abide::testing::simulated;
use abide_engine::Runtime;

use crate::ask::{DropAt, perform};
use crate::code::Probe;
use crate::database::Process;
use crate::ending::{Ending, executions, open, reasons};
use crate::generate::SESSION_TTL_MS;
use crate::history::{Happened, OnMachine};
use crate::machine::MachineStore;
use crate::scenario::{Action, Actor, Ask, Scenario, WorkerSpec};
use crate::world::World;

/// The client and the worker of those who see to the end.
const LAST: u32 = 1_000;

/// How many seconds everything may take to end, once nothing goes wrong any longer.
const END_SECONDS_MAX: u64 = 240;

impl World {
    /// Opens a machine at a place.
    pub(crate) fn boot(self: &Arc<Self>, actor: Actor) {
        let machine = self.new_machine(actor);
        let world = self.clone();
        let runtime = self.sim.process(machine);
        let spec = self.spec_of(actor);
        if let Some(spec) = spec.filter(|_| !self.is_healed()) {
            self.set_skew(machine, spec.skew_ms);
        }
        runtime.clone().spawn(Box::pin(async move {
            let process = world.opened(machine).await;
            loop {
                let store = MachineStore::of(&world, machine, process.as_ref());
                let builder = simulated(builder(spec), runtime.clone(), store);
                let witness = Arc::new(OnMachine { machine, history: world.history.clone() });
                let probe = Probe { witness, runtime: runtime.clone(), is_sqlite: process.is_some() };
                let builder = builder.build(&format!("machine-{machine}")).state(probe);
                let opened = match actor {
                    Actor::Worker(_) => builder.open().await,
                    Actor::Client(_) => builder.client().await,
                };
                if let Ok(abide) = opened {
                    if let Some(booted) = world.lock().machines.get_mut(&machine) {
                        booted.abide = Some(abide);
                    }
                    return;
                }
                runtime.sleep(ms(20)).await;
            }
        }));
    }

    /// The database, opened on a machine; nothing on the store in memory, which all machines share.
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

    /// Asks for something, in the process that it is asked by.
    fn ask(self: &Arc<Self>, index: usize, action: &Action, scenario: &Arc<Scenario>) {
        let Some((machine, abide)) = self.at(action.by) else { return };
        let (by, is_shutdown) = (action.by, action.what == Ask::Shutdown);
        let (world, scenario, action) = (self.clone(), scenario.clone(), action.clone());
        let dropped_at_poll = action.dropped_at_poll;
        let asked = async move {
            let id = action.what.target().and_then(|target| world.known(target));
            perform(&abide, &action, &scenario, id).await
        };
        let history = self.history.clone();
        let asked = DropAt::new(asked, dropped_at_poll);
        self.sim.process(machine).spawn(Box::pin(async move {
            let answer = asked.await;
            history.add(Happened::Answered { action: index, answer });
        }));
        if is_shutdown {
            self.replace_later(machine, by);
        }
    }

    /// A process that shuts down ends some time later, and another one comes.
    fn replace_later(self: &Arc<Self>, machine: u32, actor: Actor) {
        let grace_ms = self.spec_of(actor).map_or(0, |spec| spec.grace_ms);
        let world = self.clone();
        self.runtime().spawn(Box::pin(async move {
            world.runtime().sleep(ms(grace_ms + 6_000)).await;
            world.kill(machine, 10);
        }));
    }
}

fn builder(spec: Option<WorkerSpec>) -> abide::Builder {
    let builder = Abide::builder("memory").session_ttl(ms(SESSION_TTL_MS));
    match spec {
        None => builder,
        Some(spec) => builder
            .execution_count_max(spec.execution_count_max)
            .request_count_max(spec.request_count_max)
            .park_after(ms(spec.park_after_ms))
            .shutdown_grace(ms(spec.grace_ms)),
    }
}

/// Lives through a scenario. What remains is in the store and in the history.
pub(crate) async fn live(world: Arc<World>, scenario: Arc<Scenario>) -> Result<(), String> {
    world.lock().specs = scenario.workers.clone();
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
    world.boot(Actor::Worker(LAST));
    world.boot(Actor::Client(LAST));
    see_to_the_end(&world).await
}

/// Lets everything end, and says what does not.
async fn see_to_the_end(world: &World) -> Result<(), String> {
    // So that what waits, waits visibly.
    world.runtime().sleep(secs(5)).await;
    let mut ending = Ending::default();
    for _ in 0..END_SECONDS_MAX {
        world.runtime().sleep(secs(1)).await;
        let open = open(executions(&*world.store, None).await.unwrap_or_default());
        if open.is_empty() {
            return Ok(());
        }
        if let Some((_, abide)) = world.at(Actor::Client(LAST)) {
            ending.help(&abide, open).await;
        }
    }
    let story = format!("after {END_SECONDS_MAX} seconds without a fault it has not ended:");
    match world.at(Actor::Client(LAST)) {
        Some((_, abide)) => {
            Err(story
                + &reasons(&abide, open(executions(&*world.store, None).await.unwrap_or_default())).await)
        }
        None => Err(story),
    }
}
