//! A blocked execution starts nothing new and lets its running closures end: each of them runs
//! once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use abide::prelude::*;
use abide::testing::{Lab, Machine};
use abide_core::{Address, Block, Body, Bounds, Event, ExecutionId, Namespace, Phase};
use abide_sqlite::SqliteStore;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::{MemoryStore, MemoryTable};
use abide_store::{Clock, Read, Snapshot, Store, Target};
use futures_util::join;
use tokio::sync::{Notify, Semaphore};

/// The largest result that is recorded.
const BYTES_MAX: usize = 100;

/// The gates that the test opens, and the record of what the closures did.
#[derive(Default)]
struct World {
    gates: Mutex<HashMap<&'static str, Arc<Semaphore>>>,
    /// Lets the blocking step end.
    blocking_gate: Mutex<Option<mpsc::Receiver<()>>>,
    /// Wakes a workflow that awaits something other than a ctx operation.
    foreign: Notify,
    is_fixed: AtomicBool,
    said: Mutex<Vec<String>>,
}

type Shared = Arc<World>;

impl World {
    fn say(&self, what: impl Into<String>) {
        self.said.lock().unwrap().push(what.into());
    }

    /// Returns everything said since the last call.
    fn take_said(&self) -> String {
        std::mem::take(&mut *self.said.lock().unwrap()).join(", ")
    }

    fn has_said(&self, what: &str) -> bool {
        self.said.lock().unwrap().iter().any(|said| said == what)
    }

    fn gate(&self, name: &'static str) -> Arc<Semaphore> {
        self.gates.lock().unwrap().entry(name).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
    }

    fn open(&self, name: &'static str) {
        self.gate(name).add_permits(1);
    }
}

/// A guard that reports when its closure is dropped halfway.
struct Running(Shared, &'static str, bool);

impl Running {
    fn end(mut self) {
        self.0.say(format!("{} end", self.1));
        self.2 = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.2 {
            self.0.say(format!("{} dropped", self.1));
        }
    }
}

/// Runs a step that ends when its gate is opened, with a result of this length.
async fn gated(ctx: &Ctx, name: &'static str, length: usize) -> Result<String> {
    let world = ctx.state::<Shared>();
    ctx.step(name, || async {
        world.say(format!("{name} begin"));
        let running = Running(world.clone(), name, false);
        world.gate(name).acquire().await?.forget();
        running.end();
        Ok("x".repeat(length))
    })
    .await
}

/// Runs a step whose result is too large to record.
async fn lost(ctx: &Ctx) -> Result<String> {
    gated(ctx, "rep", BYTES_MAX).await
}

/// Runs a step that counts in the store's own transaction.
async fn counted(ctx: &Ctx) -> Result<u32> {
    abide::testing::transact(ctx, "row", |any| {
        if let Some(table) = any.downcast_ref::<MemoryTable>() {
            let count = table.get("count").map_or(0, |text| text.parse().unwrap()) + 1;
            table.put("count", &count.to_string());
            return Ok(count);
        }
        let tx = any.downcast_ref::<abide_sqlite::StepConnection>().unwrap();
        tx.execute_batch("CREATE TABLE IF NOT EXISTS app (x); INSERT INTO app VALUES (1)")?;
        Ok(tx.query_row("SELECT COUNT(*) FROM app", [], |row| row.get(0))?)
    })
    .await
}

async fn blocking(ctx: &Ctx) -> Result<String> {
    let world = ctx.state::<Shared>().clone();
    ctx.blocking("blk", move || {
        world.say("blk begin");
        let gate = world.blocking_gate.lock().unwrap();
        gate.as_ref().unwrap().recv().unwrap();
        drop(gate);
        world.say("blk end");
        Ok("blk".to_owned())
    })
    .await
}

#[workflow]
async fn pays(ctx: Ctx) -> Result<String> {
    let (charge, rep, blk) = join!(gated(&ctx, "charge", 1), lost(&ctx), blocking(&ctx));
    Ok(format!("{} {} {}", charge?, rep?, blk?))
}

#[workflow]
async fn pays_later(ctx: Ctx) -> Result<String> {
    let (charge, rep) = join!(gated(&ctx, "charge", 1), lost(&ctx));
    gated(&ctx, "after", 1).await?;
    Ok(format!("{} {}", charge?, rep?))
}

fn bounds() -> Bounds {
    Bounds { payload_bytes_max: BYTES_MAX, ..Bounds::default() }
}

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, bounds())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    let options = abide_sqlite::Options { bounds: bounds(), ..abide_sqlite::Options::default() };
    SqliteStore::in_memory(clock, options).unwrap()
}

