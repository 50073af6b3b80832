//! An execution goes on in another store, in the middle of its life.

use std::sync::{Arc, Mutex};

use abide::Builder;
use abide::prelude::*;
use abide::testing::Lab;
use abide_core::{Address, Bounds, ExecutionId, Namespace, Phase};
use abide_sqlite::SqliteStore;
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Import, Imported, Store, export};

/// The effects of the steps, in order.
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

fn address(id: &str) -> Address {
    Address { namespace: Namespace::default(), id: ExecutionId::new(id).unwrap() }
}

/// Runs one part of the journey in a store of its own: imports the execution if it comes from
/// elsewhere, sends `signal`, and stops the machine after this many minutes.
fn part(
    make: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>,
    effects: &Effects,
    (from, signal, minutes): (Option<Import>, &'static str, u64),
) -> Import {
    let effects = effects.clone();
    // Each part has a seed of its own: message ids are random, and a repeated one would count as a
    // duplicate.
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
        export(&**lab.store(), &address("j")).await.unwrap().unwrap()
    })
}

#[test]
fn p1_what_moves_from_store_to_store_runs_each_recorded_step_once() {
    let effects = Effects::default();
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
    assert_eq!(third.execution.phase(), &Phase::Completed);
    let result = Lab::run_on(7, memory, |lab| async move {
        lab.store().import(third).await.unwrap();
        lab.client().await.unwrap().handle::<u64>("j").result().await.unwrap()
    });
    assert_eq!(result, (100 + 1 + 2 + 5) * 11 + 5 + 3);
}

#[workflow]
async fn mother(ctx: Ctx) -> Result<u64> {
    let effects = ctx.state::<Effects>().clone();
    let child = ctx.start(daughter, ()).id("daughter").await?;
    ctx.step("mother", || async { Ok(effects.add("mother")) }).await?;
    child.result().await
}

#[workflow]
async fn daughter(ctx: Ctx) -> Result<u64> {
    let effects = ctx.state::<Effects>().clone();
    ctx.step("daughter", || async { Ok(effects.add("daughter")) }).await?;
    let told = ctx.recv::<u64>("tell").await?;
    // The old code awaits something other than a ctx operation here, and is blocked.
    if !ctx.state::<bool>() {
        std::future::pending::<()>().await;
    }
    Ok(told)
}

/// Cleans up for eight seconds after its deadline.
#[workflow]
async fn late(ctx: Ctx) -> Result<u64> {
    let effects = ctx.state::<Effects>().clone();
    let waited = ctx.recv::<u64>("never").await;
    ctx.shield(async {
        ctx.step("saw", || async { Ok(effects.add("saw")) }).await?;
        ctx.sleep(secs(8)).await?;
        ctx.step("cleaned", || async { Ok(effects.add("cleaned")) }).await
    })
    .await?;
    waited
}

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, Bounds::default())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

/// A worker's stay in one store.
#[derive(Clone, Copy)]
struct Stay<'a> {
    seed: u64,
    effects: &'a Effects,
    is_fixed: bool,
}

impl Stay<'_> {
    /// Imports the executions, does `what`, works for ten more seconds, and returns the executions.
    fn live(
        self,
        make: fn(Arc<dyn Clock>) -> Arc<dyn Store>,
        moved: Vec<Import>,
        what: impl AsyncFnOnce(&Abide),
    ) -> Vec<Import> {
        let Self { seed, effects, is_fixed } = self;
        let effects = effects.clone();
        Lab::run_on(seed, make, |lab| async move {
            for import in moved {
                assert!(matches!(lab.store().import(import).await.unwrap(), Imported::New(_)));
            }
            let build = if is_fixed { "b" } else { "a" };
            let open = |builder: Builder| builder.build(build).state(is_fixed).state(effects);
            let (machine, abide) = lab.worker_with(open).await.unwrap();
            what(&abide).await;
            lab.sleep(secs(10)).await;
            lab.crash(machine);
            let mut left = Vec::new();
            for id in ["mother", "daughter", "late"] {
                left.extend(export(&**lab.store(), &address(id)).await.unwrap());
            }
            left
        })
    }
}

fn statuses(imports: &[Import]) -> Vec<Status> {
    imports.iter().map(|import| import.summary.status).collect()
}

/// A tree moves while it is paused, and again while its child is blocked: every order and every
/// answer finds its way in the new store.
#[test]
fn p1_a_tree_moves_paused_and_then_blocked() {
    let effects = Effects::default();
    let stay = |seed, is_fixed| Stay { seed, effects: &effects, is_fixed };
    let begun = stay(1, false).live(memory, Vec::new(), async |abide| {
        abide.start(mother, ()).id("mother").await.unwrap();
    });
    assert_eq!(statuses(&begun), [Status::Waiting; 2]);
    let paused = stay(2, false).live(sqlite, begun, async |abide| {
        abide.handle::<u64>("mother").pause().await.unwrap();
    });
    assert_eq!(statuses(&paused), [Status::Paused; 2]);
    let blocked = stay(3, false).live(memory, paused, async |abide| {
        abide.handle::<u64>("mother").resume().await.unwrap();
        abide.handle::<u64>("daughter").signal("tell", &7_u64).await.unwrap();
    });
    assert_eq!(statuses(&blocked), [Status::Waiting, Status::Blocked]);
    let ended = stay(4, true).live(sqlite, blocked, async |abide| {
        assert_eq!(abide.handle::<u64>("mother").result().await.unwrap(), 7);
    });
    assert_eq!(statuses(&ended), [Status::Completed; 2]);
    let mut done = effects.0.lock().unwrap().clone();
    done.sort_unstable();
    assert_eq!(done, ["daughter", "mother"]);
}

/// An execution that winds down after its deadline goes on doing so elsewhere: its code does not
/// see the deadline anew, and the run fails with it.
#[test]
fn p1_what_winds_down_behind_its_deadline_moves() {
    let effects = Effects::default();
    let stay = |seed| Stay { seed, effects: &effects, is_fixed: true };
    let begun = stay(1).live(memory, Vec::new(), async |abide| {
        abide.start(late, ()).id("late").deadline(secs(5)).await.unwrap();
    });
    assert!(matches!(begun[0].execution.phase(), Phase::Expiring { .. }), "{:?}", begun[0].execution.phase());
    let ended = stay(2).live(sqlite, begun, async |abide| {
        let error = abide.handle::<u64>("late").result().await.unwrap_err();
        assert!(error.to_string().contains("deadline"), "{error}");
    });
    assert_eq!(statuses(&ended), [Status::Failed]);
    assert_eq!(*effects.0.lock().unwrap(), ["saw", "cleaned"]);
}
