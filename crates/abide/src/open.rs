//! Opening a store and starting a worker on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Bounds, InvalidName, Kind, Name, Namespace, Retry, text};
use abide_engine::{Client, Engine, Options, Runtime, TaskCode, TokioRuntime};
use abide_store::{Clock, IdleHook, Store};

use crate::abide::Abide;
use crate::build;
use crate::client_error::ClientError;
use crate::code::{KnownCode, Registered, Task, Workflow};
use crate::ctx::State;
use crate::store::{self, Purpose, StoreBounds};

/// The simulation's replacements for the real runtime and store.
type Simulated = (Arc<dyn Runtime>, Option<Arc<dyn Store>>);

/// Options of [`Abide::open`]. End with [`open`](Builder::open) or [`client`](Builder::client).
#[must_use = "nothing is opened until `open` is called"]
pub struct Builder {
    url: String,
    options: Options,
    state: State,
    explicit: Vec<Registered>,
    simulated: Option<Simulated>,
    busy_ms_max: Option<u64>,
    transaction_ms_max: Option<u64>,
    problem: Option<InvalidName>,
    build: Option<Name>,
    /// Replacements for tasks, by name.
    mocks: BTreeMap<String, Arc<dyn TaskCode>>,
    /// The only workflow to run.
    only: Option<String>,
}

/// The parts of a builder that a test sets.
pub(crate) struct TestParts {
    pub(crate) state: State,
    pub(crate) explicit: Vec<Registered>,
    pub(crate) tasks: BTreeMap<String, Arc<dyn TaskCode>>,
}

impl Builder {
    pub(crate) fn new(url: String) -> Self {
        Self {
            url,
            options: Options::default(),
            state: State::default(),
            explicit: Vec::new(),
            simulated: None,
            busy_ms_max: None,
            transaction_ms_max: None,
            problem: None,
            build: None,
            mocks: BTreeMap::new(),
            only: None,
        }
    }

    pub(crate) fn for_test(self, parts: TestParts) -> Self {
        Self { state: parts.state, explicit: parts.explicit, mocks: parts.tasks, ..self }
    }

    /// Runs this workflow and nothing else.
    pub(crate) fn only(self, workflow: &str) -> Self {
        Self { only: Some(workflow.to_owned()), ..self }
    }

    /// Prepares the worker for a virtual clock: nothing recurs, and a caller that ends the worker
    /// also ends its session.
    pub(crate) fn without_recurrence(mut self) -> Self {
        self.options = self.options.without_recurrence();
        self
    }

    /// Registers a workflow by hand; it takes the place of a linked one of the same name.
    pub fn workflow<W: Workflow>(mut self, _workflow: W) -> Self {
        self.explicit.push(Registered::of::<W>("the builder"));
        self
    }

    /// Registers a task by hand; it takes the place of a linked one of the same name.
    pub fn task<T: Task>(mut self, _task: T) -> Self {
        self.explicit.push(Registered::of::<T>("the builder"));
        self
    }

