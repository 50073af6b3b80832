//! The store itself: the part behind each of its methods, and the threads that it owns.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use abide_core::{Enqueued, Refusal, SessionId};
use abide_store::{
    Answer, Aside, Beat, Claim, Claimed, Clock, Commit, CommitOutcome, Error, Feed, FeedPage, Heartbeat,
    IdleHook, Import, Imported, InboxPage, InboxRead, IntakeLook, LeasePage, Leases, List, Listing, Notice,
    Prune, Read, Registered, Result, Retire, Snapshot, Store, Submissions, Submit, TakeIn, TakenIn, Trouble,
    Worker, WorkerRow, Workers,
};
use rusqlite::Connection;

use crate::apply::{
    AsideWork, ClaimWork, CommitWork, EnqueueWork, HeartbeatWork, ImportWork, PruneWork, RegisterWork,
    RetireWork, SubmitWork, TakeInWork,
};
use crate::batch::Shared;
use crate::error::{OpenError, Stop};
use crate::job::Operation;
use crate::named::NamedFile;
use crate::notices::Notices;
use crate::os::Stopwatch;
use crate::poll::Poll;
use crate::reader::{Readers, in_transaction};
use crate::trouble::{self, Troubles};
use crate::view::View;
use crate::wal::Wal;
use crate::writer::{Drive, Scheduling, WriteQueue, Writer};
use crate::{Options, apply, inherited, os, schema};

/// A [`Store`] in an SQLite database.
pub struct SqliteStore {
    pub(crate) shared: Arc<Shared>,
    /// `None` when the store only reads.
    writes: Option<Arc<WriteQueue>>,
    pub(crate) readers: Arc<Readers>,
    wal: Option<Arc<Wal>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The connection of a store that only reads which stays attached to the index of the log.
    /// Otherwise the first reader could be the one that makes it anew, long after `open`.
    anchor: Mutex<Option<Connection>>,
}

impl SqliteStore {
    /// Returns the version of the schema of a file, and the one that this program knows.
    pub fn versions(path: &Path) -> std::result::Result<(i64, i64), OpenError> {
        schema::versions(&schema::resolved(path)?)
    }

    /// Opens a database file, creating it and bringing it to the current schema if need be. The
    /// application may keep tables of its own in it: all of abide's are called `abide_…`.
    pub fn open(
        path: &Path,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> std::result::Result<Arc<Self>, OpenError> {
        let path = &schema::resolved(path)?;
        if options.read_only {
            return Self::open_read_only(path, clock, options);
        }
        schema::check_file(path)?;
        let connection = schema::open_writer(path, &options)?;
        inherited::settle(&connection.connection, path, &[])?;
        // The writer waits for other processes itself, because it knows since when its operations
        // wait.
        let patience = connection.connection.busy_timeout(Duration::ZERO);
        patience.map_err(|error| schema::explain(path, error))?;
        let wal = Arc::new(Wal::new(path, &options));
        let shared = Arc::new(shared(Some(path), clock, options));
        let writer = Writer::new(connection, Arc::clone(&shared), Some(Arc::clone(&wal)));
        let writes = Arc::new(WriteQueue::new(writer, &shared, Drive::Thread));
        let store = Arc::new(Self::assemble(shared, Some(writes), Some(wal)));
        store.start_threads().map_err(|error| unusable(path, error))?;
        Ok(store)
    }

    fn open_read_only(
        path: &Path,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> std::result::Result<Arc<Self>, OpenError> {
        let anchor = schema::open_read_only(path, &options)?;
        inherited::sync(path)?;
        let shared = Arc::new(shared(Some(path), clock, options));
        let store = Arc::new(Self::assemble(shared, None, None));
        *store.lock_anchor() = Some(anchor);
        store.start_threads().map_err(|error| unusable(path, error))?;
        Ok(store)
    }

    /// Opens an empty database in memory. It has one connection and no threads: every operation
    /// runs when it is called, on the thread of its caller.
    pub fn in_memory(clock: Arc<dyn Clock>, options: Options) -> std::result::Result<Arc<Self>, OpenError> {
        let connection = schema::open_in_memory(&options)?;
        let shared = Arc::new(shared(None, clock, options));
        let writer = Writer::new(connection, Arc::clone(&shared), None);
        let writes = Arc::new(WriteQueue::new(writer, &shared, Drive::Caller));
        Ok(Arc::new(Self::assemble(shared, Some(writes), None)))
    }

    pub(crate) fn assemble(
        shared: Arc<Shared>,
        writes: Option<Arc<WriteQueue>>,
        wal: Option<Arc<Wal>>,
    ) -> Self {
        let readers = Arc::new(Readers::new(Arc::clone(&shared)));
        Self { shared, writes, readers, wal, threads: Mutex::default(), anchor: Mutex::default() }
    }

    fn start_threads(&self) -> std::io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(writes), Some(wal)) = (&self.writes, &self.wal) else {
            let shared = Arc::clone(&self.shared);
            threads.push(os::spawn("abide-sqlite-poll", move || shared.poll.serve_reader(&shared))?);
            return Ok(());
        };
        let writer = Arc::clone(writes);
        threads.push(os::spawn("abide-sqlite-writer", move || writer.serve())?);
        let (wal, sizer) = (Arc::clone(wal), Arc::clone(writes));
        threads.push(os::spawn("abide-sqlite-log", move || wal.serve(&sizer))?);
        let (writes, shared) = (Arc::clone(writes), Arc::clone(&self.shared));
        threads.push(os::spawn("abide-sqlite-poll", move || shared.poll.serve(&writes, &shared))?);
        Ok(())
    }

