//! The worker registry.

use std::time::Duration;

use abide_core::{Epoch, Refusal, SessionId, Timestamp, care, check_reason, codec};
use abide_store::{Agreement, Beat, ExecutionKey, Heartbeat, Registered, Retire, Worker};
use tokio_postgres::Row;

use crate::board::News;
use crate::connection::Connection;
use crate::error::Stop;
use crate::floors::{self, Floor, Marks};
use crate::pool::Pooled;
use crate::rows;
use crate::shared::Shared;
use crate::sheet::Parameter;
use crate::sql;
use crate::tallies::{self, Beaten, Granted};

/// How long a session that has ended is still looked at for leases that a statement has given it
/// which began before its end.
const LATE_LEASE: Duration = Duration::from_secs(60);

pub(crate) async fn register(shared: &Shared, worker: &Worker) -> Result<Registered, Stop> {
    let connection = shared.pool.take().await?;
    let now = shared.now();
    let expires_at = now.after(worker.ttl);
    let ability = codec::encode(&worker.ability);
    let (ns, name) = (worker.ability.namespace.as_str(), worker.name.as_str());
    // As long as the time that a timestamp can say.
    let ttl_us = i64::try_from(worker.ttl.as_micros()).unwrap_or(i64::MAX >> 8);
    let parameters: [Parameter<'_>; 6] =
        [&ns, &name, &ability, &ttl_us, &now.as_micros(), &expires_at.as_micros()];
    let id: i64 = connection.row(sql::SESSION_INSERT, &parameters).await?.try_get(0)?;
    let session = SessionId(rows::unsigned(id));
    shared.board.open(session, worker.ability.clone());
    shared.tallies.open(session);
    Ok(Registered { session, expires_at })
}

pub(crate) async fn heartbeat(shared: &Shared, beat: &Beat) -> Result<Heartbeat, Stop> {
    let connection = shared.pool.take().await?;
    let now = shared.now().as_micros();
    let session = rows::integer(beat.session.0);
    let count = i64::from(beat.digest.is_some());
    let parameters: [Parameter<'_>; 4] = [&session, &now, &beat.is_draining, &count];
    let Some(row) = connection.maybe_row(sql::SESSION_EXTEND, &parameters).await? else {
        shared.board.end(beat.session);
        shared.tallies.end(beat.session);
        return Ok(Heartbeat::NotRegistered);
    };
    let expires_at = Timestamp::from_micros(row.try_get(0)?);
    let beat_count: i64 = row.try_get(1)?;
    let beaten = Beaten { beat_count: rows::unsigned(beat_count), taken: row.try_get(2)? };
    let Some(believed) = beat.digest else {
        return Ok(Heartbeat::Refreshed { expires_at, leases: Agreement::Agreed });
    };
    if shared.tallies.beat(beat.session, beaten.taken) == Some(believed) {
        return Ok(Heartbeat::Refreshed { expires_at, leases: Agreement::Agreed });
    }
    let found = connection.rows(sql::LEASES_ALL, &[&session]).await?;
    let found: Vec<Granted> = found.iter().map(granted).collect::<Result<_, Stop>>()?;
    shared.tallies.begin(beat.session, &found, &beaten);
    // This heartbeat is counted already.
    let young_from = beaten.beat_count.saturating_sub(2);
    let held = tallies::digest(found.iter().filter(|lease| lease.given_beat < young_from));
    let leases = if held == believed { Agreement::Agreed } else { Agreement::Differs { young_from } };
    Ok(Heartbeat::Refreshed { expires_at, leases })
}

fn granted(row: &Row) -> Result<Granted, Stop> {
    let (key, epoch, given_beat): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    Ok(Granted {
        key: ExecutionKey(rows::unsigned(key)),
        epoch: Epoch(rows::unsigned(epoch)),
        given_beat: rows::unsigned(given_beat),
    })
}

/// Ends a session, and releases what it holds.
pub(crate) async fn retire(shared: &Shared, retire: &Retire) -> Result<(), Stop> {
    check_reason("reason", &retire.reason).map_err(Refusal::from)?;
    let mut connection = shared.pool.take().await?;
    let now = shared.now();
    let session = rows::integer(retire.session.0);
    connection.change(sql::SESSION_RETIRE, &[&session, &retire.reason, &now.as_micros()]).await?;
    shared.board.end(retire.session);
    shared.tallies.end(retire.session);
    // A repetition goes on where the first request was interrupted.
    if let Some(row) = connection.maybe_row(sql::SESSION_DIED, &[&session]).await? {
        release(shared, &mut connection, (session, row.try_get(0)?), now).await?;
    }
    Ok(())
}

/// Ends the sessions that have expired, and releases what ended sessions still hold. All of it uses
/// the connection of its caller: a claim that waits for a second one may wait for itself.
pub(super) async fn sweep(shared: &Shared, connection: &mut Pooled<'_>, now: Timestamp) -> Result<(), Stop> {
    let late = now.before(LATE_LEASE).as_micros();
    for row in connection.rows(sql::SESSIONS_OVER, &[&now.as_micros()]).await? {
        let (session, mut died, is_retired): (i64, bool, bool) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        if !is_retired {
            if connection.change(sql::SESSION_EXPIRE, &[&session, &now.as_micros()]).await? == 0 {
                continue;
            }
            died = true;
            let ended = SessionId(rows::unsigned(session));
            shared.board.end(ended);
            shared.tallies.end(ended);
        }
        release(shared, connection, (session, died), now).await?;
        connection.change(sql::SESSION_RELEASED, &[&session, &late]).await?;
    }
    Ok(())
}

/// Releases everything that an ended session holds, a bounded number at a time.
async fn release(
    shared: &Shared,
    connection: &mut Pooled<'_>,
    (session, died): (i64, bool),
    now: Timestamp,
) -> Result<(), Stop> {
    loop {
        connection.begin(sql::BEGIN).await?;
        let released = release_some(connection, (session, died), now).await;
        let Ok(marks) = released else {
            connection.undo().await;
            return released.map(|_| ());
        };
        connection.end(sql::COMMIT).await?;
        if marks.is_empty() {
            return Ok(());
        }
        let routes: Vec<i32> = marks.keys().map(|(route, _)| *route).collect();
        let mut news: Vec<News> = marks.into_iter().map(|(line, floor)| News::Queued(line, floor)).collect();
        for route in shared.routes.named(connection, &routes).await?.into_values() {
            news.push(News::Care(route.namespace.clone()));
            news.push(News::Ready(route));
        }
        shared.board.tell(news);
    }
}

/// Releases some executions, and returns where they line up.
async fn release_some(
    connection: &Connection,
    (session, died): (i64, bool),
    now: Timestamp,
) -> Result<Marks, Stop> {
    let locked = connection.rows(sql::HELD_LOCK, &[&session]).await?;
    let keys: Vec<i64> = locked.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_, Stop>>()?;
    if keys.is_empty() {
        return Ok(Marks::new());
    }
    let released = Released { takeovers: i32::from(died), wake_at: None };
    release_locked(connection, &keys, &released, now).await
}

/// What else changes with the release of a lease.
pub(super) struct Released {
    pub(super) takeovers: i32,
    /// When it is ready again; `None` for at once.
    pub(super) wake_at: Option<Timestamp>,
}

/// Releases executions whose rows are locked, and returns where they line up.
pub(super) async fn release_locked(
    connection: &Connection,
    keys: &[i64],
    released: &Released,
    now: Timestamp,
) -> Result<Marks, Stop> {
    let (mut cares, mut marks) = (Vec::new(), Marks::new());
    let floor = match released.wake_at {
        Some(wake_at) => Floor::of_timer(wake_at.as_micros()),
        None => Floor::of_wake(now.as_micros()),
    };
    let (mut of, mut reasons) = (Vec::new(), Vec::new());
    let held = connection.rows(sql::HELD, &[&keys]).await?;
    for row in &held {
        let key: i64 = row.try_get(0)?;
        let care_at = Timestamp::sooner(rows::timestamp(row.try_get(3)?), rows::timestamp(row.try_get(4)?));
        cares.push(rows::micros(care::after_release(care_at, row.try_get(5)?, now)));
        floors::mark(&mut marks, (row.try_get(1)?, row.try_get(2)?), floor);
        let names: Vec<String> = row.try_get(6)?;
        of.extend(names.iter().map(|_| key));
        reasons.extend(names);
    }
    let takeovers = vec![released.takeovers; keys.len()];
    let wakes = vec![rows::micros(released.wake_at); keys.len()];
    let since = now.as_micros();
    let parameters: [Parameter<'_>; 7] = [&keys, &cares, &takeovers, &wakes, &since, &of, &reasons];
    connection.change(sql::RELEASE, &parameters).await?;
    Ok(marks)
}
