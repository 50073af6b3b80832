//! A store without threads, for simulations. Its owner steps the writer, one transaction at a time,
//! and decides the fate of each. Batches, retries and recovery are those of production; only their
//! callers and the times of the calls differ.

use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use abide_store::Clock;
use rusqlite::Connection;

use crate::error::{BatchFailure, Meaning, OpenError};
use crate::os::Stopwatch;
use crate::wal::Wal;
use crate::writer::{Drive, WriteQueue, Writer, run};
use crate::{Options, SqliteStore, schema, sql};

/// The fate of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The transaction is committed, unless SQLite itself objects.
    Committed,
    /// The process dies before COMMIT. [`crash`](SqliteStore::crash) has to follow.
    Killed,
    /// COMMIT fails with an unknown outcome. The transaction did not happen.
    Unwritten,
    /// COMMIT fails with an unknown outcome. The transaction did happen: the operations are
    /// answered with their results, and the owner of the store withholds these from the callers.
    Unheard,
    /// The database file cannot grow.
    Full,
}

impl Fate {
    /// Returns the error of COMMIT when the disk fails.
    pub(crate) fn unknown() -> BatchFailure {
        BatchFailure { meaning: Meaning::Indeterminate, complaint: "disk I/O error".to_owned() }
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

/// The outcome of a step.
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
    /// Opens a database file like [`open`](Self::open), but without threads. `tell` returns the
    /// elapsed time, which need not be real. The log is taken as it is: the power does not fail
    /// here, and to write it again would wait, in real time, for another simulated writer.
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
        let writes = Arc::new(WriteQueue::new(writer, &shared, Drive::Steps));
        Ok(Arc::new(Self::assemble(shared, Some(writes), Some(wal))))
    }

    /// Runs the writer's next transaction.
    pub fn step(&self, fate: Fate) -> Stepped {
        self.writes().map_or(Stepped::Idle, |writes| writes.step(fate))
    }

    /// Resolves when a step would have something to do. Only one task may wait.
    pub fn poll_jobs(&self, context: &Context<'_>) -> Poll<()> {
        self.writes().map_or(Poll::Pending, |writes| writes.poll_jobs(context))
    }

    /// Does the work of the thread that asks whether other processes have written.
    pub fn look_up(&self) {
        self.shared.keep_files();
        if let Some(Err(failure)) = self.writes().map(|writes| writes.lock_writer().look_up()) {
            tracing::debug!(why = failure.complaint, "cannot ask whether the database has changed");
        }
    }

    /// Ends the store as if its process died: queued operations are gone, and nothing is cleaned
    /// up.
    pub fn crash(&self) {
        if let Some(writes) = self.writes() {
            writes.die();
        }
        self.shared.forget_locks();
        self.close();
    }
}

impl WriteQueue {
    /// Runs the writer's next transaction, whose fate is decided. Operations that wait for another
    /// process go back to the queue.
    pub(crate) fn step(&self, fate: Fate) -> Stepped {
        let mut writer = self.lock_writer();
        let jobs = self.take_batch();
        if jobs.is_empty() {
            return Stepped::Idle;
        }
        writer.fate = fate;
        let waiting = run(writer, |writer| fate.around(writer, |writer| writer.advance(jobs)));
        self.lock_writer().fate = Fate::Committed;
        let waiting = waiting.unwrap_or_default();
        if waiting.is_empty() {
            return Stepped::Done;
        }
        let mut queue = self.lock_queue();
        waiting.into_iter().rev().for_each(|job| queue.ordinary.push_front(job));
        Stepped::Busy
    }

