//! A parent's orders are for the children that it had when it sent them, and for no other
//! execution.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::Bounds;
use abide_sqlite::SqliteStore;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Store};
use futures_util::future::{Either, select};

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, Bounds::default())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

/// Runs a test on each store, once with executions that stay in memory and once with executions
/// that leave it at once.
fn on_each(test: impl AsyncFn(&Lab, &Abide) + Copy) {
    for make in [memory, sqlite] {
        for park_after in [hours(9), ms(10)] {
            Lab::run_on(1, make, |lab| async move {
                let open = |builder: abide::Builder| {
                    builder.park_after(park_after).state(Arc::new(AtomicBool::new(true)))
                };
                let (_, abide) = lab.worker_with(open).await.unwrap();
                test(&lab, &abide).await;
            });
        }
    }
}

async fn status(abide: &Abide, id: &str) -> Status {
    abide.handle::<u64>(id).status().await.unwrap()
}

#[workflow]
async fn waits(ctx: Ctx) -> Result<u64> {
    ctx.step("alive", || async { Ok(()) }).await?;
    ctx.recv("finish").await
}

#[workflow]
async fn undo(ctx: Ctx) -> Result<u64> {
    ctx.sleep(ms(20)).await?;
    ctx.step("undo", || async { Ok(7) }).await
}

/// Undoes its own work through a child.
#[workflow]
async fn saga(ctx: Ctx) -> Result<u64> {
    let done = ctx.run(waits, ()).id("work").await;
    if done.is_err() {
        ctx.shield(async { ctx.run(undo, ()).id("undo").await }).await?;
    }
    done
}

#[test]
fn child_that_cleans_up_is_not_cancelled_with_the_others() {
    on_each(async |lab, abide| {
        let handle = abide.start(saga, ()).id("saga").await.unwrap();
        lab.sleep(secs(10)).await;
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(30)).await;
        let found = [status(abide, "saga").await, status(abide, "work").await, status(abide, "undo").await];
        assert_eq!(found, [Status::Cancelled, Status::Cancelled, Status::Completed]);
    });
}

#[test]
fn child_that_cleans_up_behind_a_deadline_is_not_cancelled_with_the_others() {
    on_each(async |lab, abide| {
        abide.start(saga, ()).id("saga").deadline(secs(10)).await.unwrap();
        lab.sleep(secs(60)).await;
        let found = [status(abide, "saga").await, status(abide, "work").await, status(abide, "undo").await];
        assert_eq!(found, [Status::Failed, Status::Cancelled, Status::Completed]);
    });
}

#[workflow]
async fn grows(ctx: Ctx) -> Result<u64> {
    for n in 0.. {
        ctx.start(waits, ()).id(format!("child-{n}")).await?;
        ctx.recv::<u64>("go").await?;
    }
    Ok(0)
}

/// The execution that sends the pause to the children cannot list them for a while, and then finds
/// one that was started after the resume.
#[test]
fn order_that_is_late_is_not_for_younger_children() {
    let is_failing = Arc::new(AtomicBool::new(false));
    let fails = is_failing.clone();
    let make = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
        FaultyStore::deciding(memory(clock), move |what| match what {
            "list" if fails.load(Ordering::Relaxed) => Fault::Unavailable,
            _ => Fault::None,
        })
    };
    Lab::run_on(1, make, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.park_after(ms(10))).await.unwrap();
        let handle = abide.start(grows, ()).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        is_failing.store(true, Ordering::Relaxed);
        handle.pause().await.unwrap();
        lab.sleep(ms(150)).await;
        assert_eq!(status(&abide, "mother").await, Status::Paused);
        is_failing.store(false, Ordering::Relaxed);
        handle.resume().await.unwrap();
        lab.sleep(ms(10)).await;
        handle.signal("go", &1_u64).await.unwrap();
        lab.sleep(secs(60)).await;
        for id in ["child-0", "child-1"] {
            assert_eq!(status(&abide, id).await, Status::Waiting, "{id}");
        }
    });
}

#[workflow]
async fn fails_at_first(ctx: Ctx) -> Result<u64> {
    if ctx.state::<Arc<AtomicBool>>().swap(false, Ordering::Relaxed) {
        return Err(Error::fatal("no"));
    }
    ctx.recv("finish").await
}

#[workflow]
async fn mother_of_two(ctx: Ctx) -> Result<u64> {
    let _ = ctx.run(fails_at_first, ()).id("retried").await;
    ctx.run(waits, ()).id("other").await
}

/// The former parent has had its answer.
#[test]
fn child_that_somebody_retried_outlives_its_former_parent() {
    on_each(async |lab, abide| {
        let handle = abide.start(mother_of_two, ()).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        abide.handle::<u64>("retried").retry().await.unwrap();
        lab.sleep(secs(10)).await;
        handle.terminate("enough").await.unwrap();
        lab.sleep(secs(30)).await;
        let found =
            [status(abide, "mother").await, status(abide, "retried").await, status(abide, "other").await];
        assert_eq!(found, [Status::Cancelled, Status::Waiting, Status::Cancelled]);
    });
}

