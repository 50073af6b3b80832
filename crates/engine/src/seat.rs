//! The one owner of a lease.
//!
//! Whichever driver computes the commands of an execution, its seat holds the lease, the ledger of
//! decisions, the mail in the store's order, control, the deadline, and the way out: to park, to
//! release, to end.

use std::sync::Arc;
use std::task::{Context, Poll};

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Block, Command, Entry, Epoch, Event, Execution, ExecutionId, FailedAttempt, Message, MessageId,
    Op, Payload, Refusal, SiteMark, Start, Summary, Timestamp, Unclaimed, WaitSites, Waiting, Witness, care,
};
use abide_store::{Answer, ExecutionKey, Hold, Leased, Read, Record, Target, Transaction};

use crate::driver::End;
use crate::engine::Inner;
use crate::inbox::{Inbox, Left, Letter};
use crate::journal::JournalOf;
use crate::ledger::{Flushed, Ledger, Terms};
use crate::mailbox::{Mailbox, Order};
use crate::presence::Presence;
use crate::runtime::BoxFuture;
use crate::tree::{self, TOLD_COUNT_MAX};

/// An execution in memory, as its [driver](crate::Driver) sees it.
pub struct Seat {
    pub(crate) engine: Arc<Inner>,
    mailbox: Arc<Mailbox>,
    pub(crate) ledger: Ledger,
    inbox: Inbox,
    order: Order,
    /// Whether none of its code was called before.
    is_first: bool,
    /// The value in its [summary](Summary::cared_epoch): set if a caretaker sits here, and is the
    /// first.
    cared_epoch: Option<Epoch>,
    /// The value in its [summary](Summary::sites), for the next commit.
    sites: WaitSites,
    /// The end that follows when the final commit, which was sent, is durable.
    closing: Option<End>,
    presence: Presence,
}

/// An event at a seat.
#[derive(Debug)]
pub enum Seated {
    /// A commit is durable. If it was a transaction's, this is its record.
    Committed(Option<Record>),
    /// The store refused a commit.
    Refused(Refusal),
    /// There is nothing more to do here.
    Ended(End),
}

/// The way in which a commit leaves or keeps an execution.
#[derive(Debug)]
pub struct Leave<'a> {
    /// The fate of the lease.
    pub hold: Hold,
    /// The things that it waits for.
    pub waiting: &'a [Waiting],
    /// The time at which its code is to be woken.
    pub wake_at: Option<Timestamp>,
    /// The end that follows when the commit is durable; `None` if the driver goes on.
    pub end: Option<End>,
}

impl<'a> Leave<'a> {
    /// Keeps the execution: the driver goes on.
    pub fn keep(waiting: &'a [Waiting]) -> Self {
        Self { hold: Hold::Keep, waiting, wake_at: None, end: None }
    }

    /// Parks the execution: it leaves memory until mail comes for it, or its time. [`Seat::parked`]
    /// returns `hold`.
    pub fn park(waiting: &'a [Waiting], hold: Hold) -> Self {
        Self { hold, waiting, wake_at: None, end: Some(End::Released) }
    }

    /// Hands the execution over: it leaves memory, and any worker may go on with it at once.
    pub fn hand_over(waiting: &'a [Waiting]) -> Self {
        Self { hold: Hold::Yield, waiting, wake_at: None, end: Some(End::Released) }
    }
}

impl Seat {
    /// Seats an execution whose [opening](abide_store::Opening) was taken.
    #[inline]
    pub(crate) fn new(engine: Arc<Inner>, mailbox: Arc<Mailbox>, mut leased: Box<Leased>) -> Self {
        let page = std::mem::take(&mut leased.inbox);
        let home = (engine.store.clone(), engine.runtime.clone());
        let inbox = Inbox::new(home, engine.options.mail_bytes_max, (leased.key, leased.lease.epoch), page);
        let is_first = leased.is_first;
        let ledger = Ledger::new(&engine, leased);
        let presence = Presence::new(engine.clone());
        let order = Order::Run;
        let (cared_epoch, sites, closing) = (None, None, None);
        Self { engine, mailbox, ledger, inbox, order, is_first, cared_epoch, sites, closing, presence }
    }

