//! The trait [`Store`] and what its writing methods take and give.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use abide_core::{
    Address, Entry, Epoch, Execution, Fence, Lease, Message, MessageId, SessionId, Summary, Suspicion,
    Timestamp, Version, codec,
};

use crate::{
    Beat, Error, Heartbeat, Import, Imported, InboxPage, Prune, Registered, Result, Retire, View, Worker,
};

/// The answer of a store, some time later. Dropping it does not undo the operation.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Where a store reads the time.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// A database that keeps executions: what changes it. What reads it is its [`View`]. Each method is one transaction: it happens whole or leaves no
/// trace.
///
/// Two kinds of writes. Anyone may [`submit`](Store::submit) messages; they are idempotent by message id and never
/// wait for a running execution. Only the holder of a lease may [`commit`](Store::commit), fenced by epoch and version.
///
/// What a message does to what it finds is decided by [`abide_core::intake::admit`], what a park leaves by [`abide_core::parking::park`]; a store
/// says what it knows and does what it is told.
///
/// # Wakes
///
/// An execution is ready when there is a wake of it and nobody holds its lease. There is no other flag.
///
/// - A submit puts a wake beside each message that its target [listens](abide_core::Listens) to, also when somebody holds the target. So do a
///   start that is not delayed, a timer that is due, a retry, and the end of a session for all that it held.
/// - A claim removes the wakes of what it leases. Journal and inbox are read under the lease, so that what these wakes were about is in them or
///   comes later with a wake of its own.
/// - A commit removes the wakes of those messages only that its holder has seen, each by its name: of what it
///   [consumes](Changes::consumed) and, when it parks, of what it has [seen](Hold::Park). Never "all that are there": a message that came while the
///   holder decided to park has its wake still. The holder reads every page of its inbox before it parks. If it names too little, it is looked at
///   once too often.
/// - A commit that yields leaves a wake of its own.
///
/// A store may keep wakes as rows or, if it has one writer, in the row of the execution, which then is ready or not.
pub trait Store: View {
    /// Puts messages into inboxes, all or none. A start creates its execution; to an id that exists, the same start
    /// attaches and another one is refused. A message whose id was seen before changes nothing. A message to an
    /// unknown or finished execution is refused, but for a [retry](abide_core::Body::Retry): it opens the next run of what failed or was
    /// cancelled, and no unread message goes with it but signals. The store sets [`Message::arrived_at`], whatever the sender wrote there.
    fn submit(&self, submit: Submit) -> Answer<Vec<Submitted>>;

    /// Leases executions that are ready to the session: higher priority first, then those that have been ready for
    /// longer. Due timers are ready. Repeating the last request returns the leases of it that are still held.
    ///
    /// It also leases what only needs a caretaker and whose `care_at` has come, in the session's namespace, whatever its route is: see
    /// [`abide_core::care::look`]. Such a lease may be taken from a live session that leaves a terminate unread.
    ///
    /// A claim that has taken [`Bounds::claim_bytes_max`](crate::Bounds::claim_bytes_max) of journals and inboxes takes no more: what is left is
    /// for the next one. The first is always taken, however large it is.
    fn claim(&self, claim: Claim) -> Answer<Claimed>;

    /// Appends entries, replaces the summary, consumes inbox messages and emits messages, all or nothing, if the lease
    /// is the newest, its session lives and nobody else committed since. Repeating a commit whose answer was lost
    /// answers [`CommitOutcome::Committed`] again.
    ///
    /// A commit with [`Changes::next`] ends the run and opens the next one under the same lease. The journal begins anew, what is unread
    /// stays unread, the ids of what was read stay known. Epoch and version go on: nobody who wrote an earlier run can write a later one.
    ///
    /// An emit never fails its emitter: to an unknown or finished target it is dropped and counted, what cannot be read takes it
    /// [unjudged](abide_core::intake::Found::pass_over), and a refused child
    /// start comes back to the emitter's inbox as a [`abide_core::Body::ChildDone`] with a failure. As with a submit, the store says when an
    /// emitted message arrived.
    fn commit(&self, commit: Commit) -> Answer<CommitOutcome>;

