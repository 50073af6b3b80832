//! Equality of users' values.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Payload, text};

/// A 128-bit hash of a value. Two values are equal if their hashes are.
///
/// The SDK computes it from the canonical form of the value, at the edge. Stores and rules compare
/// hashes and never look into the value. It is written to disk and never changes.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentHash(u128);

impl ContentHash {
    /// Returns the hash of these bytes: SipHash-2-4 with 128 bits and a fixed key. The key is no
    /// secret, because the hash need not withstand an adversary: a caller chooses its own inputs.
    pub fn of(bytes: &[u8]) -> Self {
        let mut state = Sip::new([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            state.take(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        // The last word carries the length, of which one byte is enough.
        last[7] = bytes.len() as u8;
        state.take(u64::from_le_bytes(last));
        Self(state.finish())
    }

    /// Reads a hash from the digits that `{:?}` writes.
    pub(crate) fn read(digits: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        let is_hash = digits.len() == 32 && digits.bytes().all(is_digit);
        is_hash.then(|| u128::from_str_radix(digits, 16).ok().map(Self)).flatten()
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The record of an input that is compared later: its hash, and its beginning for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The hash that is compared.
    pub hash: ContentHash,
    /// The beginning of the input, for messages.
    pub excerpt: String,
}

impl Fingerprint {
    /// Returns the fingerprint of an input that is compared byte for byte.
    pub fn of(input: &Payload) -> Self {
        Self::new(ContentHash::of(input.as_bytes()), input)
    }

    /// Returns the fingerprint of an input whose canonical form has this hash.
    pub fn new(hash: ContentHash, input: &Payload) -> Self {
        Self { hash, excerpt: input.excerpt() }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::clean(&self.excerpt))
    }
}

/// SipHash as its authors define it, with two rounds for each word and four at the end.
struct Sip([u64; 4]);

impl Sip {
    fn new([k0, k1]: [u64; 2]) -> Self {
        Self([
            k0 ^ 0x736f_6d65_7073_6575,
            // The 128-bit variant begins differently here.
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    fn round(&mut self) {
        let [a, b, c, d] = &mut self.0;
        *a = a.wrapping_add(*b);
        *b = b.rotate_left(13) ^ *a;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*d);
        *d = d.rotate_left(16) ^ *c;
        *a = a.wrapping_add(*d);
        *d = d.rotate_left(21) ^ *a;
        *c = c.wrapping_add(*b);
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }

    fn take(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.round();
        self.0[0] ^= word;
    }

    fn half(&mut self) -> u128 {
        (0..4).for_each(|_| self.round());
        u128::from(self.0.iter().fold(0, |all, word| all ^ word))
    }

    fn finish(mut self) -> u128 {
        self.0[2] ^= 0xee;
        let low = self.half();
        self.0[1] ^= 0xdd;
        low | (self.half() << 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the table that the authors of SipHash publish: the hash of the bytes 0, 1, 2 … under
    /// the key 0, 1, 2 …, least significant byte first.
    #[test]
    fn the_hash_is_siphash_and_never_changes() {
        let rows = [
            (0, "a3817f04ba25a8e66df67214c7550293"),
            (1, "da87c1d86b99af44347659119b22fc45"),
            (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
        ];
        for (length, expected) in rows {
            let bytes: Vec<u8> = (0..length).collect();
            let hash = ContentHash::of(&bytes).0.to_le_bytes();
            let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected, "{length} bytes");
        }
    }
}
