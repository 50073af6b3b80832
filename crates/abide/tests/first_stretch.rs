//! On an idle worker that begins early, the code of a workflow begins before its start is sent, and
//! its first commit goes with the start. Whatever becomes of the start, nothing else comes of that.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use abide::prelude::*;
use abide::testing::{Lab, transact};
use abide_core::{Bounds, Event, ExecutionId};
use abide_sqlite::SqliteStore;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::{MemoryStore, MemoryTable};
use abide_store::{Clock, Read, Snapshot, Store, Target};
use tokio::sync::Notify;

/// The operations that write, and the faults that they meet.
#[derive(Default)]
struct World {
    writes: Mutex<Vec<&'static str>>,
    /// How many pages of inboxes were read.
    page_count: AtomicU32,
    store: OnceLock<Weak<FaultyStore>>,
    /// Ends the closure of `waits_outside`.
    may_end: Notify,
    /// The faults of the next submits.
    faults: Mutex<Vec<Fault>>,
    closure_count: AtomicU32,
    /// How often the code was called.
    call_count: AtomicU32,
}

type Shared = Arc<World>;

impl World {
    fn watched(self: &Arc<Self>, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let world = self.clone();
        let faulty = FaultyStore::deciding(store, move |name| {
            world.page_count.fetch_add(u32::from(name == "inbox"), Ordering::Relaxed);
            if !["submit", "commit"].contains(&name) {
                return Fault::None;
            }
            world.writes.lock().unwrap_or_else(PoisonError::into_inner).push(name);
            let mut faults = world.faults.lock().unwrap_or_else(PoisonError::into_inner);
            if name == "submit" && !faults.is_empty() { faults.remove(0) } else { Fault::None }
        });
        self.store.get_or_init(|| Arc::downgrade(&faulty));
        faulty
    }

    /// Has the answers come that are held back.
    fn heal(&self) {
        self.store.get().and_then(Weak::upgrade).expect("the store is in use").heal();
    }

    /// Returns the writes since the last call.
    fn written(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.writes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn fail(&self, faults: &[Fault]) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults.to_vec();
    }
}

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, Bounds::default())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

/// Runs a test on each store, beside an idle worker.
fn on_each(test: impl AsyncFn(&Lab, &Shared, &Abide)) {
    for make in [memory, sqlite] {
        let world = Shared::default();
        let watched = |clock| world.watched(make(clock));
        Lab::run_on(1, watched, async |lab| {
            let worker = lab.worker_with(|builder| builder.begin_early().state(world.clone()));
            let (_, abide) = worker.await.unwrap();
            lab.sleep(ms(10)).await;
            world.written();
            test(&lab, &world, &abide).await;
        });
    }
}

async fn read(lab: &Lab, id: &str) -> Option<Snapshot> {
    let address = abide_core::Address {
        namespace: abide_core::Namespace::default(),
        id: ExecutionId::new(id).unwrap(),
    };
    let read =
        Read { target: Target::Address(address), run: Some(1), from: 1, limit: 100, with_inbox: false };
    lab.store().read(read).await.unwrap()
}

/// Returns the words of the entries of a journal.
async fn journal(lab: &Lab, id: &str) -> Vec<&'static str> {
    let found = read(lab, id).await.expect("it exists");
    found.journal.iter().map(|record| record.entry().unwrap().event.word()).collect()
}

fn called(ctx: &Ctx) -> Shared {
    let world = ctx.state::<Shared>().clone();
    world.call_count.fetch_add(1, Ordering::Relaxed);
    world
}

#[workflow]
async fn returns(ctx: Ctx, n: u64) -> Result<u64> {
    called(&ctx);
    Ok(n + 1)
}

#[workflow]
async fn fails(ctx: Ctx) -> Result<u64> {
    called(&ctx);
    Err(Error::from("no"))
}

#[workflow]
async fn panics(ctx: Ctx) -> Result<u64> {
    called(&ctx);
    panic!("on purpose")
}

#[workflow]
async fn continues(ctx: Ctx, n: u64) -> Result<u64> {
    called(&ctx);
    if n == 0 { ctx.continue_as_new(1).await } else { ctx.recv("go").await }
}

