//! The memory that unread mail takes. The only test in its program: the peak is that of the whole
//! process.

use abide::prelude::*;

#[workflow]
async fn waits(ctx: Ctx) -> Result<u32> {
    ctx.recv("go").await
}

/// Returns the peak memory of this process, in MiB.
fn memory_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_signals_stay_in_the_store() {
    const COUNT: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("abide.db").display());
    create(&folder.path().join("abide.db"));
    let client = Abide::client(&url).await.unwrap();
    let handle = client.start(waits, ()).id("one").await.unwrap();
    let large = "x".repeat(200_000);
    for _ in 0..COUNT {
        handle.signal("other", &large).await.unwrap();
    }
    handle.signal("go", &7).await.unwrap();
    let before = memory_peak();
    let worker = Abide::open(&url).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 7);
    let more = memory_peak() - before;
    assert!(more < 38, "{more} MiB more for {} MB of unread signals", COUNT / 5);
    worker.shutdown().await;
}

/// Makes an empty store: a client creates none, and a worker would take the started executions.
fn create(path: &std::path::Path) {
    let clock = std::sync::Arc::new(abide_engine::SystemClock);
    let store = abide_sqlite::SqliteStore::open(path, clock, abide_sqlite::Options::default());
    store.expect("the store can be made").close();
}