    /// Shares a value of the application's with every workflow and task: `ctx.state::<S>()`.
    pub fn state<S: Send + Sync + 'static>(mut self, value: S) -> Self {
        self.state = self.state.with(value);
        self
    }

    /// Sets the tenant that everything belongs to; `default` if unset.
    pub fn namespace(mut self, namespace: &str) -> Self {
        match Namespace::new(namespace) {
            Ok(namespace) => self.options.namespace = namespace,
            Err(invalid) => self.problem = Some(invalid),
        }
        self
    }

    /// Sets the name of this worker, for people.
    pub fn worker_name(mut self, name: &str) -> Self {
        match Name::of_field("worker name", name) {
            Ok(name) => self.options.worker_name = name,
            Err(invalid) => self.problem = Some(invalid),
        }
        self
    }

    /// Sets the version of this program (`build`). Each build tries a blocked execution once: its
    /// code may be the fixed one. If unset, the build follows from the executable's file and from
    /// the bounds.
    pub fn build(mut self, build: &str) -> Self {
        match Name::of_field("build", build) {
            Ok(build) => self.build = Some(build),
            Err(invalid) => self.problem = Some(invalid),
        }
        self
    }

    /// Sets the lanes that this worker serves; `default` if unset.
    pub fn lanes<'a>(mut self, lanes: impl IntoIterator<Item = &'a str>) -> Self {
        match lanes.into_iter().map(|lane| Name::of_field("lane", lane)).collect() {
            Ok(lanes) => self.options.lanes = lanes,
            Err(invalid) => self.problem = Some(invalid),
        }
        self
    }

    /// Sets the abilities of this worker beside running code: `requires` asks for them.
    pub fn capabilities<'a>(mut self, capabilities: impl IntoIterator<Item = &'a str>) -> Self {
        match capabilities.into_iter().map(|one| Name::of_field("capability", one)).collect() {
            Ok(capabilities) => self.options.capabilities = capabilities,
            Err(invalid) => self.problem = Some(invalid),
        }
        self
    }

    /// Sets the retry policy of steps and tasks that have none of their own; without it they run
    /// once.
    pub fn default_retry(mut self, retry: Retry) -> Self {
        self.options.default_retry = retry;
        self
    }

    /// Sets the largest input, result or signal, in bytes (`payload_bytes_max`, 4 MiB).
    pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
        self.options.bounds.payload_bytes_max = bytes;
        self
    }

    /// Sets how many bytes of the texts of one error are kept, and how large the value of a typed
    /// error may be (`failure_bytes_max`, 64 KiB). The rest is left out, with a note.
    /// `payload_bytes_max` bounds this too.
    pub fn failure_bytes_max(mut self, bytes: usize) -> Self {
        self.options.bounds.failure_bytes_max = bytes;
        self
    }

    /// Sets the most entries of one run's journal (`entry_count_max`, 10,000,000; at least 1). An
    /// execution that reaches the limit can end or continue as new; anything else blocks it, until
    /// a worker with a higher limit starts.
    pub fn entry_count_max(mut self, count: u64) -> Self {
        // A replay numbers entries with 32 bits, and blocking and unblocking an execution adds a
        // few entries beyond the limit.
        self.options.bounds.entry_count_max = count.min(u64::from(u32::MAX / 2));
        self
    }

    /// Sets the most places in the code that the entries of one run name (`site_count_max`, 1,000).
    /// An entry that comes from another place names none, which only `abide show` notices.
    pub fn site_count_max(mut self, count: u32) -> Self {
        self.options.bounds.site_count_max = count;
        self
    }

    /// Sets how long a terminate is left to the worker that holds an execution
    /// (`terminate_grace_ms`, 2,000). A step that blocks its thread for longer loses its execution.
    pub fn terminate_grace_ms(mut self, millis: u64) -> Self {
        self.options.bounds.terminate_grace_ms = millis;
        self
    }

    /// Sets how long code may wind down after it has seen its deadline pass (`deadline_grace_ms`,
    /// 10,000). Code that is still running then is dropped.
    pub fn deadline_grace_ms(mut self, millis: u64) -> Self {
        self.options.bounds.deadline_grace_ms = millis;
        self
    }

    /// Sets the most executions in memory at a time (`execution_count_max`, 5,000; at least 1).
    pub fn execution_count_max(mut self, count: usize) -> Self {
        self.options.execution_count_max = count;
        self
    }

    /// Sets how many bytes of the contents of unread messages one execution keeps in memory
    /// (`mail_bytes_max`, 1 MiB). Further contents are read again when the code wants them.
    pub fn mail_bytes_max(mut self, bytes: usize) -> Self {
        self.options.mail_bytes_max = bytes;
        self
    }

    /// Sets the most requests to the store that are under way at a time (`request_count_max`,
    /// 50,000; at least 1); further ones wait for their turn.
    pub fn request_count_max(mut self, count: usize) -> Self {
        self.options.request_count_max = count;
        self
    }

    /// Sets how long the worker's session lives without a heartbeat (15 seconds; at least 50
    /// milliseconds).
    pub fn session_ttl(mut self, ttl: Duration) -> Self {
        self.options.session_ttl = ttl;
        self
    }

    /// Sets how long a shutdown waits for running steps (10 seconds).
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.options.shutdown_grace = grace;
        self
    }

    /// Sets how many processes in a row must have died with an execution before it runs alone
    /// (`suspect_takeover_count`, 2).
    pub fn suspect_takeover_count(mut self, count: u32) -> Self {
        self.options.suspect_takeover_count = count.max(1);
        self
    }

    /// Sets how often a process may die while an execution runs alone before that execution is
    /// blocked (`suspect_death_count_max`, 5).
    pub fn suspect_death_count_max(mut self, count: u32) -> Self {
        self.options.suspect_death_count_max = count.max(1);
        self
    }

    /// Sets how long an execution that only waits stays in memory (1 second).
    pub fn park_after(mut self, duration: Duration) -> Self {
        self.options.park_after = duration;
        self
    }

    /// Lets the code of a workflow begin before its start is written, when the worker has nothing
    /// else to do and the caller is on a task of the runtime. What the code does up to its first
    /// step is then written with the start: a workflow that returns, sleeps or starts a child at
    /// once takes one sync in place of two, and a first `ctx.sqlite` step saves a sync too.
    ///
    /// The start is acknowledged after that code, and until then nobody else can see the execution,
    /// signal it or terminate it. Code that kills its process there leaves nothing behind: the
    /// death is not counted, and a caller that starts it again dies again. If the id exists
    /// already, the code is called for nothing, each time. So choose this for code that you trust.
    pub fn begin_early(mut self) -> Self {
        self.options.begins_early = true;
        self
    }

    /// Sets how long the future of a [`run`](crate::Abide::run) that was woken may be left unpolled
    /// before its workflow goes on elsewhere (1 second). It may take twice as long. A start whose
    /// caller does not come back for the answer is looked for after the same time.
    ///
    /// On the task of a caller, code sees that task's own values, and on a task of a `LocalSet` it
    /// may not call `tokio::task::block_in_place`. With zero, no workflow is ever called there, and
    /// each has a task of its own.
    pub fn host_patience(mut self, duration: Duration) -> Self {
        self.options.host_patience = duration;
        self
    }

    /// Sets what to do once this process has had no work for about a second after it had some. A
    /// library does not know the allocator of its application, and an allocator that keeps memory
    /// for each thread returns only that of the thread that asks it to. So the closure is called
    /// on the threads of the runtime and on the thread that writes to the store. It must not block.
    /// A panic in it is reported by the panic hook, and harms nothing else.
    ///
    /// What abide keeps only for speed is dropped before, which happens only with such a closure.
    pub fn on_idle(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.options.on_idle = Some(IdleHook::new(hook));
        self
    }

    /// Sets how long other processes on the same file may keep a call waiting (`busy_ms_max`, 5
    /// seconds).
    pub fn busy_ms_max(mut self, millis: u64) -> Self {
        self.busy_ms_max = Some(millis);
        self
    }

    /// Sets the longest that the closure of a transaction step may run, its SQL included
    /// (`transaction_ms_max`, 5 seconds, or a third of a `session_ttl` that is shorter than 15
    /// seconds). The closure keeps the only writer of the database, which heartbeats need too. So
    /// it may take at most a third of `session_ttl`.
    pub fn transaction_ms_max(mut self, millis: u64) -> Self {
        self.transaction_ms_max = Some(millis);
        self
    }

    /// Runs in virtual time, and on a shared store if the caller passes one.
    pub(crate) fn simulated(mut self, runtime: Arc<dyn Runtime>, store: Option<Arc<dyn Store>>) -> Self {
        if store.is_none() {
            self.options = self.options.without_recurrence();
        }
        self.simulated = Some((runtime, store));
        self
    }

    /// Opens the store and runs the executions in it.
    pub async fn open(mut self) -> Result<Abide, ClientError> {
        self.check()?;
        let (runtime, opened) = self.prepare(Purpose::Work)?;
        let code = self.code()?;
        let registry = code.registry(&self.state, &self.mocks);
        self.options.build = self.build.take().unwrap_or_else(|| build::of_executable(&self.options.bounds));
        let engine = Engine::open(opened.store, runtime, registry, self.options)
            .await
            .map_err(|error| ClientError::of("", error))?;
        Ok(Abide::new(Client::beside(&engine), Some(engine), code, opened.closer))
    }

    /// Opens the store to start and watch executions without running any. The store must exist: a
    /// client creates none.
    pub async fn client(mut self) -> Result<Abide, ClientError> {
        self.check()?;
        let (runtime, opened) = self.prepare(Purpose::Watch)?;
        let code = self.code()?;
        let client = Client::alone(opened.store, runtime, self.options.namespace);
        Ok(Abide::new(client, None, code, opened.closer))
    }

    /// Refuses invalid options.
    fn check(&mut self) -> Result<(), ClientError> {
        match self.problem.take() {
            Some(invalid) => Err(invalid.into()),
            None => self
                .options
                .check()
                .and_then(|()| self.check_transactions())
                .map_err(|message| ClientError::Invalid { message }),
        }
    }

    /// Checks that heartbeats fit beside transactions. A closure keeps the writer: three heartbeats
    /// fit into the life of a session, and one of them has to be written beside the longest
    /// closure.
    fn check_transactions(&self) -> Result<(), String> {
        let Some(millis) = self.transaction_ms_max else { return Ok(()) };
        let ttl = self.options.session_ttl;
        let most = transaction_ms_most(ttl);
        match millis {
            0 => Err("the transaction_ms_max is 0, but must be at least 1".to_owned()),
            millis if millis > most => Err(format!(
                "the transaction_ms_max is {millis}, but must be at most {most}, a third of the session_ttl of {}",
                text::duration(ttl)
            )),
            _ => Ok(()),
        }
    }

    fn store_bounds(&self) -> StoreBounds {
        let most = transaction_ms_most(self.options.session_ttl);
        let transaction_ms_max = Some(self.transaction_ms_max.unwrap_or(TRANSACTION_MS_MAX).min(most));
        let (bounds, busy_ms_max) = (self.options.bounds.clone(), self.busy_ms_max);
        StoreBounds { bounds, busy_ms_max, transaction_ms_max }
    }

    fn prepare(&mut self, purpose: Purpose) -> Result<(Arc<dyn Runtime>, Opened), ClientError> {
        let (runtime, given) = match self.simulated.take() {
            Some((runtime, given)) => (runtime, given),
            None => {
                let message = "it must be opened inside a tokio runtime".to_owned();
                let runtime = TokioRuntime::current();
                (
                    runtime.ok_or(ClientError::Open { url: self.url.clone(), message })? as Arc<dyn Runtime>,
                    None,
                )
            }
        };
        let opened = match given {
            Some(store) => Opened { store, closer: Closer(None) },
            None => {
                let store = store::open(&self.url, runtime.clone(), self.store_bounds(), purpose)?;
                Opened { closer: Closer(Some(store.clone())), store }
            }
        };
        Ok((runtime, opened))
    }

    /// Returns all linked code, replaced where the builder has registered code of the same name.
    fn code(&self) -> Result<KnownCode, ClientError> {
        let mut by_name: BTreeMap<(Kind, &str), &Registered> = BTreeMap::new();
        for one in &self.explicit {
            claim(&mut by_name, one, &names(one).collect::<Vec<_>>())?;
        }
        let explicit: BTreeSet<(Kind, &str)> = by_name.keys().copied().collect();
        for one in inventory::iter::<Registered> {
            let is_free = |name: &&str| !explicit.contains(&(one.kind, *name));
            if is_free(&one.name) {
                claim(&mut by_name, one, &names(one).filter(is_free).collect::<Vec<_>>())?;
            }
        }
        self.check_mocks(&by_name)?;
        if let Some(only) = &self.only {
            by_name.retain(|(kind, _), one| *kind == Kind::Workflow && names(one).any(|name| name == only));
        }
        KnownCode::of(by_name.into_iter().map(|((_, name), one)| (name, one)))
    }

    /// Checks that every mock stands for a task.
    fn check_mocks(&self, by_name: &BTreeMap<(Kind, &str), &Registered>) -> Result<(), ClientError> {
        let is_task = |name: &str| by_name.contains_key(&(Kind::Task, name));
        let Some(name) = self.mocks.keys().find(|name| !is_task(name)) else { return Ok(()) };
        let tasks = by_name.keys().filter(|(kind, _)| *kind == Kind::Task);
        let tasks: Vec<_> = tasks.map(|(_, name)| format!("{name:?}")).collect();
        let there = match tasks.is_empty() {
            true => "there is no task".to_owned(),
            false => format!("there are {}", tasks.join(", ")),
        };
        Err(ClientError::Invalid { message: format!("there is no task {name:?} to mock; {there}") })
    }
}

