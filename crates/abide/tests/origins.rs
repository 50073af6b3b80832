//! Errors say where they were: the operation, the attempt, and file and line of the call.

use abide::prelude::*;
use abide::testing::Lab;
use abide::{Error, Origin};
use futures_util::future::join;

/// The line of the call that the next workflow fails in, which is the one below `line!()`.
const STEP_LINE: u32 = line!() + 4;

#[workflow]
async fn fails(ctx: Ctx) -> Result<u32> {
    ctx.step("charge", || async { Err(Error::new("declined")) })
        .retry(Retry::fixed(ms(1)).max_attempts(3))
        .await
}

#[workflow]
async fn of_its_own(_ctx: Ctx) -> Result<u32> {
    Err(Error::new("empty"))
}

fn wrapped() -> Result<u32> {
    let error = anyhow::Error::from(Error::new("deep").into_std());
    Err(Error::from(error.context("outer")))
}

/// Its error is wrapped and copied on its way.
#[workflow]
async fn of_another_line(_ctx: Ctx) -> Result<u32> {
    let error = wrapped().unwrap_err();
    Err(error.clone())
}

const OUTER_LINE: u32 = line!() + 4;

#[workflow]
async fn in_a_helper(ctx: Ctx) -> Result<u32> {
    ctx.step("helped", || async { wrapped() }).await
}

#[task]
async fn job() -> Result<u32> {
    Err(Error::new("offline"))
}

/// What became of the error of a child, by its place.
#[workflow]
async fn parent(ctx: Ctx, which: String) -> Result<String> {
    let outcome = match which.as_str() {
        "step" => ctx.run(fails, ()).await,
        "workflow" => ctx.run(of_its_own, ()).await,
        "wrapped" => ctx.run(of_another_line, ()).await,
        "helper" => ctx.run(in_a_helper, ()).await,
        _ => ctx.run(job, ()).retry(Retry::fixed(ms(1)).max_attempts(2)).await,
    };
    Ok(outcome.unwrap_err().origin().map(Origin::to_string).unwrap_or_default())
}

#[workflow]
async fn in_a_transaction(ctx: Ctx) -> Result<u32> {
    abide::testing::transact(&ctx, "store", |_| Err(Error::new("no such table"))).await
}

fn site(line: u32) -> String {
    format!("{}:{line}", file!())
}

