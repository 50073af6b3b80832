//! The store under test, and short ways to use it.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{Command, Digest, Epoch, Fence, Message, Name, SessionId, Start, Timestamp};

use super::held::{Draft, Held};
use super::{TestClock, UserTable, block_on, make};
use crate::{
    Agreement, Beat, Claim, Claimed, Clock, CommitOutcome, Committed, Error, ExecutionKey, Feed, FeedFrom,
    FeedItem, FeedPage, Heartbeat, HeldLease, InboxPage, InboxRead, Leases, List, Listing, Notice, Prune,
    Read, Record, Retire, Snapshot, Store, Submissions, Submit, Submitted, Target, Worker,
};

/// A store and its clock.
pub struct Subject {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The source of its time.
    pub clock: Arc<TestClock>,
    /// The table that its transaction steps write to.
    pub table: UserTable,
}

/// Everything that can be seen in a store, for comparison.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    snapshots: Vec<Snapshot>,
    histories: Vec<Vec<Vec<Record>>>,
    feed: Vec<FeedItem>,
}

impl Subject {
    /// Pairs the store under test with the clock that it reads.
    pub fn new(store: Arc<dyn Store>, clock: Arc<TestClock>) -> Self {
        Self { store, clock, table: UserTable::MEMORY }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn advance_ms(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    pub(crate) fn later_ms(&self, millis: u64) -> Timestamp {
        self.now().after(Duration::from_millis(millis))
    }

    /// Returns the message as it arrives now.
    pub(crate) fn arrived(&self, message: Message) -> Message {
        message.arrived(self.now())
    }

    pub(crate) fn submit(&self, messages: Vec<Message>) -> crate::Result<Submissions> {
        block_on(self.store.submit(Submit { messages, born_to: None, alone: false, stretch: None }))
    }

    /// Submits one message that must be accepted.
    pub(crate) fn send(&self, message: Message) -> Submitted {
        let mut submitted = self.submit(vec![message]).expect("the message is taken");
        assert_eq!(submitted.len(), 1, "one answer a message");
        submitted.remove(0)
    }

    /// Submits messages that must be refused. Returns the refusal.
    pub(crate) fn refusal(&self, messages: Vec<Message>) -> String {
        match self.submit(messages) {
            Err(Error::Refused(refusal)) => refusal.to_string(),
            other => panic!("expected a refusal, found {other:?}"),
        }
    }

    pub(crate) fn start(&self, id: &str, start: Start) -> ExecutionKey {
        match self.send(make::start_of(id, start)) {
            Submitted::Started(key, None) => key,
            other => panic!("expected {id:?} to be started and unleased, found {other:?}"),
        }
    }

    pub(crate) fn start_born(&self, to: &Seat<'_>, messages: Vec<Message>) -> Submissions {
        let submit = Submit { messages, born_to: Some(to.session), alone: true, stretch: None };
        block_on(self.store.submit(submit)).expect("the messages are taken")
    }

    pub(crate) fn seat(&self, worker: Worker) -> Seat<'_> {
        let session = block_on(self.store.register(worker)).expect("a worker is registered").session;
        Seat { subject: self, session, request: 0 }
    }

    /// Starts an execution of workflow `flow`, and lets a new worker claim it.
    pub(crate) fn held(&self, id: &str) -> (Seat<'_>, Held) {
        self.start(id, make::flow());
        let mut seat = self.seat(make::worker());
        let held = seat.claim_one();
        assert_eq!(held.id(), id, "the only one that is ready is claimed");
        (seat, held)
    }

    pub(crate) fn draft(&self, held: &Held) -> Draft {
        held.draft(self.now())
    }

    pub(crate) fn attempt(&self, draft: &Draft) -> CommitOutcome {
        block_on(self.store.commit(draft.commit())).expect("a commit is answered")
    }

    /// Commits a draft that must be committed.
    pub(crate) fn commit(&self, draft: &Draft, held: &mut Held) -> Committed {
        match self.attempt(draft) {
            CommitOutcome::Committed(committed) => {
                held.follow(draft);
                committed
            }
            CommitOutcome::Fenced(fence) => panic!("expected {} to be committed: {fence}", held.id()),
        }
    }

    /// Commits one command that must be committed, and keeps the lease.
    pub(crate) fn record(&self, held: &mut Held, command: Command) {
        self.commit(&self.draft(held).then(command), held);
    }

    /// Commits a draft that must be fenced, and checks that it leaves no trace.
    pub(crate) fn fenced(&self, draft: &Draft) -> Fence {
        let before = self.picture();
        match self.attempt(draft) {
            CommitOutcome::Fenced(fence) => {
                assert_eq!(self.picture(), before, "a fenced commit leaves no trace");
                fence
            }
            CommitOutcome::Committed(_) => panic!("expected a stale commit to be fenced"),
        }
    }

    pub(crate) fn page(&self, id: &str, from: u64, limit: usize) -> Vec<Record> {
        let target = Target::Address(make::address(id));
        let read = Read { target, run: None, from, limit, with_inbox: false };
        block_on(self.store.read(read)).expect("it is read").expect("it exists").journal
    }

    /// Returns the execution with its whole journal and inbox.
    pub(crate) fn find(&self, target: &Target) -> Option<Snapshot> {
        let read = |from| Read { target: target.clone(), run: None, from, limit: 1_000, with_inbox: true };
        let mut snapshot = block_on(self.store.read(read(1))).expect("it is read")?;
        snapshot.inbox = InboxPage { messages: self.inbox(snapshot.key), next: None };
        loop {
            let from = snapshot.journal.len() as u64 + 1;
            let next = block_on(self.store.read(read(from))).expect("it is read").expect("it exists");
            if next.journal.is_empty() {
                return Some(snapshot);
            }
            snapshot.journal.extend(next.journal);
        }
    }

    pub(crate) fn exists(&self, id: &str) -> bool {
        self.find(&Target::Address(make::address(id))).is_some()
    }

    pub(crate) fn look(&self, id: &str) -> Snapshot {
        self.find(&Target::Address(make::address(id))).expect("the execution exists")
    }

    /// Returns the ids of unread messages, in order.
    pub(crate) fn unread(&self, id: &str) -> Vec<String> {
        self.look(id).inbox.messages.iter().map(|message| message.id.as_str().to_owned()).collect()
    }

    /// Reads the whole inbox, page by page.
    pub(crate) fn inbox(&self, key: ExecutionKey) -> Vec<Message> {
        let (mut messages, mut after) = (Vec::new(), None);
        loop {
            let page = self.inbox_page(InboxRead { key, after, limit: 1_000 });
            messages.extend(page.messages);
            after = page.next;
            if after.is_none() {
                return messages;
            }
        }
    }

    pub(crate) fn inbox_page(&self, read: InboxRead) -> InboxPage {
        block_on(self.store.inbox(read)).expect("it is read")
    }

    pub(crate) fn list(&self, list: List) -> Listing {
        block_on(self.store.list(list)).expect("it is listed")
    }

    /// Reads the whole feed, page by page.
    pub(crate) fn feed(&self) -> Vec<FeedItem> {
        let (mut items, mut from) = (Vec::new(), FeedFrom::Beginning);
        loop {
            let page = self.feed_page(from, 1_000);
            items.extend(page.items);
            from = FeedFrom::After(page.next);
            if page.is_end {
                return items;
            }
        }
    }

    pub(crate) fn feed_page(&self, from: FeedFrom, limit: usize) -> FeedPage {
        block_on(self.store.feed(Feed { from, limit })).expect("it is fed")
    }

    /// Reads the whole journal of one run.
    pub(crate) fn journal_of(&self, target: &Target, run: u32) -> Vec<Record> {
        let mut records: Vec<Record> = Vec::new();
        loop {
            let (target, from) = (target.clone(), records.len() as u64 + 1);
            let read = Read { target, run: Some(run), from, limit: 1_000, with_inbox: false };
            let found = block_on(self.store.read(read)).expect("it is read");
            match found.map(|found| found.journal) {
                Some(page) if !page.is_empty() => records.extend(page),
                _ => return records,
            }
        }
    }

    /// Reads the journals of all runs of an execution, run by run.
    pub(crate) fn history(&self, target: &Target) -> Vec<Vec<Record>> {
        let run = self.find(target).map_or(0, |found| found.execution.run());
        (1..=run).map(|run| self.journal_of(target, run)).collect()
    }

    pub(crate) fn prune(&self, finished_before: Timestamp, limit: usize) -> u64 {
        block_on(self.store.prune(Prune { finished_before, limit })).expect("it is pruned")
    }

    /// Reads the leases of a session, page by page.
    pub(crate) fn leases(&self, session: SessionId) -> Vec<HeldLease> {
        let mut leases = Vec::new();
        let mut after = None;
        loop {
            let read = Leases { session, after, limit: 1_000 };
            let page = block_on(self.store.leases(read)).expect("leases are told");
            leases.extend(page.leases);
            match page.next {
                Some(next) => after = Some(next),
                None => return leases,
            }
        }
    }

    pub(crate) fn picture(&self) -> Picture {
        let listed = self.list(make::everything()).items;
        let find = |key| self.find(&Target::Key(key)).expect("what is listed exists");
        Picture {
            snapshots: listed.iter().map(|item| find(item.key)).collect(),
            histories: listed.iter().map(|item| self.history(&Target::Key(item.key))).collect(),
            feed: self.feed(),
        }
    }
}

/// A worker's session.
pub(crate) struct Seat<'a> {
    subject: &'a Subject,
    pub(crate) session: SessionId,
    request: u64,
}

