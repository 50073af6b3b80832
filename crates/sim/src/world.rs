//! The world that machines share: its faults, the live machines, the holders of leases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide::{Abide, ms};
use abide_core::{Bounds, Timestamp};
use abide_engine::sim::{Sim, Skew};
use abide_engine::{Moment, Runtime};
use abide_sqlite::SqliteStore;
use abide_store::faults::NoticeFault;
use abide_store::memory::MemoryStore;
use abide_store::{Clock, ExecutionKey, PageBounds, Store, conformance};

use crate::damage::Damage;
use crate::database::{Database, Process};
use crate::deploy::Builds;
use crate::history::{AtWork, Happened, History};
use crate::scenario::{Actor, Scenario, StoreSpec, Target, When, WorkerSpec, Wrong};
use crate::why::Deaths;

/// The most polls of tasks before a world counts as running in circles.
const POLL_COUNT_MAX: u64 = 400_000;

/// Returns the bounds of a store's answers: so small that short journals and inboxes are read in
/// pages.
pub(crate) fn page_bounds() -> PageBounds {
    PageBounds { journal_page_count_max: 3, inbox_page_count_max: 2, ..conformance::page_bounds() }
}

/// The place where all machines live.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) history: Arc<History>,
    /// The store itself, without faults.
    pub(crate) store: Arc<dyn Store>,
    /// The database below it, and the same store, if the store is SQLite.
    pub(crate) database: Option<Database>,
    pub(crate) truth: Option<Arc<SqliteStore>>,
    state: Mutex<WorldState>,
}

#[derive(Default)]
pub(crate) struct WorldState {
    faults: BTreeMap<When, Vec<Wrong>>,
    operation_count: u64,
    worker_poll_count: u64,
    poll_count: u64,
    notice_count: u64,
    record_count: u64,
    retire_count: u64,
    next_machine: u32,
    /// The machine that is now at each place.
    pub(crate) machines: BTreeMap<u32, Machine>,
    /// The dead machines, though their tasks may not notice before the next poll.
    dead: BTreeSet<u32>,
    doomed: Vec<(u32, u64)>,
    outage_until: Option<Moment>,
    unread_until: Option<Moment>,
    is_healed: bool,
    /// The holder of each lease.
    pub(crate) held: BTreeMap<ExecutionKey, u32>,
    /// The granted leases: the execution and the epoch.
    pub(crate) given: BTreeSet<(ExecutionKey, u64)>,
    /// Every execution, in the order of creation.
    pub(crate) known: Vec<String>,
    pub(crate) specs: Vec<WorkerSpec>,
    pub(crate) builds: Builds,
    pub(crate) deaths: Deaths,
    pub(crate) damage: Damage,
}

/// A machine.
pub(crate) struct Machine {
    pub(crate) actor: Actor,
    /// Its engine, once it is open.
    pub(crate) abide: Option<Abide>,
    /// Its own store, unless all machines share one.
    pub(crate) process: Option<Arc<Process>>,
}

/// The clock of the machine that is being polled: a store uses the clock of its caller.
struct ClockOfWhoAsks {
    sim: Sim,
    polled: Arc<AtomicU32>,
}

impl Clock for ClockOfWhoAsks {
    fn now(&self) -> Timestamp {
        self.sim.process(self.polled.load(Ordering::Relaxed)).now()
    }
}

/// The fate of an operation.
pub(crate) enum Verdict {
    /// It happens.
    Happen,
    /// The machine that asked is dead.
    Nobody,
    /// A fault strikes it.
    Wrong(Wrong),
}

impl WorldState {
    /// Moves all but the first `count` faults of an operation to the next one.
    fn put_off(&mut self, number: u64, count: usize) {
        let due = self.faults.get_mut(&When::Operation(number));
        let later = due.map(|wrongs| wrongs.split_off(count.min(wrongs.len()))).unwrap_or_default();
        if !later.is_empty() {
            self.faults.entry(When::Operation(number + 1)).or_default().extend(later);
        }
    }

    /// Moves kills to the next poll of a worker.
    fn put_off_kills(&mut self, number: u64, kills: Vec<Wrong>) {
        if !kills.is_empty() {
            self.faults.entry(When::Poll(number + 1)).or_default().extend(kills);
        }
    }

    /// Returns the fault of an operation that ends a session: few operations do, and a fault at the
    /// n-th operation of any kind seldom meets one.
    fn wrong_retire(&mut self, operation: &str) -> Option<Wrong> {
        if operation != "retire" {
            return None;
        }
        self.retire_count += 1;
        self.faults.remove(&When::Retire(self.retire_count))?.into_iter().next()
    }

