//! The writer's connection, as a transaction step sees it.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, ErrorCode, Params, Row, Statement, ffi};

use crate::error::{Failure, Meaning};
use crate::sql;
use crate::user_transaction::{Deadline, ENDED};

/// The connection that writes. The closure of a transaction step gets it, and the transaction that it writes in.
///
/// Every call goes through here, so that the store knows what the closure need not tell: that its time is over, that a
/// statement failed for a reason which is not the closure's doing, such as a full disk, and that one ended the transaction.
pub struct StepConnection {
    pub(crate) connection: Connection,
    rules: Arc<Rules>,
    /// How many things have names of abide's own, or lead to its tables, once that was counted.
    own_name_count: Cell<Option<i64>>,
    deadline: Cell<Option<Deadline>>,
    /// What kept a statement of the running closure from being done, if it is to be run again for it.
    pub(crate) fault: Cell<Option<Failure>>,
}

impl StepConnection {
    pub(crate) fn new(connection: Connection, rules: Arc<Rules>) -> Self {
        let (own_name_count, deadline, fault) = (Cell::new(None), Cell::new(None), Cell::new(None));
        Self { connection, rules, own_name_count, deadline, fault }
    }

    /// Begins a transaction. Until it is committed or rolled back, no statement commits anything, whatever has become of the transaction meanwhile.
    pub(crate) fn begin(&self) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql::BEGIN)?.execute([])?;
        self.rules.open.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn commit(&self) -> rusqlite::Result<()> {
        self.rules.open.store(false, Ordering::Relaxed);
        self.connection.prepare_cached(sql::COMMIT)?.execute([])?;
        Ok(())
    }

    /// Ends the transaction, unless SQLite has done so.
    pub(crate) fn roll_back(&self) -> rusqlite::Result<()> {
        self.rules.open.store(false, Ordering::Relaxed);
        self.forget_own_names();
        if !self.connection.is_autocommit() {
            self.connection.prepare_cached(sql::ROLLBACK)?.execute([])?;
        }
        Ok(())
    }

    /// Notes how many things have names of abide's own, before the first closure could change that.
    pub(crate) fn count_own_names(&self) -> rusqlite::Result<()> {
        if self.own_name_count.get().is_none() {
            self.own_name_count.set(Some(self.own_names()?));
        }
        Ok(())
    }

    /// Others have changed the schema, or what was counted did not happen.
    pub(crate) fn forget_own_names(&self) {
        self.own_name_count.set(None);
    }

    /// Whether the closure that has just run gave something a name of abide's own, or made
    /// something that leads to a table of abide's. An authorizer hears of a renaming, but not of
    /// the new name; and of what a view, a trigger or a foreign key names only when it is used, by
    /// whomever.
    pub(crate) fn has_taken_name(&self) -> rusqlite::Result<bool> {
        if !self.rules.reshaped.swap(false, Ordering::Relaxed) {
            return Ok(false);
        }
        let (before, after) = (self.own_name_count.get(), self.own_names()?);
        // What was there before, by somebody else's doing, may be dropped.
        self.own_name_count.set(before.map(|before| before.min(after)));
        Ok(before.is_some_and(|before| after > before))
    }

    fn own_names(&self) -> rusqlite::Result<i64> {
        self.connection.prepare_cached(sql::OWN_NAME_COUNT)?.query_row([], |row| row.get(0))
    }

    /// Runs `closure` under the user's rules and its time limit.
    pub(crate) fn under_rules<T>(&self, deadline: Deadline, closure: impl FnOnce() -> T) -> T {
        self.fault.set(None);
        self.deadline.set(Some(deadline));
        self.rules.guarded.store(true, Ordering::Relaxed);
        let outcome = closure();
        self.lift_rules();
        outcome
    }

    pub(crate) fn lift_rules(&self) {
        self.rules.guarded.store(false, Ordering::Relaxed);
        self.deadline.set(None);
    }

    /// Runs one statement; the number of rows it changed.
    pub fn execute(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.noting(|connection| connection.execute(sql, params))
    }

    /// Runs several statements without parameters.
    pub fn execute_batch(&self, sql: &str) -> rusqlite::Result<()> {
        self.noting(|connection| connection.execute_batch(sql))
    }

    /// The first row of a query.
    pub fn query_row<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.noting(|connection| connection.query_row(sql, params, read))
    }

    /// Every row of a query.
    pub fn query_rows<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.prepare(sql)?.query_rows(params, read)
    }

    /// A prepared statement.
    pub fn prepare(&self, sql: &str) -> rusqlite::Result<StepStatement<'_>> {
        let statement = self.noting(|connection| connection.prepare(sql))?;
        Ok(StepStatement { step: self, statement })
    }

    /// The row id of the last insert.
    pub fn last_insert_rowid(&self) -> i64 {
        self.connection.last_insert_rowid()
    }

    fn noting<'a, T>(
        &'a self,
        call: impl FnOnce(&'a Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.may_go_on()?;
        self.noted(call(&self.connection))
    }

    /// Whether the closure may run one more statement.
    fn may_go_on(&self) -> rusqlite::Result<()> {
        // A statement that is short never meets the limit by itself; many of them do.
        let refused = match self.deadline.get() {
            Some(deadline) if deadline.is_over() => (ffi::SQLITE_INTERRUPT, deadline.complaint()),
            // Each statement would be a transaction of its own from here on.
            Some(_) if self.connection.is_autocommit() => (ffi::SQLITE_ABORT, ENDED.to_owned()),
            _ => return Ok(()),
        };
        Err(rusqlite::Error::SqliteFailure(ffi::Error::new(refused.0), Some(refused.1)))
    }

    fn noted<T>(&self, outcome: rusqlite::Result<T>) -> rusqlite::Result<T> {
        if let Err(error) = &outcome
            && is_fault(error)
        {
            let meaning = Meaning::Unavailable;
            self.fault.set(Some(Failure { meaning, complaint: error.to_string() }));
        }
        outcome
    }
}

