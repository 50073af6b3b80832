//! The trait [`Store`], and the arguments and results of its writing methods.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use abide_core::{
    Address, Entry, Epoch, Execution, Fence, Lease, Message, MessageId, Refusal, SessionId, Summary,
    Suspicion, Timestamp, Unclaimed, Version,
};

use smallvec::SmallVec;

use crate::{
    Answer, Beat, Error, Heartbeat, Import, Imported, InboxPage, Prune, Registered, Result, Retire, Stretch,
    TakeIn, TakenIn, View, Worker,
};

/// The source of a store's time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;

    /// Hears that the clock of the database server is ahead of this one by so many microseconds,
    /// or behind it if the number is negative. A clock of production goes by it from then on, so
    /// that all machines on one database agree. A clock of a test need not.
    fn follow(&self, ahead_us: i64) {
        let _ = ahead_us;
    }
}

/// A database that keeps executions. These methods change it; its [`View`] reads it. Each method is
/// one transaction: it happens whole or leaves no trace.
///
/// There are two kinds of writes. Anyone may [`submit`](Store::submit) messages; they are
/// idempotent by message id and never wait for a running execution. Only the holder of a lease may
/// [`commit`](Store::commit), fenced by epoch and version.
///
/// [`abide_core::intake::admit`] decides what a message does to its target, and
/// [`abide_core::parking::park`] decides how a park leaves an execution. A store passes them the
/// facts and carries out their decision.
///
/// # Wakes
///
/// An execution is ready when it has a wake and nobody holds its lease. There is no other flag.
///
/// - A submit puts a wake beside each message that its target [listens](abide_core::Listens) to,
///   even when somebody holds the target. With many writers, nobody knows what the target listens
///   to when the message is committed: then each message has a wake, and a claim passes over those
///   that do not count. A start that is not delayed, a due timer and a retry leave a wake too. So
///   does the end of a session, for each execution that it held.
/// - A claim removes the wakes of the executions that it leases. Journal and inbox are read under
///   the lease, so the cause of each removed wake is in them, or comes later with a wake of its
///   own.
/// - A commit removes only the wakes of messages that its holder has seen, each by its id: the
///   messages that it [consumes](Changes::consumed) and, when it parks, the messages that it has
///   [seen](Hold::Park). It never removes "all wakes": a message that came while the holder decided
///   to park still has its wake. The holder reads every page of its inbox before it parks. If it
///   names too few messages, somebody looks at the execution once too often.
/// - A commit that yields leaves a wake of its own.
///
/// A store may keep wakes as rows. A store with one writer may keep them in the row of the
/// execution, which is then either ready or not.
pub trait Store: View {
    /// Puts messages into inboxes, all or none. A start creates its execution. If its id exists, an
    /// identical start attaches and any other start is refused. A message whose id was seen before
    /// changes nothing. A message to an unknown or finished execution is refused, except a
    /// [retry](abide_core::Body::Retry): it opens the next run of an execution that failed or was
    /// cancelled, and of its unread messages only the signals go along. The store sets
    /// [`Message::arrived_at`], whatever value the sender wrote there.
    ///
    /// A start may bring its [first stretch](Stretch). If the execution is created and leased to
    /// the session of the offer, the stretch happens in the same transaction.
    fn submit(&self, submit: Submit) -> Answer<Submissions>;

    /// Leases ready executions to the session: higher priority first, then those that have been
    /// ready for longer. Executions with due timers are ready. Repeating the last request returns
    /// those of its leases that are still held.
    ///
    /// It also leases executions that only need a caretaker and whose `care_at` has come, in the
    /// session's namespace and of any route: see [`abide_core::care::look`]. Such a lease may be
    /// taken from a live session that leaves a terminate unread.
    ///
    /// A claim that has taken [`claim_bytes_max`](crate::PageBounds::claim_bytes_max) of journals
    /// and inboxes takes no more: the rest is left for the next claim. The first execution is
    /// always taken, however large it is.
    fn claim(&self, claim: Claim) -> Answer<Claimed>;

