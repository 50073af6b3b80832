//! Keys and random numbers inside the closures of steps: each step has its own, wherever its
//! closure runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::{History, Lab, Test};
use futures_util::join;

/// The key of each kind of step, taken inside of its closure.
#[workflow]
async fn takes_keys(ctx: Ctx) -> Result<Vec<String>> {
    let inside = || {
        let ctx = ctx.clone();
        move || Ok(ctx.idempotency_key())
    };
    let step = ctx.step("step", || async { Ok(ctx.idempotency_key()) }).await?;
    let one = ctx.blocking("job", inside()).await?;
    let other = ctx.blocking("job", inside()).await?;
    let keyed = ctx.blocking("job", inside()).key("ann").await?;
    let key = inside();
    let row = abide::testing::transact(&ctx, "row", move |_| key()).await?;
    Ok(vec![step, one, other, keyed, row, ctx.idempotency_key()])
}

#[test]
fn each_step_has_its_own_key_wherever_its_closure_runs() {
    Lab::run_on_each(1, async |lab| {
        let (_, abide) = lab.worker().await.unwrap();
        let expected =
            ["one/1/step/1", "one/1/job/1", "one/1/job/2", "one/1/job=ann/1", "one/1/row/1", "one/1"];
        let expected: Vec<_> = expected.iter().map(|key| format!("default/{key}")).collect();
        assert_eq!(abide.run(takes_keys, ()).id("one").await.unwrap(), expected);
    });
}

/// The same on real threads, several of them at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_known_on_the_threads_of_the_pool() {
    #[workflow]
    async fn at_once(ctx: Ctx) -> Result<Vec<String>> {
        let barrier = Arc::new(std::sync::Barrier::new(3));
        let inside = |name: &str| {
            let (ctx, barrier) = (ctx.clone(), barrier.clone());
            ctx.clone().blocking(name, move || {
                barrier.wait();
                let keys = format!("{} {}", ctx.idempotency_key(), ctx.random());
                barrier.wait();
                Ok(keys)
            })
        };
        let (a, b, c) = join!(inside("a"), inside("b"), inside("c"));
        let row = ctx.clone();
        let row = ctx.sqlite("row", move |_| Ok(row.idempotency_key())).await?;
        Ok(vec![a?, b?, c?, row])
    }
    let abide = Abide::builder("sqlite::memory:").workflow(at_once).open().await.unwrap();
    let keys = abide.run(at_once, ()).id("one").await.unwrap();
    let names: Vec<_> = keys.iter().map(|key| key.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["default/one/1/a/1", "default/one/1/b/1", "default/one/1/c/1", "default/one/1/row/1"]);
    let chance: std::collections::BTreeSet<_> = keys.iter().filter_map(|key| key.split(' ').nth(1)).collect();
    assert_eq!(chance.len(), 3);
}

#[expect(clippy::disallowed_methods, reason = "it tests a task of the user's own")]
fn elsewhere<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(future)
}

