//! The journal: one append-only log for all executions. Each row points at its predecessor.
//!
//! A row holds the entries of one commit, as many as fit ([`Pack`]). A chain of rows can only be
//! walked backwards, and must be read forwards. So every 128th row of a run also lists the 127 rows
//! before it and the 128th before that. A walk from one such skip row to the previous one yields a
//! short index ([`Skips`], 16 bytes for 128 rows), which allows a page to be read from anywhere.
//!
//! The first row of a later run points at the last row of the previous run. Only `prune`, `verify`
//! and `repair`, which look at everything, follow that link.

use std::ops::ControlFlow;

use abide_core::codec;
use abide_store::{PageBounds, Record};
use rusqlite::{Connection, Row};

use crate::batch::Batch;
use crate::caches::{CachedRow, Newest};
use crate::checksum::{self, Checksum};
use crate::error::Stop;
use crate::packing::{Beside, kept, unpack};
pub(crate) use crate::packing::{Pack, Packs, packed, packed_before};
use crate::rows::{LeaseState, count, integer, unsigned};
use crate::sheaf::{self, Part, Wanted};
use crate::sql;

/// The distance between two skip rows of a run.
pub(crate) const SKIP_DISTANCE: u64 = 128;

impl Pack {
    /// Appends this row to the chain of an execution. The caller has checked the numbers.
    pub(crate) fn append(
        &mut self,
        batch: &mut Batch<'_>,
        key: i64,
        cached: &mut CachedRow,
    ) -> Result<(), Stop> {
        let row = batch.caches.next_journal_row(batch.connection)?;
        let nth = cached.state.cold.row_count + 1;
        let end = self.seq + self.count - 1;
        let is_skip = nth.is_multiple_of(SKIP_DISTANCE);
        if is_skip {
            batch.bind_sheaf()?;
        }
        let skip = if is_skip { Some(skip_bytes(batch.connection, cached, (nth, row, end))?) } else { None };
        let previous = Some(cached.state.anchor.head).filter(|head| *head > 0);
        let skip = skip.as_deref();
        self.write(batch, &Link { row, key, previous, happened: self.happened, skip })?;
        if is_skip {
            cached.rows.clear();
        }
        cached.append(row, end, nth);
        Ok(())
    }

    /// Appends the first row of an imported execution.
    pub(crate) fn append_first(
        &mut self,
        batch: &mut Batch<'_>,
        (key, owner): (i64, &[u8]),
        cached: &mut CachedRow,
    ) -> Result<(), Stop> {
        let row = batch.caches.next_journal_row(batch.connection)?;
        let link = Link { row, key, previous: None, happened: self.happened, skip: Some(owner) };
        self.write(batch, &link)?;
        cached.append(row, self.seq + self.count - 1, 1);
        Ok(())
    }

    /// Writes the row.
    pub(crate) fn write(&mut self, batch: &mut Batch<'_>, link: &Link<'_>) -> Result<(), Stop> {
        checksum::put(&mut self.body, link.sum(self.seq, self.sum));
        batch.append_row(link, self.seq, &self.body)?;
        Ok(())
    }
}

/// The columns that link a row into its chain.
pub(crate) struct Link<'s> {
    pub(crate) row: i64,
    pub(crate) key: i64,
    pub(crate) previous: Option<i64>,
    pub(crate) happened: Option<u8>,
    pub(crate) skip: Option<&'s [u8]>,
}

impl Link<'_> {
    pub(crate) fn sum(&self, seq: u64, entries: Checksum) -> Checksum {
        let sum = entries.number(self.row).number(self.key).number(self.previous.unwrap_or(0));
        sum.number(integer(seq))
            .number(self.happened.map_or(-1, i64::from))
            .bytes(self.skip.unwrap_or_default())
    }
}