    /// Takes an execution from a holder that cannot read what is recorded of it. What is damaged is set aside: its status is
    /// [damaged](abide_core::Status::Damaged), it is never ready, and only a caretaker is given it, who does without what cannot be read or meets
    /// the same. What a newer program wrote is ready again after [`NEWER_PAUSE`]. Under another lease than the newest nothing is changed, so
    /// that repeating it is harmless. It needs no state, which may be what cannot be read.
    fn set_aside(&self, aside: Aside) -> Answer<()>;

    /// Makes a worker's session, which lives until its time to live passes without a heartbeat.
    fn register(&self, worker: Worker) -> Answer<Registered>;

    /// Lengthens a session's life, and with it all its leases, and compares what the session believes it holds with what it holds. Leases that were
    /// given since the heartbeat before this one are left out: their answers may still be on their way. The comparison costs the same however many
    /// leases there are; which ones differ is found by [`leases`](View::leases).
    fn heartbeat(&self, beat: Beat) -> Answer<Heartbeat>;

    /// Ends a session; what it held is ready for others at once. Ending an ended one changes nothing.
    fn retire(&self, retire: Retire) -> Answer<()>;

    /// Deletes executions that finished long ago, with everything that belongs to them, earlier runs included; says how many.
    fn prune(&self, prune: Prune) -> Answer<u64>;

    /// Puts a whole execution into the store, as it was [exported](crate::export) from another one: all its runs, its unread messages, and the ids of
    /// the signals that it has read. All of it is checked: its state is what its entries add up to. Nobody holds it: what was running is ready, what
    /// waited waits. An import that was done before changes nothing, also when the execution has gone on since; an id that something else has is
    /// refused. A parent is found by its children if it was imported before them.
    fn import(&self, import: Import) -> Answer<Imported>;

    /// Resolves when something may have happened that concerns the session. A hint: it may come late, twice or not
    /// at all, and everything that it tells can be found out by [`claim`](Store::claim), [`read`](View::read) and [`inbox`](View::inbox).
    /// Dropping the answer loses no notice.
    fn wait(&self, session: SessionId) -> Answer<Vec<Notice>>;

    /// Closes the store: what was asked for before is still done and answered, what comes later is [`Error::Closed`], and whoever waits is told so.
    /// Sessions that were not retired are dead. It may block until that is done. Closing a closed store changes nothing.
    fn close(&self);
}

/// A store's own number for an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutionKey(pub u64);

/// One journal entry as a store keeps it.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// The number of the entry.
    pub seq: u64,
    /// The entry, encoded. A store never looks inside.
    pub bytes: Vec<u8>,
}

impl Record {
    /// The record of `entry`.
    pub fn of(entry: &Entry) -> Self {
        Self { seq: entry.seq, bytes: codec::encode(entry) }
    }

