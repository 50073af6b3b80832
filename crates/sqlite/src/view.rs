//! The reads: snapshots, lists, the feed, the sessions. Each runs in one read transaction.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use abide_core::{
    Address, Entry, ExecutionId, Kind, LeaseRow, Listens, Name, Namespace, Route, Status, Summary, Tag,
    Timestamp, Waits,
};
use abide_store::{
    ExecutionKey, Feed, FeedCursor, FeedFrom, FeedItem, FeedPage, InboxPage, InboxRead, List, ListCursor,
    ListOrder, Listed, Listing, Read, Record, Snapshot, Target,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::apply::{first_start, inbox_page};
use crate::batch::Shared;
use crate::error::Stop;
use crate::interned::Interned;
use crate::journal::{Chain, Page, Skips};
use crate::legible::{LegibleRow, meant_by, stand_in};
use crate::place::Place;
use crate::rows::{count, epoch, integer, timestamp_maybe, unsigned};
use crate::sheaf::{self, Part, Wanted};
use crate::sheet::{Base, Cold};
use crate::tail::Current;
use crate::{answers, refusals, sql};

/// The most journals whose skip entries are remembered.
const SKIPS_COUNT_MAX: usize = 16;

/// The readers' memory. Its contents never change, so they are never dropped as outdated.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The places of skip entries, by chain. Without them, paging through a journal of a million
    /// entries would walk all of them for each page.
    skips: Mutex<VecDeque<((i64, i64), Skips)>>,
    interned: Mutex<Arc<Interned>>,
}

/// A connection for reading, inside a transaction.
pub(crate) struct View<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) shared: &'a Shared,
    pub(crate) memory: &'a Memory,
}

impl Memory {
    fn take_skips(&self, chain: &Chain) -> Skips {
        let mut kept = self.skips.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().position(|(of, _)| *of == (chain.key, chain.first));
        found.and_then(|index| kept.remove(index)).map(|(_, skips)| skips).unwrap_or_default()
    }

    fn put_skips(&self, chain: &Chain, skips: Skips) {
        let mut kept = self.skips.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_front(((chain.key, chain.first), skips));
        kept.truncate(SKIPS_COUNT_MAX);
    }
}

/// The row of an execution.
struct Found {
    key: i64,
    namespace: i64,
    id: String,
    route: i64,
    lease: LeaseRow,
    takeover_count: u32,
    summary: Summary,
    ready_at: Option<Timestamp>,
    created_at: Timestamp,
    tagged: bool,
    current: Current,
}

impl Found {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let base = Base::read(row)?;
        let sheet = base.sheet()?;
        let place = Place::read(row, 9)?;
        Ok(Self {
            key: base.key,
            namespace: base.namespace,
            id: base.id.to_owned(),
            route: base.queue.route,
            lease: LeaseRow { session: place.session(), epoch: epoch(row, 8)?, version: base.anchor.version },
            takeover_count: row.get(12)?,
            summary: {
                let care_at = timestamp_maybe(row, 13)?;
                let summary = Summary { care_at, ..sheet.summary()? };
                match place {
                    Place::Damaged(_) => Summary { status: Status::Damaged, ..summary },
                    _ => summary,
                }
            },
            ready_at: place.ready_at(),
            created_at: sheet.cold.created_at,
            tagged: sheet.cold.tagged,
            current: Current::read(&base, &sheet)?,
        })
    }

    /// Continues with the tail of its journal.
    fn follow(mut self, connection: &Connection) -> Result<Self, Stop> {
        self.current = self.current.follow(connection)?;
        self.lease.version = self.current.version;
        if let Some(last) = self.current.summary.take() {
            self.summary = Summary { waiting: last.waiting, sites: last.sites, ..self.summary };
        }
        Ok(self)
    }
}

