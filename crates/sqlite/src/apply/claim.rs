//! `claim`: leases of ready executions.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Epoch, ExecutionId, Lease, LeaseRow, MessageId, SessionId, Suspicion, Timestamp, Unclaimed, care,
};
use abide_store::{Claim, Claimed, ExecutionKey, Leased, NEWER_PAUSE, Opening};
use rusqlite::OptionalExtension;

use super::aside::{set_aside, set_aside_any};
use super::inbox::orders;
use super::intake::is_waiting;
use super::session::sweep;
use crate::answers::Keeping;
use crate::batch::Batch;
use crate::error::{Stop, complaint};
use crate::job::Operation;
use crate::journal::Page;
use crate::notices::not_live;
use crate::place::{self, Columns, Holder, Place};
use crate::rows::{epoch, integer, number, text, timestamp, unsigned};
use crate::sheet::Base;
use crate::sql;
use crate::tail::Current;
use crate::tallies::Given;

pub(crate) struct ClaimWork {
    claim: Claim,
    /// How often the claim met an execution that SQLite could not read.
    unread_count: usize,
    /// Whether the last attempt met such an execution.
    is_taught: bool,
}

/// The number of unreadable executions that one claim may meet. With more it fails, and the next
/// claim knows of these.
const UNREAD_COUNT_MAX: usize = 10_000;

impl ClaimWork {
    pub(crate) fn new(claim: Claim) -> Self {
        Self { claim, unread_count: 0, is_taught: false }
    }
}

impl Operation for ClaimWork {
    type Output = Claimed;
    const WHAT: &'static str = "claim";

    /// Claims, and starts again without the executions that SQLite could not read: after such a
    /// page SQLite commits nothing of the same transaction. It is a function of its own in every
    /// build, because `cargo xtask instructions` leaves claims out.
    #[inline(never)]
    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Claimed, Stop> {
        let put_count = batch.left_out.put_count();
        if self.unread_count == 0 {
            batch.left_out.trim(batch.now());
        }
        let claimed = self.give(batch);
        let met_count = batch.left_out.put_count() - put_count;
        if met_count == 0 {
            return claimed;
        }
        self.unread_count += met_count;
        self.is_taught = self.unread_count <= UNREAD_COUNT_MAX;
        claimed.and_then(|claimed| batch.check_writable().map(|()| claimed))
    }

    fn can_do_without(&mut self) -> bool {
        std::mem::take(&mut self.is_taught)
    }
}

impl ClaimWork {
    fn give(&self, batch: &mut Batch<'_>) -> Result<Claimed, Stop> {
        let claim = &self.claim;
        let now = batch.now();
        // Before the sweep: a session that is dead itself changes nothing.
        if batch.live_session(claim.session, now)?.is_none() {
            return Err(Stop::Refused(not_live(claim.session)));
        }
        if claim.sweep {
            sweep(batch, now)?;
        }
        let mut timers = promote(batch, claim.session, now)?;
        // Before new leases are granted: a lease carries its own mail, which must not be reported
        // twice.
        let mut mail = if claim.with_mail { held_mail(batch, claim.session)? } else { Vec::new() };
        let last_request = batch.last_request(claim.session);
        let mut repeated = given(batch, claim)?;
        // If the outcome of a claim's COMMIT was unknown, only its leases show that it was applied.
        let is_new = claim.request > last_request && repeated.is_empty();
        if claim.request < last_request {
            repeated.clear();
        }
        let slots = if is_new { claim.slots.min(SLOT_COUNT_MAX) } else { 0 };
        let (first, mut more) = ready(batch, claim.session, slots)?;
        let (mut leased, mut care) = (Vec::new(), Vec::new());
        if is_new {
            let ready_count = first.len();
            leased = lease(batch, claim, first)?;
            more |= leased.len() < ready_count;
            care = look_after(batch, claim, now)?;
        }
        if !care.is_empty() {
            // The caretaker's executions may have been the remaining or the next ones.
            timers = promote(batch, claim.session, now)?;
            more = ready(batch, claim.session, 0)?.1;
        }
        for Offer { key, position, former } in repeated {
            if batch.left_out.has(key, now) {
                continue;
            }
            let again = if position < CARE_POSITION { &mut leased } else { &mut care };
            let told = sound(batch, (key, former), (claim.session, Which::Held))?;
            again.extend(told.ok().map(|(one, _)| one));
        }
        batch.effects.requests.push((claim.session, claim.request.max(last_request)));
        mail.retain(|(key, _)| !leased.iter().chain(&care).any(|leased| leased.key == *key));
        let next_wake_at = Timestamp::sooner(timers.next_wake_at, batch.left_out.next_at(now));
        Ok(Claimed {
            leased,
            care,
            mail,
            more: more || timers.more,
            next_wake_at,
            next_care_at: next_care(batch, claim.session)?.map(|(care_at, _)| care_at),
            intake: claim.sweep && is_waiting(batch.connection)?,
        })
    }
}

