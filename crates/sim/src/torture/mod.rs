//! The same programs in real processes, which are killed, stopped and continued.
//!
//! A torture goes in rounds. In each, scenarios begin one after the other in worker and client processes to which things happen; then everything is let
//! end, and the auditor goes through what the store holds and what was seen outside of it: a file to which every closure and every client writes.

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

use abide::Kind;
use abide_core::{Namespace, Timestamp};
use abide_engine::{Moment, Runtime, SystemClock, TokioRuntime};
use abide_sqlite::{OpenError, Options, SqliteStore};
use abide_store::{Clock, View, Workers};

pub use actor::play;
pub use report::{Progress, Report, Violation};

use crate::ending::executions;
use crate::generate::scenario;
use crate::scenario::{Ask, Scenario};
use round::Round;

/// What the ids of every torture begin with.
const PREFIX: &str = "torture-";

/// The file that a torture holds a lock of.
const LOCK: &str = "lock";

/// How often, and how long after each other, it is looked whether the sessions of an earlier torture have expired.
const FORGET_COUNT_MAX: u64 = 2 * SESSION_TTL_MS / 100;
const FORGET_EVERY: Duration = Duration::from_millis(100);

/// How long a session lives without a heartbeat.
const SESSION_TTL_MS: u64 = 2_000;

/// Programs are made for a simulated world, where time costs nothing.
const TIMES_AS_FAST: u64 = 4;

/// How long things happen in one round.
const ROUND_MAX: Duration = Duration::from_secs(25);

/// A round that would be shorter than this proves little.
const ROUND_MIN: Duration = Duration::from_secs(3);

/// How much of the time is kept for letting things end.
const END_SHARE: u32 = 3;

/// What to torture, and for how long.
#[derive(Clone, Debug)]
pub struct Torture {
    /// The file of the store.
    pub path: PathBuf,
    /// For about so long.
    pub duration: Duration,
    /// What the programs, and what happens to them, follow from.
    pub seed: u64,
    /// The command that calls [`play`].
    pub command: Vec<OsString>,
}

/// Why a torture could not begin, or not go on.
#[derive(Debug)]
pub enum Trouble {
    /// The store cannot be opened or read.
    Store(String),
    /// The store is somebody else's.
    Refused(String),
    /// A file cannot be written, or a process not started.
    Failed(std::io::Error),
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<OpenError> for Trouble {
    fn from(error: OpenError) -> Self {
        Self::Store(error.to_string())
    }
}

impl From<abide_store::Error> for Trouble {
    fn from(error: abide_store::Error) -> Self {
        Self::Store(error.to_string())
    }
}

/// Whether somebody wants it to end now.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Has it end as soon as possible.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Torture {
    /// Makes the store if there is none, and makes sure that nobody else uses it and that nothing of anybody else is in it. Opens the folder beside it.
    pub async fn prepare(&self) -> Result<Prepared, Trouble> {
        let store = SqliteStore::open(&self.path, Arc::new(SystemClock), Options::default())?;
        let mut checked = check_workers(&*store).await;
        // A torture that was killed has left sessions that nobody has found dead yet.
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
        let mut folder = self.path.clone().into_os_string();
        folder.push("-torture");
        let folder = PathBuf::from(folder);
        std::fs::create_dir_all(&folder)?;
        let lock = File::create(folder.join(LOCK))?;
        if lock.try_lock().is_err() {
            return Err(Trouble::Refused("another torture uses the store".to_owned()));
        }
        Ok(Prepared { torture: self.clone(), folder, _lock: lock })
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path.display())
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
    folder: PathBuf,
    _lock: File,
}

impl Prepared {
    /// Runs it, and says what came of it. Call it from a thread that lives as long: its processes die with that.
    pub async fn run(self, interrupt: Interrupt, progress: &dyn Fn(&Progress)) -> Result<Report, Trouble> {
        let runtime: Arc<dyn Runtime> = runtime()?;
        let (began, began_at) = (runtime.moment(), runtime.now());
        let mut report = Report::new(self.torture.seed, began_at);
        let prefix = format!("{PREFIX}{}-", name_of(began_at));
        let stage = Stage {
            torture: &self.torture,
            folder: &self.folder,
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
            // Unless it holds the evidence of an earlier one, nobody needs it.
            let _ = std::fs::remove_file(self.folder.join(LOCK));
            let _ = std::fs::remove_dir(&self.folder);
        } else {
            report.kept = Some(self.folder.clone());
        }
        Ok(report)
    }
}

/// What all rounds share.
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
    /// How long things happen in the next round; nothing if the time is over.
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

/// A short name for a torture, which no other on the same store has.
fn name_of(began_at: Timestamp) -> String {
    format!("{:x}", began_at.as_micros() / 1_000_000)
}

/// A scenario of a torture: that of the simulator, faster, and with ids that are its own.
pub(crate) fn scenario_of(seed: u64, nth: u64, prefix: &str) -> Scenario {
    let mut scenario = scenario(seed.wrapping_add(nth)).faster(TIMES_AS_FAST);
    // Real processes have one program.
    scenario.editions.clear();
    scenario.actions.retain(|action| !matches!(action.what, Ask::Deploy(_)));
    scenario.under(&scenario_prefix(prefix, nth))
}

/// What the ids of one scenario begin with.
pub(crate) fn scenario_prefix(prefix: &str, nth: u64) -> String {
    format!("{prefix}{nth}.")
}
