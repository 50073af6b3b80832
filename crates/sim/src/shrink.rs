//! Cuts a failing scenario down to the parts that it needs to fail: few faults, few actions, a
//! small program.

use crate::program::{Child, Code, Expr, Program, StartWith};
use crate::run::{Report, run};
use crate::scenario::{Scenario, WorkerSpec};

/// The most smaller scenarios to try.
const ATTEMPT_COUNT_MAX: u32 = 3_000;

/// The result of cutting a scenario down.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The smallest scenario found that fails in the same way.
    pub scenario: Scenario,
    /// The report of that scenario.
    pub report: Report,
    /// The number of smaller scenarios that were tried.
    pub attempt_count: u32,
    /// Whether nothing smaller fails. Otherwise patience ran out first.
    pub is_smallest: bool,
}

/// Cuts a scenario down for as long as `is_patient` returns true, which it is asked before each
/// world. At least one whole world runs.
pub fn shrink(scenario: &Scenario, is_patient: impl FnMut() -> bool) -> Shrunk {
    cut_down(scenario, run, is_patient)
}

fn cut_down(
    scenario: &Scenario,
    mut run: impl FnMut(&Scenario) -> Report,
    mut is_patient: impl FnMut() -> bool,
) -> Shrunk {
    let report = run(scenario);
    let sort = report.violations.first().map(|violation| sort_of(violation));
    let mut found = Shrunk { scenario: scenario.clone(), report, attempt_count: 0, is_smallest: false };
    let Some(sort) = sort else { return Shrunk { is_smallest: true, ..found } };
    let mut left = candidates(&found.scenario);
    while let Some(candidate) = left.next() {
        let mut may_try = || found.attempt_count < ATTEMPT_COUNT_MAX && is_patient();
        let orders = orders(&candidate).take_while(|_| may_try());
        let failing = orders
            .map(|candidate| (run(&candidate), candidate))
            .find(|(report, _)| report.violations.iter().any(|violation| sort_of(violation) == sort));
        if failing.is_none() && !may_try() {
            return found;
        }
        found.attempt_count += 1;
        if let Some((report, scenario)) = failing {
            left = candidates(&scenario);
            found = Shrunk { scenario, report, ..found };
        }
    }
    Shrunk { is_smallest: true, ..found }
}

/// Returns a scenario under its own order of tasks and under others: each removal changes the order
/// of the remaining tasks.
fn orders(scenario: &Scenario) -> impl Iterator<Item = Scenario> {
    const ORDER_COUNT: u64 = 4;
    (0..ORDER_COUNT).map(|more| Scenario { order: scenario.order.wrapping_add(more), ..scenario.clone() })
}

/// Returns the sort of a violation: its words without names and numbers.
pub(crate) fn sort_of(violation: &str) -> String {
    let first = violation.lines().next().unwrap_or_default();
    let words =
        first.split_whitespace().filter(|word| word.chars().all(|letter| letter.is_ascii_lowercase()));
    words.take(6).collect::<Vec<_>>().join(" ")
}

/// Returns the scenarios that are smaller by one thing, largest cuts first.
fn candidates(scenario: &Scenario) -> std::vec::IntoIter<Scenario> {
    let mut found = Vec::new();
    let mut add = |change: &dyn Fn(&mut Scenario)| {
        let mut candidate = scenario.clone();
        change(&mut candidate);
        if candidate != *scenario {
            found.push(candidate);
        }
    };
    add(&|smaller| smaller.faults.clear());
    let half = scenario.faults.len() / 2;
    add(&|smaller| smaller.faults.truncate(half));
    add(&|smaller| drop(smaller.faults.drain(..half)));
    for index in 0..scenario.actions.len() {
        add(&|smaller| drop(smaller.actions.remove(index)));
    }
    for index in 0..scenario.faults.len() {
        add(&|smaller| {
            smaller.faults.remove(index);
        });
    }
    for (index, edition) in scenario.editions.iter().enumerate() {
        for change in 0..edition.changes.len() {
            add(&|smaller| {
                smaller.editions[index].changes.remove(change);
            });
        }
    }
    add(&|smaller| smaller.workers.truncate(scenario.workers.len().saturating_sub(1).max(1)));
    for index in 0..scenario.workers.len() {
        add(&|smaller| smaller.workers[index] = plain(smaller.workers[index]));
        add(&|smaller| smaller.workers[index].skew_ms = 0);
    }
    for index in 0..scenario.actions.len() {
        add(&|smaller| smaller.actions[index].dropped_at_poll = None);
    }
    for (index, root) in scenario.roots.iter().enumerate() {
        add(&|smaller| smaller.roots[index].options = StartWith::default());
        for code in smaller_code(&root.code) {
            add(&|smaller| smaller.roots[index].code = code.clone());
        }
    }
    found.retain(|candidate| !candidate.workers.is_empty());
    found.into_iter()
}

