//! The journal: one append-only log for all executions, in which each entry points at its predecessor.
//!
//! A chain can only be walked backwards, and must be read forwards. So every 128th entry of a run also lists the rows of
//! the 127 entries before it and of the 128th entry before that. Walking from one such skip entry to the one before
//! gives a short index ([`Skips`], 8 bytes for 128 entries), by which a page can be read from anywhere.
//!
//! The first entry of a later run points at the last one of the run before. Nobody reads across that link but those who look at everything:
//! `prune` and `verify`.

use abide_core::{Entry, codec};
use abide_store::Record;
use rusqlite::{Connection, params};

use crate::batch::{Batch, Frequent};
use crate::caches::Hot;
use crate::error::Stop;
use crate::rows::{count, integer};
use crate::sql;

/// Every so many-th entry is a skip entry.
pub(crate) const SKIP_DISTANCE: u64 = 128;

/// Appends records to the chain of an execution. The caller has checked their numbers.
pub(crate) fn append(batch: &mut Batch<'_>, key: i64, hot: &mut Hot, records: &[Record]) -> Result<(), Stop> {
    for record in records {
        let row = batch.caches.next_journal_row(batch.connection)?;
        let is_skip = record.seq % SKIP_DISTANCE == 0;
        let skip = if is_skip { Some(skip_bytes(batch.connection, hot, (record.seq, row))?) } else { None };
        batch.statements.get(batch.connection, Frequent::JournalAppend)?.execute(params![
            row,
            key,
            hot.state.head,
            integer(record.seq),
            happened(&record.bytes),
            skip,
            record.bytes
        ])?;
        if is_skip {
            hot.rows.clear();
        }
        hot.rows.push(row);
        hot.state.head = row;
        hot.state.entry_count = record.seq;
    }
    Ok(())
}

/// The column by which the feed finds what happened, among all that was recorded.
pub(crate) fn happened(bytes: &[u8]) -> Option<u8> {
    Entry::happening_of(bytes).map(|(_, happening)| happening as u8)
}

/// Begins the chain of the next run with its first records. The first of them points at the end of the run before, so that all that an
/// execution ever recorded is found from its head; numbers and skip lists begin anew.
pub(crate) fn begin_run(
    batch: &mut Batch<'_>,
    key: i64,
    hot: &mut Hot,
    records: &[Record],
) -> Result<(), Stop> {
    hot.rows.clear();
    let ended = [key, hot.state.head, integer(hot.state.entry_count)];
    batch.connection.prepare_cached(sql::RUN_ENDED)?.execute(ended)?;
    append(batch, key, hot, records)?;
    let first = hot.rows.first().ok_or_else(|| Stop::corrupt(format!("a run of {key} without a start")))?;
    batch.connection.prepare_cached(sql::EXECUTION_NEXT_RUN)?.execute([key, *first])?;
    Ok(())
}

/// What a skip entry lists: the distances from row to row, going back.
fn skip_bytes(connection: &Connection, hot: &mut Hot, (seq, row): (u64, i64)) -> Result<Vec<u8>, Stop> {
    let needed = usize::try_from((seq - 1).min(SKIP_DISTANCE)).unwrap_or(0);
    if hot.rows.is_empty() {
        hot.rows.push(hot.state.head);
    }
    if hot.rows.len() < needed {
        let mut known = std::mem::take(&mut hot.rows);
        let missing = needed - known.len();
        let mut older = walk(connection, known[0], missing)?;
        older.reverse();
        older.append(&mut known);
        hot.rows = older;
    }
    let mut newer = row;
    let mut distances = Vec::with_capacity(needed);
    for older in hot.rows.iter().rev().take(needed) {
        distances.push(count(newer - older));
        newer = *older;
    }
    Ok(codec::encode(&distances))
}

/// The rows of the `steps` entries before the one at `row`, newest first.
fn walk(connection: &Connection, row: i64, steps: usize) -> Result<Vec<i64>, Stop> {
    let mut link = connection.prepare_cached(sql::JOURNAL_LINK)?;
    let mut rows = Vec::with_capacity(steps);
    let mut current = row;
    for _ in 0..steps {
        let previous: Option<i64> = link.query_row([current], |row| row.get(0))?;
        current =
            previous.ok_or_else(|| Stop::corrupt(format!("journal row {current} has no predecessor")))?;
        rows.push(current);
    }
    Ok(rows)
}

/// The chain of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    pub(crate) key: i64,
    pub(crate) first: i64,
    pub(crate) head: i64,
    pub(crate) entry_count: u64,
}

/// Which part of a journal is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) from: u64,
    pub(crate) entry_count_max: usize,
    pub(crate) bytes_max: usize,
}

/// The rows of a chain's skip entries, oldest first. They never change, so they can be kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skips(Vec<i64>);

impl Chain {
    /// One page. The caller has begun a transaction, so that rows stay where they are.
    pub(crate) fn page(
        &self,
        connection: &Connection,
        skips: &mut Skips,
        page: Page,
    ) -> Result<Vec<Record>, Stop> {
        let from = page.from.max(1);
        let to = self.entry_count.min(from.saturating_add(page.entry_count_max as u64).saturating_sub(1));
        let mut records = Vec::new();
        let mut left = page.bytes_max;
        let mut seq = from;
        while seq <= to {
            let (block_first, rows) = self.block(connection, skips, seq)?;
            let skipped = usize::try_from(seq - block_first).unwrap_or(0);
            let wanted = usize::try_from(to - seq + 1).unwrap_or(usize::MAX).min(rows.len() - skipped);
            let part = &rows[skipped..skipped + wanted];
            if !self.fetch(connection, (seq, part), (&mut records, &mut left))? {
                break;
            }
            seq += wanted as u64;
        }
        Ok(records)
    }

