//! An order that was acknowledged when its run was about to end changes nothing.

use std::sync::{Arc, OnceLock};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::{Address, ExecutionId, Namespace};
use abide_store::{Read, Target};

type Shared = Arc<OnceLock<Abide>>;

/// Terminates itself in its last step.
#[workflow]
async fn races(ctx: Ctx) -> Result<u32> {
    let client = ctx.state::<Shared>();
    ctx.step("last", || async {
        let handle = client.get().expect("it was opened").handle::<u32>("one");
        handle.terminate("too late").await.map_err(|error| Error::new(error.to_string()))?;
        Ok(7)
    })
    .await
}

async fn unread_count(lab: &Lab) -> usize {
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new("one").unwrap() };
    let read = Read { target: Target::Address(address), run: None, from: 0, limit: 0, with_inbox: true };
    lab.store().read(read).await.unwrap().unwrap().inbox.messages.len()
}

#[test]
fn p4_a_terminate_that_came_too_late_changes_nothing() {
    let lost_count = Arc::new(std::sync::atomic::AtomicU32::new(0));
    for seed in 0..10 {
        let lost_count = lost_count.clone();
        Lab::run_on_each(seed, async |lab| {
            let shared = Shared::default();
            let state = shared.clone();
            let (_, abide) = lab.worker_with(|builder| builder.state(state)).await.unwrap();
            assert!(shared.set(abide.clone()).is_ok());
            let handle = abide.start(races, ()).id("one").await.unwrap();
            let result = handle.result().await;
            let status = handle.status().await.unwrap();
            lab.sleep(secs(60)).await;
            assert_eq!(handle.status().await.unwrap(), status, "an end is final");
            if status == Status::Completed {
                lost_count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                assert_eq!(result.unwrap(), 7);
                let why = handle.why().await.unwrap();
                assert!(why.contains("completed at") && !why.contains("unread"), "{why}");
                let unread = unread_count(&lab).await;
                assert!(handle.terminate("again").await.is_err(), "it has ended");
                assert_eq!(unread_count(&lab).await, unread, "nothing is added");
            }
        });
    }
    println!("{} orders came too late", lost_count.load(std::sync::atomic::Ordering::Relaxed));
    assert!(lost_count.load(std::sync::atomic::Ordering::Relaxed) > 0);
}