#[workflow]
async fn stubborn(ctx: Ctx) -> Result<u64> {
    let _ = ctx.recv::<u64>("never").await;
    ctx.shield(async { ctx.recv("finish").await }).await
}

#[workflow]
async fn gives_up(ctx: Ctx) -> Result<u64> {
    let (run, sleep) = (ctx.run(stubborn, ()).id("stubborn"), ctx.sleep(secs(1)));
    if let Either::Left((result, _)) = select(Box::pin(run.into_future()), Box::pin(sleep)).await {
        result?;
    }
    ctx.recv("finish").await
}

/// Nobody waits for this child, but it still ends with its parent.
#[test]
fn child_that_was_given_up_is_terminated_with_its_parent() {
    on_each(async |lab, abide| {
        let handle = abide.start(gives_up, ()).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(status(abide, "stubborn").await, Status::Waiting);
        handle.terminate("enough").await.unwrap();
        lab.sleep(secs(30)).await;
        assert_eq!(status(abide, "stubborn").await, Status::Cancelled);
    });
}

/// Abandons more children than a seat sends orders to directly.
#[workflow]
async fn gives_up_many(ctx: Ctx) -> Result<u64> {
    for nth in 0..GIVEN_UP_COUNT {
        let run = ctx.run(stubborn, ()).id(format!("stubborn-{nth}"));
        let (run, sleep) = (Box::pin(run.into_future()), Box::pin(ctx.sleep(ms(10))));
        if let Either::Left((result, _)) = select(run, sleep).await {
            result?;
        }
    }
    ctx.recv("finish").await
}

const GIVEN_UP_COUNT: u32 = 110;

/// The parent does not keep all of them in memory, and still leaves none out.
#[test]
fn many_children_that_were_given_up_are_terminated_with_their_parent() {
    on_each(async |lab, abide| {
        let handle = abide.start(gives_up_many, ()).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        for nth in 0..GIVEN_UP_COUNT {
            assert_eq!(status(abide, &format!("stubborn-{nth}")).await, Status::Waiting, "{nth}");
        }
        handle.terminate("enough").await.unwrap();
        lab.sleep(secs(30)).await;
        for nth in 0..GIVEN_UP_COUNT {
            assert_eq!(status(abide, &format!("stubborn-{nth}")).await, Status::Cancelled, "{nth}");
        }
    });
}

/// Abandons just as many children, all of which have ended. They answer after that, or have
/// answered before.
#[workflow]
async fn outlives_many(ctx: Ctx, has_answered: bool) -> Result<u64> {
    for _ in 0..GIVEN_UP_COUNT {
        if has_answered {
            let (one, other) = (ctx.start(undo, ()).await?, ctx.start(undo, ()).await?);
            ctx.sleep(secs(1)).await?;
            select(Box::pin(one.result()), Box::pin(other.result())).await;
        } else {
            let (run, sleep) = (ctx.run(waits, ()), ctx.sleep(ms(10)));
            select(Box::pin(run.into_future()), Box::pin(sleep)).await;
        }
    }
    ctx.recv("finish").await
}

/// A parent that has all its children in memory sends the orders itself; if they are too many,
/// another execution has to. Children that have answered do not count.
#[test]
fn children_that_were_given_up_and_have_answered_make_room() {
    for has_answered in [true, false] {
        Lab::run(1, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.park_after(hours(9))).await.unwrap();
            let handle = abide.start(outlives_many, has_answered).id("mother").await.unwrap();
            lab.sleep(minutes(5)).await;
            handle.pause().await.unwrap();
            lab.sleep(minutes(1)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Paused);
            let list = abide_store::List::of(abide_core::Namespace::default(), 1_000);
            let all = lab.store().list(list).await.unwrap().items;
            assert!(all.len() > GIVEN_UP_COUNT as usize);
            let is_own = |id: &str| id.starts_with("abide:");
            assert!(!all.iter().any(|item| is_own(item.address.id.as_str())), "answered: {has_answered}");
        });
    }
}

/// Starts a child under an id that is taken, and goes on in the given way before it hears of the
/// refusal.
#[workflow]
async fn thief(ctx: Ctx, way: String) -> Result<u64> {
    match way.as_str() {
        "returns" => _ = ctx.start(waits, ()).id("taken").await?,
        "continues" => {
            ctx.start(waits, ()).id("taken").await?;
            return ctx.continue_as_new("sleeps".to_owned()).await;
        }
        "drops" => {
            let (run, sleep) = (ctx.run(waits, ()).id("taken"), ctx.sleep(ms(0)));
            if let Either::Left((result, _)) = select(Box::pin(run.into_future()), Box::pin(sleep)).await {
                result?;
            }
        }
        "sleeps" => {}
        _ => _ = ctx.start(waits, ()).id("taken").await?,
    }
    if way != "returns" {
        ctx.sleep(secs(100)).await?;
    }
    Ok(0)
}