    /// The entry in this record.
    pub fn entry(&self) -> Result<Entry> {
        let entry: Entry = codec::decode(&self.bytes).map_err(|error| {
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
    /// The session that offers to run what is started here, if it can; such an execution is born leased when nothing of
    /// its route waits before it.
    pub born_to: Option<SessionId>,
    /// The caller has nothing else to do: the store may work on the caller's thread.
    pub alone: bool,
}

/// What became of one submitted message.
#[derive(Clone, Debug)]
pub enum Submitted {
    /// An execution was created, and leased if the offer was taken.
    Started(ExecutionKey, Option<Box<Leased>>),
    /// The execution exists and began the same way.
    Attached(ExecutionKey),
    /// The message is in the inbox.
    Delivered(ExecutionKey),
    /// The message was there before, read or unread.
    Duplicate(ExecutionKey),
}

/// A request for executions to run.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Who asks.
    pub session: SessionId,
    /// A number that grows by one with each new request of the session, from 1.
    pub request: u64,
    /// At most so many.
    pub slots: usize,
    /// At most so many more to look after, whatever they are and whoever could run them.
    pub care_slots: usize,
    /// Also tell which of what the session holds has mail.
    pub with_mail: bool,
    /// Also look for sessions that died, and take what they held from them.
    pub sweep: bool,
}

/// What a claim gives.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// What the session may run from now on.
    pub leased: Vec<Leased>,
    /// What the session is to look after without its code; see [`abide_core::care`]. Another session, or this one, may have held it until now.
    pub care: Vec<Leased>,
    /// If asked for: of what it held before and has unread messages, the newest of these. Whoever does not know that one reads the
    /// [inbox](View::inbox).
    pub mail: Vec<(ExecutionKey, MessageId)>,
    /// Whether more is ready that the session could run.
    pub more: bool,
    /// When the next timer of something that the session could run is due.
    pub next_wake_at: Option<Timestamp>,
    /// When something of the session's namespace is next to be looked at by a caretaker.
    pub next_care_at: Option<Timestamp>,
}

/// An execution with everything that is needed to run it.
#[derive(Clone, Debug)]
pub struct Leased {
    /// The store's number for it.
    pub key: ExecutionKey,
    /// The right to write it.
    pub lease: Lease,
    /// How many commits it has had.
    pub version: Version,
    /// How often in a row a session died while holding it, without a commit that [ends](Commit::ends_suspicion) the suspicion.
    pub takeover_count: u32,
    /// What its last holder [wrote](Summary::suspicion) about that.
    pub suspicion: Option<Suspicion>,
    /// Whether it is the [first](Lease::is_first) lease but for those of caretakers, so that none of its code was ever called.
    pub is_first: bool,
    /// Its state.
    pub execution: Execution,
    /// The first page of its journal.
    pub journal: Vec<Record>,
    /// The first entry of it, if the store has that at hand, as it does for what was just born.
    pub first: Option<Box<Entry>>,
    /// The first page of its unread messages.
    pub inbox: InboxPage,
}

/// One commit of one execution. A clone of it is the same commit once more: sending both makes it happen once.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Which execution.
    pub key: ExecutionKey,
    /// The right to write it.
    pub lease: Lease,
    /// The version that the commit was prepared at. It also names the commit: under one epoch there is one commit
    /// after each version.
    pub expected: Version,
    /// What is written.
    pub changes: Arc<Changes>,
    /// How many of the emitted starts the session would like to run itself.
    pub born_slots: usize,
    /// What becomes of the lease. A terminal status always releases it.
    pub hold: Hold,
    /// A transaction step of the user's, which gives the only record of this commit.
    pub transaction: Option<Transaction>,
    /// Nothing else is runnable: the store may work on the caller's thread.
    pub alone: bool,
}

impl Commit {
    /// Whether the deaths of the execution's holders are counted from zero after it.
    pub fn ends_suspicion(&self) -> bool {
        self.changes.summary.suspicion.is_none()
    }
}

/// A lease that its holder gives up because it cannot read what it holds.
#[derive(Clone, Debug)]
pub struct Aside {
    /// Which execution.
    pub key: ExecutionKey,
    /// The right to write it.
    pub lease: Lease,
    /// Why.
    pub unreadable: Unreadable,
}

/// Why something that is recorded cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is not what was written. Nobody can read it, so it is set aside.
    Damaged(String),
    /// A newer version of abide wrote it. Those who can read it are to have it, so it is put off for [`NEWER_PAUSE`].
    Newer(String),
}

impl Unreadable {
    /// What an error means for the execution that was to be read; gives it back when it says nothing about that.
    pub fn of(error: Error) -> std::result::Result<Self, Error> {
        match error {
            Error::Corrupt { what } => Ok(Self::Damaged(what)),
            Error::Newer { what } => Ok(Self::Newer(what)),
            other => Err(other),
        }
    }
}

