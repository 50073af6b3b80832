//! A set of hashes.

/// A set of 64-bit hashes that only grows. A replay asks it for every operation, and it may have a
/// million elements, so it makes one access to memory where a general hash table makes two or
/// three: each element lies at the place that its own bits name, or in one of the next places. The
/// first element takes no memory of its own, because most runs use one name.
///
/// Somebody who chooses names can put many elements next to each other, which is as slow as it is
/// in any table that does not keep its hash secret.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hashes {
    /// The places, a power of two of them, or none. A place with 0 is free.
    places: Vec<u64>,
    /// The number of elements, without 0.
    count: usize,
    /// The only element, while there are no places.
    only: u64,
    has_zero: bool,
}

/// How many of eight places may be taken. Beyond that, looks for an element become long.
const EIGHTHS_MAX: usize = 6;
const PLACE_COUNT_MIN: usize = 8;

impl Hashes {
    /// Adds a hash. Returns whether it is new.
    pub(crate) fn insert(&mut self, hash: u64) -> bool {
        if hash == 0 {
            return !std::mem::replace(&mut self.has_zero, true);
        }
        if self.contains_nonzero(hash) {
            return false;
        }
        if self.count == 0 && self.places.is_empty() {
            (self.only, self.count) = (hash, 1);
            return true;
        }
        if self.count == self.capacity() {
            self.reserve(self.count);
        }
        let place = self.place(hash);
        self.places[place] = hash;
        self.count += 1;
        true
    }

    pub(crate) fn contains(&self, hash: u64) -> bool {
        if hash == 0 { self.has_zero } else { self.contains_nonzero(hash) }
    }

    fn contains_nonzero(&self, hash: u64) -> bool {
        match self.places.is_empty() {
            true => self.only == hash,
            false => self.places[self.place(hash)] == hash,
        }
    }

    /// Returns the number of elements, give or take one.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns how many elements have room without another allocation.
    pub(crate) fn capacity(&self) -> usize {
        if self.places.is_empty() { 1 } else { self.places.len() / 8 * EIGHTHS_MAX }
    }

    /// Makes room for this many more elements.
    pub(crate) fn reserve(&mut self, more: usize) {
        let wanted = self.count.saturating_add(more).saturating_mul(8) / EIGHTHS_MAX + 1;
        let place_count = wanted.next_power_of_two().max(PLACE_COUNT_MIN);
        if place_count <= self.places.len() {
            return;
        }
        let former = std::mem::replace(&mut self.places, vec![0; place_count]);
        for hash in former.into_iter().chain([std::mem::take(&mut self.only)]).filter(|hash| *hash != 0) {
            let place = self.place(hash);
            self.places[place] = hash;
        }
    }

    /// Returns the place of a hash, or the free one for it. There is always a free one.
    fn place(&self, hash: u64) -> usize {
        let mask = self.places.len() - 1;
        let mut place = hash as usize & mask;
        while self.places[place] != 0 && self.places[place] != hash {
            place = (place + 1) & mask;
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn it_is_a_set() {
        // Spread out, dense, and all in one place.
        for spread in [0x9e37_79b9_7f4a_7c15_u64, 1, 1 << 40] {
            let (mut hashes, mut set) = (Hashes::default(), HashSet::new());
            for nth in 0..3_000_u64 {
                // Each number comes twice, and 0 among them.
                let hash = (nth / 2 * 7 % 1_000).wrapping_mul(spread);
                assert_eq!(hashes.contains(hash), set.contains(&hash), "{hash}");
                assert_eq!(hashes.insert(hash), set.insert(hash), "{hash}");
                assert!(hashes.contains(hash) && hashes.len() <= hashes.capacity());
                if nth == 500 {
                    hashes.reserve(2_000);
                    assert!(hashes.capacity() >= hashes.len() + 2_000);
                }
            }
            assert_eq!(hashes.len() + 1, set.len(), "0 is not counted");
            assert!(set.iter().all(|hash| hashes.contains(*hash)));
        }
    }

    #[test]
    fn one_element_takes_no_memory() {
        let mut hashes = Hashes::default();
        assert!(!hashes.contains(7) && hashes.insert(7) && !hashes.insert(7) && hashes.contains(7));
        assert_eq!(hashes.places.capacity(), 0);
        assert!(hashes.insert(8) && hashes.contains(7) && !hashes.contains(9));
    }
}
