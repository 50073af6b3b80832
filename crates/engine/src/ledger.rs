//! The right to write one execution, and the decisions that are not yet durable.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Body, Command, Entry, Epoch, Execution, Message, MessageId, Payload, Proof, Refusal, SiteMark,
    Stand, Start, Summary, Suspicion, Timestamp, TreeOrder, Unclaimed, codec,
};
use abide_store::{
    Answer, Changes, Commit, CommitOutcome, Committed, Error, ExecutionKey, Hold, Leased, Record, Records,
    Transaction,
};

use crate::birth::Birth;
use crate::driver::End;
use crate::engine::Inner;
use crate::news::News;
use crate::runtime::BoxFuture;

/// Decides commands, collects their entries and messages, and commits them, one commit at a time.
///
/// A commit whose outcome is unknown, or that the store could not take, is sent again unchanged:
/// the version that it was prepared at is its name, so it happens once.
pub(crate) struct Ledger {
    engine: Arc<Inner>,
    /// The lease with the execution, as of the last decision. Its pages of journal and inbox were
    /// taken. It stays where the store put it: it is large.
    leased: Box<Leased>,
    records: Records,
    /// The memory for the state of the next commit, once there was one before it.
    state: Vec<u8>,
    /// The first entry of the run that follows `records`.
    next: Option<Record>,
    consumed: Vec<MessageId>,
    outgoing: Vec<Message>,
    /// The orders that the next commit has to pass to the open children.
    pub(crate) tree_orders: Vec<TreeOrder>,
    durable: u64,
    /// The lines to log once the decisions are durable.
    news: Vec<News>,
    /// The run that the next commit belongs to: a commit that ends a run may begin the next.
    run_before: u32,
    /// Whether the suspicion, which is carried on until the execution has proven that it does not
    /// kill its worker, has changed since the last commit.
    has_new_suspicion: bool,
    /// Whether the execution's code caused one of the decisions.
    has_work: bool,
    /// Whether a closure that was open when the last holder died is open again.
    has_open: bool,
    in_flight: Option<InFlight>,
    /// The way to the request that creates the execution, until it exists.
    birth: Option<Arc<Birth>>,
    /// Executions that may have been leased to us without our knowing, because an answer was lost.
    stranded: Vec<Address>,
}

/// A commit that was sent.
pub(crate) struct InFlight {
    answer: Answer<CommitOutcome>,
    /// The lines to log when the commit has happened, and its run.
    news: (Vec<News>, u32),
    /// The commit, to send it again.
    commit: Commit,
    entry_count: u64,
    pause: Option<BoxFuture<()>>,
    failed_count: u32,
}

/// The outcome of a commit.
pub(crate) enum Flushed {
    /// It is durable.
    Committed {
        committed: Committed,
        /// Whether a death may be its own after this commit.
        is_alone: bool,
    },
    /// The store refused it.
    Refused(Refusal),
    /// The store will never take it: forget everything that is in memory, and begin with the
    /// journal.
    Failed(String),
    /// The lease is lost: forget everything that is in memory.
    Lost(String),
}

impl Flushed {
    /// Returns how an execution ends whose last commit this was.
    pub(crate) fn end(self) -> End {
        match self {
            Self::Committed { .. } => End::Released,
            Self::Refused(refusal) => End::Failed(format!("a lease could not be given back: {refusal}")),
            Self::Failed(why) => End::Failed(why),
            Self::Lost(why) => End::Lost(why),
        }
    }
}

/// The terms of a commit.
pub(crate) struct Terms {
    pub(crate) summary: Summary,
    pub(crate) hold: Hold,
    pub(crate) born_slots: usize,
    pub(crate) alone: bool,
}

impl Ledger {
    pub(crate) fn new(engine: &Arc<Inner>, mut leased: Box<Leased>) -> Self {
        let suspicion = leased.suspicion.take();
        leased.suspicion = (leased.takeover_count > 0).then(|| suspicion.unwrap_or_default());
        Self {
            engine: engine.clone(),
            durable: leased.execution.entry_count(),
            news: Vec::new(),
            run_before: leased.execution.run(),
            has_new_suspicion: false,
            has_work: false,
            has_open: false,
            leased,
            records: Records::new(),
            state: Vec::new(),
            next: None,
            consumed: Vec::new(),
            outgoing: Vec::new(),
            tree_orders: Vec::new(),
            in_flight: None,
            birth: None,
            stranded: Vec::new(),
        }
    }

    /// Has the first commit go with the start: the execution does not exist yet.
    pub(crate) fn await_birth(&mut self, birth: Arc<Birth>) {
        self.birth = Some(birth);
        self.durable = if planted(Bug::ClosureBeforeStart) { self.durable } else { 0 };
    }

