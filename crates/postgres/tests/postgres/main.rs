//! Tests of the PostgreSQL store, on a real server.

mod conformance;
mod fixture;
mod isolation;
mod opening;
mod orders;
mod poolers;
#[path = "../wire/mod.rs"]
mod wire;
