//! W3 for five minutes on a full store, against an empty one.

use std::time::Duration;

use abide::Abide;
use tokio::task::JoinSet;

use super::figure::{Bound, Figure, Goals, Work};
use super::ids::Ids;
use super::setting::Setting;
use super::steps::{WIDE_STEPS, WIDE_WORKFLOWS, run_chain};
use super::stopwatch::Stopwatch;
use crate::command_error::CommandError;
use crate::output;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTE_COUNT: usize = 5;

/// Measures the slowest of five minutes, with ordered and with random ids. The limit is the mean of
/// a minute before and a minute after, each on an empty store, because machines drift.
pub(super) async fn worst_minutes(setting: &Setting) -> Result<[Figure; 2], CommandError> {
    let goals = Goals::strict(Bound::RatioAtLeast(0.85));
    let (worst, empty) = worst_minute(setting, &setting.store("W3"), &Ids::Generated).await?;
    let ordered = Figure::new(Work::W3, (worst, "steps/s in the worst minute"), empty, goals);
    let store = setting.filled_with_random_ids().await?;
    let (worst, empty) = worst_minute(setting, &store, &setting.random_ids).await?;
    let random = Figure::new(Work::W3, (worst, "steps/s in the worst minute, random ids"), empty, goals);
    Ok([ordered, random])
}

/// Returns the rate of the slowest minute on a full store, and the rate on an empty one.
async fn worst_minute(setting: &Setting, store: &str, ids: &Ids) -> Result<(f64, f64), CommandError> {
    let mut empty = empty_minute(setting, ids).await?;
    let abide = warmed_up(setting, store, ids).await?;
    let mut worst = f64::INFINITY;
    for minute in 1..=MINUTE_COUNT {
        let rate = one_minute(&abide, ids).await?;
        output::say(format_args!("minute {minute} of W3: {rate:.0} steps/s"));
        worst = worst.min(rate);
    }
    abide.shutdown().await;
    empty = (empty + empty_minute(setting, ids).await?) / 2.0;
    Ok((worst, empty))
}

/// Measures a minute on a store that is empty at first.
async fn empty_minute(setting: &Setting, ids: &Ids) -> Result<f64, CommandError> {
    let store = setting.place.store("W3-empty");
    let abide = warmed_up(setting, &store, ids).await?;
    let rate = one_minute(&abide, ids).await?;
    abide.shutdown().await;
    setting.place.remove(&store)?;
    output::say(format_args!("a minute of W3 on an empty store: {rate:.0} steps/s"));
    Ok(rate)
}

async fn warmed_up(setting: &Setting, store: &str, ids: &Ids) -> Result<Abide, CommandError> {
    let abide = Abide::open(store).await?;
    run_chain(&abide, WIDE_STEPS, ids).await?;
    setting.place.settle(store);
    Ok(abide)
}

async fn one_minute(abide: &Abide, ids: &Ids) -> Result<f64, CommandError> {
    let begun = Stopwatch::start();
    let mut all = JoinSet::new();
    for _ in 0..WIDE_WORKFLOWS {
        let (abide, ids) = (abide.clone(), ids.clone());
        // Each starts its next workflow as soon as one has ended, so 100 of them always run.
        all.spawn(async move {
            let mut step_count = 0;
            while begun.elapsed() < MINUTE {
                run_chain(&abide, WIDE_STEPS, &ids).await?;
                step_count += WIDE_STEPS;
            }
            Ok::<_, CommandError>(step_count)
        });
    }
    let mut step_count = 0;
    while let Some(ended) = all.join_next().await {
        step_count += ended.map_err(CommandError::failed)??;
    }
    Ok(step_count as f64 / begun.elapsed().as_secs_f64())
}
