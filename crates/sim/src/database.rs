//! The SQLite database that the machines of a world share: one file, and one store for each
//! machine, as with real processes. No store has a thread. Tasks of its machine drive its writer,
//! so the seed decides which operations share a transaction.

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide::{ms, rusqlite};
use abide_core::Bounds;
use abide_engine::sim::Sim;
use abide_engine::{Moment, Runtime};
use abide_sqlite::stepped::{Fate, Stepped, Stranger};
use abide_sqlite::{Options, SqliteStore};
use abide_store::{Answer, Error};
use futures_util::FutureExt;
use futures_util::future::select;
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};

use crate::scenario::{SqliteSpec, Wrong};
use crate::table;
use crate::world::{World, page_bounds};

/// How often a process checks for writes by others without having been notified.
const LOOK_EVERY_MS: u64 = 1_000;
/// How long after a write to the log a process checks.
const LOOK_AFTER_MS: u64 = 4;
/// How long a writer waits for others before it tries again.
const BUSY_PAUSE_MS: u64 = 5;

/// The file, and everything that the world itself does to it.
pub(crate) struct Database {
    folder: TempDir,
    options: Options,
    /// Counts writes, like the notifications of the operating system to processes that watch a
    /// file.
    written: watch::Sender<u64>,
    state: Mutex<DatabaseState>,
}

#[derive(Default)]
struct DatabaseState {
    batch_count: u64,
    full_until: Option<Moment>,
    stranger: Option<Stranger>,
}

impl Database {
    /// Creates an empty database.
    pub(crate) fn new(spec: &SqliteSpec, bounds: Bounds) -> Self {
        let memory = Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let options = Options {
            bounds,
            page_bounds: page_bounds(),
            queue_count_max: spec.queue_count_max,
            batch_count_max: spec.batch_count_max,
            wal_bytes_max: spec.log_bytes_max,
            // A limit in real time. A simulated closure never comes near it.
            transaction_ms_max: 3_600_000,
            ..Options::default()
        };
        let folder = folder.expect("a folder can be made");
        Self { folder, options, written: watch::Sender::new(0), state: Mutex::default() }
    }

    /// Opens the store of one process.
    pub(crate) fn open(&self, sim: &Sim, machine: u32) -> Result<Arc<SqliteStore>, String> {
        let process = sim.process(machine);
        let clock = process.clone();
        let tell = move || process.moment().since(Moment::new(Duration::ZERO));
        let opened = SqliteStore::stepped(&self.path(), clock, self.options.clone(), tell);
        opened.map_err(|error| error.to_string())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("world.db")
    }

    /// Creates the table of the programs. Creating it in mid-run would make every prepared
    /// statement stale.
    pub(crate) fn make_table(&self) {
        let made = rusqlite::Connection::open(self.path())
            .and_then(|connection| connection.execute_batch(table::CREATE));
        made.expect("a table can be made");
    }

    fn lock(&self) -> MutexGuard<'_, DatabaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies every process that watches the file of a write.
    pub(crate) fn wrote(&self) {
        self.written.send_modify(|count| *count += 1);
    }

    /// Lets another process begin a write that does not end.
    fn lock_out(&self) {
        if let Some(stranger) = Stranger::writing(&self.path()) {
            self.lock().stranger = Some(stranger);
        }
    }

    /// Ends the write of the other process.
    pub(crate) fn let_in(&self) {
        drop(self.lock().stranger.take());
    }

    /// Ends every fault.
    pub(crate) fn heal(&self) {
        self.lock().full_until = None;
        self.let_in();
    }

    /// Returns the number of the next batch.
    pub(crate) fn next_batch(&self) -> u64 {
        let mut state = self.lock();
        state.batch_count += 1;
        state.batch_count
    }

    fn is_full(&self, now: Moment) -> bool {
        self.lock().full_until.is_some_and(|until| now < until)
    }
}

impl World {
    /// Decides the fate of the next transaction of a machine.
    fn decide_batch(self: &Arc<Self>, machine: u32, database: &Database) -> Fate {
        let number = database.next_batch();
        let fate = match self.wrong_batch(machine, number) {
            Some(Wrong::KillInBatch { restart_ms }) => {
                self.doom(machine, restart_ms);
                Fate::Killed
            }
            Some(Wrong::CommitUnknown { happens: true }) => Fate::Unheard,
            Some(Wrong::CommitUnknown { happens: false }) => Fate::Unwritten,
            Some(Wrong::Full { ms: for_ms }) => {
                database.lock().full_until = Some(self.runtime().moment().after(ms(for_ms)));
                Fate::Full
            }
            Some(Wrong::Locked { ms: for_ms }) => {
                self.lock_out(database, for_ms);
                Fate::Committed
            }
            _ if database.is_full(self.runtime().moment()) => Fate::Full,
            _ => Fate::Committed,
        };
        self.history.trace((machine, "batch", fate as u8, self.now_micros()));
        fate
    }

