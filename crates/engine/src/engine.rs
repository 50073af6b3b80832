//! A worker: its session, the executions that it holds in memory, and how both begin and end.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Ability, Address, Kind, Lease, LeaseRow, SessionId, Timestamp};
use abide_store::{Aside, Error, ExecutionKey, Leased, Retire, Store, Worker};
use tokio::sync::{Notify, Semaphore};

use crate::birth::Begun;
use crate::caretaker::Caretaker;
use crate::driver::{Driver, End};
use crate::failures::{Failing, Failures};
use crate::heartbeat::SignsOfLife;
use crate::hosts::{Host, Hosts};
use crate::idle::Activity;
use crate::inbox::Arrival;
use crate::left_commits::LeftCommits;
use crate::lifetime::Lifetime;
use crate::mailbox::{Mailbox, Order};
use crate::options::Options;
use crate::quarantine::{Admission, give_back};
use crate::recover::{LOST_READ_COUNT_MAX, RECOVER_PAUSE};
use crate::registry::Registry;
use crate::request::{Request, Requests};
use crate::residents::{Departure, Entered, Residents, Source};
use crate::runtime::{BoxFuture, Runtime};
use crate::seat::Seat;
use crate::watch::{Watchers, Whereabouts};
use crate::{builds, dispatch, heartbeat, panics, suspect};

/// Runs executions on one store under one session. When its last clone is dropped without a
/// [shutdown](Engine::shutdown), it stops; its session ends with the store or its time to live.
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<Inner>, #[expect(dead_code, reason = "its destructor counts")] Arc<LastOne>);

/// Ends the work when no caller can ask for its results any longer.
struct LastOne(Arc<Inner>);

impl Drop for LastOne {
    fn drop(&mut self) {
        self.0.is_closing.store(true, Ordering::Release);
        self.0.kick.notify_one();
        self.0.hosts.dissolve(&self.0);
        self.0.order_all(Order::Leave);
    }
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) options: Options,
    pub(crate) watchers: Arc<Watchers>,
    /// Wakes the dispatcher after a change that it should look at.
    pub(crate) kick: Notify,
    /// The requests of clients.
    pub(crate) requests: Requests,
    pub(crate) registry: Registry,
    session: AtomicU64,
    residents: Mutex<Residents>,
    pub(crate) hosts: Hosts,
    pub(crate) failures: Failures,
    pub(crate) left_commits: LeftCommits,
    pub(crate) lifetime: Lifetime,
    /// When it last warned that an execution needs a newer version of abide.
    pub(crate) newer_said_at: Mutex<Option<Timestamp>>,
    resident_count: AtomicUsize,
    /// How many runners want to work, and above [`BEGUN`] how often one began to.
    runnable: AtomicU64,
    is_closing: AtomicBool,
    /// Whether a shutdown lets running closures finish.
    is_draining: AtomicBool,
    /// Whether the session has ended, so that nothing has to be kept alive.
    is_closed: AtomicBool,
    /// Whether the runtime has ended: its residents never leave.
    is_deserted: AtomicBool,
    /// Held during a shutdown: a second caller waits until the first one is done.
    shutting: tokio::sync::Mutex<()>,
    /// Held by the one task that replaces a lost session: many may notice the loss at once.
    registering: tokio::sync::Mutex<()>,
    /// A hint at the quarantine's state, readable without the residents' lock: admission decides.
    pub(crate) is_shut: AtomicBool,
    /// Lets a bounded number of lost executions be read at once.
    pub(crate) lost_reads: Semaphore,
    pub(crate) signs_of_life: SignsOfLife,
    /// Whether the leases in the store are being compared with the residents.
    pub(crate) is_reconciling: AtomicBool,
    /// Notified when every resident has left.
    emptied: Notify,
}

/// One beginning in `Inner::runnable`. One number for both counts: a beginning then costs one
/// atomic addition, as it would without the upper one.
const BEGUN: u64 = 1 << 32;

/// An execution in memory.
struct Resident {
    key: ExecutionKey,
    lease: Lease,
    address: Address,
    mailbox: Arc<Mailbox>,
    /// The caller that polls it, if it has no task of its own.
    host: Option<Arc<Host>>,
}

