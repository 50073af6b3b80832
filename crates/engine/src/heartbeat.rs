//! Keeps a session, and with it every lease, alive.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use abide_store::{Agreement, Beat, Heartbeat};
use tokio::sync::{Mutex, oneshot};

use crate::engine::Inner;
use crate::reconcile::{self, Difference};
use abide_core::planted::{Bug, planted};

/// Starts the heartbeat of an engine. It has a thread of its own, because user code that blocks its
/// thread must not stop it. It ends with the runtime of the code, because nobody would run the
/// executions that the session went on holding.
pub(crate) fn start(engine: &Arc<Inner>) {
    let (mut alive, gone) = oneshot::channel();
    engine.runtime.spawn(Box::pin(async move { alive.closed().await }));
    engine.runtime.spawn_urgent("abide-heartbeat", Box::pin(run(Arc::downgrade(engine), gone)));
}

/// Beats until the engine's session has ended, or the engine is dropped: a shutdown that lets
/// closures finish needs its leases for as long. A session that is gone is replaced: its leases are
/// lost, and claimed anew.
async fn run(engine: Weak<Inner>, mut gone: oneshot::Receiver<()>) {
    let Some((runtime, every)) =
        engine.upgrade().map(|engine| (engine.runtime.clone(), engine.options.session_ttl / 3))
    else {
        return;
    };
    // Three beats fit into one life, so a lost one does no harm.
    let (mut pause, mut is_failing) = (every, false);
    loop {
        let is_deserted = tokio::select! {
            biased;
            _ = &mut gone => true,
            () = runtime.rest(pause) => false,
        };
        let Some(engine) = engine.upgrade().filter(|engine| !engine.is_closed()) else { return };
        if is_deserted {
            return engine.desert().await;
        }
        if engine.is_closing() && planted(Bug::HeartStopsAtShutdown) {
            return;
        }
        let outcome = beat(&engine).await;
        tell(&outcome, is_failing);
        is_failing = outcome.is_err();
        pause = if is_failing { (every / 10).max(Duration::from_millis(10)) } else { every };
    }
}

/// Reports the first failure in a row, and its end: the others would only fill the log.
fn tell(outcome: &abide_store::Result<()>, was_failing: bool) {
    match outcome {
        Ok(()) if was_failing => tracing::info!("heartbeats go through again"),
        Ok(()) => {}
        Err(error) if was_failing => tracing::debug!(%error, "another heartbeat did not go through"),
        Err(error) => {
            tracing::warn!(%error, "a heartbeat did not go through; it is repeated until one does");
        }
    }
}

/// Sends one heartbeat, with the digest of the session's leases. Replaces a session that is gone.
async fn beat(engine: &Arc<Inner>) -> abide_store::Result<()> {
    let (session, digest) = engine.residents().beat();
    send(engine, Beat { session, digest: Some(digest), is_draining: engine.is_closing() }).await
}

/// Sends a sign of life between two heartbeats. Replaces a session that is gone.
pub(crate) async fn keep_alive(engine: &Arc<Inner>) -> abide_store::Result<()> {
    send(engine, Beat { is_draining: engine.is_closing(), ..Beat::of(engine.session()) }).await
}

/// Signs of life that many tasks ask for at once, and that are sent one after the other.
#[derive(Default)]
pub(crate) struct SignsOfLife {
    begun_count: AtomicU64,
    /// The number of the last sign that was answered.
    answered: Mutex<u64>,
}

/// Makes sure that the session is alive, or is replaced. A sign of life that somebody else has sent
/// since will do: so a thousand tasks that ask at once cost two of them.
pub(crate) async fn confirm(engine: &Arc<Inner>) -> abide_store::Result<()> {
    let signs = &engine.signs_of_life;
    let begun_before = signs.begun_count.load(Ordering::Acquire);
    let mut answered = signs.answered.lock().await;
    if *answered > begun_before {
        return Ok(());
    }
    // Only the holder of the lock changes this number.
    let number = signs.begun_count.fetch_add(1, Ordering::AcqRel) + 1;
    keep_alive(engine).await?;
    *answered = number;
    Ok(())
}

/// Reports that the session takes nothing more, sooner than its next heartbeat would: `why` then
/// names no worker that shuts down as the next to run something. It never returns, because a
/// shutdown waits for its residents and not for this answer.
pub(crate) async fn tell_draining(engine: &Arc<Inner>) -> Infallible {
    if let Err(error) = keep_alive(engine).await {
        tracing::debug!(%error, "the next heartbeat tells that the session drains");
    }
    std::future::pending().await
}

async fn send(engine: &Arc<Inner>, beat: Beat) -> abide_store::Result<()> {
    let asked_at = engine.runtime.rest_moment();
    let answer = engine.store.heartbeat(beat).await?;
    if let Heartbeat::Refreshed { .. } = answer {
        engine.has_lived(asked_at);
    }
    match answer {
        Heartbeat::Refreshed { leases: Agreement::Agreed, .. } => {}
        Heartbeat::Refreshed { .. } if planted(Bug::DifferenceIgnored) => {}
        Heartbeat::Refreshed { leases: Agreement::Differs { young_from }, .. } => {
            reconcile::begin(engine, Difference { session: beat.session, young_from });
        }
        // The leases are lost, and nothing new is taken.
        Heartbeat::NotRegistered if engine.is_closing() => {}
        Heartbeat::NotRegistered => {
            engine.replace_session(beat.session).await?;
        }
    }
    Ok(())
}
