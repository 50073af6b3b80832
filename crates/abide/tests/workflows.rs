//! The operations of workflows, on the embedded store in memory and in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide::prelude::*;
use abide::testing::Lab;
use abide::{Builder, FailureKind};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Declined {
    code: u32,
}

#[workflow]
async fn retried(ctx: Ctx, fail_count: u32) -> Result<u32> {
    let tries = AtomicU32::new(0);
    ctx.step("flaky", || async {
        let attempt = tries.fetch_add(1, Ordering::Relaxed) + 1;
        if attempt <= fail_count { Err(Error::new("not yet")) } else { Ok(attempt) }
    })
    .retry(Retry::exponential(ms(50)).max_attempts(5))
    .await
}

#[abide::test]
async fn a_step_is_retried_up_to_its_policy(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(retried, 3).await?, 4);
    let error = abide.run(retried, 5).id("too-often").await.unwrap_err();
    assert!(error.to_string().starts_with(r#"execution "too-often" failed: not yet ("#), "{error}");
    Ok(())
}

#[workflow]
async fn fatal(ctx: Ctx) -> Result<u32> {
    let tries = AtomicU32::new(0);
    let step = ctx.step("fatal", || async {
        tries.fetch_add(1, Ordering::Relaxed);
        "x".parse::<u32>().or_fatal()
    });
    let error = step.retry(Retry::fixed(secs(1))).await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Fatal);
    assert_eq!(error.type_name(), "core::num::error::ParseIntError");
    Ok(tries.into_inner())
}

#[abide::test]
async fn a_fatal_error_is_not_retried(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(fatal, ()).await?, 1);
    Ok(())
}

#[workflow]
async fn declined(ctx: Ctx) -> Result<()> {
    ctx.step("charge", || async { Err::<(), _>(Error::typed(Declined { code: 51 })) }).await
}

#[abide::test]
async fn a_typed_error_comes_back_typed(abide: Abide) -> Result<()> {
    let error = abide.run(declined, ()).await.unwrap_err();
    assert_eq!(error.get::<Declined>(), Some(Declined { code: 51 }));
    assert_eq!(error.get::<u32>(), None);
    Ok(())
}

#[workflow]
async fn slow(ctx: Ctx) -> Result<String> {
    let step = ctx.step("hang", || async {
        std::future::pending::<()>().await;
        Ok(())
    });
    let error = step.timeout(secs(30)).await.unwrap_err();
    Ok(format!("{} {}", error.is_timeout(), error))
}

#[abide::test]
async fn a_step_that_hangs_times_out(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(slow, ()).await?, "true the attempt took longer than 30s");
    Ok(())
}

#[abide::test]
async fn select_takes_the_first(abide: Abide) -> Result<()> {
    let handle = abide.start(answered, 60).await?;
    handle.signal("answer", &()).await?;
    assert_eq!(handle.result().await?, "answered");
    assert_eq!(abide.run(answered, 60).await?, "timed out");
    Ok(())
}

#[workflow]
async fn answered(ctx: Ctx, seconds: u64) -> Result<String> {
    raced_inner(ctx, seconds).await.map(str::to_owned)
}

async fn raced_inner(ctx: Ctx, seconds: u64) -> Result<&'static str> {
    select! {
        _ = ctx.recv::<()>("answer") => Ok("answered"),
        _ = ctx.sleep(secs(seconds)) => Ok("timed out"),
    }
}

#[workflow]
async fn fan_out(ctx: Ctx, width: u64) -> Result<Vec<u64>> {
    let mut all: FuturesUnordered<_> = (0..width).map(|n| doubled_later(&ctx, n)).collect();
    let mut results = Vec::new();
    while let Some(result) = all.next().await {
        results.push(result?);
    }
    Ok(results)
}

async fn doubled_later(ctx: &Ctx, n: u64) -> Result<u64> {
    ctx.sleep(secs(100 - n)).named(format!("wait-{n}")).await?;
    ctx.step(&format!("double-{n}"), || async { Ok(n * 2) }).await
}

