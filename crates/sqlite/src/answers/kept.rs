//! An answer behind the entries of a journal row, and how it is read.

use abide_core::Message;
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::error::{BatchFailure, Meaning, Stop};
use crate::journal::{self, Found};
use crate::mail::{is_sound, opened};
use crate::packing::put_length;
use crate::sql;

/// An answer behind the entries of a journal row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kept<'r> {
    pub(crate) arrived: i64,
    pub(crate) id: &'r str,
    /// The body of a row of the inbox.
    pub(crate) body: &'r [u8],
}

impl<'r> Kept<'r> {
    pub(crate) fn of(answer: &'r [u8]) -> Option<Self> {
        let ((arrived, id), body) = postcard::take_from_bytes::<(u64, &str)>(answer).ok()?;
        Some(Self { arrived: i64::try_from(arrived).ok()?, id, body })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.id.len() + self.body.len() + 16);
        put_length(&mut bytes, self.arrived as usize);
        put_length(&mut bytes, self.id.len());
        bytes.extend_from_slice(self.id.as_bytes());
        bytes.extend_from_slice(self.body);
        bytes
    }

    fn owned(&self) -> Unread {
        Unread { arrived: self.arrived, id: self.id.to_owned(), body: self.body.to_vec() }
    }
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

    fn is_sound(&self, parent: i64) -> bool {
        is_sound((parent, &self.id, self.arrived), ValueRef::Blob(&self.body))
    }
}

/// Returns the answer that is kept in a journal row of a child.
pub(super) fn kept_in(connection: &Connection, (row, child): (i64, i64)) -> Result<Option<Unread>, Stop> {
    let mut statement = connection.prepare_cached(sql::JOURNAL_BODY)?;
    let mut rows = statement.query([row, child])?;
    let found = rows.next()?.ok_or_else(|| journal::missing(row))?;
    let Some(answer) = Found::read(found)?.answer() else { return Ok(None) };
    let damaged = || Stop::corrupt(format!("the answer in journal row {row} is damaged"));
    Kept::of(answer).map(|kept| Some(kept.owned())).ok_or_else(damaged)
}

/// Returns the answer in a journal row of a child. A damaged row has no answer: its child is
/// damaged, and once it is repaired, the answer is given again.
pub(super) fn sound(
    connection: &Connection,
    parent: i64,
    (row, child): (i64, i64),
) -> rusqlite::Result<Option<Unread>> {
    match kept_in(connection, (row, child)) {
        Ok(Some(kept)) if kept.is_sound(parent) => Ok(Some(kept)),
        Ok(None) => Ok(None),
        Err(Stop::Sql(error)) if BatchFailure::of(&error).meaning != Meaning::Corrupt => Err(error),
        Ok(Some(_)) | Err(_) => {
            tracing::error!(parent, child, row, "the answer of a child is damaged");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing;

    #[test]
    fn an_answer_stands_behind_the_entries_of_its_row() {
        let kept = Kept { arrived: 1 << 40, id: "done:a:1", body: b"body" };
        let mut row = Vec::new();
        for entry in ["one".to_owned(), "x".repeat(300)] {
            put_length(&mut row, entry.len());
            row.extend_from_slice(entry.as_bytes());
        }
        let without = row.clone();
        put_length(&mut row, 0);
        row.extend_from_slice(&kept.bytes());
        let found = Kept::of(packing::kept(&row).expect("it is there")).expect("it is whole");
        assert_eq!(found, kept);
        assert!(packing::kept(&without).is_none());
        assert!(packing::unpack(&row).eq(packing::unpack(&without)));
    }
}
