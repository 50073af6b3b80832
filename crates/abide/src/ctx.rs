//! The context that the code of a workflow or task receives.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Block, Name, Op, OpKind, OpUse, Timestamp};
use abide_engine::{Board, OpHandle, Request, Site, TaskAttempt, UserTransaction, run_key};
use serde::Serialize;

use crate::blocking::{BlockingPool, on_the_pool};
use crate::child::{RunChild, StartChild};
use crate::code::{Again, Code, Recorded, Value};
use crate::data;
use crate::error::{Error, Result};
use crate::next::ContinueAsNew;
use crate::op_name::OpName;
#[cfg(feature = "postgres")]
use crate::postgres_transaction::PostgresTransaction;
use crate::probe::{Probe, Stead};
use crate::shield::Shield;
use crate::signal::Receive;
use crate::sleep::Sleep;
#[cfg(feature = "sqlite")]
use crate::sqlite_transaction::SqliteTransaction;
use crate::step::Step;
use crate::transaction::Transact;

/// The context of a workflow or task: everything durable goes through it.
///
/// A task has no journal, so durable operations fail in it. Its state, id and idempotency key are
/// available.
#[derive(Clone)]
pub struct Ctx {
    home: Home,
    state: State,
}

#[derive(Clone)]
enum Home {
    Workflow(Board),
    Task(Arc<TaskHome>),
}

/// The attempt of a task, and how many random numbers it has drawn.
struct TaskHome {
    attempt: TaskAttempt,
    random_count: AtomicU64,
}

/// The application's own values, shared with every workflow and task by type.
#[derive(Clone, Default)]
pub struct State {
    values: Arc<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    /// The part of a test that watches operations and replaces closures.
    probe: Option<Arc<Probe>>,
}

impl State {
    pub(crate) fn with<S: Send + Sync + 'static>(&self, value: S) -> Self {
        let mut values = (*self.values).clone();
        values.insert(TypeId::of::<S>(), Arc::new(value));
        Self { values: Arc::new(values), probe: self.probe.clone() }
    }

    /// Returns the same values with the probe of a test.
    pub(crate) fn probed(&self, probe: &Arc<Probe>) -> Self {
        Self { values: self.values.clone(), probe: Some(probe.clone()) }
    }

    fn get<S: 'static>(&self) -> Option<&S> {
        self.values.get(&TypeId::of::<S>())?.downcast_ref()
    }
}

impl Ctx {
    pub(crate) fn of_workflow(board: Board, state: State) -> Self {
        Self { home: Home::Workflow(board), state }
    }

    pub(crate) fn of_task(attempt: TaskAttempt, state: State) -> Self {
        let home = TaskHome { attempt, random_count: AtomicU64::new(0) };
        Self { home: Home::Task(Arc::new(home)), state }
    }

    /// Runs a closure and records its result: after that it never runs again.
    ///
    /// The closure may borrow local variables, also across retries. Data that it keeps in them
    /// lasts as long as the execution stays in memory: an execution that waits for its next attempt
    /// for longer than `park_after` (1 s) leaves memory, and its code begins anew. The closure must
    /// not use durable operations itself: that blocks the execution, and drops the closure. Until
    /// its result is recorded it may run more than once; see [`Ctx::idempotency_key`].
    ///
    /// The code receives the value as it is read back from its recorded form, and so sees the same
    /// in a replay. A value that cannot be read back, or would be read as another one (a float that
    /// is not finite, `Some(None)`), is not recorded: the execution is blocked there, because the
    /// effect has happened.
    #[track_caller]
    pub fn step<'a, F, Fut, T>(&self, name: &str, run: F) -> Step<'a, T>
    where
        F: FnMut() -> Fut + Send + 'a,
        Fut: Future<Output = Result<T>> + Send + 'a,
        T: Value,
    {
        Step::new(self.clone(), name, run)
    }

    /// Runs a closure on a thread of the blocking pool and records its result. A timeout cannot
    /// stop the thread itself: its late result is discarded. A closure that is still waiting for a
    /// thread when the timeout passes does not begin.
    #[track_caller]
    pub fn blocking<F, T>(&self, name: &str, run: F) -> Step<'static, T>
    where
        F: FnOnce() -> Result<T> + Again + 'static,
        T: Value + 'static,
    {
        let simulated = self.state.get::<BlockingPool>().map(|pool| pool.0.clone());
        Step::new(self.clone(), name, move || on_the_pool(simulated.clone(), run.clone()))
    }

