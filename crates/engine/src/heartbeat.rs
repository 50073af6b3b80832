//! Keeps a session, and with it every lease, alive.

use std::sync::Arc;
use std::time::Duration;

use abide_store::Heartbeat;

use crate::engine::Inner;

/// Beats until the engine closes. A session that is gone is replaced: what it held is lost, and claimed anew.
pub(crate) async fn run(engine: Arc<Inner>) {
    // Three beats fit into one life, so that a lost one harms nobody.
    let every = engine.options.session_ttl / 3;
    let mut pause = every;
    while !engine.is_closing() {
        engine.runtime.sleep_until(engine.runtime.now().after(pause)).await;
        if engine.is_closing() {
            return;
        }
        pause = match beat(&engine).await {
            Ok(()) => every,
            Err(error) => {
                tracing::warn!(%error, "a heartbeat did not go through");
                (every / 10).max(Duration::from_millis(10))
            }
        };
    }
}

async fn beat(engine: &Arc<Inner>) -> abide_store::Result<()> {
    match engine.store.heartbeat(engine.session()).await? {
        Heartbeat::Refreshed { .. } => {}
        Heartbeat::NotRegistered => {
            tracing::warn!(session = %engine.session(), "the session is gone; a new one is registered");
            engine.register().await?;
            engine.kick.notify_one();
        }
    }
    Ok(())
}
