//! The ids of the executions that a work starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the ids come from. Clones share their random numbers, so none of them occurs twice.
#[derive(Clone, Debug)]
pub(super) enum Ids {
    /// abide makes them, in order.
    Generated,
    /// 128 random bits, in hexadecimal digits. The number counts those that were made.
    Random(Arc<AtomicU64>),
}

impl Ids {
    pub(super) fn random() -> Self {
        Self::Random(Arc::default())
    }

    /// Returns the next id, or `None` if abide makes it.
    pub(super) fn next(&self) -> Option<String> {
        match self {
            Self::Generated => None,
            Self::Random(count) => {
                let nth = count.fetch_add(1, Ordering::Relaxed);
                Some(format!("{:016x}{:016x}", scattered(2 * nth), scattered(2 * nth + 1)))
            }
        }
    }
}

/// Returns a number that looks random: that of SplitMix64 with the seed zero. No two are equal, and
/// all runs have the same ids.
fn scattered(nth: u64) -> u64 {
    let mut bits = nth.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_are_those_of_splitmix64() {
        let ids = Ids::random();
        // The first outputs of the reference implementation for the seed zero.
        assert_eq!(ids.next().as_deref(), Some("e220a8397b1dcdaf6e789e6aa1b965f4"));
        assert_eq!(ids.clone().next().as_deref(), Some("06c45d188009454ff88bb8a8724c81ec"));
        assert_ne!(ids.next(), ids.next());
        assert_eq!(Ids::Generated.next(), None);
    }
}
