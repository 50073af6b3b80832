//! Workflows and tasks that have another name in newer code. Separate from other tests: in one
//! program, two of these claim a name.

use abide::Builder;
use abide::prelude::*;
use abide::testing::Lab;

#[task]
async fn double(n: u64) -> Result<u64> {
    Ok(n * 2)
}

#[task(renamed_from = "double")]
async fn twice(n: u64) -> Result<u64> {
    Ok(n * 200)
}

async fn go(ctx: &Ctx) -> Result<()> {
    ctx.recv("go").await
}

#[test]
fn a_renamed_workflow_runs_what_was_started_under_its_old_name() {
    Lab::run(7, |lab| async move {
        let with = |builder: Builder| builder.session_ttl(secs(3));
        let (first, abide) =
            lab.worker_with(|builder| with(builder).workflow(checkout).task(double)).await.unwrap();
        abide.start(checkout, ()).id("one").await.unwrap();
        lab.sleep(secs(2)).await;
        lab.crash(first);
        let (_, abide) =
            lab.worker_with(|builder| with(builder).workflow(purchase).task(twice)).await.unwrap();
        // The same start attaches, by the new name and by the old one.
        let handle = abide.start(purchase, ()).id("one").await.unwrap();
        abide.start(checkout, ()).id("one").await.unwrap();
        handle.signal("go", &()).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "6");
        let handle = abide.start(purchase, ()).id("two").await.unwrap();
        abide.start(checkout, ()).id("two").await.unwrap();
        handle.signal("go", &()).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "600");
    });
}

#[workflow]
async fn checkout(ctx: Ctx) -> Result<String> {
    let child = ctx.run(double, 3).await?;
    go(&ctx).await?;
    Ok(child.to_string())
}

#[workflow(renamed_from = "checkout")]
async fn purchase(ctx: Ctx) -> Result<String> {
    let child = ctx.run(twice, 3).await?;
    go(&ctx).await?;
    Ok(child.to_string())
}

#[test]
fn two_that_claim_one_name_are_refused_when_a_store_is_opened() {
    Lab::run(7, |lab| async move {
        let opened = lab.worker_with(|builder| builder.task(twice).workflow(checkout).workflow(purchase));
        let error = opened.await.map(drop).expect_err("both claim the name").to_string();
        assert!(
            error.contains(r#"workflow "checkout" in the builder and workflow "purchase" in the builder both claim the name "checkout""#),
            "{error}"
        );
    });
}
