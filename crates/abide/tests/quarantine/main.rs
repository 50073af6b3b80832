//! A step that kills its process takes no other execution down: from the second takeover on it runs
//! alone.

mod controls;
mod loops;
mod records;
mod refused;
mod waiters;
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use abide::Builder;
use abide::prelude::*;
use abide::testing::Lab;
use abide_core::{Bounds, SessionId};
use abide_sqlite::SqliteStore;
use abide_store::faults::{Chances, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Store};

use crate::world::{Company, Shared, World};

/// Runs `count` steps of this many milliseconds.
#[workflow]
async fn work(ctx: Ctx, (count, millis): (u32, u64)) -> Result<u32> {
    let world = ctx.state::<Shared>();
    for _ in 0..count {
        ctx.step("work", || async {
            let _mark = world.enter(&ctx).await;
            world.lab.sleep(ms(millis)).await;
            Ok(())
        })
        .await?;
    }
    Ok(count)
}

/// Kills its process this many times, and then waits for a signal.
#[workflow]
async fn poison(ctx: Ctx, deadly_count: u32) -> Result<u64> {
    let world = ctx.state::<Shared>();
    *world.begun.lock().unwrap().entry(ctx.id().to_owned()).or_default() += 1;
    ctx.step("kill", || async {
        let _mark = world.enter(&ctx).await;
        let nth = world.begun.lock().unwrap()[&ctx.idempotency_key()];
        // The others have time to make progress, or to come if they could.
        world.lab.sleep(ms(500)).await;
        if nth <= deadly_count {
            world.die().await;
        }
        Ok(())
    })
    .await?;
    ctx.recv("n").await
}

/// Fails at first, and tries again after a while.
#[workflow]
async fn retried(ctx: Ctx, pause: u64) -> Result<()> {
    let world = ctx.state::<Shared>();
    ctx.step("try", || async {
        let _mark = world.enter(&ctx).await;
        if world.begun.lock().unwrap()[&ctx.idempotency_key()] == 1 {
            return Err(Error::new("not yet"));
        }
        world.lab.sleep(ms(500)).await;
        Ok(())
    })
    .retry(Retry::fixed(secs(pause)).max_attempts(2))
    .await
}

/// Kills its process twice, and then does not end.
#[workflow]
async fn hangs(ctx: Ctx) -> Result<()> {
    let world = ctx.state::<Shared>();
    ctx.step("hang", || async {
        let _mark = world.enter(&ctx).await;
        if world.begun.lock().unwrap()[&ctx.idempotency_key()] <= 2 {
            world.die().await;
        }
        std::future::pending().await
    })
    .await
}

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, Bounds::default())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

fn faulty(clock: Arc<dyn Clock>, seed: u64) -> Arc<dyn Store> {
    let chances = Chances {
        delay_permille: 100,
        delay_poll_count_max: 5,
        unavailable_permille: 15,
        indeterminate_permille: 30,
        ..Chances::default()
    };
    FaultyStore::seeded(if seed.is_multiple_of(2) { memory(clock) } else { sqlite(clock) }, seed, chances)
}

fn on<Fut: Future<Output = ()>>(
    seed: u64,
    make: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>,
    test: impl Fn(Shared) -> Fut,
) {
    Lab::run_on(seed, make, |lab| async {
        let (machine, running, begun, beside, died) = Default::default();
        let world = Arc::new(World { lab, machine, running, begun, beside, died });
        test(world.clone()).await;
        world.check();
    });
}

/// Runs a test on both stores, with several orders of events.
fn on_both<Fut: Future<Output = ()>>(test: impl Fn(Shared) -> Fut) {
    for seed in 0..3 {
        on(seed, memory, &test);
        on(seed, sqlite, &test);
    }
}

async fn worker(world: &Shared) -> Abide {
    worker_with(world, |builder| builder).await
}

async fn worker_with(world: &Shared, options: impl Fn(Builder) -> Builder) -> Abide {
    loop {
        let open = |builder: Builder| options(builder.state(world.clone()).session_ttl(secs(3)));
        if let Ok((machine, abide)) = world.lab.worker_with(open).await {
            *world.machine.lock().unwrap() = Some(machine);
            return abide;
        }
    }
}

/// Waits for this many deaths, opens the next worker after each, and returns the last worker.
async fn outlive(world: &Shared, death_count: u32) -> Abide {
    // A worker without a handle would stop.
    let mut workers = Vec::new();
    for _ in 0..death_count {
        within(world, secs(600), world.died.notified()).await;
        workers.push(worker(world).await);
    }
    workers.pop().expect("somebody died")
}

async fn within<T>(world: &Shared, patience: Duration, future: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = future => done,
        () = world.lab.sleep(patience) => panic!("not within {patience:?}; begun: {:#?}", world.beside),
    }
}