    /// Returns the store and the execution of its journal.
    pub(crate) fn journal_of(&self) -> JournalOf<'_> {
        let (store, runtime) = (self.engine.store.clone(), self.engine.runtime.clone());
        JournalOf { store, runtime, key: self.key(), execution: self.execution() }
    }

    /// Returns the store's number for the execution.
    pub fn key(&self) -> ExecutionKey {
        self.ledger.key()
    }

    /// Returns the execution, with everything that was decided so far.
    pub fn execution(&self) -> &Execution {
        self.ledger.execution()
    }

    /// Returns why nothing more may begin, if the journal is as long as it may be.
    pub(crate) fn over_length(&self) -> Option<Block> {
        let (found, max) = (self.execution().entry_count(), self.engine.options.bounds.entry_count_max);
        let reason =
            || format!("the journal has reached the limit entry_count_max: {found} entries, at most {max}");
        (found >= max).then(|| Block::Limit { reason: reason() })
    }

    /// Returns the input of a retry policy: a failed attempt of an operation whose first attempt
    /// began at `first_at`.
    pub(crate) fn failed_attempt(&self, op: &Op, number: u32, first_at: Timestamp) -> FailedAttempt {
        let execution = self.execution();
        let chance = abide_core::chance(execution.address(), execution.run(), op, number);
        FailedAttempt { number, first_at, failed_at: self.now(), chance }
    }

    /// Returns the time.
    pub fn now(&self) -> Timestamp {
        self.ledger.now()
    }

    /// Whether the execution's phase lets its code run, and its time has come.
    pub fn may_run(&self) -> bool {
        let execution = self.execution();
        let is_delayed = || execution.start_at().is_some() && execution.is_delayed(self.now());
        execution.phase().is_active() && !is_delayed()
    }

    /// Begins a poll of the driver: from now on, news for this seat wakes its task.
    pub fn enter(&mut self, cx: &mut Context<'_>) {
        self.mailbox.task.register(cx.waker());
        self.presence.begin();
    }

    /// Ends a poll of the driver. `awaits_outside`: its code waits for the outside world.
    pub fn leave(&mut self, awaits_outside: bool) {
        let is_committing = self.ledger.is_busy();
        self.mailbox.set_committing(is_committing);
        self.presence.set(is_committing, awaits_outside);
    }

    /// Ends the work of the driver.
    pub fn vacate(&mut self) {
        self.presence.set(false, false);
    }

    /// Takes in the answer to the commit under way. Pending also if there is none.
    pub(crate) fn poll_commit(&mut self, cx: &mut Context<'_>) -> Poll<Seated> {
        let flushed = std::task::ready!(self.ledger.poll(cx));
        self.engine.recover_all(self.ledger.take_stranded());
        Poll::Ready(self.flushed(flushed))
    }

    /// Takes in the news of the store and the engine for this seat. Pending if none of it needs an
    /// action.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Seated> {
        if let Some(key) = self.ledger.born() {
            self.inbox.belongs_to(key);
        }
        if let Poll::Ready(seated) = self.poll_commit(cx) {
            return Poll::Ready(seated);
        }
        let mut is_doubted = false;
        if let Some(news) = self.mailbox.take() {
            self.order = self.order.max(news.order);
            self.inbox.arrive(news.arrivals);
            is_doubted = news.is_doubted;
            if news.is_to_be_joined {
                self.ledger.stand_beside();
                if planted(Bug::JoinedUnrecorded) {
                    self.engine.reopen(self.ledger.key());
                }
            }
        }
        // The answer to a commit under way will show whether the lease is lost.
        let is_lost = is_doubted && (!self.ledger.is_busy() || planted(Bug::DoubtWhileCommitting));
        if self.order == Order::Abandon || is_lost {
            return Poll::Ready(Seated::Ended(End::Lost("its lease is over".to_owned())));
        }
        // An execution that does not exist has no mail; a look waits.
        if self.inbox.is_complete() || self.is_unborn() {
            return Poll::Pending;
        }
        match self.inbox.poll(cx) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Seated::Ended(End::from(error))),
        }
    }

    /// Whether there is something that [`poll`](Self::poll) would take in: an answer of the store,
    /// or news. One poll may find both, and then takes in the answer alone.
    pub(crate) fn has_to_take_in(&self) -> bool {
        let has_news = self.mailbox.has_news() && !planted(Bug::NewsBesideAnswer);
        self.ledger.is_busy() || !self.inbox.is_complete() || has_news
    }

    /// Does the same for drivers that send no transactions, and only have to know when there is
    /// nothing more to do here.
    pub fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            match std::task::ready!(self.poll(cx)) {
                Seated::Committed(_) => {}
                Seated::Refused(refusal) => {
                    return Poll::Ready(End::Failed(format!("a commit was refused: {refusal}")));
                }
                Seated::Ended(end) => return Poll::Ready(end),
            }
        }
    }

    fn flushed(&mut self, flushed: Flushed) -> Seated {
        match flushed {
            Flushed::Committed { committed, is_alone } => {
                self.inbox.committed();
                self.engine.adopt(committed.born);
                // Only now: a death after others came in must not be found beside the mark.
                if !is_alone && self.engine.is_shut() {
                    self.engine.reopen(self.ledger.key());
                }
                match self.closing.take() {
                    Some(end) => Seated::Ended(end),
                    None => Seated::Committed(committed.transacted),
                }
            }
            Flushed::Refused(refusal) => Seated::Refused(refusal),
            Flushed::Failed(why) => Seated::Ended(End::Failed(why)),
            Flushed::Lost(why) => Seated::Ended(End::Lost(why)),
        }
    }

    /// Applies the next order that came by mail, and returns its entry, if it has one. Returns
    /// `None` if there is no order, or if it has to wait for the commit under way, because it may
    /// end the run, and the end is sent at once.
    ///
    /// A cancellation is for the code to see. Only an execution that nobody but caretakers ever
    /// held, and whose code was not called (`has_begun`), ends without it.
    pub fn obey(&mut self, has_begun: bool) -> Option<Option<Entry>> {
        let order = self.next_order()?;
        Some(self.apply(&order, has_begun))
    }

    /// Applies the next order to code that has begun, as [`obey`](Self::obey) does. An unblock
    /// waits, and the orders behind it too.
    pub(crate) fn obey_but_unblock(&mut self) -> Option<Option<Entry>> {
        if self.ledger.is_busy() {
            return None;
        }
        let order = self.inbox.next_order_but_unblock(self.ledger.execution())?;
        Some(self.apply(&order, true))
    }

    /// Returns the next order, for drivers that choose which to [apply](Self::apply). It stays
    /// unread until then. `None` while a commit is under way.
    pub(crate) fn next_order(&mut self) -> Option<Message> {
        if self.ledger.is_busy() {
            return None;
        }
        self.inbox.next_order(self.ledger.execution())
    }

    /// Applies an order, and returns its entry, if it has one.
    pub(crate) fn apply(&mut self, order: &Message, has_begun: bool) -> Option<Entry> {
        let has_begun = has_begun && !planted(Bug::FirstCancelUnseen);
        let command = match order.control() {
            Some(command) if self.is_first && !has_begun => care::without_code(command),
            Some(command) => command,
            None => return None,
        };
        self.consume(order.id.clone());
        if !self.execution().is_meant_by(order) {
            let address = self.execution().address();
            tracing::debug!(%address, by = %order.by, "an order is not for it, or was heard before");
            return None;
        }
        let decided = self.ledger.decide(command);
        decided.unwrap_or_else(|refusal| {
            // No fault: the phase changed since the message was accepted.
            let address = self.execution().address();
            tracing::debug!(%address, %refusal, "a control message came too late");
            None
        })
    }

    /// Whether none of its code was called before.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Records that none of its code is called under this lease either: the next holder is as much
    /// the first as this one.
    pub(crate) fn stay_first(&mut self) {
        self.cared_epoch = self.is_first.then(|| self.ledger.epoch());
    }

    /// Sees to a passed deadline, and returns the entry. The code sees it, and has
    /// `deadline_grace_ms` to wind down. The execution fails when that time is over, and also if no
    /// code can see the deadline: none was ever called, or it is a task that does not run
    /// (`has_begun`).
    pub fn expire(&mut self, has_begun: bool) -> Option<Option<Entry>> {
        self.expires_at().filter(|_| !self.ledger.is_busy())?;
        let witness = Witness { has_begun, is_first: self.is_first };
        let grace = self.engine.options.bounds.deadline_grace();
        let command = self.execution().overdue(witness, self.now(), grace)?;
        self.ledger.decide(command).ok()
    }

    /// Whether its deadline has passed and is [seen to](Self::expire) when the commit under way is
    /// answered. Nothing that happens later goes before it.
    pub(crate) fn waits_to_expire(&self) -> bool {
        // The clock is read only when there is a deadline: this is asked at every turn.
        let expires_at = self.expires_at().filter(|_| self.ledger.is_busy());
        expires_at.is_some_and(|at| at <= self.now()) && !planted(Bug::TimerBeforeDeadline)
    }

    /// Returns when its deadline is to be [seen to](Self::expire).
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.execution().expires_at()
    }

    /// Returns the next message that is no order, in the store's order. It stays unread until it is
    /// [consumed](Self::consume). `None` also while its content is read from the store.
    pub fn next_message(&mut self) -> Option<Message> {
        let message = self.inbox.next_whole();
        self.ask_for_mail();
        message
    }

    /// Does the same, but the content may have been left in the store, if the execution's mail is
    /// large.
    pub(crate) fn next_letter(&mut self) -> Option<Letter> {
        self.inbox.next()
    }

    /// Returns a message that was left in the store; `None` while it is on its way.
    pub(crate) fn fetch(&mut self, id: &MessageId, left: Left) -> Option<Message> {
        let message = self.inbox.fetch(id, left);
        self.ask_for_mail();
        message
    }

    /// Asks the store for unread mail. A seat that [has looked](Self::has_looked) knows all mail
    /// that was there at the time of this call.
    pub(crate) fn look(&mut self) {
        self.inbox.look();
        self.ask_for_mail();
    }

    /// Whether the last [look](Self::look) is over.
    pub(crate) fn has_looked(&self) -> bool {
        self.inbox.has_looked()
    }

    /// Returns the number of the newest message that is known, in the store's order.
    pub(crate) fn last_number(&self) -> u64 {
        self.inbox.last_number()
    }

    /// Has the driver polled again if a message was requested: only then the message will wake it.
    fn ask_for_mail(&mut self) {
        if self.inbox.take_unasked() {
            self.mailbox.task.wake();
        }
    }

    /// Records that a message was read for good, with the next commit.
    pub fn consume(&mut self, id: MessageId) {
        self.inbox.consume(&id);
        self.ledger.consume(id);
    }

    /// Decides a command and takes down its entry, if it has one; a commit makes it durable.
    pub fn decide(&mut self, command: Command) -> Result<Option<Entry>, Refusal> {
        self.ledger.decide(command)
    }

    /// Does the same for a command that comes from this place in the code.
    pub(crate) fn decide_from(
        &mut self,
        site: Option<SiteMark>,
        command: Command,
    ) -> Result<Option<Entry>, Refusal> {
        self.ledger.decide_from(site, command)
    }

    /// Sends a message with the next commit.
    pub fn emit(&mut self, message: Message) {
        self.ledger.emit(message);
    }

    /// Begins the next run of an execution that continues as new, and returns its first entry.
    pub(crate) fn begin_next_run(&mut self, start: &Start, input: Payload) -> Entry {
        self.is_first = false;
        self.ledger.begin_next_run(start, input)
    }

    /// Returns the engine's order.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Whether a commit is under way.
    pub fn is_busy(&self) -> bool {
        self.ledger.is_busy()
    }

    /// Whether the last commit is under way.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Whether everything that was decided is durable.
    pub fn is_durable(&self) -> bool {
        self.ledger.is_durable()
    }

    /// Whether anything waits to be committed. Then a driver [sends](Self::send) it, even if it has
    /// decided nothing itself: the seat has news of its own when a suspect was alone for long
    /// enough, and others come in when that is durable.
    pub fn has_news(&self) -> bool {
        self.ledger.has_news()
    }

    /// Returns how many entries and messages wait to be committed.
    pub(crate) fn news_count(&self) -> usize {
        self.ledger.news_count()
    }

    /// Whether all mail that the store has announced is here: a driver must not park before.
    pub fn has_all_mail(&self) -> bool {
        self.inbox.is_complete()
    }

    /// Returns the hold that returns the lease until mail comes that is not known here. A driver
    /// that parks [has all mail](Self::has_all_mail).
    pub fn parked(&self) -> Hold {
        Hold::Park { seen: self.inbox.unread().cloned().collect() }
    }

    /// Whether it is a suspect that runs alone while all others wait for it.
    pub(crate) fn keeps_others_out(&self) -> bool {
        self.engine.is_shut() && self.engine.residents().quarantine.is_turn_of(self.key())
    }

    /// Whether a session has died while it held the execution, which has not since proven that it
    /// does not kill its worker.
    pub(crate) fn is_suspected(&self) -> bool {
        self.ledger.is_suspected()
    }

    /// Records, with the next commit, that this suspect runs alone from now on.
    pub(crate) fn stand_alone(&mut self, takeover_count: u32) {
        self.ledger.stand_alone(takeover_count);
    }

    /// Sets, before a commit of an execution that [is suspected](Self::is_suspected), whether a
    /// closure that was open when the last holder died is open again, and neither recorded nor
    /// abandoned.
    pub(crate) fn set_open(&mut self, has_open: bool) {
        self.ledger.set_open(has_open);
    }

    /// Returns the operation that the code began and that is perhaps recorded under another name.
    pub(crate) fn unclaimed(&self) -> Option<&Unclaimed> {
        self.ledger.unclaimed()
    }

    /// Sets that operation.
    pub(crate) fn set_unclaimed(&mut self, unclaimed: Option<Unclaimed>) {
        self.ledger.set_unclaimed(unclaimed);
    }

    /// Sets, for the waits of the next commit, where the code asked for each of them.
    pub(crate) fn set_sites(&mut self, sites: WaitSites) {
        self.sites = sites;
    }

    /// Whether there are orders for children.
    pub(crate) fn has_tree_orders(&self) -> bool {
        !self.ledger.tree_orders.is_empty()
    }

    /// Sends the orders to all open children, which the driver knows, with the next commit; if
    /// there are too many children, another execution sends them.
    pub(crate) fn tell(&mut self, children: &[&ExecutionId]) {
        if children.len() > TOLD_COUNT_MAX {
            return;
        }
        let namespace = self.execution().address().namespace.clone();
        for order in std::mem::take(&mut self.ledger.tree_orders) {
            for child in children {
                let to = Address { namespace: namespace.clone(), id: (*child).clone() };
                self.ledger.emit(order.message(to));
            }
        }
    }

    /// Commits the decisions. Another execution passes on the orders that no child got yet.
    pub fn send(&mut self, leave: Leave<'_>) {
        for order in std::mem::take(&mut self.ledger.tree_orders) {
            let namespace = self.execution().address().namespace.clone();
            self.ledger.emit(tree::delegated(namespace, &order));
        }
        let sites = self.sites.take();
        let mut summary = match self.may_run() {
            true => self.execution().summary(leave.waiting),
            false => self.execution().summary_at_rest(),
        };
        if self.may_run() {
            summary.wake_at = [leave.wake_at, self.expires_at()].into_iter().flatten().min();
            summary.sites = sites;
        }
        summary.cared_epoch = self.cared_epoch;
        if self.is_suspected() && !self.keeps_others_out() {
            self.ledger.stand_beside();
        }
        // A commit that creates work for others is no longer alone.
        let alone = self.ledger.has_little_news() && self.engine.is_alone();
        let terms = Terms { summary, hold: leave.hold, born_slots: self.engine.free_slots(), alone };
        self.inbox.sent();
        self.ledger.flush(terms);
        self.closing = leave.end;
    }

    /// Commits the end of the execution.
    pub fn finish(&mut self, event: Event) {
        let end = Some(End::Finished(event));
        self.send(Leave { hold: Hold::Keep, waiting: &[], wake_at: None, end });
    }

    /// Sends a user's transaction, which returns the one record of its commit.
    pub(crate) fn transact(&mut self, waiting: &[Waiting], transaction: Transaction) {
        let sites = self.sites.take();
        let summary = Summary { sites, ..self.execution().summary(waiting) };
        let alone = self.engine.is_alone();
        self.inbox.sent();
        self.ledger.transact(Terms { summary, hold: Hold::Keep, born_slots: 0, alone }, transaction);
    }

    /// Folds the entry of a transaction.
    pub(crate) fn transacted(&mut self, entry: &Entry) {
        self.ledger.transacted(entry);
    }

    /// Returns a page of the journal of the current run from entry `from` on, for drivers whose
    /// [opening](abide_store::Opening) did not have all of it.
    pub fn page(&self, from: u64) -> Answer<Vec<Record>> {
        const ENTRY_COUNT: usize = 1_024;
        let (target, run) = (Target::Key(self.key()), Some(self.execution().run()));
        let read = Read { target, run, from, limit: ENTRY_COUNT, with_inbox: false };
        let answer = self.engine.store.read(read);
        Answer::new(async move { Ok(answer.await?.map(|found| found.journal).unwrap_or_default()) })
    }

    /// Resolves at a point in time, on the clock of [`now`](Self::now).
    pub fn sleep_until(&self, at: Timestamp) -> BoxFuture<()> {
        self.engine.runtime.sleep_until(at)
    }

    /// Returns the mailbox through which the task of this seat is woken.
    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }
}