/// Begins the chain of the next run with its first records. The first of them points at the end of
/// the previous run, so everything that an execution ever recorded is found from its head. Numbers
/// and skip lists start again.
pub(crate) fn begin_run(
    batch: &mut Batch<'_>,
    key: i64,
    cached: &mut CachedRow,
    records: &[Record],
) -> Result<(), Stop> {
    let LeaseState { anchor, entry_count, cold, .. } = &cached.state;
    let run = [cold.run.into(), cold.first, anchor.head, integer(*entry_count), integer(cold.row_count)];
    let [number, first, head, entries, rows] = run;
    batch.connection.prepare_cached(sql::RUN_ENDED)?.execute([key, number, first, head, entries, rows])?;
    cached.rows.clear();
    cached.state.cold.row_count = 0;
    for pack in packed(records).iter_mut() {
        pack.append(batch, key, cached)?;
    }
    let first =
        cached.rows.first().ok_or_else(|| Stop::corrupt(format!("a run of {key} without a start")))?;
    let cold = &mut cached.state.cold;
    cold.origin = Some(cold.origin());
    cold.first = *first;
    cold.run += 1;
    Ok(())
}

/// Encodes the owner of a journal, which its first row has in place of a list of predecessors. All
/// other names of an execution are in its own row, and would be lost with it.
pub(crate) fn owner_bytes(namespace: i64, id: &str) -> Vec<u8> {
    put_owner(Vec::new(), (namespace, id))
}

/// Returns the same in a used buffer.
pub(crate) fn put_owner(mut buffer: Vec<u8>, owner: (i64, &str)) -> Vec<u8> {
    buffer.clear();
    codec::encode_behind(buffer, &owner)
}

/// Returns the namespace and the id of the execution whose journal begins in `row`.
pub(crate) fn owner(connection: &Connection, (row, key): (i64, i64)) -> Result<(i64, String), Stop> {
    let owner = sheaf::find_of(connection, (row, key), |part| {
        part.found()?;
        let skip = part.skip()?.ok_or_else(|| Stop::corrupt(format!("journal row {row} has no owner")))?;
        Ok(codec::decode(skip)?)
    })?;
    owner.ok_or_else(|| missing(row))
}

/// Returns the first row of an execution's journal that can be found.
pub(crate) fn first_row(connection: &Connection, key: i64) -> Result<Option<i64>, Stop> {
    let mut first = None;
    walk_rows(connection, key, |row| {
        first = Some(row);
        ControlFlow::Break(())
    })?;
    Ok(first)
}

/// Returns every row of an execution's journal that can be found.
pub(crate) fn rows_of(connection: &Connection, key: i64) -> Result<Vec<i64>, Stop> {
    let mut rows = Vec::new();
    walk_rows(connection, key, |row| {
        rows.push(row);
        ControlFlow::Continue(())
    })?;
    Ok(rows)
}

/// Returns the last row of an execution's journal after `row`.
pub(crate) fn last_row_after(connection: &Connection, key: i64, row: i64) -> Result<Option<i64>, Stop> {
    let mut last = None;
    sheaf::list(connection, (row.saturating_add(1), i64::MAX), |row| {
        last = last.max((row.execution == Some(key)).then_some(row.number));
        Ok(())
    })?;
    Ok(last)
}

/// Scans the whole table: no index serves such a rare request.
fn walk_rows(
    connection: &Connection,
    key: i64,
    mut visit: impl FnMut(i64) -> ControlFlow<()>,
) -> Result<(), Stop> {
    sheaf::walk(connection, |row| match row.execution == Some(key) {
        true => Ok(visit(row.number)),
        false => Ok(ControlFlow::Continue(())),
    })
    .map(drop)
}

/// Encodes the list of a skip row: its last entry, and the distances from row to row, going back.
fn skip_bytes(
    connection: &Connection,
    cached: &mut CachedRow,
    (nth, row, end): (u64, i64, u64),
) -> Result<Vec<u8>, Stop> {
    let needed = usize::try_from((nth - 1).min(SKIP_DISTANCE)).unwrap_or(0);
    if cached.rows.is_empty() {
        cached.rows.push(cached.state.anchor.head);
    }
    if cached.rows.len() < needed {
        let mut known = std::mem::take(&mut cached.rows);
        let missing = needed - known.len();
        let mut older: Newest = walk(connection, known[0], missing)?.into();
        older.reverse();
        older.append(&mut known);
        cached.rows = older;
    }
    let mut newer = row;
    let mut distances = Vec::with_capacity(needed);
    for older in cached.rows.iter().rev().take(needed) {
        distances.push(unsigned(newer - older));
        newer = *older;
    }
    Ok(codec::encode(&(end, distances)))
}

pub(crate) fn missing(row: i64) -> Stop {
    Stop::corrupt(format!("journal row {row} is missing"))
}