impl View<'_> {
    /// Returns names and routes. Loads them anew unless `is_enough` holds for the known ones.
    pub(crate) fn interned(&self, is_enough: impl Fn(&Interned) -> bool) -> Result<Arc<Interned>, Stop> {
        let known = Arc::clone(&self.memory.interned.lock().unwrap_or_else(PoisonError::into_inner));
        if is_enough(&known) {
            return Ok(known);
        }
        let loaded = Arc::new(Interned::load(self.connection)?);
        *self.memory.interned.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&loaded);
        Ok(loaded)
    }

    pub(crate) fn snapshot(&self, read: &Read) -> Result<Option<Snapshot>, Stop> {
        let found = match &read.target {
            Target::Key(key) => {
                let mut statement = self.connection.prepare_cached(sql::SNAPSHOT_BY_KEY)?;
                statement.query_row([integer(key.0)], Found::read).optional()?
            }
            Target::Address(address) => {
                let interned = self.interned(|interned| interned.known(&address.namespace).is_some())?;
                let Some(namespace) = interned.find(&address.namespace)? else { return Ok(None) };
                let mut statement = self.connection.prepare_cached(sql::SNAPSHOT_BY_ID)?;
                let found = statement.query_row(params![namespace, address.id.as_str()], Found::read);
                match (found.optional()?, meant_by(&address.id)) {
                    (None, Some(key)) => {
                        self.check(key)?;
                        None
                    }
                    (found, _) => found,
                }
            }
        };
        let Some(found) = found else { return Ok(None) };
        let mut found = found.follow(self.connection)?;
        let interned = self.interned(|interned| {
            interned.namespace(found.namespace).is_some() && interned.route(found.route).is_some()
        })?;
        // No claim would lease it. A held execution goes on, and a finished one can be read.
        let is_stranded = found.lease.session.is_none() && !found.current.execution.is_finished();
        if is_stranded && interned.route(found.route).is_none() {
            found.summary.status = Status::Damaged;
        }
        let inbox = if read.with_inbox {
            self.inbox(InboxRead::first(ExecutionKey(unsigned(found.key)))).map_err(Stop::of_mail)?
        } else {
            InboxPage::default()
        };
        Ok(Some(Snapshot {
            key: ExecutionKey(unsigned(found.key)),
            journal: self.journal(&found, read)?,
            execution: found.current.execution.at(address(&interned, found.namespace, &found.id)?),
            summary: found.summary,
            lease: found.lease,
            created_at: found.created_at,
            ready_at: found.ready_at,
            takeover_count: found.takeover_count,
            tags: if found.tagged { self.tags(&found.current.chain)? } else { Vec::new() },
            inbox,
        }))
    }

    /// Fails with the damage of a row that has no name of its own.
    fn check(&self, key: i64) -> Result<(), Stop> {
        match LegibleRow::find(self.connection, key)?.and_then(|legible| legible.sound().err()) {
            Some(damage) => Err(damage.into()),
            None => Ok(()),
        }
    }

    pub(crate) fn inbox(&self, read: InboxRead) -> Result<InboxPage, Stop> {
        let kept = answers::unread(self.connection, integer(read.key.0))?;
        Ok(inbox_page(self.connection, (read, kept), &self.shared.options.page_bounds)?.0)
    }

    fn tags(&self, chain: &Chain) -> Result<Vec<Tag>, Stop> {
        Ok(first_start(self.connection, chain.key, chain.first)?.tags.clone())
    }

    /// Returns the requested page of a run.
    fn journal(&self, found: &Found, read: &Read) -> Result<Vec<Record>, Stop> {
        let run = match read.run {
            Some(run) if run != found.current.execution.run() => run,
            _ => return self.page(&found.current.chain, read),
        };
        let mut statement = self.connection.prepare_cached(sql::RUN_CHAIN)?;
        let chain = statement.query_row(params![found.key, run], |row| run_chain(found.key, row));
        match chain.optional()? {
            Some(chain) => self.page(&chain, read),
            None => Ok(Vec::new()),
        }
    }

    fn page(&self, chain: &Chain, read: &Read) -> Result<Vec<Record>, Stop> {
        if read.limit == 0 || read.from > chain.entry_count {
            return Ok(Vec::new());
        }
        let page = Page::new((read.from, read.limit), &self.shared.options.page_bounds);
        let mut skips = self.memory.take_skips(chain);
        let records = chain.page(self.connection, &mut skips, page);
        self.memory.put_skips(chain, skips);
        records
    }

    /// Lists executions in the order of their keys. A page looks at a bounded number of rows, so it
    /// may be short, or even empty, before the end.
    pub(crate) fn list(&self, list: &List) -> Result<Listing, Stop> {
        let interned = self.interned(|interned| interned.known(&list.namespace).is_some())?;
        let Some(namespace) = interned.find(&list.namespace)? else { return Ok(Listing::default()) };
        if list.limit == 0 {
            return Ok(Listing { items: Vec::new(), next: list.after });
        }
        let mut listing = Listing::default();
        let mut last = match (list.after, list.order) {
            (Some(ListCursor(key)), _) => integer(key.0),
            (None, ListOrder::NewestFirst) => i64::MAX,
            (None, ListOrder::OldestFirst) => 0,
        };
        let scan_max = self.shared.options.list_scan_count_max.max(1);
        let mut looked_at = 0;
        while looked_at < scan_max {
            let left = crate::rows::one_more(list.limit - listing.items.len());
            let wanted = left.clamp(1, 1_000).max(64).min(scan_max);
            let candidates = self.candidates(list, (namespace, last), wanted)?;
            let exhausted = candidates.len() < wanted;
            let candidates: Vec<_> = candidates.into_iter().map(|one| one.follow(self.connection)).collect();
            let is_known =
                |interned: &Interned| candidates.iter().all(|one| one.route_in(interned).is_some());
            let interned = self.interned(is_known)?;
            for mut candidate in candidates {
                looked_at += 1;
                if candidate.route_in(&interned).is_none() {
                    candidate.summary = damaged();
                }
                if listing.items.len() == list.limit {
                    listing.next = Some(ListCursor(ExecutionKey(unsigned(last))));
                    return Ok(listing);
                }
                last = candidate.key;
                if self.matches(list, &interned, (namespace, &candidate))? {
                    if candidate.summary.status == Status::Damaged && !self.finds(namespace, &candidate) {
                        candidate.name = stand_in(candidate.key);
                    }
                    let tags = if list.with_tags { self.legible_tags(&candidate) } else { Vec::new() };
                    listing.items.push(Listed { tags, ..candidate.listed(&interned, &list.namespace) });
                }
            }
            if exhausted {
                return Ok(listing);
            }
        }
        listing.next = Some(ListCursor(ExecutionKey(unsigned(last))));
        Ok(listing)
    }

    /// Returns the tags of a listed execution; none if they cannot be read.
    fn legible_tags(&self, candidate: &Candidate) -> Vec<Tag> {
        let Some(cold) = candidate.cold.filter(|cold| cold.tagged) else { return Vec::new() };
        first_start(self.connection, candidate.key, cold.first)
            .map(|start| start.tags.clone())
            .unwrap_or_default()
    }

    /// Whether a lookup by name finds the row.
    fn finds(&self, namespace: i64, candidate: &Candidate) -> bool {
        let key = self.connection.prepare_cached(sql::EXECUTION_KEY).and_then(|mut key| {
            key.query_row(params![namespace, candidate.name.as_str()], |row| row.get::<_, i64>(0))
        });
        key.is_ok_and(|key| key == candidate.key)
    }

    /// Returns the next rows to look at, by the narrowest index for the list.
    fn candidates(
        &self,
        list: &List,
        (namespace, last): (i64, i64),
        wanted: usize,
    ) -> Result<Vec<Candidate>, Stop> {
        let newest = list.order == ListOrder::NewestFirst;
        let wanted = integer(wanted as u64);
        if let Some(tag) = list.tags.first() {
            let text = if newest { sql::TAGGED_BEFORE } else { sql::TAGGED_AFTER };
            let mut tagged = self.connection.prepare_cached(text)?;
            let (key, value) = (tag.key.as_str(), tag.value.as_str());
            let keys = tagged.query_map(params![namespace, key, value, last, wanted], |row| row.get(0))?;
            return self.candidates_of(keys);
        }
        if let Some(parent) = &list.parent {
            let mut key = self.connection.prepare_cached(sql::EXECUTION_KEY)?;
            let key: Option<i64> =
                key.query_row(params![namespace, parent.id.as_str()], |row| row.get(0)).optional()?;
            let Some(key) = key else { return Ok(Vec::new()) };
            let text = if newest { sql::CHILDREN_BEFORE } else { sql::CHILDREN_AFTER };
            let mut children = self.connection.prepare_cached(text)?;
            let keys = children.query_map(params![key, parent.run, last, wanted], |row| row.get(0))?;
            return self.candidates_of(keys);
        }
        if list.set_aside {
            let mut aside =
                self.connection.prepare_cached(if newest { sql::ASIDE_BEFORE } else { sql::ASIDE_AFTER })?;
            let keys = aside.query_map([last, wanted], |row| row.get(0))?;
            return self.candidates_of(keys);
        }
        if let [status @ (Status::Blocked | Status::Failed)] = list.statuses.as_slice() {
            let text = if newest { sql::TROUBLED_BEFORE } else { sql::TROUBLED_AFTER };
            let mut troubled = self.connection.prepare_cached(text)?;
            let keys = troubled.query_map([i64::from(*status as u8), last, wanted], |row| row.get(0))?;
            return self.candidates_of(keys);
        }
        let text = if newest { sql::EXECUTION_ROWS_BEFORE } else { sql::EXECUTION_ROWS_AFTER };
        let mut statement = self.connection.prepare_cached(text)?;
        let rows = statement.query_map([last, wanted], Candidate::read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    fn candidates_of(
        &self,
        keys: impl Iterator<Item = rusqlite::Result<i64>>,
    ) -> Result<Vec<Candidate>, Stop> {
        let mut one = self.connection.prepare_cached(sql::EXECUTION_ROW)?;
        let mut candidates = Vec::new();
        for key in keys {
            // `verify` reports an execution that only this index lists.
            let found = match key {
                Ok(key) => one.query_row([key], Candidate::read).optional()?,
                Err(rusqlite::Error::InvalidColumnType(..)) => None,
                Err(error) => return Err(error.into()),
            };
            candidates.extend(found);
        }
        Ok(candidates)
    }

    fn matches(
        &self,
        list: &List,
        interned: &Interned,
        (namespace, candidate): (i64, &Candidate),
    ) -> Result<bool, Stop> {
        let is_named = |name: &Name| candidate.route_in(interned).is_some_and(|route| route.name == *name);
        // Nobody knows the owner of a row without a namespace: every namespace lists it.
        let fits = candidate.namespace.is_none_or(|found| found == namespace)
            && list.has_status_of(&candidate.summary, self.shared.clock.now())
            && (!list.top_level || candidate.cold.is_none_or(|cold| cold.top_level))
            && (!list.set_aside || candidate.is_set_aside)
            && list.name.as_ref().is_none_or(is_named);
        if !fits {
            return Ok(false);
        }
        let mut has = self.connection.prepare_cached(sql::TAG_HAS)?;
        for tag in list.tags.iter().skip(1) {
            if !has.exists(params![namespace, tag.key.as_str(), tag.value.as_str(), candidate.key])? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a page of the feed from the rows of the journal. They stand in the order of their
    /// commits, because there is one writer at a time. A page looks at a bounded number of rows.
    pub(crate) fn feed(&self, feed: Feed) -> Result<FeedPage, Stop> {
        let (end, refusal_end) = (sheaf::row_max(self.connection)?, refusals::last(self.connection)?);
        let (after, refused_after) = match feed.from {
            FeedFrom::Beginning => (0, 0),
            FeedFrom::End => (end, refusal_end),
            FeedFrom::After(cursor) => places(cursor),
        };
        let scan_max = integer(self.shared.options.list_scan_count_max.max(1) as u64);
        let to = end.min(after.saturating_add(scan_max)).max(after);
        let limit = feed.limit.min(self.shared.options.page_bounds.journal_page_count_max.max(1));
        let (mut items, refused_next) = self.refused((refused_after, refusal_end), limit)?;
        let limit = limit - items.len();
        let (mut next, mut left) = (if limit == 0 { after } else { to }, limit);
        sheaf::scan(self.connection, (Wanted::Told, after.saturating_add(1), to), |part| {
            if left == 0 {
                return Ok(ControlFlow::Break(()));
            }
            if !part.is_told()? {
                return Ok(ControlFlow::Continue(()));
            }
            match self.happened(part) {
                Ok(None) => return Ok(ControlFlow::Continue(())),
                Ok(Some(item)) => items.push(item),
                // One damaged row does not stop the feed; `verify` names it.
                Err(stop) if stop.damage().is_some() => {}
                Err(stop) => return Err(stop),
            }
            left -= 1;
            if left == 0 {
                next = part.number()?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let is_end = next >= end && refused_next >= refusal_end;
        Ok(FeedPage { items, next: cursor((next, refused_next)), is_end })
    }

    /// Returns refused rows of the intake table, and the place up to which there are no others.
    fn refused(&self, (after, end): (i64, i64), limit: usize) -> Result<(Vec<FeedItem>, i64), Stop> {
        let mut statement = self.connection.prepare_cached(sql::REFUSALS_AFTER)?;
        let mut rows = statement.query([after, integer(limit as u64)])?;
        let (mut items, mut next, mut count) = (Vec::new(), after, 0);
        while let Some(row) = rows.next()? {
            next = row.get(0)?;
            count += 1;
            match refusals::read(row) {
                Ok((_, item)) => items.push(item),
                // One damaged row does not stop the feed; `verify` names it.
                Err(stop) if stop.damage().is_some() => {}
                Err(stop) => return Err(stop),
            }
        }
        // Behind the last one there may be places of which the rows were pruned.
        Ok((items, if count < limit { end.max(next) } else { next }))
    }

    /// Returns what happened with a row of the journal, if its execution exists.
    fn happened(&self, part: &Part<'_>) -> Result<Option<FeedItem>, Stop> {
        let place = part.number()?;
        let mut execution = self.connection.prepare_cached(sql::FEED_EXECUTION)?;
        let mut rows = execution.query([part.execution()?])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let happened = part.found()?.last().and_then(Entry::happening_of);
        let (at, happening) =
            happened.ok_or_else(|| Stop::corrupt(format!("journal row {place} is not what it says")))?;
        let base = Base::read(row)?;
        let Cold { mut run, first, .. } = base.sheet()?.cold;
        if place < first {
            let mut earlier = self.connection.prepare_cached(sql::RUN_AT)?;
            run = earlier.query_row([base.key, place], |row| row.get(0))?;
        }
        let interned = self.interned(|interned| interned.namespace(base.namespace).is_some())?;
        let address = address(&interned, base.namespace, base.id)?;
        Ok(Some(FeedItem { address, run, at, happening, refused: None }))
    }
}

/// Returns the places in the journal and among the refusals that a cursor consists of.
fn places(FeedCursor(place): FeedCursor) -> (i64, i64) {
    let half = |bits: u128| i64::try_from(bits).unwrap_or(i64::MAX);
    (half(place & u128::from(u64::MAX)), half(place >> 64))
}

fn cursor((journal, refusals): (i64, i64)) -> FeedCursor {
    FeedCursor(u128::from(unsigned(refusals)) << 64 | u128::from(unsigned(journal)))
}

/// Returns the summary of an unreadable execution.
fn damaged() -> Summary {
    Summary {
        status: Status::Damaged,
        listens: Listens::Nothing,
        wake_at: None,
        care_at: None,
        waiting: Waits::new(),
        cared_epoch: None,
        suspicion: None,
        unclaimed: None,
        sites: None,
    }
}

/// A row that a list looks at.
struct Candidate {
    key: i64,
    /// `None`, like the route, when it cannot be read.
    namespace: Option<i64>,
    name: ExecutionId,
    route: Option<i64>,
    /// `None` when it cannot be read.
    cold: Option<Cold>,
    is_set_aside: bool,
    summary: Summary,
    /// Its facts, if its journal has a tail.
    current: Option<Current>,
}

impl Candidate {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let legible = LegibleRow::read(row)?;
        let is_set_aside = matches!(legible.place, Some(Place::Damaged(_)));
        let is_astray = legible.place.is_none();
        let sheet = legible.sound().ok();
        let told = sheet.as_ref().and_then(|sheet| {
            let summary = sheet.summary().ok()?;
            Some(Summary { care_at: legible.care_at?, ..summary })
        });
        let current = sheet
            .as_ref()
            .filter(|sheet| sheet.cold.has_tail)
            .and_then(|sheet| Current::of(legible.key, (legible.head?, legible.version?), sheet).ok());
        Ok(Self {
            current,
            key: legible.key,
            namespace: legible.namespace,
            name: legible.name(),
            route: legible.queue.map(|queue| queue.route),
            cold: sheet.as_ref().map(|sheet| sheet.cold),
            is_set_aside,
            summary: told.filter(|_| !is_set_aside && !is_astray).unwrap_or_else(damaged),
        })
    }

    /// Continues with the tail of its journal. Only the waits of the code differ there, so a tail
    /// that cannot be read is left to its holder and to `verify`.
    fn follow(mut self, connection: &Connection) -> Self {
        let current = self.current.take().and_then(|current| current.follow(connection).ok());
        if let Some(last) = current.and_then(|current| current.summary) {
            self.summary = Summary { waiting: last.waiting, sites: last.sites, ..self.summary };
        }
        self
    }

    fn route_in<'i>(&self, interned: &'i Interned) -> Option<&'i Arc<Route>> {
        self.route.and_then(|route| interned.route(route))
    }

    fn listed(self, interned: &Interned, namespace: &Namespace) -> Listed {
        // A row whose number leads to no route is still listed by its id.
        let (kind, name) = self.route_in(interned).map_or_else(
            || (Kind::Workflow, Name::new("?").expect("a name")),
            |route| (route.kind, route.name.clone()),
        );
        Listed {
            key: ExecutionKey(unsigned(self.key)),
            address: Address { namespace: namespace.clone(), id: self.name },
            kind,
            name,
            run: self.cold.map(|cold| cold.run),
            summary: self.summary,
            tags: Vec::new(),
            created_at: self.cold.map(|cold| cold.created_at),
        }
    }
}

/// Reads the chain of an earlier run: `first, head, entry_count, row_count`, in this order.
pub(crate) fn run_chain(key: i64, row: &Row<'_>) -> rusqlite::Result<Chain> {
    let (first, head) = (row.get(0)?, row.get(1)?);
    Ok(Chain { key, first, head, entry_count: count(row, 2)?, row_count: count(row, 3)? })
}

pub(crate) fn address(interned: &Interned, namespace: i64, id: &str) -> Result<Address, Stop> {
    let namespace = interned.namespace(namespace).cloned();
    let namespace = namespace.ok_or_else(|| Stop::corrupt(format!("execution {id:?} is in no namespace")))?;
    let id = ExecutionId::new(id).map_err(|error| Stop::corrupt(error.to_string()))?;
    Ok(Address { namespace, id })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::fixture::{inside, pair, start};

    /// Asked every few seconds while a client waits: the number of others must not matter.
    #[test]
    fn what_was_set_aside_is_found_without_a_look_at_the_others() {
        let (_folder, ours, _theirs) = pair();
        let cost = || {
            inside(&ours, |batch| {
                let (connection, step_count) = (batch.connection, Arc::new(AtomicU64::new(0)));
                let view = View { connection, shared: batch.shared, memory: &Memory::default() };
                let list = List { set_aside: true, ..List::of(Namespace::default(), 256) };
                // The first read prepares and remembers, which is not counted.
                view.list(&list)?;
                let counted = step_count.clone();
                let count = move || counted.fetch_add(1, Ordering::Relaxed) == u64::MAX;
                connection.progress_handler(1, Some(count))?;
                let listing = view.list(&list)?;
                connection.progress_handler(0, None::<fn() -> bool>)?;
                Ok((listing.items.len(), step_count.load(Ordering::Relaxed)))
            })
            .expect("it is listed")
        };
        start(&ours, "bad");
        inside(&ours, |batch| Ok(batch.connection.execute_batch("UPDATE abide_executions SET place = 8")?))
            .expect("it is set aside");
        let few = cost();
        (0..200).for_each(|nth| start(&ours, &format!("q-{nth}")));
        assert_eq!((few.0, cost()), (1, few));
    }
}
