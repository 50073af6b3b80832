//! Time, tasks and chance: everything that the engine takes from outside comes through here.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Poll, RawWakerVTable, Waker};
use std::thread::ThreadId;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use abide_core::Timestamp;
use abide_store::{Clock, IdleHook};

/// The number of a task of the runtime.
pub type TaskNumber = tokio::task::Id;

/// A boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A point on a clock that nobody can set. It measures durations, and never says what time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// Returns the moment this long after the clock began.
    pub fn new(since_beginning: Duration) -> Self {
        Self(since_beginning)
    }

    /// Returns this moment plus `duration`.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// Returns the time from `earlier` to this moment, or zero if this moment is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The runtime of an engine. The simulator has another one, with a clock of its own and a seed.
///
/// There are two kinds of waits. Waits for a point in time (a timer, a deadline, the next attempt)
/// follow the wall clock, which may be set forward and back. Waits of a given length (a pause, a
/// grace period, a timeout, recurring work) are monotonic: on a wall clock that was set back, they
/// would last that much longer.
pub trait Runtime: Clock {
    /// Resolves when the wall clock has reached `at`, even if it was set meanwhile.
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()>;

    /// Resolves after `duration`, whatever happens to the wall clock.
    fn sleep(&self, duration: Duration) -> BoxFuture<()>;

    /// Resolves after `duration`, in a pause of recurring work such as a heartbeat. The work after
    /// it changes nothing unless something else happened meanwhile, so a virtual clock need not
    /// stop for it.
    fn rest(&self, duration: Duration) -> BoxFuture<()> {
        self.sleep(duration)
    }

    /// Returns the moment on the monotonic clock.
    fn moment(&self) -> Moment;

    /// Returns the moment on the clock of [rests](Self::rest), which counts no time that a virtual
    /// clock has skipped.
    fn rest_moment(&self) -> Moment {
        self.moment()
    }

    /// Runs a future until it ends.
    fn spawn(&self, future: BoxFuture<()>);

    /// Runs a future that must not wait behind others, such as a heartbeat.
    fn spawn_urgent(&self, name: &str, future: BoxFuture<()>);

    /// Calls the hook on the threads that run tasks, as far as they are free. It does not wait for
    /// them.
    fn on_each_thread(&self, hook: IdleHook) {
        self.spawn(Box::pin(async move { hook.call() }));
    }

    /// Returns the task that polls a future with this waker, if it is one of this runtime and polls
    /// the future itself: then it may host an execution.
    fn current_task(&self, waker: &Waker) -> Option<TaskNumber> {
        let _ = waker;
        None
    }

    /// Whether the code of an execution may begin in this poll: the waker is that of a task of this
    /// runtime.
    fn may_begin_code(&self, waker: &Waker) -> bool {
        self.current_task(waker).is_some()
    }

    /// Whether a thread of this runtime may wait for the disk: others go on with its other tasks.
    fn has_several_threads(&self) -> bool {
        true
    }

    /// Whether tasks wait for a thread of this runtime. Those do not want one to wait for a disk.
    fn has_waiting_tasks(&self) -> bool {
        false
    }

    /// Whether this thread may wait for the disk.
    fn has_time_for_the_disk(&self) -> bool {
        self.has_several_threads() && !self.has_waiting_tasks()
    }

    /// Returns a random number.
    fn random(&self) -> u64;

    /// Whether the clock depends on the waits for the outside world, as only a virtual one does.
    fn minds_outside(&self) -> bool {
        false
    }

    /// Counts user code that began (+1) or ceased (-1) to wait for the outside world. A virtual
    /// clock does not run ahead of it.
    fn count_outside(&self, change: i64) {
        let _ = change;
    }

    /// Records that a wait for something in this engine begins or ceases to hold the waker whose
    /// data is at this address. Any other holder of the waker is outside.
    fn wait_inside(&self, waker: usize, is_waiting: bool) {
        let _ = (waker, is_waiting);
    }

    /// Returns how many such waits hold that waker.
    fn inside_count(&self, waker: usize) -> usize {
        let _ = waker;
        0
    }
}

/// A measurement of real time, for a virtual clock that has to wait for it.
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
    /// The table of functions of a task's own waker, once a task has shown it.
    task_wakers: Arc<OnceLock<&'static RawWakerVTable>>,
    has_several_threads: bool,
    /// How far the clock of the database server is ahead of the system's, in microseconds.
    ahead_us: Arc<AtomicI64>,
}

impl TokioRuntime {
    /// Returns the runtime that the caller runs on, or `None` outside tokio.
    #[expect(clippy::disallowed_methods, reason = "this is the home of the monotonic clock and of tasks")]
    pub fn current() -> Option<Arc<Self>> {
        let handle = tokio::runtime::Handle::try_current().ok()?;
        let task_wakers = Arc::new(OnceLock::new());
        let learnt = task_wakers.clone();
        handle.spawn(poll_fn(move |cx| {
            let _ = learnt.set(cx.waker().vtable());
            Poll::Ready(())
        }));
        let flavor = handle.runtime_flavor();
        let has_several_threads = flavor != tokio::runtime::RuntimeFlavor::CurrentThread;
        let ahead_us = Arc::default();
        Some(Arc::new(Self { handle, began: Instant::now(), task_wakers, has_several_threads, ahead_us }))
    }
}

