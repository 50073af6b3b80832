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
