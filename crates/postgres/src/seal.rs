//! Checksums of encoded values. They reveal changes by a disk or a person when a value is read,
//! also on servers without checksums of their own.

/// The size of a checksum in bytes.
const SUM_BYTES: usize = 4;

/// The multiplier. It is odd, so a multiplication loses nothing.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns `bytes` behind their checksum. `owner` is the key of the execution that they belong to:
/// bytes in the wrong row are damage too.
pub(crate) fn sealed(owner: i64, bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(SUM_BYTES + bytes.len());
    sealed.extend_from_slice(&sum(owner, bytes).to_le_bytes());
    sealed.extend_from_slice(bytes);
    sealed
}

/// Returns the bytes behind a checksum that matches.
pub(crate) fn unsealed(owner: i64, sealed: &[u8]) -> Option<&[u8]> {
    let (found, bytes) = sealed.split_first_chunk::<SUM_BYTES>()?;
    (sum(owner, bytes).to_le_bytes() == *found).then_some(bytes)
}

/// A checksum that always detects a difference in one place, and misses any other difference once
/// in 2^32 times. It is no defence against deliberate changes.
fn sum(owner: i64, bytes: &[u8]) -> u32 {
    let add = |sum: u64, number: u64| (sum ^ number).wrapping_mul(FACTOR).rotate_left(29);
    let words = bytes.chunks_exact(8);
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a chunk has eight bytes"));
    let sum = words.fold(add(0x243f_6a88_85a3_08d3, owner as u64), |sum, bytes| add(sum, word(bytes)));
    let sum = add(add(sum, u64::from_le_bytes(last)), bytes.len() as u64);
    let mixed = (sum ^ (sum >> 32)).wrapping_mul(FACTOR);
    (mixed ^ (mixed >> 29)) as u32 ^ (mixed >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_breaks_the_seal() {
        for length in [0, 1, 7, 8, 9, 100] {
            let bytes: Vec<u8> = (0..length).map(|n| (n * 37) as u8).collect();
            let whole = sealed(7, &bytes);
            assert_eq!(unsealed(7, &whole), Some(bytes.as_slice()));
            assert_eq!(unsealed(8, &whole), None, "it belongs to another execution");
            for bit in 0..whole.len() * 8 {
                let mut changed = whole.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(unsealed(7, &changed), None, "bit {bit} of {length} bytes");
            }
        }
    }
}
