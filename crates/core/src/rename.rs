//! Operations that the code calls by a new name, and the journal by an old one.

use std::collections::{HashMap, HashSet};

use crate::KeyHasher;

/// The open operations that have old names.
///
/// An operation takes what is recorded under an old name only if nothing is recorded under a newer one: code that was renamed without
/// saying so has run it again, and went on with that result. So the rest of the journal is looked through before the first old name is
/// taken ([`Cursor::look_ahead`](crate::Cursor::look_ahead)), which costs code without old names nothing.
#[derive(Debug, Default)]
pub(crate) struct Renames {
    /// The open operation that has this old name.
    own: HashMap<u64, u64, KeyHasher>,
    /// The old names of an open operation.
    olds: HashMap<u64, Vec<u64>, KeyHasher>,
    /// Open operations of which the journal told something under an old name before they opened: the operation and that name.
    pub(crate) found: Vec<(u64, u64)>,
    /// Everything that the rest of the journal tells something of, once that was looked through.
    ahead: HashSet<u64, KeyHasher>,
}

impl Renames {
    /// An operation opens that has these old names. `found` is the one that the journal told something of last.
    pub(crate) fn open(&mut self, own: u64, olds: Vec<u64>, found: Option<u64>) {
        self.own.extend(olds.iter().map(|old| (*old, own)));
        self.olds.insert(own, olds);
        self.found.extend(found.map(|old| (own, old)));
    }

    /// The open operation that has this old name.
    pub(crate) fn own(&self, old: u64) -> Option<u64> {
        self.own.get(&old).copied()
    }

    /// The operation is no longer open, or is known by one of its names from now on.
    pub(crate) fn close(&mut self, own: u64) {
        let Some(olds) = self.olds.remove(&own) else { return };
        for old in olds {
            self.own.remove(&old);
        }
        self.found.retain(|(of, _)| *of != own);
    }

    /// The rest of the journal tells something of this operation.
    pub(crate) fn look_ahead(&mut self, key: u64) {
        self.ahead.insert(key);
    }

    /// Whether the rest of the journal tells nothing of the operation under another name.
    pub(crate) fn is_newest(&self, own: u64, old: u64) -> bool {
        let others = self.olds.get(&own).into_iter().flatten().filter(|other| **other != old);
        !others.chain([&own]).any(|other| self.ahead.contains(other))
    }
}
