//! Continue-as-new and retry: what passes from one run to the next, and what does not. On the
//! in-memory store and on SQLite.

mod crashes;
mod held;
mod retries;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::{Bounds, Event};
use abide_sqlite::SqliteStore;
use abide_store::conformance::recorded_by;
use abide_store::faults::{Chances, Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Store};
use tokio::sync::Notify;

/// The record of what the steps of a test did.
#[derive(Default)]
struct World {
    /// The number of times that the step with this key ran.
    ran: Mutex<BTreeMap<String, u32>>,
    fails_left: AtomicU64,
}

type Shared = Arc<World>;

impl World {
    fn ran(&self, key: String) {
        *self.ran.lock().unwrap().entry(key).or_default() += 1;
    }
}

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, Bounds::default())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

/// Runs a test on both stores.
fn on_both<Fut: Future<Output = ()>>(test: impl Fn(Lab, Abide, Shared) -> Fut) {
    for make in [memory, sqlite] {
        Lab::run_on(1, make, |lab| async {
            let world = Shared::default();
            let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
            test(lab, abide, world).await;
        });
    }
}

/// Returns the events of one execution, run by run.
async fn told(lab: &Lab, id: &str) -> Vec<Vec<Event>> {
    let mut runs = Vec::new();
    for run in 1.. {
        let records = recorded_by(&**lab.store(), &address(id), run).await.unwrap();
        if records.is_empty() {
            break;
        }
        runs.push(records.iter().map(|record| record.entry().unwrap().event).collect());
    }
    runs
}

fn words(run: &[Event]) -> Vec<&'static str> {
    run.iter().map(Event::word).collect()
}

/// Adds up one signal per run.
#[workflow]
async fn sum(ctx: Ctx, (left, sum): (u64, u64)) -> Result<u64> {
    let n: u64 = ctx.recv("n").await?;
    let sum = ctx.step("add", || async { Ok(sum + n) }).await?;
    if left == 0 {
        return Ok(sum);
    }
    ctx.continue_as_new((left - 1, sum)).await
}

#[test]
fn unread_signals_are_there_for_the_next_run() {
    on_both(async |lab, abide, _| {
        let handle = abide.start(sum, (3, 0)).id("one").await.unwrap();
        handle.pause().await.unwrap();
        for n in [1u64, 10, 100, 1_000] {
            handle.signal("n", &n).await.unwrap();
        }
        handle.resume().await.unwrap();
        tokio::select! {
            biased;
            result = handle.result() => assert_eq!(result.unwrap(), 1_111),
            () = lab.sleep(ms(1)) => panic!("it waits for something"),
        }
        let runs = told(&lab, "one").await;
        assert_eq!(runs.len(), 4);
        for run in &runs[1..3] {
            assert_eq!(words(run), ["started", "signal-received", "step-recorded", "continued-as-new"]);
        }
        assert_eq!(words(&runs[3]).last(), Some(&"completed"));
        let again = abide.run(sum, (3, 0)).id("one").await.unwrap();
        assert_eq!(again, 1_111, "the same start gets the stored result, whatever the last run began with");
    });
}

#[workflow]
async fn asks(ctx: Ctx) -> Result<u64> {
    ctx.run(sum, (2, 0)).id("child").await
}

#[test]
fn a_parent_gets_the_result_of_the_last_run_and_only_that() {
    on_both(async |lab, abide, _| {
        let handle = abide.start(asks, ()).id("parent").await.unwrap();
        lab.sleep(ms(100)).await;
        let child = abide.handle::<u64>("child");
        for n in [1u64, 2] {
            child.signal("n", &n).await.unwrap();
            lab.sleep(secs(5)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Waiting);
        }
        child.signal("n", &4u64).await.unwrap();
        assert_eq!((handle.result().await.unwrap(), child.result().await.unwrap()), (7, 7));
        let parent = told(&lab, "parent").await;
        assert_eq!(words(&parent[0]), ["started", "child-started", "child-finished", "completed"]);
    });
}

#[workflow]
async fn listens(ctx: Ctx) -> Result<u64> {
    ctx.recv("n").await
}

/// Starts the same child under the same name in each run; the first run does not wait for it.
#[workflow]
async fn leaves_a_child(ctx: Ctx, run: u64) -> Result<u64> {
    let child = ctx.start(listens, ()).await?;
    if run == 1 {
        return ctx.continue_as_new(2).await;
    }
    child.result().await
}

#[test]
fn children_of_a_run_that_continues_are_cancelled_and_answer_nobody() {
    on_both(async |lab, abide, _| {
        let handle = abide.start(leaves_a_child, 1).id("one").await.unwrap();
        lab.sleep(secs(60)).await;
        let (first, second) =
            (abide.handle::<u64>("one/1/listens/1"), abide.handle::<u64>("one/2/listens/1"));
        assert_eq!(first.status().await.unwrap(), Status::Cancelled);
        assert_eq!(handle.status().await.unwrap(), Status::Waiting, "the answer was for another run");
        second.signal("n", &9u64).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 9);
    });
}

