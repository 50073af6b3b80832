//! Reads and pruning.

use abide_core::{Address, Tag, Timestamp};

use super::row::Row;
use super::state::MemoryState;
use crate::{
    ExecutionKey, Feed, FeedCursor, FeedFrom, FeedPage, InboxPage, InboxRead, List, ListCursor, ListOrder,
    Listing, PageBounds, Prune, Read, Snapshot, Target,
};

impl MemoryState {
    pub(super) fn read(&self, read: &Read) -> Option<Snapshot> {
        let row = match &read.target {
            Target::Key(key) => self.rows.get(key)?,
            Target::Address(address) => self.at(address)?,
        };
        let inbox =
            if read.with_inbox { row.inbox_page(None, &self.page_bounds) } else { InboxPage::default() };
        let journal = Row::page(row.journal_of(read.run), (read.from, read.limit), &self.page_bounds);
        Some(row.snapshot(journal, inbox))
    }

    pub(super) fn inbox(&self, inbox: &InboxRead) -> InboxPage {
        let Some(row) = self.rows.get(&inbox.key) else { return InboxPage::default() };
        let inbox_page_count_max = inbox.limit.min(self.page_bounds.inbox_page_count_max);
        row.inbox_page(inbox.after, &PageBounds { inbox_page_count_max, ..self.page_bounds })
    }

    pub(super) fn list(&self, list: &List, now: Timestamp) -> Listing {
        let parent = list.parent.as_ref().map(|parent| {
            let address = Address { namespace: list.namespace.clone(), id: parent.id.clone() };
            (self.by_address.get(&address).copied(), parent.run)
        });
        let rows = self.rows.values().filter(|row| matches(list, row, now));
        let rows = rows.filter(|row| parent.is_none_or(|(parent, run)| is_child_of(row, parent, run)));
        let after = list.after.map(|ListCursor(key)| key);
        let mut items: Vec<_> = match list.order {
            ListOrder::OldestFirst => {
                let rest = rows.filter(|row| after.is_none_or(|after| row.key > after));
                rest.take(list.limit.saturating_add(1)).map(|row| row.listed(list)).collect()
            }
            ListOrder::NewestFirst => {
                let rest = rows.rev().filter(|row| after.is_none_or(|after| row.key < after));
                rest.take(list.limit.saturating_add(1)).map(|row| row.listed(list)).collect()
            }
        };
        let more = items.len() > list.limit;
        items.truncate(list.limit);
        let next = items.last().filter(|_| more).map(|item| ListCursor(item.key));
        Listing { items, next }
    }

    pub(super) fn feed(&self, feed: Feed) -> FeedPage {
        let end = self.feed_end();
        let after = match feed.from {
            FeedFrom::Beginning => 0,
            FeedFrom::End => end,
            FeedFrom::After(FeedCursor(place)) => u64::try_from(place).unwrap_or(u64::MAX),
        };
        let from = after.saturating_add(1);
        let told = self.feed.range(from..).map(|(position, (_, item))| (*position, item));
        let mut refused = self.refusals.range(from..).peekable();
        let mut told = told.peekable();
        let mut rest = std::iter::from_fn(|| match (told.peek(), refused.peek()) {
            (Some((told_at, _)), Some((refused_at, _))) if told_at > refused_at => {
                refused.next().map(|(position, item)| (*position, item))
            }
            (Some(_), _) => told.next(),
            (None, _) => refused.next().map(|(position, item)| (*position, item)),
        });
        let mut page = FeedPage { items: Vec::new(), next: FeedCursor(after.into()), is_end: false };
        for (position, item) in rest.by_ref().take(feed.limit.min(self.page_bounds.journal_page_count_max)) {
            page.items.push(item.clone());
            page.next = FeedCursor(position.into());
        }
        page.is_end = rest.next().is_none();
        if page.is_end {
            page.next = FeedCursor(after.max(end).into());
        }
        page
    }

    pub(super) fn prune(&mut self, prune: Prune) -> u64 {
        // The feed orders executions by their ends, even by ends at the same time.
        let ended = self.feed.iter().filter_map(|(position, (key, _))| {
            let row = self.row(*key);
            let is_end = row.journal.last().is_some_and(|(last, _)| last == position);
            (is_end && row.finished_at? < prune.finished_before).then_some(*key)
        });
        let old: Vec<_> = ended.take(prune.limit).collect();
        old.iter().for_each(|key| self.remove(*key));
        self.refusals.retain(|_, refused| refused.at >= prune.finished_before);
        self.sessions.retain(|_, found| found.retired.is_none() || found.expires_at >= prune.finished_before);
        old.len() as u64
    }
}

fn matches(list: &List, row: &Row, now: Timestamp) -> bool {
    let has_tag = |tag: &Tag| row.start.tags.contains(tag);
    row.address().namespace == list.namespace
        && list.has_status_of(&row.told(), now)
        && list.name.as_ref().is_none_or(|name| row.execution.name() == name)
        && list.tags.iter().all(has_tag)
        && (!list.top_level || row.start.parent.is_none())
        && (!list.set_aside || row.is_aside)
}

fn is_child_of(row: &Row, parent: Option<ExecutionKey>, run: u32) -> bool {
    parent.is_some()
        && row.parent == parent
        && row.start.parent.as_ref().is_some_and(|known| known.run == run)
}
