//! The bounds on texts and values that people and programs pass in, however long they are.

use std::sync::Arc;

use abide::Builder;
use abide::prelude::*;
use abide::testing::{Lab, kept};
use abide_core::{Bounds, Event, Outcome};
use abide_store::conformance::recorded;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Record, Store};
use serde::{Deserialize, Serialize};

const BYTES_MAX: usize = 1_000;

/// The most bytes that an entry needs beside its bounded parts.
const ENTRY_BYTES_MAX: usize = 2_000;

const LONG: usize = 100_000;

fn long() -> String {
    "x".repeat(LONG)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Declined {
    text: String,
}

#[derive(Debug)]
struct Caused(Option<Box<Caused>>);

impl std::fmt::Display for Caused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&long())
    }
}

impl std::error::Error for Caused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.as_deref().map(|cause| cause as _)
    }
}

fn failing(how: &str) -> Result<u32> {
    match how {
        "message" => Err(Error::new(long())),
        "chain" => Err((0..100).fold(Caused(None), |cause, _| Caused(Some(Box::new(cause)))).into()),
        "value" => Err(Error::typed(Declined { text: long() })),
        "panic" => panic!("{}", long()),
        how => unreachable!("{how}"),
    }
}

#[workflow]
async fn step_fails(ctx: Ctx, how: String) -> Result<u32> {
    ctx.step("x", || async { failing(&how) }).retry(Retry::fixed(ms(1)).max_attempts(2)).await
}

#[workflow]
async fn workflow_fails(_ctx: Ctx, how: String) -> Result<u32> {
    failing(&how)
}

#[task]
async fn task_fails(_ctx: Ctx, how: String) -> Result<u32> {
    failing(&how)
}

#[workflow]
async fn child_fails(ctx: Ctx, how: String) -> Result<u32> {
    ctx.run(task_fails, how).await
}

fn bounded(builder: Builder) -> Builder {
    builder.failure_bytes_max(BYTES_MAX).default_retry(Retry::fixed(ms(1)).max_attempts(2))
}

async fn records(lab: &Lab) -> Vec<Record> {
    let all = recorded(&**lab.store(), &abide_core::Namespace::default()).await.unwrap();
    all.into_iter().map(|item| item.record).collect()
}

#[test]
fn errors_have_a_bound_wherever_they_come_from() {
    for how in ["message", "chain", "value", "panic"] {
        Lab::run(1, |lab| async move {
            let (_, abide) = lab.worker_with(bounded).await.unwrap();
            let how = how.to_owned();
            let ended = [
                abide.run(step_fails, how.clone()).await,
                abide.run(workflow_fails, how.clone()).await,
                abide.run(task_fails, how.clone()).await,
                abide.run(child_fails, how.clone()).await,
            ];
            for error in ended.map(Result::unwrap_err) {
                let said = error.to_string();
                assert!(said.contains("left out") && said.len() < ENTRY_BYTES_MAX, "{how}: {said}");
                assert_eq!(error.get::<Declined>(), None, "{how}");
            }
            let largest = records(&lab).await.iter().map(|record| record.bytes.len()).max();
            assert!(largest.unwrap() < ENTRY_BYTES_MAX, "{how}: {largest:?}");
        });
    }
}

#[test]
fn an_error_is_no_larger_than_a_payload_may_be() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.payload_bytes_max(BYTES_MAX)).await.unwrap();
        abide.run(step_fails, "message".to_owned()).await.unwrap_err();
        let largest = records(&lab).await.iter().map(|record| record.bytes.len()).max();
        assert!(largest.unwrap() < ENTRY_BYTES_MAX, "{largest:?}");
    });
}

#[test]
fn a_typed_error_within_the_bound_keeps_its_value() {
    #[workflow]
    async fn declines(ctx: Ctx, text: String) -> Result<u32> {
        ctx.step("x", || async { Err(Error::typed(Declined { text: text.clone() })) }).await
    }
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker_with(bounded).await.unwrap();
        let error = abide.run(declines, "y".repeat(900)).await.unwrap_err();
        assert_eq!(error.get(), Some(Declined { text: "y".repeat(900) }));
    });
}

