use abide::prelude::*;

#[workflow]
async fn approval(ctx: Ctx) -> Result<()> {
    let _decision = ctx.recv("decision").await?;
    Ok(())
}

fn main() {}
