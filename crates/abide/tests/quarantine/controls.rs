//! Orders and deadlines of a suspect that waits aside, and what people are told about it.

use std::sync::atomic::{AtomicU32, Ordering};

use abide_store::faults::Fault;

use super::*;

/// Sees its cancellation or its deadline after steps that kill its process.
#[workflow]
async fn sees(ctx: Ctx, deadly_count: u32) -> Result<String> {
    let world = ctx.state::<Shared>();
    let killed = ctx
        .step("kill", || async {
            let _mark = world.enter(&ctx).await;
            let nth = world.begun.lock().unwrap()[&ctx.idempotency_key()];
            world.lab.sleep(ms(500)).await;
            if nth <= deadly_count {
                world.die().await;
            }
            std::future::pending::<Result<()>>().await
        })
        .await;
    Ok(format!("{:?}", killed.map_err(|error| (error.is_cancelled(), error.is_deadline()))))
}

/// Starts a worker with a suspect that waits behind a step of ten minutes.
async fn behind_a_long_step(world: &Shared, start: impl AsyncFn(&Abide)) -> Abide {
    let abide = worker(world).await;
    start(&abide).await;
    let abide = outlive(world, 2).await;
    abide.start(work, (1, 600_000)).id("long").await.unwrap();
    wait_for_lease(world, "poison", 3).await;
    assert_eq!(world.company("poison").len(), 2, "it waits");
    abide
}

async fn with_poison(world: &Shared) -> Abide {
    behind_a_long_step(world, async |abide| {
        abide.start(sees, 2).id("poison").await.unwrap();
    })
    .await
}

async fn expect_status(world: &Shared, abide: &Abide, expected: Status) {
    world.lab.sleep(secs(2)).await;
    let handle = abide.handle::<String>("poison");
    assert_eq!(handle.status().await.unwrap(), expected, "{}", handle.why().await.unwrap());
}

#[test]
fn a_pause_and_a_resume_reach_a_suspect_that_waits() {
    on_both(async |world| {
        let abide = with_poison(&world).await;
        let handle = abide.handle::<String>("poison");
        handle.pause().await.unwrap();
        expect_status(&world, &abide, Status::Paused).await;
        assert_eq!(world.snapshot("poison").await.takeover_count, 2, "an order proves nothing");
        let why = handle.why().await.unwrap();
        assert!(why.contains("2 workers in a row died while holding it"), "{why}");
        assert!(!why.contains("runs alone") && !why.contains("waits aside"), "{why}");
        handle.resume().await.unwrap();
        expect_status(&world, &abide, Status::Running).await;
        wait_for_lease(&world, "poison", 3).await;
        assert_eq!(world.company("poison").len(), 2, "it waits again");
    });
}

#[test]
fn a_terminate_ends_a_suspect_that_waits() {
    on_both(async |world| {
        let abide = with_poison(&world).await;
        abide.handle::<String>("poison").terminate("enough").await.unwrap();
        // Its holder does it, before another engine takes the lease for it.
        world.lab.sleep(secs(1)).await;
        assert_eq!(abide.handle::<String>("poison").status().await.unwrap(), Status::Cancelled);
        assert_eq!(world.snapshot("poison").await.lease.epoch.0, 3);
    });
}

#[test]
fn a_cancel_is_recorded_for_a_suspect_that_waits_and_its_code_sees_it() {
    on_both(async |world| {
        let abide = with_poison(&world).await;
        let handle = abide.handle::<String>("poison");
        handle.cancel("enough").await.unwrap();
        world.lab.sleep(secs(2)).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains("is being cancelled") && why.contains("enough"), "{why}");
        let result = within(&world, secs(2_000), handle.result()).await;
        assert_eq!(result.unwrap(), "Err((true, false))");
        assert_eq!(world.company("poison").len(), 2, "the code was told before it began the step anew");
    });
}

#[test]
fn a_second_cancel_finds_nothing_to_do_on_a_suspect_that_waits() {
    on_both(async |world| {
        let abide = with_poison(&world).await;
        let handle = abide.handle::<String>("poison");
        for _ in 0..3 {
            handle.cancel("enough").await.unwrap();
            world.lab.sleep(secs(2)).await;
        }
        let unread = world.unread("poison").await;
        assert!(unread.is_empty(), "{unread:?}");
    });
}

