//! Checks that the promise was kept. Pure: evidence in, facts out.

use std::process::ExitStatus;

use abide_core::{Event, OpKind, Status};
use serde_json::{Value, json};

use super::order::{self, Receipt};
use super::stage::{Evidence, Story};
use super::timeline::{CHILD_STEPS, is_record, runs, short};
use abide_core::text;

/// All checks.
#[derive(Debug, Default)]
pub(super) struct Report(Vec<Check>);

/// One check.
#[derive(Debug)]
pub(super) struct Check {
    /// The fact that should hold.
    pub(super) fact: String,
    /// Whether it holds.
    pub(super) holds: bool,
}

/// Checks the evidence.
pub(super) fn of(evidence: &Evidence) -> Report {
    let checks = [
        killed(evidence),
        recorded_before(evidence),
        not_repeated(evidence),
        unchanged(evidence),
        continued(evidence),
        timer(evidence),
        result(evidence),
    ];
    Report(checks.into_iter().collect())
}

impl Report {
    pub(super) fn checks(&self) -> &[Check] {
        &self.0
    }

    /// Lists the facts that do not hold.
    pub(super) fn broken(&self) -> Option<String> {
        let broken: Vec<_> =
            self.0.iter().filter(|check| !check.holds).map(|check| check.fact.as_str()).collect();
        (!broken.is_empty()).then(|| format!("this does not hold: {}", broken.join("; ")))
    }

    pub(super) fn document(&self) -> Value {
        self.0.iter().map(|check| json!({ "fact": check.fact, "holds": check.holds })).collect()
    }
}

/// A closure of the order or of a child.
struct Closure<'a> {
    story: &'a Story,
    step: &'static str,
}

impl Closure<'_> {
    fn name(&self) -> String {
        if self.story.id == order::ID {
            self.step.to_owned()
        } else {
            format!("{}/{}", short(&self.story.id), self.step)
        }
    }

    /// Whether its result was recorded before the kill, so that it must never run again.
    fn is_early(&self, evidence: &Evidence) -> bool {
        let record = self.story.entries.iter().find(|entry| is_record(entry, self.step));
        record.is_some_and(|entry| entry.at < evidence.first.ended_at)
    }

    /// Returns how often it ran in each process.
    fn counts(&self, evidence: &Evidence) -> (usize, usize) {
        let ran = |pid| {
            runs(&evidence.effects, &self.story.id, self.step).filter(|effect| effect.pid == pid).count()
        };
        (ran(evidence.first.pid), ran(evidence.second.pid))
    }
}

/// Returns every closure: ten steps of the order, and those of its children.
fn closures(evidence: &Evidence) -> Vec<Closure<'_>> {
    let mut all = Vec::new();
    for story in &evidence.after {
        let steps = match CHILD_STEPS.iter().find(|(name, _)| *name == short(&story.id)) {
            Some((_, steps)) => *steps,
            None => &order::STEPS[..],
        };
        all.extend(steps.iter().map(|step| Closure { story, step }));
    }
    all
}

