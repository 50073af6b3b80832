//! The part of an execution's row beside its indexed columns: its summary, its state, and facts
//! that rarely change.
//!
//! It is one column instead of a dozen: binding, writing and reading a column costs more than its
//! bytes. The sheet begins with a checksum of itself and of the columns that change only with it.
//!
//! It may end with zeros. SQLite writes a row in place if its size stays the same; otherwise it
//! removes the row from its page and inserts it again. So a sheet leaves room for the next one.

use std::error::Error;

use abide_core::codec::DecodeError;
use abide_core::intake::Standing;
use abide_core::{Execution, Start, Summary, Timestamp, Version, codec};
use rusqlite::Row;
use rusqlite::types::Type;
use serde::{Deserialize, Serialize};

use crate::answers::Keeping;
use crate::checksum::{self, CHECKSUM_BYTES, Checksum};
use crate::packing::put_length;
use crate::place::ReadyQueue;
use crate::rows::{blob, count, integer, text};

/// Facts that rarely change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cold {
    pub(crate) created_at: Timestamp,
    /// The number of the current run.
    pub(crate) run: u32,
    /// The first journal row of the current run.
    pub(crate) first: i64,
    /// The first journal row of the first run, once there is a second: a repeated start is compared
    /// with the original one.
    pub(crate) origin: Option<i64>,
    /// The number of journal rows of the current run.
    pub(crate) row_count: u64,
    pub(crate) tagged: bool,
    pub(crate) top_level: bool,
    /// Where the answers of its children are.
    pub(crate) keeping: Keeping,
    /// Whether its journal may go on behind its head: see [`crate::tail`].
    pub(crate) has_tail: bool,
}

impl Cold {
    /// Returns the facts of an execution whose journal begins in `row`.
    pub(crate) fn of_newborn(start: &Start, row: i64, now: Timestamp) -> Self {
        Self {
            created_at: now,
            run: 1,
            first: row,
            origin: None,
            row_count: 1,
            tagged: !start.tags.is_empty(),
            top_level: start.parent.is_none(),
            keeping: Keeping::Never,
            has_tail: false,
        }
    }

    /// Returns the first journal row of the first run.
    pub(crate) fn origin(&self) -> i64 {
        self.origin.unwrap_or(self.first)
    }
}

/// The columns that belong to a sheet. A sheet in another row, or one that is older or newer than
/// its row, is damaged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    /// The checksum of the columns that never change.
    identity: u64,
    pub(crate) head: i64,
    pub(crate) version: Version,
}

/// The columns that never change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) key: i64,
    pub(crate) namespace: i64,
    pub(crate) id: &'a str,
    pub(crate) queue: ReadyQueue,
    /// The execution that started it.
    pub(crate) parent: Option<i64>,
}

impl Anchor {
    pub(crate) fn new(of: Identity<'_>, head: i64, version: Version) -> Self {
        let Identity { key, namespace, id, queue, parent } = of;
        let sum = Checksum::new().number(key).number(namespace).number(queue.number());
        let sum = sum.number(parent.unwrap_or(-1)).bytes(id.as_bytes());
        Self { identity: sum.0, head, version }
    }

    /// Returns the same columns with another head.
    pub(crate) fn at(self, head: i64) -> Self {
        Self { head, ..self }
    }

    /// Whether these are the columns that never change.
    pub(crate) fn is_of(&self, of: Identity<'_>) -> bool {
        Self::new(of, 0, Version(0)).identity == self.identity
    }

    pub(crate) fn sum(&self, sheet: Checksum) -> Checksum {
        sheet.number(self.identity as i64).number(self.head).number(integer(self.version.0))
    }
}

/// A sheet that is being written. Its larger part is prepared on the caller's thread, the rest when
/// the row is written.
#[derive(Debug)]
pub(crate) struct Draft {
    bytes: Vec<u8>,
    /// The number of prepared bytes, and their checksum.
    prepared: usize,
    sum: Checksum,
}

impl Draft {
    pub(crate) fn new(summary: &Summary, state: &[u8]) -> Self {
        let mut bytes = Self::begin(Vec::new(), summary, state.len());
        put_length(&mut bytes, state.len());
        bytes.extend_from_slice(state);
        Self::prepared(bytes)
    }

    /// Prepares a sheet with a state that is not encoded yet.
    pub(crate) fn of(summary: &Summary, execution: &Execution) -> Self {
        Self::reusing(Vec::new(), summary, execution)
    }

    /// Does the same in a used buffer.
    pub(crate) fn reusing(buffer: Vec<u8>, summary: &Summary, execution: &Execution) -> Self {
        const STATE_BYTES: usize = 192;
        Self::prepared(put_part(Self::begin(buffer, summary, STATE_BYTES), execution))
    }

