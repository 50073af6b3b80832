//! Refused rows of the intake table, for the feed.

use abide_core::{Address, Enqueued, Timestamp};
use abide_store::{FeedItem, RefusedRow};
use rusqlite::{Connection, Row, params};

use crate::checksum::{self, CHECKSUM_BYTES, Checksum};
use crate::error::Stop;
use crate::sql;

/// Writes down that a row was refused.
pub(crate) fn put(
    connection: &Connection,
    row: &Enqueued,
    (reason, now): (&str, Timestamp),
) -> Result<(), Stop> {
    let (number, at) = (last(connection)? + 1, now.as_micros());
    let mut body = vec![0; CHECKSUM_BYTES];
    body.extend(RefusedRow::of(row, reason).encode(&row.legible_address()));
    let sum = sum((number, at), &body[CHECKSUM_BYTES..]);
    checksum::put(&mut body, sum);
    connection.prepare_cached(sql::REFUSAL_INSERT)?.execute(params![number, at, body])?;
    Ok(())
}

/// Returns the greatest number that a refusal ever had.
pub(crate) fn last(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached(sql::REFUSAL_ROW_MAX)?.query_row([], |row| row.get(0))
}

/// Reads a refusal, and its number.
pub(crate) fn read(row: &Row<'_>) -> Result<(i64, FeedItem), Stop> {
    let (number, at): (i64, i64) = (row.get(0)?, row.get(1)?);
    let damaged = || Stop::corrupt(format!("refusal {number} is damaged"));
    let body =
        checksum::checked(row.get_ref(2)?.as_blob().map_err(|_| damaged())?, |rest| sum((number, at), rest));
    let (address, refused): (Address, RefusedRow) = RefusedRow::decode(body.ok_or_else(damaged)?)?;
    Ok((number, refused.item(address, Timestamp::from_micros(at))))
}

/// Deletes old refusals. Their numbers are not used again.
pub(crate) fn prune(connection: &Connection, before: i64) -> rusqlite::Result<()> {
    if connection.prepare_cached(sql::REFUSALS_OLD)?.exists([before])? {
        let last = last(connection)?;
        connection.prepare_cached(sql::META_SET)?.execute(params!["refusal_row_max", last])?;
        connection.prepare_cached(sql::REFUSALS_PRUNE)?.execute([before])?;
    }
    Ok(())
}

fn sum((number, at): (i64, i64), body: &[u8]) -> Checksum {
    Checksum::new().number(number).number(at).bytes(body)
}
