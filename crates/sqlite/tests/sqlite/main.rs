//! Tests of the SQLite store.

mod answers;
mod aside;
mod batches;
mod conformance;
mod copies;
mod counts;
mod damage;
mod discards;
mod disorder;
mod fixture;
mod flips;
mod heartbeats;
mod inboxes;
mod indexes;
mod journals;
mod lists;
mod logs;
mod names;
mod opening;
mod pages;
mod processes;
mod repairs;
mod runs;
mod transactions;
mod types;
