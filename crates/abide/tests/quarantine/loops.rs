//! Poison that never ends: it is blocked, with its history, and its application lives.

use super::*;

/// How often a worker dies before the suspect runs alone, and while it does.
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

#[test]
fn a_rest_is_told_and_no_message_ends_it() {
    on_both(async |world| {
        let mut workers = vec![same_build(&world).await];
        workers[0].start(poison, u32::MAX).id("poison").await.unwrap();
        // After the fourth death of its own it rests for four seconds.
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
        // Its last death is one before the last that it may have.
        workers[0].start(poison, 6).id("poison").await.unwrap();
        for _ in 0..6 {
            within(&world, secs(600), world.died.notified()).await;
            workers.push(same_build(&world).await);
        }
        world.lab.sleep(secs(60)).await;
        let handle = workers.last().unwrap().handle::<u32>("poison");
        // It waits for a signal, as everybody who came so far.
        assert_eq!(handle.status().await.unwrap(), Status::Waiting, "{}", handle.why().await.unwrap());
        let found = world.snapshot("poison").await;
        assert_eq!((found.takeover_count, found.summary.waiting.len()), (0, 1));
    });
}

/// Keeps a worker alive for so long.
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
