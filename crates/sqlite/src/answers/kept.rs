//! An answer behind the entries of a journal row, and how it is written and read.

use abide_core::{Message, codec};
use rusqlite::Connection;

use crate::error::{BatchFailure, Meaning, Stop};
use crate::journal;
use crate::mail::{has_place, opened, sealed};
use crate::packing::put_length;
use crate::sheaf;

/// An answer behind the entries of a journal row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kept<'r> {
    /// The execution that it is for. The column of the child that says so may be damaged.
    pub(crate) parent: i64,
    pub(crate) arrived: i64,
    pub(crate) id: &'r str,
    /// The encoded message. The checksum of the journal row covers it.
    pub(crate) message: &'r [u8],
}

impl<'r> Kept<'r> {
    pub(crate) fn of(answer: &'r [u8]) -> Option<Self> {
        let ((parent, arrived, id), message) = postcard::take_from_bytes::<(u64, u64, &str)>(answer).ok()?;
        Some(Self { parent: i64::try_from(parent).ok()?, arrived: i64::try_from(arrived).ok()?, id, message })
    }

    /// Appends the answer, of which `message` is still to come.
    pub(crate) fn begin(&self, bytes: &mut Vec<u8>) {
        put_length(bytes, self.parent as usize);
        put_length(bytes, self.arrived as usize);
        put_length(bytes, self.id.len());
        bytes.extend_from_slice(self.id.as_bytes());
    }

    fn owned(&self) -> Unread {
        let body = sealed(self.parent, (self.id, self.arrived), self.message);
        Unread { arrived: self.arrived, id: self.id.to_owned(), body }
    }
}

/// Appends an answer to `bytes`.
pub(super) fn put(mut bytes: Vec<u8>, (parent, arrived): (i64, i64), message: &Message) -> Vec<u8> {
    Kept { parent, arrived, id: message.id.as_str(), message: &[] }.begin(&mut bytes);
    codec::encode_behind(bytes, message)
}

/// An unread answer, as a row of the inbox would have it.
pub(crate) struct Unread {
    pub(crate) arrived: i64,
    pub(crate) id: String,
    pub(crate) body: Vec<u8>,
}

impl Unread {
    pub(crate) fn message(&self, parent: i64) -> rusqlite::Result<Message> {
        opened(parent, (&self.id, self.arrived), &self.body)
    }
}

/// Returns the answer to an execution that is kept in a journal row of a child.
pub(super) fn kept_in(
    connection: &Connection,
    parent: i64,
    (row, child): (i64, i64),
) -> Result<Option<Unread>, Stop> {
    let kept = sheaf::find_of(connection, (row, child), |part| {
        let Some(answer) = part.found()?.answer() else { return Ok(None) };
        let damaged = || Stop::corrupt(format!("the answer in journal row {row} is damaged"));
        let kept = Kept::of(answer).filter(|kept| kept.parent == parent && has_place(kept.arrived));
        kept.map(|kept| Some(kept.owned())).ok_or_else(damaged)
    })?;
    kept.ok_or_else(|| journal::missing(row))
}

/// Returns the answer in a journal row of a child. A damaged row has no answer: its child is
/// damaged, and once it is repaired, the answer is given again.
pub(super) fn sound(
    connection: &Connection,
    parent: i64,
    (row, child): (i64, i64),
) -> rusqlite::Result<Option<Unread>> {
    match kept_in(connection, parent, (row, child)) {
        Ok(kept) => Ok(kept),
        Err(Stop::Sql(error)) if BatchFailure::of(&error).meaning != Meaning::Corrupt => Err(error),
        Err(_) => {
            tracing::error!(parent, child, row, "the answer of a child is damaged");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing::{self, Beside};

    #[test]
    fn an_answer_stands_behind_the_entries_of_its_row() {
        let kept = Kept { parent: 300, arrived: 1 << 40, id: "done:a:1", message: b"message" };
        let mut row = Vec::new();
        for entry in ["one".to_owned(), "x".repeat(300)] {
            put_length(&mut row, entry.len());
            row.extend_from_slice(entry.as_bytes());
        }
        let without = row.clone();
        row.extend([0, Beside::Answer as u8]);
        kept.begin(&mut row);
        row.extend_from_slice(kept.message);
        let found = Kept::of(packing::kept(&row, Beside::Answer).expect("it is there"));
        assert_eq!(found.expect("it is whole"), kept);
        assert!(packing::kept(&row, Beside::Summary).is_none());
        assert!(packing::kept(&without, Beside::Answer).is_none());
        assert!(packing::unpack(&row).eq(packing::unpack(&without)));
    }
}