/// Runs a test on each store, with late commits.
fn on_each(test: impl AsyncFn(&Lab, &Shared) + Copy) {
    for make in [memory, sqlite] {
        let late = |clock| {
            FaultyStore::deciding(make(clock), |what| match what {
                "commit" => Fault::Delay { poll_count: 3 },
                _ => Fault::None,
            }) as Arc<dyn Store>
        };
        Lab::run_on(1, late, |lab| async move { test(&lab, &Shared::default()).await });
    }
}

async fn worker(lab: &Lab, world: &Shared) -> (Machine, Abide) {
    let options = |builder: abide::Builder| {
        builder.state(world.clone()).payload_bytes_max(BYTES_MAX).session_ttl(secs(3)).build("one build")
    };
    lab.worker_with(options).await.unwrap()
}

/// Starts `code` as "one", lets "rep" end and waits until that blocks the execution.
async fn blocked<W: abide::Workflow<Input = (), Output = String>>(
    lab: &Lab,
    (world, abide): (&Shared, &Abide),
    code: W,
) -> Handle<String> {
    let handle = abide.start(code, ()).id("one").await.unwrap();
    lab.sleep(secs(1)).await;
    world.open("rep");
    lab.sleep(secs(1)).await;
    assert_eq!(obstacle(lab).await.as_deref(), Some(r#"step "rep""#));
    handle
}

/// Opens a gate and waits until the result of its closure is recorded or refused.
async fn open(lab: &Lab, world: &Shared, gate: &'static str) {
    world.open(gate);
    lab.sleep(secs(1)).await;
}

/// Waits for a thread of the blocking pool, on which no virtual time passes.
#[expect(clippy::disallowed_methods, reason = "a thread of the pool is no part of the simulation")]
async fn until(lab: &Lab, is_so: impl AsyncFn() -> bool) {
    for _ in 0..60_000 {
        if is_so().await {
            return;
        }
        std::thread::sleep(ms(1));
        lab.sleep(ms(1)).await;
    }
    panic!("it takes too long");
}

async fn ended(lab: &Lab, handle: &Handle<String>) -> String {
    lab.sleep(secs(5)).await;
    let why = handle.why().await.unwrap();
    assert_eq!(handle.status().await.unwrap(), Status::Completed, "{why} {}", journal(lab).await);
    handle.result().await.unwrap()
}

async fn look(lab: &Lab) -> Snapshot {
    let id = ExecutionId::new("one").unwrap();
    let target = Target::Address(Address { namespace: Namespace::default(), id });
    let read = Read { target, run: None, from: 1, limit: 100, with_inbox: true };
    lab.store().read(read).await.unwrap().unwrap()
}

async fn reason(lab: &Lab) -> Option<Block> {
    match look(lab).await.execution.phase() {
        Phase::Blocked { reason, .. } => Some((**reason).clone()),
        _ => None,
    }
}

/// Returns the step that the execution is blocked at.
async fn obstacle(lab: &Lab) -> Option<String> {
    match reason(lab).await? {
        Block::Unrecordable { op, .. } => Some(op.to_string()),
        _ => None,
    }
}

/// Returns the journal in words, with the operation of each entry.
async fn journal(lab: &Lab) -> String {
    let words = |event: &Event| match event.op() {
        Some(op) => format!("{} {}", event.word(), op.name),
        None => event.word().to_owned(),
    };
    let records = look(lab).await.journal;
    records.iter().map(|record| words(&record.entry().unwrap().event)).collect::<Vec<_>>().join(", ")
}

/// Whether some session holds the execution.
async fn is_held(lab: &Lab) -> bool {
    look(lab).await.lease.session.is_some()
}

#[test]
fn p1_closures_that_run_beside_a_block_are_recorded() {
    on_each(async |lab, world| {
        let (end_blocking, gate) = mpsc::channel();
        *world.blocking_gate.lock().unwrap() = Some(gate);
        let (_, abide) = worker(lab, world).await;
        let handle = abide.start(pays, ()).id("one").await.unwrap();
        until(lab, async || world.has_said("blk begin")).await;
        open(lab, world, "rep").await;
        assert_eq!(obstacle(lab).await.as_deref(), Some(r#"step "rep""#));
        end_blocking.send(()).unwrap();
        until(lab, async || journal(lab).await.contains("step-recorded blk")).await;
        open(lab, world, "charge").await;
        assert!(!is_held(lab).await, "it has left memory");
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        handle.unblock().edit("rep", "rep").await.unwrap();
        assert_eq!(ended(lab, &handle).await, "x rep blk");
        let mut said: Vec<_> = world.take_said().split(", ").map(str::to_owned).collect();
        said.sort();
        assert_eq!(said, ["blk begin", "blk end", "charge begin", "charge end", "rep begin", "rep end"]);
        assert_eq!(
            journal(lab).await,
            "started, step-recorded rep, blocked, step-recorded blk, step-recorded charge, unblocked rep, completed"
        );
    });
}

#[test]
fn an_unblock_waits_for_closures_that_run() {
    on_each(async |lab, world| {
        let (_, abide) = worker(lab, world).await;
        let handle = blocked(lab, (world, &abide), pays_later).await;
        handle.unblock().edit("rep", "rep").await.unwrap();
        lab.sleep(secs(30)).await;
        let why = handle.why().await.unwrap();
        assert!(
            why.contains("is blocked") && why.contains("waits until the steps that run have ended"),
            "{why}"
        );
        open(lab, world, "charge").await;
        open(lab, world, "after").await;
        assert_eq!(ended(lab, &handle).await, "x rep");
        let said = "charge begin, rep begin, rep end, charge end, after begin, after end";
        assert_eq!(world.take_said(), said);
    });
}

#[workflow]
async fn pays_and_counts(ctx: Ctx) -> Result<String> {
    let (charge, rep, count) = join!(gated(&ctx, "charge", 1), lost(&ctx), counted(&ctx));
    Ok(format!("{} {} {}", charge?, rep?, count?))
}

#[test]
fn a_block_beside_a_transaction() {
    on_each(async |lab, world| {
        // The step ends while the transaction is under way.
        world.open("rep");
        let (_, abide) = worker(lab, world).await;
        let handle = blocked(lab, (world, &abide), pays_and_counts).await;
        open(lab, world, "charge").await;
        handle.unblock().edit("rep", "rep").await.unwrap();
        assert_eq!(ended(lab, &handle).await, "x rep 1");
        assert_eq!(world.take_said(), "charge begin, rep begin, rep end, charge end");
    });
}

#[workflow]
async fn counts_later(ctx: Ctx) -> Result<String> {
    let later = async {
        gated(&ctx, "charge", 1).await?;
        counted(&ctx).await
    };
    let (rep, count) = join!(lost(&ctx), later);
    Ok(format!("{} {}", rep?, count?))
}

#[test]
fn no_transaction_begins_while_it_is_blocked() {
    on_each(async |lab, world| {
        let (_, abide) = worker(lab, world).await;
        let handle = blocked(lab, (world, &abide), counts_later).await;
        open(lab, world, "charge").await;
        assert_eq!(journal(lab).await, "started, step-recorded rep, blocked, step-recorded charge");
        handle.unblock().edit("rep", "rep").await.unwrap();
        assert_eq!(ended(lab, &handle).await, "rep 1");
        assert_eq!(world.take_said(), "rep begin, charge begin, rep end, charge end");
    });
}

#[test]
fn a_drain_lets_closures_of_what_is_blocked_end() {
    on_each(async |lab, world| {
        let (end_blocking, gate) = mpsc::channel();
        *world.blocking_gate.lock().unwrap() = Some(gate);
        let (_, abide) = worker(lab, world).await;
        let _ = abide.start(pays, ()).id("one").await.unwrap();
        until(lab, async || world.has_said("blk begin")).await;
        open(lab, world, "rep").await;
        world.open("charge");
        let release = async {
            lab.sleep(secs(1)).await;
            end_blocking.send(()).unwrap();
            until(lab, async || world.has_said("blk end")).await;
        };
        join!(abide.shutdown(), release);
        assert!(!is_held(lab).await, "it was given back");
        let (_, abide) = worker(lab, world).await;
        let handle = abide.handle::<String>("one");
        handle.unblock().edit("rep", "rep").await.unwrap();
        assert_eq!(ended(lab, &handle).await, "x rep blk");
        let said = world.take_said();
        assert_eq!(
            (said.matches("charge begin").count(), said.matches("blk begin").count()),
            (1, 1),
            "{said}"
        );
    });
}

#[workflow]
async fn loses_twice(ctx: Ctx) -> Result<String> {
    let (charge, rep) = join!(gated(&ctx, "charge", BYTES_MAX), lost(&ctx));
    Ok(format!("{} {}", charge?, rep?))
}

#[test]
fn a_second_lost_result_shows_after_the_first() {
    on_each(async |lab, world| {
        let (_, abide) = worker(lab, world).await;
        let handle = blocked(lab, (world, &abide), loses_twice).await;
        open(lab, world, "charge").await;
        assert_eq!(obstacle(lab).await.as_deref(), Some(r#"step "rep""#), "the first block stands");
        handle.unblock().edit("rep", "rep").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(obstacle(lab).await.as_deref(), Some(r#"step "charge""#));
        handle.unblock().edit("charge", "paid").await.unwrap();
        assert_eq!(ended(lab, &handle).await, "paid rep");
        assert_eq!(world.take_said(), "charge begin, rep begin, rep end, charge end");
    });
}

/// A terminate does not wait either while an unblock waits for the closure.
#[test]
fn a_terminate_waits_for_no_closure() {
    for is_unblocked in [false, true] {
        on_each(async |lab, world| {
            let (_, abide) = worker(lab, world).await;
            let handle = blocked(lab, (world, &abide), pays_later).await;
            if is_unblocked {
                handle.unblock().edit("rep", "rep").await.unwrap();
                lab.sleep(secs(1)).await;
            }
            handle.terminate("enough").await.unwrap();
            lab.sleep(secs(1)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
            assert_eq!(world.take_said(), "charge begin, rep begin, rep end, charge dropped");
            assert_eq!(journal(lab).await, "started, step-recorded rep, blocked, cancelled");
        });
    }
}

#[test]
fn a_deadline_waits_for_no_closure() {
    on_each(async |lab, world| {
        let (_, abide) = worker(lab, world).await;
        let handle = abide.start(pays_later, ()).id("one").deadline(secs(20)).await.unwrap();
        lab.sleep(secs(1)).await;
        open(lab, world, "rep").await;
        lab.sleep(secs(20)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Failed);
        assert_eq!(world.take_said(), "charge begin, rep begin, rep end, charge dropped");
    });
}

#[workflow]
async fn retries(ctx: Ctx) -> Result<String> {
    let world = ctx.state::<Shared>();
    let charge = ctx.step("charge", || async {
        world.say("charge begin");
        world.gate("charge").acquire().await?.forget();
        if world.is_fixed.load(Ordering::Relaxed) {
            Ok("paid".to_owned())
        } else {
            Err(Error::from(std::io::Error::other("no")))
        }
    });
    let charge = charge.retry(Retry::fixed(secs(2)).max_attempts(3));
    let (charge, rep) = join!(charge, lost(&ctx));
    Ok(format!("{} {}", charge?, rep?))
}

#[test]
fn a_failed_attempt_is_recorded_and_its_retry_waits() {
    on_each(async |lab, world| {
        let (_, abide) = worker(lab, world).await;
        let handle = blocked(lab, (world, &abide), retries).await;
        open(lab, world, "charge").await;
        lab.sleep(secs(30)).await;
        assert_eq!(journal(lab).await, "started, step-recorded rep, blocked, attempt-failed charge");
        assert_eq!(world.take_said(), "charge begin, rep begin, rep end");
        world.is_fixed.store(true, Ordering::Relaxed);
        world.open("charge");
        handle.unblock().edit("rep", "rep").await.unwrap();
        assert_eq!(ended(lab, &handle).await, "paid rep");
        assert_eq!(world.take_said(), "charge begin", "the second attempt");
    });
}

#[task]
async fn errand(_ctx: Ctx) -> Result<u32> {
    Ok(7)
}

#[workflow]
async fn asks_around(ctx: Ctx) -> Result<String> {
    let later = async {
        ctx.recv::<()>("go").await?;
        ctx.run(errand, ()).await
    };
    let (charge, rep, later, kid) =
        join!(gated(&ctx, "charge", 1), lost(&ctx), later, ctx.recv::<u32>("number"));
    Ok(format!("{} {} {} {}", charge?, rep?, later?, kid?))
}

#[test]
fn messages_stay_unread_until_it_is_unblocked() {
    on_each(async |lab, world| {
        let (_, abide) = worker(lab, world).await;
        let handle = blocked(lab, (world, &abide), asks_around).await;
        handle.signal("number", &5).await.unwrap();
        handle.signal("go", &()).await.unwrap();
        open(lab, world, "charge").await;
        lab.sleep(secs(5)).await;
        assert_eq!(journal(lab).await, "started, step-recorded rep, blocked, step-recorded charge");
        let is_signal = |message: &&abide_core::Message| matches!(message.body, Body::Signal { .. });
        assert_eq!(look(lab).await.inbox.messages.iter().filter(is_signal).count(), 2);
        handle.unblock().edit("rep", "rep").await.unwrap();
        assert_eq!(ended(lab, &handle).await, "x rep 7 5");
    });
}

/// Awaits something other than a ctx operation until it is fixed, beside a step.
#[workflow]
async fn strays(ctx: Ctx) -> Result<String> {
    let world = ctx.state::<Shared>();
    let foreign = async {
        if !world.is_fixed.load(Ordering::Relaxed) {
            world.foreign.notified().await;
            gated(&ctx, "stray", 1).await?;
        }
        Ok::<_, Error>(())
    };
    let (charge, foreign) = join!(gated(&ctx, "charge", 1), foreign);
    foreign?;
    charge
}

#[test]
fn closures_beside_a_foreign_await_are_recorded() {
    on_each(async |lab, world| {
        let (_, abide) = worker(lab, world).await;
        let handle = abide.start(strays, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        world.foreign.notify_one();
        lab.sleep(secs(1)).await;
        let blocked = reason(lab).await;
        let is_named = |last: &str| last.starts_with(r#"beside step ""#) && last.contains("(at ");
        let told = blocked.as_ref().is_some_and(
            |block| matches!(block, Block::ForeignAwait { last: Some(last), .. } if is_named(last)),
        );
        assert!(told, "{blocked:?}");
        open(lab, world, "charge").await;
        world.is_fixed.store(true, Ordering::Relaxed);
        handle.unblock().await.unwrap();
        assert_eq!(ended(lab, &handle).await, "x");
        assert_eq!(world.take_said(), "charge begin, charge end", "nothing new began");
    });
}

/// A paused execution is not blocked as well: its code meets the reason again after the resume.
#[test]
fn closures_beside_a_foreign_await_are_recorded_in_a_pause() {
    for is_resumed_before in [false, true] {
        on_each(async |lab, world| {
            let (_, abide) = worker(lab, world).await;
            let handle = abide.start(strays, ()).id("one").await.unwrap();
            lab.sleep(secs(1)).await;
            handle.pause().await.unwrap();
            lab.sleep(secs(1)).await;
            world.foreign.notify_one();
            lab.sleep(secs(1)).await;
            if is_resumed_before {
                handle.resume().await.unwrap();
                lab.sleep(secs(1)).await;
            }
            world.is_fixed.store(true, Ordering::Relaxed);
            open(lab, world, "charge").await;
            assert!(journal(lab).await.contains("step-recorded charge"));
            if !is_resumed_before {
                handle.resume().await.unwrap();
            }
            assert_eq!(ended(lab, &handle).await, "x");
            assert_eq!(world.take_said(), "charge begin, charge end");
        });
    }
}

/// Uses one name for two kinds of operation until it is fixed.
#[workflow]
async fn clashes(ctx: Ctx) -> Result<String> {
    let is_fixed = ctx.state::<Shared>().is_fixed.load(Ordering::Relaxed);
    let clash = async {
        gated(&ctx, "name", 1).await?;
        ctx.sleep(ms(1)).named(if is_fixed { "other" } else { "name" }).await
    };
    let (charge, clash) = join!(gated(&ctx, "charge", 1), clash);
    clash?;
    charge
}

#[test]
fn a_fault_of_the_code_lets_closures_end() {
    on_each(async |lab, world| {
        let (_, abide) = worker(lab, world).await;
        let handle = abide.start(clashes, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        open(lab, world, "name").await;
        assert!(matches!(reason(lab).await, Some(Block::NameClash { .. })));
        open(lab, world, "charge").await;
        assert_eq!(journal(lab).await, "started, step-recorded name, blocked, step-recorded charge");
        // This build has already tried, and the later entry does not make it try again.
        let (_, _second) = worker(lab, world).await;
        lab.sleep(secs(60)).await;
        assert_eq!(journal(lab).await, "started, step-recorded name, blocked, step-recorded charge");
        world.is_fixed.store(true, Ordering::Relaxed);
        handle.unblock().await.unwrap();
        assert_eq!(ended(lab, &handle).await, "x");
        assert_eq!(world.take_said(), "charge begin, name begin, name end, charge end");
    });
}

/// One thread for three jobs: the first occupies it, the second waits for it with a timeout, and
/// the third comes behind both.
struct Threads {
    may_end: Mutex<mpsc::Receiver<()>>,
    has_begun: AtomicBool,
    is_last: mpsc::SyncSender<()>,
}

#[workflow]
async fn occupies_the_thread(ctx: Ctx) -> Result<()> {
    let threads = ctx.state::<Arc<Threads>>().clone();
    ctx.blocking("occupy", move || Ok(threads.may_end.lock().unwrap().recv()?)).await
}

#[workflow]
async fn waits_for_the_thread(ctx: Ctx) -> Result<()> {
    let threads = ctx.state::<Arc<Threads>>().clone();
    let job = move || {
        threads.has_begun.store(true, Ordering::SeqCst);
        Ok(())
    };
    let clash = async {
        ctx.recv::<()>("go").await?;
        ctx.sleep(secs(1)).named("job").await
    };
    let (waited, slept) = join!(ctx.blocking("job", job).timeout(secs(10)), clash);
    waited.and(slept)
}

#[workflow]
async fn comes_last(ctx: Ctx) -> Result<()> {
    let threads = ctx.state::<Arc<Threads>>().clone();
    ctx.blocking("last", move || Ok(threads.is_last.send(())?)).await
}

/// The commit that records the timeout has happened, and its answer is on its way. If the job began
/// now, its effect would follow its recorded end.
#[test]
fn a_job_that_waits_for_a_thread_does_not_begin_after_its_recorded_timeout() {
    let pool = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    let (let_go, may_end) = mpsc::channel();
    let (is_last, last) = mpsc::sync_channel(1);
    let threads = Arc::new(Threads { may_end: may_end.into(), has_begun: AtomicBool::default(), is_last });
    let is_slow = Arc::new(AtomicBool::new(false));
    let slow = is_slow.clone();
    let make = move |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |operation| {
            if operation == "commit" && slow.load(Ordering::Relaxed) { Fault::Hold } else { Fault::None }
        })
    };
    // The runtime is dropped outside of the laboratory.
    let pool = &pool;
    Lab::run_on(1, make, |lab| async move {
        let _inside = pool.enter();
        let (_, abide) = lab.worker_with(|builder| builder.state(threads.clone())).await.unwrap();
        abide.start(occupies_the_thread, ()).await.unwrap();
        lab.sleep(ms(10)).await;
        let handle = abide.start(waits_for_the_thread, ()).id("one").await.unwrap();
        lab.sleep(ms(10)).await;
        abide.start(comes_last, ()).await.unwrap();
        handle.signal("go", &()).await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        is_slow.store(true, Ordering::Relaxed);
        lab.sleep(secs(10)).await;
        let recorded = look(&lab).await.journal.pop().unwrap();
        let event = recorded.entry().unwrap().event;
        assert!(matches!(event, Event::AttemptFailed { .. } | Event::StepRecorded(_)), "{event:?}");
        let_go.send(()).unwrap();
        last.recv().unwrap();
        assert!(!threads.has_begun.load(Ordering::SeqCst));
    });
}
