//! Runs executions.
//!
//! An [`Engine`] is a worker: it registers a session with a [`Store`](abide_store::Store), claims
//! executions, polls workflow futures, records their operations and returns leases. A [`Client`]
//! starts and watches executions. Time, tasks and chance come through [`Runtime`], so that the
//! simulator can own them.
//!
//! Deliberately absent: SQL, and any knowledge of which store is behind the trait; rules about the
//! order of events, which are in `abide-core`; user-facing types, which are in `abide`.

mod alarm;
mod aside;
mod begin;
mod birth;
mod board;
mod builds;
mod caretaker;
mod client;
mod dispatch;
mod driver;
mod engine;
mod failures;
mod follower;
mod heartbeat;
mod hosts;
mod idle;
mod inbox;
mod journal;
mod kept;
mod ledger;
mod left_commits;
mod lifetime;
mod line;
mod mailbox;
mod news;
mod options;
pub mod panics;
mod pauses;
mod presence;
mod quarantine;
mod read_mail;
mod reading;
mod reconcile;
mod recover;
mod registry;
mod request;
mod residents;
mod runner;
mod runtime;
mod seat;
pub mod sim;
mod submission;
mod suspect;
mod taking;
mod task;
mod task_waker;
mod text_hasher;
mod tree;
mod turns;
mod unanswered;
mod watch;
pub mod why;

pub use board::{
    Board, CheckSignal, Delivery, Inside, Interrupt, OpHandle, Predicate, Rejection, Request, RetryIf, Site,
    Standing, StepOptions, UserTransaction, run_key,
};
pub use client::{Begun, Blocks, Client, Sent};
pub use driver::{Driver, End};
pub use engine::Engine;
pub use kept::Kept;
pub use mailbox::Order;
pub use options::Options;
pub use registry::{CodeFuture, Registry, TaskAttempt, TaskCode, WorkflowCode};
pub use runtime::{BoxFuture, Moment, Runtime, SystemClock, TaskNumber, TokioRuntime};
pub use seat::{Leave, Seat, Seated};
