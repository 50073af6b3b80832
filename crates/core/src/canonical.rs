//! Comparison of values of which the JSON is known: two are the same if their canonical JSON is.
//!
//! Members of objects are sorted by name, and members that are `null` are left out. So neither the
//! order of a `HashMap` nor a new optional field makes an input a different one. White space and
//! the way a character is escaped do not count, and an integer is the same number as a float: `5`
//! is `5.0`. Everything else counts: the order of sequences, and how other numbers are written.
//!
//! Not every `null` is a field without a value. That of `{"Pay":null}` is the content of a variant,
//! and without it `Pay(None)` would be the same as `Refund(None)`. [`Nulls`] has the rules.

use crate::planted::{Bug, planted};
use crate::{ContentHash, Payload};

/// Returns the hash by which an input is compared of which the JSON is known, but not the type.
pub fn hash(input: &Payload) -> ContentHash {
    hash_by(input, || canonical(input.as_bytes(), Nulls::OfText))
}

/// Returns the hash of a value that has this JSON, from its canonical form where that differs.
pub fn hash_by(json: &Payload, canonical: impl FnOnce() -> Option<Vec<u8>>) -> ContentHash {
    let json = json.as_bytes();
    if is_canonical(json) || planted(Bug::InputOrderCounts) {
        return ContentHash::of(json);
    }
    match canonical() {
        Some(text) => ContentHash::of(&text),
        // Not JSON, or nested too deeply to be read back: compared byte by byte.
        None => ContentHash::of(json),
    }
}

/// Returns the canonical form of this JSON; `None` if it is not JSON, or nested too deeply.
pub fn canonical(json: &[u8], nulls: Nulls) -> Option<Vec<u8>> {
    let mut reader = Reader { json, at: 0, depth: 0, nulls };
    let mut text = Vec::with_capacity(json.len());
    reader.value(&mut text)?;
    (reader.peek().is_none()).then_some(text)
}

/// Whether this JSON is known to be canonical: a string without escapes, or anything without
/// objects, escapes, white space, fractions and exponents.
fn is_canonical(json: &[u8]) -> bool {
    if let [b'"', .., b'"'] = json {
        return !json.contains(&b'\\');
    }
    let is_written_otherwise = |byte: &u8| matches!(byte, b'{' | b'\\' | b' ' | b'\t' | b'\n' | b'\r');
    let is_in_number = |pair: &[u8]| pair[0].is_ascii_digit() && matches!(pair[1], b'.' | b'e' | b'E');
    !json.iter().any(is_written_otherwise) && !json.windows(2).any(is_in_number)
}

/// Returns the value of a number that is written with a fraction or an exponent, if that value is
/// an integer below 2^53. Above, a float stands for several integers. Zero with a sign is none: a
/// program can distinguish it.
fn integer(number: &[u8]) -> Option<i64> {
    const BELOW: i64 = 1 << 53;
    if !number.iter().any(|byte| b".eE".contains(byte)) || planted(Bug::NumbersByText) {
        return None;
    }
    let number = str::from_utf8(number).ok()?;
    let is_negative = number.starts_with('-');
    let number = number.strip_prefix('-').unwrap_or(number);
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    // By its digits and not as a float, which would take 5.00000000000000000001 for 5.
    let digits = [whole, fraction].concat();
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return (!is_negative).then_some(0);
    }
    let zero_count = i64::try_from(digits.len() - significant.len()).ok()?;
    let fraction_count = i64::try_from(fraction.len()).ok()?;
    let exponent = exponent.parse::<i32>().ok()?;
    let power = u32::try_from(i64::from(exponent) + zero_count - fraction_count).ok()?;
    let value = significant.parse::<i64>().ok()?.checked_mul(10_i64.checked_pow(power)?)?;
    (value < BELOW).then_some(if is_negative { -value } else { value })
}

/// Which members that are `null` count.
#[derive(Clone, Copy, Debug)]
pub enum Nulls {
    /// The fields of structs are gone already. Entries of maps and the contents of variants are
    /// left, and count where an object has nothing else.
    OfValue,
    /// Whether an object was a struct, a map or a variant is unknown. A variant has one member.
    OfText,
}

