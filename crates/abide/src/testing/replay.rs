//! Replays of new code on the recorded history of an execution.

use std::collections::HashSet;
use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use abide_core::planted::{Bug, planted};
use abide_core::{Command, Entry, Epoch, Event, Execution, Kind, Op, OpKind, Phase, Start, Version};
use abide_engine::sim::Sim;
use abide_store::{Clock, Commit, Import, Record};

use super::compare::{canonical, describe, hidden_difference, is_same_end};
use super::history::History;
use super::tap::{Passage, Tap};
use super::test::{Test, opened, or_panic};
use crate::open::store_in_memory;
use crate::probe::Asked;

/// Replays the currently registered workflow on the recorded history of an execution, without
/// running any of its closures, children or tasks, and reports whether it fits. `history` is the
/// text that `abide export ID` writes, or the path of a file with that text. [`Test::replay`] has
/// options.
///
/// # Panics
/// If `history` cannot be read, or names a workflow that is not registered.
#[track_caller]
pub fn replay(history: impl AsRef<str>) -> Replay {
    Test::new().replay(history)
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// The reason why the code is blocked.
    pub blocked: Option<String>,
    /// Recorded operations that the code did not ask for before it reached something new, or its
    /// end.
    pub unused: Vec<String>,
    /// The difference between the end of the code and the recorded end. An end that the recorded
    /// code did not make (a terminate, a deadline that it could not see) is not compared. Code that
    /// fails at once where the recorded code surely went on differs too.
    pub differs: Option<String>,
    /// The first new action of the code after the recorded history. Its end counts as one unless
    /// the recorded code made an end too, which is compared.
    pub goes_on: Option<String>,
}

impl Replay {
    /// Whether the code continues from the recorded history as if it had recorded it itself.
    pub fn fits(&self) -> bool {
        self.blocked.is_none() && self.unused.is_empty() && self.differs.is_none()
    }

    /// Panics with the differences unless the code fits.
    #[track_caller]
    pub fn assert_fits(&self) {
        assert!(self.fits(), "the code does not fit what was recorded: {self}");
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.blocked.as_ref().map(|reason| format!("it is blocked: {reason}")));
        if !self.unused.is_empty() {
            parts.push(format!("it does not ask for {}", self.unused.join(", ")));
        }
        parts.extend(self.differs.clone());
        if parts.is_empty() {
            parts.push("it fits".to_owned());
        }
        parts.extend(self.goes_on.as_ref().map(|next| format!("it goes on with {next}")));
        f.write_str(&parts.join("; "))
    }
}

impl Test {
    /// Replays the currently registered workflow on the recorded history of an execution, as
    /// [`replay`] does. Mocked steps return their results, so the code continues through steps that
    /// are new.
    ///
    /// # Panics
    /// If `history` cannot be read, or names a workflow that is not registered.
    #[track_caller]
    pub fn replay(self, history: impl AsRef<str>) -> Replay {
        or_panic(self.replayed(history.as_ref()))
    }

    fn replayed(&self, text: &str) -> Result<Replay, String> {
        let read;
        let text = if text.trim_start().starts_with('{') {
            text
        } else if text.trim().is_empty() {
            return Err(
                "the history is empty: give the text of `abide export ID`, or the path of a file with it"
                    .to_owned(),
            );
        } else {
            read = std::fs::read_to_string(text).map_err(|error| format!("{text}: {error}"))?;
            &read
        };
        let history = History::parse(text).map_err(|error| error.to_string())?;
        let mut last = Replay::default();
        for count in 1..=history.runs.len() {
            last = self.replay_run(&history, count)?;
            if !last.fits() {
                break;
            }
        }
        Ok(last)
    }