fn plain(spec: WorkerSpec) -> WorkerSpec {
    WorkerSpec { execution_count_max: 1_000, request_count_max: 1_000, ..spec }
}

fn smaller_code(code: &Code) -> Vec<Code> {
    match code {
        Code::Task(_) => Vec::new(),
        Code::Workflow(program) => {
            smaller_programs(program).into_iter().map(|program| Code::Workflow(Box::new(program))).collect()
        }
    }
}

fn smaller_programs(program: &Program) -> Vec<Program> {
    let mut found = Vec::new();
    if let Some(next) = &program.next {
        found.push(Program { next: None, ..program.clone() });
        found.push((**next).clone());
        for next in smaller_programs(next) {
            found.push(Program { next: Some(Box::new(next)), ..program.clone() });
        }
    }
    if program.held.is_some() {
        found.push(Program { held: None, ..program.clone() });
    }
    found.extend(smaller_exprs(&program.body).into_iter().map(|body| Program { body, ..program.clone() }));
    found
}

fn smaller_exprs(expr: &Expr) -> Vec<Expr> {
    let mut found = Vec::new();
    match expr {
        Expr::Value(0) => return found,
        Expr::Sequence(parts) => smaller_parts(parts, &Expr::Sequence, &mut found),
        Expr::Join(parts) => smaller_parts(parts, &Expr::Join, &mut found),
        Expr::Select(parts) => smaller_parts(parts, &Expr::Select, &mut found),
        Expr::Unordered(parts) => smaller_parts(parts, &Expr::Unordered, &mut found),
        Expr::Catch { body, otherwise, is_stubborn } => {
            found.extend([(**body).clone(), (**otherwise).clone()]);
            let rebuilt = |body: Expr| Expr::Catch {
                body: Box::new(body),
                otherwise: otherwise.clone(),
                is_stubborn: *is_stubborn,
            };
            found.extend(smaller_exprs(body).into_iter().map(rebuilt));
        }
        Expr::Shield(cleanup) => {
            found.push((**cleanup).clone());
            found.extend(smaller_exprs(cleanup).into_iter().map(|smaller| Expr::Shield(Box::new(smaller))));
        }
        Expr::Run(child) => found.extend(smaller_children(child).into_iter().map(Expr::Run)),
        Expr::Start { child, meanwhile, is_awaited } => {
            found.push((**meanwhile).clone());
            let rebuilt = |child: Child, meanwhile: Expr| Expr::Start {
                child,
                meanwhile: Box::new(meanwhile),
                is_awaited: *is_awaited,
            };
            found.extend(smaller_exprs(meanwhile).into_iter().map(|other| rebuilt(child.clone(), other)));
            found.extend(
                smaller_children(child).into_iter().map(|other| rebuilt(other, (**meanwhile).clone())),
            );
        }
        _ => {}
    }
    found.push(Expr::Value(0));
    found
}

