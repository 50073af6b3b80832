//! Retry: a failed or cancelled run is followed by another one.

use super::*;

/// Fails as often as the world says.
#[workflow]
async fn fails(ctx: Ctx, n: u64) -> Result<u64> {
    let world = ctx.state::<Shared>();
    ctx.step("charge", || async {
        world.ran(ctx.idempotency_key());
        if world.fails_left.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        world.fails_left.fetch_sub(1, Ordering::Relaxed);
        Err(Error::new("declined"))
    })
    .await?;
    let more: u64 = ctx.recv("more").await?;
    Ok(n + more)
}

#[task]
async fn fails_whole(ctx: Ctx, n: u64) -> Result<u64> {
    let world = ctx.state::<Shared>();
    world.ran(ctx.idempotency_key());
    match world.fails_left.load(Ordering::Relaxed) {
        0 => Ok(n),
        left => {
            world.fails_left.store(left - 1, Ordering::Relaxed);
            Err(Error::new("declined"))
        }
    }
}

#[workflow]
async fn kid(_ctx: Ctx, n: u64) -> Result<u64> {
    Ok(n)
}

/// Starts a child under the same chosen id in every run.
#[workflow]
async fn has_fixed_kid(ctx: Ctx, n: u64) -> Result<u64> {
    let started = ctx.start(kid, n).id("kid").await?;
    started.result().await?;
    Err(Error::fatal("declined"))
}

/// The child of an earlier run is not the one that a later run asks for, and the refusal says what
/// the difference is.
#[test]
fn a_later_run_is_told_whose_child_has_the_id() {
    on_both(async |lab, abide, _| {
        let handle = abide.start(has_fixed_kid, 4).id("one").await.unwrap();
        assert!(handle.result().await.is_err());
        handle.retry().await.unwrap();
        let error = handle.result().await.unwrap_err().to_string();
        let expected = r#"child "kid" was not started: "kid" exists as workflow "kid" with input 4 as child of "one" (run 1, child "kid"), the request is for workflow "kid" with input 4 as child of "one" (run 2, child "kid")"#;
        assert!(error.contains(expected), "{error}");
        let runs = told(&lab, "one").await;
        assert_eq!(words(&runs[1]), ["started", "retried", "child-started", "child-finished", "failed"]);
    });
}

#[test]
fn a_retry_runs_everything_again_under_keys_of_its_own() {
    on_both(async |lab, abide, world| {
        world.fails_left.store(2, Ordering::Relaxed);
        let handle = abide.start(fails, 5).id("one").await.unwrap();
        handle.signal("more", &1u64).await.unwrap();
        for run in 1..=2 {
            let error = handle.result().await.unwrap_err();
            assert!(matches!(error, ClientError::Failed { .. }), "run {run}: {error}");
            handle.retry().await.unwrap();
        }
        assert_eq!(handle.result().await.unwrap(), 6, "the signal that nobody had read is still there");
        let keys: Vec<_> = world.ran.lock().unwrap().clone().into_iter().collect();
        let expected = [1, 2, 3].map(|run| (format!("default/one/{run}/charge/1"), 1));
        assert_eq!(keys, expected);
        let runs = told(&lab, "one").await;
        assert_eq!(words(&runs[0]), ["started", "step-recorded", "failed"]);
        assert_eq!(words(&runs[1]), ["started", "retried", "step-recorded", "failed"]);
        assert_eq!(words(&runs[2]).last(), Some(&"completed"));
        world.fails_left.store(1, Ordering::Relaxed);
        let task = abide.start(fails_whole, 3).id("task").await.unwrap();
        assert!(task.result().await.is_err());
        task.retry().await.unwrap();
        assert_eq!(task.result().await.unwrap(), 3);
    });
}

/// A client that waits for a result first sees that the run has ended and then reads how. A retry
/// may come between.
#[test]
fn a_result_that_is_read_while_it_is_retried_is_that_of_the_new_run() {
    for make in [memory, sqlite] {
        let is_slow = Arc::new(AtomicU64::new(0));
        let slow = is_slow.clone();
        let faulty = |clock| -> Arc<dyn Store> {
            FaultyStore::deciding(make(clock), move |name| match name {
                "read" => Fault::Delay { poll_count: slow.load(Ordering::Relaxed) as u32 },
                _ => Fault::None,
            })
        };
        Lab::run_on(1, faulty, |lab| async move {
            let world = Shared::default();
            world.fails_left.store(1, Ordering::Relaxed);
            let (_, abide) = lab.worker_with(|builder| builder.state(world.clone())).await.unwrap();
            let handle = abide.start(fails, 5).id("one").await.unwrap();
            handle.result().await.unwrap_err();
            is_slow.store(50, Ordering::Relaxed);
            let again = async {
                handle.retry().await.unwrap();
                handle.signal("more", &1u64).await.unwrap();
            };
            // These are polled in this order: the client has seen the end when the retry is sent.
            let (result, ()) = tokio::join!(biased; handle.result(), again);
            assert_eq!(result.unwrap(), 6);
        });
    }
}

#[test]
fn a_retried_child_does_not_answer_again() {
    on_both(async |lab, abide, world| {
        world.fails_left.store(1, Ordering::Relaxed);
        let handle = abide.start(asks_twice, ()).id("parent").await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting, "it was told of the failure and went on");
        let child = abide.handle::<u64>("child");
        child.retry().await.unwrap();
        child.signal("more", &1u64).await.unwrap();
        assert_eq!(child.result().await.unwrap(), 2);
        lab.sleep(secs(5)).await;
        handle.signal("n", &1u64).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "execution failed: declined");
        let parent = told(&lab, "parent").await;
        assert_eq!(words(&parent[0]).iter().filter(|word| **word == "child-finished").count(), 1);
    });
}

#[workflow]
async fn asks_twice(ctx: Ctx) -> Result<String> {
    let first = ctx.run(fails, 1).id("child").await;
    let _: u64 = ctx.recv("n").await?;
    Ok(first.map_or_else(|error| format!("execution failed: {}", error.message()), |n| n.to_string()))
}
