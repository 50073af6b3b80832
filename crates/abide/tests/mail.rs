//! Mail beyond the bound that an execution in memory keeps: the engine reads it again when the code
//! wants it, and nothing is lost, doubled or mixed up.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::Builder;
use abide::prelude::*;
use abide::testing::Lab;
use abide_core::{Address, Bounds, ExecutionId, Namespace};
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, PageBounds, Read, Snapshot, Store, Target};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

/// Receives from each of these names in turn, and returns the signals.
#[workflow]
async fn reads(ctx: Ctx, names: Vec<String>) -> Result<Vec<String>> {
    let mut got = Vec::new();
    for name in names {
        let text: String = ctx.recv(&name).await?;
        got.push(text[..4].to_owned());
    }
    Ok(got)
}

fn large(n: u32) -> String {
    format!("{n:04}{}", "x".repeat(1_000))
}

/// Returns what a workflow receives of sixty signals, sent as `"a"` and `"b"` in turn, if it asks
/// for all of `"b"` first.
fn odd_then_even() -> Vec<String> {
    (0..30).map(|n| n * 2 + 1).chain((0..30).map(|n| n * 2)).map(|n| format!("{n:04}")).collect()
}

/// Sends `"a"` and `"b"` in turn, all before the code reads any of them, and lets the code read
/// them in its own order.
fn check(options: impl Fn(Builder) -> Builder + Copy, is_late: bool) {
    Lab::run(1, |lab| async move {
        let client = lab.client().await.unwrap();
        let names: Vec<_> = (0..60).map(|n| if n < 30 { "b" } else { "a" }.to_owned()).collect();
        let (machine, mut abide) = lab.worker_with(options).await.unwrap();
        if !is_late {
            lab.crash(machine);
            lab.sleep(secs(60)).await;
        }
        let handle = client.start(reads, names).id("one").await.unwrap();
        handle.pause().await.unwrap();
        for n in 0..60 {
            handle.signal(if n % 2 == 0 { "a" } else { "b" }, &large(n)).await.unwrap();
        }
        if !is_late {
            (_, abide) = lab.worker_with(options).await.unwrap();
        }
        abide.handle::<Vec<String>>("one").resume().await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
        assert_eq!(handle.result().await.unwrap(), odd_then_even());
    });
}

#[test]
fn signals_beyond_the_bound_are_received_in_order() {
    for bytes in [0, 1_500, 10_000, 1 << 20] {
        check(|builder| builder.mail_bytes_max(bytes), false);
        check(|builder| builder.mail_bytes_max(bytes), true);
    }
}

/// The signals come by notice, while the code is in memory and waits for another one.
#[test]
fn signals_that_come_to_live_code_are_kept_to_the_bound_too() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.mail_bytes_max(2_500)).await.unwrap();
        let names: Vec<_> = ["go"].into_iter().chain(["a"; 20]).map(str::to_owned).collect();
        let handle = abide.start(reads, names).id("one").await.unwrap();
        for n in 0..20 {
            handle.signal("a", &large(n)).await.unwrap();
        }
        handle.signal("go", &large(99)).await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
        let expected: Vec<_> = [99].into_iter().chain(0..20).map(|n: u32| format!("{n:04}")).collect();
        assert_eq!(handle.result().await.unwrap(), expected);
    });
}

/// Waits for all these names at once without leaving memory, and returns the signals in order.
#[workflow]
async fn reads_at_once(ctx: Ctx, names: Vec<String>) -> Result<Vec<String>> {
    let mut all: FuturesUnordered<_> = names.iter().map(|name| ctx.recv::<String>(name)).collect();
    let reading = async {
        let mut got = Vec::new();
        while let Some(text) = all.next().await {
            got.push(text?[..4].to_owned());
        }
        Ok(got)
    };
    select! {
        got = reading => got,
        _ = ctx.step("busy", std::future::pending::<Result<()>>) => unreachable!("it never ends"),
    }
}

/// The signals come together, after a pause.
#[test]
fn signals_of_several_names_are_received_in_the_order_of_their_arrival() {
    for bytes in [0, 2_500, 1 << 20] {
        Lab::run(1, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.mail_bytes_max(bytes)).await.unwrap();
            let names = ["b", "d", "a", "e", "c"];
            let handle =
                abide.start(reads_at_once, names.map(str::to_owned).to_vec()).id("one").await.unwrap();
            lab.sleep(secs(1)).await;
            handle.pause().await.unwrap();
            for (n, name) in (0..).zip(["d", "c", "e", "a", "b"]) {
                handle.signal(name, &large(n)).await.unwrap();
            }
            handle.resume().await.unwrap();
            lab.sleep(secs(60)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
            let expected: Vec<_> = (0..5).map(|n| format!("{n:04}")).collect();
            assert_eq!(handle.result().await.unwrap(), expected, "{bytes}");
        });
    }
}

