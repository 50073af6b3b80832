//! `repair`: tags, which are derived from the executions.

use std::ops::ControlFlow;
use std::sync::Arc;

use abide_core::Start;
use rusqlite::{Connection, Row, params_from_iter};

use super::Repairs;
use crate::apply::first_start;
use crate::batch::Batch;
use crate::error::{Stop, read_or_not};
use crate::gaps::walk;
use crate::job::Operation;
use crate::rows::Raw;
use crate::sheet::Base;
use crate::sql;

/// The row of a tag.
pub(crate) type TagRow = [Raw; 4];

/// The most tags to delete at once, and the most executions to tag at once.
const COUNT_MAX: usize = 1_000;
/// The most bytes to read for that; the last execution may exceed it.
const BYTES_MAX: usize = 1 << 20;

/// Returns the first tags that no execution was started with. Skips tags of unreadable executions.
pub(crate) fn wrong_tags(connection: &Connection) -> Result<Vec<TagRow>, Stop> {
    let mut statement = connection.prepare_cached(sql::REPAIR_TAGS)?;
    let mut rows = statement.query([])?;
    let mut wrong = Vec::new();
    while let Some(row) = rows.next()? {
        if wrong.len() < COUNT_MAX && is_wrong(connection, row)? {
            wrong.push([Raw::read(row, 8)?, Raw::read(row, 9)?, Raw::read(row, 10)?, Raw::read(row, 11)?]);
        }
    }
    Ok(wrong)
}

fn is_wrong(connection: &Connection, row: &Row<'_>) -> Result<bool, Stop> {
    if row.get::<_, Option<i64>>(0)?.is_none() {
        return Ok(true);
    }
    let Ok(base) = Base::read(row) else { return Ok(false) };
    let Ok(sheet) = base.sheet() else { return Ok(false) };
    let Ok(start) = first_start(connection, base.key, sheet.cold.origin()) else { return Ok(false) };
    let is_there = row.get(8).is_ok_and(|namespace: i64| namespace == base.namespace);
    let told: (Option<String>, Option<String>) = (row.get(9).ok(), row.get(10).ok());
    let mut tags = start.tags.iter().map(|tag| (Some(tag.key.to_string()), Some(tag.value.to_string())));
    Ok(!is_there || tags.all(|tag| tag != told))
}

/// The start of an execution with tags, if it can be read.
struct Tagged {
    key: i64,
    namespace: i64,
    start: Arc<Start>,
}

impl Tagged {
    fn read(connection: &Connection, row: &Row<'_>) -> Option<Self> {
        let base = Base::read(row).ok()?;
        let cold = base.sheet().ok()?.cold;
        let start = first_start(connection, base.key, cold.origin()).ok().filter(|_| cold.tagged)?;
        Some(Self { key: base.key, namespace: base.namespace, start })
    }

    fn find(connection: &Connection, key: i64) -> Result<Option<Self>, Stop> {
        let mut statement = connection.prepare_cached(sql::EXECUTION_LEASED)?;
        let mut rows = statement.query([key])?;
        Ok(rows.next()?.and_then(|row| Self::read(connection, row)))
    }
}

/// Returns the columns of a tag, if they have the right types.
fn typed(row: &Row<'_>) -> Option<(i64, String, String, i64)> {
    Some((row.get(0).ok()?, row.get(1).ok()?, row.get(2).ok()?, row.get(3).ok()?))
}

/// Whether every tag has columns of the right types and follows the one before it, so that lookups
/// find all of them.
pub(crate) fn are_in_order(connection: &Connection) -> Result<bool, Stop> {
    let mut statement = connection.prepare_cached(sql::TAGS)?;
    let mut rows = statement.query([])?;
    let mut before = None;
    while let Some(next) = read_or_not(rows.next().map_err(Stop::from))? {
        let Some(row) = next else { return Ok(true) };
        let found = typed(row);
        if found <= before {
            return Ok(false);
        }
        before = found;
    }
    Ok(false)
}

