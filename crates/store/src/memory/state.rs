//! The tables of the reference store and their indexes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use abide_core::{Address, Bounds, Enqueued, Epoch, Happening, Namespace, Route, SessionId, Timestamp};

use super::notices::Notices;
use super::row::{QueuePosition, Row};
use super::sessions::Session;
use super::table::MemoryTable;
use crate::{ExecutionKey, FeedItem, Notice, PageBounds, Record};

pub(super) struct MemoryState {
    pub(super) bounds: Bounds,
    pub(super) page_bounds: PageBounds,
    pub(super) is_closed: bool,
    pub(super) rows: BTreeMap<ExecutionKey, Row>,
    pub(super) by_address: BTreeMap<Address, ExecutionKey>,
    /// Ready executions, by route: an execution that no session here can take never stands before
    /// one that some session can.
    pub(super) queues: BTreeMap<Route, BTreeSet<QueuePosition>>,
    /// The timers of executions that nobody holds.
    pub(super) timers: BTreeSet<(Timestamp, ExecutionKey)>,
    /// When a caretaker is to look at each execution, by namespace.
    pub(super) cares: BTreeMap<Namespace, BTreeSet<(Timestamp, ExecutionKey)>>,
    /// The items of the feed, by the positions of their entries.
    pub(super) feed: BTreeMap<u64, (ExecutionKey, FeedItem)>,
    /// Rows of the intake table that were refused, by their positions in the feed.
    pub(super) refusals: BTreeMap<u64, FeedItem>,
    pub(super) intake: VecDeque<Enqueued>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) notices: Notices,
    /// The table that transaction steps write.
    pub(super) table: MemoryTable,
    /// The number of changes of executions and sessions.
    pub(super) change_count: u64,
    last_key: u64,
    last_position: u64,
    last_session: u64,
}

impl MemoryState {
    pub(super) fn new(bounds: Bounds, page_bounds: PageBounds) -> Self {
        Self {
            bounds,
            page_bounds,
            is_closed: false,
            rows: BTreeMap::new(),
            by_address: BTreeMap::new(),
            queues: BTreeMap::new(),
            timers: BTreeSet::new(),
            cares: BTreeMap::new(),
            feed: BTreeMap::new(),
            refusals: BTreeMap::new(),
            intake: VecDeque::new(),
            sessions: BTreeMap::new(),
            notices: Notices::default(),
            table: MemoryTable::default(),
            change_count: 0,
            last_key: 0,
            last_position: 0,
            last_session: 0,
        }
    }

    pub(super) fn row(&self, key: ExecutionKey) -> &Row {
        self.rows.get(&key).expect("a key that was found belongs to a row")
    }

    pub(super) fn at(&self, address: &Address) -> Option<&Row> {
        self.by_address.get(address).map(|key| self.row(*key))
    }

    /// Returns a number that no execution, pruned or not, has had before.
    pub(super) fn next_key(&mut self) -> ExecutionKey {
        self.last_key += 1;
        ExecutionKey(self.last_key)
    }

    /// Returns a number that no session has had before.
    pub(super) fn next_session(&mut self) -> SessionId {
        self.last_session += 1;
        SessionId(self.last_session)
    }

    /// Assigns each record a position in the feed that was never used before.
    pub(super) fn positioned(
        &mut self,
        key: ExecutionKey,
        (address, run): (&Address, u32),
        records: Vec<Record>,
    ) -> Vec<(u64, Record)> {
        let place = |record: Record| {
            self.last_position += 1;
            let entry = record.entry().expect("appended records can be read");
            if let Some(happening) = Happening::of(&entry.event) {
                let (address, at) = (address.clone(), entry.at);
                let item = FeedItem { address, run, at, happening, refused: None };
                self.feed.insert(self.last_position, (key, item));
            }
            (self.last_position, record)
        };
        records.into_iter().map(place).collect()
    }

    /// Returns a position in the feed that was never used before.
    pub(super) fn next_position(&mut self) -> u64 {
        self.last_position += 1;
        self.last_position
    }

    /// Returns the position of the newest entry.
    pub(super) fn feed_end(&self) -> u64 {
        self.last_position
    }

    pub(super) fn insert(&mut self, row: Row) {
        self.change_count += 1;
        row.check();
        let key = row.key;
        let taken = self.by_address.insert(row.address().clone(), key);
        assert!(taken.is_none(), "an address belongs to one execution");
        self.rows.insert(key, row);
        self.tally(key, None);
        self.index(key);
        self.announce(key);
        self.announce_care(key);
    }

