//! The cost of a whole process, measured in a process of its own that has done nothing else.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use abide::Abide;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::task::JoinSet;

use super::figure::{Bound, Figure, Goals, Work};
use super::setting::{Setting, WAVE_COUNT, check, url};
use super::stopwatch::Stopwatch;
use super::{flows, processes, resume};
use crate::clock;
use crate::command_error::CommandError;

/// How long a process settles before it is measured.
const SETTLE: Duration = Duration::from_secs(2);
/// How long its processor time is watched.
const WATCH: Duration = Duration::from_secs(6);
const SLEEPER_COUNT: u64 = 100_000;
const MEGABYTE: f64 = 1e6;

/// The work of such a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Child {
    /// Waits without any work.
    Idle,
    /// Starts executions that sleep.
    Sleeping,
    /// Resumes a journal.
    Replay,
    /// Runs workflows beside other processes.
    Driving,
}

impl Child {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Sleeping => "sleeping",
            Self::Replay => "replay",
            Self::Driving => "driving",
        }
    }
}

/// The measurements of a process about itself while it has nothing to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Quiet {
    /// Memory in bytes.
    bytes: f64,
    /// Processor time, in per cent of one processor.
    cpu: f64,
}

/// Measures memory and processor time of a process that waits for work. The limits are the goals.
pub(super) fn idle(setting: &Setting) -> Result<[Figure; 2], CommandError> {
    let report: Quiet = run(Child::Idle, &setting.file("idle"))?;
    let (bytes, cpu) = ((report.bytes / MEGABYTE, "MB"), (report.cpu, "%"));
    Ok([
        Figure::without_raw(Work::IdleRss, bytes, Goals::strict(Bound::AtMost(15.0))),
        Figure::without_raw(Work::IdleCpu, cpu, Goals::strict(Bound::AtMost(0.1))),
    ])
}

/// Measures the memory of a process that started sleeping executions. The limit is the goal.
pub(super) fn sleeping(setting: &Setting) -> Result<Figure, CommandError> {
    let report: Quiet = run(Child::Sleeping, &setting.file("sleeping"))?;
    let bytes = (report.bytes / MEGABYTE, "MB");
    Ok(Figure::without_raw(Work::SleepingRss, bytes, Goals::strict(Bound::AtMost(45.0))))
}

/// Starts a process that measures itself, and returns its report.
pub(super) fn run<T: DeserializeOwned>(child: Child, file: &Path) -> Result<T, CommandError> {
    report(child, command(child, file)?.output()?)
}

/// Returns the command that starts a process with such a work.
pub(super) fn command(child: Child, file: &Path) -> Result<Command, CommandError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "--child", child.name(), "--file"]).arg(file).stderr(Stdio::inherit());
    Ok(command)
}

/// Reads the report of a process that has ended.
pub(super) fn report<T: DeserializeOwned>(child: Child, output: Output) -> Result<T, CommandError> {
    let name = child.name();
    check(output.status.success(), || format!("the process {name:?}: {}", output.status))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| CommandError::failed(format!("the process {name:?} printed no figures: {error}")))
}

/// Does the work of such a process and returns its report.
pub(super) fn serve(child: Child, file: &Path, size: u64) -> Result<Value, CommandError> {
    let runtime = tokio::runtime::Runtime::new()?;
    let report = match child {
        Child::Replay => serde_json::to_value(runtime.block_on(resume::replay_bytes(file))?),
        Child::Driving => serde_json::to_value(runtime.block_on(processes::drive(file, size))?),
        Child::Idle => serde_json::to_value(quiet(&runtime, opened(file))?),
        Child::Sleeping => serde_json::to_value(quiet(&runtime, asleep(file))?),
    };
    report.map_err(CommandError::failed)
}

/// Measures this process while nothing happens in its store.
fn quiet(
    runtime: &tokio::runtime::Runtime,
    opened: impl Future<Output = Result<Abide, CommandError>>,
) -> Result<Quiet, CommandError> {
    let abide = runtime.block_on(opened)?;
    clock::pause(SETTLE);
    let bytes = resident_bytes()?;
    let (before, begun) = (cpu_seconds()?, Stopwatch::start());
    clock::pause(WATCH);
    let cpu = (cpu_seconds()? - before) / begun.elapsed().as_secs_f64() * 100.0;
    runtime.block_on(abide.shutdown());
    Ok(Quiet { bytes, cpu })
}

/// Opens a store and uses it once, so that this process has everything that a working one has.
async fn opened(file: &Path) -> Result<Abide, CommandError> {
    let abide = Abide::open(&url(file)).await?;
    abide.run(flows::one, 1).await?;
    Ok(abide)
}

async fn asleep(file: &Path) -> Result<Abide, CommandError> {
    let abide = Abide::open(&url(file)).await?;
    for first in (0..SLEEPER_COUNT).step_by(WAVE_COUNT as usize) {
        let mut all = JoinSet::new();
        for nth in first..first + WAVE_COUNT {
            all.spawn(abide.start(flows::sleeper, nth).into_future());
        }
        while let Some(started) = all.join_next().await {
            started.map_err(CommandError::failed)??;
        }
    }
    let filter = abide::Filter::all().workflow("abide-bench-sleeper").status(abide::Status::Running).take(1);
    while !abide.list(filter.clone()).await?.is_empty() {
        clock::pause(Duration::from_millis(50));
    }
    Ok(abide)
}

/// Returns the resident memory of this process.
fn resident_bytes() -> Result<f64, CommandError> {
    status_bytes("VmRSS:")
}

/// Returns the memory that this process has allocated, without the pages of files.
pub(super) fn own_bytes() -> Result<f64, CommandError> {
    status_bytes("RssAnon:")
}

fn status_bytes(key: &str) -> Result<f64, CommandError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1_024.0)
        .ok_or_else(|| CommandError::failed(format!("/proc/self/status lacks {key}")))
}

/// Returns the processor time of all threads. It adds up the threads, because only their files
/// count in nanoseconds.
fn cpu_seconds() -> Result<f64, CommandError> {
    let mut nanos = 0.0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let file: PathBuf = thread?.path().join("schedstat");
        // The file of a thread that has just ended is gone.
        let text = std::fs::read_to_string(file).unwrap_or_default();
        nanos += text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    }
    Ok(nanos / 1e9)
}
