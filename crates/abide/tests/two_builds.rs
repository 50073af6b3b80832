//! Two builds of a program that work at the same time, and a build that is rolled back: the older
//! one takes over from the newer one, whose names it does not know.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::Lab;
use abide::{Builder, Workflow};
use abide_sqlite::SqliteStore;
use abide_store::{Clock, Store};

/// What the closures did, in order.
#[derive(Clone, Default)]
struct Till(Arc<Mutex<Vec<String>>>);

impl Till {
    /// Charges under an idempotency key, of which only the name of the step is noted.
    fn charge(&self, key: &str) {
        self.0.lock().unwrap().push(key.to_owned());
    }

    fn all(&self) -> String {
        let keys = self.0.lock().unwrap();
        let steps = keys.iter().map(|key| key.strip_prefix("default/order-42/1/").unwrap_or(key));
        steps.collect::<Vec<_>>().join(", ")
    }

    /// Returns how often a service that knows its keys again has charged.
    fn charge_count(&self) -> usize {
        self.0.lock().unwrap().iter().collect::<BTreeSet<_>>().len()
    }
}

async fn charge(ctx: &Ctx) -> Result<()> {
    ctx.state::<Till>().charge(&ctx.idempotency_key());
    Ok(())
}

async fn charge_order(ctx: &Ctx) -> Result<()> {
    ctx.state::<Till>().charge("order-42");
    Ok(())
}

async fn approved(ctx: &Ctx) -> Result<()> {
    ctx.recv("approval").await
}

/// A version of the workflow, plain and strict.
macro_rules! version {
    ($name:ident, |$ctx:ident| $body:block) => {
        mod $name {
            use super::*;
            #[workflow(name = "checkout")]
            pub(super) async fn plain($ctx: Ctx) -> Result<()> $body
            #[workflow(name = "checkout", strict)]
            pub(super) async fn strict($ctx: Ctx) -> Result<()> $body
        }
    };
}

version!(old, |ctx| {
    ctx.step("pay", || charge(&ctx)).await?;
    approved(&ctx).await
});
version!(renamed, |ctx| {
    ctx.step("charge", || charge(&ctx)).await?;
    approved(&ctx).await
});
version!(renamed_from, |ctx| {
    ctx.step("charge", || charge(&ctx)).renamed_from("pay").await?;
    approved(&ctx).await
});
version!(prepared, |ctx| {
    ctx.step("pay", || charge(&ctx)).renamed_from("charge").await?;
    approved(&ctx).await
});
version!(patched, |ctx| {
    if ctx.patched("charge") {
        ctx.step("charge", || charge(&ctx)).await?;
    } else {
        ctx.step("pay", || charge(&ctx)).await?;
    }
    approved(&ctx).await
});
version!(same_name, |ctx| {
    if ctx.patched("check") {
        ctx.step("check", || async { Ok(()) }).await?;
    }
    ctx.step("pay", || charge(&ctx)).await?;
    approved(&ctx).await
});
version!(old_with_key, |ctx| {
    ctx.step("pay", || charge_order(&ctx)).await?;
    approved(&ctx).await
});
version!(renamed_with_key, |ctx| {
    ctx.step("charge", || charge_order(&ctx)).renamed_from("pay").await?;
    approved(&ctx).await
});
version!(old_transaction, |ctx| { transaction(&ctx, "pay").await });
version!(renamed_transaction, |ctx| { transaction(&ctx, "charge").await });

