use std::error::Error;

use abide::prelude::{Ctx, workflow};

#[workflow]
async fn total(_ctx: Ctx, amount: u32) -> Result<u32, Box<dyn Error>> {
    Ok(amount)
}

struct Broken;

#[workflow]
async fn broken(_ctx: Ctx) -> Result<(), Broken> {
    Ok(())
}

fn main() {}
