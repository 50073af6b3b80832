//! abide's store on SQLite.
//!
//! One file, any number of processes. One connection writes: operations queue up, and all waiting
//! ones share one transaction and one sync. Readers have connections of their own and never wait
//! for the writer. The journal is one append-only log in which every entry points at its
//! predecessor; the row of an execution has the head.
//!
//! Decisions are deliberately absent. `abide-core` decides which change may follow another, and a
//! store copies the answer into rows. No SQL is put together at run time: every statement is a name
//! in `sql.rs`.

mod answers;
mod apply;
mod backup;
mod batch;
mod caches;
mod checksum;
mod copies;
pub mod counters;
mod error;
#[cfg(test)]
mod fixture;
#[doc(hidden)]
pub mod flaw;
mod gaps;
mod indexes;
mod inherited;
mod interned;
mod job;
mod journal;
mod left_out;
mod legible;
mod lockfile;
mod mail;
mod named;
mod newborns;
mod notices;
mod options;
mod os;
mod packing;
mod partial;
mod place;
mod poll;
mod private;
pub mod raw;
mod reader;
#[doc(hidden)]
pub mod readers;
mod refusals;
mod repair;
mod room;
mod rows;
mod schema;
mod sheaf;
mod sheet;
mod sql;
mod statements;
mod step_connection;
#[doc(hidden)]
pub mod stepped;
mod store;
mod tail;
#[cfg(test)]
mod tail_tests;
mod tallies;
mod trouble;
mod user_transaction;
mod view;
mod wal;
mod watch;
mod worker_view;
mod writer;

pub use abide_store::Verification;
pub use apply::enqueue;
pub use error::OpenError;
pub use options::Options;
pub use repair::{Discarded, MessagesDropped, Repairs};
pub use step_connection::{StepConnection, StepStatement};
pub use store::SqliteStore;
