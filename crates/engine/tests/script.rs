//! A driver without any Rust future behind it: it interprets a script, and knows only what its
//! journal says.
//!
//! It does everything that code must be able to do that runs elsewhere and speaks another protocol.
//! It takes every name of its kind, records entries of its own kind, receives signals when they
//! arrive and not when somebody asks for them, and leaves the execution's dealings with the store
//! to its seat.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use abide_core::{
    Ability, Block, Body, Bounds, By, Command, Entry, Event, ExecutionId, Failure, FailureKind, Foreign,
    Kind, Name, Payload, Start, Status, Timestamp, Waiting,
};
use abide_engine::sim::{Sim, SimProcess};
use abide_engine::{
    BoxFuture, Client, CodeFuture, Driver, End, Engine, Leave, Moment, Options, Order, Registry, Runtime,
    Seat, TaskAttempt, TaskCode,
};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Error, Opening, Record};
use tokio::sync::Notify;

/// One line of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    /// Has an effect, and records that it had.
    Call(String),
    /// Waits for a signal of this name.
    Hear(Name),
    /// Waits for this many seconds.
    Sleep(u64),
}

fn parsed(script: &str) -> VecDeque<Line> {
    let line = |line: &str| match line.split_once(' ') {
        Some(("call", what)) => Line::Call(what.to_owned()),
        Some(("hear", what)) => Line::Hear(name(what)),
        Some(("sleep", what)) => Line::Sleep(what.parse().expect("a number of seconds")),
        _ => panic!("there is no line {line:?}"),
    };
    script.lines().map(str::trim).filter(|line| !line.is_empty()).map(line).collect()
}

/// The state that the journal describes so far.
#[derive(Default)]
struct Story {
    entry_count: u64,
    /// The lines of the script that are left.
    rest: VecDeque<Line>,
    /// The recorded signals that no line has taken yet.
    heard: VecDeque<(Name, String)>,
    /// The end of the current sleep.
    due_at: Option<Timestamp>,
    said: Vec<String>,
}

impl Story {
    /// Folds one entry. Nothing becomes known in any other way.
    fn fold(&mut self, entry: &Entry) {
        self.entry_count = entry.seq;
        match &entry.event {
            Event::Started(start) => self.rest = parsed(&text(&start.input)),
            Event::Foreign(Foreign { kind, payload, .. }) => self.fold_own(kind.as_str(), &text(payload)),
            _ => {}
        }
    }

    fn fold_own(&mut self, kind: &str, what: &str) {
        match kind {
            "called" => {
                self.said.push(what.to_owned());
                self.rest.pop_front();
            }
            "heard" => {
                let (of, value) = what.split_once(' ').expect("a name and a value");
                self.heard.push_back((name(of), value.to_owned()));
            }
            "slept" => {
                self.due_at = None;
                self.rest.pop_front();
            }
            "sleeps" => self.due_at = Some(Timestamp::from_micros(what.parse().expect("a time"))),
            other => panic!("there is no entry of the kind {other:?}"),
        }
        // A line is done if the signal that it waits for has arrived.
        while let Some(Line::Hear(of)) = self.rest.front()
            && let Some(at) = self.heard.iter().position(|(found, _)| found == of)
        {
            let (of, value) = self.heard.remove(at).expect("it was just found");
            self.said.push(format!("{of}={value}"));
            self.rest.pop_front();
        }
    }
}

/// A driver that interprets every workflow.
struct Interpreter {
    /// The effects of the calls in the outside world.
    effects: Arc<Mutex<Vec<String>>>,
}

impl Driver for Interpreter {
    fn begin(&self, seat: Seat, opening: Opening) -> BoxFuture<End> {
        let reading = Some(VecDeque::from(opening.into_records()));
        let (effects, story) = (self.effects.clone(), Story::default());
        let mut telling = Telling { seat, reading, page: None, story, effects, alarm: None };
        Box::pin(poll_fn(move |cx| {
            telling.seat.enter(cx);
            let polled = telling.poll(cx);
            match &polled {
                Poll::Pending => telling.seat.leave(false),
                Poll::Ready(_) => telling.seat.vacate(),
            }
            polled
        }))
    }
}

