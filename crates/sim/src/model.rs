//! The oracle: a model of what a journal means to a program, which shares no code with the engine.
//!
//! It runs the program on a host that knows only the rules. An operation is identified by its kind,
//! its name and the number of the use of that name. Between two polls the host delivers one
//! recorded outcome, the earliest whose operation is open. Recorded outcomes go before a
//! cancellation or a passed deadline, which then ends everything that is not shielded. The result
//! of the program must equal the recorded end.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use abide_core::{Entry, Event, FailureKind, Op, OpKind, Remedied, Remedy, Start, StepRecord};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::history::{Draw, Draws, Spot};
use crate::interpret::{self, Host, Outcome, Started, Trouble};
use crate::program::{Child, Code, Program, StartWith, Step, Transact, Work};
use asked::{Due, wrong_child, wrong_due};
use operation::Operation;
use possible::{contradicts, foreign, is_readable, is_refuted, possible};
use renamed::Told;
pub(crate) use renamed::is_made_anew;

mod asked;
mod moments;
mod operation;
mod possible;
mod renamed;
mod unused;

pub(crate) use asked::wrong_start;
pub(crate) use moments::{Moment, moments};
pub(crate) use possible::{is_text_in, number, possible_end, taken_signal};

/// Facts that the auditor knows and that no journal contains.
pub(crate) trait Knowledge: Sync {
    /// Returns the number that a program got when it asked for chance.
    fn drawn(&self, draw: &Draw) -> Option<u64>;
    /// Returns how often the closure at a place has run.
    fn run_count(&self, spot: &Spot) -> u64;
    /// Returns how an execution was started.
    fn start_of(&self, id: &str) -> Option<&Start>;
    /// Returns how long an entry may be recorded after the clock was read for a time in it.
    fn slack(&self) -> Duration;
}

/// One run of a program, as it is recorded.
pub(crate) struct Life<'a> {
    pub(crate) id: &'a str,
    pub(crate) run: u32,
    /// The program, as this edition runs it.
    pub(crate) program: &'a Program,
    pub(crate) edition: usize,
    pub(crate) journal: &'a [Entry],
    /// The edition that wrote each entry. The first edition wrote the entries without one.
    pub(crate) authors: &'a [usize],
}

impl Life<'_> {
    /// Whether this edition wrote an entry. An entry of another edition need not be possible here.
    fn is_own(&self, entry: &Entry) -> bool {
        // Any edition that reads an operator's decision records it, not only the one that asked for
        // it.
        if let Event::Unblocked { .. } = entry.event {
            return self.authors.iter().skip(1).all(|author| *author == self.edition);
        }
        let index = usize::try_from(entry.seq).unwrap_or_default().saturating_sub(1);
        self.authors.get(index).copied().unwrap_or_default() == self.edition
    }

    /// Returns the entries of this edition that set a timer.
    fn timers_set(&self) -> BTreeMap<Id, Entry> {
        let is_set = |entry: &&Entry| matches!(entry.event, Event::TimerSet { .. }) && self.is_own(entry);
        let set = self.journal.iter().filter(is_set);
        set.filter_map(|entry| Some((id_of(entry.event.op()?), entry.clone()))).collect()
    }
}

/// The end of a run, as the model sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Completed(u64),
    Failed(u64),
    Continued(Box<Program>),
    /// The run waits for these operations.
    Open(Vec<String>),
    /// The journal of the run does not fit this edition.
    Stuck(String),
}

/// The outcome of a replay.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub(crate) verdict: Verdict,
    /// The recorded operations whose outcome reached no code, and whether the record must list each
    /// of them as unused.
    pub(crate) unused: BTreeMap<String, bool>,
}

impl Replayed {
    fn stuck(why: String) -> Self {
        Self { verdict: Verdict::Stuck(why), unused: BTreeMap::new() }
    }
}

/// Runs a program from its journal. An `Err` says which part of the journal is not possible.
pub(crate) fn replay(life: &Life<'_>, knowledge: &dyn Knowledge) -> Result<Replayed, String> {
    play(&Model::new(life, knowledge))
}

/// Whether a program reaches a step of this name and number, from its journal.
pub(crate) fn reaches(life: &Life<'_>, knowledge: &dyn Knowledge, (name, nth): (&str, u32)) -> bool {
    let model = Model::new(life, knowledge);
    // The replay of the whole journal reports everything that is not possible.
    let _ = play(&model);
    model.lock().ever.contains(&(word_of(OpKind::Step), name.to_owned(), nth))
}

