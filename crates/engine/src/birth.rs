//! Executions that begin before they exist.
//!
//! A short execution needs two commits: its start, and whatever its code does first. If the
//! application wants it, and nothing else is going on, the code is begun before the start is sent.
//! Its first commit then goes with the start, in one transaction, and a workflow that only sleeps,
//! waits, starts a child or returns is durable at once. A transaction step may be this commit,
//! because its writes are those of the same transaction.
//!
//! Nothing else may come of the code before the start is durable:
//!
//! - The seat counts nothing as durable, so no closure begins.
//! - The execution has no key, so the seat reads nothing from the store.
//! - When the store says anything but that the execution was created, leased to this session and
//!   changed by the commit, the code is dropped. It begins anew from the records, if it is leased
//!   to this session at all, as it does after every lost answer.
//!
//! So the code of a workflow may be begun for a start that is then refused, or that attaches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use abide_core::planted::{Bug, planted};
use abide_core::{Address, Body, Epoch, Execution, Kind, Lease, Message, Refusal, Start, Timestamp, Version};
use abide_store::{
    Answer, Commit, CommitOutcome, Committed, Error, ExecutionKey, InboxPage, Leased, Opening, Stretch,
    Unanswered,
};

use crate::driver::{Driver, End};
use crate::engine::Inner;
use crate::ledger::started;
use crate::mailbox::Mailbox;
use crate::panics;
use crate::runtime::BoxFuture;
use crate::seat::Seat;
use crate::submission::Newborn;

/// The key of an execution that does not exist. Nobody asks the store for it.
const UNBORN: ExecutionKey = ExecutionKey(0);

/// The way between a seat and the request that creates its execution.
#[derive(Default)]
pub(crate) struct Birth(Mutex<State>);

#[derive(Default)]
struct State {
    /// The first commit, until it goes with the start.
    sent: Option<Commit>,
    key: Option<ExecutionKey>,
    outcome: Option<Result<CommitOutcome, Error>>,
}

impl Birth {
    /// Sends the first commit of the execution, with its start.
    pub(crate) fn send(self: &Arc<Self>, commit: Commit) -> Answer<CommitOutcome> {
        self.lock().sent = Some(commit);
        Answer::of(self.clone())
    }

    /// Returns the store's number for the execution, once it exists.
    pub(crate) fn key(&self) -> Option<ExecutionKey> {
        self.lock().key
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unanswered<CommitOutcome> for Birth {
    /// Remembers nobody to wake: the execution is polled when it has its seat among the others, and
    /// the answer is there before that.
    fn poll(&self, _: &mut Context<'_>) -> Poll<Result<CommitOutcome, Error>> {
        self.lock().outcome.take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// An execution whose code has begun, and that does not exist yet.
pub(crate) struct Begun {
    birth: Arc<Birth>,
    pub(crate) lease: Lease,
    pub(crate) address: Address,
    pub(crate) mailbox: Arc<Mailbox>,
    running: Option<BoxFuture<End>>,
    at: Timestamp,
    first: Option<Commit>,
}

impl Begun {
    /// Begins the execution that `message` starts, if it may begin before it exists. The caller has
    /// seen that nothing else is going on here.
    pub(crate) fn begin(engine: &Arc<Inner>, message: &Message, cx: &mut Context<'_>) -> Option<Box<Self>> {
        let Body::Start(start) = &message.body else { return None };
        let driver = engine.beginner(&message.to, start)?.clone();
        let may_begin = engine.options.begins_early && engine.options.calls_code_on_callers();
        if !may_begin || !engine.runtime.may_begin_code(cx.waker()) {
            return None;
        }
        let (birth, mailbox) = (Arc::<Birth>::default(), Arc::<Mailbox>::default());
        let at = engine.runtime.now();
        let mut leased = unborn(engine, (&message.to, start), at);
        let (lease, address) = (leased.lease, message.to.clone());
        let opening = std::mem::take(&mut leased.opening);
        let seat = Seat::unborn(engine.clone(), mailbox.clone(), (leased, birth.clone()));
        let mut running = driver.begin(seat, opening);
        let polled = catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(cx)));
        if !matches!(polled, Ok(Poll::Pending)) {
            // The next try, from the records, meets the same fault, and deals with it.
            panics::drop_caught((polled, running));
            return None;
        }
        let first = birth.lock().sent.take();
        let running = Some(running);
        Some(Box::new(Self { birth, lease, address, mailbox, running, at, first }))
    }

    /// Returns what goes with the start.
    pub(crate) fn stretch(&self) -> Box<Stretch> {
        Box::new(Stretch { at: self.at, commit: self.first.clone() })
    }

    /// Whether a closure of the user runs in the store's transaction.
    pub(crate) fn has_transaction(&self) -> bool {
        self.first.as_ref().is_some_and(|commit| commit.transaction.is_some())
    }

    /// Returns the executions that its first commit starts.
    pub(crate) fn children(&self) -> Vec<Address> {
        let first = self.first.iter().filter(|_| !planted(Bug::StretchStrands));
        first.flat_map(|commit| started(&commit.changes.outgoing)).collect()
    }

    /// Hands the seat the key of the execution, and the answer to its first commit.
    pub(crate) fn born(
        self: Box<Self>,
        key: ExecutionKey,
        committed: Result<Box<Committed>, Refusal>,
    ) -> Newborn {
        let mut state = self.birth.lock();
        state.key = Some(key);
        state.outcome = Some(match committed {
            Ok(committed) => Ok(CommitOutcome::Committed(*committed)),
            Err(refusal) => Err(refusal.into()),
        });
        drop(state);
        Newborn::Begun(key, self)
    }

    /// Takes the execution, to be polled on.
    pub(crate) fn take_running(&mut self) -> Option<BoxFuture<End>> {
        self.running.take()
    }
}

/// Values of the user's code are dropped with it, and their destructors may panic.
impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            panics::drop_caught(running);
        }
    }
}

impl Seat {
    /// Seats an execution that does not exist yet.
    fn unborn(engine: Arc<Inner>, mailbox: Arc<Mailbox>, (leased, birth): (Box<Leased>, Arc<Birth>)) -> Self {
        let mut seat = Self::new(engine, mailbox, leased);
        seat.ledger.await_birth(birth);
        seat
    }

    /// Whether the execution does not exist, as far as is known here.
    pub(crate) fn is_unborn(&self) -> bool {
        self.ledger.is_unborn()
    }
}

impl Inner {
    /// Returns the driver of an execution that may begin before it exists.
    fn beginner(&self, address: &Address, start: &Start) -> Option<&Arc<dyn Driver>> {
        let options = &self.options;
        let is_served = address.namespace == options.namespace
            && options.lanes.contains(&start.lane)
            && start.requires.iter().all(|name| options.capabilities.contains(name));
        let may_begin = start.kind == Kind::Workflow && start.start_at.is_none() && is_served;
        let driver = self.registry.driver(start.kind, &start.name).filter(|_| may_begin)?;
        (driver.begins_with_plain_code() && self.is_alive()).then_some(driver)
    }
}

/// Returns the lease that the store will give.
fn unborn(engine: &Inner, (address, start): (&Address, &Arc<Start>), at: Timestamp) -> Box<Leased> {
    let (execution, entry) = Execution::start(address.clone(), start.clone(), at);
    Box::new(Leased {
        key: UNBORN,
        lease: Lease { session: engine.session(), epoch: Epoch(1) },
        version: Version(0),
        takeover_count: 0,
        suspicion: None,
        unclaimed: None,
        is_first: true,
        execution,
        opening: Opening::Born(entry),
        inbox: InboxPage::default(),
    })
}
