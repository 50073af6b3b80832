//! Starts and signals that are sent again: the caller hears of it, and nothing changes.

use abide::prelude::*;
use abide::testing::Lab;

#[workflow]
async fn fine(_ctx: Ctx, _input: String) -> Result<String> {
    Ok("fine".to_owned())
}

/// Gathers numbers until it receives the signal to stop.
#[workflow]
async fn gathers(ctx: Ctx) -> Result<Vec<u32>> {
    let mut gathered = Vec::new();
    loop {
        match ctx.recv::<u32>("number").await? {
            0 => return Ok(gathered),
            number => gathered.push(number),
        }
    }
}

#[abide::test]
async fn a_start_tells_whether_it_created_or_attached(abide: Abide) -> Result<()> {
    let start = || abide.start(fine, "x".to_owned());
    let first = start().id("a").tag("k", "v").priority(1).lane("default").await?;
    assert!(!first.is_attached() && first.differences().is_empty());
    let same = start().id("a").priority(1).tag("k", "v").await?;
    assert!(same.is_attached() && same.differences().is_empty());
    let other =
        start().id("a").tag("k", "w").priority(2).lane("slow").delay(hours(1)).deadline(hours(2)).await?;
    assert!(other.is_attached() && other.clone().is_attached());
    assert_eq!(other.differences(), ["lane", "priority", "delay", "deadline", "tags"]);
    assert_eq!(other.result().await?, "fine", "it runs as it was started first");
    let named = abide.start_named::<_, String>("a", "fine", &"x").await?;
    assert_eq!((named.is_attached(), named.differences()), (true, &["priority", "tags"][..]));
    assert!(!start().await?.is_attached(), "it has an id of its own");
    assert!(!abide.handle::<String>("a").is_attached(), "nothing was started by it");
    let error = abide.start(fine, "y".to_owned()).id("a").await.unwrap_err();
    assert!(matches!(error, ClientError::Conflict { .. }), "{error}");
    Ok(())
}

/// Each caller computes the delay from its own time.
#[test]
fn a_start_that_is_repeated_later_has_the_same_delay() {
    Lab::run_on_each(1, |lab| async move {
        let (_machine, abide) = lab.worker().await.unwrap();
        let start = || abide.start(fine, "x".to_owned()).id("a");
        start().delay(hours(1)).deadline(hours(2)).await.unwrap();
        lab.sleep(minutes(10)).await;
        let same = start().delay(hours(1)).deadline(hours(2)).await.unwrap();
        assert_eq!((same.is_attached(), same.differences()), (true, &[][..]));
        let other = start().delay(hours(2)).deadline(hours(2)).await.unwrap();
        assert_eq!(other.differences(), ["delay"]);
    });
}

#[abide::test]
async fn a_signal_with_a_key_arrives_once(abide: Abide) -> Result<()> {
    let handle = abide.start(gathers, ()).id("g").await?;
    for _ in 0..3 {
        handle.signal("number", &1).idempotency_key("a").await?;
        handle.signal("number", &2).idempotency_key("b").await?;
        // The value does not count: it may come from another sender, or the sender made it anew.
        handle.signal("number", &9).idempotency_key("a").await?;
    }
    // Without a key, each signal counts; another name has other keys.
    handle.signal("number", &3).await?;
    handle.signal("number", &3).await?;
    handle.signal("other", &1).idempotency_key("a").await?;
    handle.signal("number", &0).idempotency_key("end").await?;
    assert_eq!(handle.result().await?, [1, 2, 3, 3]);
    handle.signal("number", &0).idempotency_key("end").await?;
    let error = handle.signal("number", &0).idempotency_key("late").await.unwrap_err();
    assert!(matches!(error, ClientError::Refused { .. }), "{error}");
    Ok(())
}

#[abide::test]
async fn keys_that_could_be_taken_for_each_other_are_two(abide: Abide) -> Result<()> {
    let handle = abide.start(gathers, ()).id("g").await?;
    handle.signal("number", &1).idempotency_key(r#"x" "y"#).await?;
    handle.signal(r#"number" "x"#, &1).idempotency_key("y").await?;
    handle.signal("number", &2).idempotency_key("x/y").await?;
    handle.signal("number", &0).await?;
    assert_eq!(handle.result().await?, [1, 2]);
    let error = handle.signal("number", &1).idempotency_key("").await.unwrap_err();
    assert_eq!(error.to_string(), r#"idempotency key "" is empty"#);
    Ok(())
}