    /// Runs a closure inside the transaction that records its result: exactly once. Needs a SQLite
    /// store.
    ///
    /// The closure's writes to the database happen once. The closure itself may run again, as a
    /// clone, if the transaction was rolled back for a reason outside of it. Its effects elsewhere
    /// belong in a [`step`](Ctx::step).
    #[cfg(feature = "sqlite")]
    #[track_caller]
    pub fn sqlite<F, T>(&self, name: &str, run: F) -> Transact<T>
    where
        F: FnOnce(&SqliteTransaction<'_>) -> Result<T> + Again + 'static,
        T: Value + 'static,
    {
        Transact::on_sqlite(self.clone(), name, run)
    }

    /// Runs an async closure inside the transaction that records its result: exactly once. Needs a
    /// PostgreSQL store.
    ///
    /// ```no_run
    /// # use abide::prelude::*;
    /// # async fn reserve(ctx: &Ctx, item: String) -> Result<u64> {
    /// ctx.postgres("reserve", async move |tx| {
    ///     Ok(tx.execute("UPDATE stock SET free = free - 1 WHERE item = $1", &[&item]).await?)
    /// })
    /// .await
    /// # }
    /// ```
    ///
    /// The closure's writes to the database happen once. The closure itself may run again, as a
    /// clone, after a deadlock, a serialization failure or a cut connection. Its effects elsewhere
    /// belong in a [`step`](Ctx::step). Its future stays on one thread, so it need not be `Send`.
    #[cfg(feature = "postgres")]
    #[track_caller]
    pub fn postgres<F, T>(&self, name: &str, run: F) -> Transact<T>
    where
        F: AsyncFnOnce(&PostgresTransaction<'_>) -> Result<T> + Again + 'static,
        T: Value + 'static,
    {
        Transact::on_postgres(self.clone(), name, run)
    }

    /// Sleeps, for seconds or months; a crash does not restart the sleep.
    #[track_caller]
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(self.clone(), Request::Sleep(duration))
    }

    /// Sleeps until a point in time.
    #[track_caller]
    pub fn sleep_until(&self, at: Timestamp) -> Sleep {
        Sleep::new(self.clone(), Request::SleepUntil(at))
    }

    /// Waits for the next signal of this name, first in, first out. A signal that cannot be read as
    /// a `T` is recorded as set aside, and the wait continues with its original timeout: see the
    /// guide on signals of another type.
    #[track_caller]
    pub fn recv<T: Recorded + 'static>(&self, name: &str) -> Receive<T> {
        Receive::new(self.clone(), name)
    }

    /// Runs a child workflow or task and waits for its result. Dropping the future cancels the
    /// child.
    #[track_caller]
    pub fn run<C: Code>(&self, code: C, input: C::Input) -> RunChild<C> {
        RunChild::new(self.clone(), code, input)
    }

    /// Starts a child workflow or task; its result can be waited for later.
    #[track_caller]
    pub fn start<C: Code>(&self, code: C, input: C::Input) -> StartChild<C> {
        StartChild::new(self.clone(), code, input)
    }

    /// Runs clean-up that neither a cancellation nor a passed deadline interrupts: operations that
    /// it awaits continue, and new operations begin. After a deadline it has `deadline_grace_ms`,
    /// then it is dropped with the rest of the code. Children that are running by then are asked to
    /// stop in any case.
    pub fn shield<F: Future>(&self, cleanup: F) -> Shield<F> {
        Shield::new(self.board().cloned(), cleanup)
    }

    /// Ends this run and continues in the next one, which calls the workflow with `input` and
    /// begins with an empty journal: for workflows that never end. As the last expression:
    /// `ctx.continue_as_new(next).await`.
    ///
    /// The id stays, and so do unread signals, tags, route and deadline. Children of this run that
    /// have not ended are cancelled, as at every end of a run. A parent or handle that waits for
    /// the result waits for that of the last run. An input that the workflow cannot read blocks the
    /// next run.
    #[track_caller]
    pub fn continue_as_new<T>(&self, input: impl Serialize) -> ContinueAsNew<T> {
        ContinueAsNew::new(self.board().cloned(), data::encode(&input))
    }

