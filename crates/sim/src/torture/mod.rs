//! The same programs in real processes, which are killed, stopped and continued.
//!
//! A torture consists of rounds. In each, scenarios begin one after the other, in worker and client
//! processes that faults strike. Then everything is allowed to end, and the auditor compares the
//! store with a record from outside: a file to which every closure and every client writes.

mod actor;
mod effects;
mod herd;
mod report;
mod round;
mod verdict;

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide::{Kind, StoreUrl};
use abide_core::{Namespace, Timestamp};
use abide_engine::{Moment, Runtime, SystemClock, TokioRuntime};
use abide_postgres::PostgresStore;
use abide_sqlite::SqliteStore;
use abide_store::{Clock, Store, View, Workers};

pub use actor::play;
pub use report::{Progress, Report, Violation};

use crate::ending::executions;
use crate::generate::scenario;
use crate::scenario::{Ask, Scenario};
use round::Round;

/// The prefix of the ids of every torture.
const PREFIX: &str = "torture-";

/// The file that a torture locks.
const LOCK: &str = "lock";

/// How often, and at which interval, to check whether the sessions of an earlier torture have
/// expired.
const FORGET_COUNT_MAX: u64 = 2 * SESSION_TTL_MS / 100;
const FORGET_EVERY: Duration = Duration::from_millis(100);

/// How long a session lives without a heartbeat.
const SESSION_TTL_MS: u64 = 2_000;

/// The factor by which programs are faster here: in the simulated world time costs nothing.
const TIMES_AS_FAST: u64 = 4;

/// The longest time of a round with faults.
const ROUND_MAX: Duration = Duration::from_secs(25);

/// The shortest useful round; a shorter one proves little.
const ROUND_MIN: Duration = Duration::from_secs(3);

/// The share of the time that is kept for letting everything end: one part in this many.
const END_SHARE: u32 = 3;

/// The options of a torture.
#[derive(Clone, Debug)]
pub struct Torture {
    /// The store.
    pub store: StoreUrl,
    /// The folder for what the processes see.
    pub folder: PathBuf,
    /// The approximate duration.
    pub duration: Duration,
    /// The seed of the programs and of the faults.
    pub seed: u64,
    /// The command that calls [`play`].
    pub command: Vec<OsString>,
}

/// The reason why a torture could not begin or continue.
#[derive(Debug)]
pub enum Trouble {
    /// The store cannot be opened or read.
    Store(String),
    /// The store belongs to someone else.
    Refused(String),
    /// A file cannot be written, or a process cannot be started.
    Failed(std::io::Error),
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<abide_sqlite::OpenError> for Trouble {
    fn from(error: abide_sqlite::OpenError) -> Self {
        Self::Store(error.to_string())
    }
}

impl From<abide_postgres::OpenError> for Trouble {
    fn from(error: abide_postgres::OpenError) -> Self {
        Self::Store(error.to_string())
    }
}

impl From<abide_store::Error> for Trouble {
    fn from(error: abide_store::Error) -> Self {
        Self::Store(error.to_string())
    }
}

/// A request to end the torture now.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Ends the torture as soon as possible.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Torture {
    /// Creates the store if it does not exist, and makes sure that no other process uses it and
    /// that it holds nothing but tortures. Opens the folder beside it.
    pub async fn prepare(&self) -> Result<Prepared, Trouble> {
        let store = self.open(false)?;
        let mut checked = check_workers(&*store).await;
        // A killed torture leaves sessions that no process has found dead yet.
        for _ in 0..FORGET_COUNT_MAX {
            if !matches!(&checked, Err(Trouble::Refused(why)) if why.contains(PREFIX)) {
                break;
            }
            runtime()?.sleep(FORGET_EVERY).await;
            checked = check_workers(&*store).await;
        }
        if checked.is_ok() {
            checked = check_executions(&*store).await;
        }
        store.close();
        checked?;
        std::fs::create_dir_all(&self.folder)?;
        let lock = File::create(self.folder.join(LOCK))?;
        if lock.try_lock().is_err() {
            return Err(Trouble::Refused("another torture uses the store".to_owned()));
        }
        Ok(Prepared { torture: self.clone(), _lock: lock })
    }

    /// Opens the store in this process.
    fn open(&self, read_only: bool) -> Result<Arc<dyn Store>, Trouble> {
        let clock = Arc::new(SystemClock);
        Ok(match &self.store {
            StoreUrl::File(path) => {
                SqliteStore::open(path, clock, abide_sqlite::Options { read_only, ..Default::default() })?
            }
            StoreUrl::Postgres(url) => PostgresStore::open(url, clock, abide_postgres::Options::default())?,
            StoreUrl::Memory => return Err(Trouble::Refused("it belongs to its process".to_owned())),
        })
    }

