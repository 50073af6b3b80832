//! docs/guide/errors-and-retries.md.

use std::fmt;

use abide::prelude::*;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Cart {
    items: Vec<String>,
    price: String,
}

type Receipt = String;

async fn charge(price: u32) -> std::result::Result<Receipt, std::io::Error> {
    match price {
        13 => Err(std::io::Error::other("declined")),
        price => Ok(format!("paid {price}")),
    }
}

#[workflow]
async fn buy(ctx: Ctx, cart: Cart) -> Result<Receipt> {
    if cart.items.is_empty() {
        Err("the cart is empty")?;
    }
    let price: u32 = cart.price.parse()?;
    ctx.step("charge", || async { Ok(charge(price).await.context("the card")?) }).await
}

#[derive(Debug)]
enum Refused {
    Empty,
    Charge(Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the cart is empty"),
            Self::Charge(_) => f.write_str("the charge failed"),
        }
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Empty => None,
            Self::Charge(error) => Some(&**error),
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Charge(error)
    }
}

#[workflow]
async fn buy_or_refuse(ctx: Ctx, cart: Cart) -> Result<Receipt, Refused> {
    if cart.items.is_empty() {
        return Err(Refused::Empty);
    }
    Ok(ctx.step("charge", || async { Ok(charge(13).await?) }).await?)
}

/// Returns an error of the program's own when it is cancelled.
#[workflow]
async fn rent(ctx: Ctx) -> Result<(), Refused> {
    Ok(ctx.sleep(days(3)).await?)
}

/// Marks the cancellation, which is none then.
#[workflow]
async fn rent_or_fail(ctx: Ctx) -> Result<()> {
    ctx.sleep(days(3)).await.or_fatal()
}

#[task]
async fn render(_ctx: Ctx, job: String) -> Result<String> {
    Ok(job.to_uppercase())
}

#[workflow]
async fn patient(ctx: Ctx, job: String) -> Result<String> {
    let receipt = ctx
        .step("charge", || async { Ok(charge(7).await?) })
        .retry(Retry::exponential(ms(100)).max_attempts(5).jitter(0.2))
        .retry_if(|error| !error.message().contains("declined"))
        .timeout(secs(30))
        .await?;
    let page = ctx.run(render, job).retry(Retry::forever().max_delay(minutes(5))).await?;
    Ok(format!("{page}: {receipt}"))
}

#[abide::test]
async fn errors_and_retries_are_as_the_guide_says(abide: Abide) -> Result<()> {
    let cart = |items: &[&str], price: &str| {
        let items = items.iter().map(ToString::to_string).collect();
        Cart { items, price: price.to_string() }
    };
    assert_eq!(abide.run(buy, cart(&["tea"], "7")).await?, "paid 7");
    for (cart, told) in [
        (cart(&[], "7"), "the cart is empty"),
        (cart(&["tea"], "x"), "invalid digit"),
        (cart(&["tea"], "13"), "the card: declined"),
    ] {
        let error = abide.run(buy, cart).await.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    for (cart, told) in
        [(cart(&[], ""), "the cart is empty"), (cart(&["tea"], ""), "the charge failed: declined")]
    {
        let error = abide.run(buy_or_refuse, cart).await.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    let cancelled = [abide.start(rent, ()).await?, abide.start(rent_or_fail, ()).await?];
    assert_eq!(abide.run(patient, "page".to_string()).await?, "PAGE: paid 7");
    for (handle, expected) in cancelled.iter().zip([Status::Cancelled, Status::Failed]) {
        handle.cancel("enough").await?;
        handle.result().await.unwrap_err();
        assert_eq!(handle.status().await?, expected);
    }
    Ok(())
}
