//! Wrong input of every kind: a clear error that names the thing, nothing written, no panic.

#![expect(clippy::disallowed_methods, reason = "workflows that await what they must not are what is tested")]

use std::collections::BTreeMap;

use abide::prelude::*;
use serde::{Deserialize, Serialize};

#[workflow]
async fn fine(_ctx: Ctx, _input: String) -> Result<String> {
    Ok("fine".to_owned())
}

/// A type whose values do not all serialize: JSON has no keys but strings.
#[derive(Clone, Serialize, Deserialize)]
struct Odd(BTreeMap<(u32, u32), u32>);

fn odd() -> Odd {
    Odd([((1, 2), 3)].into())
}

#[workflow]
async fn odd_input(_ctx: Ctx, _odd: Odd) -> Result<()> {
    Ok(())
}

#[workflow]
async fn odd_step(ctx: Ctx) -> Result<()> {
    ctx.step("odd", || async { Ok(odd()) }).await?;
    Ok(())
}

#[workflow]
async fn odd_result(_ctx: Ctx) -> Result<Odd> {
    Ok(odd())
}

#[workflow]
async fn big_step(ctx: Ctx, size: usize) -> Result<usize> {
    Ok(ctx.step("big", || async { Ok("x".repeat(size)) }).await?.len())
}

#[workflow]
async fn awaits_tokio(ctx: Ctx) -> Result<()> {
    ctx.step("before", || async { Ok(()) }).await?;
    tokio::time::sleep(ms(5)).await;
    Ok(())
}

#[workflow]
async fn races_tokio(ctx: Ctx) -> Result<()> {
    tokio::select! {
        _ = tokio::time::sleep(ms(5)) => Ok(()),
        _ = ctx.recv::<()>("never") => Ok(()),
    }
}

#[workflow]
async fn nests(ctx: Ctx) -> Result<()> {
    ctx.step("outer", || async { ctx.step("inner", || async { Ok(()) }).await }).await
}

#[workflow]
async fn clashes(ctx: Ctx) -> Result<()> {
    ctx.step("x", || async { Ok(()) }).await?;
    ctx.sleep(ms(1)).named("x").await
}

#[workflow]
async fn badly_named(ctx: Ctx, name: String) -> Result<()> {
    ctx.step(&name, || async { Ok(()) }).await
}

#[workflow]
async fn timed(ctx: Ctx, micros: u64) -> Result<u32> {
    let step = ctx.step("quick", || async { Ok(1) });
    step.timeout(std::time::Duration::from_micros(micros)).await
}

/// Waits until an execution is blocked and says why.
async fn blocked<W: abide::Workflow>(abide: &Abide, code: W, input: W::Input) -> Result<String> {
    let handle = abide.start(code, input).id("b").await?;
    while handle.status().await? != Status::Blocked {
        // Steps may wait for the outside world; a run of something else lets a little time pass.
        abide.run(timed, 1_000_000).await?;
        std::thread::yield_now();
    }
    let listed = abide.list(Filter::blocked()).await?;
    assert_eq!(listed.len(), 1);
    let why = handle.why().await?;
    let (_, reason) = why.split_once(" ago): ").unwrap();
    Ok(reason.trim_end_matches('.').to_owned())
}

