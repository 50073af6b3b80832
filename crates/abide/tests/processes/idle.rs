//! An idle process costs next to nothing.

use std::path::Path;

use abide::prelude::*;
use abide::rusqlite::Connection;

use crate::clock::{Stopwatch, beside, in_time, pause, pause_thread};
use crate::flows::{sleeper, waiter};
use crate::in_turn;
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::{Kind, Role};

const IDLE_MS: u64 = 3_000;
/// The allowed processor time. A build without optimization needs about 0.25 on a quiet machine,
/// nearly all of it for 20 queries per second.
const CPU_PERCENT_MAX: f64 = if cfg!(debug_assertions) { 0.5 } else { 0.3 };
/// The most processor time on a slow machine, as a multiple of the time that this process needs for
/// the queries alone.
const QUESTION_TIMES_MAX: f64 = 2.5;
const QUESTION_EVERY_MS: u64 = 50;
/// The heartbeats allowed: the time to live is 15 seconds, and three beats fit into it.
const HEARTBEAT_COUNT_MAX: i64 = 1;
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
        let connection = Connection::open(look::database(folder.path())).expect("the database");
        Look::at(folder.path()).wait_until_all_rest(&client).await;
        // By then the worker no longer expects news: it listens more closely for a second after
        // each.
        pause(ms(1_300)).await;
        in_time(async |_| measure(worker.pid(), &connection, folder.path()).await).await;
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
        let connection = Connection::open(look::database(folder.path())).expect("the database");
        // By then all of them have looked.
        pause(ms(2_000)).await;
        in_time(async |_| measure(watcher.pid(), &connection, folder.path()).await).await;
        let _worker = Process::spawn_ready(&Role::worker(folder.path())).await;
        for n in [HANDLE_COUNT - 1, 0, 500] {
            client.handle::<u64>(&format!("waiter-{n}")).signal("go", &7u64).await.expect("a signal");
            assert_eq!(watcher.hear(&format!("heard {n} ")).await, format!("Ok({})", n + 7));
        }
    });
}

/// Checks that an idle process costs next to nothing, and writes nothing but heartbeats.
async fn measure(pid: u32, connection: &Connection, folder: &Path) -> Result<(), String> {
    let before = Cost::of(pid, connection, folder);
    let watch = Stopwatch::start();
    let question_percent = questions(folder).await;
    let elapsed = watch.elapsed();
    let after = Cost::of(pid, connection, folder);
    let cpu_percent = (after.cpu_ns - before.cpu_ns) as f64 / elapsed.as_nanos() as f64 * 100.0;
    let (commits, written) = (after.version - before.version, after.written - before.written);
    println!(
        "idle: {cpu_percent:.3} % CPU ({question_percent:.3} % for questions alone), {commits} commits, {written} bytes written"
    );
    let cpu_percent_max = (question_percent * QUESTION_TIMES_MAX).max(CPU_PERCENT_MAX);
    let problems = [
        (cpu_percent >= cpu_percent_max, format!("{cpu_percent:.3} % CPU of {cpu_percent_max:.3}")),
        (commits > HEARTBEAT_COUNT_MAX, format!("{commits} commits in {elapsed:?}")),
        (written > 64 << 10, format!("{written} bytes written")),
        (before.sizes != after.sizes, "the files grew".to_owned()),
    ];
    let problems: Vec<_> = problems.into_iter().filter(|(is_so, _)| *is_so).map(|(_, what)| what).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

/// Makes for a while the queries of an idle process, and nothing else. Returns the processor time,
/// in percent.
async fn questions(folder: &Path) -> f64 {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let folder = folder.to_owned();
    // This needs a thread of its own, because processor time is counted per thread.
    beside(move || {
        let connection = Connection::open(look::database(&folder)).expect("the database");
        let (before_ns, watch) = (own_cpu_ns(), Stopwatch::start());
        for _ in 0..IDLE_MS / QUESTION_EVERY_MS {
            pause_thread(ms(QUESTION_EVERY_MS));
            count(&connection, "PRAGMA data_version");
        }
        let elapsed_ns = watch.elapsed().as_nanos() as f64;
        let _ = sender.send((own_cpu_ns() - before_ns) as f64 / elapsed_ns * 100.0);
    });
    receiver.await.expect("the thread ends")
}

fn count(connection: &Connection, query: &str) -> i64 {
    connection.query_row(query, [], |row| row.get(0)).expect("a number")
}

/// The cost of a process so far.
struct Cost {
    cpu_ns: u64,
    /// The data version, which only the heartbeat may change.
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

/// Returns the processor time of this thread.
fn own_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a thread runs");
    text.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a number")
}

fn written_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).expect("what a process wrote");
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|line| line.trim().parse().ok()).expect("a number")
}