/// Uses its context on a task of its own, where the step is not known.
#[workflow]
async fn strays(ctx: Ctx, (what, is_early): (String, bool)) -> Result<String> {
    let ask = |ctx: &Ctx, what: &str| match what {
        "idempotency_key" => ctx.idempotency_key(),
        "random" => ctx.random().to_string(),
        _ => ctx.uuid(),
    };
    ctx.step("stray", || {
        let (ctx, what) = (ctx.clone(), what.clone());
        async move {
            let early = is_early.then(|| ask(&ctx, &what));
            Ok(elsewhere(async move { early.unwrap_or_else(|| ask(&ctx, &what)) }).await?)
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_of_its_own_is_told_that_its_step_is_not_known() {
    let abide = Abide::open("sqlite::memory:").await.unwrap();
    for what in ["idempotency_key", "random", "uuid"] {
        let failed = abide.run(strays, (what.to_owned(), false)).await.unwrap_err().to_string();
        let asked = if what == "uuid" { "random" } else { what };
        let expected = format!("ctx.{asked}() is called on another task or thread than the code of ");
        assert!(failed.contains(&expected), "{failed}");
        assert!(failed.contains("call it inside the closure, and move what it returns there"), "{failed}");
    }
    let key = abide.run(strays, ("idempotency_key".to_owned(), true)).id("one").await.unwrap();
    assert_eq!(key, "default/one/1/stray/1");
}

/// The random numbers, in the order of the calls, each time the code ran.
#[derive(Clone, Default)]
struct Drawn(Arc<Mutex<Vec<(String, String)>>>);

impl Drawn {
    fn draw(&self, place: &str, ctx: &Ctx) {
        self.0.lock().unwrap().push((place.to_owned(), format!("{} {}", ctx.random(), ctx.uuid())));
    }

    /// Returns the numbers drawn at a place, one for each time.
    fn at(&self, place: &str) -> Vec<String> {
        let drawn = self.0.lock().unwrap();
        drawn.iter().filter(|(at, _)| at == place).map(|(_, drawn)| drawn.clone()).collect()
    }
}

#[workflow]
async fn draws(ctx: Ctx) -> Result<()> {
    let drawn = ctx.state::<Drawn>().clone();
    drawn.draw("before", &ctx);
    let attempts = AtomicU32::new(0);
    let flaky = ctx
        .step("flaky", || async {
            drawn.draw("flaky", &ctx);
            match attempts.fetch_add(1, Ordering::SeqCst) {
                0 | 1 => Err(Error::new("once more")),
                _ => Ok(()),
            }
        })
        .retry(Retry::fixed(ms(10)));
    let in_job = (ctx.clone(), drawn.clone());
    let job = ctx.blocking("job", move || {
        in_job.1.draw("job", &in_job.0);
        Ok(())
    });
    let in_row = (ctx.clone(), drawn.clone());
    let row = abide::testing::transact(&ctx, "row", move |_| {
        in_row.1.draw("row", &in_row.0);
        Ok(())
    });
    let beside = async {
        drawn.draw("beside", &ctx);
        ctx.step("beside", || async {
            drawn.draw("in beside", &ctx);
            Ok(())
        })
        .await?;
        drawn.draw("beside later", &ctx);
        Result::Ok(())
    };
    let (flaky, job, row, beside) = join!(flaky, job, row, beside);
    flaky.and(job).and(row).and(beside)?;
    drawn.draw("after", &ctx);
    ctx.sleep(hours(3)).await
}

#[test]
fn chance_in_a_step_does_not_change_chance_outside() {
    Lab::run_on_each(2, async |lab| {
        let drawn = Drawn::default();
        let (_, abide) = lab.worker_with(|builder| builder.state(drawn.clone())).await.unwrap();
        abide.run(draws, ()).id("one").await.unwrap();
        let mut all = Vec::new();
        for place in ["before", "beside", "beside later", "after"] {
            let found = drawn.at(place);
            assert!(found.len() >= 2, "{place} was replayed: {found:?}");
            assert!(found.iter().all(|drawn| *drawn == found[0]), "{place}: {found:?}");
            all.push(found[0].clone());
        }
        // The store may run a transaction again.
        for (place, count) in [("flaky", 3), ("job", 1), ("row", 1), ("in beside", 1)] {
            let found = drawn.at(place);
            assert!(found.len() >= count, "{place}");
            assert!(found.iter().all(|drawn| *drawn == found[0]), "each attempt draws the same: {found:?}");
            all.push(found[0].clone());
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8, "no two places draw the same: {all:?}");
    });
}

/// Records its key when it is dropped.
struct Guard(Ctx, Arc<Mutex<Vec<String>>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0.idempotency_key());
    }
}

#[workflow]
async fn guarded(ctx: Ctx) -> Result<()> {
    let said = ctx.state::<Arc<Mutex<Vec<String>>>>();
    let timeout = ctx
        .step("slow", || async {
            let _guard = Guard(ctx.clone(), said.clone());
            std::future::pending::<Result<()>>().await
        })
        .timeout(secs(1));
    assert!(timeout.await.unwrap_err().is_timeout());
    abide::select! {
        _ = ctx.step("raced", || async {
            let _guard = Guard(ctx.clone(), said.clone());
            std::future::pending::<Result<()>>().await
        }) => {}
        _ = ctx.sleep(ms(500)) => {}
    }
    Ok(())
}

/// A closure that is dropped half-way cleans up under the key that it began with.
#[test]
fn a_closure_that_is_dropped_has_its_key() {
    Lab::run(3, async |lab| {
        let said = Arc::new(Mutex::new(Vec::<String>::new()));
        let (_, abide) = lab.worker_with(|builder| builder.state(said.clone())).await.unwrap();
        abide.run(guarded, ()).id("one").await.unwrap();
        assert_eq!(*said.lock().unwrap(), ["default/one/1/slow/1", "default/one/1/raced/1"]);
    });
}

#[task]
async fn dice(ctx: Ctx) -> Result<(u64, u64, String)> {
    Ok((ctx.random(), ctx.random(), ctx.uuid()))
}

/// A task is not a step: one sequence serves the whole task.
#[test]
fn a_task_draws_another_number_at_each_call() {
    Lab::run(4, async |lab| {
        let (_, abide) = lab.worker().await.unwrap();
        let (one, other, uuid) = abide.run(dice, ()).id("one").await.unwrap();
        assert_ne!(one, other);
        assert_ne!(format!("{}{}", &uuid[4..8], &uuid[9..13]), uuid[24..32], "its halves differ");
        let (again, ..) = abide.run(dice, ()).id("two").await.unwrap();
        assert_ne!(one, again);
    });
}

/// A durable operation on a thread of the pool would wait forever: it is reported, and blocks the
/// execution.
#[workflow]
async fn misplaces(ctx: Ctx) -> Result<()> {
    let inner = ctx.clone();
    ctx.blocking("job", move || {
        let mut nap = std::pin::pin!(inner.sleep(secs(1)));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(nap.as_mut().poll(&mut cx).is_pending());
        Ok(())
    })
    .await
}

#[test]
fn an_operation_inside_a_blocking_step_is_named_by_that_step() {
    Lab::run(5, async |lab| {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(misplaces, ()).id("one").await.unwrap();
        let why = handle.result().await.unwrap_err().to_string();
        assert!(why.contains(r#"is used inside step "job", where nothing can be recorded"#), "{why}");
    });
}

/// Two children that are told apart by a key alone ask for an id that another execution has: each
/// of them needs its own answer.
#[test]
fn each_child_hears_that_its_id_is_taken() {
    #[workflow]
    async fn owner(_ctx: Ctx) -> Result<u32> {
        Ok(1)
    }
    #[workflow]
    async fn child(_ctx: Ctx) -> Result<u32> {
        Ok(2)
    }
    #[workflow]
    async fn asks_twice(ctx: Ctx) -> Result<Vec<String>> {
        let (one, other) = join!(ctx.run(child, ()).id("taken"), ctx.run(child, ()).key("other").id("taken"));
        Ok(vec![one.unwrap_err().to_string(), other.unwrap_err().to_string()])
    }
    // Names and keys may contain every separator.
    #[workflow(name = "ship")]
    async fn ship(_ctx: Ctx) -> Result<u32> {
        Ok(3)
    }
    #[workflow(name = "ship:1")]
    async fn ship_one(_ctx: Ctx) -> Result<u32> {
        Ok(4)
    }
    #[workflow]
    async fn asks_alike(ctx: Ctx) -> Result<Vec<String>> {
        let one = ctx.run(ship, ()).key("1:x").id("taken");
        let (one, other) = join!(one, ctx.run(ship_one, ()).key("x").id("taken"));
        Ok(vec![one.unwrap_err().to_string(), other.unwrap_err().to_string()])
    }
    Lab::run_on_each(1, async |lab| {
        let (_, abide) = lab.worker().await.unwrap();
        abide.run(owner, ()).id("taken").await.unwrap();
        let asked = abide.start(asks_twice, ()).await.unwrap();
        let alike = abide.start(asks_alike, ()).await.unwrap();
        lab.sleep(secs(30)).await;
        for asked in [asked, alike] {
            assert_eq!(asked.status().await.unwrap(), Status::Completed, "{}", asked.why().await.unwrap());
            for told in asked.result().await.unwrap() {
                assert!(told.contains("was not started"), "{told}");
            }
        }
    });
}

/// How the code of a deploy pays.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    ByKey,
    Backwards,
    /// It has lost the keys.
    ByNumber,
}

/// Pays each person by a step.
#[workflow]
async fn pays(ctx: Ctx, mut people: Vec<String>) -> Result<String> {
    let way = *ctx.state::<Way>();
    if way == Way::Backwards {
        people.reverse();
    }
    let mut paid = Vec::new();
    for person in &people {
        let step = ctx.step("pay", || async { Ok(format!("paid {person}")) });
        paid.push(if way == Way::ByNumber { step.await? } else { step.key(person).await? });
    }
    ctx.recv::<()>("go").await?;
    Ok(paid.join(", "))
}

fn people() -> Vec<String> {
    ["ann", "bob"].map(str::to_owned).to_vec()
}

/// Every step of the name is mocked, whatever its key, and each has a record of its own.
#[test]
fn a_mock_stands_for_the_steps_of_all_keys() {
    let call_count = Arc::new(AtomicU32::new(0));
    let counted = call_count.clone();
    let test = Test::new()
        .state(Way::ByKey)
        .mock_step("pay", move |_| Ok(format!("mock {}", counted.fetch_add(1, Ordering::SeqCst))));
    let given = test.run(async |abide: Abide| {
        let handle = abide.start(pays, people()).await.unwrap();
        handle.signal("go", &()).await.unwrap();
        handle.result().await
    });
    assert_eq!(given.unwrap(), "mock 0, mock 1");
    assert_eq!(call_count.load(Ordering::SeqCst), 2);
}

#[test]
fn a_history_with_keys_fits_code_that_has_them_in_any_order() {
    let history = Lab::run(6, async |lab| {
        let (_, abide) = lab.worker_with(|builder| builder.state(Way::ByKey)).await.unwrap();
        abide.start(pays, people()).id("one").await.unwrap();
        lab.sleep(secs(5)).await;
        let id = abide_core::ExecutionId::new("one").unwrap();
        let address = abide_core::Address { namespace: abide_core::Namespace::default(), id };
        let whole = abide_store::export(&**lab.store(), &address).await.unwrap().unwrap();
        History::of(&whole).unwrap().to_string()
    });
    Test::new().state(Way::ByKey).replay(&history).assert_fits();
    Test::new().state(Way::Backwards).replay(&history).assert_fits();
    let found = Test::new().state(Way::ByNumber).replay(&history);
    assert!(!found.fits(), "{found}");
    assert_eq!(found.goes_on.as_deref(), Some("step \"pay\""), "{found}");
    assert!(found.unused[0].contains("step \"pay\" [ann]"), "{:?}", found.unused);
}

/// A text and the number that reads like it are different keys.
#[workflow]
async fn typed_keys(ctx: Ctx) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(ctx.step("s", || async { Ok(ctx.idempotency_key()) }).key("7").await?);
        seen.push(ctx.step("s", || async { Ok(ctx.idempotency_key()) }).key(&7).await?);
        seen.push(ctx.step("s", || async { Ok(ctx.idempotency_key()) }).key("\"7\"").await?);
        seen.push(ctx.step("s", || async { Ok(ctx.idempotency_key()) }).key("ann").await?);
    }
    Ok(seen)
}

#[test]
fn keys_of_different_types_are_different_keys() {
    Lab::run_on_each(7, async |lab| {
        let (_, abide) = lab.worker().await.unwrap();
        let seen = abide.run(typed_keys, ()).id("one").await.unwrap();
        let expected: Vec<_> = (1..3)
            .flat_map(|nth| ["\"7\"", "7", "\"\\\"7\\\"\"", "ann"].map(|key| (key, nth)))
            .map(|(key, nth)| format!("default/one/1/s={key}/{nth}"))
            .collect();
        assert_eq!(seen, expected);
    });
}

/// Two keys of the step "pay" whose operations have the same index.
const ANN: &str = "prkutov6nb81";
const BOB: &str = "wg5sjoq23rc4";

#[workflow]
async fn pays_both(ctx: Ctx) -> Result<()> {
    let pay =
        |person: &'static str| ctx.step("pay", move || async move { Ok(person.to_owned()) }).key(person);
    let (ann, bob) = join!(pay(ANN), pay(BOB));
    assert_eq!((ann?.as_str(), bob?.as_str()), (ANN, BOB));
    Ok(())
}

/// Whether the code was changed.
struct Deployed(Arc<AtomicU32>);

#[workflow]
async fn pays_one(ctx: Ctx) -> Result<String> {
    let person = if ctx.state::<Deployed>().0.load(Ordering::Relaxed) == 0 { ANN } else { BOB };
    let paid = ctx.step("pay", || async move { Ok(person.to_owned()) }).key(person).await?;
    ctx.recv::<()>("go").await?;
    Ok(paid)
}

/// Keys may come from outsiders, who can look for two with the same hash.
#[test]
fn p5_keys_with_the_same_hash_are_told() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(pays_both, ()).id("one").await.unwrap();
        lab.sleep(minutes(1)).await;
        let why = handle.why().await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
        assert!(why.contains(ANN) && why.contains(BOB) && why.contains("cannot be told apart"), "{why}");
    });
}

