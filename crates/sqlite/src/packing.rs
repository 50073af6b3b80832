//! Several entries in one row: each behind its length. Something that is kept beside them stands
//! behind a zero, which is no entry's length, and a byte that says what it is.

use abide_core::{Entry, Summary, codec};
use abide_store::Record;

use crate::checksum::{CHECKSUM_BYTES, Checksum};

/// The most entries that share a row.
pub(crate) const PACK_COUNT_MAX: usize = 1_000;
/// The most bytes of entries that share a row. A larger entry has a row of its own, so that readers
/// of its neighbours do not read it.
const PACK_BYTES_MAX: usize = 16 * 1_024;

/// Entries that are written as one row: the length of each and its bytes, behind a checksum.
#[derive(Debug)]
pub(crate) struct Pack {
    /// The number of the first entry.
    pub(crate) seq: u64,
    pub(crate) count: u64,
    /// The happening that the feed reports for the last entry.
    pub(crate) happened: Option<u8>,
    pub(crate) body: Vec<u8>,
    /// The checksum of the entries; the rest of the row is added when it is known.
    pub(crate) sum: Checksum,
    /// Where the entries end, if an answer stands behind them.
    answer_from: Option<usize>,
}

/// The things that are kept beside the entries of a row. The numbers are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Beside {
    /// The answer of a child that ends with this row: see [`crate::answers`].
    Answer = 1,
    /// The summary of the commit, which may be in no other row: see [`crate::tail`].
    Summary = 2,
}

impl Pack {
    /// Returns a pack of this record alone, in a used buffer.
    pub(crate) fn of_one(buffer: Vec<u8>, record: &Record) -> Self {
        let mut body = buffer;
        body.clear();
        Self::of(body, std::slice::from_ref(record))
    }

    /// Returns a pack of these records, in an empty buffer.
    fn of(mut body: Vec<u8>, records: &[Record]) -> Self {
        body.extend([0; CHECKSUM_BYTES]);
        for record in records {
            put_length(&mut body, record.bytes.len());
            body.extend_from_slice(&record.bytes);
        }
        let sum = Checksum::new().bytes(&body[CHECKSUM_BYTES..]);
        let (seq, count) = (records.first().map_or(0, |first| first.seq), records.len() as u64);
        Self { seq, count, happened: None, body, sum, answer_from: None }
    }

    /// Has `put` append an answer behind the entries, and returns its size.
    pub(crate) fn keep(&mut self, put: impl FnOnce(Vec<u8>) -> Vec<u8>) -> usize {
        let end = self.body.len();
        self.answer_from = Some(end);
        self.body.extend([0, Beside::Answer as u8]);
        self.body = put(std::mem::take(&mut self.body));
        self.sum = Checksum::new().bytes(&self.body[CHECKSUM_BYTES..]);
        self.body.len() - end
    }

    /// Appends the summary of the commit behind the entries, for good.
    pub(crate) fn sum_up(&mut self, summary: &Summary) {
        let mut body = std::mem::take(&mut self.body);
        body.extend([0, Beside::Summary as u8]);
        self.body = codec::encode_behind(body, summary);
        self.sum = Checksum::new().bytes(&self.body[CHECKSUM_BYTES..]);
    }

    /// Removes the answer that an earlier attempt to write the row has appended.
    pub(crate) fn forget_answer(&mut self) {
        if let Some(end) = self.answer_from.take() {
            self.body.truncate(end);
            self.sum = Checksum::new().bytes(&self.body[CHECKSUM_BYTES..]);
        }
    }
}

/// The rows of a commit, in order. Most commits have one, which is not allocated.
#[derive(Debug, Default)]
pub(crate) struct Packs {
    first: Option<Pack>,
    rest: Vec<Pack>,
}

impl Packs {
    fn push(&mut self, pack: Pack) {
        match self.first {
            None => self.first = Some(pack),
            Some(_) => self.rest.push(pack),
        }
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pack> {
        self.first.iter_mut().chain(&mut self.rest)
    }

    /// Returns the only row.
    pub(crate) fn only_mut(&mut self) -> Option<&mut Pack> {
        self.first.as_mut().filter(|_| self.rest.is_empty())
    }

    pub(crate) fn last_mut(&mut self) -> Option<&mut Pack> {
        self.rest.last_mut().or(self.first.as_mut())
    }
}

/// Packs records, on the caller's thread if possible.
pub(crate) fn packed(records: &[Record]) -> Packs {
    packed_before(records, 0)
}

/// Packs records, with room for so many bytes of an answer behind them.
pub(crate) fn packed_before(records: &[Record], answer_bytes: usize) -> Packs {
    let mut packs = Packs::default();
    let mut rest = records;
    while !rest.is_empty() {
        let (length, happened) = together(rest);
        let (together, others) = rest.split_at(length);
        let size: usize = together.iter().map(|record| record.bytes.len() + 2).sum();
        let body = Vec::with_capacity(size + CHECKSUM_BYTES + 4 + answer_bytes);
        packs.push(Pack { happened, ..Pack::of(body, together) });
        rest = others;
    }
    packs
}

/// Returns how many of the first records share a row, and the happening that the feed reports for
/// the last one. The feed finds rows, so an entry with a happening ends its row.
fn together(records: &[Record]) -> (usize, Option<u8>) {
    let mut bytes = 0;
    for (record, length) in records.iter().zip(1..) {
        bytes += record.bytes.len();
        if length > 1 && (bytes > PACK_BYTES_MAX || length > PACK_COUNT_MAX) {
            return (length - 1, None);
        }
        let happened = Entry::meaning_of(&record.bytes).map(|happening| happening as u8);
        if happened.is_some() {
            return (length, happened);
        }
    }
    (records.len(), None)
}

/// Appends a length, seven bits a byte, the lowest first, as in the entries themselves.
pub(crate) fn put_length(body: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        body.push(length as u8 | 0x80);
        length >>= 7;
    }
    body.push(length as u8);
}

/// Splits a row into its entries; yields `None` where they cannot be separated.
pub(crate) fn unpack(mut rest: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    std::iter::from_fn(move || {
        if matches!(rest, [] | [0, ..]) {
            return None;
        }
        let Ok((length, entries)) = postcard::take_from_bytes::<u32>(rest) else {
            rest = &[];
            return Some(None);
        };
        let split = entries.split_at_checked(length as usize);
        rest = split.map_or(&[], |(_, others)| others);
        Some(split.map(|(entry, _)| entry))
    })
}

/// Returns this thing, if it is kept beside the entries of a row.
pub(crate) fn kept(row: &[u8], beside: Beside) -> Option<&[u8]> {
    let mut rest = row;
    while !matches!(rest, [] | [0, ..]) {
        let (length, entries) = postcard::take_from_bytes::<u32>(rest).ok()?;
        rest = entries.get(length as usize..)?;
    }
    rest.strip_prefix(&[0, beside as u8])
}
