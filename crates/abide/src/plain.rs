//! Values that JSON cannot change, so that they need not be read back, and texts, which are most of
//! them.
//!
//! Types are compared by name: the type of a step's value may borrow, so it has no `TypeId`. No
//! other crate can have these names, because every name but a primitive's begins with its crate.

use std::any::type_name;
use std::fmt;

use abide_core::Payload;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::ser::{Impossible, Serialize, Serializer};

use crate::scratch;

/// Whether every value of this type is read back from JSON as it was written.
pub(crate) fn is_plain<T: ?Sized>() -> bool {
    is_text::<T>()
        || matches!(
            type_name::<T>(),
            "()" | "bool"
                | "char"
                | "u8"
                | "u16"
                | "u32"
                | "u64"
                | "usize"
                | "i8"
                | "i16"
                | "i32"
                | "i64"
                | "isize"
        )
}

fn is_text<T: ?Sized>() -> bool {
    type_name::<T>() == type_name::<String>()
}

/// Returns the JSON of a `String` that needs no escapes; `None` for every other value. `serde_json`
/// looks at each byte alone, which costs several times as much.
pub(crate) fn text<T: Serialize + ?Sized>(value: &T) -> Option<Payload> {
    if is_text::<T>() { value.serialize(Text).ok() } else { None }
}

/// Returns the `String` in JSON without escapes; `None` for every other type and for all other
/// bytes. A replay reads the result of every step.
pub(crate) fn read_text<T: DeserializeOwned>(json: &[u8]) -> Option<T> {
    if !is_text::<T>() {
        return None;
    }
    let [b'"', inner @ .., b'"'] = json else { return None };
    if has_escapes(inner) {
        return None;
    }
    // The whole is checked, not its inside: a text at an even address is checked faster.
    let text = std::str::from_utf8(json).ok()?.get(1..json.len() - 1)?;
    let text: StrDeserializer<'_, ValueError> = text.into_deserializer();
    T::deserialize(text).ok()
}

/// Whether JSON has to escape one of these bytes. It looks at all of them, without leaving early,
/// so that the compiler can compare many at a time.
fn has_escapes(text: &[u8]) -> bool {
    text.iter().fold(false, |found, byte| found | (*byte < 0x20) | (*byte == b'"') | (*byte == b'\\'))
}

/// A serializer of one text without escapes. It refuses everything else.
struct Text;

type Refused = Impossible<Payload, fmt::Error>;

macro_rules! refuse {
    ($($name:ident($($argument:ty),*) -> $ok:ty;)*) => {$(
        fn $name(self, $(_: $argument),*) -> Result<$ok, fmt::Error> {
            Err(fmt::Error)
        }
    )*};
}

impl Serializer for Text {
    type Ok = Payload;
    type Error = fmt::Error;
    type SerializeSeq = Refused;
    type SerializeTuple = Refused;
    type SerializeTupleStruct = Refused;
    type SerializeTupleVariant = Refused;
    type SerializeMap = Refused;
    type SerializeStruct = Refused;
    type SerializeStructVariant = Refused;

    fn serialize_str(self, text: &str) -> Result<Payload, fmt::Error> {
        if has_escapes(text.as_bytes()) {
            return Err(fmt::Error);
        }
        Ok(scratch::payload(|json| {
            json.push(b'"');
            json.extend_from_slice(text.as_bytes());
            json.push(b'"');
        }))
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<Payload, fmt::Error> {
        Err(fmt::Error)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: &T,
    ) -> Result<Payload, fmt::Error> {
        Err(fmt::Error)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<Payload, fmt::Error> {
        Err(fmt::Error)
    }

    refuse!(
        serialize_bool(bool) -> Payload;
        serialize_i8(i8) -> Payload;
        serialize_i16(i16) -> Payload;
        serialize_i32(i32) -> Payload;
        serialize_i64(i64) -> Payload;
        serialize_u8(u8) -> Payload;
        serialize_u16(u16) -> Payload;
        serialize_u32(u32) -> Payload;
        serialize_u64(u64) -> Payload;
        serialize_f32(f32) -> Payload;
        serialize_f64(f64) -> Payload;
        serialize_char(char) -> Payload;
        serialize_bytes(&[u8]) -> Payload;
        serialize_none() -> Payload;
        serialize_unit() -> Payload;
        serialize_unit_struct(&'static str) -> Payload;
        serialize_unit_variant(&'static str, u32, &'static str) -> Payload;
        serialize_seq(Option<usize>) -> Refused;
        serialize_tuple(usize) -> Refused;
        serialize_tuple_struct(&'static str, usize) -> Refused;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Refused;
        serialize_map(Option<usize>) -> Refused;
        serialize_struct(&'static str, usize) -> Refused;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Refused;
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_written_as_serde_json_writes_it_or_not_at_all() {
        let plain = ["", "a", "é\u{7f}\u{2028} /'", &"x".repeat(1_000)];
        for text in plain.map(str::to_owned) {
            let json = serde_json::to_vec(&text).expect("a text serializes");
            assert_eq!(super::text(&text).expect("it has no escapes").as_bytes(), json);
        }
        for byte in (0..0x20).chain([b'"', b'\\']) {
            let text = format!("{}{}", "x".repeat(40), char::from(byte));
            assert!(super::text(&text).is_none(), "{text:?}");
        }
        assert!(text(&1_u8).is_none() && text("a str has no length of its own").is_none());
    }

    #[test]
    fn a_text_is_read_as_serde_json_reads_it_or_not_at_all() {
        let read = |json: &[u8]| read_text::<String>(json);
        for text in ["", "a", "é\u{7f}\u{2028} /'", &"x".repeat(1_000)] {
            assert_eq!(read(format!("\"{text}\"").as_bytes()).as_deref(), Some(text));
        }
        let others: [&[u8]; 9] =
            [b"", b"\"", b"1", b" \"a\"", b"\"a\" ", b"\"\\n\"", b"\"a\"b\"", b"\"\x1f\"", b"\"\xff\""];
        for json in others {
            assert_eq!(read(json), None, "{json:?}");
        }
        assert!(read_text::<serde_json::Value>(b"\"a\"").is_none());
    }

    #[test]
    fn only_types_that_json_cannot_change_are_plain() {
        /// A type whose last name is that of a plain one.
        struct String;
        let plain = [is_plain::<std::string::String>(), is_plain::<u64>(), is_plain::<()>()];
        assert_eq!(plain, [true; 3]);
        let others = [
            is_plain::<String>(),
            is_plain::<f64>(),
            is_plain::<Option<u64>>(),
            is_plain::<Vec<u64>>(),
            is_plain::<(u64,)>(),
            is_plain::<&u64>(),
        ];
        assert_eq!(others, [false; 6]);
    }
}
