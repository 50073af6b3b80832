//! Names from users, checked once, at the edge.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::planted::{Bug, planted};
use crate::{Bounds, Timestamp, text};

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A text that is not a valid name: the kind of name, the text and its fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidName {
    what: &'static str,
    given: String,
    problem: String,
}

impl InvalidName {
    /// Returns the same error for the field `what`.
    pub fn of_field(self, what: &'static str) -> Self {
        Self { what, ..self }
    }

    /// Creates an error about a name whose text is not the problem.
    pub(crate) fn because(what: &'static str, text: &str, problem: impl Into<String>) -> Self {
        // The message must stay readable when the name itself is the problem.
        Self { what, given: text.chars().take(40).collect(), problem: problem.into() }
    }
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.what, text::quoted(&self.given), self.problem)
    }
}

impl std::error::Error for InvalidName {}

/// Checks `text` as a name of the kind `what`: 1 to 255 bytes that show something and hide nothing.
fn check(what: &'static str, text: &str) -> Result<(), InvalidName> {
    // Most names are plain, and every step has one. A name that begins with a visible ASCII
    // character shows something.
    let begins = text.as_bytes().first().is_some_and(u8::is_ascii_graphic);
    if begins && text.len() <= NAME_BYTES_MAX && text::is_plain(text) {
        return Ok(());
    }
    check_text((what, text), NAME_BYTES_MAX, |c| c.is_control() || !planted(Bug::InvisibleNameTaken))?;
    let is_blank = |c: char| c.is_whitespace() || matches!(c, '\u{fe0e}' | '\u{fe0f}');
    if text.chars().all(is_blank) && !planted(Bug::BlankNameTaken) {
        return Err(InvalidName::because(what, text, "shows nothing"));
    }
    Ok(())
}

fn check_text(
    (what, text): (&'static str, &str),
    bytes_max: usize,
    counts: impl Fn(char) -> bool,
) -> Result<(), InvalidName> {
    let unseen = |c: char| text::unseen(c).filter(|_| counts(c)).map(|sort| (c, sort));
    let problem = if text.is_empty() {
        "is empty".to_owned()
    } else if text.len() > bytes_max {
        format!("is too long: {} bytes, at most {bytes_max}", text.len())
    } else if let Some((found, sort)) = text.chars().find_map(unseen) {
        format!("contains the {sort} U+{:04X}", found as u32)
    } else {
        return Ok(());
    };
    Err(InvalidName::because(what, text, problem))
}

/// Checks the reason of a person or program: at most `REASON_BYTES_MAX`, no control characters,
/// possibly empty. It is prose, in which some scripts and emoji need characters that a name must
/// not have.
pub fn check_reason(what: &'static str, text: &str) -> Result<(), InvalidName> {
    if text.is_empty() {
        return Ok(());
    }
    check_text((what, text), Bounds::REASON_BYTES_MAX, char::is_control)
}

/// Reads a text without an extra copy: a journal has a name in every entry.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    struct Visitor;
    impl serde::de::Visitor<'_> for Visitor {
        type Value = Arc<str>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text")
        }
        fn visit_str<E>(self, text: &str) -> Result<Arc<str>, E> {
            Ok(text.into())
        }
    }
    deserializer.deserialize_str(Visitor)
}

