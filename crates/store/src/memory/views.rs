//! What can be read, and what is forgotten.

use abide_core::Tag;

use super::row::Row;
use super::state::State;
use crate::{
    Bounds, ExecutionKey, Feed, FeedItem, InboxPage, InboxRead, List, ListCursor, ListOrder, Listing, Prune,
    Read, Snapshot, Target,
};

impl State {
    pub(super) fn read(&self, read: &Read) -> Option<Snapshot> {
        let row = match &read.target {
            Target::Key(key) => self.rows.get(key)?,
            Target::Address(address) => self.at(address)?,
        };
        let inbox = if read.with_inbox { row.inbox_page(None, &self.bounds) } else { InboxPage::default() };
        Some(row.snapshot(row.page(read.from, read.limit), inbox))
    }

    pub(super) fn inbox(&self, inbox: &InboxRead) -> InboxPage {
        let Some(row) = self.rows.get(&inbox.key) else { return InboxPage::default() };
        let inbox_page_count_max = inbox.limit.min(self.bounds.inbox_page_count_max);
        row.inbox_page(inbox.after, &Bounds { inbox_page_count_max, ..self.bounds })
    }

    pub(super) fn list(&self, list: &List) -> Listing {
        let rows = self.rows.values().filter(|row| matches(list, row));
        let after = list.after.map(|ListCursor(key)| key);
        let mut items: Vec<_> = match list.order {
            ListOrder::OldestFirst => {
                let rest = rows.filter(|row| after.is_none_or(|after| row.key > after));
                rest.take(list.limit + 1).map(Row::listed).collect()
            }
            ListOrder::NewestFirst => {
                let rest = rows.rev().filter(|row| after.is_none_or(|after| row.key < after));
                rest.take(list.limit + 1).map(Row::listed).collect()
            }
        };
        let more = items.len() > list.limit;
        items.truncate(list.limit);
        let next = items.last().filter(|_| more).map(|item| ListCursor(item.key));
        Listing { items, next }
    }

    pub(super) fn feed(&self, feed: Feed) -> Vec<FeedItem> {
        let item = |(position, key): (&u64, &ExecutionKey)| {
            let row = self.row(*key);
            let record = row.at_position(*position).expect("the feed tells entries that exist").clone();
            FeedItem { position: *position, address: row.address().clone(), record }
        };
        self.feed.range(feed.after.saturating_add(1)..).take(feed.limit).map(item).collect()
    }

    pub(super) fn prune(&mut self, prune: Prune) -> u64 {
        // The feed tells who ended before whom, also within one moment.
        let ended = self.feed.iter().filter_map(|(position, key)| {
            let row = self.row(*key);
            let is_end = row.journal.last().is_some_and(|(last, _)| last == position);
            (is_end && row.finished_at? < prune.finished_before).then_some(*key)
        });
        let old: Vec<_> = ended.take(prune.limit).collect();
        old.iter().for_each(|key| self.remove(*key));
        self.sessions.retain(|_, found| found.retired.is_none() || found.expires_at >= prune.finished_before);
        old.len() as u64
    }
}

fn matches(list: &List, row: &Row) -> bool {
    let has_tag = |tag: &Tag| row.start.tags.contains(tag);
    row.address().namespace == list.namespace
        && (list.statuses.is_empty() || list.statuses.contains(&row.summary.status))
        && list.name.as_ref().is_none_or(|name| row.execution.name() == name)
        && list.tags.iter().all(has_tag)
        && (!list.top_level || row.start.parent.is_none())
}
