//! How entries, states and messages are written to disk.
//!
//! One byte of format version, then the value in postcard. A format is never changed once released: a new one gets
//! the next number and the old one stays readable, which the golden files in `tests/golden` check.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The format that is written.
const VERSION: u8 = 1;

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// There is nothing.
    Empty,
    /// A newer program wrote them.
    UnknownVersion(u8),
    /// They are damaged.
    Damaged(String),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the record is empty"),
            Self::UnknownVersion(version) => {
                write!(f, "the record has format {version}, this program knows formats up to {VERSION}")
            }
            Self::Damaged(reason) => write!(f, "the record is damaged: {reason}"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// The bytes of `value`.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(192);
    bytes.push(VERSION);
    postcard::to_extend(value, bytes).expect("types of this crate always serialize")
}

/// The value in `bytes`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    match bytes.split_first() {
        None => Err(DecodeError::Empty),
        Some((&VERSION, rest)) => {
            let (value, left) =
                postcard::take_from_bytes(rest).map_err(|error| DecodeError::Damaged(error.to_string()))?;
            if left.is_empty() {
                Ok(value)
            } else {
                Err(DecodeError::Damaged(format!("{} bytes are left over", left.len())))
            }
        }
        Some((&version, _)) => Err(DecodeError::UnknownVersion(version)),
    }
}
