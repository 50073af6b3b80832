//! Recorded values can be read back: a value that would be read as another one is not recorded.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::Lab;
use abide::{ClientError, Status};
use abide_store::memory::MemoryTable;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// The values that code saw, in order.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn see(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }
}

#[derive(Serialize, Deserialize)]
struct Quote {
    price: u32,
    #[serde(skip)]
    cached: u32,
}

#[workflow]
async fn quotes(ctx: Ctx) -> Result<u32> {
    let seen = ctx.state::<Seen>();
    let step = ctx.step("step", || async { Ok(Quote { price: 7, cached: 1 }) }).await?;
    let blocking = ctx.blocking("blocking", || Ok(Quote { price: 8, cached: 2 })).await?;
    let transaction = abide::testing::transact(&ctx, "row", |_| Ok(Quote { price: 9, cached: 3 })).await?;
    seen.see(format!("{} {} {}", step.cached, blocking.cached, transaction.cached));
    ctx.sleep(hours(1)).await?;
    Ok(step.price + blocking.price + transaction.price)
}

#[test]
fn live_code_sees_the_value_that_a_replay_sees() {
    Lab::run(1, async |lab| {
        let seen = Seen::default();
        let (_, abide) = lab.worker_with(|builder| builder.state(seen.clone())).await.unwrap();
        assert_eq!(abide.run(quotes, ()).await.unwrap(), 24);
        assert_eq!(*seen.0.lock().unwrap(), ["0 0 0", "0 0 0"]);
    });
}

/// A type that is written as a number, and cannot be read.
#[derive(Clone, Debug, Serialize)]
struct OneWay(u32);

impl<'de> Deserialize<'de> for OneWay {
    fn deserialize<D: Deserializer<'de>>(_: D) -> std::result::Result<Self, D::Error> {
        Err(serde::de::Error::custom("nobody reads this"))
    }
}

/// A type that panics when it is read.
#[derive(Clone, Debug, Serialize)]
struct Trap(u32);

