//! A user's table beside the executions.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// A small table that transaction steps read and write in a [`MemoryStore`](super::MemoryStore). It
/// stands for the user's own tables in a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryTable(RefCell<BTreeMap<String, String>>);

impl MemoryTable {
    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<String> {
        self.0.borrow().get(key).cloned()
    }

    /// Sets the value of `key` and returns the previous one.
    pub fn put(&self, key: &str, value: &str) -> Option<String> {
        self.0.borrow_mut().insert(key.to_owned(), value.to_owned())
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Whether no key has a value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
