//! A scenario in readable form.

use std::fmt::Write as _;

use crate::edition::{Alter, Change};
use crate::program::{Child, Code, Expr, Pauses, Program, StartWith, Step, Way, Work};
use crate::run::Targets;
use crate::scenario::{
    Action, Actor, Ask, Deploy, Fault, Scenario, SqliteSpec, StoreSpec, Target, When, WorkerSpec, Wrong,
};

/// Returns the story of a scenario, line by line. `targets` are the target executions of its
/// actions, as found when it was lived through.
pub fn story(scenario: &Scenario, targets: &Targets) -> String {
    let order = match scenario.order {
        0 => String::new(),
        order => format!(", tasks in order {order}"),
    };
    let mut told = format!("seed {} on {}{order}\n", scenario.seed, store(scenario.store));
    for (index, spec) in scenario.workers.iter().enumerate() {
        let _ = writeln!(told, "worker {index}: {}", worker(spec));
    }
    let clients = if scenario.client_count == 1 { "client" } else { "clients" };
    let _ =
        writeln!(told, "{} {clients}, inbox_count_max {}", scenario.client_count, scenario.inbox_count_max);
    for (number, edition) in (1..).zip(&scenario.editions) {
        let _ = writeln!(told, "edition {number}: {}", list(edition.changes.iter().map(change)));
    }
    for root in &scenario.roots {
        let _ = writeln!(told, "{}: {}{}", root.id, code(&root.code), options(&root.options));
    }
    let mut actions: Vec<&Action> = scenario.actions.iter().collect();
    actions.sort_by_key(|action| action.at_ms);
    for action in actions {
        let _ = writeln!(told, "{}", asked(action, scenario, targets));
    }
    for fault in &scenario.faults {
        let _ = writeln!(told, "{}", wrong(*fault));
    }
    told
}

fn list(parts: impl IntoIterator<Item = String>) -> String {
    parts.into_iter().collect::<Vec<_>>().join(", ")
}

fn store(spec: StoreSpec) -> String {
    let StoreSpec::Sqlite(spec) = spec else { return "the store in memory".to_owned() };
    let usual = SqliteSpec::default();
    let set = [
        ("queue_count_max", spec.queue_count_max as u64, usual.queue_count_max as u64),
        ("batch_count_max", spec.batch_count_max as u64, usual.batch_count_max as u64),
        ("log_bytes_max", spec.log_bytes_max, usual.log_bytes_max),
    ];
    let set = set.into_iter().filter(|(_, value, usual)| value != usual);
    let set = list(set.map(|(name, value, _)| format!("{name} {value}")));
    if set.is_empty() { "SQLite".to_owned() } else { format!("SQLite with {set}") }
}

fn worker(spec: &WorkerSpec) -> String {
    let skew = match spec.skew_ms {
        0 => None,
        ms if ms < 0 => Some(format!("clock {} ms behind", ms.unsigned_abs())),
        ms => Some(format!("clock {ms} ms ahead")),
    };
    let set = [
        Some(format!("parks after {} ms", spec.park_after_ms)),
        Some(format!("grace {} ms", spec.grace_ms)),
        Some(format!("execution_count_max {}", spec.execution_count_max)),
        Some(format!("request_count_max {}", spec.request_count_max)),
        skew,
        (!spec.is_able).then(|| "serves no other lane and lacks the capability".to_owned()),
        spec.mail_bytes_max.map(|bytes| format!("mail_bytes_max {bytes}")),
        spec.deadline_grace_ms.map(|ms| format!("deadline_grace_ms {ms}")),
        spec.default_retry.map(|pauses| format!("default {}", retry(pauses))),
    ];
    list(set.into_iter().flatten())
}

fn change(change: &Change) -> String {
    let what = match change.what {
        Alter::Add => "a step more",
        Alter::AddAlike => "a step more, under a name that others have",
        Alter::Remove => "an operation less",
        Alter::Swap => "two operations change places",
        Alter::Rename => "a step renamed",
        Alter::RenameAll => "operations of one name renamed, which say so",
        Alter::Patch => "a step more for those who have not come to it",
        Alter::Upgrade => "a step with a result of another type, which converts older ones",
        Alter::Retype => "a step made a transaction, or the other way round",
        Alter::Redeclare => "a step with another input",
        Alter::Reask => "a child with another input",
        Alter::Reread => "a step with a result of another type",
        Alter::Reshape => "a branch taken differently",
    };
    format!("{what} (place {})", change.at)
}

fn retry(Pauses { attempt_count_max, delay_ms, is_forever, jitter, elapsed_ms_max }: Pauses) -> String {
    let attempts = match is_forever {
        true => "for ever".to_owned(),
        false => format!("up to {attempt_count_max} attempts"),
    };
    let jitter = if jitter > 0 { format!(" less up to {jitter} %") } else { String::new() };
    let elapsed = elapsed_ms_max.map(|ms| format!(" within {ms} ms")).unwrap_or_default();
    format!("retry {attempts}, {delay_ms} ms{jitter} apart{elapsed}")
}

