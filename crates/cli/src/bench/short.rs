//! W1: one-step workflows, many at once and one at a time.

use abide::Abide;

use super::counts::{Counts, count};
use super::figure::{Bound, Figure, Goals, Work};
use super::flows::{self, payload};
use super::setting::{Depth, Setting, WAVE_COUNT, check, on_worker, wave};
use super::stopwatch::{Stopwatch, median, quantile};
use crate::command_error::CommandError;

/// The number of waves that are measured together, because one wave is too short.
const WAVES: usize = 4;

/// Measures workflows that start all at once. The limit is the rate of rows in commits of 100: a
/// workflow that starts and ends writes at least one row.
pub(super) async fn at_once(setting: &Setting) -> Result<Figure, CommandError> {
    let (rate, raw) = setting
        .beside_raw(async || {
            let abide = setting.open("W1").await?;
            wave(&abide, WAVE_COUNT).await?;
            setting.settle("W1");
            let mut rates = Vec::new();
            for _ in 0..setting.rounds() {
                let mut seconds = 0.0;
                for _ in 0..WAVES {
                    seconds += wave(&abide, WAVE_COUNT).await?;
                }
                rates.push(WAVES as f64 * WAVE_COUNT as f64 / seconds);
            }
            abide.shutdown().await;
            Ok(median(rates))
        })
        .await?;
    let in_file = Goals { goal: Bound::RatioAtLeast(0.25), must: Bound::RatioAtLeast(0.2) };
    let on_server = Goals { goal: Bound::AtLeast(35_000.0), must: Bound::AtLeast(20_000.0) };
    let goals = setting.place.goals(in_file, on_server);
    Ok(Figure::new(Work::W1, (rate, "wf/s"), raw.rows_per_second, goals))
}

/// Measures workflows one at a time. The limit of the median is one commit; a workflow takes two,
/// start and end. The limit of the slow ones is the median.
pub(super) async fn latency(setting: &Setting) -> Result<[Figure; 2], CommandError> {
    let count = if setting.depth == Depth::Quick { 500 } else { 2_000 };
    let ((p50, p99), raw) = setting
        .beside_raw(async || {
            let abide = setting.open("W1-latency").await?;
            one_by_one(&abide, count).await?;
            setting.settle("W1-latency");
            let (mut p50s, mut p99s) = (Vec::new(), Vec::new());
            for _ in 0..setting.rounds() {
                let took = one_by_one(&abide, count).await?;
                p99s.push(quantile(took.clone(), 0.99));
                p50s.push(median(took));
            }
            abide.shutdown().await;
            Ok((median(p50s) * 1e6, median(p99s) * 1e6))
        })
        .await?;
    let in_file = Goals { goal: Bound::RatioAtMost(2.35), must: Bound::RatioAtMost(2.5) };
    let on_server = Goals { goal: Bound::RatioAtMost(3.0), must: Bound::RatioAtMost(4.0) };
    let goals = setting.place.goals(in_file, on_server);
    let usual = Figure::new(Work::W1Latency, (p50, "µs"), raw.commit_us, goals);
    let slow = Figure::new(Work::W1Latency, (p99, "µs p99"), p50, Goals::strict(Bound::RatioAtMost(3.0)));
    Ok([usual, slow])
}

pub(super) async fn count_at_once(setting: &Setting) -> Result<Counts, CommandError> {
    count(setting, "W1", WAVE_COUNT, async |abide| wave(abide, WAVE_COUNT).await.map(drop)).await
}

pub(super) async fn count_one_by_one(setting: &Setting) -> Result<Counts, CommandError> {
    const COUNT: u64 = 200;
    count(setting, "W1-latency", COUNT, async |abide| one_by_one(abide, COUNT).await.map(drop)).await
}

/// Runs workflows one at a time and returns the seconds that each took.
async fn one_by_one(abide: &Abide, count: u64) -> Result<Vec<f64>, CommandError> {
    let abide = abide.clone();
    on_worker(async move {
        let mut took = Vec::with_capacity(count as usize);
        for nth in 0..count {
            let begun = Stopwatch::start();
            let text = abide.run(flows::one, nth).await?;
            took.push(begun.elapsed().as_secs_f64());
            check(text == payload(nth), || format!("workflow {nth} gave {text:?}"))?;
        }
        Ok(took)
    })
    .await
}
