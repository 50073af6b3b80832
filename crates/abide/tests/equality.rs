//! Equal values: which values are the same input, and which are the same key.

use std::collections::BTreeMap;

use abide::prelude::*;
use abide::testing::Lab;
use abide::{ClientError, Status};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, Serialize, Deserialize)]
enum Order {
    Pay(Option<u32>),
    Refund(Option<u32>),
}

#[task]
async fn carry_out(_ctx: Ctx, order: Order) -> Result<String> {
    Ok(match order {
        Order::Pay(_) => "paid".to_owned(),
        Order::Refund(_) => "refunded".to_owned(),
    })
}

#[task]
async fn names_of(_ctx: Ctx, map: BTreeMap<String, Option<u32>>) -> Result<String> {
    Ok(map.into_keys().collect::<Vec<_>>().join(","))
}

#[task]
async fn any(_ctx: Ctx, input: Value) -> Result<String> {
    Ok(input.to_string())
}

#[derive(Serialize, Deserialize)]
struct Options {
    note: Option<String>,
}

/// The same input after a deploy.
#[derive(Serialize)]
struct MoreOptions {
    note: Option<String>,
    colour: Option<String>,
    nothing: (),
}

#[task]
async fn optional(_ctx: Ctx, _options: Options) -> Result<()> {
    Ok(())
}

fn conflicts<T>(start: std::result::Result<T, ClientError>) -> bool {
    match start {
        Ok(_) => false,
        Err(ClientError::Conflict { .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

#[abide::test]
async fn another_variant_is_another_input(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(carry_out, Order::Pay(None)).id("o").await?, "paid");
    assert!(!conflicts(abide.run(carry_out, Order::Pay(None)).id("o").await));
    assert!(conflicts(abide.run(carry_out, Order::Refund(None)).id("o").await));
    // A start by name has the same input.
    let named = async |input| abide.start_named::<Value, String>("o", "carry_out", &input).await;
    assert!(!conflicts(named(json!({ "Pay": null })).await));
    assert!(conflicts(named(json!({ "Refund": null })).await));
    Ok(())
}

#[abide::test]
async fn other_names_in_a_map_of_nothing_are_another_input(abide: Abide) -> Result<()> {
    let map = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), None)).collect();
    for (id, keys, others) in [("1", &["ann"][..], &["bob"][..]), ("2", &["ann", "bob"], &["ann", "cyd"])] {
        assert_eq!(abide.run(names_of, map(keys)).id(id).await?, keys.join(","));
        assert!(!conflicts(abide.run(names_of, map(keys)).id(id).await));
        assert!(conflicts(abide.run(names_of, map(others)).id(id).await));
        assert!(conflicts(abide.run(names_of, map(&[])).id(id).await));
    }
    Ok(())
}

#[abide::test]
async fn a_field_that_is_none_does_not_count(abide: Abide) -> Result<()> {
    abide.run(optional, Options { note: None }).id("o").await?;
    let start = async |more| abide.start_named::<MoreOptions, ()>("o", "optional", &more).await;
    assert!(!conflicts(start(MoreOptions { note: None, colour: None, nothing: () }).await));
    assert!(conflicts(start(MoreOptions { note: None, colour: Some("red".to_owned()), nothing: () }).await));
    abide.run(any, json!({ "a": 1 })).id("a").await?;
    for same in [json!({ "a": 1, "b": null }), json!({ "c": null, "a": 1, "d": null })] {
        assert!(!conflicts(abide.run(any, same).id("a").await));
    }
    Ok(())
}

#[abide::test]
async fn equal_numbers_are_the_same_input(abide: Abide) -> Result<()> {
    abide.run(any, json!({ "amount": 5 })).id("a").await?;
    assert!(!conflicts(abide.run(any, json!({ "amount": 5.0 })).id("a").await));
    assert!(conflicts(abide.run(any, json!({ "amount": 5.5 })).id("a").await));
    abide.run(any, json!(5.0)).id("b").await?;
    assert!(!conflicts(abide.run(any, json!(5)).id("b").await));
    assert!(conflicts(abide.run(any, json!("5")).id("b").await));
    Ok(())
}

/// Carries out the order that its build has.
#[workflow]
async fn orders(ctx: Ctx) -> Result<String> {
    let done = ctx.run(carry_out, ctx.state::<Order>().clone()).await?;
    ctx.recv::<()>("go").await?;
    Ok(done)
}

#[test]
fn a_deploy_that_asks_for_another_variant_is_blocked() {
    Lab::run_on_each(1, async |lab| {
        let worker = async |order: Order| lab.worker_with(|builder| builder.state(order)).await.unwrap();
        let (machine, abide) = worker(Order::Pay(None)).await;
        abide.start(orders, ()).id("o").await.unwrap();
        lab.sleep(secs(5)).await;
        lab.crash(machine);
        let (_, abide) = worker(Order::Refund(None)).await;
        let handle = abide.handle::<String>("o");
        handle.signal("go", &()).await.unwrap();
        lab.sleep(minutes(2)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        let why = handle.why().await.unwrap();
        assert!(why.contains(r#"recorded with input {"Pay":null}, the code has {"Refund":null}"#), "{why}");
    });
}

#[workflow]
async fn keyed_by_orders(ctx: Ctx) -> Result<Vec<String>> {
    let mut keys = Vec::new();
    for order in [Order::Pay(None), Order::Refund(None)] {
        keys.push(ctx.step("do", || async { Ok(ctx.idempotency_key()) }).key(&order).await?);
    }
    Ok(keys)
}

#[abide::test]
async fn another_variant_is_another_key(abide: Abide) -> Result<()> {
    let keys = abide.run(keyed_by_orders, ()).id("k").await?;
    assert_eq!(keys, [r#"default/k/1/do={"Pay":null}/1"#, r#"default/k/1/do={"Refund":null}/1"#]);
    Ok(())
}
