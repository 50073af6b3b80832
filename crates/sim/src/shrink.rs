//! Cuts a failing scenario down to what it takes to fail: few faults, few actions, a small program.

use crate::program::{Child, Code, Expr, Program, StartWith};
use crate::run::{Report, run};
use crate::scenario::{Scenario, WorkerSpec};

/// How many smaller scenarios are tried at most.
const TRY_COUNT_MAX: u32 = 3_000;

/// The smallest scenario that was found to fail in the same way, and how it fails.
pub fn shrink(scenario: &Scenario) -> (Scenario, Report) {
    let report = run(scenario);
    let Some(sort) = report.violations.first().map(|violation| sort_of(violation)) else {
        return (scenario.clone(), report);
    };
    let mut smallest = (scenario.clone(), report);
    let mut tries_left = TRY_COUNT_MAX;
    loop {
        let mut is_smaller = false;
        for candidate in candidates(&smallest.0) {
            if tries_left == 0 {
                return smallest;
            }
            tries_left -= 1;
            if let Some(failing) = fails(&candidate, &sort) {
                smallest = failing;
                is_smaller = true;
                break;
            }
        }
        if !is_smaller {
            return smallest;
        }
    }
}

/// Whether a scenario fails in this way, under its own order of tasks or another one: whatever is taken away changes the order of the rest.
fn fails(scenario: &Scenario, sort: &str) -> Option<(Scenario, Report)> {
    const ORDER_COUNT: u64 = 4;
    (0..ORDER_COUNT).find_map(|more| {
        let candidate = Scenario { seed: scenario.seed.wrapping_add(more), ..scenario.clone() };
        let report = run(&candidate);
        let is_same = report.violations.iter().any(|violation| sort_of(violation) == sort);
        is_same.then_some((candidate, report))
    })
}

/// What sort of violation it is: its words, without names and numbers.
pub(crate) fn sort_of(violation: &str) -> String {
    let first = violation.lines().next().unwrap_or_default();
    let words =
        first.split_whitespace().filter(|word| word.chars().all(|letter| letter.is_ascii_lowercase()));
    words.take(6).collect::<Vec<_>>().join(" ")
}

/// Scenarios that are smaller by one thing; the largest cuts first.
fn candidates(scenario: &Scenario) -> impl Iterator<Item = Scenario> + use<> {
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