/// Returns a number after a while.
#[workflow]
async fn echoes(ctx: Ctx, (n, after_ms): (u64, u64)) -> Result<u64> {
    ctx.sleep(ms(after_ms)).await?;
    Ok(n)
}

/// Has a child in its first run that ends at the same moment as that run.
#[workflow]
async fn races(ctx: Ctx, run: u64) -> Result<u64> {
    let after_ms = if run == 1 { 5 } else { 1_000 };
    let child = ctx.start(echoes, (run, after_ms)).await?;
    if run == 1 {
        ctx.sleep(ms(after_ms)).await?;
        return ctx.continue_as_new(2).await;
    }
    child.result().await
}

#[test]
fn an_answer_that_comes_between_two_runs_is_not_taken_for_that_of_the_next_child() {
    for seed in 0..150 {
        println!("seed {seed}");
        let make = |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
            let slow = Chances { delay_permille: 500, delay_poll_count_max: 12, ..Chances::default() };
            FaultyStore::seeded(if seed % 4 == 0 { sqlite(clock) } else { memory(clock) }, seed, slow)
        };
        Lab::run_on(seed, make, |lab| async move {
            let (_, abide) = lab.worker().await.unwrap();
            assert_eq!(abide.run(races, 1).id("one").await.unwrap(), 2, "seed {seed}");
        });
    }
}

/// Does not ask for the result of its child.
#[workflow]
async fn forgets_a_child(ctx: Ctx, run: u64) -> Result<u64> {
    if run == 2 {
        return ctx.recv("n").await;
    }
    ctx.start(echoes, (1, 0)).await?;
    ctx.sleep(secs(1)).await?;
    ctx.continue_as_new(2).await
}

#[test]
fn an_answer_that_a_run_did_not_ask_for_is_not_left_unread() {
    for make in [memory, sqlite] {
        Lab::run_on(1, make, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.park_after(hours(1))).await.unwrap();
            let handle = abide.start(forgets_a_child, 1).id("one").await.unwrap();
            lab.sleep(secs(5)).await;
            assert_eq!(told(&lab, "one").await.len(), 2);
            let found = abide_engine::why::snapshot(&**lab.store(), &address("one")).await.unwrap().unwrap();
            assert_eq!(found.inbox.messages, []);
            handle.signal("n", &3u64).await.unwrap();
            assert_eq!(handle.result().await.unwrap(), 3);
        });
    }
}

fn address(id: &str) -> abide_core::Address {
    let id = abide_core::ExecutionId::new(id).unwrap();
    abide_core::Address { namespace: abide_core::Namespace::default(), id }
}

type Seen = Vec<(String, u64, String)>;

#[workflow]
async fn looks_around(ctx: Ctx, mut seen: Seen) -> Result<Seen> {
    let key = ctx.step("key", || async { Ok(ctx.idempotency_key()) }).await?;
    seen.push((key, ctx.random(), ctx.uuid()));
    if ctx.run_number() == 3 {
        return Ok(seen);
    }
    ctx.continue_as_new(seen).await
}

#[test]
fn keys_and_chance_belong_to_the_run() {
    on_both(async |_, abide, _| {
        let seen = abide.run(looks_around, Vec::new()).id("one").await.unwrap();
        let keys: Vec<_> = seen.iter().map(|(key, _, _)| key.as_str()).collect();
        assert_eq!(keys, ["default/one/1/key/1", "default/one/2/key/1", "default/one/3/key/1"]);
        let distinct: BTreeSet<_> = seen.iter().map(|(_, random, uuid)| (random, uuid)).collect();
        assert_eq!(distinct.len(), 3);
    });
}

/// The number of runs after which a chain that waits for nothing ends on its own.
const SPIN_COUNT: u64 = 3_000;

/// Goes on without waiting for anything.
#[workflow]
async fn spins(ctx: Ctx, n: u64) -> Result<()> {
    if n == SPIN_COUNT { Ok(()) } else { ctx.continue_as_new(n + 1).await }
}

/// Goes on forever, with a step and a short sleep in each run.
#[workflow]
async fn turns(ctx: Ctx, n: u64) -> Result<()> {
    let world = ctx.state::<Shared>();
    ctx.step("turn", || async {
        world.ran(ctx.idempotency_key());
        Ok(())
    })
    .await?;
    ctx.sleep(ms(n % 3)).await?;
    ctx.continue_as_new(n + 1).await
}

