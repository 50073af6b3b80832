//! Leases for sessions that claim.
//!
//! A claim is several statements, each of which is right on its own: whatever was leased before a
//! claim failed is what its repetition returns.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use abide_core::{Ability, MessageId, Refusal, SessionId, Timestamp, care, codec};
use abide_store::{Aside, Claim, Claimed, ExecutionKey, Leased, Opening, Unreadable};
use tokio_postgres::Row;

use super::{aside, care as caretaking, leased, session};
use crate::board::News;
use crate::connection::Connection;
use crate::error::Stop;
use crate::floors::{self, Floor, Line, Marks, Walk};
use crate::follower::survey;
use crate::rows;
use crate::shared::Shared;
use crate::sheet::Parameter;
use crate::sql;

mod glance;

/// The slots up to which a claim looks at few candidates of each route.
const FEW: usize = 16;

/// The most executions that one statement leases.
const MANY: usize = 256;

/// A session that claims.
pub(super) struct Claimer<'a> {
    pub(super) shared: &'a Shared,
    pub(super) connection: &'a Connection,
    pub(super) session: SessionId,
    pub(super) request: i64,
    pub(super) ability: Ability,
    pub(super) now: Timestamp,
    /// The queues that the session serves, from their floors.
    walk: Walk<'a>,
    /// Leased executions that cannot be read.
    asides: Mutex<Vec<Aside>>,
}

pub(crate) async fn claim(shared: &Shared, claim: &Claim) -> Result<Claimed, Stop> {
    let mut connection = shared.pool.take().await?;
    let now = shared.now();
    if let Some(claimed) = glance::idle(shared, &connection, claim, now).await? {
        return Ok(claimed);
    }
    // Checked before the sweep: a claim of a dead session changes nothing (P6).
    let ability = live(&connection, claim.session, now).await?;
    let last_request = last_request(shared, &connection, claim.session).await?;
    if claim.sweep {
        session::sweep(shared, &mut connection, now).await?;
    }
    let (session, request, asides) = (claim.session, rows::integer(claim.request), Mutex::default());
    let routes = shared.routes.served(&connection, &ability).await?;
    let walk = begin(shared, &connection, &routes).await?;
    let claimer = Claimer { shared, connection: &connection, session, request, ability, now, walk, asides };
    let mut claimed = Claimed::default();
    if request > last_request {
        shared.tallies.ask(session, request);
        claimed.leased = claimer.lease(claim.slots).await?;
        claimed.care = caretaking::look_after(&claimer, claim.care_slots).await?;
    } else if request == last_request {
        claimer.repeat(&mut claimed).await?;
    }
    // An older request than the last returns no leases: nobody waits for its answer any more.
    claimer.complete(claim.with_mail, &mut claimed).await?;
    let asides = std::mem::take(&mut *claimer.asides.lock().unwrap_or_else(PoisonError::into_inner));
    drop(claimer);
    if claim.sweep {
        claimed.intake = connection.row(sql::INTAKE_ANY, &[]).await?.try_get(0)?;
    }
    for aside in asides {
        aside::set_aside_on(shared, &mut connection, &aside).await?;
    }
    Ok(claimed)
}

/// Returns the number of the last claim of a session. This process knows it, unless another one has
/// registered the session: then the leases say it.
async fn last_request(shared: &Shared, connection: &Connection, session: SessionId) -> Result<i64, Stop> {
    if let Some(request) = shared.tallies.last_request(session) {
        return Ok(request);
    }
    let id = rows::integer(session.0);
    Ok(connection.row(sql::LAST_REQUEST, &[&id]).await?.try_get(0)?)
}

/// Begins a walk through the queues of these routes. Those without floors are surveyed before.
async fn begin<'a>(shared: &'a Shared, connection: &Connection, routes: &[i32]) -> Result<Walk<'a>, Stop> {
    let floors = &shared.board.floors;
    let unknown = floors.unknown(routes);
    if !unknown.is_empty() {
        match survey(connection, &unknown).await {
            Ok(marks) => drop(floors.lower(&marks)),
            Err(stop) => {
                floors.forget();
                return Err(stop);
            }
        }
    }
    Ok(floors.walk(routes))
}

