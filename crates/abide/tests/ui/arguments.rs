use abide::prelude::*;

#[workflow(strict, strict)]
async fn strict_twice(_ctx: Ctx) -> Result<()> {
    Ok(())
}

#[workflow(name = "one", name = "other")]
async fn two_names(_ctx: Ctx) -> Result<()> {
    Ok(())
}

#[workflow(renamed_from = "old", renamed_from = "older", renamed_from = "old")]
async fn renamed_twice(_ctx: Ctx) -> Result<()> {
    Ok(())
}

#[workflow(name = "")]
async fn without_a_name(_ctx: Ctx) -> Result<()> {
    Ok(())
}

#[task(renamed_from = " ")]
async fn without_an_old_name() -> Result<()> {
    Ok(())
}

fn main() {}