#[test]
fn p1_the_outcome_of_one_key_is_not_delivered_to_another_with_the_same_hash() {
    Lab::run(1, |lab| async move {
        let deployed = Arc::new(AtomicU32::new(0));
        let with = |builder: abide::Builder| builder.state(Deployed(deployed.clone()));
        let (machine, abide) = lab.worker_with(with).await.unwrap();
        abide.start(pays_one, ()).id("one").await.unwrap();
        lab.sleep(secs(5)).await;
        lab.crash(machine);
        deployed.store(1, Ordering::Relaxed);
        let (_, abide) = lab.worker_with(with).await.unwrap();
        let handle = abide.handle::<String>("one");
        handle.signal("go", &()).await.unwrap();
        lab.sleep(minutes(1)).await;
        let why = handle.why().await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
        assert!(why.contains(ANN) && why.contains(BOB), "{why}");
    });
}

/// Fails in its first run.
#[task]
async fn fails_once(ctx: Ctx) -> Result<String> {
    match ctx.run_number() {
        1 => Err(Error::fatal(ctx.idempotency_key())),
        _ => Ok(ctx.idempotency_key()),
    }
}

#[test]
fn each_run_of_a_task_has_its_own_key() {
    Lab::run_on_each(8, async |lab| {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(fails_once, ()).id("one").await.unwrap();
        let error = handle.result().await.unwrap_err().to_string();
        assert!(error.contains("default/one/1"), "{error}");
        handle.retry().await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "default/one/2");
    });
}

