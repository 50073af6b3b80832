//! The disk is full for a while: errors are typed, nothing acknowledged is lost, and everything
//! goes on when there is room.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use abide::prelude::*;
use abide::rusqlite::Connection;

use crate::clock::{Stopwatch, pause, until, within};
use crate::flows::{bulky, bulky_transaction};
use crate::in_turn;
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::Role;
use crate::unusable::{mount, run};

const DISK: &str = "size=24m";
/// The bytes that leave three megabytes free. The executions that fill them need more than twice as
/// much to end.
const BALLAST_BYTES: usize = 21 << 20;
const INPUT_BYTES: usize = 8 << 10;
/// The number of starts in a row that must fail before the disk counts as full.
const FAILED_COUNT: u32 = 10;

/// A file system of a few megabytes.
struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["-l", &self.0.display().to_string()]);
    }
}

#[test]
fn a_full_disk_loses_nothing_and_all_goes_on_when_there_is_room() {
    in_turn(async {
        let (folder, outside) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        if !mount(folder.path(), DISK) {
            println!(
                "no file system can be mounted here (needs root): only the limit on the size of files is tested"
            );
            return;
        }
        let disk = Disk(folder.path().to_owned());
        println!("a full disk by a tmpfs with {DISK}");
        std::fs::write(disk.0.join("ballast"), vec![1; BALLAST_BYTES]).expect("a ballast");
        look::create(&look::database(&disk.0));
        let client = Abide::builder(look::url(&disk.0)).busy_ms_max(2_000).client().await.expect("a client");
        let role = Role { outside: outside.path().to_owned(), ..Role::worker(&disk.0) };
        let mut worker = Process::spawn_ready(&role).await;
        let mut acknowledged = fill(&client).await;
        assert!(worker.is_alive(), "the worker crashed");
        println!("{} executions were acknowledged before the disk was full", acknowledged.len());
        check_told(&client, acknowledged.last().expect("one was acknowledged")).await;
        // The worker meets the full disk too, for a while.
        pause(ms(1_000)).await;
        assert!(worker.is_alive(), "the worker crashed");
        std::fs::remove_file(disk.0.join("ballast")).expect("room");
        let watch = Stopwatch::start();
        acknowledged.push(start_again(&client).await);
        let paused = client.handle::<usize>(&acknowledged[acknowledged.len() - 2]).resume().await;
        assert!(matches!(paused, Ok(()) | Err(ClientError::Refused { .. })), "{paused:?}");
        println!("a start went through {:?} after there was room", watch.elapsed());
        check_all(&client, &disk.0, &acknowledged).await;
        println!("all was finished {:?} after there was room", watch.elapsed());
        assert!(worker.is_alive(), "the worker crashed");
        drop(worker);
        drop(client);
    });
}

/// A program that starts on a full disk hears of it at once, and decides itself whether to wait.
#[test]
fn an_open_on_a_full_disk_is_an_error() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        if !mount(folder.path(), "size=4m") {
            println!("no file system can be mounted here (needs root)");
            return;
        }
        let disk = Disk(folder.path().to_owned());
        look::create(&look::database(&disk.0));
        let new = format!("sqlite:{}", disk.0.join("new.db").display());
        // The last bytes are too few for a page of SQLite.
        let mut ballast = std::fs::File::create(disk.0.join("ballast")).expect("a ballast");
        while ballast.write_all(&[1; 1 << 10]).is_ok() {}
        for url in [look::url(&disk.0), new] {
            let open = async || Abide::builder(&url).open().await;
            let error =
                within("an open on a full disk", open()).await.map(drop).expect_err("there is no room");
            println!("{error}");
            assert!(matches!(error, ClientError::Open { .. }), "{error:?}");
            assert!(error.to_string().contains("the disk is full (0 bytes are free)"), "{error}");
            ballast.set_len(0).expect("room");
            let abide = within("an open", open()).await.expect("there is room");
            abide.shutdown().await;
            while ballast.write_all(&[1; 1 << 10]).is_ok() {}
        }
    });
}

