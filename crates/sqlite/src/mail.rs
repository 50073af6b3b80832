//! A message in its row of the inbox: its place in the order of arrival, its checksum, its body.

use std::ops::Range;

use abide_core::{Message, Sort, codec};
use rusqlite::Row;
use rusqlite::types::{Type, ValueRef};

use crate::checksum::{self, CHECKSUM_BYTES, Checksum};
use crate::rows::{blob, text};

/// A place behind all messages that any execution has had.
pub(crate) const ARRIVED_FAR: i64 = 1 << 48;
/// The places that messages may have. Those from [`ARRIVED_FAR`] on are behind a damaged message.
const PLACES: Range<i64> = 1..1 << 62;
/// The sorts, by the remainder of a place divided by their number.
const SORTS: [Sort; 4] = [Sort::Signal, Sort::Order, Sort::Answer, Sort::Passing];
const SORT_COUNT: i64 = SORTS.len() as i64;

/// Returns the place of a message in the order of arrival, behind the newest one. The place also
/// encodes the sort: an index holds the orders alone, and messages of an inbox can be distinguished
/// without reading their bodies.
pub(crate) fn place_behind(newest: i64, sort: Sort) -> i64 {
    let rest = SORTS.iter().position(|known| *known == sort).expect("all sorts are there");
    (newest / SORT_COUNT + 1) * SORT_COUNT + rest as i64
}

/// Returns the sort of the message in a place, if the place exists.
pub(crate) fn sort_at(place: i64) -> Option<Sort> {
    PLACES.contains(&place).then(|| SORTS[(place % SORT_COUNT) as usize])
}

/// Returns the unread message in a row of the inbox, `execution, id, arrived, body` in this order,
/// if it is undamaged.
pub(crate) fn message(row: &Row<'_>) -> rusqlite::Result<Message> {
    opened(row.get(0)?, (text(row, 1)?, row.get(2)?), blob(row, 3)?)
}

/// Returns an unread message of the execution with this key, if it is undamaged.
pub(crate) fn opened(key: i64, (id, arrived): (&str, i64), body: &[u8]) -> rusqlite::Result<Message> {
    let damaged = |problem: String| {
        let complaint = format!("message {id:?} is damaged: {problem}");
        rusqlite::Error::FromSqlConversionFailure(3, Type::Blob, complaint.into())
    };
    let sealed = Sealed { id, arrived, body };
    let bytes = sealed.opened(key).ok_or_else(|| damaged("its checksum is wrong".to_owned()))?;
    if !PLACES.contains(&arrived) {
        return Err(damaged(format!("there is no place {arrived} in the order of arrival")));
    }
    codec::decode(bytes).map_err(|error| match error.is_newer() {
        // Only this program cannot read it.
        true => rusqlite::Error::FromSqlConversionFailure(3, Type::Blob, Box::new(error)),
        false => damaged(error.to_string()),
    })
}

/// An unread message with the columns that its checksum covers, except its execution.
struct Sealed<'r> {
    id: &'r str,
    arrived: i64,
    body: &'r [u8],
}

impl<'r> Sealed<'r> {
    /// Returns `None` when a column has another type than was written.
    fn read(row: &'r Row<'_>) -> Option<Self> {
        Some(Self { id: text(row, 1).ok()?, arrived: row.get(2).ok()?, body: blob(row, 3).ok()? })
    }

    /// Returns the encoded message, if it was written for the execution with this key and is
    /// undamaged.
    fn opened(&self, key: i64) -> Option<&'r [u8]> {
        let sum = |bytes: &[u8]| unread_sum(Checksum::new().bytes(bytes), (key, self.id), self.arrived);
        checksum::checked(self.body, sum)
    }
}

