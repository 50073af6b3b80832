//! Requests to the store belong to the engine, not to the future of their caller.
//!
//! A caller may drop its future at any await: a timeout around it, a client that hung up. The store
//! carries out the request all the same, and its answer may be a lease. A request that is dropped
//! halfway is handed over to the runtime, which sees it through.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use abide_core::planted::{Bug, planted};
use abide_store::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::runtime::{BoxFuture, Runtime};

/// Room for requests under way (`request_count_max`).
#[derive(Clone)]
pub(crate) struct Requests {
    room: Arc<Semaphore>,
    count_max: usize,
}

impl Requests {
    /// Makes room for this many requests, and for one at least.
    pub(crate) fn new(count_max: usize) -> Self {
        let count_max = count_max.clamp(1, Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(count_max)), count_max }
    }

    /// Waits for room. Nothing is on its way meanwhile, so this future may be dropped.
    pub(crate) async fn enter(&self) -> Result<OwnedSemaphorePermit, Error> {
        match self.room.clone().try_acquire_owned() {
            Ok(permit) => Ok(permit),
            Err(_) => self.room.clone().acquire_owned().await.map_err(|_| Error::Closed),
        }
    }

    /// Returns the number of requests under way.
    pub(crate) fn count(&self) -> usize {
        self.count_max - self.room.available_permits()
    }
}

/// A request under way. Dropping it hands it over to the runtime, and its outcome is discarded.
pub(crate) struct Request<T: Send + 'static> {
    running: Option<BoxFuture<T>>,
    runtime: Arc<dyn Runtime>,
}

impl<T: Send + 'static> Request<T> {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, running: impl Future<Output = T> + Send + 'static) -> Self {
        Self { running: Some(Box::pin(running)), runtime }
    }
}

impl<T: Send + 'static> Future for Request<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let running = self.running.as_mut().expect("a request that has ended is not polled again");
        let outcome = std::task::ready!(running.as_mut().poll(cx));
        self.running = None;
        Poll::Ready(outcome)
    }
}

impl<T: Send + 'static> Drop for Request<T> {
    fn drop(&mut self) {
        if let Some(running) = self.running.take().filter(|_| !planted(Bug::StartStranded)) {
            self.runtime.spawn(Box::pin(async move { drop(running.await) }));
        }
    }
}
