//! The reads: snapshots, lists, the feed, the sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use abide_core::{
    Ability, Address, Epoch, Happening, Name, Route, SessionId, Status, Summary, Tag, Timestamp, codec,
};
use abide_store::{
    ExecutionKey, Feed, FeedCursor, FeedFrom, FeedItem, FeedPage, HeldLease, InboxPage, InboxRead,
    LeaseCursor, LeasePage, Leases, List, ListCursor, ListOrder, Listed, Listing, Read, Record, RefusedRow,
    Snapshot, Target, Worker, WorkerRow, Workers,
};
use tokio_postgres::Row;

use crate::apply::{inbox_of, page_of};
use crate::connection::Connection;
use crate::error::Stop;
use crate::rows;
use crate::seal::unsealed;
use crate::shared::Shared;
use crate::sheet::Parameter;
use crate::sql;

/// The most rows of a list that are read at a time.
const LIST_STRETCH: usize = 256;

/// Reads an execution, its journal and its inbox at one moment.
pub(crate) async fn read(shared: &Shared, read: &Read) -> Result<Option<Snapshot>, Stop> {
    let mut connection = shared.pool.take().await?;
    connection.begin(sql::BEGIN_READ).await?;
    let found = snapshot(shared, &connection, read).await;
    connection.end(sql::COMMIT).await?;
    found
}

async fn snapshot(shared: &Shared, connection: &Connection, read: &Read) -> Result<Option<Snapshot>, Stop> {
    let row = match &read.target {
        Target::Key(key) => connection.maybe_row(sql::SNAPSHOT_BY_KEY, &[&rows::integer(key.0)]).await?,
        Target::Address(address) => {
            let (ns, id) = (address.namespace.as_str(), address.id.as_str());
            connection.maybe_row(sql::SNAPSHOT_BY_ID, &[&ns, &id]).await?
        }
    };
    let Some(row) = row else { return Ok(None) };
    let key: i64 = row.try_get(0)?;
    let address = rows::address(row.try_get(1)?, row.try_get(2)?)?;
    let current: i32 = row.try_get(6)?;
    let run = read.run.map_or(current, rows::run_number);
    let journal = journal(shared, connection, (key, run), (read.from, read.limit)).await?;
    let key_of = ExecutionKey(rows::unsigned(key));
    let inbox = if read.with_inbox {
        inbox_of(shared, connection, &InboxRead::first(key_of)).await?
    } else {
        InboxPage::default()
    };
    let takeovers: i32 = row.try_get(9)?;
    Ok(Some(Snapshot {
        key: key_of,
        execution: rows::state(key, &address, row.try_get(12)?)?,
        summary: summary(key, row.try_get(11)?, (row.try_get(7)?, row.try_get(14)?))?,
        lease: rows::lease_row(row.try_get(3)?, row.try_get(4)?, row.try_get(5)?),
        created_at: Timestamp::from_micros(row.try_get(8)?),
        ready_at: rows::timestamp(row.try_get(13)?),
        takeover_count: u32::try_from(takeovers).unwrap_or(0),
        tags: tags(key, row.try_get(10)?)?,
        journal,
        inbox,
    }))
}

