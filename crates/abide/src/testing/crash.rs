//! Crashes at every position of a journal.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Body, By, Entry, Event, ExecutionId, Message, MessageId, Namespace, Start, Timestamp,
};
use abide_engine::sim::{Sim, Still};
use abide_engine::{Blocks, Client, Runtime};
use abide_store::{Commit, ExecutionKey, Retire, Store, Submit, Workers, export};

use super::compare::{canonical, describe, hidden_difference, timeless};
use super::tap::{Passage, Tap};
use super::test::{Test, opened, or_panic, stands_still};
use crate::ClientError;
use crate::canonical::Input;
use crate::code::{CodeNames, Workflow};
use crate::handle::result_of;
use crate::open::store_in_memory;
use crate::probe::Probe;
use crate::start::StartOptions;

/// Runs a workflow once per position of its journal, crashes it there, resumes it, and checks that
/// its result and every recorded entry are the same as without a crash. [`Test::crash_everywhere`]
/// has options.
///
/// # Panics
/// If something differs. The message names the position and shows both sides.
#[track_caller]
pub fn crash_everywhere<W: Workflow>(workflow: W, input: W::Input) -> Survived<W::Output> {
    Test::new().crash_everywhere(workflow, input)
}

/// The result of crashing a workflow at every position.
#[derive(Debug)]
pub struct Survived<T> {
    /// The result of the workflow, the same in every run.
    pub result: Result<T, ClientError>,
    /// The number of entries in its journal: it was crashed before and after each of them.
    pub position_count: u64,
}

impl Test {
    /// Runs a workflow once per position of its journal, crashes it there, resumes it, and checks
    /// that its result and every recorded entry are the same as without a crash. Values are equal
    /// as inputs are: the order of a map does not count. The time of an entry is not compared, nor
    /// is the order of events after the crash, because operations that are open together may end in
    /// any order.
    ///
    /// A crash takes no virtual time, so the code finds the same [`now`](crate::Ctx::now) after
    /// each operation. A step that waits for the outside world takes real time, which is never the
    /// same. [Mock](Test::mock_step) it if the code records how late it is.
    ///
    /// A step whose result was not recorded runs again after a crash. So it must return the same
    /// each time, or be [mocked](Test::mock_step); all runs share the state.
    /// [`signal`](Test::signal) sends the signals that the workflow waits for.
    ///
    /// # Panics
    /// If something differs, or a run stands still. The message names the position and shows both
    /// sides.
    #[track_caller]
    pub fn crash_everywhere<W: Workflow>(self, _workflow: W, input: W::Input) -> Survived<W::Output> {
        or_panic(self.survived::<W>(&input))
    }

    fn survived<W: Workflow>(&self, input: &W::Input) -> Result<Survived<W::Output>, String> {
        let input = Input::of(input).map_err(|error| format!("the input does not serialize: {error}"))?;
        let start = |now| {
            let names = CodeNames::of::<W>();
            let start = names.and_then(|names| StartOptions::default().start(names, input.clone(), || now));
            start.map(Arc::new).map_err(|error| error.to_string())
        };
        let undisturbed = Life::live(self, &start, None)?.expect("without a crash it ends");
        let entries: Vec<_> = undisturbed.runs.iter().flatten().collect();
        for (entry, position) in entries.iter().zip(1..).skip(1) {
            for crash in [Crash::Before(position), Crash::After(position)] {
                if let Some(life) = Life::live(self, &start, Some(crash))? {
                    let place = format!("{crash} ({})", describe(&entry.event));
                    undisturbed.compare(&life, &place)?;
                }
            }
        }
        let position_count = entries.len() as u64;
        Ok(Survived { result: result_of(&root().id, undisturbed.end), position_count })
    }
}

fn root() -> Address {
    let id = ExecutionId::new("crash-everywhere").expect("a literal id");
    Address { namespace: Namespace::default(), id }
}

