//! A process that is stopped inside a write transaction: callers in other processes hear of it
//! within `busy_ms_max`, and go on afterwards.

use std::path::Path;

use abide::prelude::*;

use crate::clock::{Stopwatch, in_time, until, within};
use crate::effects;
use crate::flows::waiter;
use crate::in_turn;
use crate::kills::check_steps;
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::{Kind, Role};

const BUSY_MS_MAX: u64 = 600;
/// The delay that a busy machine may add.
const TOLERANCE_MS: u64 = 500;
const EXECUTION_COUNT: u64 = 20;

#[test]
fn a_process_stopped_inside_a_transaction_delays_others_by_a_known_time_only() {
    // The worker's session outlives the stop, or it does not; the stop ends normally, or by a kill.
    in_turn(async {
        check(None, End::GoesOn).await;
        check(Some(400), End::Killed).await;
    });
}

#[derive(Clone, Copy)]
enum End {
    GoesOn,
    Killed,
}

async fn check(ttl_ms: Option<u64>, end: End) {
    let folder = tempfile::tempdir().expect("a folder");
    let url = look::url(folder.path());
    look::create(&look::database(folder.path()));
    let client = Abide::builder(&url).busy_ms_max(BUSY_MS_MAX).client().await.expect("a client");
    let role = Role { ttl_ms, busy_ms_max: Some(BUSY_MS_MAX), ..Role::worker(folder.path()) };
    let mut worker = Process::spawn_ready(&role).await;
    for n in 0..EXECUTION_COUNT {
        patiently("a start", async || client.start(waiter, n).id(format!("waiter-{n}")).await.map(drop))
            .await;
    }
    let mut holder = Process::spawn_ready(&Role { kind: Kind::Holder, ..Role::worker(folder.path()) }).await;
    holder.stop();
    check_refusals(&client, &url).await;
    match end {
        End::GoesOn => {
            holder.tell("let go");
            holder.go_on();
            holder.hear("released").await;
        }
        End::Killed => holder.kill(),
    }
    finish(&client, folder.path()).await;
    if ttl_ms.is_none() {
        assert_eq!(effects::read(folder.path()).len() as u64, EXECUTION_COUNT, "a step ran twice");
    }
    assert!(worker.is_alive());
}

/// Repeats a call that a slow machine may delay for longer than this client waits.
async fn patiently(what: &str, mut call: impl AsyncFnMut() -> Result<(), ClientError>) {
    until(what, async || match call().await {
        Ok(()) => Some(()),
        Err(ClientError::Unavailable { .. }) => None,
        Err(error) => panic!("{what}: {error}"),
    })
    .await;
}

/// Checks that, while nobody can write, every writing call fails in time and changes nothing, and
/// that reading goes on.
async fn check_refusals(client: &Abide, url: &str) {
    refused("start", async || client.start(waiter, 1_000).id("late").await.map(drop)).await;
    refused("signal", async || client.handle::<u64>("waiter-0").signal("go", &1u64).await).await;
    refused("open", async || Abide::builder(url).busy_ms_max(BUSY_MS_MAX).open().await.map(drop)).await;
    in_time(async |_| {
        let watch = Stopwatch::start();
        assert!(!client.handle::<u64>("waiter-0").status().await.expect("a status").is_terminal());
        let took = watch.elapsed();
        if took < ms(BUSY_MS_MAX) { Ok(()) } else { Err(format!("a reader waited for the writer: {took:?}")) }
    })
    .await;
    // Concurrent calls wait at the same time, not one after the other.
    refused("20 starts", async || {
        let starts = (0..20).map(|n| client.start(waiter, n).id(format!("late-{n}")).into_future());
        let mut outcomes = futures_util::future::join_all(starts).await;
        assert!(outcomes.iter().all(is_refused), "{outcomes:?}");
        outcomes.remove(0).map(drop)
    })
    .await;
}

fn is_refused<T>(outcome: &Result<T, ClientError>) -> bool {
    matches!(outcome, Err(error @ ClientError::Unavailable { .. }) if error.is_transient())
}

async fn refused(what: &str, mut call: impl AsyncFnMut() -> Result<(), ClientError>) {
    in_time(async |_| {
        let watch = Stopwatch::start();
        let outcome = within(what, call()).await;
        let took = watch.elapsed();
        println!("{what}: {outcome:?} after {took:?}");
        assert!(is_refused(&outcome), "{what}: {outcome:?}");
        assert!(took >= ms(BUSY_MS_MAX / 2), "{what} gave up after {took:?}");
        if took <= ms(BUSY_MS_MAX + TOLERANCE_MS) { Ok(()) } else { Err(format!("{what} took {took:?}")) }
    })
    .await;
}

/// Checks that everything works afterwards, and that the refused calls have left no trace.
async fn finish(client: &Abide, folder: &Path) {
    assert!(matches!(client.handle::<u64>("late").status().await, Err(ClientError::Unknown { .. })));
    for n in 0..EXECUTION_COUNT {
        let handle = client.handle::<u64>(&format!("waiter-{n}"));
        patiently("a signal", async || handle.signal("go", &10u64).await).await;
    }
    for n in 0..EXECUTION_COUNT {
        let handle = client.handle::<u64>(&format!("waiter-{n}"));
        // The refused signal carried 1.
        assert_eq!(within("a result", handle.result()).await.expect("a result"), n + 10);
    }
    let mut look = Look::at(folder);
    look.again().await;
    assert_eq!(look.recorded().len() as u64, EXECUTION_COUNT);
    // A session of 400 ms may expire once more on a busy machine while a step runs. That step runs
    // again, but no recorded step does.
    check_steps(&look, &effects::read(folder));
}
