//! The seam between abide's engine and its databases.
//!
//! [`Store`] is everything that the engine asks of a database: a dozen methods, and those of
//! [`View`], which only read. Each method is one transaction. `abide-core` decides what may follow
//! what; a store only keeps rows, fences writes and wakes readers.
//!
//! The crate also contains [`memory::MemoryStore`], the strict reference that every other store is
//! compared with; [`faults::FaultyStore`], which makes operations fail, hang, or succeed and lose
//! their answer; and [`conformance`], the table of cases that every store must pass.
//!
//! Deliberately absent: SQL, threads, retries. A store receives its clock from outside and reads it
//! when it applies an operation, not when the operation is queued. Only a first [`Stretch`] brings
//! the time of its start.

mod answer;
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
mod stretch;
mod take_in;
mod verification;
mod view;
mod worker;

pub use answer::{Answer, Unanswered};
pub use error::{Error, Result};
pub use import::{Import, Imported, export};
#[doc(hidden)]
pub use prng::Prng;
pub use refused::{not_started, not_unread, refused_start};
pub use seam::{
    Aside, Changes, Claim, Claimed, Clock, Commit, CommitOutcome, Committed, ExecutionKey, Hold, IdleHook,
    Leased, NEWER_PAUSE, Notice, Opening, Record, Records, Run, Store, Submissions, Submit, Submitted,
    Transacted, Transaction, Unreadable,
};
pub use stretch::Stretch;
pub use take_in::{IntakeLook, RefusedRow, TakeIn, TakenIn};
pub use verification::Verification;
pub use view::{
    Feed, FeedCursor, FeedFrom, FeedItem, FeedPage, InboxCursor, InboxPage, InboxRead, List, ListCursor,
    ListOrder, Listed, Listing, PageBounds, ParentRun, Prune, Read, Snapshot, Target, Trouble, View,
};
pub use worker::{
    Agreement, Beat, Heartbeat, HeldLease, LeaseCursor, LeasePage, Leases, Registered, Retire, Worker,
    WorkerRow, Workers,
};