/// Returns the names that a workflow or task claims: its own and its earlier ones.
fn names(one: &Registered) -> impl Iterator<Item = &'static str> {
    [one.name].into_iter().chain(one.old_names.iter().copied())
}

/// Registers a workflow or task under these names. No other may have one of them.
fn claim<'a>(
    by_name: &mut BTreeMap<(Kind, &'a str), &'a Registered>,
    one: &'a Registered,
    names: &[&'a str],
) -> Result<(), ClientError> {
    let kind = one.kind.word();
    for name in names {
        let Some(other) = by_name.insert((one.kind, *name), one) else { continue };
        if std::ptr::eq(other, one) {
            continue;
        }
        let message = if (one.name, other.name) == (*name, *name) {
            format!(
                "two {kind}s are named {name:?}, in {} and in {}: rename one, for example by \
                 #[{kind}(name = \"…\")], or register one of them by the builder",
                other.module, one.module
            )
        } else {
            format!(
                "{kind} {:?} in {} and {kind} {:?} in {} both claim the name {name:?}: \
                 a {kind} that was renamed from it has it alone",
                other.name, other.module, one.name, one.module
            )
        };
        return Err(ClientError::Invalid { message });
    }
    Ok(())
}

/// Opens an empty store in memory, without threads.
pub(crate) fn store_in_memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    // A history may come from a store with other bounds.
    let bounds = Bounds { payload_bytes_max: usize::MAX, ..Bounds::default() };
    let bounds = StoreBounds { bounds, busy_ms_max: None, transaction_ms_max: None };
    store::open("sqlite::memory:", clock, bounds, Purpose::Work).expect("a store in memory opens")
}

/// How long a transaction step may run by default.
const TRANSACTION_MS_MAX: u64 = 5_000;

/// Returns the longest that a transaction step may run with this life of sessions.
fn transaction_ms_most(session_ttl: Duration) -> u64 {
    if planted(Bug::TransactionOutlivesSession) {
        return u64::MAX;
    }
    u64::try_from(session_ttl.as_millis() / 3).unwrap_or(u64::MAX)
}

/// A store and its closer.
struct Opened {
    store: Arc<dyn Store>,
    closer: Closer,
}

/// The closer of the store behind an [`Abide`], unless somebody else owns that store.
pub(crate) struct Closer(Option<Arc<dyn Store>>);

impl Closer {
    pub(crate) fn close(&self) {
        if let Some(store) = &self.0 {
            store.close();
        }
    }
}