impl Engine {
    /// Registers a session and begins to work.
    pub async fn open(
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        registry: Registry,
        options: Options,
    ) -> Result<Self, Error> {
        panics::watch();
        let requests = Requests::new(options.request_count_max);
        let inner = Arc::new(Inner {
            store,
            runtime,
            options,
            watchers: Arc::default(),
            kick: Notify::new(),
            requests,
            registry: registry.with_builtins(),
            session: AtomicU64::new(0),
            residents: Mutex::default(),
            hosts: Hosts::default(),
            failures: Failures::default(),
            left_commits: LeftCommits::default(),
            lifetime: Lifetime::default(),
            newer_said_at: Mutex::default(),
            resident_count: AtomicUsize::new(0),
            runnable: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_deserted: AtomicBool::new(false),
            shutting: tokio::sync::Mutex::default(),
            registering: tokio::sync::Mutex::default(),
            is_shut: AtomicBool::new(false),
            lost_reads: Semaphore::new(LOST_READ_COUNT_MAX),
            signs_of_life: SignsOfLife::default(),
            is_reconciling: AtomicBool::new(false),
            emptied: Notify::new(),
        });
        inner.register().await?;
        heartbeat::start(&inner);
        inner.runtime.spawn(Box::pin(dispatch::run(inner.clone())));
        inner.runtime.spawn(Box::pin(builds::try_blocked(Arc::downgrade(&inner))));
        Ok(Self(inner.clone(), Arc::new(LastOne(inner))))
    }

    /// Stops: takes nothing new, lets closures finish for up to the grace period, returns every
    /// lease and ends the session, without counting interrupted attempts. A second caller waits for
    /// the same end. Dropping the future does not stop the shutdown.
    pub async fn shutdown(&self) {
        let inner = self.0.clone();
        Request::new(inner.runtime.clone(), async move { inner.shut_down().await }).await;
    }
}

impl Inner {
    pub(crate) fn session(&self) -> SessionId {
        SessionId(self.session.load(Ordering::Acquire))
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Whether the engine takes no more executions, and still looks for the mail of those it has: a
    /// closure may run for as long as the grace period, and an order to its execution counts.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    async fn shut_down(self: &Arc<Self>) {
        if self.is_closing() && planted(Bug::SecondShutdownHurries) {
            return;
        }
        let _turn = self.shutting.lock().await;
        if self.is_closed() {
            return;
        }
        self.is_draining.store(!planted(Bug::DrainIsDeaf), Ordering::Release);
        self.is_closing.store(true, Ordering::Release);
        self.kick.notify_one();
        self.hosts.dissolve(self);
        self.order_all(Order::Drain);
        // The heart beats on: results in the grace period are recorded under a live session.
        tokio::select! {
            biased;
            () = self.wait_until_empty(self.options.shutdown_grace) => {}
            never = heartbeat::tell_draining(self) => match never {},
        }
        self.is_draining.store(false, Ordering::Release);
        self.kick.notify_one();
        self.order_all(Order::Leave);
        self.wait_until_empty(Duration::from_secs(5)).await;
        self.order_all(Order::Abandon);
        self.end_session("shut down").await;
    }

    /// Ends the session after the runtime has ended: others may run its executions at once.
    pub(crate) async fn desert(&self) {
        tracing::error!("the runtime in which abide was opened has ended; what ran there is given back");
        self.is_closing.store(true, Ordering::Release);
        self.is_deserted.store(true, Ordering::Release);
        // A shutdown that is awaited elsewhere now waits for nobody, and ends the session.
        self.emptied.notify_waiters();
        let _turn = self.shutting.lock().await;
        if !self.is_closed() {
            self.end_session("its runtime has ended").await;
        }
    }

    async fn end_session(&self, reason: &str) {
        self.is_closed.store(true, Ordering::Release);
        let retire = Retire { session: self.session(), reason: reason.to_owned() };
        if let Err(error) = self.store.retire(retire).await {
            tracing::warn!(%error, "the session could not be retired; it will expire");
        }
        self.watchers.look_again();
    }

    /// Makes a new session in place of one that is gone, unless another task has already done so.
    pub(crate) async fn replace_session(&self, gone: SessionId) -> Result<(), Error> {
        let _turn = self.registering.lock().await;
        if self.session() == gone {
            self.register().await?;
            let worker = self.options.worker_name.as_str();
            if !planted(Bug::SessionLossUnlogged) {
                tracing::warn!(session = %gone, worker, "the session was lost, and with it every lease; a new one was registered");
            }
            self.kick.notify_one();
        }
        Ok(())
    }