/// What the authorizer of the connection is told, and tells.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// Whether a transaction has begun that is to be committed whole or not at all.
    open: AtomicBool,
    /// Whether statements are prepared under the user's rules.
    pub(crate) guarded: AtomicBool,
    /// Whether something was created or altered under them.
    pub(crate) reshaped: AtomicBool,
}

impl fmt::Debug for StepConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepConnection")
    }
}

impl Rules {
    /// Whether a commit is none of the writer's: a statement commits by itself when SQLite, or another statement, has ended the transaction before.
    pub(crate) fn forbid_commit(&self) -> bool {
        self.open.load(Ordering::Relaxed) || self.guarded.load(Ordering::Relaxed)
    }
}

/// Whether a statement failed for a reason that is not the closure's doing. SQLite undoes the statement, or the whole transaction, by itself.
fn is_fault(error: &rusqlite::Error) -> bool {
    use ErrorCode as E;
    let faults = [E::DiskFull, E::SystemIoFailure, E::OutOfMemory, E::OperationInterrupted, E::DatabaseBusy];
    error.sqlite_error_code().is_some_and(|code| faults.contains(&code))
}

/// A prepared statement of a transaction step.
#[derive(Debug)]
pub struct StepStatement<'a> {
    step: &'a StepConnection,
    statement: Statement<'a>,
}

impl StepStatement<'_> {
    /// Runs it; the number of rows it changed.
    pub fn execute(&mut self, params: impl Params) -> rusqlite::Result<usize> {
        self.noting(|statement| statement.execute(params))
    }

    /// Runs it as an insert of one row; its row id.
    pub fn insert(&mut self, params: impl Params) -> rusqlite::Result<i64> {
        self.noting(|statement| statement.insert(params))
    }

    /// Whether it gives a row.
    pub fn exists(&mut self, params: impl Params) -> rusqlite::Result<bool> {
        self.noting(|statement| statement.exists(params))
    }

    /// The first row.
    pub fn query_row<T>(
        &mut self,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.noting(|statement| statement.query_row(params, read))
    }

    /// Every row.
    pub fn query_rows<T>(
        &mut self,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.noting(|statement| statement.query_map(params, read)?.collect())
    }

    /// The rows, one by one.
    pub fn query_map<T, F>(
        &mut self,
        params: impl Params,
        read: F,
    ) -> rusqlite::Result<impl Iterator<Item = rusqlite::Result<T>>>
    where
        F: FnMut(&Row<'_>) -> rusqlite::Result<T>,
    {
        let step = self.step;
        step.may_go_on()?;
        let mut rows = Some(step.noted(self.statement.query_map(params, read))?);
        // The statement runs when its first row is asked for, and others may have run meanwhile.
        Ok(std::iter::from_fn(move || match step.may_go_on() {
            Ok(()) => rows.as_mut()?.next().map(|row| step.noted(row)),
            Err(error) => rows.take().map(|_| Err(error)),
        }))
    }

    fn noting<T>(
        &mut self,
        call: impl FnOnce(&mut Statement<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.step.may_go_on()?;
        self.step.noted(call(&mut self.statement))
    }
}
