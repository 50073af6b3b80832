//! A chain of runs whose machine stops after any operation.

use super::*;

/// The number of runs in the chain.
const RUN_COUNT: u64 = 3;

#[workflow]
async fn ledger(ctx: Ctx, (left, total): (u64, u64)) -> Result<u64> {
    let world = ctx.state::<Shared>();
    let n = ctx
        .step("count", || async {
            world.ran(ctx.idempotency_key());
            Ok(1u64)
        })
        .await?;
    let signal: u64 = ctx.recv("n").await?;
    let child = ctx.run(sum_of_one, signal).await?;
    let total = total + n + child;
    if left == 1 { Ok(total) } else { ctx.continue_as_new((left - 1, total)).await }
}

/// Continues as new, as a child.
#[workflow]
async fn sum_of_one(ctx: Ctx, n: u64) -> Result<u64> {
    if ctx.run_number() == 1 {
        return ctx.continue_as_new(n * 10).await;
    }
    Ok(n)
}

/// Runs the chain, and stops its machine when operation `nth` has happened, before it is answered.
/// Returns `false` if there are fewer operations.
fn crash_at(make: fn(Arc<dyn Clock>) -> Arc<dyn Store>, nth: u64) -> bool {
    let (count, now) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
    let (counter, notify) = (count.clone(), now.clone());
    let faulty = |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(make(clock), move |name| {
            // The heartbeat and the wait for notices write nothing about an execution.
            if name == "wait" || name == "heartbeat" {
                return Fault::None;
            }
            if counter.fetch_add(1, Ordering::Relaxed) != nth {
                return Fault::None;
            }
            notify.notify_one();
            Fault::Delay { poll_count: 1_000 }
        })
    };
    Lab::run_on(nth, faulty, |lab| async move {
        let world = Shared::default();
        let open = || {
            lab.worker_with(|builder| builder.state(world.clone()).session_ttl(secs(3)).park_after(secs(1)))
        };
        let (_, starter) = lab.worker_with(|builder| builder.lanes(["elsewhere"])).await.unwrap();
        let handle = starter.start(ledger, (RUN_COUNT, 0)).id("one").await.unwrap();
        for n in 1..=RUN_COUNT {
            handle.signal("n", &n).await.unwrap();
        }
        let begun = count.load(Ordering::Relaxed);
        if nth < begun {
            return true;
        }
        let (machine, _abide) = tokio::select! {
            biased;
            opened = open() => opened.unwrap(),
            () = now.notified() => return true,
        };
        let was_hit = tokio::select! {
            biased;
            () = now.notified() => true,
            _ = handle.result() => false,
        };
        lab.crash(machine);
        let _other = open().await.unwrap();
        tokio::select! {
            biased;
            result = handle.result() => assert_eq!(result.unwrap(), RUN_COUNT + 10 * (1 + 2 + 3), "{nth}"),
            () = lab.sleep(hours(1)) => panic!("operation {nth}: stuck: {:?}", told(&lab, "one").await),
        }
        check_chain(&told(&lab, "one").await, nth);
        for run in 1..=RUN_COUNT {
            assert!(world.ran.lock().unwrap().contains_key(&format!("default/one/{run}/count/1")), "{nth}");
        }
        was_hit
    })
}

fn check_chain(runs: &[Vec<Event>], nth: u64) {
    assert_eq!(runs.len() as u64, RUN_COUNT, "operation {nth}");
    for (index, run) in runs.iter().enumerate() {
        let end = if index + 1 == runs.len() { "completed" } else { "continued-as-new" };
        let expected =
            ["started", "step-recorded", "signal-received", "child-started", "child-finished", end];
        assert_eq!(words(run), expected, "operation {nth}, run {}", index + 1);
    }
}

#[test]
fn a_crash_after_any_operation_of_a_chain_loses_and_repeats_nothing() {
    for make in [memory, sqlite] {
        let mut nth = 0;
        while crash_at(make, nth) {
            nth += 1;
        }
        assert!(nth > 20, "only {nth} operations");
    }
}