/// An interpreted execution.
struct Telling {
    seat: Seat,
    /// The records of the journal that are not folded yet; `None` when all are.
    reading: Option<VecDeque<Record>>,
    /// The next page of records.
    page: Option<abide_store::Answer<Vec<Record>>>,
    story: Story,
    effects: Arc<Mutex<Vec<String>>>,
    alarm: Option<BoxFuture<()>>,
}

impl Telling {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if let Poll::Ready(end) = self.seat.poll_end(cx) {
                return Poll::Ready(end);
            }
            if self.seat.is_busy() {
                return Poll::Pending;
            }
            if self.reading.is_some() {
                ready!(self.poll_journal(cx));
            }
            if let Some(entry) = self.seat.obey(true).or_else(|| self.seat.expire(true)) {
                self.follow(entry);
                continue;
            }
            self.listen();
            if self.seat.order() >= Order::Drain || !self.seat.may_run() {
                ready!(self.go(&[], None));
                continue;
            }
            ready!(self.go_on(cx));
        }
    }

    /// Folds the entries recorded earlier, page by page.
    fn poll_journal(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let end = self.seat.execution().entry_count();
        loop {
            for record in self.reading.iter_mut().flat_map(|reading| reading.drain(..)) {
                let entry = record.entry().expect("what was recorded can be read");
                self.story.fold(&entry);
            }
            if self.story.entry_count == end {
                self.reading = None;
                return Poll::Ready(());
            }
            let page = self.page.get_or_insert_with(|| self.seat.page(self.story.entry_count + 1));
            let records = ready!(page.as_mut().poll(cx)).expect("the journal can be read");
            self.page = None;
            self.reading = Some(records.into());
        }
    }

    /// Follows the entry that an order has recorded.
    fn follow(&mut self, entry: Option<Entry>) {
        let Some(last) = entry else { return };
        if last.event.is_terminal() {
            self.seat.finish(last.event.clone());
        } else if let Event::CancelRequested { .. } | Event::DeadlinePassed { .. } = last.event {
            // A script has nothing to wind down.
            self.end_with(Command::Fail(Failure::new(FailureKind::Cancelled, "cancelled")));
        }
    }

    /// Records signals as they come, whether or not a line waits for them.
    fn listen(&mut self) {
        while let Some(message) = self.seat.next_message() {
            if let Body::Signal { name, payload } = &message.body {
                self.record("heard", &format!("{name} {}", text(payload)));
            }
            self.seat.consume(message.id);
        }
    }

    /// Does the next line.
    fn go_on(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.story.rest.front().cloned() {
            None => {
                let result = Payload::from(self.story.said.join(", ").as_str());
                self.end_with(Command::Complete { result, unused: Vec::new() });
                Poll::Ready(())
            }
            // An effect may happen only when everything before it is durable.
            Some(Line::Call(_)) if self.seat.has_news() => {
                self.seat.send(Leave::keep(&[]));
                Poll::Ready(())
            }
            Some(Line::Call(what)) => {
                self.effects.lock().expect("nobody panics").push(what.clone());
                self.record("called", &what);
                Poll::Ready(())
            }
            Some(Line::Hear(name)) => self.go(&[Waiting::Signal { name, until: None }], None),
            Some(Line::Sleep(secs)) => self.sleep(secs, cx),
        }
    }

    fn sleep(&mut self, secs: u64, cx: &mut Context<'_>) -> Poll<()> {
        let Some(until) = self.story.due_at else {
            let due_at = self.seat.now().after(Duration::from_secs(secs));
            self.record("sleeps", &due_at.as_micros().to_string());
            return Poll::Ready(());
        };
        if until <= self.seat.now() {
            self.record("slept", "");
            return Poll::Ready(());
        }
        // A short sleep is not worth leaving memory for.
        if secs >= 60 {
            return self.go(&[Waiting::Sleep { until }], Some(until));
        }
        if self.seat.has_news() {
            self.seat.send(Leave::keep(&[Waiting::Sleep { until }]));
            return Poll::Ready(());
        }
        let alarm = self.alarm.get_or_insert_with(|| self.seat.sleep_until(until));
        ready!(alarm.as_mut().poll(cx));
        self.alarm = None;
        Poll::Ready(())
    }

    /// Leaves memory until a message comes or the time is up.
    fn go(&mut self, waiting: &[Waiting], wake_at: Option<Timestamp>) -> Poll<()> {
        if !self.seat.has_all_mail() {
            return Poll::Pending;
        }
        let leave = match self.seat.order() {
            Order::Run => Leave::park(waiting, self.seat.parked()),
            _ => Leave::hand_over(waiting),
        };
        self.seat.send(Leave { wake_at, ..leave });
        Poll::Ready(())
    }

    fn record(&mut self, kind: &str, what: &str) {
        let foreign = Foreign { kind: name(kind), op: None, payload: Payload::from(what) };
        let entries = self.seat.decide(Command::RecordForeign(foreign)).expect("it may be recorded");
        entries.iter().for_each(|entry| self.story.fold(entry));
    }

    fn end_with(&mut self, command: Command) {
        let entries = self.seat.decide(command).expect("it may end");
        self.seat.finish(entries.into_iter().next_back().expect("an end is an entry").event);
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn text(payload: &Payload) -> String {
    String::from_utf8(payload.as_bytes().to_vec()).expect("scripts are text")
}

/// Two machines that interpret scripts, and a client.
struct Stage {
    sim: Sim,
    store: Arc<MemoryStore>,
    effects: Arc<Mutex<Vec<String>>>,
    client: Client,
}

impl Stage {
    fn play<F: Future<Output = ()>>(test: impl FnOnce(Arc<Self>) -> F) {
        let sim = Sim::new(7);
        let store = MemoryStore::new(Arc::new(sim.clone()), Bounds::default());
        let client = Client::alone(store.clone(), sim.process(0), abide_core::Namespace::default());
        let stage = Arc::new(Self { sim: sim.clone(), store, effects: Arc::default(), client });
        sim.block_on(test(stage));
    }

    async fn interpreter(&self, machine: u32) -> Engine {
        let mut registry = Registry::default();
        let driver = Interpreter { effects: self.effects.clone() };
        assert!(registry.add(Kind::Workflow, name(Ability::ANY), Arc::new(driver)));
        self.engine(machine, registry, Options { lanes: [name(Ability::ANY)].into(), ..Options::default() })
            .await
    }

    async fn engine(&self, machine: u32, registry: Registry, options: Options) -> Engine {
        let process: Arc<SimProcess> = self.sim.process(machine);
        Engine::open(self.store.clone(), process, registry, options).await.expect("it opens")
    }

    async fn start(&self, id: &str, script: &str) {
        // Nobody registered this name.
        let code = name(&format!("script-{id}"));
        let start = Start { lane: name("scripts"), ..Start::of(Kind::Workflow, code, Payload::from(script)) };
        self.client.start(&key(id), Arc::new(start)).await.expect("it is started");
    }

    async fn signal(&self, id: &str, of: &str, value: &str) {
        self.client.signal(&key(id), name(of), Payload::from(value)).await.expect("it is sent");
    }

    async fn order(&self, id: &str, body: Body) {
        self.client.send(&key(id), By::client(), body).await.expect("it is sent");
    }

    async fn status(&self, id: &str) -> Status {
        self.client.status(&key(id)).await.expect("it exists")
    }

    async fn events(&self, id: &str) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let from = events.len() as u64 + 1;
            let found = self.client.read(&key(id), from, 100).await.expect("it exists");
            if found.journal.is_empty() {
                return events;
            }
            let event = |record: &Record| record.entry().expect("it can be read").event;
            events.extend(found.journal.iter().map(event));
        }
    }

    async fn result(&self, id: &str) -> String {
        match self.events(id).await.pop() {
            Some(Event::Completed { result, .. }) => text(&result),
            other => panic!("expected {id:?} to be completed, found {other:?}"),
        }
    }

    async fn pass(&self, secs: u64) {
        self.sim.process(0).sleep(Duration::from_secs(secs)).await;
    }

    fn effects(&self) -> Vec<String> {
        self.effects.lock().expect("nobody panics").clone()
    }
}