    /// Makes a new session. Every lease of an old session is lost.
    async fn register(&self) -> Result<(), Error> {
        self.order_all(Order::Abandon);
        let Options { worker_name, session_ttl, .. } = &self.options;
        let worker = Worker { name: worker_name.clone(), ability: self.ability(), ttl: *session_ttl };
        let asked_at = self.runtime.rest_moment();
        let registered = self.store.register(worker).await?;
        // An answer to the old session may have come meanwhile.
        let former = self.residents().begin_session(registered.session);
        self.hosts.dissolve(self);
        former.iter().for_each(|mailbox| mailbox.order(Order::Abandon));
        self.session.store(registered.session.0, Ordering::Release);
        // After the seats of the old session have their orders: they begin nothing more.
        self.has_lived(asked_at);
        Ok(())
    }

    /// Returns the offer of this engine to the store.
    pub(crate) fn ability(&self) -> Ability {
        let options = &self.options;
        Ability {
            namespace: options.namespace.clone(),
            lanes: options.lanes.clone(),
            runs: self.registry.names(),
            capabilities: options.capabilities.clone(),
            build: Some(options.build.clone()),
        }
    }

    /// Whether this engine has the code of a workflow or task.
    pub(crate) fn has_code_of(&self, kind: Kind, name: &abide_core::Name) -> bool {
        self.registry.driver(kind, name).is_some()
    }

    /// Returns how many more executions may be taken into memory.
    pub(crate) fn free_slots(&self) -> usize {
        if self.is_closing() || self.is_shut() {
            return 0;
        }
        self.options.execution_count_max.saturating_sub(self.resident_count())
    }

    /// Whether `count` executions leave no room for more; if so, the next one that leaves kicks.
    pub(crate) fn is_full_with(&self, count: usize) -> bool {
        // Under the lock: an execution that leaves is seen here, or sees the mark.
        let mut residents = self.residents();
        residents.is_full = count >= self.free_slots();
        residents.is_full
    }

    pub(crate) fn resident_count(&self) -> usize {
        self.resident_count.load(Ordering::Relaxed)
    }

