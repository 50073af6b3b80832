//! Workflows on a PostgreSQL server.

mod clocks;
mod server;
mod transactions;
