//! Leased executions, with the beginnings of their journals and inboxes.

use abide_core::{Lease, SessionId};
use abide_store::{ExecutionKey, InboxCursor, InboxPage, InboxRead, Leased, Opening, PageBounds, Record};
use tokio_postgres::Row;

use crate::connection::Connection;
use crate::error::Stop;
use crate::rows;
use crate::shared::Shared;
use crate::sheet::Parameter;
use crate::sql;

/// Reads those of these executions that the session holds. One that cannot be read is an answer of
/// its own: it must not delay the others.
pub(super) async fn read(
    shared: &Shared,
    connection: &Connection,
    session: SessionId,
    keys: &[i64],
) -> Result<Vec<(i64, Result<Leased, Stop>)>, Stop> {
    let bounds = &shared.options.page_bounds;
    let (entries, entry_bytes) =
        (rows::limit(bounds.journal_page_count_max), bytes_max(bounds.journal_page_bytes_max));
    let (messages, message_bytes) =
        (more_than(bounds.inbox_page_count_max), bytes_max(bounds.inbox_page_bytes_max));
    let parameters: [Parameter<'_>; 5] = [&keys, &entries, &entry_bytes, &messages, &message_bytes];
    let mut found = Vec::new();
    for row in connection.rows(sql::LEASED, &parameters).await? {
        let (key, holder): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(3)?);
        if holder == Some(rows::integer(session.0)) {
            found.push((key, leased(&row, (key, session), bounds)));
        }
    }
    Ok(found)
}

/// One more row than a page has shows whether there is another page.
fn more_than(count: usize) -> i64 {
    rows::limit(count).saturating_add(1)
}

/// Bytes that are read for a page. The last row may exceed the bound: it is cut off, or alone.
fn bytes_max(bytes: usize) -> i64 {
    rows::limit(bytes).saturating_add(1)
}

/// Returns the lease of an execution, whatever else of it can be read.
fn leased(row: &Row, (key, session): (i64, SessionId), bounds: &PageBounds) -> Result<Leased, Stop> {
    let address = rows::address(row.try_get(1)?, row.try_get(2)?)?;
    let held = rows::lease_row(row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
    let summary = rows::summary(key, row.try_get(7)?)?;
    let execution = rows::state(key, &address, row.try_get(8)?)?;
    let (seqs, bodies): (Vec<i64>, Vec<Vec<u8>>) = (row.try_get(9)?, row.try_get(10)?);
    let mut records = Vec::new();
    for (seq, body) in seqs.into_iter().zip(&bodies) {
        records.extend(rows::unpacked(key, seq, body)?);
    }
    let (places, messages): (Vec<i64>, Vec<Vec<u8>>) = (row.try_get(11)?, row.try_get(12)?);
    let lease = Lease { session, epoch: held.epoch };
    Ok(Leased {
        key: ExecutionKey(rows::unsigned(key)),
        lease,
        version: held.version,
        takeover_count: u32::try_from(row.try_get::<_, i32>(6)?).unwrap_or(0),
        is_first: lease.is_first(summary.cared_epoch),
        suspicion: summary.suspicion,
        unclaimed: summary.unclaimed,
        execution,
        opening: Opening::Page(page_of(records, (1, usize::MAX), bounds)),
        inbox: inbox_page(key, places.into_iter().zip(messages), bounds)?,
    })
}

/// Returns the part of `records` that begins with entry `from` and fits into a page.
pub(crate) fn page_of(records: Vec<Record>, (from, limit): (u64, usize), bounds: &PageBounds) -> Vec<Record> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    let wanted = records.into_iter().skip_while(|record| record.seq < from);
    for record in wanted.take(limit.min(bounds.journal_page_count_max)) {
        bytes += record.bytes.len();
        if bytes > bounds.journal_page_bytes_max && !page.is_empty() {
            break;
        }
        page.push(record);
    }
    page
}

/// Returns the messages that fit into a page, out of one more than that.
fn inbox_page(
    key: i64,
    found: impl IntoIterator<Item = (i64, Vec<u8>)>,
    bounds: &PageBounds,
) -> Result<InboxPage, Stop> {
    let (mut page, mut last, mut bytes) = (InboxPage::default(), 0, 0);
    for (place, body) in found {
        bytes += body.len();
        let is_full = page.messages.len() >= bounds.inbox_page_count_max;
        if is_full || (bytes > bounds.inbox_page_bytes_max && !page.messages.is_empty()) {
            page.next = Some(InboxCursor(last));
            break;
        }
        last = rows::unsigned(place);
        page.messages.push(rows::message(key, &body)?);
    }
    Ok(page)
}

/// Reads a page of an inbox.
pub(crate) async fn inbox_of(
    shared: &Shared,
    connection: &Connection,
    read: &InboxRead,
) -> Result<InboxPage, Stop> {
    let bounds = &shared.options.page_bounds;
    let inbox_page_count_max = read.limit.min(bounds.inbox_page_count_max);
    let bounds = PageBounds { inbox_page_count_max, ..*bounds };
    let key = rows::integer(read.key.0);
    let after = read.after.map_or(0, |InboxCursor(place)| rows::integer(place));
    let (count, bytes) = (more_than(inbox_page_count_max), bytes_max(bounds.inbox_page_bytes_max));
    let found = connection.rows(sql::INBOX, &[&key, &after, &count, &bytes]).await?;
    let found = found.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let found: Vec<(i64, Vec<u8>)> = found.collect::<Result<_, tokio_postgres::Error>>()?;
    inbox_page(key, found, &bounds)
}
