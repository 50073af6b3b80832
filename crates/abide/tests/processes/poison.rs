//! A step that aborts its process takes no other execution with it for long: from the second
//! takeover on it runs alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use abide::prelude::*;

use crate::clock::{Stopwatch, pause, until, until_much, within};
use crate::effects;
use crate::flows::{Bench, waiter};
use crate::in_turn;
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::Role;

const INNOCENT_COUNT: u64 = 20;
const TICK_COUNT: u64 = 60;
const ABORT_COUNT: usize = 3;

/// The executions that run a step in this process now.
static RUNNING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Runs steps of some ten milliseconds.
#[workflow]
async fn innocent(ctx: Ctx, count: u64) -> Result<u64> {
    for _ in 0..count {
        ctx.step("tick", || async {
            RUNNING.lock().expect("nobody panics").insert(ctx.id().to_owned());
            pause(ms(20)).await;
            RUNNING.lock().expect("nobody panics").remove(ctx.id());
            Ok(())
        })
        .await?;
    }
    Ok(count)
}

/// Aborts its process several times, and notes each time which executions run beside it.
#[workflow]
async fn poison(ctx: Ctx) -> Result<usize> {
    let bench = ctx.state::<Bench>();
    ctx.step("abort", || async {
        // The others have time to begin, if they can.
        pause(ms(100)).await;
        let beside: Vec<String> = RUNNING.lock().expect("nobody panics").iter().cloned().collect();
        bench.effects.happen(ctx.id(), ctx.idempotency_key(), &beside.join(" "));
        let run_count = company(&bench.folder).len();
        if run_count <= ABORT_COUNT {
            std::process::abort();
        }
        Ok(run_count)
    })
    .await
}

/// Returns the executions that ran beside the poison, each time it ran.
fn company(folder: &Path) -> Vec<String> {
    let effects = effects::read(folder).into_iter();
    effects.filter(|effect| effect.id == "poison").map(|effect| effect.word).collect()
}

#[test]
fn a_step_that_aborts_is_alone_at_its_third_takeover_and_all_others_finish() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        for n in 0..INNOCENT_COUNT {
            client.start(innocent, TICK_COUNT).id(format!("innocent-{n}")).await.expect("a start");
        }
        client.start(poison, ()).id("poison").await.expect("a start");
        let look = Look::at(folder.path());
        let mut held_counts = Vec::new();
        for generation in 0.. {
            let mut process = Process::spawn(&Role { generation, ..Role::worker(folder.path()) });
            if held_counts.len() == ABORT_COUNT {
                let ran = client.handle::<usize>("poison");
                let run_count = within("the poison ends", ran.result()).await.expect("a result");
                assert_eq!(run_count, ABORT_COUNT + 1);
                check_innocents(&client).await;
                assert!(process.is_alive());
                break;
            }
            assert!(!process.ended().await.success(), "process {generation} was to die");
            held_counts.push(look.sessions().await.last().expect("it had a session").lease_count);
        }
        let company = company(folder.path());
        println!("beside the poison: {company:?}; held when it killed its process: {held_counts:?}");
        assert!(held_counts[0] > 1, "nobody was near: {held_counts:?}");
        assert_eq!(held_counts[2], 1, "it took somebody with it");
        assert_eq!(company[2..], ["", ""], "it was not alone");
    });
}

/// Kills every process that runs it.
#[workflow]
async fn deadly(ctx: Ctx) -> Result<()> {
    let bench = ctx.state::<Bench>();
    ctx.step("abort", || async {
        bench.effects.happen(ctx.id(), ctx.idempotency_key(), "abort");
        pause(ms(20)).await;
        std::process::abort()
    })
    .await
}

/// Records something every 50 ms.
async fn tick(ctx: &Ctx) -> Result<()> {
    loop {
        ctx.sleep(ms(50)).await?;
    }
}

/// Kills every process that runs it, and records something every 50 ms until then.
#[workflow]
async fn busy_deadly(ctx: Ctx) -> Result<()> {
    let bench = ctx.state::<Bench>();
    let abort = ctx.step("abort", || async {
        bench.effects.happen(ctx.id(), ctx.idempotency_key(), "abort");
        pause(ms(200)).await;
        std::process::abort()
    });
    tokio::try_join!(tick(&ctx), abort).map(|((), ())| ())
}

