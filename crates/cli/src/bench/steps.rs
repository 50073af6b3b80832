//! W2, W3 and W4: sequential steps of one and of many workflows, and children.

use abide::Abide;
use tokio::task::JoinSet;

use super::counts::{Counts, count};
use super::figure::{Bound, Figure, Goals, Work};
use super::flows::{self, TEXT_BYTES};
use super::ids::Ids;
use super::setting::{Setting, check};
use super::stopwatch::{Stopwatch, median};
use crate::command_error::CommandError;

const CHAIN_STEPS: u64 = 1_000;
pub(super) const WIDE_WORKFLOWS: u64 = 100;
pub(super) const WIDE_STEPS: u64 = 100;
/// The number of rounds of 100 × 100 steps that are measured together, because one is too short.
const WIDE_REPEATS: u64 = 5;
const CHILD_COUNT: u64 = 1_000;
const CHILD_REPEATS: u64 = 5;

/// Measures one workflow of 1,000 steps. The limit is the rate of commits of one row.
pub(super) async fn one_chain(setting: &Setting) -> Result<Figure, CommandError> {
    let (rate, raw) = setting
        .beside_raw(async || {
            let abide = setting.open("W2").await?;
            run_chain(&abide, CHAIN_STEPS, &Ids::Generated).await?;
            setting.settle("W2");
            let mut rates = Vec::new();
            for _ in 0..setting.rounds() {
                let begun = Stopwatch::start();
                run_chain(&abide, CHAIN_STEPS, &Ids::Generated).await?;
                rates.push(CHAIN_STEPS as f64 / begun.elapsed().as_secs_f64());
            }
            abide.shutdown().await;
            Ok(median(rates))
        })
        .await?;
    let in_file = Goals { goal: Bound::RatioAtLeast(0.95), must: Bound::RatioAtLeast(0.9) };
    let on_server = Goals { goal: Bound::RatioAtLeast(0.8), must: Bound::RatioAtLeast(0.65) };
    let goals = setting.place.goals(in_file, on_server);
    Ok(Figure::new(Work::W2, (rate, "steps/s"), raw.commits_per_second, goals))
}

/// Measures 100 workflows of 100 steps. The limit is the rate of rows in commits of 100.
pub(super) async fn many_chains(setting: &Setting) -> Result<Figure, CommandError> {
    let (rate, raw) = setting
        .beside_raw(async || {
            let abide = setting.open("W3").await?;
            wide_round(&abide).await?;
            setting.settle("W3");
            let mut rates = Vec::new();
            for _ in 0..setting.rounds() {
                let begun = Stopwatch::start();
                for _ in 0..WIDE_REPEATS {
                    wide_round(&abide).await?;
                }
                rates.push(
                    (WIDE_REPEATS * WIDE_WORKFLOWS * WIDE_STEPS) as f64 / begun.elapsed().as_secs_f64(),
                );
            }
            abide.shutdown().await;
            Ok(median(rates))
        })
        .await?;
    let in_file = Goals { goal: Bound::RatioAtLeast(0.45), must: Bound::RatioAtLeast(0.4) };
    let on_server = Goals { goal: Bound::AtLeast(60_000.0), must: Bound::AtLeast(40_000.0) };
    let goals = setting.place.goals(in_file, on_server);
    Ok(Figure::new(Work::W3, (rate, "steps/s"), raw.rows_per_second, goals))
}

async fn wide_round(abide: &Abide) -> Result<(), CommandError> {
    let mut all = JoinSet::new();
    for _ in 0..WIDE_WORKFLOWS {
        let abide = abide.clone();
        all.spawn(async move { run_chain(&abide, WIDE_STEPS, &Ids::Generated).await });
    }
    while let Some(ended) = all.join_next().await {
        ended.map_err(CommandError::failed)??;
    }
    Ok(())
}

/// Measures one workflow that starts 1,000 one-step workflows and waits for them. The limit is the
/// rate of rows in commits of 100.
pub(super) async fn children(setting: &Setting) -> Result<Figure, CommandError> {
    let (rate, raw) = setting
        .beside_raw(async || {
            let abide = setting.open("W4").await?;
            run_parent(&abide).await?;
            setting.settle("W4");
            let mut rates = Vec::new();
            for _ in 0..setting.rounds() {
                let begun = Stopwatch::start();
                for _ in 0..CHILD_REPEATS {
                    run_parent(&abide).await?;
                }
                rates.push((CHILD_COUNT * CHILD_REPEATS) as f64 / begun.elapsed().as_secs_f64());
            }
            abide.shutdown().await;
            Ok(median(rates))
        })
        .await?;
    let in_file = Goals { goal: Bound::RatioAtLeast(0.16), must: Bound::RatioAtLeast(0.13) };
    let on_server = Goals { goal: Bound::AtLeast(14_000.0), must: Bound::AtLeast(8_000.0) };
    let goals = setting.place.goals(in_file, on_server);
    Ok(Figure::new(Work::W4, (rate, "children/s"), raw.rows_per_second, goals))
}

pub(super) async fn count_one_chain(setting: &Setting) -> Result<Counts, CommandError> {
    count(setting, "W2", CHAIN_STEPS, async |abide| run_chain(abide, CHAIN_STEPS, &Ids::Generated).await)
        .await
}

pub(super) async fn count_many_chains(setting: &Setting) -> Result<Counts, CommandError> {
    count(setting, "W3", WIDE_WORKFLOWS * WIDE_STEPS, wide_round).await
}

pub(super) async fn count_children(setting: &Setting) -> Result<Counts, CommandError> {
    count(setting, "W4", CHILD_COUNT, run_parent).await
}

/// Runs one workflow of steps, with an id of this kind.
pub(super) async fn run_chain(abide: &Abide, count: u64, ids: &Ids) -> Result<(), CommandError> {
    let run = abide.run(flows::chain, count);
    let bytes = match ids.next() {
        Some(id) => run.id(id).await?,
        None => run.await?,
    };
    check(bytes == count as usize * TEXT_BYTES, || format!("{count} steps gave {bytes} bytes"))
}

async fn run_parent(abide: &Abide) -> Result<(), CommandError> {
    let bytes = abide.run(flows::parent, CHILD_COUNT).await?;
    check(bytes == CHILD_COUNT as usize * TEXT_BYTES, || format!("{CHILD_COUNT} children gave {bytes} bytes"))
}
