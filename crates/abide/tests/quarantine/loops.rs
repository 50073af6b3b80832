//! Poison that never ends: it is blocked, with its history, and its application lives on.

use abide::Workflow;

use super::*;

/// The number of deaths: those before the suspect runs alone, and those while it does.
const DEATH_COUNT: usize = 2 + 5;

async fn same_build(world: &Shared) -> Abide {
    worker_with(world, |builder| builder.build("one")).await
}

#[test]
fn poison_without_end_is_blocked_and_its_application_lives() {
    on_both(async |world| {
        let mut workers = vec![same_build(&world).await];
        workers[0].start(poison, u32::MAX).id("poison").await.unwrap();
        for _ in 0..DEATH_COUNT {
            within(&world, secs(600), world.died.notified()).await;
            workers.push(same_build(&world).await);
        }
        world.lab.sleep(secs(60)).await;
        let abide = workers.last().unwrap();
        let handle = abide.handle::<u32>("poison");
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{}", handle.why().await.unwrap());
        let why = handle.why().await.unwrap();
        assert!(why.contains("its worker died 5 times while it ran alone, at 2025-06-15T"), "{why}");
        let error = handle.result().await.unwrap_err();
        assert!(matches!(error, ClientError::Blocked { .. }), "{error:?}");
        let ways_on =
            "to go on: abide unblock poison, once its worker survives it, or abide terminate poison";
        assert!(why.contains(ways_on) && error.to_string().ends_with(ways_on), "{why}: {error}");
        // Neither time nor another start of the same program brings it back.
        workers.push(same_build(&world).await);
        world.lab.sleep(secs(600)).await;
        assert_eq!(world.company("poison").len(), DEATH_COUNT);
        let others = ids("other", 3);
        start_all(workers.last().unwrap(), &others, (3, 10)).await;
        world.lab.sleep(secs(10)).await;
        for id in &others {
            let status = workers.last().unwrap().handle::<u32>(id).status().await.unwrap();
            assert_eq!(status, Status::Completed);
        }
    });
}

/// Records a step, and kills its process in the next one.
#[workflow]
async fn poison_later(ctx: Ctx) -> Result<()> {
    let world = ctx.state::<Shared>();
    ctx.step("greet", || async { Ok(()) }).await?;
    ctx.step("kill", || async {
        let _mark = world.enter(&ctx).await;
        world.die().await;
        Ok(())
    })
    .await
}

/// Returns the reason of a poison that has been blocked.
async fn blocked<W: Workflow>(world: &Shared, code: W, input: W::Input) -> String {
    let mut workers = vec![same_build(world).await];
    workers[0].start(code, input).id("poison").await.unwrap();
    for _ in 0..DEATH_COUNT {
        within(world, secs(600), world.died.notified()).await;
        workers.push(same_build(world).await);
    }
    world.lab.sleep(secs(60)).await;
    workers.last().unwrap().handle::<()>("poison").why().await.unwrap()
}

