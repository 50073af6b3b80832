//! Tests of the SQLite store.

mod batches;
mod conformance;
mod copies;
mod damage;
mod fixture;
mod inboxes;
mod journals;
mod lists;
mod logs;
mod opening;
mod processes;
mod runs;
mod transactions;
