//! Rules for attempts: every retry, and every missing retry, follows a policy of the program.
//! Operations of one name may have several policies.

use std::collections::BTreeMap;
use std::time::Duration;

use abide_core::{Entry, Event, Failure, FailureKind, Outcome, StepRecord, Timestamp};

use super::Books;
use super::table::own_exprs;
use crate::code::PASSING;
use crate::program::{Expr, Pauses, Program, Step, keyed, old_names};
use crate::scenario::Scenario;

pub(super) fn check(books: &Books, scenario: &Scenario) -> Vec<String> {
    let has_default = scenario.workers.iter().any(|worker| worker.default_retry.is_some());
    let mut found = Vec::new();
    for past in books.pasts.values() {
        for (run, journal) in (1..).zip(&past.runs) {
            let Some(program) = past.program(run) else { continue };
            let editions = books.editions.iter().map(|edition| edition.of(program));
            let programs: Vec<Program> = std::iter::once(program.clone()).chain(editions).collect();
            let policies = Policies { steps: programs.iter().flat_map(steps_of).collect(), has_default };
            found.extend(policies.check(journal).into_iter().map(|what| format!("{:?}: {what}", past.id)));
        }
    }
    found
}

fn steps_of(program: &Program) -> impl Iterator<Item = &Step> {
    own_exprs(program).into_iter().filter_map(|expr| match expr {
        Expr::Step(step) | Expr::Blocking(step) => Some(step),
        _ => None,
    })
}

struct Policies<'a> {
    steps: Vec<&'a Step>,
    /// Whether some worker has its own default policy for steps without one.
    has_default: bool,
}

/// A failed attempt, as the journal has it.
struct Failed<'a> {
    number: u32,
    at: Timestamp,
    failure: &'a Failure,
    first_at: Option<Timestamp>,
}

impl Policies<'_> {
    fn check(&self, journal: &[Entry]) -> Vec<String> {
        let mut found = Vec::new();
        let mut first: BTreeMap<String, Timestamp> = BTreeMap::new();
        for entry in journal {
            let Some(op) = entry.event.op() else { continue };
            let (name, at) = (op.to_string(), entry.at);
            match &entry.event {
                Event::AttemptFailed { attempt, failure, retry_at, first_at, .. } => {
                    if *first.entry(name.clone()).or_insert(*first_at) != *first_at {
                        found.push(format!("the attempts of {name} have several beginnings"));
                    }
                    let failed = Failed { number: *attempt, at, failure, first_at: Some(*first_at) };
                    if !self.any(op, |step| self.goes_on(step, &failed, *retry_at)) {
                        found.push(format!("no policy has attempt {attempt} of {name} tried again"));
                    }
                }
                Event::StepRecorded(StepRecord { outcome: Outcome::Failure(failure), attempt, .. }) => {
                    let first_at = first.get(&name).copied();
                    let failed = Failed { number: *attempt, at, failure, first_at };
                    if failure.is_retryable() && !self.any(op, |step| self.stops(step, &failed)) {
                        found
                            .push(format!("attempt {attempt} of {name} was the last, but no policy says so"));
                    }
                }
                // The step may run again.
                Event::StepRecorded(_) => _ = first.remove(&name),
                _ => {}
            }
        }
        found
    }

    fn any(&self, op: &abide_core::Op, says: impl Fn(&Step) -> bool) -> bool {
        let is_named = |step: &Step| {
            let (name, key) = keyed(&step.name);
            let is_so = op.name.as_str() == name || old_names(&step.name).contains(&op.name.as_str());
            is_so && op.key.as_ref().map(abide_core::Name::as_str) == key
        };
        self.steps.iter().any(|step| is_named(step) && says(step))
    }

    fn goes_on(&self, step: &Step, failed: &Failed<'_>, retry_at: Timestamp) -> bool {
        let Some(pauses) = step.retry else { return self.has_default };
        let longest = Duration::from_millis(pauses.delay_ms);
        let shortest = longest.mul_f64(1.0 - f64::from(pauses.jitter) / 100.0);
        let pause = retry_at.since(failed.at);
        let is_in_time = |elapsed_ms: u64| {
            failed
                .first_at
                .is_none_or(|first_at| retry_at.since(first_at) < Duration::from_millis(elapsed_ms))
        };
        has_more(pauses, failed.number)
            && is_worth_it(step, failed.failure)
            && pauses.elapsed_ms_max.is_none_or(is_in_time)
            && pause <= longest
            && pause + Duration::from_millis(1) >= shortest
    }

    fn stops(&self, step: &Step, failed: &Failed<'_>) -> bool {
        // A step without a policy is not tried again; the default policy of a worker may agree.
        let Some(pauses) = step.retry else { return true };
        let latest = failed.at.after(Duration::from_millis(pauses.delay_ms));
        let may_be_late = |elapsed_ms: u64| {
            failed.first_at.is_none_or(|first_at| latest.since(first_at) >= Duration::from_millis(elapsed_ms))
        };
        !has_more(pauses, failed.number)
            || !is_worth_it(step, failed.failure)
            || pauses.elapsed_ms_max.is_some_and(may_be_late)
    }
}

fn has_more(pauses: Pauses, number: u32) -> bool {
    pauses.is_forever || number < pauses.attempt_count_max
}

fn is_worth_it(step: &Step, failure: &Failure) -> bool {
    !step.is_asked || (failure.kind == FailureKind::Error && failure.message == PASSING)
}