    /// Appends entries, replaces the summary, consumes inbox messages and emits messages, all or
    /// nothing, if the lease is the newest, its session lives and nobody else has committed since.
    /// Repeating a commit whose answer was lost returns [`CommitOutcome::Committed`] again.
    ///
    /// A commit with [`Changes::next`] ends the run and opens the next one under the same lease.
    /// The journal begins anew, unread messages stay unread, and the ids of messages that were read
    /// stay known. Epoch and version go on: nobody who wrote an earlier run can write a later one.
    ///
    /// An emit never fails its emitter. An emit to an unknown or finished target is dropped and
    /// counted. A target that cannot be read takes it
    /// [unjudged](abide_core::intake::Found::pass_over). A refused child start comes back to the
    /// emitter's inbox as a [`abide_core::Body::ChildDone`] with a failure. As with a submit, the
    /// store sets the arrival time of an emitted message.
    fn commit(&self, commit: Commit) -> Answer<CommitOutcome>;

    /// Takes an execution from a holder that cannot read its records. A damaged execution is set
    /// aside: its status is [damaged](abide_core::Status::Damaged), it is never ready, and only a
    /// caretaker can lease it. The caretaker does without the unreadable part or fails on it as
    /// well. An execution that a newer program wrote is ready again after [`NEWER_PAUSE`]. Under
    /// any lease but the newest, nothing changes, so repeating the call is harmless. The call
    /// carries no state, because the state may be the unreadable part.
    fn set_aside(&self, aside: Aside) -> Answer<()>;

    /// Creates a worker's session, which lives until its time to live passes without a heartbeat.
    fn register(&self, worker: Worker) -> Answer<Registered>;

    /// Extends a session's life, and with it all its leases, and compares the leases that the
    /// session believes it holds with those that it holds. Leases granted since the previous
    /// heartbeat are left out: their answers may still be on their way. The comparison costs the
    /// same however many leases there are; [`leases`](View::leases) shows which ones differ.
    fn heartbeat(&self, beat: Beat) -> Answer<Heartbeat>;

    /// Ends a session. Its executions are ready for others at once. Ending an ended session changes
    /// nothing.
    fn retire(&self, retire: Retire) -> Answer<()>;

    /// Deletes executions that finished long ago, with everything that belongs to them, including
    /// earlier runs. Returns their number.
    fn prune(&self, prune: Prune) -> Answer<u64>;

    /// Puts a whole execution into the store, as it was [exported](crate::export) from another one:
    /// all its runs, its unread messages, and the ids of the signals that it has read. All of it is
    /// checked: its state must follow from its entries. Nobody holds it: an execution that was
    /// running is ready, one that waited waits. Repeating an import changes nothing, even when the
    /// execution has gone on since. An id that belongs to another execution is refused. Children
    /// find their parent if it was imported before them.
    fn import(&self, import: Import) -> Answer<Imported>;

    /// Takes rows out of the intake table, oldest first, and does what
    /// [`Enqueued::message`](abide_core::Enqueued::message) says of each, as a
    /// [`submit`](Store::submit) of its own would. Taking a row and its effect are one: no row is
    /// taken twice, and none is lost. A row that is refused leaves the table as well, and the feed
    /// [says why](crate::FeedItem::refused). Rows that name the same execution are taken in the
    /// order in which they were put there, also by several callers.
    fn take_in(&self, take_in: TakeIn) -> Answer<TakenIn>;

    /// Resolves when something may have happened that concerns the session. A hint: it may come
    /// late, twice or not at all, and [`claim`](Store::claim), [`read`](View::read) and
    /// [`inbox`](View::inbox) return everything that it reports. Dropping the answer loses no
    /// notice.
    fn wait(&self, session: SessionId) -> Answer<Vec<Notice>>;

    /// Says that nobody has had work for a while. The store may drop what it keeps only for speed.
    /// It calls the hook on the thread that writes, if it has one of its own, when that thread is
    /// free. The caller does not wait for it.
    fn idle(&self, hook: &IdleHook) {
        let _ = hook;
    }

    /// Closes the store. Earlier requests are still carried out and answered; later requests return
    /// [`Error::Closed`], and pending waits end. Sessions that were not retired are dead. It may
    /// block until all that is done. Closing a closed store changes nothing.
    fn close(&self);
}