    /// Whether the execution does not exist, as far as is known here.
    pub(crate) fn is_unborn(&self) -> bool {
        self.birth.is_some()
    }

    /// Returns the number of an execution that was just created.
    pub(crate) fn born(&mut self) -> Option<ExecutionKey> {
        let key = self.birth.as_ref()?.key()?;
        self.birth = None;
        self.leased.key = key;
        if self.in_flight.is_none() {
            // Its start, and nothing else: later entries go with the next commit.
            self.durable = 1;
        }
        Some(key)
    }

    /// Returns the store's number for the execution.
    pub(crate) fn key(&self) -> ExecutionKey {
        self.leased.key
    }

    pub(crate) fn execution(&self) -> &Execution {
        &self.leased.execution
    }

    /// Returns the number of this lease of the execution.
    pub(crate) fn epoch(&self) -> Epoch {
        self.leased.lease.epoch
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.engine.runtime.now()
    }

    /// Decides a command and takes down its entry, if it has one. It is not durable yet.
    pub(crate) fn decide(&mut self, command: Command) -> Result<Option<Entry>, Refusal> {
        self.decide_from(None, command)
    }

    /// Does the same for a command that comes from this place in the code.
    pub(crate) fn decide_from(
        &mut self,
        site: Option<SiteMark>,
        command: Command,
    ) -> Result<Option<Entry>, Refusal> {
        let now = self.engine.runtime.now();
        let command = command.found_by(self.engine.build()).bounded(&self.engine.options.bounds);
        let decision = self.leased.execution.decide(command, now)?;
        if let Some(order) = decision.tree {
            self.tree_orders.push(order);
        }
        if let Some(message) = decision.outgoing {
            self.outgoing.push(message);
        }
        // In place: an entry is large.
        let Some(event) = decision.event else { return Ok(None) };
        let entry = self.leased.execution.record(event, site, now);
        self.has_work |= entry.event.is_work();
        self.records.push(Record::of(&entry));
        if let Some(news) = News::of(&entry.event) {
            self.news.push(news);
        }
        Ok(Some(entry))
    }

    /// Begins the next run of an execution that continues as new. Returns its first entry, which
    /// goes with the next commit.
    pub(crate) fn begin_next_run(&mut self, start: &Start, input: Payload) -> Entry {
        let (execution, first) = self.leased.execution.continued(start, input, self.engine.runtime.now());
        self.leased.execution = execution;
        self.next = Some(Record::of(&first));
        self.leased.unclaimed = None;
        self.durable = 0;
        first
    }

    /// Records that a message was read for good.
    pub(crate) fn consume(&mut self, id: MessageId) {
        self.consumed.push(id);
    }

    /// Sends a message with the next commit.
    pub(crate) fn emit(&mut self, message: Message) {
        self.outgoing.push(message);
    }

    /// Whether a session has died while it held the execution, and that may happen again.
    pub(crate) fn is_suspected(&self) -> bool {
        self.leased.suspicion.is_some()
    }

    /// Returns the operation that perhaps has another name in the journal.
    pub(crate) fn unclaimed(&self) -> Option<&Unclaimed> {
        self.leased.unclaimed.as_ref()
    }

    /// Sets the operation that perhaps has another name in the journal, for all commits from the
    /// next one on.
    pub(crate) fn set_unclaimed(&mut self, unclaimed: Option<Unclaimed>) {
        self.leased.unclaimed = unclaimed;
    }

    /// Sets whether a closure that was open when the last holder died is open again.
    pub(crate) fn set_open(&mut self, has_open: bool) {
        self.has_open = has_open;
    }

    /// Records, with the next commit, that it is the only execution in memory from now on: a death
    /// is its own.
    pub(crate) fn stand_alone(&mut self, takeover_count: u32) {
        self.set_suspicion(|suspicion| Suspicion { stand: Stand::Alone { takeover_count }, ..suspicion });
    }

    /// Records, with the next commit, that other executions are to be in memory too: a death will
    /// no longer say anything about this one.
    pub(crate) fn stand_beside(&mut self) {
        self.set_suspicion(Suspicion::joined);
    }

    fn set_suspicion(&mut self, change: impl FnOnce(Suspicion) -> Suspicion) {
        let Some(before) = self.leased.suspicion.take() else { return };
        let after = change(before.clone());
        self.has_new_suspicion |= after != before;
        self.leased.suspicion = Some(after);
    }

    /// Whether everything that was decided is durable.
    pub(crate) fn is_durable(&self) -> bool {
        self.durable == self.leased.execution.entry_count()
    }

