//! Sheaves: rows of the journal that are written in one transaction share a row of the table.
//!
//! SQLite takes some 3,000 instructions to insert a row, and a few dozen to copy the bytes of one.
//! So the writer collects the journal rows of a transaction. It inserts as many as fit on a page at
//! once: the first one in the columns of a row of the table, and the others behind it, in `more`.
//! Their numbers follow that of the first one. Each has a checksum of its own.
//!
//! Only this module knows where a journal row lies. To everybody else the journal is a table with
//! one row for each.

use std::cell::Cell;
use std::ops::{ControlFlow, Range};

use abide_core::planted::{Bug, planted};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::batch::{Batch, Frequent};
use crate::error::Stop;
use crate::gaps::{self, Gap};
use crate::journal::{Found, Link};
use crate::packing::put_length;
use crate::rows::{count, integer, unsigned};
use crate::{schema, sql};

/// The most bytes of journal rows in a sheaf of several: so many fit on a page.
const SHEAF_BYTES_MAX: usize = schema::PAGE_BYTES - 148;

/// The journal rows of a transaction that are not in the table yet.
#[derive(Debug, Default)]
pub(crate) struct Sheaf {
    /// The number of the first one.
    first: i64,
    row_count: i64,
    /// All of them, each behind its length.
    bytes: Vec<u8>,
}

thread_local! {
    /// Whether the transaction of this thread has rows that are not in the table yet. A reader of
    /// the journal would miss them then.
    static IS_UNBOUND: Cell<bool> = const { Cell::new(false) };
}

impl Sheaf {
    /// Whether a row may join.
    fn takes(&self, row: i64, size: usize) -> bool {
        self.row_count == 0
            || (row == self.first + self.row_count && self.bytes.len() + size <= SHEAF_BYTES_MAX)
    }

    fn push(&mut self, link: &Link<'_>, seq: u64, body: &[u8]) {
        if self.row_count == 0 {
            self.first = link.row;
            self.bytes.clear();
        }
        self.row_count += 1;
        Behind {
            key: link.key,
            previous: link.previous,
            seq,
            happened: link.happened,
            skip: link.skip,
            body,
        }
        .put(&mut self.bytes, link.row);
        IS_UNBOUND.set(true);
    }
}

impl Drop for Sheaf {
    /// A transaction that was rolled back has no rows.
    fn drop(&mut self) {
        IS_UNBOUND.set(false);
    }
}

impl Batch<'_> {
    /// Appends a row to the journal. It is in the table when the sheaf is bound, at the latest at
    /// the end of the transaction.
    pub(crate) fn append_row(&mut self, link: &Link<'_>, seq: u64, body: &[u8]) -> rusqlite::Result<()> {
        const HEADER_BYTES_MAX: usize = 48;
        let size = body.len() + link.skip.map_or(0, <[u8]>::len) + HEADER_BYTES_MAX;
        if !self.caches.sheaf.takes(link.row, size) {
            self.bind_sheaf()?;
        }
        if size <= SHEAF_BYTES_MAX {
            self.caches.sheaf.push(link, seq, body);
            return Ok(());
        }
        let Link { row, key, previous, happened, skip } = *link;
        let append = self.frequent(Frequent::SheafAppend)?;
        append.execute((row, key, previous, integer(seq), happened, skip, body, None::<&[u8]>))?;
        Ok(())
    }

    /// Writes the collected rows into the table. Every operation that reads the journal needs that
    /// first. So does a savepoint: rows that are collected before it are not rolled back with it.
    pub(crate) fn bind_sheaf(&mut self) -> rusqlite::Result<()> {
        if self.caches.sheaf.row_count == 0 {
            return Ok(());
        }
        let mut sheaf = std::mem::take(&mut self.caches.sheaf);
        let (first, more) = Behind::split(sheaf.first, &sheaf.bytes).expect("it was just put there");
        let Behind { key, previous, seq, happened, skip, body } = first;
        let (row, seq) = (sheaf.first, integer(seq));
        match (skip, more) {
            (None, []) => {
                let append = self.frequent(Frequent::SheafAppendOne)?;
                append.execute((row, key, previous, seq, happened, body))?;
            }
            (skip, more) => {
                let more = Some(more).filter(|more| !more.is_empty());
                let append = self.frequent(Frequent::SheafAppend)?;
                append.execute((row, key, previous, seq, happened, skip, body, more))?;
            }
        }
        // Its room serves the next one.
        sheaf.row_count = 0;
        self.caches.sheaf = sheaf;
        Ok(())
    }
}

