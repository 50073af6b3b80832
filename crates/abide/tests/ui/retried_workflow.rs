use abide::prelude::*;

#[workflow]
async fn ship(_ctx: Ctx, parcel: u32) -> Result<u32> {
    Ok(parcel)
}

#[task]
async fn render(page: u32) -> Result<u32> {
    Ok(page)
}

#[workflow]
async fn order(ctx: Ctx) -> Result<u32> {
    let policy = Retry::forever();
    ctx.run(render, 7).retry(policy.clone()).await?;
    ctx.start(ship, 7).retry(policy.clone()).await?;
    ctx.run(ship, 7).retry(policy).await
}

async fn from_outside(abide: Abide) {
    let policy = Retry::forever();
    let _ = abide.run(render, 7).retry(policy.clone()).await;
    let _ = abide.start(ship, 7).retry(policy.clone()).await;
    let _ = abide.run(ship, 7).retry(policy).await;
}

fn main() {}
