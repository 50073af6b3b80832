//! A store for a process that dies, or is watched, at one of its commits.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use abide_core::SessionId;
use abide_store::{
    Answer, Aside, Beat, Claim, Claimed, Commit, CommitOutcome, Feed, FeedPage, Heartbeat, Import, Imported,
    InboxPage, InboxRead, LeasePage, Leases, List, Listing, Notice, Prune, Read, Registered, Retire,
    Snapshot, Store, Submissions, Submit, TakeIn, TakenIn, Trouble, View, Worker, WorkerRow, Workers,
};

/// The fate of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// The commit happens.
    Through,
    /// The commit happens, and its process dies before it receives the answer.
    Unheard,
    /// The process dies before the commit happens.
    Lost,
}

type Decide = Box<dyn FnMut(&Commit) -> Passage + Send>;

/// A store that forwards every call until its process is dead. Then it forwards nothing and never
/// answers.
pub(super) struct Tap {
    inner: Arc<dyn Store>,
    decide: Mutex<Decide>,
    is_dead: AtomicBool,
}

impl Tap {
    pub(super) fn new(
        inner: Arc<dyn Store>,
        decide: impl FnMut(&Commit) -> Passage + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner, decide: Mutex::new(Box::new(decide)), is_dead: AtomicBool::new(false) })
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    fn pass<T: Send + 'static>(&self, operation: impl FnOnce(&dyn Store) -> Answer<T>) -> Answer<T> {
        if self.is_dead() { Answer::new(pending()) } else { operation(&*self.inner) }
    }
}

impl Store for Tap {
    fn submit(&self, submit: Submit) -> Answer<Submissions> {
        self.pass(|store| store.submit(submit))
    }

    fn claim(&self, claim: Claim) -> Answer<Claimed> {
        self.pass(|store| store.claim(claim))
    }

    fn commit(&self, commit: Commit) -> Answer<CommitOutcome> {
        if self.is_dead() {
            return Answer::new(pending());
        }
        let passage = (self.decide.lock().unwrap_or_else(PoisonError::into_inner))(&commit);
        if passage == Passage::Through {
            return self.inner.commit(commit);
        }
        self.is_dead.store(true, Ordering::SeqCst);
        if passage == Passage::Unheard {
            // The call itself commits: these stores are in memory.
            drop(self.inner.commit(commit));
        }
        Answer::new(pending())
    }

    fn set_aside(&self, aside: Aside) -> Answer<()> {
        self.pass(|store| store.set_aside(aside))
    }

    fn register(&self, worker: Worker) -> Answer<Registered> {
        self.pass(|store| store.register(worker))
    }

    fn heartbeat(&self, beat: Beat) -> Answer<Heartbeat> {
        self.pass(|store| store.heartbeat(beat))
    }

    fn retire(&self, retire: Retire) -> Answer<()> {
        self.pass(|store| store.retire(retire))
    }

    fn prune(&self, prune: Prune) -> Answer<u64> {
        self.pass(|store| store.prune(prune))
    }

    fn import(&self, import: Import) -> Answer<Imported> {
        self.pass(|store| store.import(import))
    }

    fn take_in(&self, take_in: TakeIn) -> Answer<TakenIn> {
        self.pass(|store| store.take_in(take_in))
    }

    fn wait(&self, session: SessionId) -> Answer<Vec<Notice>> {
        self.pass(|store| store.wait(session))
    }

    fn close(&self) {}
}

impl View for Tap {
    fn read(&self, read: Read) -> Answer<Option<Snapshot>> {
        self.pass(|store| store.read(read))
    }

    fn inbox(&self, inbox: InboxRead) -> Answer<InboxPage> {
        self.pass(|store| store.inbox(inbox))
    }

    fn list(&self, list: List) -> Answer<Listing> {
        self.pass(|store| store.list(list))
    }

    fn feed(&self, feed: Feed) -> Answer<FeedPage> {
        self.pass(|store| store.feed(feed))
    }

    fn changed(&self) -> Answer<()> {
        self.pass(View::changed)
    }

    fn workers(&self, workers: Workers) -> Answer<Vec<WorkerRow>> {
        self.pass(|store| store.workers(workers))
    }

    fn leases(&self, leases: Leases) -> Answer<LeasePage> {
        self.pass(|store| store.leases(leases))
    }

    fn trouble(&self) -> Answer<Option<Trouble>> {
        self.pass(View::trouble)
    }
}
