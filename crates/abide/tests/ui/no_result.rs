use abide::prelude::*;

#[workflow]
async fn total(_ctx: Ctx, amount: u32) -> u32 {
    amount
}

#[workflow]
async fn nothing(_ctx: Ctx) {}

struct Broken;

#[workflow]
async fn broken(_ctx: Ctx) -> Result<(), Broken> {
    Ok(())
}

fn main() {}
