//! Every statement of this store.
//!
//! Isolation is READ COMMITTED: each statement sees the commits before its beginning, and follows
//! a row that it locks to the newest version. Where a statement relies on that, it says how.

mod apply;
mod claim;
mod facts;
#[macro_use]
mod functions;
mod intake;
mod lean;
mod raw;
mod schema;
mod sessions;
mod step;
mod verify;
mod view;

pub(crate) use apply::*;
pub(crate) use claim::*;
pub(crate) use facts::*;
pub(crate) use intake::*;
pub(crate) use lean::*;
pub(crate) use raw::*;
pub(crate) use schema::*;
pub(crate) use sessions::*;
pub(crate) use step::*;
pub(crate) use verify::*;
pub(crate) use view::*;