/// From this position on, the executions of a claim are leased to a caretaker.
const CARE_POSITION: u64 = Holder::POSITION_END / 2;

/// The most executions that one claim leases to be run.
const SLOT_COUNT_MAX: usize = Holder::POSITION_END as usize / 2;

/// An execution that a claim may lease.
struct Offer {
    key: i64,
    /// Its position among the executions of the claim.
    position: u64,
    /// The lease that it loses when it is leased anew.
    former: Option<Given>,
}

/// Leases ready executions, one after the other, until the answer is large enough.
fn lease(batch: &mut Batch<'_>, claim: &Claim, ready: Vec<i64>) -> Result<Vec<Leased>, Stop> {
    let mut leased = Vec::with_capacity(ready.len());
    let mut bytes = 0;
    for (key, position) in ready.into_iter().zip(0..) {
        if bytes >= batch.shared.options.page_bounds.claim_bytes_max && !planted(Bug::ClaimUnbounded) {
            break;
        }
        let offer = Offer { key, position, former: None };
        let Ok((one, size)) = lease_one(batch, claim, &offer)? else { continue };
        leased.push(one);
        bytes += size;
    }
    Ok(leased)
}

fn lease_one(batch: &mut Batch<'_>, claim: &Claim, offer: &Offer) -> Result<Sound, Stop> {
    let Offer { key, position, former } = *offer;
    let which = (claim.session, Which::Next);
    let (one, size) = match sound(batch, (key, former), which)? {
        Ok(sound) => sound,
        Err(unread) => return Ok(Err(unread)),
    };
    if one.execution.is_finished() {
        return ended(batch, (key, former));
    }
    let beat = batch.tallies.beat_count(claim.session);
    let Claim { session, request, .. } = *claim;
    let holder = Holder { session, request, beat, position, is_newborn: false };
    let Columns { place, rank, place_at } = Place::Held(holder).columns();
    // See `care::after_lease`. An execution without a time for care keeps none.
    let care_at = batch.now().after(batch.terminate_grace()).as_micros();
    batch.connection.prepare_cached(sql::CLAIM)?.execute([key, place, rank, place_at, care_at])?;
    batch.caches.rows.remove(&key);
    batch.caches.targets.remove(&key);
    if let Some(former) = former {
        batch.take_away(key, former)?;
    }
    batch.tallies.give(key, claim.session, one.lease.epoch);
    Ok(Ok((one, size)))
}

/// Refuses to lease an execution that has ended. Either its row stands where it does not belong, or
/// an index says so and the row does not.
fn ended(batch: &mut Batch<'_>, (key, former): (i64, Option<Given>)) -> Result<Sound, Stop> {
    let mut statement = batch.connection.prepare_cached(sql::EXECUTION_PLACE)?;
    let place = statement.query_row([key], |row| Ok(Place::read(row, 1).ok()))?;
    drop(statement);
    if let Some(Place::Finished(_)) = place {
        return Err(Stop::stale_index(key));
    }
    set_aside(batch, (key, former), "it has ended, and stands among what has not")?;
    Ok(Err(Unread::Damaged))
}

/// A leased execution and its size, or the reason why it was not leased.
type Sound = Result<(Leased, usize), Unread>;

/// The reason why an execution cannot be leased.
#[derive(Clone, Copy)]
enum Unread {
    /// It is damaged, and was set aside.
    Damaged,
    /// A newer program wrote it and will run it.
    Newer,
    /// SQLite could not read it. Claims leave it out for a while.
    LeftOut,
}

/// How long a caretaker leaves an execution that a newer program wrote to workers that can read it,
/// as a claim does ([`NEWER_PAUSE`]). Such a worker looks sooner.
const NEWER_CARE_PAUSE: Duration = Duration::from_secs(60);

