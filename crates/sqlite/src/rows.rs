//! Rows as Rust values: the numbers of SQLite are signed.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{
    Ability, Address, Epoch, Execution, LeaseRow, SessionId, Status, Timestamp, Version, codec,
};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row};
use serde::de::DeserializeOwned;

use crate::error::Stop;
use crate::place::{Place, Queue};
use crate::sql;

/// A number as SQLite keeps it. Counters and times never come near the limit.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number from SQLite that is never negative.
pub(crate) fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
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

pub(crate) fn status(row: &Row<'_>, index: usize) -> rusqlite::Result<Status> {
    let number: u8 = row.get(index)?;
    Status::from_number(number).ok_or_else(|| {
        let complaint = format!("there is no status {number}");
        rusqlite::Error::FromSqlConversionFailure(index, Type::Integer, complaint.into())
    })
}

/// A value of `abide-core` in a column.
pub(crate) fn decoded<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> rusqlite::Result<T> {
    let bytes = row.get_ref(index)?.as_blob()?;
    codec::decode(bytes)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(index, Type::Blob, Box::new(error)))
}

/// What decides about a commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseState {
    pub(crate) lease: LeaseRow,
    pub(crate) queue: Queue,
    pub(crate) head: i64,
    pub(crate) entry_count: u64,
}

impl LeaseState {
    pub(crate) fn read(connection: &Connection, key: i64) -> rusqlite::Result<Option<Self>> {
        let mut statement = connection.prepare_cached(sql::EXECUTION_LEASE)?;
        statement
            .query_row([key], |row| {
                let lease = LeaseRow {
                    session: Place::read(row, 0)?.session(),
                    epoch: Epoch(count(row.get(3)?)),
                    version: Version(count(row.get(4)?)),
                };
                let queue = Queue { route: row.get(7)?, priority: row.get(8)? };
                Ok(Self { lease, queue, head: row.get(5)?, entry_count: count(row.get(6)?) })
            })
            .optional()
    }
}

/// A session as the writer needs it.
#[derive(Clone, Debug)]
pub(crate) struct SessionState {
    pub(crate) ability: Arc<Ability>,
    pub(crate) ttl: Duration,
    pub(crate) expires_at: Timestamp,
    pub(crate) retired: bool,
}

impl SessionState {
    pub(crate) fn read(connection: &Connection, session: SessionId) -> rusqlite::Result<Option<Self>> {
        let mut statement = connection.prepare_cached(sql::SESSION)?;
        statement
            .query_row([integer(session.0)], |row| {
                Ok(Self {
                    ability: Arc::new(decoded(row, 0)?),
                    ttl: Duration::from_micros(count(row.get(1)?)),
                    expires_at: timestamp(row, 2)?,
                    retired: row.get(3)?,
                })
            })
            .optional()
    }

    pub(crate) fn is_live(&self, now: Timestamp) -> bool {
        !self.retired && now < self.expires_at
    }
}

/// Where a message goes.
#[derive(Debug)]
pub(crate) struct TargetState {
    pub(crate) key: i64,
    pub(crate) epoch: Epoch,
    pub(crate) queue: Queue,
    pub(crate) place: Place,
    /// The first entry of its first run.
    pub(crate) origin: i64,
    pub(crate) state: Vec<u8>,
}

impl TargetState {
    pub(crate) fn read(connection: &Connection, namespace: i64, id: &str) -> Result<Option<Self>, Stop> {
        let mut statement = connection.prepare_cached(sql::EXECUTION_TARGET)?;
        let found = statement
            .query_row(rusqlite::params![namespace, id], |row| {
                Ok(Self {
                    key: row.get(0)?,
                    epoch: Epoch(count(row.get(1)?)),
                    queue: Queue { route: row.get(2)?, priority: row.get(3)? },
                    place: Place::read(row, 4)?,
                    origin: row.get(7)?,
                    state: row.get(8)?,
                })
            })
            .optional()?;
        Ok(found)
    }

    /// What decides about a message to it.
    pub(crate) fn target(self, address: &Address) -> Result<Target, Stop> {
        let Self { key, epoch, queue, place, .. } = self;
        let execution: Execution = codec::decode(&self.state)
            .map_err(|error| Stop::corrupt(format!("the state of execution {key}: {error}")))?;
        Ok(Target { key, epoch, queue, place, execution: execution.at(address.clone()) })
    }
}

/// An execution that a message goes to.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) key: i64,
    pub(crate) epoch: Epoch,
    pub(crate) queue: Queue,
    pub(crate) place: Place,
    pub(crate) execution: Execution,
}
