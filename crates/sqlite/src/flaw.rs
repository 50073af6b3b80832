//! Damage on the disk, for simulations: one byte of a row changes after it was written.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::{sheaf, sql};

/// The size of a page of a new file.
pub const PAGE_BYTES: usize = crate::schema::PAGE_BYTES;

/// A row of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Its state.
    State,
    /// The n-th row of its journal, from the end.
    Journal(u32),
    /// Its first unread message.
    Message,
}

impl Flaw {
    /// Changes a byte of that row: the one at `place`, modulo the length. Returns `false` if the
    /// row does not exist or another process writes.
    pub fn make(self, path: &Path, id: &str, place: usize) -> bool {
        self.try_make(path, id, place).unwrap_or(false)
    }

    fn try_make(self, path: &Path, id: &str, place: usize) -> rusqlite::Result<bool> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::ZERO)?;
        let (find, write) = match self {
            Self::State => (sql::FLAW_OF_STATE, sql::FLAW_STATE),
            Self::Journal(nth) => return in_journal(&connection, (id, nth), place),
            Self::Message => (sql::FLAW_OF_MESSAGE, sql::FLAW_MESSAGE),
        };
        let read =
            |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, Vec<u8>>(2)?));
        let found = connection.query_row(find, params![id, 0], read).optional()?;
        let Some((key, row, mut bytes)) = found else { return Ok(false) };
        let place = place % bytes.len().max(1);
        bytes.get_mut(place).into_iter().for_each(|byte| *byte ^= 0x55);
        Ok(connection.execute(write, params![key, row, bytes])? == 1)
    }
}

/// Makes each row of the journal a row of the table, so that SQL can damage it. Those that were
/// written in one transaction share one otherwise.
pub fn unbind(connection: &Connection) {
    sheaf::split_all(connection).expect("the journal can be read");
}

/// Changes a byte of the n-th row from the end of the journal of an execution.
fn in_journal(connection: &Connection, (id, nth): (&str, u32), place: usize) -> rusqlite::Result<bool> {
    let key: Option<i64> = connection.query_row(sql::FLAW_KEY, [id], |row| row.get(0)).optional()?;
    let mut found = Vec::new();
    let mut statement = connection.prepare(sql::FLAW_OF_JOURNAL)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (first, execution): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
        let (body, more): (Vec<u8>, Option<Vec<u8>>) = (row.get(2)?, row.get(3)?);
        if execution == key {
            found.push((first, body.clone(), more.clone(), None));
        }
        let behind = more.as_deref().map(|more| sheaf::bodies(first, more, key).collect::<Vec<_>>());
        for range in behind.into_iter().flatten() {
            found.push((first, body.clone(), more.clone(), Some(range)));
        }
    }
    let wanted = found.len().checked_sub(1 + nth as usize).map(|index| found.swap_remove(index));
    let Some((first, mut body, mut more, range)) = wanted else { return Ok(false) };
    let bytes = match (&mut more, range) {
        (Some(more), Some(range)) => &mut more[range],
        _ => body.as_mut_slice(),
    };
    let place = place % bytes.len().max(1);
    bytes.get_mut(place).into_iter().for_each(|byte| *byte ^= 0x55);
    Ok(connection.execute(sql::FLAW_JOURNAL, params![first, body, more])? == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{pair, start};

    #[test]
    fn a_flaw_is_found_and_is_that_of_one_execution() {
        for flaw in [Flaw::State, Flaw::Journal(0)] {
            let (_folder, ours, _theirs) = pair();
            start(&ours, "a");
            start(&ours, "b");
            let path = ours.shared.path.clone().expect("a file");
            assert!(flaw.make(&path, "a", 3), "{flaw:?}");
            let problems = ours.verify().unwrap().problems;
            assert!(
                !problems.is_empty() && problems.iter().all(|problem| problem.contains("\"a\"")),
                "{problems:?}"
            );
        }
    }

    #[test]
    fn what_is_not_there_has_no_flaw() {
        let (_folder, ours, _theirs) = pair();
        start(&ours, "a");
        let path = ours.shared.path.clone().expect("a file");
        for (flaw, id) in [(Flaw::State, "b"), (Flaw::Journal(9), "a"), (Flaw::Message, "a")] {
            assert!(!flaw.make(&path, id, 0), "{flaw:?}");
        }
        assert!(ours.verify().unwrap().is_sound());
    }
}
