//! Operations that have a new name in the code and an old one in the journal.

use std::collections::HashMap;

use crate::{KeyHasher, OpIndex};

/// An open operation that the journal records under an old name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The operation, as the code calls it.
    pub own: OpIndex,
    /// The operation under the old name.
    pub old: OpIndex,
    /// The entry under the old name.
    pub(crate) record: Record,
}

/// An entry of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) seq: u64,
    /// Whether it is the outcome.
    pub(crate) is_outcome: bool,
}

/// The open operations that have old names.
///
/// An operation takes the outcome that is recorded under an old name only if no outcome is recorded
/// later under another of its names: code that was renamed without declaring it has run the
/// operation again, and went on with that result. Without an outcome, the newest attempt or time
/// counts. So the replay looks through the rest of the journal before it takes the first old name
/// ([`Cursor::look_ahead`](crate::Cursor::look_ahead)). Code without old names pays nothing for
/// this, and its runs have no room for the tables.
#[derive(Debug, Default)]
pub(crate) struct Renames(Option<Box<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    /// The open operation that has this old name.
    own: HashMap<u64, u64, KeyHasher>,
    /// The old names of an open operation.
    olds: HashMap<u64, Vec<u64>, KeyHasher>,
    /// Open operations that the journal recorded under an old name before they opened: the
    /// operation and that name.
    found: Vec<Renamed>,
    /// The last entry of every operation in the rest of the journal, once the replay has looked
    /// through it.
    ahead: HashMap<u64, u64, KeyHasher>,
    /// The last outcome of those that have one.
    outcomes_ahead: HashMap<u64, u64, KeyHasher>,
}

impl Renames {
    /// Opens an operation that has these old names. `found` is the name under which the journal
    /// recorded it last, and that record.
    pub(crate) fn open(&mut self, own: u64, olds: Vec<u64>, found: Option<(u64, Record)>) {
        let tables = self.tables();
        tables.own.extend(olds.iter().map(|old| (*old, own)));
        tables.olds.insert(own, olds);
        tables.found.extend(found.map(|(old, record)| Renamed {
            own: OpIndex(own),
            old: OpIndex(old),
            record,
        }));
    }

    /// Whether no open operation has an old name.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|tables| tables.own.is_empty())
    }

    /// Returns the first of the operations that were recorded under an old name before they opened.
    pub(crate) fn first_found(&self) -> Option<Renamed> {
        self.0.as_ref()?.found.first().copied()
    }

    /// Forgets that this operation was recorded under that name.
    pub(crate) fn forget(&mut self, renamed: Renamed) {
        if let Some(tables) = &mut self.0 {
            tables.found.retain(|found| *found != renamed);
        }
    }

    fn tables(&mut self) -> &mut Tables {
        self.0.get_or_insert_default()
    }

    /// Returns the open operation that has this old name.
    pub(crate) fn own(&self, old: u64) -> Option<u64> {
        self.0.as_ref()?.own.get(&old).copied()
    }

    /// Closes an operation that is no longer open, or that goes by one of its names from now on.
    /// Returns its old names.
    pub(crate) fn close(&mut self, own: u64) -> Vec<u64> {
        let Some(tables) = &mut self.0 else { return Vec::new() };
        let Some(olds) = tables.olds.remove(&own) else { return Vec::new() };
        for old in &olds {
            tables.own.remove(old);
        }
        tables.found.retain(|found| found.own.0 != own);
        olds
    }

    /// Notes that the rest of the journal has a record of this operation.
    pub(crate) fn look_ahead(&mut self, key: u64, record: Record) {
        let tables = self.tables();
        tables.ahead.insert(key, record.seq);
        if record.is_outcome {
            tables.outcomes_ahead.insert(key, record.seq);
        }
    }

    /// Notes that the rest of the journal has a decision to run this operation again: its outcome
    /// was lost, and counts no longer.
    pub(crate) fn rerun_ahead(&mut self, key: u64) {
        if let Some(tables) = &mut self.0 {
            tables.outcomes_ahead.remove(&key);
        }
    }

    /// Whether no later record under another name takes precedence.
    pub(crate) fn is_newest(&self, Renamed { own, old, record }: Renamed) -> bool {
        let Some(tables) = &self.0 else { return true };
        let ahead = if record.is_outcome { &tables.outcomes_ahead } else { &tables.ahead };
        let last = ahead.get(&old.0).copied().unwrap_or_default().max(record.seq);
        let others = tables.olds.get(&own.0).into_iter().flatten().filter(|other| **other != old.0);
        !others.chain([&own.0]).any(|other| ahead.get(other).is_some_and(|seq| *seq > last))
    }
}
