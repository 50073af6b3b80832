//! Events that reach an execution in every phase: paused, blocked, cancelled, in the middle of a
//! transaction. No phase skips the bookkeeping.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::{Address, Event, ExecutionId, Namespace};
use abide_sqlite::SqliteStore;
use abide_store::Store;
use abide_store::faults::{Chances, FaultyStore};
use tokio::sync::Notify;

#[derive(Default)]
struct World {
    may_end: Notify,
    may_end_too: Notify,
    is_fixed: bool,
    ran: Mutex<BTreeMap<String, u32>>,
    said: Mutex<Vec<String>>,
}

impl World {
    fn fixed() -> Arc<Self> {
        Arc::new(Self { is_fixed: true, ..Self::default() })
    }

    fn say(&self, what: impl Into<String>) {
        self.said.lock().unwrap().push(what.into());
    }

    fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }
}

type SharedWorld = Arc<World>;

#[task]
async fn errand(ctx: Ctx) -> Result<u32> {
    ctx.state::<SharedWorld>().may_end.notified().await;
    Ok(7)
}

#[workflow]
async fn sends_out(ctx: Ctx) -> Result<u32> {
    ctx.run(errand, ()).id("errand").await
}

/// A running task finishes while its parent is paused, and nobody starts it anew.
#[test]
fn the_answer_of_a_child_is_kept_while_its_parent_is_paused() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        let parent = abide.start(sends_out, ()).id("parent").await.unwrap();
        lab.sleep(secs(5)).await;
        parent.pause().await.unwrap();
        lab.sleep(secs(5)).await;
        world.may_end.notify_one();
        lab.sleep(secs(5)).await;
        assert_eq!(abide.handle::<u32>("errand").status().await.unwrap(), Status::Completed);
        assert_eq!(parent.status().await.unwrap(), Status::Paused);
        parent.resume().await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(parent.status().await.unwrap(), Status::Completed, "{}", parent.why().await.unwrap());
    });
}

#[workflow]
async fn clashes(ctx: Ctx) -> Result<u32> {
    let child = ctx.start(errand, ()).id("errand").await?;
    ctx.step("name", || async { Ok(()) }).await?;
    let is_fixed = ctx.state::<SharedWorld>().is_fixed;
    ctx.sleep(ms(1)).named(if is_fixed { "other" } else { "name" }).await?;
    child.result().await
}

#[test]
fn the_answer_of_a_child_is_kept_while_its_parent_is_blocked() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (machine, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        let parent = abide.start(clashes, ()).id("parent").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(parent.status().await.unwrap(), Status::Blocked);
        world.may_end.notify_one();
        lab.sleep(secs(5)).await;
        assert_eq!(abide.handle::<u32>("errand").status().await.unwrap(), Status::Completed);
        lab.crash(machine);
        let (_, abide) = lab.worker_with(|builder| builder.state(World::fixed())).await.unwrap();
        abide.handle::<u32>("parent").unblock().await.ok();
        lab.sleep(secs(60)).await;
        let parent = abide.handle::<u32>("parent");
        assert_eq!(parent.status().await.unwrap(), Status::Completed, "{}", parent.why().await.unwrap());
    });
}

#[workflow]
async fn naps(ctx: Ctx, millis: u64) -> Result<u64> {
    ctx.sleep(ms(millis)).await?;
    ctx.step("nap", || async { Ok(millis) }).await
}

#[workflow]
async fn adds_naps(ctx: Ctx) -> Result<u64> {
    let mut sum = 0;
    for round in 0..5 {
        sum += ctx.run(naps, 40 + 7 * round).await?;
    }
    Ok(sum)
}

/// Pauses and resumes come at random moments, and some meet the answer of a child on its way.
#[test]
fn random_pauses_lose_no_answer() {
    for seed in 1..=60 {
        Lab::run(seed, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.park_after(ms(20))).await.unwrap();
            let parent = abide.start(adds_naps, ()).id("parent").await.unwrap();
            for _ in 0..8 {
                lab.sleep(ms(lab.random() % 70)).await;
                if parent.pause().await.is_err() {
                    break;
                }
                lab.sleep(ms(lab.random() % 70)).await;
                parent.resume().await.unwrap();
            }
            lab.sleep(secs(60)).await;
            assert_eq!(
                parent.status().await.unwrap(),
                Status::Completed,
                "seed {seed}: {}",
                parent.why().await.unwrap()
            );
        });
    }
}

#[workflow]
async fn beside(ctx: Ctx) -> Result<()> {
    let world = ctx.state::<SharedWorld>();
    for round in 0..10 {
        let key = format!("{}/{round}", ctx.id());
        let step = ctx.step("step", || {
            *world.ran.lock().unwrap().entry(key.clone()).or_default() += 1;
            async {
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
                Ok(())
            }
        });
        let transaction = ctx.sqlite("row", |tx| {
            tx.execute("INSERT INTO app VALUES (1)", [])?;
            Ok(())
        });
        let (step, transaction) = futures_util::join!(step, transaction);
        step?;
        transaction?;
    }
    Ok(())
}

