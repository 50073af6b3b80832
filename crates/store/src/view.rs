//! What can be read from a store.

use abide_core::{
    Address, Execution, ExecutionId, Happening, Kind, LeaseRow, Message, Name, Namespace, Status, Summary,
    Tag, Timestamp,
};

use crate::{Answer, ExecutionKey, LeasePage, Leases, Record, WorkerRow, Workers};

/// What can be read from a store. Each method tells what is true at one moment.
pub trait View: Send + Sync + 'static {
    /// One execution and a page of the journal of one of its runs; `None` when there is no such execution.
    fn read(&self, read: Read) -> Answer<Option<Snapshot>>;

    /// A page of the unread messages of an execution, in the store's order: that in which they arrived. An execution that does not exist has none.
    fn inbox(&self, inbox: InboxRead) -> Answer<InboxPage>;

    /// Executions, in pages.
    fn list(&self, list: List) -> Answer<Listing>;

    /// What began, ended and changed in the lives of executions, in an order in which nothing ever appears before a place that was told: whoever goes
    /// on from page to page misses nothing, whatever commits late.
    fn feed(&self, feed: Feed) -> Answer<FeedPage>;

    /// Resolves when something may have been added to the feed since this was called. A hint, as [`Store::wait`](crate::Store::wait) is, for those
    /// who have no session: it may come late, or for nothing, or not at all. Call it before you read the feed, and await it when there is nothing more.
    fn changed(&self) -> Answer<()>;

    /// The sessions of a namespace.
    fn workers(&self, workers: Workers) -> Answer<Vec<WorkerRow>>;

    /// What a session holds, in pages. Each page tells what is true at one moment.
    fn leases(&self, leases: Leases) -> Answer<LeasePage>;
}

/// How much one answer may hold. Each bound can be set when a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most messages in one page of an inbox.
    pub inbox_page_count_max: usize,
    /// The most bytes of messages in one page of an inbox, unless a single one is larger.
    pub inbox_page_bytes_max: usize,
    /// The size of journals and inboxes at which a claim takes no further execution.
    pub claim_bytes_max: usize,
    /// The most leases in one page.
    pub lease_page_count_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            inbox_page_count_max: 1_024,
            inbox_page_bytes_max: 1 << 20,
            claim_bytes_max: 16 << 20,
            lease_page_count_max: 1_024,
        }
    }
}

/// A part of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxRead {
    /// Of which execution.
    pub key: ExecutionKey,
    /// After this place; `None` for the beginning.
    pub after: Option<InboxCursor>,
    /// At most so many. A store may give fewer, but at least one if there is one.
    pub limit: usize,
}

impl InboxRead {
    /// As much of the beginning as a store gives at once.
    pub fn first(key: ExecutionKey) -> Self {
        Self { key, after: None, limit: usize::MAX }
    }
}

/// A place in an inbox, as the store that gave it understands it. Good for the pages that follow; whether something has arrived since is not told by
/// it, but by reading from the beginning.
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

/// Which execution is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// By the store's number.
    Key(ExecutionKey),
    /// By its id.
    Address(Address),
}

/// One execution and a page of its journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Which.
    pub target: Target,
    /// Of which run the journal is wanted; `None` for the current one. A run that has ended can be read until its execution is pruned. One that
    /// does not exist has no entries.
    pub run: Option<u32>,
    /// The first entry wanted; a number after the last one gives none.
    pub from: u64,
    /// At most so many entries; 0 for none. A store may give fewer, but at least one if there is one.
    pub limit: usize,
    /// Whether to tell the first page of its unread messages too.
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
    /// Who may write it.
    pub lease: LeaseRow,
    /// When it was created.
    pub created_at: Timestamp,
    /// Since when it is ready to be claimed; `None` when it is held or waits.
    pub ready_at: Option<Timestamp>,
    /// How often in a row a session died while holding it, without progress.
    pub takeover_count: u32,
    /// What it can be found by.
    pub tags: Vec<Tag>,
    /// The page of the journal.
    pub journal: Vec<Record>,
    /// The first page of its unread messages, if asked for.
    pub inbox: InboxPage,
}

/// Which executions to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Of this tenant.
    pub namespace: Namespace,
    /// With one of these statuses at this moment; all if empty.
    pub statuses: Vec<Status>,
    /// Of this workflow or task.
    pub name: Option<Name>,
    /// With all of these tags.
    pub tags: Vec<Tag>,
    /// Only those without a parent.
    pub top_level: bool,
    /// Only those that were set aside because they are damaged. A store finds them without a look at any other, so that this can be asked often.
    pub set_aside: bool,
    /// Only the children of this run.
    pub parent: Option<ParentRun>,
    /// Also tell their tags, which costs a read for each that has any.
    pub with_tags: bool,
    /// In this order.
    pub order: ListOrder,
    /// After this one.
    pub after: Option<ListCursor>,
    /// At most so many.
    pub limit: usize,
}

impl List {
    /// All of a tenant, the oldest first, at most `limit`.
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

    /// Whether the status of the moment is one of those that are asked for.
    pub fn has_status_of(&self, summary: &Summary, now: Timestamp) -> bool {
        self.statuses.is_empty() || self.statuses.contains(&summary.status_at(now))
    }
}

/// A run that may have children. It is a run of the execution that has the id now: one that had it before and was pruned is another execution, and
/// so are its children another's.
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

/// A place in a list: the last one seen.
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
    /// Where it lives.
    pub address: Address,
    /// Workflow or task.
    pub kind: Kind,
    /// Which one.
    pub name: Name,
    /// Its run; nothing if it cannot be read.
    pub run: Option<u32>,
    /// Its summary.
    pub summary: Summary,
    /// What it can be found by, if that was asked for and can be read.
    pub tags: Vec<Tag>,
    /// When it was created; nothing if it cannot be read.
    pub created_at: Option<Timestamp>,
}

/// A part of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Where it begins.
    pub from: FeedFrom,
    /// At most so many.
    pub limit: usize,
}

/// Where a part of the feed begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedFrom {
    /// With the first thing that is still known.
    Beginning,
    /// After the last thing: nothing is told but the place.
    End,
    /// After this place.
    After(FeedCursor),
}

/// A place in the feed, as the store that gave it understands it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedCursor(pub u128);

/// A page of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedPage {
    /// What happened. A page may be short, or even empty, before the end.
    pub items: Vec<FeedItem>,
    /// Where to go on, also after the end.
    pub next: FeedCursor,
    /// Whether there is nothing more for now.
    pub is_end: bool,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedItem {
    /// To which execution.
    pub address: Address,
    /// In which of its runs.
    pub run: u32,
    /// When it was decided.
    pub at: Timestamp,
    /// What.
    pub happening: Happening,
}

/// What to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prune {
    /// Executions that finished before this.
    pub finished_before: Timestamp,
    /// At most so many.
    pub limit: usize,
}