#[workflow]
async fn sleeps(ctx: Ctx, by: u64) -> Result<u64> {
    called(&ctx);
    ctx.sleep(secs(by)).await?;
    Ok(by)
}

#[workflow]
async fn receives(ctx: Ctx) -> Result<u64> {
    called(&ctx);
    ctx.recv("go").await
}

/// Waits for a signal for no time at all.
#[workflow]
async fn looks(ctx: Ctx) -> Result<bool> {
    called(&ctx);
    Ok(ctx.recv::<u64>("go").timeout(ms(0)).await.is_err())
}

/// Does the same beside more children than are started in one turn.
#[workflow]
async fn looks_beside_children(ctx: Ctx) -> Result<bool> {
    called(&ctx);
    let look = async { ctx.recv::<u64>("go").timeout(ms(0)).await.is_err() };
    let children = (0..40).map(|n| ctx.run(returns, n).into_future());
    let (found, children) = futures_util::join!(look, futures_util::future::join_all(children));
    children.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(found)
}

#[workflow]
async fn parent(ctx: Ctx) -> Result<u64> {
    called(&ctx);
    ctx.run(sleeps, 1).id("child").await
}

#[workflow]
async fn steps(ctx: Ctx) -> Result<u32> {
    let world = called(&ctx);
    ctx.step("count", || async { Ok(world.closure_count.fetch_add(1, Ordering::Relaxed)) }).await
}

/// Runs a step beside a sleep.
#[workflow]
async fn both(ctx: Ctx) -> Result<u32> {
    let world = called(&ctx);
    let step = ctx.step("count", || async { Ok(world.closure_count.fetch_add(1, Ordering::Relaxed)) });
    let (count, slept) = futures_util::join!(step, ctx.sleep(secs(1)));
    slept?;
    count
}

/// Adds one to a row in a transaction step, and waits.
#[workflow]
async fn transacts(ctx: Ctx) -> Result<u64> {
    called(&ctx);
    let count: u64 = transact(&ctx, "add", |connection| {
        if let Some(table) = connection.downcast_ref::<MemoryTable>() {
            let count = table.get("count").map_or(0, |text| text.parse::<u64>().unwrap()) + 1;
            table.put("count", &count.to_string());
            return Ok(count);
        }
        let tx = connection.downcast_ref::<abide_sqlite::StepConnection>().expect("a store of this test");
        tx.execute_batch("CREATE TABLE IF NOT EXISTS counts (n INTEGER); INSERT INTO counts VALUES (1)")?;
        Ok(tx.query_row("SELECT count(*) FROM counts", [], |row| row.get::<_, i64>(0))?.unsigned_abs())
    })
    .await?;
    ctx.recv::<u64>("go").await?;
    Ok(count)
}

/// Runs a step that ends when the test says so.
#[workflow]
async fn waits_outside(ctx: Ctx) -> Result<()> {
    let world = called(&ctx);
    ctx.step("wait", || async {
        world.may_end.notified().await;
        Ok(())
    })
    .await
}

/// Runs a transaction step whose closure holds the world.
#[workflow]
async fn holds(ctx: Ctx) -> Result<u32> {
    let world = called(&ctx);
    transact(&ctx, "hold", move |_| Ok(world.call_count.load(Ordering::Relaxed))).await
}

