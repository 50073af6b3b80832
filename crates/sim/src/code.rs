//! Programs on the engine: a workflow and a task that do what they are given, over nothing but what users have.

use std::sync::Arc;

use abide::prelude::*;
use abide::testing::transact;
use abide_engine::Runtime;
use abide_store::memory::MemoryTable;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::history::Spot;
use crate::interpret::{self, Host, Outcome, Started, Trouble};
use crate::program::{Child, Code, Job, Pauses, Program, Step, Transact, Way, Work, mix};
use crate::table;

/// A start, a run or a child with its options: builders of four types with the same methods.
macro_rules! with_options {
    ($builder:expr, $options:expr) => {{
        let options: $crate::program::StartWith = $options;
        let mut builder = $builder.priority(options.priority);
        if let Some(delay_ms) = options.delay_ms {
            builder = builder.delay(abide::ms(delay_ms));
        }
        if let Some(deadline_ms) = options.deadline_ms {
            builder = builder.deadline(abide::ms(deadline_ms));
        }
        if let Some(retry) = options.retry {
            builder = builder.retry($crate::code::policy(retry));
        }
        builder
    }};
}
pub(crate) use with_options;

/// Sees what closures do, outside of anything that the engine records: in the simulator's memory, or in a file that outlives every process.
pub(crate) trait Witness: Send + Sync {
    /// A closure begins; how often it has begun now, whoever began it.
    fn begin(&self, spot: &Spot, key: String) -> u64;
    /// So many more closures of this machine are under way, or fewer.
    fn count_open(&self, change: i64);
    /// A program was given a random number or a UUID.
    fn drew(&self, spot: Spot, value: u64);
}

/// What the world around it shares with the code on one machine.
#[derive(Clone)]
pub(crate) struct Probe {
    pub(crate) witness: Arc<dyn Witness>,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// Transaction steps write to a table of SQLite, and not to that of the memory store.
    pub(crate) is_sqlite: bool,
}

/// What closures panic with.
pub(crate) const PANIC: &str = "it panics";

/// Runs a program.
#[workflow(name = "program")]
pub(crate) async fn program(ctx: Ctx, program: Program) -> Result<u64> {
    interpret::run(&OnCtx(ctx), &program).await
}

/// Runs one closure as a task.
#[task(name = "job")]
pub(crate) async fn job(ctx: Ctx, job: Job) -> Result<u64> {
    let probe = ctx.state::<Probe>();
    let spot = Spot { id: ctx.id().to_owned(), run: ctx.run_number(), node: job.node };
    probe.work(&job.work, spot, ctx.idempotency_key()).await
}

/// Reads what transaction steps have written: how often each key was.
#[workflow(name = "read-table")]
pub(crate) async fn read_table(ctx: Ctx, keys: Vec<String>) -> Result<Vec<u64>> {
    if ctx.state::<Probe>().is_sqlite {
        return ctx
            .sqlite("read", move |table| keys.iter().map(|key| table::count_of(table, key)).collect())
            .await;
    }
    transact(&ctx, "read", move |table| {
        let table: &MemoryTable = table.downcast_ref().ok_or_else(|| Error::fatal("there is no table"))?;
        Ok(keys.iter().map(|key| count_of(table, key)).collect())
    })
    .await
}

/// How often a transaction step has written.
fn count_of(table: &MemoryTable, key: &str) -> u64 {
    table.get(key).and_then(|text| text.parse().ok()).unwrap_or_default()
}

impl Probe {
    async fn work(&self, work: &Work, spot: Spot, key: String) -> Result<u64> {
        let nth = self.witness.begin(&spot, key);
        let _open = Open::new(self);
        if work.delay_ms > 0 {
            self.runtime.sleep(ms(work.delay_ms)).await;
        }
        result_of(work, nth)
    }
}

fn result_of(work: &Work, nth: u64) -> Result<u64> {
    if nth > u64::from(work.failure_count) {
        return Ok(mix(work.value, nth));
    }
    match work.way {
        Way::Error => Err(Error::new("it fails")),
        Way::Fatal => Err(Error::fatal("it fails for good")),
        Way::Panic => std::panic::panic_any(PANIC.to_owned()),
    }
}

/// A closure under way: gone with it, however it ends.
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

/// The engine as a host of programs.
struct OnCtx(Ctx);

impl OnCtx {
    fn spot(&self, node: u32) -> Spot {
        Spot { id: self.0.id().to_owned(), run: self.0.run_number(), node }
    }

    fn probe(&self) -> &Probe {
        self.0.state()
    }

    fn drew(&self, node: u32, value: u64) -> u64 {
        self.probe().witness.drew(self.spot(node), value);
        value
    }
}

impl Host for OnCtx {
    type Error = Error;

