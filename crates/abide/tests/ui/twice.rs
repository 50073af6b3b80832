use abide::prelude::*;

#[workflow]
#[workflow]
async fn registered_twice(_ctx: Ctx) -> Result<()> {
    Ok(())
}

#[workflow]
#[abide::task]
async fn registered_as_both(_ctx: Ctx) -> Result<()> {
    Ok(())
}

fn main() {}
