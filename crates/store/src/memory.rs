//! The strict reference store: the meaning of the seam, without a database.
//!
//! Every operation happens under one lock within its call, so every answer is ready when it is
//! returned; only [`Store::wait`] and [`View::changed`] wait. Nothing survives the process. The
//! store is stricter than a database: it panics when a caller appends out of order, reports a state
//! that does not follow from its journal, or breaks another invariant. It runs a transaction step
//! twice and undoes the writes of the first time, to expose a step that relies on running once.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use abide_core::{Bounds, Enqueued, SessionId, Timestamp};

use crate::{
    Answer, Aside, Beat, Claim, Claimed, Clock, Commit, CommitOutcome, Error, Feed, FeedPage, Heartbeat,
    Import, Imported, InboxPage, InboxRead, LeasePage, Leases, List, Listing, Notice, PageBounds, Prune,
    Read, Registered, Result, Retire, Snapshot, Store, Submissions, Submit, TakeIn, TakenIn, Trouble, View,
    Worker, WorkerRow, Workers,
};

mod admission;
mod claim;
mod commit;
mod import;
mod intake;
mod notices;
mod row;
mod sessions;
mod state;
mod submit;
mod table;
mod views;

use state::MemoryState;
pub use table::MemoryTable;

/// A store in memory.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<MemoryState>>,
}

impl MemoryStore {
    /// Creates an empty store that reads the time from `clock`. Its pages are small, to expose
    /// callers that forget to ask for the rest.
    pub fn new(clock: Arc<dyn Clock>, bounds: Bounds) -> Arc<Self> {
        Self::bounded(clock, bounds, crate::conformance::page_bounds())
    }

    /// Creates an empty store whose answers are as large as `page_bounds` allows.
    pub fn bounded(clock: Arc<dyn Clock>, bounds: Bounds, page_bounds: PageBounds) -> Arc<Self> {
        Arc::new(Self { clock, state: Arc::new(Mutex::new(MemoryState::new(bounds, page_bounds))) })
    }

    /// Returns a count of all changes except heartbeats.
    pub fn change_count(&self) -> u64 {
        lock(&self.state).change_count
    }

    /// Extends every session by the time that a virtual clock is about to skip. Returns `false`,
    /// and changes nothing, when a live session has missed a heartbeat, or when live sessions have
    /// not yet swept a dead one.
    pub fn skip(&self, by: Duration) -> bool {
        lock(&self.state).skip(by, self.clock.now())
    }

    /// Returns the longest life of an open session without a heartbeat. Returns `None` when live
    /// sessions will sweep another one, or may do so.
    pub fn longest_life(&self) -> Option<Duration> {
        lock(&self.state).longest_life(self.clock.now())
    }

    /// Puts rows into the intake table, as the transaction of somebody else would.
    pub fn enqueue(&self, rows: &[Enqueued]) {
        // Only a closed store fails, and then nobody takes them.
        drop(self.apply(|state, _| {
            state.enqueue(rows);
            Ok(())
        }));
    }

    fn apply<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut MemoryState, Timestamp) -> Result<T>,
    ) -> Answer<T> {
        let (answer, wakers) = {
            let mut state = lock(&self.state);
            if state.is_closed {
                return Answer::ready(Err(Error::Closed));
            }
            let end = state.feed_end();
            let answer = operation(&mut state, self.clock.now());
            if state.feed_end() > end {
                state.notices.wake_followers();
            }
            (answer, state.notices.take_wakers())
        };
        // The lock is released before anybody is woken: a waker may poll at once and would find it
        // taken.
        wakers.into_iter().for_each(Waker::wake);
        Answer::ready(answer)
    }
}

impl Store for MemoryStore {
    fn submit(&self, submit: Submit) -> Answer<Submissions> {
        self.apply(|state, now| state.submit(submit, now))
    }

    fn claim(&self, claim: Claim) -> Answer<Claimed> {
        self.apply(|state, now| state.claim(&claim, now))
    }

