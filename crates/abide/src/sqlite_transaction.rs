//! `ctx.sqlite`: a step inside the transaction of a SQLite store.

use abide_sqlite::{StepConnection, StepStatement};
use rusqlite::{Params, Row};

use crate::code::Value;
use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::transaction::Transact;

/// The transaction that a [`ctx.sqlite`](Ctx::sqlite) closure writes in. It commits together with
/// the closure's recorded result.
///
/// Transaction control, `PRAGMA`, `ATTACH`, temporary objects and abide's own tables and names are
/// out of reach. Foreign keys are on. The closure keeps the only writer of the database, and so may
/// take at most `transaction_ms_max` (5 s). The page `docs/guide/transactions.md` has the rules.
pub struct SqliteTransaction<'a>(&'a StepConnection);

impl SqliteTransaction<'_> {
    /// Runs one statement and returns the number of changed rows.
    pub fn execute(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.0.execute(sql, params)
    }

    /// Runs several statements without parameters.
    pub fn execute_batch(&self, sql: &str) -> rusqlite::Result<()> {
        self.0.execute_batch(sql)
    }

    /// Returns the first row of a query.
    pub fn query_row<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.0.query_row(sql, params, read)
    }

    /// Returns every row of a query.
    pub fn query_rows<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.0.query_rows(sql, params, read)
    }

    /// Prepares a statement.
    pub fn prepare(&self, sql: &str) -> rusqlite::Result<StepStatement<'_>> {
        self.0.prepare(sql)
    }

    /// Returns the row id of the last insert.
    pub fn last_insert_rowid(&self) -> i64 {
        self.0.last_insert_rowid()
    }
}

impl<T: Value + 'static> Transact<T> {
    #[track_caller]
    pub(crate) fn on_sqlite<F>(ctx: Ctx, name: &str, run: F) -> Self
    where
        F: FnOnce(&SqliteTransaction<'_>) -> Result<T> + Clone + Send + 'static,
    {
        Self::on_any(ctx, name, move |connection| match connection.downcast_ref().map(SqliteTransaction) {
            Some(transaction) => run(&transaction),
            None => Err(Error::refusal("ctx.sqlite needs a SQLite store")),
        })
    }
}
