//! Accepting another input, beside a result that could not be recorded.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::Bounds;
use abide_store::memory::MemoryStore;
use tokio::sync::Semaphore;

const BYTES_MAX: usize = 100;

struct World {
    input: AtomicU32,
    length: AtomicUsize,
    gate: Semaphore,
    ran: Mutex<Vec<String>>,
}

type Shared = Arc<World>;

fn world() -> Shared {
    Arc::new(World {
        input: AtomicU32::new(1),
        length: AtomicUsize::new(BYTES_MAX),
        gate: Semaphore::new(0),
        ran: Mutex::default(),
    })
}

/// A charge with a declared input, whose receipt may be too large to be recorded.
#[workflow]
async fn charges(ctx: Ctx) -> Result<String> {
    let world = ctx.state::<Shared>();
    let input = world.input.load(Ordering::Relaxed);
    ctx.step("charge", || async {
        world.gate.acquire().await?.forget();
        world.ran.lock().unwrap().push(format!("charge {input}"));
        Ok("x".repeat(world.length.load(Ordering::Relaxed)))
    })
    .input(&input)
    .await
}

fn small(clock: Arc<dyn abide_store::Clock>) -> Arc<dyn abide_store::Store> {
    MemoryStore::new(clock, Bounds { payload_bytes_max: BYTES_MAX, ..Bounds::default() })
}

/// The charge has happened, and its receipt could not be recorded. Accepting the outcome for
/// another input is not a decision to charge once more.
#[test]
fn accepting_another_input_does_not_run_again_what_could_not_be_recorded() {
    Lab::run_on(1, small, |lab| async move {
        let world = world();
        let worker = async || {
            let state = world.clone();
            let options = |builder: abide::Builder| {
                builder.state(state).payload_bytes_max(BYTES_MAX).session_ttl(secs(3))
            };
            lab.worker_with(options).await.unwrap()
        };
        let (machine, abide) = worker().await;
        let handle = abide.start(charges, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(1)).await;
        world.gate.add_permits(1);
        lab.sleep(secs(2)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        assert_eq!(world.ran.lock().unwrap().join(", "), "charge 1");
        lab.crash(machine);
        world.input.store(2, Ordering::Relaxed);
        world.length.store(3, Ordering::Relaxed);
        world.gate.add_permits(10);
        let (_, abide) = worker().await;
        let handle = abide.handle::<String>("one");
        handle.resume().await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        handle.unblock().accept("charge").await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "the receipt is still lost");
        handle.unblock().edit("charge", "ok").await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "ok");
        assert_eq!(world.ran.lock().unwrap().join(", "), "charge 1", "nobody has asked for a second charge");
    });
}
