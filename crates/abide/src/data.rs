//! The user's values as payloads: JSON, so that people and other languages can read them.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use abide_core::planted::{Bug, planted};
use abide_core::{Block, Outcome, Payload, Unrecordable};
use abide_engine::panics;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::ser::Error as _;

use crate::code::Value;
use crate::plain;
use crate::readable::Readable;
use crate::scratch;

/// Returns the payload of a value. Refuses a value that would be read back as another one.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Payload, serde_json::Error> {
    match plain::text(value) {
        Some(payload) => Ok(payload),
        None => scratch::try_payload(|json| serde_json::to_writer(json, &Readable::new(value))),
    }
}

/// Returns the value in a payload. A panic in the code of the type says no more than its error
/// would: that this code cannot read the payload. If it reached a workflow, the run would fail for
/// good at a record that mended code can read.
pub(crate) fn decode<T: DeserializeOwned>(payload: &Payload) -> Result<T, serde_json::Error> {
    if planted(Bug::ReadingPanics) {
        return serde_json::from_slice(payload.as_bytes());
    }
    if let Some(text) = plain::read_text(payload.as_bytes()) {
        return Ok(text);
    }
    catch_unwind(|| serde_json::from_slice(payload.as_bytes())).unwrap_or_else(|panic| {
        let failure = panics::failure(panic);
        Err(serde_json::Error::custom(format_args!("reading it panicked: {}", failure.message)))
    })
}

/// Returns the payload of a value, and the value as it is read back from it: the code sees the same
/// value now and in a replay. `None` stands for the value itself, where JSON cannot change it.
pub(crate) fn round_trip<T>(value: &T) -> Result<(Payload, Option<T>), serde_json::Error>
where
    T: Value,
{
    let payload = value.to_payload()?;
    if plain::is_plain::<T>() || planted(Bug::ValueNotReadBack) {
        return Ok((payload, None));
    }
    match T::from_payload(&payload) {
        Ok(read) => Ok((payload, Some(read))),
        Err(error) => Err(serde_json::Error::custom(unread(error))),
    }
}

/// Returns the outcome that the journal records for a closure's result, and the value that the code
/// sees. The closure has run, so an outcome is recorded even if its value cannot be.
pub(crate) fn outcome_of<T>(result: crate::Result<T>) -> (Outcome, Option<T>)
where
    T: Value,
{
    match result {
        Ok(value) => match catch_unwind(AssertUnwindSafe(|| round_trip(&value))) {
            Ok(Ok((payload, read))) => (Outcome::Success(payload), Some(read.unwrap_or(value))),
            Ok(Err(error)) => (unrecordable::<T>(error), None),
            Err(panic) => {
                let failure = panics::failure(panic);
                (unrecordable::<T>(unread(&failure.message)), None)
            }
        },
        Err(error) => (Outcome::Failure(error.into_failure()), None),
    }
}

/// Does the same for a value that is not read back, because only its writer knows its type.
pub(crate) fn written<T: Serialize>(result: crate::Result<T>) -> Outcome {
    match result {
        Ok(value) => encode(&value).map_or_else(unrecordable::<T>, Outcome::Success),
        Err(error) => Outcome::Failure(error.into_failure()),
    }
}

fn unrecordable<T>(complaint: impl Display) -> Outcome {
    let reason = format!("{} does not serialize: {complaint}", std::any::type_name::<T>());
    Outcome::Unrecordable(Unrecordable { reason })
}

fn unread(complaint: impl Display) -> String {
    format!("it cannot be read back: {complaint}")
}

/// Returns the reason why a payload cannot be read as a `T`.
pub(crate) fn undecodable<T>(what: &str, payload: &Payload, error: &serde_json::Error) -> Block {
    Block::Undecodable {
        what: what.to_owned(),
        expected: std::any::type_name::<T>().to_owned(),
        found: format!("{} ({error})", payload.excerpt()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_float_is_recorded_to_its_last_bit() {
        // The fast way to read JSON gets some of these wrong by one bit.
        let floats = (1..20_000_u64).map(|n| f64::from_bits(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for float in floats.filter(|float| float.is_finite()) {
            assert_eq!(decode::<f64>(&encode(&float).unwrap()).unwrap().to_bits(), float.to_bits());
        }
    }

    /// Values that cannot be read back are refused; all others are written as `serde_json` writes
    /// them.
    #[test]
    fn what_can_be_read_back_is_written_as_before() {
        #[derive(Serialize)]
        struct Whole<'a> {
            text: &'a str,
            pair: (u8, i128),
            list: Vec<Option<char>>,
            map: std::collections::BTreeMap<u8, Part>,
            #[serde(skip_serializing_if = "Option::is_none")]
            absent: Option<()>,
            raw: serde_json::Value,
        }
        #[derive(Serialize)]
        enum Part {
            Unit,
            One(f64),
            Two(bool, ()),
            Named { inner: Option<Box<Self>> },
        }
        let named = Part::Named { inner: Some(Box::new(Part::One(-0.5))) };
        let whole = Whole {
            text: "\u{1}é\"",
            pair: (1, i128::MIN),
            list: vec![None, Some('x')],
            map: [(1, Part::Unit), (2, Part::Two(true, ())), (3, named)].into(),
            absent: None,
            raw: serde_json::json!({ "a": [null, 1.5, { "b": {} }] }),
        };
        assert_eq!(encode(&whole).unwrap().as_bytes(), serde_json::to_vec(&whole).unwrap());
    }
}