    /// Whether anything waits to be committed.
    pub(crate) fn has_news(&self) -> bool {
        let is_empty = self.records.is_empty() && self.consumed.is_empty() && self.outgoing.is_empty();
        !is_empty || self.has_new_suspicion
    }

    /// Returns how many entries and messages wait to be committed.
    pub(crate) fn news_count(&self) -> usize {
        self.records.len() + self.outgoing.len()
    }

    /// Whether the next commit is small: a few entries, and no work for others.
    pub(crate) fn has_little_news(&self) -> bool {
        self.outgoing.len() <= 1
    }

    /// Whether a commit is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Sends everything that was decided as one commit.
    pub(crate) fn flush(&mut self, terms: Terms) {
        let commit = self.commit(terms, None);
        self.send(commit);
    }

    /// Sends a user's transaction, which returns the one record of its commit.
    pub(crate) fn transact(&mut self, terms: Terms, transaction: Transaction) {
        debug_assert!(
            (self.is_durable() || self.is_unborn()) && !self.has_news(),
            "a transaction is an effect: all before it is durable, or is written with it"
        );
        let commit = self.commit(terms, Some(transaction));
        self.send(commit);
    }

    /// Folds the entry of a transaction.
    pub(crate) fn transacted(&mut self, entry: &Entry) {
        self.leased.execution.apply(entry);
        if let Some(news) = News::of(&entry.event) {
            news.tell(self.leased.execution.address(), self.leased.execution.run());
        }
        self.durable = entry.seq;
    }

    fn commit(&mut self, terms: Terms, transaction: Option<Transaction>) -> Commit {
        debug_assert!(self.in_flight.is_none(), "one commit at a time");
        let mut summary = terms.summary;
        summary.unclaimed.clone_from(&self.leased.unclaimed);
        if let Some(suspicion) = self.suspicion_after(&summary, (&terms.hold, transaction.is_some())) {
            summary = suspicion.told_in(summary);
        }
        Commit {
            key: self.leased.key,
            lease: self.leased.lease,
            expected: self.leased.version,
            changes: Arc::new(Changes {
                records: std::mem::take(&mut self.records),
                next: self.next.take(),
                state: self.encoded(),
                summary,
                consumed: std::mem::take(&mut self.consumed),
                outgoing: std::mem::take(&mut self.outgoing),
            }),
            born_slots: terms.born_slots,
            hold: terms.hold,
            transaction,
            alone: terms.alone,
        }
    }

    /// Returns the bytes of the state.
    fn encoded(&mut self) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.state);
        match bytes.capacity() {
            0 => codec::encode(&self.leased.execution),
            _ => codec::encode_behind(bytes, &self.leased.execution),
        }
    }

    /// Returns the suspicion that is left after a commit with this summary.
    fn suspicion_after(
        &mut self,
        summary: &Summary,
        (hold, is_transaction): (&Hold, bool),
    ) -> Option<Suspicion> {
        let has_work = std::mem::take(&mut self.has_work) || is_transaction;
        self.has_new_suspicion = false;
        let suspicion = self.leased.suspicion.take()?;
        let proof = Proof {
            is_over: self.leased.execution.is_finished() || self.next.is_some(),
            has_work,
            is_still: matches!(hold, Hold::Park { .. }) && summary.stands_still(),
            has_open: self.has_open,
        };
        if proof.suffices() {
            return None;
        }
        let suspicion = if *hold == Hold::Keep { suspicion } else { suspicion.left() };
        self.leased.suspicion = Some(suspicion.clone());
        Some(suspicion)
    }

    fn send(&mut self, commit: Commit) {
        let answer = match &self.birth {
            Some(birth) => birth.send(commit.clone()),
            None => self.engine.store.commit(commit.clone()),
        };
        let entry_count = self.leased.execution.entry_count();
        let news = (std::mem::take(&mut self.news), self.run_before);
        self.run_before = self.leased.execution.run();
        self.in_flight = Some(InFlight { answer, news, commit, entry_count, pause: None, failed_count: 0 });
    }

    /// Polls the commit under way. Pending also if there is none.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Flushed> {
        let Some(flight) = &mut self.in_flight else { return Poll::Pending };
        let answer = std::task::ready!(flight.poll(&self.engine, self.leased.execution.address(), cx));
        Poll::Ready(self.land(answer))
    }

    /// Sends everything that was decided as one commit, and waits for its outcome.
    pub(crate) async fn flushed(&mut self, terms: Terms) -> Flushed {
        self.flush(terms);
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Returns the lease with everything that was decided, and reports how that ended.
    pub(crate) async fn leave(mut self, summary: Summary, hold: Hold) -> End {
        self.flushed(Terms { summary, hold, born_slots: 0, alone: false }).await.end()
    }

    /// Takes the executions that may have been leased to us without our knowing.
    pub(crate) fn take_stranded(&mut self) -> Vec<Address> {
        std::mem::take(&mut self.stranded)
    }

    /// Handles the last answer to the commit under way.
    fn land(&mut self, answer: Result<CommitOutcome, Error>) -> Flushed {
        let flight = self.in_flight.take().expect("its answer just came");
        if flight.failed_count > 0 {
            // An earlier try may have happened, whatever the last answer was.
            self.stranded.extend(started(&flight.commit.changes.outgoing));
        }
        match answer {
            Ok(CommitOutcome::Committed(mut committed)) => {
                if flight.failed_count > 0 && !planted(Bug::RepeatedCommitBegins) {
                    // The engine looks for them. This answer may be outdated: such an execution may
                    // have been found in another way, and have ended since.
                    committed.born.clear();
                }
                let (news, run) = flight.news;
                news.into_iter().for_each(|one| one.tell(self.leased.execution.address(), run));
                self.leased.version = self.leased.version.next();
                self.durable = self.durable.max(flight.entry_count);
                let suspicion = flight.commit.changes.summary.suspicion.as_ref();
                let is_alone = suspicion.is_some_and(Suspicion::is_alone);
                // The store's part of it goes first, so that nobody else has the changes.
                drop(flight.answer);
                if let Some(Changes { mut state, .. }) = Arc::into_inner(flight.commit.changes) {
                    state.clear();
                    self.state = state;
                }
                Flushed::Committed { committed, is_alone }
            }
            Ok(CommitOutcome::Fenced(fence)) => {
                Flushed::Lost(format!("execution {} was fenced: {fence}", self.leased.execution.address()))
            }
            Err(Error::Refused(refusal)) => Flushed::Refused(refusal),
            Err(Error::Closed) => Flushed::Lost(Error::Closed.to_string()),
            Err(error) => Flushed::Failed(error.to_string()),
        }
    }
}

