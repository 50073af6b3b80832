//! Workflows that run while a server is hurt, and what must hold afterwards.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide::prelude::*;
use abide_postgres::PostgresStore;
use abide_store::conformance::TestClock;

use crate::clock::{pause, spawn, timed};

/// How long a session lives without a heartbeat.
const TTL: Duration = Duration::from_secs(2);

/// How long the work may take that is left when the faults are over. Most of it is the time of a
/// busy machine: nobody waits longer than two lives of a session.
const END_MAX: Duration = Duration::from_secs(90);

/// How many steps come before the signals, and how many behind them.
const STEP_COUNT: u64 = 4;

/// The world outside: which steps ran, in order.
#[derive(Default)]
pub(crate) struct World(Mutex<BTreeMap<String, Vec<u64>>>);

type Shared = Arc<World>;

impl World {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ran(&self, id: &str, step: u64) -> u64 {
        self.lock().entry(id.to_owned()).or_default().push(step);
        step
    }
}

#[workflow]
async fn leaf(ctx: Ctx, n: u64) -> Result<u64> {
    let world = ctx.state::<Shared>();
    ctx.step("leaf", || async { Ok(world.ran(ctx.id(), n)) }).await
}

#[workflow]
async fn sells(ctx: Ctx, n: u64) -> Result<Vec<u64>> {
    let world = ctx.state::<Shared>();
    let mut seen = Vec::new();
    for step in 0..STEP_COUNT {
        seen.push(ctx.step("before", || async { Ok(world.ran(ctx.id(), step)) }).await?);
    }
    for _ in 0..2 {
        seen.push(ctx.recv("bonus").await?);
    }
    seen.push(ctx.run(leaf, n).await?);
    ctx.sleep(ms(n % 5 * 50)).await?;
    for step in STEP_COUNT..2 * STEP_COUNT {
        seen.push(ctx.step("after", || async { Ok(world.ran(ctx.id(), step)) }).await?);
    }
    Ok(seen)
}

/// What order `n` returns.
fn expected(n: u64) -> Vec<u64> {
    (0..STEP_COUNT).chain([100, 101, n]).chain(STEP_COUNT..2 * STEP_COUNT).collect()
}

/// Asks again while the store is out of reach or the outcome is unknown.
async fn insist<T, Asked>(ask: impl Fn() -> Asked) -> T
where
    Asked: IntoFuture<Output = Result<T, ClientError>>,
{
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(ClientError::Unavailable { .. } | ClientError::Indeterminate { .. }) => {}
            Err(error) => panic!("a fault of the server is no fault of the caller: {error}"),
        }
        pause(20).await;
    }
}

async fn one(abide: Abide, n: u64, begins_at: u64) {
    pause(begins_at).await;
    let id = format!("order-{n}");
    let handle = insist(|| abide.start(sells, n).id(&id)).await;
    for bonus in [100, 101] {
        let key = bonus.to_string();
        insist(|| handle.signal("bonus", &bonus).idempotency_key(&key)).await;
    }
    assert_eq!(insist(|| handle.result()).await, expected(n), "{id}");
}

/// Runs `count` orders, which begin within `lasts_ms`, in two workers of one store at `url`, while
/// `faults` happen. Then everything has to end.
pub(crate) async fn bear(url: &str, (count, lasts_ms): (u64, u64), faults: impl Future<Output = ()>) {
    let world = Shared::default();
    let builder = || Abide::builder(url).state(world.clone()).session_ttl(TTL);
    let workers = [builder().open().await.expect("it opens"), builder().open().await.expect("it opens")];
    let orders = (0..count).map(|n| {
        let abide = workers[usize::try_from(n % 2).expect("a small number")].clone();
        spawn(one(abide, n, n * lasts_ms / count))
    });
    let orders: Vec<_> = orders.collect();
    faults.await;
    let left = orders.iter().filter(|order| !order.is_finished()).count();
    let took = timed(END_MAX, "the end of everything", async {
        for order in orders {
            order.await.expect("the order was right");
        }
    });
    println!("{left} of {count} orders were left after the faults, and took {:?}", took.await);
    judge(&world, count);
    let all = workers[0].list(Filter::completed().take(10_000)).await.expect("the server is well");
    assert_eq!(all.iter().filter(|item| is_order(&item.id)).count() as u64, count);
    for worker in workers {
        worker.shutdown().await;
    }
    let store = PostgresStore::open(url, TestClock::new(), Default::default()).expect("it opens");
    assert_eq!(store.verify().await.expect("it can be read").problems, Vec::<String>::new());
    store.close();
}

/// Whether it is the id of an order, and not of its child.
fn is_order(id: &str) -> bool {
    id.strip_prefix("order-").is_some_and(|number| number.parse::<u64>().is_ok())
}

/// A step that ran again although a later one had begun had been recorded before.
fn judge(world: &World, count: u64) {
    let ran = world.lock();
    let orders: Vec<_> = ran.iter().filter(|(id, _)| is_order(id)).collect();
    assert!(orders.len() as u64 == count, "{} of {count} orders ran", orders.len());
    for (id, steps) in orders {
        assert!(steps.is_sorted(), "{id} ran a recorded step again: {steps:?}");
    }
}