/// A row of the journal as it was found. Nothing about it is checked.
pub(crate) enum Part<'r> {
    /// In the columns of a row of the table: `row, execution, previous, seq, happened, skip, body`.
    Columns(&'r Row<'r>),
    /// Behind another one.
    Behind(i64, Behind<'r>),
}

impl<'r> Part<'r> {
    pub(crate) fn number(&self) -> rusqlite::Result<i64> {
        match self {
            Self::Columns(row) => row.get(0),
            Self::Behind(number, _) => Ok(*number),
        }
    }

    pub(crate) fn execution(&self) -> rusqlite::Result<i64> {
        match self {
            Self::Columns(row) => row.get(1),
            Self::Behind(_, behind) => Ok(behind.key),
        }
    }

    pub(crate) fn previous(&self) -> rusqlite::Result<Option<i64>> {
        match self {
            Self::Columns(row) => row.get(2),
            Self::Behind(_, behind) => Ok(behind.previous),
        }
    }

    pub(crate) fn seq(&self) -> rusqlite::Result<u64> {
        match self {
            Self::Columns(row) => count(row, 3),
            Self::Behind(_, behind) => Ok(behind.seq),
        }
    }

    /// Whether the feed reports it.
    pub(crate) fn is_told(&self) -> rusqlite::Result<bool> {
        Ok(match self {
            Self::Columns(row) => row.get_ref(4)? != rusqlite::types::ValueRef::Null,
            Self::Behind(_, behind) => behind.happened.is_some(),
        })
    }

    /// Returns the list of its predecessors, or the owner of the journal.
    pub(crate) fn skip(&self) -> rusqlite::Result<Option<&'r [u8]>> {
        match self {
            Self::Columns(row) => Ok(row.get_ref(5)?.as_blob_or_null()?),
            Self::Behind(_, behind) => Ok(behind.skip),
        }
    }

    /// Returns its entries, if it is intact.
    pub(crate) fn found(&self) -> Result<Found<'r>, Stop> {
        match self {
            Self::Columns(row) => Found::read(row),
            Self::Behind(number, behind) => {
                let Behind { key, previous, seq, happened, skip, body } = *behind;
                Found::open(&Link { row: *number, key, previous, happened, skip }, seq, body)
            }
        }
    }
}

/// A row behind the first one of a sheaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Behind<'r> {
    pub(crate) key: i64,
    pub(crate) previous: Option<i64>,
    pub(crate) seq: u64,
    pub(crate) happened: Option<u8>,
    pub(crate) skip: Option<&'r [u8]>,
    pub(crate) body: &'r [u8],
}

impl<'r> Behind<'r> {
    /// Appends the row with this number: its length, its columns, and its body. A predecessor is a
    /// distance, and 0 stands for nothing in place of any other column.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>, number: i64) {
        /// The room for the length, which is written last. It is never longer, because a sheaf is
        /// not.
        const LENGTH_BYTES: usize = 2;
        let start = bytes.len();
        bytes.extend([0; LENGTH_BYTES]);
        put_length(bytes, self.key as usize);
        put_length(bytes, self.previous.map_or(0, |previous| number.wrapping_sub(previous) as usize));
        put_length(bytes, self.seq as usize);
        put_length(bytes, self.happened.map_or(0, |happened| usize::from(happened) + 1));
        put_length(bytes, self.skip.map_or(0, |skip| skip.len() + 1));
        bytes.extend_from_slice(self.skip.unwrap_or_default());
        bytes.extend_from_slice(self.body);
        let length = (bytes.len() - start - LENGTH_BYTES) as u16;
        bytes[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    }