/// Receives three signals in each run, of the name that the run wants.
#[workflow]
async fn reads_in_runs(ctx: Ctx, got: Vec<String>) -> Result<Vec<String>> {
    let mut got = got;
    let name = if got.len() < 30 { "b" } else { "a" };
    for _ in 0..3 {
        let text: String = ctx.recv(name).await?;
        got.push(text[..4].to_owned());
    }
    if got.len() < 60 {
        return ctx.continue_as_new(got).await;
    }
    Ok(got)
}

/// The next run has to find the mail that one run kept in memory and the mail that it left in the
/// store.
#[test]
fn signals_beyond_the_bound_reach_the_runs_behind() {
    for bytes in [0, 1_500, 10_000, 1 << 20] {
        Lab::run(1, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.mail_bytes_max(bytes)).await.unwrap();
            let handle = abide.start(reads_in_runs, Vec::new()).id("one").await.unwrap();
            for n in 0..60 {
                handle.signal(if n % 2 == 0 { "a" } else { "b" }, &large(n)).await.unwrap();
            }
            lab.sleep(secs(60)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
            assert_eq!(handle.result().await.unwrap(), odd_then_even());
        });
    }
}

#[task]
async fn gives(_ctx: Ctx, n: u32) -> Result<String> {
    if n == 7 { Err(Error::fatal(large(n))) } else { Ok(large(n)) }
}

/// Starts children, and asks for their results much later.
#[workflow]
async fn collects(ctx: Ctx) -> Result<Vec<String>> {
    let mut children = Vec::new();
    for n in 0..20 {
        children.push(ctx.start(gives, n).await?);
    }
    let _: u32 = ctx.recv("go").await?;
    let mut got = Vec::new();
    for child in children.into_iter().rev() {
        let text = child.result().await.unwrap_or_else(|error| error.to_string());
        got.push(text[..4].to_owned());
    }
    Ok(got)
}

#[test]
fn answers_of_children_beyond_the_bound_are_read_again() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.mail_bytes_max(2_500)).await.unwrap();
        let handle = abide.start(collects, ()).id("one").await.unwrap();
        lab.sleep(secs(60)).await;
        handle.signal("go", &1).await.unwrap();
        lab.sleep(secs(60)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
        let expected: Vec<_> = (0..20).rev().map(|n| format!("{n:04}")).collect();
        assert_eq!(handle.result().await.unwrap(), expected);
    });
}

#[derive(Default)]
struct Beside {
    got_count: AtomicU32,
    may_end: Notify,
}

