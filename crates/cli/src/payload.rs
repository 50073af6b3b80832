//! Values on the command line. They must be as readable as those of a program: what a worker cannot
//! read, or reads as something else, would block an execution or deceive it.

use std::collections::HashSet;
use std::fmt;
use std::io::{ErrorKind, Read};

use abide_core::{Payload, text};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::command_error::CommandError;

/// Returns a value passed as JSON, or the one on stdin for `-`.
pub(crate) fn payload(what: &str, text: &str) -> Result<Payload, CommandError> {
    match text {
        "-" => checked(what, &from_stdin()?),
        text => checked(what, text),
    }
}

/// Checks that a value is JSON that a program can read, and keeps its text. Parsing it into a value
/// would lose digits of large numbers.
pub(crate) fn checked(what: &str, json: &str) -> Result<Payload, CommandError> {
    match serde_json::from_str::<Sound>(json) {
        Ok(Sound) => Ok(Payload::from(json.trim())),
        Err(error) if is_json(json) => Err(CommandError::usage(format!("{what} cannot be read: {error}"))),
        Err(error) => Err(CommandError::usage(format!("{what} is no JSON: {error}"))),
    }
}

/// Whether a text has the syntax of JSON.
pub(crate) fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn from_stdin() -> Result<String, CommandError> {
    let mut text = String::new();
    match std::io::stdin().read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            Err(CommandError::usage("what is on stdin is no JSON: it is not UTF-8"))
        }
        Err(error) => Err(CommandError::failed(format!("stdin cannot be read: {error}"))),
    }
}

/// A value that was read as a program reads it, and dropped. The reader of the library refuses deep
/// nesting and numbers out of range, unless it skips a value. It takes the last of two members of
/// one name, and a struct refuses them; so they are refused here.
struct Sound;

impl<'de> Deserialize<'de> for Sound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Parts)
    }
}

struct Parts;

impl<'de> Visitor<'de> for Parts {
    type Value = Sound;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Sound, A::Error> {
        while let Some(Sound) = parts.next_element()? {}
        Ok(Sound)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Sound, A::Error> {
        const NAME_CHARS_MAX: usize = 80;
        let mut names = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            if names.contains(&name) {
                let name = text::excerpt(&name, NAME_CHARS_MAX);
                return Err(A::Error::custom(format_args!("member {name:?} is given twice")));
            }
            names.insert(name);
            let Sound = members.next_value()?;
        }
        Ok(Sound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        "[".repeat(depth) + &"]".repeat(depth)
    }

    #[test]
    fn what_a_program_can_read_is_kept_as_it_is() {
        for json in [
            " {\"a\": 1, \"b\": [null, true, -0.5e-3]} ",
            "12345678901234567890123",
            r#"{"a":{"a":1},"b":[{"a":2}]}"#,
            r#""\ud83d\ude00""#,
            &nested(127),
        ] {
            assert_eq!(checked("it", json).unwrap().as_bytes(), json.trim().as_bytes(), "{json}");
        }
    }

    #[test]
    fn what_no_program_can_read_is_refused_by_name() {
        let rows = [
            (nested(128), "it cannot be read: recursion limit exceeded at line 1 column 128"),
            ("[-1e400]".to_owned(), "it cannot be read: number out of range at line 1 column 7"),
            (
                r#"{"x":[{"a":1,"b":2,"\u0061":1}]}"#.to_owned(),
                "it cannot be read: member \"a\" is given twice at line 1 column 27",
            ),
            ("[1".to_owned(), "it is no JSON: EOF while parsing a list at line 1 column 2"),
        ];
        for (json, expected) in rows {
            assert_eq!(checked("it", &json).unwrap_err().message, expected);
        }
    }

    /// The library is the measure.
    #[test]
    fn a_value_of_the_library_is_as_deep_as_one_of_the_command_line() {
        for depth in [126, 127, 128, 129] {
            let json = nested(depth);
            let is_read = serde_json::from_str::<serde_json::Value>(&json).is_ok();
            assert_eq!(checked("it", &json).is_ok(), is_read, "{depth}");
        }
    }
}
