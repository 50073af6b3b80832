//! W1 with random ids against generated ones: each random id goes to another page of the index.

use abide::Abide;

use super::counts::bytes_written;
use super::figure::{Bound, Figure, Goals, Work};
use super::ids::Ids;
use super::setting::{Depth, Setting, WAVE_COUNT, wave_of};
use super::stopwatch::median;
use crate::command_error::CommandError;

/// The executions in each store before it is measured, unless `--full` has filled it.
const FINISHED_COUNT: u64 = 50_000;
/// The number of waves that are measured together, because one wave is too short.
const WAVES: u64 = 4;
/// The number of workflows in them.
const ROUND_COUNT: u64 = WAVES * WAVE_COUNT;

/// Measures the bytes and the rate of one-step workflows with random ids. The limit is the same
/// with ids that abide makes, in order, measured in turn with them.
pub(super) async fn random_ids(setting: &Setting) -> Result<Vec<Figure>, CommandError> {
    let mut generated = Side::open(setting, Ids::Generated).await?;
    let mut random = Side::open(setting, setting.random_ids.clone()).await?;
    for _ in 0..setting.rounds() {
        generated.round().await?;
        random.round().await?;
    }
    let (generated, random) = (generated.close().await, random.close().await);
    let rate = Figure::without_goal(Work::RandomIds, (random.rate, "wf/s"), generated.rate);
    let bytes = random.bytes.zip(generated.bytes).map(|(random, generated)| {
        let goals = Goals::strict(Bound::RatioBelow(10.0));
        Figure::new(Work::RandomIds, (random, "bytes"), generated, goals)
    });
    Ok(bytes.into_iter().chain([rate]).collect())
}

/// A store with one kind of ids, and its measurements.
struct Side {
    abide: Abide,
    ids: Ids,
    /// The bytes that were written in all rounds, where the system counts them.
    bytes: Option<u64>,
    rates: Vec<f64>,
}

/// The bytes of a workflow, and workflows per second.
struct Measured {
    bytes: Option<f64>,
    rate: f64,
}

impl Side {
    async fn open(setting: &Setting, ids: Ids) -> Result<Self, CommandError> {
        let name = match ids {
            Ids::Generated => "generated-ids",
            Ids::Random(_) => "random-ids",
        };
        let store = match (setting.depth, &ids) {
            (Depth::Full, Ids::Random(_)) => setting.filled_with_random_ids().await?,
            _ => setting.store(name),
        };
        let abide = Abide::open(&store).await?;
        let wave_count = match setting.depth {
            Depth::Usual => FINISHED_COUNT / WAVE_COUNT,
            // One to warm up.
            Depth::Quick | Depth::Full => 1,
        };
        for _ in 0..wave_count {
            wave_of(&abide, WAVE_COUNT, &ids).await?;
        }
        setting.place.settle(&store);
        Ok(Self { abide, ids, bytes: Some(0), rates: Vec::new() })
    }

    async fn round(&mut self) -> Result<(), CommandError> {
        let before = bytes_written();
        let mut seconds = 0.0;
        for _ in 0..WAVES {
            seconds += wave_of(&self.abide, WAVE_COUNT, &self.ids).await?;
        }
        self.rates.push(ROUND_COUNT as f64 / seconds);
        let written = bytes_written().zip(before).map(|(after, before)| after.saturating_sub(before));
        self.bytes = self.bytes.zip(written).map(|(bytes, written)| bytes + written);
        Ok(())
    }

    async fn close(self) -> Measured {
        self.abide.shutdown().await;
        // Not the median of the rounds: only some of them contain a checkpoint.
        let item_count = (ROUND_COUNT * self.rates.len() as u64) as f64;
        Measured { bytes: self.bytes.map(|bytes| bytes as f64 / item_count), rate: median(self.rates) }
    }
}
