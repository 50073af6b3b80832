//! The worker registry: `register`, `heartbeat`, `retire`, and the sweep of dead sessions.

use std::sync::Arc;

use abide_core::planted::{Bug, planted};
use abide_core::{Digest, SessionId, Timestamp, care, check_reason, codec};
use abide_store::{Agreement, Beat, Error, Heartbeat, Registered, Retire, Worker};
use rusqlite::{OptionalExtension, Row, params};

use crate::batch::{Batch, GONE, Shared};
use crate::error::{BatchFailure, Stop};
use crate::job::Operation;
use crate::lockfile::{self, LockFile, Sign};
use crate::place;
use crate::rows::{SessionState, integer, number, unsigned};
use crate::{newborns, sql, tallies};

pub(crate) struct RegisterWork(pub(crate) Worker);

impl Operation for RegisterWork {
    type Output = Registered;
    const WHAT: &'static str = "register";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Registered, Stop> {
        let worker = &self.0;
        let now = batch.now();
        let expires_at = now.after(worker.ttl);
        let namespace = batch
            .caches
            .interned(batch.connection)?
            .intern_name(batch.connection, &worker.ability.namespace)?;
        let id = batch.caches.next_session_id(batch.connection)?;
        let newborn_from = batch.caches.execution_key_max(batch.connection)? + 1;
        batch.connection.prepare_cached(sql::SESSION_INSERT)?.execute(params![
            id,
            namespace,
            worker.name.as_str(),
            codec::encode(&worker.ability),
            i64::try_from(worker.ttl.as_micros()).unwrap_or(i64::MAX),
            now.as_micros(),
            expires_at.as_micros(),
            newborn_from
        ])?;
        let session = SessionId(unsigned(id));
        // Locked before COMMIT: every observer of the session finds its lock taken.
        let lock = match &batch.shared.path {
            Some(path) => Some(LockFile::acquire(path, session).map_err(|error| {
                Stop::Broken(BatchFailure::unavailable(format!(
                    "cannot lock the file of session {session}: {error}"
                )))
            })?),
            None => None,
        };
        delete_left_behind(batch)?;
        let ability = Arc::new(worker.ability.clone());
        batch.effects.registered.push((session, Arc::clone(&ability), lock));
        let state = SessionState { ability, ttl: worker.ttl, expires_at, retired: false };
        batch.caches.sessions.insert(session, state);
        batch.tallies.open(session, Default::default());
        Ok(Registered { session, expires_at })
    }
}

/// Deletes the lock files that zombies have left behind. A file gets its name when it is already
/// locked, so this never deletes the file of a session that is about to be registered.
fn delete_left_behind(batch: &Batch<'_>) -> rusqlite::Result<()> {
    let Some(path) = &batch.shared.path else { return Ok(()) };
    let sessions = lockfile::sessions(path).unwrap_or_else(|error| {
        tracing::warn!(?path, %error, "cannot look for lock files that were left behind");
        Vec::new()
    });
    let mut live = batch.connection.prepare_cached(sql::SESSION_IS_LIVE)?;
    for session in sessions {
        if !live.exists([integer(session.0)])? && lockfile::look(path, session) == Sign::Death {
            lockfile::remove_of(path, session);
        }
    }
    Ok(())
}

pub(crate) struct HeartbeatWork {
    beat: Beat,
    /// Whether the last attempt met a tail that SQLite could not read.
    is_taught: bool,
}

impl HeartbeatWork {
    pub(crate) fn new(beat: Beat) -> Self {
        Self { beat, is_taught: false }
    }
}

impl Operation for HeartbeatWork {
    type Output = Heartbeat;
    const WHAT: &'static str = "heartbeat";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Heartbeat, Stop> {
        let now = batch.now();
        let Beat { session: id, digest, is_draining } = self.beat;
        let Some(session) = batch.live_session(id, now)? else { return Ok(Heartbeat::NotRegistered) };
        let expires_at = session.extend(now);
        let taken = write_expiry(batch, id, (expires_at, is_draining))?;
        let leases = match digest {
            Some(believed) => compare(batch, id, (believed, taken))?,
            None => Agreement::Agreed,
        };
        let closed = batch.close_tails();
        self.is_taught = closed.is_err();
        closed?;
        Ok(Heartbeat::Refreshed { expires_at, leases })
    }

    fn can_do_without(&mut self) -> bool {
        std::mem::take(&mut self.is_taught)
    }
}

/// Keeps a session alive whose closure has kept the writer since `began_at`, and with it the
/// heartbeats of its own process. Otherwise the session would expire behind a closure that takes
/// too long, whose failure then could not be recorded.
pub(crate) fn outlive(batch: &mut Batch<'_>, (id, began_at): (SessionId, Timestamp)) -> Result<(), Stop> {
    let now = batch.now();
    if batch.connection.is_autocommit() || planted(Bug::ExpiredByOwnClosure) {
        return Ok(());
    }
    let Some(session) = batch.caches.session(batch.connection, id)? else { return Ok(()) };
    // Behind a closure that was not slow, the next heartbeat is in time.
    if !session.retired && now.since(began_at) >= session.ttl / 4 {
        let expires_at = session.extend(now);
        write_expiry(batch, id, (expires_at, false))?;
    }
    Ok(())
}