fn smaller_parts(parts: &[Expr], rebuild: &dyn Fn(Vec<Expr>) -> Expr, found: &mut Vec<Expr>) {
    found.extend(parts.iter().cloned());
    for index in 0..parts.len() {
        let mut fewer = parts.to_vec();
        fewer.remove(index);
        found.push(rebuild(fewer));
    }
    for (index, part) in parts.iter().enumerate() {
        for smaller in smaller_exprs(part) {
            let mut changed = parts.to_vec();
            changed[index] = smaller;
            found.push(rebuild(changed));
        }
    }
}

fn smaller_children(child: &Child) -> Vec<Child> {
    let options = StartWith::default();
    let mut found = Vec::new();
    if child.options != options {
        found.push(Child { options, ..child.clone() });
    }
    found.extend(smaller_code(&child.code).into_iter().map(|code| Child { code, ..child.clone() }));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario;

    /// Reports a violation for as long as a scenario has faults.
    fn fails_by_faults(scenario: &Scenario) -> Report {
        let violations = (!scenario.faults.is_empty()).then(|| "a fault struck".to_owned());
        Report { violations: violations.into_iter().collect(), ..Report::default() }
    }

    #[test]
    fn what_fails_by_one_thing_is_cut_down_to_it() {
        let shrunk = cut_down(&scenario(1), fails_by_faults, || true);
        assert!(shrunk.is_smallest && shrunk.attempt_count < ATTEMPT_COUNT_MAX);
        assert_eq!((shrunk.scenario.faults.len(), shrunk.scenario.actions.len()), (1, 0));
        assert_eq!(shrunk.report.violations, ["a fault struck"]);
    }

    #[test]
    fn whoever_has_no_patience_left_gets_what_was_found_so_far() {
        const WORLDS: u32 = 10;
        let (mut world_count, mut left) = (0, WORLDS);
        let run = |scenario: &Scenario| {
            world_count += 1;
            fails_by_faults(scenario)
        };
        let is_patient = || {
            left = left.saturating_sub(1);
            left > 0
        };
        let shrunk = cut_down(&scenario(1), run, is_patient);
        assert!(!shrunk.is_smallest && world_count <= WORLDS, "{world_count} worlds");
        assert!(shrunk.scenario.faults.len() < scenario(1).faults.len());
        assert!(!shrunk.report.violations.is_empty());
    }

    #[test]
    fn a_world_that_fails_in_another_way_is_no_smaller_one() {
        // The whole scenario hangs; every smaller one only reports that a fault struck.
        let whole = scenario(1);
        let run = |scenario: &Scenario| match *scenario == whole {
            true => Report { violations: vec!["it hangs".to_owned()], ..Report::default() },
            false => fails_by_faults(scenario),
        };
        let shrunk = cut_down(&whole, run, || true);
        assert!(shrunk.is_smallest && shrunk.scenario == whole);
    }

    #[test]
    fn what_is_cut_down_keeps_its_seed() {
        let whole = scenario(2);
        let (mut world_count, fault_count) = (0, whole.faults.len());
        // Every smaller scenario fails only in the third order of its tasks.
        let run = |scenario: &Scenario| {
            world_count += 1;
            let is_whole = scenario.faults.len() == fault_count && *scenario == whole;
            if is_whole || world_count % 4 == 0 { fails_by_faults(scenario) } else { Report::default() }
        };
        let shrunk = cut_down(&whole, run, || true);
        assert!(shrunk.scenario.faults.len() < fault_count);
        assert_eq!(shrunk.scenario.seed, 2);
    }

    #[test]
    fn attempts_have_a_bound_of_their_own() {
        // More faults than attempts, and no scenario without one of the faults fails.
        let mut roots = scenario(1);
        let more: Vec<_> = (0..ATTEMPT_COUNT_MAX).map(|_| roots.faults[0]).collect();
        roots.faults.extend(more);
        let whole = roots.faults.len();
        let run = |scenario: &Scenario| match scenario.faults.len() == whole {
            true => fails_by_faults(scenario),
            false => Report::default(),
        };
        let shrunk = cut_down(&roots, run, || true);
        assert_eq!((shrunk.attempt_count, shrunk.is_smallest), (ATTEMPT_COUNT_MAX, false));
    }
}