fn wrong(fault: Fault) -> String {
    let when = match fault.when {
        When::Operation(nth) => format!("operation {nth} of the store"),
        When::Poll(nth) => format!("poll {nth} of a busy worker"),
        When::Notice(nth) => format!("notice {nth}"),
        When::Time(ms) => format!("{ms} ms"),
        When::Batch(nth) => format!("transaction {nth} of a writer"),
        When::Record(nth) => format!("commit {nth} that records"),
        When::Retire(nth) => format!("end {nth} of a session"),
    };
    let detail = match fault.what {
        Wrong::AnswerLate { ms }
        | Wrong::HappensLate { ms }
        | Wrong::Freeze { ms }
        | Wrong::Outage { ms }
        | Wrong::Unread { ms }
        | Wrong::Full { ms }
        | Wrong::Locked { ms } => format!(", {ms} ms"),
        Wrong::Skew { ms } | Wrong::ClockStep { ms } => format!(" by {ms} ms"),
        Wrong::KillBefore { restart_ms } | Wrong::Kill { restart_ms } | Wrong::KillInBatch { restart_ms } => {
            format!(", back after {restart_ms} ms")
        }
        Wrong::Damage { of, .. } => format!(" of {}", nth(of)),
        _ => String::new(),
    };
    format!("at {when}: {}{detail}", fault.what.word())
}

/// Returns the words for a target whose id is unknown, because no action reached it.
fn nth(Target(number): Target) -> String {
    format!("execution number {number} of those that exist, counted around")
}

fn asked(action: &Action, scenario: &Scenario, targets: &Targets) -> String {
    let who = match action.by {
        Actor::Client(index) => format!("client {index}"),
        Actor::Worker(index) => format!("worker {index}"),
    };
    let what = match &action.what {
        Ask::Start(root) | Ask::Run(root) | Ask::Named(root) | Ask::Conflict(root) => {
            format!("{} {}", action.what.word(), scenario.roots[*root].id)
        }
        Ask::Deploy(Deploy { edition, is_killed }) => {
            let way = if *is_killed { "a kill" } else { "a shutdown" };
            format!("deploy edition {edition} after {way}")
        }
        Ask::Signal(target, name) if action.is_text => {
            format!("signal {name:?} as text to {}", target_id(action, *target, targets))
        }
        Ask::Signal(target, name) => format!("signal {name:?} to {}", target_id(action, *target, targets)),
        other => match other.target() {
            Some(target) => format!("{} {}", other.word(), target_id(action, target, targets)),
            None => other.word().to_owned(),
        },
    };
    let dropped = action.dropped_at_poll.map(|poll| format!(", dropped at poll {poll}")).unwrap_or_default();
    format!("{:>6} ms {who}: {what} (action {}){dropped}", action.at_ms, action.number)
}

fn target_id(action: &Action, target: Target, targets: &Targets) -> String {
    targets.get(&action.number).cloned().unwrap_or_else(|| nth(target))
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
    let held = what.held.as_ref().map(|held| format!(" beside {}", expr(held))).unwrap_or_default();
    format!("{{ {}{held}{next} }}", expr(&what.body))
}

fn options(with: &StartWith) -> String {
    let set = [
        (with.priority != 0).then(|| format!("priority {}", with.priority)),
        with.delay_ms.map(|ms| format!("delay {ms} ms")),
        with.deadline_ms.map(|ms| format!("deadline {ms} ms")),
        with.retry.map(retry),
        with.is_aside.then(|| "another lane".to_owned()),
        with.is_demanding.then(|| "a required capability".to_owned()),
        with.is_tagged.then(|| "a tag".to_owned()),
    ];
    let set = list(set.into_iter().flatten());
    if set.is_empty() { String::new() } else { format!(" with {set}") }
}

fn child(what: &Child) -> String {
    let taken = what.taken.as_ref().map(|id| format!(" under the id {id:?}")).unwrap_or_default();
    format!("{}{}{taken}", code(&what.code), options(&what.options))
}

fn parts(word: &str, parts: &[Expr]) -> String {
    format!("{word}({})", parts.iter().map(expr).collect::<Vec<_>>().join(", "))
}

fn step(word: &str, what: &Step) -> String {
    let retry = what.retry.map(|pauses| format!(" {}", retry(pauses))).unwrap_or_default();
    let timeout = what.timeout_ms.map(|ms| format!(" timeout {ms} ms")).unwrap_or_default();
    let text = if what.is_text { " as text" } else { "" };
    let asked = if what.is_asked { " if it is an error" } else { "" };
    format!("{word} {:?} {}{retry}{asked}{timeout}{text}", what.name, work(&what.work))
}

fn work(what: &Work) -> String {
    let mut told = format!("= {}", what.value);
    if what.delay_ms > 0 {
        let _ = write!(told, " after {} ms", what.delay_ms);
    }
    if what.failure_count > 0 {
        let way = match what.way {
            Way::Error => "an error",
            Way::Fatal => "a fatal error",
            Way::Panic => "a panic",
            Way::Unwritable => "a result that cannot be recorded",
        };
        let _ = write!(told, ", the first {} times {way}", what.failure_count);
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
        Expr::Receive { name, timeout_ms, is_text } => {
            let timeout = timeout_ms.map(|ms| format!(" timeout {ms} ms")).unwrap_or_default();
            format!("recv {name:?}{}{timeout}", if *is_text { " as text" } else { "" })
        }
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
        Expr::Patched { change, body } => format!("if patched {change:?} {}", expr(body)),
        Expr::Fail { .. } => "fail".to_owned(),
    }
}