impl<'de> Deserialize<'de> for Trap {
    fn deserialize<D: Deserializer<'de>>(_: D) -> std::result::Result<Self, D::Error> {
        panic!("it is a trap")
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Deep(Option<Box<Self>>, Vec<f32>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Unit;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Newtype(Option<u32>);

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Shape {
    Circle { radius: f64 },
    Square(f32),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Wide {
    Number(u128),
}

/// Returns an array in an array, `depth` times.
fn nested(depth: u32) -> Nested {
    (0..depth).fold(Nested(Vec::new()), |inner, _| Nested(vec![inner]))
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Nested(Vec<Self>);

/// Returns a value that is kept as the text of its JSON.
fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

/// Returns this value from this kind of step.
async fn give<T>(ctx: &Ctx, how: &str, value: T) -> Result<String>
where
    T: Serialize + DeserializeOwned + std::fmt::Debug + Clone + Send + Sync + 'static,
{
    let seen = ctx.state::<Seen>().clone();
    let found = match how {
        "step" => {
            ctx.step("give", || async {
                seen.see("ran");
                Ok(value.clone())
            })
            .await?
        }
        "blocking" => {
            ctx.blocking("give", move || {
                seen.see("ran");
                Ok(value)
            })
            .await?
        }
        _ => {
            abide::testing::transact(ctx, "give", move |any| {
                any.downcast_ref::<MemoryTable>().unwrap().put("ran", "once");
                Ok(value)
            })
            .await?
        }
    };
    Ok(format!("{found:?}"))
}

#[workflow]
async fn gives(ctx: Ctx, (how, what): (String, String)) -> Result<String> {
    let how = how.as_str();
    match what.as_str() {
        "nan" => give(&ctx, how, f64::NAN).await,
        "infinite" => give(&ctx, how, f32::NEG_INFINITY).await,
        "some nan" => give(&ctx, how, Some(f64::INFINITY)).await,
        "deep" => give(&ctx, how, Deep(Some(Box::new(Deep(None, vec![1.0, f32::NAN]))), vec![])).await,
        "shape" => give(&ctx, how, vec![Shape::Square(1.0), Shape::Circle { radius: f64::NAN }]).await,
        "key" => give(&ctx, how, BTreeMap::from([("a".to_owned(), (1, f64::NAN))])).await,
        "some none" => give(&ctx, how, Some(None::<u32>)).await,
        "some unit" => give(&ctx, how, Some(())).await,
        "some unit struct" => give(&ctx, how, vec![Some(Unit)]).await,
        "some some none" => give(&ctx, how, Some(Some(None::<u32>))).await,
        "some newtype" => give(&ctx, how, Some(Newtype(None))).await,
        "pair" => give(&ctx, how, HashMap::from([((1, 2), 3)])).await,
        "one way" => give(&ctx, how, OneWay(1)).await,
        "trap" => give(&ctx, how, Trap(1)).await,
        "nested" => give(&ctx, how, nested(200)).await,
        "wide" => give(&ctx, how, Wide::Number(u128::MAX)).await,
        "none" => give(&ctx, how, (None::<Option<u32>>, Some(Some(1)), ())).await,
        "numbers" => give(&ctx, how, (u128::MAX, i128::MIN, u64::MAX, f64::MIN_POSITIVE, -0.0_f64)).await,
        "keys" => give(&ctx, how, BTreeMap::from([(-7_i64, true)])).await,
        "null" => give(&ctx, how, Some(serde_json::Value::Null)).await,
        "some raw null" => give(&ctx, how, Some(raw("null"))).await,
        "raw" => give(&ctx, how, (raw("null"), Some(raw("[null]")), Some("null".to_owned()))).await,
        other => Err(Error::fatal(format!("no sort of value: {other}"))),
    }
}

/// Values that would be read as others, or not at all, and the complaints about them.
const UNREADABLE: [(&str, &str); 17] = [
    ("nan", "f64 does not serialize: NaN is no number in JSON"),
    ("infinite", "f32 does not serialize: -inf is no number in JSON"),
    ("some nan", "inf is no number in JSON"),
    ("deep", "NaN is no number in JSON"),
    ("shape", "NaN is no number in JSON"),
    ("key", "NaN is no number in JSON"),
    ("some none", "Some(None) would be read as None"),
    ("some unit", "Some(()) would be read as None"),
    ("some unit struct", "Some(Unit) would be read as None"),
    ("some some none", "Some(None) would be read as None"),
    ("some newtype", "Some(None) would be read as None"),
    ("null", "Some(()) would be read as None"),
    ("some raw null", "Some(null) would be read as None"),
    ("pair", "key must be a string"),
    ("one way", "it cannot be read back: nobody reads this"),
    ("trap", "it cannot be read back: reading it panicked: it is a trap"),
    ("nested", "it cannot be read back: recursion limit exceeded"),
];

#[test]
fn a_result_that_cannot_be_read_back_is_not_recorded() {
    for how in ["step", "blocking"] {
        for (what, complaint) in UNREADABLE {
            Lab::run(2, async |lab| {
                let seen = Seen::default();
                let (_, abide) = lab.worker_with(|builder| builder.state(seen.clone())).await.unwrap();
                let handle = abide.start(gives, (how.to_owned(), what.to_owned())).id("one").await.unwrap();
                let why = handle.result().await.unwrap_err().to_string();
                assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{how} {what}: {why}");
                assert!(
                    why.contains(r#"step "give" has run, but its result could not be recorded"#),
                    "{why}"
                );
                assert!(why.contains(complaint), "{how} {what}: {why}");
                assert_eq!(*seen.0.lock().unwrap(), ["ran"], "its effect has happened");
            });
        }
    }
}

#[workflow]
async fn reads_row(ctx: Ctx) -> Result<Option<String>> {
    abide::testing::transact(&ctx, "look", |any| Ok(any.downcast_ref::<MemoryTable>().unwrap().get("ran")))
        .await
}

#[test]
fn a_transaction_whose_result_cannot_be_read_back_is_undone() {
    for (what, complaint) in UNREADABLE {
        Lab::run(3, async |lab| {
            let (_, abide) = lab.worker_with(|builder| builder.state(Seen::default())).await.unwrap();
            let failed = abide.run(gives, ("transaction".to_owned(), what.to_owned())).id("one").await;
            let error = failed.unwrap_err().to_string();
            assert!(error.contains(complaint), "{what}: {error}");
            let written = abide.run(reads_row, ()).await.unwrap();
            assert_eq!(written, None, "{what}: its write was undone");
        });
    }
}

#[test]
fn what_can_be_read_back_is_recorded() {
    let rows = [
        ("none", "(None, Some(Some(1)), ())"),
        ("keys", "{-7: true}"),
        ("raw", r#"(RawValue(null), Some(RawValue([null])), Some("null"))"#),
        (
            "numbers",
            "(340282366920938463463374607431768211455, -170141183460469231731687303715884105728, \
             18446744073709551615, 2.2250738585072014e-308, -0.0)",
        ),
    ];
    for how in ["step", "blocking", "transaction"] {
        for (what, expected) in rows {
            Lab::run(4, async |lab| {
                let (_, abide) = lab.worker_with(|builder| builder.state(Seen::default())).await.unwrap();
                let found = abide.run(gives, (how.to_owned(), what.to_owned())).await.unwrap();
                assert_eq!(found, expected, "{how}");
            });
        }
    }
}

/// The effect has happened: somebody has to decide about it.
#[test]
fn a_result_that_was_not_a_number_is_given_by_hand() {
    Lab::run(5, async |lab| {
        let (_, abide) = lab.worker_with(|builder| builder.state(Seen::default())).await.unwrap();
        let handle = abide.start(gives, ("step".to_owned(), "nan".to_owned())).id("one").await.unwrap();
        lab.sleep(secs(10)).await;
        let refused = handle.unblock().edit("give", &f64::NAN).await.unwrap_err();
        assert!(matches!(refused, ClientError::Data { .. }), "{refused}");
        assert_eq!(
            refused.to_string(),
            r#"the result of step "give" does not serialize: NaN is no number in JSON"#
        );
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        handle.unblock().edit("give", &2.5).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "2.5");
    });
}

#[workflow]
async fn takes(_ctx: Ctx, input: Option<f64>) -> Result<Option<f64>> {
    Ok(input.map(|input| input / 0.0))
}

#[task]
async fn divides(input: f64) -> Result<f64> {
    Ok(input / 0.0)
}

#[workflow]
async fn takes_one_way(_ctx: Ctx, _input: OneWay) -> Result<()> {
    Ok(())
}

#[workflow]
async fn starts(ctx: Ctx, how: String) -> Result<String> {
    match how.as_str() {
        "run" => _ = ctx.run(takes, Some(f64::NAN)).await?,
        "start" => _ = ctx.start(divides, f64::NAN).await?,
        "one way" => ctx.run(takes_one_way, OneWay(1)).await?,
        "step" => ctx.step("pay", || async { Ok(()) }).input(&[f64::NAN]).await?,
        "next" => return ctx.continue_as_new(Some(None::<u8>)).await,
        _ => return Err(Error::typed((1, f64::NAN))),
    }
    Ok(how)
}

#[test]
fn clients_are_told_of_inputs_that_cannot_be_read_back() {
    Lab::run(6, async |lab| {
        let (_, abide) = lab.worker().await.unwrap();
        let check = |said: Result<(), ClientError>, expected: &str| {
            let error = said.unwrap_err();
            assert!(matches!(error, ClientError::Data { .. }), "{error:?}");
            assert_eq!(error.to_string(), expected);
        };
        let nan = abide.start(takes, Some(f64::NAN)).id("a").await.map(drop);
        check(nan, r#"the input of workflow "takes" does not serialize: NaN is no number in JSON"#);
        let nan = abide.run(divides, f64::INFINITY).id("a").await.map(drop);
        check(nan, r#"the input of task "divides" does not serialize: inf is no number in JSON"#);
        let one_way = abide.start(takes_one_way, OneWay(1)).id("a").await.map(drop);
        let expected =
            r#"the input of workflow "takes_one_way" does not serialize: it cannot be read back: "#;
        assert!(one_way.unwrap_err().to_string().starts_with(expected));
        let handle = abide.handle::<()>("a");
        assert!(matches!(handle.status().await, Err(ClientError::Unknown { .. })), "nothing was started");
        let signal = handle.signal("word", &Some(())).await;
        check(signal, r#"signal "word" does not serialize: Some(()) would be read as None"#);
    });
}

#[test]
fn workflows_are_blocked_at_inputs_that_cannot_be_read_back() {
    let rows = [
        ("run", r#"the input of child "takes" does not serialize: NaN is no number in JSON"#),
        ("start", r#"the input of child "divides" does not serialize: NaN is no number in JSON"#),
        ("one way", r#"the input of child "takes_one_way" does not serialize: "#),
        ("step", r#"step "pay": its input does not serialize: NaN is no number in JSON (at "#),
        ("next", "the input of the next run does not serialize: Some(None) would be read as None"),
    ];
    Lab::run(7, async |lab| {
        let (_, abide) = lab.worker().await.unwrap();
        for (how, expected) in rows {
            let handle = abide.start(starts, how.to_owned()).id(how).await.unwrap();
            lab.sleep(secs(10)).await;
            let why = handle.why().await.unwrap();
            assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
            assert!(why.contains(expected), "{why}");
        }
        let failed = abide.run(starts, "typed".to_owned()).await.unwrap_err().to_string();
        assert!(failed.contains("which does not serialize: NaN is no number in JSON"), "{failed}");
    });
}

/// New code can mend the end of a workflow; a task fails, and can be retried.
#[test]
fn results_of_workflows_and_tasks_are_checked_too() {
    Lab::run(8, async |lab| {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(takes, Some(1.0)).id("w").await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        let expected = r#"the result of workflow "takes" does not serialize: inf is no number in JSON"#;
        assert!(handle.why().await.unwrap().contains(expected));
        let failed = abide.run(divides, -1.0).await.unwrap_err().to_string();
        let expected = r#"the result of task "divides" does not serialize: -inf is no number in JSON"#;
        assert!(failed.contains(expected), "{failed}");
    });
}

/// A type that panics when it is read, once a deploy has made it do so.
#[derive(Clone, Debug, Serialize)]
struct Moody(u32);

static IS_MOODY: AtomicBool = AtomicBool::new(false);

impl<'de> Deserialize<'de> for Moody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        assert!(!IS_MOODY.load(Ordering::Relaxed), "not in the mood");
        u32::deserialize(deserializer).map(Self)
    }
}

#[task]
async fn moody_task(_ctx: Ctx, input: Moody) -> Result<Moody> {
    Ok(input)
}

#[workflow]
async fn reads_moody(ctx: Ctx, what: String) -> Result<u32> {
    let Moody(read) = match what.as_str() {
        "step" => ctx.step("moody", || async { Ok(Moody(1)) }).await?,
        "child" => ctx.run(moody_task, Moody(1)).await?,
        _ => ctx.recv("moody").await?,
    };
    ctx.sleep(hours(1)).await?;
    Ok(read)
}

#[workflow]
async fn takes_moody(ctx: Ctx, Moody(input): Moody) -> Result<u32> {
    ctx.sleep(hours(1)).await?;
    Ok(input)
}

/// Code can be mended, so a panic of the code that reads is no end.
#[test]
fn a_record_whose_reading_panics_blocks_until_the_code_is_mended() {
    Lab::run(9, async |lab| {
        let (machine, abide) = lab.worker().await.unwrap();
        let reads = ["step", "child", "signal"];
        for what in reads {
            abide.start(reads_moody, what.to_owned()).id(what).await.unwrap();
        }
        abide.handle::<u32>("signal").signal("moody", &1).await.unwrap();
        abide.start(takes_moody, Moody(1)).id("input").await.unwrap();
        lab.sleep(minutes(1)).await;
        lab.crash(machine);
        IS_MOODY.store(true, Ordering::Relaxed);
        let (machine, abide) = lab.worker().await.unwrap();
        lab.sleep(hours(2)).await;
        let ids = reads.into_iter().chain(["input"]);
        for id in ids.clone() {
            let handle = abide.handle::<u32>(id);
            let why = handle.why().await.unwrap();
            assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
            assert!(why.contains("not in the mood"), "{why}");
        }
        lab.crash(machine);
        IS_MOODY.store(false, Ordering::Relaxed);
        let (_, abide) = lab.worker_with(|builder| builder.build("2")).await.unwrap();
        for id in ids {
            assert_eq!(abide.handle::<u32>(id).result().await.unwrap(), 1, "{id}");
        }
    });
}
