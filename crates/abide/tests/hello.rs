//! The hello world of the README, and the other parts of a first program.

use abide::prelude::*;

#[workflow]
async fn greet(ctx: Ctx, name: String) -> Result<String> {
    ctx.step("format", || async { Ok(format!("Hello, {name}!")) }).await
}

#[workflow]
async fn patient(ctx: Ctx, days_to_wait: u64) -> Result<String> {
    ctx.sleep(days(days_to_wait)).await?;
    Ok("done".to_string())
}

#[task]
async fn double(n: u64) -> Result<u64> {
    Ok(n * 2)
}

#[workflow]
async fn triple(n: u64) -> Result<u64> {
    Ok(n * 3)
}

#[workflow]
async fn family(ctx: Ctx, n: u64) -> Result<u64> {
    let a = ctx.run(double, n).await?;
    let h = ctx.start(double, a).await?;
    let b: u64 = ctx.recv("more").await?;
    Ok(h.result().await? + b)
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_world_runs_on_a_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}/app.db", folder.path().display());
    let abide = Abide::open(&url).await?;
    assert_eq!(abide.run(greet, "World".to_string()).id("greet-1").await?, "Hello, World!");
    assert_eq!(abide.run(greet, "World".to_string()).id("greet-1").await?, "Hello, World!");
    abide.shutdown().await;
    Ok(())
}

#[abide::test]
async fn a_month_passes_at_once(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(patient, 30).await?, "done");
    Ok(())
}

#[abide::test]
async fn a_workflow_may_do_without_its_context(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(triple, 4).id("one").await?, 12);
    assert_eq!(abide.handle::<u64>("one").status().await?, Status::Completed);
    Ok(())
}

#[abide::test]
async fn children_and_signals(abide: Abide) -> Result<()> {
    let h = abide.start(family, 5).id("f").await?;
    h.signal("more", &1u64).await?;
    assert_eq!(h.result().await?, 21);
    Ok(())
}