    /// Returns its buffer.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// Prepares the same sheet again.
    pub(crate) fn again(sheet: &Sheet<'_>) -> Self {
        let mut bytes = vec![0; CHECKSUM_BYTES];
        for part in [sheet.summary, sheet.state] {
            put_length(&mut bytes, part.len());
            bytes.extend_from_slice(part);
        }
        Self::prepared(bytes)
    }

    fn begin(buffer: Vec<u8>, summary: &Summary, state_bytes: usize) -> Vec<u8> {
        let mut bytes = buffer;
        bytes.clear();
        bytes.reserve(state_bytes + 128);
        bytes.extend([0; CHECKSUM_BYTES]);
        put_part(bytes, summary)
    }

    fn prepared(bytes: Vec<u8>) -> Self {
        let sum = Checksum::new().bytes(&bytes[CHECKSUM_BYTES..]);
        Self { prepared: bytes.len(), bytes, sum }
    }

    /// Returns the whole sheet of an execution that keeps no answers.
    pub(crate) fn sealed(&mut self, cold: &Cold, anchor: &Anchor) -> &[u8] {
        self.padded(cold, &[], anchor, |length| length)
    }

    /// Returns the whole sheet, with zeros up to the length that `wanted` returns for its own.
    /// `marks` are the answers that are read, if some may be kept.
    pub(crate) fn padded(
        &mut self,
        cold: &Cold,
        marks: &[u8],
        anchor: &Anchor,
        wanted: impl FnOnce(usize) -> usize,
    ) -> &[u8] {
        self.bytes.truncate(self.prepared);
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes = codec::append(bytes, cold);
        if cold.keeping.is_open() {
            put_length(&mut self.bytes, marks.len());
            self.bytes.extend_from_slice(marks);
        }
        self.bytes.resize(wanted(self.bytes.len()).max(self.bytes.len()), 0);
        let sum = anchor.sum(self.sum.bytes(&self.bytes[self.prepared..]));
        checksum::put(&mut self.bytes, sum);
        &self.bytes
    }
}

/// Appends a value, with its length in front. The length is known last, and mostly takes one byte.
fn put_part(mut bytes: Vec<u8>, value: &impl Serialize) -> Vec<u8> {
    let mut at = bytes.len();
    bytes.push(0);
    let mut bytes = codec::encode_behind(bytes, value);
    let mut length = bytes.len() - at - 1;
    while length >= 0x80 {
        bytes[at] = length as u8 | 0x80;
        length >>= 7;
        at += 1;
        bytes.insert(at, 0);
    }
    bytes[at] = length as u8;
    bytes
}

/// A sheet that was read.
#[derive(Debug)]
pub(crate) struct Sheet<'a> {
    pub(crate) cold: Cold,
    pub(crate) marks: &'a [u8],
    pub(crate) summary: &'a [u8],
    pub(crate) state: &'a [u8],
}

impl<'a> Sheet<'a> {
    pub(crate) fn open(bytes: &'a [u8], anchor: &Anchor) -> Result<Self, DecodeError> {
        let damaged = |what: &str| DecodeError::Damaged(what.to_owned());
        // Only its content says where the prepared part ends.
        let rest = bytes.get(CHECKSUM_BYTES..).ok_or_else(|| damaged("it is cut short"))?;
        let ((summary, state), cold_bytes) =
            postcard::take_from_bytes::<(&[u8], &[u8])>(rest).map_err(|_| damaged("it is cut short"))?;
        let prepared = &rest[..rest.len() - cold_bytes.len()];
        let sum = |_: &[u8]| anchor.sum(Checksum::new().bytes(prepared).bytes(cold_bytes));
        checksum::checked(bytes, sum).ok_or_else(|| damaged("its checksum is wrong"))?;
        // Bytes after it, except zeros, would be lost when the sheet is written again.
        let Ok((cold, rest)) = postcard::take_from_bytes::<Cold>(cold_bytes) else {
            return Err(DecodeError::Newer);
        };
        let told = match cold.keeping.is_open() {
            true => postcard::take_from_bytes::<&[u8]>(rest).ok(),
            false => Some((&[][..], rest)),
        };
        match told {
            Some((marks, rest)) if rest.iter().all(|byte| *byte == 0) => {
                Ok(Self { cold, marks, summary, state })
            }
            _ => Err(DecodeError::Newer),
        }
    }

    /// Opens the sheet of the execution with this id. An error about damage names the id.
    pub(crate) fn of(id: &str, bytes: &'a [u8], anchor: &Anchor) -> rusqlite::Result<Self> {
        Self::open(bytes, anchor).map_err(|problem| match problem {
            DecodeError::Damaged(what) => {
                complain(format!("the state of execution {id:?} is damaged: {what}"))
            }
            other => complain(other),
        })
    }

