//! `ctx.sqlite`: a step whose database writes and record commit together.

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use abide_core::{OpKind, Outcome};
use abide_engine::{Standing, UserTransaction, panics};
use abide_sqlite::{StepConnection, StepStatement};
use rusqlite::{Params, Row};

use crate::code::Value;
use crate::ctx::Ctx;
use crate::data;
use crate::error::{Error, Result};
use crate::op_name::{OpName, op_options};
use crate::slot::LazyOp;
use crate::step::delivered;
use crate::upgrade::{Upgrade, upgrade_option};

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

/// A transaction step that is about to run. Await it.
#[must_use = "a transaction does nothing unless it is awaited"]
pub struct Transact<T> {
    ctx: Ctx,
    name: OpName,
    run: UserTransaction,
    upgrade: Upgrade<T>,
    slot: LazyOp,
    result: PhantomData<fn() -> T>,
}

impl<T: Value + 'static> Transact<T> {
    op_options!();

    upgrade_option! {
        /// Reads a recorded result as the older type `V`, and converts it, if it cannot be read as
        /// the type that this code expects. The journal stays as it is. An error blocks the
        /// execution, as an unreadable result does.
        T
    }

    #[track_caller]
    pub(crate) fn new<F>(ctx: Ctx, name: &str, run: F) -> Self
    where
        F: FnOnce(&SqliteTransaction<'_>) -> Result<T> + Clone + Send + 'static,
    {
        Self::on_any(ctx, name, move |connection| match connection.downcast_ref().map(SqliteTransaction) {
            Some(transaction) => run(&transaction),
            None => Err(Error::refusal("ctx.sqlite needs a SQLite store")),
        })
    }

    /// Returns a transaction step whose closure receives the connection of any store.
    #[track_caller]
    pub(crate) fn on_any<F>(ctx: Ctx, name: &str, run: F) -> Self
    where
        F: FnOnce(&dyn Any) -> Result<T> + Clone + Send + 'static,
    {
        // The store may run the closure on any thread, and more than once: each time a clone of the
        // original.
        let original = Mutex::new(run);
        let clone = move || original.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let run: UserTransaction = Arc::new(move |connection| outcome_of(|| clone()(connection)));
        let (name, upgrade) = (OpName::new(name), Upgrade::default());
        Self { ctx, name, run, upgrade, slot: LazyOp::New, result: PhantomData }
    }
}

/// Runs the closure; returns whether its writes are kept, and its outcome.
fn outcome_of<T: Value>(run: impl FnOnce() -> Result<T>) -> (bool, Outcome) {
    let outcome = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => data::outcome_of(result).0,
        Err(panic) => Outcome::Failure(panics::failure(panic)),
    };
    match outcome {
        // Unlike a step's effects, these writes are undone, so the step can simply fail.
        Outcome::Unrecordable(lost) => (false, Outcome::Failure(Error::refusal(lost.reason).into_failure())),
        outcome => (matches!(outcome, Outcome::Success(_)), outcome),
    }
}

impl<T: Value> Future for Transact<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        let (ctx, name, run) = (&this.ctx, &this.name, &this.run);
        let op = match this.slot.open(|| ctx.open(OpKind::Transaction, name, ctx.transaction(name, run))) {
            Ok(op) => op,
            Err(answer) => return answer,
        };
        match op.poll(cx) {
            Standing::Delivered(delivery) => delivered(&this.ctx, (&mut this.slot, &this.upgrade), delivery),
            Standing::Wait | Standing::Go(_) | Standing::Running(_) => Poll::Pending,
        }
    }
}
