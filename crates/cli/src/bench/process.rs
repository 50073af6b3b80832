//! The cost of a whole process, measured in a process of its own that has done nothing else.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use abide::Abide;
use abide_counting::give_back;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::figure::{Bound, Figure, Goals, Work};
use super::setting::{Setting, check};
use super::stopwatch::Stopwatch;
use super::{flows, processes, resume, sleeping};
use crate::clock;
use crate::command_error::CommandError;

/// How long a process settles before it is measured.
const SETTLE: Duration = Duration::from_secs(2);
/// How long its processor time is watched.
const WATCH: Duration = Duration::from_secs(6);
pub(super) const MEGABYTE: f64 = 1e6;

/// The work of such a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Child {
    /// Waits without any work.
    Idle,
    /// Starts executions that sleep and wake.
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
    let report: Quiet = run(Child::Idle, &setting.store("idle"))?;
    let (bytes, cpu) = ((report.bytes / MEGABYTE, "MB"), (report.cpu, "%"));
    Ok([
        Figure::without_raw(Work::IdleRss, bytes, Goals::strict(Bound::AtMost(15.0))),
        Figure::without_raw(Work::IdleCpu, cpu, Goals::strict(Bound::AtMost(0.1))),
    ])
}

/// Starts a process that measures itself, and returns its report.
pub(super) fn run<T: DeserializeOwned>(child: Child, store: &str) -> Result<T, CommandError> {
    report(child, command(child, store)?.output()?)
}

/// Returns the command that starts a process with such a work.
pub(super) fn command(child: Child, store: &str) -> Result<Command, CommandError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "--child", child.name()]).stderr(Stdio::inherit());
    // Not as an argument: a URL may have a password, and everybody sees the arguments.
    command.env("ABIDE_STORE", store);
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
pub(super) fn serve(child: Child, store: &str, size: u64) -> Result<Value, CommandError> {
    let runtime = tokio::runtime::Runtime::new()?;
    let report = match child {
        Child::Replay => serde_json::to_value(runtime.block_on(resume::replay_bytes(store))?),
        Child::Driving => serde_json::to_value(runtime.block_on(processes::drive(store, size))?),
        Child::Sleeping => serde_json::to_value(runtime.block_on(sleeping::sleep(store, size))?),
        Child::Idle => serde_json::to_value(idle_here(&runtime, store)?),
    };
    report.map_err(CommandError::failed)
}

/// Measures this process while nothing happens in its store.
fn idle_here(runtime: &tokio::runtime::Runtime, store: &str) -> Result<Quiet, CommandError> {
    let abide = runtime.block_on(opened(store))?;
    clock::pause(SETTLE);
    let bytes = resident_bytes()?;
    let (before, begun) = (cpu_seconds()?, Stopwatch::start());
    clock::pause(WATCH);
    let cpu = (cpu_seconds()? - before) / begun.elapsed().as_secs_f64() * 100.0;
    runtime.block_on(abide.shutdown());
    Ok(Quiet { bytes, cpu })
}

/// Opens a store and uses it once, so that this process has everything that a working one has.
async fn opened(store: &str) -> Result<Abide, CommandError> {
    let abide = Abide::builder(store).on_idle(give_back).open().await?;
    abide.run(flows::one, 1).await?;
    Ok(abide)
}

/// Returns the resident memory of this process.
pub(super) fn resident_bytes() -> Result<f64, CommandError> {
    status_bytes("VmRSS:")
}

/// Returns the most resident memory that this process has had since [`forget_peak`].
pub(super) fn peak_bytes() -> Result<f64, CommandError> {
    status_bytes("VmHWM:")
}

/// Lets the peak begin anew.
pub(super) fn forget_peak() -> Result<(), CommandError> {
    // The number that proc(5) names for this.
    std::fs::write("/proc/self/clear_refs", "5")
        .map_err(|error| CommandError::failed(format!("/proc/self/clear_refs: {error}")))
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
