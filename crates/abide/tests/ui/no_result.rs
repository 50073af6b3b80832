use abide::prelude::*;

#[workflow]
async fn total(_ctx: Ctx, amount: u32) -> u32 {
    amount
}

#[workflow]
async fn nothing(_ctx: Ctx) {}

fn main() {}