/// Lets `order` come at some moment of a chain that never ends, and returns the statuses after
/// that.
fn interrupted(order: impl AsyncFn(&Lab, &Handle<()>)) -> BTreeSet<Status> {
    let mut found = BTreeSet::new();
    for seed in 0..30 {
        let make = |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
            let slow = Chances { delay_permille: 400, delay_poll_count_max: 6, ..Chances::default() };
            FaultyStore::seeded(if seed % 2 == 0 { memory(clock) } else { sqlite(clock) }, seed, slow)
        };
        found.insert(Lab::run_on(seed, make, |lab| {
            let order = &order;
            async move {
                let (_, abide) = lab.worker_with(|builder| builder.state(Shared::default())).await.unwrap();
                let handle = abide.start(turns, seed).id("one").await.unwrap();
                lab.sleep(std::time::Duration::from_micros(lab.random() % 20_000)).await;
                order(&lab, &handle).await;
                lab.sleep(secs(3)).await;
                handle.status().await.unwrap()
            }
        }));
    }
    found
}

#[test]
fn an_order_at_any_moment_of_a_chain_is_obeyed() {
    let cancelled = interrupted(async |_, handle| handle.cancel("enough").await.unwrap());
    assert_eq!(cancelled, [Status::Cancelled].into());
    let terminated = interrupted(async |_, handle| handle.terminate("enough").await.unwrap());
    assert_eq!(terminated, [Status::Cancelled].into());
    let paused = interrupted(async |lab, handle| {
        handle.pause().await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
    });
    assert_eq!(paused, [Status::Paused].into());
    let resumed = interrupted(async |lab, handle| {
        handle.pause().await.unwrap();
        lab.sleep(secs(1)).await;
        handle.resume().await.unwrap();
        lab.sleep(secs(1)).await;
        handle.cancel("enough").await.unwrap();
    });
    assert_eq!(resumed, [Status::Cancelled].into());
}

/// Asks for the next run while the commit of its second sleep is under way, so that an order comes
/// between that request and the end of the run.
#[workflow]
async fn wants_more(ctx: Ctx, n: u64) -> Result<String> {
    ctx.sleep(ms(1)).await?;
    ctx.sleep(ms(1)).await?;
    match ctx.continue_as_new::<String>(n + 1).await {
        Err(error) if error.is_cancelled() => Ok(format!("cancelled in run {}", ctx.run_number())),
        other => other,
    }
}

#[test]
fn a_cancellation_is_seen_by_code_that_waits_for_its_next_run() {
    for make in [memory, sqlite] {
        let is_down = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let down = is_down.clone();
        let faulty = |clock| -> Arc<dyn Store> {
            FaultyStore::deciding(make(clock), move |name| match name {
                "commit" if down.load(Ordering::Relaxed) => Fault::Unavailable,
                _ => Fault::None,
            })
        };
        Lab::run_on(1, faulty, |lab| async move {
            let (_, abide) = lab.worker().await.unwrap();
            let handle = abide.start(wants_more, 1).id("one").await.unwrap();
            lab.sleep(secs(1)).await;
            handle.cancel("enough").await.unwrap();
            lab.sleep(secs(1)).await;
            is_down.store(false, Ordering::Relaxed);
            let result = handle.result().await;
            assert_eq!(result.unwrap(), "cancelled in run 1", "{:?}", told(&lab, "one").await);
        });
    }
}

#[test]
fn a_chain_that_never_rests_lets_its_worker_shut_down_and_goes_on_elsewhere() {
    on_both(async |lab, abide, _| {
        abide.start(spins, 1).id("one").await.unwrap();
        abide.shutdown().await;
        let before = told(&lab, "one").await.len() as u64;
        assert!(before < SPIN_COUNT, "it did not let go");
        let (_, other) = lab.worker().await.unwrap();
        other.handle::<()>("one").result().await.unwrap();
        assert_eq!(told(&lab, "one").await.len() as u64, SPIN_COUNT);
    });
}

#[workflow]
async fn gives_up_its_wish(ctx: Ctx) -> Result<u64> {
    let n = select! {
        next = ctx.continue_as_new::<u64>(()) => next,
        n = async { Ok(7) } => n,
    };
    ctx.sleep(secs(1)).await?;
    n
}

/// Waits for a signal, or for a time that is longer in the second run. Returns how many
/// milliseconds it waited when no signal came.
#[workflow]
async fn is_patient(ctx: Ctx, patience: u64) -> Result<u64> {
    let from = ctx.now();
    select! {
        answer = ctx.recv::<bool>("answer") => answer?,
        slept = ctx.sleep(ms(patience)) => { slept?; return Ok(ctx.now().since(from).as_millis() as u64); }
    };
    ctx.continue_as_new(patience * 24).await
}