fn key(id: &str) -> ExecutionId {
    ExecutionId::new(id).expect("an id")
}

#[test]
fn script_runs_from_its_journal() {
    Stage::play(|stage| async move {
        let _engine = stage.interpreter(1).await;
        stage.start("a", "call one\n hear go\n sleep 5\n sleep 3600\n call two").await;
        stage.pass(10).await;
        assert_eq!(stage.status("a").await, Status::Waiting);
        stage.signal("a", "go", "7").await;
        stage.pass(3_000).await;
        assert_eq!(stage.status("a").await, Status::Sleeping);
        stage.pass(700).await;
        assert_eq!(stage.result("a").await, "one, go=7, two");
        assert_eq!(stage.effects(), ["one", "two"]);
    });
}

#[test]
fn signals_are_recorded_when_they_arrive() {
    Stage::play(|stage| async move {
        let _engine = stage.interpreter(1).await;
        stage.start("a", "hear first\n hear second").await;
        stage.signal("a", "second", "2").await;
        stage.pass(5).await;
        let heard =
            |event: &Event| matches!(event, Event::Foreign(foreign) if foreign.kind.as_str() == "heard");
        assert_eq!(stage.events("a").await.iter().filter(|event| heard(event)).count(), 1);
        assert_eq!(stage.status("a").await, Status::Waiting, "nobody asked for it yet");
        stage.signal("a", "first", "1").await;
        stage.pass(5).await;
        assert_eq!(stage.result("a").await, "first=1, second=2");
    });
}

