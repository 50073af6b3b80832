//! Idle is free.

use std::path::Path;

use abide::prelude::*;
use abide::rusqlite::Connection;

use crate::clock::{Stopwatch, pause, until};
use crate::flows::{sleeper, waiter};
use crate::in_turn;
use crate::look;
use crate::process::Process;
use crate::roles::Role;

const IDLE_MS: u64 = 3_000;
const CPU_PERCENT_MAX: f64 = 0.3;
/// The time to live is 15 seconds, three beats fit into it.
const HEARTBEAT_COUNT_MAX: i64 = 1;
const OPEN_COUNT: u64 = 100;

#[test]
fn an_idle_worker_costs_next_to_nothing_and_writes_nothing_but_heartbeats() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = Abide::client(&look::url(folder.path())).await.expect("a client");
        let worker = Process::spawn_ready(&Role::worker(folder.path())).await;
        for n in 0..OPEN_COUNT / 2 {
            client.start(waiter, n).id(format!("waiter-{n}")).await.expect("a start");
            client.start(sleeper, n).id(format!("sleeper-{n}")).await.expect("a start");
        }
        let connection = Connection::open(look::database(folder.path())).expect("the database");
        let parked = "SELECT COUNT(*) FROM abide_executions WHERE session IS NULL AND ready_at IS NULL";
        until("all rest", secs(20), async || (count(&connection, parked) == OPEN_COUNT as i64).then_some(()))
            .await;
        // Until the worker no longer expects news: it listens more closely for a second after each.
        pause(ms(1_300)).await;
        let before = Cost::of(worker.pid(), &connection, folder.path());
        let watch = Stopwatch::start();
        pause(ms(IDLE_MS)).await;
        let elapsed = watch.elapsed();
        let after = Cost::of(worker.pid(), &connection, folder.path());
        let cpu_percent = (after.cpu_ns - before.cpu_ns) as f64 / elapsed.as_nanos() as f64 * 100.0;
        let commits = after.version - before.version;
        println!(
            "idle: {cpu_percent:.3} % CPU, {commits} commits, {} bytes written",
            after.written - before.written
        );
        assert!(commits <= HEARTBEAT_COUNT_MAX, "{commits} commits in {elapsed:?}");
        assert!(
            after.written - before.written <= 64 << 10,
            "{} bytes written",
            after.written - before.written
        );
        assert_eq!(before.sizes, after.sizes, "the files grew");
        assert!(cpu_percent < CPU_PERCENT_MAX, "{cpu_percent:.3} % CPU");
    });
}

fn count(connection: &Connection, query: &str) -> i64 {
    connection.query_row(query, [], |row| row.get(0)).expect("a number")
}

/// What a process has cost so far.
struct Cost {
    cpu_ns: u64,
    /// The heartbeat is the only thing that may change it.
    version: i64,
    written: u64,
    sizes: Vec<u64>,
}

impl Cost {
    fn of(pid: u32, connection: &Connection, folder: &Path) -> Self {
        let database = look::database(folder);
        let log = folder.join("app.db-wal");
        Self {
            cpu_ns: cpu_ns(pid),
            version: count(connection, "PRAGMA data_version"),
            written: written_bytes(pid),
            sizes: [database, log]
                .iter()
                .map(|path| std::fs::metadata(path).map_or(0, |found| found.len()))
                .collect(),
        }
    }
}

/// The processor time of all threads: `schedstat` is exact, while `stat` counts hundredths of a second.
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
