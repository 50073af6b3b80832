//! The writer's connection, as a transaction step sees it.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, ErrorCode, Params, Row, Statement, ffi};

use crate::error::{BatchFailure, Meaning};
use crate::sql;
use crate::user_transaction::{Deadline, ENDED};

/// The connection that writes. The closure of a transaction step gets it, and the transaction that
/// it writes in.
///
/// Every call goes through here, so the store learns three things without the closure's help: that
/// its time is over, that a statement failed through no fault of the closure, such as a full disk,
/// and that a statement ended the transaction.
pub struct StepConnection {
    pub(crate) connection: Connection,
    rules: Arc<Rules>,
    /// The number of schema objects that have names of abide's own or lead to its tables, once
    /// counted.
    own_name_count: Cell<Option<i64>>,
    deadline: Cell<Option<Deadline>>,
    /// The fault that stopped a statement of the running closure, if the closure has to run again
    /// for it.
    pub(crate) fault: Cell<Option<BatchFailure>>,
}

impl StepConnection {
    pub(crate) fn new(connection: Connection, rules: Arc<Rules>) -> Self {
        let (own_name_count, deadline, fault) = (Cell::new(None), Cell::new(None), Cell::new(None));
        Self { connection, rules, own_name_count, deadline, fault }
    }

    /// Begins a transaction. Until it is committed or rolled back, no statement commits anything,
    /// even if SQLite has ended the transaction meanwhile.
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

    /// Counts the schema objects with names of abide's own, before the first closure could change
    /// them.
    pub(crate) fn count_own_names(&self) -> rusqlite::Result<()> {
        if self.own_name_count.get().is_none() {
            self.own_name_count.set(Some(self.own_names()?));
        }
        Ok(())
    }

    /// Drops the count: others have changed the schema, or the counted change was rolled back.
    pub(crate) fn forget_own_names(&self) {
        self.own_name_count.set(None);
    }

    /// Whether the closure that has just run used a name of abide's own, or created an object that
    /// leads to a table of abide's. An authorizer hears of a renaming, but not of the new name. It
    /// hears of the names in a view, a trigger or a foreign key only when a statement uses them.
    pub(crate) fn has_taken_name(&self) -> rusqlite::Result<bool> {
        if !self.rules.reshaped.swap(false, Ordering::Relaxed) {
            return Ok(false);
        }
        let (before, after) = (self.own_name_count.get(), self.own_names()?);
        // Objects from before, made by others, may be dropped.
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

    /// Runs one statement, and returns the number of rows that it changed.
    pub fn execute(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.noting(|connection| connection.execute(sql, params))
    }

    /// Runs several statements without parameters.
    pub fn execute_batch(&self, sql: &str) -> rusqlite::Result<()> {
        self.noting(|connection| connection.execute_batch(sql))
    }

    /// Returns the first row of a query.
    pub fn query_row<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.noting(|connection| connection.query_row(sql, params, read))
    }

    /// Returns every row of a query.
    pub fn query_rows<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.prepare(sql)?.query_rows(params, read)
    }

    /// Prepares a statement.
    pub fn prepare(&self, sql: &str) -> rusqlite::Result<StepStatement<'_>> {
        let statement = self.noting(|connection| connection.prepare(sql))?;
        Ok(StepStatement { step: self, statement })
    }

    /// Returns the row id of the last insert.
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

    /// Fails when the closure may run no further statement.
    fn may_go_on(&self) -> rusqlite::Result<()> {
        // A single short statement never meets the limit; many of them do.
        let refused = match self.deadline.get() {
            Some(deadline) if deadline.is_over() => (ffi::SQLITE_INTERRUPT, deadline.complaint()),
            // From here on each statement would be a transaction of its own.
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
            self.fault.set(Some(BatchFailure { meaning, complaint: error.to_string() }));
        }
        outcome
    }
}

/// The state that the authorizer of the connection shares with the store.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// Whether a transaction has begun that must be committed whole or not at all.
    open: AtomicBool,
    /// Whether statements are prepared under the user's rules.
    pub(crate) guarded: AtomicBool,
    /// Whether a statement created or altered an object under them.
    pub(crate) reshaped: AtomicBool,
}

impl fmt::Debug for StepConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepConnection")
    }
}

impl Rules {
    /// Whether a commit does not come from the writer: a statement commits on its own when SQLite,
    /// or another statement, has ended the transaction before.
    pub(crate) fn forbid_commit(&self) -> bool {
        self.open.load(Ordering::Relaxed) || self.guarded.load(Ordering::Relaxed)
    }
}

/// Whether a statement failed through no fault of the closure. SQLite undoes the statement, or the
/// whole transaction, on its own.
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
    /// Runs it, and returns the number of rows that it changed.
    pub fn execute(&mut self, params: impl Params) -> rusqlite::Result<usize> {
        self.noting(|statement| statement.execute(params))
    }

    /// Runs it as an insert of one row, and returns its row id.
    pub fn insert(&mut self, params: impl Params) -> rusqlite::Result<i64> {
        self.noting(|statement| statement.insert(params))
    }

    /// Whether it finds a row.
    pub fn exists(&mut self, params: impl Params) -> rusqlite::Result<bool> {
        self.noting(|statement| statement.exists(params))
    }

    /// Returns the first row.
    pub fn query_row<T>(
        &mut self,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.noting(|statement| statement.query_row(params, read))
    }

    /// Returns every row.
    pub fn query_rows<T>(
        &mut self,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.noting(|statement| statement.query_map(params, read)?.collect())
    }

    /// Returns the rows, one by one.
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
        // The statement runs when the caller asks for its first row, and others may have run
        // meanwhile.
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