    fn at_work(&self, machine: u32, history: &History) -> AtWork {
        if history.is_under_way(machine) {
            AtWork::UnderWay
        } else if self.held.values().any(|holder| *holder == machine) {
            AtWork::Leased
        } else {
            AtWork::Idle
        }
    }
}

impl World {
    pub(crate) fn new(scenario: &Scenario) -> Arc<Self> {
        let sim = Sim::new(scenario.seed.wrapping_add(scenario.order));
        let bounds = Bounds { inbox_count_max: scenario.inbox_count_max, ..Bounds::default() };
        let polled = Arc::new(AtomicU32::new(0));
        let clock = Arc::new(ClockOfWhoAsks { sim: sim.clone(), polled: polled.clone() });
        let database = match &scenario.store {
            StoreSpec::Memory => None,
            StoreSpec::Sqlite(spec) => Some(Database::new(spec, bounds.clone())),
        };
        let truth = database.as_ref().map(|database| {
            let truth = database.open(&sim, 0).expect("an empty database can be made");
            database.make_table();
            truth
        });
        let store: Arc<dyn Store> = match &truth {
            Some(truth) => truth.clone(),
            None => MemoryStore::bounded(clock, bounds, page_bounds()),
        };
        let mut state = WorldState::default();
        for fault in &scenario.faults {
            state.faults.entry(fault.when).or_default().push(fault.what);
        }
        let (history, state) = (Arc::default(), Mutex::new(state));
        let world = Arc::new(Self { sim, history, store, database, truth, state });
        let observer = Arc::downgrade(&world);
        world.sim.observe(move |machine| {
            polled.store(machine, Ordering::Relaxed);
            if let Some(world) = observer.upgrade() {
                world.polled(machine);
            }
        });
        world
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the process of the world itself, which no fault strikes.
    pub(crate) fn runtime(&self) -> Arc<dyn Runtime> {
        self.sim.process(0)
    }

    pub(crate) fn now_micros(&self) -> i64 {
        self.sim.now().as_micros()
    }

    /// Assigns a number to the next machine, which has this place from now on.
    pub(crate) fn new_machine(&self, actor: Actor) -> u32 {
        let mut state = self.lock();
        state.next_machine += 1;
        let machine = state.next_machine;
        state.machines.insert(machine, Machine { actor, abide: None, process: None });
        machine
    }

    /// Returns the configuration of the worker at a place.
    pub(crate) fn spec_of(&self, actor: Actor) -> Option<WorkerSpec> {
        match actor {
            Actor::Worker(index) => self.lock().specs.get(index as usize).copied(),
            Actor::Client(_) => None,
        }
    }

    /// Returns the open machine at a place.
    pub(crate) fn at(&self, actor: Actor) -> Option<(u32, Abide)> {
        let state = self.lock();
        let open = state.machines.iter().filter(|(_, machine)| machine.actor == actor);
        let mut open = open.filter_map(|(number, machine)| Some((*number, machine.abide.clone()?)));
        open.next_back()
    }

    /// Returns any open worker.
    pub(crate) fn any_worker(&self) -> Option<(u32, Abide)> {
        let state = self.lock();
        let workers = state.machines.iter().filter(|(_, machine)| matches!(machine.actor, Actor::Worker(_)));
        let mut open = workers.filter_map(|(number, machine)| Some((*number, machine.abide.clone()?)));
        open.next_back()
    }

    /// Returns the id of a target execution.
    pub(crate) fn known(&self, target: Target) -> Option<String> {
        let known = &self.lock().known;
        (!known.is_empty()).then(|| known[target.0 % known.len()].clone())
    }

    /// Ends every fault.
    pub(crate) fn heal(&self) {
        let machines: Vec<u32> = {
            let mut state = self.lock();
            state.is_healed = true;
            (state.outage_until, state.unread_until) = (None, None);
            state.machines.keys().copied().collect()
        };
        self.database.iter().for_each(Database::heal);
        for machine in machines {
            self.sim.thaw(machine);
            self.set_skew(machine, 0);
        }
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.lock().is_healed
    }

    pub(crate) fn set_skew(&self, machine: u32, skew_ms: i64) {
        let by = ms(skew_ms.unsigned_abs());
        self.sim.set_skew(machine, if skew_ms < 0 { Skew::Behind(by) } else { Skew::Ahead(by) });
    }

    /// Decides the fate of an operation that a machine asks for.
    pub(crate) fn decide(&self, machine: u32, operation: &'static str) -> Verdict {
        self.history.trace((machine, operation, self.now_micros()));
        let wrong = {
            let mut state = self.lock();
            if state.dead.contains(&machine) {
                return Verdict::Nobody;
            }
            state.operation_count += 1;
            let number = state.operation_count;
            self.history.lock().operation_count = number;
            if state.is_healed {
                return Verdict::Happen;
            }
            if state.outage_until.is_some_and(|until| self.runtime().moment() < until) {
                state.put_off(number, 0);
                return Verdict::Wrong(Wrong::Unavailable);
            }
            let is_unread = state.unread_until.is_some_and(|until| self.runtime().moment() < until);
            if is_unread && matches!(operation, "read" | "inbox") {
                state.put_off(number, 0);
                return Verdict::Wrong(Wrong::Unread { ms: 0 });
            }
            state.put_off(number, 1);
            let wrong =
                state.faults.remove(&When::Operation(number)).and_then(|wrongs| wrongs.into_iter().next());
            let wrong = match wrong {
                // Every other kill waits for a machine with work under way.
                Some(kill @ (Wrong::Kill { .. } | Wrong::KillBefore { .. }))
                    if number.is_multiple_of(2) && !self.history.is_under_way(machine) =>
                {
                    state.faults.entry(When::Operation(number + 2)).or_default().push(kill);
                    None
                }
                wrong => wrong,
            };
            wrong.or_else(|| state.wrong_retire(operation))
        };
        match wrong {
            Some(wrong) => {
                self.strike(machine, wrong, operation);
                Verdict::Wrong(wrong)
            }
            None => Verdict::Happen,
        }
    }

    /// Returns the time that an answer takes. Most come at once, but an endless loop of requests
    /// still lets time pass.
    pub(crate) fn latency_ms(&self) -> u64 {
        u64::from(self.sim.random().is_multiple_of(8))
    }

    /// Returns the fault of a transaction. Here too every other kill waits for a machine with work
    /// under way.
    pub(crate) fn wrong_batch(&self, machine: u32, number: u64) -> Option<Wrong> {
        let wrong = {
            let mut state = self.lock();
            let due = state.faults.remove(&When::Batch(number)).filter(|_| !state.is_healed);
            let wrong = due.and_then(|wrongs| wrongs.into_iter().next())?;
            let is_kill = matches!(wrong, Wrong::KillInBatch { .. });
            if is_kill && number.is_multiple_of(2) && !self.history.is_under_way(machine) {
                state.faults.entry(When::Batch(number + 2)).or_default().push(wrong);
                return None;
            }
            wrong
        };
        self.strike(machine, wrong, "batch");
        Some(wrong)
    }

    /// Handles each commit that appended to a journal. A worker that takes over from a machine that
    /// dies here replays exactly up to this commit.
    pub(crate) fn recorded(&self, machine: u32) {
        let wrongs = {
            let mut state = self.lock();
            state.record_count += 1;
            let number = state.record_count;
            state.faults.remove(&When::Record(number)).filter(|_| !state.is_healed).unwrap_or_default()
        };
        for wrong in wrongs {
            if let Wrong::Kill { restart_ms } = wrong {
                self.strike(machine, wrong, "record");
                self.doom(machine, restart_ms);
            }
        }
    }

    /// Decides the fate of a notice.
    pub(crate) fn decide_notice(&self) -> NoticeFault {
        let mut state = self.lock();
        state.notice_count += 1;
        let number = state.notice_count;
        if state.is_healed {
            return NoticeFault::None;
        }
        let wrong = state.faults.remove(&When::Notice(number)).and_then(|wrongs| wrongs.into_iter().next());
        drop(state);
        let Some(wrong) = wrong else { return NoticeFault::None };
        self.strike(0, wrong, "notice");
        match wrong {
            Wrong::NoticeLost => NoticeFault::Lose,
            Wrong::NoticeRepeated => NoticeFault::Repeat,
            Wrong::NoticeLate => NoticeFault::Delay,
            Wrong::NoticeOvertakes => NoticeFault::Overtake,
            _ => NoticeFault::None,
        }
    }

    /// Runs before each poll.
    fn polled(self: &Arc<Self>, machine: u32) {
        let (doomed, wrongs) = {
            let mut state = self.lock();
            state.poll_count += 1;
            assert!(state.poll_count < POLL_COUNT_MAX, "the world turns in circles");
            let doomed = std::mem::take(&mut state.doomed);
            let is_worker =
                matches!(state.machines.get(&machine), Some(Machine { actor: Actor::Worker(_), .. }));
            let mut wrongs = Vec::new();
            if is_worker && !state.is_healed && state.at_work(machine, &self.history) > AtWork::Idle {
                state.worker_poll_count += 1;
                let number = state.worker_poll_count;
                wrongs = state.faults.remove(&When::Poll(number)).unwrap_or_default();
                if !self.history.is_under_way(machine) {
                    // A machine that holds a lease mostly waits, so kills wait for its work.
                    let is_kill = |wrong: &Wrong| matches!(wrong, Wrong::Kill { .. });
                    let (kills, others) = wrongs.into_iter().partition(is_kill);
                    wrongs = others;
                    state.put_off_kills(number, kills);
                }
            }
            (doomed, wrongs)
        };
        self.history.trace(machine);
        for (machine, restart_ms) in doomed {
            self.kill(machine, restart_ms);
        }
        for wrong in wrongs {
            self.strike(machine, wrong, "poll");
            match wrong {
                Wrong::Kill { restart_ms } => self.kill(machine, restart_ms),
                Wrong::Freeze { ms } => self.freeze(machine, ms),
                Wrong::Skew { ms } => self.set_skew(machine, ms),
                _ => {}
            }
        }
    }

    /// Records that a fault strikes.
    pub(crate) fn strike(&self, machine: u32, wrong: Wrong, at: &str) {
        self.struck(machine, format!("{}: {}", wrong.word(), at));
    }

    pub(crate) fn struck(&self, machine: u32, what: String) {
        let at_work = self.lock().at_work(machine, &self.history);
        self.history.trace((machine, &what));
        self.history.add(Happened::Struck { what, at_work });
    }

    /// Marks a machine as dead. It goes down at the next poll of any task.
    pub(crate) fn doom(&self, machine: u32, restart_ms: u64) {
        let mut state = self.lock();
        if state.dead.insert(machine) {
            state.doomed.push((machine, restart_ms));
        }
    }

    /// Takes a machine down at once; another one comes to its place.
    pub(crate) fn kill(self: &Arc<Self>, machine: u32, restart_ms: u64) {
        let now = self.now_micros();
        let mut state = self.lock();
        state.dead.insert(machine);
        state.deaths.insert(machine, now);
        drop(state);
        self.sim.kill(machine);
        self.sim.thaw(machine);
        let fallen = self.lock().machines.remove(&machine);
        let Some(Machine { actor, abide, process }) = fallen else { return };
        process.iter().for_each(|process| process.crash());
        drop(abide);
        let world = self.clone();
        self.runtime().spawn(Box::pin(async move {
            world.runtime().sleep(ms(restart_ms)).await;
            world.boot(actor);
        }));
    }

    /// Ends the world. Its live tasks refer to it and would keep it alive.
    pub(crate) fn end(&self) {
        let machines = std::mem::take(&mut self.lock().machines);
        for (number, machine) in machines {
            self.sim.kill(number);
            machine.process.iter().for_each(|process| process.crash());
        }
        self.sim.kill(0);
        self.store.close();
    }

    pub(crate) fn freeze(self: &Arc<Self>, machine: u32, for_ms: u64) {
        self.sim.freeze(machine);
        let world = self.clone();
        self.runtime().spawn(Box::pin(async move {
            world.runtime().sleep(ms(for_ms)).await;
            world.sim.thaw(machine);
        }));
    }

    /// Schedules the faults that come by the clock.
    pub(crate) fn schedule(self: &Arc<Self>) {
        let by_time: Vec<(u64, Vec<Wrong>)> = {
            let state = self.lock();
            let timed = state.faults.iter().filter_map(|(when, wrongs)| match when {
                When::Time(at_ms) => Some((*at_ms, wrongs.clone())),
                _ => None,
            });
            timed.collect()
        };
        for (at_ms, wrongs) in by_time {
            let world = self.clone();
            self.runtime().spawn(Box::pin(async move {
                world.runtime().sleep(ms(at_ms)).await;
                wrongs.iter().filter(|_| !world.is_healed()).for_each(|wrong| world.happen(*wrong));
            }));
        }
    }

    fn happen(&self, wrong: Wrong) {
        if let Wrong::Damage { of, part } = wrong
            && self.damage(part, of).is_none()
        {
            return;
        }
        self.strike(0, wrong, "clock");
        match wrong {
            Wrong::Outage { ms: for_ms } => {
                let until = self.runtime().moment().after(ms(for_ms));
                self.lock().outage_until = Some(until);
            }
            Wrong::Unread { ms: for_ms } => {
                let until = self.runtime().moment().after(ms(for_ms));
                self.lock().unread_until = Some(until);
            }
            Wrong::ClockStep { ms: by_ms } if by_ms < 0 => self.sim.set_clock_back(ms(by_ms.unsigned_abs())),
            Wrong::ClockStep { ms: by_ms } => self.sim.set_clock_forward(ms(by_ms.unsigned_abs())),
            _ => {}
        }
    }
}
