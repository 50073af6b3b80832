//! Programs on the engine: a workflow and a task that run their input, through the public API only.

use std::sync::{Arc, Mutex, PoisonError};

use abide::FailureKind;
use abide::prelude::*;
use abide::testing::transact;
use abide_engine::Runtime;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::api::{ApiName, called};
use crate::edition::Edition;
use crate::history::{Closure, Draw, Draws, Spot};
use crate::interpret::{self, Host, Outcome, Started, Trouble};
use crate::program::{Child, Code, Job, Pauses, Program, Step, Transact, Way, Work, keyed, mix, old_names};
use crate::table::{self, TableKind};

/// Sets the options of a start, a run or a child: builders of four types with the same methods. A
/// task has one more.
macro_rules! with_options {
    ($calls:ident, task $type:ident = $builder:expr, $options:expr) => {{
        let options: $crate::program::StartWith = $options;
        let mut builder = $builder;
        if let Some(retry) = options.retry {
            $crate::api::called!($calls, builder = $type::retry($crate::code::policy(retry)));
        }
        $crate::code::with_options!($calls, workflow $type = builder, options)
    }};
    ($calls:ident, workflow $type:ident = $builder:expr, $options:expr) => {{
        let options: $crate::program::StartWith = $options;
        let mut builder = $builder;
        $crate::api::called!($calls, builder = $type::priority(options.priority));
        if let Some(delay_ms) = options.delay_ms {
            $crate::api::called!($calls, builder = $type::delay(abide::ms(delay_ms)));
        }
        if let Some(deadline_ms) = options.deadline_ms {
            $crate::api::called!($calls, builder = $type::deadline(abide::ms(deadline_ms)));
        }
        if options.is_aside {
            $crate::api::called!($calls, builder = $type::lane($crate::code::LANES[1]));
        }
        if options.is_demanding {
            $crate::api::called!($calls, builder = $type::requires([$crate::code::CAPABILITY]));
        }
        if options.is_tagged {
            $crate::api::called!($calls, builder = $type::tag("sort", "tagged"));
        }
        builder
    }};
}
pub(crate) use with_options;

/// The lanes of executions; not every worker serves the second one.
pub(crate) const LANES: [&str; 2] = ["default", "aside"];

/// The capability that some executions require and not every worker has.
pub(crate) const CAPABILITY: &str = "simulated";

/// Records the effects of closures outside of anything that the engine records: in the simulator's
/// memory, or in a file that outlives every process.
pub(crate) trait Witness: Send + Sync {
    /// Records that a closure begins, and returns how often it has begun on all machines.
    fn begin(&self, closure: Closure) -> u64;
    /// Changes the number of this machine's closures that are under way.
    fn count_open(&self, change: i64);
    /// Records that a program drew a random number or a UUID.
    fn drew(&self, draw: Draw, value: u64);
    /// Records that the code of a run learned the id of a child. Optional.
    fn named(&self, _parent: &str, _run: u32, _child: &str) {}
    /// Records that a run opens an operation while others are open. Optional.
    fn beside(&self, _opened: &'static str, _open: &[&'static str]) {}
    /// Records that these calls came to a recorded outcome. Optional.
    fn came(&self, _calls: &[ApiName]) {}
}

/// The state that the world shares with the code on one machine.
#[derive(Clone)]
pub(crate) struct Probe {
    pub(crate) witness: Arc<dyn Witness>,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// Where transaction steps write.
    pub(crate) table: TableKind,
    /// The number of this machine's build, and its edition of every program.
    pub(crate) edition: (usize, Edition),
}

/// The payload of a panicking closure.
pub(crate) const PANIC: &str = "it panics";

/// Runs a program.
#[workflow(name = "program")]
pub(crate) async fn program(ctx: Ctx, program: Program) -> Result<u64> {
    let program = ctx.state::<Probe>().edition.1.of(&program);
    interpret::run(&OnCtx(ctx, Mutex::default(), Draws::default()), &program).await
}

/// Runs one closure as a task.
#[task(name = "job")]
pub(crate) async fn job(ctx: Ctx, job: Job) -> Result<u64> {
    let probe = ctx.state::<Probe>();
    let spot = Spot { id: ctx.id().to_owned(), run: ctx.run_number(), node: job.node, edition: 0 };
    let outcome = probe.work(&job.work, spot, ctx.idempotency_key()).await;
    probe.witness.came(&[("Ctx", "state"), ("Ctx", "id"), ("Ctx", "run_number")]);
    outcome.map(|written: Written<false>| written.0)
}

