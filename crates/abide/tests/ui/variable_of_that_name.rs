use abide::prelude::*;

#[workflow]
async fn total(_ctx: Ctx, amount: u32) -> Result<u32> {
    // Inside of the workflow itself it is an ordinary variable.
    let total = amount + 1;
    Ok(total)
}

fn main() {
    let total = 3 + 4;
    println!("{total}");
}
