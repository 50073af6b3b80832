//! An execution and its children: they end with it, however it ends, and are paused and resumed
//! with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::Bounds;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Store};

#[derive(Default)]
struct World {
    tick_count: AtomicU32,
    is_over: AtomicBool,
    long_is_over: tokio::sync::Notify,
}

type SharedWorld = Arc<World>;

#[workflow]
async fn waits(ctx: Ctx) -> Result<u64> {
    ctx.step("alive", || async { Ok(()) }).await?;
    ctx.recv("never").await
}

#[workflow]
async fn middle(ctx: Ctx) -> Result<u64> {
    ctx.run(waits, ()).id("grandchild").await
}

#[workflow]
async fn mother(ctx: Ctx) -> Result<u64> {
    ctx.run(middle, ()).id("child").await
}

/// Becomes blocked while its child waits.
#[workflow]
async fn clashing_mother(ctx: Ctx) -> Result<u64> {
    let child = ctx.start(middle, ()).id("child").await?;
    ctx.step("name", || async { Ok(()) }).await?;
    ctx.sleep(ms(1)).named("name").await?;
    child.result().await
}

async fn status(abide: &Abide, id: &str) -> Status {
    abide.handle::<u64>(id).status().await.unwrap()
}

/// Returns the statuses of the family of `mother`, from the top.
async fn family(abide: &Abide) -> [Status; 3] {
    [status(abide, "mother").await, status(abide, "child").await, status(abide, "grandchild").await]
}

const CANCELLED: [Status; 3] = [Status::Cancelled; 3];

#[test]
fn children_of_a_paused_parent_end_with_it() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(mother, ()).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(family(&abide).await, [Status::Paused; 3]);
        handle.terminate("enough").await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(family(&abide).await, CANCELLED);
    });
}

#[test]
fn children_of_a_blocked_parent_end_with_it() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(clashing_mother, ()).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(family(&abide).await, CANCELLED);
    });
}

#[test]
fn children_of_a_paused_parent_end_at_its_deadline() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(mother, ()).id("mother").deadline(secs(60)).await.unwrap();
        lab.sleep(secs(10)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(600)).await;
        assert_eq!(family(&abide).await, [Status::Failed, Status::Cancelled, Status::Cancelled]);
    });
}

#[test]
fn children_end_when_their_parent_is_cancelled_or_terminated() {
    for is_terminate in [false, true] {
        Lab::run(1, |lab| async move {
            let (_, abide) = lab.worker().await.unwrap();
            let handle = abide.start(mother, ()).id("mother").await.unwrap();
            lab.sleep(secs(10)).await;
            match is_terminate {
                true => handle.terminate("enough").await.unwrap(),
                false => handle.cancel("enough").await.unwrap(),
            }
            lab.sleep(secs(60)).await;
            assert_eq!(family(&abide).await, CANCELLED);
        });
    }
}

#[workflow]
async fn ticks(ctx: Ctx) -> Result<()> {
    let world = ctx.state::<SharedWorld>();
    while !world.is_over.load(Ordering::Relaxed) {
        ctx.step("tick", || async {
            world.tick_count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .await?;
        ctx.sleep(secs(1)).await?;
    }
    Ok(())
}

#[workflow]
async fn mother_of_ticks(ctx: Ctx) -> Result<()> {
    ctx.run(ticks, ()).id("child").await
}

#[test]
fn a_pause_pauses_the_tree_and_a_resume_lets_it_go_on() {
    Lab::run(1, |lab| async move {
        let world = SharedWorld::default();
        let count = || world.tick_count.load(Ordering::Relaxed);
        let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        let handle = abide.start(mother_of_ticks, ()).id("mother").await.unwrap();
        for _ in 0..3 {
            lab.sleep(secs(10)).await;
            handle.pause().await.unwrap();
            lab.sleep(secs(5)).await;
            let before = count();
            lab.sleep(secs(100)).await;
            assert_eq!(count(), before, "nothing runs while it is paused");
            handle.resume().await.unwrap();
            lab.sleep(secs(10)).await;
            assert!(count() > before + 5, "it goes on");
        }
        world.is_over.store(true, Ordering::Relaxed);
        lab.sleep(secs(10)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed);
    });
}

/// The resume of a parent lifts only the pause that came from it.
#[test]
fn a_child_that_was_paused_by_itself_stays_paused() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(mother, ()).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        let child = abide.handle::<u64>("child");
        for is_child_first in [true, false] {
            if is_child_first {
                child.pause().await.unwrap();
                lab.sleep(secs(10)).await;
                handle.pause().await.unwrap();
            } else {
                handle.pause().await.unwrap();
                lab.sleep(secs(10)).await;
                child.pause().await.unwrap();
            }
            lab.sleep(secs(10)).await;
            assert_eq!(family(&abide).await, [Status::Paused; 3]);
            handle.resume().await.unwrap();
            lab.sleep(secs(10)).await;
            assert_eq!(family(&abide).await, [Status::Waiting, Status::Paused, Status::Paused]);
            child.resume().await.unwrap();
            lab.sleep(secs(10)).await;
            assert_eq!(family(&abide).await, [Status::Waiting; 3]);
        }
    });
}

