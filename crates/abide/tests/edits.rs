//! Results that somebody set for steps, beside everything that may come behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abide::prelude::*;
use abide::testing::{Lab, Machine};
use abide_core::Bounds;
use abide_store::Store;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;

/// The largest result that can be recorded.
const BYTES_MAX: usize = 100;

/// Whether the code is the newer one, which expects other results.
type IsNew = Arc<AtomicBool>;

/// Runs a step whose result is too large to be recorded.
async fn report(ctx: &Ctx, name: &str) -> Result<String> {
    if ctx.state::<IsNew>().load(Ordering::Relaxed) {
        return Ok(ctx.step(name, || async { Ok(7) }).await?.to_string());
    }
    ctx.step(name, || async { Ok("x".repeat(BYTES_MAX)) }).await
}

#[workflow]
async fn one(ctx: Ctx) -> Result<String> {
    let report = report(&ctx, "report").await?;
    ctx.step("after", || async { Ok(()) }).await?;
    ctx.recv::<()>("end").await?;
    Ok(report)
}

#[workflow(strict)]
async fn strict(ctx: Ctx) -> Result<String> {
    let report = report(&ctx, "report").await?;
    ctx.step("after", || async { Ok(()) }).await?;
    ctx.recv::<()>("end").await?;
    Ok(report)
}

/// Asks for the report later if the code is the newer one.
#[workflow]
async fn moved(ctx: Ctx) -> Result<String> {
    let is_new = ctx.state::<IsNew>().load(Ordering::Relaxed);
    let early = if is_new { None } else { Some(report(&ctx, "report").await?) };
    ctx.step("after", || async { Ok(()) }).await?;
    let report = match early {
        Some(report) => report,
        None => report(&ctx, "report").await?,
    };
    ctx.recv::<()>("end").await?;
    Ok(report)
}

#[workflow]
async fn parent(ctx: Ctx) -> Result<String> {
    ctx.run(one, ()).id("one").await
}

/// Makes a report in each of two runs.
#[workflow]
async fn two_runs(ctx: Ctx, before: String) -> Result<String> {
    let report = report(&ctx, "report").await?;
    ctx.step("after", || async { Ok(()) }).await?;
    ctx.recv::<()>("end").await?;
    if before.is_empty() { ctx.continue_as_new(report).await } else { Ok(format!("{before} {report}")) }
}

/// The number of reports that the workflow makes; behind them come this many steps.
const REPORT_COUNT: usize = 6;
const STEP_COUNT: usize = 5_000;

#[workflow]
async fn long(ctx: Ctx) -> Result<String> {
    let mut reports = Vec::new();
    for _ in 0..REPORT_COUNT {
        reports.push(report(&ctx, "report").await?);
    }
    let steps = (0..STEP_COUNT).map(|_| ctx.step("after", || async { Ok(()) }));
    futures_util::future::try_join_all(steps).await?;
    ctx.recv::<()>("end").await?;
    Ok(reports.concat())
}

/// Starts a worker on a machine of its own.
async fn worker(lab: &Lab, is_new: &IsNew) -> (Machine, Abide) {
    let options = |builder: abide::Builder| builder.state(is_new.clone()).payload_bytes_max(BYTES_MAX);
    lab.worker_with(options).await.unwrap()
}

/// Crashes the worker, and starts another one in its place.
async fn again(lab: &Lab, machine: Machine, is_new: &IsNew) -> (Machine, Abide) {
    lab.crash(machine);
    worker(lab, is_new).await
}

fn run(test: impl AsyncFnOnce(&Lab, &IsNew)) {
    let bounds = Bounds { payload_bytes_max: BYTES_MAX, ..Bounds::default() };
    Lab::run_on(
        1,
        |clock| MemoryStore::new(clock, bounds),
        |lab| async move {
            test(&lab, &IsNew::default()).await;
        },
    );
}

/// Waits until the execution is blocked, and sets the result of the step.
async fn edit<T: serde::Serialize + ?Sized>(lab: &Lab, handle: &Handle<String>, step: &str, result: &T) {
    lab.sleep(secs(5)).await;
    assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{}", handle.why().await.unwrap());
    handle.unblock().edit(step, result).await.unwrap();
}