/// Receives beside a running closure: nothing but the message itself wakes it.
#[workflow]
async fn beside(ctx: Ctx) -> Result<()> {
    let world = ctx.state::<Arc<Beside>>();
    let receives = async {
        let _: String = ctx.recv("large").await?;
        ctx.step("got", || async {
            world.got_count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .await
    };
    let runs = ctx.step("runs", || async {
        world.may_end.notified().await;
        Ok(())
    });
    let (received, ran) = futures_util::join!(receives, runs);
    received.and(ran)
}

#[test]
fn a_signal_that_is_read_again_wakes_its_execution_by_itself() {
    Lab::run(1, |lab| async move {
        let world = Arc::new(Beside::default());
        let open = |builder: Builder| builder.mail_bytes_max(10).state(world.clone());
        let (_, abide) = lab.worker_with(open).await.unwrap();
        let handle = abide.start(beside, ()).id("one").await.unwrap();
        lab.sleep(ms(2_100)).await;
        handle.signal("large", &large(1)).await.unwrap();
        lab.sleep(ms(100)).await;
        assert_eq!(world.got_count.load(Ordering::Relaxed), 1, "{}", handle.why().await.unwrap());
        world.may_end.notify_one();
        handle.result().await.unwrap();
    });
}

/// Returns everything that the store has of "one", its mail included.
async fn look(lab: &Lab) -> Snapshot {
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new("one").unwrap() };
    let read = Read { target: Target::Address(address), run: None, from: 0, limit: 0, with_inbox: true };
    lab.store().read(read).await.unwrap().unwrap()
}

#[workflow]
async fn naps(ctx: Ctx) -> Result<()> {
    ctx.sleep(hours(5)).await
}

/// Makes a store that returns mail in small pages, each of them late. It expects a few claims per
/// minute, and panics if the same execution is claimed again and again.
fn slow_pages(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    let page_bounds = PageBounds { inbox_page_count_max: 4, ..PageBounds::default() };
    let mut claim_count = 0;
    FaultyStore::deciding(MemoryStore::bounded(clock, Bounds::default(), page_bounds), move |what| {
        claim_count += u32::from(what == "claim");
        assert!(claim_count < 1_000, "it is claimed without end");
        if what == "inbox" { Fault::Delay { poll_count: 3 } } else { Fault::None }
    })
}

/// A worker finds an execution with many pages of mail, and the order that it needs is on the last
/// page. A worker that parked it after the first page would get it back at once, and read no
/// further.
#[test]
fn whoever_parks_has_read_all_mail() {
    for (what, lane, expected) in [
        ("sleeps", "default", Status::Sleeping),
        ("is resumed", "default", Status::Completed),
        ("is a task", "default", Status::Completed),
        ("has no code", "other", Status::Running),
    ] {
        Lab::run_on(1, slow_pages, |lab| async move {
            let client = lab.client().await.unwrap();
            match what {
                "is a task" => _ = client.start(gives, 1).id("one").await.unwrap(),
                "sleeps" => _ = client.start(naps, ()).id("one").await.unwrap(),
                _ => _ = client.start(reads, vec!["a".to_owned()]).id("one").await.unwrap(),
            }
            let handle = client.handle::<()>("one");
            handle.pause().await.unwrap();
            for n in 0..20 {
                handle.signal("a", &large(n)).await.unwrap();
            }
            handle.resume().await.unwrap();
            let (_, _abide) = lab.worker_with(|builder| builder.lanes([lane])).await.unwrap();
            lab.sleep(minutes(1)).await;
            assert_eq!(handle.status().await.unwrap(), expected, "{what}: {}", handle.why().await.unwrap());
            let found = look(&lab).await;
            assert!(found.lease.epoch.0 <= 3, "what {what} was leased {} times", found.lease.epoch);
        });
    }
}

/// Waits until it is cancelled, and then cleans up for five seconds.
#[workflow]
async fn stubborn(ctx: Ctx) -> Result<()> {
    let never: Result<()> = ctx.recv("never").await;
    ctx.shield(ctx.sleep(secs(5))).await?;
    never
}

/// Waits for a child for a second, and then for a signal.
#[workflow]
async fn impatient(ctx: Ctx) -> Result<String> {
    {
        let child = pin!(ctx.run(stubborn, ()));
        let second = pin!(ctx.sleep(secs(1)));
        futures_util::future::select(child, second).await;
    }
    ctx.recv("go").await
}

#[test]
fn the_answer_of_a_child_that_was_given_up_is_read() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(impatient, ()).id("one").await.unwrap();
        lab.sleep(secs(30)).await;
        let found = look(&lab).await;
        assert_eq!(found.execution.open_child_count(), 1, "its answer came too late to be recorded");
        assert!(found.inbox.messages.is_empty(), "{:?}", found.inbox.messages);
        handle.signal("go", &"on").await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "on");
    });
}

/// Waits for the faster of two children when both have answered, and then for a signal.
#[workflow]
async fn choosy(ctx: Ctx) -> Result<String> {
    let one = ctx.start(gives, 1).await?;
    let two = ctx.start(gives, 2).await?;
    ctx.sleep(secs(1)).await?;
    {
        let (one, two) = (pin!(one.result()), pin!(two.result()));
        futures_util::future::select(one, two).await;
    }
    ctx.recv("go").await
}

#[test]
fn an_answer_that_has_come_before_its_child_was_given_up_is_read() {
    for park_after in [secs(0), secs(3_600)] {
        Lab::run(1, |lab| async move {
            let (_, abide) = lab.worker_with(|builder| builder.park_after(park_after)).await.unwrap();
            let handle = abide.start(choosy, ()).id("one").await.unwrap();
            lab.sleep(secs(30)).await;
            let found = look(&lab).await;
            assert!(found.inbox.messages.is_empty(), "{:?}", found.inbox.messages);
            handle.signal("go", &"on").await.unwrap();
            assert_eq!(handle.result().await.unwrap(), "on");
        });
    }
}
