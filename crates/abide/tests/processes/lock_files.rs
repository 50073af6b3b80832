//! The files that show whether a worker's process lives, when somebody deletes them.

use std::path::{Path, PathBuf};

use abide::prelude::*;

use crate::clock::{Stopwatch, until};
use crate::effects;
use crate::flows::ticker;
use crate::in_turn;
use crate::look;
use crate::process::Process;
use crate::roles::Role;

/// A time longer than any test waits: a worker that takes over has not waited for it.
const TTL_MS: u64 = 3_600_000;

fn worker(folder: &Path, generation: u32) -> Role {
    Role { generation, ttl_ms: Some(TTL_MS), ..Role::worker(folder) }
}

fn lock_files(folder: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    names.filter(|path| path.to_string_lossy().contains("-session-")).collect()
}

/// Waits until process `generation` has run something.
async fn ticks(folder: &Path, generation: u32) {
    until("it ticks", async || {
        effects::read(folder).iter().any(|effect| effect.generation == generation).then_some(())
    })
    .await;
}

#[test]
fn a_live_session_makes_its_lock_file_anew() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        let mut first = Process::spawn_ready(&worker(folder.path(), 0)).await;
        client.start(ticker, 100_000).id("ticker").await.expect("a start");
        ticks(folder.path(), 0).await;
        let [file] = lock_files(folder.path()).try_into().expect("one lock file");
        std::fs::remove_file(&file).expect("the file is deleted");
        until("the file is there again", async || file.exists().then_some(())).await;
        first.kill();
        let _second = Process::spawn_ready(&worker(folder.path(), 1)).await;
        ticks(folder.path(), 1).await;
    });
}

#[test]
fn a_dead_session_without_a_lock_file_costs_three_seconds_and_no_less() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        let mut first = Process::spawn_ready(&worker(folder.path(), 0)).await;
        client.start(ticker, 100_000).id("ticker").await.expect("a start");
        ticks(folder.path(), 0).await;
        first.kill();
        for file in lock_files(folder.path()) {
            std::fs::remove_file(file).expect("the file is deleted");
        }
        let watch = Stopwatch::start();
        let _second = Process::spawn_ready(&worker(folder.path(), 1)).await;
        ticks(folder.path(), 1).await;
        println!("it went on after {:?}", watch.elapsed());
        assert!(watch.elapsed() >= secs(3), "a missing file was taken for a death at once");
    });
}
