use abide::prelude::*;

#[workflow]
async fn counts(ctx: Ctx) -> anyhow::Result<u32> {
    let count = ctx.step("count", || async { Ok(1) }).await?;
    Ok(count)
}

fn main() {}
