use abide::prelude::*;

#[workflow]
async fn names(ctx: Ctx) -> Result<String> {
    let name = ctx.step("name", || async { Ok("tea") }).await?;
    Ok(name.to_string())
}

fn main() {}
