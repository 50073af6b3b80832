//! One round: scenarios begin, faults strike processes, and at last everything has to end.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use abide::{Abide, ms};
use abide_engine::Moment;
use abide_store::{Feed, FeedFrom, ListCursor, Prng, Store};

use super::actor::{Order, Role};
use super::effects::{Effects, Line};
use super::herd::Process;
use super::report::{Report, Violation};
use super::verdict::{Seen, Verdict};
use super::{SESSION_TTL_MS, Stage, Trouble, scenario_of, scenario_prefix};
use crate::ending::{Ending, executions, newest, open, reasons};
use crate::generate::scenario;
use crate::scenario::{Actor, Ask, Scenario, WorkerSpec};

/// The places of processes: workers first, then clients.
const WORKER_COUNT: usize = 3;
const CLIENT_COUNT: usize = 2;
/// The most workers that are stopped at a time: one has to go on.
const STOPPED_COUNT_MAX: usize = 2;

/// The time between the beginnings of two scenarios.
const BEGIN_EVERY: Duration = Duration::from_millis(250);
/// How often, and at which interval, a strike looks for a worker with work under way before it
/// takes any.
const AIM_COUNT_MAX: u32 = 20;
const AIM_EVERY: Duration = Duration::from_millis(10);
/// The longest time between two looks at the processes.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The time between two reports of progress.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// The time between two looks at open executions.
const HELP_EVERY: Duration = Duration::from_millis(300);
/// The time after which every waiting execution is visible as one.
const BEFORE_HELP: Duration = Duration::from_secs(1);
/// How long everything may take to end once the faults are over.
const END_MAX: Duration = Duration::from_secs(180);

/// The worker that lets everything end.
const LAST_WORKER: WorkerSpec = WorkerSpec {
    execution_count_max: 1_000,
    request_count_max: 1_000,
    park_after_ms: 300,
    grace_ms: 500,
    skew_ms: 0,
    is_able: true,
    mail_bytes_max: None,
    deadline_grace_ms: None,
    default_retry: None,
};

/// An event on the agenda.
enum Event {
    /// The next scenario begins.
    Begin,
    /// A process performs an action.
    Act { scenario: u64, action: usize },
    /// A fault strikes a process, after this many failed looks for a worker with work under way.
    Strike { missed: u32 },
    /// A stopped process goes on.
    GoOn { place: usize, machine: u32 },
    /// A process starts.
    Boot { place: usize },
}

pub(crate) struct Round<'a> {
    stage: &'a Stage<'a>,
    number: u32,
    path: PathBuf,
    effects: Effects,
    store: Arc<dyn Store>,
    /// The newest execution before this round.
    before: Option<ListCursor>,
    feed_from: FeedFrom,
    chance: Prng,
    places: Vec<Option<Process>>,
    next_machine: u32,
    agenda: BTreeMap<(Moment, u64), Event>,
    event_count: u64,
    first_scenario: u64,
    scenarios: Vec<Scenario>,
    seen: Seen,
    violations: Vec<Violation>,
}

impl<'a> Round<'a> {
    pub(crate) fn begin(stage: &'a Stage<'a>, number: u32, first_scenario: u64) -> Result<Self, Trouble> {
        let path = stage.folder.join(format!("{}{number}", stage.prefix));
        let store = stage.torture.open(true)?;
        Ok(Self {
            stage,
            number,
            effects: Effects::open(&path)?,
            path,
            store,
            before: None,
            feed_from: FeedFrom::Beginning,
            chance: Prng::new(stage.torture.seed ^ (u64::from(number) << 32)),
            places: (0..WORKER_COUNT + CLIENT_COUNT + 1).map(|_| None).collect(),
            next_machine: 1,
            agenda: BTreeMap::new(),
            event_count: 0,
            first_scenario,
            scenarios: Vec::new(),
            seen: Seen::default(),
            violations: Vec::new(),
        })
    }

