//! Connections that read, each on a thread of its own. They never wait for the writer.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use abide_store::{Answer, Error, Result};
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use crate::batch::Shared;
use crate::error::{Stop, opening, reading};
use crate::view::{Memory, View};
use crate::{os, schema, sql};

type Task = Box<dyn FnOnce(Result<&Connection>) + Send>;

/// The readers. Threads are started when they are needed, up to `reader_count_max`.
pub(crate) struct Readers {
    shared: Arc<Shared>,
    memory: Arc<Memory>,
    room: Arc<Semaphore>,
    queue: Mutex<ReadQueue>,
    arrived: Condvar,
    /// The connection of a store without threads.
    here: Mutex<Option<Connection>>,
}

#[derive(Default)]
struct ReadQueue {
    tasks: VecDeque<Task>,
    idle_count: usize,
    /// How many threads serve, without those that are about to end.
    serving_count: usize,
    threads: Vec<JoinHandle<()>>,
    /// Grows when the threads at hand are to end once they have nothing to do.
    season: u64,
    closed: bool,
}

impl Readers {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let room = Semaphore::new(shared.options.queue_count_max.min(Semaphore::MAX_PERMITS));
        let (queue, arrived, here) = (Mutex::default(), Condvar::new(), Mutex::default());
        Self { shared, memory: Arc::default(), room: Arc::new(room), queue, arrived, here }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Reads on a reader's thread, in one transaction.
    pub(crate) fn read<T: Send + 'static>(
        self: &Arc<Self>,
        what: &'static str,
        work: impl FnOnce(&View<'_>) -> std::result::Result<T, Stop> + Send + 'static,
    ) -> Answer<T> {
        let readers = Arc::clone(self);
        Answer::new(async move {
            let _permit = Arc::clone(&readers.room).acquire_owned().await.map_err(|_| Error::Closed)?;
            let (sender, receiver) = oneshot::channel();
            let (shared, memory) = (Arc::clone(&readers.shared), Arc::clone(&readers.memory));
            let task: Task = Box::new(move |connection| {
                let outcome = connection.and_then(|connection| {
                    let view = View { connection, shared: &shared, memory: &memory };
                    in_transaction(what, &view, work)
                });
                // The send fails only when the caller has gone.
                let _ = sender.send(outcome);
            });
            readers.push(task)?;
            receiver.await.unwrap_or(Err(Error::Closed))
        })
    }

