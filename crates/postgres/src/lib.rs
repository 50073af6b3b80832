//! abide's store on PostgreSQL.
//!
//! Any number of processes work on one database. Operations that arrive together travel together,
//! as one set-based statement. A statement that only reads looks up the facts, `abide-core`
//! decides, and a second statement writes. Everything in it hangs on the update that checks the
//! lease or on the insert that could find a neighbour's row, so a change in between is found,
//! and the operation is decided anew.
//!
//! Deliberately absent: decisions, a clock, and statements that are put together at run time. Each
//! is a name in `sql`, and carries the argument why it is right beside others.

mod apply;
mod batcher;
mod board;
mod connection;
pub mod counters;
#[cfg(test)]
mod crowd;
mod deadline;
mod enqueue;
mod error;
mod facts;
mod floors;
mod follower;
mod gate;
mod horizon;
mod options;
#[cfg(test)]
mod plans;
mod planted;
mod pool;
mod pooler;
pub mod raw;
mod routes;
mod rows;
mod schema;
mod seal;
mod server_clock;
mod shared;
mod sheet;
mod sql;
mod stash;
mod statements;
mod step_connection;
mod step_error;
mod store;
mod tallies;
mod target;
mod tls;
mod url;
mod verify;
mod view;
mod witness;

pub use abide_store::Verification;
pub use enqueue::Intake;
pub use error::OpenError;
pub use options::Options;
pub use schema::Migration;
pub use step_connection::{StepConnection, StepStatement};
pub use step_error::StepError;
pub use store::PostgresStore;