/// Reads the writes of transaction steps: how often each key was written.
#[workflow(name = "read-table")]
pub(crate) async fn read_table(ctx: Ctx, keys: Vec<String>) -> Result<Vec<u64>> {
    match ctx.state::<Probe>().table {
        TableKind::Sqlite => {
            ctx.sqlite("read", move |table| keys.iter().map(|key| table::count_of(table, key)).collect())
                .await
        }
        TableKind::Postgres => {
            transact(&ctx, "read", move |table| {
                keys.iter().map(|key| table::server::count_of(table::server::of(table)?, key)).collect()
            })
            .await
        }
        TableKind::Memory => {
            transact(&ctx, "read", move |table| {
                let table = table::memory::of(table)?;
                Ok(keys.iter().map(|key| table::memory::count_of(table, key)).collect())
            })
            .await
        }
    }
}

impl Probe {
    async fn work<const TEXT: bool>(&self, work: &Work, spot: Spot, key: String) -> Result<Written<TEXT>> {
        let nth = self.witness.begin(Closure { spot, key, is_blocking: false });
        let _open = Open::new(self);
        if work.delay_ms > 0 {
            self.runtime.sleep(ms(work.delay_ms)).await;
        }
        result_of(work, nth)
    }
}

fn result_of<const TEXT: bool>(work: &Work, nth: u64) -> Result<Written<TEXT>> {
    if nth > u64::from(work.failure_count) {
        return Ok(Written(mix(work.value, nth)));
    }
    match work.way {
        Way::Error => Err(Error::new(PASSING)),
        Way::Fatal => Err(Error::fatal("it fails for good")),
        Way::Panic => std::panic::panic_any(PANIC.to_owned()),
        Way::Unwritable => Ok(Written(UNWRITABLE - work.value % UNWRITABLE_COUNT)),
    }
}

/// The message of an error that another attempt may cure.
pub(crate) const PASSING: &str = "it fails";

/// The last number that cannot be serialized, and how many such numbers exist: each fails in its
/// own way.
const UNWRITABLE: u64 = u64::MAX;
const UNWRITABLE_COUNT: u64 = 3;
const NOT_FINITE: u64 = UNWRITABLE - 1;
const NOTHING: u64 = UNWRITABLE - 2;

/// The result of a step: a number, or the same number as a text.
struct Written<const TEXT: bool>(u64);

impl<const TEXT: bool> Serialize for Written<TEXT> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.0 {
            UNWRITABLE => Err(serde::ser::Error::custom("it cannot be written")),
            NOT_FINITE => serializer.serialize_f64(f64::NAN),
            NOTHING => serializer.serialize_some(&None::<u64>),
            value if TEXT => value.to_string().serialize(serializer),
            value => value.serialize(serializer),
        }
    }
}

impl<'de, const TEXT: bool> Deserialize<'de> for Written<TEXT> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        if TEXT {
            let text = String::deserialize(deserializer)?;
            return text.parse().map(Self).map_err(serde::de::Error::custom);
        }
        u64::deserialize(deserializer).map(Self)
    }
}

/// A number, or the same number as a text, as code with another result type recorded it.
struct Either(u64);

impl<'de> Deserialize<'de> for Either {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
        number.map(Self).ok_or_else(|| serde::de::Error::custom("it is no number"))
    }
}

/// Counts a closure as under way until dropped, however the closure ends.
struct Open<'a>(&'a Probe);

impl<'a> Open<'a> {
    fn new(probe: &'a Probe) -> Self {
        probe.witness.count_open(1);
        Self(probe)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.witness.count_open(-1);
    }
}

/// The engine as a host of programs, its open operations, and its draws.
struct OnCtx(Ctx, Mutex<Vec<&'static str>>, Draws);

/// Keeps an operation open until dropped, however the operation ends.
struct Beside<'a>(&'a OnCtx, &'static str);

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        let mut open = self.0.1.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = open.iter().position(|word| *word == self.1) {
            open.swap_remove(place);
        }
    }
}

impl OnCtx {
    fn spot(&self, node: u32) -> Spot {
        Spot { id: self.0.id().to_owned(), run: self.0.run_number(), node, edition: self.probe().edition.0 }
    }

    fn probe(&self) -> &Probe {
        self.0.state()
    }

