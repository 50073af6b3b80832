use abide::prelude::*;

#[workflow]
async fn ship(_ctx: Ctx, parcel: u32) -> Result<u32> {
    Ok(parcel)
}

#[workflow]
async fn order(ctx: Ctx) -> Result<u32> {
    ctx.run(ship, 7).timeout(secs(30)).await
}

fn main() {}