    /// Changes a row; there is no other way to do so. Indexes follow, invariants are checked, and
    /// the sessions that it concerns are notified.
    pub(super) fn change(&mut self, key: ExecutionKey, change: impl FnOnce(&mut Row)) {
        self.change_count += 1;
        self.unindex(key);
        let row = self.rows.get_mut(&key).expect("a key that was found belongs to a row");
        let (before, was, care_at) = (row.marks(), (row.place(), row.timer()), row.summary.care_at);
        let holder = row.holder();
        change(row);
        row.check_since(&before);
        let is = (row.place(), row.timer());
        let is_sooner = row.summary.care_at.is_some_and(|at| care_at.is_none_or(|before| at < before));
        self.tally(key, holder);
        self.index(key);
        if is != was {
            self.announce(key);
        }
        if is_sooner {
            self.announce_care(key);
        }
    }

    pub(super) fn remove(&mut self, key: ExecutionKey) {
        self.change_count += 1;
        self.unindex(key);
        let row = self.rows.remove(&key).expect("a key that was found belongs to a row");
        assert!(row.finished_at.is_some(), "only what has ended is deleted");
        self.by_address.remove(row.address());
        for (position, _) in row.past.into_iter().flatten().chain(row.journal) {
            self.feed.remove(&position);
        }
    }

    /// Counts a lease that was granted and one that is over.
    fn tally(&mut self, key: ExecutionKey, before: Option<(SessionId, Epoch)>) {
        let row = self.rows.get_mut(&key).expect("a key that was found belongs to a row");
        let holder = row.holder();
        if holder == before {
            return;
        }
        if let Some((session, epoch)) = before {
            let former = self.sessions.get_mut(&session).expect("leases belong to sessions");
            former.tally.end(key.0, epoch, row.given_beat);
        }
        if let Some((session, epoch)) = holder {
            let holder = self.sessions.get_mut(&session).expect("leases belong to sessions");
            row.given_beat = holder.tally.give(key.0, epoch);
        }
    }

    fn index(&mut self, key: ExecutionKey) {
        let row = self.rows.get(&key).expect("a key that was found belongs to a row");
        if let Some(place) = row.place() {
            self.queues.entry(row.route.clone()).or_default().insert(place);
        }
        self.timers.extend(row.timer());
        if let Some(care) = row.care() {
            self.cares.entry(row.address().namespace.clone()).or_default().insert(care);
        }
        if let Some(session) = row.lease.session {
            self.sessions.get_mut(&session).expect("leases belong to sessions").held.insert(key);
        }
    }

    fn unindex(&mut self, key: ExecutionKey) {
        let row = self.rows.get(&key).expect("a key that was found belongs to a row");
        if let Some(place) = row.place() {
            let queue = self.queues.get_mut(&row.route).expect("what is ready is in a queue");
            assert!(queue.remove(&place), "what is ready is in its queue");
            if queue.is_empty() {
                self.queues.remove(&row.route);
            }
        }
        if let Some(timer) = row.timer() {
            self.timers.remove(&timer);
        }
        if let Some(care) = row.care() {
            let cares = self.cares.get_mut(&row.address().namespace).expect("what needs care is in a queue");
            assert!(cares.remove(&care), "what needs care is in the queue of its tenant");
        }
        if let Some(session) = row.lease.session {
            self.sessions.get_mut(&session).expect("leases belong to sessions").held.remove(&key);
        }
    }

    /// Notifies every session of its namespace that a caretaker is to look at it, now or later.
    fn announce_care(&mut self, key: ExecutionKey) {
        let row = self.rows.get(&key).expect("a key that was found belongs to a row");
        if row.summary.care_at.is_none() {
            return;
        }
        for (session, found) in &self.sessions {
            if found.retired.is_none() && found.worker.ability.namespace == row.route.namespace {
                self.notices.push(*session, Notice::Ready);
            }
        }
    }

    /// Notifies the sessions that could run it that it is ready or has a timer.
    fn announce(&mut self, key: ExecutionKey) {
        let row = self.rows.get(&key).expect("a key that was found belongs to a row");
        let notice = match (row.place(), row.timer()) {
            (Some(_), _) => Notice::Ready,
            (None, Some(_)) => Notice::Changed,
            (None, None) => return,
        };
        for (session, found) in &self.sessions {
            if found.retired.is_none() && found.worker.ability.serves(&row.route) {
                self.notices.push(*session, notice.clone());
            }
        }
    }
}