    fn lock_out(self: &Arc<Self>, database: &Database, for_ms: u64) {
        database.lock_out();
        let world = self.clone();
        self.runtime().spawn(Box::pin(async move {
            world.runtime().sleep(ms(for_ms)).await;
            world.database.iter().for_each(Database::let_in);
        }));
    }
}

/// The store of one machine, and the operations that wait for its writer.
pub(crate) struct Process {
    pub(crate) store: Arc<SqliteStore>,
    watched: Mutex<VecDeque<Watched>>,
}

/// An operation under way. It receives the fate of a transaction and returns whether that
/// transaction answered it.
type Watched = Box<dyn FnMut(Fate) -> bool + Send>;

impl Process {
    /// Opens the database on a machine and starts the machine's tasks.
    pub(crate) fn boot(world: &Arc<World>, database: &Database, machine: u32) -> Result<Arc<Self>, String> {
        let store = database.open(&world.sim, machine)?;
        let process = Arc::new(Self { store, watched: Mutex::default() });
        let runtime = world.sim.process(machine);
        runtime.spawn(Box::pin(write(world.clone(), process.clone(), machine)));
        runtime.spawn(Box::pin(listen(world.clone(), process.clone(), machine)));
        Ok(process)
    }

    /// Returns an answer that is observed as soon as it exists, whether or not a caller still waits
    /// for it.
    pub(crate) fn watch<T: Send + 'static>(
        &self,
        mut answer: Answer<T>,
        what: &'static str,
        observe: impl Fn(&T) + Send + 'static,
    ) -> Answer<T> {
        let (sender, receiver) = oneshot::channel();
        let mut sender = Some(sender);
        self.lock().push_back(Box::new(move |fate| {
            let Some(answered) = (&mut answer).now_or_never() else { return false };
            if let Ok(value) = &answered {
                observe(value);
            }
            let told = match fate {
                Fate::Unheard => Err(Error::Indeterminate { what, source: "disk I/O error".into() }),
                _ => answered,
            };
            // The receiver may be gone.
            let _ = sender.take().map(|sender| sender.send(told));
            true
        }));
        Answer::new(async move {
            match receiver.await {
                Ok(answer) => answer,
                Err(_) => pending().await,
            }
        })
    }

    /// Runs the next transaction. Every operation that it answered is observed before anything else
    /// happens.
    fn step(&self, database: &Database, fate: Fate) -> Stepped {
        let stepped = self.store.step(fate);
        let watched = std::mem::take(&mut *self.lock());
        let left: VecDeque<Watched> =
            watched.into_iter().filter_map(|mut one| (!one(fate)).then_some(one)).collect();
        // Operations that arrived meanwhile go last.
        let came = std::mem::replace(&mut *self.lock(), left);
        self.lock().extend(came);
        database.wrote();
        stepped
    }

    /// Runs all waiting operations, unless another process writes.
    pub(crate) fn flush(&self, database: &Database) {
        while self.step(database, Fate::Committed) == Stepped::Done {}
    }

    /// Kills the process: the waiting operations never happen.
    pub(crate) fn crash(&self) {
        self.store.crash();
        let watched = std::mem::take(&mut *self.lock());
        drop(watched);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does the work of the writer's thread.
async fn write(world: Arc<World>, process: Arc<Process>, machine: u32) {
    let Some(database) = &world.database else { return };
    let runtime = world.sim.process(machine);
    loop {
        poll_fn(|context| process.store.poll_jobs(context)).await;
        let fate = world.decide_batch(machine, database);
        if process.step(database, fate) == Stepped::Busy {
            runtime.sleep(ms(BUSY_PAUSE_MS)).await;
        }
    }
}

/// Does the work of the thread that is notified when others have written.
async fn listen(world: Arc<World>, process: Arc<Process>, machine: u32) {
    let Some(database) = &world.database else { return };
    let runtime = world.sim.process(machine);
    let mut written = database.written.subscribe();
    loop {
        let told = pin!(written.changed());
        select(told, runtime.sleep(ms(LOOK_EVERY_MS))).await;
        runtime.sleep(ms(LOOK_AFTER_MS)).await;
        process.store.look_up();
    }
}

/// Returns the findings of a check of the whole database.
pub(crate) fn verify(world: &World) -> Vec<String> {
    let Some(truth) = &world.truth else { return Vec::new() };
    match truth.verify() {
        Ok(found) => {
            let damaged = world.lock().damage.ids.clone();
            let is_known = |problem: &String| damaged.iter().any(|id| problem.contains(&format!("{id:?}")));
            let problems = found.problems.into_iter().filter(|problem| !is_known(problem));
            problems.map(|problem| format!("the database: {problem}")).collect()
        }
        Err(error) => vec![format!("the database cannot be verified: {error}")],
    }
}
