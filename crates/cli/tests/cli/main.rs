//! The binary `abide`, run as a user runs it.

mod binary;
mod common;
mod store;
mod torture;
