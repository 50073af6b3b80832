//! Time, tasks and chance: everything that the engine takes from outside comes through here.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use abide_core::Timestamp;
use abide_store::Clock;

/// A future without a name.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What an engine runs on. The simulator owns another one, with a clock of its own and a seed.
pub trait Runtime: Clock {
    /// Resolves when the clock has reached `at`.
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()>;

    /// Runs a future until it ends.
    fn spawn(&self, future: BoxFuture<()>);

    /// Runs a future that must not wait behind others, such as a heartbeat.
    fn spawn_urgent(&self, name: &str, future: BoxFuture<()>);

    /// A random number.
    fn random(&self) -> u64;

    /// User code began (+1) or ceased (-1) to wait for the outside world. A virtual clock does not run ahead of it.
    fn count_outside(&self, change: i64) {
        let _ = change;
    }
}

/// The runtime of production: tokio, the system's clock and the system's randomness.
#[derive(Clone, Debug)]
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
}

impl TokioRuntime {
    /// The runtime that the caller runs on, or `None` outside of tokio.
    pub fn current() -> Option<Arc<Self>> {
        let handle = tokio::runtime::Handle::try_current().ok()?;
        Some(Arc::new(Self { handle }))
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
        // Long sleeps are cut: the wall clock may jump, and tokio's timers follow the monotonic one.
        const CUT: Duration = Duration::from_secs(60);
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
