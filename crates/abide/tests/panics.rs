//! Panics outside of every call of user code: in the destructors of its values.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::prelude::*;
use abide::testing::{Lab, transact};
use abide_core::Bounds;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Retire, Store};

/// A value that must not be given up.
#[derive(Clone)]
struct Touchy;

impl Drop for Touchy {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("do not drop me");
        }
    }
}

/// How often the code was begun.
#[derive(Clone, Debug, Default)]
struct Begun(Arc<AtomicU32>);

#[task]
async fn holds(ctx: Ctx) -> Result<()> {
    let _touchy = Touchy;
    ctx.state::<Lab>().sleep(days(365)).await;
    Ok(())
}

/// The code is dropped to end it. The order counts, whatever the code does then.
#[test]
fn a_task_that_panics_when_it_is_dropped_is_cancelled() {
    Lab::run_on_each(1, |lab| async move {
        let state = lab.clone();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(state)).await.unwrap();
        let handle = abide.start(holds, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(30)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled, "{}", handle.why().await.unwrap());
    });
}

#[test]
fn a_task_that_panics_when_it_is_dropped_ends_at_its_deadline() {
    Lab::run_on_each(1, |lab| async move {
        let state = lab.clone();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(state)).await.unwrap();
        let handle = abide.start(holds, ()).id("one").deadline(secs(5)).await.unwrap();
        lab.sleep(minutes(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Failed, "{}", handle.why().await.unwrap());
    });
}

/// Drops a transaction whose closure cannot be dropped, and counts how often it was begun.
#[workflow]
async fn gives_up(ctx: Ctx) -> Result<()> {
    ctx.state::<Begun>().0.fetch_add(1, Ordering::Relaxed);
    let touchy = Touchy;
    let transacted = transact(&ctx, "book", move |_| {
        let _held = &touchy;
        Ok(())
    });
    tokio::select! {
        biased;
        slept = ctx.sleep(ms(0)) => slept,
        transacted = transacted => transacted,
    }
}

#[workflow]
async fn waits_for_it(ctx: Ctx) -> Result<()> {
    ctx.run(gives_up, ()).await
}