/// Waits until these executions have ended, however many workers die of it.
async fn finish(world: &Shared, mut abide: Abide, ids: &[String]) {
    let all = async {
        loop {
            let handles: Vec<_> = ids.iter().map(|id| abide.handle::<u32>(id)).collect();
            let results = handles.iter().map(Handle::result);
            tokio::select! {
                biased;
                () = world.died.notified() => {}
                results = futures_util::future::join_all(results) => {
                    let errors: Vec<_> = results.into_iter().filter_map(std::result::Result::err).collect();
                    if errors.is_empty() {
                        return;
                    }
                    assert!(errors.iter().all(ClientError::is_transient), "{errors:?}");
                    continue;
                }
            }
            // The worker claims everything at once, as it does where a death is seen at once.
            world.lab.sleep(secs(10)).await;
            abide = worker(world).await;
        }
    };
    within(world, secs(600), all).await;
}

fn ids(prefix: &str, count: u32) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n}")).collect()
}

async fn start_all(abide: &Abide, ids: &[String], work_of_each: (u32, u64)) {
    for id in ids {
        while let Err(error) = abide.start(work, work_of_each).id(id).await {
            assert!(error.is_transient(), "{error}");
        }
    }
}

#[test]
fn poison_takes_nobody_with_it_from_the_second_takeover_on() {
    on_both(async |world| {
        let abide = worker(&world).await;
        let others = ids("other", 20);
        start_all(&abide, &others, (50, 100)).await;
        world.lab.sleep(ms(250)).await;
        let handle = abide.start(poison, 4).id("poison").await.unwrap();
        handle.signal("n", &7u64).await.unwrap();
        let abide = outlive(&world, 4).await;
        assert_eq!(within(&world, secs(60), abide.handle::<u64>("poison").result()).await.unwrap(), 7);
        let company = world.company("poison");
        assert!(company[..2].iter().all(|beside| beside.lease_count > 1), "{company:?}");
        assert!(company[2..].iter().all(Company::is_nobody), "{company:?}");
        finish(&world, abide, &others).await;
    });
}

#[test]
fn poison_without_end_stops_nobody() {
    on_both(async |world| {
        let abide = worker(&world).await;
        abide.start(poison, u32::MAX).id("poison").await.unwrap();
        let others = ids("other", 8);
        start_all(&abide, &others, (100, 100)).await;
        finish(&world, abide, &others).await;
        let company = world.company("poison");
        // Each life takes the others further than one step.
        assert!((4..30).contains(&company.len()), "{company:?}");
        assert!(company[2..].iter().all(Company::is_nobody), "{company:?}");
    });
}

#[test]
fn poison_that_is_first_in_its_queue_lets_the_others_by() {
    on_both(async |world| {
        let abide = worker(&world).await;
        abide.start(poison, u32::MAX).id("poison").priority(10).await.unwrap();
        drop(outlive(&world, 2).await);
        let others = ids("other", 200);
        let elsewhere = worker_with(&world, |builder| builder.lanes(["elsewhere"])).await;
        start_all(&elsewhere, &others, (1, 10)).await;
        // By then the next worker can claim all of them at once.
        world.lab.sleep(secs(10)).await;
        finish(&world, worker(&world).await, &others).await;
        let deaths = world.company("poison").len();
        assert!(deaths <= 4, "{deaths} deaths");
    });
}

#[test]
fn those_whom_poison_made_suspects_come_first_and_one_by_one() {
    on_both(async |world| {
        let abide = worker(&world).await;
        abide.start(poison, u32::MAX).id("a-poison").await.unwrap();
        // The others have no chance to make progress.
        let others = ids("other", 5);
        start_all(&abide, &others, (1, 10_000)).await;
        let third = outlive(&world, 2).await;
        within(&world, secs(60), world.died.notified()).await;
        // By then the next worker can claim all of them at once.
        world.lab.sleep(secs(10)).await;
        drop(third);
        finish(&world, worker(&world).await, &others).await;
        // The third death showed which one it was: after it, all the others ran first.
        let order = world.order(0);
        let deaths: Vec<_> = (0..order.len()).filter(|nth| order[*nth] == "a-poison").collect();
        let next: BTreeSet<_> = order[deaths[2] + 1..][..5].iter().cloned().collect();
        assert_eq!(next, others.iter().cloned().collect(), "{order:?}");
        for id in others {
            assert!(world.company(&id).last().unwrap().is_nobody(), "{id}");
        }
    });
}