    /// Runs the round to its verdict, and returns the number of the next scenario.
    pub(crate) async fn run(mut self, lasts: Duration, report: &mut Report) -> Result<u64, Trouble> {
        self.before = newest(&*self.store).await?;
        self.feed_from = FeedFrom::After(self.store.feed(Feed { from: FeedFrom::End, limit: 1 }).await?.next);
        for place in 0..WORKER_COUNT + CLIENT_COUNT {
            self.after(Duration::ZERO, Event::Boot { place });
        }
        self.after(Duration::ZERO, Event::Begin);
        self.after(ms(500), Event::Strike { missed: 0 });
        let until = self.stage.runtime.moment().after(lasts);
        self.happen(until, report).await?;
        let mut client = match self.stage.interrupt.is_set() {
            true => None,
            false => Some(self.see_to_the_end(report).await?),
        };
        if self.stage.interrupt.is_set() {
            report.is_interrupted = true;
            // No process writes while the round is audited.
            self.places.iter_mut().for_each(|place| *place = None);
            if let Some(client) = client.take() {
                client.shutdown().await;
            }
        }
        self.stage.tell("auditing", report);
        let verdict = Verdict {
            stage: self.stage,
            round: self.number,
            effects: &self.path,
            store: &*self.store,
            before: self.before,
            feed_from: self.feed_from,
            first_scenario: self.first_scenario,
            scenarios: &self.scenarios,
            seen: &self.seen,
        };
        verdict.judge(client.as_ref(), report).await?;
        if let Some(client) = client {
            client.shutdown().await;
        }
        self.store.close();
        report.violations.append(&mut self.violations);
        if report.violations.is_empty() {
            // The file may be large, and is of no more use.
            let _ = std::fs::remove_file(&self.path);
        }
        Ok(self.first_scenario + self.scenarios.len() as u64)
    }

    fn after(&mut self, duration: Duration, event: Event) {
        self.event_count += 1;
        let at = self.stage.runtime.moment().after(duration);
        self.agenda.insert((at, self.event_count), event);
    }

    fn wrong(&mut self, what: String) {
        self.violations.push(Violation { round: self.number, scenario: None, what, story: String::new() });
    }

    /// Works through the agenda until the time is over.
    async fn happen(&mut self, until: Moment, report: &mut Report) -> Result<(), Trouble> {
        let mut told = self.stage.runtime.moment();
        while self.stage.runtime.moment() < until && !self.stage.interrupt.is_set() {
            self.reap()?;
            let now = self.stage.runtime.moment();
            if now.since(told) >= TELL_EVERY {
                told = now;
                self.stage.tell("torturing", report);
            }
            match self.agenda.first_key_value() {
                Some(((at, _), _)) if *at <= now => {
                    if let Some((_, event)) = self.agenda.pop_first() {
                        self.one(event, report).await?;
                    }
                }
                Some(((at, _), _)) => self.stage.runtime.sleep(at.since(now).min(LOOK_EVERY)).await,
                None => self.stage.runtime.sleep(LOOK_EVERY).await,
            }
        }
        Ok(())
    }

    async fn one(&mut self, event: Event, report: &mut Report) -> Result<(), Trouble> {
        match event {
            Event::Begin => {
                let nth = self.first_scenario + self.scenarios.len() as u64;
                let scenario = scenario_of(self.stage.torture.seed, nth, &self.stage.prefix);
                for (action, asked) in scenario.actions.iter().enumerate() {
                    self.after(ms(asked.at_ms), Event::Act { scenario: nth, action });
                }
                self.scenarios.push(scenario);
                report.scenarios += 1;
                self.after(BEGIN_EVERY, Event::Begin);
            }
            Event::Act { scenario, action } => self.act(scenario, action).await?,
            Event::Strike { missed } => match self.busy_worker()? {
                None if missed < AIM_COUNT_MAX => self.after(AIM_EVERY, Event::Strike { missed: missed + 1 }),
                worker => {
                    self.strike(worker, report)?;
                    let pause_ms = 50 + self.chance.number() % 700;
                    self.after(ms(pause_ms), Event::Strike { missed: 0 });
                }
            },
            Event::GoOn { place, machine } => self.go_on(place, machine)?,
            Event::Boot { place } => self.boot(place, report).await?,
        }
        Ok(())
    }

