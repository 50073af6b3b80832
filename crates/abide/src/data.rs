//! Values of the user's as payloads: JSON, so that people and other languages can read them.

use abide_core::{Block, Outcome, Payload, Unrecordable};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The payload of a value.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Payload, serde_json::Error> {
    serde_json::to_vec(value).map(Payload::from)
}

/// The value in a payload.
pub(crate) fn decode<T: DeserializeOwned>(payload: &Payload) -> Result<T, serde_json::Error> {
    serde_json::from_slice(payload.as_bytes())
}

/// What a closure's value becomes in the journal: it has happened, so it is recorded even if its value cannot be.
pub(crate) fn outcome_of<T: Serialize>(result: crate::Result<T>) -> Outcome {
    match result {
        Ok(value) => match encode(&value) {
            Ok(payload) => Outcome::Success(payload),
            Err(error) => {
                let reason = format!("{} does not serialize: {error}", std::any::type_name::<T>());
                Outcome::Unrecordable(Unrecordable { reason })
            }
        },
        Err(error) => Outcome::Failure(error.into_failure()),
    }
}

/// Why a payload cannot be read as a `T`.
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
        // Of these, the quick way to read JSON gets some wrong by one bit.
        let floats = (1..20_000_u64).map(|n| f64::from_bits(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for float in floats.filter(|float| float.is_finite()) {
            assert_eq!(decode::<f64>(&encode(&float).unwrap()).unwrap().to_bits(), float.to_bits());
        }
    }
}
