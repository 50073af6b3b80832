//! Errors say where they were: the operation, the attempt, and file and line of the call.

use abide::prelude::*;
use abide::{Error, Origin};

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
        ("workflow", r#"workflow "of_its_own""#.to_owned()),
        ("task", r#"task "job", attempt 2"#.to_owned()),
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