async fn journal(
    shared: &Shared,
    connection: &Connection,
    (key, run): (i64, i32),
    (from, limit): (u64, usize),
) -> Result<Vec<Record>, Stop> {
    let bounds = &shared.options.page_bounds;
    let count = limit.min(bounds.journal_page_count_max);
    if count == 0 {
        return Ok(Vec::new());
    }
    // The first row may have entries before the wanted ones, of which it can be full.
    let (row_count, bytes) =
        (rows::limit(count).saturating_add(1), rows::limit(bounds.journal_page_bytes_max) + 1);
    let parameters: [Parameter<'_>; 5] = [&key, &run, &rows::integer(from), &row_count, &bytes];
    let mut records = Vec::new();
    for row in connection.rows(sql::JOURNAL, &parameters).await? {
        records.extend(rows::unpacked(key, row.try_get(0)?, row.try_get(1)?)?);
    }
    Ok(page_of(records, (from, limit), bounds))
}

/// Returns the summary that readers see.
fn summary(key: i64, bytes: &[u8], (is_aside, care_at): (bool, Option<i64>)) -> Result<Summary, Stop> {
    let found = rows::summary(key, bytes)?;
    let status = if is_aside { Status::Damaged } else { found.status };
    Ok(Summary { status, care_at: rows::timestamp(care_at), ..found })
}

fn tags(key: i64, bytes: Option<&[u8]>) -> Result<Vec<Tag>, Stop> {
    let Some(bytes) = bytes else { return Ok(Vec::new()) };
    let bytes = rows::opened(key, "the tags", bytes)?;
    codec::decode(bytes)
        .map_err(|error| Stop::undecodable(format_args!("the tags of execution {key}"), &error))
}

pub(crate) async fn inbox(shared: &Shared, read: &InboxRead) -> Result<InboxPage, Stop> {
    let connection = shared.pool.take().await?;
    inbox_of(shared, &connection, read).await
}

/// What a list looks for, as its statement takes it.
struct Search<'a> {
    list: &'a List,
    routes: Option<Vec<i32>>,
    parent: Option<i64>,
}

pub(crate) async fn list(shared: &Shared, list: &List) -> Result<Listing, Stop> {
    let connection = shared.pool.take().await?;
    let now = shared.now();
    let Some(search) = search(shared, &connection, list).await? else { return Ok(Listing::default()) };
    let first = match list.order {
        ListOrder::OldestFirst => 0,
        ListOrder::NewestFirst => i64::MAX,
    };
    let mut after = list.after.map_or(first, |ListCursor(key)| rows::integer(key.0));
    let (mut items, mut look_count) = (Vec::new(), 0);
    loop {
        let found = stretch(shared, &connection, &search, after).await?;
        let is_last = found.len() < LIST_STRETCH;
        for listed in found {
            after = rows::integer(listed.key.0);
            look_count += 1;
            if list.has_status_of(&listed.summary, now) {
                items.push(listed);
            }
            if items.len() > list.limit {
                items.truncate(list.limit);
                let next = items.last().map(|item| ListCursor(item.key));
                return Ok(Listing { items, next: next.or(list.after) });
            }
        }
        if is_last {
            return Ok(Listing { items, next: None });
        }
        if look_count >= shared.options.list_scan_count_max {
            let next = Some(ListCursor(ExecutionKey(rows::unsigned(after))));
            return Ok(Listing { items, next });
        }
    }
}

/// Returns `None` when nothing can be found.
async fn search<'a>(
    shared: &Shared,
    connection: &Connection,
    list: &'a List,
) -> Result<Option<Search<'a>>, Stop> {
    let ns = list.namespace.as_str();
    let mut search = Search { list, routes: None, parent: None };
    if let Some(name) = &list.name {
        // Every route of the namespace is known after this.
        shared.routes.served(connection, &nobody(&list.namespace)).await?;
        search.routes = Some(shared.routes.of(&list.namespace, |route| route.name == *name));
    }
    if let Some(parent) = &list.parent {
        let found = connection.maybe_row(sql::KEY_BY_ID, &[&ns, &parent.id.as_str()]).await?;
        let Some(row) = found else { return Ok(None) };
        search.parent = Some(row.try_get(0)?);
    }
    Ok(Some(search))
}

fn nobody(namespace: &abide_core::Namespace) -> Ability {
    Ability {
        namespace: namespace.clone(),
        lanes: std::collections::BTreeSet::new(),
        runs: std::collections::BTreeSet::new(),
        capabilities: std::collections::BTreeSet::new(),
        build: None,
    }
}

