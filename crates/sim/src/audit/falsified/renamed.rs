//! Histories of a step that one build knows under its old name, and another build records once more
//! under the new one.

use super::{Evidence, Happened, rebuilt};
use crate::history::{Closure, Spot};
use crate::quiet_panics;
use crate::run::evidence;
use crate::scenario::Scenario;

const COMPLAINT: &str = "was recorded before its operation was asked for";
const UNLED: &str = "began before what led there was durable";

fn world() -> (Scenario, Evidence) {
    quiet_panics();
    let text = include_str!("../../../scenarios/renamed-twice.json");
    let scenario: Scenario = serde_json::from_str(text).expect("a scenario");
    let evidence = evidence(&scenario);
    (scenario, evidence)
}

/// The build that knows both names went on from the first outcome. The second, which came later,
/// does not make its results early.
#[test]
fn what_follows_an_outcome_under_the_old_name_is_not_early() {
    let (scenario, sound) = world();
    assert_eq!(sound.check(&scenario), Vec::<String>::new());
}

/// A result of that build is early if neither name has an outcome before it.
#[test]
fn what_precedes_the_outcome_under_either_name_is_early() {
    let (scenario, mut early) = world();
    let journal = &mut early.pasts.get_mut("r0").expect("it was started").runs[0];
    let is_of = |name: &'static str, nth| {
        move |entry: &abide_core::Entry| {
            let op = entry.event.op();
            op.is_some_and(|op| op.name.as_str() == name && op.nth == nth)
        }
    };
    let first = journal.iter().position(is_of("s0", 1)).expect("the first outcome");
    let second = journal.iter().position(is_of("s0n", 1)).expect("the second outcome");
    let old = journal[first].event.clone();
    journal[first].event = journal[second - 1].event.clone();
    journal[second - 1].event = old;
    let found = rebuilt(early).check(&scenario);
    assert!(found.iter().any(|found| found.contains(COMPLAINT)), "{found:#?}");
}

/// Adds a closure, as a machine begins it that was stopped since its lease and does not know yet
/// that the lease is lost.
fn begin_late(evidence: &mut Evidence, edition: usize, node: u32, step: &str) {
    let session = evidence.items.iter().find_map(|item| match item {
        Happened::Committed(commit) if commit.edition == edition => Some(commit.session),
        _ => None,
    });
    let machine = evidence.items.iter().find_map(|item| match item {
        Happened::Leased { machine, session: of, .. } if Some(*of) == session => Some(*machine),
        _ => None,
    });
    let spot = Spot { id: "r0".to_owned(), run: 1, node, edition };
    let closure = Closure { spot, key: format!("default/r0/1/{step}"), is_blocking: false };
    let machine = machine.expect("this edition has written");
    evidence.items.push(Happened::Began { machine, closure, at: None });
}

/// The build that knows both names begins the step under the old one, long after another machine
/// has recorded it under the new one.
#[test]
fn a_machine_that_was_stopped_goes_on_from_the_journal_of_its_own_lease() {
    let (scenario, mut late) = world();
    begin_late(&mut late, 1, 1, "s0/1");
    let found = late.check(&scenario);
    assert!(!found.iter().any(|found| found.contains(UNLED)), "{found:#?}");
}

/// The first build never saw what led to the last step: another machine recorded it.
#[test]
fn what_other_machines_recorded_leads_a_stopped_machine_nowhere() {
    let (scenario, mut late) = world();
    begin_late(&mut late, 0, 7, "s1/2");
    let found = late.check(&scenario);
    assert!(found.iter().any(|found| found.contains(UNLED)), "{found:#?}");
}
