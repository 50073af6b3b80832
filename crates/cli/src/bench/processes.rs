//! Several processes that work on one store, against fewer that do the same.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use abide::Abide;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::figure::{Bound, Figure, Goals, Work};
use super::flows::{self, payload};
use super::place::Place;
use super::process::{self, Child};
use super::setting::{Depth, Setting, check, on_worker, wave};
use super::stopwatch::{Stopwatch, median};
use crate::command_error::CommandError;
use crate::output;

/// The numbers of processes on one file, and on one server. Each is compared with the one before.
const IN_FILE: [usize; 2] = [1, 4];
const ON_SERVER: [usize; 3] = [1, 2, 4];
/// The number of workflows that each process always has under way.
const WIDTH: u64 = 1_000;
/// What a process prints when it has opened the store and run its first workflows.
const READY: &str = "ready";

/// The work of one process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Drove {
    workflow_count: u64,
    seconds: f64,
}

/// Measures the workflows of several processes on one store. The limit is fewer processes, measured
/// in turn with them, because machines drift.
pub(super) fn processes(setting: &Setting) -> Result<Vec<Figure>, CommandError> {
    let (counts, least) = match setting.place {
        Place::Folder(_) => (&IN_FILE[..], 0.85),
        Place::Server(_) => (&ON_SERVER[..], 1.0),
    };
    let mut rates = vec![Vec::new(); counts.len()];
    for round in 0..setting.rounds() {
        for (rates, count) in rates.iter_mut().zip(counts) {
            rates.push(total_rate(setting, &format!("processes-{round}-{count}"), *count)?);
        }
    }
    let medians: Vec<_> = rates.into_iter().map(median).collect();
    let goals = Goals::strict(Bound::RatioAtLeast(least));
    let figure = |(fewer, (more, count)): (&f64, (&f64, &usize))| {
        let unit = if *count == 2 { "wf/s of two" } else { "wf/s" };
        Figure::new(Work::Processes, (*more, unit), *fewer, goals)
    };
    Ok(medians.iter().zip(medians.iter().zip(counts).skip(1)).map(figure).collect())
}

/// Lets processes work on one store at the same time, and returns the workflows of all of them per
/// second of the slowest one.
fn total_rate(setting: &Setting, name: &str, count: usize) -> Result<f64, CommandError> {
    let store = setting.store(name);
    let seconds = if setting.depth == Depth::Quick { 1 } else { 2 };
    let mut drivers = Vec::new();
    for _ in 0..count {
        drivers.push(Driver::start(&store, seconds)?);
    }
    drivers.iter_mut().try_for_each(Driver::wait_until_ready)?;
    setting.settle(name);
    drivers.iter_mut().for_each(Driver::release);
    let all = drivers.iter_mut().map(Driver::wait).collect::<Result<Vec<_>, _>>()?;
    let workflow_count: u64 = all.iter().map(|drove| drove.workflow_count).sum();
    Ok(workflow_count as f64 / all.iter().map(|drove| drove.seconds).fold(0.0, f64::max))
}

/// A process that opens a store, waits for the others, and then runs workflows.
struct Driver {
    process: std::process::Child,
    printed: BufReader<ChildStdout>,
}

impl Driver {
    fn start(store: &str, seconds: u64) -> Result<Self, CommandError> {
        let mut command = process::command(Child::Driving, store)?;
        command.args(["--size", &seconds.to_string()]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let printed = BufReader::new(process.stdout.take().expect("its output is a pipe"));
        Ok(Self { process, printed })
    }

    fn wait_until_ready(&mut self) -> Result<(), CommandError> {
        let mut line = String::new();
        self.printed.read_line(&mut line)?;
        check(line.trim_end() == READY, || format!("a process did not get ready: {line:?}"))
    }

    /// Lets the process work. The end of its input is the sign: it comes even if we die.
    fn release(&mut self) {
        drop(self.process.stdin.take());
    }

    fn wait(&mut self) -> Result<Drove, CommandError> {
        let mut stdout = Vec::new();
        self.printed.read_to_end(&mut stdout)?;
        let status = self.process.wait()?;
        process::report(Child::Driving, std::process::Output { status, stdout, stderr: Vec::new() })
    }
}

impl Drop for Driver {
    /// After a failure, no process goes on in a folder that is about to be removed.
    fn drop(&mut self) {
        // A process that has ended cannot be killed, and has been waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Does the work of such a process.
pub(super) async fn drive(store: &str, seconds: u64) -> Result<Drove, CommandError> {
    let abide = Abide::open(store).await?;
    wave(&abide, WIDTH).await?;
    output::line(READY)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let driven = on_worker(run_many(abide.clone(), Duration::from_secs(seconds))).await?;
    abide.shutdown().await;
    Ok(driven)
}

/// Runs workflows until the time is over. Each of many tasks starts its next one as soon as one has
/// ended.
async fn run_many(abide: Abide, duration: Duration) -> Result<Drove, CommandError> {
    let begun = Stopwatch::start();
    let mut all = JoinSet::new();
    for nth in 0..WIDTH {
        let abide = abide.clone();
        all.spawn(async move {
            let mut count = 0;
            while begun.elapsed() < duration {
                let text = abide.run(flows::one, nth).await?;
                check(text == payload(nth), || format!("workflow {nth} gave {text:?}"))?;
                count += 1;
            }
            Ok::<u64, CommandError>(count)
        });
    }
    let mut workflow_count = 0;
    while let Some(ended) = all.join_next().await {
        workflow_count += ended.map_err(CommandError::failed)??;
    }
    Ok(Drove { workflow_count, seconds: begun.elapsed().as_secs_f64() })
}