async fn stretch(
    shared: &Shared,
    connection: &Connection,
    search: &Search<'_>,
    after: i64,
) -> Result<Vec<Listed>, Stop> {
    let list = search.list;
    let ns = list.namespace.as_str();
    let keys: Vec<&str> = list.tags.iter().map(|tag| tag.key.as_str()).collect();
    let values: Vec<&str> = list.tags.iter().map(|tag| tag.value.as_str()).collect();
    let run = list.parent.as_ref().map(|parent| rows::run_number(parent.run));
    let [oldest, newest] = match list {
        _ if search.parent.is_some() => [sql::LIST_CHILDREN_OLDEST, sql::LIST_CHILDREN_NEWEST],
        List { set_aside: true, .. } => [sql::LIST_ASIDE_OLDEST, sql::LIST_ASIDE_NEWEST],
        _ if !list.tags.is_empty() => [sql::LIST_TAGGED_OLDEST, sql::LIST_TAGGED_NEWEST],
        _ => [sql::LIST_OLDEST, sql::LIST_NEWEST],
    };
    let statement = match list.order {
        ListOrder::OldestFirst => oldest,
        ListOrder::NewestFirst => newest,
    };
    let limit = LIST_STRETCH as i64;
    let parameters: [Parameter<'_>; 10] = [
        &ns,
        &after,
        &list.top_level,
        &search.routes,
        &keys,
        &values,
        &search.parent,
        &run,
        &list.set_aside,
        &limit,
    ];
    let found = connection.rows(statement, &parameters).await?;
    let routes: Vec<i32> = found.iter().map(|row| Ok(row.try_get(3)?)).collect::<Result<_, Stop>>()?;
    let routes = shared.routes.named(connection, &routes).await?;
    let mut items = Vec::new();
    for row in &found {
        match listed(row, &routes, list) {
            Ok(item) => items.push(item),
            Err(Stop::Told(error)) => tracing::error!(%error, "an execution cannot be listed"),
            Err(stop) => return Err(stop),
        }
    }
    Ok(items)
}

fn listed(row: &Row, routes: &HashMap<i32, Arc<Route>>, list: &List) -> Result<Listed, Stop> {
    let (key, route): (i64, i32) = (row.try_get(0)?, row.try_get(3)?);
    let unknown = || Stop::corrupt(format!("execution {key} is of route {route}, which cannot be read"));
    let route = routes.get(&route).ok_or_else(unknown)?;
    Ok(Listed {
        key: ExecutionKey(rows::unsigned(key)),
        address: rows::address(row.try_get(1)?, row.try_get(2)?)?,
        kind: route.kind,
        name: route.name.clone(),
        run: u32::try_from(row.try_get::<_, i32>(4)?).ok(),
        summary: summary(key, row.try_get(8)?, (row.try_get(5)?, row.try_get(9)?))?,
        tags: if list.with_tags { tags(key, row.try_get(7)?).unwrap_or_default() } else { Vec::new() },
        created_at: Some(Timestamp::from_micros(row.try_get(6)?)),
    })
}

pub(crate) async fn feed(shared: &Shared, feed: &Feed) -> Result<FeedPage, Stop> {
    let connection = shared.pool.take().await?;
    let (end, is_settled) = shared.horizon.look(&connection).await?;
    let after = match feed.from {
        FeedFrom::Beginning => 0,
        FeedFrom::After(FeedCursor(place)) => i64::try_from(place).unwrap_or(i64::MAX),
        FeedFrom::End => {
            let next = FeedCursor(u128::from(rows::unsigned(end)));
            return Ok(FeedPage { items: Vec::new(), next, is_end: is_settled });
        }
    };
    let limit = feed.limit.min(shared.options.page_bounds.journal_page_count_max);
    let wanted = rows::limit(limit).saturating_add(1);
    let mut found = connection.rows(sql::FEED, &[&after, &end, &wanted]).await?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let (mut items, mut last) = (Vec::new(), after);
    for row in &found {
        last = row.try_get(0)?;
        match feed_item(row) {
            Ok(item) => items.push(item),
            Err(Stop::Told(error)) => tracing::error!(%error, "an item of the feed cannot be read"),
            Err(stop) => return Err(stop),
        }
    }
    let next = if has_more { last } else { last.max(end) };
    let next = FeedCursor(u128::from(rows::unsigned(next)));
    Ok(FeedPage { items, next, is_end: !has_more && is_settled })
}

