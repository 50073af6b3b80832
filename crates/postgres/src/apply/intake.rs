//! The intake table: rows that any program puts there, and what becomes of them.

use std::collections::HashSet;

use abide_core::{Enqueued, Happening, Message, Refusal};
use abide_store::{Error, IntakeLook, RefusedRow, TakeIn, TakenIn};
use tokio_postgres::Row;

use super::alone::Work;
use super::letter::{self, Origin};
use crate::board::News;
use crate::error::{Kind, Stop};
use crate::rows;
use crate::seal::sealed;
use crate::shared::Shared;
use crate::sql;
use crate::view::feed_item;

/// Takes rows. If something goes wrong with all of them, the first one is tried alone; and if that
/// is to blame, it is refused: no row keeps those behind it from being taken.
pub(crate) async fn take_in(shared: &Shared, take_in: TakeIn) -> Result<TakenIn, Stop> {
    let stop = match take(shared, (take_in.limit, None)).await {
        Err(stop) if is_of_a_row(&stop) => stop,
        taken => return taken,
    };
    let stop = match take(shared, (1, None)).await {
        Err(first) if is_of_a_row(&first) => first,
        Ok(taken) => return Ok(TakenIn { more: true, ..taken }),
        Err(_) => return Err(stop),
    };
    let complaint = stop.told("take in", Kind::Writes).to_string();
    let taken = take(shared, (1, Some(complaint))).await?;
    Ok(TakenIn { more: true, ..taken })
}

/// Whether the server found fault with the written values, and not with the connection or the time.
fn is_of_a_row(stop: &Stop) -> bool {
    match stop {
        Stop::Told(error) => error.is_of_one(),
        Stop::Database(error) => {
            // Data exceptions, broken constraints, and values that are too large for an index.
            let is_fault = |code: &str| ["22", "23", "54"].iter().any(|class| code.starts_with(class));
            !stop.is_race() && error.code().is_some_and(|code| is_fault(code.code()))
        }
        Stop::Raced | Stop::Alone => false,
    }
}

/// A row, and what it says.
struct Taken {
    number: i64,
    row: Enqueued,
    message: Result<Message, Refusal>,
}

async fn take(shared: &Shared, (limit, fault): (usize, Option<String>)) -> Result<TakenIn, Stop> {
    let found = read(shared, limit).await?;
    if found.is_empty() {
        return Ok(TakenIn::default());
    }
    let routes = letter::routes_of(shared, found.iter().filter_map(|one| one.message.as_ref().ok()));
    let mut work = Work::begin_with(shared, routes, sql::INTAKE_BEGIN).await?;
    match work.take(&found, fault.as_deref()).await {
        // What others are taking is looked for again when they are done.
        Ok(taken) => {
            let more = taken.taken_count > 0;
            work.commit(TakenIn { more, ..taken }).await
        }
        Err(stop) if is_of_a_row(&stop) || stop.is_race() => {
            work.connection.undo().await;
            Err(stop)
        }
        Err(stop) => Err(work.undo(stop).await),
    }
}

/// Reads the oldest rows, up to the size of a claim.
async fn read(shared: &Shared, limit: usize) -> Result<Vec<Taken>, Stop> {
    let connection = shared.pool.take().await?;
    let bytes_max = rows::limit(shared.options.page_bounds.claim_bytes_max);
    let found = connection.rows(sql::INTAKE_ROWS, &[&rows::limit(limit), &bytes_max]).await?;
    let now = shared.now();
    let taken = |found: &Row| {
        let row = enqueued(found)?;
        Ok(Taken { number: found.try_get(0)?, message: row.message(now), row })
    };
    found.iter().map(taken).collect()
}