/// Writes when a session expires and whether it is about to leave. Returns the digest of the
/// leases that others have taken from it.
fn write_expiry(
    batch: &Batch<'_>,
    id: SessionId,
    (expires_at, is_draining): (Timestamp, bool),
) -> rusqlite::Result<Digest> {
    let mut extend = batch.connection.prepare_cached(sql::SESSION_EXTEND)?;
    let extended = [integer(id.0), expires_at.as_micros(), i64::from(is_draining)];
    Ok(tallies::taken_digest(extend.query_row(extended, |row| row.get(0))?))
}

/// Compares the leases that a session believes it holds with the counted ones: those granted,
/// without those that others have taken.
fn compare(
    batch: &mut Batch<'_>,
    session: SessionId,
    (believed, taken): (Digest, Digest),
) -> Result<Agreement, Stop> {
    if batch.tallies.of(session).is_none() {
        let counted = tallies::counted(batch.connection, session, taken)?;
        batch.tallies.open(session, counted);
    }
    let Some(tally) = batch.tallies.of(session) else { return Ok(Agreement::Agreed) };
    let young_from = tally.young_from();
    let held = tally.beat().minus(taken);
    let beat_count = tally.beat_count();
    batch.settle_old(session, beat_count)?;
    Ok(if held == believed { Agreement::Agreed } else { Agreement::Differs { young_from } })
}

pub(crate) struct RetireWork(pub(crate) Retire);

impl Operation for RetireWork {
    type Output = ();
    const WHAT: &'static str = "retire";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<(), Stop> {
        let Retire { session, reason } = &self.0;
        check_reason("reason", reason).map_err(|invalid| Stop::Refused(Error::Refused(invalid.into())))?;
        end(batch, *session, Ending::Orderly(reason))
    }
}

/// The end of a session.
#[derive(Clone, Copy)]
enum Ending<'a> {
    /// It said good-bye, or another process did so on its behalf.
    Orderly(&'a str),
    /// It died, and its executions are suspected of having killed it.
    Dead(&'a str),
}

/// Ends a session, and makes its executions ready for others.
fn end(batch: &mut Batch<'_>, session: SessionId, ending: Ending<'_>) -> Result<(), Stop> {
    let id = integer(session.0);
    let (reason, takeovers) = match ending {
        Ending::Orderly(reason) => (reason, 0),
        Ending::Dead(reason) => (reason, 1),
    };
    let retired = batch.connection.prepare_cached(sql::SESSION_RETIRE)?.execute(params![id, reason])?;
    if retired == 0 {
        return Ok(());
    }
    // Whether a caretaker has to look at an execution depends on its unread messages.
    batch.settle_held(session)?;
    if batch.shared.notices.holds(session) {
        batch.close_tails()?;
    }
    let now = batch.now();
    let (ready_at, look_at) = (now.as_micros(), now.after(care::ORDER_GRACE).as_micros());
    let mut release = batch.connection.prepare_cached(sql::SESSION_RELEASE)?;
    let settled = release.execute((place::held(session), ready_at, takeovers, look_at))?;
    // The index of places leaves the newborns out.
    let from = match batch.tallies.newborns.all_from(session) {
        Some(from) => from,
        None => newborns::from(batch.connection, session)?,
    };
    let mut release = batch.connection.prepare_cached(sql::SESSION_RELEASE_NEWBORNS)?;
    let from = if planted(Bug::NewbornsNotReleased) { i64::MAX } else { from };
    let newborn = release.execute((place::newborn(session), ready_at, takeovers, look_at, from))?;
    let released = settled + newborn;
    batch.caches.sessions.remove(&session);
    if released > 0 {
        // The remembered state of its executions names it as their holder.
        batch.caches.rows.clear();
        batch.caches.idle_routes.clear();
        batch.caches.targets.clear();
        for route in batch.served(session)?.iter() {
            batch.announce(*route)?;
            batch.announce_care(*route)?;
        }
    }
    batch.caches.served.remove(&session);
    batch.tallies.close(session);
    batch.effects.ended.push(session);
    Ok(())
}

/// Ends every session that has expired or whose process is gone.
pub(crate) fn sweep(batch: &mut Batch<'_>, now: Timestamp) -> Result<(), Stop> {
    let mut statement = batch.connection.prepare_cached(sql::SESSIONS_LIVE)?;
    let rows = statement.query_map([], |row| Ok((SessionId(unsigned(row.get(0)?)), expiry(row)?)))?;
    let sessions = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    drop(statement);
    for (session, expires_at) in sessions {
        if let Some(reason) = death(batch.shared, (session, expires_at), now) {
            end(batch, session, Ending::Dead(reason))?;
        }
    }
    Ok(())
}

/// Returns why a session that has not ended is dead, if it is: then others may take over its
/// executions.
fn death(
    shared: &Shared,
    (session, expires_at): (SessionId, Timestamp),
    now: Timestamp,
) -> Option<&'static str> {
    if expires_at <= now {
        return Some("expired");
    }
    shared.is_gone(session).then_some(GONE)
}

/// Whether a session lives, and keeps its executions from others.
pub(crate) fn is_alive(batch: &Batch<'_>, session: SessionId) -> Result<bool, Stop> {
    let mut statement = batch.connection.prepare_cached(sql::SESSION_EXPIRY)?;
    let found = statement.query_row([integer(session.0)], expiry).optional()?;
    Ok(found.is_some_and(|expires_at| death(batch.shared, (session, expires_at), batch.now()).is_none()))
}

/// Returns when a session expires, from the second column. A session without a time is dead.
fn expiry(row: &Row<'_>) -> rusqlite::Result<Timestamp> {
    Ok(Timestamp::from_micros(number(row, 1)?.unwrap_or(0)))
}
