//! A message that was read may arrive once more, by a notice or an inbox that was on its way while the execution left memory and came back.
//! It is received once all the same.

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