    /// Splits off the row with this number, and returns the bytes behind it.
    pub(crate) fn split(number: i64, bytes: &'r [u8]) -> Option<(Self, &'r [u8])> {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (row, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        let (columns, row) = postcard::take_from_bytes::<(u64, u64, u64, u16, u16)>(row).ok()?;
        let (key, distance, seq, happened, skip) = columns;
        let (skip, body) = match skip {
            0 => (None, row),
            length => row.split_at_checked(usize::from(length) - 1).map(|(skip, body)| (Some(skip), body))?,
        };
        let previous = match distance {
            0 => None,
            distance => Some(number.checked_sub_unsigned(distance)?),
        };
        let happened = match happened {
            0 => None,
            happened => Some(u8::try_from(happened - 1).ok()?),
        };
        Some((Self { key: i64::try_from(key).ok()?, previous, seq, happened, skip, body }, rest))
    }
}

/// Returns the rows behind that with the number `first`, with their numbers, and the bytes behind
/// each of them.
fn behind<'r>(first: i64, more: &'r [u8]) -> impl Iterator<Item = (i64, Behind<'r>, &'r [u8])> {
    let (mut number, mut rest) = (first, more);
    std::iter::from_fn(move || {
        number = number.checked_add(1)?;
        let (row, others) = Behind::split(number, rest)?;
        rest = others;
        Some((number, row, others))
    })
}

/// Returns where the bodies of an execution's rows are behind the first row of a sheaf.
pub(crate) fn bodies(first: i64, more: &[u8], key: Option<i64>) -> impl Iterator<Item = Range<usize>> {
    behind(first, more).filter(move |(_, row, _)| Some(row.key) == key).map(|(_, row, rest)| {
        let end = more.len() - rest.len();
        end - row.body.len()..end
    })
}

/// Returns the bytes behind the first row of a sheaf.
fn more<'r>(row: &'r Row<'_>, index: usize) -> rusqlite::Result<&'r [u8]> {
    // Something else than bytes is damage: the rows are missing.
    Ok(row.get_ref(index)?.as_blob_or_null().ok().flatten().unwrap_or_default())
}

/// Whether a sheaf ends with bytes that are no row.
fn has_damaged_end(row: &Row<'_>, first: i64) -> rusqlite::Result<bool> {
    let bytes = row.get_ref(3)?;
    let Ok(bytes) = bytes.as_blob_or_null() else { return Ok(true) };
    let bytes = bytes.unwrap_or_default();
    Ok(!behind(first, bytes).last().map_or(bytes, |(_, _, rest)| rest).is_empty())
}

fn check_bound() {
    debug_assert!(!IS_UNBOUND.get(), "the journal is read before its rows are in the table");
}

