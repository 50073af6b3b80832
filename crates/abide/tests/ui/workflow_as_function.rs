use abide::prelude::*;

#[workflow]
async fn ship(_ctx: Ctx, parcel: u32) -> Result<u32> {
    Ok(parcel)
}

#[workflow]
async fn checkout(ctx: Ctx) -> Result<u32> {
    ship(ctx, 7).await
}

async fn helper(ctx: Ctx) -> Result<u32> {
    ctx.run(helper, ()).await
}

fn main() {}