    fn url(&self) -> String {
        match &self.store {
            // As it is displayed, it lacks its password.
            StoreUrl::Postgres(url) => url.clone(),
            other => other.to_string(),
        }
    }
}

fn runtime() -> std::io::Result<Arc<TokioRuntime>> {
    TokioRuntime::current().ok_or_else(|| std::io::Error::other("there is no runtime"))
}

async fn check_workers(view: &dyn View) -> Result<(), Trouble> {
    let workers = Workers { namespace: Namespace::default(), after: None, limit: 1_000 };
    let now = SystemClock.now();
    if let Some(live) = view.workers(workers).await?.iter().find(|row| row.is_live(now)) {
        return Err(Trouble::Refused(format!(
            "another process uses the store: worker {:?} (session {})",
            live.worker.name, live.session
        )));
    }
    Ok(())
}

async fn check_executions(view: &dyn View) -> Result<(), Trouble> {
    let foreign = executions(view, None).await?.into_iter();
    let mut foreign =
        foreign.filter(|item| item.kind != Kind::Builtin && !item.address.id.as_str().starts_with(PREFIX));
    match foreign.next() {
        Some(item) => Err(Trouble::Refused(format!(
            "the store holds executions that are not of a torture, for example {:?}; give it a store of its own",
            item.address.id
        ))),
        None => Ok(()),
    }
}

/// A torture whose store is ready.
#[derive(Debug)]
pub struct Prepared {
    torture: Torture,
    _lock: File,
}

impl Prepared {
    /// Runs the torture and returns its report. Call it from a thread that lives as long: the
    /// processes die with that thread.
    pub async fn run(self, interrupt: Interrupt, progress: &dyn Fn(&Progress)) -> Result<Report, Trouble> {
        let runtime: Arc<dyn Runtime> = runtime()?;
        let (began, began_at) = (runtime.moment(), runtime.now());
        let mut report = Report::new(self.torture.seed, began_at);
        let prefix = format!("{PREFIX}{}-", name_of(began_at));
        let stage = Stage {
            torture: &self.torture,
            folder: &self.torture.folder,
            prefix,
            runtime,
            interrupt,
            progress,
            began,
        };
        let mut first_scenario = 0;
        while let Some(lasts) = stage.next_round() {
            let round = Round::begin(&stage, report.rounds, first_scenario)?;
            first_scenario = round.run(lasts, &mut report).await?;
            report.rounds += 1;
            if report.is_interrupted {
                break;
            }
        }
        report.duration = stage.runtime.moment().since(began);
        if report.violations.is_empty() {
            // The folder is useless unless it holds the evidence of an earlier torture; then its
            // removal fails.
            let _ = std::fs::remove_file(self.torture.folder.join(LOCK));
            let _ = std::fs::remove_dir(&self.torture.folder);
        } else {
            report.kept = Some(self.torture.folder.clone());
        }
        Ok(report)
    }
}

/// The state that all rounds share.
pub(crate) struct Stage<'a> {
    pub(crate) torture: &'a Torture,
    pub(crate) folder: &'a Path,
    pub(crate) prefix: String,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) interrupt: Interrupt,
    progress: &'a dyn Fn(&Progress),
    began: Moment,
}

impl Stage<'_> {
    /// Returns how long faults strike in the next round; `None` if the time is over.
    fn next_round(&self) -> Option<Duration> {
        let left = self.torture.duration.saturating_sub(self.runtime.moment().since(self.began));
        let lasts = (left - left / END_SHARE).min(ROUND_MAX);
        let is_first = self.runtime.moment().since(self.began) < ROUND_MIN;
        (is_first || lasts >= ROUND_MIN).then_some(lasts)
    }

    pub(crate) fn tell(&self, what: &'static str, report: &Report) {
        let elapsed = self.runtime.moment().since(self.began);
        (self.progress)(&Progress { what, elapsed, duration: self.torture.duration, report });
    }
}

/// Returns a short name for a torture, unique on its store: one that is killed at once may be
/// followed by another one in the same second.
fn name_of(began_at: Timestamp) -> String {
    format!("{:x}", began_at.as_micros())
}

/// Returns a scenario of a torture: that of the simulator, faster, and with ids of its own.
pub(crate) fn scenario_of(seed: u64, nth: u64, prefix: &str) -> Scenario {
    let mut scenario = scenario(seed.wrapping_add(nth)).faster(TIMES_AS_FAST);
    // Real processes have one build of the program.
    scenario.editions.clear();
    scenario.actions.retain(|action| !matches!(action.what, Ask::Deploy(_)));
    scenario.under(&scenario_prefix(prefix, nth))
}

/// Returns the prefix of the ids of one scenario.
pub(crate) fn scenario_prefix(prefix: &str, nth: u64) -> String {
    format!("{prefix}{nth}.")
}
