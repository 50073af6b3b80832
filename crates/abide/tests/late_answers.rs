//! Answers that come late: nothing that happened meanwhile is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::Bounds;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Store};

#[workflow]
async fn fails_once(ctx: Ctx) -> Result<u32> {
    let run = ctx.run_number();
    ctx.step("one", || async { Ok(()) }).await?;
    if run == 1 { Err(Error::new("the first run fails")) } else { Ok(run) }
}

/// A run fails, somebody retries it, and its own worker claims the next run, all before the worker
/// hears that the first run has ended.
#[test]
fn a_run_that_is_retried_before_the_answer_that_ended_it_goes_on() {
    for nth_late in 1..8 {
        let commit_count = Arc::new(AtomicU32::new(0));
        let make = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
            FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |operation| {
                let nth = commit_count.fetch_add(u32::from(operation == "commit"), Ordering::Relaxed) + 1;
                let is_late = operation == "commit" && nth == nth_late;
                if is_late { Fault::Delay { poll_count: 2_000 } } else { Fault::None }
            })
        };
        Lab::run_on(u64::from(nth_late), make, |lab| async move {
            let (_, abide) = lab.worker().await.unwrap();
            let client = lab.client().await.unwrap();
            abide.start(fails_once, ()).id("one").await.unwrap();
            let handle = client.handle::<u32>("one");
            while handle.status().await.unwrap() != Status::Failed {
                // No time passes while an answer is held back.
                tokio::task::yield_now().await;
            }
            handle.retry().await.unwrap();
            tokio::select! {
                biased;
                result = handle.result() => assert_eq!(result.unwrap(), 2, "commit {nth_late} is late"),
                () = lab.sleep(minutes(5)) => panic!("commit {nth_late} is late: {}", handle.why().await.unwrap()),
            }
        });
    }
}
