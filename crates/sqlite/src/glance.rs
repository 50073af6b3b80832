//! What can be read of an execution's row, column by column.
//!
//! SQLite keeps the type of a value beside the value: a few bits make a text, or nothing at all, of a number. That is damage of one row. Whoever goes
//! through many rows takes a glance at each, which fails for none of them, and says of a damaged one which it is and what is wrong with it.

use abide_core::ExecutionId;
use rusqlite::{Row, types::ValueRef};

use crate::error::{complaint, is_newer};
use crate::place::Queue;
use crate::rows::text;
use crate::sheet::{Base, Sheet};

/// A row, as far as it can be read: `key, namespace, id, queue, parent, head, version, state`, in this order.
#[derive(Debug)]
pub(crate) struct Glance<'r> {
    /// The number of the row itself, which is always one.
    pub(crate) key: i64,
    pub(crate) namespace: Option<i64>,
    /// Nothing when it is no text, or no id.
    pub(crate) id: Option<ExecutionId>,
    pub(crate) queue: Option<Queue>,
    base: rusqlite::Result<Base<'r>>,
}

impl<'r> Glance<'r> {
    /// An error means that SQLite could not read the row, and says nothing about what is in it.
    pub(crate) fn read(row: &'r Row<'_>) -> rusqlite::Result<Self> {
        let id = text(row, 2).ok().and_then(|id| ExecutionId::new(id).ok());
        Ok(Self {
            key: row.get(0)?,
            namespace: number(row, 1)?,
            id,
            queue: number(row, 3)?.map(Queue::of),
            base: Base::read(row),
        })
    }

    /// The whole, if it is what was written.
    pub(crate) fn sound(&self) -> Result<(&Base<'r>, Sheet<'r>), Damage> {
        let base = self.base.as_ref().map_err(Damage::of)?;
        let sheet = base.sheet().map_err(|error| Damage::of(&error))?;
        match &self.id {
            Some(_) => Ok((base, sheet)),
            None => Err(Damage { what: format!("its id {:?} is none", base.id), is_newer: false }),
        }
    }

    /// The name by which it is listed and asked after: its id, or another one where nobody would find it by its id.
    pub(crate) fn name(&self) -> ExecutionId {
        let found = self.namespace.and_then(|_| self.id.clone());
        found.unwrap_or_else(|| stand_in(self.key))
    }
}

/// What is wrong with a row that SQLite could read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) what: String,
    /// It is only this program that cannot read it.
    pub(crate) is_newer: bool,
}

impl Damage {
    pub(crate) fn of(error: &rusqlite::Error) -> Self {
        Self { what: complaint(error), is_newer: is_newer(error) }
    }
}

/// A number in a column; nothing when it is something else.
pub(crate) fn number(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<i64>> {
    Ok(match row.get_ref(index)? {
        ValueRef::Integer(number) => Some(number),
        ValueRef::Null | ValueRef::Real(_) | ValueRef::Text(_) | ValueRef::Blob(_) => None,
    })
}

const STAND_IN: &str = "damaged/";

/// The name of an execution that has none that could be read.
pub(crate) fn stand_in(key: i64) -> ExecutionId {
    ExecutionId::new(format!("{}{STAND_IN}{key}", ExecutionId::OWN_PREFIX)).expect("a short text is an id")
}

/// The execution that a name of that kind means.
pub(crate) fn meant_by(id: &ExecutionId) -> Option<i64> {
    id.as_str().strip_prefix(ExecutionId::OWN_PREFIX)?.strip_prefix(STAND_IN)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stand_in_names_its_key() {
        assert_eq!(stand_in(17).as_str(), "abide:damaged/17");
        assert_eq!(meant_by(&stand_in(17)), Some(17));
        assert_eq!(meant_by(&ExecutionId::new("damaged/17").unwrap()), None);
    }
}
