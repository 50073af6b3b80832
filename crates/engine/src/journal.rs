//! A journal that is read in pages while it is replayed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use abide_core::{Entry, Execution, Refusal};
use abide_store::{Error, ExecutionKey, Opening, Read, Record, Snapshot, Store, Target};

use crate::reading::Reading;
use crate::runtime::Runtime;

/// The entries that were recorded before this replay began. Holds at most about three pages of
/// them.
pub(crate) struct Journal {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    key: ExecutionKey,
    run: u32,
    end: u64,
    page: VecDeque<Record>,
    first: u64,
    /// The first entry, if it came decoded.
    begin: Option<Entry>,
    loading: Option<Box<Reading<Read, Option<Snapshot>>>>,
}

/// The store and the execution of a journal.
pub(crate) struct JournalOf<'a> {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) key: ExecutionKey,
    pub(crate) execution: &'a Execution,
}

/// How many entries are requested at once.
const PAGE_ENTRY_COUNT: usize = 1_024;

impl Journal {
    /// Makes the journal of an execution whose first page is at hand.
    pub(crate) fn new(of: JournalOf<'_>, opening: Opening) -> Self {
        let JournalOf { store, runtime, key, execution } = of;
        let (begin, page) = match opening {
            Opening::Born(entry) => (Some(entry), VecDeque::new()),
            Opening::Page(records) => (None, records.into()),
        };
        let first = page.front().map_or(1, |record: &Record| record.seq);
        let (run, end) = (execution.run(), execution.entry_count());
        Self { store, runtime, key, run, end, page, first, begin, loading: None }
    }

    /// Makes the journal of a run that has just begun with this entry.
    pub(crate) fn begun(of: JournalOf<'_>, first: Entry) -> Self {
        Self::new(of, Opening::Born(first))
    }

    /// Returns the number of entries.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the entry with this number. Earlier entries are forgotten, up to a page.
    pub(crate) fn poll_entry(&mut self, seq: u64, cx: &mut Context<'_>) -> Poll<Result<Entry, Error>> {
        if let Some(begin) = self.begin.as_ref().filter(|begin| begin.seq == seq) {
            return Poll::Ready(Ok(begin.clone()));
        }
        loop {
            if let Some(record) = self.held(seq) {
                let entry = record.entry();
                self.advance(seq);
                return Poll::Ready(entry);
            }
            if self.loading.as_ref().is_none_or(|loading| loading.request().from != seq) {
                self.load(seq);
            }
            std::task::ready!(self.poll_load(cx))?;
        }
    }

    fn held(&self, seq: u64) -> Option<&Record> {
        let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        self.page.get(index)
    }

    /// Forgets entries that were passed long ago, and requests the next page when the last one
    /// comes into use: reading a page takes about as long as using it.
    fn advance(&mut self, seq: u64) {
        while self.first + (PAGE_ENTRY_COUNT as u64) < seq {
            self.page.pop_front();
            self.first += 1;
        }
        let held_to = self.first + self.page.len() as u64 - 1;
        let is_near_end = held_to < seq + PAGE_ENTRY_COUNT as u64;
        if is_near_end && held_to < self.end && self.loading.is_none() {
            self.load(held_to + 1);
        }
    }

    fn load(&mut self, from: u64) {
        let target = Target::Key(self.key);
        let read = Read { target, run: None, from, limit: PAGE_ENTRY_COUNT, with_inbox: false };
        self.loading = Some(Box::new(Reading::new(&*self.store, read, abide_store::View::read)));
    }

