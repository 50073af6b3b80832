//! Several workers, crashes at any await, lost answers: whatever the seed, every execution ends
//! once, with the right result, and no recorded step runs again.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::{Lab, transact};
use abide_core::{Bounds, Event, Namespace, Outcome};
use abide_sqlite::{SqliteStore, StepConnection};
use abide_store::conformance::{Recorded, recorded};
use abide_store::faults::{Chances, FaultyStore};
use abide_store::memory::{MemoryStore, MemoryTable};
use abide_store::{Clock, List, Listed, Read, Store, Target};

/// The number of times each step ran.
#[derive(Default)]
struct Effects(Mutex<BTreeMap<String, u32>>);

impl Effects {
    fn ran(&self, key: String) -> u32 {
        let mut runs = self.0.lock().unwrap();
        let count = runs.entry(key).or_default();
        *count += 1;
        *count
    }
}

#[task]
async fn square(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.state::<Arc<Effects>>().ran(ctx.idempotency_key());
    Ok(n * n)
}

#[workflow]
async fn leaf(ctx: Ctx, n: u64) -> Result<u64> {
    let effects = ctx.state::<Arc<Effects>>();
    ctx.sleep(ms(n % 7 * 400)).await?;
    ctx.step("add", || async { Ok(effects.ran(ctx.idempotency_key()).min(1) as u64 + n) }).await
}

#[workflow]
async fn order(ctx: Ctx, n: u64) -> Result<u64> {
    let effects = ctx.state::<Arc<Effects>>();
    let mut sum = 0;
    for i in 0..n % 4 + 1 {
        sum += ctx
            .step("item", || async {
                // The first run of this step fails, whichever worker runs it.
                if effects.ran(ctx.idempotency_key()) == 1 && i == 1 {
                    return Err(Error::new("the first try fails"));
                }
                Ok(i + 1)
            })
            .retry(Retry::fixed(ms(50)).max_attempts(50))
            .await?;
    }
    let id = ctx.id().to_owned();
    sum += transact(&ctx, "book", move |table| Ok(book(table, &id))).await?;
    let (a, b) = futures_util::try_join!(ctx.run(leaf, n), ctx.run(square, n))?;
    let bonus: u64 = ctx.recv("bonus").timeout(days(1)).await?;
    ctx.sleep(secs(3)).await?;
    sum += ctx.step("last", || async { Ok(effects.ran(ctx.idempotency_key()).min(1) as u64) }).await?;
    Ok(sum + a + b + bonus)
}

/// Books `id` in the user's own table, and returns how often it is booked now.
fn book(table: &dyn Any, id: &str) -> u64 {
    if let Some(table) = table.downcast_ref::<MemoryTable>() {
        let count = table.get(id).map_or(0, |text| text.parse().expect("a number")) + 1;
        table.put(id, &count.to_string());
        return count;
    }
    let tx: &StepConnection = table.downcast_ref().expect("there is no third store");
    tx.execute_batch("CREATE TABLE IF NOT EXISTS booked (id TEXT)").unwrap();
    tx.execute("INSERT INTO booked VALUES (?1)", [id]).unwrap();
    tx.query_row("SELECT COUNT(*) FROM booked WHERE id = ?1", [id], |row| row.get::<_, u32>(0))
        .unwrap()
        .into()
}

/// Makes a few runs, each with a step, a signal that may have come long before, and a child that
/// has several runs itself.
#[workflow]
async fn rounds(ctx: Ctx, (left, sum): (u64, u64)) -> Result<u64> {
    let effects = ctx.state::<Arc<Effects>>();
    let one = ctx.step("round", || async { Ok(effects.ran(ctx.idempotency_key()).min(1) as u64) }).await?;
    let n: u64 = ctx.recv("n").await?;
    let sum = sum + one + n + ctx.run(countdown, n).await?;
    if left == 1 { Ok(sum) } else { ctx.continue_as_new((left - 1, sum)).await }
}

#[workflow]
async fn countdown(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.sleep(ms(n * 300)).await?;
    if n == 0 { Ok(u64::from(ctx.run_number())) } else { ctx.continue_as_new(n - 1).await }
}

const ROUND_COUNT: u64 = 3;

/// The result: one for each step, the signals 1, 2, 3, and the last runs 2, 3, 4 of the children.
const ROUNDS_SUM: u64 = 3 + (1 + 2 + 3) + (2 + 3 + 4);

