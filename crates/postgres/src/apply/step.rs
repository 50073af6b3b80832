//! The user's transaction inside ours.
//!
//! The rules keep mistakes from hurting others. They are no defence against malice: the closure has
//! the rights of the program.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_store::{Commit, Error, Record, Transacted, Transaction};
use tokio_postgres::error::SqlState;

use super::alone::Work;
use super::commit::unsupported;
use crate::deadline::Deadline;
use crate::error::{Kind, Stop};
use crate::facts::Committer;
use crate::gate;
use crate::sql;
use crate::step_connection::{Fault, StepConnection};
use crate::step_error::StepError;

/// The tables of abide's that a step may touch, as patterns of names: an enqueue within the step
/// writes there.
const OPEN_TABLES: [&str; 2] = ["intake", r"intake\_%"];

/// What became of a transaction step.
pub(super) enum Stepped {
    /// The commit has none.
    None,
    /// The commit with its record.
    Ran(Commit, Record),
}

/// Runs the transaction step of a commit, if it has one. The row of the execution is locked, and
/// the lease was checked: nobody can commit in between.
pub(super) async fn run_step(
    work: &mut Work<'_>,
    commit: &Commit,
    found: &Committer,
) -> Result<Stepped, Stop> {
    let Some(transaction) = commit.transaction.clone() else { return Ok(Stepped::None) };
    let next = last_seq(work, found.key).await? + 1;
    work.connection.run(sql::STEP_BEGIN).await?;
    let before = Marks::read(work).await?;
    let deadline = Deadline::after(work.shared.options.transaction_ms_max);
    let ran = run(work, transaction, deadline).await?;
    let ended = deadline.bound(end(work, &ran, (next, before))).await;
    match ended {
        Some(ended) if !deadline.is_over() => ended?,
        _ => return Err(stop_late(work, deadline).await),
    }
    let Some(Transacted { record, state, .. }) = ran.transacted else { return Err(panicked()) };
    let mut commit = commit.clone();
    let changes = Arc::make_mut(&mut commit.changes);
    changes.records = [record.clone()].into_iter().collect();
    changes.state = state;
    Ok(Stepped::Ran(commit, record))
}

/// A closure that has returned.
struct Ran {
    /// `None` says that it panicked.
    transacted: Option<Transacted>,
    fault: Option<Fault>,
}

async fn run(work: &mut Work<'_>, Transaction(run): Transaction, deadline: Deadline) -> Result<Ran, Stop> {
    let step = StepConnection::new(work.connection.lend(), tokio::runtime::Handle::current(), deadline);
    let (step, transacted) = gate::blocking(move || {
        let transacted = catch_unwind(AssertUnwindSafe(|| run(&step))).ok();
        (step, transacted)
    })
    .await?;
    let (connection, fault) = step.into_parts();
    work.connection.put_back(connection);
    Ok(Ran { transacted, fault })
}

/// Keeps or undoes what the closure has written.
///
/// Its own outcome counts only when the server agrees. The connection can have been cut, or the
/// server can have chosen the transaction as the victim of a deadlock, which the closure then
/// reports as an error of its own.
async fn end(work: &Work<'_>, ran: &Ran, (next, before): (u64, Marks)) -> Result<(), Stop> {
    if !work.connection.is_usable() {
        return Err(unavailable("the connection was cut"));
    }
    let Some(transacted) = &ran.transacted else { return Err(panicked()) };
    if transacted.record.seq != next {
        return Err(unsupported("the transaction step gave an entry with a wrong number"));
    }
    if !transacted.keep {
        if let Some(fault) = &ran.fault {
            return Err(repeat(fault));
        }
        work.connection.run(sql::STEP_UNDO).await.map_err(|stop| gone(work, stop))?;
        return work.connection.run(sql::SAVEPOINT_RELEASE).await.map_err(|stop| gone(work, stop));
    }
    work.connection.run(sql::STEP_END).await.map_err(|stop| unfinished(stop, ran.fault.as_ref()))?;
    work.connection.rows(sql::CONNECTION, &[&work.shared.pool.place.schema]).await?;
    let after = Marks::read(work).await?;
    if before.transaction != after.transaction {
        return Err(ended(work));
    }
    before.compare(&after)?;
    work.connection.run(sql::SAVEPOINT_RELEASE).await.map_err(|stop| gone(work, stop))
}

