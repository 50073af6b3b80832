//! The log cannot be synced for a while: nobody knows whether a COMMIT that fails in this way has
//! happened.
//!
//! A library that is preloaded into the worker makes its syncs fail. It is compiled here: a C
//! compiler is needed to build the tests anyway.

use std::path::{Path, PathBuf};
use std::process::Command;

use abide::prelude::*;

use crate::clock::{in_time, pause, until, within};
use crate::effects::{self, Effect};
use crate::flows::{bookkeeper, listener, restless, ticker};
use crate::in_turn;
use crate::look;
use crate::pairs::signal_in_time;
use crate::process::Process;
use crate::roles::{Kind, Role};

/// A worker whose syncs fail on demand.
struct Faulty {
    worker: Process,
    switch: PathBuf,
}

impl Faulty {
    async fn spawn(folder: &Path, outside: &Path) -> Self {
        let role = Role { outside: outside.to_owned(), ..Role::worker(folder) };
        let mut faulty = Self::spawn_in(role);
        faulty.worker.hear("ready").await;
        faulty
    }

    fn spawn_in(role: Role) -> Self {
        let (library, switch) = (library(&role.outside), switch(&role.outside));
        let environment = [("LD_PRELOAD", &*library), ("ABIDE_FAIL_SYNC", &*switch)];
        Self { worker: Process::spawn_in(&role, environment), switch }
    }

    fn fail(&self) {
        self.fail_to_sync("log");
    }

    /// Makes the syncs of the log fail, or those of the folder.
    fn fail_to_sync(&self, what: &str) {
        std::fs::write(&self.switch, what).expect("a file can be made");
    }

    fn heal(&self) {
        std::fs::remove_file(&self.switch).expect("the file can be deleted");
    }
}

/// Returns the path of the file that makes syncs fail while it exists.
fn switch(outside: &Path) -> PathBuf {
    outside.join("fail-sync")
}

/// Compiles the preloaded library, and returns its path.
fn library(outside: &Path) -> PathBuf {
    let library = outside.join("fail_sync.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processes/fail_sync.c");
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl");
    assert!(compiler.status().expect("a C compiler").success(), "it compiles");
    library
}

const TICKER_COUNT: u64 = 10;
const TICK_COUNT: u64 = 50;

/// A worker that hears that a step is recorded goes on with the next one. If the step was not
/// recorded, it runs again, after its successor.
#[test]
fn nobody_goes_on_after_a_commit_that_may_not_have_happened() {
    in_turn(async {
        let (folder, outside) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let client = look::client(folder.path()).await;
        let mut faulty = Faulty::spawn(folder.path(), outside.path()).await;
        for n in 0..TICKER_COUNT {
            client.start(ticker, TICK_COUNT).id(format!("ticker-{n}")).await.expect("a start");
        }
        for _ in 0..5 {
            pause(ms(100)).await;
            faulty.fail();
            pause(ms(150)).await;
            faulty.heal();
        }
        assert!(faulty.worker.is_alive(), "the worker crashed");
        for n in 0..TICKER_COUNT {
            let handle = client.handle::<u64>(&format!("ticker-{n}"));
            assert_eq!(within("a ticker ends", handle.result()).await.expect("a count"), TICK_COUNT);
            check_order(outside.path(), handle.id());
        }
    });
}

/// Checks that no step ran after its successor had begun.
fn check_order(outside: &Path, id: &str) {
    let nth = |effect: &Effect| -> u64 {
        let nth = effect.key.rsplit('/').next().expect("a key has parts");
        nth.parse().expect("it ends with a number")
    };
    let ticks: Vec<_> = effects::read(outside).iter().filter(|effect| effect.id == id).map(nth).collect();
    assert!(ticks.is_sorted(), "{id} took its steps in this order: {ticks:?}");
    assert_eq!(ticks.last(), Some(&TICK_COUNT));
}

const TRANSACTION_COUNT: u32 = 100;

/// A transaction step that failed to commit runs again, and its writes happen once.
#[test]
fn a_transaction_of_which_nobody_knows_whether_it_happened_happens_once() {
    in_turn(async {
        let (folder, outside) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let client = look::client(folder.path()).await;
        let faulty = Faulty::spawn(folder.path(), outside.path()).await;
        let handle = client.start(bookkeeper, TRANSACTION_COUNT).id("one").await.expect("a start");
        for _ in 0..5 {
            pause(ms(60)).await;
            faulty.fail();
            pause(ms(60)).await;
            faulty.heal();
        }
        let rows = within("all is booked", handle.result()).await.expect("a count");
        assert_eq!(rows, (1..=TRANSACTION_COUNT).collect::<Vec<_>>(), "each saw those before it, once");
    });
}

