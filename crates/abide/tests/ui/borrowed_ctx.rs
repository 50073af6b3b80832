use abide::prelude::*;

#[workflow]
async fn waits(ctx: &Ctx) -> Result<()> {
    ctx.sleep(secs(1)).await
}

#[task]
async fn greet(_ctx: &mut abide::Ctx, name: String) -> Result<usize> {
    Ok(name.len())
}

fn main() {}
