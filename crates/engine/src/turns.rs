//! Decides which live build goes on with an execution that others could not go on with.
//!
//! A build that was blocked where an execution stands leaves it to the builds that have not tried.
//! If there is none of them, it goes on itself; and if none can, callers that wait for the result
//! get an error.

use std::sync::Arc;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Execution, Name, SessionId, Timestamp, Waiting};
use abide_store::{Hold, Leased, Result, Snapshot, Store, WorkerRow};

use crate::driver::End;
use crate::engine::Inner;
use crate::ledger::Ledger;
use crate::why;

/// How long a build that has tried leaves an execution to the others before it looks again.
const TURN_PAUSE: Duration = Duration::from_secs(2);

impl Inner {
    /// Whether this build was blocked where this execution now stands, which is to go on.
    pub(crate) fn has_tried(&self, leased: &Leased) -> bool {
        let execution = &leased.execution;
        execution.phase().is_active() && execution.tried().contains(self.build())
    }
}

/// Leaves an execution that this build could not go on with to a live build that may be the fixed
/// one. Returns the execution if there is none.
pub(crate) async fn leave(engine: &Arc<Inner>, leased: Box<Leased>) -> std::result::Result<Box<Leased>, End> {
    let (address, execution) = (leased.address().clone(), &leased.execution);
    let wants = |build: Option<&Name>| build.is_some_and(|build| !execution.tried().contains(build));
    match is_served(&*engine.store, (execution, None), engine.runtime.now(), wants).await {
        Ok(false) => return Ok(leased),
        Ok(true) => tracing::debug!(%address, "an execution is left to another build"),
        Err(error) => {
            tracing::warn!(%error, %address, "who else may run an execution is not known");
            return Ok(leased);
        }
    }
    let until = engine.runtime.now().after(TURN_PAUSE);
    let summary = execution.summary(&[Waiting::Build { until }]);
    // It listens to nothing, and nothing is lost: it is woken when its pause is over.
    Err(Ledger::new(engine, leased).leave(summary, Hold::Park { seen: Vec::new() }).await)
}

/// Whether no live build is left that could go on with a blocked execution: each of them has tried,
/// or there is none.
pub(crate) async fn is_given_up(store: &dyn Store, snapshot: &Snapshot, now: Timestamp) -> Result<bool> {
    let execution = &snapshot.execution;
    // A session looks at it, or is about to: it may have been unblocked.
    let is_moving = snapshot.lease.session.is_some() || snapshot.ready_at.is_some();
    let is_moving = is_moving && !planted(Bug::GivenUpWhileHeld);
    let may_try =
        |build: Option<&Name>| is_moving || build.is_some_and(|build| execution.is_worth_trying(build));
    Ok(!is_served(store, (execution, snapshot.lease.session), now, may_try).await?)
}

/// Whether a live worker serves the route of an execution, with a build that `is_wanted` accepts. A
/// worker that shuts down serves only what it holds.
async fn is_served(
    store: &dyn Store,
    (execution, holder): (&Execution, Option<SessionId>),
    now: Timestamp,
    is_wanted: impl Fn(Option<&Name>) -> bool,
) -> Result<bool> {
    let route = execution.route();
    let workers = why::workers(store, execution.address(), None, now).await?;
    let serves = |row: &WorkerRow| {
        let ability = &row.worker.ability;
        let takes = row.takes_more(now) || Some(row.session) == holder;
        takes && is_wanted(ability.build.as_ref()) && ability.serves(&route)
    };
    Ok(workers.iter().any(serves))
}
