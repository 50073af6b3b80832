//! The play: start the order, start a worker, kill it, start another, sign for the parcel, collect
//! the evidence.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use abide::{Abide, Handle, StoreUrl};
use abide_core::{Address, Entry, Event, ExecutionId, Namespace, Status, Timestamp, Waiting};
use abide_engine::SystemClock;
use abide_store::{Read, Record, Snapshot, Store, Target};

use super::effects::{Effect, Effects};
use super::order::{self, Order, Receipt};
use crate::command_error::CommandError;
use crate::connect::Access;
use crate::{clock, connect, output};

/// How long anything may take before the demo fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two looks at the store.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The time from the moment that everything is under way to the kill.
const BEFORE_KILL: Duration = Duration::from_millis(350);
/// How long no worker runs.
const DOWN: Duration = Duration::from_millis(500);
/// How long the order waits for the signature.
const BEFORE_SIGNAL: Duration = Duration::from_millis(400);

/// All evidence of the play.
pub(super) struct Evidence {
    /// The process that was killed.
    pub(super) first: Life,
    /// The process that continued.
    pub(super) second: Life,
    /// The order's journal while no worker ran.
    pub(super) before: Vec<Record>,
    /// The order and its children at the end.
    pub(super) after: Vec<Story>,
    /// The effects of the closures.
    pub(super) effects: Vec<Effect>,
}

/// One process, from its start to its end.
pub(super) struct Life {
    pub(super) pid: u32,
    pub(super) began_at: Timestamp,
    pub(super) ended_at: Timestamp,
    pub(super) status: ExitStatus,
}

/// One execution and its journal.
pub(super) struct Story {
    pub(super) id: String,
    pub(super) status: Status,
    pub(super) records: Vec<Record>,
    pub(super) entries: Vec<Entry>,
}

/// Runs the play.
pub(super) fn play(stage: &Stage) -> Result<Evidence, CommandError> {
    connect::block_on(async {
        // Only a worker creates a store, and the order must exist before the first worker.
        connect::open(&stage.store, Arc::new(SystemClock), Access::Create)?.close();
        let client = Abide::builder(url(&stage.store)).namespace(stage.namespace.as_str()).client().await?;
        let order = Order { pieces: 3, cents_each: 1_499 };
        let handle = client.start(order::fulfil, order).id(order::ID).await?;
        let evidence = stage.acts(&handle).await;
        client.shutdown().await;
        evidence
    })
}

/// Returns the URL of a store, with its password.
pub(super) fn url(store: &StoreUrl) -> String {
    match store {
        StoreUrl::Postgres(url) => url.clone(),
        other => other.to_string(),
    }
}

/// Where the demo plays.
pub(super) struct Stage {
    pub(super) store: StoreUrl,
    pub(super) namespace: Namespace,
    /// The file of effects.
    pub(super) effects: PathBuf,
}

impl Stage {
    async fn acts(&self, handle: &Handle<Receipt>) -> Result<Evidence, CommandError> {
        let store = connect::open(&self.store, Arc::new(SystemClock), Access::Read)?;

        let mut worker = self.spawn()?;
        output::say(format_args!("process {} works on {:?}", worker.pid(), order::ID));
        self.until(&*store, &mut worker, is_half_done).await?;
        clock::pause(BEFORE_KILL);
        let first = worker.kill()?;
        output::say(format_args!("process {} was killed with SIGKILL", first.pid));
        let before = self.story(&*store, order::ID).await?.records;
        clock::pause(DOWN);

        let mut worker = self.spawn()?;
        output::say(format_args!("process {} goes on", worker.pid()));
        self.until(&*store, &mut worker, awaits_signature).await?;
        clock::pause(BEFORE_SIGNAL);
        handle.signal(order::SIGNAL, "Ada").await?;
        output::say(format_args!("signal {:?} was sent to {:?}", order::SIGNAL, order::ID));
        let second = worker.wait()?;

        let mut after = Vec::new();
        for id in [order::ID.to_owned(), format!("{}/pack", order::ID), format!("{}/invoice", order::ID)] {
            after.push(self.story(&*store, &id).await?);
        }
        store.close();
        let effects = Effects::at(&self.effects).read()?;
        Ok(Evidence { first, second, before, after, effects })
    }

