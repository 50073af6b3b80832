//! Reads the most frequent entry of all: a step that succeeded.
//!
//! A replay reads little else, and `serde` takes four times as long, because it hands every field
//! through several functions. Everything that is not exactly such an entry is left to
//! [`codec::decode`], which also explains why damaged bytes cannot be read. In tests the two are
//! compared at every entry.

use crate::codec::{self, DecodeError};
use crate::{Entry, Event, Name, Op, OpKind, Outcome, Payload, SiteMark, StepRecord, Timestamp};

/// The numbers of variants on disk.
const STEP_RECORDED: u8 = 1;
const STEP: u8 = OpKind::Step as u8;
const SUCCESS: u8 = 0;
const NONE: u8 = 0;
const SOME: u8 = 1;
/// The tag of the field that [`Entry`] gained.
const SITE: u8 = 1;

impl Entry {
    /// Returns the entry in `bytes`, as [`codec::decode`] does.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match codec::body(bytes).and_then(read) {
            Some(entry) => {
                debug_assert_eq!(codec::decode::<Self>(bytes).as_ref(), Ok(&entry), "both read the same");
                Ok(entry)
            }
            None => codec::decode(bytes),
        }
    }
}

/// Returns the step that succeeded; `None` for everything else.
fn read(body: &[u8]) -> Option<Entry> {
    let mut left = Left(body);
    let (seq, at) = (left.number()?, left.time()?);
    left.pass(&[STEP_RECORDED, STEP])?;
    let name = Name::recorded(left.text()?);
    let key = if left.is_some()? { Some(Name::recorded(left.text()?)) } else { None };
    let op = Op { kind: OpKind::Step, name, key, nth: left.count()? };
    left.pass(&[SUCCESS])?;
    let outcome = Outcome::Success(Payload::from(left.bytes()?));
    let attempt = left.count()?;
    // Neither an input nor a field that the record gained.
    left.pass(&[NONE, 0])?;
    let site = if left.is_some()? { Some(left.site()?) } else { None };
    let event = Event::StepRecorded(StepRecord { op, outcome, attempt, input: None });
    left.0.is_empty().then_some(Entry { seq, at, event, site })
}

/// The bytes that are not read yet.
struct Left<'a>(&'a [u8]);

impl<'a> Left<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// Passes these bytes, if they are the next ones.
    fn pass(&mut self, bytes: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(bytes)?;
        Some(())
    }

    /// Reads whether something follows: an option, or a list of at most one.
    fn is_some(&mut self) -> Option<bool> {
        match self.byte()? {
            NONE => Some(false),
            SOME => Some(true),
            _ => None,
        }
    }

    /// Reads a number of at most nine bytes. A longer one is rare.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn count(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn time(&mut self) -> Option<Timestamp> {
        let number = self.number()?;
        // The sign is the last bit.
        Some(Timestamp::from_micros((number >> 1) as i64 ^ -((number & 1) as i64)))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// Reads the number of a place whose text an earlier entry has.
    fn site(&mut self) -> Option<SiteMark> {
        self.pass(&[SITE])?;
        let mut field = Left(self.bytes()?);
        let number = field.count()?;
        field.pass(&[NONE])?;
        field.0.is_empty().then_some(SiteMark { number, text: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ContentHash, Failure, FailureKind, Fingerprint};

    fn record(key: Option<&str>) -> StepRecord {
        let name = |text| Name::new(text).expect("a name");
        let op = Op { kind: OpKind::Step, name: name("größe"), key: key.map(name), nth: 300 };
        let outcome = Outcome::Success(Payload::from("\"a\""));
        StepRecord { op, outcome, attempt: 2, input: None }
    }

    fn entry(record: StepRecord, text: Option<&str>) -> Entry {
        let site = Some(SiteMark { number: 7, text: text.map(Into::into) });
        Entry { seq: 1_000_000, at: Timestamp::from_millis(-5), event: Event::StepRecorded(record), site }
    }

    fn read_of(bytes: &[u8]) -> Option<Entry> {
        codec::body(bytes).and_then(read)
    }

    #[test]
    fn a_step_that_succeeded_is_read_as_it_was_written() {
        let placeless = Entry { site: None, at: Timestamp::MAX, ..entry(record(None), None) };
        for entry in [entry(record(None), None), entry(record(Some("7")), None)] {
            assert_eq!(read_of(&codec::encode(&entry)), Some(entry));
        }
        // Its time takes ten bytes.
        assert_eq!(read_of(&codec::encode(&placeless)), None);
        assert_eq!(Entry::decode(&codec::encode(&placeless)), Ok(placeless));
    }

    #[test]
    fn everything_else_is_left_to_the_codec() {
        let input = Fingerprint::new(ContentHash::of(b"1"), &Payload::from("1"));
        let failed = Outcome::Failure(Failure::new(FailureKind::Fatal, "no"));
        let transaction = Op { kind: OpKind::Transaction, ..record(None).op };
        let others = [
            entry(StepRecord { outcome: failed, ..record(None) }, None),
            entry(StepRecord { input: Some(Box::new(input)), ..record(None) }, None),
            entry(StepRecord { op: transaction, ..record(None) }, None),
            entry(record(None), Some("src/main.rs:7")),
        ];
        for entry in others {
            let bytes = codec::encode(&entry);
            assert_eq!((read_of(&bytes), Entry::decode(&bytes)), (None, Ok(entry)));
        }
    }

    #[test]
    fn damaged_bytes_are_read_as_the_codec_reads_them() {
        let whole = codec::encode(&entry(record(Some("7")), None));
        for at in 0..whole.len() {
            assert_eq!(Entry::decode(&whole[..at]), codec::decode(&whole[..at]), "cut at {at}");
            for byte in [0, 1, 2, 0x7f, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                assert_eq!(Entry::decode(&changed), codec::decode(&changed), "{byte} at {at}");
            }
        }
        let longer = [whole, vec![0]].concat();
        assert_eq!(Entry::decode(&longer), codec::decode(&longer));
    }
}