/// Each go runs unrecorded steps again, so there are `failure_count_max` of them. Then `why` says
/// what happens and where.
#[test]
fn an_execution_whose_runner_panics_each_time_is_blocked() {
    Lab::run_on_each(1, |lab| async move {
        let begun = Begun::default();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(begun.clone())).await.unwrap();
        let handle = abide.start(gives_up, ()).id("one").await.unwrap();
        lab.sleep(minutes(5)).await;
        let why = handle.why().await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
        assert!(why.contains("panicked 5 times, at most failure_count_max = 5: do not drop me"), "{why}");
        assert!(why.contains("tests/panics.rs:"), "{why}");
        assert_eq!(begun.0.load(Ordering::Relaxed), 5);
        handle.terminate("enough").await.unwrap();
        lab.sleep(minutes(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

#[test]
fn a_parent_says_that_it_waits_for_a_child_whose_runner_panics() {
    Lab::run_on_each(1, |lab| async move {
        let (_machine, abide) = lab.worker_with(|builder| builder.state(Begun::default())).await.unwrap();
        let parent = abide.start(waits_for_it, ()).id("parent").await.unwrap();
        lab.sleep(minutes(5)).await;
        let why = parent.why().await.unwrap();
        assert!(why.contains("is blocked") && why.contains("do not drop me"), "{why}");
        parent.cancel("enough").await.unwrap();
        lab.sleep(minutes(5)).await;
        assert_eq!(parent.status().await.unwrap(), Status::Cancelled, "{}", parent.why().await.unwrap());
        let open = abide.list(Filter::all()).await.unwrap();
        assert!(open.iter().all(|listed| listed.status.is_terminal()), "{open:?}");
    });
}

/// A shutdown waits for nobody who panics, and the next worker takes over at once.
#[test]
fn a_worker_shuts_down_between_two_panics() {
    Lab::run_on_each(1, |lab| async move {
        let begun = Begun::default();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(begun.clone())).await.unwrap();
        abide.start(gives_up, ()).id("one").await.unwrap();
        lab.sleep(ms(50)).await;
        abide.shutdown().await;
        let before = begun.0.load(Ordering::Relaxed);
        assert!((1..5).contains(&before), "{before}");
        let (_machine, abide) = lab.worker_with(|builder| builder.state(begun.clone())).await.unwrap();
        lab.sleep(minutes(5)).await;
        let handle = abide.handle::<()>("one");
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{}", handle.why().await.unwrap());
        assert_eq!(begun.0.load(Ordering::Relaxed), before + 5, "each worker counts its own");
        handle.terminate("enough").await.unwrap();
    });
}

/// A value whose first destruction panics.
#[derive(Clone)]
struct Once(Begun);

impl Drop for Once {
    fn drop(&mut self) {
        if self.0.0.fetch_add(1, Ordering::Relaxed) == 0 {
            panic!("only the first drop");
        }
    }
}

/// The runs of the step "count", and the destructions of a value.
#[derive(Clone, Default)]
struct Counts {
    run: Begun,
    dropped: Begun,
}

/// Drops the closure of a transaction, which panics, while the record of the step is on its way.
#[workflow]
async fn counts_once(ctx: Ctx) -> Result<u32> {
    let counts = ctx.state::<Counts>();
    let mut slow = std::pin::pin!(ctx.step("slow", || async {
        ctx.state::<Lab>().sleep(secs(1)).await;
        Ok(())
    }));
    let counted = ctx.step("count", || async { Ok(counts.run.0.fetch_add(1, Ordering::Relaxed) + 1) });
    let count = select! {
        count = counted => count?,
        slow = &mut slow => return slow.map(|()| 0),
    };
    let once = Once(counts.dropped.clone());
    let transacted = transact(&ctx, "book", move |_| {
        let _held = &once;
        Ok(())
    });
    select! {
        slow = &mut slow => slow?,
        transacted = transacted => transacted?,
    }
    Ok(count)
}

/// Otherwise the next life would begin before that commit, under the same lease, and its first
/// commit would be taken for a repetition of it: acknowledged, and never written.
#[test]
fn p1_a_panic_beside_a_commit_under_way_waits_for_its_answer() {
    let faulty = Arc::new(std::sync::OnceLock::<Arc<FaultyStore>>::new());
    let store = {
        let faulty = faulty.clone();
        move |clock| -> Arc<dyn Store> {
            let mut commit_count = 0;
            let decide = move |what| match what {
                "commit" if commit_count == 0 => {
                    commit_count += 1;
                    Fault::Late
                }
                _ => Fault::None,
            };
            let store = FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), decide);
            faulty.get_or_init(|| store).clone()
        }
    };
    Lab::run_on(1, store, |lab| async move {
        let counts = Counts::default();
        let with = |builder: abide::Builder| builder.state(counts.clone()).state(lab.clone());
        let (_machine, abide) = lab.worker_with(with).await.unwrap();
        let handle = abide.start(counts_once, ()).id("one").await.unwrap();
        lab.sleep(secs(10)).await;
        assert!(counts.dropped.0.load(Ordering::Relaxed) > 0, "it has panicked");
        faulty.get().unwrap().heal();
        assert_eq!(handle.result().await.unwrap(), 1, "the recorded result");
        assert_eq!(counts.run.0.load(Ordering::Relaxed), 1);
    });
}

/// The worker loses its session and drops the task, which panics.
#[test]
fn a_task_that_panics_when_its_session_is_lost_is_run_by_the_next_one() {
    Lab::run_on_each(1, |lab| async move {
        let state = lab.clone();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(state)).await.unwrap();
        let handle = abide.start(holds, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        let session = lab.store().workers(all_workers()).await.unwrap()[0].session;
        let reason = "gone".to_owned();
        lab.store().retire(Retire { session, reason }).await.unwrap();
        lab.sleep(minutes(2)).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains("is running"), "{why}");
        handle.cancel("enough").await.unwrap();
        lab.sleep(minutes(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled, "{}", handle.why().await.unwrap());
    });
}

fn all_workers() -> abide_store::Workers {
    abide_store::Workers { namespace: abide_core::Namespace::default(), after: None, limit: 9 }
}

/// A value that asks for the time of its workflow when it is dropped.
#[derive(Clone)]
struct Stamp(Ctx);

impl Drop for Stamp {
    fn drop(&mut self) {
        let _ = self.0.now();
    }
}

/// Has such values dropped with operations that were given up, and with those that have ended.
#[workflow]
async fn stamps(ctx: Ctx) -> Result<u32> {
    let stamp = Stamp(ctx.clone());
    let given_up = transact(&ctx, "book", {
        let stamp = stamp.clone();
        move |_| {
            let _held = &stamp;
            Ok(())
        }
    });
    select! {
        slept = ctx.sleep(ms(0)) => slept?,
        transacted = given_up => transacted?,
    }
    let retry_if = {
        let stamp = stamp.clone();
        move |_: &Error| {
            let _held = &stamp;
            true
        }
    };
    let retry = Retry::fixed(ms(1)).max_attempts(2);
    let asked = ctx.step("ask", || async { Err::<u32, _>("no".into()) }).retry(retry).retry_if(retry_if);
    assert!(asked.await.is_err());
    transact(&ctx, "done", move |_| {
        let _held = &stamp;
        Ok(7)
    })
    .await
}

/// The board is not locked while values of the code are dropped.
#[test]
fn a_destructor_may_use_the_context() {
    Lab::run_on_each(1, |lab| async move {
        let (_machine, abide) = lab.worker().await.unwrap();
        assert_eq!(abide.run(stamps, ()).await.unwrap(), 7);
    });
}

/// A panic whose payload panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("boom");
        }
    }
}