fn expected(n: u64) -> u64 {
    let items: u64 = (1..=n % 4 + 1).sum();
    // It is booked once, whichever worker died meanwhile.
    let booked = 1;
    items + booked + 1 + (n + 1) + n * n + 100
}

const ORDER_COUNT: u64 = 6;

/// Runs one seed with three workers, which crash one after the other.
fn check(seed: u64) {
    let make = |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
        let chances = Chances {
            delay_permille: 100,
            delay_poll_count_max: 5,
            unavailable_permille: 15,
            indeterminate_permille: 30,
            notice_lose_permille: 30,
            notice_delay_permille: 30,
            notice_repeat_permille: 30,
            notice_overtake_permille: 30,
        };
        // Every fourth seed runs on SQLite: the engine must not see a difference.
        let store: Arc<dyn Store> = match seed % 4 {
            0 => SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap(),
            _ => MemoryStore::new(clock, Bounds::default()),
        };
        FaultyStore::seeded(store, seed, chances)
    };
    Lab::run_on(seed, make, |lab| async move {
        let effects = Arc::new(Effects::default());
        let open = || {
            let (lab, effects) = (lab.clone(), effects.clone());
            async move {
                loop {
                    let effects = effects.clone();
                    if let Ok(opened) = lab.worker_with(|b| b.state(effects).session_ttl(secs(5))).await {
                        return opened;
                    }
                    lab.sleep(ms(10)).await;
                }
            }
        };
        let (mut machine, mut abide) = open().await;
        let mut others = vec![open().await, open().await];
        for n in 0..ORDER_COUNT {
            while abide.start(order, n).id(format!("order-{n}")).await.is_err() {
                lab.sleep(ms(10)).await;
            }
        }
        while abide.start(rounds, (ROUND_COUNT, 0)).id("rounds").await.is_err() {
            lab.sleep(ms(10)).await;
        }
        let mut signalled = 0;
        let mut round = 1;
        for _ in 0..12 {
            lab.sleep(ms(lab.random() % 1_500)).await;
            lab.crash(machine);
            others.push(open().await);
            (machine, abide) = others.remove(0);
            if round <= ROUND_COUNT && abide.handle::<u64>("rounds").signal("n", &round).await.is_ok() {
                round += 1;
            }
            while signalled < ORDER_COUNT && lab.random() % 3 > 0 {
                let handle = abide.handle::<u64>(&format!("order-{signalled}"));
                if handle.signal("bonus", &100u64).await.is_ok() {
                    signalled += 1;
                }
            }
        }
        while round <= ROUND_COUNT {
            if abide.handle::<u64>("rounds").signal("n", &round).await.is_ok() {
                round += 1;
            }
        }
        while signalled < ORDER_COUNT {
            let handle = abide.handle::<u64>(&format!("order-{signalled}"));
            if handle.signal("bonus", &100u64).await.is_ok() {
                signalled += 1;
            }
        }
        tokio::select! {
            biased;
            () = check_results(&lab, &abide, seed) => {}
            () = lab.sleep(hours(12)) => panic!("seed {seed}: stuck: {}", open_executions(&lab).await),
        }
        check_journals(&lab, seed).await;
    });
}

async fn check_results(lab: &Lab, abide: &Abide, seed: u64) {
    let orders = (0..ORDER_COUNT).map(|n| (format!("order-{n}"), expected(n)));
    for (id, expected) in orders.chain([("rounds".to_owned(), ROUNDS_SUM)]) {
        let handle = abide.handle::<u64>(&id);
        let result = loop {
            match handle.result().await {
                Err(error) if error.is_transient() => lab.sleep(ms(10)).await,
                other => break other,
            }
        };
        assert_eq!(result.unwrap(), expected, "seed {seed}, {id}");
    }
}

/// Returns the executions that have not ended, in full, for the message of a failed test.
async fn open_executions(lab: &Lab) -> String {
    let store = lab.store();
    let mut story = String::new();
    for item in executions(lab).await.into_iter().filter(|item| !item.summary.status.is_terminal()) {
        let read = Read { target: Target::Key(item.key), run: None, from: 1, limit: 100, with_inbox: true };
        let snapshot = loop {
            if let Ok(Some(snapshot)) = store.read(read.clone()).await {
                break snapshot;
            }
        };
        story.push_str(&format!("\n{snapshot:#?}"));
    }
    story
}

