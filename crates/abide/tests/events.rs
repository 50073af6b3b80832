//! The events that reach the application's log, with their ids and levels.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::Bounds;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Store, Target};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[workflow]
async fn fine(ctx: Ctx) -> Result<u32> {
    ctx.step("x", || async { Ok(1) }).await
}

/// Where the next workflow asks for its step.
const FAILS_LINE: u32 = line!() + 5;

#[workflow]
async fn fails(ctx: Ctx) -> Result<()> {
    let again = Retry::exponential(ms(10)).max_attempts(2);
    ctx.step("call", || async { Err(Error::new("503\u{202e}\nno")) }).retry(again).await
}

const CLASH_LINE: u32 = line!() + 5;

#[workflow]
async fn clashes(ctx: Ctx) -> Result<()> {
    ctx.step("x", || async { Ok(()) }).await?;
    ctx.sleep(ms(1)).named("x").await
}

#[workflow]
async fn parent(ctx: Ctx) -> Result<u32> {
    ctx.run(fine, ()).id("child-1").await
}

#[workflow]
async fn hangs(ctx: Ctx) -> Result<()> {
    ctx.step("hang", std::future::pending).await
}

#[derive(Clone, Debug)]
struct Line {
    level: Level,
    fields: BTreeMap<String, String>,
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Line>>>);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("abide")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line { level: *event.metadata().level(), fields: BTreeMap::new() };
        event.record(&mut line);
        self.0.lock().unwrap().push(line);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Log {
    /// Returns the lines about one execution: level, message and the other fields.
    fn about(&self, id: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap().clone();
        let lines =
            lines.into_iter().filter(|line| line.fields.get("execution").is_some_and(|found| found == id));
        let told = lines.map(|mut line| {
            let message = line.fields.remove("message").unwrap_or_default();
            line.fields.retain(|name, _| !["execution", "namespace", "epoch"].contains(&name.as_str()));
            let rest: Vec<String> =
                line.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("{} {message}: {}", line.level, rest.join(" "))
        });
        told.collect()
    }

    fn says(&self, level: Level, message: &str) -> bool {
        self.count(level, message) > 0
    }

    fn count(&self, level: Level, message: &str) -> usize {
        let is = |line: &&Line| {
            line.level == level && line.fields.get("message").is_some_and(|m| m.contains(message))
        };
        self.0.lock().unwrap().iter().filter(is).count()
    }
}

#[test]
fn the_log_tells_the_lives_of_executions() {
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        Lab::run(1, async |lab| {
            let (machine, worker) = lab.worker().await.unwrap();
            worker.run(fine, ()).id("fine-1").await.unwrap();
            worker.run(fails, ()).id("fails-1").await.unwrap_err();
            worker.run(parent, ()).id("parent-1").await.unwrap();
            let stuck = worker.start(clashes, ()).id("stuck-1").await.unwrap();
            worker.run(fine, ()).id("late-1").delay(secs(1)).deadline(ms(1)).await.unwrap_err();
            let again = worker.start(fine, ()).id("fine-1").priority(3).await.unwrap();
            assert!(again.is_attached());
            worker.start(hangs, ()).id("hangs-1").await.unwrap();
            lab.sleep(secs(1)).await;
            assert_eq!(stuck.status().await.unwrap(), Status::Blocked);
            lab.crash(machine);
            let (second, other) = lab.worker().await.unwrap();
            lab.sleep(secs(60)).await;
            other.handle::<()>("hangs-1").cancel("enough").await.unwrap();
            lab.freeze(second);
            lab.sleep(secs(60)).await;
            lab.thaw(second);
            lab.sleep(secs(60)).await;
        });
    });
    assert_eq!(
        log.about("fine-1"),
        [
            "DEBUG an execution was started: kind=workflow name=fine",
            "DEBUG an execution completed: run=1",
            "WARN a start attached to an execution that was started with other options, which stay as they are: differences=priority",
        ]
    );
    let late = log.about("late-1");
    assert!(late.iter().any(|line| line.starts_with("WARN an execution failed: error=")), "{late:?}");
    let site = format!("{}:{FAILS_LINE}", file!());
    let place = format!(r#"step "call" of workflow "fails", attempt 2, at {site}"#);
    let attempt = |number: u32, again: bool| {
        format!(
            r#"WARN an attempt failed: at={site} attempt={number} error=503\u{{202e}}\nno op=step "call" run=1 will_retry={again}"#
        )
    };
    assert_eq!(
        log.about("fails-1"),
        [
            "DEBUG an execution was started: kind=workflow name=fails".to_owned(),
            attempt(1, true),
            attempt(2, false),
            format!(r"WARN an execution failed: at={place} error=503\u{{202e}}\nno run=1"),
        ]
    );
    assert_eq!(log.about("parent-1")[1], "DEBUG a child was started: child=child-1 run=1");
    assert_eq!(log.about("child-1"), ["DEBUG an execution completed: run=1"]);
    let clash = format!(r#"the name "x" is used for a step and for a timer (at {}:{CLASH_LINE})"#, file!());
    assert_eq!(log.about("stuck-1")[1], format!("WARN an execution is blocked: reason={clash} run=1"));
    let told = log.about("hangs-1");
    assert_eq!(
        told[1], "WARN an execution of a worker that died is taken over: takeover_count=1",
        "{told:?}"
    );
    assert!(
        told.contains(&"INFO an execution was cancelled: by=by client: enough run=1".to_owned()),
        "{told:?}"
    );
    assert!(log.says(Level::WARN, "the session was lost, and with it every lease"));
}

/// Its session ends before the dispatcher does.
#[test]
fn a_clean_shutdown_is_no_reason_to_warn() {
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        for seed in 0..20 {
            Lab::run(seed, async |lab| {
                let (_, worker) = lab.worker().await.unwrap();
                worker.run(fine, ()).id("fine-1").await.unwrap();
                worker.shutdown().await;
                lab.sleep(secs(1)).await;
            });
        }
    });
    assert!(!log.says(Level::WARN, ""), "{:?}", log.0.lock().unwrap());
}

