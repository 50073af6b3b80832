//! Sheaves: rows of the journal that are written in one transaction share a row of the table.
//!
//! SQLite takes some 3,000 instructions to insert a row, and a few dozen to copy the bytes of one.
//! So the writer collects the journal rows of a transaction. It inserts as many as fit on four
//! pages at once: the first one in the columns of a row of the table, and the others behind it, in
//! `more`. Their numbers follow that of the first one. Each has a checksum of its own.
//!
//! Only this module knows where a journal row lies. To everybody else the journal is a table with
//! one row for each.

mod behind;
mod rewriting;

use std::cell::Cell;
use std::ops::{ControlFlow, Range};

use abide_core::planted::{Bug, planted};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::batch::Batch;
use crate::error::Stop;
use crate::gaps::{self, Gap};
use crate::journal::{Found, Link};
use crate::rows::{count, integer, unsigned};
use crate::statements::Frequent;
use crate::{schema, sql};

pub(crate) use behind::{Behind, Split};
pub(crate) use rewriting::{remove, split_all};

/// The most bytes of a journal row that shares a row of the table with others: so many fit on a
/// page.
const SHARED_BYTES_MAX: usize = schema::PAGE_BYTES - 148;
/// The most bytes of journal rows in a sheaf of several. To insert a row takes SQLite as long as to
/// fill several pages, so a sheaf has four. More would make each of its rows slower to read.
const SHEAF_BYTES_MAX: usize = SHARED_BYTES_MAX + 3 * (schema::PAGE_BYTES - 4);
/// More rows than a sheaf has: each takes its length, its five columns and its checksum at least.
const SHEAF_ROWS_MAX: i64 = (SHEAF_BYTES_MAX / 11) as i64;

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
        let is_next = row == self.first + self.row_count || planted(Bug::SheafTakesAny);
        self.row_count == 0 || (is_next && self.bytes.len() + size <= SHEAF_BYTES_MAX)
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
        if size <= SHARED_BYTES_MAX {
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
        let first = Behind::split(sheaf.first, &sheaf.bytes).expect("it was just put there");
        let Split { row: Behind { key, previous, seq, happened, skip, body }, rest: more, .. } = first;
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
    /// Behind another one. Its columns are those that were written.
    Behind(i64, Behind<'r>),
    /// Behind another one, with damaged columns: nobody knows to which execution it belongs.
    Nameless(i64),
    /// This row, and perhaps others after it: they cannot be told apart.
    Lost(i64),
}

impl<'r> Part<'r> {
    fn of(number: i64, split: &Split<'r>) -> Self {
        match split.is_named || planted(Bug::SheafBelievesColumns) {
            true => Self::Behind(number, split.row),
            false => Self::Nameless(number),
        }
    }

    pub(crate) fn number(&self) -> rusqlite::Result<i64> {
        match self {
            Self::Columns(row) => row.get(0),
            Self::Behind(number, _) | Self::Nameless(number) | Self::Lost(number) => Ok(*number),
        }
    }

    pub(crate) fn execution(&self) -> rusqlite::Result<i64> {
        match self {
            Self::Columns(row) => row.get(1),
            Self::Behind(_, behind) => Ok(behind.key),
            Self::Nameless(_) | Self::Lost(_) => Err(self.lost()),
        }
    }

    pub(crate) fn previous(&self) -> rusqlite::Result<Option<i64>> {
        match self {
            Self::Columns(row) => row.get(2),
            Self::Behind(_, behind) => Ok(behind.previous),
            Self::Nameless(_) | Self::Lost(_) => Err(self.lost()),
        }
    }

    pub(crate) fn seq(&self) -> rusqlite::Result<u64> {
        match self {
            Self::Columns(row) => count(row, 3),
            Self::Behind(_, behind) => Ok(behind.seq),
            Self::Nameless(_) | Self::Lost(_) => Err(self.lost()),
        }
    }

    /// Whether the feed reports it.
    pub(crate) fn is_told(&self) -> rusqlite::Result<bool> {
        Ok(match self {
            Self::Columns(row) => row.get_ref(4)? != rusqlite::types::ValueRef::Null,
            Self::Behind(_, behind) => behind.happened.is_some(),
            Self::Nameless(_) | Self::Lost(_) => false,
        })
    }

    /// Returns the list of its predecessors, or the owner of the journal.
    pub(crate) fn skip(&self) -> rusqlite::Result<Option<&'r [u8]>> {
        match self {
            Self::Columns(row) => Ok(row.get_ref(5)?.as_blob_or_null()?),
            Self::Behind(_, behind) => Ok(behind.skip),
            Self::Nameless(_) | Self::Lost(_) => Err(self.lost()),
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
            Self::Nameless(number) | Self::Lost(number) => {
                Err(Stop::corrupt(format!("journal row {number} cannot be read")))
            }
        }
    }

    /// Whether it may be a row of any execution.
    pub(crate) fn may_be_any(&self) -> bool {
        let is_blamed = planted(Bug::SheafBlamesNeighbours) && self.found().is_err();
        matches!(self, Self::Nameless(_) | Self::Lost(_)) || is_blamed
    }

    fn lost(&self) -> rusqlite::Error {
        rusqlite::Error::InvalidQuery
    }
}

