//! A scenario as people read it.

use std::fmt::Write as _;

use crate::program::{Child, Code, Expr, Program, StartWith, Step, Work};
use crate::scenario::{Action, Actor, Ask, Scenario};

/// What happens in a scenario, line by line.
pub fn story(scenario: &Scenario) -> String {
    let mut told = format!("seed {} on {:?}\n", scenario.seed, scenario.store);
    for (index, worker) in scenario.workers.iter().enumerate() {
        let _ = writeln!(told, "worker {index}: {worker:?}");
    }
    let _ = writeln!(told, "{} clients, inbox_count_max {}", scenario.client_count, scenario.inbox_count_max);
    for (number, edition) in (1..).zip(&scenario.editions) {
        let _ = writeln!(told, "edition {number}: {:?}", edition.changes);
    }
    for root in &scenario.roots {
        let _ = writeln!(told, "{}: {}{}", root.id, code(&root.code), options(&root.options));
    }
    let mut actions: Vec<&Action> = scenario.actions.iter().collect();
    actions.sort_by_key(|action| action.at_ms);
    for action in actions {
        let _ = writeln!(told, "{}", asked(action, scenario));
    }
    for fault in &scenario.faults {
        let _ = writeln!(told, "{:?}: {:?}", fault.when, fault.what);
    }
    told
}

fn asked(action: &Action, scenario: &Scenario) -> String {
    let who = match action.by {
        Actor::Client(index) => format!("client {index}"),
        Actor::Worker(index) => format!("worker {index}"),
    };
    let what = match &action.what {
        Ask::Start(root) | Ask::Run(root) | Ask::Named(root) | Ask::Conflict(root) => {
            format!("{} {}", action.what.word(), scenario.roots[*root].id)
        }
        other => format!("{other:?}"),
    };
    let dropped = action.dropped_at_poll.map(|poll| format!(", dropped at poll {poll}")).unwrap_or_default();
    format!("{:>6} ms {who}: {what} (action {}){dropped}", action.at_ms, action.number)
}

fn code(what: &Code) -> String {
    match what {
        Code::Workflow(what) => program(what),
        Code::Task(job) => format!("job {}", work(&job.work)),
    }
}

fn program(what: &Program) -> String {
    let next =
        what.next.as_ref().map(|next| format!("; continue_as_new {}", program(next))).unwrap_or_default();
    format!("{{ {}{next} }}", expr(&what.body))
}

fn options(with: &StartWith) -> String {
    if *with == StartWith::default() { String::new() } else { format!(" with {with:?}") }
}

fn child(what: &Child) -> String {
    let taken = what.taken.as_ref().map(|id| format!(" under the id {id:?}")).unwrap_or_default();
    format!("{}{}{taken}", code(&what.code), options(&what.options))
}

fn parts(word: &str, parts: &[Expr]) -> String {
    format!("{word}({})", parts.iter().map(expr).collect::<Vec<_>>().join(", "))
}

fn step(word: &str, what: &Step) -> String {
    let retry = what.retry.map(|retry| format!(" {retry:?}")).unwrap_or_default();
    let timeout = what.timeout_ms.map(|ms| format!(" timeout {ms} ms")).unwrap_or_default();
    let text = if what.is_text { " as text" } else { "" };
    format!("{word} {:?} {}{retry}{timeout}{text}", what.name, work(&what.work))
}

fn work(what: &Work) -> String {
    let mut told = format!("= {}", what.value);
    if what.delay_ms > 0 {
        let _ = write!(told, " after {} ms", what.delay_ms);
    }
    if what.failure_count > 0 {
        let _ = write!(told, ", first {} times {:?}", what.failure_count, what.way);
    }
    told
}

fn expr(what: &Expr) -> String {
    match what {
        Expr::Value(value) => value.to_string(),
        Expr::Step(what) => step("step", what),
        Expr::Blocking(what) => step("blocking", what),
        Expr::Transact(what) if what.fails => format!("transact {:?} that fails", what.name),
        Expr::Transact(what) => format!("transact {:?}", what.name),
        Expr::Sleep { ms, name: None } => format!("sleep {ms} ms"),
        Expr::Sleep { ms, name: Some(name) } => format!("sleep {ms} ms as {name:?}"),
        Expr::SleepUntil { ms } => format!("sleep_until now + {ms} ms"),
        Expr::Receive { name, timeout_ms: None } => format!("recv {name:?}"),
        Expr::Receive { name, timeout_ms: Some(ms) } => format!("recv {name:?} timeout {ms} ms"),
        Expr::Run(what) => format!("run {}", child(what)),
        Expr::Start { child: what, meanwhile, is_awaited } => {
            let then = if *is_awaited { "await it" } else { "leave it" };
            format!("start {}, then {}, then {then}", child(what), expr(meanwhile))
        }
        Expr::Random(_) => "random".to_owned(),
        Expr::Uuid(_) => "uuid".to_owned(),
        Expr::Now => "now".to_owned(),
        Expr::Sequence(what) => parts("seq", what),
        Expr::Join(what) => parts("join", what),
        Expr::Select(what) => parts("select", what),
        Expr::Unordered(what) => parts("unordered", what),
        Expr::Catch { body, otherwise, is_stubborn } => {
            let way = if *is_stubborn { "catch_all" } else { "catch" };
            format!("{way}({} else {})", expr(body), expr(otherwise))
        }
        Expr::Shield(cleanup) => format!("shield({})", expr(cleanup)),
        Expr::Fail { .. } => "fail".to_owned(),
    }
}