macro_rules! names {
    ($($(#[$doc:meta])* $type:ident = $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(#[serde(deserialize_with = "read")] Arc<str>);

        impl $type {
            /// Checks `text`: 1 to 255 bytes that show something, without invisible characters.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidName> {
                Self::of_field($what, text)
            }

            /// Checks `text` in the same way; an error calls it `field`.
            pub fn of_field(field: &'static str, text: impl AsRef<str>) -> Result<Self, InvalidName> {
                let text = text.as_ref();
                check(if planted(Bug::FieldUnnamed) { $what } else { field }, text)?;
                Ok(Self(text.into()))
            }

            /// Returns the text of the name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    )*};
}

names! {
    /// The user-visible id of an execution, unique in its namespace.
    ExecutionId = "execution id";
    /// The name of a workflow, task, step, signal, lane, capability, tag or worker.
    Name = "name";
    /// A tenant; everything belongs to one.
    Namespace = "namespace";
}

impl Name {
    /// Returns the name with a text that was checked before it was recorded.
    pub(crate) fn recorded(text: &str) -> Self {
        Self(text.into())
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("default".into())
    }
}

impl ExecutionId {
    /// The prefix of the ids of abide's own executions. Nothing else starts under such an id.
    pub const OWN_PREFIX: &str = "abide:";

    /// Checks that a user may start an execution under this id.
    pub(crate) fn check_free(&self) -> Result<(), InvalidName> {
        if !self.0.starts_with(Self::OWN_PREFIX) {
            return Ok(());
        }
        let problem = format!("begins with {:?}, as only abide's own executions do", Self::OWN_PREFIX);
        Err(InvalidName::because("execution id", &self.0, problem))
    }

    /// Returns a new id that sorts by the time of its creation.
    pub fn fresh(now: Timestamp, random: u64) -> Self {
        // At an even address: such a text is checked faster.
        #[repr(align(16))]
        struct Digits([u8; 13 + 1 + 16]);
        let mut digits = Digits([b'-'; _]);
        // 13 digits of microseconds are enough until the year 2112.
        hex(now.as_micros().cast_unsigned(), &mut digits.0[..13]);
        hex(random, &mut digits.0[14..]);
        Self(std::str::from_utf8(&digits.0).expect("hexadecimal digits are text").into())
    }

    /// Returns the id with this text. A text that is too long is cut and ends with its hash.
    pub(crate) fn composed(text: &str) -> Self {
        if text.len() <= NAME_BYTES_MAX {
            return Self(text.into());
        }
        let hash = crate::hash::of(text.as_bytes());
        let mut kept = NAME_BYTES_MAX - 17;
        while !text.is_char_boundary(kept) {
            kept -= 1;
        }
        Self(format!("{}~{hash:016x}", &text[..kept]).into())
    }
}

/// Writes the last digits of a number, as many as fit. `format!` takes several times as long, and
/// every start has an id.
fn hex(mut number: u64, digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number % 16) as usize];
        number /= 16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_format() {
        for number in [0, 0xf, 0x10, 0x6_0abc_def0_1234, u64::MAX] {
            let mut digits = [0; 16];
            hex(number, &mut digits);
            assert_eq!(std::str::from_utf8(&digits), Ok(format!("{number:016x}").as_str()));
        }
        let id = ExecutionId::fresh(Timestamp::from_micros(0xabc), 0x12);
        assert_eq!(id.as_str(), "0000000000abc-0000000000000012");
    }

    #[test]
    fn a_reason_may_be_empty_and_as_long_as_a_store_takes_it() {
        let long = |bytes| check_reason("reason", &"x".repeat(bytes));
        assert_eq!((long(0), long(Bounds::REASON_BYTES_MAX)), (Ok(()), Ok(())));
        let said = long(Bounds::REASON_BYTES_MAX + 1).unwrap_err().to_string();
        assert!(said.ends_with("is too long: 1025 bytes, at most 1024"), "{said}");
        assert!(check_reason("reason", "a\nb").is_err());
    }

    #[test]
    fn bad_names_are_refused_with_the_reason() {
        let long = "x".repeat(256);
        let rows = [
            ("", r#"execution id "" is empty"#),
            ("a\nb", r#"execution id "a\nb" contains the control character U+000A"#),
            ("\u{7f}", r#"execution id "\u{7f}" contains the control character U+007F"#),
            (" ", r#"execution id " " shows nothing"#),
            ("\u{3000}\u{a0}", r#"execution id "\u{3000}\u{a0}" shows nothing"#),
            ("\u{fe0f}", r#"execution id "\u{fe0f}" shows nothing"#),
            ("a\u{200d}b", r#"execution id "a\u{200d}b" contains the invisible character U+200D"#),
            ("\u{3164}", r#"execution id "\u{3164}" contains the invisible character U+3164"#),
            ("\u{202e}a", r#"execution id "\u{202e}a" contains the bidirectional control U+202E"#),
            ("a\u{2028}", r#"execution id "a\u{2028}" contains the line separator U+2028"#),
            (
                &long,
                r#"execution id "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" is too long: 256 bytes, at most 255"#,
            ),
        ];
        for (text, expected) in rows {
            assert_eq!(ExecutionId::new(text).expect_err("must be refused").to_string(), expected);
        }
    }

    #[test]
    fn names_with_commas_and_umlauts_are_names() {
        for text in ["a,b", "größe", "x y", &"x".repeat(255)] {
            assert_eq!(Name::new(text).expect("a name").as_str(), text);
        }
    }

    #[test]
    fn composed_ids_stay_distinct_and_short() {
        let long = "é".repeat(300);
        let (a, b) =
            (ExecutionId::composed(&format!("{long}/1")), ExecutionId::composed(&format!("{long}/2")));
        assert_ne!(a, b);
        assert!(a.as_str().len() <= NAME_BYTES_MAX);
    }
}
