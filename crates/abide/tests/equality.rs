//! Equal values: which values are the same input, and which are the same key.

use std::collections::BTreeMap;

use abide::prelude::*;
use abide::testing::{History, Lab, Test};
use abide::{ClientError, Status};
use abide_core::{Address, ExecutionId, Namespace};
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
async fn an_entry_that_is_null_beside_others_does_not_count(abide: Abide) -> Result<()> {
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

/// A struct before a deploy and after it. Each is written like the struct itself.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Note {
    Before { text: Option<String> },
    After { text: Option<String>, gift: Option<bool>, nothing: () },
}

#[derive(Clone, Serialize, Deserialize)]
struct Newtype(Note);

#[derive(Clone, Serialize, Deserialize)]
struct Field {
    note: Note,
}

#[derive(Clone, Serialize, Deserialize)]
struct Flat {
    #[serde(flatten)]
    note: Note,
    count: Option<u32>,
}

#[derive(Clone, Serialize, Deserialize)]
enum Variant {
    Newtype(Note),
    Tuple(u32, Note),
    Struct { note: Note },
    Flat(Flat),
}

/// The places of a note in a value. Each is written like the value itself.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Place {
    Alone(Note),
    List(Vec<Note>),
    Tuple((u32, Note)),
    Map(BTreeMap<String, Note>),
    Option(Option<Note>),
    Newtype(Newtype),
    Field(Field),
    Variant(Variant),
    Flat(Flat),
}

/// Returns a note at every place.
fn places(note: &Note) -> [Place; 12] {
    let note = || note.clone();
    [
        Place::Alone(note()),
        Place::List(vec![note()]),
        Place::Tuple((1, note())),
        Place::Map([("a".to_owned(), note())].into()),
        Place::Option(Some(note())),
        Place::Newtype(Newtype(note())),
        Place::Field(Field { note: note() }),
        Place::Variant(Variant::Newtype(note())),
        Place::Variant(Variant::Tuple(1, note())),
        Place::Variant(Variant::Struct { note: note() }),
        Place::Variant(Variant::Flat(Flat { note: note(), count: None })),
        Place::Flat(Flat { note: note(), count: None }),
    ]
}

#[task]
async fn take(_ctx: Ctx, _place: Place) -> Result<()> {
    Ok(())
}

/// Uses the value that its build has.
#[workflow]
async fn uses(ctx: Ctx, purpose: String) -> Result<()> {
    let place = ctx.state::<Place>();
    let step = ctx.step("step", || async { Ok(()) });
    match purpose.as_str() {
        "child" => ctx.run(take, place.clone()).await,
        "input" => step.input(place).await,
        _ => step.key(place).await,
    }
}

fn is_same_start(before: &Place, after: &Place) -> bool {
    Test::new().run(async |abide: Abide| {
        abide.run(take, before.clone()).id("p").await.unwrap();
        !conflicts(abide.start(take, after.clone()).id("p").await)
    })
}

fn is_same_named_start(before: &Place, after: &Place) -> bool {
    Test::new().run(async |abide: Abide| {
        abide.run(take, before.clone()).id("p").await.unwrap();
        !conflicts(abide.start_named::<Place, ()>("p", "take", after).await)
    })
}

/// Whether a workflow that uses the one value continues when it uses the other.
fn is_same_use(purpose: &str, before: &Place, after: &Place) -> bool {
    let history = Test::new().state(before.clone()).run(async |abide: Abide| {
        abide.run(uses, purpose.to_owned()).id("p").await.unwrap();
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new("p").unwrap() };
        let store = abide::testing::store(&abide);
        History::of(&abide_store::export(&*store, &address).await.unwrap().unwrap()).unwrap().to_string()
    });
    Test::new().state(after.clone()).replay(history).fits()
}

/// Checks every place of a field that a deploy adds to a struct.
fn check_new_field(is_same: impl Fn(&Place, &Place) -> bool) {
    let after = |gift| places(&Note::After { text: None, gift, nothing: () });
    let (same, other) = (after(None), after(Some(true)));
    for ((before, same), other) in places(&Note::Before { text: None }).iter().zip(&same).zip(&other) {
        let json = |place: &Place| serde_json::to_string(place).unwrap();
        assert!(is_same(before, same), "{} and {}", json(before), json(same));
        assert!(!is_same(before, other), "{} and {}", json(before), json(other));
    }
}

#[test]
fn a_new_field_that_is_none_is_the_same_start() {
    check_new_field(is_same_start);
}

#[test]
fn a_new_field_that_is_none_is_the_same_start_by_name() {
    check_new_field(is_same_named_start);
}

#[test]
fn a_new_field_that_is_none_is_the_same_input_of_a_child() {
    check_new_field(|before, after| is_same_use("child", before, after));
}

#[test]
fn a_new_field_that_is_none_is_the_same_input_of_a_step() {
    check_new_field(|before, after| is_same_use("input", before, after));
}

#[test]
fn a_new_field_that_is_none_is_the_same_key() {
    check_new_field(|before, after| is_same_use("key", before, after));
}
