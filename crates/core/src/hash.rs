//! The one hash that is written to disk.

/// Returns a 64-bit hash of `bytes` that never changes: operation keys and input hashes are
/// recorded with it.
///
/// FNV-1a with a final mix. It only has to spread names evenly. It need not withstand an adversary,
/// because an operation that is found by its hash is compared by name before it gets an outcome.
pub(crate) fn of(bytes: &[u8]) -> u64 {
    Hash::new().with(bytes).finish()
}

/// The same hash, fed in parts.
pub(crate) struct Hash(u64);

impl Hash {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn with(mut self, bytes: &[u8]) -> Self {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self
    }

    pub(crate) fn finish(self) -> u64 {
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^ (mixed >> 33)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_recorded_hash_never_changes() {
        assert_eq!(super::of(b"charge"), 0x9746_759f_1416_938d);
    }
}
