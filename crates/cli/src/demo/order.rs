//! The order that survives: ten steps, a timer, a signal and two children.

use std::time::Duration;

use abide::prelude::*;
use serde::{Deserialize, Serialize};

use super::effects::Effects;
use crate::clock;

/// The id of the order.
pub(super) const ID: &str = "order-1001";
/// The signal that the order waits for.
pub(super) const SIGNAL: &str = "delivered";
/// The steps of the order, in sequence.
pub(super) const STEPS: [&str; 10] = [
    "check-order",
    "reserve-stock",
    "charge-card",
    "book-courier",
    "notify-warehouse",
    "print-label",
    "hand-over",
    "send-invoice",
    "award-points",
    "close-order",
];
/// The number of steps before the timer.
pub(super) const STEPS_BEFORE_TIMER: usize = 5;
/// How long the order waits for the courier, even across a crash.
pub(super) const TIMER: Duration = Duration::from_millis(2_000);

const STEP: Duration = Duration::from_millis(150);
const PACKING: Duration = Duration::from_millis(1_200);
/// The deadline for the signal. It passes only if the demo itself was killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// The input of the order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) pieces: u64,
    pub(super) cents_each: u64,
}

/// The result of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Receipt {
    pub(super) cents: u64,
    pub(super) parcels: u64,
    pub(super) invoice: String,
    pub(super) signed_by: String,
    pub(super) steps: u64,
}

#[workflow(name = "demo.order")]
pub(super) async fn fulfil(ctx: Ctx, order: Order) -> Result<Receipt> {
    let [check, reserve, charge, book, notify, print, hand_over, send, award, close] = STEPS;
    let mut steps = step(&ctx, check, 1).await?;
    steps += step(&ctx, reserve, 1).await?;
    let cents = step(&ctx, charge, order.pieces * order.cents_each).await?;
    steps += step(&ctx, book, 1).await? + step(&ctx, notify, 1).await?;

    let packed = ctx.start(pack_order, order.pieces).id(format!("{ID}/pack")).await?;
    let invoiced = ctx.start(make_invoice, cents).id(format!("{ID}/invoice")).await?;
    ctx.sleep(TIMER).named("courier").await?;
    let (parcels, invoice) = (packed.result().await?, invoiced.result().await?);

    steps += step(&ctx, print, 1).await? + step(&ctx, hand_over, 1).await?;
    let signed_by: String = ctx.recv(SIGNAL).timeout(PATIENCE).await?;
    steps += step(&ctx, send, 1).await? + step(&ctx, award, 1).await? + step(&ctx, close, 1).await?;
    Ok(Receipt { cents, parcels, invoice, signed_by, steps: steps + 1 })
}

#[workflow(name = "demo.pack")]
async fn pack_order(ctx: Ctx, pieces: u64) -> Result<u64> {
    let picked = step(&ctx, "pick", pieces).await?;
    ctx.sleep(PACKING).named("wrap").await?;
    step(&ctx, "seal", picked.div_ceil(2)).await
}

#[task(name = "demo.invoice")]
async fn make_invoice(ctx: Ctx, cents: u64) -> Result<String> {
    ctx.state::<Effects>().append(ctx.id(), "invoice")?;
    clock::work(STEP).await;
    Ok(format!("INV-{cents}"))
}

/// Runs a step that adds a line to the file of effects, takes a moment, and returns `value`.
async fn step(ctx: &Ctx, name: &str, value: u64) -> Result<u64> {
    ctx.step(name, || async {
        ctx.state::<Effects>().append(ctx.id(), name)?;
        clock::work(STEP).await;
        Ok(value)
    })
    .await
}
