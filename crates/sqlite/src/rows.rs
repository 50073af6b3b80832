//! Rows as Rust values: the numbers of SQLite are signed.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use abide_core::intake::Standing;
use abide_core::planted::{Bug, planted};
use abide_core::{
    Ability, Address, Epoch, Execution, LeaseRow, Listens, SessionId, Status, Timestamp, Version, codec,
};
use rusqlite::types::{ToSql, ToSqlOutput, Type, Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row};
use serde::de::DeserializeOwned;

use crate::answers::Keeping;
use crate::error::{BatchFailure, Meaning, Stop};
use crate::place::{Place, ReadyQueue};
use crate::room::Room;
use crate::sheet::{Anchor, Base, Cold};
use crate::sql;
use crate::tail::{Current, Steady};

/// Converts a number for SQLite. Counters and times never come near the limit.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the number of rows that shows whether more than `count` are there.
pub(crate) fn one_more(count: usize) -> usize {
    if planted(Bug::TakeOverflows) { count + 1 } else { count.saturating_add(1) }
}

/// Converts the number of a row, or one that was computed here: never negative. Counts in columns
/// are read by [`count`].
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The end of the range of counts. It is so far from SQLite's limit that no addition to a sound
/// count reaches that.
const COUNT_END: i64 = 1 << 62;

/// Returns a number that may be a count. Counts are never negative: such a number, or one near the
/// limit, is damage, and a substitute would write a row that the next lookup does not find.
pub(crate) fn sound_count(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|_| number < COUNT_END)
}

/// Reads a count from a column.
pub(crate) fn count(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(index)?;
    sound_count(number).ok_or_else(|| {
        let name = row.as_ref().column_name(index).unwrap_or("?");
        let complaint = format!("there is no {name} {number}");
        rusqlite::Error::FromSqlConversionFailure(index, Type::Integer, complaint.into())
    })
}

pub(crate) fn epoch(row: &Row<'_>, index: usize) -> rusqlite::Result<Epoch> {
    count(row, index).map(Epoch)
}

pub(crate) fn micros(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::as_micros)
}

pub(crate) fn timestamp(row: &Row<'_>, index: usize) -> rusqlite::Result<Timestamp> {
    row.get(index).map(Timestamp::from_micros)
}

pub(crate) fn timestamp_maybe(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(index)?.map(Timestamp::from_micros))
}

/// Reads a number from a column; returns nothing if it is something else.
pub(crate) fn number(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<i64>> {
    Ok(match row.get_ref(index)? {
        ValueRef::Integer(number) => Some(number),
        ValueRef::Null | ValueRef::Real(_) | ValueRef::Text(_) | ValueRef::Blob(_) => None,
    })
}

/// Reads a text from a column.
pub(crate) fn text<'r>(row: &'r Row<'_>, index: usize) -> rusqlite::Result<&'r str> {
    match row.get_ref(index)? {
        ValueRef::Text(bytes) => std::str::from_utf8(bytes)
            .map_err(|error| rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(error))),
        other => Err(unexpected(row, index, other.data_type())),
    }
}

/// Reads bytes from a column.
pub(crate) fn blob<'r>(row: &'r Row<'_>, index: usize) -> rusqlite::Result<&'r [u8]> {
    match row.get_ref(index)? {
        ValueRef::Blob(bytes) => Ok(bytes),
        other => Err(unexpected(row, index, other.data_type())),
    }
}

/// Returns the error for a column of the wrong type.
fn unexpected(row: &Row<'_>, index: usize, found: Type) -> rusqlite::Error {
    let name = row.as_ref().column_name(index).unwrap_or("?").to_owned();
    rusqlite::Error::InvalidColumnType(index, name, found)
}

/// Returns the status for the index of statuses, which finds few executions among many. It does
/// not have an execution with another status.
pub(crate) fn indexed(status: Status) -> Option<u8> {
    match status {
        Status::Blocked | Status::Failed | Status::Cancelled => Some(status as u8),
        Status::Scheduled
        | Status::Running
        | Status::Sleeping
        | Status::Waiting
        | Status::Paused
        | Status::Completed
        | Status::Damaged => None,
    }
}

/// Reads the status from its column as it is. A commit replaces a damaged one.
fn listed(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<i64>> {
    Ok(match row.get_ref(index)? {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number),
        ValueRef::Real(_) | ValueRef::Text(_) | ValueRef::Blob(_) => Some(-1),
    })
}

