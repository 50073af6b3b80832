//! Goes on with executions that are leased to this worker and have no seat.

use std::sync::Arc;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Address, Lease, SessionId};
use abide_store::{Aside, Error, ExecutionKey, Leased, Opening, Read, Snapshot, Target, Unreadable};

use crate::engine::Inner;
use crate::failures::Failing;
use crate::pauses::Pauses;
use crate::residents::Source;
use crate::{heartbeat, reading};

/// How long to wait before a lost execution is looked at.
pub(crate) const RECOVER_PAUSE: Duration = Duration::from_millis(200);

/// The number of lost executions that are read at once: a commit may have started thousands, and
/// others want to read too.
pub(crate) const LOST_READ_COUNT_MAX: usize = 16;

/// An execution that our session holds.
struct Found {
    /// Its row, with its first records.
    snapshot: Snapshot,
    /// Why the records are missing, if they could not be read.
    unread: Option<String>,
}

/// The part of an execution that is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Row,
    /// The row, the first records and the inbox.
    Whole,
}

impl Part {
    fn read(self, target: Target) -> Read {
        match self {
            Self::Row => Read { target, run: None, from: 0, limit: 0, with_inbox: false },
            Self::Whole => Read { target, run: None, from: 1, limit: 1_024, with_inbox: true },
        }
    }
}

enum Looked {
    /// Our live session holds it.
    Held(Box<Snapshot>),
    /// It is not ours, or the engine closes.
    NotHeld,
    /// The store works, but cannot read it.
    Unread(String),
}

impl Looked {
    fn held(self) -> Option<Snapshot> {
        match self {
            Self::Held(snapshot) => Some(*snapshot),
            Self::NotHeld | Self::Unread(_) => None,
        }
    }
}

impl Inner {
    /// Looks after executions that a request with a lost answer may have leased to us.
    pub(crate) fn recover_all(self: &Arc<Self>, addresses: Vec<Address>) {
        for address in addresses {
            let engine = self.clone();
            self.runtime.spawn(Box::pin(async move {
                let (session, looked) =
                    (engine.session(), engine.look(Target::Address(address), Part::Row).await);
                if let Some(snapshot) = looked.ok().and_then(Looked::held) {
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
            self.clone().recover_after((key, lease), None).await;
        }
    }

    /// Does the same for an execution that is already wanted.
    pub(crate) async fn recover_after(
        self: Arc<Self>,
        (key, lease): (ExecutionKey, Option<Lease>),
        pause: Option<Duration>,
    ) {
        if let Some(pause) = pause {
            self.runtime.sleep(pause).await;
        }
        match self.readable(key).await {
            Ok(Some(leased)) => self.take_back(Box::new(leased)),
            // Not ours: its count of failures would not be read again.
            Ok(None) => self.failures.forget(key),
            Err(unreadable) => {
                self.failures.forget(key);
                match lease {
                    Some(lease) => self.set_aside(Aside { key, lease, unreadable }).await,
                    // The heartbeat finds a lease without a resident, and knows which one it is.
                    None => tracing::error!(key = key.0, ?unreadable, "an execution cannot be read"),
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
            let Some(Found { snapshot, unread }) = self.held_by_us(key).await? else {
                return Ok(None);
            };
            let Some(leased) = leased_to(self.session(), snapshot) else { return Ok(None) };
            let Some(why) = unread else { return Ok(Some(leased)) };
            self.failures.note_progress(&leased);
            if self.failures.reason_to_block(key, self.options.failure_count_max).is_some() {
                return Ok(Some(leased));
            }
            tracing::error!(key = key.0, why, "the records of an execution cannot be read");
            self.runtime.sleep(self.failures.count(key, Failing::Read, why)).await;
        }
    }

    /// Returns an execution that our live session holds, or why it is unreadable. If its records
    /// stay unread although the store works, its row has to do.
    async fn held_by_us(self: &Arc<Self>, key: ExecutionKey) -> Result<Option<Found>, Unreadable> {
        match self.look(Target::Key(key), Part::Whole).await? {
            Looked::Held(snapshot) => Ok(Some(Found { snapshot: *snapshot, unread: None })),
            Looked::NotHeld => Ok(None),
            Looked::Unread(why) => {
                let row = self.look(Target::Key(key), Part::Row).await?.held();
                Ok(row.map(|snapshot| Found { snapshot, unread: Some(why) }))
            }
        }
    }

    /// Asks until the store answers. Records that stay unread are given up; a row is asked for
    /// without a bound, but less and less often.
    async fn look(self: &Arc<Self>, target: Target, part: Part) -> Result<Looked, Unreadable> {
        let (mut unread_count, mut pauses) = (0, Pauses::default());
        while !self.is_closing() {
            let error = match self.ask(part.read(target.clone())).await {
                Ok(Some(snapshot)) => return Ok(Looked::Held(snapshot.into())),
                Ok(None) => return Ok(Looked::NotHeld),
                Err(error) if error.is_transient() => error,
                Err(error) => {
                    let error = Unreadable::of(error).map_or_else(Ok, Err)?;
                    tracing::error!(%error, ?target, "an execution cannot be read");
                    return Ok(Looked::NotHeld);
                }
            };
            unread_count += u32::from(error.is_of_one());
            if part == Part::Whole && error.is_of_one() {
                if unread_count >= reading::UNREAD_COUNT_MAX && !planted(Bug::RecoveryUnbounded) {
                    return Ok(Looked::Unread(error.to_string()));
                }
                self.runtime.sleep(reading::PAUSE).await;
                continue;
            }
            if error.is_of_one() && unread_count == 1 {
                tracing::error!(%error, ?target, "the row of an execution cannot be read; it is asked for again, less and less often");
            }
            self.runtime.sleep(pauses.next(&error)).await;
        }
        Ok(Looked::NotHeld)
    }

    /// Asks once for an execution. Returns it if our session holds it and is alive: a dead one has
    /// nothing to recover, and a new one takes its place.
    async fn ask(self: &Arc<Self>, read: Read) -> Result<Option<Snapshot>, Error> {
        let found = {
            let _permit = self.lost_reads.acquire().await;
            self.store.read(read).await?
        };
        let Some(found) = found.filter(|found| found.lease.session == Some(self.session())) else {
            return Ok(None);
        };
        // Whatever its error, it says nothing about the execution.
        let confirmed = heartbeat::confirm(self).await;
        confirmed.map_err(|error| Error::Unavailable { what: "heartbeat", source: error.into() })?;
        Ok(Some(found))
    }

    /// Goes on with a lost execution: by its code, or as its caretaker if we do not serve it.
    fn take_back(self: &Arc<Self>, leased: Box<Leased>) {
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
        opening: Opening::Page(snapshot.journal),
        inbox: snapshot.inbox,
    })
}