fn names(closures: &[Closure<'_>]) -> String {
    closures.iter().map(Closure::name).collect::<Vec<_>>().join(", ")
}

fn counted(closures: &[Closure<'_>]) -> String {
    let count = closures.iter().filter(|closure| closure.story.id == order::ID).count();
    format!("{count} steps of the order and {} of its children", closures.len() - count)
}

fn killed(evidence: &Evidence) -> Check {
    let at = text::duration(evidence.first.ended_at.since(evidence.first.began_at));
    let fact = format!("process {} was killed with SIGKILL after {at}", evidence.first.pid);
    Check { fact, holds: is_kill(evidence.first.status) }
}

#[cfg(unix)]
fn is_kill(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    const SIGKILL: i32 = 9;
    status.signal() == Some(SIGKILL)
}

#[cfg(not(unix))]
fn is_kill(status: ExitStatus) -> bool {
    !status.success()
}

fn recorded_before(evidence: &Evidence) -> Check {
    let early: Vec<_> = closures(evidence).into_iter().filter(|closure| closure.is_early(evidence)).collect();
    let fact = format!("before that, {} ran and were recorded: {}", counted(&early), names(&early));
    let are_its_own = early.iter().all(|closure| closure.counts(evidence).0 == 1);
    Check { fact, holds: early.len() >= order::STEPS_BEFORE_TIMER && are_its_own }
}

fn not_repeated(evidence: &Evidence) -> Check {
    let again = |closure: &Closure<'_>| closure.is_early(evidence) && closure.counts(evidence).1 > 0;
    let again: Vec<_> =
        closures(evidence).iter().filter(|closure| again(closure)).map(Closure::name).collect();
    let fact = match again.as_slice() {
        [] => "none of them ran again".to_owned(),
        again => format!("none of them ran again, but these did: {}", again.join(", ")),
    };
    Check { fact, holds: again.is_empty() }
}

fn unchanged(evidence: &Evidence) -> Check {
    let count = evidence.before.len();
    let now = evidence.after.first().and_then(|story| story.records.get(..count));
    let fact = format!("the {count} journal entries from before the crash are the same, byte for byte");
    Check { fact, holds: count > order::STEPS_BEFORE_TIMER && now == Some(&evidence.before[..]) }
}

fn continued(evidence: &Evidence) -> Check {
    let late: Vec<_> = closures(evidence).into_iter().filter(|closure| !closure.is_early(evidence)).collect();
    // A closure that was running during the kill had no record yet, so it may have begun in both.
    let are_right = late.iter().all(|closure| matches!(closure.counts(evidence), (0 | 1, 1)));
    let done = evidence.after.iter().all(|story| story.status == Status::Completed);
    let pid = evidence.second.pid;
    let fact = format!("process {pid} continued there: {} ran, once each: {}", counted(&late), names(&late));
    Check { fact, holds: are_right && done && !late.is_empty() && evidence.second.status.success() }
}

fn timer(evidence: &Evidence) -> Check {
    let entries = evidence.after.first().map(|story| story.entries.as_slice()).unwrap_or_default();
    let of_timer = |event: &Event| event.op().is_some_and(|op| op.kind == OpKind::Timer);
    let set = entries.iter().find_map(|entry| match &entry.event {
        event @ Event::TimerSet { due_at, .. } if of_timer(event) => Some((entry.at, *due_at)),
        _ => None,
    });
    let is_fired = |event: &Event| matches!(event, Event::TimerFired { .. }) && of_timer(event);
    let fired = entries.iter().find(|entry| is_fired(&entry.event)).map(|entry| entry.at);
    let Some(((set_at, due_at), fired_at)) = set.zip(fired) else {
        return Check { fact: "the timer fired".to_owned(), holds: false };
    };
    let (wanted, late) = (text::duration(order::TIMER), text::duration(fired_at.since(due_at)));
    let fact = format!("the timer of {wanted} went on across the crash: it fired {late} after it was due");
    // The code goes to sleep after the previous step was recorded, and before its timer is. The
    // time in between is up to the machine.
    let before = entries.iter().find(|entry| is_record(entry, order::STEPS[order::STEPS_BEFORE_TIMER - 1]));
    let is_long_enough = before.is_some_and(|entry| due_at >= entry.at.after(order::TIMER));
    let is_kept = is_long_enough && due_at <= set_at.after(order::TIMER);
    Check { fact, holds: is_kept && fired_at >= due_at }
}

fn result(evidence: &Evidence) -> Check {
    let expected = Receipt {
        cents: 4_497,
        parcels: 2,
        invoice: "INV-4497".to_owned(),
        signed_by: "Ada".to_owned(),
        steps: 10,
    };
    let last = evidence.after.first().and_then(|story| story.entries.last());
    let Some(Event::Completed { result, .. }) = last.map(|entry| &entry.event) else {
        return Check { fact: "the order completed".to_owned(), holds: false };
    };
    let found: Option<Receipt> = serde_json::from_slice(result.as_bytes()).ok();
    Check { fact: format!("the result is right: {}", result.excerpt()), holds: found == Some(expected) }
}
