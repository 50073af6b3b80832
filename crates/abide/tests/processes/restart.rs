//! A restart after a kill goes on at once, however many executions are open.

use std::collections::BTreeSet;
use std::path::Path;

use abide::prelude::*;

use crate::clock::{Stopwatch, in_time, until, within};
use crate::effects;
use crate::flows::{sleeper, ticker, waiter};
use crate::in_turn;
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::Role;

const OPEN_COUNT: u64 = 10_000;
const RUNNING_COUNT: u64 = 200;
const PROGRESS_MS_MAX: i64 = 1_000;

#[test]
fn a_restart_with_ten_thousand_open_executions_goes_on_within_a_second() {
    in_turn(async { in_time(async |_| restart().await).await });
}

async fn restart() -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let watch = Stopwatch::start();
    let client = look::client(folder.path()).await;
    let mut first = Process::spawn_ready(&Role::worker(folder.path())).await;
    fill(&client).await;
    Look::at(folder.path()).wait_until_all_rest(&client).await;
    for n in 0..RUNNING_COUNT {
        client.start(ticker, 100_000).id(format!("ticker-{n}")).await.expect("a start");
    }
    until("every ticker ticks", async || {
        (ticking(folder.path(), 0).len() as u64 == RUNNING_COUNT).then_some(())
    })
    .await;
    println!("{OPEN_COUNT} open and {RUNNING_COUNT} running after {:?}", watch.elapsed());
    first.kill();
    let mut second = Process::spawn(&Role { generation: 1, ..Role::worker(folder.path()) });
    let opening_us: i64 = second.hear("opening").await.parse().expect("a time");
    let ready_us: i64 = second.hear("ready").await.parse().expect("a time");
    until("every ticker ticks again", async || {
        (ticking(folder.path(), 1).len() as u64 == RUNNING_COUNT).then_some(())
    })
    .await;
    let after = |effect: &effects::Effect| (effect.generation == 1).then_some(effect.at_us);
    let effects = effects::read(folder.path());
    let first_us = effects.iter().find_map(after).expect("it ticks") - opening_us;
    let mut seen = BTreeSet::new();
    let firsts = effects.iter().filter(|effect| effect.generation == 1 && seen.insert(&effect.id));
    let all_us = firsts.map(|effect| effect.at_us).max().expect("all tick") - opening_us;
    println!(
        "restart: open took {} ms, first progress after {} ms, all {RUNNING_COUNT} after {} ms",
        (ready_us - opening_us) / 1_000,
        first_us / 1_000,
        all_us / 1_000
    );
    check_wakes(&client).await;
    if first_us > PROGRESS_MS_MAX * 1_000 {
        return Err(format!("the first progress came after {first_us} us"));
    }
    if all_us > 3 * PROGRESS_MS_MAX * 1_000 {
        return Err(format!("the last one went on after {all_us} us"));
    }
    Ok(())
}

async fn fill(client: &Abide) {
    for chunk in 0..OPEN_COUNT / 1_000 {
        let ids = chunk * 1_000..(chunk + 1) * 1_000;
        let starts = ids.map(|n| async move {
            let id = format!("open-{n}");
            match n % 2 {
                0 => client.start(waiter, n).id(id).await.map(drop),
                _ => client.start(sleeper, n).id(id).await.map(drop),
            }
        });
        for start in futures_util::future::join_all(starts).await {
            start.expect("a start");
        }
    }
}

/// Returns the tickers that process `generation` has run.
fn ticking(folder: &Path, generation: u32) -> BTreeSet<String> {
    let effects = effects::read(folder).into_iter();
    effects
        .filter(|effect| effect.generation == generation && effect.id.starts_with("ticker"))
        .map(|effect| effect.id)
        .collect()
}

/// Checks that waiting executions still receive their signals.
async fn check_wakes(client: &Abide) {
    for n in [0, OPEN_COUNT / 2, OPEN_COUNT - 2] {
        let handle = client.handle::<u64>(&format!("open-{n}"));
        handle.signal("go", &5u64).await.expect("a signal");
        assert_eq!(within("a result", handle.result()).await.expect("a result"), n + 5);
    }
}
