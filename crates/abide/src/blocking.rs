//! The blocking pool, for `ctx.blocking`.
//!
//! A job waits in the pool's queue for a thread. Dropping its future does not remove it from the
//! queue. So the job and the future share a [`Ticket`]: the first of the two to take it decides
//! whether the job runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abide_core::planted::{Bug, planted};
use abide_engine::{Inside, Runtime, panics};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// A pool for simulations: a simulated process whose tasks run in their turn replaces the threads.
pub(crate) struct BlockingPool(pub(crate) Arc<dyn Runtime>);

/// A decision between two outcomes: the job begins, or it is given up and never begins.
#[derive(Clone, Default)]
struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// Returns `true` to the first caller only.
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// A guard that abandons a job when its future is dropped. By then its step is recorded, cancelled
/// or held by another worker. A job that has begun runs to its end.
struct GivesUp(Ticket);

impl Drop for GivesUp {
    fn drop(&mut self) {
        if !planted(Bug::QueuedJobRuns) {
            self.0.take();
        }
    }
}

/// Runs a closure on a thread that may block, or on the simulation's pool. Dropping the future
/// prevents a closure from beginning if it has not begun yet.
pub(crate) async fn on_the_pool<T: Send + 'static>(
    simulated: Option<Arc<dyn Runtime>>,
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let ticket = Ticket::default();
    let _gives_up = GivesUp(ticket.clone());
    let inside = Inside::current().filter(|_| !planted(Bug::KeyOffThread));
    let run = move || match ticket.take() {
        // On any thread, the closure's calls for a key or a random number belong to this step.
        true => match inside {
            Some(inside) => inside.enter(run),
            None => run(),
        },
        // Nobody receives this error.
        false => Err(Error::refusal("the job was given up before it began")),
    };
    // The thread that panics knows the line.
    let run = move || {
        catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|panic| Err(Error::from_failure(panics::failure(panic))))
    };
    match simulated {
        Some(runtime) => in_its_turn(&*runtime, run).await,
        None => on_a_thread(run).await,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "user code that blocks belongs on the pool of the user's own runtime"
)]
async fn on_a_thread<T: Send + 'static>(run: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(run).await {
        Ok(result) => result,
        Err(cancelled) => Err(cancelled.into()),
    }
}

async fn in_its_turn<T: Send + 'static>(
    runtime: &dyn Runtime,
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    runtime.spawn(Box::pin(async move {
        // A dropped receiver no longer needs the result.
        let _ = sender.send(run());
    }));
    receiver.await?
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Drops a job that waits for a thread, as a timeout, a cancellation or a lost lease does.
    #[test]
    fn a_job_that_was_given_up_before_it_began_never_begins() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (release, released) = mpsc::channel::<()>();
            let mut occupies = pin!(on_the_pool(None, move || Ok(released.recv().is_ok())));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(occupies.as_mut().poll(&mut cx).is_pending());
            let has_begun = Arc::new(AtomicBool::new(false));
            let begun = has_begun.clone();
            let mut waits = Box::pin(on_the_pool(None, move || {
                begun.store(true, Ordering::SeqCst);
                Ok(())
            }));
            assert!(waits.as_mut().poll(&mut cx).is_pending());
            drop(waits);
            release.send(()).unwrap();
            assert!(occupies.await.unwrap());
            // The queue is first in, first out: the dropped job would have run before this one.
            on_the_pool(None, || Ok(())).await.unwrap();
            assert!(!has_begun.load(Ordering::SeqCst));
        });
    }

    #[test]
    fn a_job_that_is_waited_for_runs() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(on_the_pool(None, || Ok(7))).unwrap(), 7);
        let ticket = Ticket::default();
        assert_eq!((ticket.take(), ticket.take()), (true, false));
    }

    /// Drops the future of a running job: the job runs to its end, because nothing can stop it.
    #[test]
    fn a_job_that_has_begun_runs_to_its_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (begin, begun) = mpsc::channel();
            let (end, ended) = mpsc::channel();
            let (let_go, may_go) = mpsc::channel::<()>();
            let mut job = Box::pin(on_the_pool(None, move || {
                begin.send(()).unwrap();
                may_go.recv().unwrap();
                end.send(()).unwrap();
                Ok(())
            }));
            assert!(matches!(job.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
            begun.recv().unwrap();
            drop(job);
            let_go.send(()).unwrap();
            ended.recv().unwrap();
        });
    }
}
