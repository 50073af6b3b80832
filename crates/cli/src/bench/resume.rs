//! W5: the time and memory to resume a long journal.

use abide::Abide;

use super::figure::{Bound, Figure, Goals, Size, Work};
use super::flows::{self, Probe, TEXT_BYTES};
use super::place::Place;
use super::process::{self, Child};
use super::setting::{Depth, Setting, check};
use super::stopwatch::{Stopwatch, median};
use crate::command_error::CommandError;
use crate::output;

const ID: &str = "abide-bench-long";
const SHORT: u64 = 10_000;
/// Enough entries to fill everything that any replay needs: pages of entries, the readers' caches.
const WARM: u64 = 20_000;

/// Measures the time from opening the store to the first new step, minus the time to open an empty
/// store. The limit is the time to read the same number of rows in order.
pub(super) async fn resume(setting: &Setting) -> Result<Vec<Figure>, CommandError> {
    let long = if setting.depth == Depth::Quick { 100_000 } else { 1_000_000 };
    let mut figures = resume_one(setting, SHORT).await?;
    figures.truncate(1);
    figures.extend(resume_one(setting, long).await?);
    Ok(figures)
}

/// Returns the time and, for a file, the memory.
async fn resume_one(setting: &Setting, count: u64) -> Result<Vec<Figure>, CommandError> {
    let store = setting.store(&format!("W5-{count}"));
    let journal = Journal { store, id: format!("{ID}-{count}"), count };
    output::say(format_args!("W5: records {count} steps"));
    journal.build().await?;
    let before = setting.place.read_rows(count as usize)?;
    let empty = median(open_empty(setting).await?);
    let mut seconds = Vec::new();
    for _ in 0..setting.rounds() {
        seconds.push((journal.resume().await? - empty).max(0.0));
    }
    journal.send(true).await?;
    let bytes: Option<f64> = match setting.place {
        Place::Folder(_) => Some(process::run(Child::Replay, &journal.store)?),
        Place::Server(_) => None,
    };
    journal.end().await?;
    let after = setting.place.read_rows(count as usize)?;
    let raw = (before + after).as_secs_f64() / 2.0;
    let time = Figure::new(Work::W5, (median(seconds) * 1e3, "ms"), raw * 1e3, goals(setting, count));
    let memory = bytes.map(|bytes| {
        let bytes = (bytes / count as f64, "bytes/entry");
        Figure::without_raw(Work::W5, bytes, Goals::strict(Bound::AtMost(32.0)))
    });
    let of_journal = |figure| Figure { size: Some(Size::Entries(count)), ..figure };
    Ok([time].into_iter().chain(memory).map(of_journal).collect())
}

/// Returns the goals of the milliseconds for so many entries.
fn goals(setting: &Setting, count: u64) -> Goals {
    let [in_file, goal, must] = match count {
        SHORT => [12.0, 50.0, 100.0],
        100_000 => [120.0, 500.0, 500.0],
        _ => [1_200.0, 5_000.0, 5_000.0],
    };
    let on_server = Goals { goal: Bound::AtMost(goal), must: Bound::AtMost(must) };
    setting.place.goals(Goals::strict(Bound::AtMost(in_file)), on_server)
}

/// Measures the seconds to open an empty store.
async fn open_empty(setting: &Setting) -> Result<Vec<f64>, CommandError> {
    let store = setting.place.store("empty");
    Abide::open(&store).await?.shutdown().await;
    let mut seconds = Vec::new();
    for _ in 0..setting.rounds() {
        let begun = Stopwatch::start();
        let abide = Abide::open(&store).await?;
        seconds.push(begun.elapsed().as_secs_f64());
        abide.shutdown().await;
    }
    Ok(seconds)
}

/// A workflow whose journal is resumed repeatedly.
struct Journal {
    store: String,
    id: String,
    count: u64,
}

impl Journal {
    async fn build(&self) -> Result<(), CommandError> {
        let abide = Abide::builder(&self.store).state(Probe::building()).open().await?;
        let handle = abide.start(flows::long, self.count).id(&self.id).await?;
        while handle.status().await? == abide::Status::Running {
            crate::clock::pause(std::time::Duration::from_millis(20));
        }
        abide.shutdown().await;
        Ok(())
    }

    /// Sends the signal that the workflow waits for after its replay.
    async fn send(&self, goes_on: bool) -> Result<(), CommandError> {
        let client = Abide::client(&self.store).await?;
        client.handle::<usize>(&self.id).signal("go", &goes_on).await?;
        client.shutdown().await;
        Ok(())
    }

    async fn resume(&self) -> Result<f64, CommandError> {
        self.send(true).await?;
        reach(&self.store).await
    }

    async fn end(&self) -> Result<(), CommandError> {
        self.send(false).await?;
        let (probe, _) = Probe::resuming();
        let abide = Abide::builder(&self.store).state(probe).open().await?;
        let bytes = abide.handle::<usize>(&self.id).result().await?;
        abide.shutdown().await;
        check(bytes == self.count as usize * TEXT_BYTES, || {
            format!("{} steps gave {bytes} bytes", self.count)
        })
    }
}

/// Opens a store with a journal to resume. Returns the seconds until its first new step runs.
async fn reach(store: &str) -> Result<f64, CommandError> {
    let (probe, reached) = Probe::resuming();
    let abide = Abide::builder(store).state(probe).open().await?;
    let seconds = reached.await.map_err(|_| CommandError::failed("the journal was not resumed"))?;
    abide.shutdown().await;
    Ok(seconds)
}

/// Measures, in a process of its own, how much the memory grows while a journal is resumed. A short
/// journal is resumed first, because the pages of a replay exist once, whatever its length. The
/// file's pages belong to the system, so only the memory of this process counts.
pub(super) async fn replay_bytes(store: &str) -> Result<f64, CommandError> {
    let warm = Journal { store: [store, ".warm"].concat(), id: format!("{ID}-warm"), count: WARM };
    warm.build().await?;
    warm.resume().await?;
    let before = process::own_bytes()?;
    let (probe, reached) = Probe::resuming();
    let abide = Abide::builder(store).state(probe).open().await?;
    reached.await.map_err(|_| CommandError::failed("the journal was not resumed"))?;
    let bytes = process::own_bytes()? - before;
    abide.shutdown().await;
    Ok(bytes.max(0.0))
}