#[workflow]
async fn mother_of_clash(ctx: Ctx) -> Result<u64> {
    ctx.run(clashing_mother, ()).id("blocked").await
}

#[test]
fn a_child_that_is_unblocked_is_paused_with_its_parent() {
    Lab::run_on_each(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(mother_of_clash, ()).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(status(&abide, "blocked").await, Status::Blocked);
        abide.handle::<u64>("blocked").unblock().await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(status(&abide, "blocked").await, Status::Paused);
        handle.resume().await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(status(&abide, "blocked").await, Status::Blocked, "it went on to its obstacle");
    });
}

/// Somebody resumes a child of a paused parent: the child goes on alone.
#[test]
fn a_child_of_a_paused_parent_can_be_resumed() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(mother, ()).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(10)).await;
        abide.handle::<u64>("child").resume().await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(family(&abide).await, [Status::Paused, Status::Waiting, Status::Waiting]);
        handle.resume().await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(family(&abide).await, [Status::Waiting; 3]);
    });
}

/// A pause is for the whole tree, whatever the tree was before.
#[test]
fn a_second_pause_reaches_a_child_that_was_resumed_on_its_own() {
    for resumed in ["child", "grandchild"] {
        Lab::run_on_each(1, |lab| async move {
            let (_, abide) = lab.worker().await.unwrap();
            let handle = abide.start(mother, ()).id("mother").await.unwrap();
            lab.sleep(secs(10)).await;
            for _ in 0..2 {
                handle.pause().await.unwrap();
                lab.sleep(secs(10)).await;
                assert_eq!(family(&abide).await, [Status::Paused; 3], "{resumed}");
                abide.handle::<u64>(resumed).resume().await.unwrap();
                lab.sleep(secs(10)).await;
                assert_eq!(status(&abide, resumed).await, Status::Waiting);
            }
            handle.pause().await.unwrap();
            lab.sleep(secs(10)).await;
            handle.resume().await.unwrap();
            lab.sleep(secs(10)).await;
            assert_eq!(family(&abide).await, [Status::Waiting; 3], "{resumed}");
        });
    }
}

/// The orders of a parent may reach a child at once, after a time without any worker.
#[test]
fn a_resume_and_a_pause_without_a_worker_leave_the_whole_tree_paused() {
    for seed in 0..20 {
        Lab::run_on_each(seed, |lab| async move {
            let (machine, abide) = lab.worker().await.unwrap();
            let handle = abide.start(mother, ()).id("mother").await.unwrap();
            lab.sleep(secs(10)).await;
            handle.pause().await.unwrap();
            lab.sleep(secs(10)).await;
            abide.handle::<u64>("grandchild").resume().await.unwrap();
            lab.sleep(secs(10)).await;
            lab.crash(machine);
            let client = lab.client().await.unwrap();
            client.handle::<u64>("mother").resume().await.unwrap();
            client.handle::<u64>("mother").pause().await.unwrap();
            let (_, abide) = lab.worker().await.unwrap();
            lab.sleep(secs(60)).await;
            assert_eq!(family(&abide).await, [Status::Paused; 3], "seed {seed}");
        });
    }
}

#[workflow]
async fn matriarch(ctx: Ctx, count: u64) -> Result<u64> {
    let mut children = Vec::new();
    for n in 0..count {
        children.push(ctx.start(waits, ()).id(format!("child-{n}")).await?);
    }
    ctx.recv::<u64>("go").await
}