/// The entry at which a process dies, by its position over all runs.
#[derive(Clone, Copy)]
enum Crash {
    Before(u64),
    After(u64),
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before(position) => write!(f, "a crash before position {position}"),
            Self::After(position) => write!(f, "a crash after position {position}"),
        }
    }
}

/// Returns the start of the workflow, at a moment.
type MakeStart<'a> = dyn Fn(Timestamp) -> Result<Arc<Start>, String> + 'a;

/// One life of the workflow, to its end.
struct Life {
    end: Event,
    runs: Vec<Vec<Entry>>,
}

impl Life {
    /// Returns `None` if the workflow ended before the crash.
    fn live(test: &Test, start: &MakeStart<'_>, crash: Option<Crash>) -> Result<Option<Self>, String> {
        test.inside(|sim| {
            let store = store_in_memory(Arc::new(sim.clone()));
            let probe = test.probe(false);
            let key = sim.block_on(begin(sim, &store, start, test))?;
            let (world, mut fate) = (sim.clone(), dying(key, crash));
            let tap = Tap::new(store.clone(), move |commit| {
                let passage = fate(commit);
                if passage != Passage::Through {
                    // The next process begins at this moment. The clock would otherwise go on to
                    // the timers of other executions, and the workflow would resume that late.
                    world.stop();
                }
                passage
            });
            let stands_still = || stands_still(sim, &*store, [&root().namespace]);
            let first = Self::end(test, &probe, (sim, 1), tap.clone());
            let end = match first {
                Ok(Err(reason)) => return Err(reason),
                Ok(Ok(_)) if crash.is_some() => return Ok(None),
                Ok(Ok(end)) => end,
                Err(Still) if tap.is_dead() => {
                    sim.kill(1);
                    sim.block_on(bury(&*store));
                    let crash = crash.expect("it dies by a crash only");
                    let second = Self::end(test, &probe, (sim, 2), store.clone());
                    second.map_err(|Still| format!("after {crash}: {}", stands_still()))??
                }
                Err(Still) => return Err(stands_still()),
            };
            if let Some(unused) = probe.unused().filter(|_| crash.is_none()) {
                return Err(unused);
            }
            let whole = sim.block_on(export(&*store, &root())).expect("a store in memory can be read");
            let runs = whole.expect("it was started").runs;
            let decoded = |record: &abide_store::Record| {
                let entry = record.entry().expect("it was just written");
                Entry { event: canonical(entry.event), ..entry }
            };
            let runs = runs.iter().map(|run| run.iter().map(decoded).collect()).collect();
            Ok(Some(Self { end, runs }))
        })
    }

    /// Runs the workflow in a process until it has ended, or the process is dead.
    fn end(
        test: &Test,
        probe: &Arc<Probe>,
        (sim, group): (&Sim, u32),
        store: Arc<dyn Store>,
    ) -> Result<Result<Event, String>, Still> {
        let builder = test.builder(probe).simulated(sim.process(group), Some(store)).without_recurrence();
        let mut body = pin!(async {
            let abide = opened(builder).await?;
            let ended = abide.client_part().ended(&root().id, Blocks::End).await;
            ended.map_err(|error| ClientError::of(root().id.as_str(), error).to_string())
        });
        sim.try_block_on(body.as_mut())
    }

    /// Compares a life with a crash to this one.
    fn compare(&self, other: &Self, place: &str) -> Result<(), String> {
        let mut sides = Vec::new();
        for index in 0..self.runs.len().max(other.runs.len()) {
            let of = |life: &Self| life.runs.get(index).cloned().unwrap_or_default();
            let (undisturbed, crashed) = (of(self), of(other));
            let only_here = missing(&undisturbed, &crashed);
            let only_there = missing(&crashed, &undisturbed);
            let told = |entry: &&Entry| format!("entry {}, {}", entry.seq, describe(&entry.event));
            sides.extend(only_here.iter().map(|entry| format!("  without the crash: {}", told(entry))));
            sides.extend(only_there.iter().map(|entry| format!("  with the crash:    {}", told(entry))));
            sides.extend(hidden(&only_here, &only_there));
        }
        match sides.is_empty() || planted(Bug::CrashUncompared) {
            true => Ok(()),
            false => Err(format!("{place} changes what is recorded:\n{}", sides.join("\n"))),
        }
    }
}