/// Checks that the predecessor of `row` is older. Rows are numbered from 1 in the order of writing;
/// a reader that followed another link might never end.
pub(crate) fn older(row: i64, previous: i64) -> Result<i64, Stop> {
    if (1..row).contains(&previous) {
        return Ok(previous);
    }
    Err(Stop::corrupt(format!("journal row {row} follows row {previous}, which is not older")))
}

/// Returns the `steps` rows before `row`, newest first.
fn walk(connection: &Connection, row: i64, steps: usize) -> Result<Vec<i64>, Stop> {
    let mut rows = Vec::with_capacity(steps);
    let mut current = row;
    for _ in 0..steps {
        let previous = sheaf::find(connection, current, |part| Ok(part.previous()?))?;
        let previous = previous
            .ok_or_else(|| missing(current))?
            .ok_or_else(|| Stop::corrupt(format!("journal row {current} has no predecessor")))?;
        current = older(current, previous)?;
        rows.push(current);
    }
    Ok(rows)
}

/// Decodes the list of the `nth` row of a run, which is row `row` of the journal. Returns its last
/// entry and the listed rows, newest first.
pub(crate) fn listed((row, nth): (i64, u64), skip: &[u8]) -> Result<(u64, Vec<i64>), Stop> {
    let (end, distances): (u64, Vec<u64>) = codec::decode(skip)?;
    let expected = nth.saturating_sub(1).min(SKIP_DISTANCE);
    if distances.len() as u64 != expected {
        let what = format!("journal row {row} lists {} predecessors, not {expected}", distances.len());
        return Err(Stop::corrupt(what));
    }
    let mut rows = Vec::with_capacity(distances.len());
    let mut newer = row;
    for distance in distances {
        newer = older(newer, newer.checked_sub_unsigned(distance).unwrap_or(0))?;
        rows.push(newer);
    }
    Ok((end, rows))
}

/// A journal row: `row, execution, previous, seq, happened, skip, body`, in this order.
pub(crate) struct Found<'r> {
    pub(crate) seq: u64,
    pub(crate) previous: Option<i64>,
    pub(crate) happened: Option<u8>,
    entries: &'r [u8],
}

impl<'r> Found<'r> {
    /// Reads a row, and checks that it is intact.
    pub(crate) fn read(row: &'r Row<'_>) -> Result<Self, Stop> {
        let blob = |index| -> Result<Option<&'r [u8]>, Stop> {
            Ok(row.get_ref(index)?.as_blob_or_null().map_err(rusqlite::Error::from)?)
        };
        let skip = blob(5)?;
        let (number, key, previous, happened) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(4)?);
        let link = Link { row: number, key, previous, happened, skip };
        Self::open(&link, count(row, 3)?, blob(6)?.unwrap_or_default())
    }

    /// Opens `body`, and checks that it and the columns beside it are intact.
    pub(crate) fn open(link: &Link<'_>, seq: u64, body: &'r [u8]) -> Result<Self, Stop> {
        let entries = checksum::checked(body, |entries| link.sum(seq, Checksum::new().bytes(entries)));
        let entries = entries.ok_or_else(|| Stop::corrupt(format!("journal row {} is damaged", link.row)))?;
        let previous = link.previous.map(|previous| older(link.row, previous)).transpose()?;
        Ok(Self { seq, previous, happened: link.happened, entries })
    }

    /// Returns the entries, with their numbers.
    pub(crate) fn records(&self) -> impl Iterator<Item = Result<(u64, &'r [u8]), Stop>> {
        (self.seq..).zip(unpack(self.entries)).map(|(seq, entry)| {
            let entry = entry.ok_or_else(|| Stop::corrupt(format!("entry {seq} is cut short")))?;
            Ok((seq, entry))
        })
    }

    /// Returns the last entry, which the feed reports.
    pub(crate) fn last(&self) -> Option<&'r [u8]> {
        unpack(self.entries).last().flatten()
    }

    /// Returns the answer that is kept behind the entries.
    pub(crate) fn answer(&self) -> Option<&'r [u8]> {
        kept(self.entries, Beside::Answer)
    }

    /// Returns the summary of the commit that wrote the row, if it is there.
    pub(crate) fn summary(&self) -> Option<&'r [u8]> {
        kept(self.entries, Beside::Summary)
    }

    /// Returns the number of the last entry.
    pub(crate) fn end(&self) -> u64 {
        (self.seq + unpack(self.entries).count() as u64).saturating_sub(1)
    }
}