/// Sends the signal that ends the execution, and returns its result.
async fn ended(lab: &Lab, handle: &Handle<String>) -> String {
    handle.signal("end", &()).await.unwrap();
    lab.sleep(secs(30)).await;
    assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
    handle.result().await.unwrap()
}

/// However many results were set, the engine goes through the journal once for all of them and once
/// for the code. The store answers slowly.
#[test]
fn a_replay_reads_the_journal_of_many_edits_twice() {
    // The number of pages that the journal fills in this store.
    const PAGE_COUNT: usize = STEP_COUNT.div_ceil(128);
    const READ_COUNT_MAX: usize = 2 * PAGE_COUNT + 10;
    let (read_count, is_counted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (counter, switch) = (read_count.clone(), is_counted.clone());
    let decide = move |name| {
        if name != "read" || !switch.load(Ordering::Relaxed) {
            return Fault::None;
        }
        let count = counter.fetch_add(1, Ordering::Relaxed);
        if count > READ_COUNT_MAX { Fault::Corrupt } else { Fault::Delay { poll_count: 1 } }
    };
    let bounds = Bounds { payload_bytes_max: BYTES_MAX, ..Bounds::default() };
    let store = |clock| -> Arc<dyn Store> { FaultyStore::deciding(MemoryStore::new(clock, bounds), decide) };
    Lab::run_on(1, store, |lab| async move {
        let is_new = IsNew::default();
        let (machine, abide) = worker(&lab, &is_new).await;
        let handle = abide.start(long, ()).id("one").await.unwrap();
        for nth in 1..=REPORT_COUNT {
            edit(&lab, &handle, &format!("report#{nth}"), &nth.to_string()).await;
        }
        lab.sleep(secs(60)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting);
        lab.crash(machine);
        is_counted.store(true, Ordering::Relaxed);
        let (_, abide) = worker(&lab, &is_new).await;
        let handle = abide.handle("one");
        assert_eq!(ended(&lab, &handle).await, "123456");
        let count = read_count.load(Ordering::Relaxed);
        assert!((2 * PAGE_COUNT..READ_COUNT_MAX).contains(&count), "{count} reads of {PAGE_COUNT} pages");
    });
}

/// A pause says nothing about a result that was set before it: code that has not reached the result
/// yet may find that it cannot read it.
async fn check_pause_behind_edit(lab: &Lab, is_new: &IsNew, paused: &str) {
    let (machine, abide) = worker(lab, is_new).await;
    abide.start(parent, ()).id("parent").await.unwrap();
    lab.sleep(secs(5)).await;
    lab.crash(machine);
    // A worker that has none of the code sees to the tree.
    let (_, office) = lab.worker_with(|builder| builder.lanes(["office"])).await.unwrap();
    let handle = office.handle::<String>("one");
    edit(lab, &handle, "report", &7).await;
    office.handle::<String>(paused).pause().await.unwrap();
    lab.sleep(secs(60)).await;
    let _worker = worker(lab, is_new).await;
    lab.sleep(secs(60)).await;
    assert_eq!(handle.status().await.unwrap(), Status::Paused, "{}", handle.why().await.unwrap());
    office.handle::<String>(paused).resume().await.unwrap();
    edit(lab, &handle, "report", "given").await;
    lab.sleep(secs(5)).await;
    assert_eq!(ended(lab, &handle).await, "given");
}

#[test]
fn a_pause_behind_an_edit_does_not_keep_it() {
    run(async |lab, is_new| check_pause_behind_edit(lab, is_new, "one").await);
}

#[test]
fn a_pause_of_the_parent_behind_an_edit_does_not_keep_it() {
    run(async |lab, is_new| check_pause_behind_edit(lab, is_new, "parent").await);
}

/// A result that was set is a recorded result of its run, and says nothing about the same step of
/// the next run.
#[test]
fn an_edit_is_kept_for_its_run() {
    run(async |lab, is_new| {
        let (machine, abide) = worker(lab, is_new).await;
        let handle = abide.start(two_runs, String::new()).id("one").await.unwrap();
        edit(lab, &handle, "report", "first").await;
        lab.sleep(secs(5)).await;
        let (machine, abide) = again(lab, machine, is_new).await;
        let handle = abide.handle::<String>("one");
        handle.signal("end", &()).await.unwrap();
        for unreadable in 0..2 {
            edit(lab, &handle, "report", &unreadable).await;
        }
        let (machine, abide) = again(lab, machine, is_new).await;
        edit(lab, &abide.handle("one"), "report", "second").await;
        lab.sleep(secs(5)).await;
        let (_, abide) = again(lab, machine, is_new).await;
        assert_eq!(ended(lab, &abide.handle("one")).await, "first second");
    });
}

#[test]
fn strict_code_is_given_an_edit_where_it_stands_and_keeps_it() {
    run(async |lab, is_new| {
        let (machine, abide) = worker(lab, is_new).await;
        let handle = abide.start(strict, ()).id("one").await.unwrap();
        edit(lab, &handle, "report", &7).await;
        edit(lab, &handle, "report", "given").await;
        lab.sleep(secs(5)).await;
        is_new.store(true, Ordering::Relaxed);
        let (machine, abide) = again(lab, machine, is_new).await;
        lab.sleep(secs(60)).await;
        let handle = abide.handle::<String>("one");
        handle.signal("end", &()).await.unwrap();
        lab.sleep(secs(5)).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains(r#"the recorded result of step "report" "#), "{why}");
        handle.unblock().edit("report", &7).await.unwrap_err();
        is_new.store(false, Ordering::Relaxed);
        let (_, abide) = again(lab, machine, is_new).await;
        assert_eq!(ended(lab, &abide.handle("one")).await, "given");
    });
}

/// Nothing records that code has read a result that was set. Code that asks for the step elsewhere
/// and cannot read the result is blocked there, and somebody decides again.
#[test]
fn an_edit_is_open_again_for_code_that_asks_for_it_elsewhere_and_cannot_read_it() {
    run(async |lab, is_new| {
        let (machine, abide) = worker(lab, is_new).await;
        let handle = abide.start(moved, ()).id("one").await.unwrap();
        edit(lab, &handle, "report", "given").await;
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting, "it went on");
        is_new.store(true, Ordering::Relaxed);
        let (_, abide) = again(lab, machine, is_new).await;
        abide.handle::<String>("one").signal("end", &()).await.unwrap();
        edit(lab, &abide.handle("one"), "report", &7).await;
        lab.sleep(secs(30)).await;
        assert_eq!(abide.handle::<String>("one").result().await.unwrap(), "7");
    });
}

/// Makes a report that newer code reads as a number.
#[workflow]
async fn counted(ctx: Ctx) -> Result<String> {
    let is_new = ctx.state::<IsNew>().load(Ordering::Relaxed);
    let report = if is_new {
        let parse = |old: String| old.parse::<u64>().or_fatal();
        let report = ctx.step("report", || async { Ok(7_u64) }).upgrade(parse).await?;
        format!("number {report}")
    } else {
        report(&ctx, "report").await?
    };
    ctx.recv::<()>("end").await?;
    Ok(report)
}

#[test]
fn an_edit_of_the_older_type_is_upgraded() {
    for is_edited_before in [true, false] {
        run(async |lab, is_new| {
            let (machine, abide) = worker(lab, is_new).await;
            let handle = abide.start(counted, ()).id("one").await.unwrap();
            if is_edited_before {
                edit(lab, &handle, "report", "12").await;
            }
            lab.sleep(secs(5)).await;
            is_new.store(true, Ordering::Relaxed);
            let (_, abide) = again(lab, machine, is_new).await;
            let handle = abide.handle::<String>("one");
            if !is_edited_before {
                edit(lab, &handle, "report", "12").await;
            }
            assert_eq!(ended(lab, &handle).await, "number 12", "edited before: {is_edited_before}");
        });
    }
}

/// The upgrade fails for an edit: the next decision takes its place.
#[test]
fn an_edit_that_cannot_be_upgraded_is_replaced() {
    run(async |lab, is_new| {
        let (machine, abide) = worker(lab, is_new).await;
        let handle = abide.start(counted, ()).id("one").await.unwrap();
        edit(lab, &handle, "report", "twelve").await;
        lab.sleep(secs(5)).await;
        is_new.store(true, Ordering::Relaxed);
        let (_, abide) = again(lab, machine, is_new).await;
        let handle = abide.handle::<String>("one");
        handle.signal("look", &()).await.unwrap();
        lab.sleep(secs(20)).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains("the upgrade failed: invalid digit"), "{why}");
        edit(lab, &handle, "report", &13_u64).await;
        assert_eq!(ended(lab, &handle).await, "number 13");
    });
}