    /// Whether this execution takes a change of its code: `true` if it reaches this place for the
    /// first time, `false` if it had passed it before the change was deployed.
    ///
    /// ```no_run
    /// # use abide::prelude::*;
    /// # async fn check(ctx: &Ctx) -> Result<()> {
    /// if ctx.patched("fraud-check") {
    ///     ctx.step("check-fraud", || async { Ok(()) }).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// The first answer of a run is recorded, and every later question of this name has the same
    /// answer. An execution has passed this place if it has recorded an operation behind it, or one
    /// that the code has not asked for yet. A step that ran there without being recorded proves
    /// nothing. Neither does a `recv` without a timeout that still waits: it records nothing before
    /// its signal comes.
    ///
    /// An older build that takes over does not ask this question, and runs its own code.
    ///
    /// Inside a step's closure the call blocks the execution, as every operation does there.
    ///
    /// # Panics
    /// In a task, which has no journal; the panic becomes the error of the task.
    #[track_caller]
    pub fn patched(&self, change: &str) -> bool {
        let Home::Workflow(board) = &self.home else {
            panic!("patched {change:?} needs a workflow: a task has no journal");
        };
        let site = Site::caller();
        match Name::of_field("name of the change", change) {
            Ok(change) => board.patched(&change, site),
            Err(invalid) => {
                board.block(Block::Limit { reason: format!("{invalid} (at {site})") });
                false
            }
        }
    }

    /// Returns the time of the last recorded result that this code has seen: the same in every
    /// replay. [`Timestamp::after`] and [`Timestamp::since`] compute with it.
    pub fn now(&self) -> Timestamp {
        match &self.home {
            Home::Workflow(board) => board.now(),
            Home::Task(home) => home.attempt.clock.now(),
        }
    }

    /// Returns a random number: the same in every replay, another one at each call and in each
    /// execution.
    ///
    /// Inside a step's closure the number comes from the step's own sequence, which every attempt
    /// begins anew. So the numbers that a closure draws, or no longer draws because its result is
    /// recorded, change nothing outside of it. The same holds for [`blocking`](Self::blocking)
    /// steps and transactions, and for a task, which draws the same numbers in every attempt.
    ///
    /// # Panics
    /// On a task or thread that the workflow's code, or one of its closures, has started itself:
    /// there the call cannot know whose sequence to use.
    pub fn random(&self) -> u64 {
        match &self.home {
            Home::Workflow(board) => board.random(),
            Home::Task(home) => {
                let nth = home.random_count.fetch_add(1, Ordering::Relaxed) + 1;
                let seed = format!("{}\u{0}{nth}", task_key(&home.attempt));
                abide_core::Payload::from(seed.as_str()).hash()
            }
        }
    }

    /// Returns a UUID (version 4) in its usual text form: the same in every replay. Like
    /// [`random`](Self::random), of which it takes two, it follows from namespace, id and run. So
    /// the same id in another store has the same UUIDs.
    ///
    /// # Panics
    /// Where [`random`](Self::random) does.
    pub fn uuid(&self) -> String {
        let (high, low) = (self.random(), self.random());
        let high = (high & !0xf000) | 0x4000;
        let low = (low & !(0b11 << 62)) | (0b10 << 62);
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }

