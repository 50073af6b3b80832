//! Goes on with executions that are leased to this worker and have no seat.

use std::sync::Arc;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Address, Lease, SessionId};
use abide_store::{Aside, ExecutionKey, Leased, Read, Snapshot, Target, Unreadable};

use crate::engine::Inner;
use crate::failures::Failing;
use crate::residents::Source;
use crate::{heartbeat, reading};

/// How long to wait before a lost execution is looked at.
pub(crate) const RECOVER_PAUSE: Duration = Duration::from_millis(200);

/// An execution that our session holds.
struct Found {
    /// Its row, with its first records.
    snapshot: Snapshot,
    /// Why the records are missing, if they could not be read.
    unread: Option<String>,
}

impl Inner {
    /// Looks after executions that a request with a lost answer may have leased to us.
    pub(crate) fn recover_all(self: &Arc<Self>, addresses: Vec<Address>) {
        for address in addresses {
            let engine = self.clone();
            self.runtime.spawn(Box::pin(async move {
                let (session, found) = (engine.session(), engine.held_by_us(Target::Address(address)).await);
                if let Ok(Some(Found { snapshot, .. })) = found {
                    let lease = Lease { session, epoch: snapshot.lease.epoch };
                    engine.recover(snapshot.key, Some(lease)).await;
                }
            }));
        }
    }

    /// Goes on from the records of an execution that is not resident, if it is leased to us.
    ///
    /// The store's answer counts only if the execution was not resident before the question, and
    /// has not become so since: otherwise it could name a lease that was returned meanwhile. An
    /// execution that cannot be read is set aside, if the lease is known under which it may be
    /// ours.
    pub(crate) async fn recover(self: &Arc<Self>, key: ExecutionKey, lease: Option<Lease>) {
        if self.residents().want(key) {
            self.recover_after((key, lease), None).await;
        }
    }

    /// Does the same for an execution that is already wanted.
    pub(crate) async fn recover_after(
        self: &Arc<Self>,
        (key, lease): (ExecutionKey, Option<Lease>),
        pause: Option<Duration>,
    ) {
        if let Some(pause) = pause {
            self.runtime.sleep(pause).await;
        }
        match self.readable(key).await {
            Ok(Some(leased)) => self.take_back(leased),
            // Not ours: its count of failures would not be read again.
            Ok(None) => self.failures.forget(key),
            Err(unreadable) => {
                self.failures.forget(key);
                match lease {
                    Some(lease) => self.set_aside(Aside { key, lease, unreadable }).await,
                    // The heartbeat finds a lease without a resident, and knows which one it is.
                    None => tracing::error!(execution = key.0, ?unreadable, "an execution cannot be read"),
                }
            }
        }
        self.residents().forget(key);
    }

    /// Returns an execution that our live session holds, with its first records. If they cannot be
    /// read although the store works, that counts as a failure, and the execution is returned
    /// without them once it is to be blocked for that.
    async fn readable(self: &Arc<Self>, key: ExecutionKey) -> Result<Option<Leased>, Unreadable> {
        loop {
            let Some(Found { snapshot, unread }) = self.held_by_us(Target::Key(key)).await? else {
                return Ok(None);
            };
            let Some(leased) = leased_to(self.session(), snapshot) else { return Ok(None) };
            let Some(why) = unread else { return Ok(Some(leased)) };
            if self.failures.verdict(&leased, self.options.failure_count_max).is_some() {
                return Ok(Some(leased));
            }
            tracing::error!(execution = key.0, why, "the records of an execution cannot be read");
            self.runtime.sleep(self.failures.count(key, Failing::Read, why)).await;
        }
    }

    /// Returns an execution that our live session holds, or why it is unreadable.
    async fn held_by_us(self: &Arc<Self>, target: Target) -> Result<Option<Found>, Unreadable> {
        let (mut unread_count, mut unread) = (0, None);
        while !self.is_closing() {
            let whole = Read { target: target.clone(), run: None, from: 1, limit: 1_024, with_inbox: true };
            let is_whole = unread_count < reading::UNREAD_COUNT_MAX || planted(Bug::RecoveryUnbounded);
            let read = if is_whole { whole } else { Read { from: 0, limit: 0, with_inbox: false, ..whole } };
            match self.store.read(read).await {
                Ok(Some(found)) if found.lease.session == Some(self.session()) => {
                    // A dead session has nothing to recover; a new one takes its place.
                    match heartbeat::keep_alive(self).await {
                        Ok(()) => {
                            let unread = unread.filter(|_| !is_whole);
                            return Ok(Some(Found { snapshot: found, unread }));
                        }
                        Err(error) => tracing::debug!(%error, "the session cannot be asked after"),
                    }
                }
                Ok(_) => return Ok(None),
                Err(error) if error.is_transient() => {
                    unread_count += u32::from(error.is_of_one());
                    unread = Some(error.to_string());
                }
                Err(error) => {
                    let error = Unreadable::of(error).map_or_else(Ok, Err)?;
                    tracing::error!(%error, ?target, "an execution cannot be read");
                    return Ok(None);
                }
            }
            self.runtime.sleep(reading::PAUSE).await;
        }
        Ok(None)
    }

    /// Goes on with a lost execution: by its code, or as its caretaker if we do not serve it.
    fn take_back(self: &Arc<Self>, leased: Leased) {
        if self.ability().serves(&leased.execution.route()) {
            self.take_in(leased, Source::Recovered);
        } else {
            self.take_care(leased, Source::Recovered);
        }
    }
}

/// Returns the lease in a snapshot, if the execution is leased to `session`.
fn leased_to(session: SessionId, snapshot: Snapshot) -> Option<Leased> {
    (snapshot.lease.session == Some(session)).then_some(Leased {
        key: snapshot.key,
        lease: Lease { session, epoch: snapshot.lease.epoch },
        version: snapshot.lease.version,
        takeover_count: snapshot.takeover_count,
        suspicion: snapshot.summary.suspicion,
        unclaimed: snapshot.summary.unclaimed,
        // A lease that was lost with its answer may have called the code before.
        is_first: false,
        execution: snapshot.execution,
        journal: snapshot.journal,
        first: None,
        inbox: snapshot.inbox,
    })
}
