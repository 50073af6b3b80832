//! A suspect whose commits fail for good: it is blocked like any other execution.

use std::sync::atomic::{AtomicBool, Ordering};

use abide_store::faults::Fault;

use super::*;

/// Whether the store takes no further commit until it has refused one.
type Refuses = Arc<AtomicBool>;

/// Kills its process twice. From then on, the store takes no result of its step.
#[workflow]
async fn unrecordable(ctx: Ctx) -> Result<()> {
    let (world, refuses) = (ctx.state::<Shared>(), ctx.state::<Refuses>());
    ctx.step("step", || async {
        let _mark = world.enter(&ctx).await;
        if world.begun.lock().unwrap()[&ctx.idempotency_key()] <= 2 {
            world.die().await;
        }
        refuses.store(true, Ordering::SeqCst);
        Ok(())
    })
    .await
}

fn refusing(store: Arc<dyn Store>, refuses: &Refuses) -> Arc<dyn Store> {
    let refuses = refuses.clone();
    FaultyStore::deciding(store, move |operation| {
        let is_refused = operation == "commit" && refuses.swap(false, Ordering::SeqCst);
        if is_refused { Fault::Corrupt } else { Fault::None }
    })
}

#[test]
fn a_suspect_whose_commits_fail_for_good_is_blocked() {
    for make in [memory, sqlite] {
        let refuses = Refuses::default();
        on(
            0,
            |clock| refusing(make(clock), &refuses),
            async |world| {
                let stated = || worker_with(&world, |builder| builder.state(refuses.clone()));
                let mut workers = vec![stated().await];
                workers[0].start(unrecordable, ()).id("suspect").await.unwrap();
                for _ in 0..2 {
                    within(&world, secs(60), world.died.notified()).await;
                    workers.push(stated().await);
                }
                world.lab.sleep(secs(120)).await;
                let handle = workers.last().unwrap().handle::<()>("suspect");
                let why = handle.why().await.unwrap();
                assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
                assert!(why.contains("the store refused a commit 5 times"), "{why}");
                assert_eq!(world.company("suspect").len(), 2 + 5, "each failure ran its step once");
            },
        );
    }
}
