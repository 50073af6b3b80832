//! Two processes on one file share the work, and wake each other.

use std::collections::BTreeMap;
use std::path::Path;

use abide::prelude::*;

use crate::clock::{pause, until, within};
use crate::effects;
use crate::flows::{listener, unhurried};
use crate::in_turn;
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::Role;

/// Executions a measurement.
const QUICK_COUNT: u64 = 1_600;
/// Executions of the backlog that two share.
const BACKLOG_COUNT: u64 = 300;
/// Slots of each of the two: few, and each held for a while, so that neither can take the whole backlog.
const SHARED_SLOT_COUNT: usize = 8;
/// What two processes reach together of what one does, in the middle of so many measurements.
const RATIO_MIN: f64 = 0.7;
const MEASUREMENT_COUNT: usize = 5;
const SIGNAL_COUNT: u64 = 250;
const SIGNAL_MS_MAX: i64 = 50;
/// Signals after the receiver has become quiet, which only asks 20 times a second.
const QUIET_SIGNAL_COUNT: u64 = 4;

#[test]
fn two_processes_share_a_backlog_and_neither_runs_what_the_other_holds() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = Abide::client(&look::url(folder.path())).await.expect("a client");
        // Both are there before the first start: a slow machine gives one of them no lead over the other.
        let role = Role { slots: Some(SHARED_SLOT_COUNT), ..Role::worker(folder.path()) };
        let _one = Process::spawn_ready(&role).await;
        let _other = Process::spawn_ready(&Role { generation: 1, ..role }).await;
        let starts =
            (0..BACKLOG_COUNT).map(|n| client.start(unhurried, n).id(format!("b-{n}")).into_future());
        for start in futures_util::future::join_all(starts).await {
            start.expect("a start");
        }
        for n in 0..BACKLOG_COUNT {
            let result = client.handle::<u64>(&format!("b-{n}"));
            assert_eq!(within("a result", secs(20), result.result()).await.expect("a result"), n * 3);
        }
        let shares = check_one_pid_each(folder.path());
        println!("two processes shared {BACKLOG_COUNT} executions: {shares:?}");
        assert_eq!(shares.len(), 2, "one process did everything");
    });
}

/// Every execution was run by one process, every step once; how many by each.
fn check_one_pid_each(folder: &Path) -> BTreeMap<u32, u64> {
    let mut pids: BTreeMap<String, u32> = BTreeMap::new();
    let mut keys = std::collections::BTreeSet::new();
    for effect in effects::read(folder) {
        let pid = *pids.entry(effect.id.clone()).or_insert(effect.pid);
        assert_eq!(pid, effect.pid, "{} was run by two processes", effect.id);
        assert!(keys.insert(effect.key.clone()), "{} ran twice", effect.key);
    }
    let mut shares = BTreeMap::new();
    for pid in pids.into_values() {
        *shares.entry(pid).or_default() += 1;
    }
    shares
}

#[test]
fn two_processes_do_not_halve_each_others_throughput() {
    in_turn(async {
        let mut ratios = Vec::new();
        for _ in 0..MEASUREMENT_COUNT {
            let alone = throughput(1).await;
            let together = throughput(2).await;
            println!("one process {alone:.0}/s, two together {together:.0}/s");
            ratios.push(together / alone);
        }
        ratios.sort_unstable_by(f64::total_cmp);
        let median = ratios[MEASUREMENT_COUNT / 2];
        assert!(median >= RATIO_MIN, "two processes reach only {median:.2} of what one does: {ratios:.2?}");
    });
}

/// Executions a second of so many processes, each of which starts its part itself.
async fn throughput(process_count: u64) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let mut processes = Vec::new();
    for n in 0..process_count {
        let generation = u32::try_from(n).expect("few");
        processes.push(Process::spawn_ready(&Role { generation, ..Role::worker(folder.path()) }).await);
    }
    for (n, process) in processes.iter_mut().enumerate() {
        process.tell(&format!("run p{n} {}", QUICK_COUNT / process_count));
    }
    let (mut from_us, mut to_us) = (i64::MAX, 0);
    for process in &mut processes {
        let times = process.hear("ran").await;
        let (from, to) = times.split_once(' ').expect("two times");
        from_us = from_us.min(from.parse().expect("a time"));
        to_us = to_us.max(to.parse().expect("a time"));
    }
    check_one_pid_each(folder.path());
    QUICK_COUNT as f64 / ((to_us - from_us) as f64 / 1e6)
}

#[test]
fn a_signal_from_one_process_wakes_a_workflow_in_the_other_at_once() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let role = |lane: &str| Role { lane: Some(lane.to_owned()), ..Role::worker(folder.path()) };
        let _receiver = Process::spawn_ready(&role("receiver")).await;
        let mut sender = Process::spawn_ready(&role("sender")).await;
        let client = Abide::client(&look::url(folder.path())).await.expect("a client");
        let lively =
            client.start(listener, SIGNAL_COUNT).id("lively").lane("receiver").await.expect("a start");
        sender.tell(&format!("ping lively {SIGNAL_COUNT} 30"));
        sender.hear("pinged").await;
        let took_us = within("the signals arrive", secs(20), lively.result()).await.expect("times");
        let (p50, p95) = percentiles(took_us);
        println!("{SIGNAL_COUNT} signals to another process: p50 {p50} us, p95 {p95} us");
        assert!(p95 <= SIGNAL_MS_MAX * 1_000, "p95 is {p95} us");
        let quiet =
            client.start(listener, QUIET_SIGNAL_COUNT).id("quiet").lane("receiver").await.expect("a start");
        for n in 0..QUIET_SIGNAL_COUNT {
            // Longer than the receiver stays lively, and longer than it keeps what waits in memory.
            pause(ms(1_300)).await;
            sender.tell("ping quiet 1 0");
            until("the signal arrives", secs(5), async || {
                let count = effects::read(folder.path()).iter().filter(|effect| effect.id == "quiet").count();
                (count as u64 > n).then_some(())
            })
            .await;
        }
        let (quiet_p50, quiet_max) =
            percentiles(within("the signals arrive", secs(20), quiet.result()).await.expect("times"));
        println!("{QUIET_SIGNAL_COUNT} signals to a quiet process: p50 {quiet_p50} us, max {quiet_max} us");
        // The middle one: a single slow one of four tells more about the machine.
        assert!(quiet_p50 <= SIGNAL_MS_MAX * 1_000, "a quiet process took {quiet_p50} us");
        let mut look = Look::at(folder.path());
        look.again().await;
        assert_eq!(effects::read(folder.path()).len(), look.recorded().len(), "a step ran twice");
    });
}

fn percentiles(mut took_us: Vec<i64>) -> (i64, i64) {
    took_us.sort_unstable();
    (took_us[took_us.len() / 2], took_us[took_us.len() * 95 / 100])
}
