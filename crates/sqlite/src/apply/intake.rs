//! The intake table: rows that any program puts there, and what becomes of them.

use abide_core::{Enqueued, Refusal, Timestamp};
use abide_store::{Error, IntakeLook, TakeIn, TakenIn};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, Row, params};

use super::submit;
use crate::batch::Batch;
use crate::caches::Caches;
use crate::error::{Stop, reading};
use crate::job::Operation;
use crate::rows::integer;
use crate::{refusals, sql};

/// Takes rows out of the intake table. Each row has its effect, or is refused, in the transaction
/// that deletes it.
pub(crate) struct TakeInWork {
    take_in: TakeIn,
    /// Rows at which SQLite could not read what they are for. A page that cannot be read must not
    /// keep the rows behind from being taken.
    unread: Vec<(i64, String)>,
    is_taught: bool,
}

impl TakeInWork {
    pub(crate) fn new(take_in: TakeIn) -> Self {
        Self { take_in, unread: Vec::new(), is_taught: false }
    }
}

impl Operation for TakeInWork {
    type Output = TakenIn;
    const WHAT: &'static str = "take in";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<TakenIn, Stop> {
        let now = batch.now();
        let bytes_max = batch.shared.options.page_bounds.claim_bytes_max;
        let (rows, is_cut) = read(batch.connection, (0, self.take_in.limit), bytes_max)?;
        let is_full = rows.len() == self.take_in.limit;
        let mut taken = TakenIn { taken_count: rows.len(), refused_count: 0, more: is_cut || is_full };
        for row in rows {
            let refused = match self.unread.iter().find(|(number, _)| *number == row.number) {
                Some((_, complaint)) => Err(complaint.clone()),
                None => self.take(batch, &row, now)?,
            };
            if let Err(reason) = refused {
                taken.refused_count += 1;
                refusals::put(batch.connection, &row.enqueued, (&reason, now))?;
            }
            batch.connection.prepare_cached(sql::INTAKE_TAKE)?.execute([row.number])?;
        }
        Ok(taken)
    }

    fn can_do_without(&mut self) -> bool {
        std::mem::take(&mut self.is_taught)
    }
}

impl TakeInWork {
    /// Does what a row says. Returns why it is refused.
    fn take(
        &mut self,
        batch: &mut Batch<'_>,
        row: &Numbered,
        now: Timestamp,
    ) -> Result<Result<(), String>, Stop> {
        if let Some(fault) = row.fault {
            return Ok(Err(fault.to_owned()));
        }
        let message = match row.enqueued.message(now) {
            Ok(message) => message,
            Err(refusal) => return Ok(Err(refusal.to_string())),
        };
        batch.connection.prepare_cached(sql::SAVEPOINT)?.execute([])?;
        let notice_count = batch.effects.notices.messages.len();
        let settled_count = batch.effects.settled.len();
        let counted = batch.tallies.mark();
        let refused = match submit::submit(batch, &message, (None, now), None) {
            Ok(_) => Ok(()),
            Err(stop) if stop.is_unread() => {
                self.unread.push((row.number, stop.complaint()));
                self.is_taught = true;
                return Err(stop);
            }
            Err(stop) => match stop.aside() {
                Stop::Refused(error) => Err(error.to_string()),
                stop => return Err(stop),
            },
        };
        if refused.is_err() {
            batch.connection.prepare_cached(sql::SAVEPOINT_ROLLBACK)?.execute([])?;
            batch.effects.notices.messages.truncate(notice_count);
            batch.effects.settled.truncate(settled_count);
            batch.tallies.undo_to(counted);
            *batch.caches = Caches::default();
        }
        batch.connection.prepare_cached(sql::SAVEPOINT_RELEASE)?.execute([])?;
        Ok(refused)
    }
}

/// Puts rows into the intake table. Only a store in memory needs it: no other connection reaches
/// its database.
pub(crate) struct EnqueueWork(pub(crate) Vec<Enqueued>);

