//! Errors of users' own code: the types that `?` takes, and the record of each.

use std::error::Error as StdError;

use abide::prelude::*;
use abide::{ClientError, Error, FailureKind};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};

type Boxed = Box<dyn StdError + Send + Sync>;

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Declined {
    code: u16,
}

/// An error that users derive, with an error of ours inside.
#[derive(Debug, thiserror::Error)]
enum Own {
    #[error("the order is empty")]
    Empty,
    #[error("charging failed")]
    Charge(#[from] Error),
    #[error(transparent)]
    Other(#[from] anyhow::Error),
    #[error(transparent)]
    Boxed(Boxed),
}

/// Returns every visible part of an error.
fn seen(error: &Error) -> (FailureKind, String, Vec<&str>) {
    (error.kind(), error.message().to_owned(), error.chain().collect())
}

fn check<E>(error: E, message: &str, chain: &[&str])
where
    Error: From<E>,
{
    let error = Error::from(error);
    assert_eq!(seen(&error), (FailureKind::Error, message.to_owned(), chain.to_vec()));
}

#[test]
fn everything_that_is_boxed_as_an_error_becomes_one() {
    check("a text", "a text", &[]);
    check(String::from("a text"), "a text", &[]);
    check(std::borrow::Cow::from("a text"), "a text", &[]);
    check(Boxed::from("boxed"), "boxed", &[]);
    check(anyhow::anyhow!("no money").context("charge"), "charge", &["no money"]);
    check(Own::Empty, "the order is empty", &[]);
    let utf8 = String::from_utf8(vec![0xff]).unwrap_err();
    check(utf8.clone(), &utf8.to_string(), &[]);
    assert_eq!(Error::from(utf8).type_name(), "alloc::string::FromUtf8Error");
    assert_eq!(Error::from(anyhow::anyhow!("x")).type_name(), "anyhow::Error");
}

/// Each of these keeps the kind, value and type of the error of ours that it wraps.
#[test]
fn what_was_an_error_of_ours_stays_one_inside_of_others() {
    let typed = || Error::typed(Declined { code: 51 }).into_fatal();
    let message = typed().message().to_owned();
    let same: [Error; 5] = [
        typed().into_std().into(),
        Boxed::from(typed().into_std()).into(),
        anyhow::Error::from(typed().into_std()).into(),
        Own::Other(anyhow::Error::from(typed().into_std())).into(),
        ClientError::Failed { id: "x".to_owned(), error: typed() }.into(),
    ];
    for error in same {
        assert_eq!(seen(&error), (FailureKind::Fatal, message.clone(), vec![]));
        assert_eq!(error.get(), Some(Declined { code: 51 }));
        assert_eq!(error.type_name(), typed().type_name());
    }
    let context = Error::from(anyhow::Error::from(typed().into_std()).context("pay").context("check out"));
    assert_eq!(seen(&context), (FailureKind::Fatal, "check out".to_owned(), vec!["pay", message.as_str()]));
    assert_eq!(context.get(), Some(Declined { code: 51 }));
    let caused: Error = anyhow::anyhow!("reset").context("no answer").into();
    check(anyhow::Error::from(caused.into_std()).context("charge"), "charge", &["no answer", "reset"]);
    let own = Error::from(Own::from(typed()));
    assert_eq!(seen(&own), (FailureKind::Fatal, "charging failed".to_owned(), vec![message.as_str()]));
}

#[test]
fn the_message_of_a_typed_error_begins_with_the_name_of_its_type() {
    assert_eq!(Error::typed(Declined { code: 51 }).message(), r#"Declined {"code":51}"#);
    let map = std::collections::HashMap::from([("code".to_owned(), 51)]);
    assert_eq!(Error::typed(map).message(), r#"HashMap {"code":51}"#);
}

/// A transparent wrapper shows the sources of the error inside of it, and not that error itself.
#[test]
fn a_value_is_found_behind_a_transparent_wrapper() {
    let error = Error::from(Own::Boxed(Error::typed(Declined { code: 51 }).into_std().into()));
    assert_eq!((error.kind(), error.get()), (FailureKind::Error, Some(Declined { code: 51 })));
}

#[test]
fn an_error_is_readable_by_those_who_print_a_chain() {
    let said = |error: Error| format!("{:#}", anyhow::Error::from(error.into_std()));
    assert_eq!(said(Error::new("no money")), "no money");
    assert_eq!(said(Error::fatal("no money")), "no money: (fatal)");
    let caused: Error = anyhow::anyhow!("reset").context("no answer").context("charge").into();
    assert_eq!(said(caused.clone()), "charge: no answer: reset");
    assert_eq!(said(caused.into_fatal()), "charge: no answer: reset (fatal)");
    let boxed: Box<dyn StdError> = Error::new("no money").into();
    assert_eq!(boxed.to_string(), "no money");
    assert_eq!((*Error::new("no money")).to_string(), "no money");
}

#[test]
fn any_error_can_be_marked() {
    fn text() -> Result<(), &'static str> {
        Err("a text")
    }
    assert_eq!(text().or_fatal().unwrap_err().kind(), FailureKind::Fatal);
    assert_eq!(Err::<(), _>(Boxed::from("x")).or_fatal().unwrap_err().kind(), FailureKind::Fatal);
    assert_eq!(Err::<(), _>(anyhow::anyhow!("x")).or_fatal().unwrap_err().kind(), FailureKind::Fatal);
    assert_eq!(Err::<(), _>(Own::Empty).or_fatal().unwrap_err().kind(), FailureKind::Fatal);
    let again = Err::<(), _>(Error::fatal("x")).or_retry().unwrap_err();
    assert_eq!(again.kind(), FailureKind::Error);
    // The kind is overwritten, the value is kept.
    let declined = Err::<(), _>(Error::typed(Declined { code: 51 })).or_fatal().unwrap_err();
    assert_eq!((declined.kind(), declined.get()), (FailureKind::Fatal, Some(Declined { code: 51 })));
}

/// An error of a user's own that does not return the error inside of it.
#[derive(Debug)]
struct Silent(Error);

impl std::fmt::Display for Silent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "silent: {}", self.0)
    }
}

