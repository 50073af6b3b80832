//! Executions that run on the tasks of their callers.
//!
//! A caller that starts an execution and waits for its end has a task already. A second one would
//! cost a twentieth of a short execution, most of it for the way from task to task. So the caller's
//! future polls the execution itself, as its *host*.
//!
//! A host may stop polling: it is dropped, or its task is busy with something else, as a `select!`
//! is in the body of another branch. Nothing may wait for that:
//!
//! - A host that is dropped hands its execution over to a task of its own.
//! - So does a host that was woken and did not poll for `host_patience`, at most for twice as
//!   long, and every host when the engine shuts down or loses its session. Its caller is woken, and
//!   waits for the end as all others do. A host that has no reason to poll is left alone.
//!
//! Only a task that polls the future itself is a host, and only while it does: a thread that blocks
//! on the future, or another executor, could not run the code of a step.
//!
//! A task hosts one execution at a time. A task that waits for many, as with `join_all`, would run
//! them one after the other, although there are more processors.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Event, KeyHasher};

use crate::engine::Inner;
use crate::runtime::{BoxFuture, TaskNumber};
use crate::submission::Newborn;
use crate::task_waker::TaskWaker;
use crate::unanswered::Unanswered;

/// The tasks that host an execution.
#[derive(Default)]
pub(crate) struct Hosts {
    state: Mutex<State>,
    /// What callers may be given without coming back for it.
    pub(crate) unanswered: Unanswered,
}

#[derive(Default)]
struct State {
    hosts: HashMap<TaskNumber, Arc<Host>, KeyHasher>,
    /// Whether somebody looks for hosts that do not poll.
    is_watched: bool,
}

/// A caller that polls an execution.
#[derive(Default)]
pub(crate) struct Host {
    /// The execution, which runs until it leaves memory.
    running: Mutex<Option<BoxFuture<()>>>,
    /// The waker of the caller.
    caller: TaskWaker,
    /// The event that ended the execution.
    end: Mutex<Option<Event>>,
    /// Whether it was woken since it polled last.
    is_woken: AtomicBool,
    /// Whether it was woken already when somebody looked last.
    is_late: AtomicBool,
    /// Whether its execution is to run on a task of its own.
    is_given_up: AtomicBool,
}

/// A host is woken in place of its caller: so it is known whether the caller has a reason to poll.
impl Wake for Host {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.caller.wake();
    }
}

impl Hosts {
    /// Makes the task that polls with this waker a host. Returns `None` if it must not be one.
    pub(crate) fn enter(&self, engine: &Arc<Inner>, waker: &Waker) -> Option<Hosting> {
        let task = engine.runtime.current_task(waker).filter(|_| engine.options.calls_code_on_callers())?;
        let mut state = self.lock();
        if engine.is_closing() || state.hosts.contains_key(&task) {
            return None;
        }
        let host = Arc::new(Host::default());
        state.hosts.insert(task, host.clone());
        let is_watched = std::mem::replace(&mut state.is_watched, true);
        drop(state);
        if !is_watched {
            engine.runtime.spawn(Box::pin(watch(Arc::downgrade(engine))));
        }
        Some(Hosting { engine: engine.clone(), task, host })
    }

    /// Has every execution run on a task of its own.
    pub(crate) fn dissolve(&self, engine: &Inner) {
        let hosts: Vec<_> = self.lock().hosts.values().cloned().collect();
        hosts.iter().for_each(|host| host.give_up(engine));
    }

