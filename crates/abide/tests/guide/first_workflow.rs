//! docs/guide/first-workflow.md.

use abide::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Order {
    customer: String,
    cents: u64,
}

#[workflow]
async fn checkout(ctx: Ctx, order: Order) -> Result<String> {
    let payment = ctx.step("charge", || charge(&order)).await?;
    ctx.sleep(secs(5)).await?;
    ctx.step("mail", || mail(&order, &payment)).await?;
    Ok(payment)
}

async fn charge(order: &Order) -> Result<String> {
    println!("charging {} cents", order.cents);
    Ok(format!("payment of {}", order.customer))
}

async fn mail(order: &Order, payment: &str) -> Result<()> {
    println!("telling {} about the {payment}", order.customer);
    Ok(())
}

async fn sell(abide: &Abide) -> Result<String> {
    let order = Order { customer: "ann".to_string(), cents: 1200 };
    let payment = abide.run(checkout, order).id("order-42").await?;
    println!("done: {payment}");
    Ok(payment)
}

#[abide::test]
async fn the_second_run_returns_the_recorded_result(abide: Abide) -> Result<()> {
    for _ in 0..2 {
        assert_eq!(sell(&abide).await?, "payment of ann");
    }
    Ok(())
}

/// The page's `main`, which no test can call: it opens a file in the current directory.
#[expect(dead_code, reason = "it is compiled, and not run")]
mod program {
    use super::*;

    #[tokio::main]
    async fn main() -> Result<()> {
        let abide = Abide::open("sqlite:shop.db").await?;
        sell(&abide).await?;
        abide.shutdown().await;
        Ok(())
    }
}
