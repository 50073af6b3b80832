use abide::prelude::*;

#[workflow]
fn not_async(_ctx: Ctx) -> Result<()> {
    Ok(())
}

#[workflow]
async fn two_inputs(_ctx: Ctx, one: u32, other: u32) -> Result<u32> {
    Ok(one + other)
}

#[workflow]
async fn ctx_last(input: u32, _ctx: Ctx) -> Result<u32> {
    Ok(input)
}

#[task(strict)]
async fn strict() -> Result<()> {
    Ok(())
}

#[workflow(id = "one")]
async fn with_an_id(_ctx: Ctx) -> Result<()> {
    Ok(())
}

fn main() {}
