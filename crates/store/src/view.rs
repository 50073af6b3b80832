//! The reading half of a store.

use std::any::Any;

use abide_core::{
    Address, Execution, ExecutionId, Happening, Kind, LeaseRow, Message, Name, Namespace, Status, Summary,
    Tag, Timestamp,
};

use crate::{Answer, ExecutionKey, LeasePage, Leases, Record, RefusedRow, WorkerRow, Workers};

/// The reading half of a store. The answer of each method is true at one moment.
///
/// A store is [`Any`], for callers that know its kind.
pub trait View: Any + Send + Sync {
    /// Returns one execution and a page of the journal of one of its runs; `None` when there is no
    /// such execution.
    fn read(&self, read: Read) -> Answer<Option<Snapshot>>;

    /// Returns a page of the unread messages of an execution, in order of arrival. An execution
    /// that does not exist has none.
    fn inbox(&self, inbox: InboxRead) -> Answer<InboxPage>;

    /// Returns a page of executions.
    fn list(&self, list: List) -> Answer<Listing>;

    /// Returns a page of the feed: beginnings, ends and changes in the lives of executions. Nothing
    /// ever appears before a place that was returned, so a reader that goes on from page to page
    /// misses nothing, however late a commit is.
    fn feed(&self, feed: Feed) -> Answer<FeedPage>;

    /// Resolves when something may have been added to the feed since this call. A hint, as
    /// [`Store::wait`](crate::Store::wait) is, for callers that have no session: it may come late,
    /// for no reason, or not at all. Call it before you read the feed, and await it when the feed
    /// has nothing more.
    fn changed(&self) -> Answer<()>;

    /// Returns the sessions of a namespace.
    fn workers(&self, workers: Workers) -> Answer<Vec<WorkerRow>>;

    /// Returns a page of the leases of a session. Each page is true at one moment.
    fn leases(&self, leases: Leases) -> Answer<LeasePage>;

    /// What keeps the store from writing at this moment, as far as it knows. For people: nobody
    /// decides anything by it.
    fn trouble(&self) -> Answer<Option<Trouble>>;
}

/// What keeps a store from writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Writes fail.
    Failing {
        /// Since when, by the store's clock.
        since: Timestamp,
        /// The database's complaint.
        complaint: String,
    },
    /// The disk has no room. Another process may still write what fits into files that it made
    /// before.
    Full {
        /// How many bytes are free.
        free_bytes: u64,
    },
    /// The closure of a transaction step keeps the only writer.
    Occupied {
        /// The execution that it belongs to.
        by: ExecutionKey,
        /// Since when, by the store's clock.
        since: Timestamp,
    },
}

/// The bounds of a store's answers. Each can be set when a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageBounds {
    /// The most entries in one page of a journal, and in one of the feed.
    pub journal_page_count_max: usize,
    /// The most bytes of entries in one page of a journal, unless a single entry is larger.
    pub journal_page_bytes_max: usize,
    /// The most messages in one page of an inbox.
    pub inbox_page_count_max: usize,
    /// The most bytes of messages in one page of an inbox, unless a single message is larger.
    pub inbox_page_bytes_max: usize,
    /// The size of journals and inboxes at which a claim takes no further execution.
    pub claim_bytes_max: usize,
    /// The most leases in one page.
    pub lease_page_count_max: usize,
}

impl Default for PageBounds {
    fn default() -> Self {
        Self {
            journal_page_count_max: 1_024,
            journal_page_bytes_max: 1 << 20,
            inbox_page_count_max: 1_024,
            inbox_page_bytes_max: 1 << 20,
            claim_bytes_max: 16 << 20,
            lease_page_count_max: 1_024,
        }
    }
}

/// A request for a part of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxRead {
    /// The execution.
    pub key: ExecutionKey,
    /// The place after which the page begins; `None` for the beginning.
    pub after: Option<InboxCursor>,
    /// The most messages wanted. A store may return fewer, but at least one if there is one.
    pub limit: usize,
}

impl InboxRead {
    /// Asks for as much of the beginning as a store returns at once.
    pub fn first(key: ExecutionKey) -> Self {
        Self { key, after: None, limit: usize::MAX }
    }
}

/// A place in an inbox, as the store that returned it understands it. It serves for the following
/// pages only: to learn whether something has arrived since, read from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxCursor(pub u64);

/// A page of unread messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboxPage {
    /// The messages, in the store's order.
    pub messages: Vec<Message>,
    /// Where to go on; `None` at the end.
    pub next: Option<InboxCursor>,
}

/// The name of an execution in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The store's number for it.
    Key(ExecutionKey),
    /// Its id.
    Address(Address),
}

/// A request for one execution and a page of its journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The execution.
    pub target: Target,
    /// The run whose journal is wanted; `None` for the current one. An ended run can be read until
    /// its execution is pruned. A run that does not exist has no entries.
    pub run: Option<u32>,
    /// The first entry wanted. A number after the last one selects none.
    pub from: u64,
    /// The most entries wanted; 0 for none. A store may return fewer, but at least one if there is
    /// one.
    pub limit: usize,
    /// Whether to also return the first page of its unread messages.
    pub with_inbox: bool,
}

