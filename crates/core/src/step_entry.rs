//! Reads and writes the most frequent entry of all: a step that succeeded. It also writes the end
//! of a run with a result, which every short workflow has beside it.
//!
//! A replay reads little else, and `serde` takes four times as long, because it hands every field
//! through several functions. Everything that is not exactly such an entry is left to
//! [`codec::decode`], which also explains why damaged bytes cannot be read, and to
//! [`codec::encode`]. In tests the two are compared at every entry that is read, and the reader of
//! entries compares the written ones.

use crate::codec::{self, DecodeError};
use crate::{Entry, Event, Name, Op, OpKind, Outcome, Payload, SiteMark, StepRecord, Timestamp};

/// The numbers of variants on disk.
const STEP_RECORDED: u8 = 1;
const COMPLETED: u8 = 14;
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

    /// Returns the bytes of the entry, as [`codec::encode`] does.
    pub fn encode(&self) -> Vec<u8> {
        write(self).unwrap_or_else(|| codec::encode(self))
    }
}

/// Returns the bytes of a step that succeeded, or of the end with a result; `None` for all others.
fn write(entry: &Entry) -> Option<Vec<u8>> {
    let (result, step) = match &entry.event {
        Event::StepRecorded(StepRecord { op, outcome: Outcome::Success(result), attempt, input: None })
            if op.kind == OpKind::Step =>
        {
            (result, Some((op, *attempt)))
        }
        Event::Completed { result, unused } if unused.is_empty() => (result, None),
        _ => return None,
    };
    let text = entry.site.as_ref().and_then(|site| site.text.as_deref());
    // No number takes more than ten bytes, and no name of an operation is long.
    let name_bytes = step
        .map_or(0, |(op, _)| op.name.as_str().len() + op.key.as_ref().map_or(0, |key| key.as_str().len()));
    let length = result.as_bytes().len() + name_bytes + text.map_or(0, str::len);
    let mut bytes = Written(codec::begun(length + 100));
    bytes.number(entry.seq);
    bytes.time(entry.at);
    match step {
        Some((op, attempt)) => {
            bytes.0.extend([STEP_RECORDED, STEP]);
            bytes.bytes(op.name.as_str().as_bytes());
            bytes.option(op.key.as_ref(), |bytes, key| bytes.bytes(key.as_str().as_bytes()));
            bytes.number(op.nth.into());
            bytes.0.push(SUCCESS);
            bytes.bytes(result.as_bytes());
            bytes.number(attempt.into());
            bytes.0.extend([NONE, 0]);
        }
        None => {
            bytes.0.push(COMPLETED);
            bytes.bytes(result.as_bytes());
            // No operation that was never asked for.
            bytes.0.push(0);
        }
    }
    bytes.option(entry.site.as_ref(), Written::site);
    Some(bytes.0)
}

/// The bytes that are written so far.
struct Written(Vec<u8>);

impl Written {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn time(&mut self, time: Timestamp) {
        let micros = time.as_micros();
        // The sign is the last bit.
        self.number((micros << 1 ^ micros >> 63).cast_unsigned());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => {
                self.0.push(SOME);
                write(self, value);
            }
            None => self.0.push(NONE),
        }
    }

    fn site(&mut self, site: &SiteMark) {
        let text = site.text.as_deref();
        let number_bytes = 1 + (u32::BITS - 1 - (site.number | 1).leading_zeros()) as usize / 7;
        let text_bytes = text.map_or(0, |text| text.len() + 1 + usize::from(text.len() >= 0x80));
        self.0.push(SITE);
        self.number((number_bytes + 1 + text_bytes) as u64);
        self.number(site.number.into());
        self.option(text, |bytes, text| bytes.bytes(text.as_bytes()));
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

    /// Lengths and numbers around those that take a byte more.
    #[test]
    fn a_step_and_an_end_are_written_as_the_codec_writes_them() {
        let times = [Timestamp::MAX, Timestamp::from_micros(i64::MIN), Timestamp::from_micros(-65)];
        let texts = [0, 1, 59, 60, 61, 127, 128, 16_383].map(|length| "x".repeat(length));
        let numbers = [0, 1, 127, 128, 16_383, 16_384, u32::MAX];
        let sites = texts.iter().flat_map(|text| {
            let text = Some(text.as_str().into()).filter(|text: &std::sync::Arc<str>| !text.is_empty());
            numbers.map(|number| Some(SiteMark { number, text: text.clone() }))
        });
        for (site, nth) in sites.chain([None]).zip(0..) {
            let at = times[nth % times.len()];
            let result = Payload::from(texts[nth % texts.len()].as_str());
            let key = (nth % 2 == 0).then(|| Name::new("key").expect("a name"));
            let op = Op { key, nth: numbers[nth % numbers.len()], ..record(None).op };
            let outcome = Outcome::Success(result.clone());
            let step = StepRecord { op, outcome, attempt: numbers[nth % 5], input: None };
            let end = Event::Completed { result, unused: Vec::new() };
            for event in [Event::StepRecorded(step), end] {
                let entry = Entry { seq: u64::MAX >> nth, at, event, site: site.clone() };
                assert_eq!(write(&entry), Some(codec::encode(&entry)), "{entry:?}");
            }
        }
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
            assert_eq!(entry.encode(), bytes);
            assert_eq!((read_of(&bytes), Entry::decode(&bytes)), (None, Ok(entry)));
        }
        let unused = Event::Completed { result: Payload::from("1"), unused: vec![record(None).op] };
        assert_eq!(write(&Entry::new(1, Timestamp::MAX, unused)), None);
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
