//! Keeps a session, and with it every lease, alive.

use std::sync::{Arc, Weak};
use std::time::Duration;

use abide_store::Heartbeat;

use crate::engine::Inner;

/// Beats until the engine's session has ended, or the engine is dropped: a shutdown that lets closures finish needs its leases for as long. A session that is gone is replaced: what it held is lost, and claimed anew.
pub(crate) async fn run(engine: Weak<Inner>) {
    let Some((runtime, every)) =
        engine.upgrade().map(|engine| (engine.runtime.clone(), engine.options.session_ttl / 3))
    else {
        return;
    };
    // Three beats fit into one life, so that a lost one harms nobody.
    let mut pause = every;
    loop {
        runtime.sleep(pause).await;
        let Some(engine) = engine.upgrade().filter(|engine| !engine.is_closed()) else { return };
        pause = match beat(&engine).await {
            Ok(()) => every,
            Err(error) => {
                tracing::warn!(%error, "a heartbeat did not go through");
                (every / 10).max(Duration::from_millis(10))
            }
        };
    }
}

/// One heartbeat; a session that is gone is replaced.
pub(crate) async fn beat(engine: &Arc<Inner>) -> abide_store::Result<()> {
    let session = engine.session();
    match engine.store.heartbeat(session).await? {
        Heartbeat::Refreshed { .. } => {}
        // Whatever it held is lost, and nothing new is taken.
        Heartbeat::NotRegistered if engine.is_closing() => {}
        Heartbeat::NotRegistered => {
            engine.replace_session(session).await?;
        }
    }
    Ok(())
}
