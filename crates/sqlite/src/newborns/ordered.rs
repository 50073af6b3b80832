//! The newborns of one session, in the order of their keys.
//!
//! Keys only grow, so a newborn comes last, and most are gone again before the next heartbeat,
//! about in their order. A queue of places takes a third of the instructions of a tree for that.

use std::collections::VecDeque;

/// The fewest places of which those that are empty are taken out.
const PLACE_COUNT_MIN: usize = 1_024;

/// The newborns of one session, each with the number of heartbeats before its birth.
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    /// By their keys. The first one is not empty.
    places: VecDeque<Place>,
    empty_count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    key: i64,
    /// [`EMPTY`] if the newborn is gone.
    beat: u64,
}

/// More heartbeats than a session lives for.
const EMPTY: u64 = u64::MAX;

impl Ordered {
    pub(crate) fn insert(&mut self, key: i64, beat: u64) {
        let place = Place { key, beat };
        if self.places.back().is_none_or(|last| last.key < key) {
            return self.places.push_back(place);
        }
        match self.find(key) {
            Ok(index) => {
                self.empty_count -= usize::from(self.places[index].beat == EMPTY);
                self.places[index] = place;
            }
            Err(index) => self.places.insert(index, place),
        }
    }

    /// Returns the number of heartbeats before the birth of the one that is removed.
    pub(crate) fn remove(&mut self, key: i64) -> Option<u64> {
        let index = self.find(key).ok()?;
        let beat = std::mem::replace(&mut self.places[index].beat, EMPTY);
        if beat == EMPTY {
            return None;
        }
        self.empty_count += 1;
        self.close_up();
        Some(beat)
    }

    pub(crate) fn first(&self) -> Option<i64> {
        self.places.front().map(|first| first.key)
    }

    /// Returns keys and numbers of heartbeats, the lowest key first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, u64)> {
        self.places.iter().filter(|place| place.beat != EMPTY).map(|place| (place.key, place.beat))
    }

    /// Returns where a key is, or would be.
    fn find(&self, key: i64) -> Result<usize, usize> {
        // Mostly all keys since the first one are here.
        let distance =
            self.places.front().and_then(|first| usize::try_from(key.checked_sub(first.key)?).ok());
        match distance.and_then(|index| self.places.get(index).map(|place| (index, place.key))) {
            Some((index, found)) if found == key => Ok(index),
            _ => self.places.binary_search_by_key(&key, |place| place.key),
        }
    }

    fn close_up(&mut self) {
        while self.places.front().is_some_and(|first| first.beat == EMPTY) {
            self.places.pop_front();
            self.empty_count -= 1;
        }
        if self.places.len() >= PLACE_COUNT_MIN && self.empty_count > self.places.len() / 2 {
            self.places.retain(|place| place.beat != EMPTY);
            self.empty_count = 0;
        }
        if self.places.len() < self.places.capacity() / 64 && self.places.capacity() > 64 * PLACE_COUNT_MIN {
            self.places.shrink_to_fit();
        }
    }
}

impl FromIterator<(i64, u64)> for Ordered {
    fn from_iter<I: IntoIterator<Item = (i64, u64)>>(newborns: I) -> Self {
        let mut ordered = Self::default();
        newborns.into_iter().for_each(|(key, beat)| ordered.insert(key, beat));
        ordered
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Compares it with a tree, over random operations of which most are those of a busy session.
    #[test]
    fn it_keeps_what_a_tree_keeps() {
        let (mut ordered, mut tree, mut chance) = (Ordered::default(), BTreeMap::new(), 7_u64);
        let mut next_key = 0;
        for nth in 0..200_000_u64 {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let dice = (chance >> 33) as i64;
            next_key += 1 + i64::from(dice % 97 == 0) * 5;
            // Growing for a while, then shrinking.
            match (dice % 10, nth % 40_000 < 20_000) {
                (0..6, true) | (0..3, false) => {
                    ordered.insert(next_key, nth);
                    tree.insert(next_key, nth);
                }
                (9, _) => {
                    let key = next_key - dice % 3_000;
                    ordered.insert(key, nth);
                    tree.insert(key, nth);
                }
                _ => {
                    let key = tree.keys().nth((dice % 50) as usize).copied().unwrap_or(next_key);
                    assert_eq!(ordered.remove(key), tree.remove(&key));
                    assert_eq!(ordered.remove(key), None);
                }
            }
            assert_eq!(ordered.first(), tree.keys().next().copied());
            if nth % 1_000 == 0 {
                assert!(ordered.iter().eq(tree.iter().map(|(key, beat)| (*key, *beat))));
                assert!(ordered.places.len() <= (2 * tree.len() + 1).max(PLACE_COUNT_MIN));
            }
        }
    }

    #[test]
    fn an_empty_one_keeps_no_large_memory() {
        let mut ordered: Ordered = (0..200_000).map(|key| (key, 1)).collect();
        (0..200_000).for_each(|key| _ = ordered.remove(key));
        assert!(ordered.places.capacity() <= 64 * PLACE_COUNT_MIN, "{}", ordered.places.capacity());
    }
}