#[test]
fn script_survives_a_crash_in_the_middle() {
    Stage::play(|stage| async move {
        let engine = stage.interpreter(1).await;
        let many = (0..300).map(|n| format!("call {n}\n")).collect::<String>();
        stage.start("a", &format!("{many} sleep 30\n hear go\n call end")).await;
        stage.pass(20).await;
        stage.signal("a", "go", "now").await;
        stage.pass(1).await;
        stage.sim.kill(1);
        drop(engine);
        let _engine = stage.interpreter(2).await;
        stage.pass(120).await;
        assert!(stage.result("a").await.ends_with("299, go=now, end"));
        let effects = stage.effects();
        assert_eq!(effects.len(), 301, "what was recorded did not happen again");
        assert_eq!(effects.last().map(String::as_str), Some("end"));
    });
}

#[test]
fn script_obeys_through_its_seat() {
    Stage::play(|stage| async move {
        let _engine = stage.interpreter(1).await;
        stage.start("a", "sleep 30\n call end").await;
        stage.pass(1).await;
        stage.order("a", Body::Pause { reason: "wait".to_owned() }).await;
        stage.pass(100).await;
        assert_eq!((stage.status("a").await, stage.effects()), (Status::Paused, Vec::new()));
        stage.order("a", Body::Resume).await;
        stage.pass(5).await;
        assert_eq!(stage.result("a").await, "end");
        for (id, order) in [
            ("b", Body::Terminate { reason: "enough".to_owned() }),
            ("c", Body::Cancel { reason: "enough".to_owned() }),
        ] {
            stage.start(id, "sleep 30\n hear never").await;
            stage.pass(1).await;
            stage.order(id, order).await;
            stage.pass(1).await;
            assert_eq!(stage.status(id).await, Status::Cancelled);
        }
    });
}

#[test]
fn script_moves_on_when_its_engine_shuts_down() {
    Stage::play(|stage| async move {
        let engine = stage.interpreter(1).await;
        stage.start("a", "call one\n sleep 30\n call two").await;
        stage.pass(1).await;
        engine.shutdown().await;
        let _engine = stage.interpreter(2).await;
        stage.pass(60).await;
        assert_eq!(stage.result("a").await, "one, two");
        assert_eq!(stage.effects(), ["one", "two"]);
    });
}

/// An engine that has none of the code can still end the execution.
#[test]
fn script_is_looked_after_without_its_interpreter() {
    Stage::play(|stage| async move {
        let engine = stage.interpreter(1).await;
        stage.start("a", "hear never").await;
        stage.pass(5).await;
        engine.shutdown().await;
        let _engine = stage.engine(2, Registry::default(), Options::default()).await;
        stage.order("a", Body::Pause { reason: String::new() }).await;
        stage.pass(5).await;
        assert_eq!(stage.status("a").await, Status::Paused);
        stage.order("a", Body::Terminate { reason: String::new() }).await;
        stage.pass(5).await;
        assert_eq!(stage.status("a").await, Status::Cancelled);
    });
}

/// A driver that finds, whenever it begins, a record that only a newer version of abide can read.
struct Outdated(Arc<AtomicUsize>);

impl Driver for Outdated {
    fn begin(&self, _seat: Seat, _opening: Opening) -> BoxFuture<End> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let end = End::from(Error::Newer { what: "entry 7 is of a newer version".to_owned() });
        Box::pin(std::future::ready(end))
    }
}