impl Operation for EnqueueWork {
    type Output = ();
    const WHAT: &'static str = "enqueue";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<(), Stop> {
        batch.connection.prepare_cached(sql::SAVEPOINT)?.execute([])?;
        let put = self.0.iter().try_for_each(|row| put(batch.connection, row));
        if put.is_err() {
            batch.connection.prepare_cached(sql::SAVEPOINT_ROLLBACK)?.execute([])?;
        }
        batch.connection.prepare_cached(sql::SAVEPOINT_RELEASE)?.execute([])?;
        put.map_err(|error| Stop::from(error).aside())?;
        batch.effects.notices.intake = true;
        Ok(())
    }
}

/// Puts a row into the intake table, in the transaction of this connection.
pub fn put(connection: &Connection, row: &Enqueued) -> rusqlite::Result<()> {
    let Enqueued { id, namespace, verb, execution, name, input, options, sender } = row;
    let mut statement = connection.prepare_cached(sql::INTAKE_PUT)?;
    statement.execute(params![id, namespace, verb, execution, name, input, options, sender]).map(drop)
}

/// Returns what SQLite's complaint about such a row means.
pub(crate) fn enqueuing(error: &rusqlite::Error) -> Error {
    let is_unfit = error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation);
    let is_elsewhere = matches!(error, rusqlite::Error::SqlInputError { .. });
    if is_unfit || is_elsewhere {
        return Refusal::Unsupported { what: format!("it cannot be enqueued: {error}") }.into();
    }
    reading("enqueue", error)
}

/// Whether there are rows in the intake table.
pub(crate) fn is_waiting(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare_cached(sql::INTAKE_ANY)?.query_row([], |row| row.get(0))
}

/// Returns what stands in the intake table, and what of it was refused: up to so many rows of each.
pub(crate) fn look(connection: &Connection, limit: usize, bytes_max: usize) -> Result<IntakeLook, Stop> {
    let (waiting, _) = read(connection, (0, limit), bytes_max)?;
    let waiting = waiting.into_iter().map(|row| row.enqueued).collect();
    let mut statement = connection.prepare_cached(sql::REFUSALS_NEWEST)?;
    let mut rows = statement.query([integer(limit as u64)])?;
    let mut refused = Vec::new();
    while let Some(row) = rows.next()? {
        match refusals::read(row) {
            Ok((_, item)) => refused.push(item),
            // One damaged row hides no others; `verify` names it.
            Err(stop) if stop.damage().is_some() => {}
            Err(stop) => return Err(stop),
        }
    }
    Ok(IntakeLook { waiting, refused })
}

/// A row of the intake table.
pub(crate) struct Numbered {
    pub(crate) number: i64,
    pub(crate) enqueued: Enqueued,
    /// Why it is not even a row, if it is not.
    fault: Option<&'static str>,
}

/// Reads rows of the intake table, oldest first, and whether more of them are too large to be read
/// with these.
pub(crate) fn read(
    connection: &Connection,
    (after, limit): (i64, usize),
    bytes_max: usize,
) -> Result<(Vec<Numbered>, bool), Stop> {
    let mut statement = connection.prepare_cached(sql::INTAKE_ROWS)?;
    let mut rows = statement.query([after, integer(limit as u64)])?;
    let (mut found, mut byte_count) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        if byte_count >= bytes_max {
            return Ok((found, true));
        }
        let row = numbered(row)?;
        byte_count += row.enqueued.input.len() + row.enqueued.options.len();
        found.push(row);
    }
    Ok((found, false))
}

/// Reads a row in which there may be anything.
fn numbered(row: &Row<'_>) -> Result<Numbered, Stop> {
    let mut fault = None;
    let mut text = |column: usize| -> rusqlite::Result<String> {
        Ok(match row.get_ref(column)? {
            ValueRef::Text(bytes) => String::from_utf8(bytes.to_vec()).unwrap_or_else(|error| {
                fault = Some("it is not in UTF-8");
                String::from_utf8_lossy(error.as_bytes()).into_owned()
            }),
            _ => {
                fault = Some("one of its columns is no text");
                String::new()
            }
        })
    };
    let enqueued = Enqueued {
        id: text(1)?,
        namespace: text(2)?,
        verb: text(3)?,
        execution: text(4)?,
        name: text(5)?,
        input: text(6)?,
        options: text(7)?,
        sender: text(8)?,
    };
    Ok(Numbered { number: row.get(0)?, enqueued, fault })
}
