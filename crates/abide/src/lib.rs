//! Durable execution for Rust.
//!
//! Write an ordinary async function. Every step result, timer, message and child of it is recorded,
//! so after a crash, a deploy or the loss of a machine it continues from its last record.
//!
//! ```no_run
//! use abide::prelude::*;
//!
//! #[workflow]
//! async fn greet(ctx: Ctx, name: String) -> Result<String> {
//!     ctx.step("format", || async { Ok(format!("Hello, {name}!")) }).await
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<()> {
//!     let abide = Abide::open("sqlite:app.db").await?;
//!     println!("{}", abide.run(greet, "World".to_string()).id("greet-1").await?);
//!     Ok(())
//! }
//! ```
//!
//! [`Abide`] opens a store and resumes its executions; [`Ctx`] is the context that a workflow's
//! code receives; [`Handle`] watches and steers one execution from outside; [`testing`] has the
//! virtual clock.

mod abide;
mod await_result;
mod blocking;
mod build;
mod canonical;
mod child;
mod client_error;
mod code;
mod ctx;
mod data;
mod durations;
mod enqueue;
mod error;
mod filter;
mod handle;
mod next;
mod op_name;
mod open;
mod plain;
#[cfg(feature = "postgres")]
mod postgres_transaction;
pub mod prelude;
mod probe;
mod readable;
#[doc(hidden)]
pub mod readers;
mod recent;
mod scratch;
mod send_signal;
mod shield;
mod signal;
mod sleep;
mod slot;
#[cfg(feature = "sqlite")]
mod sqlite_transaction;
mod start;
mod step;
mod store;
pub mod testing;
mod transaction;
mod unblock;
mod upgrade;
mod url;

pub use crate::abide::Abide;
pub use crate::await_result::AwaitResult;
#[doc(hidden)]
pub use crate::canonical::hash as input_hash;
pub use crate::child::{Child, RunChild, StartChild};
pub use crate::client_error::ClientError;
pub use crate::code::{Again, Code, Recorded, Retried, Task, Value, Workflow};
pub use crate::ctx::{Ctx, State};
pub use crate::durations::{days, hours, minutes, ms, secs};
#[doc(inline)]
pub use crate::enqueue::EnqueueIn;
pub use crate::error::{Error, Result, ResultExt};
pub use crate::filter::{Filter, Listed};
pub use crate::handle::Handle;
pub use crate::next::ContinueAsNew;
pub use crate::open::Builder;
#[cfg(feature = "postgres")]
pub use crate::postgres_transaction::PostgresTransaction;
pub use crate::send_signal::SendSignal;
pub use crate::shield::Shield;
pub use crate::signal::Receive;
pub use crate::sleep::Sleep;
#[cfg(feature = "sqlite")]
pub use crate::sqlite_transaction::SqliteTransaction;
pub use crate::start::{Run, Start};
pub use crate::step::Step;
pub use crate::transaction::Transact;
pub use crate::unblock::Unblock;
pub use crate::url::{InvalidUrl, StoreUrl};

#[cfg(feature = "postgres")]
pub use abide_postgres::{StepError as PostgresError, StepStatement as PostgresStatement};
#[cfg(feature = "sqlite")]
pub use abide_sqlite::StepStatement as SqliteStatement;

pub use abide_core::{FailureKind, Kind, Origin, Status, Timestamp};

/// The policy that `.retry(..)` takes.
///
/// ```
/// use abide::prelude::*;
///
/// let retry = Retry::exponential(ms(100)).max_attempts(5);
/// assert_eq!(retry.delay_after(3), Some(ms(400)));
/// assert_eq!(retry.delay_after(5), None);
/// ```
#[doc(inline)]
pub use abide_core::Retry;

pub use abide_macros::{task, test, workflow};
#[cfg(feature = "sqlite")]
pub use rusqlite;
#[cfg(feature = "postgres")]
pub use tokio_postgres;

/// Items that the macros need; not for use by hand.
#[doc(hidden)]
pub mod __private {
    pub use crate::code::{Registered, Returns};
    pub use inventory;
    pub use tokio::select as tokio_select;
}

/// Waits for the first of several futures, polled in the order in which they are written: the same
/// in every replay.
///
/// ```text
/// select! {
///     answer = ctx.recv::<Answer>("answer") => …,
///     _ = ctx.sleep(days(3)) => …,
/// }
/// ```
#[macro_export]
macro_rules! select {
    ($($tokens:tt)*) => {
        $crate::__private::tokio_select! { biased; $($tokens)* }
    };
}
