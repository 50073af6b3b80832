//! A wall clock that is set forward and back under a worker: durations keep their length, and
//! points in time follow the clock.

use std::future::{Future, IntoFuture, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::Builder;
use abide::prelude::*;
use abide::testing::{Lab, Machine, Skew};
use abide_core::{Bounds, Namespace};
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Retire, Store, WorkerRow, Workers};
use futures_util::future::{Either, select};
use tokio::sync::Semaphore;

#[derive(Clone, Copy, Debug)]
enum Set {
    Forward(Duration),
    Back(Duration),
}

impl Set {
    const BOTH: [Self; 2] = [Self::Forward(hours(1)), Self::Back(hours(1))];

    fn apply(self, lab: &Lab) {
        match self {
            Self::Forward(by) => lab.set_clock_forward(by),
            Self::Back(by) => lab.set_clock_back(by),
        }
    }
}

/// A session life so long that setting the clock forward does not end the session.
const TTL: Duration = hours(12);

async fn worker(lab: &Lab) -> (Machine, Abide) {
    lab.worker_with(|builder| builder.session_ttl(TTL)).await.unwrap()
}

/// Returns the output of `future`, or `None` if it takes longer than `patience` of virtual time.
async fn within<T>(lab: &Lab, patience: Duration, future: impl Future<Output = T>) -> Option<T> {
    match select(Box::pin(future), Box::pin(lab.sleep(patience))).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

#[workflow]
async fn naps(ctx: Ctx, nap: Duration) -> Result<u32> {
    ctx.sleep(nap).await?;
    ctx.step("one", || async { Ok(1) }).await
}

#[workflow]
async fn waits(ctx: Ctx) -> Result<u32> {
    ctx.recv("go").await
}

#[workflow]
async fn hangs(ctx: Ctx, timeout: Duration) -> Result<String> {
    let hung = ctx.step("hangs", || async { pending::<Result<u32>>().await }).timeout(timeout).await;
    Ok(hung.unwrap_err().to_string())
}

#[test]
fn a_client_that_waits_is_told_after_the_clock_was_set() {
    for set in Set::BOTH {
        Lab::run(1, |lab| async move {
            let (_, abide) = worker(&lab).await;
            let client = lab.client().await.unwrap();
            let here = abide.start(waits, ()).id("one").await.unwrap();
            let there = client.handle::<u32>("one");
            let setting = async {
                lab.sleep(secs(5)).await;
                set.apply(&lab);
                here.signal("go", &7u32).await.unwrap();
            };
            let both = futures_util::future::join3(here.result(), there.result(), setting);
            let (here, there, ()) = within(&lab, secs(10), both).await.unwrap_or_else(|| panic!("{set:?}"));
            assert_eq!((here.unwrap(), there.unwrap()), (7, 7));
        });
    }
}

#[test]
fn a_heartbeat_goes_on_after_the_clock_was_set() {
    for set in Set::BOTH {
        Lab::run(1, |lab| async move {
            let _worker = lab.worker_with(|builder| builder.session_ttl(secs(3))).await.unwrap();
            lab.sleep(ms(10)).await;
            set.apply(&lab);
            lab.sleep(ms(1)).await;
            let sessions = sessions(&lab).await;
            let [session] = sessions.as_slice() else { panic!("{sessions:?}") };
            let retire = Retire { session: session.session, reason: "by an operator".to_owned() };
            lab.store().retire(retire).await.unwrap();
            // Only a heartbeat finds that the session is gone, and registers another one.
            lab.sleep(secs(3)).await;
            let live = self::sessions(&lab).await.into_iter().find(|row| row.retired.is_none());
            assert!(live.is_some_and(|row| row.session != session.session), "{set:?}");
        });
    }
}

async fn sessions(lab: &Lab) -> Vec<WorkerRow> {
    lab.store().workers(Workers { namespace: Namespace::default(), after: None, limit: 100 }).await.unwrap()
}

#[test]
fn the_grace_of_a_shutdown_lasts_as_long_as_it_says() {
    for set in Set::BOTH {
        Lab::run(1, |lab| async move {
            let grace = |builder: Builder| builder.session_ttl(TTL).shutdown_grace(secs(30));
            let (_, abide) = lab.worker_with(grace).await.unwrap();
            abide.start(hangs, hours(3)).id("one").await.unwrap();
            lab.sleep(secs(1)).await;
            let ended = AtomicU32::new(0);
            let shutdown = async {
                abide.shutdown().await;
                ended.store(1, Ordering::SeqCst);
            };
            let watch = async {
                lab.sleep(secs(5)).await;
                set.apply(&lab);
                lab.sleep(secs(24)).await;
                assert_eq!(ended.load(Ordering::SeqCst), 0, "{set:?}: the grace was cut short");
                lab.sleep(secs(7)).await;
                assert_eq!(ended.load(Ordering::SeqCst), 1, "{set:?}: the grace is over");
            };
            futures_util::join!(shutdown, watch);
        });
    }
}

#[test]
fn a_timeout_lasts_as_long_as_it_says() {
    for set in Set::BOTH {
        Lab::run(1, |lab| async move {
            let (_, abide) = worker(&lab).await;
            let handle = abide.start(hangs, secs(30)).id("one").await.unwrap();
            lab.sleep(secs(5)).await;
            set.apply(&lab);
            lab.sleep(secs(24)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Running, "{set:?}");
            lab.sleep(secs(2)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Completed, "{set:?}");
        });
    }
}

#[test]
fn what_is_due_follows_the_wall_clock() {
    let rows = [
        // In the first row, the execution is in memory when the clock is set; in the second, it is
        // parked.
        (secs(1), ms(900)),
        (hours(2), secs(10)),
    ];
    for (nap, before) in rows {
        for set in Set::BOTH {
            Lab::run(1, |lab| async move {
                let (_, abide) =
                    lab.worker_with(|builder| builder.session_ttl(TTL).park_after(secs(2))).await.unwrap();
                let handle = abide.start(naps, nap).id("one").await.unwrap();
                lab.sleep(before).await;
                set.apply(&lab);
                let left = match set {
                    Set::Forward(by) => (nap - before).saturating_sub(by),
                    Set::Back(by) => nap - before + by,
                };
                lab.sleep(left.saturating_sub(secs(1))).await;
                let early = handle.status().await.unwrap();
                assert!(left < secs(2) || !early.is_terminal(), "{set:?} {nap:?}: {early}");
                lab.sleep(secs(3)).await;
                assert_eq!(handle.status().await.unwrap(), Status::Completed, "{set:?} {nap:?}");
            });
        }
    }
}

#[test]
fn an_execution_that_waits_leaves_memory_after_the_clock_was_set_back() {
    Lab::run(1, |lab| async move {
        let (_, abide) = worker(&lab).await;
        let handle = abide.start(waits, ()).id("one").await.unwrap();
        lab.sleep(ms(10)).await;
        lab.set_clock_back(hours(1));
        lab.sleep(secs(2)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting);
        let held: u64 = sessions(&lab).await.iter().map(|session| session.lease_count).sum();
        assert_eq!(held, 0);
    });
}

/// Tries durations at their edges, one in each execution.
#[workflow]
async fn edges(ctx: Ctx, n: u32) -> Result<String> {
    let one = || async { Ok(1u32) };
    let stuck = || pending::<Result<u32>>();
    let said = |is_err: bool| if is_err { "timeout" } else { "result" };
    let said = match n {
        0 => said(ctx.step("s", stuck).timeout(Duration::ZERO).await.is_err()),
        1 => said(ctx.step("s", stuck).timeout(Duration::from_nanos(1)).await.is_err()),
        2 => said(ctx.step("s", one).timeout(Duration::MAX).await.is_err()),
        // It does not begin.
        3 => said(ctx.step("s", one).timeout(Duration::ZERO).await.is_err()),
        4 => said(ctx.recv::<u32>("x").timeout(Duration::ZERO).await.is_err()),
        5 => ctx.sleep(Duration::ZERO).await.map(|()| "result")?,
        6 => ctx.sleep_until(Timestamp::from_micros(i64::MIN)).await.map(|()| "result")?,
        _ => unreachable!("there are no more rows"),
    };
    Ok(said.to_owned())
}

#[test]
fn durations_of_zero_and_of_the_largest_size_are_what_they_say() {
    let rows = ["timeout", "timeout", "result", "timeout", "timeout", "result", "result"];
    Lab::run(1, |lab| async move {
        let (_, abide) = worker(&lab).await;
        for (n, expected) in (0..).zip(rows) {
            let ended = within(&lab, secs(2), abide.run(edges, n).into_future()).await;
            let said = ended.unwrap_or_else(|| panic!("row {n} hangs")).unwrap();
            assert_eq!(said, expected, "row {n}");
        }
    });
}

/// Waits in ways that never end.
#[workflow]
async fn forever(ctx: Ctx, n: u32) -> Result<()> {
    let fails = || async { Err::<u32, _>(Error::new("no")) };
    match n {
        0 => ctx.sleep(Duration::MAX).await?,
        1 => ctx.sleep_until(Timestamp::MAX).await?,
        2 => drop(ctx.recv::<u32>("x").timeout(Duration::MAX).await?),
        _ => drop(ctx.step("s", fails).retry(Retry::fixed(Duration::MAX)).await?),
    }
    Ok(())
}

#[test]
fn what_waits_for_ever_waits() {
    let rows = [Status::Sleeping, Status::Sleeping, Status::Waiting, Status::Sleeping];
    Lab::run(1, |lab| async move {
        let (_, abide) = worker(&lab).await;
        for (n, expected) in (0..).zip(rows) {
            let handle = abide.start(forever, n).await.unwrap();
            lab.sleep(secs(10)).await;
            assert_eq!(handle.status().await.unwrap(), expected, "row {n}");
            lab.set_clock_forward(hours(1));
            lab.sleep(secs(60)).await;
            assert_eq!(handle.status().await.unwrap(), expected, "row {n}");
        }
    });
}

#[test]
fn a_session_that_could_not_live_is_refused() {
    Lab::run(1, |lab| async move {
        for ttl in [Duration::ZERO, ms(49)] {
            let refused = lab.worker_with(|builder| builder.session_ttl(ttl)).await.map(drop).unwrap_err();
            let said = refused.to_string();
            assert!(said.contains("session_ttl") && said.contains("50 ms"), "{said}");
            assert!(matches!(refused, ClientError::Invalid { .. }), "{refused:?}");
        }
        assert_eq!(sessions(&lab).await, []);
        for ttl in [ms(50), Duration::MAX] {
            let (_, abide) = lab.worker_with(|builder| builder.session_ttl(ttl)).await.unwrap();
            assert_eq!(abide.run(naps, secs(1)).await.unwrap(), 1);
            abide.shutdown().await;
        }
    });
}

/// Nothing else happens in this world, so the counts follow from the clock alone.
#[test]
fn nothing_runs_twice_because_the_clock_was_set_back() {
    #[derive(Default)]
    struct Count(AtomicU32);

    #[task]
    async fn fails_twice(ctx: Ctx) -> Result<u32> {
        let count = ctx.state::<Arc<Count>>().0.fetch_add(1, Ordering::SeqCst) + 1;
        if count < 3 { Err(Error::new("not yet")) } else { Ok(count) }
    }

    Lab::run(1, |lab| async move {
        let count = Arc::new(Count::default());
        let open = |builder: Builder| builder.session_ttl(TTL).state(count.clone());
        let (_, abide) = lab.worker_with(open).await.unwrap();
        let retry = Retry::fixed(secs(10)).max_attempts(5);
        let handle = abide.start(fails_twice, ()).retry(retry).await.unwrap();
        lab.sleep(secs(5)).await;
        lab.set_clock_back(secs(60));
        lab.sleep(secs(60)).await;
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "the next attempt is due when the clock says so");
        lab.sleep(secs(30)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed);
        assert_eq!(count.0.load(Ordering::SeqCst), 3);
    });
}