/// Inserts a payment, in a transaction of this name.
async fn transaction(ctx: &Ctx, name: &'static str) -> Result<()> {
    let till = ctx.state::<Till>().clone();
    let paid = ctx.sqlite(name, move |tx| {
        tx.execute_batch("CREATE TABLE IF NOT EXISTS paid (cents); INSERT INTO paid VALUES (7)")?;
        till.charge(name);
        Ok(tx.query_row("SELECT COUNT(*) FROM paid", [], |row| row.get(0))?)
    });
    let count: u32 = if name == "charge" { paid.renamed_from("pay").await? } else { paid.await? };
    approved(ctx).await?;
    // The closure of each build runs once in this test, so its count is that of the rows.
    assert_eq!(count as usize, ctx.state::<Till>().charge_count());
    Ok(())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

fn with<W: Workflow>(builder: Builder, build: &str, till: &Till, code: W) -> Builder {
    builder.build(build).state(till.clone()).session_ttl(secs(3)).workflow(code)
}

/// Lets the newer code charge and wait, and the older code take over. Returns the charges and the
/// status of the execution.
async fn rolled_back<O, N>(lab: &Lab, newer: N, older: O) -> (Till, Status)
where
    O: Workflow<Input = (), Output = ()> + Copy,
    N: Workflow<Input = (), Output = ()> + Copy,
{
    let till = Till::default();
    let (machine, abide) = lab.worker_with(|builder| with(builder, "v2", &till, newer)).await.unwrap();
    abide.start(newer, ()).id("order-42").await.unwrap();
    lab.sleep(secs(3)).await;
    lab.crash(machine);
    let (_, abide) = lab.worker_with(|builder| with(builder, "v1", &till, older)).await.unwrap();
    let handle = abide.handle::<()>("order-42");
    handle.signal("approval", &()).await.unwrap();
    lab.sleep(secs(10)).await;
    (till, handle.status().await.unwrap())
}

#[test]
fn older_code_charges_again_what_newer_code_charged_under_another_name() {
    Lab::run_on_each(1, async |lab| {
        let (till, status) = rolled_back(&lab, renamed::plain, old::plain).await;
        assert_eq!((till.all().as_str(), status), ("charge/1, pay/1", Status::Completed));
    });
    Lab::run_on_each(1, async |lab| {
        let (till, status) = rolled_back(&lab, renamed_from::plain, old::plain).await;
        assert_eq!((till.all().as_str(), status), ("charge/1, pay/1", Status::Completed));
    });
    Lab::run_on_each(1, async |lab| {
        let (till, status) = rolled_back(&lab, patched::plain, old::plain).await;
        assert_eq!((till.all().as_str(), status), ("charge/1, pay/1", Status::Completed));
    });
    Lab::run_on(1, sqlite, async |lab| {
        let (till, status) = rolled_back(&lab, renamed_transaction::plain, old_transaction::plain).await;
        assert_eq!((till.all().as_str(), status), ("charge, pay", Status::Completed));
    });
}

#[test]
fn older_strict_code_is_blocked_by_a_name_that_it_does_not_know() {
    Lab::run_on_each(2, async |lab| {
        let (till, status) = rolled_back(&lab, renamed::strict, old::strict).await;
        assert_eq!((till.all().as_str(), status), ("charge/1", Status::Blocked));
    });
    Lab::run_on_each(2, async |lab| {
        let (till, status) = rolled_back(&lab, patched::strict, old::strict).await;
        assert_eq!((till.all().as_str(), status), ("charge/1", Status::Blocked));
    });
    Lab::run_on(2, sqlite, async |lab| {
        let (till, status) = rolled_back(&lab, renamed_transaction::strict, old_transaction::strict).await;
        assert_eq!((till.all().as_str(), status), ("charge", Status::Blocked));
    });
    Lab::run_on_each(2, async |lab| {
        let (till, status) = rolled_back(&lab, renamed_from::strict, old::strict).await;
        assert_eq!((till.all().as_str(), status), ("charge/1", Status::Blocked));
        let (_, abide) =
            lab.worker_with(|builder| with(builder, "v2", &till, renamed_from::strict)).await.unwrap();
        abide.handle::<()>("order-42").result().await.unwrap();
        assert_eq!(till.all(), "charge/1", "the newer build goes on where it was");
    });
}

#[test]
fn older_code_goes_on_under_a_name_that_both_builds_know() {
    Lab::run_on_each(3, async |lab| {
        let (till, status) = rolled_back(&lab, same_name::plain, old::plain).await;
        assert_eq!((till.all().as_str(), status), ("pay/1", Status::Completed));
    });
}

#[test]
fn a_key_that_does_not_come_from_the_name_is_the_same_in_both_builds() {
    Lab::run_on_each(4, async |lab| {
        let (till, _) = rolled_back(&lab, renamed_with_key::plain, old_with_key::plain).await;
        assert_eq!((till.all().as_str(), till.charge_count()), ("order-42, order-42", 1));
    });
    Lab::run_on_each(4, async |lab| {
        let (till, _) = rolled_back(&lab, renamed_from::plain, old::plain).await;
        assert_eq!(till.charge_count(), 2, "keys of abide come from the name");
    });
}

/// The older build is shut down first, and the newer one knows both names.
#[test]
fn newer_code_that_begins_when_the_older_has_ended_charges_nothing_again() {
    Lab::run_on_each(5, async |lab| {
        let till = Till::default();
        let (_, abide) = lab.worker_with(|builder| with(builder, "v1", &till, old::plain)).await.unwrap();
        abide.start(old::plain, ()).id("order-42").await.unwrap();
        lab.sleep(secs(3)).await;
        abide.shutdown().await;
        let (_, abide) =
            lab.worker_with(|builder| with(builder, "v2", &till, renamed_from::plain)).await.unwrap();
        let handle = abide.handle::<()>("order-42");
        handle.signal("approval", &()).await.unwrap();
        handle.result().await.unwrap();
        assert_eq!(till.all(), "pay/1");
    });
}

/// A deploy before the rename teaches the older build the coming name.
#[test]
fn builds_that_know_both_names_take_over_from_each_other() {
    Lab::run_on_each(6, async |lab| {
        let (till, status) = rolled_back(&lab, renamed_from::plain, prepared::plain).await;
        assert_eq!((till.all().as_str(), status), ("charge/1", Status::Completed));
    });
    Lab::run_on_each(6, async |lab| {
        let (till, status) = rolled_back(&lab, prepared::plain, renamed_from::plain).await;
        assert_eq!((till.all().as_str(), status), ("pay/1", Status::Completed));
    });
    Lab::run_on_each(6, async |lab| {
        let (till, status) = rolled_back(&lab, renamed_from::strict, prepared::strict).await;
        assert_eq!((till.all().as_str(), status), ("charge/1", Status::Completed));
    });
}

/// No worker crashes here. An execution that waits leaves memory, and any worker may go on with it.
#[test]
fn two_live_builds_charge_some_orders_twice() {
    Lab::run_on_each(7, async |lab| {
        let till = Till::default();
        let (_, _v1) = lab.worker_with(|builder| with(builder, "v1", &till, old::plain)).await.unwrap();
        let (_, abide) =
            lab.worker_with(|builder| with(builder, "v2", &till, renamed_from::plain)).await.unwrap();
        for nth in 0..20 {
            abide.start(renamed_from::plain, ()).id(format!("order-{nth}")).await.unwrap();
        }
        lab.sleep(secs(5)).await;
        for nth in 0..20 {
            let handle = abide.handle::<()>(&format!("order-{nth}"));
            handle.signal("approval", &()).await.unwrap();
            handle.result().await.unwrap();
        }
        assert!(till.charge_count() > 20, "{}", till.charge_count());
    });
}