/// The worker's own writes fail and it opens its connection anew; another process, whose disk
/// works, gets its signal acknowledged.
#[test]
fn a_signal_that_came_while_the_disk_failed_is_delivered() {
    in_turn(async {
        let (folder, outside) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let client = look::client(folder.path()).await;
        let faulty = Faulty::spawn(folder.path(), outside.path()).await;
        let handle = client.start(restless, 1).id("one").await.expect("a start");
        until("it listens", async || {
            handle.why().await.is_ok_and(|why| why.contains("signal")).then_some(())
        })
        .await;
        faulty.fail();
        // By then the worker has met the fault.
        pause(ms(600)).await;
        handle.signal("s", &7u64).await.expect("a signal");
        pause(ms(300)).await;
        faulty.heal();
        assert_eq!(within("the signal is received", handle.result()).await.expect("a result"), 7);
    });
}

/// Nobody knows whether a dead worker has synced the end of its log, and the folder that has its
/// name. The next process syncs both before the first answer, and does not open the store if that
/// fails.
#[test]
fn p2_nobody_answers_from_a_log_that_cannot_be_synced() {
    in_turn(async {
        let (folder, outside) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let mut faulty = Faulty::spawn(folder.path(), outside.path()).await;
        faulty.worker.tell("run quick 3");
        faulty.worker.hear("ran").await;
        faulty.worker.kill();
        let (folder, outside) = (folder.path(), outside.path());
        faulty.fail_to_sync("log");
        check_opening((folder, outside), &["open", "client"], "Input/output error").await;
        faulty.fail_to_sync("folder");
        // Who cannot open it deletes the log, which can be synced: a client finds none.
        check_opening((folder, outside), &["open"], "Input/output error").await;
        faulty.heal();
        check_opening((folder, outside), &["open", "client"], "it is open").await;
    });
}

/// The lock of a live session says that the log was synced, and may be the lock of a process that
/// dies at this moment.
#[test]
fn p2_nobody_answers_beside_a_live_session_from_a_log_that_cannot_be_synced() {
    in_turn(async {
        let (folder, outside) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let mut healthy = Process::spawn_ready(&Role::worker(folder.path())).await;
        healthy.tell("run quick 3");
        healthy.hear("ran").await;
        std::fs::write(switch(outside.path()), "log").expect("a file can be made");
        let folders = (folder.path(), outside.path());
        check_opening(folders, &["open", "client"], "Input/output error").await;
        assert!(healthy.is_alive());
    });
}

/// Tries to read the store and to open it in these ways, with the faults that are switched on, and
/// checks the answers.
async fn check_opening((folder, outside): (&Path, &Path), ways: &[&str], expected: &str) {
    for (kind, ways) in [(Kind::Reader, &["read"][..]), (Kind::Opener, ways)] {
        let role = Role { kind, outside: outside.to_owned(), ..Role::worker(folder) };
        let mut opener = Faulty::spawn_in(role);
        for way in ways {
            let heard = opener.worker.hear(way).await;
            assert!(heard.contains(expected), "{way}: {heard:?} is not {expected:?}");
        }
    }
}

const SLOW_SYNC_MS: &str = "50";
const SLOW_SIGNAL_COUNT: u64 = 8;
const SLOW_SIGNAL_MS_MAX: i64 = 300;

/// The log grows long before the commit can be seen, and nothing announces the commit.
#[test]
fn a_signal_of_a_process_with_a_slow_disk_is_noticed_when_it_is_there() {
    in_turn(async {
        let (folder, outside) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let role = |lane: &str| Role {
            lane: Some(lane.to_owned()),
            outside: outside.path().to_owned(),
            ..Role::worker(folder.path())
        };
        let mut receiver = Process::spawn_ready(&role("receiver")).await;
        let slow =
            [("LD_PRELOAD", &*library(outside.path())), ("ABIDE_SLOW_SYNC_MS", Path::new(SLOW_SYNC_MS))];
        let mut sender = Process::spawn_with(&role("sender"), slow).await;
        let client = look::client(folder.path()).await;
        in_time(async |nth| {
            let id = format!("listener-{nth}");
            let start = client.start(listener, SLOW_SIGNAL_COUNT).id(&id).lane("receiver");
            let listening = start.await.expect("a start");
            sender.tell(&format!("ping {id} {SLOW_SIGNAL_COUNT} 2000"));
            sender.hear("pinged").await;
            let mut took_us = within("the signals arrive", listening.result()).await.expect("times");
            took_us.sort_unstable();
            println!("signals of a process with a slow disk: {took_us:?} us");
            let most_us = took_us[took_us.len() * 3 / 4];
            signal_in_time(most_us, SLOW_SIGNAL_MS_MAX, &client, ("receiver", &mut receiver)).await
        })
        .await;
    });
}
