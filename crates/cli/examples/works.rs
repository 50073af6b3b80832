//! Repeats one of the benchmark's works and nothing else, for profilers that count instructions.
//!
//! `cargo xtask instructions` runs it under callgrind; by hand: `works W1 4 /tmp/works.db`.

use abide::prelude::*;
use tokio::task::JoinSet;

/// The same allocator as in the binary `abide`.
#[global_allocator]
static ALLOCATOR: abide_counting::Mimalloc = abide_counting::Mimalloc;

const WAVE_COUNT: u64 = 5_000;
const WIDE_COUNT: u64 = 100;
const WIDE_STEPS: u64 = 100;
const CHILD_COUNT: u64 = 1_000;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The length of a payload, which takes two bytes more when stored.
const TEXT_BYTES: usize = 118;

/// A payload is a copy of this with its number at the end. It is not formatted: the work of the
/// example itself counts too, and should be small.
const TEMPLATE: &str = "..................................................................................................00000000000000000000";

fn payload(nth: u64) -> String {
    let mut bytes = TEMPLATE.as_bytes().to_vec();
    let mut rest = nth;
    for digit in bytes.iter_mut().rev().take(20) {
        if rest == 0 {
            break;
        }
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    String::from_utf8(bytes).expect("dots and digits are text")
}

#[workflow(name = "works-one")]
async fn one(ctx: Ctx, nth: u64) -> Result<String> {
    ctx.step("work", || async move { Ok(payload(nth)) }).await
}

#[workflow(name = "works-chain")]
async fn chain(ctx: Ctx, count: u64) -> Result<usize> {
    let mut bytes = 0;
    for nth in 0..count {
        bytes += ctx.step("work", || async move { Ok(payload(nth)) }).await?.len();
    }
    Ok(bytes)
}

#[workflow(name = "works-parent")]
async fn parent(ctx: Ctx, count: u64) -> Result<usize> {
    let mut children = Vec::new();
    for nth in 0..count {
        children.push(ctx.start(one, nth).await?);
    }
    let mut bytes = 0;
    for child in children {
        bytes += child.result().await?.len();
    }
    Ok(bytes)
}

fn main() -> std::result::Result<(), Failed> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [work, count, file] = words.as_slice() else { return Err("usage: works W1|W3|W4 COUNT FILE".into()) };
    let (work, count, file) = (work.clone(), count.parse::<u64>()?, file.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        // A profiler slows the process down. That alone must not move an execution to another
        // session or park it.
        let abide = Abide::builder(format!("sqlite:{file}"))
            .session_ttl(hours(1))
            .park_after(hours(1))
            .host_patience(hours(1))
            .open();
        let abide = abide.await?;
        round(&work, &abide).await?;
        wait_for_log(&format!("{file}-wal"))?;
        for _ in 0..count {
            round(&work, &abide).await?;
        }
        abide.shutdown().await;
        Ok(())
    })
}

/// Waits until the store has grown its log to its final size. The store does this once in its life,
/// in the background, and commits differ before and after. The work of this thread meanwhile is not
/// counted: it is neither a worker nor the writer.
#[expect(clippy::disallowed_methods, reason = "the log grows in real time")]
fn wait_for_log(file: &str) -> std::result::Result<(), Failed> {
    for _ in 0..1_000 {
        if std::fs::metadata(file)?.len() >= 64 << 20 {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Err(format!("{file} did not become 64 MiB long").into())
}

async fn round(work: &str, abide: &Abide) -> std::result::Result<(), Failed> {
    let (work, abide) = (work.to_owned(), abide.clone());
    // Run on a worker thread, like a server's handlers.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        match work.as_str() {
            "W1" => wave(&abide).await,
            "W3" => wide(&abide).await,
            "W4" => children(&abide).await,
            other => Err(format!("no work {other:?}").into()),
        }
    });
    tasks.join_next().await.ok_or("one task was spawned")??
}

/// Awaits the tasks one after the other. A set of tasks would wake this one for each that ends.
#[expect(clippy::disallowed_methods, reason = "all of them are awaited, and a set of tasks costs more")]
async fn wave(abide: &Abide) -> std::result::Result<(), Failed> {
    let start = |nth| tokio::spawn(abide.run(one, nth).into_future());
    let all: Vec<_> = (0..WAVE_COUNT).map(start).collect();
    for run in all {
        assert_eq!(run.await??.len(), TEXT_BYTES);
    }
    Ok(())
}

async fn wide(abide: &Abide) -> std::result::Result<(), Failed> {
    let mut all = JoinSet::new();
    for _ in 0..WIDE_COUNT {
        all.spawn(abide.run(chain, WIDE_STEPS).into_future());
    }
    while let Some(ended) = all.join_next().await {
        assert_eq!(ended??, WIDE_STEPS as usize * TEXT_BYTES);
    }
    Ok(())
}

async fn children(abide: &Abide) -> std::result::Result<(), Failed> {
    let bytes = abide.run(parent, CHILD_COUNT).await?;
    assert_eq!(bytes, CHILD_COUNT as usize * TEXT_BYTES);
    Ok(())
}
