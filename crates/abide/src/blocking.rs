//! The blocking pool, for `ctx.blocking`.

use crate::error::{Error, Result};

/// Runs a closure on a thread that may block.
#[expect(
    clippy::disallowed_methods,
    reason = "user code that blocks belongs on the pool of the user's own runtime"
)]
pub(crate) async fn on_the_pool<T: Send + 'static>(
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(run).await {
        Ok(result) => result,
        Err(joined) => match joined.try_into_panic() {
            Ok(panic) => Err(Error::from_failure(abide_engine::panics::failure(panic.as_ref()))),
            Err(cancelled) => Err(cancelled.into()),
        },
    }
}