/// The record of an outcome also has the step that runs next. No outcome comes before the first
/// step.
#[test]
fn a_blocked_poison_names_its_last_activity_if_it_ever_recorded_something() {
    on_both(async |world| {
        let why = blocked(&world, poison_later, ()).await;
        assert!(why.contains(r#"; last seen running step "kill""#), "{why}");
    });
    on_both(async |world| {
        let why = blocked(&world, poison, u32::MAX).await;
        assert!(why.contains("its worker died 5 times") && !why.contains("last seen"), "{why}");
    });
}

#[test]
fn a_suspect_that_is_unblocked_and_kills_once_more_is_told_as_that() {
    on_both(async |world| {
        let mut workers = vec![same_build(&world).await];
        workers[0].start(poison, u32::MAX).id("poison").await.unwrap();
        for nth in 1..=DEATH_COUNT + 1 {
            within(&world, secs(600), world.died.notified()).await;
            workers.push(same_build(&world).await);
            world.lab.sleep(secs(60)).await;
            if nth == DEATH_COUNT {
                workers.last().unwrap().handle::<u32>("poison").unblock().await.unwrap();
            }
        }
        let why = workers.last().unwrap().handle::<u32>("poison").why().await.unwrap();
        let again = "its worker died again while it ran alone, at 2025-06-15T";
        assert!(why.contains(again) && why.contains(", as before at 2025-06-15T"), "{why}");
        assert!(why.contains("to go on: abide unblock poison, once its worker survives it"), "{why}");
    });
}

#[test]
fn a_rest_is_told_and_no_message_ends_it() {
    on_both(async |world| {
        let mut workers = vec![same_build(&world).await];
        workers[0].start(poison, u32::MAX).id("poison").await.unwrap();
        // After the fourth death of its own, the suspect rests for four seconds.
        for _ in 0..6 {
            within(&world, secs(600), world.died.notified()).await;
            workers.push(same_build(&world).await);
        }
        let abide = workers.last().unwrap();
        let handle = abide.handle::<u32>("poison");
        let rests = async {
            while handle.status().await.unwrap() != Status::Sleeping {
                world.lab.sleep(ms(10)).await;
            }
        };
        within(&world, secs(20), rests).await;
        handle.signal("x", &1u32).await.unwrap();
        world.lab.sleep(secs(3)).await;
        assert_eq!(world.company("poison").len(), 6, "it did not run");
        let why = handle.why().await.unwrap();
        assert!(why.contains("resting until") && why.contains("after 4 deaths of its worker"), "{why}");
        world.lab.sleep(secs(2)).await;
        assert_eq!(world.company("poison").len(), 7);
    });
}

#[test]
fn progress_clears_a_suspect() {
    on_both(async |world| {
        let mut workers = vec![same_build(&world).await];
        // Its last death is one before the last that a suspect may have.
        workers[0].start(poison, 6).id("poison").await.unwrap();
        for _ in 0..6 {
            within(&world, secs(600), world.died.notified()).await;
            workers.push(same_build(&world).await);
        }
        world.lab.sleep(secs(60)).await;
        let handle = workers.last().unwrap().handle::<u32>("poison");
        // The poison waits for a signal: it got past its deadly steps.
        assert_eq!(handle.status().await.unwrap(), Status::Waiting, "{}", handle.why().await.unwrap());
        let found = world.snapshot("poison").await;
        assert_eq!((found.takeover_count, found.summary.waiting.len()), (0, 1));
    });
}

/// Records something every 50 ms.
async fn tick(ctx: &Ctx) -> Result<()> {
    loop {
        ctx.sleep(ms(50)).await?;
        ctx.step("tick", async || Ok(())).await?;
    }
}

/// Kills its process this many times, records something every 50 ms meanwhile, and then waits for a
/// signal.
#[workflow]
async fn busy(ctx: Ctx, deadly_count: u32) -> Result<u64> {
    let world = ctx.state::<Shared>();
    *world.begun.lock().unwrap().entry(ctx.id().to_owned()).or_default() += 1;
    let kill = ctx.step("kill", || async {
        let _mark = world.enter(&ctx).await;
        let nth = world.begun.lock().unwrap()[ctx.id()];
        world.lab.sleep(ms(500)).await;
        if nth <= deadly_count {
            world.die().await;
        }
        Ok(())
    });
    tokio::select! {
        biased;
        killed = kill => killed?,
        never = tick(&ctx) => never?,
    }
    ctx.recv("n").await
}

#[test]
fn progress_beside_poison_clears_nothing() {
    on_both(async |world| {
        let mut workers = vec![same_build(&world).await];
        workers[0].start(busy, u32::MAX).id("busy").await.unwrap();
        for _ in 0..DEATH_COUNT {
            within(&world, secs(600), world.died.notified()).await;
            workers.push(same_build(&world).await);
        }
        keep_alive(&world, &mut workers, secs(60)).await;
        let handle = workers.last().unwrap().handle::<u64>("busy");
        let why = handle.why().await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
        assert!(why.contains("its worker died 5 times while it ran alone, at 2025-06-15T"), "{why}");
        assert!(why.contains("running step \"kill\""), "{why}");
        let company = world.company("busy");
        assert_eq!(company.len(), DEATH_COUNT);
        assert!(company[2..].iter().all(Company::is_nobody), "{company:?}");
    });
}

/// Fails at its first attempt and kills its process in the second one, each time. Meanwhile it
/// records something every 50 ms.
#[workflow]
async fn busy_retried(ctx: Ctx) -> Result<()> {
    let world = ctx.state::<Shared>();
    let kill = ctx.step("kill", || async {
        let _mark = world.enter(&ctx).await;
        if world.begun_count() == 1 {
            return Err(Error::new("not yet"));
        }
        world.lab.sleep(ms(500)).await;
        world.die().await;
        Ok(())
    });
    tokio::select! {
        biased;
        killed = kill.retry(Retry::fixed(ms(10)).max_attempts(2)) => killed,
        never = tick(&ctx) => never,
    }
}

#[test]
fn progress_beside_a_deadly_second_attempt_clears_nothing() {
    on_both(async |world| {
        let mut workers = vec![same_build(&world).await];
        workers[0].start(busy_retried, ()).id("busy").await.unwrap();
        for _ in 0..DEATH_COUNT {
            within(&world, secs(600), world.died.notified()).await;
            workers.push(same_build(&world).await);
        }
        keep_alive(&world, &mut workers, secs(60)).await;
        let handle = workers.last().unwrap().handle::<u64>("busy");
        let why = handle.why().await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
        assert!(why.contains("its worker died 5 times while it ran alone"), "{why}");
        assert_eq!(world.company("busy").len(), 1 + DEATH_COUNT);
    });
}

#[test]
fn a_closure_that_is_recorded_at_last_clears_a_busy_suspect() {
    on_both(async |world| {
        let mut workers = vec![same_build(&world).await];
        // Its last death is one before the last that a suspect may have.
        workers[0].start(busy, 6).id("busy").await.unwrap();
        keep_alive(&world, &mut workers, secs(120)).await;
        let handle = workers.last().unwrap().handle::<u64>("busy");
        assert_eq!(handle.status().await.unwrap(), Status::Waiting, "{}", handle.why().await.unwrap());
        let found = world.snapshot("busy").await;
        assert_eq!((found.takeover_count, found.summary.suspicion), (0, None));
        assert_eq!(world.company("busy").len(), 7);
    });
}

/// An execution whose environment kills it, however often, is not blocked for that: at some time it
/// records its work.
#[test]
fn what_is_merely_killed_is_never_blocked() {
    on_both(async |world| {
        let mut workers = vec![same_build(&world).await];
        start_all(&workers[0], &ids("other", 4), (60, 400)).await;
        workers[0].start(busy, 0).id("busy").await.unwrap();
        for _ in 0..30 {
            world.lab.sleep(ms(1_300)).await;
            let machine = world.machine.lock().unwrap().unwrap();
            world.lab.crash(machine);
            workers.push(same_build(&world).await);
        }
        world.lab.sleep(secs(120)).await;
        let abide = workers.last().unwrap();
        assert_eq!(abide.handle::<u64>("busy").status().await.unwrap(), Status::Waiting);
        for id in ids("other", 4) {
            assert_eq!(abide.handle::<u32>(&id).status().await.unwrap(), Status::Completed, "{id}");
        }
    });
}

/// A pause, a resume and an unblock come from outside. The code has made no progress.
#[test]
fn a_pause_and_a_resume_clear_nothing() {
    // The pause comes while the suspect rests, while it runs, and around its death.
    for pause_ms in [0, 700, 2_000, 5_100] {
        on_both(async |world| {
            let mut workers = vec![same_build(&world).await];
            workers[0].start(poison, u32::MAX).id("poison").await.unwrap();
            for _ in 0..6 {
                within(&world, secs(600), world.died.notified()).await;
                workers.push(same_build(&world).await);
            }
            keep_alive(&world, &mut workers, ms(pause_ms)).await;
            let handle = workers.last().unwrap().handle::<u64>("poison");
            handle.pause().await.unwrap();
            keep_alive(&world, &mut workers, secs(20)).await;
            let handle = workers.last().unwrap().handle::<u64>("poison");
            assert_eq!(handle.status().await.unwrap(), Status::Paused, "{}", handle.why().await.unwrap());
            handle.resume().await.unwrap();
            keep_alive(&world, &mut workers, secs(60)).await;
            let handle = workers.last().unwrap().handle::<u64>("poison");
            assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{}", handle.why().await.unwrap());
            let death_count = world.company("poison").len();
            // A death between the arrival of the pause and its record leaves no mark.
            assert!((DEATH_COUNT..=DEATH_COUNT + 1).contains(&death_count), "{death_count} deaths");
        });
    }
}

#[test]
fn a_resume_does_not_end_a_rest() {
    on_both(async |world| {
        let mut workers = vec![same_build(&world).await];
        workers[0].start(poison, u32::MAX).id("poison").await.unwrap();
        // After the fourth death of its own, the suspect rests for four seconds.
        for _ in 0..6 {
            within(&world, secs(600), world.died.notified()).await;
            workers.push(same_build(&world).await);
        }
        let handle = workers.last().unwrap().handle::<u64>("poison");
        let rests = async {
            while handle.status().await.unwrap() != Status::Sleeping {
                world.lab.sleep(ms(10)).await;
            }
        };
        within(&world, secs(20), rests).await;
        handle.pause().await.unwrap();
        world.lab.sleep(ms(500)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        handle.resume().await.unwrap();
        world.lab.sleep(ms(2_500)).await;
        assert_eq!(world.company("poison").len(), 6, "it did not run");
        let why = handle.why().await.unwrap();
        assert!(why.contains("resting until") && why.contains("after 4 deaths of its worker"), "{why}");
        world.lab.sleep(secs(2)).await;
        assert_eq!(world.company("poison").len(), 7);
    });
}

#[test]
fn what_is_unblocked_and_kills_again_is_blocked_after_one_death() {
    on_both(async |world| {
        let mut workers = vec![same_build(&world).await];
        workers[0].start(poison, u32::MAX).id("poison").await.unwrap();
        keep_alive(&world, &mut workers, secs(60)).await;
        for more_count in 1..3 {
            let handle = workers.last().unwrap().handle::<u64>("poison");
            assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{}", handle.why().await.unwrap());
            handle.unblock().await.unwrap();
            keep_alive(&world, &mut workers, secs(60)).await;
            let handle = workers.last().unwrap().handle::<u64>("poison");
            assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{}", handle.why().await.unwrap());
            assert_eq!(world.company("poison").len(), DEATH_COUNT + more_count);
        }
    });
}

/// Keeps a worker alive for this long.
async fn keep_alive(world: &Shared, workers: &mut Vec<Abide>, time: Duration) {
    let mut is_over = Box::pin(world.lab.sleep(time));
    loop {
        tokio::select! {
            biased;
            () = &mut is_over => return,
            () = world.died.notified() => workers.push(same_build(world).await),
        }
    }
}

#[test]
fn deadline_of_a_suspect_is_applied_while_it_rests() {
    let rested_count = std::cell::Cell::new(0);
    for seconds in 10..40 {
        on(1, memory, async |world: Shared| {
            let mut workers = vec![same_build(&world).await];
            let start = workers[0].start(poison, u32::MAX).id("poison").deadline(secs(seconds));
            start.await.unwrap();
            keep_alive(&world, &mut workers, secs(seconds) - ms(1)).await;
            let handle = workers.last().unwrap().handle::<u32>("poison");
            if handle.status().await.unwrap() != Status::Sleeping {
                return;
            }
            rested_count.set(rested_count.get() + 1);
            keep_alive(&world, &mut workers, ms(2_100)).await;
            let handle = workers.last().unwrap().handle::<u32>("poison");
            let (status, why) = (handle.status().await.unwrap(), handle.why().await.unwrap());
            assert_eq!(status, Status::Failed, "{seconds}: {why}");
        });
    }
    assert!(rested_count.get() > 2, "it rested at {} of the deadlines", rested_count.get());
}