#[abide::test]
async fn futures_unordered_gives_results_as_they_come(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(fan_out, 40).await?, (0..40).rev().map(|n| n * 2).collect::<Vec<_>>());
    Ok(())
}

#[workflow]
async fn passed_on(ctx: Ctx) -> Result<u64> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let send = async { Ok::<_, Error>(sender.send(ctx.step("seven", || async { Ok(7) }).await?)) };
    let (sent, received) = futures_util::join!(send, receiver);
    sent?.map_err(|_| Error::new("nobody listens"))?;
    Ok(received?)
}

#[abide::test]
async fn a_workflow_may_wake_itself_in_its_last_poll(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(passed_on, ()).await?, 7);
    Ok(())
}

#[workflow]
async fn interrupted(ctx: Ctx) -> Result<()> {
    ctx.step("begin", || async { Ok(()) }).await?;
    let error = ctx.sleep(days(1)).await.unwrap_err();
    assert!(error.is_cancelled());
    Err(error)
}

#[abide::test]
async fn a_cancelled_workflow_sees_it_and_ends_cancelled(abide: Abide) -> Result<()> {
    let handle = abide.start(interrupted, ()).id("victim").await?;
    while handle.status().await? != Status::Sleeping {
        abide.run(retried, 0).await?;
    }
    handle.cancel("changed my mind").await?;
    let error = handle.result().await.unwrap_err();
    assert_eq!(error.to_string(), r#"execution "victim" was cancelled by client: changed my mind"#);
    let again = handle.cancel("again").await.unwrap_err();
    assert_eq!(again.to_string(), r#"execution "victim": it is cancelled already"#);
    Ok(())
}

#[workflow]
async fn parent_of_sleeper(ctx: Ctx) -> Result<()> {
    ctx.run(sleeper, ()).id("sleeper").await
}

#[workflow]
async fn sleeper(ctx: Ctx) -> Result<()> {
    ctx.step("begin", || async { Ok(()) }).await?;
    ctx.sleep(days(365)).await
}

#[abide::test]
async fn cancelling_a_parent_cancels_its_children(abide: Abide) -> Result<()> {
    let handle = abide.start(parent_of_sleeper, ()).await?;
    let child = abide.handle::<()>("sleeper");
    while !matches!(child.status().await, Ok(Status::Sleeping)) {
        abide.run(retried, 1).await?;
    }
    handle.cancel("enough").await?;
    assert!(matches!(handle.result().await, Err(ClientError::Cancelled { .. })));
    assert!(matches!(child.result().await, Err(ClientError::Cancelled { .. })));
    Ok(())
}

#[workflow]
async fn gives_up_child(ctx: Ctx) -> Result<()> {
    select! {
        _ = ctx.run(sleeper, ()).id("given-up") => Err(Error::new("it cannot end")),
        _ = ctx.sleep(secs(5)) => Ok(()),
    }
}

#[abide::test]
async fn dropping_a_run_cancels_that_child(abide: Abide) -> Result<()> {
    abide.run(gives_up_child, ()).await?;
    let end = abide.handle::<()>("given-up").result().await;
    assert!(matches!(end, Err(ClientError::Cancelled { .. })), "{end:?}");
    Ok(())
}

#[workflow]
async fn pausable(ctx: Ctx) -> Result<u64> {
    let n: u64 = ctx.recv("n").await?;
    ctx.step("use", || async { Ok(n) }).await
}

#[abide::test]
async fn a_paused_workflow_starts_nothing_until_resumed(abide: Abide) -> Result<()> {
    let handle = abide.start(pausable, ()).id("p").await?;
    handle.pause().await?;
    while handle.status().await? != Status::Paused {
        abide.run(retried, 1).await?;
    }
    handle.signal("n", &7u64).await?;
    abide.run(retried, 4).await?;
    assert_eq!(handle.status().await?, Status::Paused);
    handle.resume().await?;
    assert_eq!(handle.result().await?, 7);
    let error = handle.resume().await.unwrap_err();
    assert_eq!(error.to_string(), r#"execution "p": it is completed already"#);
    Ok(())
}

#[tokio::test]
async fn a_pause_that_nobody_has_seen_can_be_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("app.db").display());
    create(&folder.path().join("app.db"));
    let client = Abide::client(&url).await.unwrap();
    let handle = client.start(pausable, ()).id("p").await.unwrap();
    handle.signal("n", &7u64).await.unwrap();
    handle.pause().await.unwrap();
    handle.resume().await.unwrap();
    let error = handle.resume().await.unwrap_err();
    assert_eq!(error.to_string(), r#"execution "p": it is not paused"#);
    let abide = Abide::open(&url).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 7);
    abide.shutdown().await;
}

#[workflow]
async fn panics(ctx: Ctx, in_step: bool) -> Result<()> {
    if in_step {
        let step = ctx.step("boom", || async { panic!("in the step") });
        let result: Result<()> = step.await;
        assert_eq!(result.as_ref().unwrap_err().kind(), FailureKind::Panic);
        return result;
    }
    panic!("in the workflow")
}

#[abide::test]
async fn panics_are_recorded_with_their_message(abide: Abide) -> Result<()> {
    let error = abide.run(panics, true).id("a").await.unwrap_err();
    assert!(error.to_string().starts_with(r#"execution "a" failed: in the step ("#), "{error}");
    let error = abide.run(panics, false).id("b").await.unwrap_err();
    assert!(error.to_string().starts_with(r#"execution "b" failed: in the workflow ("#), "{error}");
    assert_eq!(abide.run(retried, 0).await?, 1);
    Ok(())
}

#[workflow]
async fn chancy(ctx: Ctx) -> Result<(u64, String, u64, String)> {
    let first = (ctx.random(), ctx.uuid());
    ctx.sleep(hours(1)).await?;
    Ok((first.0, first.1, ctx.random(), ctx.uuid()))
}

#[abide::test]
async fn chance_is_the_same_in_every_replay(abide: Abide) -> Result<()> {
    let (a, uuid, b, other) = abide.run(chancy, ()).id("x").await?;
    assert!(a != b && uuid != other);
    assert_eq!(uuid.len(), 36);
    assert_eq!(&uuid[14..15], "4");
    let (c, ..) = abide.run(chancy, ()).id("y").await?;
    assert_ne!(a, c);
    Ok(())
}

#[workflow]
async fn clocked(ctx: Ctx) -> Result<bool> {
    let before = ctx.now();
    ctx.sleep(days(2)).await?;
    let slept = ctx.now().since(before);
    let until = ctx.now().after(hours(3));
    ctx.sleep_until(until).await?;
    let over = ctx.now().since(until);
    Ok(slept >= days(2) && slept < days(2) + secs(5) && ctx.now() >= until && over < ms(100))
}

#[abide::test]
async fn sleeps_take_their_time(abide: Abide) -> Result<()> {
    assert!(abide.run(clocked, ()).await?);
    Ok(())
}

#[workflow]
async fn late(ctx: Ctx) -> Result<()> {
    ctx.sleep(days(10)).await
}

#[abide::test]
async fn a_deadline_ends_an_execution(abide: Abide) -> Result<()> {
    let error = abide.run(late, ()).deadline(hours(1)).await.unwrap_err();
    assert!(error.to_string().contains("the deadline"), "{error}");
    Ok(())
}

#[workflow]
async fn counted(ctx: Ctx) -> Result<u32> {
    Ok(ctx.state::<Arc<AtomicU32>>().fetch_add(1, Ordering::Relaxed))
}

#[abide::test]
async fn missing_state_is_an_error_that_names_its_type(abide: Abide) -> Result<()> {
    let error = abide.run(counted, ()).await.unwrap_err();
    assert!(error.to_string().contains("AtomicU32"), "{error}");
    Ok(())
}

#[workflow]
async fn resized(ctx: Ctx, bytes: Vec<u8>) -> Result<usize> {
    ctx.blocking("count", move || Ok(bytes.len())).await
}

#[abide::test]
async fn blocking_steps_run_on_the_pool(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(resized, vec![1, 2, 3]).await?, 3);
    Ok(())
}

#[task]
async fn mail(ctx: Ctx, to: String) -> Result<String> {
    if to == "nobody" {
        return Err(Error::new("no such address"));
    }
    Ok(format!("{to} {}", ctx.idempotency_key()))
}

#[abide::test]
async fn tasks_run_whole_and_are_retried_whole(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(mail, "ann".into()).id("m").await?, "ann default/m/1");
    let failed =
        abide.run(mail, "nobody".into()).retry(Retry::fixed(hours(1)).max_attempts(4)).await.unwrap_err();
    assert!(failed.to_string().contains("no such address"));
    Ok(())
}

#[task]
async fn wants_a_journal(ctx: Ctx) -> Result<()> {
    ctx.step("x", || async { Ok(()) }).await
}

#[abide::test]
async fn a_task_has_no_journal(abide: Abide) -> Result<()> {
    let error = abide.run(wants_a_journal, ()).id("t").await.unwrap_err();
    let told = r#"execution "t" failed: step "x" needs a workflow: a task has no journal (task "wants_a_journal", attempt 1, at "#;
    assert!(error.to_string().starts_with(told), "{error}");
    Ok(())
}

#[workflow]
async fn reserve(ctx: Ctx, count: i64) -> Result<i64> {
    ctx.sqlite("table", |tx| {
        tx.execute_batch("CREATE TABLE IF NOT EXISTS stock (left INTEGER); INSERT INTO stock VALUES (10)")?;
        Ok(())
    })
    .await?;
    let reserved = ctx
        .sqlite("reserve", move |tx| {
            tx.execute("UPDATE stock SET left = left - ?1", [count])?;
            let left: i64 = tx.query_row("SELECT left FROM stock", [], |row| row.get(0))?;
            if left < 0 { Err(Error::fatal("sold out")) } else { Ok(left) }
        })
        .await;
    let left =
        ctx.sqlite("look", |tx| Ok(tx.query_row("SELECT left FROM stock", [], |row| row.get(0))?)).await?;
    match reserved {
        Ok(then) if then == left => Ok(left),
        Ok(then) => Err(Error::fatal(format!("{then} is not {left}"))),
        Err(error) => Err(Error::fatal(format!("{error}, {left} left"))),
    }
}

#[abide::test]
async fn a_transaction_step_commits_with_its_record_or_not_at_all(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(reserve, 4).await?, 6);
    Ok(())
}

#[abide::test]
async fn a_failed_transaction_step_leaves_no_trace(abide: Abide) -> Result<()> {
    let error = abide.run(reserve, 40).id("r").await.unwrap_err();
    assert!(error.to_string().starts_with(r#"execution "r" failed: sold out, 10 left ("#), "{error}");
    Ok(())
}

#[workflow]
async fn tagged(_ctx: Ctx) -> Result<()> {
    Ok(())
}

#[abide::test]
async fn executions_are_found_by_tag_status_and_name(abide: Abide) -> Result<()> {
    abide.run(tagged, ()).id("a").tag("customer", "c7").tag("region", "eu").await?;
    abide.run(tagged, ()).id("b").tag("customer", "c8").tag("region", "eu").await?;
    let _ = abide.run(declined, ()).id("c").tag("customer", "c7").await;
    let ids = |found: Vec<abide::Listed>| found.into_iter().map(|one| one.id).collect::<Vec<_>>();
    assert_eq!(ids(abide.list(Filter::all()).await?), ["c", "b", "a"]);
    assert_eq!(ids(abide.list(Filter::all().tag("customer", "c7")).await?), ["c", "a"]);
    let both = || Filter::all().tag("customer", "c7").tag("region", "eu");
    assert_eq!(ids(abide.list(both()).await?), ["a"], "it has all of the tags");
    assert_eq!(ids(abide.list(Filter::failed().tag("customer", "c7")).await?), ["c"]);
    assert_eq!(ids(abide.list(Filter::all().workflow("tagged").oldest_first()).await?), ["a", "b"]);
    assert_eq!(ids(abide.list(Filter::all().take(1)).await?), ["c"]);
    Ok(())
}

#[abide::test]
async fn a_delayed_start_begins_later(abide: Abide) -> Result<()> {
    let handle = abide.start(tagged, ()).delay(days(3)).await?;
    assert_eq!(handle.status().await?, Status::Scheduled);
    handle.result().await?;
    Ok(())
}

#[abide::test]
async fn the_same_start_attaches_and_another_is_refused(abide: Abide) -> Result<()> {
    abide.run(retried, 0).id("one").await?;
    assert_eq!(abide.run(retried, 0).id("one").await?, 1);
    let error = abide.run(retried, 1).id("one").await.unwrap_err();
    assert!(matches!(error, ClientError::Conflict { .. }));
    assert_eq!(
        error.to_string(),
        r#"execution "one" exists as workflow "retried" with input 0, the request is for workflow "retried" with input 1"#
    );
    Ok(())
}

#[workflow]
async fn long(ctx: Ctx, step_count: u32) -> Result<u32> {
    let ran = ctx.state::<Arc<AtomicU32>>();
    let mut sum = 0;
    for n in 0..step_count {
        let step = ctx.step(&format!("step-{n}"), || async {
            ran.fetch_add(1, Ordering::Relaxed);
            Ok(n)
        });
        sum += step.await?;
    }
    Ok(sum)
}

#[test]
fn a_journal_that_is_too_long_blocks_until_the_limit_is_raised() {
    Lab::run(5, |lab| async move {
        let ran = Arc::new(AtomicU32::new(0));
        let with = async |entry_count_max| {
            let ran = ran.clone();
            lab.worker_with(|builder| builder.state(ran).entry_count_max(entry_count_max)).await.unwrap()
        };
        let (machine, abide) = with(5).await;
        let handle = abide.start(long, 10).id("long").await.unwrap();
        lab.sleep(hours(1)).await;
        let reason = "the journal has reached the limit entry_count_max: 5 entries, at most 5";
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        let why = handle.why().await.unwrap();
        assert!(why.starts_with(r#"workflow "long" is blocked since"#) && why.contains(reason), "{why}");
        assert_eq!(ran.load(Ordering::Relaxed), 4, "its start is an entry too, and there is no loop");
        lab.crash(machine);
        // A worker with the same bound tries once more.
        let (machine, abide) = with(5).await;
        lab.sleep(hours(1)).await;
        let handle = abide.handle::<u32>("long");
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        assert_eq!(ran.load(Ordering::Relaxed), 4);
        lab.crash(machine);
        let (_, abide) = with(100).await;
        let handle = abide.handle::<u32>("long");
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed);
        assert_eq!(handle.result().await.unwrap(), (0..10).sum::<u32>());
        assert_eq!(ran.load(Ordering::Relaxed), 10, "what was recorded was not run again");
    });
}

/// The builder can be handed around.
fn _with_state(builder: Builder) -> Builder {
    builder.state(Arc::new(AtomicU32::new(0)))
}

#[workflow]
async fn joins_borrowing(ctx: Ctx, order: Vec<u32>) -> Result<u32> {
    let discount = 1;
    let sum = |part: &[u32]| part.iter().sum::<u32>();
    let (left, right) = order.split_at(order.len() / 2);
    let (a, b) = futures_util::join!(
        ctx.step("left", || async { Ok(sum(left) - discount) }),
        ctx.step("right", || async { Ok(sum(right) - discount) }),
    );
    // Steps with different closures are one type.
    let mut rest = FuturesUnordered::new();
    rest.push(ctx.step("again", || async { Ok(discount) }));
    rest.push(ctx.step("once more", || async { Ok(order.len() as u32) }));
    let mut all = a? + b?;
    while let Some(n) = rest.next().await {
        all += n?;
    }
    Ok(all)
}

#[abide::test]
async fn joined_steps_borrow_what_is_around_them(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(joins_borrowing, vec![1, 2, 3, 4]).await?, 13);
    Ok(())
}

/// Makes an empty store: a client creates none, and a worker would take the started executions.
fn create(path: &std::path::Path) {
    let clock = Arc::new(abide_engine::SystemClock);
    let store = abide_sqlite::SqliteStore::open(path, clock, abide_sqlite::Options::default());
    store.expect("the store can be made").close();
}
