//! Tests of the PostgreSQL store, on a real server.

mod cluster;
mod conformance;
mod failover;
mod fixture;
mod idle;
mod intake;
mod isolation;
mod opening;
mod orders;
mod poolers;
mod refused;
mod tls;
#[path = "../wire/mod.rs"]
mod wire;