    /// Replays the run with number `count`.
    fn replay_run(&self, history: &History, count: usize) -> Result<Replay, String> {
        let part = Part::of(history, count);
        let id = history.address.id.as_str();
        let start = part.start();
        if start.kind != Kind::Workflow {
            return Err(format!("{id:?} is a task, which has no journal to replay"));
        }
        let probe = self.probe(true);
        let news = Arc::new(Mutex::new(Vec::new()));
        self.inside(|sim| {
            part.set_clock(sim);
            let store = store_in_memory(Arc::new(sim.clone()));
            let imported = sim.block_on(store.import(part.import(history, count)));
            imported.map_err(|error| format!("the history cannot be taken: {error}"))?;
            let tap = Tap::new(store, until_news(&news));
            let (seen, world) = (tap.clone(), sim.clone());
            sim.observe(move |group| {
                if group == 1 && seen.is_dead() {
                    world.kill(1);
                }
            });
            let builder = self.builder(&probe).only(start.name.as_str());
            let builder = builder.namespace(history.address.namespace.as_str()).lanes([start.lane.as_str()]);
            let builder = builder.capabilities(start.requires.iter().map(abide_core::Name::as_str));
            let builder = builder.simulated(sim.process(1), Some(tap)).without_recurrence();
            let mut body = pin!(async {
                let abide = match opened(builder).await {
                    Ok(abide) => abide,
                    Err(reason) => return reason,
                };
                if !abide.has(start.kind, &start.name) {
                    return format!("no workflow {:?} is registered", start.name);
                }
                pending().await
            });
            // The code runs until it records something new, or nothing can happen any more.
            sim.try_block_on(body.as_mut()).map_or(Ok(()), Err)
        })?;
        let news = std::mem::take(&mut *news.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(part.judge(&probe.opened_by(id), &news))
    }
}

/// Stops at the first commit that records something new besides the results of mocked steps, and
/// keeps its entries.
fn until_news(news: &Arc<Mutex<Vec<Entry>>>) -> impl FnMut(&Commit) -> Passage + Send + 'static {
    let news = news.clone();
    move |commit| {
        let entries: Vec<_> =
            commit.changes.records.iter().filter_map(|record| record.entry().ok()).collect();
        if entries.iter().all(|entry| matches!(entry.event, Event::StepRecorded(_))) {
            return Passage::Through;
        }
        *news.lock().unwrap_or_else(PoisonError::into_inner) = entries;
        Passage::Lost
    }
}

/// The part of a run that is replayed.
struct Part {
    entries: Vec<Entry>,
    /// The end of the run, if its code made one.
    end: Option<Event>,
    /// Whether its recorded code surely went on behind the last entry.
    went_on: bool,
}

impl Part {
    /// Returns a run up to the last entry after which its code could still continue.
    fn of(history: &History, count: usize) -> Self {
        let mut entries = history.runs[count - 1].clone();
        let end = entries.last().filter(|entry| entry.event.is_terminal());
        // An outcome and the end that follows from it share a commit. A transaction has one of its
        // own, and orders and blocks come from elsewhere.
        let last_op = entries.last().and_then(|entry| entry.event.op());
        let went_on = end.is_none() && last_op.is_some_and(|op| op.kind != OpKind::Transaction);
        let end = end.filter(|_| !is_made_by_others(history, &entries));
        let end = end.map(|entry| canonical(entry.event.clone()));
        let is_active = |entries: &[Entry]| {
            let folded = Execution::fold(history.address.clone(), 1, entries);
            folded.is_none_or(|execution| execution.phase().is_active())
        };
        while entries.len() > 1 && !is_active(&entries) {
            entries.pop();
        }
        Self { entries, end, went_on }
    }

    fn start(&self) -> Arc<Start> {
        match self.entries.first().map(|entry| &entry.event) {
            Some(Event::Started(start)) => start.clone(),
            _ => unreachable!("a history was checked when it was read"),
        }
    }

    /// Sets the clock to the time of the last entry, so that no further timers are due.
    fn set_clock(&self, sim: &Sim) {
        if let Some(last) = self.entries.last() {
            let now = sim.now();
            sim.set_clock_forward(last.at.since(now));
            sim.set_clock_back(now.since(last.at));
        }
    }

    fn import(&self, history: &History, count: usize) -> Import {
        let run = u32::try_from(count).unwrap_or(u32::MAX);
        let execution = Execution::fold(history.address.clone(), run, &self.entries);
        let execution = execution.expect("a history was checked when it was read");
        let records = |run: &Vec<Entry>| run.iter().map(Record::of).collect();
        let mut runs: Vec<Vec<Record>> = history.runs[..count - 1].iter().map(records).collect();
        runs.push(records(&self.entries));
        Import {
            runs,
            summary: execution.summary_at_rest(),
            execution,
            unread: Vec::new(),
            epoch: Epoch(1),
            version: Version(1),
            takeover_count: 0,
            was_ready: true,
        }
    }

