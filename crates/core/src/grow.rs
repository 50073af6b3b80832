//! Structures that can gain fields on disk.
//!
//! [`growable!`] writes the original fields of a structure one after the other, as postcard does,
//! and behind them a list of the fields gained since: each with a tag that is never used again, its
//! length and its bytes. A field that is not set is not written, so a newer program that does not
//! use it writes the same bytes as an older one. An older program that meets an unknown tag says so
//! (see [`DecodeError::Newer`](crate::codec::DecodeError::Newer)) instead of misreading the bytes
//! that follow.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Error as _, SeqAccess, Visitor};
use serde::ser::{SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

use crate::planted::{Bug, planted};

/// Makes a structure [`Serialize`] and [`Deserialize`].
///
/// `fields` never change: neither their order nor their number. A new field is an `Option` and goes
/// into `gained` under the next tag. A field that is no longer used stays there.
macro_rules! growable {
    (
        $type:ident {
            fields: $($field:ident),+;
            gained: $($tag:literal => $gained:ident),* ;
            $(not_written: $($absent:ident = $value:expr),+;)?
        }
    ) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeTuple as _;
                struct Gained<'a>(&'a $type);
                impl serde::Serialize for Gained<'_> {
                    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                        // Not used where nothing was gained yet.
                        let Self(_whole) = self;
                        let count = 0 $(+ usize::from(_whole.$gained.is_some()))*;
                        let list = $crate::grow::Gained::<S>::new(serializer, count)?;
                        $(let list = list.with($tag, &_whole.$gained)?;)*
                        list.end()
                    }
                }
                const COUNT: usize = [$(stringify!($field)),+].len() + 1;
                let mut tuple = serializer.serialize_tuple(COUNT)?;
                $(tuple.serialize_element(&self.$field)?;)+
                tuple.serialize_element(&Gained(self))?;
                tuple.end()
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = $type;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(stringify!($type))
                    }

                    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut fields: A) -> Result<$type, A::Error> {
                        $(let $field = $crate::grow::next(&mut fields)?;)+
                        let gained: $crate::grow::Found<'_> = $crate::grow::next(&mut fields)?;
                        $(let ($gained, gained) = gained.take($tag)?;)*
                        gained.finish()?;
                        $($(let $absent = $value;)+)?
                        Ok($type { $($field,)+ $($gained,)* $($($absent,)+)? })
                    }
                }
                const COUNT: usize = [$(stringify!($field)),+].len() + 1;
                deserializer.deserialize_tuple(COUNT, Visitor)
            }
        }
    };
}

pub(crate) use growable;

/// The list of the fields that a structure gained, as it is written.
pub(crate) struct Gained<S: Serializer>(S::SerializeSeq);

impl<S: Serializer> Gained<S> {
    /// Begins the list of as many fields as are set.
    pub(crate) fn new(serializer: S, count: usize) -> Result<Self, S::Error> {
        serializer.serialize_seq(Some(count)).map(Self)
    }

    /// Writes a field with its tag, if it is set.
    pub(crate) fn with<T: Serialize>(mut self, tag: u32, field: &Option<T>) -> Result<Self, S::Error> {
        let Some(field) = field else { return Ok(self) };
        // Most fields are short, and every entry has some: those are not allocated. A place in the
        // code, which is the longest that is frequent, is among them.
        let mut few = [0; FEW];
        match postcard::to_slice(field, &mut few) {
            Ok(written) => self.0.serialize_element(&(tag, Bytes(written)))?,
            Err(_) => {
                let many = postcard::to_allocvec(field).expect("types of this crate always serialize");
                self.0.serialize_element(&(tag, Bytes(&many)))?;
            }
        }
        Ok(self)
    }

    pub(crate) fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}

const FEW: usize = 64;

/// Bytes that are written at once. A slice is written as postcard writes any other: byte by byte,
/// with the same result.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Reads the next of the original fields.
pub(crate) fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(fields: &mut A) -> Result<T, A::Error> {
    fields.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &"every field"))
}

