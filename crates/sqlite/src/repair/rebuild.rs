//! `repair`: rebuilds executions from their journals.
//!
//! Nearly everything follows from the journal. The rest, such as the operations that the code waits
//! for, is in the sheet, which is sealed with the columns beside it. If one of those columns is
//! damaged, the sheet opens with the value from the journal instead, and nothing is lost.

use abide_core::{Execution, Summary, Timestamp, Version, care, parking};
use rusqlite::params;
use rusqlite::types::ValueRef;

use super::Repairs;
use super::astray::{bring_home, is_astray};
use super::examine::{self, Verdict, examine_one};
use super::truth::Truth;
use crate::answers::Keeping;
use crate::apply::check_inbox;
use crate::apply::each_unread;
use crate::apply::is_alive;
use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::legible::LegibleRow;
use crate::mail::message;
use crate::place::{Columns, Place, ReadyQueue};
use crate::rows::{Raw, indexed, integer, micros};
use crate::sheet::{Cold, Draft, Sheet};
use crate::{journal, sql, tail};

/// Rebuilds some executions as far as possible.
pub(crate) struct RepairWork {
    pub(crate) leads: Vec<Lead>,
    /// The last journal row of the search that found the leads.
    pub(crate) searched_to: i64,
}

/// An execution that seemed damaged, and the last journal row that names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lead {
    pub(crate) key: i64,
    pub(crate) last_row: Option<i64>,
    /// The size of its journal.
    pub(crate) byte_count: u64,
}

impl Lead {
    /// Creates a lead whose journal has not been searched for yet.
    pub(crate) fn new(key: i64) -> Self {
        Self { key, last_row: None, byte_count: 0 }
    }
}

const NEWER: &str = "was written by a newer program";

impl Operation for RepairWork {
    type Output = Repairs;
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Repairs, Stop> {
        let mut repaired = Repairs::default();
        for lead in &self.leads {
            repaired.add(batch.readable(|batch| self.look_at(batch, lead))?);
        }
        Ok(repaired)
    }
}

/// Whether a live session holds the execution at this place.
pub(super) fn is_held(batch: &Batch<'_>, place: Option<Place>) -> Result<bool, Stop> {
    place.and_then(Place::session).map_or(Ok(false), |session| is_alive(batch, session))
}

/// Examines an execution in this transaction.
pub(super) fn examined(batch: &mut Batch<'_>, key: i64) -> Result<Verdict, Stop> {
    let now = batch.now();
    let interned = batch.caches.interned(batch.connection)?;
    Ok(examine_one(batch.connection, (interned, now), key)?.unwrap_or(Verdict::Sound))
}

/// Whether its parent finds it among the children of the right run. A retried child has no parent,
/// and gets no orders.
pub(crate) fn is_parent_run(found: Option<i64>, parent: Option<i64>, execution: &Execution) -> bool {
    match execution.parent().filter(|_| parent.is_some()) {
        Some(parent) => found == Some(i64::from(parent.run)),
        None => parent.is_some() == found.is_some(),
    }
}

/// An execution under repair: its row and its journal. Everything is written with one time: a
/// second reading of the clock would seal the sheet with another version than the row has.
#[derive(Clone, Copy)]
struct Case<'c> {
    legible: &'c LegibleRow,
    truth: &'c Truth,
    now: Timestamp,
}

impl Case<'_> {
    /// Returns its version, or one that it never had.
    fn version(&self) -> Version {
        self.legible.version.unwrap_or(Version(crate::rows::unsigned(self.now.as_micros())))
    }
}

/// The content of a sheet, and the columns that it was sealed with.
struct Opened {
    summary: Summary,
    queue: ReadyQueue,
    parent: Option<i64>,
    sheet: Vec<u8>,
    /// Whether the sheet is the original one.
    is_found: bool,
}