    fn poll_load(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(loading) = &mut self.loading else { return Poll::Ready(Ok(())) };
        let snapshot = std::task::ready!(loading.poll(&*self.store, &*self.runtime, cx));
        let from = loading.request().from;
        self.loading = None;
        let snapshot = snapshot?;
        // Another worker has the lease and is further. The entries of two runs must not be mixed.
        if let Some(current) = snapshot.as_ref().map(|snapshot| snapshot.execution.run())
            && current != self.run
        {
            return Poll::Ready(Err(Refusal::OtherRun { current }.into()));
        }
        let page = snapshot.map(|snapshot| snapshot.journal).unwrap_or_default();
        if page.first().map(|record| record.seq) != Some(from) {
            let what = format!("execution {} has no journal entry {from} of {}", self.key.0, self.end);
            return Poll::Ready(Err(Error::Corrupt { what }));
        }
        if from != self.first + self.page.len() as u64 {
            self.page.clear();
            self.first = from;
        }
        self.page.extend(page);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use abide_core::fixture::flow;
    use abide_core::{
        Ability, Address, Body, Bounds, By, Command, ExecutionId, Kind, Message, MessageId, Name, Namespace,
        Op, OpKind, Outcome, Payload, StepRecord, Timestamp, codec,
    };
    use abide_store::memory::MemoryStore;
    use abide_store::{
        Answer, Changes, Clock, Commit, CommitOutcome, Hold, Leased, Submit, Submitted, View, Worker,
    };

    use super::*;

    struct Zero;

    impl Clock for Zero {
        fn now(&self) -> Timestamp {
            Timestamp::default()
        }
    }

    /// Returns the answer of a store in memory, which comes at once.
    fn answer<T>(mut answer: Answer<T>) -> T {
        match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer.expect("it is answered"),
            Poll::Pending => panic!("a store in memory answers at once"),
        }
    }

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    /// Returns an execution that was just started and leased.
    fn born(store: &MemoryStore) -> Leased {
        let ability = Ability {
            namespace: Namespace::default(),
            lanes: [name("default")].into(),
            runs: [(Kind::Workflow, name("flow"))].into(),
            capabilities: [].into(),
            build: None,
        };
        let worker = Worker { name: name("w"), ability, ttl: std::time::Duration::from_secs(9) };
        let session = answer(store.register(worker)).session;
        let id = ExecutionId::new("a").expect("an id");
        let to = Address { namespace: Namespace::default(), id };
        let start = Message::new(MessageId::new("start"), to, By::client(), Body::Start(flow().into()));
        let submit = Submit { messages: vec![start], born_to: Some(session), alone: true, stretch: None };
        match answer(store.submit(submit)).pop() {
            Some(Submitted::Started(_, Some(leased))) => *leased,
            other => panic!("not born leased: {other:?}"),
        }
    }

    /// Commits `commands`, and the next run if they end this one by continuing.
    fn commit(store: &MemoryStore, leased: &mut Leased, commands: Vec<Command>) {
        let (mut records, now) = (Vec::new(), Timestamp::default());
        for command in commands {
            let decision = leased.execution.decide(command, now).expect("it may be decided");
            let (entries, _) = decision.record(&mut leased.execution, now);
            records.extend(entries.iter().map(Record::of));
        }
        let mut next = None;
        if leased.execution.is_finished() {
            let (execution, first) = leased.execution.continued(&flow(), Payload::from("2"), now);
            leased.execution = execution;
            next = Some(Record::of(&first));
        }
        let changes = Changes {
            records: records.into(),
            next,
            state: codec::encode(&leased.execution),
            summary: leased.execution.summary(&[]),
            consumed: Vec::new(),
            outgoing: Vec::new(),
        };
        let (key, lease, expected) = (leased.key, leased.lease, leased.version);
        let (changes, hold) = (Arc::new(changes), Hold::Keep);
        let commit =
            Commit { key, lease, expected, changes, born_slots: 0, hold, transaction: None, alone: true };
        let outcome = answer(store.commit(commit));
        assert!(matches!(outcome, CommitOutcome::Committed(_)), "{outcome:?}");
        leased.version = leased.version.next();
    }

    /// Returns the page of the journal that a claim would have returned.
    fn store_page(store: &MemoryStore, key: ExecutionKey) -> Vec<Record> {
        let read = Read { target: Target::Key(key), run: None, from: 1, limit: 128, with_inbox: false };
        answer(store.read(read)).expect("it exists").journal
    }

    fn steps(count: u32) -> Vec<Command> {
        let step = |nth| {
            let op = Op { kind: OpKind::Step, name: name("step"), key: None, nth };
            let outcome = Outcome::Success(Payload::from("1"));
            Command::RecordStep(StepRecord { op, outcome, attempt: 1, input: None })
        };
        (1..=count).map(step).collect()
    }

    /// A worker that lost its lease may still be reading when the next run is longer than its own.
    #[test]
    fn the_entries_of_two_runs_are_not_mixed() {
        let store = MemoryStore::new(Arc::new(Zero), Bounds::default());
        let mut leased = born(&store);
        commit(&store, &mut leased, steps(300));
        let opening = Opening::Page(store_page(&store, leased.key));
        let runtime = crate::sim::Sim::new(1).process(1);
        let of = JournalOf { store: store.clone(), runtime, key: leased.key, execution: &leased.execution };
        let mut journal = Journal::new(of, opening);
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(matches!(journal.poll_entry(2, cx), Poll::Ready(Ok(entry)) if entry.seq == 2));
        commit(&store, &mut leased, vec![Command::ContinueAsNew { input: Payload::from("2") }]);
        commit(&store, &mut leased, steps(300));
        let found = (3..=301)
            .map(|seq| journal.poll_entry(seq, cx))
            .find(|polled| !matches!(polled, Poll::Ready(Ok(_))));
        let Some(Poll::Ready(Err(error))) = found else { panic!("expected an end: {found:?}") };
        assert!(error.to_string().contains("run 2 is current"), "{error}");
    }
}
