//! The operations that write, one a file.

mod aside;
mod astray;
mod claim;
mod commit;
mod discard;
mod import;
mod inbox;
mod meant;
mod message;
mod messages;
mod names;
mod prune;
mod repair;
mod resend;
mod retry;
mod salvage;
mod session;
mod submit;
mod tags;
mod truth;

pub(crate) use aside::AsideWork;
pub(crate) use claim::ClaimWork;
pub(crate) use commit::CommitWork;
pub(crate) use discard::DiscardWork;
pub use discard::Discarded;
pub(crate) use discard::discarded_by;
pub(crate) use import::ImportWork;
pub(crate) use inbox::{check_inbox, inbox_page, orders, unread};
pub(crate) use message::first_start;
pub(crate) use messages::DropMessagesWork;
pub use messages::MessagesDropped;
pub(crate) use names::RepairNamesWork;
pub(crate) use prune::PruneWork;
pub(crate) use repair::{Lead, RepairWork, Repaired, is_parent_run};
pub(crate) use resend::ResendWork;
pub(crate) use salvage::Salvage;
pub(crate) use session::{HeartbeatWork, RegisterWork, RetireWork};
pub(crate) use submit::SubmitWork;
pub(crate) use tags::{
    ClearTagsWork, RepairTagsWork, TagWork, are_executions_in_order, are_in_order, tagged_behind,
    underived_tags, wrong_tags,
};
pub(crate) use truth::{run_before, run_to};