    /// Returns the facts that a message needs, from the beginning of the summary.
    pub(crate) fn standing(&self) -> rusqlite::Result<Standing> {
        let beginning = Summary::beginning_of(self.summary);
        let (status, listens) = beginning.ok_or_else(|| match self.summary() {
            Err(error) => error,
            Ok(_) => complain("its summary cannot be read"),
        })?;
        Ok(Standing { status, listens, run: Some(self.cold.run) })
    }

    pub(crate) fn summary(&self) -> rusqlite::Result<Summary> {
        codec::decode(self.summary).map_err(complain)
    }

    pub(crate) fn execution(&self) -> rusqlite::Result<Execution> {
        codec::decode(self.state).map_err(complain)
    }
}

fn complain(complaint: impl Into<Box<dyn Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(7, Type::Blob, complaint.into())
}

/// The columns that every look at an execution begins with: `key, namespace, id, queue, parent,
/// head, version, state`, in this order.
#[derive(Debug)]
pub(crate) struct Base<'r> {
    pub(crate) key: i64,
    pub(crate) namespace: i64,
    pub(crate) id: &'r str,
    pub(crate) queue: ReadyQueue,
    pub(crate) parent: Option<i64>,
    pub(crate) anchor: Anchor,
    sheet: &'r [u8],
}

impl<'r> Base<'r> {
    pub(crate) fn read(row: &'r Row<'_>) -> rusqlite::Result<Self> {
        Self::read_at(row, 0)
    }

    /// Reads the columns, which begin at `at`.
    pub(crate) fn read_at(row: &'r Row<'_>, at: usize) -> rusqlite::Result<Self> {
        let (key, namespace) = (row.get(at)?, row.get(at + 1)?);
        let id = text(row, at + 2)?;
        let (queue, parent) = (ReadyQueue::of(row.get(at + 3)?), row.get(at + 4)?);
        let identity = Identity { key, namespace, id, queue, parent };
        let anchor = Anchor::new(identity, row.get(at + 5)?, Version(count(row, at + 6)?));
        Ok(Self { key, namespace, id, queue, parent, anchor, sheet: blob(row, at + 7)? })
    }

    /// Returns the bytes of the sheet.
    pub(crate) fn sheet_length(&self) -> usize {
        self.sheet.len()
    }

    /// Returns the sheet, if it is intact.
    pub(crate) fn sheet(&self) -> rusqlite::Result<Sheet<'r>> {
        Sheet::of(self.id, self.sheet, &self.anchor)
    }
}

#[cfg(test)]
mod tests {
    use abide_core::{Address, ExecutionId, Namespace};

    use super::*;

    #[test]
    fn what_a_newer_program_added_is_neither_lost_nor_damage() {
        let start = abide_core::fixture::flow();
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new("x").unwrap() };
        let now = Timestamp::from_millis(1);
        let (execution, _) = Execution::start(address, start.clone(), now);
        let queue = ReadyQueue { route: 1, priority: 0 };
        let identity = Identity { key: 1, namespace: 1, id: "x", queue, parent: None };
        let anchor = Anchor::new(identity, 7, Version(1));
        let cold = Cold::of_newborn(&start, 7, now);
        let mut draft = Draft::new(&execution.summary(&[]), &codec::encode(&execution));
        let prepared = draft.prepared;
        let length = draft.sealed(&cold, &anchor).len();
        let mut bytes = draft.padded(&cold, &[], &anchor, |length| length + 9).to_vec();
        assert_eq!((bytes.len(), Sheet::open(&bytes, &anchor).unwrap().cold), (length + 9, cold));
        bytes.push(7);
        let sum = Checksum::new().bytes(&bytes[CHECKSUM_BYTES..prepared]).bytes(&bytes[prepared..]);
        checksum::put(&mut bytes, anchor.sum(sum));
        assert_eq!(Sheet::open(&bytes, &anchor).unwrap_err(), DecodeError::Newer);
    }
    #[test]
    fn the_length_of_a_part_is_told_before_it() {
        for length in [0, 1, 122, 123, 124, 125, 126, 127, 128, 16_379, 16_380, 16_381, 20_000, 3_000_000] {
            let value = "x".repeat(length);
            let bytes = put_part(vec![7], &value);
            let (part, rest) = postcard::take_from_bytes::<&[u8]>(&bytes[1..]).unwrap();
            assert_eq!((bytes[0], part, rest), (7, &codec::encode(&value)[..], &[][..]), "{length}");
        }
    }
}