#[test]
fn many_suspects_are_not_claimed_again_and_again() {
    on_both(async |world| {
        let abide = worker(&world).await;
        abide.start(poison, 2).id("poison").await.unwrap();
        let others = ids("other", 60);
        start_all(&abide, &others, (3, 600)).await;
        finish(&world, abide, &others).await;
        let mut lease_count = 0;
        for id in &others {
            let company = world.company(id);
            assert!(
                company.iter().any(|beside| beside.takeover_count == 2),
                "{id} was no suspect: {company:?}"
            );
            lease_count += world.snapshot(id).await.lease.epoch.0;
        }
        assert!(lease_count <= 60 * 15, "60 executions were leased {lease_count} times");
    });
}

#[test]
fn a_suspect_does_not_starve_on_a_busy_worker() {
    on_both(async |world| {
        let abide = worker(&world).await;
        let handle = abide.start(poison, 2).id("poison").await.unwrap();
        handle.signal("n", &1u64).await.unwrap();
        let abide = outlive(&world, 2).await;
        // Some execution is always in the middle of a step.
        for (n, id) in ids("other", 10).iter().enumerate() {
            abide.start(work, (10_000, 400 + 170 * n as u64)).id(id).await.unwrap();
        }
        within(&world, secs(30), abide.handle::<u64>("poison").result()).await.unwrap();
        assert!(world.company("poison").last().unwrap().is_nobody());
        // The others go on as before.
        let begun_count = world.begun_count();
        world.lab.sleep(secs(10)).await;
        assert!(world.begun_count() >= begun_count + 80, "{:?}", world.order(begun_count));
    });
}

#[test]
fn a_long_step_is_not_interrupted_for_a_suspect_and_stops_nobody() {
    on_both(async |world| {
        let abide = worker(&world).await;
        let handle = abide.start(poison, 2).id("poison").await.unwrap();
        handle.signal("n", &1u64).await.unwrap();
        let abide = outlive(&world, 2).await;
        abide.start(work, (2, 100_000)).id("long").await.unwrap();
        let short = ids("short", 20);
        for id in &short {
            world.lab.sleep(secs(1)).await;
            start_all(&abide, std::slice::from_ref(id), (1, 10)).await;
        }
        finish(&world, abide.clone(), &short).await;
        assert!(world.company("poison").len() == 2, "it still waits");
        let why = abide.handle::<()>("poison").why().await.unwrap();
        assert!(why.contains("is held by worker"), "{why}");
        assert!(
            why.contains("2 workers in a row died while holding it, so it waits aside to run alone"),
            "{why}"
        );
        within(&world, secs(400), abide.handle::<u64>("poison").result()).await.unwrap();
        finish(&world, abide, &["long".to_owned()]).await;
        assert_eq!(world.begun.lock().unwrap()["default/long/1/work/1"], 1);
        assert_eq!(world.begun.lock().unwrap()["default/long/1/work/2"], 1);
        assert!(world.company("poison")[2].is_nobody());
    });
}

#[test]
fn what_is_started_meanwhile_waits_until_the_suspect_has_made_progress() {
    on_both(async |world| {
        let abide = worker(&world).await;
        abide.start(poison, 2).id("poison").await.unwrap();
        let abide = outlive(&world, 2).await;
        wait_for_lease(&world, "poison", 3).await;
        world.lab.sleep(ms(1)).await;
        assert_eq!(world.company("poison").len(), 3, "nobody is there to wait for");
        let from = world.begun_count();
        let others = ids("other", 3);
        start_all(&abide, &others, (1, 10)).await;
        world.lab.sleep(ms(400)).await;
        assert_eq!(world.order(from), Vec::<String>::new(), "the suspect is alone");
        assert_eq!(world.snapshot("poison").await.takeover_count, 2);
        // The poison waits for a signal after that: progress is enough.
        within(&world, ms(300), finish(&world, abide, &others)).await;
        assert_eq!(world.snapshot("poison").await.takeover_count, 0);
    });
}

#[test]
fn a_suspect_is_alone_also_when_it_waits_for_its_next_try() {
    on_both(async |world| {
        let patient = || worker_with(&world, |builder| builder.park_after(secs(60)));
        let mut abide = patient().await;
        abide.start(retried, 15).id("retried").await.unwrap();
        for session in 1..3 {
            wait_for_lease(&world, "retried", session).await;
            world.lab.sleep(ms(500)).await;
            let machine = world.machine.lock().unwrap().unwrap();
            world.lab.crash(machine);
            abide = patient().await;
        }
        wait_for_lease(&world, "retried", 3).await;
        assert_eq!(world.begun_count(), 1, "its time has not come");
        world.lab.sleep(ms(500)).await;
        let others = ids("other", 3);
        start_all(&abide, &others, (10, 500)).await;
        finish(&world, abide, &others).await;
        assert!(world.company("retried")[1].is_nobody());
    });
}