#[test]
fn the_text_of_an_obstacle_is_cut() {
    /// A type whose serializer returns a long error.
    #[derive(Deserialize)]
    struct Loud;

    impl Serialize for Loud {
        fn serialize<S: serde::Serializer>(&self, _: S) -> std::result::Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom(long()))
        }
    }

    #[workflow]
    async fn loud(ctx: Ctx) -> Result<()> {
        ctx.step("x", || async { Ok(Loud) }).await.map(drop)
    }

    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker_with(bounded).await.unwrap();
        let handle = abide.start(loud, ()).id("one").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        let is_cut = |record: &Record| match record.entry().unwrap().event {
            Event::StepRecorded(step) => {
                let Outcome::Unrecordable(lost) = step.outcome else { return false };
                lost.reason.contains("bytes left out") && lost.reason.len() < ENTRY_BYTES_MAX
            }
            _ => record.bytes.len() < ENTRY_BYTES_MAX,
        };
        assert!(records(&lab).await.iter().all(is_cut));
    });
}

#[workflow]
async fn doubles(_ctx: Ctx, n: u32) -> Result<u32> {
    Ok(2 * n)
}

#[test]
fn whoever_has_asked_for_a_result_is_forgotten() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let client = lab.client().await.unwrap();
        for n in 0..10 {
            let id = n.to_string();
            assert_eq!(abide.run(doubles, n).id(&id).await.unwrap(), 2 * n);
            for asks in [&abide, &client] {
                assert_eq!(asks.handle::<u32>(&id).result().await.unwrap(), 2 * n);
                assert!(asks.run(doubles, n + 1).id(&id).await.is_err(), "it was started with {n}");
                assert!(asks.handle::<u32>("nothing").result().await.is_err());
            }
        }
        assert_eq!(kept(&abide).watched_count, 0);
        assert_eq!(kept(&client).watched_count, 0);
    });
}

#[workflow]
async fn one_step(ctx: Ctx) -> Result<u32> {
    ctx.step("x", || async { Ok(1) }).await
}

/// Lets a commit fail for good, and the operations after it meet `faults`. The worker whose commit
/// failed looks for the execution and finds that it no longer holds it.
fn check_failure_is_forgotten(faults: Vec<(&'static str, Fault)>, status: Status, is_frozen: bool) {
    let mut faults = std::collections::VecDeque::from(faults);
    let decide = move |name| match faults.front() {
        Some((of, _)) if *of == name => faults.pop_front().map_or(Fault::None, |(_, fault)| fault),
        _ => Fault::None,
    };
    let store = |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), decide)
    };
    Lab::run_on(1, store, |lab| async move {
        let (machine, abide) = lab.worker_with(|builder| builder.session_ttl(secs(3))).await.unwrap();
        let handle = abide.start(one_step, ()).id("one").await.unwrap();
        lab.sleep(ms(100)).await;
        assert_eq!(kept(&abide).failure_count, 1, "its commit has failed");
        if is_frozen {
            lab.freeze(machine);
            let (other, _abide) = lab.worker().await.unwrap();
            lab.sleep(secs(30)).await;
            lab.crash(other);
            lab.thaw(machine);
        }
        lab.sleep(secs(30)).await;
        assert_eq!(handle.status().await.unwrap(), status);
        assert_eq!(kept(&abide).failure_count, 0);
    });
}

#[test]
fn a_failed_commit_is_forgotten_when_somebody_else_has_gone_on() {
    check_failure_is_forgotten(vec![("commit", Fault::Corrupt)], Status::Completed, true);
}

#[test]
fn a_failed_commit_is_forgotten_when_its_execution_is_set_aside() {
    let faults = vec![("commit", Fault::Corrupt), ("read", Fault::Corrupt)];
    check_failure_is_forgotten(faults, Status::Damaged, false);
}

#[test]
fn a_failed_commit_is_forgotten_when_it_goes_well_the_next_time() {
    check_failure_is_forgotten(vec![("commit", Fault::Corrupt)], Status::Completed, false);
}
