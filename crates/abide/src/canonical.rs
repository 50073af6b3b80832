//! Comparison of values: two inputs are the same if their canonical JSON is. Keys, and the results
//! that `testing` compares, follow the same rule.
//!
//! Members of objects are sorted by name, and members that are `null` are left out. So neither the
//! order of a `HashMap` nor a new optional field makes an input a different one. White space and
//! the way a character is escaped do not count, and an integer is the same number as a float: `5`
//! is `5.0`. Everything else counts: the order of sequences, and how other numbers are written.
//!
//! Not every `null` is a field without a value. That of `{"Pay":null}` is the content of a variant,
//! and without it `Pay(None)` would be the same as `Refund(None)`. [`Nulls`] has the rules.

use abide_core::canonical::{Nulls, canonical, hash_by};
use abide_core::planted::{Bug, planted};
use abide_core::{ContentHash, Name, Payload};
use serde::Serialize;

use crate::code::Value;
use crate::data;
use crate::readable::Readable;

pub use abide_core::canonical::hash;

/// Returns the canonical form of a value of which the JSON is known, but not the type. Values are
/// equal by [`hash`] if their forms are. A text other than JSON stays as it is.
pub(crate) fn form(value: &Payload) -> Payload {
    canonical(value.as_bytes(), Nulls::OfText).map_or_else(|| value.clone(), Payload::from)
}

/// An input as it is recorded, and the hash by which it is compared.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) payload: Payload,
    pub(crate) hash: ContentHash,
}

impl Input {
    /// Returns the input of code that can read it back.
    pub(crate) fn of<T: Value>(value: &T) -> Result<Self, serde_json::Error> {
        let (payload, _) = data::round_trip(value)?;
        Ok(Self { hash: value.input_hash(&payload), payload })
    }

    /// Returns an input that only its writer has a type for.
    pub(crate) fn written<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        let payload = data::encode(value)?;
        Ok(Self { hash: hash_of(value, &payload), payload })
    }
}

/// Returns the hash by which a value is compared that has this JSON.
pub(crate) fn hash_of<T: Serialize + ?Sized>(value: &T, json: &Payload) -> ContentHash {
    hash_by(json, || canonical_of(value, json.as_bytes()))
}

/// Returns a short text that distinguishes an operation from others of its name.
///
/// A string stands for itself, every other value for its canonical JSON. A string that reads as
/// JSON stands for its own JSON: `"7"` is another key than `7`. A text that is long, or that has
/// characters which names do not allow, is replaced with its hash.
pub(crate) fn key<K: Serialize + ?Sized>(key: &K) -> Result<Name, String> {
    const KEY_BYTES_MAX: usize = 64;
    let json = data::encode(&key).map_err(|error| format!("its key does not serialize: {error}"))?;
    let text = canonical_of(key, json.as_bytes()).unwrap_or_else(|| json.as_bytes().to_vec());
    let is_json = |plain: &String| serde_json::from_str::<serde::de::IgnoredAny>(plain).is_ok();
    let plain = serde_json::from_slice::<String>(&text)
        .ok()
        .filter(|plain| !is_json(plain) || planted(Bug::KeysLoseTypes))
        .or_else(|| String::from_utf8(text.clone()).ok())
        .filter(|plain| plain.len() <= KEY_BYTES_MAX);
    match plain.map(Name::new) {
        Some(Ok(name)) => Ok(name),
        _ => Ok(Name::new(format!("{:?}", ContentHash::of(&text))).expect("hexadecimal digits are a name")),
    }
}