/// Returns the rows behind that with the number `first`, with their numbers.
fn behind<'r>(first: i64, more: &'r [u8]) -> impl Iterator<Item = (i64, Split<'r>)> {
    let (mut number, mut rest) = (first, more);
    std::iter::from_fn(move || {
        number = number.checked_add(1)?;
        let split = Behind::split(number, rest)?;
        rest = split.rest;
        Some((number, split))
    })
}

/// Returns where the bodies of an execution's rows are behind the first row of a sheaf.
pub(crate) fn bodies(first: i64, more: &[u8], key: Option<i64>) -> impl Iterator<Item = Range<usize>> {
    behind(first, more).filter(move |(_, split)| Some(split.row.key) == key).map(|(_, split)| {
        let end = more.len() - split.rest.len();
        end - split.row.body.len()..end
    })
}

/// Returns the bytes behind the first row of a sheaf.
fn more<'r>(row: &'r Row<'_>, index: usize) -> rusqlite::Result<&'r [u8]> {
    // Something else than bytes is damage: the rows are missing.
    Ok(row.get_ref(index)?.as_blob_or_null().ok().flatten().unwrap_or_default())
}

/// Whether that column is as it was written.
fn is_bytes(row: &Row<'_>, index: usize) -> rusqlite::Result<bool> {
    Ok(row.get_ref(index)?.as_blob_or_null().is_ok())
}

/// Returns the number of the last row of a sheaf, and the bytes behind it, which are damage.
fn end_of(first: i64, more: &[u8]) -> (i64, &[u8]) {
    behind(first, more).last().map_or((first, more), |(last, split)| (last, split.rest))
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
    let base = base_of(connection, row)?;
    let mut statement = connection.prepare_cached(sql::SHEAF)?;
    let mut rows = statement.query([base, row])?;
    let Some(found) = rows.next()? else { return Ok(None) };
    if base == row {
        return read(&Part::Columns(found)).map(Some);
    }
    let split = behind(base, more(found, 7)?).find(|(number, _)| *number == row);
    split.map(|(number, split)| read(&Part::of(number, &split))).transpose()
}