    /// Does the same for the hosts that were woken before the last call and have not polled since.
    /// Returns whether there are hosts.
    fn look(&self, engine: &Inner) -> bool {
        let (late, is_empty): (Vec<_>, bool) = {
            let mut state = self.lock();
            let late = state.hosts.values().filter(|host| host.look()).cloned().collect();
            state.is_watched = !state.hosts.is_empty();
            (late, state.hosts.is_empty())
        };
        late.iter().filter(|_| !planted(Bug::HostKeeps)).for_each(|host| host.give_up(engine));
        !is_empty
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn patience(engine: &Inner) -> BoxFuture<()> {
    const PATIENCE_MIN: Duration = Duration::from_millis(1);
    engine.runtime.sleep(engine.options.host_patience.max(PATIENCE_MIN))
}

/// Looks for hosts that do not poll, as long as there are hosts.
async fn watch(engine: Weak<Inner>) {
    while let Some(pause) = engine.upgrade().map(|engine| patience(&engine)) {
        pause.await;
        let Some(engine) = engine.upgrade() else { return };
        if !engine.hosts.look(&engine) {
            return;
        }
    }
}

impl Host {
    /// Whether it was woken before the last look and has not polled since.
    fn look(&self) -> bool {
        let is_woken = self.is_woken.load(Ordering::Acquire);
        self.is_late.swap(is_woken, Ordering::Relaxed) && is_woken
    }

    /// Takes the event that ended the execution.
    pub(crate) fn end(&self, event: Event) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(event);
    }

    /// Has the execution run on a task of its own. If it is polled at this moment, or is not there
    /// yet, its host sees to that after the poll.
    fn give_up(&self, engine: &Inner) {
        // Before the lock is tried: a host that has released it looks at this.
        self.is_given_up.store(!planted(Bug::HostUnasked), Ordering::SeqCst);
        let Ok(mut running) = self.running.try_lock() else { return };
        if let Some(future) = running.take() {
            drop(running);
            engine.runtime.spawn(future);
            self.caller.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<BoxFuture<()>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that is a host until this is dropped.
pub(crate) struct Hosting {
    engine: Arc<Inner>,
    task: TaskNumber,
    host: Arc<Host>,
}

impl Hosting {
    /// Hosts an execution that was just leased. The future resolves with the event that ended it,
    /// or with `None` if it has left this task otherwise. Dropping it hands the execution over.
    pub(crate) fn run(&self, newborn: Newborn) -> Hosted<'_> {
        let future = newborn.seated(&self.engine, Some(self.host.clone()));
        Hosted { hosting: self, future, waker: self.host.clone().into(), has_waited: false }
    }
}

impl Drop for Hosting {
    fn drop(&mut self) {
        self.engine.hosts.lock().hosts.remove(&self.task);
    }
}

/// A hosted execution.
pub(crate) struct Hosted<'a> {
    hosting: &'a Hosting,
    /// The execution, until it was polled.
    future: Option<BoxFuture<()>>,
    /// The waker of the host.
    waker: Waker,
    has_waited: bool,
}

impl Hosted<'_> {
    /// Whether its caller has had to wait for it. If not, nothing has given other tasks a turn.
    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Polls the execution. Returns `None` if it was given up: its caller waits for it in another
    /// way.
    fn poll_running(&mut self) -> Poll<Option<Event>> {
        let host = &self.hosting.host;
        let mut running = host.lock();
        if let Some(future) = self.future.take() {
            *running = Some(future);
        }
        let Some(future) = &mut *running else { return Poll::Ready(None) };
        if future.as_mut().poll(&mut Context::from_waker(&self.waker)).is_ready() {
            *running = None;
            return Poll::Ready(host.end.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
        Poll::Pending
    }
}

impl Future for Hosted<'_> {
    type Output = Option<Event>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let Hosting { engine, task, host } = self.hosting;
        host.caller.register(cx.waker());
        // Before the poll: a wake during it is a reason for the next one.
        host.is_late.store(false, Ordering::Relaxed);
        host.is_woken.store(false, Ordering::Release);
        // Its future may have been moved to where no code of a step can run.
        let is_host = engine.runtime.current_task(cx.waker()) == Some(*task);
        if !is_host || host.is_given_up.load(Ordering::SeqCst) {
            self.hand_over();
            return Poll::Ready(None);
        }
        let polled = self.poll_running();
        if polled.is_pending() {
            self.has_waited = true;
            // Asked for during the poll, and after the lock is released.
            if host.is_given_up.load(Ordering::SeqCst) {
                self.hand_over();
                return Poll::Ready(None);
            }
        }
        polled
    }
}

impl Hosted<'_> {
    /// Has the execution run on a task of its own, if it is still here.
    fn hand_over(&mut self) {
        let running = self.hosting.host.lock().take();
        if let Some(future) = self.future.take().or(running) {
            self.hosting.engine.runtime.spawn(future);
        }
    }
}

impl Drop for Hosted<'_> {
    fn drop(&mut self) {
        if !planted(Bug::HostStrands) {
            self.hand_over();
        }
    }
}
