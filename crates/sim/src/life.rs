//! The life of a world: machines boot, clients ask, things go wrong, and at last everything has to end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use abide::prelude::*;
use abide::testing::simulated;
use abide_core::{Namespace, Waiting};
use abide_engine::Runtime;
use abide_store::{List, ListOrder, Listed};

use crate::code::{self, Probe, with_options};
use crate::generate::{SESSION_TTL_MS, SIGNALS};
use crate::history::{Answer, Happened};
use crate::machine::MachineStore;
use crate::program::{Code, Expr, Program};
use crate::scenario::{Action, Actor, Ask, Scenario, Target, WorkerSpec};
use crate::world::World;

/// The client and the worker of those who see to the end.
const LAST: u32 = 1_000;

/// How many seconds everything may take to end, once nothing goes wrong any longer.
const END_SECONDS_MAX: u64 = 240;

/// Values of the signals that see to the end begin here.
pub(crate) const LAST_SIGNALS: u64 = 1_000_000;

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
            loop {
                let store = MachineStore::of(&world, machine);
                let builder = simulated(builder(spec), runtime.clone(), store);
                let probe = Probe { machine, history: world.history.clone(), runtime: runtime.clone() };
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

    /// Asks for something, in the process that it is asked by.
    fn ask(self: &Arc<Self>, index: usize, action: &Action, scenario: &Arc<Scenario>) {
        let Some((machine, abide)) = self.at(action.by) else { return };
        let (world, scenario, action) = (self.clone(), scenario.clone(), action.clone());
        let asked = {
            let (world, action) = (world.clone(), action.clone());
            async move { perform(&world, &abide, &action, &scenario).await }
        };
        let history = self.history.clone();
        let asked = DropAt { future: Some(Box::pin(asked)), polls_left: action.dropped_at_poll };
        self.sim.process(machine).spawn(Box::pin(async move {
            let answer = asked.await;
            history.add(Happened::Answered { action: index, answer });
        }));
        if action.what == Ask::Shutdown {
            self.replace_later(machine, action.by);
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

/// Lets everything end: resumes what is paused, sends what is waited for. Says what does not end.
async fn see_to_the_end(world: &Arc<World>) -> Result<(), String> {
    // So that what waits, waits visibly.
    world.runtime().sleep(secs(5)).await;
    let mut signal = LAST_SIGNALS;
    for _ in 0..END_SECONDS_MAX {
        world.runtime().sleep(secs(1)).await;
        let open: Vec<Listed> =
            executions(world).await.into_iter().filter(|item| !item.summary.status.is_terminal()).collect();
        if open.is_empty() {
            return Ok(());
        }
        let Some((_, abide)) = world.at(Actor::Client(LAST)) else { continue };
        for item in open {
            let handle = abide.handle::<u64>(item.address.id.as_str());
            match item.summary.status {
                Status::Paused => drop(handle.resume().await),
                Status::Blocked => drop(handle.terminate("it is blocked").await),
                _ => {
                    for name in wanted_signals(&item) {
                        signal += 1;
                        // An inbox that is full of what nobody waits for takes no more.
                        if let Err(ClientError::Refused { .. }) = handle.signal(&name, &signal).await {
                            drop(handle.terminate("nothing that it waits for can be sent").await);
                        }
                    }
                }
            }
        }
    }
    Err(stuck(world).await)
}

/// The signals that an execution waits for, as it tells itself.
fn wanted_signals(item: &Listed) -> Vec<String> {
    let names = item.summary.waiting.iter().filter_map(|waiting| match waiting {
        Waiting::Signal { name, .. } => Some(name.to_string()),
        _ => None,
    });
    let mut names: Vec<String> = names.collect();
    names.dedup();
    names.retain(|name| SIGNALS.contains(&name.as_str()));
    names
}

async fn stuck(world: &Arc<World>) -> String {
    let mut story = format!("after {END_SECONDS_MAX} seconds without a fault it has not ended:");
    let Some((_, abide)) = world.at(Actor::Client(LAST)) else { return story };
    for item in executions(world).await.iter().filter(|item| !item.summary.status.is_terminal()) {
        let why = abide.handle::<u64>(item.address.id.as_str()).why().await;
        story.push_str(&format!("\n  {}", why.unwrap_or_else(|error| error.to_string())));
    }
    story
}

/// Every execution that there is.
pub(crate) async fn executions(world: &World) -> Vec<Listed> {
    let list = List {
        namespace: Namespace::default(),
        statuses: Vec::new(),
        name: None,
        tags: Vec::new(),
        top_level: false,
        parent: None,
        order: ListOrder::OldestFirst,
        after: None,
        limit: 10_000,
    };
    world.store.list(list).await.map(|page| page.items).unwrap_or_default()
}

async fn perform(world: &World, abide: &Abide, action: &Action, scenario: &Scenario) -> Answer {
    let handle = |target: &Target| {
        let known = &world.lock().known;
        (!known.is_empty()).then(|| abide.handle::<u64>(&known[target.0 % known.len()]))
    };
    match &action.what {
        Ask::Start(root) => start(abide, scenario, *root).await,
        Ask::Run(root) => run(abide, scenario, *root).await,
        Ask::Conflict(root) => {
            let other = Program { carry: u64::MAX, body: Expr::Value(1), next: None };
            done(abide.start(code::program, other).id(&scenario.roots[*root].id).await)
        }
        Ask::List => done(abide.list(Filter::all()).await),
        Ask::Shutdown => {
            abide.shutdown().await;
            Answer::Done
        }
        Ask::Result(target)
        | Ask::Signal(target, _)
        | Ask::Pause(target)
        | Ask::Resume(target)
        | Ask::Cancel(target)
        | Ask::Terminate(target)
        | Ask::Retry(target)
        | Ask::Unblock(target)
        | Ask::Status(target)
        | Ask::Why(target) => match handle(target) {
            Some(handle) => steer(&handle, action).await,
            None => Answer::Refused("there is nothing".to_owned()),
        },
    }
}

async fn steer(handle: &Handle<u64>, action: &Action) -> Answer {
    match &action.what {
        Ask::Result(_) => result(handle.result().await),
        Ask::Signal(_, name) => done(handle.signal(name, &action.number).await),
        Ask::Pause(_) => done(handle.pause().await),
        Ask::Resume(_) => done(handle.resume().await),
        Ask::Cancel(_) => done(handle.cancel("enough").await),
        Ask::Terminate(_) => done(handle.terminate("now").await),
        Ask::Retry(_) => done(handle.retry().await),
        Ask::Unblock(_) => done(handle.unblock().await),
        Ask::Status(_) => done(handle.status().await),
        _ => done(handle.why().await),
    }
}

async fn start(abide: &Abide, scenario: &Scenario, root: usize) -> Answer {
    let root = &scenario.roots[root];
    match &root.code {
        Code::Workflow(input) => {
            let start = abide.start(code::program, (**input).clone()).id(&root.id);
            done(with_options!(start, root.options).await)
        }
        Code::Task(input) => {
            done(with_options!(abide.start(code::job, *input).id(&root.id), root.options).await)
        }
    }
}

async fn run(abide: &Abide, scenario: &Scenario, root: usize) -> Answer {
    let root = &scenario.roots[root];
    match &root.code {
        Code::Workflow(input) => {
            let run = abide.run(code::program, (**input).clone()).id(&root.id);
            result(with_options!(run, root.options).await)
        }
        Code::Task(input) => {
            result(with_options!(abide.run(code::job, *input).id(&root.id), root.options).await)
        }
    }
}

fn done<T>(answer: Result<T, ClientError>) -> Answer {
    answer.map_or_else(|error| refusal(&error), |_| Answer::Done)
}

fn result(answer: Result<u64, ClientError>) -> Answer {
    answer.map_or_else(|error| refusal(&error), Answer::Result)
}

fn refusal(error: &ClientError) -> Answer {
    match error {
        ClientError::Failed { error, .. } => Answer::Failed(error.message().to_owned()),
        ClientError::Cancelled { .. } => Answer::Cancelled,
        ClientError::Unavailable { .. } => Answer::Unavailable,
        ClientError::Indeterminate { .. } => Answer::Unknown,
        other => Answer::Refused(other.to_string()),
    }
}

/// A future that its caller drops at a certain poll.
struct DropAt<F> {
    future: Option<Pin<Box<F>>>,
    polls_left: Option<u32>,
}

impl<F: Future<Output = Answer>> Future for DropAt<F> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let this = &mut *self;
        match &mut this.polls_left {
            Some(0) => this.future = None,
            Some(left) => *left -= 1,
            None => {}
        }
        match &mut this.future {
            Some(future) => future.as_mut().poll(cx),
            None => Poll::Ready(Answer::Dropped),
        }
    }
}