/// The parent has more children than one commit stops, and ends in every possible way.
#[test]
fn many_children_end_in_batches() {
    const COUNT: u64 = 350;
    for way in ["complete", "terminate", "terminate paused"] {
        Lab::run(1, |lab| async move {
            let (_, abide) = lab.worker().await.unwrap();
            let handle = abide.start(matriarch, COUNT).id("mother").await.unwrap();
            lab.sleep(secs(30)).await;
            match way {
                "complete" => handle.signal("go", &1u64).await.unwrap(),
                "terminate" => handle.terminate("enough").await.unwrap(),
                _ => {
                    handle.pause().await.unwrap();
                    lab.sleep(secs(60)).await;
                    assert_eq!(status(&abide, "child-349").await, Status::Paused, "{way}");
                    handle.terminate("enough").await.unwrap();
                }
            }
            lab.sleep(secs(60)).await;
            for n in 0..COUNT {
                assert_eq!(status(&abide, &format!("child-{n}")).await, Status::Cancelled, "{way} {n}");
            }
            let listed = abide.list(Filter::all().take(1_000)).await.unwrap();
            assert_eq!(listed.len() as u64, COUNT + 1, "what works in the background is not listed");
        });
    }
}

#[workflow]
async fn continues(ctx: Ctx, run: u64) -> Result<u64> {
    if run == 2 {
        return ctx.recv("never").await;
    }
    ctx.start(waits, ()).id("child").await?;
    ctx.recv::<u64>("go").await?;
    ctx.continue_as_new(run + 1).await
}

/// Continue-as-new ends a run like any other end.
#[test]
fn children_end_with_a_run_that_continues_as_new() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(continues, 1).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        handle.signal("go", &1u64).await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(status(&abide, "mother").await, Status::Waiting);
        assert_eq!(status(&abide, "child").await, Status::Cancelled);
    });
}

/// The machine that was to stop the children dies, and another one does it.
#[test]
fn children_end_although_a_machine_dies_in_between() {
    for seed in 1..=20 {
        Lab::run(seed, |lab| async move {
            let (machine, abide) = lab.worker().await.unwrap();
            let (_, other) = lab.worker_with(|builder| builder.lanes(["other"])).await.unwrap();
            abide.start(matriarch, 250).id("mother").await.unwrap();
            lab.sleep(secs(10)).await;
            let handle = other.handle::<u64>("mother");
            handle.pause().await.unwrap();
            lab.sleep(secs(10)).await;
            handle.terminate("enough").await.unwrap();
            lab.sleep(ms(lab.random() % 3)).await;
            lab.crash(machine);
            let (_, abide) = lab.worker().await.unwrap();
            lab.sleep(secs(120)).await;
            for n in 0..250 {
                let found = status(&abide, &format!("child-{n}")).await;
                assert_eq!(found, Status::Cancelled, "seed {seed} child {n}");
            }
        });
    }
}

#[workflow]
async fn leaf(ctx: Ctx, millis: u64) -> Result<u64> {
    ctx.sleep(ms(millis)).await?;
    ctx.step("end", || async { Ok(1) }).await
}

#[workflow]
async fn twig(ctx: Ctx, millis: u64) -> Result<u64> {
    let (one, other) = futures_util::join!(
        ctx.run(leaf, millis + 13).id(format!("{}a", ctx.id())),
        ctx.run(leaf, millis + 29).id(format!("{}b", ctx.id())),
    );
    ctx.sleep(ms(millis)).await?;
    Ok(1 + one? + other?)
}

#[workflow]
async fn trunk(ctx: Ctx, millis: u64) -> Result<u64> {
    let (one, other) = futures_util::join!(
        ctx.run(twig, millis + 17).id(format!("{}a", ctx.id())),
        ctx.run(twig, millis + 31).id(format!("{}b", ctx.id())),
    );
    ctx.step("end", || async { Ok(()) }).await?;
    Ok(1 + one? + other?)
}

const NODES: [&str; 7] = ["r", "ra", "rb", "raa", "rab", "rba", "rbb"];