    /// Opens an operation for as long as the guard lives.
    fn opened(&self, word: &'static str) -> Beside<'_> {
        let mut open = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        self.probe().witness.beside(word, &open);
        open.push(word);
        Beside(self, word)
    }

    fn drew(&self, draw: Draw, call: ApiName, value: u64) -> u64 {
        self.probe().witness.drew(draw, value);
        self.probe().witness.came(&[call]);
        value
    }

    /// Returns the id that the program chooses for a child, if it chooses one.
    fn child_id(&self, child: &Child) -> Option<String> {
        child.id(self.0.id(), self.0.run_number())
    }

    /// Counts calls once they come to a recorded outcome. An interrupt is not recorded as theirs.
    fn counted<'a>(
        &'a self,
        calls: Vec<ApiName>,
        wanted: impl Future<Output = Result<u64>> + Send + 'a,
    ) -> Outcome<'a, Self> {
        // A shield is not open itself; the operations inside it are.
        let word = calls.first().map(|(_, method)| *method).filter(|word| *word != "shield");
        Box::pin(async move {
            let _open = word.map(|word| self.opened(word));
            let outcome = wanted.await;
            let is_interrupted =
                |error: &Error| matches!(error.kind(), FailureKind::Cancelled | FailureKind::Deadline);
            if !outcome.as_ref().is_err_and(is_interrupted) {
                self.probe().witness.came(&calls);
            }
            outcome
        })
    }

    fn step_with<'a, 's: 'a, const TEXT: bool>(
        &'a self,
        step: &'a Step,
        mut wanted: abide::Step<'s, Written<TEXT>>,
        mut calls: Vec<ApiName>,
    ) -> Outcome<'a, Self> {
        if let Some(retry) = step.retry {
            called!(calls, wanted = Step::retry(policy(retry)));
        }
        if step.is_asked {
            called!(calls, wanted = Step::retry_if(|error| error.message() == PASSING));
        }
        if let Some(timeout_ms) = step.timeout_ms {
            called!(calls, wanted = Step::timeout(ms(timeout_ms)));
        }
        if step.has_input {
            called!(calls, wanted = Step::input(&step.node));
        }
        if let Some(key) = keyed(&step.name).1 {
            called!(calls, wanted = Step::key(key));
        }
        for old in old_names(&step.name) {
            called!(calls, wanted = Step::renamed_from(old));
        }
        if step.upgrades {
            called!(calls, wanted = Step::upgrade(|old: Either| Ok(Written(old.0))));
        }
        self.counted(calls, async move { wanted.await.map(|written| written.0) })
    }
}

impl OnCtx {
    fn step_of<'a, const TEXT: bool>(&'a self, step: &'a Step, borrowed: &'a u64) -> Outcome<'a, Self> {
        let mut run_count_here = 0;
        let wanted = self.0.step(keyed(&step.name).0, move || {
            // Kept between attempts, and borrowed from the caller.
            run_count_here += 1;
            let key = self.0.idempotency_key();
            draw_inside(&self.0, "step", step.node);
            async move {
                assert!(run_count_here > 0 && *borrowed < u64::MAX);
                self.probe().work::<TEXT>(&step.work, self.spot(step.node), key).await
            }
        });
        let calls = vec![("Ctx", "step"), ("Ctx", "idempotency_key")];
        self.step_with(step, wanted, calls)
    }

    fn blocking_of<'a, const TEXT: bool>(&'a self, step: &'a Step) -> Outcome<'a, Self> {
        let (probe, spot, work) = (self.probe().clone(), self.spot(step.node), step.work);
        let ctx = self.0.clone();
        let wanted = self.0.blocking(keyed(&step.name).0, move || {
            let (node, key) = (spot.node, ctx.idempotency_key());
            let nth = probe.witness.begin(Closure { spot: spot.clone(), key, is_blocking: true });
            draw_inside(&ctx, "step", node);
            let _open = Open::new(&probe);
            result_of::<TEXT>(&work, nth)
        });
        self.step_with(step, wanted, vec![("Ctx", "blocking")])
    }
}

impl OnCtx {
    fn receive_of<'a, const TEXT: bool>(
        &'a self,
        name: &'a str,
        timeout_ms: Option<u64>,
    ) -> Outcome<'a, Self> {
        let mut calls = vec![("Ctx", "recv")];
        let olds = old_names(name);
        let (name, key) = keyed(name);
        let mut wanted = self.0.recv::<Written<TEXT>>(name);
        if let Some(key) = key {
            called!(calls, wanted = Receive::key(key));
            // The types are equal: a signal that one of them cannot read, the other cannot read
            // either.
            called!(calls, wanted = Receive::upgrade(|old: Written<TEXT>| Ok(old)));
        }
        for old in olds {
            called!(calls, wanted = Receive::renamed_from(old));
        }
        if let Some(timeout_ms) = timeout_ms {
            called!(calls, wanted = Receive::timeout(ms(timeout_ms)));
        }
        self.counted(calls, async move { wanted.await.map(|written| written.0) })
    }
}