#[test]
fn what_needs_a_newer_version_is_left_to_one() {
    Stage::play(|stage| async move {
        let begun_count = Arc::new(AtomicUsize::new(0));
        let mut registry = Registry::default();
        let driver = Arc::new(Outdated(begun_count.clone()));
        assert!(registry.add(Kind::Workflow, name(Ability::ANY), driver));
        let options = Options { lanes: [name(Ability::ANY)].into(), ..Options::default() };
        let _old = stage.engine(1, registry, options).await;
        stage.start("a", "call one").await;
        stage.pass(100).await;
        let count = begun_count.load(Ordering::Relaxed);
        assert!((2..=25).contains(&count), "it began {count} times");
        // An interpreter that can read the record comes, and the other one stays.
        let _new = stage.interpreter(2).await;
        stage.pass(60).await;
        assert_eq!(stage.status("a").await, Status::Completed);
    });
}

/// A driver that finds damage when its engine drains.
struct Crumbling;

impl Driver for Crumbling {
    fn begin(&self, mut seat: Seat, _opening: Opening) -> BoxFuture<End> {
        Box::pin(poll_fn(move |cx| {
            seat.enter(cx);
            let end = seat.poll_end(cx);
            seat.leave(false);
            if seat.order() == Order::Drain { Poll::Ready(End::damaged("a hole".to_owned())) } else { end }
        }))
    }
}

/// The draining engine may be the last one for a long time: no other would report the damage.
#[test]
fn what_is_found_damaged_while_draining_is_set_aside() {
    Stage::play(|stage| async move {
        let mut registry = Registry::default();
        assert!(registry.add(Kind::Workflow, name(Ability::ANY), Arc::new(Crumbling)));
        let options = Options { lanes: [name(Ability::ANY)].into(), ..Options::default() };
        let engine = stage.engine(1, registry, options).await;
        stage.start("a", "call one").await;
        stage.pass(1).await;
        assert_eq!(stage.status("a").await, Status::Running);
        engine.shutdown().await;
        assert_eq!(stage.status("a").await, Status::Damaged);
    });
}

/// A driver that holds its executions, and commits nothing whatever comes.
struct Silent;

impl Driver for Silent {
    fn begin(&self, mut seat: Seat, _opening: Opening) -> BoxFuture<End> {
        Box::pin(poll_fn(move |cx| {
            seat.enter(cx);
            let end = seat.poll_end(cx);
            seat.leave(false);
            end
        }))
    }
}

impl Stage {
    /// Opens an engine for which one death makes a suspect, and whose driver of the execution
    /// "silent" is silent.
    async fn with_silent(&self, runtime: Arc<dyn Runtime>) -> Engine {
        let mut registry = Registry::default();
        let interpreter = Interpreter { effects: self.effects.clone() };
        assert!(registry.add(Kind::Workflow, name(Ability::ANY), Arc::new(interpreter)));
        assert!(registry.add(Kind::Workflow, name("script-silent"), Arc::new(Silent)));
        let lanes = [name(Ability::ANY)].into();
        let options = Options { suspect_takeover_count: 1, lanes, ..Options::default() };
        Engine::open(self.store.clone(), runtime, registry, options).await.expect("it opens")
    }
}

/// The engine asks a suspect that was alone for a minute to record that others come in. A driver
/// that does not do so must not stop its worker.
#[test]
fn others_come_in_beside_a_suspect_whose_driver_commits_nothing() {
    Stage::play(|stage| async move {
        let engine = stage.with_silent(stage.sim.process(1)).await;
        stage.start("silent", "hear never").await;
        stage.pass(1).await;
        stage.sim.kill(1);
        drop(engine);
        let _engine = stage.with_silent(stage.sim.process(2)).await;
        // The session of the dead machine is over by then.
        stage.pass(20).await;
        stage.start("other", "call one").await;
        stage.pass(80).await;
        assert_eq!(stage.effects(), Vec::<String>::new(), "a driver has as long again to record it");
        stage.pass(60).await;
        assert_eq!(stage.result("other").await, "one");
        assert_eq!(stage.status("silent").await, Status::Running, "it was not interrupted");
    });
}

/// A runtime whose alarms for one time ring at once while it is hasty. So does an alarm on a clock
/// that is set back between the ring and the next look at it.
struct Hasty {
    process: Arc<SimProcess>,
    at: Timestamp,
    haste: Arc<Haste>,
}