    /// Waits until there is something to do. Only one task may wait.
    pub(crate) fn poll_jobs(&self, context: &Context<'_>) -> Poll<()> {
        let mut queue = self.lock_queue();
        if !queue.is_empty() {
            return Poll::Ready(());
        }
        queue.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Drops the queued operations: the process is dead.
    pub(crate) fn die(&self) {
        let mut queue = self.lock_queue();
        queue.closed = true;
        let jobs = (std::mem::take(&mut queue.urgent), std::mem::take(&mut queue.ordinary));
        drop(queue);
        self.lock_writer().die();
        drop(jobs);
    }
}

/// Another process that writes, and does not end.
#[derive(Debug)]
pub struct Stranger(#[expect(dead_code, reason = "it holds the lock until it is dropped")] Connection);

impl Stranger {
    /// Takes the write lock; returns nothing if another process has it.
    pub fn writing(path: &Path) -> Option<Self> {
        let connection = Connection::open(path).ok()?;
        connection.busy_timeout(Duration::ZERO).ok()?;
        connection.execute_batch(sql::BEGIN).ok()?;
        Some(Self(connection))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use abide_core::{Address, Body, ExecutionId, Message, MessageId, Namespace};
    use abide_store::conformance::{TestClock, block_on};
    use abide_store::{Answer, Beat, Error, List, Store, Submissions, Submit, View};

    use super::*;

    struct Pair {
        folder: tempfile::TempDir,
        ours: Arc<SqliteStore>,
        theirs: Arc<SqliteStore>,
        millis: Arc<AtomicU64>,
    }

    /// Returns two stores on one file, like those of two processes.
    fn pair() -> Pair {
        let folder = tempfile::tempdir().unwrap();
        let millis = Arc::new(AtomicU64::new(0));
        let open = || {
            let millis = millis.clone();
            let tell = move || Duration::from_millis(millis.load(Ordering::Relaxed));
            let path = folder.path().join("a.db");
            SqliteStore::stepped(&path, TestClock::new(), Options::default(), tell).unwrap()
        };
        let (ours, theirs) = (open(), open());
        Pair { folder, ours, theirs, millis }
    }

    fn start(store: &SqliteStore, id: &str) -> Answer<Submissions> {
        let start = abide_core::fixture::flow();
        let to = Address { namespace: Namespace::default(), id: ExecutionId::new(id).unwrap() };
        let body = Body::Start(start.into());
        let message = Message::new(MessageId::new(format!("start {id}")), to, abide_core::By::client(), body);
        store.submit(Submit { messages: vec![message], born_to: None, alone: false, stretch: None })
    }

    /// Returns the answer, if it has arrived.
    fn told<T>(answer: &mut Answer<T>) -> Option<abide_store::Result<T>> {
        match answer.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    /// Returns the executions in the database, as another process sees them.
    fn found(store: &SqliteStore) -> Vec<String> {
        let list = List::of(Namespace::default(), 10);
        let page = block_on(store.list(list)).unwrap();
        page.items.into_iter().map(|item| item.address.id.to_string()).collect()
    }

    #[test]
    fn nothing_happens_before_a_step_and_everything_that_waits_shares_it() {
        let Pair { folder: _folder, ours, theirs, .. } = pair();
        let mut answers = [start(&ours, "a"), start(&ours, "b")];
        assert!(answers.iter_mut().all(|answer| told(answer).is_none()));
        assert_eq!(found(&theirs), [""; 0]);
        assert_eq!(ours.step(Fate::Committed), Stepped::Done);
        assert!(answers.iter_mut().all(|answer| matches!(told(answer), Some(Ok(_)))));
        assert_eq!(found(&theirs), ["a", "b"]);
        assert_eq!(ours.step(Fate::Committed), Stepped::Idle);
    }

    /// Otherwise a session would die behind a long queue.
    #[test]
    fn a_heartbeat_goes_before_everything_that_waits() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { batch_count_max: 2, ..Options::default() };
        let store =
            SqliteStore::stepped(&folder.path().join("a.db"), TestClock::new(), options, || Duration::ZERO)
                .unwrap();
        let mut registered = store.register(crate::fixture::worker("default"));
        store.step(Fate::Committed);
        let session = told(&mut registered).unwrap().unwrap().session;
        let mut starts = ["a", "b", "c"].map(|id| start(&store, id));
        let mut beat = store.heartbeat(Beat::of(session));
        assert_eq!(store.step(Fate::Committed), Stepped::Done);
        assert!(told(&mut beat).is_some(), "it waits behind the starts");
        assert_eq!(starts.iter_mut().filter_map(told).count(), 1);
    }

    #[test]
    fn a_transaction_meets_its_fate() {
        let rows = [
            (Fate::Committed, "done", 1),
            (Fate::Killed, "lost", 0),
            (Fate::Unwritten, "unknown", 0),
            (Fate::Unheard, "done", 1),
        ];
        for (fate, expected, count) in rows {
            let Pair { folder: _folder, ours, theirs, .. } = pair();
            let mut answer = start(&ours, "a");
            ours.step(fate);
            let word = match told(&mut answer) {
                Some(Ok(_)) => "done",
                Some(Err(Error::Indeterminate { .. })) => "unknown",
                Some(Err(Error::Corrupt { .. })) => "lost",
                other => panic!("{fate:?}: {other:?}"),
            };
            assert_eq!(word, expected, "{fate:?}");
            assert_eq!(found(&theirs).len(), count, "{fate:?}");
            if fate != Fate::Killed {
                // The writer continues, with a new connection if necessary.
                let mut next = start(&ours, "b");
                assert_eq!(ours.step(Fate::Committed), Stepped::Done);
                assert!(matches!(told(&mut next), Some(Ok(_))), "{fate:?}");
            }
        }
    }

    #[test]
    fn a_full_disk_is_told_to_those_whose_rows_find_no_room() {
        let Pair { folder: _folder, ours, theirs, .. } = pair();
        let mut failed_count = 0;
        for number in 0..200 {
            let mut answer = start(&ours, &format!("{number:0>200}"));
            ours.step(Fate::Full);
            match told(&mut answer) {
                Some(Ok(_)) => {}
                Some(Err(Error::Unavailable { .. })) => failed_count += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(failed_count > 0);
        let mut answer = start(&ours, "last");
        ours.step(Fate::Committed);
        assert!(matches!(told(&mut answer), Some(Ok(_))));
        assert!(theirs.verify().unwrap().is_sound());
    }

    #[test]
    fn who_waits_for_another_process_goes_on_after_it_or_is_told_in_time() {
        let Pair { folder, ours, theirs, millis } = pair();
        let stranger = Stranger::writing(&folder.path().join("a.db")).unwrap();
        let mut early = start(&ours, "early");
        assert_eq!(ours.step(Fate::Committed), Stepped::Busy);
        millis.store(3_000, Ordering::Relaxed);
        let mut late = start(&ours, "late");
        assert_eq!(ours.step(Fate::Committed), Stepped::Busy);
        millis.store(5_000, Ordering::Relaxed);
        assert_eq!(ours.step(Fate::Committed), Stepped::Busy);
        assert!(matches!(told(&mut early), Some(Err(Error::Busy { .. }))));
        assert!(told(&mut late).is_none());
        drop(stranger);
        assert_eq!(ours.step(Fate::Committed), Stepped::Done);
        assert!(matches!(told(&mut late), Some(Ok(_))));
        assert_eq!(found(&theirs), ["late"]);
    }

    #[test]
    fn a_crash_forgets_what_waits() {
        let Pair { folder: _folder, ours, theirs, .. } = pair();
        drop(start(&ours, "a"));
        ours.crash();
        assert_eq!(ours.step(Fate::Committed), Stepped::Idle);
        assert_eq!(found(&theirs), [""; 0]);
    }
}
