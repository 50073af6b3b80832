//! What a transaction step receives.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use crate::connection::Connection;

/// The connection of a transaction step, inside the transaction that also records the step. Its
/// calls wait for the server.
///
/// The step must not end the transaction. If a statement fails, the server refuses all later ones,
/// and nothing of the step stays.
pub struct StepConnection {
    connection: Connection,
    runtime: Handle,
    has_failed: AtomicBool,
}

impl StepConnection {
    pub(crate) fn new(connection: Connection, runtime: Handle) -> Self {
        Self { connection, runtime, has_failed: AtomicBool::new(false) }
    }

    pub(crate) fn into_connection(self) -> Connection {
        self.connection
    }

    /// Whether every statement was carried out.
    pub(crate) fn is_sound(&self) -> bool {
        !self.has_failed.load(Ordering::Relaxed)
    }

    fn noted<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        if answer.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        answer
    }

    /// Runs a statement, and returns the number of rows that it changed.
    pub fn execute(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.noted(self.runtime.block_on(self.connection.client.execute(statement, parameters)))
    }

    /// Runs a statement, and returns its rows.
    pub fn query(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.noted(self.runtime.block_on(self.connection.client.query(statement, parameters)))
    }

    /// Runs statements without parameters and results.
    pub fn batch_execute(&self, statements: &str) -> Result<(), Error> {
        self.noted(self.runtime.block_on(self.connection.client.batch_execute(statements)))
    }
}

impl std::fmt::Debug for StepConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StepConnection")
    }
}
