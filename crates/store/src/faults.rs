//! A store whose operations fail, hang or lose their answers, and whose notices get lost, delayed,
//! doubled or mixed up.
//!
//! [`FaultyStore`] decorates any store. A seed, a script or a closure decides the fault of each
//! operation and notice, so a failing run can be repeated.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use abide_core::SessionId;

use crate::prng::Prng;
use crate::{
    Answer, Aside, Beat, Claim, Claimed, Commit, CommitOutcome, Error, Feed, FeedPage, Heartbeat, Import,
    Imported, InboxPage, InboxRead, LeasePage, Leases, List, Listing, Notice, Prune, Read, Registered,
    Result, Retire, Snapshot, Store, Submissions, Submit, TakeIn, TakenIn, Trouble, View, Worker, WorkerRow,
    Workers,
};

mod notices;

use notices::Disturbance;
pub use notices::NoticeFault;

/// The fate of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing unusual.
    None,
    /// It happens at once; its answer comes after some polls.
    Delay {
        /// How many polls return `Pending`. Each wakes its task again; no clock takes part.
        poll_count: u32,
    },
    /// It happens at once; its answer comes when the store is [healed](FaultyStore::heal). Time
    /// passes meanwhile.
    Hold,
    /// It happens when the store is [healed](FaultyStore::heal), even if nobody waits for its
    /// answer any longer.
    Late,
    /// It does not happen: [`Error::Unavailable`].
    Unavailable,
    /// It does not happen, but others may: [`Error::Unread`].
    Unread,
    /// The same, but only for a read of entries or messages: the row of the execution is readable.
    UnreadRows,
    /// It happens, but its answer is lost: [`Error::Indeterminate`].
    Indeterminate,
    /// It does not happen, and never will: [`Error::Corrupt`].
    Corrupt,
    /// It happens without the [first stretch](crate::Stretch) of a start. No other operation
    /// notices it.
    NoStretch,
}

/// The probability of each fault, in thousandths of the operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chances {
    /// The probability of [`Fault::Delay`].
    pub delay_permille: u16,
    /// The most polls of one delay.
    pub delay_poll_count_max: u32,
    /// The probability of [`Fault::Unavailable`].
    pub unavailable_permille: u16,
    /// The probability of [`Fault::Indeterminate`].
    pub indeterminate_permille: u16,
    /// The probability of [`NoticeFault::Lose`], in thousandths of the notices, like the next
    /// three.
    pub notice_lose_permille: u16,
    /// The probability of [`NoticeFault::Delay`].
    pub notice_delay_permille: u16,
    /// The probability of [`NoticeFault::Repeat`].
    pub notice_repeat_permille: u16,
    /// The probability of [`NoticeFault::Overtake`].
    pub notice_overtake_permille: u16,
}

/// Counts of operations and faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All operations.
    pub operations: u64,
    /// Operations that were delayed.
    pub delayed: u64,
    /// Operations that failed without happening.
    pub unavailable: u64,
    /// Operations that happened without an answer.
    pub indeterminate: u64,
    /// Operations that failed for good.
    pub corrupt: u64,
}

type Decide = Box<dyn FnMut(&'static str) -> Fault + Send>;
type DecideRead = Box<dyn FnMut(&Read) -> Fault + Send>;

/// A store that applies the decided fault to each operation.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    decide: Mutex<Decide>,
    decide_read: Mutex<DecideRead>,
    notices: Arc<Disturbance>,
    healed: Arc<AtomicBool>,
    /// The wakers of answers that are held until the store is healed.
    held: Arc<Mutex<Vec<Waker>>>,
    /// The operations that happen when the store is healed.
    late: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    operations: AtomicU64,
    delayed: AtomicU64,
    unavailable: AtomicU64,
    indeterminate: AtomicU64,
    corrupt: AtomicU64,
}

impl FaultyStore {
    /// Draws faults by chance; the same seed and operations lead to the same faults.
    pub fn seeded(inner: Arc<dyn Store>, seed: u64, chances: Chances) -> Arc<Self> {
        let (mut prng, mut of_notices) = (Prng::new(seed), Prng::new(!seed));
        let notices = Disturbance::deciding(move |_| chances.draw_notice(&mut of_notices));
        Self::assemble(inner, Box::new(move |_| chances.draw(&mut prng)), notices)
    }

    /// Applies one scripted fault after the other, whatever the operations are; none after the
    /// script ends.
    pub fn scripted(inner: Arc<dyn Store>, script: Vec<Fault>) -> Arc<Self> {
        let mut script = VecDeque::from(script);
        Self::deciding(inner, move |_| script.pop_front().unwrap_or(Fault::None))
    }