/// Draws inside of every other closure. The value follows from the step alone, and the draw changes
/// nothing outside.
fn draw_inside(ctx: &Ctx, kind: &str, node: u32) {
    if node.is_multiple_of(2) {
        return;
    }
    let inside = Some(format!("{kind} {}", ctx.idempotency_key()));
    let draw = |nth, is_uuid| {
        let (id, inside) = (ctx.id().to_owned(), inside.clone());
        Draw { id, run: ctx.run_number(), nth, is_uuid, inside }
    };
    let witness = &ctx.state::<Probe>().witness;
    witness.drew(draw(0, false), ctx.random());
    witness.drew(draw(1, true), uuid_number(ctx));
}

fn uuid_number(ctx: &Ctx) -> u64 {
    ctx.uuid().bytes().fold(0, |sum, byte| mix(sum, u64::from(byte)))
}

impl Host for OnCtx {
    type Error = Error;

    fn step<'a>(&'a self, step: &'a Step, borrowed: &'a u64) -> Outcome<'a, Self> {
        if step.is_text {
            self.step_of::<true>(step, borrowed)
        } else {
            self.step_of::<false>(step, borrowed)
        }
    }

    fn blocking<'a>(&'a self, step: &'a Step) -> Outcome<'a, Self> {
        if step.is_text { self.blocking_of::<true>(step) } else { self.blocking_of::<false>(step) }
    }

    fn transact<'a>(&'a self, wanted: &'a Transact) -> Outcome<'a, Self> {
        let (key, fails) = (table_key(&self.spot(wanted.node)), wanted.fails);
        let (name, own) = keyed(&wanted.name);
        let (ctx, node) = (self.0.clone(), wanted.node);
        let given = move |count| {
            draw_inside(&ctx, "transaction", node);
            if fails { Err(Error::fatal("it wrote, and fails")) } else { Ok(count) }
        };
        if self.probe().table == TableKind::Sqlite {
            let mut counted = self.0.sqlite(name, move |table| given(table::count_up(table, &key)?));
            let mut calls = vec![("Ctx", "sqlite")];
            if let Some(own) = own {
                called!(calls, counted = Transact::key(own));
                called!(calls, counted = Transact::upgrade(|old: Either| Ok(old.0)));
                // No operation ever had this name.
                let before = format!("before-{name}");
                called!(calls, counted = Transact::renamed_from(&before));
            }
            for old in old_names(&wanted.name) {
                called!(calls, counted = Transact::renamed_from(old));
            }
            return self.counted(calls, counted);
        }
        let is_server = self.probe().table == TableKind::Postgres;
        let counted = transact(&self.0, name, move |table| match is_server {
            true => given(table::server::count_up(table::server::of(table)?, &key)?),
            false => given(table::memory::count_up(table::memory::of(table)?, &key)),
        });
        let counted = match own {
            Some(own) => counted.key(own),
            None => counted,
        };
        let counted = old_names(&wanted.name).into_iter().fold(counted, abide::Transact::renamed_from);
        Box::pin(async move {
            let _open = self.opened("sqlite");
            counted.await
        })
    }

    fn sleep<'a>(&'a self, duration_ms: u64, name: Option<&'a str>) -> Outcome<'a, Self> {
        let mut calls = vec![("Ctx", "sleep")];
        let mut sleep = self.0.sleep(ms(duration_ms));
        for old in name.map(old_names).unwrap_or_default() {
            called!(calls, sleep = Sleep::renamed_from(old));
        }
        if let Some((name, key)) = name.map(keyed) {
            called!(calls, sleep = Sleep::named(name));
            if let Some(key) = key {
                called!(calls, sleep = Sleep::key(key));
            }
        }
        self.counted(calls, async move { sleep.await.map(|()| 0) })
    }

    fn sleep_until(&self, micros: u64) -> Outcome<'_, Self> {
        let at = Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX));
        self.counted(vec![("Ctx", "sleep_until")], async move { self.0.sleep_until(at).await.map(|()| 0) })
    }

    fn receive<'a>(&'a self, name: &'a str, timeout_ms: Option<u64>, is_text: bool) -> Outcome<'a, Self> {
        match is_text {
            true => self.receive_of::<true>(name, timeout_ms),
            false => self.receive_of::<false>(name, timeout_ms),
        }
    }

    fn run<'a>(&'a self, child: &'a Child) -> Outcome<'a, Self> {
        let mut calls = vec![("Ctx", "run")];
        macro_rules! run {
            ($sort:ident $code:expr, $input:expr) => {{
                let mut wanted = with_options!(calls, $sort RunChild = self.0.run($code, $input), child.options);
                if let Some(id) = self.child_id(child) {
                    called!(calls, wanted = RunChild::id(id));
                }
                if let Some(key) = child.key {
                    called!(calls, wanted = RunChild::key(&key));
                    called!(calls, wanted = RunChild::renamed_from(concat!("old-", stringify!($code))));
                }
                if child.is_any {
                    called!(calls, wanted = RunChild::any_input());
                    called!(calls, wanted = RunChild::upgrade(|old: Either| Ok(old.0)));
                }
                self.counted(calls, wanted)
            }};
        }
        match &child.code {
            Code::Workflow(input) => run!(workflow program, (**input).clone()),
            Code::Task(input) => run!(task job, *input),
        }
    }

    fn start<'a>(&'a self, child: &'a Child) -> BoxFuture<'a, Result<Started<'a, Self>>> {
        let mut calls = vec![("Ctx", "start"), ("Child", "id")];
        macro_rules! start {
            ($sort:ident $code:expr, $input:expr) => {{
                let mut wanted =
                    with_options!(calls, $sort StartChild = self.0.start($code, $input), child.options);
                if let Some(id) = self.child_id(child) {
                    called!(calls, wanted = StartChild::id(id));
                }
                if let Some(key) = child.key {
                    called!(calls, wanted = StartChild::key(&key));
                    called!(calls, wanted = StartChild::renamed_from(concat!("old-", stringify!($code))));
                }
                if child.is_any {
                    called!(calls, wanted = StartChild::any_input());
                    called!(calls, wanted = StartChild::upgrade(|old: Either| Ok(old.0)));
                }
                wanted.boxed()
            }};
        }
        let wanted = match &child.code {
            Code::Workflow(input) => start!(workflow program, (**input).clone()),
            Code::Task(input) => start!(task job, *input),
        };
        Box::pin(async move {
            let open = self.opened("start");
            let started = wanted.await?;
            drop(open);
            self.probe().witness.named(self.0.id(), self.0.run_number(), started.id());
            self.probe().witness.came(&calls);
            let awaited: Started<'a, Self> =
                Box::new(move || self.counted(vec![("Child", "result")], started.result()));
            Ok(awaited)
        })
    }

    fn shield<'a>(&'a self, cleanup: Outcome<'a, Self>) -> Outcome<'a, Self> {
        self.counted(vec![("Ctx", "shield")], self.0.shield(cleanup))
    }

    fn continue_as_new(&self, next: Program) -> Outcome<'_, Self> {
        Box::pin(async move {
            let _open = self.opened("continue_as_new");
            self.0.continue_as_new(next).await
        })
    }

    fn now_micros(&self) -> u64 {
        self.probe().witness.came(&[("Ctx", "now")]);
        u64::try_from(self.0.now().as_micros()).unwrap_or_default()
    }

    fn random(&self) -> u64 {
        let draw = self.2.random(self.0.id(), self.0.run_number());
        self.drew(draw, ("Ctx", "random"), self.0.random())
    }

    fn uuid(&self) -> u64 {
        let draw = self.2.uuid(self.0.id(), self.0.run_number());
        self.drew(draw, ("Ctx", "uuid"), uuid_number(&self.0))
    }

    fn patched(&self, change: &str) -> bool {
        let is_taken = self.0.patched(change);
        self.probe().witness.came(&[("Ctx", "patched")]);
        is_taken
    }

    fn failure(&self, node: u32) -> Error {
        Error::new(format!("the program fails at {node}"))
    }
}

impl Trouble for Error {
    fn is_cancelled(&self) -> bool {
        self.is_cancelled()
    }

    fn number(&self) -> u64 {
        self.kind() as u64
    }
}

/// Returns the key under which a transaction step counts.
pub(crate) fn table_key(spot: &Spot) -> String {
    format!("{}#{}#{}#{}", spot.id, spot.run, spot.node, spot.edition)
}

pub(crate) fn policy(pauses: Pauses) -> Retry {
    let count = if pauses.is_forever { Retry::ATTEMPTS_UNLIMITED } else { pauses.attempt_count_max };
    let retry = Retry::fixed(ms(pauses.delay_ms)).max_attempts(count);
    let retry = retry.jitter(f64::from(pauses.jitter) / 100.0);
    pauses.elapsed_ms_max.map_or(retry.clone(), |elapsed_ms| retry.max_elapsed(ms(elapsed_ms)))
}