/// Starts the workflow and sends its signals.
async fn begin(
    sim: &Sim,
    store: &Arc<dyn Store>,
    start: &MakeStart<'_>,
    test: &Test,
) -> Result<ExecutionKey, String> {
    let process: Arc<dyn Runtime> = sim.process(3);
    let start = Body::Start(start(process.now())?);
    let signals = test.signals.iter().cloned();
    let bodies = std::iter::once(start).chain(signals.map(|(name, payload)| Body::Signal { name, payload }));
    // Each message has the same id in every life, because the id is recorded.
    let message =
        |(number, body)| Message::new(MessageId::new(format!("{number}")), root(), By::client(), body);
    for message in bodies.enumerate().map(message) {
        let submit = Submit { messages: vec![message], born_to: None, alone: true, stretch: None };
        store.submit(submit).await.map_err(|error| error.to_string())?;
    }
    let client = Client::alone(store.clone(), process, root().namespace);
    Ok(client.read(&root().id, 0, 0).await.expect("it was just started").key)
}

/// Ends the sessions of dead processes, so that no virtual time passes until they expire.
async fn bury(store: &dyn Store) {
    let workers = Workers { namespace: root().namespace, after: None, limit: 10 };
    for worker in store.workers(workers).await.expect("a store in memory can be read") {
        let retire = Retire { session: worker.session, reason: "it crashed".to_owned() };
        store.retire(retire).await.expect("a session can be ended");
    }
}

/// Lets the process die at one of the entries that it records.
fn dying(key: ExecutionKey, crash: Option<Crash>) -> impl FnMut(&Commit) -> Passage + Send + 'static {
    // The start is recorded by its submission, before any commit.
    let mut count = 1;
    move |commit| {
        if commit.key != key {
            return Passage::Through;
        }
        let changes = &commit.changes;
        count += changes.records.len() as u64
            + u64::from(changes.next.is_some())
            + u64::from(commit.transaction.is_some());
        match crash {
            _ if planted(Bug::CrashesNowhere) => Passage::Through,
            Some(Crash::Before(position)) if position <= count => Passage::Lost,
            Some(Crash::After(position)) if position <= count => Passage::Unheard,
            _ => Passage::Through,
        }
    }
}

/// Returns the entries that only `here` has.
fn missing<'a>(here: &'a [Entry], there: &'a [Entry]) -> Vec<&'a Entry> {
    let mut counts = BTreeMap::<Vec<u8>, usize>::new();
    for entry in there {
        *counts.entry(timeless(&entry.event)).or_default() += 1;
    }
    let mut is_missing = |entry: &&Entry| {
        let count = counts.entry(timeless(&entry.event)).or_default();
        let is_missing = *count == 0;
        *count = count.saturating_sub(1);
        is_missing
    };
    here.iter().filter(|entry| is_missing(entry)).collect()
}

/// Describes how the entries of one operation differ, where that cannot be seen from both sides.
fn hidden<'a>(undisturbed: &'a [&Entry], crashed: &'a [&Entry]) -> impl Iterator<Item = String> + 'a {
    undisturbed.iter().filter_map(|entry| {
        let identity = |event: &Event| (event.op().cloned(), event.word());
        let other = crashed.iter().find(|other| identity(&other.event) == identity(&entry.event))?;
        let difference = hidden_difference(&entry.event, &other.event)?;
        Some(format!("  entry {}: {difference}", entry.seq))
    })
}
