//! A process that is stopped inside a write transaction: others are told within `busy_ms_max`, and go on afterwards.

use std::path::Path;

use abide::prelude::*;

use crate::clock::{Stopwatch, within};
use crate::effects;
use crate::flows::waiter;
use crate::in_turn;
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::{Kind, Role};

const BUSY_MS_MAX: u64 = 600;
/// A busy machine is late.
const TOLERANCE_MS: u64 = 500;
const EXECUTION_COUNT: u64 = 20;

#[test]
fn a_process_stopped_inside_a_transaction_delays_others_by_a_known_time_only() {
    // The worker's session outlives the stop, or it does not; the stop ends by itself, or by a kill.
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
    let client = Abide::builder(&url).busy_ms_max(BUSY_MS_MAX).client().await.expect("a client");
    let role = Role { ttl_ms, busy_ms_max: Some(BUSY_MS_MAX), ..Role::worker(folder.path()) };
    let mut worker = Process::spawn_ready(&role).await;
    for n in 0..EXECUTION_COUNT {
        client.start(waiter, n).id(format!("waiter-{n}")).await.expect("a start");
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
    assert!(worker.is_alive());
}

/// While nobody can write: every call that writes says so in time, and changes nothing; reading goes on.
async fn check_refusals(client: &Abide, url: &str) {
    refused("start", client.start(waiter, 1_000).id("late")).await;
    refused("signal", async { client.handle::<u64>("waiter-0").signal("go", &1u64).await }).await;
    let opening = Abide::builder(url).busy_ms_max(BUSY_MS_MAX).open();
    refused("open", opening).await;
    let watch = Stopwatch::start();
    assert!(!client.handle::<u64>("waiter-0").status().await.expect("a status").is_terminal());
    assert!(watch.elapsed() < ms(BUSY_MS_MAX), "a reader waited for the writer: {:?}", watch.elapsed());
    // Several at once wait at the same time, not one after the other.
    let starts = (0..20).map(|n| client.start(waiter, n).id(format!("late-{n}")).into_future());
    let watch = Stopwatch::start();
    for outcome in futures_util::future::join_all(starts).await {
        assert!(matches!(outcome, Err(ClientError::Unavailable { .. })), "{outcome:?}");
    }
    assert!(watch.elapsed() < ms(BUSY_MS_MAX + TOLERANCE_MS), "20 starts took {:?}", watch.elapsed());
}

async fn refused<T: std::fmt::Debug>(what: &str, call: impl IntoFuture<Output = Result<T, ClientError>>) {
    let watch = Stopwatch::start();
    let outcome = within(what, secs(10), call.into_future()).await;
    let took = watch.elapsed();
    println!("{what}: {outcome:?} after {took:?}");
    match outcome {
        Err(error @ ClientError::Unavailable { .. }) => assert!(error.is_transient()),
        other => panic!("{what}: {other:?}"),
    }
    assert!(took >= ms(BUSY_MS_MAX / 2), "{what} gave up after {took:?}");
    assert!(took <= ms(BUSY_MS_MAX + TOLERANCE_MS), "{what} took {took:?}");
}

/// Afterwards everything works, and what was refused has left no trace.
async fn finish(client: &Abide, folder: &Path) {
    assert!(matches!(client.handle::<u64>("late").status().await, Err(ClientError::Unknown { .. })));
    for n in 0..EXECUTION_COUNT {
        let handle = client.handle::<u64>(&format!("waiter-{n}"));
        handle.signal("go", &10u64).await.expect("a signal");
    }
    for n in 0..EXECUTION_COUNT {
        let handle = client.handle::<u64>(&format!("waiter-{n}"));
        // The refused signal said 1.
        assert_eq!(within("a result", secs(15), handle.result()).await.expect("a result"), n + 10);
    }
    let mut look = Look::at(folder);
    look.again().await;
    assert_eq!(look.recorded().len() as u64, EXECUTION_COUNT);
    assert_eq!(effects::read(folder).len() as u64, EXECUTION_COUNT, "a step ran twice");
}
