//! A journal that is read in pages while it is replayed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use abide_core::{Entry, Refusal};
use abide_store::{Answer, Error, ExecutionKey, Leased, Read, Record, Snapshot, Store, Target};

/// The entries that were recorded before this replay began. Holds at most about two pages of them.
pub(crate) struct Journal {
    store: Arc<dyn Store>,
    key: ExecutionKey,
    run: u32,
    end: u64,
    page: VecDeque<Record>,
    first: u64,
    /// The first entry, if it came decoded.
    begin: Option<Box<Entry>>,
    loading: Option<(u64, Answer<Option<Snapshot>>)>,
}

/// How many entries are asked for at once.
const PAGE_ENTRY_COUNT: usize = 1_024;

impl Journal {
    /// The journal of an execution, of which the first page is at hand.
    pub(crate) fn new(store: Arc<dyn Store>, leased: &mut Leased) -> Self {
        let page = std::mem::take(&mut leased.journal);
        Self {
            store,
            key: leased.key,
            run: leased.execution.run(),
            end: leased.execution.entry_count(),
            first: page.first().map_or(1, |record| record.seq),
            page: page.into(),
            begin: leased.first.take(),
            loading: None,
        }
    }

    /// The journal of a run that has just begun with this entry.
    pub(crate) fn begun(store: Arc<dyn Store>, (key, run): (ExecutionKey, u32), first: Entry) -> Self {
        let page = VecDeque::from([Record::of(&first)]);
        Self { store, key, run, end: 1, page, first: 1, begin: Some(Box::new(first)), loading: None }
    }

    /// The entry that it begins with.
    pub(crate) fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<Result<Entry, Error>> {
        match self.begin.take() {
            Some(entry) => Poll::Ready(Ok(*entry)),
            None => self.poll_entry(1, cx),
        }
    }

    /// The number of entries.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The entry with this number. What lies before it is forgotten, up to a page.
    pub(crate) fn poll_entry(&mut self, seq: u64, cx: &mut Context<'_>) -> Poll<Result<Entry, Error>> {
        loop {
            if let Some(record) = self.held(seq) {
                let entry = record.entry();
                self.advance(seq);
                return Poll::Ready(entry);
            }
            if !matches!(&self.loading, Some((from, _)) if *from == seq) {
                self.load(seq);
            }
            std::task::ready!(self.poll_load(cx))?;
        }
    }

    fn held(&self, seq: u64) -> Option<&Record> {
        let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        self.page.get(index)
    }

    /// Forgets what was passed long ago, and asks for the next page while this one is worked on.
    fn advance(&mut self, seq: u64) {
        while self.first + (PAGE_ENTRY_COUNT as u64) < seq {
            self.page.pop_front();
            self.first += 1;
        }
        let held_to = self.first + self.page.len() as u64 - 1;
        let is_near_end = held_to < seq + (PAGE_ENTRY_COUNT as u64) / 2;
        if is_near_end && held_to < self.end && self.loading.is_none() {
            self.load(held_to + 1);
        }
    }

    fn load(&mut self, from: u64) {
        let target = Target::Key(self.key);
        let read = Read { target, from, limit: PAGE_ENTRY_COUNT, with_inbox: false };
        self.loading = Some((from, self.store.read(read)));
    }

    fn poll_load(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some((from, answer)) = &mut self.loading else { return Poll::Ready(Ok(())) };
        let snapshot = std::task::ready!(answer.as_mut().poll(cx));
        let from = *from;
        self.loading = None;
        let snapshot = snapshot?;
        // Somebody else has the lease and is further. The entries of two runs must not be mixed.
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