#[workflow]
async fn prepares(ctx: Ctx) -> Result<()> {
    ctx.sqlite("create", |tx| Ok(tx.execute_batch("CREATE TABLE app (x)")?)).await
}

#[workflow]
async fn counts(ctx: Ctx) -> Result<i64> {
    ctx.sqlite("count", |tx| Ok(tx.query_row("SELECT COUNT(*) FROM app", [], |row| row.get(0))?)).await
}

/// Steps end while a transaction of the same workflow is on its way: no entry number is used twice.
#[test]
fn a_step_beside_a_transaction_runs_once() {
    for seed in 1..=20 {
        let store = |clock| {
            let inner = SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap();
            let chances = Chances { delay_permille: 700, delay_poll_count_max: 8, ..Chances::default() };
            FaultyStore::seeded(inner, seed, chances) as Arc<dyn Store>
        };
        Lab::run_on(seed, store, |lab| async move {
            let world = SharedWorld::default();
            let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
            abide.run(prepares, ()).await.unwrap();
            let ids = ["a", "b", "c"];
            for id in ids {
                abide.start(beside, ()).id(id).await.unwrap();
            }
            for id in ids {
                abide.handle::<()>(id).result().await.unwrap();
            }
            let twice: Vec<_> = world
                .ran
                .lock()
                .unwrap()
                .iter()
                .filter(|(_, count)| **count > 1)
                .map(|(key, _)| key.clone())
                .collect();
            assert!(twice.is_empty(), "seed {seed}: ran more than once: {twice:?}");
            assert_eq!(abide.run(counts, ()).await.unwrap(), 30, "seed {seed}");
        });
    }
}

#[workflow]
async fn pair(ctx: Ctx) -> Result<()> {
    let world = ctx.state::<SharedWorld>();
    let (a, b) = futures_util::join!(
        ctx.step("a", || async {
            world.may_end.notified().await;
            Ok(1u32)
        }),
        ctx.step("b", || async {
            world.may_end_too.notified().await;
            Ok(2u32)
        })
    );
    world.say(format!("a {} b {}", a.is_ok(), b.is_ok()));
    let later = ctx.step("later", || async {
        world.say("later began");
        Ok(())
    });
    world.say(format!("later {}", later.await.is_ok()));
    a?;
    b?;
    Ok(())
}

/// The code sees a result recorded before the cancellation first; nothing starts in between.
#[test]
fn a_recorded_result_is_seen_before_a_cancellation() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        let handle = abide.start(pair, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(1)).await;
        world.may_end.notify_one();
        lab.sleep(secs(1)).await;
        handle.cancel("stop").await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(world.said(), ["a true b false", "later false"]);
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

/// The same holds after a crash, when the journal has the result and then the cancellation.
#[test]
fn a_recorded_result_is_seen_before_a_cancellation_in_a_replay() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (machine, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        let handle = abide.start(pair, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(1)).await;
        world.may_end.notify_one();
        lab.sleep(secs(1)).await;
        lab.crash(machine);
        let world = SharedWorld::default();
        let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        let handle = abide.handle::<()>("one");
        handle.cancel("stop").await.unwrap();
        lab.sleep(secs(120)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
        assert_eq!(world.said(), ["a true b false", "later false"]);
    });
}

#[workflow]
async fn first_step(ctx: Ctx) -> Result<()> {
    let world = ctx.state::<SharedWorld>();
    let step = ctx.step("charge", || async {
        world.say("charge began");
        world.may_end.notified().await;
        Ok(())
    });
    let seen = step.await;
    world.say(format!("cancelled {}", seen.as_ref().is_err_and(Error::is_cancelled)));
    seen
}

