//! Tests of workflows: an engine in memory, with a virtual clock.
//!
//! ```
//! use abide::prelude::*;
//!
//! #[workflow]
//! async fn patient(ctx: Ctx, days_to_wait: u64) -> Result<String> {
//!     ctx.sleep(days(days_to_wait)).await?;
//!     Ok("done".to_string())
//! }
//!
//! #[abide::test]
//! async fn a_month_passes_at_once(abide: Abide) -> Result<()> {
//!     assert_eq!(abide.run(patient, 30).await?, "done");
//!     Ok(())
//! }
//! ```

mod compare;
mod crash;
mod history;
mod replay;
mod tap;
mod test;

use std::any::Any;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use abide_core::{Bounds, Namespace, Timestamp};
pub use abide_engine::sim::Skew;
use abide_engine::sim::{Outside, Sim, Skipping, Still};
use abide_engine::{Kept, Runtime};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Store};
pub use crash::{Survived, crash_everywhere};
pub use history::{History, InvalidHistory};
pub use replay::{Replay, replay};
pub use test::Test;
use test::{or_panic, stands_still};

use crate::blocking::BlockingPool;
use crate::code::Value;
pub use crate::probe::MockCall;
use crate::store::{self, Purpose, StoreBounds};
use crate::{Abide, Builder, ClientError, Ctx, Result, Transact};

/// Runs `test` on a new engine in memory whose clock jumps to the next timer whenever nothing else
/// can be done.
///
/// Steps may use tokio: while one waits for the outside world, virtual time passes as real time
/// does. A test in which nothing can happen any more panics with the sentence of
/// [`why`](crate::Handle::why) of every open execution. [`#[abide::test]`](macro@crate::test)
/// expands to this function; [`Test`] has options.
///
/// # Panics
/// If the store cannot be made, or the test panics or stands still.
#[track_caller]
pub fn run<F, Fut>(test: F) -> Fut::Output
where
    F: FnOnce(Abide) -> Fut,
    Fut: Future,
{
    Test::new().run(test)
}

/// Several simulated machines on one store in memory: workers can be added, and crashed at any
/// moment.
///
/// The seed determines everything: the order in which tasks run, and every random number.
#[derive(Clone)]
pub struct Lab {
    sim: Sim,
    store: Arc<dyn Store>,
    machine_count: Arc<AtomicU32>,
    /// The namespaces of the machines so far.
    namespaces: Arc<Mutex<BTreeSet<Namespace>>>,
}

/// One machine of a [`Lab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine(u32);

impl Lab {
    /// Runs `test` in a new laboratory.
    ///
    /// # Panics
    /// If the test panics, or nothing can happen any more while it still waits. The message has the
    /// sentence of [`why`](crate::Handle::why) of every open execution. If the test or a step waits
    /// for the outside world, the panic comes after a minute of real time. A thread, or a job of
    /// `spawn_blocking`, that nobody awaits is not waited for.
    #[track_caller]
    pub fn run<F, Fut>(seed: u64, test: F) -> Fut::Output
    where
        F: FnOnce(Self) -> Fut,
        Fut: Future,
    {
        let (sim, tokio) = (Sim::new(seed), tokio_for_steps());
        let store = MemoryStore::new(Arc::new(sim.clone()), Bounds::default());
        sim.skip_rests(Idle(store.clone()), outside(&tokio, Test::PATIENCE));
        let lab = Self { sim, store, machine_count: Arc::default(), namespaces: Arc::default() };
        or_panic(lab.ran(&tokio, test))
    }