#[task]
async fn bombs(ctx: Ctx) -> Result<()> {
    ctx.state::<Begun>().0.fetch_add(1, Ordering::Relaxed);
    std::panic::panic_any(Bomb)
}

#[workflow]
async fn steps_on_bombs(ctx: Ctx) -> Result<String> {
    let begun = ctx.state::<Begun>();
    let stepped: Result<()> = ctx
        .step("bomb", || async {
            begun.0.fetch_add(1, Ordering::Relaxed);
            std::panic::panic_any(Bomb)
        })
        .await;
    Ok(stepped.unwrap_err().to_string())
}

/// One panic of a task is one failed attempt, and one of a step is an error of that step.
#[test]
fn a_payload_that_panics_when_it_is_dropped_is_one_panic() {
    Lab::run_on_each(1, |lab| async move {
        let begun = Begun::default();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(begun.clone())).await.unwrap();
        assert!(matches!(abide.run(bombs, ()).await, Err(ClientError::Failed { .. })));
        assert_eq!(begun.0.load(Ordering::Relaxed), 1);
        let told = abide.run(steps_on_bombs, ()).await.unwrap();
        assert!(told.contains("a panic without a message"), "{told}");
        assert_eq!(begun.0.load(Ordering::Relaxed), 2);
    });
}

/// After 0.2 s, 0.4 s, 0.8 s and 1.6 s.
#[test]
fn an_execution_whose_runner_panics_is_begun_after_longer_and_longer_pauses() {
    Lab::run(1, |lab| async move {
        let begun = Begun::default();
        let (_machine, abide) = lab.worker_with(|builder| builder.state(begun.clone())).await.unwrap();
        abide.start(gives_up, ()).id("one").await.unwrap();
        let mut counts = Vec::new();
        for _ in 0..7 {
            lab.sleep(ms(450)).await;
            counts.push(begun.0.load(Ordering::Relaxed));
        }
        assert_eq!(counts, [2, 3, 3, 4, 4, 4, 5]);
    });
}
