//! docs/guide/children.md.

use abide::prelude::*;

#[workflow]
async fn order(ctx: Ctx, cart: Vec<String>) -> Result<u32> {
    let parcel = ctx.run(pack, cart).await?;
    ctx.run(ship, parcel).lane("warehouse").await
}

#[task]
async fn pack(_ctx: Ctx, cart: Vec<String>) -> Result<String> {
    Ok(cart.join(", "))
}

/// Packs under a fixed id, and fails or goes on in a next run.
#[workflow]
async fn packs(ctx: Ctx, (cart, is_continued): (Vec<String>, bool)) -> Result<String> {
    let parcel = ctx.run(pack, cart).id("parcel-42").await?;
    match is_continued {
        true => ctx.continue_as_new((vec![parcel], true)).await,
        false => Err(Error::new("no van")),
    }
}

#[abide::test]
async fn the_id_of_a_child_is_taken_in_every_later_run(abide: Abide) -> Result<()> {
    let cart = vec!["tea".to_string()];
    let handle = abide.start(packs, (cart, false)).await?;
    let refused = r#"child "parcel-42" was not started: "parcel-42" exists "#;
    assert!(handle.result().await.is_err_and(|error| error.to_string().contains("no van")));
    for _ in 0..2 {
        handle.retry().await?;
        let error = handle.result().await.unwrap_err().to_string();
        assert!(error.contains(refused), "{error}");
    }
    Ok(())
}

#[abide::test]
async fn the_id_of_a_child_is_taken_in_a_run_that_goes_on(abide: Abide) -> Result<()> {
    let handle = abide.start(packs, (vec!["tea".to_string()], true)).await?;
    let refused = r#"child "parcel-42" was not started: "parcel-42" exists "#;
    let error = handle.result().await.unwrap_err().to_string();
    assert!(error.contains(refused), "{error}");
    Ok(())
}

#[task]
async fn ship(_ctx: Ctx, parcel: String) -> Result<u32> {
    Ok(u32::try_from(parcel.len()).expect("a short parcel"))
}

#[workflow]
async fn quote(ctx: Ctx, item: String) -> Result<u64> {
    ctx.recv(&item).await
}

#[workflow]
async fn quote_in_time(ctx: Ctx, item: String) -> Result<Option<u64>> {
    select! {
        price = ctx.run(quote, item.clone()) => Ok(Some(price?)),
        due = ctx.sleep(secs(30)) => { due?; Ok(None) }
    }
}

#[task]
async fn ship_item(_ctx: Ctx, item: String) -> Result<u64> {
    Ok(item.len() as u64)
}

#[workflow]
async fn ship_all(ctx: Ctx, items: Vec<String>) -> Result<u64> {
    let mut weights = Vec::new();
    let mut parcels = Vec::new();
    for item in &items {
        parcels.push(ctx.start(ship_item, item.clone()).key(item).await?);
    }
    for parcel in parcels {
        weights.push(parcel.result().await?);
    }
    Ok(weights.iter().sum())
}

#[test]
fn a_child_can_run_in_another_lane() {
    abide::testing::Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.lanes(["default", "warehouse"])).await.unwrap();
        let cart = vec!["tea".to_string(), "cup".to_string()];
        assert_eq!(abide.run(order, cart).await.unwrap(), 8);
    });
}

#[abide::test]
async fn a_late_child_is_cancelled(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(quote_in_time, "tea".to_string()).await?, None);
    Ok(())
}

#[abide::test]
async fn children_run_side_by_side(abide: Abide) -> Result<()> {
    let items = vec!["tea".to_string(), "kettle".to_string()];
    assert_eq!(abide.run(ship_all, items).await?, 9);
    Ok(())
}
