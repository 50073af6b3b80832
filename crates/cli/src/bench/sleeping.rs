//! The memory of a process with many sleeping executions, and how fast they wake.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide::{Abide, Filter, Status, Timestamp};
use abide_counting::give_back;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::figure::{Bound, Figure, Goals, Size, Work};
use super::flows;
use super::process::{self, Child, MEGABYTE};
use super::setting::{Depth, Setting, WAVE_COUNT};
use super::stopwatch::Stopwatch;
use crate::clock;
use crate::command_error::CommandError;
use crate::output;

const COUNT: u64 = 100_000;
const COUNT_QUICK: u64 = 20_000;
const COUNT_FULL: u64 = 1_000_000;
/// One of so many executions never wakes. These are started first, and tell how long the start of
/// the others will take: all others are to wake at once, but not before the last one sleeps.
const NEVER_WAKE: u64 = 20;
/// The time that the start of the others may take beyond twice the expected one.
const SLACK: Duration = Duration::from_secs(4);
/// How long nothing happens before the memory of an idle process counts.
const SETTLE: Duration = Duration::from_secs(4);
/// How often the work is tried on a machine that becomes slow while the executions start.
const TRY_COUNT: usize = 4;
/// The most memory at the peak of starting and of waking, of any number of executions.
const PEAK_MB_MAX: f64 = 200.0;
/// The most memory of an idle process.
const IDLE_MB_MAX: f64 = 45.0;
/// The most memory that ten times as many executions add to an idle process.
const IDLE_MB_MORE_MAX: f64 = 20.0;
const WOKEN_PER_SECOND_MIN: f64 = 10_000.0;

/// The measurements of a process about itself. Memory is in bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Slept {
    starting: f64,
    idle: f64,
    waking: f64,
    woken_per_second: f64,
}

/// Measures a process whose executions all start, sleep, and wake at the same time.
pub(super) fn sleeping(setting: &Setting) -> Result<Vec<Figure>, CommandError> {
    let count = if setting.depth == Depth::Quick { COUNT_QUICK } else { COUNT };
    let few = measure(setting, count)?;
    let idle = |slept: &Slept| (slept.idle / MEGABYTE, "MB idle");
    let most = Goals::strict(Bound::AtMost(IDLE_MB_MAX));
    let mut figures = figures(&few, count, Figure::without_raw(Work::SleepingRss, idle(&few), most));
    if setting.depth == Depth::Full {
        let many = measure(setting, COUNT_FULL)?;
        let more = Goals::strict(Bound::MoreAtMost(IDLE_MB_MORE_MAX));
        let beside = Figure::new(Work::SleepingRss, idle(&many), idle(&few).0, more);
        figures.extend(self::figures(&many, COUNT_FULL, beside));
    }
    Ok(figures)
}

fn figures(slept: &Slept, count: u64, idle: Figure) -> Vec<Figure> {
    let peak = |bytes, unit| {
        let goals = Goals::strict(Bound::AtMost(PEAK_MB_MAX));
        Figure::without_raw(Work::SleepingRss, (bytes / MEGABYTE, unit), goals)
    };
    let rate = Figure::without_raw(
        Work::SleepingRss,
        (slept.woken_per_second, "woken/s"),
        Goals::strict(Bound::AtLeast(WOKEN_PER_SECOND_MIN)),
    );
    let all = [peak(slept.starting, "MB starting"), idle, peak(slept.waking, "MB waking"), rate];
    all.into_iter().map(|figure| Figure { size: Some(Size::Executions(count)), ..figure }).collect()
}

/// Runs the process. Its store is new: executions of a try that failed would wake in the next one.
fn measure(setting: &Setting, count: u64) -> Result<Slept, CommandError> {
    for nth in 0..TRY_COUNT {
        output::say(format_args!("sleeping-rss: starts {count} executions"));
        let store = setting.place.store(&format!("sleeping-{count}-{nth}"));
        let mut command = process::command(Child::Sleeping, &store)?;
        let output = command.args(["--size", &count.to_string()]).output()?;
        if let Some(slept) = process::report::<Option<Slept>>(Child::Sleeping, output)? {
            return Ok(slept);
        }
        output::say(format_args!("sleeping-rss: the first executions woke before the last one slept"));
    }
    Err(CommandError::failed("the machine is too slow, or too busy, for sleeping-rss"))
}

/// Does the work of such a process. Returns nothing if the first executions woke before the last
/// one slept.
pub(super) async fn sleep(store: &str, count: u64) -> Result<Option<Slept>, CommandError> {
    let woken = Arc::new(AtomicU64::new(0));
    let abide = Abide::builder(store).state(woken.clone()).on_idle(give_back).open().await?;
    let never = (count / NEVER_WAKE).max(1);
    let once = count.saturating_sub(never);
    let begun = Stopwatch::start();
    start(&abide, never, None).await?;
    let expected = begun.elapsed().mul_f64(once as f64 / never as f64);
    let wake_at = clock::now().after(expected * 2 + SLACK + SETTLE);
    start(&abide, once, Some(wake_at)).await?;
    wait_for_none(&abide, Filter::all().status(Status::Running)).await?;
    let starting = process::peak_bytes()?;
    clock::pause(SETTLE);
    let idle = process::resident_bytes()?;
    process::forget_peak()?;
    if clock::now() >= wake_at {
        return Ok(None);
    }
    // The count is cheap to watch while they wake. What it misses is the last commit.
    while woken.load(Ordering::Relaxed) < once {
        clock::pause(Duration::from_millis(5));
    }
    wait_for_none(&abide, Filter::open().workflow(flows::WAKER)).await?;
    let woken_per_second = once as f64 / clock::now().since(wake_at).as_secs_f64();
    let waking = process::peak_bytes()?;
    abide.shutdown().await;
    Ok(Some(Slept { starting, idle, waking, woken_per_second }))
}

/// Starts executions that sleep until a time, or for good.
async fn start(abide: &Abide, count: u64, wake_at: Option<Timestamp>) -> Result<(), CommandError> {
    for first in (0..count).step_by(WAVE_COUNT as usize) {
        let mut all = JoinSet::new();
        for nth in first..count.min(first + WAVE_COUNT) {
            match wake_at {
                Some(at) => drop(all.spawn(discarded(abide.start(flows::waker, at).into_future()))),
                None => drop(all.spawn(discarded(abide.start(flows::sleeper, nth).into_future()))),
            }
        }
        while let Some(started) = all.join_next().await {
            started.map_err(CommandError::failed)??;
        }
    }
    Ok(())
}

/// Awaits a start, whatever its handle is for.
async fn discarded<T>(
    started: impl Future<Output = Result<T, abide::ClientError>>,
) -> Result<(), CommandError> {
    Ok(started.await.map(drop)?)
}

async fn wait_for_none(abide: &Abide, filter: Filter) -> Result<(), CommandError> {
    let filter = filter.take(1);
    while !abide.list(filter.clone()).await?.is_empty() {
        clock::pause(Duration::from_millis(50));
    }
    Ok(())
}