/// Does the same as [`leased`], but sets an unreadable execution aside, by name: it must not delay
/// others. An execution that a newer program wrote is put off if it is ready, and the executions
/// behind it get their turn.
fn sound(
    batch: &mut Batch<'_>,
    (key, former): (i64, Option<Given>),
    which: (SessionId, Which),
) -> Result<Sound, Stop> {
    let stop = match leased(batch, key, which) {
        Ok(leased) => {
            batch.left_out.forget(key);
            return Ok(Ok(leased));
        }
        Err(stop) => stop,
    };
    if stop.is_unread() {
        leave_out(batch, key, stop)?;
        return Ok(Err(Unread::LeftOut));
    }
    if stop.is_newer() {
        let until = batch.now().after(NEWER_PAUSE).as_micros();
        batch.connection.prepare_cached(sql::PUT_OFF)?.execute([key, until])?;
        batch.caches.rows.remove(&key);
        batch.caches.targets.remove(&key);
        return Ok(Err(Unread::Newer));
    }
    let damage = stop.damage().filter(|_| !planted(Bug::DamageStarvesOthers));
    let Some(damage) = damage else { return Err(stop) };
    set_aside(batch, (key, former), &damage)?;
    Ok(Err(Unread::Damaged))
}

/// Leaves an execution out that SQLite could not read. If the failed read has ended the
/// transaction, the next one leaves the execution out.
fn leave_out(batch: &mut Batch<'_>, key: i64, stop: Stop) -> Result<(), Stop> {
    let now = batch.now();
    let until = batch.left_out.put(key, now);
    tracing::error!(key, ?stop, ?until, "an execution could not be read and is left out for a while");
    if batch.connection.is_autocommit() { Err(stop) } else { Ok(()) }
}

/// Looks at the executions that are due for care, one after the other, and leases those for which a
/// caretaker has work to do.
fn look_after(batch: &mut Batch<'_>, claim: &Claim, now: Timestamp) -> Result<Vec<Leased>, Stop> {
    let mut care = Vec::new();
    let mut bytes = 0;
    for _ in 0..batch.shared.options.due_count_max {
        if care.len() >= claim.care_slots || bytes >= batch.shared.options.page_bounds.claim_bytes_max {
            break;
        }
        let Some((_, key)) = next_care(batch, claim.session)?.filter(|(care_at, _)| *care_at <= now) else {
            break;
        };
        let (look, former) = look(batch, key, now)?;
        match look {
            care::Look::Take => {
                let offer = Offer { key, position: CARE_POSITION + care.len() as u64, former };
                match lease_one(batch, claim, &offer)? {
                    Ok((one, size)) => {
                        care.push(one);
                        bytes += size;
                    }
                    Err(Unread::Damaged | Unread::LeftOut) => {}
                    Err(Unread::Newer) => batch.set_care(key, Some(now.after(NEWER_CARE_PAUSE)))?,
                }
            }
            care::Look::Later(care_at) => batch.set_care(key, care_at)?,
        }
    }
    Ok(care)
}

/// Returns the execution of the session's namespace that is due for care next.
fn next_care(batch: &mut Batch<'_>, session: SessionId) -> Result<Option<(Timestamp, i64)>, Stop> {
    let Some(state) = batch.caches.session(batch.connection, session)? else { return Ok(None) };
    let ability = Arc::clone(&state.ability);
    let Some(namespace) = batch.caches.interned(batch.connection)?.known(&ability.namespace) else {
        return Ok(None);
    };
    loop {
        let now = batch.now();
        let mut next = batch.connection.prepare_cached(sql::CARE_NEXT)?;
        let mut rows = next.query([namespace])?;
        let damaged = loop {
            let Some(row) = rows.next()? else { return Ok(None) };
            let key: i64 = row.get(1)?;
            match timestamp(row, 0) {
                Ok(_) if batch.left_out.has(key, now) => {}
                Ok(care_at) => return Ok(Some((care_at, key))),
                Err(error) => break (key, complaint(&error)),
            }
        };
        drop(rows);
        drop(next);
        let (key, damage) = damaged;
        set_aside_any(batch, key, &damage)?;
    }
}

/// Returns the caretaker's decision about an execution, and its holder. An unreadable execution is
/// left alone: it must not hold up others.
fn look(batch: &mut Batch<'_>, key: i64, now: Timestamp) -> Result<(care::Look, Option<Given>), Stop> {
    let stop = match look_closely(batch, key, now) {
        Ok(look) => return Ok(look),
        Err(stop) => stop,
    };
    if stop.is_newer() {
        return Ok((care::Look::Later(Some(now.after(NEWER_CARE_PAUSE))), None));
    }
    if stop.is_unread() {
        if batch.connection.is_autocommit() {
            leave_out(batch, key, stop)?;
        }
        // The lease would meet the same error, and leave the execution out.
        return Ok((care::Look::Take, None));
    }
    let Some(damage) = stop.damage() else { return Err(stop) };
    tracing::error!(key, %damage, "an execution cannot be looked after");
    Ok((care::Look::Later(None), None))
}