    /// Applies the faults that `decide` returns for the name of each operation, which is the name
    /// of its method.
    pub fn deciding(
        inner: Arc<dyn Store>,
        decide: impl FnMut(&'static str) -> Fault + Send + 'static,
    ) -> Arc<Self> {
        Self::assemble(inner, Box::new(decide), Disturbance::deciding(|_| NoticeFault::None))
    }

    /// Applies faults to notices only, as `decide` says.
    pub fn disturbing(
        inner: Arc<dyn Store>,
        decide: impl FnMut(&Notice) -> NoticeFault + Send + 'static,
    ) -> Arc<Self> {
        Self::assemble(inner, Box::new(|_| Fault::None), Disturbance::deciding(decide))
    }

    /// Applies faults to reads of executions only, as `decide` says.
    pub fn reading(inner: Arc<dyn Store>, decide: impl FnMut(&Read) -> Fault + Send + 'static) -> Arc<Self> {
        let notices = Disturbance::deciding(|_| NoticeFault::None);
        let plain = Self::assembled(inner, Box::new(|_| Fault::None), notices);
        Arc::new(Self { decide_read: Mutex::new(Box::new(decide)), ..plain })
    }

    fn assemble(inner: Arc<dyn Store>, decide: Decide, notices: Disturbance) -> Arc<Self> {
        Arc::new(Self::assembled(inner, decide, notices))
    }

    fn assembled(inner: Arc<dyn Store>, decide: Decide, notices: Disturbance) -> Self {
        Self {
            inner,
            decide: Mutex::new(decide),
            decide_read: Mutex::new(Box::new(|_| Fault::None)),
            notices: Arc::new(notices),
            healed: Arc::default(),
            held: Arc::default(),
            late: Mutex::default(),
            tally: Tally::default(),
        }
    }

    /// Ends all faults from now on.
    pub fn heal(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner));
        late.into_iter().for_each(|operation| operation());
        self.healed.store(true, Ordering::SeqCst);
        let held = std::mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner));
        held.into_iter().for_each(Waker::wake);
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        Counts {
            operations: read(&self.tally.operations),
            delayed: read(&self.tally.delayed),
            unavailable: read(&self.tally.unavailable),
            indeterminate: read(&self.tally.indeterminate),
            corrupt: read(&self.tally.corrupt),
        }
    }

    fn pass<T: Send + 'static>(
        &self,
        what: &'static str,
        operation: impl FnOnce(&dyn Store) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        self.suffer(self.next_fault(what), what, operation)
    }

    fn suffer<T: Send + 'static>(
        &self,
        fault: Fault,
        what: &'static str,
        operation: impl FnOnce(&dyn Store) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        self.tally.count(fault);
        match fault {
            Fault::None | Fault::NoStretch => operation(&*self.inner),
            Fault::Delay { poll_count } => {
                Answer::new(Delayed { answer: operation(&*self.inner), poll_count })
            }
            Fault::Hold => {
                let (answer, healed) = (operation(&*self.inner), self.until_healed());
                Answer::new(async move {
                    let answer = answer.await;
                    healed.await;
                    answer
                })
            }
            Fault::Late => self.postpone(operation),
            Fault::Unavailable => {
                Answer::ready(Err(Error::Unavailable { what, source: "an injected fault".into() }))
            }
            Fault::Unread | Fault::UnreadRows => {
                Answer::ready(Err(Error::Unread { what, source: "an injected fault".into() }))
            }
            Fault::Indeterminate => Answer::new(lose(what, operation(&*self.inner))),
            Fault::Corrupt => {
                Answer::ready(Err(Error::Corrupt { what: format!("an injected fault of {what}") }))
            }
        }
    }

    fn postpone<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&dyn Store) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let answer = Arc::new(Mutex::new(None));
        let (inner, put) = (self.inner.clone(), answer.clone());
        let happen = move || *put.lock().unwrap_or_else(PoisonError::into_inner) = Some(operation(&*inner));
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(happen));
        let healed = self.until_healed();
        Answer::new(async move {
            healed.await;
            let happened = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
            happened.expect("it happened before the store was healed").await
        })
    }

    fn until_healed(&self) -> impl Future<Output = ()> + Send + use<> {
        let (healed, held) = (self.healed.clone(), self.held.clone());
        poll_fn(move |context| {
            let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
            if healed.load(Ordering::SeqCst) {
                return Poll::Ready(());
            }
            held.push(context.waker().clone());
            Poll::Pending
        })
    }

    fn next_fault(&self, what: &'static str) -> Fault {
        if self.healed.load(Ordering::SeqCst) {
            return Fault::None;
        }
        // A closure that panicked may still decide: it has no state that others rely on.
        let mut decide = self.decide.lock().unwrap_or_else(PoisonError::into_inner);
        decide(what)
    }

    fn next_fault_of(&self, read: &Read) -> Fault {
        match self.next_fault("read") {
            Fault::None if !self.healed.load(Ordering::SeqCst) => {
                let mut decide = self.decide_read.lock().unwrap_or_else(PoisonError::into_inner);
                decide(read)
            }
            fault => fault,
        }
    }
}

impl Chances {
    fn draw(&self, prng: &mut Prng) -> Fault {
        let drawn = prng.below(1_000);
        let delay = usize::from(self.delay_permille);
        let unavailable = delay + usize::from(self.unavailable_permille);
        let indeterminate = unavailable + usize::from(self.indeterminate_permille);
        if drawn < delay {
            let more = prng.below(usize::try_from(self.delay_poll_count_max).unwrap_or(0));
            Fault::Delay { poll_count: 1 + u32::try_from(more).unwrap_or(0) }
        } else if drawn < unavailable {
            Fault::Unavailable
        } else if drawn < indeterminate {
            Fault::Indeterminate
        } else {
            Fault::None
        }
    }
}