/// Checks that every execution has ended once, and that every operation was recorded once.
async fn check_journals(lab: &Lab, seed: u64) {
    let store = lab.store();
    let items = executions(lab).await;
    assert_eq!(items.len() as u64, ORDER_COUNT * 3 + 1 + ROUND_COUNT, "seed {seed}");
    let all = loop {
        if let Ok(all) = recorded(&**store, &Namespace::default()).await {
            break all;
        }
    };
    check_recorded(&all, items.len(), seed);
}

async fn executions(lab: &Lab) -> Vec<Listed> {
    let list = List::of(Namespace::default(), 10_000);
    loop {
        if let Ok(page) = lab.store().list(list.clone()).await {
            break page.items;
        }
    }
}

fn check_recorded(all: &[Recorded], execution_count: usize, seed: u64) {
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    let mut runs: BTreeMap<String, u32> = BTreeMap::new();
    let mut outcomes: BTreeMap<(String, u32, String), Outcome> = BTreeMap::new();
    for item in all {
        let entry = item.record.entry().unwrap();
        let id = item.address.id.to_string();
        let run = runs.entry(id.clone()).or_default();
        *run += u32::from(matches!(entry.event, Event::Started(_)));
        if entry.event.is_terminal() {
            *ends.entry(id.clone()).or_default() += 1;
        }
        if let Event::StepRecorded(record) = entry.event {
            let before = outcomes.insert((id, *run, record.op.to_string()), record.outcome);
            assert!(before.is_none(), "seed {seed}: {} was recorded twice", record.op);
        }
    }
    assert_eq!(ends, runs, "seed {seed}: one end a run");
    let children: u32 = (1..=3).map(|run| runs[&format!("rounds/{run}/countdown/1")]).sum();
    assert_eq!((runs["rounds"], children), (3, 2 + 3 + 4), "seed {seed}");
    assert_eq!(ends.len(), execution_count, "seed {seed}");
}

#[workflow]
async fn listens(ctx: Ctx, count: u64) -> Result<u64> {
    let mut sum = 0;
    for _ in 0..count {
        sum += ctx.recv::<u64>("n").await?;
    }
    Ok(sum)
}

/// A signal that comes just when its receiver leaves memory makes the receiver ready again at once.
/// The worker may claim it before the runner has heard that it is gone.
#[test]
fn what_is_leased_again_before_it_has_left_is_not_lost() {
    const SIGNAL_COUNT: u64 = 10;
    for seed in 0..100 {
        println!("seed {seed}");
        let make = |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
            let slow = Chances { delay_permille: 500, delay_poll_count_max: 9, ..Chances::default() };
            FaultyStore::seeded(MemoryStore::new(clock, Bounds::default()), seed, slow)
        };
        Lab::run_on(seed, make, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.park_after(ms(100))).await.unwrap();
            let handle = abide.start(listens, SIGNAL_COUNT).id("one").await.unwrap();
            for _ in 0..SIGNAL_COUNT {
                lab.sleep(ms(100)).await;
                handle.signal("n", &1u64).await.unwrap();
            }
            tokio::select! {
                biased;
                sum = handle.result() => assert_eq!(sum.unwrap(), SIGNAL_COUNT, "seed {seed}"),
                () = lab.sleep(hours(1)) => panic!("seed {seed}: stuck: {}", open_executions(&lab).await),
            }
        });
    }
}

#[test]
fn a_full_worker_goes_on_as_soon_as_it_has_room() {
    for seed in 0..10 {
        Lab::run(seed, |lab| async move {
            let effects = Arc::new(Effects::default());
            let open = |builder: abide::Builder| builder.state(effects.clone()).execution_count_max(2);
            let (_, abide) = lab.worker_with(open).await.unwrap();
            let ids: Vec<_> = (0..50).map(|n| format!("square-{n}")).collect();
            for (n, id) in ids.iter().enumerate() {
                abide.start(square, n as u64).id(id).await.unwrap();
            }
            let handles: Vec<_> = ids.iter().map(|id| abide.handle::<u64>(id)).collect();
            tokio::select! {
                biased;
                _ = futures_util::future::join_all(handles.iter().map(Handle::result)) => {}
                () = lab.sleep(ms(1)) => panic!("seed {seed}: it waits for something"),
            }
        });
    }
}

#[test]
fn a_hundred_seeds_of_crashes_and_lost_answers_change_nothing() {
    let seeds = std::env::var("ABIDE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let from = std::env::var("ABIDE_SEED_FROM").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    for seed in from..from + seeds {
        // This is shown only when the test fails or hangs.
        println!("seed {seed}");
        check(seed);
    }
}
