//! A closure of the user's inside our transaction.
//!
//! The rules keep mistakes from hurting others; they are no defence against malice, because the closure runs in the same
//! process with the same rights.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use abide_store::{Transacted, Transaction};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use crate::batch::Batch;
use crate::error::{Failure, Meaning, Stop};
use crate::home::Moment;
use crate::sql;

/// How many steps of SQLite's machine pass between two looks at the time.
const STEPS_BETWEEN_LOOKS: i32 = 10_000;

/// Whether a statement may be prepared.
pub(crate) fn authorize(guarded: bool, context: &AuthContext<'_>) -> Authorization {
    if !guarded || is_allowed(&context.action) { Authorization::Allow } else { Authorization::Deny }
}

fn is_allowed(action: &AuthAction<'_>) -> bool {
    use AuthAction as A;
    let ours = |name: &str| {
        let prefix = name.get(..6).unwrap_or("");
        prefix.eq_ignore_ascii_case("abide_")
    };
    match action {
        A::Transaction { .. }
        | A::Savepoint { .. }
        | A::Pragma { .. }
        | A::Attach { .. }
        | A::Detach { .. }
        | A::Unknown { .. } => false,
        A::CreateIndex { table_name, index_name }
        | A::CreateTempIndex { table_name, index_name }
        | A::DropIndex { table_name, index_name }
        | A::DropTempIndex { table_name, index_name } => !ours(table_name) && !ours(index_name),
        A::CreateTrigger { table_name, trigger_name }
        | A::CreateTempTrigger { table_name, trigger_name }
        | A::DropTrigger { table_name, trigger_name }
        | A::DropTempTrigger { table_name, trigger_name } => !ours(table_name) && !ours(trigger_name),
        A::CreateTable { table_name }
        | A::CreateTempTable { table_name }
        | A::DropTable { table_name }
        | A::DropTempTable { table_name }
        | A::Delete { table_name }
        | A::Insert { table_name }
        | A::Read { table_name, .. }
        | A::Update { table_name, .. }
        | A::AlterTable { table_name, .. }
        | A::Analyze { table_name }
        | A::CreateVtable { table_name, .. }
        | A::DropVtable { table_name, .. } => !ours(table_name),
        A::CreateView { view_name }
        | A::CreateTempView { view_name }
        | A::DropView { view_name }
        | A::DropTempView { view_name } => !ours(view_name),
        A::Reindex { index_name } => !ours(index_name),
        A::Select | A::Function { .. } | A::Recursive => true,
        // A kind of statement that this version of the library does not know.
        _ => false,
    }
}

/// Runs the closure in a savepoint, under the rules and with a time limit, and keeps or undoes what it wrote.
pub(crate) fn run(batch: &Batch<'_>, transaction: &Transaction) -> Result<Transacted, Stop> {
    let connection = batch.connection;
    connection.prepare_cached(sql::SAVEPOINT)?.execute([])?;
    let limit = Duration::from_millis(batch.shared.options.transaction_ms_max);
    let began = Moment::now();
    connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(move || began.elapsed() >= limit))?;
    batch.guarded.store(true, Ordering::Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(|| (transaction.0)(connection as &dyn Any)));
    batch.guarded.store(false, Ordering::Relaxed);
    connection.progress_handler(0, None::<fn() -> bool>)?;
    if connection.is_autocommit() {
        // `INSERT OR ROLLBACK` and its kind: everything in the transaction is undone, not only this.
        return Err(broken("a statement of the transaction step ended the transaction"));
    }
    let transacted = match outcome {
        Ok(transacted) => transacted,
        Err(_) => return Err(broken("the transaction step panicked outside the user's code")),
    };
    if !transacted.keep {
        connection.prepare_cached(sql::SAVEPOINT_ROLLBACK)?.execute([])?;
    }
    connection.prepare_cached(sql::SAVEPOINT_RELEASE)?.execute([])?;
    Ok(transacted)
}

pub(crate) fn broken(complaint: &str) -> Stop {
    Stop::Broken(Failure { meaning: Meaning::Misuse, complaint: complaint.to_owned() })
}