fn look_closely(batch: &Batch<'_>, key: i64, now: Timestamp) -> Result<(care::Look, Option<Given>), Stop> {
    let mut statement = batch.connection.prepare_cached(sql::EXECUTION_LEASE)?;
    let (mut held, former, current) = statement.query_row([key], |row| {
        let base = Base::read(row)?;
        let sheet = base.sheet()?;
        let (place, epoch) = (Place::read(row, 9)?, epoch(row, 8)?);
        let lease = LeaseRow { session: place.session(), epoch, version: base.anchor.version };
        Ok(((lease, sheet.summary()?.cared_epoch), place.given(epoch), Current::read(&base, &sheet)?))
    })?;
    drop(statement);
    let current = current.follow(batch.connection)?;
    held.0.version = current.version;
    let orders = orders(batch.connection, key)?;
    Ok((care::look(&current.execution, (&held.0, held.1), &orders, now, batch.terminate_grace()), former))
}

/// Returns the leases that this request received before and that its session still holds.
fn given(batch: &mut Batch<'_>, claim: &Claim) -> Result<Vec<Offer>, Stop> {
    let mut statement = batch.connection.prepare_cached(sql::CLAIMED_BEFORE)?;
    let given = statement.query_map([place::held(claim.session), integer(claim.request)], |row| {
        let offer = |place: Place, epoch: Epoch, key: i64| {
            let position = place.holder().map_or(0, |holder| holder.position);
            Offer { key, position, former: place.given(epoch) }
        };
        let key: i64 = row.get(0)?;
        Ok(match (Place::read(row, 2), epoch(row, 1)) {
            (Ok(place), Ok(epoch)) => Ok(offer(place, epoch, key)),
            (Err(error), _) | (_, Err(error)) => Err((key, complaint(&error))),
        })
    })?;
    let given = given.collect::<rusqlite::Result<Vec<_>>>()?;
    drop(statement);
    let mut offers = Vec::with_capacity(given.len());
    for one in given {
        match one {
            Ok(offer) => offers.push(offer),
            Err((key, damage)) => set_aside_any(batch, key, &damage)?,
        }
    }
    Ok(offers)
}

/// The state of the timers of a session's routes.
struct Timers {
    more: bool,
    next_wake_at: Option<Timestamp>,
}

/// Makes executions ready whose timers are due; they count as ready since that time.
fn promote(batch: &mut Batch<'_>, session: SessionId, now: Timestamp) -> Result<Timers, Stop> {
    let routes = batch.served(session)?;
    let mut left = batch.shared.options.due_count_max;
    let mut next_wake_at: Option<Timestamp> = None;
    for route in routes.iter() {
        let mut wake_at = next_timer(batch, *route)?;
        if wake_at.is_some_and(|wake_at| wake_at <= now) {
            batch.caches.idle_routes.remove(route);
            batch.caches.targets.clear();
            let mut promote = batch.connection.prepare_cached(sql::TIMERS_PROMOTE)?;
            left -= promote.execute([
                place::timers(*route),
                now.as_micros(),
                integer(left as u64),
                place::ready(*route),
            ])?;
            wake_at = next_timer(batch, *route)?;
        }
        next_wake_at = Timestamp::sooner(next_wake_at, wake_at);
    }
    Ok(Timers { more: left == 0, next_wake_at })
}

/// Returns the next timer of a route.
fn next_timer(batch: &mut Batch<'_>, route: i64) -> Result<Option<Timestamp>, Stop> {
    loop {
        let mut next = batch.connection.prepare_cached(sql::TIMER_NEXT)?;
        let found = next.query_row([place::timers(route)], |row| {
            Ok((row.get::<_, i64>(1)?, timestamp(row, 0).map_err(|error| complaint(&error))))
        });
        let found = found.optional()?;
        drop(next);
        match found {
            None => return Ok(None),
            Some((_, Ok(place_at))) => return Ok(Some(place_at)),
            Some((key, Err(damage))) => set_aside_any(batch, key, &damage)?,
        }
    }
}