/// Returns the readable tags that cannot be derived: their executions are unreadable or gone.
pub(crate) fn underived_tags(connection: &Connection) -> Result<Vec<TagRow>, Stop> {
    let mut statement = connection.prepare_cached(sql::TAGS)?;
    let mut rows = statement.query([])?;
    let mut underived = Vec::new();
    while let Some(Some(row)) = read_or_not(rows.next().map_err(Stop::from))? {
        let Some((.., key)) = typed(row) else { continue };
        if read_or_not(Tagged::find(connection, key))?.flatten().is_none() {
            underived.push([Raw::read(row, 0)?, Raw::read(row, 1)?, Raw::read(row, 2)?, Raw::read(row, 3)?]);
        }
    }
    Ok(underived)
}

/// Executions that have tags.
#[derive(Default)]
pub(crate) struct TaggedKeys {
    pub(crate) keys: Vec<i64>,
    /// The number to continue after; nothing at the end.
    pub(crate) next: Option<i64>,
}

/// Returns the first executions after `after` that have tags, as many as one transaction may tag.
pub(crate) fn tagged_behind(connection: &Connection, after: i64) -> Result<TaggedKeys, Stop> {
    let (mut found, mut byte_count) = (TaggedKeys::default(), 0);
    walk(connection, (sql::EXECUTION_ROWS_AFTER, after), |row| {
        let Some(Tagged { key, start, .. }) = Tagged::read(connection, row) else {
            return Ok(ControlFlow::Continue(()));
        };
        found.keys.push(key);
        byte_count += start.input.as_bytes().len();
        if found.keys.len() < COUNT_MAX && byte_count < BYTES_MAX {
            return Ok(ControlFlow::Continue(()));
        }
        found.next = Some(key);
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// Whether every execution is found by its number.
pub(crate) fn are_executions_in_order(connection: &Connection) -> Result<bool, Stop> {
    let (mut last, mut are_in_order) = (0, true);
    walk(connection, (sql::EXECUTION_ROWS_AFTER, 0), |row| {
        let key = row.get(0)?;
        are_in_order &= key > last;
        last = key;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(are_in_order)
}

/// Deletes all tags except these, including tags that are out of order.
pub(crate) struct ClearTagsWork(pub(crate) Vec<TagRow>);

impl Operation for ClearTagsWork {
    type Output = ();
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<(), Stop> {
        batch.readable(|batch| {
            batch.connection.prepare_cached(sql::TAGS_CLEAR)?.execute([])?;
            for tag in &self.0 {
                batch.connection.prepare_cached(sql::TAG_INSERT)?.execute(params_from_iter(tag))?;
            }
            Ok(())
        })
    }
}

/// Tags executions, so that lookups find them.
pub(crate) struct TagWork(pub(crate) Vec<i64>);

impl Operation for TagWork {
    type Output = ();
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<(), Stop> {
        batch.readable(|batch| {
            for key in &self.0 {
                if let Some(Tagged { key, namespace, start }) = Tagged::find(batch.connection, *key)? {
                    batch.tag(&start, (namespace, key))?;
                }
            }
            Ok(())
        })
    }
}

/// Deletes tags, as far as lookups find them. Missing tags were restored with their executions.
pub(crate) struct RepairTagsWork(pub(crate) Vec<TagRow>);

impl Operation for RepairTagsWork {
    type Output = Repairs;
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Repairs, Stop> {
        batch.readable(|batch| delete(batch, &self.0))
    }
}

fn delete(batch: &Batch<'_>, tags: &[TagRow]) -> Result<Repairs, Stop> {
    let mut repaired = Repairs::default();
    for tag in tags {
        if batch.connection.prepare_cached(sql::TAG_DELETE)?.execute(params_from_iter(tag))? == 0 {
            continue;
        }
        let [_, key, value, _] = tag;
        let tag = format!("{key}={value}");
        repaired.rebuilt.push(format!("the tag {tag:?}, which nothing was started with, was deleted"));
    }
    Ok(repaired)
}
