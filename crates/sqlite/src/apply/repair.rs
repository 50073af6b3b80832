//! `repair`: states anew from their journals.

use std::sync::Arc;

use abide_core::{Entry, Event, Execution, Start, Timestamp, Version, care};
use rusqlite::{OptionalExtension, params};

use crate::apply::check_inbox;
use crate::batch::Batch;
use crate::error::{Stop, is_newer};
use crate::job::Operation;
use crate::journal::{self, Chain, Found};
use crate::place::{Columns, Place, Queue};
use crate::rows::{integer, micros};
use crate::sheet::{Anchor, Base, Cold, Draft, Identity};
use crate::sql;
use crate::view::address;

/// Looks at some executions, those after `after`, and rebuilds what cannot be read of them and folds from a sound journal.
pub(crate) struct RepairWork {
    pub(crate) after: i64,
}

/// How many executions are looked at in one transaction.
const COUNT_AT_ONCE: i64 = 256;

/// What one look gave.
pub(crate) struct Repaired {
    /// What was rebuilt, one sentence each.
    pub(crate) rebuilt: Vec<String>,
    /// What could not be, and why.
    pub(crate) left: Vec<String>,
    /// Where to go on; nothing at the end.
    pub(crate) next: Option<i64>,
}

/// A row that cannot be read, or that was set aside.
struct Suspect {
    key: i64,
    namespace: i64,
    id: String,
    head: i64,
    version: Version,
}

impl Operation for RepairWork {
    type Output = Repaired;
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Repaired, Stop> {
        let (suspects, next) = suspects(batch, self.after)?;
        let mut repaired = Repaired { rebuilt: Vec::new(), left: Vec::new(), next };
        for suspect in suspects {
            let id = suspect.id.clone();
            match rebuild(batch, &suspect) {
                Ok(()) => repaired.rebuilt.push(format!("execution {id:?}: its state was rebuilt")),
                Err(stop) if stop.is_newer() => {
                    repaired.left.push(format!("execution {id:?} was written by a newer program"));
                }
                Err(stop) => {
                    let Some(damage) = stop.damage() else { return Err(stop) };
                    repaired.left.push(format!("execution {id:?} cannot be rebuilt: {damage}"));
                }
            }
        }
        Ok(repaired)
    }
}

/// Whether it can be read, and stands where it may. What a newer program wrote is for that program to judge.
fn is_sound(base: &Base<'_>, (place, parent_run): (Option<Place>, Option<i64>), now: Timestamp) -> bool {
    let read = || {
        let sheet = base.sheet()?;
        Ok((sheet.execution()?, sheet.summary()?))
    };
    match read() {
        Ok((execution, summary)) => {
            place.is_some_and(|place| place.fits(base.queue, &summary, now))
                && is_parent_run(parent_run, base.parent, &execution)
        }
        Err(error) => is_newer(&error),
    }
}

/// Whether its parent finds it among the children of the right run. A child that was retried is nobody's, and told nothing.
pub(crate) fn is_parent_run(found: Option<i64>, parent: Option<i64>, execution: &Execution) -> bool {
    match execution.parent().filter(|_| parent.is_some()) {
        Some(parent) => found == Some(i64::from(parent.run)),
        None => parent.is_some() == found.is_some(),
    }
}

/// What nobody holds and cannot be read, or would be found by nobody: a holder writes both anew with its next commit.
fn suspects(batch: &Batch<'_>, after: i64) -> Result<(Vec<Suspect>, Option<i64>), Stop> {
    let mut statement = batch.connection.prepare_cached(sql::VERIFY_EXECUTIONS)?;
    let mut live = batch.connection.prepare_cached(sql::SESSION_IS_LIVE)?;
    let mut rows = statement.query([after, COUNT_AT_ONCE])?;
    let (mut suspects, mut seen, mut last) = (Vec::new(), 0, after);
    while let Some(row) = rows.next()? {
        let base = Base::read(row)?;
        (seen, last) = (seen + 1, base.key);
        let place = Place::read(row, 9).ok();
        let is_fine = match place.and_then(Place::session) {
            Some(session) => live.exists([integer(session.0)])?,
            None => is_sound(&base, (place, row.get(14)?), batch.now()),
        };
        if is_fine {
            continue;
        }
        suspects.push(Suspect {
            key: base.key,
            namespace: base.namespace,
            id: base.id.to_owned(),
            head: base.anchor.head,
            version: base.anchor.version,
        });
    }
    Ok((suspects, (seen == COUNT_AT_ONCE).then_some(last)))
}