/// Code that has run under a lease sees a cancellation, even during its first operation.
#[test]
fn a_cancellation_during_the_first_operation_is_seen() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        let handle = abide.start(first_step, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.cancel("stop").await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(world.said(), ["charge began", "cancelled true"]);
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

/// Undoes its work when it is cancelled.
#[workflow]
async fn tidy(ctx: Ctx) -> Result<()> {
    let cleaned_count = ctx.state::<Arc<AtomicU32>>();
    ctx.step("mess", || async { Ok(()) }).await?;
    let waited: Result<()> = ctx.recv("go").await;
    let clean = ctx.step("clean", || async {
        cleaned_count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    ctx.shield(clean).await?;
    waited
}

#[test]
fn a_cancellation_of_what_is_paused_is_seen() {
    Lab::run(1, |lab| async move {
        let cleaned_count = Arc::new(AtomicU32::new(0));
        let (_, abide) = lab.worker_with(|builder| builder.state(cleaned_count.clone())).await.unwrap();
        let handle = abide.start(tidy, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
        assert_eq!(cleaned_count.load(Ordering::Relaxed), 1);
    });
}

/// An execution that nobody ever held has nothing to clean up.
#[test]
fn what_nobody_ever_held_is_cancelled_without_its_code() {
    Lab::run(1, |lab| async move {
        let (_, other) =
            lab.worker_with(|builder| builder.state(SharedWorld::default()).lanes(["other"])).await.unwrap();
        let handle = other.start(first_step, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.cancel("stop").await.unwrap();
        lab.sleep(secs(60)).await;
        let world = SharedWorld::default();
        let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(abide.handle::<()>("one").status().await.unwrap(), Status::Cancelled);
        assert_eq!(world.said(), Vec::<String>::new());
    });
}

#[task]
async fn counted(ctx: Ctx) -> Result<u32> {
    let world = ctx.state::<SharedWorld>();
    *world.ran.lock().unwrap().entry("task".to_owned()).or_default() += 1;
    world.may_end.notified().await;
    Ok(1)
}

/// A running task gets mail again and again while another process writes; it runs once, and its
/// result counts.
#[test]
fn a_task_with_mail_runs_once() {
    for is_pause in [false, true] {
        let delays = |clock| {
            let inner = abide_store::memory::MemoryStore::new(clock, abide_core::Bounds::default());
            let chances = Chances { delay_permille: 500, delay_poll_count_max: 5, ..Chances::default() };
            FaultyStore::seeded(inner, 3, chances) as Arc<dyn Store>
        };
        Lab::run_on(1, delays, |lab| async move {
            let world = SharedWorld::default();
            let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
            let (_, other) = lab.worker_with(|builder| builder.lanes(["other"])).await.unwrap();
            let handle = abide.start(counted, ()).id("task").await.unwrap();
            lab.sleep(secs(1)).await;
            let there = other.handle::<u32>("task");
            if is_pause {
                there.pause().await.unwrap();
            } else {
                there.signal("news", &1).await.unwrap();
            }
            for n in 0..20u64 {
                lab.sleep(ms(200)).await;
                other.start(naps, n).id(format!("nap-{n}")).lane("nowhere").await.unwrap();
            }
            world.may_end.notify_one();
            assert_eq!(handle.result().await.unwrap(), 1);
            assert_eq!(world.ran.lock().unwrap().get("task"), Some(&1));
        });
    }
}

/// A cancelled step that was never recorded ran at most once, whatever else happened.
#[test]
fn nothing_starts_between_a_cancellation_and_the_code_that_sees_it() {
    static BEGAN: AtomicU32 = AtomicU32::new(0);
    #[workflow]
    async fn chain(ctx: Ctx) -> Result<()> {
        loop {
            ctx.step("link", || async {
                BEGAN.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
            .await?;
        }
    }
    for seed in 1..=20 {
        Lab::run(seed, |lab| async move {
            let (_, abide) = lab.worker().await.unwrap();
            BEGAN.store(0, Ordering::Relaxed);
            let handle = abide.start(chain, ()).id("one").await.unwrap();
            handle.cancel("stop").await.unwrap();
            lab.sleep(secs(5)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Cancelled, "seed {seed}");
            let address = Address { namespace: Namespace::default(), id: ExecutionId::new("one").unwrap() };
            let whole = abide_store::export(&**lab.store(), &address).await.unwrap().unwrap();
            let is_step = |record: &abide_store::Record| {
                matches!(record.entry().unwrap().event, Event::StepRecorded(_))
            };
            let recorded = whole.runs.iter().flatten().filter(|record| is_step(record)).count();
            let began = BEGAN.load(Ordering::Relaxed) as usize;
            assert!(began <= recorded + 1, "seed {seed}: {began} began, {recorded} are recorded");
        });
    }
}

#[workflow]
async fn spins(ctx: Ctx) -> Result<u32> {
    let is_set = std::sync::atomic::AtomicBool::new(false);
    let spin = ctx.step("spin", || async {
        for round in 0..10_000u32 {
            if is_set.load(Ordering::Relaxed) {
                return Ok(round);
            }
            tokio::task::yield_now().await;
        }
        Err(Error::fatal("nobody else gets anywhere"))
    });
    let set = async {
        ctx.step("first", || async { Ok(()) }).await?;
        ctx.step("second", || async {
            is_set.store(true, Ordering::Relaxed);
            Ok(())
        })
        .await
    };
    let (spun, set) = futures_util::join!(spin, set);
    set?;
    spun
}

/// A closure that is always ready to be polled does not keep its siblings from being recorded.
#[test]
fn a_closure_that_spins_starves_nobody() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(spins, ()).id("one").await.unwrap();
        handle.result().await.unwrap();
    });
}

/// Protects a part of its clean-up twice, and goes on inside the outer shield.
#[workflow]
async fn cleans_up_twice(ctx: Ctx) -> Result<()> {
    let ended = ctx.sleep(days(1)).await;
    ctx.shield(async {
        ctx.shield(ctx.sleep(secs(1))).await?;
        ctx.step("outer", || async {
            ctx.state::<SharedWorld>().say("outer");
            Ok(())
        })
        .await
    })
    .await?;
    ended
}

#[test]
fn a_shield_inside_of_another_does_not_end_it() {
    Lab::run_on_each(1, |lab| async move {
        let world = SharedWorld::default();
        let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        let handle = abide.start(cleans_up_twice, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
        assert_eq!(world.said(), ["outer"]);
    });
}