    fn ran<F, Fut>(self, tokio: &tokio::runtime::Runtime, test: F) -> Result<Fut::Output, String>
    where
        F: FnOnce(Self) -> Fut,
        Fut: Future,
    {
        let _inside = tokio.enter();
        let mut body = pin!(test(self.clone()));
        self.sim.try_block_on(body.as_mut()).map_err(|Still| {
            let namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).clone();
            stands_still(&self.sim, &*self.store, &namespaces)
        })
    }

    /// Runs `test` in a new laboratory on another store, for example one that injects faults.
    #[doc(hidden)]
    #[track_caller]
    pub fn run_on<F, Fut>(
        seed: u64,
        make: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>,
        test: F,
    ) -> Fut::Output
    where
        F: FnOnce(Self) -> Fut,
        Fut: Future,
    {
        let (sim, tokio) = (Sim::new(seed), tokio_for_steps());
        let store = make(Arc::new(sim.clone()));
        let lab = Self { sim, store, machine_count: Arc::default(), namespaces: Arc::default() };
        or_panic(lab.ran(&tokio, test))
    }

    /// Runs `test` on each store, in a laboratory of its own.
    #[doc(hidden)]
    #[track_caller]
    pub fn run_on_each<Fut: Future>(seed: u64, test: impl Fn(Self) -> Fut) {
        Self::run(seed, &test);
        let bounds = StoreBounds { bounds: Bounds::default(), busy_ms_max: None, transaction_ms_max: None };
        let sqlite = |clock| {
            store::open("sqlite::memory:", clock, bounds, Purpose::Work).expect("a store in memory opens")
        };
        Self::run_on(seed, sqlite, &test);
    }

    /// Opens a worker on a machine of its own.
    pub async fn worker(&self) -> std::result::Result<(Machine, Abide), ClientError> {
        self.worker_with(|builder| builder).await
    }

    /// Opens a worker with options on a machine of its own.
    pub async fn worker_with(
        &self,
        options: impl FnOnce(Builder) -> Builder,
    ) -> std::result::Result<(Machine, Abide), ClientError> {
        let machine = Machine(self.machine_count.fetch_add(1, Ordering::Relaxed) + 1);
        // Each machine counts as a deploy of its own, unless the test sets a build.
        let build = format!("machine-{}", machine.0);
        let builder = options(Abide::builder("memory").build(&build));
        let process = self.sim.process(machine.0);
        let abide = builder.simulated(process, Some(self.store.clone())).open().await?;
        Ok((machine, self.met(abide)))
    }

    /// Opens a client, which runs nothing, on a machine of its own.
    pub async fn client(&self) -> std::result::Result<Abide, ClientError> {
        let machine = self.machine_count.fetch_add(1, Ordering::Relaxed) + 1;
        let process = self.sim.process(machine);
        Abide::builder("memory")
            .simulated(process, Some(self.store.clone()))
            .client()
            .await
            .map(|abide| self.met(abide))
    }

    /// Remembers the namespace of a machine, for the message of a test that stands still.
    fn met(&self, abide: Abide) -> Abide {
        let namespace = abide.client_part().namespace().clone();
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace);
        abide
    }

    /// Stops a machine at once, at any point.
    pub fn crash(&self, machine: Machine) {
        self.sim.kill(machine.0);
    }

    /// Freezes a machine, as SIGSTOP does: time passes without it.
    pub fn freeze(&self, machine: Machine) {
        self.sim.freeze(machine.0);
    }

    /// Lets a frozen machine continue.
    pub fn thaw(&self, machine: Machine) {
        self.sim.thaw(machine.0);
    }

    /// Lets virtual time pass.
    pub async fn sleep(&self, duration: Duration) {
        self.sim.process(0).sleep(duration).await;
    }

    /// Returns the wall clock of the store.
    pub fn now(&self) -> Timestamp {
        self.sim.process(0).now()
    }

    /// Sets the wall clock of every machine forward. This passes no time.
    pub fn set_clock_forward(&self, by: Duration) {
        self.sim.set_clock_forward(by);
    }

    /// Sets the wall clock of every machine back.
    pub fn set_clock_back(&self, by: Duration) {
        self.sim.set_clock_back(by);
    }

    /// Makes the wall clock of one machine differ from that of the store.
    pub fn set_skew(&self, machine: Machine, skew: Skew) {
        self.sim.set_skew(machine.0, skew);
    }

    /// Returns a random number that follows from the seed.
    pub fn random(&self) -> u64 {
        self.sim.random()
    }

    /// Returns the store that all machines share.
    #[doc(hidden)]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

/// The store of a [`Lab`] at rest.
struct Idle(Arc<MemoryStore>);

impl Skipping for Idle {
    fn change_count(&self) -> u64 {
        self.0.change_count()
    }

    fn skip(&self, by: Duration) -> bool {
        self.0.skip(by)
    }

    fn longest_life(&self) -> Option<Duration> {
        self.0.longest_life()
    }
}

/// Returns a transaction step whose closure receives the connection of its store: a `MemoryTable`
/// in a [`Lab`], a `StepConnection` on SQLite.
#[doc(hidden)]
#[track_caller]
pub fn transact<F, T>(ctx: &Ctx, name: &str, run: F) -> Transact<T>
where
    F: FnOnce(&dyn Any) -> Result<T> + Clone + Send + 'static,
    T: Value + 'static,
{
    Transact::on_any(ctx.clone(), name, run)
}

/// Returns a builder for one process of a simulation. The process works in virtual time on a shared
/// store. Its blocking steps run in their turn instead of on threads, so that a seed repeats them
/// too.
#[doc(hidden)]
pub fn simulated(builder: Builder, runtime: Arc<dyn Runtime>, store: Arc<dyn Store>) -> Builder {
    builder.state(BlockingPool(runtime.clone())).simulated(runtime, Some(store))
}

/// Returns the store behind an [`Abide`].
#[doc(hidden)]
pub fn store(abide: &Abide) -> Arc<dyn Store> {
    abide.client_part().store().clone()
}

/// Returns how much a process has in memory: a simulation checks that nothing grows without bound.
#[doc(hidden)]
pub fn kept(abide: &Abide) -> Kept {
    abide.client_part().kept()
}

fn tokio_for_steps() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a tokio runtime for the steps of the test")
}

/// Returns the world outside a test: the tokio of its steps, for at most this real time.
fn outside(tokio: &tokio::runtime::Runtime, patience: Duration) -> Outside {
    let steps = tokio.handle().clone();
    let is_busy = Box::new(move || steps.metrics().num_alive_tasks() > 0);
    Outside { patience, is_busy }
}
