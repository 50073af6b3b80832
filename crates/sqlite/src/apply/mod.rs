//! The operations that write, one a file.

mod aside;
mod claim;
mod commit;
mod import;
mod inbox;
mod intake;
mod message;
mod prune;
mod retry;
mod session;
mod stretch;
mod submit;

pub(crate) use aside::AsideWork;
pub(crate) use claim::ClaimWork;
pub(crate) use commit::{CommitWork, take_cached};
pub(crate) use import::ImportWork;
pub(crate) use inbox::{Judge, check_inbox, each_unread, inbox_page, orders};
pub use intake::put as enqueue;
pub(crate) use intake::{EnqueueWork, TakeInWork, enqueuing, is_waiting, look as look_into_intake};
pub(crate) use message::{first_entry, first_start};
pub(crate) use prune::PruneWork;
pub(crate) use session::{HeartbeatWork, RegisterWork, RetireWork, is_alive};
pub(crate) use submit::SubmitWork;