/// How long a program leaves alone what only a newer one can read.
pub const NEWER_PAUSE: Duration = Duration::from_secs(5);

/// What a commit writes. Shared, because its sender may have to send it again.
#[derive(Clone, Debug)]
pub struct Changes {
    /// To be appended.
    pub records: Vec<Record>,
    /// The first entry of the next run, which begins when `records` have ended this one.
    pub next: Option<Record>,
    /// The state after all of them, encoded; that of the next run, if one begins.
    pub state: Vec<u8>,
    /// The summary after all of them.
    pub summary: Summary,
    /// Inbox messages that were read. One that is not unread is an [`Error::Corrupt`], and nothing is written: whoever sends it believes in a
    /// copy that came too late, and has to begin with what is recorded.
    pub consumed: Vec<MessageId>,
    /// Messages for others.
    pub emits: Vec<Message>,
}

/// What becomes of a lease after a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The session goes on.
    Keep,
    /// Nobody needs it until `wake_at` or a message. See [`abide_core::parking`] for what becomes of messages that the holder has not seen.
    Park {
        /// The messages that the holder has seen and leaves unread, each by its id; see [`abide_core::parking::Seen`].
        seen: Vec<MessageId>,
    },
    /// Anybody may go on at once.
    Yield,
}

/// What became of a commit.
#[derive(Debug)]
pub enum CommitOutcome {
    /// It is durable.
    Committed(Committed),
    /// The writer has no right to write. Nothing was changed.
    Fenced(Fence),
}

/// What a commit gave.
#[derive(Debug, Default)]
pub struct Committed {
    /// Emitted starts that were leased to the session in the same transaction.
    pub born: Vec<Leased>,
    /// Emits whose target is unknown or finished.
    pub dropped_count: usize,
    /// The record that the transaction step gave.
    pub transacted: Option<Record>,
}

/// A closure of the user's that runs inside the store's own transaction. It gets the store's connection
/// (`abide_sqlite::StepConnection` for SQLite) as [`Any`].
///
/// The store runs it again when the transaction was rolled back for another reason than the closure itself: a neighbour in the same
/// transaction failed, the database was busy or full, the connection was cut. Its writes happen once.
#[derive(Clone)]
pub struct Transaction(pub Run);

/// The closure of a [`Transaction`].
pub type Run = Arc<dyn Fn(&dyn Any) -> Transacted + Send + Sync>;

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transaction(..)")
    }
}

/// What a transaction step gave.
#[derive(Debug)]
pub struct Transacted {
    /// Whether the user's writes are kept.
    pub keep: bool,
    /// The entry to append in either case.
    pub record: Record,
    /// The state after it, encoded.
    pub state: Vec<u8>,
}

/// Something that may concern a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A message arrived for an execution that the session holds.
    Message {
        /// Which execution.
        key: ExecutionKey,
        /// The lease that it was held under. A holder under another one looks into the [inbox](View::inbox): this notice may be so late that the
        /// message was read for good.
        epoch: Epoch,
        /// What arrived.
        message: Message,
        /// The newest message that was unread when this one arrived, if there was one. A holder that does not know it has missed something, and
        /// reads the [inbox](View::inbox): this notice may have overtaken another one, or be the only one of several that came.
        previous: Option<MessageId>,
    },
    /// Something may be ready to be claimed, or be looked after.
    Ready,
    /// Something changed that this store cannot tell in detail.
    Changed,
}

impl Submitted {
    /// The execution that the message went to.
    pub fn key(&self) -> ExecutionKey {
        match self {
            Self::Started(key, _) | Self::Attached(key) | Self::Delivered(key) | Self::Duplicate(key) => *key,
        }
    }
}

impl Leased {
    /// Where the execution lives.
    pub fn address(&self) -> &Address {
        self.execution.address()
    }
}
