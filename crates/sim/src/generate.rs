//! Random scenarios.

use abide_store::Prng;

use crate::edition::{Alter, Change, Edition};
use crate::program::{Child, Code, Expr, Job, Pauses, Program, StartWith, Step, Transact, Way, Work};
use crate::scenario::{
    Action, Actor, Ask, Deploy, Fault, Root, Scenario, SqliteSpec, StoreSpec, Target, When, WorkerSpec, Wrong,
};

mod later;

/// The names of signals.
pub(crate) const SIGNALS: [&str; 2] = ["q0", "q1"];

/// How long a session lives without a heartbeat.
pub(crate) const SESSION_TTL_MS: u64 = 3_000;

/// The distance between two seeds whose scenario runs on SQLite.
const SQLITE_EVERY: u64 = 8;

/// The distance between two seeds in which the machine falls after each commit to a journal.
const RELENTLESS_EVERY: u64 = 50;

/// The most commits after which the machine falls.
const RELENTLESS_COUNT: u64 = 200;

/// The time of the last action and of the last fault that depends on the clock.
const LAST_MS: u64 = 12_000;

/// The duration of a task that cannot end before its deadline.
const LONG_MS: u64 = 60_000;

/// Returns the scenario of a seed.
pub fn scenario(seed: u64) -> Scenario {
    let mut chance = Chance { prng: Prng::new(seed), next_node: 0 };
    let worker_count = 1 + chance.below(3);
    let client_count = 1 + chance.below(2);
    let roots: Vec<_> = (0..4 + chance.below(4)).map(|nth| chance.root(nth)).collect();
    let actions = chance.actions(roots.len(), worker_count, client_count);
    let inbox_count_max = if chance.is(100) { 4 } else { 10_000 };
    let scenario = Scenario {
        seed,
        order: 0,
        workers: (0..worker_count).map(|_| chance.worker()).collect(),
        client_count: u32::try_from(client_count).unwrap_or(1),
        roots,
        actions,
        faults: chance.faults(),
        inbox_count_max,
        store: StoreSpec::Memory,
        editions: Vec::new(),
    };
    let scenario = later::more(relentless(with_deploys(scenario)));
    if seed.is_multiple_of(SQLITE_EVERY) { on_sqlite(scenario) } else { scenario }
}

/// Adds deployments of other builds of the program to some scenarios.
fn with_deploys(mut scenario: Scenario) -> Scenario {
    // A separate generator: without the deployments the scenario stays the same.
    let mut chance = Chance { prng: Prng::new(scenario.seed.rotate_left(32) ^ !0), next_node: 0 };
    if !chance.is(300) {
        return scenario;
    }
    scenario.editions = (0..1 + chance.below(2)).map(|_| chance.edition()).collect();
    for _ in 0..1 + chance.below(4) {
        let edition = chance.index(scenario.editions.len() + 1);
        let what = Ask::Deploy(Deploy { edition, is_killed: chance.is(500) });
        let by = Actor::Worker(u32::try_from(chance.index(scenario.workers.len())).unwrap_or(0));
        let (number, at_ms) = (1 + scenario.actions.len() as u64, chance.below(LAST_MS / 2));
        scenario.actions.push(Action { number, at_ms, by, what, dropped_at_poll: None, is_text: false });
    }
    scenario
}

/// Makes the machine fall after each commit to a journal in some scenarios, so that every prefix of
/// every journal is replayed.
fn relentless(mut scenario: Scenario) -> Scenario {
    if scenario.seed % RELENTLESS_EVERY == RELENTLESS_EVERY - 1 {
        let kill = |nth| Fault { when: When::Record(nth), what: Wrong::Kill { restart_ms: 1 } };
        scenario.faults = (1..=RELENTLESS_COUNT).map(kill).collect();
    }
    scenario
}

/// The things that a scenario lacks.
pub(crate) struct Lack {
    pub(crate) work: bool,
    pub(crate) faults: bool,
}