impl StdError for Silent {}

#[test]
fn an_error_inside_is_found_by_its_source_only() {
    let error = || Error::typed(Declined { code: 51 }).into_fatal();
    let (found, lost) = (Error::from(Own::Charge(error())), Error::from(Silent(error())));
    assert_eq!((found.kind(), found.get()), (FailureKind::Fatal, Some(Declined { code: 51 })));
    assert_eq!((lost.kind(), lost.get::<Declined>()), (FailureKind::Error, None));
}

fn with_anyhow() -> anyhow::Result<u32> {
    "none".parse::<u32>().context("the amount")
}

#[workflow]
async fn of_question_marks(ctx: Ctx, which: String) -> Result<u32> {
    ctx.step("parse", || async {
        match which.as_str() {
            "anyhow" => Ok(with_anyhow()?),
            "boxed" => Err(Boxed::from("from a box"))?,
            "string" => Err(format!("no {which}"))?,
            "text" => Err("a text")?,
            _ => Ok(std::str::from_utf8(b"7")?.parse()?),
        }
    })
    .await
}

#[workflow]
async fn of_own_errors(ctx: Ctx, amount: u32) -> Result<u32, Own> {
    if amount == 0 {
        return Err(Own::Empty);
    }
    let declined = || async { Err::<u32, _>(Error::typed(Declined { code: 51 })) };
    Ok(ctx.step("charge", declined).await?)
}

#[workflow]
async fn of_anyhow(ctx: Ctx, amount: u32) -> anyhow::Result<u32> {
    let doubled = ctx.step("double", || async { Ok(amount * 2) }).await.map_err(Error::into_std)?;
    anyhow::ensure!(doubled > 0, "nothing to pay");
    Err(anyhow::anyhow!("no money")).context("charge")
}

#[workflow]
async fn of_boxes(_ctx: Ctx) -> Result<(), Boxed> {
    Err("from a box".into())
}

#[task]
async fn of_texts() -> Result<(), String> {
    Err("a text".to_owned())
}

async fn error_of<C: abide::Code>(abide: &Abide, code: C, input: C::Input) -> Error {
    match abide.run(code, input).await.map(drop).unwrap_err() {
        ClientError::Failed { error, .. } => error,
        other => panic!("{other}"),
    }
}

#[abide::test]
async fn question_marks_in_steps_keep_message_and_chain(abide: Abide) {
    let error = error_of(&abide, of_question_marks, "anyhow".to_owned()).await;
    assert_eq!(error.message(), "the amount");
    assert_eq!(error.chain().collect::<Vec<_>>(), ["invalid digit found in string"]);
    for (which, message) in [("boxed", "from a box"), ("string", "no string"), ("text", "a text")] {
        assert_eq!(error_of(&abide, of_question_marks, which.to_owned()).await.message(), message);
    }
    assert_eq!(abide.run(of_question_marks, "none".to_owned()).await.unwrap(), 7);
}

#[abide::test]
async fn a_workflow_returns_any_error_that_converts(abide: Abide) {
    assert_eq!(error_of(&abide, of_own_errors, 0).await.message(), "the order is empty");
    let error = error_of(&abide, of_own_errors, 1).await;
    assert_eq!(error.message(), "charging failed");
    assert_eq!(error.get(), Some(Declined { code: 51 }));
    assert_eq!(error_of(&abide, of_anyhow, 0).await.message(), "nothing to pay");
    let error = error_of(&abide, of_anyhow, 1).await;
    assert_eq!((error.message(), error.chain().collect()), ("charge", vec!["no money"]));
    assert_eq!(error_of(&abide, of_boxes, ()).await.message(), "from a box");
    assert_eq!(error_of(&abide, of_texts, ()).await.message(), "a text");
}
