//! Time, tasks and chance: everything that the engine takes from outside comes through here.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use abide_core::Timestamp;
use abide_store::Clock;

/// A future without a name.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A point on a clock that nobody can set. It tells how long something takes, never what time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// The moment so long after the clock began.
    pub fn new(since_beginning: Duration) -> Self {
        Self(since_beginning)
    }

    /// This moment plus `duration`.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// How long after `earlier` this moment is; zero when it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// What an engine runs on. The simulator owns another one, with a clock of its own and a seed.
///
/// There are two kinds of waits. What is due at a point in time (a timer, a deadline, the next attempt) follows the wall clock, which may
/// be set forward and back. Everything that lasts for so long (a pause, a grace, a timeout, what recurs) is monotonic: measured on the
/// wall clock, it would last as much longer as that was set back.
pub trait Runtime: Clock {
    /// Resolves when the wall clock has reached `at`, also if it was set meanwhile.
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()>;

    /// Resolves after `duration`, whatever happens to the wall clock.
    fn sleep(&self, duration: Duration) -> BoxFuture<()>;

    /// The same for the pauses of what recurs, such as a heartbeat: what follows changes nothing unless
    /// somebody else did something meanwhile. A virtual clock need not stop for it.
    fn rest(&self, duration: Duration) -> BoxFuture<()> {
        self.sleep(duration)
    }

    /// How far the monotonic clock is.
    fn moment(&self) -> Moment;

    /// Runs a future until it ends.
    fn spawn(&self, future: BoxFuture<()>);

    /// Runs a future that must not wait behind others, such as a heartbeat.
    fn spawn_urgent(&self, name: &str, future: BoxFuture<()>);

    /// A random number.
    fn random(&self) -> u64;

    /// Whether the clock depends on who waits for the outside world, as only a virtual one does.
    fn minds_outside(&self) -> bool {
        false
    }

    /// User code began (+1) or ceased (-1) to wait for the outside world. A virtual clock does not run ahead of it.
    fn count_outside(&self, change: i64) {
        let _ = change;
    }

    /// A wait for something that happens in this engine begins or ceases to hold the waker whose data is at this
    /// address. Whoever else holds it is outside.
    fn wait_inside(&self, waker: usize, is_waiting: bool) {
        let _ = (waker, is_waiting);
    }

    /// How many such waits hold that waker.
    fn inside_count(&self, waker: usize) -> usize {
        let _ = waker;
        0
    }
}

/// How long something takes in real time, for a virtual clock that has to wait for it.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "this is the home of the monotonic clock")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    #[expect(clippy::disallowed_methods, reason = "this is the home of the monotonic clock")]
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The runtime of production: tokio, the system's clock and the system's randomness.
#[derive(Clone, Debug)]
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
    began: Instant,
}

impl TokioRuntime {
    /// The runtime that the caller runs on, or `None` outside of tokio.
    #[expect(clippy::disallowed_methods, reason = "this is the home of the monotonic clock")]
    pub fn current() -> Option<Arc<Self>> {
        let handle = tokio::runtime::Handle::try_current().ok()?;
        Some(Arc::new(Self { handle, began: Instant::now() }))
    }
}

/// The clock of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the home of the system's clock")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}

impl Clock for TokioRuntime {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }
}

impl Runtime for TokioRuntime {
    #[expect(clippy::disallowed_methods, reason = "this is the home of tokio's timers")]
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()> {
        // Long sleeps are cut: the wall clock may be set, and tokio's timers follow the monotonic one.
        const CUT: Duration = Duration::from_secs(1);
        Box::pin(async move {
            loop {
                let left = at.since(SystemClock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(CUT)).await;
            }
        })
    }

    #[expect(clippy::disallowed_methods, reason = "this is the home of tokio's timers")]
    fn sleep(&self, duration: Duration) -> BoxFuture<()> {
        // Made when it is polled: a timer belongs to the runtime of whoever waits, and a heartbeat has one of its own.
        let until = self.moment().after(duration);
        let began = self.began;
        Box::pin(async move {
            let left = until.since(Moment::new(began.elapsed()));
            tokio::time::sleep(left).await;
        })
    }

    #[expect(clippy::disallowed_methods, reason = "this is the home of the monotonic clock")]
    fn moment(&self) -> Moment {
        Moment::new(self.began.elapsed())
    }

    #[expect(clippy::disallowed_methods, reason = "this is the home of tokio's tasks")]
    fn spawn(&self, future: BoxFuture<()>) {
        self.handle.spawn(future);
    }

    #[expect(clippy::disallowed_methods, reason = "this is the home of threads")]
    fn spawn_urgent(&self, name: &str, future: BoxFuture<()>) {
        // A thread and timers of its own: user code that blocks every worker thread must not delay a heartbeat, and the end of the
        // user's runtime must not surprise it.
        let body = move || match tokio::runtime::Builder::new_current_thread().enable_time().build() {
            Ok(runtime) => runtime.block_on(future),
            Err(error) => tracing::error!(%error, "no timers could be made"),
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10);
        if let Err(error) = thread.spawn(body) {
            tracing::error!(%error, name, "no thread could be started");
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the home of the system's randomness")]
    fn random(&self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        // Each RandomState has fresh keys from the system's randomness; the time keeps two calls apart.
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_i64(self.now().as_micros());
        hasher.finish()
    }
}