/// The application's code for an idle process, for example to return free memory to the system. An
/// allocator may keep memory for each thread, so it is called on each.
#[derive(Clone)]
pub struct IdleHook(Arc<dyn Fn() + Send + Sync>);

impl IdleHook {
    /// Creates the hook that calls `hook`.
    pub fn new(hook: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    /// Calls it. A panic inside is reported by the panic hook, and harms nobody else.
    pub fn call(&self) {
        // Whatever the closure has left behind is the application's own.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.0)()));
    }
}

impl fmt::Debug for IdleHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdleHook")
    }
}

/// A store's own number for an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutionKey(pub u64);

/// One journal entry in its stored form.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// The number of the entry.
    pub seq: u64,
    /// The entry, encoded. A store never looks inside.
    pub bytes: Vec<u8>,
}

impl Record {
    /// Creates the record of `entry`.
    pub fn of(entry: &Entry) -> Self {
        Self { seq: entry.seq, bytes: entry.encode() }
    }

    /// Decodes the entry in this record.
    pub fn entry(&self) -> Result<Entry> {
        let entry = Entry::decode(&self.bytes).map_err(|error| {
            let what = format!("journal entry {}: {error}", self.seq);
            if error.is_newer() { Error::Newer { what } } else { Error::Corrupt { what } }
        })?;
        if entry.seq != self.seq {
            let what = format!("journal entry {} says that it is number {}", self.seq, entry.seq);
            return Err(Error::Corrupt { what });
        }
        Ok(entry)
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Ok(entry) => entry.fmt(f),
            Err(error) => write!(f, "Record({}, {error})", self.seq),
        }
    }
}

/// Messages to be put into inboxes, all or none.
#[derive(Clone, Debug)]
pub struct Submit {
    /// The messages, in order.
    pub messages: Vec<Message>,
    /// The session that offers to run the executions started here, if it can. Such an execution is
    /// born leased when nothing of its route waits before it.
    pub born_to: Option<SessionId>,
    /// Whether the caller has nothing else to do: the store may then work on the caller's thread.
    pub alone: bool,
    /// The first stretch of the execution that the only message starts.
    pub stretch: Option<Box<Stretch>>,
}

/// The outcome of one submitted message.
#[derive(Clone, Debug)]
pub enum Submitted {
    /// An execution was created, and leased if the offer was accepted.
    Started(ExecutionKey, Option<Box<Leased>>),
    /// An execution was created and leased, and its [first stretch](Stretch) happened with it. If
    /// the first commit was refused, only the start happened.
    Begun(ExecutionKey, std::result::Result<Box<Committed>, Refusal>),
    /// The execution exists and began the same way.
    Attached(ExecutionKey),
    /// The message is in the inbox.
    Delivered(ExecutionKey),
    /// The message had arrived before; it may be read or unread.
    Duplicate(ExecutionKey),
}

/// The outcomes of the messages of a submit, in their order. One of them takes no memory of its
/// own: nearly every submit has one message.
pub type Submissions = SmallVec<[Submitted; 1]>;

/// A request for executions to run.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The session that asks.
    pub session: SessionId,
    /// A number that grows by one with each new request of the session, from 1.
    pub request: u64,
    /// The most executions to lease.
    pub slots: usize,
    /// The most additional executions to lease for care, of any route, even if other sessions could
    /// run them.
    pub care_slots: usize,
    /// Whether to also return which of the session's executions have mail.
    pub with_mail: bool,
    /// Whether to also look for dead sessions and take their executions from them.
    pub sweep: bool,
}

/// The answer to a claim.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// Executions that the session may run from now on.
    pub leased: Vec<Leased>,
    /// Executions that the session is to look after without their code; see [`abide_core::care`].
    /// Another session, or this one, may have held them until now.
    pub care: Vec<Leased>,
    /// If asked for: the newest unread message of each execution that the session already held. A
    /// holder that does not know this message reads the [inbox](View::inbox).
    pub mail: Vec<(ExecutionKey, MessageId)>,
    /// Whether more executions are ready that the session could run.
    pub more: bool,
    /// When the next timer is due among the executions that the session could run.
    pub next_wake_at: Option<Timestamp>,
    /// When a caretaker is next to look at an execution of the session's namespace.
    pub next_care_at: Option<Timestamp>,
    /// Whether there are rows in the intake table, if the claim sweeps. A notice of them may have
    /// been lost.
    pub intake: bool,
}

