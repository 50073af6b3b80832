//! A store without threads, for simulations: whoever has it lets its writer work, one transaction at a time, and decides what becomes of each. Batches, retries and
//! recovery are those of production; only who calls them, and when, is not.

use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use abide_store::Clock;

use crate::error::{Failure, Meaning, OpenError};
use crate::home::Stopwatch;
use crate::wal::Wal;
use crate::writer::{Desk, Drive, Writer};
use crate::{Options, SqliteStore, schema, sql};

/// What becomes of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is committed, unless SQLite itself objects.
    Committed,
    /// The process dies before COMMIT. [`crash`](SqliteStore::crash) has to follow.
    Killed,
    /// COMMIT fails so that nobody knows what happened. It did not happen.
    Unwritten,
    /// COMMIT fails so that nobody knows what happened. It did happen: the operations are answered with what they did, and whoever steps keeps
    /// that from their callers.
    Unheard,
    /// The database file cannot grow.
    Full,
}

impl Fate {
    /// What COMMIT says when the disk fails.
    pub(crate) fn unknown() -> Failure {
        Failure { meaning: Meaning::Indeterminate, complaint: "disk I/O error".to_owned() }
    }

    /// Does `work` under the conditions of this fate.
    pub(crate) fn around<T>(self, writer: &mut Writer, work: impl FnOnce(&mut Writer) -> T) -> T {
        let bound = |writer: &Writer, text| {
            let bounded = writer.connection().map(|connection| connection.query_row(text, [], |_| Ok(())));
            bounded.unwrap_or(Ok(())).expect("a bound on pages can be set at any time");
        };
        if self == Self::Full {
            bound(writer, sql::PAGES_BOUND);
        }
        let outcome = work(writer);
        if self == Self::Full {
            bound(writer, sql::PAGES_UNBOUND);
        }
        outcome
    }
}

/// How far a step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// There was nothing to do.
    Idle,
    /// A transaction has ended, and its operations are answered.
    Done,
    /// Another process writes: everything waits.
    Busy,
}

impl SqliteStore {
    /// Opens a database file as [`open`](Self::open) does, without threads. `tell` says how much time has passed; it need not be real.
    pub fn stepped(
        path: &Path,
        clock: Arc<dyn Clock>,
        options: Options,
        tell: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Result<Arc<Self>, OpenError> {
        let path = &schema::resolved(path)?;
        let connection = schema::open_writer(path, &options)?;
        connection.connection.busy_timeout(Duration::ZERO).map_err(|error| schema::explain(path, error))?;
        let wal = Arc::new(Wal::new(path, &options));
        let mut shared = crate::store::shared(Some(path), clock, options);
        shared.stopwatch = Stopwatch::Told(Arc::new(tell));
        let shared = Arc::new(shared);
        let writer = Writer::new(connection, Arc::clone(&shared), Some(Arc::clone(&wal)));
        let desk = Arc::new(Desk::new(writer, &shared, Drive::Steps));
        Ok(Arc::new(Self::assemble(shared, Some(desk), Some(wal))))
    }

    /// Lets the writer run the next transaction.
    pub fn step(&self, fate: Fate) -> Stepped {
        self.desk().map_or(Stepped::Idle, |desk| desk.step(fate))
    }

    /// Resolves when a step would find something to do. For one waiter.
    pub fn poll_jobs(&self, context: &Context<'_>) -> Poll<()> {
        self.desk().map_or(Poll::Pending, |desk| desk.poll_jobs(context))
    }

    /// What the thread does that asks whether other processes have written.
    pub fn look_up(&self) {
        self.shared.keep_locks();
        if let Some(Err(failure)) = self.desk().map(|desk| desk.lock_writer().look_up()) {
            tracing::debug!(why = failure.complaint, "cannot ask whether the database has changed");
        }
    }

    /// Ends as the death of its process does: what is queued is gone, and nothing is put in order.
    pub fn crash(&self) {
        if let Some(desk) = self.desk() {
            desk.die();
        }
        self.shared.forget_locks();
        self.close();
    }
}
