//! docs/guide/transactions.md.

use abide::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    item: String,
}

#[workflow]
async fn reserve(ctx: Ctx, order: Order) -> Result<u32> {
    let item = order.item.clone();
    ctx.sqlite("reserve", move |tx| {
        let changed = tx.execute("UPDATE stock SET free = free - 1 WHERE item = ?1 AND free > 0", [&item])?;
        if changed == 0 {
            return Err(Error::fatal(format!("{item} is sold out")));
        }
        Ok(tx.query_row("SELECT free FROM stock WHERE item = ?1", [&item], |row| row.get(0))?)
    })
    .await
}

#[workflow]
async fn stock_up(ctx: Ctx, count: u32) -> Result<()> {
    ctx.sqlite("stock-up", move |tx| {
        tx.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, free INTEGER NOT NULL)", [])?;
        tx.execute("INSERT INTO stock (item, free) VALUES ('tea', ?1)", [count])?;
        Ok(())
    })
    .await
}

#[abide::test]
async fn an_item_is_reserved_until_it_is_sold_out(abide: Abide) -> Result<()> {
    abide.run(stock_up, 2).await?;
    let order = || Order { item: "tea".to_string() };
    assert_eq!(abide.run(reserve, order()).await?, 1);
    assert_eq!(abide.run(reserve, order()).await?, 0);
    let error = abide.run(reserve, order()).await.unwrap_err().to_string();
    assert!(error.contains("tea is sold out"), "{error}");
    Ok(())
}