#[workflow]
async fn gated(ctx: Ctx) -> Result<u32> {
    let gate = ctx.state::<Arc<Semaphore>>();
    ctx.step("gated", || async {
        gate.acquire().await?.forget();
        Ok(1)
    })
    .await
}

/// Every execution in memory loses its lease with the session, and each of them asks for the
/// session.
#[test]
fn a_session_that_is_gone_is_replaced_once() {
    const COUNT: usize = 200;
    let slow = |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), |name| match name {
            "read" | "heartbeat" | "register" => Fault::Delay { poll_count: 3 },
            _ => Fault::None,
        })
    };
    Lab::run_on(1, slow, |lab| async move {
        let gate = Arc::new(Semaphore::new(0));
        let open = |builder: Builder| builder.state(gate.clone()).session_ttl(secs(15));
        let (_, abide) = lab.worker_with(open).await.unwrap();
        for n in 0..COUNT {
            abide.start(gated, ()).id(format!("n-{n}")).await.unwrap();
        }
        lab.sleep(secs(1)).await;
        lab.set_clock_forward(secs(20));
        gate.add_permits(10 * COUNT);
        lab.sleep(secs(30)).await;
        assert_eq!(abide.list(Filter::completed().take(1_000)).await.unwrap().len(), COUNT);
        assert_eq!(sessions(&lab).await.len(), 2, "one session was lost, and one is there in its place");
    });
}