/// Code that kills its process would leave nothing behind, and nobody would count its deaths.
#[test]
fn no_code_is_called_before_its_start_is_durable_unless_the_worker_begins_early() {
    let world = Shared::default();
    let watched = |clock| world.watched(memory(clock));
    Lab::run_on(1, watched, async |lab| {
        let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        lab.sleep(ms(10)).await;
        world.written();
        world.fail(&[Fault::Hold]);
        let starting = abide.start(returns, 1).id("a");
        let mut starting = std::pin::pin!(starting.into_future());
        assert!(futures_util::poll!(&mut starting).is_pending());
        lab.sleep(ms(10)).await;
        assert_eq!(world.call_count.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn what_needs_no_closure_is_written_with_its_start() {
    on_each(async |lab, world, abide| {
        assert_eq!(abide.run(returns, 1).id("returns").await.unwrap(), 2);
        assert_eq!(world.written(), ["submit"]);
        abide.run(fails, ()).id("fails").await.unwrap_err();
        assert_eq!(world.written(), ["submit"]);
        abide.run(panics, ()).id("panics").await.unwrap_err();
        assert_eq!(world.written(), ["submit"]);
        let asleep = abide.start(sleeps, 3_600).id("sleeps").await.unwrap();
        assert_eq!(asleep.status().await.unwrap(), Status::Sleeping);
        assert_eq!(world.written(), ["submit"]);
        assert_eq!(world.call_count.load(Ordering::Relaxed), 4, "each was called once");
        lab.sleep(secs(3_601)).await;
        assert_eq!(asleep.result().await.unwrap(), 3_600);
        assert_eq!(journal(lab, "sleeps").await, ["started", "timer-set", "timer-fired", "completed"]);
    });
}

#[test]
fn a_wait_and_a_child_are_written_with_the_start() {
    on_each(async |lab, world, abide| {
        let waits = abide.start(receives, ()).id("waits").await.unwrap();
        assert_eq!(world.written(), ["submit"]);
        lab.sleep(ms(1)).await;
        waits.signal("go", &7u64).await.unwrap();
        assert_eq!(waits.result().await.unwrap(), 7);
        world.written();
        let with_child = abide.start(parent, ()).id("parent").await.unwrap();
        assert_eq!(world.written(), ["submit"]);
        assert!(read(lab, "child").await.is_some(), "the child was started with its parent");
        assert_eq!(with_child.result().await.unwrap(), 1);
        let continued = abide.start(continues, 0).id("continues").await.unwrap();
        lab.sleep(ms(1)).await;
        continued.signal("go", &5u64).await.unwrap();
        assert_eq!(continued.result().await.unwrap(), 5);
        assert!(abide.run(looks, ()).id("looks").await.unwrap());
    });
}

#[test]
fn p1_a_first_transaction_is_written_with_the_start_and_once() {
    for faults in [&[][..], &[Fault::Indeterminate], &[Fault::Indeterminate, Fault::Indeterminate]] {
        on_each(async |lab, world, abide| {
            world.fail(faults);
            let handle = abide.start(transacts, ()).id("one").await.unwrap();
            if faults.is_empty() {
                assert_eq!(world.written(), ["submit"]);
            }
            lab.sleep(secs(1)).await;
            assert_eq!(journal(lab, "one").await, ["started", "step-recorded"]);
            handle.signal("go", &1u64).await.unwrap();
            assert_eq!(handle.result().await.unwrap(), 1);
            let again = abide.start(transacts, ()).id("two").await.unwrap();
            again.signal("go", &1u64).await.unwrap();
            assert_eq!(again.result().await.unwrap(), 2, "the first one wrote once");
        });
    }
}

#[test]
fn no_closure_begins_before_the_start_is_durable() {
    on_each(async |lab, world, abide| {
        for workflow in ["steps", "both"] {
            world.fail(&[Fault::Unavailable]);
            let refused = match workflow {
                "steps" => abide.run(steps, ()).id("one").await,
                _ => abide.run(both, ()).id("one").await,
            };
            assert!(matches!(refused, Err(ClientError::Unavailable { .. })), "{refused:?}");
            lab.sleep(secs(10)).await;
            assert!(read(lab, "one").await.is_none());
        }
        assert_eq!(world.closure_count.load(Ordering::Relaxed), 0);
        assert_eq!(world.call_count.load(Ordering::Relaxed), 2, "the code itself was called");
        assert_eq!(abide.run(both, ()).id("two").await.unwrap(), 0);
        assert_eq!(journal(lab, "two").await.first(), Some(&"started"));
    });
}

#[test]
fn p6_nothing_comes_of_a_start_that_does_not_happen() {
    on_each(async |lab, world, abide| {
        world.fail(&[Fault::Unavailable]);
        abide.start(parent, ()).id("parent").await.unwrap_err();
        lab.sleep(secs(10)).await;
        assert!(read(lab, "parent").await.is_none() && read(lab, "child").await.is_none());
        // Refused: the id belongs to another workflow.
        let handle = abide.start(receives, ()).id("taken").await.unwrap();
        let before = journal(lab, "taken").await;
        abide.start(parent, ()).id("taken").await.unwrap_err();
        // Attached.
        abide.start(receives, ()).id("taken").await.unwrap();
        assert_eq!(journal(lab, "taken").await, before);
        assert!(read(lab, "child").await.is_none());
        handle.signal("go", &7u64).await.unwrap();
        assert_eq!(abide.run(receives, ()).id("taken").await.unwrap(), 7);
        assert_eq!(abide.run(returns, 1).id("ended").await.unwrap(), 2);
        assert_eq!(abide.run(returns, 1).id("ended").await.unwrap(), 2, "P4");
        assert_eq!(journal(lab, "ended").await, ["started", "completed"]);
    });
}

#[test]
fn a_start_with_a_lost_answer_goes_on_from_its_records() {
    on_each(async |lab, world, abide| {
        world.fail(&[Fault::Indeterminate]);
        assert_eq!(abide.run(returns, 1).id("returns").await.unwrap(), 2);
        world.fail(&[Fault::Indeterminate]);
        let began_at = lab.now();
        assert_eq!(abide.run(parent, ()).id("parent").await.unwrap(), 1);
        assert!(lab.now() < began_at.after(secs(3)), "the child was looked for at once");
        world.fail(&[Fault::Indeterminate]);
        assert_eq!(abide.run(steps, ()).id("steps").await.unwrap(), 0);
        assert_eq!(world.closure_count.load(Ordering::Relaxed), 1);
    });
}

/// While the answer to its start is held back, another caller has the engine find the execution.
#[test]
fn children_of_a_stretch_that_another_seat_goes_on_from_are_looked_for_at_once() {
    on_each(async |lab, world, abide| {
        let began_at = lab.now();
        world.fail(&[Fault::Hold, Fault::Indeterminate]);
        let other = async {
            abide.start(parent, ()).id("parent").await.unwrap();
            lab.sleep(ms(100)).await;
            assert_eq!(world.call_count.load(Ordering::Relaxed), 2, "it has a seat");
            world.heal();
        };
        let (handle, ()) = futures_util::join!(abide.start(parent, ()).id("parent").into_future(), other);
        assert_eq!(handle.unwrap().result().await.unwrap(), 1);
        assert!(lab.now() < began_at.after(secs(3)), "the child was looked for at once");
    });
}

/// Another execution keeps the worker, and the answer comes while it shuts down.
#[test]
fn an_execution_that_began_before_a_shutdown_begins_no_closure_in_it() {
    on_each(async |lab, world, abide| {
        abide.start(waits_outside, ()).id("other").await.unwrap();
        lab.sleep(ms(10)).await;
        world.fail(&[Fault::Hold]);
        let answer = async {
            lab.sleep(ms(10)).await;
            world.heal();
            lab.sleep(secs(1)).await;
            world.may_end.notify_one();
        };
        let start = abide.start(steps, ()).id("one").into_future();
        let (started, (), ()) = futures_util::join!(start, abide.shutdown(), answer);
        started.unwrap();
        assert_eq!(world.call_count.load(Ordering::Relaxed), 2, "it began before its start");
        assert_eq!(world.closure_count.load(Ordering::Relaxed), 0);
        let (_, next) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
        assert_eq!(next.handle::<u32>("one").result().await.unwrap(), 0);
    });
}

/// The first attempt may have happened. A failure of the second one says nothing about it.
#[test]
fn a_start_whose_stretch_failed_for_good_is_asked_for_until_there_is_an_answer() {
    on_each(async |_, world, abide| {
        world.fail(&[Fault::Corrupt, Fault::Unavailable]);
        assert_eq!(abide.run(returns, 1).id("returns").await.unwrap(), 2);
        assert_eq!(world.written()[..3], ["submit"; 3]);
    });
}

/// A timer that is due has its holder look for mail.
#[test]
fn an_execution_that_does_not_exist_has_no_inbox() {
    on_each(async |lab, world, abide| {
        world.fail(&[Fault::Hold]);
        let before = world.page_count.load(Ordering::Relaxed);
        let answer = async {
            lab.sleep(secs(1)).await;
            assert_eq!(world.written(), ["submit"]);
            assert_eq!(world.page_count.load(Ordering::Relaxed), before);
            world.heal();
        };
        let (started, ()) =
            futures_util::join!(abide.start(looks_beside_children, ()).id("one").into_future(), answer);
        assert!(started.unwrap().result().await.unwrap());
    });
}

#[test]
fn nothing_is_kept_of_a_stretch_that_does_not_happen() {
    on_each(async |lab, world, abide| {
        let before = Arc::strong_count(world);
        world.fail(&[Fault::Unavailable]);
        abide.start(holds, ()).id("one").await.unwrap_err();
        lab.sleep(secs(10)).await;
        assert_eq!((world.call_count.load(Ordering::Relaxed), Arc::strong_count(world)), (1, before));
    });
}

/// A store may leave the stretch out, as it does when somebody else is to run the execution.
#[test]
fn a_stretch_that_was_not_recorded_begins_anew() {
    on_each(async |lab, world, abide| {
        world.fail(&[Fault::NoStretch]);
        let asleep = abide.start(sleeps, 1).id("sleeps").await.unwrap();
        lab.sleep(ms(1_100)).await;
        assert_eq!(journal(lab, "sleeps").await, ["started", "timer-set", "timer-fired", "completed"]);
        assert_eq!(asleep.result().await.unwrap(), 1);
        world.fail(&[Fault::NoStretch]);
        let with_child = abide.start(parent, ()).id("parent").await.unwrap();
        lab.sleep(ms(1_100)).await;
        assert_eq!(with_child.status().await.unwrap(), Status::Completed);
        world.fail(&[Fault::NoStretch]);
        let handle = abide.start(transacts, ()).id("transacts").await.unwrap();
        lab.sleep(ms(100)).await;
        assert_eq!(journal(lab, "transacts").await, ["started", "step-recorded"]);
        handle.signal("go", &1u64).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 1);
    });
}

#[test]
fn a_caller_that_is_dropped_strands_nothing() {
    on_each(async |lab, world, abide| {
        for poll_count in 1..=3 {
            for id in ["returns", "sleeps", "steps"] {
                world.fail(&[Fault::Delay { poll_count: 2 }]);
                let id = format!("{id}-{poll_count}");
                let mut start = match id.split_once('-').unwrap().0 {
                    "returns" => Box::pin(abide.start(returns, 1).id(&id).into_future()) as _,
                    "sleeps" => Box::pin(abide.start(sleeps, 1).id(&id).into_future()) as _,
                    _ => {
                        let start = abide.start(steps, ()).id(&id).into_future();
                        Box::pin(async move { start.await.map(|_| abide.handle::<u64>("none")) })
                            as std::pin::Pin<Box<dyn Future<Output = _>>>
                    }
                };
                for _ in 0..poll_count {
                    if futures_util::poll!(&mut start).is_ready() {
                        break;
                    }
                }
                drop(start);
                lab.sleep(secs(5)).await;
                let status = abide.handle::<u64>(&id).status().await.unwrap();
                assert_eq!(status, Status::Completed, "{id}");
            }
        }
        assert_eq!(world.closure_count.load(Ordering::Relaxed), 3);
    });
}

/// The first entry has the time that the code has seen, and a replay sees it again.
#[test]
fn the_code_and_its_replay_see_one_time() {
    #[workflow]
    async fn tells_time(ctx: Ctx) -> Result<i64> {
        let at = ctx.now().as_micros();
        ctx.recv::<u64>("go").await?;
        Ok(at)
    }

    on_each(async |lab, _, abide| {
        let handle = abide.start(tells_time, ()).id("one").await.unwrap();
        let found = read(lab, "one").await.expect("it exists");
        let first = found.journal[0].entry().unwrap();
        assert!(matches!(first.event, Event::Started(_)));
        handle.signal("go", &1u64).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), first.at.as_micros());
    });
}
