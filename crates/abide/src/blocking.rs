//! `ctx.blocking`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use abide_core::Retry;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::step::Step;

type Running<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;
type Attempt<T> = Box<dyn FnMut() -> Running<T> + Send>;

/// A step on a thread of the blocking pool. Await it; options come first.
#[must_use = "a step does nothing unless it is awaited"]
pub struct Blocking<F, T> {
    step: Step<Attempt<T>, Running<T>, T>,
    closure: std::marker::PhantomData<fn() -> F>,
}

impl<F, T> Blocking<F, T>
where
    F: FnOnce() -> Result<T> + Clone + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
{
    pub(crate) fn new(ctx: Ctx, name: &str, run: F) -> Self {
        let attempt: Attempt<T> = Box::new(move || Box::pin(on_the_pool(run.clone())));
        Self { step: Step::new(ctx, name, attempt), closure: std::marker::PhantomData }
    }
}

impl<F, T> Blocking<F, T> {
    /// When to try again after an error.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.step = self.step.retry(retry);
        self
    }

    /// How long one attempt may take. The thread itself cannot be stopped: its late result is discarded.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.step = self.step.timeout(timeout);
        self
    }

    /// Records a hash of `input` with the result; see [`Step::input`].
    pub fn input<I: Serialize>(mut self, input: &I) -> Self {
        self.step = self.step.input(input);
        self
    }
}

impl<F, T: Serialize + DeserializeOwned + Send> Future for Blocking<F, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.step).poll(cx)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "user code that blocks belongs on the pool of the user's own runtime"
)]
async fn on_the_pool<T: Send + 'static>(run: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(run).await {
        Ok(result) => result,
        Err(joined) => match joined.try_into_panic() {
            Ok(panic) => Err(Error::from_failure(abide_engine::panics::failure(panic.as_ref()))),
            Err(cancelled) => Err(cancelled.into()),
        },
    }
}