/// Fails before a deploy, with a long wait for the next attempt.
#[workflow]
async fn pays_one_later(ctx: Ctx) -> Result<String> {
    let is_deployed = ctx.state::<Deployed>().0.load(Ordering::Relaxed) == 1;
    let pay = async || if is_deployed { Ok("paid".to_owned()) } else { Err(Error::new("no money")) };
    let step = ctx.step("pay", pay).key(if is_deployed { BOB } else { ANN });
    step.retry(Retry::fixed(hours(5)).max_attempts(3)).await
}

#[test]
fn p1_failed_attempts_of_one_key_do_not_count_for_another_with_the_same_hash() {
    Lab::run(1, |lab| async move {
        let deployed = Arc::new(AtomicU32::new(0));
        // The first worker dies while it has the workflow in memory, so the next one looks at once.
        let with = |builder: abide::Builder| builder.state(Deployed(deployed.clone())).park_after(hours(9));
        let (machine, abide) = lab.worker_with(with).await.unwrap();
        abide.start(pays_one_later, ()).id("one").await.unwrap();
        lab.sleep(secs(5)).await;
        lab.crash(machine);
        deployed.store(1, Ordering::Relaxed);
        let (_, abide) = lab.worker_with(with).await.unwrap();
        let handle = abide.handle::<String>("one");
        lab.sleep(minutes(2)).await;
        let why = handle.why().await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
        assert!(why.contains(ANN) && why.contains(BOB), "{why}");
    });
}

#[workflow]
async fn rolls(ctx: Ctx) -> Result<Vec<u64>> {
    let roll = || ctx.step("roll", || async { Ok(ctx.random()) });
    Ok(vec![roll().await?, roll().await?, roll().key("ann").await?, roll().key("bob").await?])
}

/// They have different numbers or keys.
#[test]
fn steps_of_one_name_draw_different_numbers() {
    Lab::run(6, async |lab| {
        let (_, abide) = lab.worker().await.unwrap();
        let drawn = abide.run(rolls, ()).id("one").await.unwrap();
        let distinct: std::collections::BTreeSet<_> = drawn.iter().collect();
        assert_eq!(distinct.len(), drawn.len(), "{drawn:?}");
    });
}
