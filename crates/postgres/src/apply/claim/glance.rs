//! A claim that finds nothing to do.
//!
//! An engine claims every few seconds although nothing happens: to look for dead sessions, and for
//! notices that were lost. That is one statement when there is nothing, and it is a look for the
//! whole process.

use abide_core::{Ability, Timestamp};
use abide_store::{Claim, Claimed};

use super::last_request;
use crate::connection::Connection;
use crate::error::Stop;
use crate::follower::Numbers;
use crate::rows;
use crate::shared::Shared;
use crate::sheet::Parameter;
use crate::sql;

/// Returns the answer to a claim that has nothing to do. `None` says that there may be something.
pub(super) async fn idle(
    shared: &Shared,
    connection: &Connection,
    claim: &Claim,
    now: Timestamp,
) -> Result<Option<Claimed>, Stop> {
    let Some(ability) = shared.board.ability(claim.session).filter(|_| claim.sweep || claim.with_mail) else {
        return Ok(None);
    };
    if shared.tallies.last_request(claim.session).is_none()
        || rows::integer(claim.request) <= last_request(shared, connection, claim.session).await?
    {
        return Ok(None);
    }
    let found = look(shared, connection, (claim, &ability), now).await?;
    if let Some(claimed) = &found {
        shared.tallies.ask(claim.session, rows::integer(claim.request));
        tracing::trace!(next_wake_at = ?claimed.next_wake_at, "an idle claim");
    }
    Ok(found)
}

async fn look(
    shared: &Shared,
    connection: &Connection,
    (claim, ability): (&Claim, &Ability),
    now: Timestamp,
) -> Result<Option<Claimed>, Stop> {
    let known = shared.routes.of(&ability.namespace, |_| true);
    let served = shared.routes.of(&ability.namespace, |route| ability.serves(route));
    let (session, ns) = (rows::integer(claim.session.0), ability.namespace.as_str());
    let at = now.as_micros();
    let parameters: [Parameter<'_>; 5] = [&served, &session, &at, &ns, &known];
    let row = connection.row(sql::GLANCE, &parameters).await?;
    let numbers: Numbers = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let (ready_count, wake_at): (i64, Option<i64>) = (row.try_get(3)?, row.try_get(4)?);
    let (is_quiet, care_at, holds): (bool, Option<i64>, bool) =
        (row.try_get(5)?, row.try_get(6)?, row.try_get(7)?);
    let is_due = [wake_at, care_at].into_iter().flatten().any(|due_at| due_at <= at);
    // The mail of executions that are held is read by its own statement.
    if !is_quiet || ready_count > 0 || is_due || holds {
        return Ok(None);
    }
    shared.looks.tell(&shared.board, (numbers, false));
    Ok(Some(Claimed {
        next_wake_at: rows::timestamp(wake_at),
        next_care_at: rows::timestamp(care_at),
        ..Claimed::default()
    }))
}