/// Reads the status from its column, if the index of statuses has it.
pub(crate) fn status(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<Status>> {
    let Some(number) = row.get::<_, Option<u8>>(index)? else { return Ok(None) };
    let status = Status::from_number(number).filter(|status| indexed(*status).is_some());
    status.map(Some).ok_or_else(|| {
        let complaint = format!("there is no status {number} in the index");
        rusqlite::Error::FromSqlConversionFailure(index, Type::Integer, complaint.into())
    })
}

/// Decodes a value of `abide-core` from a column.
pub(crate) fn decoded<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> rusqlite::Result<T> {
    codec::decode(blob(row, index)?)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(index, Type::Blob, Box::new(error)))
}

/// Any value of a column, unchanged, even an invalid text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Raw {
    Text(Vec<u8>),
    Other(Value),
}

impl Raw {
    pub(crate) fn read(row: &Row<'_>, index: usize) -> rusqlite::Result<Self> {
        match row.get_ref(index)? {
            ValueRef::Text(bytes) => Ok(Self::Text(bytes.to_vec())),
            _ => row.get(index).map(Self::Other),
        }
    }
}

impl ToSql for Raw {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Text(bytes) => Ok(ToSqlOutput::Borrowed(ValueRef::Text(bytes))),
            Self::Other(value) => value.to_sql(),
        }
    }
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Other(Value::Integer(number)) => number.fmt(f),
            Self::Other(other) => write!(f, "{other:?}"),
        }
    }
}

/// The data that decides about a commit, and the data that is written with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseState {
    pub(crate) lease: LeaseRow,
    /// The number of the holder's heartbeats before the lease.
    pub(crate) given_beat: u64,
    /// Whether it is one of the [newborns](crate::newborns) of its holder.
    pub(crate) is_newborn: bool,
    pub(crate) queue: ReadyQueue,
    pub(crate) anchor: Anchor,
    pub(crate) cold: Cold,
    pub(crate) entry_count: u64,
    /// The status in its row, which the index of statuses lists.
    pub(crate) listed: Option<i64>,
    pub(crate) takeover_count: u32,
    pub(crate) care_at: Option<Timestamp>,
    pub(crate) room: Room,
    /// The facts in its row, which a [tail](crate::tail) leaves as they are.
    pub(crate) written: Written,
}

/// The facts in the row of an execution that its journal may have gone beyond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) head: i64,
    pub(crate) version: Version,
    /// The steady part of its summary, if this writer knows it.
    pub(crate) steady: Option<Steady>,
}

impl Written {
    /// Returns the facts of a row whose summary is not known here.
    pub(crate) fn of(anchor: &Anchor) -> Self {
        Self { head: anchor.head, version: anchor.version, steady: None }
    }
}

impl LeaseState {
    pub(crate) fn read(connection: &Connection, key: i64) -> Result<Option<Self>, Stop> {
        let mut statement = connection.prepare_cached(sql::EXECUTION_LEASE)?;
        let found = statement.query_row([key], Self::of).optional()?;
        drop(statement);
        let Some((mut state, current)) = found else { return Ok(None) };
        let current = current.follow(connection)?;
        (state.lease.version, state.anchor.version) = (current.version, current.version);
        state.anchor.head = current.chain.head;
        state.cold.row_count = current.chain.row_count;
        state.entry_count = current.chain.entry_count;
        Ok(Some(state))
    }

    /// Reads the row, without its tail.
    fn of(row: &Row<'_>) -> rusqlite::Result<(Self, Current)> {
        let base = Base::read(row)?;
        let sheet = base.sheet()?;
        // A commit replaces the summary, so it must be readable.
        sheet.standing()?;
        let place = Place::read(row, 9)?;
        let lease =
            LeaseRow { session: place.session(), epoch: epoch(row, 8)?, version: base.anchor.version };
        let current = Current::read(&base, &sheet)?;
        let mut state = Self {
            lease,
            given_beat: place.holder().map_or(0, |holder| holder.beat),
            is_newborn: place.holder().is_some_and(|holder| holder.is_newborn),
            queue: base.queue,
            anchor: base.anchor,
            cold: sheet.cold,
            entry_count: current.chain.entry_count,
            listed: listed(row, 14)?,
            takeover_count: row.get(12)?,
            care_at: timestamp_maybe(row, 13)?,
            room: Room::default(),
            written: Written::of(&base.anchor),
        };
        state.sheet_room(Some(place.columns()));
        state.fill(base.sheet_length());
        Ok((state, current))
    }
}

/// The columns of a session that the writer needs.
#[derive(Clone, Debug)]
pub(crate) struct SessionState {
    pub(crate) ability: Arc<Ability>,
    pub(crate) ttl: Duration,
    pub(crate) expires_at: Timestamp,
    pub(crate) retired: bool,
}

impl SessionState {
    /// Lets the session live for a whole time to live from now on. Returns when it expires.
    pub(crate) fn extend(&mut self, now: Timestamp) -> Timestamp {
        // A clock that was set back must not shorten a promised time.
        self.expires_at = self.expires_at.max(now.after(self.ttl));
        self.expires_at
    }

