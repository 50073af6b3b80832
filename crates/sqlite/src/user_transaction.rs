//! A user's closure inside our transaction.
//!
//! The rules keep mistakes from hurting others. They are no defence against malice, because the
//! closure runs in the same process with the same rights.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use abide_core::Refusal;
use abide_core::planted::{Bug, planted};
use abide_store::{ExecutionKey, Transacted, Transaction};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use crate::batch::Batch;
use crate::error::{BatchFailure, Meaning, Stop};
use crate::os::Moment;
use crate::sql;
use crate::step_connection::Rules;
use crate::trouble::SLOW_AFTER;

/// The number of steps of SQLite's machine between two looks at the time.
const STEPS_BETWEEN_LOOKS: i32 = 10_000;

/// Decides whether a statement may be prepared.
pub(crate) fn authorize(rules: &Rules, context: &AuthContext<'_>) -> Authorization {
    if !rules.guarded.load(Ordering::Relaxed) {
        return Authorization::Allow;
    }
    // A temporary object outlives the transaction, in a connection that all steps share, and hides
    // tables of the same name. SQLite itself searches its list of them when a table is altered, and
    // nobody can write that list by hand.
    let is_temporary = context.database_name == Some("temp") && !is_list_of_temporary(&context.action);
    if context.database_name == Some("temp") && planted(Bug::TemporaryAllowed) {
        return Authorization::Allow;
    }
    if is_temporary || !is_allowed(&context.action) {
        return Authorization::Deny;
    }
    if is_reshaping(&context.action) {
        rules.reshaped.store(true, Ordering::Relaxed);
    }
    Authorization::Allow
}

/// Whether an action may use a name, or lead to a table, of which an authorizer does not hear.
fn is_reshaping(action: &AuthAction<'_>) -> bool {
    use AuthAction as A;
    let is_created = matches!(
        action,
        A::CreateTable { .. } | A::CreateTrigger { .. } | A::CreateView { .. } | A::CreateVtable { .. }
    );
    matches!(action, A::AlterTable { .. }) || is_created && !planted(Bug::ClosureNamesOwnTables)
}

fn is_list_of_temporary(action: &AuthAction<'_>) -> bool {
    match action {
        AuthAction::Read { table_name, .. } | AuthAction::Update { table_name, .. } => {
            *table_name == "sqlite_temp_master"
        }
        _ => false,
    }
}

fn is_allowed(action: &AuthAction<'_>) -> bool {
    use AuthAction as A;
    let begins = |name: &str, with: &str| {
        name.get(..with.len()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(with))
    };
    let ours = |name: &str| begins(name, "abide_") && !planted(Bug::OwnNamesAllowed);
    // The index of a primary key or a unique column.
    let our_index = |name: &str| ours(name) || begins(name, "sqlite_autoindex_abide_");
    // The statistics by which SQLite finds rows, also ours. SQLite itself writes the results of
    // ANALYZE there, and deletes those of a dropped table.
    let of_planner = |name: &str| begins(name, "sqlite_stat");
    match action {
        A::Transaction { .. }
        | A::Savepoint { .. }
        | A::Attach { .. }
        | A::Detach { .. }
        | A::CreateTempIndex { .. }
        | A::CreateTempTable { .. }
        | A::CreateTempTrigger { .. }
        | A::CreateTempView { .. }
        | A::DropTempIndex { .. }
        | A::DropTempTable { .. }
        | A::DropTempTrigger { .. }
        | A::DropTempView { .. }
        | A::Unknown { .. } => false,
        A::CreateIndex { table_name, index_name } | A::DropIndex { table_name, index_name } => {
            !ours(table_name) && !ours(index_name)
        }
        A::CreateTrigger { table_name, trigger_name } | A::DropTrigger { table_name, trigger_name } => {
            !ours(table_name) && !ours(trigger_name)
        }
        A::Insert { table_name } | A::Update { table_name, .. } => {
            !ours(table_name) && !of_planner(table_name)
        }
        A::CreateTable { table_name }
        | A::DropTable { table_name }
        | A::Delete { table_name }
        | A::Read { table_name, .. }
        | A::AlterTable { table_name, .. }
        | A::Analyze { table_name }
        | A::CreateVtable { table_name, .. }
        | A::DropVtable { table_name, .. } => !ours(table_name),
        A::CreateView { view_name } | A::DropView { view_name } => !ours(view_name),
        A::Reindex { index_name } => !our_index(index_name),
        // SQLite's full-text search asks on its own whether others have written, and its R-tree
        // asks for the size of a page.
        A::Pragma { pragma_name: "data_version" | "page_size", pragma_value: None } => true,
        A::Select | A::Function { .. } | A::Recursive => true,
        // Any other PRAGMA, and a kind of statement that this version of the library does not know.
        _ => false,
    }
}

