//! `ctx.postgres`: a step inside the transaction of a PostgreSQL store.

use abide_postgres::{StepConnection, StepError, StepStatement};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use crate::code::Value;
use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::transaction::Transact;

/// The transaction that a [`ctx.postgres`](Ctx::postgres) closure writes in. It commits together
/// with the closure's recorded result.
///
/// Its methods are those of `tokio_postgres::Transaction`. Statements that begin or end a
/// transaction are refused, and so is whatever touches abide's own tables; savepoints are the
/// closure's own. A statement that fails makes the server refuse all later ones, up to a
/// `ROLLBACK TO` of a savepoint. The page `docs/guide/transactions.md` has the rules.
pub struct PostgresTransaction<'a>(&'a StepConnection);

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl PostgresTransaction<'_> {
    /// Prepares a statement.
    pub async fn prepare(&self, statement: &str) -> Result<Statement, StepError> {
        self.0.prepare(statement).await
    }

    /// Runs a statement, and returns the number of rows that it changed.
    pub async fn execute<S>(&self, statement: &S, parameters: Parameters<'_>) -> Result<u64, StepError>
    where
        S: StepStatement + ?Sized,
    {
        self.0.execute(statement, parameters).await
    }

    /// Runs a statement, and returns its rows.
    pub async fn query<S>(&self, statement: &S, parameters: Parameters<'_>) -> Result<Vec<Row>, StepError>
    where
        S: StepStatement + ?Sized,
    {
        self.0.query(statement, parameters).await
    }

    /// Runs a statement, and returns its only row. Any other number of rows is an error.
    pub async fn query_one<S>(&self, statement: &S, parameters: Parameters<'_>) -> Result<Row, StepError>
    where
        S: StepStatement + ?Sized,
    {
        self.0.query_one(statement, parameters).await
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
        self.0.query_opt(statement, parameters).await
    }

    /// Runs statements without parameters and results.
    pub async fn batch_execute(&self, statements: &str) -> Result<(), StepError> {
        self.0.batch_execute(statements).await
    }
}

impl<T: Value + 'static> Transact<T> {
    #[track_caller]
    pub(crate) fn on_postgres<F>(ctx: Ctx, name: &str, run: F) -> Self
    where
        F: AsyncFnOnce(&PostgresTransaction<'_>) -> Result<T> + Clone + Send + 'static,
    {
        Self::on_any(ctx, name, move |connection| {
            let connection: &StepConnection = connection
                .downcast_ref()
                .ok_or_else(|| Error::refusal("ctx.postgres needs a PostgreSQL store"))?;
            let transaction = PostgresTransaction(connection);
            connection.block_on(run(&transaction))?
        })
    }
}
