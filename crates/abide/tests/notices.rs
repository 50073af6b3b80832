//! Notices are hints: they may come late, once more, or not at all, and a signal is received once and in its turn all the same.

use std::sync::Arc;

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::Limits;
use abide_sqlite::SqliteStore;
use abide_store::faults::{Chances, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Store};

const SIGNAL_COUNT: u64 = 12;
/// In some of these the store has to refuse a commit that reads a late copy.
const SEEDS: std::ops::Range<u64> = 90..140;

/// Keeps the worker claiming.
#[workflow]
async fn comes_and_goes(ctx: Ctx) -> Result<()> {
    loop {
        ctx.sleep(ms(30)).await?;
    }
}

#[workflow]
async fn adds_up(ctx: Ctx) -> Result<u64> {
    let mut sum = 0;
    for _ in 0..SIGNAL_COUNT {
        sum += ctx.recv::<u64>("n").await?;
    }
    Ok(sum)
}

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, Limits::default())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

/// A copy may be on its way, in a notice or in the inbox that a claim brings, while its execution leaves memory and comes back.
#[test]
fn p1_a_signal_is_received_once_however_late_its_copies_come() {
    for (seed, make) in SEEDS.flat_map(|seed| [(seed, memory as fn(_) -> _), (seed, sqlite)]) {
        let slow = Chances { delay_permille: 500, delay_poll_count_max: 100, ..Chances::default() };
        let faulty =
            |clock: Arc<dyn Clock>| -> Arc<dyn Store> { FaultyStore::seeded(make(clock), seed, slow) };
        Lab::run_on(seed, faulty, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.park_after(ms(seed % 3 * 5))).await.unwrap();
            for n in 0..4 {
                abide.start(comes_and_goes, ()).id(format!("restless-{n}")).await.unwrap();
                lab.sleep(ms(7)).await;
            }
            let handle = abide.start(adds_up, ()).id("one").await.unwrap();
            for n in 0..SIGNAL_COUNT {
                handle.signal("n", &(1u64 << n)).await.unwrap();
                lab.sleep(ms(lab.random() % 12)).await;
            }
            tokio::select! {
                biased;
                result = handle.result() => assert_eq!(result.unwrap(), (1 << SIGNAL_COUNT) - 1, "seed {seed}"),
                () = lab.sleep(minutes(1)) => panic!("seed {seed}: it is stuck"),
            }
        });
    }
}

#[workflow]
async fn collects(ctx: Ctx) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    for _ in 0..SIGNAL_COUNT {
        all.push(ctx.recv("n").await?);
    }
    Ok(all)
}

#[test]
fn signals_are_received_in_the_order_in_which_they_came_even_if_notices_are_lost() {
    for (seed, make) in SEEDS.flat_map(|seed| [(seed, memory as fn(_) -> _), (seed, sqlite)]) {
        let lossy = Chances { indeterminate_permille: 60, ..Chances::default() };
        let faulty =
            |clock: Arc<dyn Clock>| -> Arc<dyn Store> { FaultyStore::seeded(make(clock), seed, lossy) };
        Lab::run_on(seed, faulty, |lab| async move {
            let (_, abide) = loop {
                if let Ok(opened) = lab.worker_with(|builder| builder).await {
                    break opened;
                }
            };
            let handle = abide.start(collects, ()).id("one").await.unwrap();
            for n in 0..SIGNAL_COUNT {
                handle.signal("n", &n).await.unwrap();
                lab.sleep(ms(lab.random() % 300)).await;
            }
            let received = loop {
                match handle.result().await {
                    Ok(received) => break received,
                    Err(error) => assert!(error.is_transient(), "seed {seed}: {error}"),
                }
            };
            assert_eq!(received, (0..SIGNAL_COUNT).collect::<Vec<_>>(), "seed {seed}");
        });
    }
}
