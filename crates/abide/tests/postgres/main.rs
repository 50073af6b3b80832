//! Workflows on a PostgreSQL server.

mod server;
mod transactions;
