//! What a transaction step receives.

use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement, ToStatement};

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::statements;
use crate::step_error::StepError;

/// The connection of a transaction step, inside the transaction that also records the step.
///
/// Every call goes through here, so the store learns three things without the closure's help: that
/// its time is over, that a statement failed through no fault of the closure, such as a deadlock,
/// and that a statement would end the transaction.
pub struct StepConnection {
    connection: Connection,
    runtime: Handle,
    deadline: Deadline,
    fault: Mutex<Option<Fault>>,
}

/// Why a closure has to run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Others did something at the same time.
    Race,
    /// The server could not go on.
    Server(String),
}

/// A statement: its text, or what [`StepConnection::prepare`] has made of it.
pub trait StepStatement: ToStatement + Sync {
    /// Returns the text, if it was not looked at before.
    #[doc(hidden)]
    fn text(&self) -> Option<&str>;
}

impl StepStatement for str {
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

impl StepStatement for Statement {
    fn text(&self) -> Option<&str> {
        None
    }
}

/// The parameters of a statement.
type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl StepConnection {
    pub(crate) fn new(connection: Connection, runtime: Handle, deadline: Deadline) -> Self {
        Self { connection, runtime, deadline, fault: Mutex::new(None) }
    }

    /// Returns the connection, and why the closure has to run again, if it failed for that reason.
    pub(crate) fn into_parts(self) -> (Connection, Option<Fault>) {
        (self.connection, self.fault.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for something that the closure does, as long as its time is not over.
    ///
    /// # Panics
    /// Inside of another one.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> Result<T, StepError> {
        let done = self.runtime.block_on(self.deadline.bound(work));
        done.ok_or_else(|| StepError::refused(self.deadline.complaint()))
    }

    /// Prepares a statement.
    pub async fn prepare(&self, statement: &str) -> Result<Statement, StepError> {
        self.check(statement)?;
        self.noted(self.connection.client.prepare(statement).await)
    }

    /// Runs a statement, and returns the number of rows that it changed.
    pub async fn execute<S>(&self, statement: &S, parameters: Parameters<'_>) -> Result<u64, StepError>
    where
        S: StepStatement + ?Sized,
    {
        self.check(statement)?;
        self.noted(self.connection.client.execute(statement, parameters).await)
    }

    /// Runs a statement, and returns its rows.
    pub async fn query<S>(&self, statement: &S, parameters: Parameters<'_>) -> Result<Vec<Row>, StepError>
    where
        S: StepStatement + ?Sized,
    {
        self.check(statement)?;
        self.noted(self.connection.client.query(statement, parameters).await)
    }

    /// Runs a statement, and returns its only row. Any other number of rows is an error.
    pub async fn query_one<S>(&self, statement: &S, parameters: Parameters<'_>) -> Result<Row, StepError>
    where
        S: StepStatement + ?Sized,
    {
        self.check(statement)?;
        self.noted(self.connection.client.query_one(statement, parameters).await)
    }

    /// Runs a statement, and returns its row, if there is one. Several are an error.
    pub async fn query_opt<S>(
        &self,
        statement: &S,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, StepError>
    where
        S: StepStatement + ?Sized,
    {
        self.check(statement)?;
        self.noted(self.connection.client.query_opt(statement, parameters).await)
    }

    /// Runs statements without parameters and results.
    pub async fn batch_execute(&self, statements: &str) -> Result<(), StepError> {
        self.check(statements)?;
        self.noted(self.connection.client.batch_execute(statements).await)
    }

    /// Fails when the closure may not run this statement.
    fn check<S: StepStatement + ?Sized>(&self, statement: &S) -> Result<(), StepError> {
        if self.deadline.is_over() {
            return Err(StepError::refused(self.deadline.complaint()));
        }
        let complaint = statement.text().and_then(statements::complaint);
        complaint.map_or(Ok(()), |complaint| Err(StepError::refused(complaint)))
    }

    fn noted<T>(&self, answer: Result<T, Error>) -> Result<T, StepError> {
        if let Err(error) = &answer
            && let Some(fault) = fault_of(error)
        {
            *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
        }
        Ok(answer?)
    }
}

/// Returns the fault that is not the closure's own.
fn fault_of(error: &Error) -> Option<Fault> {
    let server = || Fault::Server(StepError::text_of(error));
    let Some(code) = error.code() else { return error.is_closed().then(server) };
    if [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code) {
        return Some(Fault::Race);
    }
    // Connections, resources, an operator's intervention, the system. A statement that was
    // cancelled is none of these: the closure would be cancelled again.
    let is_server = ["08", "53", "57P", "58"].iter().any(|class| code.code().starts_with(class));
    is_server.then(server)
}

impl std::fmt::Debug for StepConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StepConnection")
    }
}