#[test]
fn a_step_that_always_aborts_is_blocked_and_its_application_lives() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        client.start(deadly, ()).id("deadly").await.expect("a start");
        check_blocked(folder.path(), &client, "deadly").await;
    });
}

#[test]
fn a_step_that_aborts_beside_progress_is_blocked_and_its_application_lives() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        client.start(busy_deadly, ()).id("busy").await.expect("a start");
        check_blocked(folder.path(), &client, "busy").await;
    });
}

/// Starts a process whenever one has died, until this execution is blocked; then everything else
/// goes on.
async fn check_blocked(folder: &Path, client: &Abide, id: &str) {
    let watch = Stopwatch::start();
    let handle = client.handle::<()>(id);
    let mut death_count = 0;
    let mut process = Process::spawn(&Role::worker(folder));
    while handle.status().await.expect("a status") != Status::Blocked {
        assert!(
            watch.elapsed() < secs(180) && death_count < 20,
            "{death_count} deaths, {}",
            handle.why().await.expect("a reason")
        );
        if process.is_alive() {
            pause(ms(10)).await;
        } else {
            death_count += 1;
            process = Process::spawn(&Role { generation: death_count, ..Role::worker(folder) });
        }
    }
    let elapsed = watch.elapsed();
    println!("{death_count} deaths in {elapsed:?}: {}", handle.why().await.expect("a reason"));
    // It ran twice beside others and five times alone; its rests are half a second, one, two and
    // four.
    assert_eq!(effects::read(folder).len(), 7);
    assert!(elapsed > ms(7_500), "{elapsed:?}");
    let other = client.start(innocent, 3).id("other").await.expect("a start");
    assert_eq!(within("a result", other.result()).await.expect("a result"), 3);
    assert!(process.is_alive());
}

const WAITER_COUNT: u64 = 150;
/// The most time for all waiters. One after the other would take a second each, as long as a
/// waiting execution stays in memory.
const WAITERS_MAX: Duration = Duration::from_secs(WAITER_COUNT * 2 / 3);
/// A time longer than any test waits.
const PARK_AFTER_MS: u64 = 3_600_000;

#[test]
fn waiters_that_were_in_memory_at_two_deaths_hold_up_nobody() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        for n in 0..WAITER_COUNT {
            client.start(waiter, n).id(format!("waiter-{n}")).await.expect("a start");
        }
        let look = Look::at(folder.path());
        for generation in 0..2 {
            // No waiter leaves memory on its own, however slow the machine is: all are there at the
            // same time.
            let park_after_ms = Some(PARK_AFTER_MS);
            let role = Role { generation, park_after_ms, ..Role::worker(folder.path()) };
            let mut process = Process::spawn_ready(&role).await;
            until("all are in memory", async || {
                let held = look.sessions().await.last().expect("it has a session").lease_count;
                (held == WAITER_COUNT).then_some(())
            })
            .await;
            process.kill();
        }
        let _process = Process::spawn_ready(&Role { generation: 2, ..Role::worker(folder.path()) }).await;
        let watch = Stopwatch::start();
        let other = client.start(innocent, 1).id("other").await.expect("a start");
        assert_eq!(within("a result", other.result()).await.expect("a result"), 1);
        let elapsed = watch.elapsed();
        for n in 0..WAITER_COUNT {
            let handle = client.handle::<u64>(&format!("waiter-{n}"));
            until_much("it is no longer suspected", async || {
                (!handle.why().await.expect("a reason").contains("died while holding it")).then_some(())
            })
            .await;
        }
        println!("the other was done after {elapsed:?}, all waiters after {:?}", watch.elapsed());
        assert!(watch.elapsed() < WAITERS_MAX, "{:?}", watch.elapsed());
        let handle = client.handle::<u64>("waiter-7");
        handle.signal("go", &1u64).await.expect("a signal");
        assert_eq!(within("a result", handle.result()).await.expect("a result"), 8);
    });
}

async fn check_innocents(client: &Abide) {
    for n in 0..INNOCENT_COUNT {
        let handle = client.handle::<u64>(&format!("innocent-{n}"));
        assert_eq!(within("a result", handle.result()).await.expect("a result"), TICK_COUNT);
    }
}