/// Whether a row with these columns would be undamaged, for a read or an unread message.
pub(crate) fn is_sound((key, id, arrived): (i64, &str, i64), body: ValueRef<'_>) -> bool {
    match body {
        ValueRef::Null => arrived == read_sum(key, id),
        ValueRef::Blob(body) => {
            PLACES.contains(&arrived) && Sealed { id, arrived, body }.opened(key).is_some()
        }
        _ => false,
    }
}

/// Returns the place of an unread message, if its row is undamaged.
pub(crate) fn sound_place(row: &Row<'_>, key: i64) -> Option<i64> {
    let sealed = Sealed::read(row)?;
    sealed.opened(key).map(|_| sealed.arrived).filter(|arrived| PLACES.contains(arrived))
}

/// Returns the message in a row of the inbox, if it is unread and was written for the execution
/// that `whose` returns. The row may stand anywhere.
pub(crate) fn written_for(row: &Row<'_>, whose: impl FnOnce(&Message) -> Option<i64>) -> Option<Message> {
    let sealed = Sealed::read(row)?;
    let message = codec::decode(sealed.body.get(CHECKSUM_BYTES..)?).ok()?;
    let key = whose(&message)?;
    sealed.opened(key).map(|_| message)
}

/// Whether messages may have this place in the order of arrival.
pub(crate) fn has_place(arrived: i64) -> bool {
    PLACES.contains(&arrived)
}

/// Returns the body of an unread message that is already encoded.
pub(crate) fn sealed(key: i64, (id, arrived): (&str, i64), message: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(CHECKSUM_BYTES + message.len());
    body.extend([0; CHECKSUM_BYTES]);
    body.extend_from_slice(message);
    checksum::put(&mut body, unread_sum(Checksum::new().bytes(message), (key, id), arrived));
    body
}

/// Returns the encoded body of an unread message.
pub(crate) fn encoded(key: i64, message: &Message, arrived: i64) -> Vec<u8> {
    let mut body = Vec::with_capacity(192);
    body.extend([0; CHECKSUM_BYTES]);
    let mut body = codec::encode_behind(body, message);
    let sum = Checksum::new().bytes(&body[CHECKSUM_BYTES..]);
    checksum::put(&mut body, unread_sum(sum, (key, message.id.as_str()), arrived));
    body
}

/// Returns the checksum of an unread message.
pub(crate) fn unread_sum(bytes: Checksum, (key, id): (i64, &str), arrived: i64) -> Checksum {
    bytes.number(key).number(arrived).bytes(id.as_bytes())
}

/// Returns the value that replaces the order of arrival once a message is read: a checksum of all
/// that is left of it.
pub(crate) fn read_sum(key: i64, id: &str) -> i64 {
    i64::from(Checksum::new().number(key).bytes(id.as_bytes()).finish())
}

#[cfg(test)]
mod tests {
    use abide_core::{Body, Payload};

    use super::*;
    use crate::fixture;

    #[test]
    fn a_place_tells_the_sort_of_its_message_and_comes_behind_the_one_before() {
        let mut place = 0;
        for sort in SORTS.into_iter().cycle().take(10) {
            let next = place_behind(place, sort);
            assert_eq!((next > place, sort_at(next)), (true, Some(sort)));
            place = next;
        }
        assert_eq!([i64::MIN, -3, 0, 1 << 62, i64::MAX].map(sort_at), [None; 5]);
    }

    #[test]
    fn a_message_is_sound_only_in_a_place_that_messages_have() {
        let body = Body::Signal { name: fixture::name("go"), payload: Payload::from("1") };
        let message = fixture::message("s", "a", body);
        for (arrived, is_right) in [(4, true), (0, false), (-4, false), (1 << 62, false)] {
            let body = encoded(7, &message, arrived);
            assert_eq!(is_sound((7, "s", arrived), ValueRef::Blob(&body)), is_right, "{arrived}");
        }
        assert!(is_sound((7, "s", read_sum(7, "s")), ValueRef::Null));
        assert!(!is_sound((8, "s", read_sum(7, "s")), ValueRef::Null));
    }
}