impl RepairWork {
    /// Repairs one execution, if it is damaged and can be repaired.
    fn look_at(&self, batch: &mut Batch<'_>, lead: &Lead) -> Result<Repairs, Stop> {
        let Some(legible) = LegibleRow::find(batch.connection, lead.key)? else {
            return Ok(Repairs::default());
        };
        let title = legible.title();
        let left = |why: &str| Repairs { left: vec![format!("{title} {why}")], ..Repairs::default() };
        match examined(batch, lead.key)? {
            Verdict::Sound => return Ok(Repairs::default()),
            Verdict::Newer(_) => return Ok(left(NEWER)),
            Verdict::Damaged(_) if is_held(batch, legible.place)? => {
                return Ok(left("is held by a worker, which sets it aside when it reads it"));
            }
            Verdict::Damaged(_) => {}
        }
        let legible = legible.trusted();
        let done = match self.repair(batch, (lead, &legible)) {
            Ok(done) => done,
            Err(stop) if stop.is_newer() => return Ok(left(NEWER)),
            Err(stop) => {
                let Some(damage) = stop.damage() else { return Err(stop) };
                return Ok(left(&format!("cannot be rebuilt: {damage}")));
            }
        };
        let mut repaired = match examined(batch, lead.key)? {
            Verdict::Damaged(damage) => left(&format!("cannot be rebuilt: {damage}")),
            Verdict::Sound | Verdict::Newer(_) => Repairs::default(),
        };
        repaired.rebuilt.extend((!done.is_empty()).then(|| format!("{title}: {}", done.join("; "))));
        Ok(repaired)
    }

    /// Writes and reports everything that can be derived, or nothing if other data is damaged too.
    fn repair(
        &self,
        batch: &mut Batch<'_>,
        (lead, legible): (&Lead, &LegibleRow),
    ) -> Result<Vec<String>, Stop> {
        let later = journal::last_row_after(batch.connection, lead.key, self.searched_to)?;
        let (truth, opened) = judge(batch, legible, later.or(lead.last_row))?;
        truth.check_id(batch)?;
        let mut done = Vec::new();
        done.extend(bring_home(batch, lead.key)?);
        // Only a final end drops them: a retry would open a run that reads the unread messages.
        if truth.execution.is_final(&truth.start) {
            done.extend(drop_damaged(batch, lead.key)?.into_iter().map(|dropped| dropped.of_ended()));
        }
        if let Some(problem) = check_inbox(batch.connection, lead.key)? {
            return Err(Stop::corrupt(problem));
        }
        let case = Case { legible, truth: &truth, now: batch.now() };
        let found = match opened {
            Some(opened) => opened,
            None => sealed(batch, case)?,
        };
        let columns = write(batch, case, &found)?;
        // Most columns follow from a new state.
        let rebuilt = || Some("its state was rebuilt".to_owned());
        done.extend(if found.is_found { columns } else { rebuilt() });
        done.extend(truth.write_runs(batch)?.then(|| "its earlier runs were put back".to_owned()));
        done.extend(truth.write_tags(batch)?.then(|| "its tags were put back".to_owned()));
        forget(batch, lead.key);
        Ok(done)
    }
}

/// Clears the writer's caches of an execution, because nothing in them is true any longer.
fn forget(batch: &mut Batch<'_>, key: i64) {
    batch.caches.rows.remove(&key);
    batch.caches.targets.clear();
    batch.caches.ids.clear();
    batch.caches.inboxes.remove(&key);
    batch.caches.answers.forget(key);
    batch.caches.last_parent = None;
}

/// Reads the journal of an execution, and its sheet if that is intact. A damaged head may point at
/// an earlier row: everything recorded after it would be forgotten, and happen again. So the head
/// is trusted only if the sheet was sealed with it, or if it is the last row.
fn judge(
    batch: &mut Batch<'_>,
    legible: &LegibleRow,
    last_row: Option<i64>,
) -> Result<(Truth, Option<Opened>), Stop> {
    let told = legible.head.map(|head| Truth::read(batch, legible.key, head));
    if let Some(Ok(truth)) = &told
        && let Some(opened) = open(batch, legible, truth)?
    {
        return Ok((told.expect("it was looked at")?, Some(opened)));
    }
    match (last_row, legible.head) {
        (None, _) => Err(Stop::corrupt("its journal is missing, or cannot be read to its end")),
        (Some(last), Some(head)) if last == head => Ok((told.expect("there is a head")?, None)),
        (Some(last), head) => {
            if let Ok(truth) = Truth::read(batch, legible.key, last)
                && let Some(head) = sealed_with(batch, legible, &truth)?
                && let Ok(truth) = Truth::read(batch, legible.key, head)
                && let Some(opened) = open(batch, legible, &truth)?
            {
                return Ok((truth, Some(opened)));
            }
            Err(match head {
                Some(head) if head < last => Stop::corrupt("its journal goes on behind its head"),
                Some(head) => journal::missing(head),
                None => Stop::corrupt("its state and its head are damaged"),
            })
        }
    }
}

