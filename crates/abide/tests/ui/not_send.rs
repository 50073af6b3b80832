use abide::prelude::*;

#[workflow]
async fn counts(ctx: Ctx) -> Result<u32> {
    let count = std::rc::Rc::new(1);
    ctx.sleep(secs(1)).await?;
    Ok(*count)
}

fn main() {}
