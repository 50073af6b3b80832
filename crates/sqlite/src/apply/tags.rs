//! `repair`: tags that nothing was started with.

use rusqlite::{Connection, Row, params_from_iter};

use super::message::first_start;
use super::repair::Repaired;
use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::sheet::Base;
use crate::sql;
use crate::wreck::Raw;

/// The row of a tag.
pub(crate) type TagRow = [Raw; 4];

/// The most tags that are deleted at once.
const COUNT_MAX: usize = 1_000;

/// The first tags that no execution was started with. Those of an execution that cannot be read are not judged.
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

/// Deletes tags, as far as they are found. Those that are missing were put back with their executions.
pub(crate) struct RepairTagsWork(pub(crate) Vec<TagRow>);

impl Operation for RepairTagsWork {
    type Output = Repaired;
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Repaired, Stop> {
        batch.readable(|batch| delete(batch, &self.0))
    }
}

fn delete(batch: &Batch<'_>, tags: &[TagRow]) -> Result<Repaired, Stop> {
    let mut repaired = Repaired::default();
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
