//! The parts that all works share: the depth, the stores, and the raw limits of the database.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide::Abide;
use tokio::task::JoinSet;

use super::flows::{self, payload};
use super::ids::Ids;
use super::place::{Place, Raw};
use super::stopwatch::Stopwatch;
use crate::Allocator;
use crate::command_error::CommandError;
use crate::output;

/// The number of executions in a store before the works of `--full` begin.
pub(super) const FINISHED_COUNT: u64 = 1_000_000;
/// The number of one-step workflows that are started at once.
pub(super) const WAVE_COUNT: u64 = 5_000;

/// The thoroughness of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    Quick,
    Usual,
    Full,
}

/// The depth and the place, which all works share.
pub(super) struct Setting {
    pub(super) depth: Depth,
    pub(super) place: Place,
    pub(super) allocator: &'static Allocator,
    pub(super) random_ids: Ids,
    /// Whether the store of [`Setting::filled_with_random_ids`] is full.
    pub(super) has_random_ids: AtomicBool,
}

impl Setting {
    /// Returns how often a work is measured. The median counts.
    pub(super) fn rounds(&self) -> usize {
        if self.depth == Depth::Quick { 3 } else { 5 }
    }

    /// Returns the store that a work uses: its own, or the shared one that `--full` has filled.
    pub(super) fn store(&self, work: &str) -> String {
        self.place.store(if self.depth == Depth::Full { "full" } else { work })
    }

    pub(super) async fn open(&self, work: &str) -> Result<Abide, CommandError> {
        Ok(Abide::open(&self.store(work)).await?)
    }

    /// Waits, after a warm-up, until the store of a work is as it will stay.
    pub(super) fn settle(&self, work: &str) {
        self.place.settle(&self.store(work));
    }

    /// Measures the limits before and after the work. Machines drift, so the mean counts.
    pub(super) async fn beside_raw<T>(
        &self,
        work: impl AsyncFnOnce() -> Result<T, CommandError>,
    ) -> Result<(T, Raw), CommandError> {
        let before = self.raw()?;
        let done = work().await?;
        let after = self.raw()?;
        let mean = |of: fn(&Raw) -> f64| (of(&before) + of(&after)) / 2.0;
        let raw = Raw {
            commits_per_second: mean(|raw| raw.commits_per_second),
            commit_us: mean(|raw| raw.commit_us),
            rows_per_second: mean(|raw| raw.rows_per_second),
        };
        Ok((done, raw))
    }

    fn raw(&self) -> Result<Raw, CommandError> {
        self.place.raw(Duration::from_millis(if self.depth == Depth::Quick { 300 } else { 1_000 }))
    }

    /// Fills the store that the works of `--full` run on.
    pub(super) async fn fill(&self) -> Result<(), CommandError> {
        fill(&self.store("full"), &Ids::Generated).await
    }

    /// Returns a store that is as full, but of executions with random ids. It is filled when it is
    /// first needed.
    pub(super) async fn filled_with_random_ids(&self) -> Result<String, CommandError> {
        let store = self.place.store("full-random");
        if !self.has_random_ids.load(Ordering::Relaxed) {
            fill(&store, &self.random_ids).await?;
            self.has_random_ids.store(true, Ordering::Relaxed);
        }
        Ok(store)
    }
}

async fn fill(store: &str, ids: &Ids) -> Result<(), CommandError> {
    let abide = Abide::open(store).await?;
    for first in (0..FINISHED_COUNT).step_by(WAVE_COUNT as usize) {
        wave_of(&abide, WAVE_COUNT, ids).await?;
        let done = first + WAVE_COUNT;
        if done.is_multiple_of(100_000) {
            output::say(format_args!("{done} of {FINISHED_COUNT} executions are in the store"));
        }
    }
    abide.shutdown().await;
    Ok(())
}

/// Starts one-step workflows all at once, waits for all results, and returns the elapsed seconds.
pub(super) async fn wave(abide: &Abide, count: u64) -> Result<f64, CommandError> {
    wave_of(abide, count, &Ids::Generated).await
}

/// Does the same with ids of this kind. The results are awaited one after the other: a set of tasks
/// would wake the waiting one for each workflow.
#[expect(clippy::disallowed_methods, reason = "all tasks are awaited, and a set of tasks costs more")]
pub(super) async fn wave_of(abide: &Abide, count: u64, ids: &Ids) -> Result<f64, CommandError> {
    let abide = abide.clone();
    // Made before the measured time.
    let ids: Vec<_> = (0..count).map(|_| ids.next()).collect();
    let (took, results) = on_worker(async move {
        let begun = Stopwatch::start();
        let start = |(nth, id)| {
            let run = abide.run(flows::one, nth);
            let run = match id {
                Some(id) => run.id(id).into_future(),
                None => run.into_future(),
            };
            tokio::spawn(run)
        };
        let all: Vec<_> = (0..count).zip(ids).map(start).collect();
        let mut results = Vec::with_capacity(all.len());
        for run in all {
            results.push(run.await.map_err(CommandError::failed)??);
        }
        Ok((begun.elapsed().as_secs_f64(), results))
    })
    .await?;
    for (nth, text) in (0..count).zip(&results) {
        check(text == &payload(nth), || format!("workflow {nth} gave {text:?}"))?;
    }
    Ok(took)
}

/// Runs a future on a worker thread of the runtime, like a server's handlers. The thread that waits
/// for the whole benchmark would have to be woken for every answer.
pub(super) async fn on_worker<T: Send + 'static>(
    work: impl Future<Output = Result<T, CommandError>> + Send + 'static,
) -> Result<T, CommandError> {
    let mut tasks = JoinSet::new();
    tasks.spawn(work);
    tasks.join_next().await.expect("one task was spawned").map_err(CommandError::failed)?
}

/// Fails a work with a wrong result, however fast it was.
pub(super) fn check(is_right: bool, wrong: impl FnOnce() -> String) -> Result<(), CommandError> {
    if is_right { Ok(()) } else { Err(CommandError::failed(wrong())) }
}
