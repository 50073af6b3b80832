//! The legible parts of an execution's row, column by column.
//!
//! SQLite keeps the type of a value beside the value: a few flipped bits turn a number into a text
//! or a NULL. That is damage to one row. A scan of many rows, or a repair of one, therefore reads
//! each column separately, which never fails, and can name a damaged row and its fault.

use abide_core::{ExecutionId, Timestamp, Version};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::error::{complaint, is_newer};
use crate::place::{Columns, Place, ReadyQueue};
use crate::rows::{number, sound_count};
use crate::sheet::{Anchor, Base, Sheet};
use crate::sql;

/// A row of [`sql::EXECUTION_ROW`]. A column is `None` if it has the wrong type, or a value that is
/// never written.
#[derive(Clone, Debug)]
pub(crate) struct LegibleRow {
    /// The number of the row itself, which is always readable.
    pub(crate) key: i64,
    pub(crate) namespace: Option<i64>,
    /// A text, which may not be a valid id.
    pub(crate) id: Option<String>,
    pub(crate) queue: Option<ReadyQueue>,
    pub(crate) parent: Option<Option<i64>>,
    pub(crate) head: Option<i64>,
    pub(crate) version: Option<Version>,
    pub(crate) sheet: Option<Vec<u8>>,
    pub(crate) epoch: Option<i64>,
    pub(crate) place: Option<Place>,
    pub(crate) columns: Option<Columns>,
    pub(crate) status: Option<Option<i64>>,
    pub(crate) care_at: Option<Option<Timestamp>>,
    pub(crate) parent_run: Option<Option<i64>>,
    pub(crate) takeover_count: Option<i64>,
    /// Whether `epoch`, `place`, `rank`, `place_at`, `care_at` and `takeover_count` are as they
    /// were written. Nobody can tell which of them is not.
    pub(crate) is_sealed: bool,
    /// The columns that the sheet is sealed with, if they and the sheet have the right types.
    pub(crate) anchor: Result<Anchor, Damage>,
}

impl LegibleRow {
    pub(crate) fn find(connection: &Connection, key: i64) -> rusqlite::Result<Option<Self>> {
        connection.prepare_cached(sql::EXECUTION_ROW)?.query_row([key], Self::read).optional()
    }

    /// Reads a row. An error means that SQLite could not read it; its content may be intact.
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let count =
            |index| number(row, index).map(|found| found.filter(|found| sound_count(*found).is_some()));
        Ok(Self {
            key: row.get(0)?,
            namespace: number(row, 1)?,
            id: row.get(2).ok(),
            queue: number(row, 3)?.map(ReadyQueue::of),
            parent: row.get(4).ok(),
            head: number(row, 5)?,
            version: number(row, 6)?.and_then(sound_count).map(Version),
            sheet: row.get(7).ok(),
            epoch: count(8)?,
            place: Place::read(row, 9).ok(),
            columns: Columns::read(row, 9).ok(),
            status: row.get(12).ok(),
            care_at: row.get::<_, Option<i64>>(13).ok().map(|at| at.map(Timestamp::from_micros)),
            parent_run: row.get(14).ok(),
            takeover_count: count(15)?.filter(|count| u32::try_from(*count).is_ok()),
            is_sealed: row.get(16).unwrap_or(false),
            anchor: Base::read(row).map(|base| base.anchor).map_err(|error| Damage::of(&error)),
        })
    }

    /// Returns the row without the columns that may not be as they were written.
    pub(crate) fn trusted(self) -> Self {
        if self.is_sealed {
            return self;
        }
        Self { epoch: None, place: None, columns: None, care_at: None, takeover_count: None, ..self }
    }

    /// Returns the sheet, if it and everything that it is sealed with are intact.
    pub(crate) fn sound(&self) -> Result<Sheet<'_>, Damage> {
        let anchor = self.anchor.as_ref().map_err(Clone::clone)?;
        let (id, bytes) = (self.id.as_deref().unwrap_or_default(), self.sheet.as_deref().unwrap_or_default());
        let sheet = Sheet::of(id, bytes, anchor).map_err(|error| Damage::of(&error))?;
        match self.own_id() {
            Some(_) => Ok(sheet),
            None => Err(Damage { what: format!("its id {id:?} is none"), is_newer: false }),
        }
    }

    /// Returns its id; nothing if it is not text, or not a valid id.
    fn own_id(&self) -> Option<ExecutionId> {
        self.id.as_deref().and_then(|id| ExecutionId::new(id).ok())
    }

    /// Returns the name in lists and requests: its id, or a stand-in if no lookup finds its id.
    pub(crate) fn name(&self) -> ExecutionId {
        let found = self.namespace.and_then(|_| self.own_id());
        found.unwrap_or_else(|| stand_in(self.key))
    }

    /// Returns its id, or its number if the id is unreadable.
    pub(crate) fn title(&self) -> String {
        match &self.id {
            Some(id) => format!("execution {id:?}"),
            None => format!("execution number {}", self.key),
        }
    }
}

/// The fault of a row that SQLite could read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) what: String,
    /// Whether a newer program can read it.
    pub(crate) is_newer: bool,
}

impl Damage {
    pub(crate) fn of(error: &rusqlite::Error) -> Self {
        Self { what: complaint(error), is_newer: is_newer(error) }
    }
}

const STAND_IN: &str = "damaged/";

/// Returns the name of an execution without a readable one.
pub(crate) fn stand_in(key: i64) -> ExecutionId {
    ExecutionId::new(format!("{}{STAND_IN}{key}", ExecutionId::OWN_PREFIX)).expect("a short text is an id")
}

/// Returns the execution that such a name refers to.
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
