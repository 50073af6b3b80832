//! A serializer that refuses values which JSON would turn into other ones.
//!
//! `serde_json` writes `null` for a float that is not finite, and for an empty value inside of an
//! option, which reads back as `None`. This serializer refuses both, in the same pass. Everything
//! else passes unchanged: the code below only forwards, and is compiled away.
//!
//! For comparisons it can leave out the fields that are `null`. Only a serializer knows them: in
//! the JSON, the field of a struct looks like an entry of a map and like a variant. Flattened
//! fields, entries and variants look alike here too, and count as fields.

use std::fmt::Display;
use std::io;

use serde::Serialize;
use serde::ser::{
    Error as _, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use abide_core::planted::{Bug, planted};

/// A value that is written only if it can be read back.
pub(crate) struct Readable<'a, T: ?Sized> {
    value: &'a T,
    around: Around,
    fields: Fields,
}

/// The kind of the value around a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Around {
    Any,
    /// The value of a `Some`.
    Option,
    /// The text of a `RawValue` that is the value of a `Some`.
    RawInOption,
}

/// The name under which `serde_json` writes a `RawValue`: a struct whose only field is its JSON.
const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// Which fields of structs are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fields {
    All,
    /// All but those that are `null`. They still count in the announced length of their struct,
    /// which JSON does not have.
    Given,
}

impl<'a, T: ?Sized> Readable<'a, T> {
    pub(crate) fn new(value: &'a T) -> Self {
        Self { value, around: Around::Any, fields: Fields::All }
    }

    /// The same without the fields that are `null`, for a comparison: nobody reads it.
    pub(crate) fn without_null_fields(value: &'a T) -> Self {
        Self { fields: Fields::Given, ..Self::new(value) }
    }
}

impl<T: Serialize + ?Sized> Serialize for Readable<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { value, around, fields } = *self;
        value.serialize(Checked { inner: serializer, around, fields })
    }
}

impl Fields {
    /// Returns a part of a value whose fields are written like this.
    fn of<T: ?Sized>(self, value: &T) -> Readable<'_, T> {
        Readable { value, around: Around::Any, fields: self }
    }

    fn leave_out<T: Serialize + ?Sized>(self, value: &T) -> bool {
        self == Self::Given && serde_json::to_writer(OnlyNull, value).is_ok()
    }
}

/// A writer that takes nothing but `null`, so a value of any size is known by its first bytes.
struct OnlyNull;

