//! The clock of tests: when it waits, when it skips, and when it reports that nothing can happen
//! any more.

#![expect(clippy::disallowed_methods, reason = "it tests steps that take real time")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use abide::prelude::*;
use abide::testing::{self, Lab, Machine};

#[workflow]
async fn approved(ctx: Ctx) -> Result<u64> {
    ctx.recv::<u64>("approval").await
}

#[workflow]
async fn waits_for_child(ctx: Ctx) -> Result<u64> {
    ctx.run(approved, ()).await
}

#[workflow]
async fn never_ends(ctx: Ctx) -> Result<()> {
    ctx.step("lost", std::future::pending::<Result<()>>).await
}

#[task]
async fn never_answers(_ctx: Ctx) -> Result<()> {
    std::future::pending().await
}

/// Returns the panic of a test that stands still, which must come at once.
fn still<Fut: Future>(test: impl FnOnce(Abide) -> Fut) -> String {
    said_at_once(|| testing::run(test))
}

/// Returns the panic of a test with several machines that stands still, which must come at once.
fn still_in_lab<Fut: Future>(test: impl FnOnce(Lab) -> Fut) -> String {
    said_at_once(|| Lab::run(1, test))
}

fn said_at_once<T>(test: impl FnOnce() -> T) -> String {
    let began = Instant::now();
    let panic = catch_unwind(AssertUnwindSafe(test)).err().expect("it stands still");
    assert!(began.elapsed() < secs(10), "it took {:?}", began.elapsed());
    panic.downcast_ref::<String>().expect("a text").clone()
}

#[test]
fn a_test_that_waits_for_a_signal_which_nobody_sends_fails_with_why() {
    let said = still(async |abide: Abide| abide.run(approved, ()).id("a").await);
    assert_eq!(
        said,
        "nothing can happen any more, and the test still waits\n  \
         workflow \"a\" is waiting for signal \"approval\" (at crates/abide/tests/virtual_time.rs:14) \
         since 2025-06-15T15:06:40.000Z (1.0 s ago)."
    );
}

#[test]
fn a_test_that_stands_still_names_everything_that_is_open() {
    let said = still(async |abide: Abide| {
        let handle = abide.start(waits_for_child, ()).id("parent").await?;
        abide.start(never_ends, ()).id("step").await?;
        abide.start(never_answers, ()).id("task").await?;
        handle.result().await
    });
    for part in
        ["\"parent\" is waiting for child", "signal \"approval\"", "\"step\" is held", "\"task\" is held"]
    {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
}

#[test]
fn several_waits_that_are_polled_together_stand_still_together() {
    let said = still(async |abide: Abide| {
        let all = ["a", "b"].map(|id| abide.run(approved, ()).id(id).into_future());
        futures_util::future::join_all(all).await
    });
    assert!(said.contains("\"a\" is waiting for") && said.contains("\"b\" is waiting for"), "{said}");
}

#[workflow]
async fn slow(ctx: Ctx, real_ms: u64) -> Result<String> {
    select! {
        done = ctx.step("slow", || async move {
            tokio::time::sleep(ms(real_ms)).await;
            Ok(())
        }).timeout(minutes(5)) => done.map(|()| "step".to_owned()),
        _ = ctx.sleep(minutes(1)) => Ok("timer".to_owned()),
    }
}

#[abide::test]
async fn a_step_that_takes_real_time_is_not_overtaken_by_the_virtual_clock(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(slow, 1_500).await?, "step");
    Ok(())
}

#[task]
async fn slow_task(_ctx: Ctx, real_ms: u64) -> Result<String> {
    tokio::time::sleep(ms(real_ms)).await;
    Ok("task".to_owned())
}

#[abide::test]
async fn nor_is_a_task(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(slow_task, 1_000).deadline(minutes(5)).await?, "task");
    Ok(())
}