/// Runs the closure in a savepoint, under the rules and with a time limit, and keeps or undoes its
/// writes.
///
/// The closure's own outcome counts only when the connection agrees. The closure can have ended the
/// transaction or taken too long. The disk can have been full, which the closure then reports as an
/// error of its own.
pub(crate) fn run(
    batch: &Batch<'_>,
    (key, transaction): (ExecutionKey, &Transaction),
) -> Result<Transacted, Stop> {
    let step = batch.writer;
    let connection = &step.connection;
    connection.prepare_cached(sql::SAVEPOINT)?.execute([])?;
    step.count_own_names()?;
    let limit = Duration::from_millis(batch.shared.options.transaction_ms_max);
    let deadline = Deadline { began: Moment::now(), limit };
    connection.progress_handler(
        STEPS_BETWEEN_LOOKS,
        Some(move || deadline.is_over() && !planted(Bug::SqlNotInterrupted)),
    )?;
    let outcome = batch.shared.troubles.during(key, batch.now(), || {
        step.under_rules(deadline, || catch_unwind(AssertUnwindSafe(|| (transaction.0)(step as &dyn Any))))
    });
    deadline.tell_slow(key);
    connection.progress_handler(0, None::<fn() -> bool>)?;
    let is_late = deadline.is_over() && !planted(Bug::OverrunCommitted);
    match step.fault.take() {
        Some(fault) if !is_late && !planted(Bug::FullDiskFailsStep) => return Err(Stop::Broken(fault)),
        _ => {}
    }
    if connection.is_autocommit() {
        // `INSERT OR ROLLBACK` and the like undo everything in the transaction, not only this step.
        let why = if is_late { deadline.complaint() } else { ENDED.to_owned() };
        return Err(broken(why));
    }
    let Ok(transacted) = outcome else {
        return Err(broken("the transaction step panicked outside the user's code"));
    };
    let refusal = match (is_late, step.has_taken_name()?) {
        (true, _) => Some(deadline.complaint()),
        // A step that failed reports its own error.
        (false, true) if transacted.keep => Some(TAKEN.to_owned()),
        (false, _) => None,
    };
    if refusal.is_some() || !transacted.keep {
        connection.prepare_cached(sql::SAVEPOINT_ROLLBACK)?.execute([])?;
    }
    connection.prepare_cached(sql::SAVEPOINT_RELEASE)?.execute([])?;
    match refusal {
        Some(what) => Err(Refusal::Unsupported { what }.into()),
        None => Ok(transacted),
    }
}

pub(crate) const ENDED: &str = "a statement of the transaction step ended the transaction";
const TAKEN: &str = "the transaction step gave something a name that begins with \"abide_\", or made a view, a trigger, a virtual table or a foreign key that names a table of abide's";

/// Blames the closure itself: it would do the same if it ran again.
pub(crate) fn broken(complaint: impl Into<String>) -> Stop {
    Stop::Broken(BatchFailure { meaning: Meaning::Misuse, complaint: complaint.into() })
}

/// The time limit of a closure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    began: Moment,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn is_over(self) -> bool {
        self.began.elapsed() >= self.limit
    }

    /// Logs that a finished closure kept everybody else waiting.
    fn tell_slow(self, key: ExecutionKey) {
        let elapsed = self.began.elapsed();
        if elapsed >= SLOW_AFTER {
            let ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(key = key.0, ms, "a transaction step kept the writer: nothing else was written");
        }
    }

    pub(crate) fn complaint(self) -> String {
        format!("the transaction step took longer than transaction_ms_max, {} ms", self.limit.as_millis())
    }
}