#[test]
fn a_deadline_passes_for_a_suspect_that_waits() {
    on_both(async |world| {
        let abide = behind_a_long_step(&world, async |abide| {
            abide.start(sees, 2).id("poison").deadline(secs(60)).await.unwrap();
        })
        .await;
        // Two workers took some of its time.
        world.lab.sleep(secs(55)).await;
        let handle = abide.handle::<String>("poison");
        let why = handle.why().await.unwrap();
        assert!(why.contains("is past its deadline"), "{why}");
        // The grace time of the code is over, and the code could not be called.
        world.lab.sleep(secs(12)).await;
        expect_status(&world, &abide, Status::Failed).await;
        assert_eq!(world.company("poison").len(), 2);
    });
}

#[test]
fn it_is_said_that_a_suspect_waits_aside() {
    on_both(async |world| {
        let abide = with_poison(&world).await;
        world.lab.sleep(secs(30)).await;
        let why = abide.handle::<String>("poison").why().await.unwrap();
        assert!(
            why.contains("2 workers in a row died while holding it, so it waits aside to run alone"),
            "{why}"
        );
    });
}

#[test]
fn it_is_said_that_a_suspect_runs_alone_and_that_others_run_beside_it() {
    on_both(async |world| {
        let abide = worker(&world).await;
        abide.start(sees, 2).id("poison").await.unwrap();
        let abide = outlive(&world, 2).await;
        world.lab.sleep(secs(20)).await;
        let why = abide.handle::<String>("poison").why().await.unwrap();
        assert!(why.contains("2 workers in a row died while holding it, so it runs alone."), "{why}");
        world.lab.sleep(secs(60)).await;
        let why = abide.handle::<String>("poison").why().await.unwrap();
        assert!(!why.contains("runs alone"), "{why}");
        assert!(why.contains("so it ran alone for a while, and others run beside it now"), "{why}");
        world.beside.lock().unwrap().clear();
    });
}

/// Runs for longer than a suspect is alone, and then kills its process.
#[workflow]
async fn slow_poison(ctx: Ctx, (quick_count, deadly_count): (u32, u32)) -> Result<u32> {
    let world = ctx.state::<Shared>();
    ctx.step("kill", || async {
        let _mark = world.enter(&ctx).await;
        let nth = world.begun.lock().unwrap()[&ctx.idempotency_key()];
        world.lab.sleep(if nth <= quick_count { ms(500) } else { secs(90) }).await;
        if nth <= deadly_count {
            world.die().await;
        }
        Ok(nth)
    })
    .await
}

#[task]
async fn slow_task(ctx: Ctx, (quick_count, deadly_count): (u32, u32)) -> Result<u32> {
    let world = ctx.state::<Shared>();
    let _mark = world.enter(&ctx).await;
    let nth = world.begun.lock().unwrap()[&ctx.idempotency_key()];
    world.lab.sleep(if nth <= quick_count { ms(500) } else { secs(90) }).await;
    if nth <= deadly_count {
        world.die().await;
    }
    Ok(nth)
}

/// Lets the execution "slow" kill eight processes, the last six after others came in.
async fn outlive_slow(world: &Shared, abide: Abide) {
    let mut workers = vec![abide];
    for _ in 0..8 {
        within(world, secs(2_000), world.died.notified()).await;
        workers.push(worker_with(world, |builder| builder.build("one")).await);
    }
    let handle = workers.last().unwrap().handle::<u32>("slow");
    let result = within(world, secs(2_000), handle.result()).await;
    assert_eq!(result.unwrap(), 9, "no death was its own for sure");
    world.beside.lock().unwrap().clear();
}

#[test]
fn a_death_after_others_came_in_is_not_its_own() {
    on_both(async |world| {
        let abide = worker_with(&world, |builder| builder.build("one")).await;
        abide.start(slow_poison, (2, 8)).id("slow").await.unwrap();
        outlive_slow(&world, abide).await;
    });
}

#[test]
fn the_death_of_a_task_after_others_came_in_is_not_its_own() {
    on_both(async |world| {
        let abide = worker_with(&world, |builder| builder.build("one")).await;
        abide.start(slow_task, (2, 8)).id("slow").await.unwrap();
        outlive_slow(&world, abide).await;
    });
}

/// The times of its wait are durations.
#[test]
fn a_suspect_that_waits_gets_its_turn_after_the_clock_was_set_back() {
    on_both(async |world| {
        let abide = with_poison(&world).await;
        world.lab.set_clock_back(hours(1));
        // The long step ends.
        within(&world, secs(1_300), async {
            while world.company("poison").len() < 3 {
                world.lab.sleep(secs(1)).await;
            }
        })
        .await;
        assert!(world.company("poison")[2].is_nobody());
        drop(abide);
    });
}

