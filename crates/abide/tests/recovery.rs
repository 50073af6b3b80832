//! Leases that no answer told of, while what they lease cannot be read.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::Bounds;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, ExecutionKey, Store, Target};

/// The time until a heartbeat misses a lease that no answer told of.
const MISSED: Duration = Duration::from_secs(17);

#[workflow]
async fn quick(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.step("one", || async { Ok(n) }).await
}

#[workflow]
async fn waits_for_go(ctx: Ctx) -> Result<u64> {
    ctx.recv("go").await
}

/// A store whose claims are not answered, and in which the engine cannot read the execution "one".
#[derive(Clone, Default)]
struct World {
    /// How often the engine has asked for "one".
    asked_count: Arc<AtomicU32>,
    faulty: Arc<OnceLock<Arc<FaultyStore>>>,
}

impl World {
    fn asked_count(&self) -> u32 {
        self.asked_count.load(Ordering::SeqCst)
    }

    /// Makes "one" readable.
    fn heal(&self) {
        self.faulty.get().unwrap().heal();
    }

    fn store(&self, fault: Fault) -> impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store> + use<> {
        let Self { asked_count, faulty } = self.clone();
        move |clock| {
            let mute = FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), |what| match what {
                "claim" => Fault::Indeterminate,
                _ => Fault::None,
            });
            // The engine asks by key, and handles ask by address.
            let store = FaultyStore::reading(mute, move |read| match read.target {
                Target::Key(ExecutionKey(1)) => {
                    asked_count.fetch_add(1, Ordering::SeqCst);
                    fault
                }
                _ => Fault::None,
            });
            faulty.get_or_init(|| store).clone()
        }
    }
}

async fn started(lab: &Lab) -> Abide {
    let client = lab.client().await.unwrap();
    for id in ["one", "two", "three"] {
        client.start(quick, 1).id(id).await.unwrap();
    }
    lab.worker().await.unwrap().1
}

async fn status(abide: &Abide, id: &str) -> Status {
    abide.handle::<u64>(id).status().await.unwrap()
}

#[test]
fn what_cannot_be_read_holds_up_the_recovery_of_no_other() {
    for fault in [Fault::UnreadRows, Fault::Unread] {
        let world = World::default();
        Lab::run_on(7, world.store(fault), |lab| async move {
            let abide = started(&lab).await;
            lab.sleep(MISSED).await;
            assert_eq!(status(&abide, "one").await, Status::Running, "{fault:?}");
            for id in ["two", "three"] {
                assert_eq!(status(&abide, id).await, Status::Completed, "{id}, {fault:?}");
            }
        });
    }
}

#[test]
fn a_row_that_stays_unreadable_is_asked_for_less_and_less_often() {
    let world = World::default();
    Lab::run_on(7, world.store(Fault::Unread), |lab| async move {
        let abide = started(&lab).await;
        lab.sleep(hours(1)).await;
        let count = world.asked_count();
        assert!((60..200).contains(&count), "{count} reads in an hour");
        world.heal();
        lab.sleep(minutes(1)).await;
        assert_eq!(status(&abide, "one").await, Status::Completed);
    });
}

/// Six rounds of five seconds each, and the pauses between them, which double from 200 ms on.
#[test]
fn records_that_stay_unread_are_given_up_after_longer_and_longer_pauses() {
    let world = World::default();
    Lab::run_on(7, world.store(Fault::UnreadRows), |lab| async move {
        let abide = started(&lab).await;
        while world.asked_count() == 0 {
            lab.sleep(ms(100)).await;
        }
        lab.sleep(secs(6 * 5 + 4)).await;
        assert_eq!(status(&abide, "one").await, Status::Running);
        lab.sleep(secs(3)).await;
        assert_eq!(status(&abide, "one").await, Status::Blocked);
    });
}

const CHILD_COUNT: u64 = 200;

#[workflow]
async fn mother_of_many(ctx: Ctx) -> Result<u64> {
    let starts = (0..CHILD_COUNT).map(|n| ctx.run(quick, n).id(format!("child-{n}")).into_future());
    let children = futures_util::future::try_join_all(starts).await?;
    Ok(children.into_iter().sum())
}

/// All of them are looked for at once, and each look wants to know that the session is alive.
#[test]
fn p7_many_lost_leases_cost_few_signs_of_life() {
    let (is_lost, beat_count) = (AtomicBool::new(false), Arc::new(AtomicU32::new(0)));
    let counted = beat_count.clone();
    let store = move |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| match what {
            "commit" if !is_lost.swap(true, Ordering::SeqCst) => Fault::Indeterminate,
            "heartbeat" => {
                counted.fetch_add(1, Ordering::SeqCst);
                // Meanwhile the others ask too.
                Fault::Delay { poll_count: 100 }
            }
            _ => Fault::None,
        })
    };
    Lab::run_on(7, store, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(mother_of_many, ()).id("mother").await.unwrap();
        assert_eq!(handle.result().await.unwrap(), CHILD_COUNT * (CHILD_COUNT - 1) / 2);
        let count = u64::from(beat_count.load(Ordering::SeqCst));
        assert!((1..=CHILD_COUNT / 8).contains(&count), "{count} signs of life");
    });
}

/// The first answer is lost, and the second says only that the execution exists.
#[test]
fn a_start_does_not_wait_until_what_it_started_can_be_read() {
    let is_lost = AtomicBool::new(false);
    let store = move |clock| -> Arc<dyn Store> {
        let memory = MemoryStore::new(clock, Bounds::default());
        let forgetful = FaultyStore::deciding(memory, move |what| match what {
            "submit" if !is_lost.swap(true, Ordering::SeqCst) => Fault::Indeterminate,
            _ => Fault::None,
        });
        FaultyStore::reading(forgetful, |read| match read.target {
            Target::Key(_) => Fault::Unread,
            Target::Address(_) => Fault::None,
        })
    };
    Lab::run_on(7, store, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        tokio::select! {
            biased;
            handle = abide.start(quick, 1).id("one").into_future() => assert!(handle.unwrap().is_attached()),
            () = lab.sleep(secs(1)) => panic!("the start waits"),
        }
    });
}
