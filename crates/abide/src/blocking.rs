//! The blocking pool, for `ctx.blocking`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_engine::{Runtime, panics};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// What a simulation has in the place of threads that may block: a process whose tasks run in their turn.
pub(crate) struct BlockingPool(pub(crate) Arc<dyn Runtime>);

/// Runs a closure on a thread that may block, or where the simulation says.
pub(crate) async fn on_the_pool<T: Send + 'static>(
    simulated: Option<Arc<dyn Runtime>>,
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
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
        Err(joined) => match joined.try_into_panic() {
            Ok(panic) => Err(Error::from_failure(panics::failure(panic.as_ref()))),
            Err(cancelled) => Err(cancelled.into()),
        },
    }
}

async fn in_its_turn<T: Send + 'static>(
    runtime: &dyn Runtime,
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    runtime.spawn(Box::pin(async move {
        let result = catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|panic| Err(Error::from_failure(panics::failure(panic.as_ref()))));
        // Whoever no longer waits does not need it.
        let _ = sender.send(result);
    }));
    receiver.await?
}
