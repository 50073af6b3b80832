//! A client that waits for a result hears of it at once, wherever the execution ended. Two engines
//! on one file stand for two processes; without a hint, each would look only every five seconds.

use std::sync::Arc;
use std::time::Duration;

use abide::prelude::*;
use futures_util::future::join;
use tokio::sync::Notify;

/// A time below the interval at which every engine looks without a hint.
const SOON: Duration = Duration::from_secs(4);
const TRY_COUNT: u32 = 4;

#[workflow]
async fn waits(ctx: Ctx) -> Result<u64> {
    ctx.recv("go").await
}

/// Takes up the only place in memory.
#[workflow]
async fn occupies(ctx: Ctx) -> Result<()> {
    let began = ctx.state::<Arc<Notify>>();
    let step = ctx.step("occupy", || async {
        began.notify_one();
        std::future::pending().await
    });
    step.await
}

struct StoreFolder(tempfile::TempDir);

impl StoreFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn builder(&self) -> abide::Builder {
        Abide::builder(format!("sqlite:{}", self.0.path().join("app.db").display())).shutdown_grace(ms(1))
    }
}

#[tokio::test]
async fn what_another_worker_runs_is_heard_of_when_it_ends() {
    in_time(async || heard_from_another().await).await;
}

async fn heard_from_another() -> Option<()> {
    let place = StoreFolder::new();
    let here = place.builder().lanes(["here"]).open().await.unwrap();
    let there = place.builder().lanes(["there"]).open().await.unwrap();
    let handle = here.start(waits, ()).lane("there").await.unwrap();
    for id in ["first", "second"] {
        let waiting = here.run(waits, ()).id(id).lane("there").into_future();
        let tell = async {
            until_it_waits(&here, id).await;
            there.handle::<u64>(id).signal("go", &7u64).await.unwrap();
        };
        assert_eq!(soon(join(waiting, tell)).await?.0.unwrap(), 7);
    }
    there.handle::<u64>(handle.id()).signal("go", &8u64).await.unwrap();
    assert_eq!(soon(handle.result()).await?.unwrap(), 8);
    there.shutdown().await;
    here.shutdown().await;
    Some(())
}

#[tokio::test]
async fn what_left_for_another_worker_is_heard_of_when_it_ends() {
    in_time(async || heard_of_what_left().await).await;
}

async fn heard_of_what_left() -> Option<()> {
    let place = StoreFolder::new();
    let began = Arc::new(Notify::new());
    let small = place.builder().lanes(["here", "both"]).execution_count_max(1).park_after(ms(1));
    let here = small.state(began.clone()).open().await.unwrap();
    let there = place.builder().lanes(["both"]);
    let waiting = here.run(waits, ()).id("a").lane("both").into_future();
    let tell = async {
        until_it_waits(&here, "a").await;
        // There is room for one: "a" has left memory when the other one runs, and cannot come back.
        here.start(occupies, ()).lane("here").await.unwrap();
        began.notified().await;
        let there = there.open().await.unwrap();
        there.handle::<u64>("a").signal("go", &7u64).await.unwrap();
        there
    };
    let (result, there) = soon(join(waiting, tell)).await?;
    assert_eq!(result.unwrap(), 7);
    there.shutdown().await;
    here.shutdown().await;
    Some(())
}

async fn until_it_waits(abide: &Abide, id: &str) {
    while !matches!(abide.handle::<u64>(id).status().await, Ok(Status::Waiting)) {
        tokio::task::yield_now().await;
    }
}

#[expect(clippy::disallowed_methods, reason = "it tests how long something takes")]
async fn soon<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(SOON, future).await.ok()
}

#[expect(clippy::disallowed_methods, reason = "a test that hangs is to say so")]
async fn at_last<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(secs(50), future).await.unwrap_or_else(|_| panic!("not at all: {what}"))
}

/// Retries a test that was late: a machine that stands still makes one attempt late, but not every
/// one.
async fn in_time(mut test: impl AsyncFnMut() -> Option<()>) {
    for _ in 0..TRY_COUNT {
        if test().await.is_some() {
            return;
        }
    }
    panic!("not soon, {TRY_COUNT} times");
}

#[derive(Default)]
struct Errand {
    run_count: std::sync::atomic::AtomicU32,
    has_begun: Notify,
    may_end: Notify,
}

#[task]
async fn errand(ctx: Ctx) -> Result<u32> {
    let errand = ctx.state::<Arc<Errand>>();
    let count = errand.run_count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
    errand.has_begun.notify_one();
    errand.may_end.notified().await;
    Ok(count)
}

#[workflow]
async fn quick(ctx: Ctx) -> Result<()> {
    ctx.step("one", || async { Ok(()) }).await
}

/// Whenever another process has written, the engine looks again at the unread mail of its
/// executions: a task with mail still runs once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_mail_is_told_again_and_again_runs_once() {
    for is_pause in [false, true] {
        let place = StoreFolder::new();
        let state = Arc::new(Errand::default());
        let here = place.builder().state(state.clone()).open().await.unwrap();
        let there = place.builder().lanes(["there"]).open().await.unwrap();
        let handle = here.start(errand, ()).id("errand").await.unwrap();
        state.has_begun.notified().await;
        if is_pause {
            there.handle::<u32>("errand").pause().await.unwrap();
        } else {
            there.handle::<u32>("errand").signal("news", &1).await.unwrap();
        }
        for n in 0..10 {
            there.run(quick, ()).id(format!("there-{n}")).lane("there").await.unwrap();
            here.run(quick, ()).id(format!("here-{n}")).await.unwrap();
        }
        if is_pause {
            at_last("it is paused", async {
                while handle.status().await.unwrap() != Status::Paused {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
        state.may_end.notify_one();
        assert_eq!(at_last("it ends", handle.result()).await.unwrap(), 1);
        there.shutdown().await;
        here.shutdown().await;
    }
}