    fn step<'a>(&'a self, step: &'a Step, borrowed: &'a u64) -> Outcome<'a, Self> {
        let mut run_count_here = 0;
        let mut wanted = self.0.step(&step.name, move || {
            // Kept from attempt to attempt, and borrowed from whoever made the step.
            run_count_here += 1;
            let key = self.0.idempotency_key();
            async move {
                assert!(run_count_here > 0 && *borrowed < u64::MAX);
                self.probe().work(&step.work, self.spot(step.node), key).await
            }
        });
        if let Some(retry) = step.retry {
            wanted = wanted.retry(policy(retry));
        }
        if let Some(timeout_ms) = step.timeout_ms {
            wanted = wanted.timeout(ms(timeout_ms));
        }
        if step.has_input {
            wanted = wanted.input(&step.node);
        }
        wanted.boxed()
    }

    fn blocking<'a>(&'a self, step: &'a Step) -> Outcome<'a, Self> {
        let (probe, spot, work) = (self.probe().clone(), self.spot(step.node), step.work);
        let key = format!("blocking {spot:?}");
        let wanted = self.0.blocking(&step.name, move || {
            let nth = probe.witness.begin(&spot, key);
            let _open = Open::new(&probe);
            result_of(&work, nth)
        });
        match step.retry {
            Some(retry) => wanted.retry(policy(retry)).boxed(),
            None => wanted.boxed(),
        }
    }

    fn transact<'a>(&'a self, wanted: &'a Transact) -> Outcome<'a, Self> {
        let (key, fails) = (table_key(&self.spot(wanted.node)), wanted.fails);
        let given = move |count| if fails { Err(Error::fatal("it wrote, and fails")) } else { Ok(count) };
        if self.probe().is_sqlite {
            let counted = self.0.sqlite(&wanted.name, move |table| given(table::count_up(table, &key)?));
            return counted.boxed();
        }
        transact(&self.0, &wanted.name, move |table| {
            let table: &MemoryTable =
                table.downcast_ref().ok_or_else(|| Error::fatal("there is no table"))?;
            let count = count_of(table, &key) + 1;
            table.put(&key, &count.to_string());
            given(count)
        })
        .boxed()
    }

    fn sleep<'a>(&'a self, duration_ms: u64, name: Option<&'a str>) -> Outcome<'a, Self> {
        let sleep = self.0.sleep(ms(duration_ms));
        let sleep = match name {
            Some(name) => sleep.named(name),
            None => sleep,
        };
        Box::pin(async move { sleep.await.map(|()| 0) })
    }

    fn sleep_until(&self, micros: u64) -> Outcome<'_, Self> {
        let at = Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX));
        Box::pin(async move { self.0.sleep_until(at).await.map(|()| 0) })
    }

    fn receive<'a>(&'a self, name: &'a str, timeout_ms: Option<u64>) -> Outcome<'a, Self> {
        let wanted = self.0.recv::<u64>(name);
        match timeout_ms {
            Some(timeout_ms) => wanted.timeout(ms(timeout_ms)).boxed(),
            None => wanted.boxed(),
        }
    }

    fn run<'a>(&'a self, child: &'a Child) -> Outcome<'a, Self> {
        match &child.code {
            Code::Workflow(input) => {
                with_options!(self.0.run(program, (**input).clone()), child.options).boxed()
            }
            Code::Task(input) => with_options!(self.0.run(job, *input), child.options).boxed(),
        }
    }

    fn start<'a>(&'a self, child: &'a Child) -> BoxFuture<'a, Result<Started<'a, Self>>> {
        Box::pin(async move {
            let child = match &child.code {
                Code::Workflow(input) => {
                    with_options!(self.0.start(program, (**input).clone()), child.options).await?
                }
                Code::Task(input) => with_options!(self.0.start(job, *input), child.options).await?,
            };
            let awaited: Started<'a, Self> = Box::new(move || child.result().boxed());
            Ok(awaited)
        })
    }

    fn shield<'a>(&'a self, cleanup: Outcome<'a, Self>) -> Outcome<'a, Self> {
        self.0.shield(cleanup).boxed()
    }

    fn continue_as_new(&self, next: Program) -> Outcome<'_, Self> {
        self.0.continue_as_new(next).boxed()
    }

    fn now_micros(&self) -> u64 {
        u64::try_from(self.0.now().as_micros()).unwrap_or_default()
    }

    fn random(&self, node: u32) -> u64 {
        self.drew(node, self.0.random())
    }

    fn uuid(&self, node: u32) -> u64 {
        self.drew(node, self.0.uuid().bytes().fold(0, |sum, byte| mix(sum, u64::from(byte))))
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

/// Where a transaction step counts.
pub(crate) fn table_key(spot: &Spot) -> String {
    format!("{}#{}#{}", spot.id, spot.run, spot.node)
}

pub(crate) fn policy(pauses: Pauses) -> Retry {
    Retry::fixed(ms(pauses.delay_ms)).max_attempts(pauses.attempt_count_max)
}