/// Adds to a scenario more of the things that it lacks.
pub(crate) fn longer(mut scenario: Scenario, lack: &Lack, round: u64) -> Scenario {
    const ROOT_COUNT: usize = 4;
    const FAULT_COUNT: usize = 4;
    let mut chance = Chance { prng: Prng::new(scenario.seed ^ (round << 48)), next_node: 0 };
    for _ in 0..if lack.work { ROOT_COUNT } else { 0 } {
        let nth = scenario.roots.len();
        scenario.roots.push(chance.root(nth as u64));
        // Two processes ask for the start: one of them may be dead just then.
        for by in [Actor::Client(0), Actor::Worker(0)] {
            let number = 1 + scenario.actions.len() as u64;
            // Later in later rounds: every process may be dead until then.
            let at_ms = chance.below(LAST_MS) + (round / 4) * LAST_MS;
            let what = Ask::Start(nth);
            scenario.actions.push(Action { number, at_ms, by, what, dropped_at_poll: None, is_text: false });
        }
    }
    for _ in 0..if lack.faults { FAULT_COUNT } else { 0 } {
        // Earlier from round to round: in some worlds little happens before all faults are over.
        let mut number = chance.early((200 / round).max(8));
        let is_taken = |number| scenario.faults.iter().any(|fault| fault.when == When::Operation(number));
        while is_taken(number) {
            number += 1;
        }
        let (when, what) = (When::Operation(number), chance.wrong_operation());
        scenario.faults.push(Fault { when, what });
    }
    scenario
}

/// Moves a scenario to SQLite, where other things go wrong too. A scenario that is already on
/// SQLite stays as it is.
pub fn on_sqlite(mut scenario: Scenario) -> Scenario {
    if scenario.store != StoreSpec::Memory {
        return scenario;
    }
    // A separate generator: in memory the scenario stays the same.
    let mut chance = Chance { prng: Prng::new(!scenario.seed), next_node: 0 };
    scenario.store = StoreSpec::Sqlite(chance.sqlite());
    scenario.faults.extend(
        (0..3 + chance.below(8))
            .map(|_| Fault { when: When::Batch(chance.early(200)), what: chance.wrong_batch() }),
    );
    later::with_damage(scenario)
}

/// Moves a scenario to the store in memory, without the faults that only SQLite has.
pub fn on_memory(mut scenario: Scenario) -> Scenario {
    scenario.store = StoreSpec::Memory;
    let is_of_sqlite =
        |fault: &Fault| matches!(fault.when, When::Batch(_)) || matches!(fault.what, Wrong::Damage { .. });
    scenario.faults.retain(|fault| !is_of_sqlite(fault));
    scenario
}

struct Chance {
    prng: Prng,
    next_node: u32,
}