#[test]
fn what_has_the_id_that_a_child_was_to_have_is_nobodys_child() {
    for way in ["returns", "continues", "drops", "cancel", "terminate", "pause"] {
        on_each(async |lab, abide| {
            abide.start(mother_of_two, ()).id("taken").await.unwrap();
            lab.sleep(secs(1)).await;
            let handle = abide.start(thief, way.to_owned()).id("thief").await.unwrap();
            lab.sleep(secs(1)).await;
            match way {
                "cancel" => handle.cancel("enough").await.unwrap(),
                "terminate" => handle.terminate("enough").await.unwrap(),
                "pause" => handle.pause().await.unwrap(),
                _ => {}
            }
            lab.sleep(secs(60)).await;
            assert_eq!(status(abide, "taken").await, Status::Waiting, "{way}");
        });
    }
}

/// Starts the same child twice, and abandons the second, which was refused.
#[workflow]
async fn twin(ctx: Ctx) -> Result<u64> {
    let first = ctx.start(waits, ()).id("child").await?;
    let (again, sleep) = (ctx.run(undo, ()).id("child"), ctx.sleep(ms(0)));
    if let Either::Left((result, _)) = select(Box::pin(again.into_future()), Box::pin(sleep)).await {
        result?;
    }
    first.result().await
}

#[test]
fn giving_up_on_a_refused_child_leaves_the_one_that_has_its_id() {
    on_each(async |lab, abide| {
        abide.start(twin, ()).id("twin").await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(status(abide, "child").await, Status::Waiting);
    });
}

#[workflow]
async fn mother_of_many(ctx: Ctx) -> Result<u64> {
    for n in 0..150 {
        ctx.start(waits, ()).id(format!("child-{n}")).await?;
    }
    ctx.recv("finish").await
}

/// The sender of orders to many children is an execution too, and nobody else can take its id.
#[test]
fn ids_of_abides_own_executions_cannot_be_taken() {
    on_each(async |lab, abide| {
        let error = abide.start(waits, ()).id("abide:tree/mother/1/152").await.unwrap_err();
        assert!(error.to_string().contains("begins with \"abide:\""), "{error}");
        for number in 150..160 {
            abide.start(waits, ()).id(format!("mother/1/tree/{number}")).await.unwrap();
        }
        let handle = abide.start(mother_of_many, ()).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(status(abide, "child-149").await, Status::Paused);
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(30)).await;
        let found = [status(abide, "mother").await, status(abide, "child-0").await];
        assert_eq!(found, [Status::Cancelled; 2]);
    });
}

/// Starts a child under one of abide's own ids, reports the refusal, and goes on.
#[workflow]
async fn usurps(ctx: Ctx, runs: bool) -> Result<String> {
    let refused = if runs {
        ctx.run(waits, ()).id("abide:x").await
    } else {
        ctx.start(waits, ()).id("abide:x").await?.result().await
    };
    let error = refused.unwrap_err();
    ctx.step("goes on", || async { Ok(format!("{:?}: {error}", error.kind())) }).await
}

#[test]
fn child_under_an_id_of_abides_own_is_refused_and_nothing_is_stranded() {
    for runs in [false, true] {
        on_each(async |lab, abide| {
            let handle = abide.start(usurps, runs).id("mother").await.unwrap();
            lab.sleep(secs(30)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
            let told = handle.result().await.unwrap();
            assert!(told.contains("begins with \"abide:\""), "{told}");
            let found = abide.list(Filter::all()).await.unwrap();
            assert_eq!(found.len(), 1, "{found:?}");
            let error = abide.handle::<u64>("abide:x").status().await.unwrap_err();
            assert!(matches!(error, ClientError::Unknown { .. }), "{error:?}");
        });
    }
}

/// Starts a child under an id that is taken, and returns the answer.
#[workflow]
async fn hears(ctx: Ctx) -> Result<String> {
    ctx.recv::<()>("go").await?;
    let answer = ctx.run(waits, ()).id("taken").await;
    Ok(answer.unwrap_err().to_string())
}

/// The refusal comes back while its parent is paused, before or after it began to wait.
#[test]
fn a_refused_child_is_heard_of_after_a_pause_of_its_parent() {
    for pause_first in [true, false] {
        for after in [0, 1, 2, 5, 50] {
            on_each(async |lab, abide| {
                abide.start(mother_of_two, ()).id("taken").await.unwrap();
                let handle = abide.start(hears, ()).id("thief").await.unwrap();
                lab.sleep(secs(1)).await;
                let go = async {
                    lab.sleep(ms(if pause_first { after } else { 0 })).await;
                    handle.signal("go", &()).await.unwrap();
                };
                let pause = async {
                    lab.sleep(ms(if pause_first { 0 } else { after })).await;
                    let _ = handle.pause().await;
                };
                futures_util::join!(go, pause);
                lab.sleep(secs(30)).await;
                let _ = handle.resume().await;
                lab.sleep(secs(30)).await;
                let why = handle.why().await.unwrap();
                assert_eq!(handle.status().await.unwrap(), Status::Completed, "{pause_first} {after}: {why}");
                assert!(handle.result().await.unwrap().contains("was not started"));
                assert_eq!(status(abide, "taken").await, Status::Waiting);
            });
        }
    }
}
