//! docs/guide/signals-and-timers.md.

use abide::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Decision {
    is_approved: bool,
}

#[derive(Clone, Serialize, Deserialize)]
struct Payment {
    cents: u32,
}

#[workflow]
async fn approved(ctx: Ctx, item: String) -> Result<String> {
    let decision: Decision = ctx.recv("approval").timeout(days(3)).await?;
    Ok(if decision.is_approved { format!("{item} is on its way") } else { format!("no {item}") })
}

#[abide::test]
async fn a_person_approves(abide: Abide) -> Result<()> {
    let handle = abide.start(approved, "tea".to_string()).await?;
    handle.signal("approval", &Decision { is_approved: true }).await?;
    assert_eq!(handle.result().await?, "tea is on its way");
    Ok(())
}

#[workflow]
async fn collect(ctx: Ctx) -> Result<u32> {
    let first: Payment = ctx.recv("paid").await?;
    let second = ctx.recv::<Payment>("paid").timeout(days(1)).await;
    Ok(first.cents + second.map_or(0, |payment| payment.cents))
}

#[abide::test]
async fn a_signal_with_a_key_arrives_once(abide: Abide) -> Result<()> {
    let (handle, payment) = (abide.start(collect, ()).await?, Payment { cents: 7 });
    for _ in 0..3 {
        handle.signal("paid", &payment).idempotency_key("webhook-7f3a").await?;
    }
    assert_eq!(handle.result().await?, 7);
    Ok(())
}

#[workflow]
async fn reminded(ctx: Ctx) -> Result<bool> {
    let decision = match ctx.recv::<Decision>("approval").timeout(days(3)).await {
        Err(error) if error.is_timeout() => {
            ctx.step("remind", || async { Ok(()) }).await?;
            ctx.recv("approval").await?
        }
        decision => decision?,
    };
    Ok(decision.is_approved)
}

#[abide::test]
async fn a_late_person_is_reminded(abide: Abide) -> Result<()> {
    let handle = abide.start(reminded, ()).await?;
    abide.run(naps, Timestamp::default()).await?;
    handle.signal("approval", &Decision { is_approved: false }).await?;
    assert!(!handle.result().await?);
    Ok(())
}

#[workflow]
async fn naps(ctx: Ctx, at: Timestamp) -> Result<()> {
    ctx.sleep(days(4)).await?;
    ctx.sleep_until(at).await?;
    Ok(())
}

#[workflow]
async fn waits(ctx: Ctx) -> Result<()> {
    let begun = ctx.now();
    ctx.sleep_until(begun.after(hours(1))).await?;
    let waited = ctx.now().since(begun);
    assert!(waited >= hours(1) && waited < hours(2), "{waited:?}");
    assert_eq!(ctx.now(), begun.after(waited));
    assert_eq!(ctx.now().before(waited), begun);
    assert_eq!(begun.since(ctx.now()), secs(0));
    Ok(())
}

#[abide::test]
async fn times_are_computed(abide: Abide) -> Result<()> {
    Ok(abide.run(waits, ()).await?)
}

#[workflow]
async fn ship_or_cancel(ctx: Ctx) -> Result<String> {
    select! {
        paid = ctx.recv::<Payment>("paid") => Ok(format!("shipped for {}", paid?.cents)),
        late = ctx.sleep(days(14)) => { late?; Ok("cancelled".to_string()) }
    }
}

#[abide::test]
async fn the_first_of_two_waits_counts(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(ship_or_cancel, ()).await?, "cancelled");
    let handle = abide.start(ship_or_cancel, ()).await?;
    handle.signal("paid", &Payment { cents: 3 }).await?;
    assert_eq!(handle.result().await?, "shipped for 3");
    Ok(())
}