#[abide::test]
async fn names_ids_and_tags_are_checked(abide: Abide) -> Result<()> {
    let input = || "x".to_owned();
    let long = "x".repeat(256);
    let cut = "x".repeat(40);
    let start = || abide.start(fine, input());
    let rows = [
        (start().id(""), r#"execution id "" is empty"#.to_owned()),
        (start().id("a\0b"), r#"execution id "a\0b" contains the control character U+0000"#.to_owned()),
        (start().id(&long), format!("execution id {cut:?} is too long: 256 bytes, at most 255")),
        (start().lane(""), r#"name "" is empty"#.to_owned()),
        (start().lane("a\nb"), r#"name "a\nb" contains the control character U+000A"#.to_owned()),
        (start().tag("", "x"), r#"name "" is empty"#.to_owned()),
        (start().tag("k", &long), format!("name {cut:?} is too long: 256 bytes, at most 255")),
        (start().requires([""]), r#"name "" is empty"#.to_owned()),
    ];
    for (start, expected) in rows {
        assert_eq!(start.await.unwrap_err().to_string(), expected);
    }
    let many = (0..10_000).fold(start(), |start, n| start.tag("k", n.to_string()));
    let error = many.id("many").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"execution "many": the number of tags is over the limit tag_count_max: 10000, at most 64"#
    );
    assert_eq!(abide.list(Filter::all()).await?, []);
    Ok(())
}

#[abide::test]
async fn signals_are_checked(abide: Abide) -> Result<()> {
    let error = abide.handle::<()>("nobody").signal("x", &1).await.unwrap_err();
    assert!(matches!(error, ClientError::Unknown { .. }));
    assert_eq!(error.to_string(), r#"there is no execution "nobody""#);
    abide.run(fine, "x".into()).id("done").await?;
    let error = abide.handle::<()>("done").signal("x", &1).await.unwrap_err();
    assert_eq!(error.to_string(), r#"execution "done": it is completed already"#);
    let error = abide.handle::<()>("done").signal("", &1).await.unwrap_err();
    assert_eq!(error.to_string(), r#"name "" is empty"#);
    let error = abide.handle::<()>("done").signal("x", &odd()).await.unwrap_err();
    assert!(error.to_string().starts_with(r#"signal "x" does not serialize"#), "{error}");
    let error = abide.handle::<()>("").status().await.unwrap_err();
    assert_eq!(error.to_string(), r#"execution id "" is empty"#);
    let error = abide.handle::<u64>("done").result().await.unwrap_err();
    assert!(error.to_string().starts_with(r#"the result of execution "done" is no u64: "fine""#), "{error}");
    let error = abide.handle::<()>("done").cancel("x\u{1b}y").await.unwrap_err();
    assert!(error.to_string().contains("control character U+001B"), "{error}");
    Ok(())
}

#[abide::test]
async fn an_unknown_workflow_is_refused_by_name(abide: Abide) -> Result<()> {
    let error = abide.start_named::<_, ()>("x", "nope", &1).await.unwrap_err();
    assert_eq!(error.to_string(), r#"no workflow or task "nope" is registered here"#);
    let handle = abide.start_named::<_, String>("y", "fine", &"x").await?;
    assert_eq!(handle.result().await?, "fine");
    Ok(())
}

#[abide::test]
async fn an_input_that_does_not_serialize_is_refused(abide: Abide) -> Result<()> {
    let error = abide.run(odd_input, odd()).await.unwrap_err();
    assert!(matches!(error, ClientError::Data { .. }));
    assert!(
        error.to_string().starts_with(r#"the input of workflow "odd_input" does not serialize"#),
        "{error}"
    );
    Ok(())
}

#[abide::test]
async fn an_oversize_input_is_refused(abide: Abide) -> Result<()> {
    let error = abide.run(fine, "x".repeat(5 << 20)).id("big").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"execution "big": the input of "fine" is over the limit payload_bytes_max: 5242882, at most 4194304"#
    );
    assert!(matches!(abide.handle::<()>("big").status().await, Err(ClientError::Unknown { .. })));
    Ok(())
}

#[abide::test]
async fn a_result_that_does_not_serialize_blocks(abide: Abide) -> Result<()> {
    let why = blocked(&abide, odd_step, ()).await?;
    assert!(why.starts_with(r#"step "odd" has run, but its result could not be recorded"#), "{why}");
    Ok(())
}

#[abide::test]
async fn a_workflow_result_that_does_not_serialize_blocks(abide: Abide) -> Result<()> {
    let why = blocked(&abide, odd_result, ()).await?;
    assert!(why.starts_with(r#"the result of workflow "odd_result" does not serialize"#), "{why}");
    Ok(())
}

#[abide::test]
async fn an_oversize_step_result_blocks(abide: Abide) -> Result<()> {
    let why = blocked(&abide, big_step, 5 << 20).await?;
    assert_eq!(
        why,
        r#"step "big" has run, but its result could not be recorded: the result of step "big" is over the limit payload_bytes_max: 5242882, at most 4194304; to go on: abide unblock b --rerun big, or abide unblock b --edit big=JSON"#
    );
    Ok(())
}

#[abide::test]
async fn an_await_that_is_not_recorded_is_reported(abide: Abide) -> Result<()> {
    let why = blocked(&abide, awaits_tokio, ()).await?;
    assert!(
        why.starts_with(r#"workflow "awaits_tokio" awaits something that is not a ctx operation"#),
        "{why}"
    );
    Ok(())
}

/// In real time: virtual time could pass the real timer, and what waits for a signal would have left memory before it rings.
#[tokio::test]
async fn a_race_with_an_await_that_is_not_recorded_is_reported() -> Result<()> {
    let abide = Abide::builder("sqlite::memory:").park_after(secs(3_600)).open().await?;
    let why = blocked(&abide, races_tokio, ()).await?;
    assert!(why.starts_with(r#"workflow "races_tokio" awaits something"#), "{why}");
    Ok(())
}

#[abide::test]
async fn a_durable_operation_inside_a_step_is_reported(abide: Abide) -> Result<()> {
    let why = blocked(&abide, nests, ()).await?;
    assert_eq!(why, r#"step "inner" is used inside step "outer", where nothing can be recorded"#);
    Ok(())
}

#[abide::test]
async fn a_name_used_for_two_kinds_is_reported(abide: Abide) -> Result<()> {
    let why = blocked(&abide, clashes, ()).await?;
    assert_eq!(why, r#"the name "x" is used for a step and for a timer"#);
    Ok(())
}

#[abide::test]
async fn a_step_name_is_checked(abide: Abide) -> Result<()> {
    let why = blocked(&abide, badly_named, String::new()).await?;
    assert_eq!(why, r#"step: name "" is empty"#);
    Ok(())
}

#[abide::test]
async fn zero_and_huge_timeouts_are_no_problem(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(timed, u64::MAX).await?, 1);
    // A closure that is ready at once has ended before any timeout can come.
    assert_eq!(abide.run(timed, 0).await?, 1);
    assert_eq!(abide.run(fine, "x".into()).delay(ms(0)).deadline(std::time::Duration::MAX).await?, "fine");
    Ok(())
}

#[tokio::test]
async fn urls_are_checked() {
    let rows = [
        (
            "",
            r#"the store "" cannot be opened: the URL is empty: write sqlite:PATH, sqlite::memory: or a path"#,
        ),
        (
            "mysql://x",
            r#"the store "mysql://x" cannot be opened: the scheme "mysql" is unknown: write sqlite:PATH, sqlite::memory: or a path"#,
        ),
    ];
    for (url, expected) in rows {
        assert_eq!(Abide::open(url).await.unwrap_err().to_string(), expected);
    }
    let error = Abide::builder("sqlite::memory:").namespace("").open().await.unwrap_err();
    assert_eq!(error.to_string(), r#"namespace "" is empty"#);
}