/// Returns the row that was the head when the sheet was sealed: the last row of the journal, or one
/// that a tail follows.
fn sealed_with(batch: &mut Batch<'_>, legible: &LegibleRow, truth: &Truth) -> Result<Option<i64>, Stop> {
    let (Some(bytes), Some(version)) = (&legible.sheet, legible.version) else { return Ok(None) };
    let standings = standings(batch, legible, truth)?;
    let heads = tail::rows_to(batch.connection, legible.key, truth.head())?;
    Ok(heads.into_iter().find(|head| {
        let anchor = |standing| truth.anchor(standing, version).at(*head);
        standings.iter().any(|standing| Sheet::open(bytes, &anchor(*standing)).is_ok())
    }))
}

/// Returns the queues and parents that an execution may have.
fn standings(
    batch: &mut Batch<'_>,
    legible: &LegibleRow,
    truth: &Truth,
) -> Result<Vec<(ReadyQueue, Option<i64>)>, Stop> {
    let told = batch.parent_key(&truth.start, truth.namespace)?;
    let parents = [legible.parent, Some(told)];
    let parents =
        parents.into_iter().flatten().filter(|parent| truth.start.parent.is_some() || parent.is_none());
    let parents: Vec<Option<i64>> = parents.collect();
    let queues = queues(batch, truth)?;
    Ok(queues.iter().flat_map(|queue| parents.iter().map(|parent| (*queue, *parent))).collect())
}

/// Opens the sheet of a row, with the journal's values for the columns that it was sealed with.
/// Returns it if it opens and agrees with the journal.
fn open(batch: &mut Batch<'_>, legible: &LegibleRow, truth: &Truth) -> Result<Option<Opened>, Stop> {
    let (Some(bytes), Some(version)) = (&legible.sheet, legible.version) else { return Ok(None) };
    for (queue, parent) in standings(batch, legible, truth)? {
        let sheet = match Sheet::open(bytes, &truth.anchor((queue, parent), version)) {
            Ok(sheet) => sheet,
            Err(error) if error.is_newer() => return Err(error.into()),
            Err(_) => continue,
        };
        let (summary, state) = (sheet.summary()?, sheet.execution()?.at(truth.address.clone()));
        // The journal does not tell where answers are, nor whether it may go on.
        let Cold { keeping, has_tail, .. } = truth.cold;
        let cold = Cold { keeping, has_tail, ..sheet.cold };
        if state != truth.execution || cold != truth.cold {
            return Ok(None);
        }
        return Ok(Some(Opened { summary, queue, parent, sheet: bytes.clone(), is_found: true }));
    }
    Ok(None)
}

/// Returns the queues of an execution's route. There may be two.
fn queues(batch: &mut Batch<'_>, truth: &Truth) -> Result<Vec<ReadyQueue>, Stop> {
    let route = truth.execution.route();
    let priority = truth.execution.priority();
    let interned = batch.caches.interned(batch.connection)?;
    let routes = interned.routes().filter(|(_, known)| ***known == route);
    Ok(routes.map(|(route, _)| ReadyQueue { route, priority }).collect())
}