/// The most levels of expressions and children.
#[derive(Clone, Copy)]
struct Depth {
    expr: u32,
    child: u32,
}

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.prng.number() % end.max(1)
    }

    fn index(&mut self, end: usize) -> usize {
        self.prng.below(end)
    }

    fn is(&mut self, permille: usize) -> bool {
        self.prng.chance(permille)
    }

    fn maybe<T>(&mut self, permille: usize, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.is(permille).then(|| make(self))
    }

    fn node(&mut self) -> u32 {
        self.next_node += 1;
        self.next_node
    }

    fn worker(&mut self) -> WorkerSpec {
        WorkerSpec {
            execution_count_max: if self.is(150) { 1 + self.index(3) } else { 1_000 },
            request_count_max: if self.is(150) { 1 + self.index(3) } else { 1_000 },
            park_after_ms: *self.prng.pick(&[0, 50, 300, 1_000]),
            grace_ms: *self.prng.pick(&[0, 100, 2_000]),
            skew_ms: if self.is(250) { self.skew() } else { 0 },
            is_able: self.is(750),
            mail_bytes_max: self.maybe(100, |chance| 1 + chance.index(40)),
            deadline_grace_ms: self.maybe(200, |chance| *chance.prng.pick(&[0, 100, 2_000])),
            default_retry: self.maybe(150, Self::pauses),
        }
    }

    fn edition(&mut self) -> Edition {
        const ALTERS: [Alter; 8] = [
            Alter::Add,
            Alter::AddAlike,
            Alter::Remove,
            Alter::Swap,
            Alter::Rename,
            Alter::Retype,
            Alter::Redeclare,
            Alter::Reshape,
        ];
        let count = 1 + self.below(3);
        let mut change = |_| Change { at: self.index(12), what: *self.prng.pick(&ALTERS) };
        Edition { changes: (0..count).map(&mut change).collect() }
    }

    fn skew(&mut self) -> i64 {
        *self.prng.pick(&[-4_000, -1_000, -300, -20, 20, 300, 1_000, 4_000])
    }

    fn root(&mut self, nth: u64) -> Root {
        let code = match self.is(120) {
            true => Code::Task(self.job()),
            false => Code::Workflow(Box::new(self.program(Depth { expr: 3, child: 2 }))),
        };
        let options = self.options(&code);
        Root { id: format!("r{nth}"), code, options }
    }

    fn options(&mut self, code: &Code) -> StartWith {
        StartWith {
            priority: *self.prng.pick(&[0, 0, 0, -1, 5]),
            delay_ms: self.maybe(120, |chance| *chance.prng.pick(&[10, 300, 3_000])),
            deadline_ms: self.deadline_ms(code),
            retry: match code {
                Code::Task(_) => self.maybe(700, Self::pauses),
                Code::Workflow(_) => None,
            },
            is_aside: self.is(80),
            is_demanding: self.is(60),
            is_tagged: self.is(100),
        }
    }

    /// Draws a deadline. A task that takes `LONG_MS` always has one.
    fn deadline_ms(&mut self, code: &Code) -> Option<u64> {
        let is_long = matches!(code, Code::Task(job) if job.work.delay_ms == LONG_MS);
        self.maybe(if is_long { 1_000 } else { 100 }, |chance| *chance.prng.pick(&[50, 1_000, 8_000]))
    }

    fn program(&mut self, depth: Depth) -> Program {
        let body = self.sequence(depth);
        let next = self.maybe(120, |chance| {
            let depth = Depth { expr: depth.expr.saturating_sub(1), ..depth };
            Box::new(chance.program(depth))
        });
        Program { carry: self.below(1_000), body, next, held: None }
    }

    fn sequence(&mut self, depth: Depth) -> Expr {
        let count = 1 + self.below(4);
        Expr::Sequence((0..count).map(|_| self.expr(depth)).collect())
    }

    fn expr(&mut self, depth: Depth) -> Expr {
        let inner = Depth { expr: depth.expr.saturating_sub(1), ..depth };
        match self.below(if depth.expr == 0 { 70 } else { 100 }) {
            0..22 => Expr::Step(self.step("s")),
            22..27 => Expr::Blocking(self.step("b")),
            27..33 => self.transact(),
            33..40 => Expr::Sleep {
                ms: self.pause(),
                name: self.maybe(500, |chance| {
                    let name = format!("z{}", chance.below(3));
                    chance.keyed(name)
                }),
            },
            40..43 => Expr::SleepUntil { ms: self.pause() },
            43..50 => self.receive(),
            50..58 if depth.child > 0 => Expr::Run(self.child(depth)),
            58..62 if depth.child > 0 => Expr::Start {
                child: self.child(depth),
                meanwhile: Box::new(self.expr(Depth { expr: 0, ..depth })),
                is_awaited: self.is(700),
            },
            50..64 => Expr::Step(self.step("s")),
            64 => Expr::Random(self.node()),
            65 => Expr::Uuid(self.node()),
            66 => Expr::Now,
            67 => Expr::Value(self.below(1_000)),
            68 | 69 => match self.is(300) {
                true => Expr::Fail { node: self.node() },
                false => Expr::Now,
            },
            70..78 => Expr::Join(self.parts(inner)),
            78..86 => Expr::Select(self.parts(inner)),
            86..92 => Expr::Unordered(self.parts(inner)),
            92..97 => Expr::Catch {
                body: Box::new(self.expr(inner)),
                otherwise: Box::new(self.cleanup(inner)),
                is_stubborn: self.is(300),
            },
            97 => Expr::Shield(Box::new(self.expr(inner))),
            _ => self.sequence(inner),
        }
    }

    fn cleanup(&mut self, depth: Depth) -> Expr {
        let plain = self.expr(Depth { expr: 0, ..depth });
        if self.is(500) { Expr::Shield(Box::new(plain)) } else { plain }
    }

    fn parts(&mut self, depth: Depth) -> Vec<Expr> {
        let count = 2 + self.below(2);
        (0..count).map(|_| self.expr(depth)).collect()
    }

    fn pause(&mut self) -> u64 {
        *self.prng.pick(&[1, 20, 100, 400, 900, 1_500, 4_000])
    }

    fn receive(&mut self) -> Expr {
        let name = self.prng.pick(&SIGNALS).to_string();
        let timeout_ms = self.maybe(600, |chance| 50 + chance.pause());
        Expr::Receive { name: self.keyed(name), timeout_ms, is_text: false }
    }

    fn transact(&mut self) -> Expr {
        let name = format!("t{}", self.below(2));
        Expr::Transact(Transact { node: self.node(), name: self.keyed(name), fails: self.is(120) })
    }

    /// Returns the name of an operation, sometimes with a key.
    fn keyed(&mut self, name: String) -> String {
        match self.maybe(150, |chance| chance.below(3)) {
            Some(key) => format!("{name}[k{key}]"),
            None => name,
        }
    }

    fn step(&mut self, letter: &str) -> Step {
        let name = format!("{letter}{}", self.below(3));
        let timeout_ms = match letter {
            // The thread of a blocking step cannot be stopped.
            "b" => None,
            _ => self.maybe(150, |chance| *chance.prng.pick(&[40, 300, 2_000])),
        };
        let mut work = self.work();
        if self.is(40) {
            work.failure_count = 1;
            work.way = Way::Unwritable;
        }
        let mut retry = self.maybe(400, Self::pauses);
        if let Some(retry) = retry.as_mut().filter(|_| timeout_ms.is_none()) {
            // A step that always takes too long would never end.
            retry.is_forever = self.is(150);
        }
        Step {
            node: self.node(),
            name: self.keyed(name),
            work,
            retry,
            timeout_ms,
            has_input: self.is(200),
            is_text: false,
            upgrades: false,
            is_asked: self.is(150),
        }
    }

    fn work(&mut self) -> Work {
        Work {
            value: self.below(1_000),
            delay_ms: if self.is(400) { *self.prng.pick(&[1, 30, 200, 800, 2_500]) } else { 0 },
            failure_count: if self.is(200) { 1 + self.prng.number() as u32 % 3 } else { 0 },
            way: *self.prng.pick(&[Way::Error, Way::Error, Way::Error, Way::Fatal, Way::Panic]),
        }
    }

    fn pauses(&mut self) -> Pauses {
        Pauses {
            attempt_count_max: 1 + self.prng.number() as u32 % 4,
            delay_ms: *self.prng.pick(&[0, 10, 200, 1_500]),
            is_forever: false,
            jitter: *self.prng.pick(&[0, 0, 0, 30, 100]),
            elapsed_ms_max: self.maybe(150, |chance| *chance.prng.pick(&[0, 300, 2_000])),
        }
    }

    fn job(&mut self) -> Job {
        let mut work = self.work();
        if self.is(50) {
            work.delay_ms = LONG_MS;
        }
        Job { node: self.node(), work }
    }

    fn child(&mut self, depth: Depth) -> Child {
        let code = match self.is(400) {
            true => Code::Task(self.job()),
            false => {
                let depth = Depth { expr: depth.expr.min(2), child: depth.child - 1 };
                Code::Workflow(Box::new(self.program(depth)))
            }
        };
        let options = self.options(&code);
        let named = self.maybe(120, Self::node);
        let (key, is_any) = (self.maybe(150, |chance| chance.below(3)), self.is(100));
        Child { code, options, named, key, is_any, taken: None }
    }

    /// Draws the actions. One action per root starts it for sure; the others are random.
    fn actions(&mut self, root_count: usize, worker_count: u64, client_count: u64) -> Vec<Action> {
        let mut asked: Vec<(u64, Ask)> = Vec::new();
        for root in 0..root_count {
            let at_ms = *self.prng.pick(&[0, 0, 10, 500, 3_000]);
            asked.push((at_ms, if self.is(300) { Ask::Run(root) } else { Ask::Start(root) }));
        }
        for _ in 0..8 + self.below(20) {
            let at_ms = if self.is(500) { self.below(3_000) } else { self.below(LAST_MS) };
            let ask = self.ask(root_count);
            // Several signals in a row, because their order counts.
            let count = if matches!(ask, Ask::Signal(..)) && self.is(350) { 2 + self.below(2) } else { 1 };
            asked.extend((0..count).map(|nth| (at_ms + nth, ask.clone())));
        }
        let mut actions = Vec::new();
        for (number, (at_ms, what)) in (1..).zip(asked) {
            let by = match self.is(500) || what == Ask::Shutdown {
                true => Actor::Worker(u32::try_from(self.below(worker_count)).unwrap_or(0)),
                false => Actor::Client(u32::try_from(self.below(client_count)).unwrap_or(0)),
            };
            let dropped_at_poll = self.maybe(120, |chance| 1 + chance.prng.number() as u32 % 4);
            actions.push(Action { number, at_ms, by, what, dropped_at_poll, is_text: false });
        }
        actions
    }

    fn ask(&mut self, root_count: usize) -> Ask {
        let root = self.index(root_count);
        let target = Target(self.index(24));
        match self.below(100) {
            0..35 => Ask::Signal(target, self.prng.pick(&SIGNALS).to_string()),
            35..43 => Ask::Pause(target),
            43..51 => Ask::Resume(target),
            51..58 => Ask::Cancel(target),
            58..61 => Ask::Terminate(target),
            61..67 => Ask::Retry(target),
            67 => Ask::Unblock(target),
            68..71 => {
                if self.is(500) {
                    Ask::Rerun(target)
                } else {
                    Ask::Edit(target)
                }
            }
            71..79 => Ask::Result(target),
            79..82 => Ask::Status(target),
            82..84 => Ask::Why(target),
            84 => Ask::List,
            85..89 => Ask::Start(root),
            89 => Ask::Named(root),
            90..93 => Ask::Run(root),
            93..96 => Ask::Conflict(root),
            _ => Ask::Shutdown,
        }
    }

    fn faults(&mut self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for _ in 0..8 + self.below(24) {
            let (when, what) = match self.below(100) {
                0..50 => (When::Operation(self.early(300)), self.wrong_operation()),
                50..75 => (When::Poll(self.early(700)), self.wrong_poll()),
                75..92 => (When::Notice(self.early(40)), self.wrong_notice()),
                _ => (When::Time(self.below(LAST_MS)), self.wrong_time()),
            };
            faults.push(Fault { when, what });
        }
        faults
    }

    /// Draws a number from 1 to `end`, more often a small one: most happens at the beginning.
    fn early(&mut self, end: u64) -> u64 {
        let most = 1 + self.below(end);
        1 + self.below(most)
    }

    fn restart_ms(&mut self) -> u64 {
        *self.prng.pick(&[1, 50, 1_000, 5_000])
    }

    fn wrong_operation(&mut self) -> Wrong {
        match self.below(100) {
            0..15 => Wrong::Unavailable,
            15..35 => Wrong::AnswerLost,
            35..50 => Wrong::AnswerLate { ms: *self.prng.pick(&[1, 30, 500, 4_000]) },
            50..62 => Wrong::HappensLate { ms: *self.prng.pick(&[1, 30, 500, 4_000]) },
            62..74 => Wrong::Repeated,
            74..84 => Wrong::KillBefore { restart_ms: self.restart_ms() },
            84..94 => Wrong::Kill { restart_ms: self.restart_ms() },
            _ => self.freeze(),
        }
    }

    fn freeze(&mut self) -> Wrong {
        let most = 2 * SESSION_TTL_MS;
        Wrong::Freeze { ms: SESSION_TTL_MS + self.below(most) }
    }

    fn wrong_poll(&mut self) -> Wrong {
        match self.below(100) {
            0..60 => Wrong::Kill { restart_ms: self.restart_ms() },
            60..85 => self.freeze(),
            _ => Wrong::Skew { ms: self.skew() },
        }
    }

    fn wrong_notice(&mut self) -> Wrong {
        *self.prng.pick(&[
            Wrong::NoticeLost,
            Wrong::NoticeRepeated,
            Wrong::NoticeLate,
            Wrong::NoticeOvertakes,
        ])
    }

    fn sqlite(&mut self) -> SqliteSpec {
        SqliteSpec {
            queue_count_max: if self.is(200) { 1 + self.index(3) } else { 1_000 },
            batch_count_max: if self.is(300) { 1 + self.index(3) } else { 1_000 },
            log_bytes_max: *self.prng.pick(&[100_000, 400_000, 64 << 20]),
        }
    }

    fn wrong_batch(&mut self) -> Wrong {
        match self.below(100) {
            0..35 => Wrong::KillInBatch { restart_ms: self.restart_ms() },
            35..55 => Wrong::CommitUnknown { happens: true },
            55..70 => Wrong::CommitUnknown { happens: false },
            70..85 => Wrong::Full { ms: *self.prng.pick(&[1, 100, 2_000]) },
            _ => Wrong::Locked { ms: *self.prng.pick(&[1, 100, 2_000, 6_000]) },
        }
    }

    fn wrong_time(&mut self) -> Wrong {
        match self.below(100) {
            0..40 => Wrong::Outage { ms: *self.prng.pick(&[100, 1_000, 4_000]) },
            40..60 => Wrong::Unread { ms: *self.prng.pick(&[100, 1_000, 4_000]) },
            _ => Wrong::ClockStep { ms: self.skew() },
        }
    }
}