    fn commit(&self, commit: Commit) -> Answer<CommitOutcome> {
        self.apply(|state, now| state.commit(commit, now))
    }

    fn set_aside(&self, aside: Aside) -> Answer<()> {
        self.apply(|state, now| {
            state.set_aside(&aside, now);
            Ok(())
        })
    }

    fn register(&self, worker: Worker) -> Answer<Registered> {
        self.apply(|state, now| Ok(state.register(worker, now)))
    }

    fn heartbeat(&self, beat: Beat) -> Answer<Heartbeat> {
        self.apply(|state, now| Ok(state.heartbeat(beat, now)))
    }

    fn retire(&self, retire: Retire) -> Answer<()> {
        self.apply(|state, now| state.retire(&retire, now))
    }

    fn prune(&self, prune: Prune) -> Answer<u64> {
        self.apply(|state, _| Ok(state.prune(prune)))
    }

    fn import(&self, import: Import) -> Answer<Imported> {
        self.apply(|state, now| state.import(import, now))
    }

    fn take_in(&self, take_in: TakeIn) -> Answer<TakenIn> {
        self.apply(|state, now| Ok(state.take_in(take_in, now)))
    }

    fn wait(&self, session: SessionId) -> Answer<Vec<Notice>> {
        Answer::new(Wait { clock: self.clock.clone(), state: self.state.clone(), session })
    }

    fn close(&self) {
        let wakers = {
            let mut state = lock(&self.state);
            state.is_closed = true;
            state.notices.close_all();
            state.notices.take_wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl View for MemoryStore {
    fn read(&self, read: Read) -> Answer<Option<Snapshot>> {
        self.apply(|state, _| Ok(state.read(&read)))
    }

    fn inbox(&self, inbox: InboxRead) -> Answer<InboxPage> {
        self.apply(|state, _| Ok(state.inbox(&inbox)))
    }

    fn list(&self, list: List) -> Answer<Listing> {
        self.apply(|state, now| Ok(state.list(&list, now)))
    }

    fn feed(&self, feed: Feed) -> Answer<FeedPage> {
        self.apply(|state, _| Ok(state.feed(feed)))
    }

    fn changed(&self) -> Answer<()> {
        let seen = lock(&self.state).feed_end();
        Answer::new(Changed { state: self.state.clone(), seen })
    }

    fn workers(&self, workers: Workers) -> Answer<Vec<WorkerRow>> {
        self.apply(|state, _| Ok(state.workers(&workers)))
    }

    fn leases(&self, leases: Leases) -> Answer<LeasePage> {
        self.apply(|state, _| Ok(state.leases(&leases)))
    }

    /// Memory is always there.
    fn trouble(&self) -> Answer<Option<Trouble>> {
        self.apply(|_, _| Ok(None))
    }
}

/// Takes the notices of a session when there are any. They are taken in the poll that returns them,
/// so dropping the future loses none.
struct Wait {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<MemoryState>>,
    session: SessionId,
}

impl Future for Wait {
    type Output = Result<Vec<Notice>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Poll::Ready(Err(Error::Closed));
        }
        let notices = state.notices.take(self.session);
        if !notices.is_empty() {
            return Poll::Ready(Ok(notices));
        }
        if let Err(dead) = state.live(self.session, self.clock.now()) {
            return Poll::Ready(Err(dead));
        }
        state.notices.wake_later(self.session, context.waker());
        Poll::Pending
    }
}

/// Waits until the feed has more than was seen.
struct Changed {
    state: Arc<Mutex<MemoryState>>,
    seen: u64,
}

impl Future for Changed {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Poll::Ready(Err(Error::Closed));
        }
        if state.feed_end() > self.seen {
            return Poll::Ready(Ok(()));
        }
        state.notices.wake_follower_later(context.waker());
        Poll::Pending
    }
}

fn lock(state: &Mutex<MemoryState>) -> MutexGuard<'_, MemoryState> {
    state.lock().expect("an operation before this one was stopped by a broken invariant")
}