/// Writes the state that the journal adds up to. Nothing is written when anything else of the execution is damaged too.
fn rebuild(batch: &mut Batch<'_>, suspect: &Suspect) -> Result<(), Stop> {
    let Suspect { key, namespace, id, head, version } = suspect;
    let interned = batch.caches.interned(batch.connection)?;
    let address = address(interned, *namespace, id)?;
    let mut by_id = batch.connection.prepare_cached(sql::EXECUTION_KEY)?;
    let found: Option<i64> = by_id.query_row(params![namespace, id], |row| row.get(0)).optional()?;
    if found != Some(*key) {
        return Err(Stop::corrupt("its id is damaged"));
    }
    drop(by_id);
    if let Some(problem) = check_inbox(batch.connection, *key)? {
        return Err(Stop::corrupt(problem));
    }
    // A head that is damaged may point at an earlier row: what was recorded behind it would be forgotten, and happen again.
    if batch.connection.prepare_cached(sql::REPAIR_LATER_ROW)?.exists([key, head])? {
        return Err(Stop::corrupt("its journal goes on behind its head"));
    }
    let (chain, entries) = run_to(batch, *key, *head)?;
    let earlier: u32 =
        batch.connection.prepare_cached(sql::VERIFY_RUN_COUNT)?.query_row([key], |row| row.get(0))?;
    let execution = Execution::fold(address, earlier.saturating_add(1), &entries);
    let execution = execution.ok_or_else(|| Stop::corrupt("its journal does not begin with a start"))?;
    let (cold, start) = cold(batch, &chain, &execution)?;
    let parent = batch.parent_key(&start, *namespace)?;
    let route = batch.caches.interned(batch.connection)?.known_route(&execution.route());
    let route = route.ok_or_else(|| Stop::corrupt("its route is damaged"))?;
    let queue = Queue { route, priority: execution.priority() };
    let now = batch.now();
    let place = match entries.last() {
        Some(last) if execution.is_finished() => Place::Finished(last.at),
        // Whoever claims it finds out what it waits for.
        _ => Place::Ready(queue, now),
    };
    // Of a child that was retried it only says that it is one.
    let parent_run = parent.map(|_| execution.parent().map_or(0, |parent| parent.run));
    let summary = execution.summary(&[]);
    let anchor =
        Anchor::new(Identity { key: *key, namespace: *namespace, id, queue, parent }, *head, *version);
    let mut sheet = Draft::new(&summary, &abide_core::codec::encode(&execution));
    let Columns { place, rank, since } = place.columns();
    let has_mail = !execution.is_finished() && batch.inbox(*key)?.unread_count > 0;
    let care_at = care::after_release(summary.care_at, has_mail, now);
    batch.connection.prepare_cached(sql::REPAIR)?.execute(params![
        key,
        queue.number(),
        summary.status as u8,
        sheet.sealed(&cold, &anchor),
        place,
        rank,
        since,
        micros(care_at),
        parent_run,
        parent
    ])?;
    batch.caches.hot.remove(key);
    batch.caches.targets.remove(key);
    Ok(batch.announce(route)?)
}

/// The chain of the run that ends with `head`, and its entries.
pub(super) fn run_to(batch: &Batch<'_>, key: i64, head: i64) -> Result<(Chain, Vec<Entry>), Stop> {
    let mut statement = batch.connection.prepare_cached(sql::JOURNAL_BODY)?;
    let mut rows = Vec::new();
    let mut next = Some(head);
    while let Some(row) = next {
        let mut found = statement.query([row, key])?;
        let found = found.next()?.ok_or_else(|| journal::missing(row))?;
        let found = Found::read(found)?;
        let mut entries = Vec::new();
        for record in found.records() {
            let (seq, bytes) = record?;
            let record = abide_store::Record { seq, bytes: bytes.to_vec() };
            entries.push(record.entry().map_err(|error| Stop::corrupt(error.to_string()))?);
        }
        next = found.previous.filter(|_| found.seq > 1);
        rows.push((row, entries));
    }
    rows.reverse();
    let first = rows.first().map_or(head, |(row, _)| *row);
    let row_count = rows.len() as u64;
    let entries: Vec<Entry> = rows.into_iter().flat_map(|(_, entries)| entries).collect();
    let entry_count = entries.len() as u64;
    if entries.iter().zip(1..).any(|(entry, seq)| entry.seq != seq) {
        return Err(Stop::corrupt("its journal has a gap"));
    }
    Ok((Chain { key, first, head, entry_count, row_count }, entries))
}

/// What rarely changes, from what is recorded of it.
fn cold(batch: &Batch<'_>, chain: &Chain, execution: &Execution) -> Result<(Cold, Arc<Start>), Stop> {
    let mut first_run = batch.connection.prepare_cached(sql::RUN_CHAIN)?;
    let origin: Option<i64> = first_run.query_row(params![chain.key, 1], |row| row.get(0)).optional()?;
    let row = origin.unwrap_or(chain.first);
    let first = journal::record(batch.connection, (row, chain.key), |records| records.into_iter().next())?;
    let first = first.entry().map_err(|error| Stop::corrupt(error.to_string()))?;
    let Event::Started(start) = first.event else {
        return Err(Stop::corrupt("its journal does not begin with a start"));
    };
    let cold = Cold::of_newborn(&start, chain.first, first.at);
    Ok((Cold { run: execution.run(), origin, row_count: chain.row_count, ..cold }, start))
}