/// What the server says about the transaction.
#[derive(Debug, PartialEq, Eq)]
struct Marks {
    transaction: String,
    own_count: i64,
    own_touches: i64,
    own_locks: Vec<String>,
}

impl Marks {
    async fn read(work: &Work<'_>) -> Result<Self, Stop> {
        let patterns = OPEN_TABLES.as_slice();
        let row = work.connection.row(sql::STEP_MARKS, &[&work.shared.pool.place.schema, &patterns]).await?;
        Ok(Self {
            transaction: row.try_get(0)?,
            own_count: row.try_get(1)?,
            own_touches: row.try_get(2)?,
            own_locks: row.try_get(3)?,
        })
    }

    fn compare(&self, after: &Self) -> Result<(), Stop> {
        if self == after {
            return Ok(());
        }
        let locks = after.own_locks.iter().filter(|lock| !self.own_locks.contains(lock));
        let tables: Vec<&str> = locks.filter_map(|lock| lock.split(' ').next()).collect();
        Err(unsupported(match tables.first() {
            Some(table) => format!("the transaction step touched abide's own table {table:?}"),
            None => "the transaction step touched a table of abide's own".to_owned(),
        }))
    }
}

async fn last_seq(work: &Work<'_>, key: i64) -> Result<u64, Stop> {
    let last = super::alone::last_record(&work.connection, key).await?;
    last.map(|record| record.seq)
        .ok_or_else(|| Stop::corrupt(format!("the journal of execution {key} is empty")))
}

/// Stops the statement that is under way on the server, and undoes the step.
async fn stop_late(work: &Work<'_>, deadline: Deadline) -> Stop {
    let undone = Deadline::after(work.shared.options.connect_ms_max);
    let undo = async {
        work.connection.cancel(&work.shared.pool.place).await?;
        work.connection.run(sql::STEP_UNDO).await
    };
    if !matches!(undone.bound(undo).await, Some(Ok(()))) {
        // The server does not hear. Without its connection, the transaction ends by itself.
        work.connection.cut();
    }
    unsupported(deadline.complaint())
}

fn panicked() -> Stop {
    unsupported("the transaction step panicked outside the user's code")
}

fn unavailable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Stop {
    Stop::Told(Error::Unavailable { what: "transaction", source: why.into() })
}

/// Has the closure run again.
fn repeat(fault: &Fault) -> Stop {
    match fault {
        Fault::Race => Stop::Raced,
        Fault::Server(complaint) => unavailable(complaint.as_str()),
    }
}

/// Says why a step whose writes should stay cannot be finished.
fn unfinished(stop: Stop, fault: Option<&Fault>) -> Stop {
    let Stop::Database(error) = &stop else { return stop };
    let Some(code) = error.code() else { return Stop::Told(stop.told("transaction", Kind::Writes)) };
    let is_broken = code.code().starts_with("23");
    match fault {
        _ if stop.is_race() && !is_broken => stop,
        Some(fault) if *code == SqlState::IN_FAILED_SQL_TRANSACTION => repeat(fault),
        // The server has refused everything since: the record would claim writes that are not
        // there.
        None if *code == SqlState::IN_FAILED_SQL_TRANSACTION => {
            unsupported("the transaction step went on after one of its statements had failed")
        }
        _ if is_broken => unsupported(format!(
            "the transaction step leaves a deferred constraint broken: {}",
            StepError::text_of(error)
        )),
        _ => unsupported(format!("the transaction step cannot end: {}", StepError::text_of(error))),
    }
}

/// The savepoint is gone when the user's own statements have ended the transaction.
fn gone(work: &Work<'_>, stop: Stop) -> Stop {
    match stop {
        Stop::Database(error) if error.as_db_error().is_some() => ended(work),
        other => Stop::Told(other.told("transaction", Kind::Writes)),
    }
}

/// What the step has set in the connection may have been committed, so nobody uses it again.
fn ended(work: &Work<'_>) -> Stop {
    work.connection.cut();
    unsupported("a statement of the transaction step ended the transaction")
}
