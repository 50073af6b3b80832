//! The row of an execution that may be damaged: each column by itself, as far as it can be read.

use std::fmt;

use abide_core::{Timestamp, Version};
use rusqlite::types::{ToSql, ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::place::{Columns, Place, Queue};
use crate::rows::sound_count;
use crate::sql;

/// What can be read of a row. Nothing stands for a column that has another type than was written, or a value that is never written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wreck {
    pub(crate) key: i64,
    pub(crate) namespace: Option<i64>,
    pub(crate) id: Option<String>,
    pub(crate) queue: Option<Queue>,
    pub(crate) parent: Option<Option<i64>>,
    pub(crate) head: Option<i64>,
    pub(crate) version: Option<Version>,
    pub(crate) sheet: Option<Vec<u8>>,
    pub(crate) epoch: Option<i64>,
    pub(crate) place: Option<Place>,
    pub(crate) columns: Option<Columns>,
    pub(crate) status: Option<i64>,
    pub(crate) care_at: Option<Option<Timestamp>>,
    pub(crate) parent_run: Option<Option<i64>>,
    pub(crate) takeover_count: Option<i64>,
}

impl Wreck {
    pub(crate) fn find(connection: &Connection, key: i64) -> rusqlite::Result<Option<Self>> {
        connection.prepare_cached(sql::WRECK)?.query_row([key], Self::read).optional()
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let number = |index| row.get::<_, i64>(index).ok();
        let count = |index| number(index).filter(|number| sound_count(*number).is_some());
        Ok(Self {
            key: row.get(0)?,
            namespace: number(1),
            id: row.get(2).ok(),
            queue: number(3).map(Queue::of),
            parent: row.get(4).ok(),
            head: number(5),
            version: number(6).and_then(sound_count).map(Version),
            sheet: row.get(7).ok(),
            epoch: count(8),
            place: Place::read(row, 9).ok(),
            columns: Columns::read(row, 9).ok(),
            status: number(12),
            care_at: row.get::<_, Option<i64>>(13).ok().map(|at| at.map(Timestamp::from_micros)),
            parent_run: row.get(14).ok(),
            takeover_count: count(15).filter(|count| u32::try_from(*count).is_ok()),
        })
    }

    /// Its id, or its number where that cannot be read.
    pub(crate) fn title(&self) -> String {
        match &self.id {
            Some(id) => format!("execution {id:?}"),
            None => format!("execution number {}", self.key),
        }
    }
}

/// Any value of a column, as it is: also a text that is none.
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