/// Within five seconds `why` says that the disk is full, to a client as to the worker's own
/// program. Requests fail with a typed error, and waiting clients keep waiting.
async fn check_told(client: &Abide, id: &str) {
    let handle = client.handle::<usize>(id);
    let watch = Stopwatch::start();
    until("why says that the disk is full", async || {
        let why = handle.why().await.expect("a reader needs no room");
        (why.contains("disk of the store is full") || why.contains("database or disk is full")).then_some(())
    })
    .await;
    assert!(watch.elapsed() < secs(5), "{:?}", watch.elapsed());
    println!("{}", handle.why().await.expect("why"));
    let large = "x".repeat(1 << 20);
    let asked =
        [("signal", handle.signal("more", &large).await), ("signal", handle.signal("more", &large).await)];
    for (what, asked) in asked {
        assert!(matches!(asked, Err(ClientError::Unavailable { .. })), "{what}: {asked:?}");
    }
    match handle.pause().await {
        // A small order may find room, and the next one none: the caller resumes it.
        Ok(()) => drop(handle.resume().await),
        Err(error) => assert!(error.is_transient(), "{error:?}"),
    }
    tokio::select! {
        ended = handle.result() => panic!("it can neither have ended nor be an error: {ended:?}"),
        () = pause(ms(500)) => {}
    }
}

/// Everything fits: the log, and the database that it is copied to.
#[test]
fn a_small_disk_has_room_for_the_log_and_the_database() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        if !mount(folder.path(), "size=16m") {
            println!("no file system can be mounted here (needs root)");
            return;
        }
        let disk = Disk(folder.path().to_owned());
        let client = look::client(&disk.0).await;
        let worker = Process::spawn_ready(&Role::worker(&disk.0)).await;
        let mut started = Vec::new();
        for n in 0..150 {
            let id = format!("bulky-{n}");
            client.start(bulky, "x".repeat(INPUT_BYTES)).id(&id).await.expect("there is room");
            started.push(id);
        }
        check_all(&client, &disk.0, &started).await;
        let log = std::fs::metadata(disk.0.join("app.db-wal")).expect("a log").len();
        let database = std::fs::metadata(look::database(&disk.0)).expect("a database").len();
        println!("the log has {log} bytes, the database {database}");
        assert!(log <= 4 << 20, "the log has {log} bytes");
        drop((worker, client));
    });
}

/// The worker may not make a file longer than this.
const FILE_BYTES_MAX: u64 = 2 << 20;
const LIMITED_COUNT: u64 = 100;

#[test]
fn a_worker_whose_writes_fail_loses_nothing_and_goes_on_when_they_succeed() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        let mut worker = Process::spawn_deaf_to_limits(&Role::worker(folder.path()));
        worker.hear("ready").await;
        worker.limit_files(Some(FILE_BYTES_MAX));
        let mut acknowledged = Vec::new();
        for n in 0..LIMITED_COUNT {
            let id = format!("bulky-{n}");
            client.start(bulky, "x".repeat(INPUT_BYTES)).id(&id).await.expect("a start");
            acknowledged.push(id);
        }
        let log = folder.path().join("app.db-wal");
        until("the log is as long as it may be", async || {
            (std::fs::metadata(&log).expect("a log").len() >= FILE_BYTES_MAX).then_some(())
        })
        .await;
        // Give the worker time to meet the limit.
        pause(ms(700)).await;
        assert!(worker.is_alive(), "the worker crashed");
        let mut look = Look::at(folder.path());
        look.again().await;
        let open = acknowledged.len() - look.ends().len();
        println!("{open} of {LIMITED_COUNT} executions are open when the limit is lifted");
        assert!(open > 0, "the limit was never met");
        worker.limit_files(None);
        let watch = Stopwatch::start();
        check_all(&client, folder.path(), &acknowledged).await;
        println!("all was finished {:?} after the limit was lifted", watch.elapsed());
        assert!(worker.is_alive(), "the worker crashed");
    });
}