    /// Starts a process. A worker must know everything that is recorded by then.
    async fn boot(&mut self, place: usize, report: &mut Report) -> Result<(), Trouble> {
        let machine = self.next_machine;
        self.next_machine += 1;
        if self.is_worker(place) {
            let executions = executions(&*self.store, self.before).await?;
            self.seen.look(&*self.store, executions, machine).await?;
        }
        let torture = self.stage.torture;
        let role = Role {
            machine,
            worker: self.is_worker(place).then(|| self.spec(place, machine)),
            url: torture.url(),
            effects: self.path.clone(),
            session_ttl_ms: SESSION_TTL_MS,
            prefix: self.stage.prefix.clone(),
            seed: torture.seed,
        };
        self.places[place] = Some(Process::start(&torture.command, &role)?);
        report.processes += 1;
        Ok(())
    }

    fn is_worker(&self, place: usize) -> bool {
        !(WORKER_COUNT..WORKER_COUNT + CLIENT_COUNT).contains(&place)
    }

    fn spec(&self, place: usize, machine: u32) -> WorkerSpec {
        match place < WORKER_COUNT {
            true => scenario(self.stage.torture.seed.wrapping_add(u64::from(machine))).workers[0],
            false => LAST_WORKER,
        }
    }

    /// Finds processes that have ended on their own. Only a process that was ordered to shut down
    /// may do so.
    fn reap(&mut self) -> io::Result<()> {
        for place in 0..self.places.len() {
            let Some(process) = &mut self.places[place] else { continue };
            let Some(status) = process.ended()? else { continue };
            if !(process.is_leaving && status.success()) {
                let what = format!("process {} ended by itself: {status}", process.machine);
                self.wrong(what);
            }
            self.places[place] = None;
            self.after(ms(10), Event::Boot { place });
        }
        Ok(())
    }

    async fn act(&mut self, scenario: u64, action: usize) -> Result<(), Trouble> {
        let index = usize::try_from(scenario - self.first_scenario).unwrap_or(usize::MAX);
        let Some(asked) = self.scenarios.get(index).and_then(|scenario| scenario.actions.get(action)) else {
            return Ok(());
        };
        let place = match asked.by {
            Actor::Worker(index) => index as usize % WORKER_COUNT,
            Actor::Client(index) => WORKER_COUNT + index as usize % CLIENT_COUNT,
        };
        let (target, is_shutdown) = (asked.what.target(), asked.what == Ask::Shutdown);
        let id = match target {
            Some(target) => {
                let known = self.known(scenario).await?;
                (!known.is_empty()).then(|| known[target.0 % known.len()].clone())
            }
            None => None,
        };
        if let Some(process) = &mut self.places[place] {
            process.is_leaving |= is_shutdown;
            process.tell(&Order { scenario, action, id });
        }
        Ok(())
    }

    /// Returns the executions of a scenario.
    async fn known(&self, scenario: u64) -> Result<Vec<String>, Trouble> {
        let prefix = scenario_prefix(&self.stage.prefix, scenario);
        let listed = executions(&*self.store, self.before).await?;
        let ids = listed.iter().map(|item| item.address.id.to_string());
        Ok(ids.filter(|id| id.starts_with(&prefix)).collect())
    }

