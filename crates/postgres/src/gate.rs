//! The thread of a store, and the way into it.
//!
//! A store is called from anywhere: from an engine's runtime, or from a thread without one. Its
//! connections have to be driven while nobody waits for an answer, and an operation goes on when
//! its answer is dropped. So the store has one thread of its own with a small runtime. Operations
//! are tasks there, and answers come back through channels that need no runtime.

use std::future::Future;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use abide_store::{Answer, Error, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};

/// Starts a task on the store's own runtime, where it is called. It ends with the connection or
/// with the runtime.
#[expect(clippy::disallowed_methods, reason = "the store's thread owns its tasks, and ends them at its end")]
pub(crate) fn start(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

/// Runs something that blocks on a thread where it may.
#[expect(clippy::disallowed_methods, reason = "a user's closure blocks, and the caller waits for it")]
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> std::result::Result<T, Error> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|source| Error::Unavailable { what: "transaction", source: source.into() })
}

/// Waits for some time, which has nothing to do with the clock of the data.
#[expect(clippy::disallowed_methods, reason = "how long the server is left alone is no time of the data")]
pub(crate) async fn pause(millis: u64) {
    tokio::time::sleep(std::time::Duration::from_millis(millis)).await;
}

/// The way into the store's thread.
pub(crate) struct Gate {
    handle: Handle,
    state: Arc<State>,
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    inside: Mutex<Inside>,
    left: Condvar,
}

#[derive(Default)]
struct Inside {
    is_closed: bool,
    count: usize,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation that is under way.
pub(crate) struct Visit(Arc<State>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.lock().count -= 1;
        self.0.left.notify_all();
    }
}

impl Gate {
    /// Starts the thread.
    #[expect(clippy::disallowed_methods, reason = "the store joins its thread when it is closed")]
    pub(crate) fn open() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, mut stopped) = watch::channel(false);
        let thread = std::thread::Builder::new().name("abide-postgres".to_owned()).spawn(move || {
            runtime.block_on(async move {
                // An error says that the store is gone.
                let _ = stopped.wait_for(|stopped| *stopped).await;
            });
            // A user's closure that still runs must not keep the process.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, state: Arc::default(), stop, thread: Mutex::new(Some(thread)) })
    }

    /// Lets an operation in, unless the store is closed.
    pub(crate) fn enter(&self) -> Option<Visit> {
        let mut inside = self.state.lock();
        if inside.is_closed {
            return None;
        }
        inside.count += 1;
        Some(Visit(Arc::clone(&self.state)))
    }

    /// Starts an operation. It goes on when its answer is dropped.
    pub(crate) fn answer<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Answer<T> {
        let Some(visit) = self.enter() else { return Answer::ready(Err(Error::Closed)) };
        let (tell, told) = oneshot::channel();
        self.start(async move {
            let answer = operation.await;
            drop(visit);
            // Nobody may wait for it any longer.
            let _ = tell.send(answer);
        });
        Answer::new(async move {
            told.await.unwrap_or_else(|source| {
                Err(Error::Indeterminate { what: "operation", source: source.into() })
            })
        })
    }

    /// Starts a task that serves the store until it is closed.
    #[expect(
        clippy::disallowed_methods,
        reason = "the store's thread owns its tasks, and ends them at its end"
    )]
    pub(crate) fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }

    /// Refuses later operations, and waits until the earlier ones have their answers.
    pub(crate) fn close(&self) {
        let mut inside = self.state.lock();
        inside.is_closed = true;
        while inside.count > 0 {
            inside = self.state.left.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.stop.send_replace(true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Its panic was told when it happened.
            let _ = thread.join();
        }
    }
}