    pub(crate) fn read(connection: &Connection, session: SessionId) -> rusqlite::Result<Option<Self>> {
        let mut statement = connection.prepare_cached(sql::SESSION)?;
        statement
            .query_row([integer(session.0)], |row| match Self::of(row) {
                // An unreadable session is over, so that its worker registers again.
                Err(error)
                    if matches!(BatchFailure::of(&error).meaning, Meaning::Corrupt | Meaning::Newer) =>
                {
                    Ok(None)
                }
                read => read.map(Some),
            })
            .optional()
            .map(Option::flatten)
    }

    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        // Each heartbeat reads this: if it were unreadable, the heartbeat would fail for ever.
        let _taken: i64 = row.get(4)?;
        Ok(Self {
            ability: Arc::new(decoded(row, 0)?),
            ttl: Duration::from_micros(count(row, 1)?),
            expires_at: timestamp(row, 2)?,
            retired: row.get(3)?,
        })
    }

    pub(crate) fn is_live(&self, now: Timestamp) -> bool {
        !self.retired && now < self.expires_at
    }
}

/// An execution that a message goes to.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) key: i64,
    /// The epoch; `None` if it is unreadable.
    pub(crate) epoch: Option<Epoch>,
    pub(crate) queue: ReadyQueue,
    pub(crate) place: Place,
    /// The first journal row of its first run.
    pub(crate) origin: i64,
    /// Where the answers of its children are.
    pub(crate) keeping: Keeping,
    pub(crate) standing: Standing,
    /// Whether its state is that before its [tail](crate::tail).
    has_tail: bool,
    /// Its state, as in its row; decoded on demand.
    state: Vec<u8>,
    execution: OnceLock<Execution>,
    address: Address,
    /// The time of a caretaker's next look.
    pub(crate) care_at: Option<Timestamp>,
}

impl Target {
    pub(crate) fn read(
        connection: &Connection,
        namespace: i64,
        address: &Address,
    ) -> rusqlite::Result<Option<Self>> {
        let mut statement = connection.prepare_cached(sql::EXECUTION_TARGET)?;
        statement
            .query_row(rusqlite::params![namespace, address.id.as_str()], |row| {
                let base = Base::read(row)?;
                let sheet = base.sheet()?;
                Ok(Self {
                    key: base.key,
                    epoch: Some(epoch(row, 8)?),
                    queue: base.queue,
                    place: Place::read(row, 9)?,
                    origin: sheet.cold.origin(),
                    keeping: sheet.cold.keeping,
                    standing: sheet.standing()?,
                    has_tail: sheet.cold.has_tail,
                    state: sheet.state.to_vec(),
                    execution: OnceLock::new(),
                    address: address.clone(),
                    care_at: timestamp_maybe(row, 12)?,
                })
            })
            .optional()
    }

    /// Returns a row whose sheet is unreadable, from its columns alone. A message that nobody sends
    /// again goes there all the same.
    pub(crate) fn unreadable(
        connection: &Connection,
        namespace: i64,
        address: &Address,
    ) -> rusqlite::Result<Option<Self>> {
        let mut statement = connection.prepare_cached(sql::EXECUTION_UNREADABLE)?;
        statement
            .query_row(rusqlite::params![namespace, address.id.as_str()], |row| {
                let place = Place::read(row, 3).unwrap_or(Place::Damaged(Timestamp::default()));
                let status = match (status(row, 6), place) {
                    (Ok(Some(status)), _) => status,
                    (Ok(None), Place::Finished(_)) => Status::Completed,
                    (Ok(None), _) | (Err(_), _) => Status::Damaged,
                };
                Ok(Self {
                    key: row.get(0)?,
                    epoch: epoch(row, 2).ok(),
                    queue: ReadyQueue::of(number(row, 1)?.unwrap_or(0)),
                    place,
                    origin: 0,
                    keeping: Keeping::Never,
                    // The next holder finds the fault.
                    standing: Standing { status, listens: Listens::Everything, run: None },
                    has_tail: false,
                    state: Vec::new(),
                    execution: OnceLock::new(),
                    address: address.clone(),
                    care_at: number(row, 7)?.map(Timestamp::from_micros),
                })
            })
            .optional()
    }

    /// Returns its state. Most messages do not need it.
    pub(crate) fn execution(&self, connection: &Connection) -> Result<&Execution, Stop> {
        if let Some(known) = self.execution.get() {
            return Ok(known);
        }
        let found = match self.has_tail {
            true => Current::find(connection, self.key)?.execution,
            false => codec::decode(&self.state)?,
        };
        Ok(self.execution.get_or_init(|| found.at(self.address.clone())))
    }
}
