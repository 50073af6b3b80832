//! A chain of runs may go on for years: a worker keeps only the current run in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide::prelude::*;

const INPUT_BYTES: usize = 128 << 10;
const RUN_COUNT: u64 = 500;
/// The number of runs after which all one-time allocations have been made.
const WARM_RUN_COUNT: u64 = 150;
/// The most growth allowed: the runs in between carry more than twice as much.
const GROWTH_BYTES_MAX: u64 = 20 << 20;

/// The size of this process after the warm runs.
type Warm = Arc<AtomicU64>;

/// Returns the resident memory of this process.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

#[workflow]
async fn carries(ctx: Ctx, load: String) -> Result<u64> {
    let n: u64 = ctx.recv("n").await?;
    ctx.step("lift", || async { Ok(load.len()) }).await?;
    if n == WARM_RUN_COUNT {
        ctx.state::<Warm>().store(resident_bytes(), Ordering::Relaxed);
    }
    if n == RUN_COUNT {
        return Ok(resident_bytes());
    }
    ctx.continue_as_new(load).await
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn p8_memory_does_not_grow_with_the_length_of_a_chain() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("app.db").display());
    let warm = Warm::default();
    let abide = Abide::builder(&url).state(warm.clone()).open().await.unwrap();
    let handle = abide.start(carries, "x".repeat(INPUT_BYTES)).id("one").await.unwrap();
    for n in 1..=RUN_COUNT {
        handle.signal("n", &n).await.unwrap();
    }
    let at_the_end = handle.result().await.unwrap();
    let growth = at_the_end.saturating_sub(warm.load(Ordering::Relaxed));
    assert!(growth < GROWTH_BYTES_MAX, "{RUN_COUNT} runs took {} KiB", growth >> 10);
    abide.shutdown().await;
}