/// Orders reach any node at any moment, and machines die: in the end every execution has gone on or
/// has ended, and none is forgotten.
#[test]
fn random_orders_leave_nobody_behind() {
    for seed in 1..=60 {
        Lab::run(seed, |lab| async move {
            let options = |builder: abide::Builder| builder.park_after(ms(15)).session_ttl(secs(2));
            let (mut machine, mut abide) = lab.worker_with(options).await.unwrap();
            let (_, watcher) = lab.worker_with(|builder| builder.lanes(["nothing"])).await.unwrap();
            abide.start(trunk, 50).id("r").await.unwrap();
            let mut has_ended_some = false;
            for _ in 0..25 {
                lab.sleep(ms(lab.random() % 60)).await;
                let node = NODES[(lab.random() % 7) as usize];
                let handle = watcher.handle::<u64>(node);
                // Many of these orders come too early or too late, and are refused.
                let _ = match lab.random() % 24 {
                    0..=8 => handle.pause().await,
                    9..=18 => handle.resume().await,
                    19 => {
                        has_ended_some |= handle.cancel("enough").await.is_ok();
                        Ok(())
                    }
                    20 => {
                        has_ended_some |= handle.terminate("enough").await.is_ok();
                        Ok(())
                    }
                    _ => {
                        lab.crash(machine);
                        (machine, abide) = lab.worker_with(options).await.unwrap();
                        Ok(())
                    }
                };
            }
            for _ in 0..4 {
                for node in NODES {
                    let _ = watcher.handle::<u64>(node).resume().await;
                }
                lab.sleep(secs(30)).await;
            }
            for node in NODES {
                let handle = watcher.handle::<u64>(node);
                // A node whose parent ended early was never started.
                let Ok(status) = handle.status().await else { continue };
                assert!(
                    status.is_terminal(),
                    "seed {seed} {node} is {status}: {}",
                    handle.why().await.unwrap()
                );
            }
            if !has_ended_some {
                assert_eq!(abide.handle::<u64>("r").result().await.unwrap(), 7, "seed {seed}");
            }
        });
    }
}

/// Abandons a child while a step keeps the parent in memory.
#[workflow]
async fn fickle(ctx: Ctx) -> Result<u64> {
    let long = ctx.step("long", std::future::pending::<Result<()>>);
    let counted = async {
        while ctx.recv::<u64>("tick").await? < 3 {}
        Ok::<_, Error>(())
    };
    let child = async {
        abide::select! {
            given = ctx.run(waits, ()).id("child") => given?,
            gone = ctx.recv("go") => gone?,
        };
        ctx.recv::<u64>("rest").await
    };
    let (_, _, rest) = futures_util::join!(long, counted, child);
    rest
}

/// The pause comes just after the child was given up, before the code has seen anything else: the
/// child is cancelled when the parent goes on.
#[test]
fn a_child_that_was_given_up_just_before_a_pause_is_cancelled_after_it() {
    check_given_up_beside_pause(10, |clock| MemoryStore::new(clock, Bounds::default()));
}

#[test]
fn a_child_that_was_given_up_just_before_a_pause_is_cancelled_after_it_on_sqlite() {
    check_given_up_beside_pause(3, |clock| {
        abide_sqlite::SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
    });
}

fn check_given_up_beside_pause(seed_count: u64, open: fn(Arc<dyn Clock>) -> Arc<dyn Store>) {
    for (poll_count, yield_count) in (1..5).flat_map(|polls| [0, 1, 2, 3, 5].map(|yields| (polls, yields))) {
        for seed in 0..seed_count {
            let is_slow = Arc::new(AtomicBool::new(false));
            let slow = is_slow.clone();
            let decide = move |what: &str| match what == "commit" && slow.load(Ordering::SeqCst) {
                true => Fault::Delay { poll_count },
                false => Fault::None,
            };
            let make = |clock| -> Arc<dyn Store> { FaultyStore::deciding(open(clock), decide) };
            let status = Lab::run_on(seed, make, |lab| async move {
                let (_, abide) =
                    lab.worker_with(|builder| builder.state(SharedWorld::default())).await.unwrap();
                let handle = abide.start(fickle, ()).id("fickle").await.unwrap();
                lab.sleep(secs(1)).await;
                is_slow.store(true, Ordering::SeqCst);
                handle.signal("tick", &1).await.unwrap();
                for _ in 0..yield_count {
                    tokio::task::yield_now().await;
                }
                let (told, paused) =
                    futures_util::join!(handle.signal("go", &0).into_future(), handle.pause());
                told.and(paused).unwrap();
                lab.sleep(secs(1)).await;
                is_slow.store(false, Ordering::SeqCst);
                handle.resume().await.unwrap();
                lab.sleep(secs(20)).await;
                abide.handle::<u64>("child").status().await.unwrap()
            });
            assert_eq!(status, Status::Cancelled, "{poll_count} {yield_count} {seed}");
        }
    }
}

/// Abandons a child on a signal, while a step runs until the test ends it.
#[workflow]
async fn busy(ctx: Ctx) -> Result<u64> {
    let world = ctx.state::<SharedWorld>();
    let long = ctx.step("long", || async {
        world.long_is_over.notified().await;
        Ok(())
    });
    let child = async {
        abide::select! {
            given = ctx.run(waits, ()).id("child") => given?,
            gone = ctx.recv("go") => gone?,
        };
        ctx.recv::<u64>("rest").await
    };
    let (_, rest) = futures_util::join!(long, child);
    rest
}

