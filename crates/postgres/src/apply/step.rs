//! The user's transaction inside ours.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_store::{Commit, Record, Transacted, Transaction};

use super::alone::Work;
use super::commit::unsupported;
use crate::error::{Kind, Stop};
use crate::facts::Committer;
use crate::gate;
use crate::sql;
use crate::step_connection::StepConnection;

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
    let Some(Transaction(run)) = commit.transaction.clone() else { return Ok(Stepped::None) };
    let next = last_seq(work, found.key).await? + 1;
    work.connection.run(sql::SAVEPOINT).await?;
    settings(work, &work.shared.user_path, "on").await?;
    let step = StepConnection::new(work.connection.lend(), tokio::runtime::Handle::current());
    let (step, outcome) = gate::blocking(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&step)));
        (step, outcome)
    })
    .await?;
    let is_sound = step.is_sound();
    work.connection.put_back(step.into_connection());
    let Ok(Transacted { keep, record, state }) = outcome else {
        return Err(unsupported("the transaction step panicked outside the user's code"));
    };
    if record.seq != next {
        return Err(unsupported("the transaction step gave an entry with a wrong number"));
    }
    if keep && !is_sound {
        // The server has refused everything since: the record would claim writes that are not
        // there.
        return Err(unsupported("the transaction step went on after one of its statements had failed"));
    }
    if !keep {
        work.connection.run(sql::SAVEPOINT_ROLLBACK).await.map_err(ended)?;
    }
    work.connection.run(sql::SAVEPOINT_RELEASE).await.map_err(ended)?;
    settings(work, &work.shared.pool.place.schema, "off").await?;
    let mut commit = commit.clone();
    let changes = Arc::make_mut(&mut commit.changes);
    changes.records = [record.clone()].into_iter().collect();
    changes.state = state;
    Ok(Stepped::Ran(commit, record))
}

/// The user's own tables are found as the server says, and planned as it does.
async fn settings(work: &Work<'_>, path: &str, plans: &str) -> Result<(), Stop> {
    work.connection.rows(sql::USER_SETTINGS, &[&path, &plans]).await?;
    Ok(())
}

async fn last_seq(work: &Work<'_>, key: i64) -> Result<u64, Stop> {
    let last = super::alone::last_record(&work.connection, key).await?;
    last.map(|record| record.seq)
        .ok_or_else(|| Stop::corrupt(format!("the journal of execution {key} is empty")))
}

/// The savepoint is gone when the user's own statements have ended the transaction.
fn ended(stop: Stop) -> Stop {
    match stop {
        Stop::Database(error) if error.as_db_error().is_some() => {
            unsupported("the transaction step ended the transaction that it runs in")
        }
        other => Stop::Told(other.told("transaction", Kind::Writes)),
    }
}
