//! Checksums of rows. They reveal changes by a disk or a person when a row is read.

use std::hash::Hasher;

/// A checksum under construction. It always detects a difference in one place, and misses any other
/// difference once in 2^32 times. It is no defence against deliberate changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checksum(pub(crate) u64);

/// The size of a checksum in bytes.
pub(crate) const CHECKSUM_BYTES: usize = 4;

/// The multiplier. It is odd, so a multiplication loses nothing.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Checksum {
    pub(crate) fn new() -> Self {
        Self(0x243f_6a88_85a3_08d3)
    }

    pub(crate) fn number(self, number: i64) -> Self {
        Self((self.0 ^ number as u64).wrapping_mul(FACTOR).rotate_left(29))
    }

    /// Adds bytes, eight at a time, and their length, so that no part is mistaken for another.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let words = bytes.chunks_exact(8);
        let rest = words.remainder();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let word = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().expect("a chunk has eight bytes"));
        let sum = words.fold(self, |sum, bytes| sum.number(word(bytes)));
        sum.number(i64::from_le_bytes(last)).number(bytes.len() as i64)
    }

    pub(crate) fn finish(self) -> u32 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(FACTOR);
        (mixed ^ (mixed >> 29)) as u32 ^ (mixed >> 32) as u32
    }
}

/// Hashes texts with the checksum. Others may choose texts that all have the same hash, so it is
/// for small tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SumHasher(Checksum);

impl Default for SumHasher {
    fn default() -> Self {
        Self(Checksum::new())
    }
}

impl Hasher for SumHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = self.0.bytes(bytes);
    }

    fn write_u8(&mut self, byte: u8) {
        self.0 = self.0.number(i64::from(byte));
    }

    fn finish(&self) -> u64 {
        self.0.0
    }
}

/// Writes a checksum in front of its data.
pub(crate) fn put(body: &mut [u8], checksum: Checksum) {
    body[..CHECKSUM_BYTES].copy_from_slice(&checksum.finish().to_le_bytes());
}

/// Returns the data behind a checksum, if the checksum that `of` computes for it matches.
pub(crate) fn checked(body: &[u8], of: impl FnOnce(&[u8]) -> Checksum) -> Option<&[u8]> {
    let (found, rest) = body.split_first_chunk::<CHECKSUM_BYTES>()?;
    (of(rest).finish().to_le_bytes() == *found).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_changes_the_checksum() {
        let sum = |bytes: &[u8]| Checksum::new().number(7).bytes(bytes).finish();
        for length in [1, 7, 8, 9, 16, 100] {
            let whole: Vec<u8> = (0..length).map(|n| (n * 37) as u8).collect();
            for bit in 0..length * 8 {
                let mut changed = whole.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(sum(&changed), sum(&whole), "bit {bit} of {length} bytes");
            }
        }
    }

    #[test]
    fn parts_are_not_taken_for_each_other() {
        let sum = |a: &[u8], b: &[u8]| Checksum::new().bytes(a).bytes(b).finish();
        let sums =
            [sum(b"", b"abc"), sum(b"a", b"bc"), sum(b"abc", b""), sum(b"abc", b"\0"), sum(b"\0", b"abc")];
        for (index, one) in sums.iter().enumerate() {
            assert!(!sums[index + 1..].contains(one), "{sums:?}");
        }
        assert_ne!(
            Checksum::new().number(1).number(2).finish(),
            Checksum::new().number(2).number(1).finish()
        );
    }
}