#[abide::test]
async fn an_error_of_a_step_names_workflow_attempt_and_line(abide: Abide) -> Result<()> {
    let error = abide.run(fails, ()).id("f").await.unwrap_err();
    let place = format!(r#"step "charge" of workflow "fails", attempt 3, at {}"#, site(STEP_LINE));
    assert_eq!(error.to_string(), format!(r#"execution "f" failed: declined ({place})"#));
    let error = Error::from(error);
    assert_eq!(
        (error.to_string(), format!("{error:#}")),
        ("declined".to_owned(), format!("declined ({place})"))
    );
    assert_eq!(format!("{error:?}"), format!("declined ({place})"));
    assert_eq!(error.origin().map(|place| place.attempt), Some(Some(3)));
    // What others wrap still knows it.
    let wrapped = Error::from(anyhow::Error::from(error.into_std()).context("checkout"));
    assert_eq!(wrapped.origin().map(Origin::to_string), Some(place));
    assert_eq!(Error::new("x").origin(), None);
    Ok(())
}

#[abide::test]
async fn the_innermost_place_is_told(abide: Abide) -> Result<()> {
    let rows = [
        ("step", format!(r#"step "charge" of workflow "fails", attempt 3, at {}"#, site(STEP_LINE))),
        ("workflow", format!(r#"workflow "of_its_own", at {}"#, at(r#"Err(Error::new("empty"))"#))),
        (
            "wrapped",
            format!(r#"workflow "of_another_line", at {}"#, at(r#"anyhow::Error::from(Error::new("deep")"#)),
        ),
        // In a step the line of the call counts, not the line in some helper.
        ("helper", format!(r#"step "helped" of workflow "in_a_helper", attempt 1, at {}"#, site(OUTER_LINE))),
        ("task", format!(r#"task "job", attempt 2, at {}"#, at(r#"Err(Error::new("offline"))"#))),
    ];
    for (which, place) in rows {
        assert_eq!(abide.run(parent, which.to_owned()).await?, place);
    }
    let error = Error::from(abide.run(in_a_transaction, ()).await.unwrap_err());
    let place = error.origin().map(Origin::to_string).unwrap_or_default();
    assert!(place.starts_with(r#"transaction "store" of workflow "in_a_transaction", at "#), "{place}");
    assert!(place.contains(file!()), "{place}");
    Ok(())
}

#[workflow]
async fn sleeps_in_a_step(ctx: Ctx) -> Result<()> {
    ctx.step("outer", || async { ctx.sleep(secs(1)).await }).await
}

#[workflow]
#[expect(clippy::disallowed_methods, reason = "another thread is what the test is about; it is joined")]
async fn spawns(ctx: Ctx) -> Result<()> {
    let inner = ctx.clone();
    let step = async move { inner.step("inner", || async { Ok(()) }).await };
    ctx.step("spawn", || async { Ok(()) }).await?;
    // As a task of the runtime does: polled by another thread.
    let polled = std::thread::spawn(move || {
        let mut step = std::pin::pin!(step);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        step.as_mut().poll(&mut cx).is_pending()
    });
    assert!(polled.join().is_ok());
    ctx.sleep(secs(1)).await
}

#[abide::test]
async fn a_misplaced_operation_is_named_with_its_line(abide: Abide) -> Result<()> {
    let error = abide.run(sleeps_in_a_step, ()).await.unwrap_err().to_string();
    let expected = format!(r#"timer "(sleep)" (at {}:"#, file!());
    assert!(error.contains(&expected) && error.contains(r#"is used inside step "outer""#), "{error}");
    let error = abide.run(spawns, ()).await.unwrap_err().to_string();
    let expected = format!(r#"step "inner" (at {}:"#, file!());
    assert!(error.contains(&expected) && error.contains("outside of its workflow's own code"), "{error}");
    Ok(())
}

/// Returns file and line of the first line of this file that contains these words.
fn at(words: &str) -> String {
    let line = include_str!("origins.rs").lines().position(|line| line.contains(words));
    site(u32::try_from(line.expect("a line has these words") + 1).unwrap())
}

/// Waits for each sort of thing that can fail without a closure of its own.
#[workflow]
async fn waits(ctx: Ctx, which: String) -> Result<()> {
    match which.as_str() {
        "signal" => ctx.recv("never").timeout(secs(1)).await,
        "sleep" => ctx.sleep(hours(5)).await,
        "cancelled" => ctx.run(waits, "sleep".to_owned()).id("kid").await,
        "refused" => {
            ctx.start(of_its_own, ()).id("taken").await?;
            ctx.run(waits, "sleep".to_owned()).id("taken").await
        }
        "late" => ctx.run(waits, "sleep".to_owned()).deadline(secs(1)).await,
        other => Err(Error::new(other)),
    }
}

async fn origin_of(abide: &Abide, which: &str) -> String {
    let error = Error::from(abide.run(waits, which.to_owned()).id(which).await.unwrap_err());
    error.origin().map(Origin::to_string).unwrap_or_default()
}

#[test]
fn a_wait_that_fails_is_named_with_its_line() {
    Lab::run(1, |lab| async move {
        let (_machine, abide) = lab.worker_with(|builder| builder).await.unwrap();
        failed_waits(&lab, &abide).await.unwrap();
    });
}

async fn failed_waits(lab: &Lab, abide: &Abide) -> Result<()> {
    let expected = format!(r#"signal "never" of workflow "waits", at {}"#, at(r#"ctx.recv("never")"#));
    assert_eq!(origin_of(abide, "signal").await, expected);
    let handle = abide.start(waits, "cancelled".to_owned()).await?;
    lab.sleep(secs(1)).await;
    abide.handle::<()>("kid").cancel("no").await?;
    let error = Error::from(handle.result().await.unwrap_err());
    let expected = format!(
        r#"result of child "waits" of workflow "waits", at {}"#,
        at(r#"=> ctx.run(waits, "sleep".to_owned()).id("kid")"#)
    );
    assert_eq!(error.origin().map(Origin::to_string), Some(expected));
    let expected = format!(
        r#"result of child "waits" of workflow "waits", at {}"#,
        at(r#"  ctx.run(waits, "sleep".to_owned()).id("taken")"#)
    );
    assert_eq!(origin_of(abide, "refused").await, expected);
    let expected = format!(r#"timer "(sleep)" of workflow "waits", at {}"#, at("ctx.sleep(hours(5))"));
    assert_eq!(origin_of(abide, "late").await, expected);
    Ok(())
}

fn once() -> Retry {
    Retry::fixed(ms(1)).max_attempts(1)
}

#[task]
async fn reads(text: String) -> Result<u32> {
    let number = text.parse::<u32>()?;
    Ok(number)
}

#[task]
async fn reads_or_gives_up(text: String) -> Result<u32> {
    text.parse::<u32>().or_fatal()
}

#[task]
async fn steps(ctx: Ctx) -> Result<()> {
    ctx.step("in a task", || async { Ok(()) }).await
}

#[task]
async fn panics_in_a_task() -> Result<()> {
    trip("task")
}

#[workflow]
async fn panics_in_a_workflow(ctx: Ctx) -> Result<()> {
    ctx.step("fine", || async { Ok(()) }).await?;
    trip("workflow")
}

#[workflow]
async fn panics_in_a_step(ctx: Ctx, is_blocking: bool) -> Result<()> {
    if is_blocking {
        return ctx.blocking("trip", || trip("thread")).retry(once()).await;
    }
    ctx.step("trip", || async { trip("step") }).retry(once()).await
}

#[workflow]
async fn panics_in_a_judge(ctx: Ctx) -> Result<()> {
    ctx.step("judged", || async { Err(Error::new("no")) })
        .retry(Retry::fixed(ms(1)))
        .retry_if(|_| trip("judge").is_ok())
        .await
}

fn trip(over: &str) -> Result<()> {
    panic!("tripped over a {over}")
}

#[abide::test]
async fn an_error_of_a_task_names_the_line_it_arose_in(abide: Abide) -> Result<()> {
    let error = Error::from(abide.run(reads, "no".to_owned()).retry(once()).await.unwrap_err());
    let expected = format!(r#"task "reads", attempt 1, at {}"#, at("text.parse::<u32>()?"));
    assert_eq!(error.origin().map(Origin::to_string), Some(expected));
    let error = Error::from(abide.run(reads_or_gives_up, "no".to_owned()).await.unwrap_err());
    let expected = format!(r#"task "reads_or_gives_up", attempt 1, at {}"#, at(".or_fatal()"));
    assert_eq!(error.origin().map(Origin::to_string), Some(expected));
    let error = Error::from(abide.run(steps, ()).await.unwrap_err());
    let expected = format!(r#"task "steps", attempt 1, at {}"#, at(r#"ctx.step("in a task""#));
    assert_eq!(error.origin().map(Origin::to_string), Some(expected));
    Ok(())
}

#[abide::test]
async fn a_panic_is_named_with_its_own_line(abide: Abide) -> Result<()> {
    let panicked = at(r#"panic!("tripped"#);
    let error = abide.run(panics_in_a_task, ()).retry(once()).await.unwrap_err();
    let place = format!(r#"task "panics_in_a_task", attempt 1, at {panicked}"#);
    assert!(error.to_string().ends_with(&format!("tripped over a task ({place})")), "{error}");
    let error = abide.run(panics_in_a_workflow, ()).await.unwrap_err();
    let place = format!(r#"workflow "panics_in_a_workflow", at {panicked}"#);
    assert!(error.to_string().ends_with(&format!("tripped over a workflow ({place})")), "{error}");
    let error = abide.run(panics_in_a_judge, ()).await.unwrap_err();
    let place = format!(r#"step "judged" of workflow "panics_in_a_judge", attempt 1, at {panicked}"#);
    assert!(error.to_string().ends_with(&format!("tripped over a judge: no ({place})")), "{error}");
    for (is_blocking, over) in [(false, "step"), (true, "thread")] {
        let error = abide.run(panics_in_a_step, is_blocking).await.unwrap_err();
        let place = format!(r#"step "trip" of workflow "panics_in_a_step", attempt 1, at {panicked}"#);
        assert!(error.to_string().ends_with(&format!("tripped over a {over} ({place})")), "{error}");
    }
    Ok(())
}

#[workflow]
async fn awaits_something_else(ctx: Ctx, is_beside: bool) -> Result<()> {
    ctx.step("before", || async { Ok(()) }).await?;
    let other = std::future::pending();
    match is_beside {
        true => join(other, ctx.sleep(hours(1))).await.0,
        false => other.await,
    }
}

#[workflow]
async fn claims_a_used_name(ctx: Ctx) -> Result<()> {
    ctx.step("used", || async { Ok(()) }).await?;
    ctx.step("new", || async { Ok(()) }).renamed_from("used").await
}

#[workflow]
async fn uses_a_name_twice(ctx: Ctx) -> Result<()> {
    ctx.step("both", || async { Ok(()) }).await?;
    ctx.sleep(secs(1)).named("both").await
}

#[abide::test]
async fn a_block_names_the_line(abide: Abide) -> Result<()> {
    for is_beside in [false, true] {
        let error = abide.run(awaits_something_else, is_beside).await.unwrap_err().to_string();
        let expected = match is_beside {
            false => format!(r#"after step "before" (at {})"#, at(r#"ctx.step("before""#)),
            true => format!(r#"after timer "(sleep)" (at {})"#, at("=> join(other")),
        };
        assert!(error.contains(&expected), "{error}");
        assert!(error.contains(r#"workflow "awaits_something_else" awaits something"#), "{error}");
    }
    let error = abide.run(claims_a_used_name, ()).await.unwrap_err().to_string();
    assert!(error.contains(&format!("(at {})", at(r#"ctx.step("new""#))), "{error}");
    let error = abide.run(uses_a_name_twice, ()).await.unwrap_err().to_string();
    assert!(error.contains(&format!("(at {})", at(r#".named("both")"#))), "{error}");
    Ok(())
}

#[abide::test]
async fn why_names_step_and_line_of_a_failure(abide: Abide) -> Result<()> {
    abide.run(fails, ()).id("f").await.unwrap_err();
    let why = abide.handle::<u32>("f").why().await?;
    let place = format!(r#"declined (step "charge" of workflow "fails", attempt 3, at {})"#, site(STEP_LINE));
    assert!(why.contains(&place), "{why}");
    Ok(())
}

#[workflow]
async fn nameless(ctx: Ctx) -> Result<bool> {
    Ok(ctx.patched(""))
}

#[workflow]
async fn ever_patched(ctx: Ctx) -> Result<usize> {
    Ok((0..100_000).filter(|change| ctx.patched(&change.to_string())).count())
}

#[workflow]
async fn odd_child(ctx: Ctx) -> Result<bool> {
    ctx.run(nameless, ()).lane("").await
}

#[abide::test]
async fn a_refused_name_or_number_of_changes_is_told_with_its_line(abide: Abide) {
    let named = abide.run(nameless, ()).await.unwrap_err().to_string();
    assert!(named.contains(&format!("(at {}:", file!())), "{named}");
    let counted = abide.run(ever_patched, ()).await.unwrap_err().to_string();
    assert!(
        counted.contains("patch_count_max") && counted.contains(&format!("(at {}:", file!())),
        "{counted}"
    );
    let child = abide.run(odd_child, ()).await.unwrap_err().to_string();
    assert!(child.contains("lane") && child.contains(&format!("(at {}:", file!())), "{child}");
}
