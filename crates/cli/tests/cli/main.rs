//! The binary `abide`, run as a user runs it.

mod bench;
mod beside_a_worker;
mod binary;
mod common;
mod costs;
mod intake;
mod migrate;
mod scripts;
mod sites;
mod store;
mod torture;
