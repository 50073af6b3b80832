//! Valid bytes after a few changes.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// One change of some bytes.
#[derive(Clone, Debug)]
enum Change {
    Flip(Index, u8),
    Set(Index, u8),
    Cut(Index, Index),
    Insert(Index, Vec<u8>),
    Swap(Index, Index),
    Repeat(Index, Index),
}

/// Lengths and numbers at the limits of arithmetic, in the encoding of records: seven bits a byte.
const HUGE: [&[u8]; 7] = [
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0x80, 0x00],
    &[0xff; 16],
];

/// Returns any of `inputs`, changed a few times.
pub(crate) fn of(inputs: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (select(inputs), vec(change(), 1..4)).prop_map(|(mut bytes, changes)| {
        changes.into_iter().for_each(|change| apply(&mut bytes, change));
        bytes
    })
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        (at(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (at(), at()).prop_map(|(from, to)| Change::Cut(from, to)),
        (at(), vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), select(&HUGE[..])).prop_map(|(at, bytes)| Change::Insert(at, bytes.to_vec())),
        (at(), at()).prop_map(|(one, other)| Change::Swap(one, other)),
        (at(), at()).prop_map(|(from, to)| Change::Repeat(from, to)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: Change) {
    if bytes.is_empty() {
        return bytes.push(1);
    }
    let length = bytes.len();
    let range = |one: Index, other: Index| {
        let (one, other) = (one.index(length), other.index(length));
        one.min(other)..one.max(other)
    };
    match change {
        Change::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
        Change::Set(at, byte) => bytes[at.index(length)] = byte,
        Change::Cut(from, to) => _ = bytes.drain(range(from, to)),
        Change::Insert(at, new) => {
            let at = at.index(length);
            _ = bytes.splice(at..at, new);
        }
        Change::Swap(one, other) => bytes.swap(one.index(length), other.index(length)),
        Change::Repeat(from, to) => bytes.extend_from_within(range(from, to)),
    }
}