/// Returns the record of the first or last entry in a row of an execution.
pub(crate) fn record(
    connection: &Connection,
    (row, key): (i64, i64),
    which: impl FnOnce(Vec<Record>) -> Option<Record>,
) -> Result<Record, Stop> {
    let record = sheaf::find_of(connection, (row, key), |part| {
        let found = part.found()?;
        let records =
            found.records().map(|record| record.map(|(seq, bytes)| Record { seq, bytes: bytes.to_vec() }));
        which(records.collect::<Result<_, _>>()?)
            .ok_or_else(|| Stop::corrupt(format!("journal row {row} is empty")))
    })?;
    record.ok_or_else(|| missing(row))
}

/// The chain of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) key: i64,
    pub(crate) first: i64,
    pub(crate) head: i64,
    pub(crate) entry_count: u64,
    pub(crate) row_count: u64,
}

/// The wanted part of a journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) from: u64,
    pub(crate) entry_count_max: usize,
    pub(crate) bytes_max: usize,
}

impl Page {
    /// Asks for at most `limit` entries, and for no more than the bounds allow.
    pub(crate) fn new((from, limit): (u64, usize), bounds: &PageBounds) -> Self {
        let entry_count_max = limit.min(bounds.journal_page_count_max.max(1));
        Self { from, entry_count_max, bytes_max: bounds.journal_page_bytes_max }
    }
}

/// A chain's skip rows, oldest first, each with the number of its last entry. They never change, so
/// they can be kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skips(Vec<(i64, u64)>);

/// A page under construction.
struct Taking {
    records: Vec<Record>,
    next: u64,
    to: u64,
    left: usize,
}

impl Taking {
    /// Takes the wanted entries of a row. Returns `false` when there are enough.
    fn take(&mut self, part: &Part<'_>) -> Result<bool, Stop> {
        for record in part.found()?.records() {
            let (seq, bytes) = record?;
            if seq < self.next {
                continue;
            }
            if seq > self.to || (bytes.len() > self.left && !self.records.is_empty()) {
                return Ok(false);
            }
            if seq > self.next {
                return Err(Stop::corrupt(format!("entry {seq} stands where {} belongs", self.next)));
            }
            self.left = self.left.saturating_sub(bytes.len());
            self.records.push(Record { seq, bytes: bytes.to_vec() });
            self.next += 1;
        }
        Ok(self.next <= self.to)
    }
}

impl Chain {
    /// Reads one page. The caller has begun a transaction, so rows do not change meanwhile.
    pub(crate) fn page(
        &self,
        connection: &Connection,
        skips: &mut Skips,
        page: Page,
    ) -> Result<Vec<Record>, Stop> {
        let from = page.from.max(1);
        let to = self.entry_count.min(from.saturating_add(page.entry_count_max as u64).saturating_sub(1));
        let mut taking = Taking { records: Vec::new(), next: from, to, left: page.bytes_max };
        while taking.next <= to {
            let next = taking.next;
            let rows = self.rows_from(connection, skips, next)?;
            if !self.fetch(connection, &rows, &mut taking)? {
                break;
            }
            if taking.next == next {
                return Err(Stop::corrupt(format!("execution {} lacks entry {next}", self.key)));
            }
        }
        Ok(taking.records)
    }

    /// Reads a cheap first page: all of a short journal, only the first row of a long one.
    pub(crate) fn first_page(&self, connection: &Connection, page: Page) -> Result<Vec<Record>, Stop> {
        if self.row_count < SKIP_DISTANCE {
            return self.page(connection, &mut Skips::default(), page);
        }
        let to = integer(page.entry_count_max as u64);
        let mut taking = Taking { records: Vec::new(), next: 1, to: unsigned(to), left: page.bytes_max };
        self.fetch(connection, &[self.first], &mut taking)?;
        Ok(taking.records)
    }