impl Tally {
    fn count(&self, fault: Fault) {
        self.operations.fetch_add(1, Ordering::SeqCst);
        let counter = match fault {
            Fault::None | Fault::NoStretch => return,
            Fault::Delay { .. } | Fault::Hold | Fault::Late => &self.delayed,
            Fault::Unavailable | Fault::Unread | Fault::UnreadRows => &self.unavailable,
            Fault::Indeterminate => &self.indeterminate,
            Fault::Corrupt => &self.corrupt,
        };
        counter.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits until the operation has happened, and drops its answer.
async fn lose<T>(what: &'static str, answer: Answer<T>) -> Result<T> {
    drop(answer.await);
    Err(Error::Indeterminate { what, source: "an injected timeout".into() })
}

/// An answer that is held back.
struct Delayed<T> {
    answer: Answer<T>,
    poll_count: u32,
}

impl<T> Future for Delayed<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.poll_count == 0 {
            return self.answer.as_mut().poll(context);
        }
        self.poll_count -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Store for FaultyStore {
    fn submit(&self, mut submit: Submit) -> Answer<Submissions> {
        let fault = self.next_fault("submit");
        if fault == Fault::NoStretch {
            submit.stretch = None;
        }
        self.suffer(fault, "submit", move |store| store.submit(submit))
    }

    fn claim(&self, claim: Claim) -> Answer<Claimed> {
        self.pass("claim", move |store| store.claim(claim))
    }

    fn commit(&self, commit: Commit) -> Answer<CommitOutcome> {
        self.pass("commit", move |store| store.commit(commit))
    }

    fn set_aside(&self, aside: Aside) -> Answer<()> {
        self.pass("set_aside", move |store| store.set_aside(aside))
    }

    fn register(&self, worker: Worker) -> Answer<Registered> {
        self.pass("register", move |store| store.register(worker))
    }

    fn heartbeat(&self, beat: Beat) -> Answer<Heartbeat> {
        self.pass("heartbeat", move |store| store.heartbeat(beat))
    }

    fn retire(&self, retire: Retire) -> Answer<()> {
        self.pass("retire", move |store| store.retire(retire))
    }

    fn prune(&self, prune: Prune) -> Answer<u64> {
        self.pass("prune", move |store| store.prune(prune))
    }

    fn import(&self, import: Import) -> Answer<Imported> {
        self.pass("import", move |store| store.import(import))
    }

    fn take_in(&self, take_in: TakeIn) -> Answer<TakenIn> {
        self.pass("take_in", move |store| store.take_in(take_in))
    }

    fn wait(&self, session: SessionId) -> Answer<Vec<Notice>> {
        let mut answer = self.pass("wait", move |store| store.wait(session));
        let (inner, notices, healed) = (self.inner.clone(), self.notices.clone(), self.healed.clone());
        Answer::new(async move {
            loop {
                // Nothing is awaited after the notices were taken, so dropping the answer loses
                // none of them.
                let told = notices.disturb(session, answer.await?, healed.load(Ordering::SeqCst));
                if !told.is_empty() {
                    return Ok(told);
                }
                answer = inner.wait(session);
            }
        })
    }

    /// Never fails: closing is how a test ends.
    fn close(&self) {
        self.inner.close();
    }
}

impl View for FaultyStore {
    fn read(&self, read: Read) -> Answer<Option<Snapshot>> {
        let wants_rows = read.limit > 0 || read.with_inbox;
        let fault = match self.next_fault_of(&read) {
            Fault::UnreadRows if !wants_rows => Fault::None,
            fault => fault,
        };
        self.suffer(fault, "read", move |store| store.read(read))
    }

    fn inbox(&self, inbox: InboxRead) -> Answer<InboxPage> {
        self.pass("inbox", move |store| store.inbox(inbox))
    }

    fn list(&self, list: List) -> Answer<Listing> {
        self.pass("list", move |store| store.list(list))
    }

    fn feed(&self, feed: Feed) -> Answer<FeedPage> {
        self.pass("feed", move |store| store.feed(feed))
    }

    fn changed(&self) -> Answer<()> {
        let mut answer = self.pass("changed", View::changed);
        let (inner, notices, healed) = (self.inner.clone(), self.notices.clone(), self.healed.clone());
        Answer::new(async move {
            loop {
                answer.await?;
                if healed.load(Ordering::SeqCst) || !notices.loses(&Notice::Changed) {
                    return Ok(());
                }
                answer = inner.changed();
            }
        })
    }

    fn workers(&self, workers: Workers) -> Answer<Vec<WorkerRow>> {
        self.pass("workers", move |store| store.workers(workers))
    }

    fn leases(&self, leases: Leases) -> Answer<LeasePage> {
        self.pass("leases", move |store| store.leases(leases))
    }

    /// Never a fault: nobody decides anything by it.
    fn trouble(&self) -> Answer<Option<Trouble>> {
        self.inner.trouble()
    }
}