/// The next run begins without suspicion, as any new execution does.
#[test]
fn a_retry_of_a_suspect_that_was_terminated_waits_for_nobody() {
    on_both(async |world| {
        let abide = with_poison(&world).await;
        let handle = abide.handle::<String>("poison");
        handle.terminate("enough").await.unwrap();
        expect_status(&world, &abide, Status::Cancelled).await;
        handle.retry().await.unwrap();
        world.lab.sleep(ms(300)).await;
        let found = world.snapshot("poison").await;
        assert_eq!((found.takeover_count, found.summary.suspicion), (0, None));
        assert_eq!(world.company("poison").len(), 3, "it runs beside the long step");
    });
}

/// Kills its process in its first run, and goes on in another run.
#[workflow]
async fn turns(ctx: Ctx, deadly_count: u32) -> Result<u64> {
    let world = ctx.state::<Shared>();
    ctx.step("kill", || async {
        let _mark = world.enter(&ctx).await;
        let nth = world.begun.lock().unwrap()[&ctx.idempotency_key()];
        world.lab.sleep(ms(500)).await;
        if nth <= deadly_count {
            world.die().await;
        }
        Ok(())
    })
    .await?;
    if deadly_count > 0 { ctx.continue_as_new(0).await } else { ctx.recv("n").await }
}

#[test]
fn a_suspect_that_continues_as_new_is_none_any_longer() {
    on_both(async |world| {
        let abide = behind_a_long_step(&world, async |abide| {
            let handle = abide.start(turns, 2).id("poison").await.unwrap();
            handle.signal("n", &7u64).await.unwrap();
        })
        .await;
        let handle = abide.handle::<u64>("poison");
        assert_eq!(within(&world, secs(2_000), handle.result()).await.unwrap(), 7);
        let found = world.snapshot("poison").await;
        assert_eq!((found.execution.run(), found.takeover_count, found.summary.suspicion), (2, 0, None));
        assert!(world.company("poison")[2].is_nobody());
    });
}

/// The disk is full when the suspect gets its turn: that it runs alone cannot be recorded. It waits
/// for the room, and so does the long step.
#[test]
fn a_suspect_that_waits_gets_its_turn_when_a_full_disk_has_room_again() {
    let is_full = Arc::new(std::sync::atomic::AtomicBool::new(false));
    for make in [memory, sqlite] {
        let flag = is_full.clone();
        let filling = |clock| -> Arc<dyn Store> {
            FaultyStore::deciding(make(clock), move |what| match what {
                "commit" | "submit" if flag.load(Ordering::Relaxed) => Fault::Unavailable,
                _ => Fault::None,
            })
        };
        on(1, filling, async |world| {
            let abide = with_poison(&world).await;
            is_full.store(true, Ordering::Relaxed);
            world.lab.sleep(secs(1_000)).await;
            assert_eq!(world.company("poison").len(), 2, "it is not recorded that it runs alone");
            is_full.store(false, Ordering::Relaxed);
            finish(&world, abide.clone(), &["long".to_owned()]).await;
            within(&world, secs(300), async {
                while world.company("poison").len() < 3 {
                    world.lab.sleep(secs(1)).await;
                }
            })
            .await;
            assert!(world.company("poison")[2].is_nobody());
            assert_eq!(world.begun.lock().unwrap()["default/long/1/work/1"], 1, "its result was kept");
        });
    }
}

/// The reference store returns eight messages per page. The order that lets the suspect go on lies
/// behind the first page; a suspect that parked before it has read the others would be leased again
/// and again.
#[test]
fn a_suspect_reads_all_its_mail_before_it_parks() {
    let commit_count = Arc::new(AtomicU32::new(0));
    let counted = commit_count.clone();
    let counting = |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(memory(clock), move |operation| {
            let count = counted.fetch_add(u32::from(operation == "commit"), Ordering::Relaxed);
            match operation {
                "inbox" => Fault::Delay { poll_count: 3 },
                // Commits without end would let no time pass.
                "commit" if count > 1_000 => Fault::Hold,
                _ => Fault::None,
            }
        })
    };
    on(1, counting, async |world| {
        let abide = worker(&world).await;
        abide.start(sees, 2).id("poison").await.unwrap();
        let _second = outlive(&world, 1).await;
        within(&world, secs(60), world.died.notified()).await;
        let client = world.lab.client().await.unwrap();
        let handle = client.handle::<String>("poison");
        handle.pause().await.unwrap();
        for n in 0..20 {
            handle.signal("n", &n).await.unwrap();
        }
        handle.resume().await.unwrap();
        let before = commit_count.load(Ordering::Relaxed);
        let _third = worker(&world).await;
        world.lab.sleep(secs(10)).await;
        assert_eq!(world.company("poison").len(), 3, "{}", handle.why().await.unwrap());
        let commit_count = commit_count.load(Ordering::Relaxed) - before;
        assert!(commit_count < 10, "{commit_count} commits");
    });
}
