//! `prune`: removes executions that finished long ago, with everything that belongs to them.

use abide_core::Tag;
use abide_store::Prune;
use rusqlite::{OptionalExtension, params};

use super::message::first_start;
use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::sheet::{Base, Cold};
use crate::{journal, refusals, sheaf, sql};

/// Looks at a stretch of the journal. A run ends with its last entry, so the heads of finished
/// chains stand there in the order in which they ended: no index has to be kept for this, and each
/// stretch is looked at once in the life of a store.
pub(crate) struct PruneWork(pub(crate) Prune);

/// The result of one stretch.
pub(crate) struct Pruned {
    pub(crate) count: u64,
    /// Whether nothing more can be found.
    pub(crate) is_done: bool,
}

/// The number of journal rows that one transaction looks at.
const STRETCH: i64 = 10_000;

/// An execution that has ended.
struct Old {
    place_at: i64,
    key: i64,
    namespace: i64,
    cold: Cold,
    head: i64,
}

impl Operation for PruneWork {
    type Output = Pruned;
    const WHAT: &'static str = "prune";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Pruned, Stop> {
        let before = self.0.finished_before.as_micros();
        let from: Option<i64> = batch
            .connection
            .prepare_cached(sql::META_GET)?
            .query_row(["pruned_to"], |row| row.get(0))
            .optional()?;
        let from = from.unwrap_or(0);
        let end = sheaf::row_max(batch.connection)?;
        let to = end.min(from.saturating_add(STRETCH));
        let ended = ended(batch, (from.saturating_add(1), to))?;
        let is_due = |old: &&Old| old.place_at < before;
        let old: Vec<&Old> = ended.iter().take_while(is_due).take(self.0.limit).collect();
        if !old.is_empty() {
            remember(batch, ("execution_key_max", sql::EXECUTION_KEY_MAX))?;
            batch.connection.prepare_cached(sql::META_SET)?.execute(params!["journal_row_max", end])?;
        }
        let mut count = 0;
        for execution in &old {
            let found = belongings(batch, execution);
            match found.and_then(|found| Ok((found, batch.kept_by(execution.key)?))) {
                Ok((belongings, kept)) => {
                    if let Some(kept) = kept {
                        batch.let_go(kept)?;
                    }
                    delete(batch, execution, &belongings)?;
                    count += 1;
                }
                Err(stop) => {
                    let Some(damage) = stop.damage() else { return Err(stop) };
                    tracing::error!(key = execution.key, %damage, "an execution is damaged and is not pruned");
                }
            }
        }
        // The executions that were not removed come first the next time.
        let reached = ended.get(old.len()).map_or(to, |next| next.head - 1);
        if reached > from {
            batch.connection.prepare_cached(sql::META_SET)?.execute(params!["pruned_to", reached])?;
        }
        prune_sessions(batch, before)?;
        refusals::prune(batch.connection, before)?;
        let is_done = old.len() < ended.len() || old.len() >= self.0.limit || to == end;
        Ok(Pruned { count, is_done })
    }
}

fn prune_sessions(batch: &Batch<'_>, before: i64) -> rusqlite::Result<()> {
    if batch.connection.prepare_cached(sql::SESSIONS_OLD)?.exists([before])? {
        remember(batch, ("session_id_max", sql::SESSION_ID_MAX))?;
        batch.connection.prepare_cached(sql::SESSIONS_PRUNE)?.execute([before])?;
    }
    Ok(())
}

/// Returns the executions whose last entry is one of these rows, in the order in which they ended.
fn ended(batch: &Batch<'_>, stretch: (i64, i64)) -> Result<Vec<Old>, Stop> {
    let mut statement = batch.connection.prepare_cached(sql::FINISHED_HEAD)?;
    let mut found = Vec::new();
    sheaf::list(batch.connection, stretch, |listed| {
        let mut rows = statement.query((listed.execution, listed.number))?;
        let Some(row) = rows.next()? else { return Ok(()) };
        let base = Base::read(row)?;
        // A damaged execution stays for somebody to look at.
        let Ok(sheet) = base.sheet() else { return Ok(()) };
        found.push(Old {
            place_at: row.get(8)?,
            key: base.key,
            namespace: base.namespace,
            cold: sheet.cold,
            head: base.anchor.head,
        });
        Ok(())
    })?;
    Ok(found)
}

/// Keeps the greatest number of a table: it is not used again when the row that had it is gone.
fn remember(batch: &Batch<'_>, (name, statement): (&str, &str)) -> rusqlite::Result<()> {
    let max: i64 = batch.connection.prepare_cached(statement)?.query_row([], |row| row.get(0))?;
    batch.connection.prepare_cached(sql::META_SET)?.execute(params![name, max])?;
    Ok(())
}

/// The rows that are removed with an execution.
struct Belongings {
    tags: Vec<Tag>,
    rows: Vec<i64>,
}

/// Finds all rows of an execution before any of them is removed: a damaged execution stays whole,
/// for somebody to look at.
fn belongings(batch: &Batch<'_>, old: &Old) -> Result<Belongings, Stop> {
    let tags = match old.cold.tagged {
        true => first_start(batch.connection, old.key, old.cold.first)?.tags.clone(),
        false => Vec::new(),
    };
    let mut rows = Vec::new();
    // Through all runs: the first entry of each follows the last one of the run before.
    let mut next = Some(old.head);
    while let Some(row) = next {
        let found = sheaf::find(batch.connection, row, |part| Ok((part.previous()?, part.execution()?)))?;
        let (previous, owner) = found.ok_or_else(|| journal::missing(row))?;
        // Links lead back. A link that does not might lead round and round.
        if owner != old.key || previous.is_some_and(|previous| previous >= row) {
            return Err(Stop::corrupt(format!("journal row {row} is damaged")));
        }
        rows.push(row);
        next = previous;
    }
    Ok(Belongings { tags, rows })
}

fn delete(batch: &mut Batch<'_>, old: &Old, Belongings { tags, rows }: &Belongings) -> Result<(), Stop> {
    let mut remove = batch.connection.prepare_cached(sql::TAG_DELETE)?;
    for tag in tags {
        remove.execute(params![old.namespace, tag.key.as_str(), tag.value.as_str(), old.key])?;
    }
    sheaf::remove(batch.connection, rows)?;
    batch.connection.prepare_cached(sql::PRUNE_RUNS)?.execute([old.key])?;
    batch.connection.prepare_cached(sql::PRUNE_INBOX)?.execute([old.key])?;
    batch.connection.prepare_cached(sql::PRUNE_EXECUTION)?.execute([old.key])?;
    batch.caches.rows.remove(&old.key);
    batch.caches.inboxes.remove(&old.key);
    batch.caches.answers.forget(old.key);
    batch.caches.targets.remove(&old.key);
    // Another execution may get its id, whose children are not its own.
    batch.caches.last_parent.take_if(|(_, _, key)| *key == old.key);
    Ok(())
}