/// Seals a new sheet. Its code's waits are not recorded: the next holder finds them out.
fn sealed(batch: &mut Batch<'_>, case: Case<'_>) -> Result<Opened, Stop> {
    let Case { legible, truth, now } = case;
    let queues = queues(batch, truth)?;
    let queue = queues.iter().find(|queue| legible.queue == Some(**queue)).or(queues.first());
    let queue = *queue.ok_or_else(|| Stop::corrupt("its route is damaged"))?;
    let parent = batch.parent_key(&truth.start, truth.namespace)?;
    let summary = truth.execution.summary_at_start(now);
    let mut draft = Draft::of(&summary, &truth.execution);
    let anchor = truth.anchor((queue, parent), case.version());
    // Which answers it has read is lost. Those that it waits for are given again.
    let has_children = batch.connection.prepare_cached(sql::REPAIR_CHILDREN)?.exists([legible.key])?;
    let keeping = if has_children { Keeping::Settled } else { truth.cold.keeping };
    let sheet = draft.sealed(&Cold { keeping, ..truth.cold }, &anchor).to_vec();
    Ok(Opened { summary, queue, parent, sheet, is_found: false })
}

/// Writes the row and returns the changed columns.
fn write(batch: &mut Batch<'_>, case: Case<'_>, found: &Opened) -> Result<Option<String>, Stop> {
    let Case { legible, truth, now } = case;
    let (place, care_at) = place(batch, case, found)?;
    // For a retried child, the column only says that it is a child.
    let parent_run = found.parent.map(|_| truth.execution.parent().map_or(0, |parent| parent.run.into()));
    let written = LegibleRow {
        key: legible.key,
        namespace: Some(truth.namespace),
        id: Some(truth.address.id.to_string()),
        queue: Some(found.queue),
        parent: Some(found.parent),
        head: Some(truth.head()),
        version: Some(case.version()),
        sheet: Some(found.sheet.clone()),
        // If its epoch is lost, it gets one that nobody had, so earlier holders stay fenced.
        epoch: Some(legible.epoch.unwrap_or(now.as_micros())),
        place: Some(place),
        columns: Some(place.columns()),
        status: Some(indexed(found.summary.status).map(i64::from)),
        care_at: Some(care_at),
        parent_run: Some(parent_run),
        takeover_count: Some(legible.takeover_count.unwrap_or(0)),
        is_sealed: true,
        anchor: Ok(truth.anchor((found.queue, found.parent), case.version())),
    };
    let changed = changed(legible, &written);
    let Columns { place: number, rank, place_at } = place.columns();
    batch.connection.prepare_cached(sql::REPAIR)?.execute(params![
        written.key,
        written.namespace,
        written.id,
        found.queue.number(),
        found.parent,
        written.head,
        written.version.map(|version| integer(version.0)),
        written.sheet,
        written.epoch,
        number,
        rank,
        place_at,
        written.status.flatten(),
        micros(care_at),
        parent_run,
        written.takeover_count
    ])?;
    if let Place::Ready(..) | Place::Timer(..) = place {
        batch.announce(found.queue.route)?;
    }
    if care_at.is_some() {
        batch.announce_care(found.queue.route)?;
    }
    let text = changed.join(", ");
    Ok((!changed.is_empty()).then(|| format!("its row was put right: {text}")))
}

/// Returns the columns that differ between two rows, except the sheet.
fn changed(before: &LegibleRow, after: &LegibleRow) -> Vec<&'static str> {
    let columns = [
        ("namespace", before.namespace != after.namespace),
        ("id", before.id != after.id),
        ("queue", before.queue != after.queue),
        ("parent", before.parent != after.parent),
        ("parent_run", before.parent_run != after.parent_run),
        ("head", before.head != after.head),
        ("version", before.version != after.version),
        ("epoch", before.epoch != after.epoch),
        ("place", before.columns != after.columns),
        ("status", before.status != after.status),
        ("care_at", before.care_at != after.care_at),
        ("takeover_count", before.takeover_count != after.takeover_count),
    ];
    columns.into_iter().filter(|(_, is_changed)| *is_changed).map(|(name, _)| name).collect()
}