    /// Whether code that fits asks for the operation of this entry: it is its outcome, or the last
    /// that is known of an operation without one.
    fn is_to_be_asked_for(&self, entry: &Entry) -> bool {
        let Some(op) = entry.event.op() else { return false };
        match &entry.event {
            // Code need not ask again for a recorded patch.
            event if event.is_delivery() => op.kind != OpKind::Patch,
            Event::AttemptFailed { .. } | Event::TimerSet { .. } => {
                let later = self.entries.iter().filter(|later| later.seq > entry.seq);
                !later.map(|later| &later.event).any(|event| event.op() == Some(op))
            }
            _ => false,
        }
    }

    fn judge(&self, opened: &[Asked], news: &[Entry]) -> Replay {
        let asked: HashSet<&Op> = opened.iter().flat_map(Asked::names).collect();
        let recorded = || self.entries.iter().filter(|entry| self.is_to_be_asked_for(entry));
        let recorded_ops: HashSet<&Op> = recorded().filter_map(|entry| entry.event.op()).collect();
        let mut replay = Replay::default();
        let unasked = recorded().filter(|entry| {
            entry.event.op().is_some_and(|op| !asked.contains(op)) && !planted(Bug::ReplayUnusedUntold)
        });
        replay.unused = unasked.map(|entry| describe(&entry.event)).collect();
        replay.blocked = news.iter().find_map(|entry| match &entry.event {
            Event::Blocked { reason, .. } => Some(reason.to_string()),
            _ => None,
        });
        let ended = news.iter().map(|entry| &entry.event).find(|event| event.is_terminal());
        let ended = ended.cloned().map(canonical);
        let new = opened.iter().find(|asked| !asked.names().any(|op| recorded_ops.contains(op)));
        let new = new.map(|asked| asked.op.to_string());
        let is_at_once = new.is_none() && !has_more_to_do(news);
        replay.goes_on = match &ended {
            None => new.filter(|_| replay.blocked.is_none()),
            Some(ended) => self.end.is_none().then(|| format!("its end, {}", describe(ended))),
        };
        replay.differs = match (&self.end, &ended) {
            _ if replay.blocked.is_some() || planted(Bug::ReplayEndUncompared) => None,
            (Some(end), Some(ended)) if is_same_end(end, ended) => None,
            // Code that had seen the cancellation, and still had something to do, did not make that
            // end: somebody terminated it.
            (Some(Event::Cancelled { .. }), Some(_)) if has_more_to_do(news) => None,
            (Some(end), Some(ended)) => {
                let hidden = hidden_difference(end, ended).map(|difference| format!("; {difference}"));
                let hidden = hidden.unwrap_or_default();
                Some(format!("it was recorded as {}, and is {}{hidden}", describe(end), describe(ended)))
            }
            (None, Some(ended @ Event::Failed(_))) if self.went_on && is_at_once => {
                Some(format!("it was recorded as not ended, and is {}", describe(ended)))
            }
            (Some(Event::Cancelled { .. } | Event::Failed(_)), None) | (None, _) => None,
            (Some(end), None) => Some(format!("it was recorded as {}, and does not end", describe(end))),
        };
        replay
    }
}

/// Whether the code records something besides patches and its end.
fn has_more_to_do(news: &[Entry]) -> bool {
    let is_patch = |event: &Event| event.op().is_some_and(|op| op.kind == OpKind::Patch);
    news.iter().any(|entry| !entry.event.is_terminal() && !is_patch(&entry.event))
}

/// Whether the last entry of a run is an end that its code did not make: the run was terminated, or
/// cancelled or overdue when no code could see it.
fn is_made_by_others(history: &History, entries: &[Entry]) -> bool {
    let Some((end, before)) = entries.split_last() else { return false };
    let Some(before) = Execution::fold(history.address.clone(), 1, before) else { return false };
    match &end.event {
        // Code that lets its cancellation through ends in the words of that cancellation.
        Event::Cancelled { by, reason } => match before.phase() {
            Phase::Cancelling { by: asked_by, reason: asked } => (asked_by, asked) != (by, reason),
            _ => true,
        },
        Event::Failed(_) => {
            let expired = before.decide(Command::ExpireDeadline, end.at);
            expired.is_ok_and(|decision| decision.event.as_ref() == Some(&end.event))
        }
        _ => false,
    }
}
