//! Leases for caretakers.

use abide_core::{Message, Timestamp, care};
use abide_store::{Error, Leased, NEWER_PAUSE};

use super::claim::{self, Claimer};
use super::leased;
use crate::error::Stop;
use crate::rows;
use crate::sheet::Parameter;
use crate::sql;

/// An execution as a caretaker sees it.
struct Seen {
    key: i64,
    session: Option<i64>,
    epoch: i64,
    version: i64,
    /// The messages that are reasons to look.
    reasons: Vec<String>,
    look: care::Look,
}

/// Looks at executions whose `care_at` has come, one after the other, and leases those that need a
/// caretaker.
pub(super) async fn look_after(claimer: &Claimer<'_>, slots: usize) -> Result<Vec<Leased>, Stop> {
    let (mut given, mut size) = (Vec::new(), 0);
    let size_max = claimer.shared.options.page_bounds.claim_bytes_max;
    let mut look_count = 0;
    while look_count < claimer.shared.options.care_count_max {
        let due = due(claimer).await?;
        if due.is_empty() || given.len() >= slots || size >= size_max {
            break;
        }
        for key in due {
            look_count += 1;
            if given.len() >= slots || size >= size_max {
                break;
            }
            let Some(seen) = look(claimer, key).await? else { continue };
            if let care::Look::Later(at) = seen.look {
                put_off(claimer, &seen, at).await?;
            } else if let Some(leased) = take(claimer, &seen).await? {
                size += claim::size(&leased);
                given.push(leased);
            }
        }
    }
    Ok(given)
}

async fn due(claimer: &Claimer<'_>) -> Result<Vec<i64>, Stop> {
    let ns = claimer.ability.namespace.as_str();
    let found = claimer.connection.rows(sql::CARE_NEXT, &[&ns]).await?;
    let found = found.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let found: Vec<(i64, i64)> = found.collect::<Result<_, Stop>>()?;
    let now = claimer.now.as_micros();
    Ok(found.into_iter().filter(|(_, at)| *at <= now).map(|(key, _)| key).collect())
}

/// Returns the caretaker's decision about an execution. An unreadable execution is left alone: it
/// must not hold up others.
async fn look(claimer: &Claimer<'_>, key: i64) -> Result<Option<Seen>, Stop> {
    let Some(row) = claimer.connection.maybe_row(sql::CARE_LOOK, &[&key]).await? else { return Ok(None) };
    let (session, epoch, version) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
    let reasons = row.try_get(8)?;
    let decided = || -> Result<care::Look, Stop> {
        let address = rows::address(row.try_get(0)?, row.try_get(1)?)?;
        let summary = rows::summary(key, row.try_get(5)?)?;
        let execution = rows::state(key, &address, row.try_get(6)?)?;
        let orders: Vec<Vec<u8>> = row.try_get(7)?;
        let orders: Vec<Message> =
            orders.iter().map(|body| rows::message(key, body)).collect::<Result<_, Stop>>()?;
        let held = (&rows::lease_row(session, epoch, version), summary.cared_epoch);
        let grace = claimer.shared.bounds().terminate_grace();
        Ok(care::look(&execution, held, &orders, claimer.now, grace))
    };
    let look = match decided() {
        Ok(look) => look,
        Err(Stop::Told(Error::Newer { .. })) => care::Look::Later(Some(claimer.now.after(NEWER_PAUSE))),
        Err(Stop::Told(error @ Error::Corrupt { .. })) => {
            tracing::error!(key, %error, "an execution cannot be looked after");
            care::Look::Later(None)
        }
        Err(stop) => return Err(stop),
    };
    Ok(Some(Seen { key, session, epoch, version, reasons, look }))
}

async fn put_off(claimer: &Claimer<'_>, seen: &Seen, at: Option<Timestamp>) -> Result<(), Stop> {
    let Seen { key, session, epoch, version, reasons, .. } = seen;
    let at = rows::micros(at);
    let parameters: [Parameter<'_>; 6] = [key, &at, epoch, version, session, reasons];
    claimer.connection.rows(sql::CARE_LATER, &parameters).await?;
    Ok(())
}

async fn take(claimer: &Claimer<'_>, seen: &Seen) -> Result<Option<Leased>, Stop> {
    let session = rows::integer(claimer.session.0);
    let (now, after) = (claimer.now.as_micros(), claimer.after_lease());
    let parameters: [Parameter<'_>; 8] =
        [&session, &claimer.request, &seen.key, &seen.epoch, &now, &after, &seen.version, &seen.session];
    if claimer.connection.rows(sql::CARE_LEASE, &parameters).await?.is_empty() {
        // Somebody was faster, and it is looked at again, or this session has ended.
        return Ok(None);
    }
    let found = leased::read(claimer.shared, claimer.connection, claimer.session, &[seen.key]).await?;
    claimer.sound(seen.key, found.into_iter().next().map(|(_, leased)| leased)).await
}