/// Returns its place and the time of a caretaker's next look. Both stay as stored if they are
/// possible; otherwise they are as if the holder had parked the execution without reading its mail.
fn place(batch: &mut Batch<'_>, case: Case<'_>, found: &Opened) -> Result<(Place, Option<Timestamp>), Stop> {
    let Case { legible, truth, now } = case;
    let (execution, summary) = (&truth.execution, &found.summary);
    if execution.is_finished() {
        let ended = legible.place.filter(|place| matches!(place, Place::Finished(_)));
        return Ok((ended.unwrap_or(Place::Finished(truth.last_at)), None));
    }
    let (mut sorts, mut is_unheard) = (Vec::new(), false);
    each_unread(batch.connection, legible.key, |message| {
        sorts.push(Some(message.body.sort()));
        is_unheard |= parking::waits_for(summary, &message);
    })?;
    let has_mail = !sorts.is_empty();
    let parked = parking::park(summary, sorts, now);
    let is_awake = |place: Place| {
        let is_ready = place.ready_at().is_some();
        let is_fresh = place == Place::Waiting && legible.version == Some(Version(0));
        let fits = place.session().is_none() && place.fits(found.queue, summary, now);
        fits && (is_ready || !is_unheard) && !is_fresh
    };
    let told = legible.place.filter(|place| found.is_found && is_awake(*place));
    let place = told.unwrap_or_else(|| {
        let is_ready = summary.status == abide_core::Status::Running || parked.is_ready;
        if is_ready {
            Place::Ready(found.queue, now)
        } else {
            Place::parked(found.queue.route, summary.wake_at)
        }
    });
    let care_at = match legible.care_at {
        Some(told)
            if examine::is_looked_after(batch.connection, (legible.key, told), (place, execution))? =>
        {
            told
        }
        _ => care::after_release(execution.care_at(), has_mail, now),
    };
    Ok((place, care_at))
}

/// A message that was unreadable, and has been dropped.
pub(super) struct Dropped {
    pub(super) id: String,
    pub(super) damage: String,
}

impl Dropped {
    fn of_ended(&self) -> String {
        format!("message {:?}, which nobody will ever read, was dropped: {}", self.id, self.damage)
    }
}

/// Drops the damaged unread messages of an execution. Messages by a newer program stay, as do
/// messages that were sent to another execution.
pub(super) fn drop_damaged(batch: &mut Batch<'_>, key: i64) -> Result<Vec<Dropped>, Stop> {
    let mut dropped = Vec::new();
    let mut statement = batch.connection.prepare_cached(sql::VERIFY_INBOX)?;
    let mut rows = statement.query([key])?;
    let mut ids = Vec::new();
    while let Some(row) = rows.next()? {
        if row.get_ref(3)? == ValueRef::Null {
            continue;
        }
        let Err(error) = message(row) else { continue };
        let Some(damage) = Stop::from(error).damage() else { continue };
        if is_astray(batch, row)? {
            continue;
        }
        let id = Raw::read(row, 1)?;
        dropped.push(Dropped { id: id.to_string(), damage });
        ids.push(id);
    }
    drop(rows);
    for id in ids {
        drop_one(batch, (key, &id))?;
    }
    batch.caches.inboxes.remove(&key);
    Ok(dropped)
}

fn drop_one(batch: &Batch<'_>, (key, id): (i64, &Raw)) -> Result<(), Stop> {
    match batch.connection.prepare_cached(sql::MESSAGE_DROP)?.execute(params![key, id])? {
        0 => Err(Stop::corrupt(format!("message {:?} is damaged, and cannot be dropped", id.to_string()))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use abide_store::conformance::block_on;
    use rusqlite::Connection;

    use super::*;
    use crate::fixture::{pair, start};
    use crate::writer::Scheduling;

    /// Otherwise, everything recorded after the search would be forgotten, and happen again.
    #[test]
    fn p1_rows_that_were_written_after_the_search_are_seen() {
        let (folder, store, _theirs) = pair();
        start(&store, "a");
        let raw = Connection::open(folder.path().join("a.db")).unwrap();
        let insert = "INSERT INTO abide_journal SELECT 2, execution, 1, 2, happened, skip, body, more FROM abide_journal";
        raw.execute_batch(insert).unwrap();
        raw.execute_batch("UPDATE abide_executions SET state = x'00'").unwrap();
        let leads = vec![Lead { last_row: Some(1), ..Lead::new(1) }];
        let repaired =
            block_on(store.write(RepairWork { leads, searched_to: 1 }, Scheduling::Queued)).unwrap();
        assert_eq!(
            repaired.left,
            [r#"execution "a" cannot be rebuilt: its journal goes on behind its head"#]
        );
        assert_eq!(repaired.rebuilt, Vec::<String>::new());
    }
}
