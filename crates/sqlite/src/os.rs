//! The home of threads and of waiting for other processes. Everything else here receives the time
//! from its caller.

use std::sync::{Arc, LazyLock};
use std::task::Waker;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// Starts a thread whose owner joins it.
#[expect(
    clippy::disallowed_methods,
    reason = "SQLite blocks, so it has threads of its own; the store joins them"
)]
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(work)
}

/// Waits for a thread to end. One of a store's own threads may drop the store, when it wakes the
/// last task that has it: such a thread ends on its own.
pub(crate) fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() {
        // A panic was reported where it happened.
        let _ = thread.join();
    }
}

/// Measures the wait for other processes: in real time, independent of the store's clock, or in the
/// time of the code that steps a store without threads.
#[derive(Clone, Default)]
pub(crate) enum Stopwatch {
    #[default]
    Real,
    Told(Arc<dyn Fn() -> Duration + Send + Sync>),
}

impl Stopwatch {
    pub(crate) fn now(&self) -> Moment {
        match self {
            Self::Real => Moment::now(),
            Self::Told(tell) => Moment(tell()),
        }
    }
}

/// A point in the time of a [`Stopwatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    /// Returns this point in real time.
    #[expect(clippy::disallowed_methods, reason = "waiting for other processes is bounded in real time")]
    pub(crate) fn now() -> Self {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        Self(BEGAN.elapsed())
    }

    /// Returns the real time that has passed since.
    pub(crate) fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// Returns the time from `earlier` to this point.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    #[cfg(test)]
    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }
}

/// Leaves another process time to finish its transaction: SQLite cannot notify us when it does.
#[expect(clippy::disallowed_methods, reason = "waiting for other processes is bounded in real time")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Wakes many tasks. A wake from a foreign thread costs a lock and often a system call; from a task
/// of the runtime it is a push to a local queue. So one task is spawned to wake the rest.
#[expect(clippy::disallowed_methods, reason = "it only wakes others, and ends at once")]
pub(crate) fn wake_all(tokio: Option<Handle>, wakers: Vec<Waker>) {
    const FEW: usize = 4;
    let wakers = Wakers(wakers);
    match tokio {
        Some(tokio) if wakers.0.len() > FEW => drop(tokio.spawn(async move { drop(wakers) })),
        _ => drop(wakers),
    }
}

/// Wakes when dropped: a runtime that is shutting down drops tasks without running them, and some
/// callers live elsewhere.
struct Wakers(Vec<Waker>);

impl Drop for Wakers {
    fn drop(&mut self) {
        std::mem::take(&mut self.0).into_iter().for_each(Waker::wake);
    }
}
