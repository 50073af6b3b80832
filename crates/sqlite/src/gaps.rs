//! Walks through a table, and around the pages that SQLite cannot read.
//!
//! A malformed page ends a query, and everything after it would be lost. But a search by number
//! reads only the pages above its row: a search that begins after the malformed page succeeds. The
//! end of the page is unknown, so it is searched for, in ever larger steps and then by halves.

use std::fmt;
use std::ops::ControlFlow;

use rusqlite::{Connection, Row};

use crate::error::Stop;

/// No limit on the number of rows.
const NO_LIMIT: i64 = -1;

/// Unreadable rows: the numbers from the first to the last, or to the end of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) first: i64,
    pub(crate) last: Option<i64>,
    pub(crate) complaint: String,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, complaint } = self;
        match last {
            Some(last) if last == first => write!(f, "{first} cannot be read: {complaint}"),
            Some(last) => write!(f, "{first} to {last} cannot be read: {complaint}"),
            None => write!(f, "{first} and all behind it cannot be read: {complaint}"),
        }
    }
}

/// Passes every row after number `after` to `visit`, until that breaks off. Returns the unreadable
/// gaps. `text` selects at most `?2` rows with a number above `?1`, in their order; the number is
/// the first column.
pub(crate) fn walk(
    connection: &Connection,
    (text, after): (&'static str, i64),
    mut visit: impl FnMut(&Row<'_>) -> Result<ControlFlow<()>, Stop>,
) -> Result<Vec<Gap>, Stop> {
    let (mut gaps, mut last) = (Vec::new(), after);
    loop {
        let mut statement = connection.prepare_cached(text)?;
        let mut rows = statement.query([last, NO_LIMIT])?;
        let unread = loop {
            match rows.next().map_err(Stop::from) {
                Ok(Some(row)) => {
                    // Damage may have put numbers out of order; the walk never goes back.
                    last = last.max(row.get(0)?);
                    if visit(row)?.is_break() {
                        return Ok(gaps);
                    }
                }
                Ok(None) => return Ok(gaps),
                Err(stop) if stop.is_unread() => break stop,
                Err(stop) => return Err(stop),
            }
        };
        drop(rows);
        let end = end_of_gap(connection, text, last)?;
        gaps.push(Gap { first: last.saturating_add(1), last: end, complaint: unread.complaint() });
        let Some(end) = end else { return Ok(gaps) };
        last = end;
    }
}

/// Returns the last number of the unreadable rows after `last`, if any later row is readable.
fn end_of_gap(connection: &Connection, text: &'static str, last: i64) -> Result<Option<i64>, Stop> {
    let mut statement = connection.prepare_cached(text)?;
    let mut can_begin_behind = |number: i64| match statement.query([number, 1])?.next().map_err(Stop::from) {
        Ok(_) => Ok(true),
        Err(stop) if stop.is_unread() => Ok(false),
        Err(stop) => Err(stop),
    };
    let (mut unread, mut step) = (last, 1_i64);
    let mut read = loop {
        let number = last.saturating_add(step);
        if can_begin_behind(number)? {
            break number;
        }
        if number == i64::MAX {
            return Ok(None);
        }
        (unread, step) = (number, step.saturating_mul(2));
    };
    while read - unread > 1 {
        let middle = unread.midpoint(read);
        if can_begin_behind(middle)? { read = middle } else { unread = middle }
    }
    Ok(Some(read))
}