    /// Returns a value that was passed to the builder's `state`.
    ///
    /// # Panics
    /// If the builder has no value of this type; the panic becomes the error of the step or
    /// workflow.
    #[track_caller]
    pub fn state<S: Send + Sync + 'static>(&self) -> &S {
        match self.state.get() {
            Some(state) => state,
            None if planted(Bug::StatePanicElsewhere) => panic_here(std::any::type_name::<S>()),
            // Not in a closure: the panic would point at the closure as its caller.
            None => panic!("no state of type {} was given to the builder", std::any::type_name::<S>()),
        }
    }

    /// Returns the id of this execution.
    pub fn id(&self) -> &str {
        match &self.home {
            Home::Workflow(board) => board.address().id.as_str(),
            Home::Task(home) => home.attempt.address.id.as_str(),
        }
    }

    /// Returns the number of this run, from 1.
    pub fn run_number(&self) -> u32 {
        match &self.home {
            Home::Workflow(board) => board.run(),
            Home::Task(home) => home.attempt.run,
        }
    }

    /// Returns a name for services that deduplicate. Inside the closure of a step, a
    /// [`blocking`](Self::blocking) step or a transaction, it names that step: the same name in
    /// every attempt and replay, and of no other step. In the workflow's own code it names the run,
    /// inside a task the whole task.
    ///
    /// # Panics
    /// On a task or thread that the closure has started itself, with `tokio::spawn` for example:
    /// there the call cannot know which step it belongs to. Take the key before, and move it there:
    ///
    /// ```no_run
    /// # use abide::prelude::*;
    /// # async fn pay(key: String) -> Result<u32> { Ok(1) }
    /// # #[workflow]
    /// # async fn order(ctx: Ctx) -> Result<u32> {
    /// ctx.step("pay", || async {
    ///     let key = ctx.idempotency_key();
    ///     tokio::spawn(pay(key)).await?
    /// })
    /// .await
    /// # }
    /// ```
    pub fn idempotency_key(&self) -> String {
        match &self.home {
            Home::Workflow(board) => board.idempotency_key(),
            Home::Task(home) => task_key(&home.attempt),
        }
    }

    /// Opens a durable operation; refuses if the code has no journal.
    pub(crate) fn open(&self, kind: OpKind, name: &OpName, request: Request) -> Opened {
        let word = kind.word();
        let (site, old_names) = (name.site, name.old_names.as_slice());
        let (board, (name, key)) = match (&self.home, &name.name) {
            (Home::Workflow(board), Ok(named)) => (board, named),
            (Home::Workflow(board), Err(invalid)) => {
                let reason = format!("{} (at {site})", invalid.told(kind));
                board.block(Block::Limit { reason });
                return Opened::Blocked;
            }
            (Home::Task(_), Ok((name, _))) => {
                let reason = format!("{word} {name:?} needs a workflow: a task has no journal");
                return Opened::Refused(Error::refusal(reason).arising_at(site));
            }
            (Home::Task(_), Err(invalid)) => {
                return Opened::Refused(Error::refusal(invalid.told(kind)).arising_at(site));
            }
        };
        match board.open(OpUse { kind, name, key: key.as_ref(), old_names }, request, site) {
            Some(handle) => {
                self.see(&handle, old_names);
                Opened::Open(handle)
            }
            None if board.is_gone() && !planted(Bug::LateCtxWaits) => {
                Opened::Refused(gone(board, format_args!("{word} {name:?}")).arising_at(site))
            }
            None => Opened::Blocked,
        }
    }

    /// Shows an opened operation to the test.
    pub(crate) fn see(&self, handle: &OpHandle, old_names: &[Name]) {
        if let Some(probe) = &self.state.probe {
            probe.open(self.id(), handle.op(), old_names);
        }
    }

    /// Returns a test's replacement for the closure of an attempt, if the test has one.
    pub(crate) fn stead(&self, op: &Op, attempt: u32) -> Option<Stead> {
        self.state.probe.as_ref()?.stead(self.id(), op, attempt)
    }

    /// Returns the request of a transaction step.
    pub(crate) fn transaction(&self, name: &OpName, run: &UserTransaction) -> Request {
        match &self.state.probe {
            Some(probe) => probe.transaction(self.id(), name, run),
            None => Request::Transaction(run.clone()),
        }
    }

    pub(crate) fn board(&self) -> Option<&Board> {
        match &self.home {
            Home::Workflow(board) => Some(board),
            Home::Task(_) => None,
        }
    }
}

/// Panics at this line, not at that of its caller.
fn panic_here(message: &str) -> ! {
    panic!("{message}")
}

fn task_key(attempt: &TaskAttempt) -> String {
    run_key(&attempt.address, attempt.run)
}

/// Returns the error for code that uses a context after its execution has ended or left memory.
/// Without it the code would wait forever.
pub(crate) fn gone(board: &Board, what: impl std::fmt::Display) -> Error {
    let id = &board.address().id;
    Error::refusal(format!(
        "{what} is used after its execution {id:?} has ended or left memory, where nothing can be recorded"
    ))
}

/// The result of opening an operation.
pub(crate) enum Opened {
    Open(OpHandle),
    /// The execution is blocked; the operation stays pending.
    Blocked,
    Refused(Error),
}