    /// Returns consecutive rows, from the one with entry `seq` to the end of its block or chain.
    fn rows_from(&self, connection: &Connection, skips: &mut Skips, seq: u64) -> Result<Vec<i64>, Stop> {
        if let Some(rows) = self.tail_from(connection, seq)? {
            return Ok(rows);
        }
        skips.extend(connection, self)?;
        let block = skips.0.partition_point(|(_, end)| *end < seq);
        let missing = || Stop::corrupt(format!("execution {} lacks a skip row for entry {seq}", self.key));
        let (row, _) = *skips.0.get(block).ok_or_else(missing)?;
        let (_, mut rows) = self.skip_rows(connection, (row, (block as u64 + 1) * SKIP_DISTANCE))?;
        rows.truncate(SKIP_DISTANCE as usize - 1);
        rows.reverse();
        rows.push(row);
        // Find the last row that begins at or before the entry.
        let (mut low, mut high) = (0, rows.len());
        while high - low > 1 {
            let middle = low.midpoint(high);
            let begins = sheaf::find(connection, rows[middle], |part| Ok(part.seq()?))?;
            let begins = begins.ok_or_else(|| self::missing(rows[middle]))?;
            if begins <= seq { low = middle } else { high = middle }
        }
        Ok(rows.split_off(low))
    }

    /// Returns the same rows, if the entry is after the last skip row.
    fn tail_from(&self, connection: &Connection, seq: u64) -> Result<Option<Vec<i64>>, Stop> {
        let mut rows = Vec::new();
        let mut next = Some(self.head);
        for _ in 0..self.row_count % SKIP_DISTANCE {
            let row = next.ok_or_else(|| Stop::corrupt(format!("the journal of {} is cut", self.key)))?;
            let found = sheaf::find(connection, row, |part| Ok((part.previous()?, part.seq()?)))?;
            let (previous, begins) = found.ok_or_else(|| missing(row))?;
            rows.push(row);
            if begins <= seq {
                rows.reverse();
                return Ok(Some(rows));
            }
            next = previous.map(|previous| older(row, previous)).transpose()?;
        }
        Ok(None)
    }

    /// Returns the last entry of the skip row `row`, and the rows that it lists, newest first.
    pub(crate) fn skip_rows(
        &self,
        connection: &Connection,
        (row, nth): (i64, u64),
    ) -> Result<(u64, Vec<i64>), Stop> {
        let found = sheaf::find_of(connection, (row, self.key), |part| Ok(part.skip()?.map(<[u8]>::to_vec)))?;
        let bytes = found.ok_or_else(|| {
            Stop::corrupt(format!("journal row {row} does not belong to execution {}", self.key))
        })?;
        let bytes = bytes.ok_or_else(|| Stop::corrupt(format!("journal row {row} lists no predecessors")))?;
        listed((row, nth), &bytes)
    }

    /// Takes entries from `rows`, which are consecutive. Returns `false` when there are enough.
    fn fetch(&self, connection: &Connection, rows: &[i64], taking: &mut Taking) -> Result<bool, Stop> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(true) };
        // A scan is cheaper than lookups, as long as most rows on the way belong to this execution.
        let is_dense = unsigned(last - first) < 2 * rows.len() as u64;
        let mut wants_more = true;
        if is_dense {
            sheaf::scan(connection, (Wanted::Of(self.key), *first, *last), |part| {
                if part.execution().is_ok_and(|execution| execution == self.key) {
                    wants_more = taking.take(part)?;
                }
                Ok(if wants_more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            })?;
            return Ok(wants_more);
        }
        for row in rows {
            let taken = sheaf::find_of(connection, (*row, self.key), |part| taking.take(part))?;
            if !taken.ok_or_else(|| missing(*row))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Skips {
    /// Adds the skip rows that were written since.
    fn extend(&mut self, connection: &Connection, chain: &Chain) -> Result<(), Stop> {
        let block_count = chain.row_count / SKIP_DISTANCE;
        let known = self.0.len() as u64;
        if known >= block_count {
            return Ok(());
        }
        let tail = usize::try_from(chain.row_count % SKIP_DISTANCE).unwrap_or(0);
        let mut row = walk(connection, chain.head, tail)?.last().copied().unwrap_or(chain.head);
        let mut found = Vec::new();
        for block in (known + 1..=block_count).rev() {
            let (end, listed) = chain.skip_rows(connection, (row, block * SKIP_DISTANCE))?;
            found.push((row, end));
            row = *listed.last().expect("a skip row lists at least 127 rows");
        }
        found.reverse();
        self.0.append(&mut found);
        Ok(())
    }
}