/// An execution as it was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The store's number for it.
    pub key: ExecutionKey,
    /// Its state.
    pub execution: Execution,
    /// Its summary.
    pub summary: Summary,
    /// The session that may write it, with epoch and version.
    pub lease: LeaseRow,
    /// When it was created.
    pub created_at: Timestamp,
    /// Since when it has been ready to be claimed; `None` when it is held or waits.
    pub ready_at: Option<Timestamp>,
    /// How many sessions in a row died while holding it, without progress.
    pub takeover_count: u32,
    /// The tags by which it can be found.
    pub tags: Vec<Tag>,
    /// The page of the journal.
    pub journal: Vec<Record>,
    /// The first page of its unread messages, if asked for.
    pub inbox: InboxPage,
}

/// A request for a list of executions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Their namespace.
    pub namespace: Namespace,
    /// The statuses that they may have at this moment; empty for any.
    pub statuses: Vec<Status>,
    /// The name of their workflow or task, if only one is wanted.
    pub name: Option<Name>,
    /// The tags that each of them must have.
    pub tags: Vec<Tag>,
    /// Whether to list only executions without a parent.
    pub top_level: bool,
    /// Whether to list only executions that were set aside because they are damaged. A store finds
    /// them without a look at any other, so this request may be repeated often.
    pub set_aside: bool,
    /// The parent run, if only its children are wanted.
    pub parent: Option<ParentRun>,
    /// Whether to return their tags too, which costs a read for each execution that has any.
    pub with_tags: bool,
    /// The order.
    pub order: ListOrder,
    /// The place after which the page begins.
    pub after: Option<ListCursor>,
    /// The most executions wanted.
    pub limit: usize,
}

impl List {
    /// Asks for all executions of a namespace, the oldest first, at most `limit`.
    pub fn of(namespace: Namespace, limit: usize) -> Self {
        Self {
            namespace,
            statuses: Vec::new(),
            name: None,
            tags: Vec::new(),
            top_level: false,
            set_aside: false,
            parent: None,
            with_tags: false,
            order: ListOrder::OldestFirst,
            after: None,
            limit,
        }
    }

    /// Whether the status at `now` is one of the requested ones.
    pub fn has_status_of(&self, summary: &Summary, now: Timestamp) -> bool {
        self.statuses.is_empty() || self.statuses.contains(&summary.status_at(now))
    }
}

/// A run that may have children. It belongs to the execution that has the id now: a pruned
/// execution that had the same id is a different one, with different children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentRun {
    /// The execution, in the namespace of the list.
    pub id: ExecutionId,
    /// Its run.
    pub run: u32,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// Newest first.
    #[default]
    NewestFirst,
    /// Oldest first.
    OldestFirst,
}

/// A place in a list: the last execution seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListCursor(pub ExecutionKey);

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The executions.
    pub items: Vec<Listed>,
    /// Where to go on; `None` at the end.
    pub next: Option<ListCursor>,
}

/// One execution in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The store's number for it.
    pub key: ExecutionKey,
    /// Its address.
    pub address: Address,
    /// Whether it is a workflow or a task.
    pub kind: Kind,
    /// The name of its workflow or task.
    pub name: Name,
    /// Its run; `None` if that cannot be read.
    pub run: Option<u32>,
    /// Its summary.
    pub summary: Summary,
    /// The tags by which it can be found, if they were asked for and can be read.
    pub tags: Vec<Tag>,
    /// When it was created; `None` if that cannot be read.
    pub created_at: Option<Timestamp>,
}

/// A request for a part of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Where it begins.
    pub from: FeedFrom,
    /// The most items wanted.
    pub limit: usize,
}

/// The beginning of a part of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedFrom {
    /// The first item that is still known.
    Beginning,
    /// The end: the answer contains only the place after the last item.
    End,
    /// The first item after this place.
    After(FeedCursor),
}

/// A place in the feed, as the store that returned it understands it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedCursor(pub u128);

/// A page of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedPage {
    /// The items. A page may be short, or even empty, before the end.
    pub items: Vec<FeedItem>,
    /// Where to go on, even after the end.
    pub next: FeedCursor,
    /// Whether there is nothing more for now.
    pub is_end: bool,
}

/// One event in the life of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedItem {
    /// The execution.
    pub address: Address,
    /// Its run; 0 for a row of the intake table.
    pub run: u32,
    /// When the event was decided.
    pub at: Timestamp,
    /// The kind of event.
    pub happening: Happening,
    /// The row of the intake table that was [refused](Happening::Refused), and why. The address is
    /// the one that it named, and belongs perhaps to no execution.
    pub refused: Option<Box<RefusedRow>>,
}

/// A request to delete executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prune {
    /// The time before which they finished.
    pub finished_before: Timestamp,
    /// The most executions to delete.
    pub limit: usize,
}