pub(crate) fn feed_item(row: &Row) -> Result<FeedItem, Stop> {
    let number: i16 = row.try_get(5)?;
    if let Some(refused) = row.try_get(6)? {
        let (address, refused) = refused_row(row.try_get(0)?, refused)?;
        return Ok(refused.item(address, Timestamp::from_micros(row.try_get(4)?)));
    }
    let happening = u8::try_from(number).ok().and_then(Happening::from_number);
    Ok(FeedItem {
        address: rows::address(row.try_get(1)?, row.try_get(2)?)?,
        run: u32::try_from(row.try_get::<_, i32>(3)?).unwrap_or(0),
        at: Timestamp::from_micros(row.try_get(4)?),
        happening: happening.ok_or_else(|| Stop::corrupt(format!("the feed has a happening {number}")))?,
        refused: None,
    })
}

/// Reads a refused row of the intake table.
pub(crate) fn refused_row(place: i64, bytes: &[u8]) -> Result<(Address, RefusedRow), Stop> {
    let what = || format!("the refusal at place {place} of the feed");
    let bytes = unsealed(0, bytes).ok_or_else(|| Stop::corrupt(format!("{} is damaged", what())))?;
    RefusedRow::decode(bytes).map_err(|error| Stop::undecodable(what(), &error))
}

pub(crate) async fn workers(shared: &Shared, workers: &Workers) -> Result<Vec<WorkerRow>, Stop> {
    let connection = shared.pool.take().await?;
    let after = workers.after.map_or(0, |session| rows::integer(session.0));
    let (ns, limit) = (workers.namespace.as_str(), rows::limit(workers.limit));
    let found = connection.rows(sql::WORKERS, &[&ns, &after, &limit]).await?;
    found.iter().map(|row| worker(row, workers)).collect()
}

fn worker(row: &Row, workers: &Workers) -> Result<WorkerRow, Stop> {
    let (id, name, bytes): (i64, String, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let (ability, damage) = match codec::decode(&bytes) {
        Ok(ability) => (ability, None),
        Err(error) => (nobody(&workers.namespace), Some(error.to_string())),
    };
    let name =
        Name::new(&name).map_err(|error| Stop::corrupt(format!("the name of session {id}: {error}")))?;
    let (ttl_us, lease_count): (i64, i64) = (row.try_get(3)?, row.try_get(8)?);
    Ok(WorkerRow {
        session: SessionId(rows::unsigned(id)),
        worker: Worker { name, ability, ttl: Duration::from_micros(rows::unsigned(ttl_us)) },
        registered_at: Timestamp::from_micros(row.try_get(4)?),
        expires_at: Timestamp::from_micros(row.try_get(5)?),
        retired: row.try_get(6)?,
        is_draining: row.try_get(7)?,
        lease_count: rows::unsigned(lease_count),
        damage,
    })
}

pub(crate) async fn leases(shared: &Shared, leases: &Leases) -> Result<LeasePage, Stop> {
    let connection = shared.pool.take().await?;
    let after = leases.after.map_or(0, |LeaseCursor([key, ..])| rows::integer(key));
    let limit = leases.limit.min(shared.options.page_bounds.lease_page_count_max);
    let session = rows::integer(leases.session.0);
    let wanted = rows::limit(limit).saturating_add(1);
    let found = connection.rows(sql::LEASES, &[&session, &after, &wanted]).await?;
    let mut page = LeasePage::default();
    for row in found.iter().take(limit) {
        let (key, epoch, given_beat): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        page.leases.push(HeldLease {
            key: ExecutionKey(rows::unsigned(key)),
            epoch: Epoch(rows::unsigned(epoch)),
            given_beat: rows::unsigned(given_beat),
        });
    }
    let last = page.leases.last().filter(|_| found.len() > limit);
    page.next = last.map(|last| LeaseCursor([last.key.0, 0, 0]));
    Ok(page)
}
