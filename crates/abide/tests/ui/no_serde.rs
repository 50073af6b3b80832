use abide::prelude::*;

struct Order;

#[derive(serde::Serialize)]
struct Receipt;

#[workflow]
async fn input(_ctx: Ctx, _order: Order) -> Result<()> {
    Ok(())
}

#[workflow]
async fn output(_ctx: Ctx) -> Result<Receipt> {
    Ok(Receipt)
}

#[workflow]
async fn of_a_step(ctx: Ctx) -> Result<()> {
    ctx.step("charge", || async { Ok(Receipt) }).await?;
    ctx.blocking("print", || Ok(Receipt)).await?;
    ctx.sqlite("store", |_| Ok(Receipt)).await?;
    Ok(())
}

fn main() {}