/// Its lease is known to the store alone, because no claim is answered.
#[test]
fn a_row_that_stays_unreadable_is_reported_once() {
    let store = |clock| -> Arc<dyn Store> {
        let mute = FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), |what| match what {
            "claim" => Fault::Indeterminate,
            _ => Fault::None,
        });
        FaultyStore::reading(mute, |read| match read.target {
            Target::Key(_) => Fault::Unread,
            Target::Address(_) => Fault::None,
        })
    };
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        Lab::run_on(1, store, async |lab| {
            lab.client().await.unwrap().start(fine, ()).id("fine-1").await.unwrap();
            let _worker = lab.worker().await.unwrap();
            lab.sleep(hours(1)).await;
        });
    });
    assert_eq!(log.count(Level::ERROR, ""), 1);
    assert!(log.says(Level::ERROR, "the row of an execution cannot be read"));
}

#[workflow]
async fn mother(ctx: Ctx) -> Result<u32> {
    ctx.start(hangs, ()).id("child-2").await?;
    ctx.recv("go").await
}

#[test]
fn a_store_that_cannot_list_is_reported_once_for_each_need() {
    let is_unread = Arc::new(AtomicBool::new(false));
    let unread = is_unread.clone();
    let store = move |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| match what {
            "list" if unread.load(Ordering::Relaxed) => Fault::Unread,
            _ => Fault::None,
        })
    };
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        Lab::run_on(1, store, async |lab| {
            let (_, worker) = lab.worker_with(|builder| builder.park_after(ms(10))).await.unwrap();
            let handle = worker.start(mother, ()).id("mother-1").await.unwrap();
            lab.sleep(secs(10)).await;
            is_unread.store(true, Ordering::Relaxed);
            handle.terminate("enough").await.unwrap();
            lab.sleep(hours(1)).await;
        });
    });
    let counts =
        ["the children of a run cannot be listed", "what is blocked cannot be asked to try again", ""];
    assert_eq!(counts.map(|message| log.count(Level::ERROR, message)), [1, 1, 2]);
    assert!(!log.says(Level::WARN, "what is blocked"));
}

#[test]
fn heartbeats_that_fail_are_reported_once_and_again_when_they_succeed() {
    let is_away = Arc::new(AtomicBool::new(false));
    let away = is_away.clone();
    let store = move |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| match what {
            "heartbeat" if away.load(Ordering::Relaxed) => Fault::Unavailable,
            _ => Fault::None,
        })
    };
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        Lab::run_on(1, store, async |lab| {
            let _worker = lab.worker().await.unwrap();
            for is_failing in [true, false, true, false] {
                is_away.store(is_failing, Ordering::Relaxed);
                lab.sleep(secs(9)).await;
            }
        });
    });
    let counts =
        [(Level::WARN, "a heartbeat did not go through"), (Level::INFO, "heartbeats go through again")];
    assert_eq!(counts.map(|(level, message)| log.count(level, message)), [2, 2]);
    assert!(log.count(Level::DEBUG, "another heartbeat did not go through") > 10);
}

/// Each of them sends its commit again and again.
#[test]
fn commits_that_fail_are_reported_once_for_all_executions() {
    let is_away = Arc::new(AtomicBool::new(false));
    let away = is_away.clone();
    let store = move |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| match what {
            "commit" if away.load(Ordering::Relaxed) => Fault::Unavailable,
            _ => Fault::None,
        })
    };
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        Lab::run_on(1, store, async |lab| {
            let (_, worker) = lab.worker().await.unwrap();
            for outage in 0..2 {
                is_away.store(true, Ordering::Relaxed);
                for nth in 0..50 {
                    worker.start(fine, ()).id(format!("fine-{outage}-{nth}")).await.unwrap();
                }
                lab.sleep(minutes(1)).await;
                is_away.store(false, Ordering::Relaxed);
                lab.sleep(minutes(1)).await;
            }
        });
    });
    assert_eq!(log.count(Level::WARN, "a commit did not go through"), 2);
    assert!(log.count(Level::DEBUG, "a commit did not go through") > 1_000);
}

#[workflow]
async fn waits(ctx: Ctx) -> Result<u32> {
    ctx.recv("go").await
}

/// The commit that returns its lease has happened, and is not answered for long. Heartbeats find
/// that the store no longer has the lease.
#[test]
fn a_lease_that_is_being_returned_is_not_reported_as_lost() {
    let is_mute = Arc::new(AtomicBool::new(false));
    let mute = is_mute.clone();
    let store = move |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| match what {
            "commit" if mute.load(Ordering::Relaxed) => Fault::Indeterminate,
            _ => Fault::None,
        })
    };
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        Lab::run_on(1, store, async |lab| {
            let (_, worker) = lab.worker_with(|builder| builder.park_after(secs(17))).await.unwrap();
            let handle = worker.start(waits, ()).id("waits-1").await.unwrap();
            lab.sleep(secs(16)).await;
            is_mute.store(true, Ordering::Relaxed);
            lab.sleep(minutes(1)).await;
            is_mute.store(false, Ordering::Relaxed);
            lab.sleep(secs(5)).await;
            handle.signal("go", &7u32).await.unwrap();
            assert_eq!(handle.result().await.unwrap(), 7);
        });
    });
    assert!(!log.says(Level::WARN, "an execution left memory"));
}