    pub(crate) fn count_runnable(&self, is_runnable: bool) {
        if is_runnable {
            self.runnable.fetch_add(BEGUN + 1, Ordering::Relaxed);
        } else {
            self.runnable.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns how busy the engine is.
    pub(crate) fn activity(&self) -> Activity {
        let runnable = self.runnable.load(Ordering::Relaxed);
        Activity { begun: runnable / BEGUN, runnable_count: runnable % BEGUN }
    }

    /// Whether only the caller wants to work: then a commit need not go to another thread. The only
    /// thread of a runtime always has other work: timers and sockets.
    pub(crate) fn is_alone(&self) -> bool {
        self.activity().runnable_count <= 1 && self.runtime.has_time_for_the_disk()
    }

    /// Whether nothing wants to work.
    pub(crate) fn is_idle(&self) -> bool {
        self.activity().runnable_count == 0
    }

    /// Takes leased executions into memory and runs them, each when it may.
    pub(crate) fn adopt(self: &Arc<Self>, leased: impl IntoIterator<Item = Box<Leased>>) {
        leased.into_iter().for_each(|leased| self.take_in(leased, Source::Told));
    }

    pub(crate) fn take_in(self: &Arc<Self>, leased: Box<Leased>, source: Source) {
        self.seated(leased, source, None).into_iter().for_each(|running| self.runtime.spawn(running));
    }

    /// Takes a leased execution into memory, where this host polls it. Returns the future that runs
    /// it until it leaves, if it was not there before.
    pub(crate) fn seated(
        self: &Arc<Self>,
        leased: Box<Leased>,
        source: Source,
        host: Option<Arc<Host>>,
    ) -> Option<BoxFuture<()>> {
        let key = leased.key;
        let suspicion = self.suspicion(&leased);
        let mailbox = Arc::new(Mailbox::default());
        let admission = {
            let mut residents = self.residents();
            match residents.enter((key, leased.lease), &mailbox, source) {
                Entered::Seated => {}
                Entered::Known => return None,
                Entered::Taken(former) => {
                    // A woken runner may leave at once, which takes the same lock.
                    drop(residents);
                    former.doubt();
                    return None;
                }
            }
            self.resident_count.fetch_add(1, Ordering::Relaxed);
            // The fate of a suspect is decided after its record was read.
            match suspicion {
                None => Some(residents.quarantine.admit(key, None)),
                Some(_) => {
                    residents.quarantine.expect(key);
                    None
                }
            }
        };
        // Leased while a shutdown began: it is returned like all others.
        if self.is_closing() {
            mailbox.order(Order::Drain);
        }
        let (lease, address) = (leased.lease, leased.address().clone());
        if leased.takeover_count > 0 && !planted(Bug::TakeoverUnlogged) {
            let (namespace, execution) = (address.namespace.as_str(), address.id.as_str());
            let (count, epoch) = (leased.takeover_count, lease.epoch.0);
            tracing::warn!(
                namespace,
                execution,
                epoch,
                takeover_count = count,
                "an execution of a worker that died is taken over"
            );
        }
        // Boxed here: inside the task's future it would take its space several times.
        let running: BoxFuture<End> = match admission {
            None => Box::pin(suspect::take(self.clone(), mailbox.clone(), leased)),
            Some(Admission::Begin | Admission::Wait) => self.begin(mailbox.clone(), leased),
            Some(Admission::GiveBack) => Box::pin(give_back(self.clone(), leased)),
        };
        // Made where it stays: it is large.
        let place = Box::new_uninit();
        let resident = Resident { key, lease, address, mailbox, host };
        let run = Box::write(place, self.clone().run(resident, running));
        Some(Box::into_pin(run))
    }

    /// Does the same for an execution that has begun before it existed.
    pub(crate) fn seated_begun(
        self: &Arc<Self>,
        (key, mut begun): (ExecutionKey, Begun),
        host: Option<Arc<Host>>,
    ) -> Option<BoxFuture<()>> {
        let (lease, address, mailbox) = (begun.lease, begun.address.clone(), begun.mailbox.clone());
        let admission = {
            let mut residents = self.residents();
            match residents.enter((key, lease), &mailbox, Source::Told) {
                Entered::Seated => {}
                // Its commit is recorded, and the other seat goes on from there.
                Entered::Known => {
                    drop(residents);
                    if !planted(Bug::StretchOfKnownStrands) {
                        self.recover_all(begun.children());
                    }
                    return None;
                }
                Entered::Taken(former) => {
                    drop(residents);
                    self.recover_all(begun.children());
                    former.doubt();
                    return None;
                }
            }
            self.resident_count.fetch_add(1, Ordering::Relaxed);
            residents.quarantine.admit(key, None)
        };
        // It has begun: it leaves as all others do.
        let is_closing = self.is_closing() && !planted(Bug::StretchUndrained);
        if is_closing || admission == Admission::GiveBack {
            mailbox.order(Order::Drain);
        }
        let running = begun.take_running()?;
        Some(Box::pin(self.clone().run(Resident { key, lease, address, mailbox, host }, running)))
    }

    /// Looks after leased executions without their code. A runner here may have held one of them
    /// until now without reading its mail: it loses its place.
    pub(crate) fn look_after(self: &Arc<Self>, leased: impl IntoIterator<Item = Box<Leased>>) {
        leased.into_iter().for_each(|leased| self.take_care(leased, Source::Told));
    }

    pub(crate) fn take_care(self: &Arc<Self>, mut leased: Box<Leased>, source: Source) {
        let (key, lease, address) = (leased.key, leased.lease, leased.address().clone());
        let mailbox = Arc::new(Mailbox::default());
        let Some(former) = self.residents().replace((key, lease), &mailbox, source) else { return };
        match former {
            Some(former) => former.order(Order::Abandon),
            None => {
                self.resident_count.fetch_add(1, Ordering::Relaxed);
            }
        }
        let opening = std::mem::take(&mut leased.opening);
        let seat = Seat::new(self.clone(), mailbox.clone(), leased);
        let (running, host) = (Caretaker.begin(seat, opening), None);
        let resident = Resident { key, lease, address, mailbox, host };
        self.runtime.spawn(Box::pin(self.clone().run(resident, running)));
    }

    /// Runs one execution until it leaves memory.
    async fn run(self: Arc<Self>, resident: Resident, running: BoxFuture<End>) {
        let end = panics::caught(running).await;
        let Resident { key, lease, address, mailbox, host } = resident;
        if !matches!(end, End::Finished(_) | End::Released) {
            let left = self.left_commits.take((key, lease.epoch));
            // An abandoned lease is over: nobody begins anew under it, and its next holder need not
            // wait for a store that does not answer.
            if let Some(commit) = left.filter(|_| !mailbox.is_abandoned()) {
                Box::pin(self.await_left_commit(commit, &address)).await;
            }
        }
        if let End::Unreadable(unreadable) = &end {
            // A shutdown waits until it has left memory.
            Box::pin(self.set_aside(Aside { key, lease, unreadable: unreadable.clone() })).await;
        }
        let (is_last, is_wanted, was_full) = {
            let mut residents = self.residents();
            let departure = residents.leave(key, &mailbox);
            if departure != Departure::OfAnother {
                self.resident_count.fetch_sub(1, Ordering::Relaxed);
            }
            let is_last = residents.count() == 0;
            let is_over = matches!(end, End::Finished(_) | End::Released);
            let may_be_ours = departure == Departure::LeasedAgain || !is_over;
            // From now on no other task looks for it, not even during the pause.
            let is_wanted = may_be_ours && residents.want(key);
            let was_full = std::mem::take(&mut residents.is_full);
            if residents.quarantine.has_suspects() {
                self.left(key, residents);
            }
            (is_last, is_wanted, was_full)
        };
        if is_last {
            self.emptied.notify_waiters();
        }
        // While the quarantine admits nobody there is nothing to claim.
        if (was_full || matches!(end, End::Released)) && !self.is_shut() {
            self.kick.notify_one();
        }
        if !matches!(end, End::Finished(_)) {
            self.watchers.look(&address.id, Whereabouts::Here);
        }
        if !matches!(end, End::Failed(_) | End::NotRead(_) | End::Panicked(_)) {
            self.failures.forget(key);
        }
        let pause = match end {
            End::Finished(event) => {
                self.watchers.ended(&address.id, &event);
                if let Some(host) = &host {
                    host.end(event);
                }
                None
            }
            End::Released => None,
            End::Unreadable(_) => {
                // The feed does not mention it.
                self.watchers.look(&address.id, Whereabouts::Elsewhere);
                None
            }
            other => Some(self.pause_after(key, &address, other)),
        };
        if is_wanted {
            let recovery = Box::pin(self.clone().recover_after((key, Some(lease)), pause));
            match host {
                // Its caller need not wait until it can be read.
                Some(_) => self.runtime.spawn(recovery),
                None => recovery.await,
            }
        }
    }

    /// Returns the pause before a look for an execution whose end here leaves its place open.
    fn pause_after(&self, key: ExecutionKey, address: &Address, end: End) -> Duration {
        match end {
            End::Failed(why) => {
                tracing::error!(%address, why, "a commit failed for good");
                self.failures.count(key, Failing::Commit, why)
            }
            End::NotRead(why) => {
                tracing::error!(%address, why, "an execution begins anew because its records could not be read");
                self.failures.count(key, Failing::Read, why)
            }
            End::Panicked(_) if planted(Bug::PanicsUncounted) => RECOVER_PAUSE,
            End::Panicked(why) => {
                tracing::error!(%address, why, "the driver of an execution panicked");
                self.failures.count(key, Failing::Driver, why)
            }
            End::Lost(why) => {
                tracing::warn!(%address, why, "an execution left memory");
                // The pause keeps retries from making things worse.
                RECOVER_PAUSE
            }
            End::Finished(_) | End::Released | End::Unreadable(_) => RECOVER_PAUSE,
        }
    }

    /// Brings an execution its mail.
    pub(crate) fn deliver(&self, key: ExecutionKey, arrivals: Vec<Arrival>) {
        let posted = self.residents().post(key, arrivals);
        if let Some((mailbox, arrivals)) = posted {
            mailbox.deliver(arrivals);
        }
    }

    /// Forgets early messages of executions that never came: their inboxes still have them.
    pub(crate) fn forget_early(&self) {
        self.residents().forget_early();
    }

    /// Whether an execution is in memory.
    pub(crate) fn is_resident(&self, key: ExecutionKey) -> bool {
        self.residents().contains(key)
    }

    /// Whether a lease of ours has its seat; `None` if it is another session's lease.
    pub(crate) fn has_seat(&self, key: ExecutionKey, lease: &LeaseRow) -> Option<bool> {
        let session = lease.session.filter(|session| *session == self.session())?;
        Some(self.residents().under(key, Lease { session, epoch: lease.epoch }).is_some())
    }

    pub(crate) fn order_all(&self, order: Order) {
        let all: Vec<_> = self.residents().mailboxes().map(|(_, mailbox)| mailbox.clone()).collect();
        all.iter().for_each(|mailbox| mailbox.order(order));
    }

    async fn wait_until_empty(&self, patience: Duration) {
        let mut is_over = self.runtime.sleep(patience);
        loop {
            let emptied = self.emptied.notified();
            if self.resident_count() == 0 || self.is_deserted.load(Ordering::Acquire) {
                return;
            }
            tokio::select! {
                biased;
                () = emptied => {}
                () = &mut is_over => return,
            }
        }
    }

    pub(crate) fn residents(&self) -> MutexGuard<'_, Residents> {
        self.residents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