#[workflow]
async fn blocking(ctx: Ctx) -> Result<String> {
    let work = || {
        std::thread::sleep(ms(600));
        Ok("blocking".to_owned())
    };
    ctx.blocking("work", work).timeout(secs(60)).await
}

#[abide::test]
async fn nor_is_a_thread(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(blocking, ()).await?, "blocking");
    Ok(())
}

#[workflow]
async fn impatient(ctx: Ctx) -> Result<bool> {
    let forever = ctx.step("slow", || async {
        tokio::time::sleep(hours(1)).await;
        Ok(())
    });
    Ok(forever.timeout(ms(100)).await.is_err_and(|error| error.is_timeout()))
}

#[abide::test]
async fn a_timeout_over_real_time_comes_when_that_time_is_over(abide: Abide) -> Result<()> {
    let began = Instant::now();
    assert!(abide.run(impatient, ()).await?);
    assert!(began.elapsed() < secs(20), "it took {:?}", began.elapsed());
    Ok(())
}

#[workflow]
async fn month(ctx: Ctx) -> Result<u64> {
    ctx.sleep(days(30)).await?;
    Ok(30)
}

/// The step waits for virtual time: neither may wait for the other.
#[test]
fn a_step_that_waits_for_another_execution_does_not_hold_the_clock() {
    let began = Instant::now();
    let place = std::sync::Arc::new(std::sync::OnceLock::<Abide>::new());
    let given = testing::Test::new().state(place.clone()).run(async |abide: Abide| {
        place.set(abide.clone()).unwrap();
        abide.run(asks_inside_a_step, ()).await
    });
    assert_eq!(given.unwrap(), 30);
    assert!(began.elapsed() < secs(10), "it took {:?}", began.elapsed());
}

#[workflow]
async fn asks_inside_a_step(ctx: Ctx) -> Result<u64> {
    let abide = ctx.state::<std::sync::Arc<std::sync::OnceLock<Abide>>>().get().unwrap().clone();
    ctx.step("ask", || async { Ok(abide.run(month, ()).await?) }).await
}

/// The clock waits for an outside task that may still act.
#[abide::test]
async fn a_signal_from_a_task_of_tokio_is_waited_for(abide: Abide) -> Result<()> {
    let handle = abide.start(approved, ()).await?;
    let other = handle.clone();
    tokio::spawn(async move {
        tokio::time::sleep(ms(300)).await;
        other.signal("approval", &7).await
    });
    assert_eq!(handle.result().await?, 7);
    Ok(())
}

#[abide::test]
async fn a_test_may_wait_in_real_time_itself(abide: Abide) -> Result<()> {
    let handle = abide.start(approved, ()).await?;
    let waited = tokio::time::timeout(ms(200), handle.result()).await;
    assert!(waited.is_err(), "{waited:?}");
    Ok(())
}

#[workflow]
async fn days_go_by(ctx: Ctx, count: u64) -> Result<u64> {
    for _ in 0..count {
        ctx.sleep(days(1)).await?;
    }
    Ok(count)
}