/// Calls the hook on a thread that has not been called yet. Nobody can choose the thread of a task:
/// it yields until another one takes it, but not for ever, because that one may be busy.
async fn call_elsewhere(hook: IdleHook, called: Arc<Mutex<Vec<ThreadId>>>) {
    const TRY_COUNT: usize = 100;
    for _ in 0..TRY_COUNT {
        if is_first_on_this_thread(&called) {
            return hook.call();
        }
        tokio::task::yield_now().await;
    }
}

fn is_first_on_this_thread(called: &Mutex<Vec<ThreadId>>) -> bool {
    let mut called = called.lock().unwrap_or_else(PoisonError::into_inner);
    let thread = std::thread::current().id();
    let is_first = !called.contains(&thread);
    if is_first {
        called.push(thread);
    }
    is_first
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
        now_with(&self.ahead_us)
    }

    fn follow(&self, ahead_us: i64) {
        self.ahead_us.fetch_add(ahead_us, Ordering::Relaxed);
    }
}

fn now_with(ahead_us: &AtomicI64) -> Timestamp {
    let system = SystemClock.now().as_micros();
    Timestamp::from_micros(system.saturating_add(ahead_us.load(Ordering::Relaxed)))
}

impl Runtime for TokioRuntime {
    #[expect(clippy::disallowed_methods, reason = "this is the home of tokio's timers")]
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()> {
        // Long sleeps are cut: the wall clock may be set, and tokio's timers follow the monotonic
        // one.
        const CUT: Duration = Duration::from_secs(1);
        let ahead_us = self.ahead_us.clone();
        Box::pin(async move {
            loop {
                let left = at.since(now_with(&ahead_us));
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(CUT)).await;
            }
        })
    }

    #[expect(clippy::disallowed_methods, reason = "this is the home of tokio's timers")]
    fn sleep(&self, duration: Duration) -> BoxFuture<()> {
        // The timer is made in the first poll: it belongs to the runtime of the waiting task, and
        // the heartbeat has one of its own.
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
        // It has a thread and timers of its own: user code that blocks every worker thread must not
        // delay a heartbeat, and the end of the user's runtime must not surprise it.
        let body = move || match tokio::runtime::Builder::new_current_thread().enable_time().build() {
            Ok(runtime) => runtime.block_on(future),
            Err(error) => tracing::error!(%error, "no timers could be made"),
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10);
        if let Err(error) = thread.spawn(body) {
            tracing::error!(%error, name, "no thread could be started");
        }
    }

    fn on_each_thread(&self, hook: IdleHook) {
        let called = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..self.handle.metrics().num_workers() {
            self.spawn(Box::pin(call_elsewhere(hook.clone(), called.clone())));
        }
    }

    fn current_task(&self, waker: &Waker) -> Option<TaskNumber> {
        // Not the waker of a thread that blocks on the future, nor of a combinator, nor of another
        // execution's code.
        if !std::ptr::eq(*self.task_wakers.get()?, waker.vtable()) {
            return None;
        }
        let task = tokio::task::try_id()?;
        // A closure of the execution may use the timers and sockets of this runtime.
        let here = tokio::runtime::Handle::try_current().ok()?;
        (here.id() == self.handle.id()).then_some(task)
    }

    fn has_several_threads(&self) -> bool {
        self.has_several_threads
    }

    fn has_waiting_tasks(&self) -> bool {
        self.handle.metrics().global_queue_depth() > 0
    }

    #[expect(clippy::disallowed_methods, reason = "this is the home of the system's randomness")]
    fn random(&self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        // Each RandomState has fresh keys: the system's randomness, and a count of the calls on
        // this thread.
        std::collections::hash_map::RandomState::new().build_hasher().finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    use super::*;

    /// Every call waits for the others, so no two of them can be on one thread.
    #[test]
    fn a_hook_is_called_on_each_worker_thread() {
        const COUNT: usize = 3;
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(COUNT).build().unwrap();
        let runtime = tokio.block_on(async { TokioRuntime::current().unwrap() });
        let (sender, receiver) = channel();
        let (sender, barrier) = (Mutex::new(sender), Barrier::new(COUNT));
        let hook = IdleHook::new(move || {
            barrier.wait();
            sender.lock().unwrap().send(std::thread::current().id()).unwrap();
        });
        runtime.on_each_thread(hook);
        let threads: HashSet<ThreadId> = receiver.iter().take(COUNT).collect();
        assert_eq!(threads.len(), COUNT);
    }

    /// The only thread is busy, so all new tasks wait for it: in the common queue, but for some
    /// that it keeps to itself.
    #[test]
    fn tasks_wait_while_the_thread_is_busy_with_another() {
        const COUNT: usize = 1_000;
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let runtime = tokio.block_on(async { TokioRuntime::current().unwrap() });
        let (sender, seen) = channel();
        let busy = runtime.clone();
        runtime.spawn(Box::pin(async move {
            sender.send(busy.has_waiting_tasks()).unwrap();
            (0..COUNT).for_each(|_| busy.spawn(Box::pin(async {})));
            sender.send(busy.has_waiting_tasks()).unwrap();
        }));
        let seen: Vec<bool> = seen.iter().collect();
        assert_eq!(seen, [false, true]);
    }

    #[test]
    fn a_thread_is_the_first_of_its_kind_once() {
        let called = Mutex::default();
        let looks = [is_first_on_this_thread(&called), is_first_on_this_thread(&called)];
        let elsewhere = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new();
            thread.spawn_scoped(scope, || is_first_on_this_thread(&called)).unwrap().join().unwrap()
        });
        assert_eq!((looks, elsewhere), ([true, false], true));
    }
}