    /// Strikes a process with a random fault.
    fn strike(&mut self, worker: Option<usize>, report: &mut Report) -> io::Result<()> {
        // Sometimes ignore the busy worker: processes that boot or do nothing are to be killed too.
        let any = self.chance.below(WORKER_COUNT);
        let worker = worker.filter(|_| !self.chance.chance(200)).unwrap_or(any);
        let client = WORKER_COUNT + self.chance.below(CLIENT_COUNT);
        let stopped = |process: &&Process| process.is_stopped;
        let stopped_count = self.places[..WORKER_COUNT].iter().flatten().filter(stopped).count();
        match self.chance.below(100) {
            0..50 => self.kill(worker, report)?,
            50..63 => self.kill(client, report)?,
            63..85 if stopped_count < STOPPED_COUNT_MAX => {
                let lasts_ms = SESSION_TTL_MS + self.chance.number() % (2 * SESSION_TTL_MS);
                self.stop(worker, ms(lasts_ms), report)?;
            }
            63..93 => {
                let lasts_ms = 50 + self.chance.number() % SESSION_TTL_MS;
                self.stop(client, ms(lasts_ms), report)?;
            }
            93..96 => {
                for place in 0..WORKER_COUNT + CLIENT_COUNT {
                    self.kill(place, report)?;
                }
            }
            _ => {
                let stopped = |place: &usize| self.places[*place].as_ref().is_some_and(|it| it.is_stopped);
                if let Some(place) = (0..WORKER_COUNT).find(stopped) {
                    self.kill(place, report)?;
                }
            }
        }
        Ok(())
    }

    /// Returns a worker with work under way.
    fn busy_worker(&mut self) -> io::Result<Option<usize>> {
        let first = self.chance.below(WORKER_COUNT);
        for place in (0..WORKER_COUNT).map(|nth| (first + nth) % WORKER_COUNT) {
            if let Some(process) = &self.places[place]
                && !process.is_stopped
                && self.effects.is_under_way(process.machine)?
            {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    fn kill(&mut self, place: usize, report: &mut Report) -> io::Result<()> {
        let Some(process) = self.places[place].take() else { return Ok(()) };
        let machine = process.machine;
        report.kills_under_way += u64::from(self.effects.is_under_way(machine)?);
        report.kills += 1;
        report.client_kills += u64::from(!self.is_worker(place));
        process.kill()?;
        self.effects.append(Line::Killed { machine })?;
        let restart_ms = *self.chance.pick(&[1, 50, 300, 1_000]);
        self.after(ms(restart_ms), Event::Boot { place });
        Ok(())
    }

    fn stop(&mut self, place: usize, lasts: Duration, report: &mut Report) -> io::Result<()> {
        let Some(process) = self.places[place].as_mut().filter(|process| !process.is_stopped) else {
            return Ok(());
        };
        let machine = process.machine;
        process.stop()?;
        report.stops += 1;
        self.effects.append(Line::Stopped { machine })?;
        self.after(lasts, Event::GoOn { place, machine });
        Ok(())
    }

    fn go_on(&mut self, place: usize, machine: u32) -> io::Result<()> {
        let process = self.places[place].as_mut();
        let Some(process) = process.filter(|process| process.machine == machine && process.is_stopped) else {
            return Ok(());
        };
        self.effects.append(Line::Continued { machine })?;
        process.go_on()
    }

    /// Lets everything end. An execution that does not end is a violation.
    async fn see_to_the_end(&mut self, report: &mut Report) -> Result<Abide, Trouble> {
        self.agenda.clear();
        for place in 0..self.places.len() {
            match &self.places[place] {
                Some(process) => {
                    let machine = process.machine;
                    self.go_on(place, machine)?;
                }
                None => self.boot(place, report).await?,
            }
        }
        let url = self.stage.torture.url();
        let client = Abide::client(&url).await.map_err(|error| Trouble::Store(error.to_string()))?;
        let until = self.stage.runtime.moment().after(END_MAX);
        self.happen(self.stage.runtime.moment().after(BEFORE_HELP), report).await?;
        let mut ending = Ending::default();
        loop {
            let left = open(executions(&*self.store, self.before).await?);
            if left.is_empty() || self.stage.interrupt.is_set() {
                return Ok(client);
            }
            if self.stage.runtime.moment() > until {
                let what = format!("{END_MAX:?} after the last fault it has not ended:");
                let what = what + &reasons(&client, left).await;
                self.wrong(what);
                return Ok(client);
            }
            ending.help(&client, &*self.stage.runtime, left).await;
            self.happen(self.stage.runtime.moment().after(HELP_EVERY), report).await?;
        }
    }
}
