//! Resolves a difference that a heartbeat found between the leases of the session and its seats.
//!
//! The digest only says that there is a difference, and it may be nothing: a lease that is being
//! returned at that moment makes one too. So the leases are read, and each difference is looked at
//! separately.
//!
//! - A lease that no seat has, and that is not young: its answer was lost for good, or is very
//!   late. It is recovered as after a lost answer: its code runs it, or a caretaker returns it
//!   where there is no code.
//! - A seat whose lease the store does not have: another session holds its execution, or none does.
//!   It was seated before the store was asked, and leases never come back under the same epoch. So
//!   either it has returned the lease itself, and the answer to that commit is on its way, or it
//!   has lost it. The seat knows which: see [`Mailbox::doubt`](crate::mailbox::Mailbox::doubt).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abide_core::planted::{Bug, planted};
use abide_core::{Lease, SessionId};
use abide_store::{ExecutionKey, HeldLease, Leases, Result};

use crate::engine::Inner;

/// A difference between the seats of a session and its leases in the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Difference {
    pub(crate) session: SessionId,
    /// Leases granted after this many heartbeats are too young to be missed.
    pub(crate) young_from: u64,
}

/// Resolves a difference, unless that is already under way.
pub(crate) fn begin(engine: &Arc<Inner>, difference: Difference) {
    if engine.is_reconciling.swap(true, Ordering::AcqRel) {
        return;
    }
    let runtime = engine.runtime.clone();
    let engine = engine.clone();
    runtime.spawn(Box::pin(async move {
        if let Err(error) = reconcile(&engine, difference).await {
            // The next heartbeat finds the same difference.
            tracing::warn!(%error, "the leases of the session cannot be read");
        }
        engine.is_reconciling.store(false, Ordering::Release);
    }));
}

async fn reconcile(engine: &Arc<Inner>, difference: Difference) -> Result<()> {
    let Difference { session, young_from } = difference;
    // List the seats before asking the store: a lease that the store lacks then is gone for good.
    let mut seated = engine.residents().leases(session);
    let mut unknown = Vec::new();
    for HeldLease { key, epoch, given_beat } in read(engine, session).await? {
        // Under another epoch the seat is lost too; when it leaves, the engine looks for the new
        // lease.
        let is_same = seated.get(&key).is_none_or(|known| *known == epoch) || planted(Bug::OtherEpochKept);
        let is_old = given_beat < young_from || planted(Bug::YoungLeasesTaken);
        if is_same && seated.remove(&key).is_none() && is_old {
            unknown.push((key, Lease { session, epoch }));
        }
    }
    for (key, epoch) in seated {
        let lease = Lease { session, epoch };
        let mailbox = engine.residents().under(key, lease).cloned();
        if let Some(mailbox) = mailbox {
            mailbox.doubt();
        }
    }
    unknown.into_iter().for_each(|(key, lease)| recover(engine, key, lease));
    Ok(())
}

/// Recovers a lease in a task of its own: an execution that cannot be read must not hold up the
/// others, nor the next look at the leases.
fn recover(engine: &Arc<Inner>, key: ExecutionKey, lease: Lease) {
    if !engine.residents().want(key) {
        return;
    }
    let recovering = engine.clone();
    engine.runtime.spawn(Box::pin(async move {
        recovering.clone().recover_after((key, Some(lease)), None).await;
        if recovering.is_resident(key) {
            tracing::warn!(key = key.0, "a lease that no answer told of is taken up");
        }
    }));
}

/// Returns all leases of the session.
async fn read(engine: &Inner, session: SessionId) -> Result<Vec<HeldLease>> {
    let mut held = Vec::new();
    let mut after = None;
    loop {
        let page = engine.store.leases(Leases { session, after, limit: usize::MAX }).await?;
        held.extend(page.leases);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(held),
        }
    }
}