/// Returns the time for which this thread has run so far: other tests, and other programs, take
/// turns with it.
#[cfg(target_os = "linux")]
fn busy_time() -> Duration {
    let schedule = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(schedule.split_whitespace().next().unwrap().parse().unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn thirty_days_with_ten_workers_are_over_in_a_second() {
    let before = busy_time();
    let slept = Lab::run(1, async |lab: Lab| {
        let mut workers = Vec::new();
        for _ in 0..10 {
            workers.push(lab.worker().await?.1);
        }
        let daily = workers[0].start(days_go_by, 30).await?;
        lab.sleep(days(30)).await;
        lab.sleep(minutes(1)).await;
        daily.result().await
    });
    assert_eq!(slept.unwrap(), 30);
    // Without skipping, it would take many minutes.
    let busy = busy_time() - before;
    assert!(busy <= secs(1), "it took {busy:?}");
}

#[test]
fn a_lab_whose_worker_waits_for_a_signal_which_nobody_sends_fails_with_why() {
    let said = still_in_lab(async |lab: Lab| {
        let (_, abide) = lab.worker().await?;
        abide.run(approved, ()).id("a").await
    });
    let (first, why) = said.split_once('\n').expect("two lines");
    assert_eq!(first, "nothing can happen any more, and the test still waits");
    assert!(why.contains("workflow \"a\" is waiting for signal \"approval\""), "{said}");
}

#[test]
fn a_lab_without_a_worker_stands_still() {
    let said = still_in_lab(async |lab: Lab| lab.client().await?.run(approved, ()).id("a").await);
    assert!(said.contains("workflow \"a\" "), "{said}");
}

#[test]
fn a_lab_with_workers_and_a_client_stands_still_in_every_namespace() {
    let said = still_in_lab(async |lab: Lab| {
        let (_, other) = lab.worker_with(|builder| builder.namespace("other").session_ttl(secs(2))).await?;
        let _other = other.start(approved, ()).id("b").await?;
        let _worker = lab.worker().await?;
        lab.client().await?.run(approved, ()).id("a").await
    });
    assert!(said.contains("\"a\" is waiting for") && said.contains("\"b\" is waiting for"), "{said}");
}

#[test]
fn a_lab_stands_still_after_the_last_timer() {
    let said = still_in_lab(async |lab: Lab| {
        let (machine, _crashed) = lab.worker().await?;
        let (_, abide) = lab.worker().await?;
        let _month = abide.start(month, ()).id("month").await?;
        lab.crash(machine);
        abide.run(never_ends, ()).id("a").await
    });
    assert!(said.contains("\"a\" is held") && !said.contains("\"month\""), "{said}");
}

#[test]
fn a_lab_waits_for_a_sleep_that_only_the_store_knows() {
    let slept = Lab::run(1, async |lab: Lab| {
        let (_, abide) = lab.worker_with(|builder| builder.park_after(ms(10))).await?;
        abide.run(month, ()).await
    });
    assert_eq!(slept.unwrap(), 30);
}

#[test]
fn a_lab_waits_for_a_delayed_start() {
    let slept = Lab::run(1, async |lab: Lab| {
        let _worker = lab.worker().await?;
        lab.client().await?.run(month, ()).delay(days(30)).await
    });
    assert_eq!(slept.unwrap(), 30);
}

#[test]
fn a_lab_waits_for_the_deadline_of_a_waiting_workflow() {
    let (passed, error) = Lab::run(1, async |lab: Lab| {
        let (_, abide) = lab.worker().await.unwrap();
        let began_at = lab.now();
        let error = abide.run(approved, ()).deadline(days(30)).await.unwrap_err();
        (lab.now().since(began_at), error)
    });
    assert!(passed >= days(30), "{passed:?}: {error}");
}

#[workflow]
async fn counts_begins(ctx: Ctx) -> Result<u64> {
    let begun = ctx.state::<std::sync::Arc<std::sync::atomic::AtomicU64>>();
    match begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => ctx.step("lost", std::future::pending::<Result<u64>>).await,
        begun => Ok(begun),
    }
}

/// Lets a worker begin a workflow whose step never ends, lets the worker vanish, and waits for the
/// result, which only a second worker can make after the session of the first has expired.
fn check_takeover(session_ttl: Duration, vanish: impl Fn(&Lab, Machine)) {
    let given = Lab::run(1, async |lab: Lab| {
        let begun = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let options = |builder: abide::Builder| builder.state(begun.clone()).session_ttl(session_ttl);
        let (machine, first) = lab.worker_with(options).await?;
        first.start(counts_begins, ()).id("a").await?;
        lab.sleep(secs(1)).await;
        let (_, second) = lab.worker_with(options).await?;
        vanish(&lab, machine);
        second.handle::<u64>("a").result().await
    });
    assert_eq!(given.unwrap(), 1);
}

#[test]
fn a_lab_waits_for_the_takeover_from_a_crashed_machine() {
    check_takeover(secs(15), Lab::crash);
    check_takeover(hours(1), Lab::crash);
}

#[test]
fn a_lab_waits_for_the_takeover_from_a_frozen_machine() {
    check_takeover(secs(15), Lab::freeze);
    check_takeover(hours(1), Lab::freeze);
}

/// The session of the crashed machine lives on until the clock is where it was.
#[test]
fn a_lab_waits_for_the_takeover_after_the_clock_was_set_back() {
    check_takeover(secs(15), |lab, machine| {
        lab.crash(machine);
        lab.set_clock_back(hours(1));
    });
}

#[test]
fn a_lab_waits_for_a_step_that_waits_for_the_outside_world() {
    let given = Lab::run(1, async |lab: Lab| {
        let (_, abide) = lab.worker().await?;
        abide.run(slow_task, 500).await
    });
    assert_eq!(given.unwrap(), "task");
    let given = Lab::run(1, async |lab: Lab| {
        let (_, abide) = lab.worker().await?;
        abide.run(takes_real_time, ()).await
    });
    assert_eq!(given.unwrap(), "blocking");
}

#[workflow]
async fn takes_real_time(ctx: Ctx) -> Result<String> {
    let work = || {
        std::thread::sleep(ms(500));
        Ok("blocking".to_owned())
    };
    ctx.blocking("work", work).await
}

#[test]
fn a_lab_waits_for_a_test_that_itself_waits_for_the_outside_world() {
    let waited = Lab::run(1, async |lab: Lab| {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(approved, ()).await.unwrap();
        tokio::time::timeout(ms(500), handle.result()).await
    });
    assert!(waited.is_err(), "{waited:?}");
}

/// The caller misses the end, because the execution is deleted at once. It looks again after a
/// minute, when every pause of recurring work has long ended.
#[test]
fn a_lab_waits_for_the_rarest_part_of_recurring_work() {
    let given = Lab::run(1, async |lab: Lab| {
        let (_, abide) = lab.worker().await?;
        let handle = abide.start(approved, ()).id("a").await?;
        lab.sleep(secs(50)).await;
        let others = async {
            lab.sleep(secs(1)).await;
            handle.signal("approval", &1).await.unwrap();
            // The caller looks for ended executions at most every 20 ms.
            lab.sleep(ms(10)).await;
            let ended = abide_store::Prune { finished_before: lab.now(), limit: 1 };
            assert_eq!(lab.store().prune(ended).await.unwrap(), 1);
        };
        let client = lab.client().await?;
        futures_util::join!(client.handle::<u64>("a").result(), others).0
    });
    assert!(matches!(given, Err(ClientError::Unknown { .. })), "{given:?}");
}

/// Is blocked below the number of its worker, because it awaits something other than a ctx
/// operation.
#[workflow]
async fn stops_below(ctx: Ctx, number: u64) -> Result<u64> {
    if number < *ctx.state::<u64>() {
        std::future::pending::<()>().await;
    }
    Ok(number)
}

/// A worker that knows many blocked executions looks for others rarely. Here it pauses for 13
/// minutes, and another build is blocked in the second of them.
#[test]
fn a_lab_waits_for_a_rest_that_began_before_the_last_change() {
    let given = Lab::run(1, async |lab: Lab| {
        let (machine, able) = lab.worker_with(|builder| builder.state(1_u64)).await?;
        lab.sleep(secs(1)).await;
        for _ in 0..400 {
            able.start(stops_below, 0).await?;
        }
        lab.sleep(minutes(2)).await;
        let (_, unable) = lab.worker_with(|builder| builder.state(2_u64)).await?;
        lab.freeze(machine);
        let handle = unable.start(stops_below, 1).await?;
        lab.sleep(secs(1)).await;
        lab.thaw(machine);
        assert_eq!(handle.status().await?, Status::Blocked);
        handle.result().await
    });
    assert_eq!(given.unwrap(), 1);
}
