//! An execution goes on in another store, in the middle of its life.

use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::{Address, ExecutionId, Limits, Namespace};
use abide_sqlite::SqliteStore;
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Import, Imported, Store, export};

/// What steps did, in order.
#[derive(Clone, Default)]
struct Effects(Arc<Mutex<Vec<&'static str>>>);

impl Effects {
    fn add(&self, step: &'static str) -> u64 {
        let mut done = self.0.lock().unwrap();
        done.push(step);
        done.len() as u64
    }
}

#[workflow]
async fn journey(ctx: Ctx, first: u64) -> Result<u64> {
    let effects = ctx.state::<Effects>().clone();
    let mut sum = first + ctx.step("one", || async { Ok(effects.add("one")) }).await?;
    ctx.sleep(hours(1)).await?;
    sum += ctx.step("two", || async { Ok(effects.add("two")) }).await?;
    sum += ctx.recv::<u64>("early").await?;
    sum += ctx.run(helped, sum).await?;
    ctx.sleep(hours(1)).await?;
    sum += ctx.recv::<u64>("late").await?;
    sum += ctx.step("three", || async { Ok(effects.add("three")) }).await?;
    Ok(sum)
}

#[task]
async fn helped(_ctx: Ctx, sum: u64) -> Result<u64> {
    Ok(sum * 10)
}

fn address() -> Address {
    Address { namespace: Namespace::default(), id: ExecutionId::new("j").unwrap() }
}

/// One part of the journey, in a store of its own: what came from elsewhere is imported, `signal` is sent, and after so many minutes the
/// machine stops where it is.
fn part(
    make: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>,
    effects: &Effects,
    (from, signal, minutes): (Option<Import>, &'static str, u64),
) -> Import {
    let effects = effects.clone();
    // Another seed for each: the ids of messages are random, and the same one would be no news.
    Lab::run_on(minutes, make, |lab| async move {
        let (machine, abide) = lab.worker_with(|builder| builder.state(effects)).await.unwrap();
        match from {
            Some(import) => {
                let imported = lab.store().import(import.clone()).await.unwrap();
                assert!(matches!(imported, Imported::New(_)));
                let again = lab.store().import(import).await.unwrap();
                assert!(matches!(again, Imported::Known(_)));
            }
            None => _ = abide.start(journey, 100).id("j").await.unwrap(),
        }
        abide.handle::<u64>("j").signal(signal, &5_u64).await.unwrap();
        lab.sleep(secs(60 * minutes)).await;
        lab.crash(machine);
        export(&**lab.store(), &address()).await.unwrap().unwrap()
    })
}

#[test]
fn p1_what_moves_from_store_to_store_runs_each_recorded_step_once() {
    let effects = Effects::default();
    let memory = |clock| -> Arc<dyn Store> { MemoryStore::new(clock, Limits::default()) };
    let first = part(memory, &effects, (None, "early", 90));
    assert_eq!(*effects.0.lock().unwrap(), ["one", "two"]);
    let kept = Arc::new(Mutex::new(None));
    let sqlite = |clock| -> Arc<dyn Store> {
        let store = SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap();
        *kept.lock().unwrap() = Some(store.clone());
        store
    };
    let second = part(sqlite, &effects, (Some(first), "other", 30));
    let verified = kept.lock().unwrap().take().unwrap().verify().unwrap();
    assert!(verified.is_sound(), "{:?}", verified.problems);
    assert_eq!(second.unread.len(), 1, "nobody has asked for it");
    assert_eq!(*effects.0.lock().unwrap(), ["one", "two"]);
    let third = part(memory, &effects, (Some(second), "late", 150));
    assert_eq!(*effects.0.lock().unwrap(), ["one", "two", "three"]);
    assert_eq!(third.execution.phase(), &abide_core::Phase::Completed);
    let result = Lab::run_on(7, memory, |lab| async move {
        lab.store().import(third).await.unwrap();
        lab.client().await.unwrap().handle::<u64>("j").result().await.unwrap()
    });
    assert_eq!(result, (100 + 1 + 2 + 5) * 11 + 5 + 3);
}
