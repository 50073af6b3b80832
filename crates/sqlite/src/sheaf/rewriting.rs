//! Sheaves that are written again: rows that are removed, and rows that part.

use std::ops::ControlFlow;

use abide_core::planted::{Bug, planted};
use rusqlite::{Connection, OptionalExtension};

use super::{Behind, Split, base_of, behind, check_bound, end_of, is_bytes, more, walk};
use crate::error::Stop;
use crate::rows::integer;
use crate::sql;

/// Removes rows. The others of their sheaves keep their numbers. A row before damaged bytes stays:
/// nothing else says which numbers they have. So does a row whose owner nobody knows.
pub(crate) fn remove(connection: &Connection, rows: &[i64]) -> Result<(), Stop> {
    check_bound();
    let mut rows = rows.to_vec();
    rows.sort_unstable();
    rows.dedup();
    let mut rest = rows.as_slice();
    while let [row, others @ ..] = rest {
        rest = others;
        let Some(sheaf) = Stored::read(connection, base_of(connection, *row)?)? else { continue };
        let (end, _) = end_of(sheaf.first, &sheaf.more);
        let here_count = 1 + others.partition_point(|row| *row <= end);
        let here = &rows[rows.len() - others.len() - 1..][..here_count];
        rest = &others[here_count - 1..];
        sheaf.write_again(connection, |number, last| {
            let stays = match planted(Bug::SheafThrownAway) {
                true => here.iter().all(|removed| *removed > number),
                false => here.binary_search(&number).is_err(),
            };
            stays.then_some(if last.checked_add(1) == Some(number) { Joins::Last } else { Joins::Nothing })
        })?;
    }
    Ok(())
}

/// Makes each row of the journal a row of the table. Tests that damage rows want that.
pub(crate) fn split_all(connection: &Connection) -> Result<(), Stop> {
    let mut rows = Vec::new();
    walk(connection, |row| {
        rows.push(row.number);
        Ok(ControlFlow::Continue(()))
    })?;
    for row in rows {
        if let Some(sheaf) = Stored::read(connection, row)?.filter(|sheaf| !sheaf.more.is_empty()) {
            sheaf.write_again(connection, |_, _| Some(Joins::Nothing))?;
        }
    }
    Ok(())
}

/// A sheaf that is about to be written again.
struct Stored {
    first: i64,
    more: Vec<u8>,
    /// Whether the bytes behind the first row are none.
    is_strange: bool,
}

/// The place of a row that stays.
enum Joins {
    Nothing,
    /// Behind the last one that stays, whose number is the one before.
    Last,
}

impl Stored {
    /// Returns the rows behind the first one, with their numbers and bytes.
    fn behind(&self) -> impl Iterator<Item = (i64, Option<Split<'_>>, &[u8])> {
        let mut rest = self.more.as_slice();
        behind(self.first, &self.more).map(move |(number, split)| {
            let bytes = &rest[..rest.len() - split.rest.len()];
            rest = split.rest;
            (number, Some(split), bytes)
        })
    }

    /// Reads the sheaf that begins with this row.
    fn read(connection: &Connection, first: i64) -> rusqlite::Result<Option<Self>> {
        let mut statement = connection.prepare_cached(sql::SHEAF)?;
        let read = statement.query_row([first, first], |row| {
            Ok(Self { first, more: more(row, 7)?.to_vec(), is_strange: !is_bytes(row, 7)? })
        });
        read.optional()
    }

    /// Writes the sheaf again. `place` is told the number of each row, and of the last one that
    /// stays.
    fn write_again(
        &self,
        connection: &Connection,
        place: impl Fn(i64, i64) -> Option<Joins>,
    ) -> rusqlite::Result<()> {
        let (_, lost) = end_of(self.first, &self.more);
        if self.is_strange {
            return Ok(());
        }
        let mut left: Vec<(i64, Option<Behind<'_>>, Vec<u8>)> = Vec::new();
        let mut last = i64::MIN;
        let mut rows = std::iter::once((self.first, None, [].as_slice())).chain(self.behind()).peekable();
        while let Some((number, split, bytes)) = rows.next() {
            let is_nameless = split.is_some_and(|split| !split.is_named);
            let is_before_damage = match rows.peek() {
                Some((_, next, _)) => next.is_some_and(|next| !next.is_named),
                None => !lost.is_empty(),
            };
            let place = if is_nameless { Some(Joins::Last) } else { place(number, last) };
            match (place.or(is_before_damage.then_some(Joins::Nothing)), left.last_mut(), split) {
                (None, ..) => continue,
                (Some(Joins::Last), Some((.., joined)), Some(_)) => joined.extend_from_slice(bytes),
                (Some(_), _, split) => left.push((number, split.map(|split| split.row), Vec::new())),
            }
            last = number;
        }
        left.last_mut().into_iter().for_each(|(.., bytes)| bytes.extend_from_slice(lost));
        if left.first().is_none_or(|(number, ..)| *number != self.first) {
            connection.prepare_cached(sql::SHEAF_DELETE)?.execute([self.first])?;
        }
        left.into_iter().try_for_each(|(number, row, more)| put(connection, (number, row), more))
    }
}

/// Writes a sheaf whose first row is in its columns already, or else is `row`.
fn put(
    connection: &Connection,
    (number, row): (i64, Option<Behind<'_>>),
    more: Vec<u8>,
) -> rusqlite::Result<()> {
    let more = Some(more).filter(|more| !more.is_empty());
    let Some(Behind { key, previous, seq, happened, skip, body }) = row else {
        return connection.prepare_cached(sql::SHEAF_CUT)?.execute((number, more)).map(drop);
    };
    let mut append = connection.prepare_cached(sql::SHEAF_APPEND)?;
    append.execute((number, key, previous, integer(seq), happened, skip, body, more)).map(drop)
}