#[derive(Default)]
struct Haste {
    is_hasty: AtomicBool,
    ring_count: AtomicUsize,
    has_rung: Notify,
}

impl Haste {
    /// More rings than this are without end.
    const RING_COUNT_MAX: usize = 10_000;
}

impl Clock for Hasty {
    fn now(&self) -> Timestamp {
        self.process.now()
    }
}

impl Runtime for Hasty {
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()> {
        if at != self.at || !self.haste.is_hasty.load(Ordering::Relaxed) {
            return self.process.sleep_until(at);
        }
        if self.haste.ring_count.fetch_add(1, Ordering::Relaxed) == Haste::RING_COUNT_MAX {
            self.haste.is_hasty.store(false, Ordering::Relaxed);
        }
        self.haste.has_rung.notify_one();
        Box::pin(std::future::ready(()))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<()> {
        self.process.sleep(duration)
    }

    fn rest(&self, duration: Duration) -> BoxFuture<()> {
        self.process.rest(duration)
    }

    fn moment(&self) -> Moment {
        self.process.moment()
    }

    fn spawn(&self, future: BoxFuture<()>) {
        self.process.spawn(future);
    }

    fn spawn_urgent(&self, name: &str, future: BoxFuture<()>) {
        self.process.spawn_urgent(name, future);
    }

    fn random(&self) -> u64 {
        self.process.random()
    }
}

/// The deadline of a suspect that waits aside rings, and the clock says that it has not come.
#[test]
fn a_deadline_that_rings_too_early_does_not_stop_the_executor() {
    Stage::play(|stage| async move {
        let engine = stage.with_silent(stage.sim.process(1)).await;
        let at = stage.sim.now().after(Duration::from_secs(3_600));
        let start = Start {
            lane: name("scripts"),
            deadline_at: Some(at),
            ..Start::of(Kind::Workflow, name("script"), Payload::from("sleep 30"))
        };
        stage.client.start(&key("suspect"), Arc::new(start)).await.expect("it is started");
        stage.pass(1).await;
        let haste = Arc::<Haste>::default();
        let runtime = Hasty { process: stage.sim.process(2), at, haste: haste.clone() };
        let _engine = stage.with_silent(Arc::new(runtime)).await;
        stage.sim.kill(1);
        drop(engine);
        // The suspect waits behind this one.
        stage.start("silent", "hear never").await;
        stage.pass(20).await;
        haste.is_hasty.store(true, Ordering::Relaxed);
        haste.has_rung.notified().await;
        haste.is_hasty.store(false, Ordering::Relaxed);
        let ring_count = haste.ring_count.load(Ordering::Relaxed);
        assert!(ring_count < Haste::RING_COUNT_MAX, "{ring_count} rings");
    });
}

/// A task that never ends.
struct Endless;

impl TaskCode for Endless {
    fn name(&self) -> &str {
        "endless"
    }

    fn call(&self, _: TaskAttempt, _: &Payload) -> Result<CodeFuture, Block> {
        Ok(Box::pin(std::future::pending()))
    }
}

/// The deadline of a task rings, and the clock is set back before the task looks at it.
#[test]
fn a_deadline_of_a_task_that_rang_too_early_rings_again() {
    Stage::play(|stage| async move {
        let at = stage.sim.now().after(Duration::from_secs(3_600));
        let haste = Arc::<Haste>::default();
        haste.is_hasty.store(true, Ordering::Relaxed);
        let runtime = Hasty { process: stage.sim.process(1), at, haste: haste.clone() };
        let mut registry = Registry::default();
        registry.add_task(name("endless"), Arc::new(Endless));
        let options = Options { lanes: [name("scripts")].into(), ..Options::default() };
        let opened = Engine::open(stage.store.clone(), Arc::new(runtime), registry, options).await;
        let _engine = opened.expect("it opens");
        let start = Start {
            lane: name("scripts"),
            deadline_at: Some(at),
            ..Start::of(Kind::Task, name("endless"), Payload::from("null"))
        };
        stage.client.start(&key("task"), Arc::new(start)).await.expect("it is started");
        haste.has_rung.notified().await;
        haste.is_hasty.store(false, Ordering::Relaxed);
        stage.pass(3_599).await;
        assert_eq!(stage.status("task").await, Status::Running);
        stage.pass(30).await;
        assert_eq!(stage.status("task").await, Status::Failed);
    });
}