    /// A cheap first page: all of a short journal, only the first entry of a long one.
    pub(crate) fn first_page(&self, connection: &Connection, page: Page) -> Result<Vec<Record>, Stop> {
        if self.entry_count < SKIP_DISTANCE {
            return self.page(connection, &mut Skips::default(), page);
        }
        let mut records = Vec::new();
        self.fetch(connection, (1, &[self.first]), (&mut records, &mut usize::MAX.clone()))?;
        Ok(records)
    }

    /// The rows of the block that contains `seq`, and the number of its first entry.
    fn block(&self, connection: &Connection, skips: &mut Skips, seq: u64) -> Result<(u64, Vec<i64>), Stop> {
        let block = (seq - 1) / SKIP_DISTANCE;
        let first = block * SKIP_DISTANCE + 1;
        if first + SKIP_DISTANCE - 1 > self.entry_count {
            let steps = usize::try_from(self.entry_count - first).unwrap_or(0);
            let mut rows = vec![self.head];
            rows.append(&mut walk(connection, self.head, steps)?);
            rows.reverse();
            return Ok((first, rows));
        }
        skips.extend(connection, self)?;
        let row = usize::try_from(block).ok().and_then(|block| skips.0.get(block)).copied();
        let row = row.ok_or_else(|| Stop::corrupt(format!("execution {} lacks a skip entry", self.key)))?;
        let mut rows = self.skip_rows(connection, (row, first + SKIP_DISTANCE - 1))?;
        rows.truncate(SKIP_DISTANCE as usize - 1);
        rows.reverse();
        rows.push(row);
        Ok((first, rows))
    }

    /// What the skip entry at `row` lists, newest first.
    pub(crate) fn skip_rows(
        &self,
        connection: &Connection,
        (row, seq): (i64, u64),
    ) -> Result<Vec<i64>, Stop> {
        let mut statement = connection.prepare_cached(sql::JOURNAL_SKIP)?;
        let (bytes, found, execution): (Option<Vec<u8>>, i64, i64) =
            statement.query_row([row], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        if (count(found), execution) != (seq, self.key) {
            let what = format!("journal row {row} is not entry {seq} of execution {}", self.key);
            return Err(Stop::corrupt(what));
        }
        let bytes = bytes.ok_or_else(|| Stop::corrupt(format!("journal row {row} lists no predecessors")))?;
        let distances: Vec<u64> = codec::decode(&bytes)?;
        let expected = (seq - 1).min(SKIP_DISTANCE);
        if distances.len() as u64 != expected {
            let what = format!("journal row {row} lists {} predecessors, not {expected}", distances.len());
            return Err(Stop::corrupt(what));
        }
        let mut newer = row;
        let older = |distance: &u64| {
            newer -= integer(*distance);
            newer
        };
        Ok(distances.iter().map(older).collect())
    }

    /// Reads the entries at `rows`, of which the first has the number `seq`; `false` when there was no room for all.
    fn fetch(
        &self,
        connection: &Connection,
        (seq, rows): (u64, &[i64]),
        (records, left): (&mut Vec<Record>, &mut usize),
    ) -> Result<bool, Stop> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(true) };
        let mut take = |row: &rusqlite::Row<'_>, expected: u64| -> Result<bool, Stop> {
            let bytes = row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?;
            if bytes.len() > *left && !records.is_empty() {
                return Ok(false);
            }
            let found = count(row.get(0)?);
            if found != expected {
                let what = format!("execution {}: entry {found} stands where {expected} belongs", self.key);
                return Err(Stop::corrupt(what));
            }
            *left = left.saturating_sub(bytes.len());
            records.push(Record { seq: found, bytes: bytes.to_vec() });
            Ok(true)
        };
        // Reading on is cheaper than looking up, as long as most rows on the way are ours.
        let is_dense = count(last - first) < 2 * rows.len() as u64;
        if is_dense {
            let mut range = connection.prepare_cached(sql::JOURNAL_RANGE)?;
            let mut found = range.query([*first, *last, self.key])?;
            for expected in seq..seq + rows.len() as u64 {
                let row = found.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
                if !take(row, expected)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        let mut body = connection.prepare_cached(sql::JOURNAL_BODY)?;
        for (expected, row) in (seq..).zip(rows) {
            let mut found = body.query([*row, self.key])?;
            let row = found.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
            if !take(row, expected)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Skips {
    /// Learns the skip entries that were added since.
    fn extend(&mut self, connection: &Connection, chain: &Chain) -> Result<(), Stop> {
        let block_count = chain.entry_count / SKIP_DISTANCE;
        let known = self.0.len() as u64;
        if known >= block_count {
            return Ok(());
        }
        let tail = usize::try_from(chain.entry_count % SKIP_DISTANCE).unwrap_or(0);
        let mut row = walk(connection, chain.head, tail)?.last().copied().unwrap_or(chain.head);
        let mut found = Vec::new();
        for block in (known + 1..=block_count).rev() {
            found.push(row);
            if block > known + 1 {
                let listed = chain.skip_rows(connection, (row, block * SKIP_DISTANCE))?;
                row = *listed.last().expect("a skip entry lists at least 127 rows");
            }
        }
        found.reverse();
        self.0.append(&mut found);
        Ok(())
    }
}