/// Returns the canonical form of a value that has this JSON. A value with a `null` in it is written
/// once more, without its fields that are `null`: that they are fields cannot be read off the JSON.
fn canonical_of<T: Serialize + ?Sized>(value: &T, json: &[u8]) -> Option<Vec<u8>> {
    let has_null = json.windows(5).any(|window| window == b":null") && !planted(Bug::NullMembersCount);
    match has_null {
        true => canonical(&serde_json::to_vec(&Readable::without_null_fields(value)).ok()?, Nulls::OfValue),
        false => canonical(json, Nulls::OfValue),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Fields<T> {
        a: Option<T>,
        b: (),
        c: Unit,
        d: Box<serde_json::value::RawValue>,
    }

    #[derive(Serialize)]
    struct Unit;

    #[derive(Serialize)]
    enum Variant<T> {
        Newtype(T),
        Named { a: T, b: Option<u8> },
        Tuple(T, ()),
    }

    #[derive(Serialize)]
    #[serde(tag = "tag", content = "content")]
    enum Adjacent {
        Pay(Option<u8>),
    }

    #[derive(Serialize)]
    struct Flat<T> {
        id: Option<u8>,
        #[serde(flatten)]
        rest: T,
    }

    fn fields<T>(a: Option<T>) -> Fields<T> {
        let d = serde_json::value::RawValue::from_string("null".to_owned()).unwrap();
        Fields { a, b: (), c: Unit, d }
    }

    fn form<T: Serialize>(value: &T) -> String {
        let json = data::encode(value).unwrap();
        String::from_utf8(canonical_of(value, json.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn a_null_is_left_out_of_structs_and_kept_in_variants() {
        let map = |pairs: &[(&str, Option<u8>)]| -> std::collections::BTreeMap<String, Option<u8>> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        let rows = [
            (form(&fields(None::<u8>)), "{}"),
            (form(&fields(Some(fields(Some(1))))), r#"{"a":{"a":1}}"#),
            (form(&Variant::Newtype(None::<u8>)), r#"{"Newtype":null}"#),
            (form(&Variant::Newtype(fields(None::<u8>))), r#"{"Newtype":{}}"#),
            (form(&Variant::Named { a: None::<u8>, b: None }), r#"{"Named":{}}"#),
            (form(&Variant::Tuple(None::<u8>, ())), r#"{"Tuple":[null,null]}"#),
            (form(&fields(Some(Variant::Newtype(())))), r#"{"a":{"Newtype":null}}"#),
            (form(&Adjacent::Pay(None)), r#"{"tag":"Pay"}"#),
            (form(&map(&[("ann", None)])), r#"{"ann":null}"#),
            (form(&map(&[("ann", None), ("bob", None)])), r#"{"ann":null,"bob":null}"#),
            (form(&map(&[("ann", None), ("bob", Some(1))])), r#"{"bob":1}"#),
            (form(&serde_json::json!({ "a": 1, "b": null, "c": [null] })), r#"{"a":1,"c":[null]}"#),
            // Flattened, a variant and the entries of a map cannot be told from fields.
            (form(&Flat { id: Some(1), rest: Variant::Newtype(()) }), r#"{"id":1}"#),
            (form(&Flat { id: None, rest: Variant::Newtype(()) }), "{}"),
            (form(&Flat { id: None, rest: map(&[("ann", None), ("bob", Some(1))]) }), r#"{"bob":1}"#),
            (form(&Flat { id: None, rest: fields(Some(map(&[("ann", None)]))) }), r#"{"a":{"ann":null}}"#),
            (form(&Flat { id: None, rest: Variant::Named { a: None::<u8>, b: None } }), r#"{"Named":{}}"#),
            (form(&Flat { id: None, rest: Variant::Tuple((), ()) }), r#"{"Tuple":[null,null]}"#),
            (form(&(None::<u8>, ":null")), r#"[null,":null"]"#),
        ];
        for (form, expected) in rows {
            assert_eq!(form, expected);
        }
    }

    #[test]
    fn keys_are_short_and_people_can_read_them() {
        let long = "x".repeat(65);
        let read = |key: Result<Name, String>| key.expect("a key").to_string();
        assert_eq!(read(key("ann")), "ann");
        assert_eq!(read(key(&7)), "7");
        assert_eq!(read(key("7")), r#""7""#);
        assert_eq!(read(key(r#""7""#)), r#""\"7\"""#);
        assert_eq!((read(key("null")), read(key("007"))), (r#""null""#.to_owned(), "007".to_owned()));
        assert_eq!(read(key(&("a", 1))), r#"["a",1]"#);
        assert_ne!(key(r#"["a",1]"#), key(&("a", 1)));
        assert_eq!((read(key(&long)).len(), read(key("a\nb")).len(), read(key("")).len()), (32, 32, 32));
        assert_ne!(key(&long), key(&"y".repeat(65)));
    }
}