/// Passes a row of the journal to `read`, if it exists.
pub(crate) fn find<T>(
    connection: &Connection,
    row: i64,
    read: impl FnOnce(&Part<'_>) -> Result<T, Stop>,
) -> Result<Option<T>, Stop> {
    check_bound();
    let mut statement = connection.prepare_cached(sql::SHEAF_OF)?;
    let mut rows = statement.query([row])?;
    let Some(found) = rows.next()? else { return Ok(None) };
    let first: i64 = found.get(0)?;
    if first == row {
        return read(&Part::Columns(found)).map(Some);
    }
    let nth = row.checked_sub(first + 1).and_then(|nth| usize::try_from(nth).ok()).unwrap_or(usize::MAX);
    let part = behind(first, more(found, 7)?).nth(nth);
    part.map(|(number, behind, _)| read(&Part::Behind(number, behind))).transpose()
}

/// Does the same, if it is a row of this execution.
pub(crate) fn find_of<T>(
    connection: &Connection,
    (row, key): (i64, i64),
    read: impl FnOnce(&Part<'_>) -> Result<T, Stop>,
) -> Result<Option<T>, Stop> {
    let found =
        find(connection, row, |part| match part.execution().is_ok_and(|execution| execution == key) {
            true => read(part).map(Some),
            false => Ok(None),
        })?;
    Ok(found.flatten())
}

/// The rows that a scan is for. It may pass others, too.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {
    All,
    Of(i64),
    Told,
}

/// Passes the rows from the first to the last number to `visit`, until that breaks off.
pub(crate) fn scan(
    connection: &Connection,
    (wanted, first, last): (Wanted, i64, i64),
    mut visit: impl FnMut(&Part<'_>) -> Result<ControlFlow<()>, Stop>,
) -> Result<(), Stop> {
    check_bound();
    let mut statement = connection.prepare_cached(match wanted {
        Wanted::All => sql::SHEAVES,
        Wanted::Of(_) => sql::SHEAVES_WITH,
        Wanted::Told => sql::SHEAVES_TOLD,
    })?;
    let mut rows = match wanted {
        Wanted::Of(key) => statement.query([first, last, key])?,
        Wanted::All | Wanted::Told => statement.query([first, last])?,
    };
    while let Some(row) = rows.next()? {
        let number = row.get(0)?;
        if number >= first && visit(&Part::Columns(row))?.is_break() {
            return Ok(());
        }
        for (number, row, _) in behind(number, more(row, 7)?) {
            if number > last {
                return Ok(());
            }
            if number >= first && visit(&Part::Behind(number, row))?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A row of the journal, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    pub(crate) number: i64,
    /// The execution that it belongs to; `None` if that is damaged.
    pub(crate) execution: Option<i64>,
    pub(crate) byte_count: u64,
    /// Whether something follows it that is no row.
    pub(crate) is_damaged_behind: bool,
}

impl Listed {
    /// Passes the rows of a sheaf to `visit`: `row, execution, length, more`.
    fn each(
        row: &Row<'_>,
        mut visit: impl FnMut(Self) -> Result<ControlFlow<()>, Stop>,
    ) -> Result<ControlFlow<()>, Stop> {
        let number = row.get(0)?;
        let is_damaged_behind = has_damaged_end(row, number)?;
        let (execution, byte_count) = (row.get(1).ok(), row.get(2).map_or(0, unsigned));
        if visit(Self { number, execution, byte_count, is_damaged_behind })?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        for (number, Behind { key, body, .. }, _) in behind(number, more(row, 3)?) {
            let (execution, byte_count) = (Some(key), body.len() as u64);
            if visit(Self { number, execution, byte_count, is_damaged_behind: false })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Passes the rows from the first to the last number to `visit`.
pub(crate) fn list(
    connection: &Connection,
    (first, last): (i64, i64),
    mut visit: impl FnMut(Listed) -> Result<(), Stop>,
) -> Result<(), Stop> {
    check_bound();
    let mut statement = connection.prepare_cached(sql::SHEAVES_LISTED)?;
    let mut rows = statement.query([first, last])?;
    while let Some(row) = rows.next()? {
        _ = Listed::each(row, |listed| {
            if (first..=last).contains(&listed.number) {
                visit(listed)?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(())
}

/// Passes all rows to `visit`, until that breaks off, around the pages that SQLite cannot read.
pub(crate) fn walk(
    connection: &Connection,
    mut visit: impl FnMut(Listed) -> Result<ControlFlow<()>, Stop>,
) -> Result<Vec<Gap>, Stop> {
    check_bound();
    let mut gaps = gaps::walk(connection, (sql::SHEAVES_AFTER, 0), |row| Listed::each(row, &mut visit))?;
    for gap in &mut gaps {
        // The sheaf before the gap may have several rows.
        gap.first = end_of_sheaf(connection, gap.first - 1)?.map_or(gap.first, |end| end + 1);
    }
    Ok(gaps)
}

/// Returns the number of the last row in the sheaf that a row is in.
fn end_of_sheaf(connection: &Connection, row: i64) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached(sql::SHEAF_OF)?;
    let end = |row: &Row<'_>| {
        let first = row.get(0)?;
        Ok(behind(first, more(row, 7)?).last().map_or(first, |(last, ..)| last))
    };
    statement.query_row([row], end).optional()
}

/// Returns the greatest number that a row ever had. Behind a damaged row, every byte may have been
/// one.
pub(crate) fn row_max(connection: &Connection) -> Result<i64, Stop> {
    check_bound();
    let pruned: i64 = connection.prepare_cached(sql::JOURNAL_ROW_PRUNED)?.query_row([], |row| row.get(0))?;
    let mut statement = connection.prepare_cached(sql::SHEAF_LAST)?;
    let last = statement.query_row([], |row| {
        let (first, more): (i64, _) = (row.get(0)?, more(row, 1)?);
        if planted(Bug::SheafNumberedAgain) {
            return Ok(first);
        }
        let (last, rest) = behind(first, more).last().map_or((first, more), |(last, _, rest)| (last, rest));
        Ok(last.saturating_add(integer(rest.len() as u64)))
    });
    Ok(pruned.max(last.optional()?.unwrap_or(0)))
}

/// Removes rows. The others of their sheaves keep their numbers.
pub(crate) fn remove(connection: &Connection, rows: &[i64]) -> Result<(), Stop> {
    check_bound();
    let mut rows = rows.to_vec();
    rows.sort_unstable();
    let mut rest = rows.as_slice();
    while let [row, others @ ..] = rest {
        let Some((first, more)) = bytes_of(connection, *row)? else {
            rest = others;
            continue;
        };
        let end = behind(first, &more).last().map_or(first, |(last, ..)| last);
        if *row > end {
            // It is gone, or behind damage.
            rest = others;
            continue;
        }
        let (here, others) = rest.split_at(rest.partition_point(|row| *row <= end));
        split(connection, (first, &more), |number, last| {
            let stays = match planted(Bug::SheafThrownAway) {
                true => here.iter().all(|removed| *removed > number),
                false => here.binary_search(&number).is_err(),
            };
            stays.then_some(if last.checked_add(1) == Some(number) { Joins::Last } else { Joins::Nothing })
        })?;
        rest = others;
    }
    Ok(())
}

/// Makes each row of the journal a row of the table. Tests that damage rows want that.
pub(crate) fn split_all(connection: &Connection) -> Result<(), Stop> {
    let mut first = Vec::new();
    walk(connection, |row| {
        first.push(row.number);
        Ok(ControlFlow::Continue(()))
    })?;
    for row in first {
        if let Some((first, more)) = bytes_of(connection, row)?.filter(|(_, more)| !more.is_empty()) {
            split(connection, (first, &more), |_, _| Some(Joins::Nothing))?;
        }
    }
    Ok(())
}

/// Returns the number of the first row in the sheaf that a row is in, and the bytes behind it.
fn bytes_of(connection: &Connection, row: i64) -> rusqlite::Result<Option<(i64, Vec<u8>)>> {
    let mut statement = connection.prepare_cached(sql::SHEAF_OF)?;
    statement.query_row([row], |row| Ok((row.get(0)?, more(row, 7)?.to_vec()))).optional()
}

/// What a row that stays is written behind.
enum Joins {
    Nothing,
    /// The last one that stays, whose number is the one before.
    Last,
}

/// Writes a sheaf again. `place` is told the number of each row, and of the last one that stays.
fn split(
    connection: &Connection,
    (first, more): (i64, &[u8]),
    place: impl Fn(i64, i64) -> Option<Joins>,
) -> rusqlite::Result<()> {
    let mut left: Vec<(i64, Option<Behind<'_>>, Vec<u8>)> = Vec::new();
    let mut last = i64::MIN;
    for (number, row) in
        [(first, None)].into_iter().chain(behind(first, more).map(|(n, row, _)| (n, Some(row))))
    {
        match (place(number, last), left.last_mut(), row) {
            (None, ..) => continue,
            (Some(Joins::Last), Some((.., bytes)), Some(row)) => row.put(bytes, number),
            (Some(_), _, row) => left.push((number, row, Vec::new())),
        }
        last = number;
    }
    if left.first().is_none_or(|(number, ..)| *number != first) {
        connection.prepare_cached(sql::SHEAF_DELETE)?.execute([first])?;
    }
    for (number, row, more) in left {
        let more = Some(more).filter(|more| !more.is_empty());
        let Some(Behind { key, previous, seq, happened, skip, body }) = row else {
            connection.prepare_cached(sql::SHEAF_CUT)?.execute((number, more))?;
            continue;
        };
        let mut append = connection.prepare_cached(sql::SHEAF_APPEND)?;
        append.execute((number, key, previous, integer(seq), happened, skip, body, more))?;
    }
    Ok(())
}