fn play(model: &Model<'_>) -> Result<Replayed, String> {
    let life = model.life;
    let mut running = Box::pin(interpret::run(model, life.program));
    let mut pending: Vec<&Entry> = life.journal.iter().filter(|entry| is_delivery(&entry.event)).collect();
    let interrupts = life.journal.iter().filter(|entry| interrupt_of(&entry.event).is_some());
    let mut interrupts = interrupts.peekable();
    let mut skipped = BTreeSet::new();
    loop {
        model.lock().left = pending.iter().map(|entry| entry.seq).collect();
        let polled = poll(running.as_mut());
        if let Some(wrong) = model.lock().wrong.take() {
            return Err(wrong);
        }
        if let Some(name) = &model.lock().clash {
            return Ok(Replayed::stuck(format!("{name:?} is a step and a transaction")));
        }
        if let Poll::Ready(result) = polled {
            let verdict = match result {
                Ok(value) => Verdict::Completed(value),
                Err(error) => Verdict::Failed(error.number()),
            };
            return model.replayed(verdict, &pending);
        }
        let barrier = interrupts.peek().map_or(u64::MAX, |entry| entry.seq);
        let next = pending.iter().position(|entry| entry.seq < barrier && model.is_open(entry));
        if let Some(index) = next {
            let known_since = model.lock().known_since(pending[index]);
            let early = pending[..index].iter().map(|entry| entry.seq);
            skipped.extend(early.filter(|seq| *seq < known_since));
            let entry = pending.remove(index);
            if skipped.contains(&entry.seq) && life.is_own(entry) {
                return Err(format!("entry {} was recorded before its operation was asked for", entry.seq));
            }
            if life.is_own(entry) && model.lock().next.is_some() && is_taken(&entry.event) {
                return Err(format!("entry {} was recorded though the next run was wanted", entry.seq));
            }
            model.tell_moment(entry);
            if let Some(why) = model.deliver(entry)? {
                return Ok(Replayed::stuck(why));
            }
        } else if let Some(entry) = interrupts.next() {
            model.interrupt(entry);
        } else {
            let verdict = model.rest(&pending);
            return model.replayed(verdict, &pending);
        }
    }
}

/// Polls until nothing wakes the future any longer.
fn poll<T>(mut future: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
    let flag = Arc::new(Flag(AtomicBool::new(true)));
    let waker = Waker::from(flag.clone());
    while flag.0.swap(false, Ordering::SeqCst) {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Poll::Ready(value);
        }
    }
    Poll::Pending
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn is_delivery(event: &Event) -> bool {
    matches!(
        event,
        Event::StepRecorded(StepRecord { op: Op { kind: OpKind::Step | OpKind::Transaction, .. }, .. })
            | Event::TimerFired { .. }
            | Event::SignalReceived { .. }
            | Event::ChildStarted { .. }
            | Event::ChildFinished { .. }
            | Event::Unblocked { remedied: Some(Remedied { remedy: Remedy::Edit(_), .. }), .. }
    )
}

/// Whether an event takes something for the code, or begins something. The result of a closure that
/// had ended is recorded in any case.
fn is_taken(event: &Event) -> bool {
    matches!(event, Event::SignalReceived { .. } | Event::ChildFinished { .. } | Event::ChildStarted { .. })
}

/// Returns the failure that code sees when it has to wind down.
fn interrupt_of(event: &Event) -> Option<FailureKind> {
    match event {
        Event::CancelRequested { .. } => Some(FailureKind::Cancelled),
        Event::DeadlinePassed { .. } => Some(FailureKind::Deadline),
        _ => None,
    }
}

fn micros_of(entry: Option<&Entry>) -> u64 {
    entry.map_or(0, |entry| u64::try_from(entry.at.as_micros()).unwrap_or_default())
}

/// An operation, as a journal names it.
pub(crate) type Id = (&'static str, String, u32);

pub(crate) fn id_of(op: &Op) -> Id {
    let key = op.key.as_ref().map(|key| format!("[{key}]")).unwrap_or_default();
    (word_of(op.kind), format!("{}{key}", op.name), op.nth)
}

pub(crate) fn word_of(kind: OpKind) -> &'static str {
    match kind {
        OpKind::Step => "step",
        OpKind::Transaction => "transaction",
        OpKind::Timer => "timer",
        OpKind::Signal => "signal",
        OpKind::Child => "child",
        OpKind::ChildResult => "result",
        _ => "other",
    }
}

