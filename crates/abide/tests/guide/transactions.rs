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

#[cfg(feature = "postgres")]
mod on_a_server {
    use super::Order;
    use abide::prelude::*;

    #[workflow]
    async fn reserve_on_server(ctx: Ctx, order: Order) -> Result<i32> {
        let item = order.item.clone();
        ctx.postgres("reserve", async move |tx| {
            let changed =
                tx.execute("UPDATE stock SET free = free - 1 WHERE item = $1 AND free > 0", &[&item]).await?;
            if changed == 0 {
                return Err(Error::fatal(format!("{item} is sold out")));
            }
            Ok(tx.query_one("SELECT free FROM stock WHERE item = $1", &[&item]).await?.get(0))
        })
        .await
    }

    #[abide::test]
    async fn it_needs_a_server(abide: Abide) -> Result<()> {
        let error = abide.run(reserve_on_server, Order { item: "tea".to_owned() }).await.unwrap_err();
        assert!(error.to_string().contains("ctx.postgres needs a PostgreSQL store"), "{error}");
        Ok(())
    }
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

const PAGE: &str = include_str!("../../../../docs/guide/transactions.md");

/// Statements, each with words of the row that the guide has for it.
const DENIED: [(&str, &str); 16] = [
    ("BEGIN", "`BEGIN`"),
    ("COMMIT", "`COMMIT`"),
    ("ROLLBACK", "`ROLLBACK`"),
    ("SAVEPOINT one", "`SAVEPOINT`"),
    ("PRAGMA user_version", "`PRAGMA`"),
    ("ATTACH ':memory:' AS other", "`ATTACH`"),
    ("DETACH main", "`DETACH`"),
    ("VACUUM", "`VACUUM`"),
    ("CREATE TEMP TABLE one (n)", "temporary tables"),
    ("SELECT key FROM abide_executions", "reading"),
    ("INSERT INTO abide_executions DEFAULT VALUES", "writing"),
    ("DELETE FROM abide_executions", "writing"),
    ("ALTER TABLE abide_executions ADD COLUMN n", "altering"),
    ("CREATE TABLE abide_mine (n)", "names that begin"),
    ("REINDEX", "`REINDEX`"),
    ("ANALYZE", "`ANALYZE`"),
];

/// Returns the message in the row that has these words in its first cell.
fn message_of(words: &str) -> &'static str {
    let table = PAGE.lines().filter(|line| line.starts_with("| "));
    let mut rows = table.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let row = rows.find(|row| row[1].contains(words)).unwrap_or_else(|| panic!("no row has {words}"));
    row[3].split('`').nth(1).unwrap_or_else(|| panic!("no message is quoted for {words}"))
}

#[workflow]
async fn denied(ctx: Ctx, statement: String) -> Result<String> {
    ctx.sqlite("try", move |tx| {
        Ok(tx.execute_batch(&statement).map_or_else(|error| error.to_string(), |()| "allowed".to_owned()))
    })
    .await
}

#[abide::test]
async fn a_denied_statement_gets_the_message_that_the_table_has(abide: Abide) -> Result<()> {
    for (statement, words) in DENIED {
        let said = abide.run(denied, statement.to_owned()).await?;
        assert!(said.starts_with(message_of(words)), "{statement}: {said}");
    }
    Ok(())
}
