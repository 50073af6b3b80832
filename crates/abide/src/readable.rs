//! A serializer that refuses values which JSON would turn into other ones.
//!
//! `serde_json` writes `null` for a float that is not finite, and for an empty value inside of an
//! option, which reads back as `None`. This serializer refuses both, in the same pass. Everything
//! else passes unchanged: the code below only forwards, and is compiled away.

use std::fmt::Display;

use serde::Serialize;
use serde::ser::{
    Error as _, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use abide_core::planted::{Bug, planted};

/// A value that is written only if it can be read back.
pub(crate) struct Readable<'a, T: ?Sized>(pub(crate) &'a T);

impl<T: Serialize + ?Sized> Serialize for Readable<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Checked { inner: serializer, is_in_option: false })
    }
}

/// The serializer itself.
struct Checked<S> {
    inner: S,
    /// Whether the value is that of a `Some`.
    is_in_option: bool,
}

impl<S: Serializer> Checked<S> {
    /// Returns the inner serializer for a value that is written as `null`, which must not stand
    /// inside of an option.
    fn for_null(self, what: &str) -> Result<S, S::Error> {
        match self.is_in_option && !planted(Bug::SomeNoneRecorded) {
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
    type SerializeMap = Parts<S::SerializeMap>;
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
        serialize_str(&str),
        serialize_bytes(&[u8]),
    );

    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        self.finite(value.into())?.serialize_f32(value)
    }

    fn serialize_f64(self, value: f64) -> Result<S::Ok, S::Error> {
        self.finite(value)?.serialize_f64(value)
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
        self.inner.serialize_some(&InOption(value))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        // JSON has only the inner value.
        match self.is_in_option {
            true => self.inner.serialize_newtype_struct(name, &InOption(value)),
            false => self.inner.serialize_newtype_struct(name, &Readable(value)),
        }
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
        self.inner.serialize_newtype_variant(name, index, variant, &Readable(value))
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.inner.serialize_seq(length).map(Parts)
    }

    fn serialize_tuple(self, length: usize) -> Result<Self::SerializeTuple, S::Error> {
        self.inner.serialize_tuple(length).map(Parts)
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.inner.serialize_tuple_struct(name, length).map(Parts)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.inner.serialize_tuple_variant(name, index, variant, length).map(Parts)
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.inner.serialize_map(length).map(Parts)
    }

    fn serialize_struct(self, name: &'static str, length: usize) -> Result<Self::SerializeStruct, S::Error> {
        self.inner.serialize_struct(name, length).map(Parts)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.inner.serialize_struct_variant(name, index, variant, length).map(Parts)
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// The value of a `Some`.
struct InOption<'a, T: ?Sized>(&'a T);

impl<T: Serialize + ?Sized> Serialize for InOption<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Checked { inner: serializer, is_in_option: true })
    }
}

/// A compound value whose parts are checked one by one.
struct Parts<S>(S);

/// Checks each part of compound values without names.
macro_rules! parts {
    ($($kind:ident . $part:ident),* $(,)?) => {$(
        impl<S: $kind> $kind for Parts<S> {
            type Ok = S::Ok;
            type Error = S::Error;

            fn $part<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
                self.0.$part(&Readable(value))
            }

            fn end(self) -> Result<S::Ok, S::Error> {
                self.0.end()
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
                self.0.serialize_field(name, &Readable(value))
            }

            fn skip_field(&mut self, name: &'static str) -> Result<(), S::Error> {
                self.0.skip_field(name)
            }

            fn end(self) -> Result<S::Ok, S::Error> {
                self.0.end()
            }
        }
    )*};
}

named_parts!(SerializeStruct, SerializeStructVariant);

impl<S: SerializeMap> SerializeMap for Parts<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        self.0.serialize_key(&Readable(key))
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.0.serialize_value(&Readable(value))
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}