/// Returns the first ready executions, and whether there are more. Each route that the session
/// serves has its own queue: an execution that the session cannot run never stands before one that
/// it can.
fn ready(batch: &mut Batch<'_>, session: SessionId, slots: usize) -> Result<(Vec<i64>, bool), Stop> {
    let (mut ready, mut damaged) = (Vec::new(), Vec::new());
    let routes = batch.served(session)?;
    let now = batch.now();
    for route in routes.iter() {
        let mut head = batch.connection.prepare_cached(sql::READY_HEAD)?;
        let mut rows = head.query([place::ready(*route)])?;
        let mut found_count = 0;
        // One more than wanted, to see whether there are more.
        while found_count <= slots {
            let Some(row) = rows.next()? else { break };
            let key: i64 = row.get(2)?;
            match (row.get::<_, i64>(0), row.get::<_, i64>(1)) {
                (Ok(_), Ok(_)) if batch.left_out.has(key, now) => continue,
                (Ok(rank), Ok(place_at)) => ready.push((rank, place_at, key)),
                (Err(error), _) | (_, Err(error)) => damaged.push((key, complaint(&error))),
            }
            found_count += 1;
        }
    }
    ready.sort_unstable();
    // Other executions may stand behind the damaged ones.
    let more = ready.len() > slots || !damaged.is_empty();
    ready.truncate(slots);
    for (key, damage) in damaged {
        set_aside_any(batch, key, &damage)?;
    }
    Ok((ready.into_iter().map(|(_, _, key)| key).collect(), more))
}

/// The lease of an execution that an answer shows.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    /// The lease that the session has.
    Held,
    /// The lease that the session is about to receive.
    Next,
}

/// Returns everything that is needed to run an execution under a lease of the session, and the size
/// of that.
pub(crate) fn leased(
    batch: &mut Batch<'_>,
    key: i64,
    (session, which): (SessionId, Which),
) -> Result<(Leased, usize), Stop> {
    struct Found {
        namespace: i64,
        id: String,
        epoch: Epoch,
        takeover_count: u32,
        cared_epoch: Option<Epoch>,
        suspicion: Option<Suspicion>,
        unclaimed: Option<Unclaimed>,
        keeping: Keeping,
        current: Current,
    }
    let mut statement = batch.connection.prepare_cached(sql::EXECUTION_LEASED)?;
    let found = statement.query_row([key], |row| {
        let base = Base::read(row)?;
        let sheet = base.sheet()?;
        let epoch = epoch(row, 8)?;
        // Nobody has written a summary of an execution that nobody has held. To know that, nothing
        // needs to be decoded.
        let summary = if epoch == Epoch::default() { None } else { Some(sheet.summary()?) };
        Ok(Found {
            namespace: base.namespace,
            id: base.id.to_owned(),
            epoch,
            takeover_count: row.get(9)?,
            cared_epoch: summary.as_ref().and_then(|summary| summary.cared_epoch),
            unclaimed: summary.as_ref().and_then(|summary| summary.unclaimed.clone()),
            suspicion: summary.and_then(|summary| summary.suspicion),
            keeping: sheet.cold.keeping,
            current: Current::read(&base, &sheet)?,
        })
    })?;
    drop(statement);
    if found.current.has_tail {
        // A former process cannot close it any longer.
        batch.tails.open(key);
    }
    let current = found.current.follow(batch.connection)?;
    let namespace = batch.caches.interned(batch.connection)?.namespace(found.namespace).cloned();
    let namespace = namespace.ok_or_else(|| Stop::corrupt(format!("execution {key} is in no namespace")))?;
    let id = ExecutionId::new(&found.id).map_err(|error| Stop::corrupt(error.to_string()))?;
    let page = Page::new((1, usize::MAX), &batch.shared.options.page_bounds);
    let journal = current.chain.first_page(batch.connection, page)?;
    batch.settle_open(key, found.keeping)?;
    let (inbox, inbox_bytes) = batch.first_page(ExecutionKey(unsigned(key)))?;
    let bytes = inbox_bytes + journal.iter().map(|record| record.bytes.len()).sum::<usize>();
    let epoch = match which {
        Which::Held => found.epoch,
        Which::Next => found.epoch.next(),
    };
    let lease = Lease { session, epoch };
    let leased = Leased {
        key: ExecutionKey(unsigned(key)),
        lease,
        version: current.version,
        takeover_count: found.takeover_count,
        suspicion: found.suspicion,
        unclaimed: found.unclaimed,
        is_first: lease.is_first(found.cared_epoch),
        execution: current.execution.at(Address { namespace, id }),
        opening: Opening::Page(journal),
        inbox,
    };
    Ok((leased, bytes))
}