    fn spawn(&self) -> Result<Worker, CommandError> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        command.args(["demo-worker", "--namespace", self.namespace.as_str(), "--effects"]).arg(&self.effects);
        // Everybody can read the arguments of a process, and the URL may contain a password.
        command.env("ABIDE_STORE", url(&self.store));
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let process = process
            .map_err(|error| CommandError::failed(format!("the worker process did not start: {error}")))?;
        Ok(Worker { process, began_at: clock::now() })
    }

    /// Looks at the order and its children until `is_so` holds.
    async fn until(
        &self,
        store: &dyn Store,
        worker: &mut Worker,
        is_so: impl Fn(&[Snapshot]) -> bool,
    ) -> Result<(), CommandError> {
        let give_up_at = clock::now().after(PATIENCE);
        while clock::now() < give_up_at {
            let mut seen = Vec::new();
            for id in [order::ID.to_owned(), format!("{}/pack", order::ID), format!("{}/invoice", order::ID)]
            {
                seen.extend(self.look(store, &id).await?);
            }
            if is_so(&seen) {
                return Ok(());
            }
            if let Some(status) = worker.process.try_wait()? {
                return Err(CommandError::failed(format!(
                    "process {} ended too early: {status}",
                    worker.pid()
                )));
            }
            clock::pause(LOOK_EVERY);
        }
        Err(CommandError::failed(format!(
            "process {} has not come far enough within {PATIENCE:?}",
            worker.pid()
        )))
    }

    async fn look(&self, store: &dyn Store, id: &str) -> Result<Option<Snapshot>, CommandError> {
        let id = ExecutionId::new(id).map_err(CommandError::failed)?;
        let target = Target::Address(Address { namespace: self.namespace.clone(), id });
        Ok(store.read(Read { target, run: None, from: 1, limit: 1_000, with_inbox: false }).await?)
    }

    async fn story(&self, store: &dyn Store, id: &str) -> Result<Story, CommandError> {
        let snapshot = self.look(store, id).await?;
        let snapshot = snapshot
            .ok_or_else(|| CommandError::failed(format!("there is no execution {id:?} in the store")))?;
        let mut entries = Vec::new();
        for record in &snapshot.journal {
            entries.push(record.entry()?);
        }
        Ok(Story { id: id.to_owned(), status: snapshot.summary.status, records: snapshot.journal, entries })
    }
}

/// A worker process. It is killed when the demo fails.
struct Worker {
    process: Child,
    began_at: Timestamp,
}

impl Worker {
    fn pid(&self) -> u32 {
        self.process.id()
    }

    fn kill(&mut self) -> Result<Life, CommandError> {
        self.process.kill()?;
        let status = self.process.wait()?;
        // The clock is read after the process has ended, so everything that it recorded is older.
        Ok(Life { pid: self.pid(), began_at: self.began_at, ended_at: clock::now(), status })
    }

    /// Waits until the process has ended on its own.
    fn wait(&mut self) -> Result<Life, CommandError> {
        let give_up_at = clock::now().after(PATIENCE);
        while clock::now() < give_up_at {
            if let Some(status) = self.process.try_wait()? {
                return Ok(Life { pid: self.pid(), began_at: self.began_at, ended_at: clock::now(), status });
            }
            clock::pause(LOOK_EVERY);
        }
        Err(CommandError::failed(format!("process {} has not ended within {PATIENCE:?}", self.pid())))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // If all went well, the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether the order and one child sleep, and the other child is done.
fn is_half_done(seen: &[Snapshot]) -> bool {
    let [order, pack, invoice] = seen else { return false };
    let has_timer = |snapshot: &Snapshot| {
        let is_timer =
            |record: &Record| matches!(record.entry(), Ok(Entry { event: Event::TimerSet { .. }, .. }));
        snapshot.journal.iter().any(is_timer)
    };
    has_timer(order) && has_timer(pack) && invoice.summary.status == Status::Completed
}

fn awaits_signature(seen: &[Snapshot]) -> bool {
    let is_signal =
        |wait: &Waiting| matches!(wait, Waiting::Signal { name, .. } if name.as_str() == order::SIGNAL);
    seen.first().is_some_and(|order| order.summary.waiting.iter().any(is_signal))
}
