//! Proves abide, seed by seed.
//!
//! A seed decides a [`Scenario`](scenario::Scenario): random programs of workflows and tasks, the
//! actions of clients, and the faults. The production engine lives through it on several simulated
//! machines. Then an auditor checks every commit and message that the store took, every closure
//! that ran and every answer to a client. An oracle, a model of the journal's rules that shares no
//! code with the engine, runs each program once more from its journal and checks that its outcome
//! is possible.
//!
//! [`torture`] runs the same programs in real processes, under the same oracle; `abide torture`
//! calls it.
//!
//! The virtual runtime is deliberately absent: it belongs to the engine, because users' tests need
//! it.

mod api;
mod ask;
mod audit;
mod code;
mod damage;
mod database;
mod deploy;
mod each;
pub mod edition;
mod ending;
mod full;
mod generate;
mod history;
mod interpret;
mod life;
mod machine;
mod model;
pub mod program;
mod queue;
mod quiet;
mod remains;
mod run;
pub mod scenario;
mod shrink;
mod story;
mod table;
#[cfg(unix)]
pub mod torture;
mod totals;
mod whole;
mod why;
mod world;

pub use each::each;
pub use full::{FAULT_COUNT_MIN, OPERATION_COUNT_MIN, live};
pub use generate::{on_memory, on_sqlite, scenario};
pub use history::AtWork;
pub use run::{Answered, Report, Targets, quiet_panics, run};
pub use shrink::{Shrunk, shrink};
pub use story::story;
pub use totals::{Struck, Totals};