/// Returns the ability of a session that may write.
async fn live(connection: &Connection, session: SessionId, now: Timestamp) -> Result<Ability, Stop> {
    let id = rows::integer(session.0);
    let found = connection.maybe_row(sql::SESSION, &[&id, &now.as_micros()]).await?;
    let Some(row) = found.filter(|row| row.get(1)) else {
        return Err(Refusal::Unsupported { what: format!("session {session} is not live") }.into());
    };
    let ability: Vec<u8> = row.try_get(0)?;
    codec::decode(&ability)
        .map_err(|error| Stop::undecodable(format_args!("the ability of session {session}"), &error))
}

impl Claimer<'_> {
    pub(super) fn after_lease(&self) -> i64 {
        // What `care::after_lease` makes of a time that has come: an earlier one is put off to it.
        let grace = self.shared.bounds().terminate_grace();
        care::after_lease(Some(self.now), self.now, grace).unwrap_or(self.now).as_micros()
    }

    /// Leases ready executions, up to the slots and to the size of a claim.
    async fn lease(&self, slots: usize) -> Result<Vec<Leased>, Stop> {
        let (mut all, mut size) = (Vec::new(), 0);
        let size_max = self.shared.options.page_bounds.claim_bytes_max;
        while all.len() < slots && size < size_max {
            let wanted = (slots - all.len()).min(MANY);
            let leased = self.lease_some(wanted).await;
            if all.is_empty() && leased.as_ref().is_err_and(Stop::is_race) {
                // It was rolled back: a repetition may lease.
                self.shared.tallies.ask(self.session, self.request - 1);
            }
            let keys = leased?;
            if keys.is_empty() {
                break;
            }
            let mut found: HashMap<i64, _> =
                leased::read(self.shared, self.connection, self.session, &keys).await?.into_iter().collect();
            let mut back = Vec::new();
            for key in keys {
                if size >= size_max {
                    back.push(key);
                    continue;
                }
                if let Some(one) = self.sound(key, found.remove(&key)).await? {
                    size += self::size(&one);
                    all.push(one);
                }
            }
            self.give_back(&back).await?;
        }
        Ok(all)
    }

    async fn lease_some(&self, count: usize) -> Result<Vec<i64>, Stop> {
        let statement = if count <= FEW { sql::LEASE_FEW } else { sql::LEASE_MANY };
        let session = rows::integer(self.session.0);
        let (count, now, after) = (rows::limit(count), self.now.as_micros(), self.after_lease());
        let Walk { routes, ranks, wakes, timers, .. } = &self.walk;
        let parameters: [Parameter<'_>; 9] =
            [&session, &self.request, routes, &count, &now, &after, ranks, wakes, timers];
        let leased = self.connection.rows(statement, &parameters).await?;
        leased.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Returns a lease that can be read. Any other execution is set aside at the end of the claim,
    /// by name, and delays nobody.
    pub(super) async fn sound(
        &self,
        key: i64,
        found: Option<Result<Leased, Stop>>,
    ) -> Result<Option<Leased>, Stop> {
        let error = match found {
            None => return Ok(None),
            Some(Ok(leased)) => return Ok(Some(leased)),
            Some(Err(Stop::Told(error))) => error,
            Some(Err(stop)) => return Err(stop),
        };
        let unreadable = Unreadable::of(error)?;
        tracing::error!(key, ?unreadable, "an execution cannot be read and is set aside");
        if let Some(lease) = aside::lease_of(self.connection, key, self.session).await? {
            let key = ExecutionKey(rows::unsigned(key));
            let mut asides = self.asides.lock().unwrap_or_else(PoisonError::into_inner);
            asides.push(Aside { key, lease, unreadable });
        }
        Ok(None)
    }

    async fn give_back(&self, keys: &[i64]) -> Result<(), Stop> {
        if !keys.is_empty() {
            let (session, now) = (rows::integer(self.session.0), self.now.as_micros());
            let given = self.connection.rows(sql::GIVE_BACK, &[&session, &keys, &now]).await?;
            let line = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
            let lines: Vec<Line> = given.iter().map(line).collect::<Result<_, Stop>>()?;
            let queued = lines.into_iter().map(|line| News::Queued(line, Floor::of_wake(now)));
            self.shared.board.tell(queued.collect());
        }
        Ok(())
    }

    /// Returns again what the last claim has leased, as far as it is still held.
    async fn repeat(&self, claimed: &mut Claimed) -> Result<(), Stop> {
        let session = rows::integer(self.session.0);
        let given = self.connection.rows(sql::LEASES_OF_REQUEST, &[&session, &self.request]).await?;
        let given: Vec<(i64, bool)> =
            given.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, Stop>>()?;
        let keys: Vec<i64> = given.iter().map(|(key, _)| *key).collect();
        let is_care: HashMap<i64, bool> = given.into_iter().collect();
        for (key, found) in leased::read(self.shared, self.connection, self.session, &keys).await? {
            let Some(one) = self.sound(key, Some(found)).await? else { continue };
            let to = if is_care.get(&key) == Some(&true) { &mut claimed.care } else { &mut claimed.leased };
            to.push(one);
        }
        Ok(())
    }

    /// Raises the floors to the fronts of the queues, and adds to the answer how it goes on.
    fn arrive(&self, fronts: &[Row], claimed: &mut Claimed) -> Result<(), Stop> {
        let mut marks = Marks::new();
        for row in fronts {
            let line: Line = (row.try_get(0)?, row.try_get(1)?);
            let (wake, due, later): (Option<i64>, Option<i64>, Option<i64>) =
                (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
            claimed.more |= wake.is_some() || due.is_some();
            claimed.next_wake_at = Timestamp::sooner(claimed.next_wake_at, rows::timestamp(later));
            let floor = wake.map_or(Floor::NOTHING, Floor::of_wake);
            let timer = due.or(later).map_or(Floor::NOTHING, Floor::of_timer);
            floors::mark(&mut marks, line, floor.or(timer));
        }
        self.walk.raise(&marks, self.now.as_micros());
        Ok(())
    }

    /// Adds what else the session is told.
    async fn complete(&self, with_mail: bool, claimed: &mut Claimed) -> Result<(), Stop> {
        let (session, now) = (rows::integer(self.session.0), self.now.as_micros());
        let ns = self.ability.namespace.as_str();
        let Walk { routes, ranks, wakes, timers, .. } = &self.walk;
        let front: [Parameter<'_>; 5] = [routes, ranks, wakes, timers, &now];
        let care_of: [Parameter<'_>; 1] = [&ns];
        let (fronts, next_care) = tokio::join!(
            self.connection.rows(sql::FRONTS, &front),
            self.connection.rows(sql::CARE_NEXT, &care_of),
        );
        self.arrive(&fronts?, claimed)?;
        claimed.next_care_at = match next_care?.first() {
            Some(row) => rows::timestamp(row.try_get(1)?),
            None => None,
        };
        if with_mail {
            let is_new = |key: ExecutionKey| {
                claimed.leased.iter().chain(&claimed.care).any(|leased| leased.key == key)
            };
            let mut mail = Vec::new();
            for row in self.connection.rows(sql::MAIL, &[&session]).await? {
                let (key, id): (i64, String) = (row.try_get(0)?, row.try_get(1)?);
                mail.push((ExecutionKey(rows::unsigned(key)), MessageId::new(id)));
            }
            mail.retain(|(key, _)| !is_new(*key));
            claimed.mail = mail;
        }
        Ok(())
    }
}

/// Returns the size that counts towards the bound of a claim.
pub(super) fn size(leased: &Leased) -> usize {
    let journal: usize = match &leased.opening {
        Opening::Born(entry) => entry.encode().len(),
        Opening::Page(records) => records.iter().map(|record| record.bytes.len()).sum(),
    };
    let inbox = leased.inbox.messages.iter().map(|message| codec::encode(message).len());
    journal + inbox.sum::<usize>()
}

#[cfg(test)]
mod bloat;