#[test]
fn timers_of_a_run_end_with_it() {
    on_both(async |lab, abide, _| {
        // The time is short: the second run begins and ends while the execution is in memory.
        let handle = abide.start(is_patient, 20).id("one").await.unwrap();
        lab.sleep(ms(10)).await;
        handle.signal("answer", &true).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 480);
    });
}

/// Leaves memory and comes back all the time, which makes its worker read all inboxes again and
/// again.
#[workflow]
async fn comes_and_goes(ctx: Ctx) -> Result<()> {
    loop {
        ctx.sleep(ms(30)).await?;
    }
}

/// Messages come by notices and by inboxes, and an inbox may come when a later run has begun.
#[test]
fn a_signal_is_received_once_in_all_runs() {
    const SIGNAL_COUNT: u64 = 12;
    for seed in 0..60 {
        println!("seed {seed}");
        let make = |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
            let slow = Chances { delay_permille: 500, delay_poll_count_max: 60, ..Chances::default() };
            FaultyStore::seeded(memory(clock), seed, slow)
        };
        Lab::run_on(seed, make, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.park_after(ms(25))).await.unwrap();
            for n in 0..4 {
                abide.start(comes_and_goes, ()).id(format!("restless-{n}")).await.unwrap();
                lab.sleep(ms(7)).await;
            }
            let handle = abide.start(sum, (SIGNAL_COUNT - 1, 0)).id("one").await.unwrap();
            for n in 0..SIGNAL_COUNT {
                handle.signal("n", &(1u64 << n)).await.unwrap();
                lab.sleep(ms(lab.random() % 12)).await;
            }
            tokio::select! {
                biased;
                result = handle.result() => assert_eq!(result.unwrap(), (1 << SIGNAL_COUNT) - 1, "seed {seed}"),
                () = lab.sleep(minutes(1)) => panic!("seed {seed}: stuck"),
            }
        });
    }
}

#[workflow]
async fn inside_a_step(ctx: Ctx) -> Result<u64> {
    ctx.step("inner", || ctx.continue_as_new::<u64>(())).await
}

#[workflow]
async fn of_another_type(ctx: Ctx, _n: u64) -> Result<u64> {
    ctx.continue_as_new("text").await
}

#[workflow]
async fn much_too_much(ctx: Ctx, _text: String) -> Result<u64> {
    ctx.continue_as_new("x".repeat(5 << 20)).await
}

#[workflow]
async fn not_to_be_written(ctx: Ctx, _n: u64) -> Result<u64> {
    ctx.continue_as_new(BTreeMap::from([((1, 2), 3)])).await
}

#[task]
async fn no_workflow(ctx: Ctx) -> Result<u64> {
    ctx.continue_as_new(()).await
}

#[test]
fn what_cannot_continue_says_why() {
    on_both(async |lab, abide, _| {
        assert_eq!(abide.run(gives_up_its_wish, ()).await.unwrap(), 7);
        let error = abide.run(no_workflow, ()).await.unwrap_err();
        assert!(error.to_string().contains("continue_as_new needs a workflow"), "{error}");
        abide.start(inside_a_step, ()).id("inside").await.unwrap();
        abide.start(of_another_type, 1).id("type").await.unwrap();
        abide.start(much_too_much, String::new()).id("much").await.unwrap();
        abide.start(not_to_be_written, 1).id("written").await.unwrap();
        lab.sleep(secs(5)).await;
        let rows = [
            ("inside", "is used inside step \"inner\"", 1),
            ("type", "the input of workflow \"of_another_type\" cannot be read: expected u64", 2),
            ("much", "the input of the next run is over the limit payload_bytes_max", 1),
            ("written", "the input of the next run does not serialize", 1),
        ];
        for (id, expected, run_count) in rows {
            let handle = abide.handle::<u64>(id);
            assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{id}");
            let why = handle.why().await.unwrap();
            assert!(why.contains(expected), "{id}: {why}");
            assert_eq!(told(&lab, id).await.len(), run_count, "{id}");
        }
    });
}

/// Does not ask for the result of its child, and its second run is blocked at once.
#[workflow]
async fn forgets_and_blocks(ctx: Ctx, run: u64) -> Result<f64> {
    if run == 2 {
        return Ok(f64::NAN);
    }
    ctx.start(echoes, (1, 0)).await?;
    ctx.sleep(secs(1)).await?;
    ctx.continue_as_new(2).await
}

/// The next run may never come to read its mail.
#[test]
fn an_answer_that_a_run_did_not_ask_for_ends_with_that_run() {
    on_both(async |lab, abide, _| {
        let handle = abide.start(forgets_and_blocks, 1).id("one").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        let found = abide_engine::why::snapshot(&**lab.store(), &address("one")).await.unwrap().unwrap();
        assert_eq!(found.inbox.messages, []);
    });
}