#[test]
fn a_suspect_that_hangs_does_not_stop_its_worker_for_ever() {
    on_both(async |world| {
        let abide = worker(&world).await;
        abide.start(hangs, ()).id("hangs").await.unwrap();
        let abide = outlive(&world, 2).await;
        world.lab.sleep(secs(10)).await;
        let others = ids("other", 3);
        start_all(&abide, &others, (1, 10)).await;
        world.lab.sleep(secs(30)).await;
        assert_eq!(world.begun_count(), 3, "it is alone");
        within(&world, secs(60), finish(&world, abide, &others)).await;
        assert_eq!(world.company("hangs").len(), 3, "it was not interrupted");
        // The others joined an execution that had been a suspect: that is right here.
        world.beside.lock().unwrap().clear();
    });
}

/// Starts a worker with a suspect that has to wait, because a step runs for some seconds.
async fn with_waiting_suspect(world: &Shared) -> Abide {
    let abide = worker(world).await;
    abide.start(poison, 2).id("poison").await.unwrap();
    let abide = outlive(world, 2).await;
    abide.start(work, (1, 8_000)).id("long").await.unwrap();
    wait_for_lease(world, "poison", 3).await;
    assert_eq!(world.company("poison").len(), 2, "it waits");
    abide
}

async fn wait_for_lease(world: &Shared, id: &str, session: u64) {
    within(world, secs(60), async {
        while world.snapshot(id).await.lease.session != Some(SessionId(session)) {
            world.lab.sleep(ms(1)).await;
        }
    })
    .await;
}

#[test]
fn a_shutdown_gives_a_waiting_suspect_back_at_once_and_blames_nobody() {
    on_both(async |world| {
        let abide = with_waiting_suspect(&world).await;
        let shutdown = abide.shutdown();
        let look = async {
            world.lab.sleep(ms(50)).await;
            let found = world.snapshot("poison").await;
            assert_eq!(
                (found.lease.session, found.takeover_count),
                (None, 2),
                "it does not wait for the step"
            );
            assert!(found.ready_at.is_some());
        };
        tokio::join!(shutdown, look);
        assert_eq!(world.begun.lock().unwrap()["poison"], 2, "not even its code was called");
        let next = worker(&world).await;
        next.handle::<u64>("poison").signal("n", &3u64).await.unwrap();
        assert_eq!(within(&world, secs(60), next.handle::<u64>("poison").result()).await.unwrap(), 3);
    });
}

#[test]
fn messages_reach_a_suspect_that_waits() {
    on_both(async |world| {
        let abide = with_waiting_suspect(&world).await;
        let handle = abide.handle::<u64>("poison");
        handle.signal("n", &5u64).await.unwrap();
        assert_eq!(within(&world, secs(60), handle.result()).await.unwrap(), 5);
        // One claim, one replay: the suspect did not have to leave and come back to see the signal.
        assert_eq!(world.snapshot("poison").await.lease.epoch.0, 3);
    });
}

#[test]
fn a_suspect_that_is_paused_or_terminated_does_not_run_its_step_again() {
    on_both(async |world| {
        let abide = with_waiting_suspect(&world).await;
        let handle = abide.handle::<u64>("poison");
        handle.pause().await.unwrap();
        world.lab.sleep(secs(20)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        handle.terminate("poison").await.unwrap();
        assert!(within(&world, secs(60), handle.result()).await.is_err());
        assert_eq!(world.company("poison").len(), 2);
    });
}

#[test]
fn a_worker_that_loses_its_session_loses_no_suspect() {
    on_both(async |world| {
        let abide = with_waiting_suspect(&world).await;
        let machine = world.machine.lock().unwrap().unwrap();
        world.lab.freeze(machine);
        world.lab.sleep(secs(10)).await;
        world.lab.thaw(machine);
        let handle = abide.handle::<u64>("poison");
        handle.signal("n", &5u64).await.unwrap();
        assert_eq!(within(&world, secs(60), handle.result()).await.unwrap(), 5);
        finish(&world, abide, &["long".to_owned()]).await;
    });
}

#[test]
fn lost_answers_and_refused_operations_let_nobody_near_a_suspect() {
    let seeds = std::env::var("ABIDE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(30);
    for seed in 0..seeds {
        // This is shown only when the test fails or hangs.
        println!("seed {seed}");
        on(
            seed,
            |clock| faulty(clock, seed),
            async |world| {
                let abide = worker(&world).await;
                let others = ids("other", 6);
                start_all(&abide, &others, (8, 200 + seed % 5 * 200)).await;
                while abide.start(poison, 4 + seed as u32 % 3).id("poison").await.is_err() {}
                let late = ids("late", 3);
                start_all(&abide, &late, (3, 700)).await;
                finish(&world, abide, &[others, late].concat()).await;
            },
        );
    }
}
