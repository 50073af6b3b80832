//! The seam between abide's engine and its databases.
//!
//! [`Store`] is everything that the engine asks of a database, and [`View`] the part of it that only reads: a dozen methods and a handful, each one
//! transaction. What may follow what is decided in `abide-core`; a store only keeps rows, fences writes and wakes readers.
//!
//! Also here: [`memory::MemoryStore`], the strict reference that every other store is compared with;
//! [`faults::FaultyStore`], which makes operations fail, hang or succeed and lose their answer; and
//! [`conformance`], the table of cases that every store must pass.
//!
//! What is deliberately absent: SQL, threads, retries. A store is handed its clock and reads it when it applies an
//! operation, never when the operation was queued.

pub mod conformance;
mod error;
pub mod faults;
mod import;
pub mod memory;
mod prng;
#[doc(hidden)]
pub mod readers;
mod refused;
mod seam;
mod view;
mod worker;

pub use error::{Error, Result};
pub use import::{Import, Imported, export};
#[doc(hidden)]
pub use prng::Prng;
pub use refused::{not_started, not_unread, refused_start};
pub use seam::{
    Answer, Aside, Changes, Claim, Claimed, Clock, Commit, CommitOutcome, Committed, ExecutionKey, Hold,
    Leased, NEWER_PAUSE, Notice, Record, Run, Store, Submit, Submitted, Transacted, Transaction, Unreadable,
};
pub use view::{
    Bounds, Feed, FeedCursor, FeedFrom, FeedItem, FeedPage, InboxCursor, InboxPage, InboxRead, List,
    ListCursor, ListOrder, Listed, Listing, ParentRun, Prune, Read, Snapshot, Target, View,
};
pub use worker::{
    Agreement, Beat, Heartbeat, HeldLease, LeaseCursor, LeasePage, Leases, Registered, Retire, Worker,
    WorkerRow, Workers,
};
