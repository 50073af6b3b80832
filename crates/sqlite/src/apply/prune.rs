//! `prune`: what finished long ago goes, with everything that belongs to it.

use abide_store::Prune;
use rusqlite::params;

use super::message::first_start;
use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::place;
use crate::rows::{count, integer};
use crate::sql;

pub(crate) struct PruneWork(pub(crate) Prune);

/// An execution that goes.
struct Old {
    key: i64,
    namespace: i64,
    first: i64,
    head: i64,
    entry_count: u64,
    tagged: bool,
}

impl Operation for PruneWork {
    type Output = u64;
    const WHAT: &'static str = "prune";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<u64, Stop> {
        let before = self.0.finished_before.as_micros();
        let mut statement = batch.connection.prepare_cached(sql::FINISHED_BEFORE)?;
        let rows = statement.query_map([place::finished(), before, integer(self.0.limit as u64)], |row| {
            Ok(Old {
                key: row.get(0)?,
                namespace: row.get(1)?,
                first: row.get(2)?,
                head: row.get(3)?,
                entry_count: count(row.get(4)?),
                tagged: row.get(5)?,
            })
        })?;
        let old = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        drop(statement);
        if !old.is_empty() {
            remember_numbers(batch)?;
        }
        for execution in &old {
            delete(batch, execution)?;
        }
        batch.connection.prepare_cached(sql::SESSIONS_PRUNE)?.execute([before])?;
        Ok(old.len() as u64)
    }
}

/// Numbers are not given again when the rows that had the greatest ones are gone.
fn remember_numbers(batch: &mut Batch<'_>) -> Result<(), Stop> {
    let maxima = [("execution_key_max", sql::EXECUTION_KEY_MAX), ("journal_row_max", sql::JOURNAL_ROW_MAX)];
    for (name, statement) in maxima {
        let max: i64 = batch.connection.prepare_cached(statement)?.query_row([], |row| row.get(0))?;
        batch.connection.prepare_cached(sql::META_SET)?.execute(params![name, max])?;
    }
    Ok(())
}

fn delete(batch: &mut Batch<'_>, old: &Old) -> Result<(), Stop> {
    if old.tagged {
        let start = first_start(batch.connection, old.key, old.first)?;
        let mut statement = batch.connection.prepare_cached(sql::TAG_DELETE)?;
        for tag in &start.tags {
            statement.execute(params![old.namespace, tag.key.as_str(), tag.value.as_str(), old.key])?;
        }
    }
    let mut link = batch.connection.prepare_cached(sql::JOURNAL_LINK)?;
    let mut remove = batch.connection.prepare_cached(sql::PRUNE_JOURNAL)?;
    let mut row = Some(old.head);
    for _ in 0..old.entry_count {
        let Some(current) = row else { break };
        row = link.query_row([current], |row| row.get(0))?;
        remove.execute([current, old.key])?;
    }
    drop((link, remove));
    batch.connection.prepare_cached(sql::PRUNE_INBOX)?.execute([old.key])?;
    batch.connection.prepare_cached(sql::PRUNE_EXECUTION)?.execute([old.key])?;
    batch.caches.hot.remove(&old.key);
    batch.caches.unread.remove(&old.key);
    Ok(())
}