/// Returns what stands in the intake table, and what of it was refused: up to so many rows of each.
pub(crate) async fn look(shared: &Shared, limit: usize) -> Result<IntakeLook, Stop> {
    let waiting = read(shared, limit).await?.into_iter().map(|one| one.row).collect();
    let connection = shared.pool.take().await?;
    let mut refused = Vec::new();
    for row in connection.rows(sql::REFUSALS_NEWEST, &[&rows::limit(limit)]).await? {
        match feed_item(&row) {
            Ok(item) => refused.push(item),
            // One damaged row hides no others; `verify` names it.
            Err(Stop::Told(error)) => tracing::error!(%error, "a refusal cannot be read"),
            Err(stop) => return Err(stop),
        }
    }
    Ok(IntakeLook { waiting, refused })
}

fn enqueued(row: &Row) -> Result<Enqueued, Stop> {
    Ok(Enqueued {
        id: row.try_get(1)?,
        namespace: row.try_get(2)?,
        verb: row.try_get(3)?,
        execution: row.try_get(4)?,
        name: row.try_get(5)?,
        input: row.try_get(6)?,
        options: row.try_get(7)?,
        sender: row.try_get(8)?,
    })
}

impl Work<'_> {
    /// Takes those of the rows that nobody else takes.
    async fn take(&mut self, found: &[Taken], fault: Option<&str>) -> Result<TakenIn, Stop> {
        let numbers: Vec<i64> = found.iter().map(|one| one.number).collect();
        let locked = numbers_of(&self.connection.rows(sql::INTAKE_LOCK, &[&numbers]).await?)?;
        let first = numbers_of(&self.connection.rows(sql::INTAKE_FIRST, &[&locked]).await?)?;
        let numbers: HashSet<i64> = first.iter().copied().collect();
        let taken: Vec<&Taken> = found.iter().filter(|one| numbers.contains(&one.number)).collect();
        let messages: Vec<Message> = match fault {
            None => taken.iter().filter_map(|one| one.message.as_ref().ok().cloned()).collect(),
            Some(_) => Vec::new(),
        };
        let mut reasons = self.put_each(&messages).await?.into_iter();
        let reason = |one: &Taken| match (&one.message, fault) {
            (_, Some(fault)) => Some(fault.to_owned()),
            (Ok(_), None) => reasons.next().flatten(),
            (Err(refusal), None) => Some(refusal.to_string()),
        };
        let reasons: Vec<Option<String>> = taken.iter().copied().map(reason).collect();
        let refused = taken.iter().zip(&reasons).filter_map(|(Taken { row, .. }, reason)| {
            let refused = RefusedRow::of(row, reason.as_ref()?);
            Some(sealed(0, &refused.encode(&row.legible_address())))
        });
        let refused: Vec<Vec<u8>> = refused.collect();
        if !refused.is_empty() {
            let (at, happening) = (self.now.as_micros(), Happening::Refused as i16);
            self.connection.change(sql::INTAKE_REFUSE, &[&at, &happening, &refused]).await?;
            self.tell(News::Feed);
        }
        self.connection.change(sql::INTAKE_TAKE, &[&first]).await?;
        Ok(TakenIn { taken_count: taken.len(), refused_count: refused.len(), more: false })
    }

    /// Puts each message into its inbox. Returns why it was refused, if it was.
    async fn put_each(&mut self, messages: &[Message]) -> Result<Vec<Option<String>>, Stop> {
        let origin = Origin { gate: None, is_strict: true, offer: None, begins_at: None };
        let (mut reasons, mut rest) = (Vec::new(), messages);
        while !rest.is_empty() {
            let (some, others) = rest.split_at(letter::independent(rest).max(1));
            for put in self.put(some, origin).await? {
                reasons.push(match put {
                    Ok(_) => None,
                    Err(Stop::Told(
                        error @ (Error::Refused(_) | Error::Corrupt { .. } | Error::Newer { .. }),
                    )) => Some(error.to_string()),
                    Err(stop) => return Err(stop),
                });
            }
            rest = others;
        }
        Ok(reasons)
    }
}

fn numbers_of(rows: &[Row]) -> Result<Vec<i64>, Stop> {
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
