//! Whoever waits for a result hears of it at once, wherever the execution ended. Two engines on one file stand for two
//! processes; by itself each would look only every five seconds.

use std::sync::Arc;
use std::time::Duration;

use abide::prelude::*;
use tokio::sync::Notify;
use tokio::time::timeout;

/// Far below the time after which everybody looks by themselves.
const SOON: Duration = Duration::from_secs(2);

#[workflow]
async fn waits(ctx: Ctx) -> Result<u64> {
    ctx.recv("go").await
}

/// Stays in memory.
#[workflow]
async fn occupies(ctx: Ctx) -> Result<()> {
    let began = ctx.state::<Arc<Notify>>();
    let step = ctx.step("occupy", || async {
        began.notify_one();
        std::future::pending().await
    });
    step.await
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn builder(&self) -> abide::Builder {
        Abide::builder(format!("sqlite:{}", self.0.path().join("app.db").display())).shutdown_grace(ms(1))
    }
}

#[tokio::test]
async fn what_another_worker_runs_is_heard_of_when_it_ends() {
    let place = Place::new();
    let here = place.builder().lanes(["here"]).open().await.unwrap();
    let there = place.builder().lanes(["there"]).open().await.unwrap();
    let handle = here.start(waits, ()).lane("there").await.unwrap();
    for id in ["first", "second"] {
        let waiting = tokio::spawn(here.run(waits, ()).id(id).lane("there").into_future());
        until_it_waits(&here, id).await;
        there.handle::<u64>(id).signal("go", &7u64).await.unwrap();
        assert_eq!(timeout(SOON, waiting).await.expect("it is told soon").unwrap().unwrap(), 7);
    }
    there.handle::<u64>(handle.id()).signal("go", &8u64).await.unwrap();
    assert_eq!(timeout(SOON, handle.result()).await.expect("it is told soon").unwrap(), 8);
    there.shutdown().await;
    here.shutdown().await;
}

#[tokio::test]
async fn what_left_for_another_worker_is_heard_of_when_it_ends() {
    let place = Place::new();
    let began = Arc::new(Notify::new());
    let small = place.builder().lanes(["here", "both"]).execution_count_max(1).park_after(ms(1));
    let here = small.state(began.clone()).open().await.unwrap();
    let waiting = tokio::spawn(here.run(waits, ()).id("a").lane("both").into_future());
    until_it_waits(&here, "a").await;
    // There is room for one: it is gone when the other is there, and cannot come back.
    here.start(occupies, ()).lane("here").await.unwrap();
    timeout(SOON, began.notified()).await.expect("the other one left");
    let there = place.builder().lanes(["both"]).open().await.unwrap();
    there.handle::<u64>("a").signal("go", &7u64).await.unwrap();
    assert_eq!(timeout(SOON, waiting).await.expect("it is told soon").unwrap().unwrap(), 7);
    there.shutdown().await;
    here.shutdown().await;
}

async fn until_it_waits(abide: &Abide, id: &str) {
    let look = async {
        while !matches!(abide.handle::<u64>(id).status().await, Ok(Status::Waiting)) {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, look).await.expect("it waits soon");
}
