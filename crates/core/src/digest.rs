//! The leases of a session in eight bytes, sent with each heartbeat.
//!
//! The engine and the store each keep a [`Tally`] of the leases of a session, and the heartbeat
//! compares the two. Both are kept up to date lease by lease, so a heartbeat costs the same for one
//! lease as for 100,000.

use crate::Epoch;

/// A digest of pairs of an execution's key and the epoch of its lease, in any order.
///
/// It is a sum of well-mixed numbers. Equal sets have equal sums, a pair is added and taken away
/// without looking at the others, and two sets that differ have the same sum by chance once in 2⁶⁴.
/// Nobody tries to deceive: both sides are parts of one program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(pub u64);

impl Digest {
    /// Returns the digest of one pair.
    pub fn of(key: u64, epoch: Epoch) -> Self {
        // The final mix of MurmurHash3: every bit of the pair changes half of the bits of the sum.
        let mut mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ epoch.0.rotate_left(32);
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        Self(mixed ^ (mixed >> 33))
    }

    /// Adds the pairs of another digest.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }

    /// Takes away the pairs of another digest.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0.wrapping_sub(other.0))
    }
}

/// The leases of one session, as one side sees them.
///
/// A lease younger than two heartbeats takes no part: the answer that brings it may still be on its
/// way. So it takes part from the third heartbeat after it was granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    beat_count: u64,
    old: Digest,
    /// The leases granted between the last two heartbeats.
    young: Digest,
    /// The leases granted since the last heartbeat.
    newest: Digest,
}

impl Tally {
    /// Returns a tally in which all of these leases are old, the last of them granted after this
    /// many heartbeats.
    pub fn of(old: Digest, last_beat: u64) -> Self {
        Self { beat_count: last_beat + 2, old, ..Self::default() }
    }

    /// Adds a granted lease. Returns the number of heartbeats so far, which is to be kept with the
    /// lease.
    pub fn give(&mut self, key: u64, epoch: Epoch) -> u64 {
        self.newest = self.newest.plus(Digest::of(key, epoch));
        self.beat_count
    }

    /// Takes away a lease that is over, and that was granted after this many heartbeats.
    pub fn end(&mut self, key: u64, epoch: Epoch, given_beat: u64) {
        let part = match self.beat_count.saturating_sub(given_beat) {
            0 => &mut self.newest,
            1 => &mut self.young,
            _ => &mut self.old,
        };
        *part = part.minus(Digest::of(key, epoch));
    }

    /// Returns the number of heartbeats so far.
    pub fn beat_count(&self) -> u64 {
        self.beat_count
    }

    /// Returns the first heartbeat whose leases are too young for the next one.
    pub fn young_from(&self) -> u64 {
        self.beat_count.saturating_sub(1)
    }

    /// Counts the next heartbeat, and returns the digest to compare in it.
    pub fn beat(&mut self) -> Digest {
        let told = self.old;
        self.old = told.plus(self.young);
        self.young = std::mem::take(&mut self.newest);
        self.beat_count += 1;
        told
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn sum(pairs: &[(u64, u64)]) -> Digest {
        pairs.iter().fold(Digest::default(), |sum, (key, epoch)| sum.plus(Digest::of(*key, Epoch(*epoch))))
    }

    #[test]
    fn the_order_of_pairs_does_not_matter_and_each_pair_does() {
        let sums = [
            sum(&[]),
            sum(&[(1, 1)]),
            sum(&[(1, 2)]),
            sum(&[(2, 1)]),
            sum(&[(1, 1), (2, 2)]),
            sum(&[(1, 2), (2, 1)]),
            sum(&[(1, 1), (1, 1)]),
        ];
        let different: HashSet<u64> = sums.iter().map(|digest| digest.0).collect();
        assert_eq!(different.len(), sums.len(), "{sums:?}");
        assert_eq!(sum(&[(1, 1), (2, 2)]), sum(&[(2, 2), (1, 1)]));
        assert_eq!(sum(&[(1, 1), (2, 2)]).minus(sum(&[(1, 1)])), sum(&[(2, 2)]));
    }

    #[test]
    fn small_numbers_in_series_do_not_cancel_out() {
        let pairs: Vec<_> = (1..100).flat_map(|key| (1..10).map(move |epoch| (key, epoch))).collect();
        let of = |(key, epoch): (u64, u64)| Digest::of(key, Epoch(epoch));
        let singles: HashSet<u64> = pairs.iter().map(|pair| of(*pair).0).collect();
        assert_eq!(singles.len(), pairs.len());
        let doubles: HashSet<u64> =
            pairs.iter().zip(&pairs[1..]).map(|(one, other)| of(*one).plus(of(*other)).0).collect();
        assert_eq!(doubles.len(), pairs.len() - 1);
        assert!(singles.is_disjoint(&doubles));
    }

    #[test]
    fn a_lease_takes_part_from_the_third_heartbeat_on() {
        let mut tally = Tally::default();
        assert_eq!(tally.give(7, Epoch(1)), 0);
        assert_eq!(tally.young_from(), 0);
        assert_eq!(tally.beat(), Digest::default(), "it is too young");
        assert_eq!(tally.give(8, Epoch(3)), 1);
        assert_eq!(tally.young_from(), 0);
        assert_eq!(tally.beat(), Digest::default(), "it is younger than two heartbeats");
        assert_eq!(tally.young_from(), 1);
        assert_eq!(tally.beat(), sum(&[(7, 1)]));
        assert_eq!(tally.beat(), sum(&[(7, 1), (8, 3)]));
        tally.end(7, Epoch(1), 0);
        assert_eq!(tally.beat(), sum(&[(8, 3)]));
    }

    #[test]
    fn a_lease_that_ends_leaves_no_trace() {
        for age in 0..4 {
            let (mut tally, mut empty) = (Tally::default(), Tally::default());
            let beat = tally.give(7, Epoch(1));
            for _ in 0..age {
                tally.beat();
                empty.beat();
            }
            tally.end(7, Epoch(1), beat);
            assert_eq!(tally, empty, "after {age} heartbeats");
        }
    }

    #[test]
    fn a_tally_of_known_leases_takes_all_of_them_for_old() {
        let mut tally = Tally::of(sum(&[(7, 1), (8, 3)]), 5);
        assert_eq!(tally.young_from(), 6);
        tally.end(8, Epoch(3), 5);
        assert_eq!(tally.beat(), sum(&[(7, 1)]));
    }
}