impl Seat<'_> {
    /// Returns the next claim of this session, which is not sent yet.
    pub(crate) fn next_claim(&mut self, slots: usize) -> Claim {
        self.request += 1;
        Claim {
            session: self.session,
            request: self.request,
            slots,
            care_slots: 0,
            with_mail: false,
            sweep: false,
        }
    }

    pub(crate) fn try_claim(&self, claim: &Claim) -> crate::Result<Claimed> {
        block_on(self.subject.store.claim(claim.clone()))
    }

    pub(crate) fn send(&self, claim: &Claim) -> Claimed {
        self.try_claim(claim).expect("a live session may claim")
    }

    pub(crate) fn claim(&mut self, slots: usize) -> Claimed {
        let claim = self.next_claim(slots);
        self.send(&claim)
    }

    /// Claims, and takes executions from dead sessions.
    pub(crate) fn sweep(&mut self, slots: usize) -> Claimed {
        let claim = Claim { sweep: true, ..self.next_claim(slots) };
        self.send(&claim)
    }

    pub(crate) fn claim_ids(&mut self, slots: usize) -> Vec<String> {
        ids(&self.claim(slots))
    }

    pub(crate) fn claim_one(&mut self) -> Held {
        let mut claimed = self.claim(1);
        assert_eq!(claimed.leased.len(), 1, "one execution is ready");
        Held::of(claimed.leased.remove(0))
    }

    /// Sends a sign of life and nothing else.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        self.beat(None)
    }

    fn beat(&self, digest: Option<Digest>) -> Heartbeat {
        let beat = Beat { digest, ..Beat::of(self.session) };
        block_on(self.subject.store.heartbeat(beat)).expect("a heartbeat is answered")
    }

    /// Sends a heartbeat as a session that believes it holds `held`.
    pub(crate) fn believe(&self, held: &[(ExecutionKey, Epoch)]) -> Agreement {
        let digests = held.iter().map(|(key, epoch)| Digest::of(key.0, *epoch));
        match self.beat(Some(digests.fold(Digest::default(), Digest::plus))) {
            Heartbeat::Refreshed { leases, .. } => leases,
            Heartbeat::NotRegistered => panic!("expected session {} to live", self.session),
        }
    }

    pub(crate) fn lease_count(&self) -> u64 {
        self.subject.leases(self.session).len() as u64
    }

    pub(crate) fn retire(&self) {
        let retire = Retire { session: self.session, reason: "done".to_owned() };
        block_on(self.subject.store.retire(retire)).expect("a session may be retired");
    }

    /// Waits until one of the wanted notices comes.
    pub(crate) fn wait_for(&self, wanted: impl Fn(&Notice) -> bool) {
        loop {
            let notices = block_on(self.subject.store.wait(self.session)).expect("a live session may wait");
            if notices.iter().any(&wanted) {
                return;
            }
        }
    }
}

/// Returns the ids of the claimed executions, in order.
pub(crate) fn ids(claimed: &Claimed) -> Vec<String> {
    claimed.leased.iter().map(|leased| leased.address().id.as_str().to_owned()).collect()
}

/// Returns a worker that serves `lane` for workflow `flow`.
pub(crate) fn serving(lane: Name) -> Worker {
    let mut worker = make::worker();
    worker.ability.lanes = [lane].into();
    worker
}
