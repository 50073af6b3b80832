//! The course of the play, as rows of bars. Pure: evidence in, a picture out.

use abide_core::{Entry, Event, OpKind, Timestamp};
use serde_json::{Value, json};

use super::effects::Effect;
use super::order;
use super::stage::{Evidence, Story};
use crate::json::time;

/// All rows, with the times that matter.
pub(super) struct Timeline {
    pub(super) began_at: Timestamp,
    pub(super) killed_at: Timestamp,
    pub(super) restarted_at: Timestamp,
    pub(super) ended_at: Timestamp,
    /// The process ids of the two workers.
    pub(super) pids: (u32, u32),
    pub(super) rows: Vec<Row>,
}

/// One step, timer, signal or child.
pub(super) struct Row {
    pub(super) label: String,
    pub(super) bars: Vec<Bar>,
    /// The processes in which each of its closures ran.
    pub(super) pids: Vec<Vec<u32>>,
}

/// A span of time.
pub(super) struct Bar {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    pub(super) kind: BarKind,
}

/// The kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BarKind {
    /// A closure ran.
    Closure,
    /// The execution waited.
    Wait,
}

/// Computes the rows from the evidence.
pub(super) fn of(evidence: &Evidence) -> Timeline {
    let [story, children @ ..] = evidence.after.as_slice() else { unreachable!("the order is a story") };
    let (early, late) = order::STEPS.split_at(order::STEPS_BEFORE_TIMER);
    let (parcel, paper) = late.split_at(2);
    let numbered = |steps: &[&str], first: usize| {
        let rows = steps.iter().zip(first..).map(|(step, number)| step_row(evidence, story, (number, step)));
        rows.collect::<Vec<_>>()
    };
    let mut rows = numbered(early, 1);
    rows.push(wait_row(story, format!("   timer {} s", order::TIMER.as_secs()), OpKind::Timer));
    rows.extend(children.iter().map(|child| child_row(evidence, story, child)));
    rows.extend(numbered(parcel, early.len() + 1));
    rows.push(wait_row(story, format!("   signal {:?}", order::SIGNAL), OpKind::Signal));
    rows.extend(numbered(paper, early.len() + parcel.len() + 1));
    Timeline {
        began_at: evidence.first.began_at,
        killed_at: evidence.first.ended_at,
        restarted_at: evidence.second.began_at,
        ended_at: evidence.second.ended_at,
        pids: (evidence.first.pid, evidence.second.pid),
        rows,
    }
}

fn step_row(evidence: &Evidence, story: &Story, (number, step): (usize, &str)) -> Row {
    let (bars, pids) = closures(evidence, story, step);
    Row { label: format!("{number:2} {step}"), bars, pids: vec![pids] }
}

/// Returns every run of a closure. Each lasts until the result was recorded or the process ended.
fn closures(evidence: &Evidence, story: &Story, step: &str) -> (Vec<Bar>, Vec<u32>) {
    let ran: Vec<&Effect> = runs(&evidence.effects, &story.id, step).collect();
    let recorded_at = story.entries.iter().find(|entry| is_record(entry, step)).map(|entry| entry.at);
    let mut bars = Vec::new();
    for effect in &ran {
        let life = if effect.pid == evidence.first.pid { &evidence.first } else { &evidence.second };
        let to = recorded_at.unwrap_or(life.ended_at).min(life.ended_at).max(effect.at);
        bars.push(Bar { from: effect.at, to, kind: BarKind::Closure });
    }
    (bars, ran.iter().map(|effect| effect.pid).collect())
}

/// Returns the lines that a closure has left behind.
pub(super) fn runs<'a>(
    effects: &'a [Effect],
    id: &'a str,
    step: &'a str,
) -> impl Iterator<Item = &'a Effect> {
    effects.iter().filter(move |effect| effect.execution == id && effect.step == step)
}

/// Whether this entry records the result of `step`; a task is recorded by its completion.
pub(super) fn is_record(entry: &Entry, step: &str) -> bool {
    match &entry.event {
        Event::StepRecorded(record) => record.op.name.as_str() == step,
        Event::Completed { .. } => !order::STEPS.contains(&step) && step == "invoice",
        _ => false,
    }
}

/// Returns the row of a wait, from its first entry to its last.
fn wait_row(story: &Story, label: String, kind: OpKind) -> Row {
    let is_ours = |entry: &&Entry| entry.event.op().is_some_and(|op| op.kind == kind);
    let began = story.entries.iter().find(is_ours);
    let ended = story.entries.iter().rfind(is_ours);
    let bars =
        began.zip(ended).map(|(began, ended)| Bar { from: began.at, to: ended.at, kind: BarKind::Wait });
    Row { label, bars: bars.into_iter().collect(), pids: Vec::new() }
}

/// Returns the row of a child. It waits wherever its closures do not run.
fn child_row(evidence: &Evidence, parent: &Story, child: &Story) -> Row {
    let is_start = |entry: &&Entry| matches!(&entry.event, Event::ChildStarted { child: id, .. } if id.as_str() == child.id);
    let started = parent.entries.iter().find(is_start);
    let (started, ended) = (started.map(|entry| entry.at), child.entries.last().map(|entry| entry.at));
    let whole = started.zip(ended).map(|(from, to)| Bar { from, to, kind: BarKind::Wait });
    let mut row = Row {
        label: format!("   child {}", short(&child.id)),
        bars: whole.into_iter().collect(),
        pids: Vec::new(),
    };
    for step in CHILD_STEPS.iter().filter(|(name, _)| *name == short(&child.id)).flat_map(|(_, steps)| *steps)
    {
        let (bars, pids) = closures(evidence, child, step);
        row.bars.extend(bars);
        row.pids.push(pids);
    }
    row
}

/// The children and their closures.
pub(super) const CHILD_STEPS: [(&str, &[&str]); 2] = [("pack", &["pick", "seal"]), ("invoice", &["invoice"])];

/// Returns the last part of a child's id.
pub(super) fn short(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

impl Timeline {
    pub(super) fn document(&self) -> Value {
        json!({
            "began_at": time(self.began_at),
            "killed_at": time(self.killed_at),
            "restarted_at": time(self.restarted_at),
            "ended_at": time(self.ended_at),
            "processes": [self.pids.0, self.pids.1],
            "rows": self.rows.iter().map(Row::document).collect::<Value>(),
        })
    }
}

impl Row {
    fn document(&self) -> Value {
        let bar = |bar: &Bar| {
            let kind = match bar.kind {
                BarKind::Closure => "closure",
                BarKind::Wait => "wait",
            };
            json!({ "kind": kind, "from": time(bar.from), "to": time(bar.to) })
        };
        json!({
            "name": self.label.trim(),
            "processes": self.pids,
            "bars": self.bars.iter().map(bar).collect::<Value>(),
        })
    }
}