/// Returns the number of the first row in the sheaf that a row is in, or else that row itself.
///
/// The search for a row behind the last one in the table's page may look into the next page, which
/// perhaps cannot be read. Then the row is searched for from its predecessors.
fn base_of(connection: &Connection, row: i64) -> Result<i64, Stop> {
    let mut statement = connection.prepare_cached(sql::SHEAF_BASE)?;
    let mut base = |row: i64| statement.query_row([row], |found| found.get::<_, i64>(0)).optional();
    let unread = match base(row).map_err(Stop::from) {
        Ok(found) => return Ok(found.unwrap_or(row)),
        Err(stop) if stop.is_unread() => stop,
        Err(stop) => return Err(stop),
    };
    let near = (row.saturating_sub(SHEAF_ROWS_MAX)..row).rev().find_map(|near| base(near).ok().flatten());
    match near {
        Some(base) if end_of_sheaf(connection, base)?.is_some_and(|end| end >= row) => Ok(base),
        _ => Err(unread),
    }
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
    let base = base_of(connection, first)?;
    let mut rows = match wanted {
        Wanted::Of(key) => statement.query([base, last, key])?,
        Wanted::All | Wanted::Told => statement.query([base, last])?,
    };
    while let Some(row) = rows.next()? {
        for part in parts(row)? {
            let number = part.number()?;
            if number > last {
                return Ok(());
            }
            if number >= first && visit(&part)?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns the rows of a sheaf: `row, execution, previous, seq, happened, skip, body, more`.
fn parts<'r>(row: &'r Row<'r>) -> rusqlite::Result<impl Iterator<Item = Part<'r>>> {
    let (first, bytes) = (row.get(0)?, more(row, 7)?);
    let (end, rest) = end_of(first, bytes);
    let is_lost = !rest.is_empty() || !is_bytes(row, 7)?;
    let lost = is_lost.then(|| Part::Lost(end.saturating_add(1)));
    let behind = behind(first, bytes).map(|(number, split)| Part::of(number, &split));
    Ok(std::iter::once(Part::Columns(row)).chain(behind).chain(lost))
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
        let (first, bytes) = (row.get(0)?, more(row, 3)?);
        let (end, rest) = end_of(first, bytes);
        let is_damaged = !rest.is_empty() || !is_bytes(row, 3)?;
        let listed = |number, execution, byte_count| {
            let is_damaged_behind = is_damaged && number == end;
            Self { number, execution, byte_count, is_damaged_behind }
        };
        let columns = listed(first, row.get(1).ok(), row.get(2).map_or(0, unsigned));
        let behind = behind(first, bytes).map(|(number, split)| {
            let execution = Some(split.row.key).filter(|_| split.is_named);
            listed(number, execution, split.row.body.len() as u64)
        });
        for row in std::iter::once(columns).chain(behind) {
            if visit(row)?.is_break() {
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
    let mut rows = statement.query([base_of(connection, first)?, last])?;
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
        // The sheaf before the gap may have several rows, and so may those in it.
        let end = if gap.first > 1 { end_of_sheaf(connection, gap.first - 1)? } else { None };
        gap.first = end.map_or(gap.first, |end| end + 1);
        if let Some(last) = gap.last {
            let mut next = connection.prepare_cached(sql::SHEAF_AFTER)?;
            let next: Option<i64> = next.query_row([last], |row| row.get(0)).optional()?;
            gap.last = next.map(|next| next - 1);
        }
    }
    Ok(gaps)
}

/// Returns the number of the last row in the sheaf that begins with this one.
fn end_of_sheaf(connection: &Connection, first: i64) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached(sql::SHEAF)?;
    statement.query_row([first, first], |row| Ok(end_of(first, more(row, 7)?).0)).optional()
}

/// Returns the greatest number that a row ever had. Behind a damaged row, every byte may have been
/// one.
pub(crate) fn row_max(connection: &Connection) -> Result<i64, Stop> {
    check_bound();
    let pruned: i64 = connection.prepare_cached(sql::JOURNAL_ROW_PRUNED)?.query_row([], |row| row.get(0))?;
    let mut statement = connection.prepare_cached(sql::SHEAF_LAST)?;
    let last = statement.query_row([], |row| {
        let (first, more) = (row.get(0)?, more(row, 1)?);
        if planted(Bug::SheafNumberedAgain) {
            return Ok(first);
        }
        let (last, rest) = end_of(first, more);
        let lost_count = if is_bytes(row, 1)? { rest.len() } else { SHEAF_BYTES_MAX };
        Ok(last.saturating_add(integer(lost_count as u64)))
    });
    Ok(pruned.max(last.optional()?.unwrap_or(0)))
}
