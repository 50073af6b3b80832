//! The operations that write, one a file.

mod claim;
mod commit;
mod inbox;
mod message;
mod prune;
mod retry;
mod session;
mod submit;

pub(crate) use claim::ClaimWork;
pub(crate) use commit::CommitWork;
pub(crate) use inbox::inbox_page;
pub(crate) use inbox::{message, read_sum};
pub(crate) use message::first_start;
pub(crate) use prune::PruneWork;
pub(crate) use session::{HeartbeatWork, RegisterWork, RetireWork};
pub(crate) use submit::SubmitWork;