    /// Reads in one transaction, on the thread of the caller.
    pub(crate) fn read_here<T>(
        &self,
        what: &'static str,
        work: impl FnOnce(&View<'_>) -> std::result::Result<T, Stop>,
    ) -> Result<T> {
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lock().closed {
            return Err(Error::Closed);
        }
        let connection = match here.take() {
            Some(connection) => connection,
            None => self.open()?,
        };
        let view = View { connection: &connection, shared: &self.shared, memory: &self.memory };
        let outcome = in_transaction(what, &view, work);
        *here = Some(connection).filter(Connection::is_autocommit);
        outcome
    }

    fn push(self: &Arc<Self>, task: Task) -> Result<()> {
        let mut queue = self.lock();
        if queue.closed {
            return Err(Error::Closed);
        }
        queue.tasks.push_back(task);
        if queue.idle_count < queue.tasks.len()
            && queue.serving_count < self.shared.options.reader_count_max.max(1)
        {
            let (readers, season) = (Arc::clone(self), queue.season);
            let started = os::spawn("abide-sqlite-reader", move || readers.serve(season));
            match started {
                Ok(thread) => {
                    queue.serving_count += 1;
                    queue.threads.retain(|thread| !thread.is_finished());
                    queue.threads.push(thread);
                }
                Err(error) if queue.serving_count == 0 => {
                    queue.tasks.pop_back();
                    return Err(Error::Unavailable { what: "read", source: error.into() });
                }
                Err(_) => {}
            }
        }
        drop(queue);
        self.arrived.notify_one();
        Ok(())
    }

    /// Lets the threads end that have nothing to do, and with them their connections and their
    /// memory. Later reads start others.
    pub(crate) fn idle(&self) {
        self.lock().season += 1;
        self.arrived.notify_all();
    }

    fn serve(&self, season: u64) {
        let mut connection: Option<Connection> = None;
        while let Some(task) = self.next_task(season) {
            if connection.is_none() {
                match self.open() {
                    Ok(opened) => connection = Some(opened),
                    Err(error) => {
                        task(Err(error));
                        continue;
                    }
                }
            }
            let Some(opened) = &connection else { continue };
            if catch_unwind(AssertUnwindSafe(|| task(Ok(opened)))).is_err() {
                tracing::error!("a reader panicked; its connection is given up");
                connection = None;
            } else if !opened.is_autocommit() {
                // Its transaction could not be ended, and would show the next reader the past.
                tracing::warn!("a reader failed; its connection is given up");
                connection = None;
            }
        }
    }

    fn open(&self) -> Result<Connection> {
        const WHAT: &str = "open a reader";
        let path = self.shared.path.as_ref().ok_or(Error::Closed)?;
        self.shared.check_name().map_err(|failure| failure.error(WHAT))?;
        schema::open_reader(path, &self.shared.options).map_err(|error| opening(WHAT, &error))
    }

    fn next_task(&self, season: u64) -> Option<Task> {
        let mut queue = self.lock();
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                return Some(task);
            }
            if queue.closed || queue.season != season {
                queue.serving_count -= 1;
                return None;
            }
            queue.idle_count += 1;
            queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle_count -= 1;
        }
    }

    pub(crate) fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        let threads = std::mem::take(&mut queue.threads);
        drop(queue);
        self.room.close();
        self.arrived.notify_all();
        *self.here.lock().unwrap_or_else(PoisonError::into_inner) = None;
        threads.into_iter().for_each(os::join);
    }

    fn lock(&self) -> MutexGuard<'_, ReadQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wraps all reads in one transaction: otherwise SQLite takes locks for each row, and rows may move
/// in between.
pub(crate) fn in_transaction<T>(
    what: &'static str,
    view: &View<'_>,
    work: impl FnOnce(&View<'_>) -> std::result::Result<T, Stop>,
) -> Result<T> {
    view.shared.check_file().map_err(|failure| failure.error(what))?;
    let run = |text| view.connection.prepare_cached(text).and_then(|mut statement| statement.execute([]));
    run(sql::BEGIN_READ).map_err(|error| opening(what, &error))?;
    let outcome = work(view);
    // The read is complete, however the transaction ends. A malformed file fails every commit, even
    // that of a reader.
    if run(sql::COMMIT).is_err()
        && let Err(error) = run(sql::ROLLBACK)
    {
        tracing::warn!(what, %error, "a read transaction cannot be ended");
    }
    match outcome {
        Ok(value) => Ok(value),
        Err(Stop::Refused(error)) => Err(error),
        Err(Stop::Sql(error)) => Err(reading(what, &error)),
        Err(Stop::Broken(failure)) => Err(failure.error(what)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use abide_core::Namespace;
    use abide_store::conformance::block_on;
    use abide_store::{IdleHook, List, Store, View as _};

    use super::*;
    use crate::fixture::{pair, start};

    #[test]
    fn an_idle_store_ends_its_readers_and_calls_the_hook_on_its_writer() {
        let (_folder, ours, _theirs) = pair();
        start(&ours, "a");
        let count = || block_on(ours.list(List::of(Namespace::default(), 10))).unwrap().items.len();
        for _ in 0..3 {
            assert_eq!(count(), 1);
            assert_eq!(ours.readers.lock().serving_count, 1);
            let (sender, receiver) = channel();
            let sender = Mutex::new(sender);
            let hook = move || {
                let name = std::thread::current().name().map(str::to_owned);
                sender.lock().unwrap().send(name).unwrap();
            };
            ours.idle(&IdleHook::new(hook));
            assert_eq!(receiver.recv().unwrap().as_deref(), Some("abide-sqlite-writer"));
            let threads = std::mem::take(&mut ours.readers.lock().threads);
            // This ends with them.
            threads.into_iter().for_each(os::join);
            assert_eq!(ours.readers.lock().serving_count, 0);
        }
        start(&ours, "b");
        assert_eq!(count(), 2, "later reads start another");
    }
}