    /// Closes the store. Queued operations are still done, later ones are refused. Others find its
    /// sessions dead at once, unless they were retired.
    pub fn close(&self) {
        if let Some(writes) = &self.writes {
            writes.close();
        }
        if let Some(wal) = &self.wal {
            wal.close();
        }
        self.shared.poll.close(&self.shared);
        self.readers.close();
        self.shared.notices.close();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.into_iter().for_each(os::join);
        if let Some(writes) = &self.writes {
            let mut writer = writes.lock_writer();
            // Before the connection is closed: a lock says that somebody keeps the index of the log
            // (see `inherited`).
            self.shared.forget_locks();
            writer.shut();
        }
        *self.lock_anchor() = None;
    }

    fn lock_anchor(&self) -> MutexGuard<'_, Option<Connection>> {
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts rows into the intake table, all or none. It is for a store in memory, whose database no
    /// other connection reaches; [`enqueue`](crate::enqueue) does it in a transaction of the
    /// caller's own.
    pub fn enqueue(&self, rows: Vec<Enqueued>) -> Answer<()> {
        self.write(EnqueueWork(rows), Scheduling::Queued)
    }

    /// Returns up to so many rows that stand in the intake table, and of those that were refused.
    pub fn intake(&self, limit: usize) -> Answer<IntakeLook> {
        let bytes_max = self.shared.options.page_bounds.claim_bytes_max;
        self.view("intake", move |view| apply::look_into_intake(view.connection, limit, bytes_max))
    }

    /// Puts a row into the intake table, in the transaction of this connection to the same file.
    pub fn enqueue_in(&self, connection: &Connection, row: &Enqueued) -> Result<()> {
        let refused = |what: String| Err(Error::Refused(Refusal::Unsupported { what }));
        let theirs = connection.path().unwrap_or_default();
        match &self.shared.path {
            None => refused("nobody else has a connection to a store in memory".to_owned()),
            Some(own) if !Path::new(theirs).canonicalize().is_ok_and(|theirs| theirs == *own) => {
                refused(format!(
                    "the transaction is one of {theirs:?}, and the store is {:?}",
                    own.display().to_string()
                ))
            }
            Some(_) => apply::enqueue(connection, row).map_err(|error| apply::enqueuing(&error)),
        }
    }

    pub(crate) fn writes(&self) -> Option<&WriteQueue> {
        self.writes.as_deref()
    }

    pub(crate) fn write<O: Operation>(&self, operation: O, scheduling: Scheduling) -> Answer<O::Output> {
        match &self.writes {
            Some(writes) => writes.submit(operation, scheduling),
            None => read_only(O::WHAT),
        }
    }

