//! A row behind the first one of a sheaf, and how it is written and read.

use crate::checksum::{CHECKSUM_BYTES, Checksum};
use crate::packing::put_length;

/// A row behind the first one of a sheaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Behind<'r> {
    pub(crate) key: i64,
    pub(crate) previous: Option<i64>,
    pub(crate) seq: u64,
    pub(crate) happened: Option<u8>,
    pub(crate) skip: Option<&'r [u8]>,
    pub(crate) body: &'r [u8],
}

/// A row that was split off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split<'r> {
    pub(crate) row: Behind<'r>,
    /// Whether its columns are those that were written. They have a checksum of their own, so that
    /// damage to the rest of a row is known to be that of its execution, and of no other one.
    pub(crate) is_named: bool,
    /// The bytes behind it.
    pub(crate) rest: &'r [u8],
}

impl<'r> Behind<'r> {
    /// Appends the row with this number: its length, the checksum of its columns, its columns, and
    /// its body. A predecessor is a distance, and 0 stands for nothing in place of any other
    /// column.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>, number: i64) {
        /// The room for the length, which is written last. It is never longer, because a sheaf is
        /// not.
        const LENGTH_BYTES: usize = 2;
        let start = bytes.len();
        bytes.extend([0; LENGTH_BYTES]);
        bytes.extend_from_slice(&self.sum_of_columns(number));
        put_length(bytes, self.key as usize);
        put_length(bytes, self.previous.map_or(0, |previous| number.wrapping_sub(previous) as usize));
        put_length(bytes, self.seq as usize);
        put_length(bytes, self.happened.map_or(0, |happened| usize::from(happened) + 1));
        put_length(bytes, self.skip.map_or(0, |skip| skip.len() + 1));
        bytes.extend_from_slice(self.skip.unwrap_or_default());
        bytes.extend_from_slice(self.body);
        let length = (bytes.len() - start - LENGTH_BYTES) as u16;
        bytes[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    }

    /// Splits off the row with this number.
    pub(crate) fn split(number: i64, bytes: &'r [u8]) -> Option<Split<'r>> {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (row, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        let (sum, row) = row.split_first_chunk::<CHECKSUM_BYTES>()?;
        let (columns, row) = postcard::take_from_bytes::<(u64, u64, u64, u16, u16)>(row).ok()?;
        let (key, distance, seq, happened, skip) = columns;
        let (skip, body) = match skip {
            0 => (None, row),
            length => row.split_at_checked(usize::from(length) - 1).map(|(skip, body)| (Some(skip), body))?,
        };
        let previous = match distance {
            0 => None,
            distance => Some(number.checked_sub_unsigned(distance)?),
        };
        let happened = match happened {
            0 => None,
            happened => Some(u8::try_from(happened - 1).ok()?),
        };
        let row = Self { key: i64::try_from(key).ok()?, previous, seq, happened, skip, body };
        Some(Split { is_named: row.sum_of_columns(number) == *sum, row, rest })
    }

    /// Returns the checksum of everything but the bytes of list and body.
    fn sum_of_columns(&self, number: i64) -> [u8; CHECKSUM_BYTES] {
        let happened = self.happened.map_or(0, |happened| i64::from(happened) + 1);
        let skip = self.skip.map_or(0, |skip| skip.len() as i64 + 1);
        let previous = self.previous.unwrap_or(0);
        let sum = Checksum::new().number(number).number(self.key).number(previous).number(self.seq as i64);
        sum.number(happened << 32 | skip).finish().to_le_bytes()
    }
}