impl Nulls {
    /// Whether the members of this object that are `null` count.
    fn count_in(self, members: &[(Vec<u8>, Vec<u8>)]) -> bool {
        let count = match self {
            Self::OfValue => members.iter().all(|(_, value)| value == b"null"),
            Self::OfText => members.len() == 1,
        };
        (count && !planted(Bug::NullVariantsEqual)) || planted(Bug::NullMembersCount)
    }
}

/// A reader that goes through JSON and writes it canonically. Its methods return `None` if the text
/// is not JSON.
struct Reader<'a> {
    json: &'a [u8],
    at: usize,
    depth: usize,
    nulls: Nulls,
}

impl<'a> Reader<'a> {
    /// The depth that `serde_json` reads.
    const DEPTH_MAX: usize = 128;

    /// Returns the next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.json[self.at..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.json.get(self.at).copied()
    }

    /// Skips this byte if it is the next one, and reports whether it was.
    fn pass(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn value(&mut self, text: &mut Vec<u8>) -> Option<()> {
        self.depth += 1;
        if self.depth > Self::DEPTH_MAX {
            return None;
        }
        match self.peek()? {
            b'{' => self.object(text)?,
            b'[' => self.array(text)?,
            b'"' => self.string(text)?,
            _ => {
                let word = self.word()?;
                match integer(word) {
                    Some(value) => text.extend_from_slice(value.to_string().as_bytes()),
                    None => text.extend_from_slice(word),
                }
            }
        }
        self.depth -= 1;
        Some(())
    }

    fn object(&mut self, text: &mut Vec<u8>) -> Option<()> {
        self.at += 1;
        let mut members = Vec::new();
        while !self.pass(b'}') {
            if !members.is_empty() && !self.pass(b',') {
                return None;
            }
            let (mut name, mut value) = (Vec::new(), Vec::new());
            self.string(&mut name)?;
            if !self.pass(b':') {
                return None;
            }
            self.value(&mut value)?;
            members.push((name, value));
        }
        if !self.nulls.count_in(&members) {
            members.retain(|(_, value)| value != b"null");
        }
        members.sort();
        text.push(b'{');
        for (nth, (name, value)) in members.iter().enumerate() {
            if nth > 0 {
                text.push(b',');
            }
            text.extend_from_slice(name);
            text.push(b':');
            text.extend_from_slice(value);
        }
        text.push(b'}');
        Some(())
    }

    fn array(&mut self, text: &mut Vec<u8>) -> Option<()> {
        self.at += 1;
        text.push(b'[');
        let mut is_first = true;
        while !self.pass(b']') {
            if !is_first {
                if !self.pass(b',') {
                    return None;
                }
                text.push(b',');
            }
            self.value(text)?;
            is_first = false;
        }
        text.push(b']');
        Some(())
    }

    /// Writes a string, escaped as `serde_json` escapes it.
    fn string(&mut self, text: &mut Vec<u8>) -> Option<()> {
        if self.peek()? != b'"' {
            return None;
        }
        let rest = &self.json[self.at..];
        let mut end = 1;
        let mut is_escaped = false;
        while *rest.get(end)? != b'"' {
            let is_escape = rest[end] == b'\\';
            is_escaped |= is_escape;
            end += if is_escape { 2 } else { 1 };
        }
        let quoted = &rest[..=end];
        self.at += end + 1;
        if is_escaped {
            let plain: String = serde_json::from_slice(quoted).ok()?;
            text.extend_from_slice(&serde_json::to_vec(&plain).ok()?);
        } else {
            text.extend_from_slice(quoted);
        }
        Some(())
    }

    /// Reads a number, `true`, `false` or `null`.
    fn word(&mut self) -> Option<&'a [u8]> {
        let rest = &self.json[self.at..];
        let is_in_word = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let length = rest.iter().take_while(is_in_word).count();
        self.at += length;
        (length > 0).then_some(&rest[..length])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_does_not_count_is_left_out() {
        let rows = [
            (r#"{"b":1,"a":2}"#, r#"{"a":2,"b":1}"#),
            (r#"{"a":null}"#, r#"{"a":null}"#),
            (r#"{"a":null,"b":null}"#, "{}"),
            (r#"{"a":null,"b":[null,{"c":null}]}"#, r#"{"b":[null,{"c":null}]}"#),
            ("null", "null"),
            (" [ 1 , 2.50 ,\t-3e4 ] ", "[1,2.50,-30000]"),
            (r#"{ "b" : { "d":1, "c":"x y" } }"#, r#"{"b":{"c":"x y","d":1}}"#),
            (r#""\u0061\/\"""#, r#""a/\"""#),
            (r#"{"\u0062":1,"a":2}"#, r#"{"a":2,"b":1}"#),
            ("340282366920938463463374607431768211455", "340282366920938463463374607431768211455"),
        ];
        for (json, expected) in rows {
            let text = canonical(json.as_bytes(), Nulls::OfText).expect(json);
            assert_eq!(String::from_utf8_lossy(&text), expected);
        }
    }

    #[test]
    fn equal_integers_are_written_alike() {
        let rows = [
            ("5", &["5.0", "5.000", "5e0", "5E+0", "0.5e1", "50e-1", "500.0E-2"][..]),
            ("-5", &["-5.0", "-5e0", "-0.05e2"]),
            ("0", &["0.0", "0e9", "0.00e-3"]),
            ("9007199254740991", &["9007199254740991.0", "9007199254740.991e3"]),
            ("1000000000000000", &["1e15", "1.0e15", "10e14"]),
        ];
        for (integer, others) in rows {
            let hash_of = |json: &str| hash(&Payload::from(json));
            for other in others {
                assert_eq!(hash_of(integer), hash_of(other), "{other}");
                let list = |json: &str| hash_of(&format!("[\"1e2\",{json}]"));
                assert_eq!(list(integer), list(other), "{other}");
            }
        }
        let kept =
            ["-0.0", "-0", "-0e1", "9007199254740992.0", "1e16", "5.5", "5.50", "5.00000000000000000001"];
        let odd = ["1e-1", "1e99999999999999999999", "1e", "1.", "-.0", "1e+", "NaN", "1.2.3", "--1.0"];
        for json in kept.into_iter().chain(odd) {
            assert_eq!(hash(&Payload::from(json)), ContentHash::of(json.as_bytes()), "{json}");
        }
    }

    #[test]
    fn digits_in_strings_are_no_numbers() {
        for json in [r#""5.0""#, r#"["5.0","1e1"]"#, r#"{"5.0":"5e0"}"#] {
            assert_eq!(hash(&Payload::from(json)), ContentHash::of(json.as_bytes()), "{json}");
        }
    }

    #[test]
    fn what_is_no_json_has_no_canonical_form() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for text in ["", "{", "[1", "[1 2]", r#"{"a" 1}"#, r#"{"a":1"#, r#""a"#, r#""\""#, "1 2", "}", &deep]
        {
            assert_eq!(canonical(text.as_bytes(), Nulls::OfText), None, "{text}");
        }
    }

    proptest! {
        /// A value has one canonical form, whatever the order and spacing of its members. That form
        /// reads as the value without its nulls.
        #[test]
        fn the_canonical_form_is_one(pairs in proptest::collection::vec((".{0,6}", -9..9_i32), 0..6), turn in 0..6_usize) {
            let unique: std::collections::BTreeMap<_, _> = pairs.into_iter().collect();
            let mut members: Vec<String> = unique
                .iter()
                .map(|(name, value)| format!("{} : {value}", serde_json::to_string(name).unwrap()))
                .collect();
            let sorted = format!("{{{}}}", members.join(","));
            let turn = turn.min(members.len());
            members.rotate_left(turn);
            let turned = format!(" {{ {} }}", members.join(" , "));
            let text = canonical(sorted.as_bytes(), Nulls::OfText).unwrap();
            prop_assert_eq!(&text, &canonical(turned.as_bytes(), Nulls::OfText).unwrap());
            prop_assert_eq!(
                serde_json::from_slice::<Value>(&text).unwrap(),
                serde_json::from_str::<Value>(&sorted).unwrap()
            );
        }
    }
}
