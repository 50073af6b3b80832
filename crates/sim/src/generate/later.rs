//! Later additions to scenarios. Each one has its own generator, which keeps the earlier decisions
//! of a seed.

use abide_store::Prng;

use super::{Chance, LAST_MS};
use crate::edition::{Alter, Change};
use crate::program::{Child, Code, Expr, Program};
use crate::scenario::{Action, Actor, Ask, Fault, Part, Scenario, Target, When, Wrong};

/// Makes all the additions to a scenario.
pub(super) fn more(scenario: Scenario) -> Scenario {
    let scenario = with_held_waits(with_late_faults(with_taken_ids(with_other_types(scenario))));
    let scenario = with_said_changes(with_patience(with_texts(scenario)));
    with_last_words(with_other_inputs(scenario))
}

/// Adds signals of two types, and waits for them, to some worlds.
fn with_texts(mut scenario: Scenario) -> Scenario {
    let mut chance = chance(&scenario, 6);
    if !chance.is(300) {
        return scenario;
    }
    for action in &mut scenario.actions {
        action.is_text = matches!(action.what, Ask::Signal(..)) && chance.is(350);
    }
    each_expr(&mut scenario, &mut |expr| {
        if let Expr::Receive { is_text, .. } = expr {
            *is_text = chance.is(300);
        }
    });
    scenario
}

/// Adds a timeout to some blocking steps, though their thread cannot be stopped.
fn with_patience(mut scenario: Scenario) -> Scenario {
    let mut chance = chance(&scenario, 7);
    each_expr(&mut scenario, &mut |expr| {
        if let Expr::Blocking(step) = expr {
            step.timeout_ms = chance.maybe(250, |chance| *chance.prng.pick(&[40, 300, 2_000]));
        }
    });
    scenario
}

fn each_expr(scenario: &mut Scenario, change: &mut dyn FnMut(&mut Expr)) {
    for root in &mut scenario.roots {
        if let Code::Workflow(program) = &mut root.code {
            program.each_expr(change);
        }
    }
}

/// Lets some runs still wait for something when they continue as new.
fn with_held_waits(mut scenario: Scenario) -> Scenario {
    let mut chance = chance(&scenario, 5);
    let mut hold = |program: &mut Program| {
        if program.next.is_some() && chance.is(500) {
            program.held = Some(Box::new(match chance.is(700) {
                true => chance.receive(),
                false => Expr::Sleep { ms: chance.pause(), name: None },
            }));
        }
    };
    for root in &mut scenario.roots {
        if let Code::Workflow(program) = &mut root.code {
            program.each_run(&mut hold);
        }
    }
    scenario
}

/// Lets the faults of some worlds begin late: some rules hold only as long as nothing goes wrong.
fn with_late_faults(mut scenario: Scenario) -> Scenario {
    if !chance(&scenario, 4).is(60) {
        return scenario;
    }
    for fault in &mut scenario.faults {
        fault.when = match fault.when {
            When::Operation(number) => When::Operation(number + 120),
            When::Poll(number) => When::Poll(number + 250),
            When::Time(at_ms) => When::Time(at_ms.max(3_000)),
            other => other,
        };
    }
    scenario
}

/// Damages some rows on SQLite.
pub(super) fn with_damage(mut scenario: Scenario) -> Scenario {
    let mut chance = chance(&scenario, 3);
    if !chance.is(300) {
        return scenario;
    }
    for _ in 0..1 + chance.below(2) {
        let part = *chance.prng.pick(&[Part::State, Part::Journal, Part::Message]);
        let what = Wrong::Damage { of: Target(chance.index(24)), part };
        scenario.faults.push(Fault { when: When::Time(200 + chance.below(6_000)), what });
    }
    scenario
}

fn chance(scenario: &Scenario, salt: u64) -> Chance {
    Chance { prng: Prng::new(scenario.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt), next_node: 0 }
}

/// Makes some builds read recorded results as another type.
fn with_other_types(mut scenario: Scenario) -> Scenario {
    let mut chance = chance(&scenario, 1);
    for edition in &mut scenario.editions {
        let count = if chance.is(400) { 1 + chance.below(2) } else { 0 };
        let changes = (0..count).map(|_| Change { at: chance.index(12), what: Alter::Reread });
        edition.changes.extend(changes);
    }
    scenario
}

/// Makes some builds declare renames and patches, and convert older results.
fn with_said_changes(mut scenario: Scenario) -> Scenario {
    let mut chance = chance(&scenario, 6);
    for edition in &mut scenario.editions {
        let count = if chance.is(500) { 1 + chance.below(3) } else { 0 };
        for _ in 0..count {
            let what = *chance.prng.pick(&[Alter::RenameAll, Alter::RenameAll, Alter::Patch, Alter::Upgrade]);
            edition.changes.push(Change { at: chance.index(12), what });
        }
    }
    scenario
}

/// Makes some builds ask for a child with another input, and an operator accept the record.
fn with_other_inputs(mut scenario: Scenario) -> Scenario {
    let mut chance = chance(&scenario, 8);
    for edition in &mut scenario.editions {
        let count = if chance.is(400) { 1 + chance.below(3) } else { 0 };
        edition.changes.extend((0..count).map(|_| Change { at: chance.index(12), what: Alter::Reask }));
    }
    if scenario.editions.is_empty() || !chance.is(600) {
        return scenario;
    }
    for _ in 0..1 + chance.below(3) {
        let (number, at_ms) = (1 + scenario.actions.len() as u64, LAST_MS / 4 + chance.below(LAST_MS));
        let (by, what) = (Actor::Client(0), Ask::Accept(Target(chance.index(24))));
        scenario.actions.push(Action { number, at_ms, by, what, dropped_at_poll: None, is_text: false });
    }
    scenario
}

/// Lets some machines die while they end their session.
fn with_last_words(mut scenario: Scenario) -> Scenario {
    let mut chance = chance(&scenario, 9);
    if chance.is(150) {
        let restart_ms = chance.restart_ms();
        let what = if chance.is(500) { Wrong::Kill { restart_ms } } else { Wrong::KillBefore { restart_ms } };
        scenario.faults.push(Fault { when: When::Retire(1 + chance.below(2)), what });
    }
    scenario
}

/// Makes some children use the id of a root: the first start under an id wins.
fn with_taken_ids(mut scenario: Scenario) -> Scenario {
    let mut chance = chance(&scenario, 2);
    if !chance.is(250) {
        return scenario;
    }
    let ids: Vec<String> = scenario.roots.iter().map(|root| root.id.clone()).collect();
    let mut take =
        |child: &mut Child| child.taken = chance.maybe(200, |chance| chance.prng.pick(&ids).clone());
    for root in &mut scenario.roots {
        if let Code::Workflow(program) = &mut root.code {
            program.each_child(&mut take);
        }
    }
    scenario
}
