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