impl io::Write for OnlyNull {
    fn write(&mut self, json: &[u8]) -> io::Result<usize> {
        if json == b"null" { Ok(json.len()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The serializer itself.
struct Checked<S> {
    inner: S,
    around: Around,
    fields: Fields,
}

impl<S: Serializer> Checked<S> {
    /// Returns the inner serializer for a value that is written as `null`, which must not stand
    /// inside of an option.
    fn for_null(self, what: &str) -> Result<S, S::Error> {
        match self.around != Around::Any && !planted(Bug::SomeNoneRecorded) {
            true => Err(S::Error::custom(format_args!("Some({what}) would be read as None"))),
            false => Ok(self.inner),
        }
    }

    fn finite(self, float: f64) -> Result<S, S::Error> {
        match float.is_finite() || planted(Bug::NanRecorded) {
            true => Ok(self.inner),
            false => Err(S::Error::custom(format_args!("{float} is no number in JSON"))),
        }
    }
}

/// Forwards values that are written unchanged.
macro_rules! hand_on {
    ($($name:ident($kind:ty)),* $(,)?) => {$(
        fn $name(self, value: $kind) -> Result<S::Ok, S::Error> {
            self.inner.$name(value)
        }
    )*};
}

impl<S: Serializer> Serializer for Checked<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Parts<S::SerializeSeq>;
    type SerializeTuple = Parts<S::SerializeTuple>;
    type SerializeTupleStruct = Parts<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Parts<S::SerializeTupleVariant>;
    type SerializeMap = Entries<S::SerializeMap>;
    type SerializeStruct = Parts<S::SerializeStruct>;
    type SerializeStructVariant = Parts<S::SerializeStructVariant>;

    hand_on!(
        serialize_bool(bool),
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_i128(i128),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64),
        serialize_u128(u128),
        serialize_char(char),
        serialize_bytes(&[u8]),
    );

    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        self.finite(value.into())?.serialize_f32(value)
    }

    fn serialize_f64(self, value: f64) -> Result<S::Ok, S::Error> {
        self.finite(value)?.serialize_f64(value)
    }

    fn serialize_str(self, text: &str) -> Result<S::Ok, S::Error> {
        match self.around == Around::RawInOption && text == "null" {
            true => self.for_null(text)?.serialize_str(text),
            false => self.inner.serialize_str(text),
        }
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.for_null("None")?.serialize_none()
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.for_null("()")?.serialize_unit()
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<S::Ok, S::Error> {
        self.for_null(name)?.serialize_unit_struct(name)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.serialize_some(&Readable { value, around: Around::Option, fields: self.fields })
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        // JSON has only the inner value.
        let Self { inner, around, fields } = self;
        inner.serialize_newtype_struct(name, &Readable { value, around, fields })
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit_variant(name, index, variant)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.inner.serialize_newtype_variant(name, index, variant, &self.fields.of(value))
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        Parts::of(self.inner.serialize_seq(length), self.fields)
    }

    fn serialize_tuple(self, length: usize) -> Result<Self::SerializeTuple, S::Error> {
        Parts::of(self.inner.serialize_tuple(length), self.fields)
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        Parts::of(self.inner.serialize_tuple_struct(name, length), self.fields)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        Parts::of(self.inner.serialize_tuple_variant(name, index, variant, length), self.fields)
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        let inner = self.inner.serialize_map(length)?;
        Ok(Entries { inner, fields: self.fields, is_struct: length.is_none() })
    }

    fn serialize_struct(self, name: &'static str, length: usize) -> Result<Self::SerializeStruct, S::Error> {
        let is_raw = self.around == Around::Option && name == RAW_VALUE;
        let around = if is_raw { Around::RawInOption } else { Around::Any };
        let inner = self.inner.serialize_struct(name, length)?;
        Ok(Parts { inner, around, fields: self.fields })
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        Parts::of(self.inner.serialize_struct_variant(name, index, variant, length), self.fields)
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// A compound value whose parts are checked one by one.
struct Parts<S> {
    inner: S,
    around: Around,
    fields: Fields,
}

impl<S> Parts<S> {
    fn of<E>(inner: Result<S, E>, fields: Fields) -> Result<Self, E> {
        inner.map(|inner| Self { inner, around: Around::Any, fields })
    }
}

/// Checks each part of compound values without names.
macro_rules! parts {
    ($($kind:ident . $part:ident),* $(,)?) => {$(
        impl<S: $kind> $kind for Parts<S> {
            type Ok = S::Ok;
            type Error = S::Error;

            fn $part<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
                self.inner.$part(&self.fields.of(value))
            }

            fn end(self) -> Result<S::Ok, S::Error> {
                self.inner.end()
            }
        }
    )*};
}

parts!(
    SerializeSeq.serialize_element,
    SerializeTuple.serialize_element,
    SerializeTupleStruct.serialize_field,
    SerializeTupleVariant.serialize_field,
);

/// Does the same for parts with names.
macro_rules! named_parts {
    ($($kind:ident),* $(,)?) => {$(
        impl<S: $kind> $kind for Parts<S> {
            type Ok = S::Ok;
            type Error = S::Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), S::Error> {
                match self.fields.leave_out(value) {
                    true => self.inner.skip_field(name),
                    false => {
                        let Self { around, fields, .. } = *self;
                        self.inner.serialize_field(name, &Readable { value, around, fields })
                    }
                }
            }

            fn skip_field(&mut self, name: &'static str) -> Result<(), S::Error> {
                self.inner.skip_field(name)
            }

            fn end(self) -> Result<S::Ok, S::Error> {
                self.inner.end()
            }
        }
    )*};
}

named_parts!(SerializeStruct, SerializeStructVariant);

/// The entries of a map, or the fields of a struct with flattened ones. A derived struct of that
/// kind is written as a map whose length is unknown; a map knows its length.
struct Entries<S> {
    inner: S,
    fields: Fields,
    is_struct: bool,
}

impl<S: SerializeMap> SerializeMap for Entries<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    /// Derived code writes each field that could be `null` by this method.
    fn serialize_entry<K, V>(&mut self, key: &K, value: &V) -> Result<(), S::Error>
    where
        K: Serialize + ?Sized,
        V: Serialize + ?Sized,
    {
        match self.is_struct && self.fields.leave_out(value) {
            true => Ok(()),
            false => self.inner.serialize_entry(&self.fields.of(key), &self.fields.of(value)),
        }
    }

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        self.inner.serialize_key(&self.fields.of(key))
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_value(&self.fields.of(value))
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}