/// The gained fields, as they were found. Most structures have none or one.
#[derive(Default)]
pub(crate) struct Found<'de> {
    first: Option<(u32, &'de [u8])>,
    others: Vec<(u32, &'de [u8])>,
}

impl Found<'_> {
    /// Takes one field, and returns it with the others.
    pub(crate) fn take<T: DeserializeOwned, E: serde::de::Error>(
        mut self,
        tag: u32,
    ) -> Result<(Option<T>, Self), E> {
        let is_it = |field: &mut (u32, &[u8])| field.0 == tag;
        let other = |others: &mut Vec<(u32, _)>| {
            others.iter().position(|(found, _)| *found == tag).map(|index| others.swap_remove(index))
        };
        let found = self.first.take_if(is_it).or_else(|| other(&mut self.others));
        let Some((_, bytes)) = found else { return Ok((None, self)) };
        match postcard::take_from_bytes(bytes) {
            Ok((field, [])) => Ok((Some(field), self)),
            _ => Err(E::custom("a field that cannot be read")),
        }
    }

    /// Checks that nothing is left: it would be lost when the structure is written again.
    pub(crate) fn finish<E: serde::de::Error>(self) -> Result<(), E> {
        match self.first.iter().chain(&self.others).next() {
            None => Ok(()),
            Some(_) if planted(Bug::UnknownFieldIgnored) => Ok(()),
            Some((tag, _)) => Err(E::custom(format_args!("the field {tag} is not known"))),
        }
    }
}

impl<'de> Deserialize<'de> for Found<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Found<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("fields with tags")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Found<'de>, A::Error> {
                let (first, mut others) = (list.next_element()?, Vec::new());
                while let Some(field) = list.next_element()? {
                    others.push(field);
                }
                Ok(Found { first, others })
            }
        }
        deserializer.deserialize_seq(List)
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::{DecodeError, decode, encode};

    /// The same structure in three programs, each newer than the one before.
    mod first {
        #[derive(Debug, PartialEq)]
        pub(super) struct Order {
            pub(super) id: u64,
            pub(super) note: String,
        }
        crate::grow::growable!(Order { fields: id, note; gained: ; });
    }

    mod second {
        #[derive(Debug, PartialEq)]
        pub(super) struct Order {
            pub(super) id: u64,
            pub(super) note: String,
            pub(super) color: Option<String>,
        }
        crate::grow::growable!(Order { fields: id, note; gained: 1 => color; });
    }

    mod third {
        #[derive(Debug, PartialEq)]
        pub(super) struct Order {
            pub(super) id: u64,
            pub(super) note: String,
            pub(super) color: Option<String>,
            pub(super) weight: Option<u32>,
        }
        crate::grow::growable!(Order { fields: id, note; gained: 1 => color, 2 => weight; });
    }

    fn note() -> String {
        "fragile".to_owned()
    }

    /// Encodes two orders in a list: a program that misreads the first misreads the second.
    fn third(color: Option<&str>, weight: Option<u32>) -> Vec<u8> {
        let order = |id| third::Order { id, note: note(), color: color.map(str::to_owned), weight };
        encode(&vec![order(7), order(8)])
    }

    #[test]
    fn a_newer_program_reads_what_an_older_one_wrote() {
        let bytes = encode(&vec![first::Order { id: 7, note: note() }]);
        let read: Vec<third::Order> = decode(&bytes).expect("it is older");
        assert_eq!(read, [third::Order { id: 7, note: note(), color: None, weight: None }]);
    }

    #[test]
    fn an_older_program_reads_what_a_newer_one_wrote_without_its_new_fields() {
        let read: Vec<first::Order> = decode(&third(None, None)).expect("nothing new is in it");
        assert_eq!(read, [first::Order { id: 7, note: note() }, first::Order { id: 8, note: note() }]);
        let read: Vec<second::Order> = decode(&third(Some("red"), None)).expect("it knows the color");
        assert_eq!(read[1], second::Order { id: 8, note: note(), color: Some("red".to_owned()) });
    }

    #[test]
    fn a_field_with_more_in_it_than_is_known_is_not_cut() {
        let bytes = encode(&second::Order { id: 7, note: note(), color: Some("red".to_owned()) });
        let longer = [&bytes[..bytes.len() - 5], &[5, 3], b"red!"].concat();
        assert_eq!(decode::<second::Order>(&longer), Err(DecodeError::Newer));
    }

    #[test]
    fn an_older_program_says_that_a_newer_one_wrote_what_it_does_not_know() {
        for bytes in [third(Some("red"), None), third(None, Some(3)), third(Some("red"), Some(3))] {
            assert_eq!(decode::<Vec<first::Order>>(&bytes), Err(DecodeError::Newer));
        }
        // Alone, and behind a field that is known.
        for bytes in [third(None, Some(3)), third(Some("red"), Some(3))] {
            assert_eq!(decode::<Vec<second::Order>>(&bytes), Err(DecodeError::Newer));
        }
        let read: Vec<third::Order> = decode(&third(Some("red"), Some(3))).expect("it wrote it");
        assert_eq!((read[1].color.as_deref(), read[1].weight), (Some("red"), Some(3)));
    }
}
