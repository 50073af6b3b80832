//! A hasher for short texts that others may choose.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;

/// Builds hashers of short texts, such as ids. The hasher of the standard library takes several
/// times as long. Each process has secret numbers of its own, so that nobody can choose ids that
/// all have the same hash.
#[derive(Clone, Debug)]
pub(crate) struct TextHasher {
    seed: u64,
    factor: u64,
}

impl Default for TextHasher {
    /// Returns the builder of this process.
    fn default() -> Self {
        static OF_PROCESS: LazyLock<TextHasher> = LazyLock::new(TextHasher::new);
        OF_PROCESS.clone()
    }
}

impl TextHasher {
    fn new() -> Self {
        // The keys of the standard library's own tables.
        let secret = RandomState::default();
        // An odd factor loses nothing.
        Self { seed: secret.hash_one(1), factor: secret.hash_one(2) | 1 }
    }
}

impl BuildHasher for TextHasher {
    type Hasher = TextState;

    fn build_hasher(&self) -> TextState {
        TextState { state: self.seed, factor: self.factor }
    }
}

/// A hash under way.
pub(crate) struct TextState {
    state: u64,
    factor: u64,
}

impl TextState {
    /// Takes eight bytes. Both halves of the product are kept, so that every bit of the bytes
    /// reaches every bit of the state.
    fn take(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        self.state = (product as u64) ^ ((product >> 64) as u64).rotate_left(32);
    }
}

impl Hasher for TextState {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.take(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.take(u64::from_le_bytes(last));
        }
        // Zeros at the end are not the same as nothing.
        self.state = self.state.wrapping_add(bytes.len() as u64);
    }

    fn write_u8(&mut self, byte: u8) {
        self.take(u64::from(byte));
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_spread_and_no_two_processes_agree() {
        let texts = || (0..4_096).map(|number| format!("order-{number:08}"));
        let hasher = TextHasher::default();
        let mut low: Vec<u64> = texts().map(|text| hasher.hash_one(text) & 0xfff).collect();
        let mut high: Vec<u64> = texts().map(|text| hasher.hash_one(text) >> 57).collect();
        for hashes in [&mut low, &mut high] {
            hashes.sort_unstable();
            hashes.dedup();
        }
        // Of 4,096 balls in as many bins, about 63 % of the bins have one.
        assert!(low.len() > 2_300, "{}", low.len());
        assert_eq!(high.len(), 128);
        let others: Vec<u64> = texts().map(|text| TextHasher::new().hash_one(text)).collect();
        assert!(texts().map(|text| hasher.hash_one(text)).ne(others));
    }

    #[test]
    fn length_and_content_both_count() {
        let hasher = TextHasher::default();
        let texts = ["", "\0", "\0\0", "a", "a\0", "12345678", "12345678\0", "123456789"];
        let mut hashes = texts.map(|text| hasher.hash_one(text)).to_vec();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), texts.len());
        assert_eq!(hasher.hash_one("a"), hasher.hash_one("a"));
    }
}