/// The outcomes that an operation may have.
#[derive(Clone, Debug)]
enum Expected {
    Closure { spot: Spot, work: Work, has_timeout: bool, input: Option<u32>, reads: Reads },
    Transaction { fails: bool },
    Timer(Due),
    Signal { timeout_ms: Option<u64>, is_text: bool },
    Child { under: Under, input: Option<abide_core::ContentHash>, options: StartWith },
    Result,
}

/// The types of recorded results that a step can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Number,
    Text,
    /// The step reads its own type and converts the other one.
    Both,
}

/// The id of a child.
#[derive(Clone, Debug)]
enum Under {
    /// The code chooses the id.
    Given(String),
    /// The id follows from the operation and from the parent, whose id and run this is.
    Own(String),
}

/// Why an operation failed, in the model.
#[derive(Clone, Debug)]
pub(crate) struct Failed(FailureKind);

impl Trouble for Failed {
    fn is_cancelled(&self) -> bool {
        self.0 == FailureKind::Cancelled
    }

    fn number(&self) -> u64 {
        self.0 as u64
    }
}

#[derive(Default)]
struct ModelState {
    uses: BTreeMap<(&'static str, String), u32>,
    open: BTreeMap<Id, OpenOp>,
    ever: BTreeSet<Id>,
    opened_count: u64,
    now_micros: u64,
    /// Why the code has to wind down, if it has to.
    interrupt: Option<FailureKind>,
    shield_depth: u32,
    /// A name that is used for two kinds of steps.
    clash: Option<String>,
    next: Option<Program>,
    /// The recorded moments, if the caller asked for them.
    moments: Option<Vec<Moment>>,
    told: Vec<Told>,
    /// All names of an operation that was renamed.
    names: BTreeMap<Id, Vec<Id>>,
    /// Old names, each with its kind and the new name.
    olds: Vec<(&'static str, String, String)>,
    /// The entries that no operation has asked for so far, and the last one that was delivered.
    left: BTreeSet<u64>,
    passed: u64,
    /// The own entries that set a timer, and how late they may be.
    set: BTreeMap<Id, Entry>,
    slack: Duration,
    /// The part of the journal that is not possible.
    wrong: Option<String>,
}

struct OpenOp {
    /// The position of the operation among all operations of the run.
    number: u64,
    is_shielded: bool,
    expected: Expected,
    outcome: Option<Result<u64, Failed>>,
    waker: Option<Waker>,
}

/// The host of the model.
struct Model<'a> {
    life: &'a Life<'a>,
    knowledge: &'a dyn Knowledge,
    draws: Draws,
    state: Arc<Mutex<ModelState>>,
}

impl<'a> Model<'a> {
    fn new(life: &'a Life<'a>, knowledge: &'a dyn Knowledge) -> Self {
        let model = Self { life, knowledge, draws: Draws::default(), state: Arc::default() };
        model.lock().now_micros = micros_of(life.journal.first());
        model.lock().told = renamed::told(life);
        model.lock().set = life.timers_set();
        model.lock().slack = knowledge.slack();
        model
    }
}

impl Model<'_> {
    fn lock(&self) -> MutexGuard<'_, ModelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spot(&self, node: u32) -> Spot {
        Spot { id: self.life.id.to_owned(), run: self.life.run, node, edition: self.life.edition }
    }

    fn is_open(&self, entry: &Entry) -> bool {
        let state = self.lock();
        let slot = entry.event.op().and_then(|op| state.open.get(&id_of(op)));
        slot.is_some_and(|slot| slot.outcome.is_none())
    }

    /// Returns the verdict for code that has come to the end of its journal.
    fn rest(&self, pending: &[&Entry]) -> Verdict {
        let state = self.lock();
        if let Some(next) = &state.next {
            return Verdict::Continued(Box::new(next.clone()));
        }
        let recorded: BTreeSet<Id> = pending.iter().filter_map(|entry| entry.event.op()).map(id_of).collect();
        let is_recorded = |(kind, name, nth): &Id| match *kind {
            "step" => recorded.contains(&("transaction", name.clone(), *nth)),
            "transaction" => recorded.contains(&("step", name.clone(), *nth)),
            _ => false,
        };
        let is_of_other_kind = |id: &&Id| {
            is_recorded(id) || state.names.get(*id).is_some_and(|names| names.iter().any(is_recorded))
        };
        match state.open.keys().find(is_of_other_kind) {
            Some(op) => Verdict::Stuck(format!("{op:?} is recorded as another kind")),
            None => Verdict::Open(state.open.keys().map(|op| format!("{op:?}")).collect()),
        }
    }

    fn replayed(&self, verdict: Verdict, pending: &[&Entry]) -> Result<Replayed, String> {
        self.check_leftovers(pending)?;
        let state = self.lock();
        let is_asked_for =
            |id: &Id| state.ever.contains(id) || state.names.values().any(|names| names.contains(id));
        Ok(Replayed { verdict, unused: unused::unused(self.life, pending, is_asked_for) })
    }

    /// Delivers an entry to the operation that waits for it, or returns why it does not fit.
    fn deliver(&self, entry: &Entry) -> Result<Option<String>, String> {
        let mut state = self.lock();
        state.now_micros = micros_of(Some(entry));
        state.passed = state.passed.max(entry.seq);
        let Some(slot) = entry.event.op().and_then(|op| state.open.get_mut(&id_of(op))) else {
            return Ok(None);
        };
        if !is_made_anew(entry, self.life.journal) && contradicts(&slot.expected, entry, self.life.journal) {
            return Ok(Some(format!("entry {} has another input", entry.seq)));
        }
        if is_refuted(entry, self.life.journal) {
            return Ok(None);
        }
        if !is_readable(&slot.expected, &entry.event) {
            // Code sets a signal aside that it cannot read, and does not receive it.
            if self.life.is_own(entry) && matches!(entry.event, Event::SignalReceived { .. }) {
                return Err(format!("entry {} received a signal of another type", entry.seq));
            }
            return Ok(Some(format!("entry {} has a result of another type", entry.seq)));
        }
        let outcome = match self.life.is_own(entry) {
            true => possible(&slot.expected, entry, self.knowledge),
            false => foreign(&slot.expected, entry),
        };
        if let Some(wrong) = wrong_child(&slot.expected, entry, self.life, self.knowledge)
            && self.life.is_own(entry)
        {
            return Err(wrong);
        }
        let outcome = outcome
            .map_err(|why| format!("entry {} is not possible: {why}: {:?}", entry.seq, entry.event))?;
        // A result that could not be recorded reaches no code before an operator has decided about
        // it.
        let Some(outcome) = outcome else { return Ok(None) };
        slot.outcome = Some(outcome);
        let waker = slot.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Ok(None)
    }

    /// Ends every open operation, and every operation from now on, with an error. Shielded
    /// operations are exempt.
    fn interrupt(&self, entry: &Entry) {
        let wakers: Vec<_> = {
            let mut state = self.lock();
            state.now_micros = micros_of(Some(entry));
            state.passed = state.passed.max(entry.seq);
            state.interrupt = interrupt_of(&entry.event);
            state.next = None;
            let outcome = state.interrupt.map(|kind| Err(Failed(kind)));
            let open = state.open.values_mut().filter(|slot| slot.outcome.is_none() && !slot.is_shielded);
            let mut open: Vec<_> = open.collect();
            open.sort_by_key(|slot| slot.number);
            let interrupted = open.into_iter().map(|slot| {
                slot.outcome.clone_from(&outcome);
                slot.waker.take()
            });
            interrupted.flatten().collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Checks that code asked for and gave up every recorded outcome that was not delivered.
    fn check_leftovers(&self, pending: &[&Entry]) -> Result<(), String> {
        let state = self.lock();
        for entry in pending {
            let id = entry.event.op().map(id_of);
            if self.life.is_own(entry) && !id.as_ref().is_some_and(|id| state.ever.contains(id)) {
                return Err(format!(
                    "entry {} belongs to nothing in the program: {:?}",
                    entry.seq, entry.event
                ));
            }
        }
        Ok(())
    }

    /// Creates an operation that opens at its first poll.
    fn operation(&self, kind: &'static str, name: &str, expected: Expected) -> Operation {
        Operation {
            state: self.state.clone(),
            kind,
            name: name.to_owned(),
            expected: Some(expected),
            id: None,
        }
    }

    /// Returns the id under which a child is started.
    fn child_id(&self, child: &Child) -> Under {
        let Life { id, run, .. } = self.life;
        child.id(id, *run).map_or_else(|| Under::Own(format!("{id}/{run}")), Under::Given)
    }

    fn child_result(&self, nth: u32, name: &str) -> Operation {
        let mut result = self.operation("result", name, Expected::Result);
        result.open_as(("result", name.to_owned(), nth));
        result
    }
}

fn code_name(child: &Child) -> String {
    let name = match child.code {
        Code::Workflow(_) => "program",
        Code::Task(_) => "job",
    };
    child.key.map_or_else(|| name.to_owned(), |key| format!("{name}[{key}]"))
}

impl Host for Model<'_> {
    type Error = Failed;

    fn step<'a>(&'a self, step: &'a Step, _borrowed: &'a u64) -> Outcome<'a, Self> {
        let (spot, work, has_timeout) = (self.spot(step.node), step.work, step.timeout_ms.is_some());
        let input = step.has_input.then_some(step.node);
        let reads = match (step.upgrades, step.is_text) {
            (true, _) => Reads::Both,
            (false, true) => Reads::Text,
            (false, false) => Reads::Number,
        };
        let expected = Expected::Closure { spot, work, has_timeout, input, reads };
        self.operation("step", &step.name, expected).boxed()
    }

    fn blocking<'a>(&'a self, step: &'a Step) -> Outcome<'a, Self> {
        self.step(step, &0)
    }

    fn transact<'a>(&'a self, transact: &'a Transact) -> Outcome<'a, Self> {
        let expected = Expected::Transaction { fails: transact.fails };
        self.operation("transaction", &transact.name, expected).boxed()
    }

    fn sleep<'a>(&'a self, ms: u64, name: Option<&'a str>) -> Outcome<'a, Self> {
        self.operation("timer", name.unwrap_or("(sleep)"), Expected::Timer(Due::After(ms))).boxed()
    }

    fn sleep_until(&self, micros: u64) -> Outcome<'_, Self> {
        self.operation("timer", "(sleep)", Expected::Timer(Due::At(micros))).boxed()
    }

    fn receive<'a>(&'a self, name: &'a str, timeout_ms: Option<u64>, is_text: bool) -> Outcome<'a, Self> {
        let expected = Expected::Signal { timeout_ms, is_text };
        self.operation("signal", name, expected).boxed()
    }

    fn run<'a>(&'a self, child: &'a Child) -> Outcome<'a, Self> {
        Box::pin(async move {
            let awaited = self.start(child).await?;
            awaited().await
        })
    }

    fn start<'a>(&'a self, child: &'a Child) -> BoxFuture<'a, Result<Started<'a, Self>, Failed>> {
        Box::pin(async move {
            let name = code_name(child);
            let input = (!child.is_any).then(|| possible::input_hash(child));
            let expected = Expected::Child { under: self.child_id(child), input, options: child.options };
            let mut start = self.operation("child", &name, expected);
            (&mut start).await?;
            let nth = start.nth();
            let awaited: Started<'a, Self> = Box::new(move || self.child_result(nth, &name).boxed());
            Ok(awaited)
        })
    }

    fn continue_as_new(&self, next: Program) -> Outcome<'_, Self> {
        Box::pin(std::future::poll_fn(move |_| {
            let mut state = self.lock();
            if let Some(kind) = state.interrupt {
                return Poll::Ready(Err(Failed(kind)));
            }
            state.next = Some(next.clone());
            Poll::Pending
        }))
    }

    fn shield<'a>(&'a self, mut cleanup: Outcome<'a, Self>) -> Outcome<'a, Self> {
        Box::pin(std::future::poll_fn(move |cx| {
            self.lock().shield_depth += 1;
            let polled = cleanup.as_mut().poll(cx);
            self.lock().shield_depth -= 1;
            polled
        }))
    }

    fn now_micros(&self) -> u64 {
        self.lock().now_micros
    }

    fn random(&self) -> u64 {
        let draw = self.draws.random(self.life.id, self.life.run);
        self.knowledge.drawn(&draw).unwrap_or_default()
    }

    fn uuid(&self) -> u64 {
        let draw = self.draws.uuid(self.life.id, self.life.run);
        self.knowledge.drawn(&draw).unwrap_or_default()
    }

    fn patched(&self, change: &str) -> bool {
        self.takes(change)
    }

    fn failure(&self, _node: u32) -> Failed {
        Failed(FailureKind::Error)
    }
}