/// Returns the newest unread message of each execution that the session holds.
fn held_mail(batch: &mut Batch<'_>, session: SessionId) -> Result<Vec<(ExecutionKey, MessageId)>, Stop> {
    let kept = if planted(Bug::AnswersUntold) { Vec::new() } else { batch.newest_kept(session)? };
    let has_kept: HashSet<i64> = kept.iter().map(|(key, _)| *key).collect();
    // This is asked whenever another process has written. A pass over all held executions would
    // cost in proportion to their number.
    const FEW: i64 = 1_000;
    let is_many = batch.connection.prepare_cached(sql::INBOX_MANY)?.exists([FEW])?;
    let asked = if is_many { sql::INBOX_HELD } else { sql::INBOX_HELD_OF_FEW };
    let mut statement = batch.connection.prepare_cached(asked)?;
    let mut rows = statement.query([place::held(session)])?;
    let mut mail = Vec::new();
    while let Some(row) = rows.next()? {
        // A reader of the inbox finds its damaged messages.
        if let (Some(key), Ok(id)) = (number(row, 0)?, text(row, 1))
            && !has_kept.contains(&key)
        {
            mail.push((ExecutionKey(unsigned(key)), MessageId::new(id)));
        }
    }
    mail.extend(kept.into_iter().map(|(key, id)| (ExecutionKey(unsigned(key)), id)));
    Ok(mail)
}

#[cfg(test)]
mod tests {
    use abide_store::Store;
    use abide_store::conformance::block_on;

    use super::*;
    use crate::fixture::{inside, pair, register, start};

    #[test]
    fn what_could_not_be_read_is_left_out_also_when_that_has_ended_the_transaction() {
        let (_folder, ours, _theirs) = pair();
        let mut attempt_count = 0;
        let left_out = inside(&ours, move |batch| {
            attempt_count += 1;
            if attempt_count == 1 {
                batch.connection.execute_batch("ROLLBACK")?;
                leave_out(batch, 7, Stop::stale_index(7))?;
                return Ok(Vec::new());
            }
            leave_out(batch, 8, Stop::stale_index(8))?;
            let now = batch.now();
            Ok([7, 8, 9].map(|key| batch.left_out.has(key, now)).to_vec())
        });
        assert_eq!(left_out.unwrap(), [true, true, false]);
    }

    #[test]
    fn what_others_have_run_meanwhile_is_left_out_no_longer() {
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        inside(&ours, |batch| Ok(batch.left_out.put(7, Timestamp::from_micros(0)))).unwrap();
        block_on(ours.claim(claim(session))).unwrap();
        let pause = inside(&ours, |batch| pause(batch, 7));
        assert_eq!(pause.unwrap(), Duration::from_secs(1), "as if it had never failed");
    }

    fn claim(session: SessionId) -> Claim {
        Claim { session, request: 1, slots: 9, care_slots: 9, with_mail: false, sweep: false }
    }

    /// Leaves the execution out, and returns for how long.
    fn pause(batch: &mut Batch<'_>, key: i64) -> Result<Duration, Stop> {
        let now = batch.now();
        Ok(batch.left_out.put(key, now).since(now))
    }

    /// Neither a timer nor a message would wake the claiming worker.
    #[test]
    fn what_is_left_out_is_asked_for_again_when_its_pause_ends() {
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        let put = |batch: &mut Batch<'_>| pause(batch, 7).map(|pause| batch.now().after(pause));
        let until = inside(&ours, put).unwrap();
        assert_eq!(block_on(ours.claim(claim(session))).unwrap().next_wake_at, Some(until));
    }

    #[test]
    fn what_could_be_read_again_is_left_out_no_longer_than_the_first_time() {
        const KEY: i64 = 1;
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        start(&ours, "a");
        let before = |batch: &mut Batch<'_>| {
            let before = batch.now().before(Duration::from_secs(1));
            Ok(batch.left_out.put(KEY, before) == batch.now())
        };
        assert!(inside(&ours, before).unwrap(), "its pause has ended");
        assert_eq!(block_on(ours.claim(claim(session))).unwrap().leased.len(), 1);
        assert_eq!(inside(&ours, |batch| pause(batch, KEY)).unwrap(), Duration::from_secs(1));
    }
}