    /// Reads in one transaction: on a reader's thread, or on the caller's in a store without
    /// threads.
    pub(crate) fn view<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&View<'_>) -> std::result::Result<T, Stop> + Send + 'static,
    ) -> Answer<T> {
        match self.writes.as_ref().map(|writes| writes.drive()) {
            Some(Drive::Caller) => Answer::ready(self.view_of_writer(what, work)),
            Some(Drive::Steps) => Answer::ready(self.readers.read_here(what, work)),
            Some(Drive::Thread) | None => self.readers.read(what, work),
        }
    }

    /// Reads with the only connection of a store in memory.
    pub(crate) fn view_of_writer<T>(
        &self,
        what: &'static str,
        work: impl FnOnce(&View<'_>) -> std::result::Result<T, Stop>,
    ) -> Result<T> {
        let writes = self.writes.as_ref().filter(|writes| !writes.is_closed()).ok_or(Error::Closed)?;
        let writer = writes.lock_writer();
        let connection = writer.connection().ok_or(Error::Closed)?;
        let view = View { connection, shared: &self.shared, memory: self.readers.memory() };
        in_transaction(what, &view, work)
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

pub(crate) fn shared(path: Option<&Path>, clock: Arc<dyn Clock>, options: Options) -> Shared {
    Shared {
        clock,
        options,
        stopwatch: Stopwatch::default(),
        path: path.map(Path::to_owned),
        file: path.and_then(NamedFile::of),
        notices: Notices::default(),
        poll: Poll::default(),
        locks: Mutex::default(),
        absences: Mutex::default(),
        troubles: Troubles::default(),
        requests: Mutex::default(),
        keepers: Mutex::default(),
        // A store in memory has no thread that could wake callers.
        tokio: path.and_then(|_| tokio::runtime::Handle::try_current().ok()),
    }
}

fn unusable(path: &Path, error: std::io::Error) -> OpenError {
    OpenError::Unusable { path: path.to_owned(), source: error.into() }
}

fn read_only<T: Send + 'static>(what: &str) -> Answer<T> {
    let what = format!("the store was opened read-only: no {what}");
    Answer::ready(Err(Error::Refused(Refusal::Unsupported { what })))
}

fn scheduling(alone: bool) -> Scheduling {
    if alone { Scheduling::Alone } else { Scheduling::Queued }
}

impl Store for SqliteStore {
    fn submit(&self, submit: Submit) -> Answer<Submissions> {
        let scheduling = scheduling(submit.alone);
        self.write(SubmitWork::new(submit), scheduling)
    }

    fn claim(&self, claim: Claim) -> Answer<Claimed> {
        self.write(ClaimWork::new(claim), Scheduling::Queued)
    }

    fn commit(&self, commit: Commit) -> Answer<CommitOutcome> {
        let scheduling = scheduling(commit.alone);
        self.write(CommitWork::new(commit), scheduling)
    }

    fn set_aside(&self, aside: Aside) -> Answer<()> {
        self.write(AsideWork(aside), Scheduling::Queued)
    }

    fn register(&self, worker: Worker) -> Answer<Registered> {
        self.write(RegisterWork(worker), Scheduling::Queued)
    }

    fn heartbeat(&self, beat: Beat) -> Answer<Heartbeat> {
        self.write(HeartbeatWork::new(beat), Scheduling::Urgent)
    }

    fn retire(&self, retire: Retire) -> Answer<()> {
        self.write(RetireWork(retire), Scheduling::Queued)
    }

    fn prune(&self, prune: Prune) -> Answer<u64> {
        let Some(writes) = self.writes.clone() else { return read_only(PruneWork::WHAT) };
        Answer::new(async move {
            let mut left = prune;
            let mut count = 0;
            loop {
                // A transaction for each stretch: others get their turn between them.
                let pruned = writes.submit(PruneWork(left), Scheduling::Queued).await?;
                count += pruned.count;
                left.limit -= usize::try_from(pruned.count).unwrap_or(left.limit);
                if pruned.is_done {
                    return Ok(count);
                }
            }
        })
    }

    fn import(&self, import: Import) -> Answer<Imported> {
        self.write(ImportWork(import), Scheduling::Queued)
    }

    fn take_in(&self, take_in: TakeIn) -> Answer<TakenIn> {
        self.write(TakeInWork::new(take_in), Scheduling::Queued)
    }

    fn wait(&self, session: SessionId) -> Answer<Vec<Notice>> {
        self.shared.notices.wait(session)
    }

    fn idle(&self, hook: &IdleHook) {
        self.readers.idle();
        if let Some(writes) = self.writes.as_ref().filter(|writes| writes.drive() == Drive::Thread) {
            writes.idle(hook);
        }
    }

    fn close(&self) {
        Self::close(self);
    }
}

impl abide_store::View for SqliteStore {
    fn read(&self, read: Read) -> Answer<Option<Snapshot>> {
        self.view("read", move |view| view.snapshot(&read))
    }

    fn inbox(&self, inbox: InboxRead) -> Answer<InboxPage> {
        self.view("inbox", move |view| view.inbox(inbox))
    }

    fn list(&self, list: List) -> Answer<Listing> {
        self.view("list", move |view| view.list(&list))
    }

    fn feed(&self, feed: Feed) -> Answer<FeedPage> {
        self.view("feed", move |view| view.feed(feed))
    }

    fn changed(&self) -> Answer<()> {
        let mut followed = self.shared.notices.follow();
        self.shared.poll.wake();
        // It ends with the store, and later reads fail with the reason.
        Answer::new(async move { followed.changed().await.map_err(|_| Error::Closed) })
    }

    fn workers(&self, workers: Workers) -> Answer<Vec<WorkerRow>> {
        self.view("workers", move |view| view.workers(&workers))
    }

    fn leases(&self, leases: Leases) -> Answer<LeasePage> {
        self.view("leases", move |view| view.leases(&leases))
    }

    fn trouble(&self) -> Answer<Option<Trouble>> {
        let met = self.shared.troubles.told(self.shared.stopwatch.now());
        let of_disk = || self.shared.path.as_deref().and_then(trouble::of_disk);
        Answer::ready(Ok(met.or_else(of_disk)))
    }
}
