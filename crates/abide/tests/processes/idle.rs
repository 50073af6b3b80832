//! An idle process costs next to nothing.

use std::path::Path;

use abide::prelude::*;

use crate::clock::{Stopwatch, pause};
use crate::flows::{sleeper, waiter};
use crate::in_turn;
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::{Kind, Role};

/// The time of one measurement: longer than the interval of everything that an idle process does
/// now and then, apart from its looks once a minute.
const IDLE_MS: u64 = 6_000;
/// The allowed processor time. Without optimization, a worker needs about 0.15 and a client 0.06.
const CPU_PERCENT_MAX: f64 = 0.5;
/// The number of measurements, the least of which counts: other processes can only add to the
/// processor time of a process, by taking the caches from it.
const TRY_COUNT: u32 = 5;
/// The least time between two heartbeats: the time to live is 15 seconds, and three beats fit into
/// it.
const HEARTBEAT_EVERY_MS: u64 = 5_000;
/// The most bytes that a heartbeat writes: one page of the log.
const HEARTBEAT_BYTES: u64 = 4_200;
/// The most bytes that wake threads of a process.
const WAKE_BYTES: u64 = 500;
const OPEN_COUNT: u64 = 100;

#[test]
fn an_idle_worker_costs_next_to_nothing_and_writes_nothing_but_heartbeats() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        let worker = Process::spawn_ready(&Role::worker(folder.path())).await;
        for n in 0..OPEN_COUNT / 2 {
            client.start(waiter, n).id(format!("waiter-{n}")).await.expect("a start");
            client.start(sleeper, n).id(format!("sleeper-{n}")).await.expect("a start");
        }
        Look::at(folder.path()).wait_until_all_rest(&client).await;
        // By then the worker no longer expects news: it listens more closely for a second after
        // each.
        pause(ms(1_300)).await;
        check_idle((worker.pid(), HEARTBEAT_BYTES), folder.path()).await;
    });
}

const HANDLE_COUNT: u64 = 1_000;

#[test]
fn a_client_that_waits_for_a_thousand_results_costs_next_to_nothing_and_hears_of_each() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        for n in 0..HANDLE_COUNT {
            client.start(waiter, n).id(format!("waiter-{n}")).await.expect("a start");
        }
        let slots = Some(usize::try_from(HANDLE_COUNT).expect("a small number"));
        let role = Role { kind: Kind::Watcher, slots, ..Role::worker(folder.path()) };
        let mut watcher = Process::spawn_ready(&role).await;
        // By then all of them have looked.
        pause(ms(2_000)).await;
        check_idle((watcher.pid(), 0), folder.path()).await;
        let _worker = Process::spawn_ready(&Role::worker(folder.path())).await;
        for n in [HANDLE_COUNT - 1, 0, 500] {
            client.handle::<u64>(&format!("waiter-{n}")).signal("go", &7u64).await.expect("a signal");
            assert_eq!(watcher.hear(&format!("heard {n} ")).await, format!("Ok({})", n + 7));
        }
    });
}

/// Checks that an idle process costs next to nothing, and writes nothing but heartbeats of this
/// many bytes.
async fn check_idle(process: (u32, u64), folder: &Path) {
    let mut least = f64::INFINITY;
    for _ in 0..TRY_COUNT {
        least = least.min(cpu_percent(process, folder).await);
        if least < CPU_PERCENT_MAX {
            return;
        }
    }
    panic!("{least:.3} % CPU at least, in {TRY_COUNT} measurements");
}

/// Returns the processor time of an idle process, in percent. Panics if it writes anything but
/// heartbeats.
async fn cpu_percent((pid, heartbeat_bytes): (u32, u64), folder: &Path) -> f64 {
    let before = Cost::of(pid, folder);
    let watch = Stopwatch::start();
    pause(ms(IDLE_MS)).await;
    let elapsed = watch.elapsed();
    let after = Cost::of(pid, folder);
    let cpu_percent = (after.cpu_ns - before.cpu_ns) as f64 / elapsed.as_nanos() as f64 * 100.0;
    let written = after.written - before.written;
    println!("idle: {cpu_percent:.3} % CPU, {written} bytes written");
    let heartbeat_count_max = elapsed.as_millis() / u128::from(HEARTBEAT_EVERY_MS) + 1;
    let written_max = u128::from(heartbeat_bytes) * heartbeat_count_max + u128::from(WAKE_BYTES);
    assert!(u128::from(written) <= written_max, "{written} bytes written in {elapsed:?}");
    assert_eq!(before.sizes, after.sizes, "the files grew");
    cpu_percent
}

/// The cost of a process so far.
struct Cost {
    cpu_ns: u64,
    written: u64,
    sizes: Vec<u64>,
}

impl Cost {
    fn of(pid: u32, folder: &Path) -> Self {
        let database = look::database(folder);
        let log = folder.join("app.db-wal");
        Self {
            cpu_ns: cpu_ns(pid),
            written: written_bytes(pid),
            sizes: [database, log]
                .iter()
                .map(|path| std::fs::metadata(path).map_or(0, |found| found.len()))
                .collect(),
        }
    }
}

/// Returns the processor time of all threads: `schedstat` is exact, while `stat` counts hundredths
/// of a second.
fn cpu_ns(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process with threads");
    let of_thread = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads.filter_map(|thread| of_thread(thread.ok()?.path())).sum()
}

fn written_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).expect("what a process wrote");
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|line| line.trim().parse().ok()).expect("a number")
}