/// An execution with everything needed to run it.
#[derive(Clone, Debug)]
pub struct Leased {
    /// The store's number for it.
    pub key: ExecutionKey,
    /// The right to write it.
    pub lease: Lease,
    /// The number of its commits.
    pub version: Version,
    /// How many sessions in a row died while holding it, without a commit that
    /// [ends](Commit::ends_suspicion) the suspicion.
    pub takeover_count: u32,
    /// The suspicion that its last holder [recorded](Summary::suspicion).
    pub suspicion: Option<Suspicion>,
    /// The hint at a renamed operation that its last holder [recorded](Summary::unclaimed).
    pub unclaimed: Option<Unclaimed>,
    /// Whether none of its code was ever called: this is its [first](Lease::is_first) lease, not
    /// counting those of caretakers.
    pub is_first: bool,
    /// Its state.
    pub execution: Execution,
    /// The beginning of its journal.
    pub opening: Opening,
    /// The first page of its unread messages.
    pub inbox: InboxPage,
}

/// The beginning of the journal of a leased execution.
#[derive(Clone, Debug)]
pub enum Opening {
    /// The only entry, of an execution that was just born.
    Born(Entry),
    /// The first page; further ones are [read](View::read) from the store.
    Page(Vec<Record>),
}

impl Default for Opening {
    fn default() -> Self {
        Self::Page(Vec::new())
    }
}

impl Opening {
    /// Returns the first page.
    pub fn into_records(self) -> Vec<Record> {
        match self {
            Self::Born(entry) => vec![Record::of(&entry)],
            Self::Page(records) => records,
        }
    }

    /// Returns the first entry of the run.
    pub fn first_entry(&self) -> Result<Entry> {
        match self {
            Self::Born(entry) => Ok(entry.clone()),
            Self::Page(records) => match records.first() {
                Some(record) => record.entry(),
                None => Err(Error::Corrupt { what: "its journal is empty".to_owned() }),
            },
        }
    }
}

/// One commit of one execution. A clone of it is the same commit: sending both makes it happen
/// once.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The execution.
    pub key: ExecutionKey,
    /// The right to write it.
    pub lease: Lease,
    /// The version that the commit was prepared at. It also names the commit: under one epoch there
    /// is one commit after each version.
    pub expected: Version,
    /// The changes to write.
    pub changes: Arc<Changes>,
    /// How many of the emitted starts the session would like to run itself.
    pub born_slots: usize,
    /// The fate of the lease. A terminal status always releases it.
    pub hold: Hold,
    /// The user's transaction step, which returns the only record of this commit.
    pub transaction: Option<Transaction>,
    /// Whether nothing else is runnable: the store may then work on the caller's thread.
    pub alone: bool,
}

impl Commit {
    /// Whether this commit resets the count of the execution's holders that died.
    pub fn ends_suspicion(&self) -> bool {
        self.changes.summary.suspicion.is_none()
    }
}

/// A lease that its holder releases because it cannot read the execution.
#[derive(Clone, Debug)]
pub struct Aside {
    /// The execution.
    pub key: ExecutionKey,
    /// The right to write it.
    pub lease: Lease,
    /// The reason.
    pub unreadable: Unreadable,
}

/// The reason why a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The record differs from the one that was written. Nobody can read it, so the execution is
    /// set aside.
    Damaged(String),
    /// A newer version of abide wrote it. It is put off for [`NEWER_PAUSE`], for programs that can
    /// read it.
    Newer(String),
}

impl Unreadable {
    /// Converts an error from reading an execution. Returns an error that says nothing about the
    /// execution unchanged.
    pub fn of(error: Error) -> std::result::Result<Self, Error> {
        match error {
            Error::Corrupt { what } => Ok(Self::Damaged(what)),
            Error::Newer { what } => Ok(Self::Newer(what)),
            other => Err(other),
        }
    }
}