/// A size above the cache of SQLite, the room on the disk and the limit.
const TRANSACTION_MEGABYTES: u32 = 16;

/// A statement of the closure fails and the closure returns its error, but the closure is not at
/// fault.
#[test]
fn a_transaction_on_a_full_disk_waits_for_room() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        if !mount(folder.path(), "size=48m") {
            println!("no file system can be mounted here (needs root)");
            return;
        }
        let disk = Disk(folder.path().to_owned());
        let client = look::client(&disk.0).await;
        let worker = Process::spawn_ready(&Role::worker(&disk.0)).await;
        std::fs::write(disk.0.join("ballast"), vec![1; 40 << 20]).expect("a ballast");
        wait_for_room(&client, async || std::fs::remove_file(disk.0.join("ballast")).expect("room")).await;
        drop((worker, client));
    });
}

#[test]
fn a_transaction_whose_writes_fail_waits_until_they_succeed() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        let mut worker = Process::spawn_deaf_to_limits(&Role::worker(folder.path()));
        worker.hear("ready").await;
        worker.limit_files(Some(FILE_BYTES_MAX));
        wait_for_room(&client, async || worker.limit_files(None)).await;
    });
}

async fn wait_for_room(client: &Abide, make_room: impl AsyncFnOnce()) {
    let handle = client.start(bulky_transaction, TRANSACTION_MEGABYTES).id("bulk").await.expect("a start");
    // The worker meets the limit several times.
    pause(ms(1_500)).await;
    assert_eq!(
        handle.status().await.expect("a status"),
        Status::Running,
        "{}",
        handle.why().await.expect("why")
    );
    make_room().await;
    let rows = within("the transaction ends", handle.result()).await.expect("a result");
    assert_eq!(rows, TRANSACTION_MEGABYTES, "its writes happen once");
}

/// Starts executions until starts fail again and again, and returns the acknowledged ones.
async fn fill(client: &Abide) -> Vec<String> {
    let mut acknowledged = Vec::new();
    let mut failed_count = 0;
    for n in 0..100_000 {
        let id = format!("bulky-{n}");
        match client.start(bulky, "x".repeat(INPUT_BYTES)).id(&id).await {
            Ok(_) => {
                acknowledged.push(id);
                failed_count = 0;
            }
            Err(error) => {
                if failed_count == 0 {
                    println!("{id}: {error}");
                }
                assert!(
                    matches!(error, ClientError::Unavailable { .. } | ClientError::Indeterminate { .. }),
                    "{error:?}"
                );
                assert!(error.is_transient());
                failed_count += 1;
            }
        }
        if failed_count == FAILED_COUNT {
            return acknowledged;
        }
    }
    panic!("the disk was never full");
}

async fn start_again(client: &Abide) -> String {
    let id = "after".to_owned();
    until("a start after there is room", async || {
        client.start(bulky, "x".repeat(INPUT_BYTES)).id(&id).await.ok().map(drop)
    })
    .await;
    id
}

async fn check_all(client: &Abide, disk: &Path, acknowledged: &[String]) {
    for id in acknowledged {
        let handle = client.handle::<usize>(id);
        let what = format!("{id} ends");
        let result = until(&what, async || match within(&what, handle.result()).await {
            Ok(result) => Some(result),
            Err(error) if error.is_transient() => None,
            Err(error) => panic!("{id}: {error}"),
        });
        assert_eq!(result.await, INPUT_BYTES * 4, "{id}");
    }
    let mut look = Look::at(disk);
    look.again().await;
    assert!(look.ends().values().all(|ends| ends.len() == 1));
    assert_eq!(look.recorded().len() % 4, 0);
    let connection = Connection::open(look::database(disk)).expect("the database");
    let verdict: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
    assert_eq!(verdict, "ok");
}