/// A ledger that is dropped while its commit is under way, as by a panic, leaves the commit to the
/// engine: until it is answered, nobody may begin anew under the same lease.
impl Drop for Ledger {
    fn drop(&mut self) {
        // The first commit of an execution that never came goes nowhere.
        if let Some(flight) = self.in_flight.take().filter(|_| !self.is_unborn()) {
            self.engine.left_commits.put((self.leased.key, self.leased.lease.epoch), flight);
        }
    }
}

impl InFlight {
    /// Polls for the answer. While nobody knows what became of the commit, it is sent again.
    fn poll(
        &mut self,
        engine: &Inner,
        address: &Address,
        cx: &mut Context<'_>,
    ) -> Poll<Result<CommitOutcome, Error>> {
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(cx));
                self.pause = None;
                self.answer = engine.store.commit(self.commit.clone());
            }
            match std::task::ready!(self.answer.as_mut().poll(cx)) {
                Err(error) if error.is_transient() => {
                    // The log has one warning for all executions that wait for the same store.
                    if self.failed_count == 0 && engine.failures.is_first_unsent() {
                        tracing::warn!(%address, %error, "a commit did not go through; it is sent again");
                    } else {
                        tracing::debug!(%address, %error, "a commit did not go through; it is sent again");
                    }
                    self.pause = Some(engine.runtime.sleep(self.next_pause()));
                }
                answer => {
                    engine.failures.sent();
                    return Poll::Ready(answer);
                }
            }
        }
    }

    fn next_pause(&mut self) -> Duration {
        const PAUSE_FIRST: Duration = Duration::from_millis(20);
        const PAUSE_MAX: Duration = Duration::from_secs(2);
        let pause = PAUSE_FIRST.saturating_mul(1 << self.failed_count.min(10)).min(PAUSE_MAX);
        self.failed_count += 1;
        pause
    }

    /// Waits for the answer to a commit whose driver is gone. Returns the addresses of the
    /// executions that it may have leased to us.
    pub(crate) async fn answered(mut self, engine: &Inner, address: &Address) -> Vec<Address> {
        // Whatever the answer is: the store's records say what to go on with. An engine that shuts
        // down goes on with nothing.
        poll_fn(|cx| match self.pause.is_some() && engine.is_closing() {
            true => Poll::Ready(()),
            false => self.poll(engine, address, cx).map(drop),
        })
        .await;
        started(&self.commit.changes.outgoing)
    }
}

/// Returns the addresses of the executions that these messages start.
pub(crate) fn started(messages: &[Message]) -> Vec<Address> {
    let starts = messages.iter().filter(|message| matches!(message.body, Body::Start(_)));
    starts.map(|message| message.to.clone()).collect()
}