/// When the store says that a timer is not due yet, the engine asks again now and then, not without
/// end.
#[test]
fn a_worker_whose_clock_is_ahead_of_its_store_asks_now_and_then() {
    const AHEAD: Duration = secs(4);
    let claim_count = Arc::new(AtomicU32::new(0));
    let counter = claim_count.clone();
    let make = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |operation| {
            let count = counter.fetch_add(u32::from(operation == "claim"), Ordering::Relaxed);
            assert!(count < 1_000, "it asks without end");
            Fault::None
        })
    };
    Lab::run_on(1, make, |lab| async move {
        let (machine, abide) = worker(&lab).await;
        lab.set_skew(machine, Skew::Ahead(AHEAD));
        let handle = abide.start(naps, secs(30)).id("one").await.unwrap();
        assert_eq!(within(&lab, secs(40), handle.result()).await.unwrap().unwrap(), 1);
        let count = claim_count.load(Ordering::Relaxed);
        assert!(count < 100, "{count} claims in 30 seconds");
    });
}

/// On the clock of the machine, a nanosecond is over before anything is polled.
#[tokio::test]
async fn a_timeout_that_is_over_before_the_first_poll_ends_its_step() {
    let abide = Abide::open("sqlite::memory:").await.unwrap();
    // Without its timeout, the step would last until the deadline.
    let said = abide.run(timed, ()).deadline(secs(2)).await;
    assert!(said.is_ok_and(|is_timeout| is_timeout));
    abide.shutdown().await;
}

#[workflow]
async fn timed(ctx: Ctx) -> Result<bool> {
    let error = ctx.step("s", pending::<Result<()>>).timeout(Duration::from_nanos(1)).await.unwrap_err();
    Ok(error.is_timeout())
}
