//! The operations: what they ask, how they are decided, what they write.

mod alone;
mod aside;
mod care;
mod claim;
mod commit;
mod import;
mod intake;
mod leased;
mod letter;
mod prune;
mod session;
mod step;

pub(crate) use alone::{commit_alone, submit_alone};
pub(crate) use aside::set_aside;
pub(crate) use claim::claim;
pub(crate) use commit::{Decided, Item, fenced_of, needs_own_transaction};
pub(crate) use import::import;
pub(crate) use intake::{look as look_into_intake, take_in};
pub(crate) use leased::{inbox_of, page_of};
pub(crate) use letter::{Asked, Desk, intern, routes_of};
pub(crate) use prune::prune;
pub(crate) use session::{heartbeat, register, retire};
