//! A map that seldom has more than one entry.

use std::collections::HashMap;
use std::hash::Hash;

use crate::KeyHasher;

/// A map that seldom has more than one entry: the first one takes no memory of its own. Most
/// workflows wait for one operation at a time, and the tables of a workflow that does so would cost
/// more than its state. From the second entry on it is a hash table.
#[derive(Clone, Debug)]
pub struct Few<K, V>(Entries<K, V>);

#[derive(Clone, Debug)]
enum Entries<K, V> {
    One(Option<(K, V)>),
    Many(HashMap<K, V, KeyHasher>),
}

use Entries::{Many, One};

impl<K, V> Default for Few<K, V> {
    fn default() -> Self {
        Self(One(None))
    }
}

impl<K: Copy + Eq + Hash, V> Few<K, V> {
    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        match &self.0 {
            One(one) => one.as_ref().filter(|(known, _)| known == key).map(|(_, value)| value),
            Many(many) => many.get(key),
        }
    }

    /// Returns the value of a key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match &mut self.0 {
            One(one) => one.as_mut().filter(|(known, _)| known == key).map(|(_, value)| value),
            Many(many) => many.get_mut(key),
        }
    }

    /// Whether the key has a value.
    pub fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of a key, and returns its former value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match &mut self.0 {
            One(one @ None) => {
                *one = Some((key, value));
                None
            }
            One(Some((known, former))) if *known == key => Some(std::mem::replace(former, value)),
            One(_) => self.many().insert(key, value),
            Many(many) => many.insert(key, value),
        }
    }

    /// Removes a key, and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        match &mut self.0 {
            One(one) => one.take_if(|(known, _)| known == key).map(|(_, value)| value),
            Many(many) => many.remove(key),
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        match &self.0 {
            One(one) => usize::from(one.is_some()),
            Many(many) => many.len(),
        }
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many entries have room without another allocation.
    pub fn capacity(&self) -> usize {
        match &self.0 {
            One(_) => 1,
            Many(many) => many.capacity(),
        }
    }

    /// Makes room for this many more entries.
    pub fn reserve(&mut self, more: usize) {
        self.many().reserve(more);
    }

    /// Returns the entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let (one, many) = match &self.0 {
            One(one) => (one.as_ref(), None),
            Many(many) => (None, Some(many)),
        };
        one.map(|(key, value)| (key, value)).into_iter().chain(many.into_iter().flatten())
    }

    /// Returns the entries with values to be changed, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let (one, many) = match &mut self.0 {
            One(one) => (one.as_mut(), None),
            Many(many) => (None, Some(many)),
        };
        one.map(|(key, value)| (&*key, value)).into_iter().chain(many.into_iter().flatten())
    }

    /// Returns the values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Returns the values to be changed, in no particular order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// Returns the values themselves, in no particular order.
    pub fn into_values(self) -> impl Iterator<Item = V> {
        let (one, many) = match self.0 {
            One(one) => (one, None),
            Many(many) => (None, Some(many)),
        };
        let many = many.into_iter().flat_map(HashMap::into_values);
        one.map(|(_, value)| value).into_iter().chain(many)
    }

    /// Becomes a hash table.
    fn many(&mut self) -> &mut HashMap<K, V, KeyHasher> {
        if let One(one) = &mut self.0 {
            self.0 = Many(one.take().into_iter().collect());
        }
        match &mut self.0 {
            Many(many) => many,
            One(_) => unreachable!("it has just become many"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_map_with_any_number_of_entries() {
        for count in 0..5_u64 {
            let (mut few, mut map) = (Few::default(), HashMap::new());
            for key in 0..count {
                assert_eq!(few.insert(key, key), map.insert(key, key));
                assert_eq!(few.insert(key, key + 10), map.insert(key, key + 10));
                few.values_mut().for_each(|value| *value += 1);
                map.values_mut().for_each(|value| *value += 1);
            }
            let mut found: Vec<(u64, u64)> = few.iter().map(|(key, value)| (*key, *value)).collect();
            found.sort_unstable();
            let mut expected: Vec<(u64, u64)> = map.iter().map(|(key, value)| (*key, *value)).collect();
            expected.sort_unstable();
            assert_eq!(found, expected);
            assert_eq!((few.len(), few.is_empty()), (map.len(), map.is_empty()));
            assert_eq!(few.clone().into_values().sum::<u64>(), map.values().sum::<u64>());
            for key in 0..=count {
                assert_eq!((few.get(&key), few.contains(&key)), (map.get(&key), map.contains_key(&key)));
                assert_eq!(few.get_mut(&key), map.get_mut(&key));
                assert_eq!(few.remove(&key), map.remove(&key));
            }
            assert!(few.is_empty());
        }
    }
}
