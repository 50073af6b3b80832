//! The facts about an execution that follow from its journal.

use std::sync::Arc;

use abide_core::{Address, Entry, Event, Execution, Start, Timestamp, Version};
use rusqlite::{Connection, OptionalExtension, params};

use crate::batch::Batch;
use crate::error::Stop;
use crate::journal::{self, Chain, Found};
use crate::place::ReadyQueue;
use crate::rows::integer;
use crate::sheet::{Anchor, Cold, Identity};
use crate::view::address;
use crate::{sheaf, sql};

/// Everything that can be derived from a journal with intact rows.
pub(super) struct Truth {
    pub(super) key: i64,
    pub(super) namespace: i64,
    pub(super) address: Address,
    /// All runs, from the first on.
    pub(super) runs: Vec<Chain>,
    /// The fold of the last run's entries.
    pub(super) execution: Execution,
    /// The start of the first run.
    pub(super) start: Arc<Start>,
    pub(super) cold: Cold,
    /// The time of the last entry.
    pub(super) last_at: Timestamp,
}

impl Truth {
    /// Reads the journal that ends in row `head`.
    pub(super) fn read(batch: &mut Batch<'_>, key: i64, head: i64) -> Result<Self, Stop> {
        let (last, entries) = run_to(batch.connection, key, head)?;
        let mut runs = vec![last];
        while let Some(before) = run_before(batch.connection, runs[runs.len() - 1])? {
            runs.push(before);
        }
        runs.reverse();
        let origin = runs[0].first;
        let (namespace, id) = journal::owner(batch.connection, (origin, key))?;
        let address = address(batch.caches.interned(batch.connection)?, namespace, &id)?;
        let unbegun = || Stop::corrupt("its journal does not begin with a start");
        let run = u32::try_from(runs.len()).map_err(|_| Stop::corrupt("it has too many runs"))?;
        let execution = Execution::fold(address.clone(), run, &entries).ok_or_else(unbegun)?;
        let first = crate::apply::first_entry(batch.connection, key, origin)?;
        let Event::Started(start) = first.event else { return Err(unbegun()) };
        let cold = Cold {
            run,
            origin: (run > 1).then_some(origin),
            row_count: last.row_count,
            ..Cold::of_newborn(&start, last.first, first.at)
        };
        let last_at = entries.last().map_or(first.at, |entry| entry.at);
        Ok(Self { key, namespace, address, runs, execution, start, cold, last_at })
    }

    pub(super) fn head(&self) -> i64 {
        self.runs[self.runs.len() - 1].head
    }

    /// Returns the anchor that its sheet is sealed with.
    pub(super) fn anchor(&self, (queue, parent): (ReadyQueue, Option<i64>), version: Version) -> Anchor {
        let id = self.address.id.as_str();
        let identity = Identity { key: self.key, namespace: self.namespace, id, queue, parent };
        Anchor::new(identity, self.head(), version)
    }

    /// Checks that no other execution has taken its id while its own row had lost it.
    pub(super) fn check_id(&self, batch: &Batch<'_>) -> Result<(), Stop> {
        let mut by_id = batch.connection.prepare_cached(sql::EXECUTION_KEY)?;
        let found: Option<i64> = by_id
            .query_row(params![self.namespace, self.address.id.as_str()], |row| row.get(0))
            .optional()?;
        match found {
            Some(other) if other != self.key => {
                let id = &self.address.id;
                Err(Stop::corrupt(format!(
                    "its id is damaged: it was {id:?}, and another execution has that id now"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Writes the rows of its earlier runs, and returns whether they were wrong.
    pub(super) fn write_runs(&self, batch: &Batch<'_>) -> Result<bool, Stop> {
        let expected: Vec<[i64; 5]> = self.runs[..self.runs.len() - 1]
            .iter()
            .zip(1..)
            .map(|(run, number)| {
                [number, run.first, run.head, integer(run.entry_count), integer(run.row_count)]
            })
            .collect();
        let mut statement = batch.connection.prepare_cached(sql::REPAIR_RUNS)?;
        let told = statement.query_map([self.key], |row| {
            let column = |index| row.get::<_, i64>(index).ok();
            Ok((0..5).map(column).collect::<Option<Vec<i64>>>())
        })?;
        let told = told.collect::<rusqlite::Result<Vec<_>>>()?;
        if told.iter().map(Option::as_deref).eq(expected.iter().map(|run| Some(&run[..]))) {
            return Ok(false);
        }
        // SQLite deletes even from a page that makes no sense, and removes unrelated rows with it.
        // So all rows are read first.
        let mut all = batch.connection.prepare_cached(sql::ORDER_RUNS)?;
        let mut rows = all.query([])?;
        while rows.next()?.is_some() {}
        batch.connection.prepare_cached(sql::PRUNE_RUNS)?.execute([self.key])?;
        for [number, first, head, entry_count, row_count] in expected {
            let mut insert = batch.connection.prepare_cached(sql::RUN_ENDED)?;
            insert.execute([self.key, number, first, head, entry_count, row_count])?;
        }
        Ok(true)
    }

    /// Restores its tags, and returns whether one was missing.
    pub(super) fn write_tags(&self, batch: &Batch<'_>) -> Result<bool, Stop> {
        let mut has = batch.connection.prepare_cached(sql::TAG_HAS)?;
        let mut is_missing = false;
        for tag in &self.start.tags {
            let row = params![self.namespace, tag.key.as_str(), tag.value.as_str(), self.key];
            is_missing |= !has.exists(row)?;
        }
        if is_missing {
            batch.tag(&self.start, (self.namespace, self.key))?;
        }
        Ok(is_missing)
    }
}

/// Returns the chain of the run that ends with `head`, and its entries.
pub(crate) fn run_to(connection: &Connection, key: i64, head: i64) -> Result<(Chain, Vec<Entry>), Stop> {
    let mut rows = Vec::new();
    let mut next = Some(head);
    while let Some(row) = next {
        let found = sheaf::find_of(connection, (row, key), |part| entries_of(&part.found()?))?;
        let (entries, previous) = found.ok_or_else(|| journal::missing(row))?;
        next = previous;
        rows.push((row, entries));
    }
    rows.reverse();
    let first = rows.first().map_or(head, |(row, _)| *row);
    let row_count = rows.len() as u64;
    let entries: Vec<Entry> = rows.into_iter().flat_map(|(_, entries)| entries).collect();
    let entry_count = entries.len() as u64;
    if entries.iter().zip(1..).any(|(entry, seq)| entry.seq != seq) {
        return Err(Stop::corrupt("its journal has a gap"));
    }
    Ok((Chain { key, first, head, entry_count, row_count }, entries))
}

/// Returns the entries of a row, and the row before it in the same run.
fn entries_of(found: &Found<'_>) -> Result<(Vec<Entry>, Option<i64>), Stop> {
    let mut entries = Vec::new();
    for record in found.records() {
        let (seq, bytes) = record?;
        let record = abide_store::Record { seq, bytes: bytes.to_vec() };
        entries.push(record.entry().map_err(|error| Stop::corrupt(error.to_string()))?);
    }
    Ok((entries, found.previous.filter(|_| found.seq > 1)))
}

/// Returns the run before this one: its last row precedes the first row of this run.
pub(crate) fn run_before(connection: &Connection, run: Chain) -> Result<Option<Chain>, Stop> {
    let previous = sheaf::find_of(connection, (run.first, run.key), |part| Ok(part.found()?.previous))?;
    let previous = previous.ok_or_else(|| journal::missing(run.first))?;
    previous.map(|head| run_to(connection, run.key, head).map(|(chain, _)| chain)).transpose()
}
