use abide::prelude::*;

async fn charge(cents: &u32) -> anyhow::Result<u32> {
    Ok(*cents)
}

#[workflow]
async fn pay(ctx: Ctx, cents: u32) -> Result<u32> {
    ctx.step("charge", || charge(&cents)).await
}

fn main() {}