/// How long a program leaves an execution alone that only a newer program can read.
pub const NEWER_PAUSE: Duration = Duration::from_secs(5);

/// The records of a commit. Most have one, or two: the last step, and the end.
pub type Records = SmallVec<[Record; 2]>;

/// The changes of a commit. They are shared, because the sender may have to send them again.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The records to append.
    pub records: Records,
    /// The first entry of the next run, which begins when `records` have ended this one.
    pub next: Option<Record>,
    /// The encoded state after all of them; the state of the next run, if one begins.
    pub state: Vec<u8>,
    /// The summary after all of them.
    pub summary: Summary,
    /// Inbox messages that were read. If one of them is not unread, the commit fails with
    /// [`Error::Corrupt`] and nothing is written: its sender relied on a copy that came too late,
    /// and must begin again with the recorded state.
    pub consumed: Vec<MessageId>,
    /// Messages for other executions.
    pub outgoing: Vec<Message>,
}

/// The fate of a lease after a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The session goes on.
    Keep,
    /// Nobody needs the execution until `wake_at` or a message. [`abide_core::parking`] describes
    /// the effect of messages that the holder has not seen.
    Park {
        /// The ids of the messages that the holder has seen and leaves unread; see
        /// [`abide_core::parking::Seen`].
        seen: Vec<MessageId>,
    },
    /// Anybody may go on at once.
    Yield,
}

/// The outcome of a commit.
#[derive(Debug)]
pub enum CommitOutcome {
    /// The commit is durable.
    Committed(Committed),
    /// The writer has no right to write. Nothing was changed.
    Fenced(Fence),
}

/// The results of a commit.
#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// Emitted starts that were leased to the session in the same transaction.
    pub born: Vec<Box<Leased>>,
    /// The number of outgoing messages whose target is unknown or finished.
    pub dropped_count: usize,
    /// The record that the transaction step returned.
    pub transacted: Option<Record>,
}

/// A user's closure that runs inside the store's own transaction. It receives the store's
/// connection (`StepConnection` of `abide_sqlite` or `abide_postgres`) as [`Any`].
///
/// The store runs it again when the transaction was rolled back for a reason other than the closure
/// itself: a neighbour in the same transaction failed, the database was busy or full, the
/// connection was cut. Its writes happen once.
#[derive(Clone)]
pub struct Transaction(pub Run);

/// The closure of a [`Transaction`].
pub type Run = Arc<dyn Fn(&dyn Any) -> Transacted + Send + Sync>;

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transaction(..)")
    }
}

/// The result of a transaction step.
#[derive(Debug)]
pub struct Transacted {
    /// Whether the user's writes are kept.
    pub keep: bool,
    /// The entry to append in either case.
    pub record: Record,
    /// The encoded state after it.
    pub state: Vec<u8>,
}

/// An event that may concern a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A message arrived for an execution that the session holds.
    Message {
        /// The execution.
        key: ExecutionKey,
        /// The lease under which the execution was held. A holder under another lease looks into
        /// the [inbox](View::inbox): this notice may be so late that the message was read for good.
        epoch: Epoch,
        /// The message.
        message: Message,
        /// The newest message that was unread when this one arrived, if there was one. A holder
        /// that does not know it has missed something, and reads the [inbox](View::inbox): this
        /// notice may have overtaken another one, or be the only one of several that came.
        previous: Option<MessageId>,
    },
    /// An execution may be ready to be claimed or to be looked after.
    Ready,
    /// Something changed that this store cannot describe in detail.
    Changed,
    /// There are rows in the intake table, or were a moment ago.
    Intake,
}

impl Submitted {
    /// Returns the execution that the message went to.
    pub fn key(&self) -> ExecutionKey {
        match self {
            Self::Started(key, _)
            | Self::Begun(key, _)
            | Self::Attached(key)
            | Self::Delivered(key)
            | Self::Duplicate(key) => *key,
        }
    }
}

impl Leased {
    /// Returns the address of the execution.
    pub fn address(&self) -> &Address {
        self.execution.address()
    }
}
