//! The encoding of entries, states and messages on disk.
//!
//! A record is one byte of format version, then the value in postcard. Within a format, structures
//! gain optional fields (`grow.rs`) and enumerations gain variants at their end; a program refuses
//! a field or variant that it does not know as [`DecodeError::Newer`]. Anything else needs the next
//! format, and the old one stays readable, which the golden files in `tests/golden` check.

use std::fmt;

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The format that this program writes.
const VERSION: u8 = 1;

/// The reason why bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// There are no bytes.
    Empty,
    /// A newer program wrote the bytes, in a format that this one does not know.
    UnknownVersion(u8),
    /// A newer program wrote the bytes: they have a field or a variant that this one does not know.
    Newer,
    /// The bytes are damaged.
    Damaged(String),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the record is empty"),
            Self::UnknownVersion(version) => {
                write!(
                    f,
                    "the record was written by a newer version of abide: it has format {version}, \
                     this program knows formats up to {VERSION}"
                )
            }
            Self::Newer => f.write_str(
                "the record was written by a newer version of abide: it has something that this program does not know",
            ),
            Self::Damaged(reason) => write!(f, "the record is damaged: {reason}"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl DecodeError {
    /// Whether a newer program wrote the bytes: then only this program cannot read them.
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Newer | Self::UnknownVersion(_))
    }
}

/// Returns the bytes of `value`.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Enough for most entries and messages, with a payload of a hundred bytes.
    encode_behind(Vec::with_capacity(256), value)
}

/// Returns bytes that begin as those of every value do, with room for so many more.
pub(crate) fn begun(byte_count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(byte_count + 1);
    bytes.push(VERSION);
    bytes
}

/// Appends the bytes of `value`.
pub fn encode_behind<T: Serialize>(mut bytes: Vec<u8>, value: &T) -> Vec<u8> {
    bytes.push(VERSION);
    append(bytes, value)
}

/// Appends the bytes of `value`, without a version.
pub fn append<T: Serialize>(bytes: Vec<u8>, value: &T) -> Vec<u8> {
    postcard::serialize_with_flavor(value, Appended(bytes)).expect("types of this crate always serialize")
}

/// Bytes behind others. Postcard's own flavor for this appends byte by byte.
struct Appended(Vec<u8>);

impl Flavor for Appended {
    type Output = Vec<u8>;

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        match bytes {
            // Most numbers and lengths have one byte.
            [byte] => self.0.push(*byte),
            _ => self.0.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// Returns the value in `bytes`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    match bytes.split_first() {
        None => Err(DecodeError::Empty),
        Some((&VERSION, rest)) => {
            let (value, left) = postcard::take_from_bytes(rest).map_err(explain)?;
            if left.is_empty() {
                Ok(value)
            } else {
                Err(DecodeError::Damaged(format!("{} bytes are left over", left.len())))
            }
        }
        Some((&version, _)) => Err(DecodeError::UnknownVersion(version)),
    }
}

/// Returns the bytes after the version, if this program knows the format.
pub(crate) fn body(bytes: &[u8]) -> Option<&[u8]> {
    bytes.split_first().filter(|(version, _)| **version == VERSION).map(|(_, body)| body)
}

/// Explains an error of postcard. Postcard itself reports impossible bytes, such as an early end.
/// Every other error comes from a type, which met a variant or a field that it does not know.
fn explain(error: postcard::Error) -> DecodeError {
    match error {
        postcard::Error::SerdeDeCustom => DecodeError::Newer,
        other => DecodeError::Damaged(other.to_string()),
    }
}