/// The worker shuts down: a child that is given up before, meanwhile or after is cancelled by this
/// worker or the next, and nobody waits for it.
#[test]
fn a_child_that_is_given_up_beside_a_drain_is_cancelled() {
    for go_after in [0, 1, 2, 3, 500, 2_000, 10_000] {
        for step_ends_after in [0, 1, 1_000, 60_000] {
            Lab::run(1, |lab| async move {
                let world = SharedWorld::default();
                let options = |builder: abide::Builder| builder.state(world.clone()).shutdown_grace(secs(4));
                let (_, abide) = lab.worker_with(options).await.unwrap();
                let (_, office) = lab.worker_with(|builder| builder.lanes(["office"])).await.unwrap();
                abide.start(busy, ()).id("mother").await.unwrap();
                lab.sleep(secs(1)).await;
                let handle = office.handle::<u64>("mother");
                let telling = async {
                    lab.sleep(ms(go_after)).await;
                    handle.signal("go", &0).await.unwrap();
                };
                let ending = async {
                    lab.sleep(ms(step_ends_after)).await;
                    world.long_is_over.notify_one();
                };
                futures_util::join!(telling, ending, abide.shutdown());
                let (_machine, _abide) = lab.worker_with(options).await.unwrap();
                lab.sleep(secs(1)).await;
                // The step may have been interrupted.
                world.long_is_over.notify_one();
                lab.sleep(secs(30)).await;
                let found = (status(&office, "mother").await, status(&office, "child").await);
                assert_eq!(found, (Status::Waiting, Status::Cancelled), "{go_after} {step_ends_after}");
                handle.signal("rest", &7).await.unwrap();
                assert_eq!(handle.result().await.unwrap(), 7);
            });
        }
    }
}

/// Is terminated while it is not in memory: its code is not there to name the child.
#[workflow]
async fn parked_mother(ctx: Ctx) -> Result<u64> {
    ctx.start(waits, ()).id("child").await?;
    ctx.recv("go").await
}

/// Terminates a parent while its children cannot be listed, as `fault` says.
fn terminated_unlisted<F: Future<Output = ()>>(fault: Fault, then: impl FnOnce(Lab, Abide, Unlisted) -> F) {
    let unlisted = Unlisted::default();
    let Unlisted { fails, list_count } = unlisted.clone();
    let make = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| match what {
            "list" if fails.load(Ordering::Relaxed) => {
                list_count.fetch_add(1, Ordering::Relaxed);
                fault
            }
            _ => Fault::None,
        })
    };
    Lab::run_on(1, make, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.park_after(ms(10))).await.unwrap();
        let handle = abide.start(parked_mother, ()).id("mother").await.unwrap();
        lab.sleep(secs(10)).await;
        unlisted.fails.store(true, Ordering::Relaxed);
        handle.terminate("enough").await.unwrap();
        then(lab, abide, unlisted).await;
    });
}

#[derive(Clone, Default)]
struct Unlisted {
    fails: Arc<AtomicBool>,
    list_count: Arc<AtomicU32>,
}

#[test]
fn children_that_cannot_be_listed_are_asked_for_less_and_less_often() {
    // A store that fails as a whole is asked more often, so that everything goes on soon after.
    for (fault, most, soon) in [(Fault::Unread, 200, minutes(1)), (Fault::Unavailable, 4_000, secs(3))] {
        terminated_unlisted(fault, |lab, abide, unlisted| async move {
            lab.sleep(hours(1)).await;
            assert_eq!(status(&abide, "child").await, Status::Waiting);
            let count = unlisted.list_count.load(Ordering::Relaxed);
            assert!((60..most).contains(&count), "{count} lists in an hour");
            unlisted.fails.store(false, Ordering::Relaxed);
            lab.sleep(soon).await;
            assert_eq!(status(&abide, "child").await, Status::Cancelled);
        });
    }
}

/// The next worker passes the order on.
#[test]
fn a_shutdown_does_not_wait_for_children_that_cannot_be_listed() {
    for fault in [Fault::Unavailable, Fault::Hold] {
        terminated_unlisted(fault, |lab, abide, unlisted| async move {
            lab.sleep(minutes(10)).await;
            tokio::select! {
                biased;
                () = async { abide.shutdown().await; } => {}
                () = lab.sleep(secs(1)) => panic!("the shutdown waits, {fault:?}"),
            }
            unlisted.fails.store(false, Ordering::Relaxed);
            let (_, next) = lab.worker().await.unwrap();
            lab.sleep(secs(10)).await;
            assert_eq!(status(&next, "child").await, Status::Cancelled);
        });
    }
}
