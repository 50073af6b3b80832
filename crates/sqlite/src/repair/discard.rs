//! `discard`: the end of an execution that is damaged and cannot be rebuilt.

use std::sync::Arc;

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Body, Bounds, By, Command, Descent, Entry, Event, Execution, ExecutionId, Message, MessageId,
    Parent, Payload, Route, Start, Timestamp, Version, check_reason, text,
};
use abide_store::{Error, Record};
use rusqlite::{OptionalExtension, Row, params};

use super::examine::Verdict;
use super::lost_messages::{unless_damaged, waits_for};
use super::meant::{Meant, meant};
use super::rebuild::{examined, is_held};
use super::salvage::Salvage;
use super::truth::run_to;
use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::journal::{self, Link};
use crate::legible::LegibleRow;
use crate::place::{Columns, Place, ReadyQueue};
use crate::rows::{indexed, integer, unsigned};
use crate::sheet::{Anchor, Cold, Draft, Identity, Sheet};
use crate::store::SqliteStore;
use crate::view::address;
use crate::writer::Scheduling;
use crate::{sheaf, sql};

impl SqliteStore {
    /// Ends a damaged execution that [`repair`](Self::repair) cannot rebuild. It is cancelled by
    /// `by`, its waiting clients and its parent get an answer, and its children are terminated. Its
    /// journal and its messages are deleted.
    pub async fn discard(&self, address: &Address, by: By, reason: String) -> abide_store::Result<Discarded> {
        check_reason("reason", &reason).map_err(|invalid| Error::Refused(invalid.into()))?;
        self.check_tables("discard").await?;
        let work = |salvage| DiscardWork {
            address: address.clone(),
            by: by.clone(),
            reason: reason.clone(),
            salvage,
        };
        let done = self.write(work(None), Scheduling::Queued).await;
        let Err(Error::Corrupt { .. }) = done else { return done };
        let target = address.clone();
        let salvage = self.view("discard", move |view| Salvage::of(view.connection, &target)).await?;
        match salvage {
            Some(salvage) => self.write(work(Some(salvage)), Scheduling::Queued).await,
            None => done,
        }
    }
}

/// Replaces the journal of a damaged execution with one that says that it was started and
/// cancelled, answers its parent, and ends its children. The record of its work is gone.
pub(crate) struct DiscardWork {
    pub(crate) address: Address,
    pub(crate) by: By,
    pub(crate) reason: String,
    /// The deletable parts of an execution that SQLite cannot read whole.
    pub(crate) salvage: Option<Salvage>,
}

/// The outcome of a discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Discarded {
    /// The execution is cancelled.
    Ended,
    /// The execution does not exist.
    Unknown,
    /// The execution is not damaged: a terminate ends it.
    Sound,
    /// A worker holds the execution. It sets the execution aside if it is unreadable, and rewrites
    /// it otherwise.
    Held,
    /// The execution has ended. That is final: its result may be readable, and its parent has it.
    Over,
    /// Nothing readable describes the execution.
    Unreadable,
}

/// The readable parts of the damaged execution.
struct Damaged {
    legible: LegibleRow,
    namespace: i64,
    id: String,
    version: Version,
    state: Option<Execution>,
}

impl Damaged {
    fn of(legible: LegibleRow, (namespace, id): (i64, &str), now: Timestamp) -> Self {
        let state = state(&legible, (namespace, id));
        // If its own version is lost, it gets one that it never had.
        let version = legible.version.unwrap_or(Version(unsigned(now.as_micros()))).next();
        Self { legible, namespace, id: id.to_owned(), version, state }
    }

    /// Returns an epoch that no lease had.
    fn epoch(&self, now: Timestamp) -> i64 {
        let told = self.legible.epoch.filter(|_| self.legible.is_sealed);
        told.map_or(now.as_micros(), |epoch| epoch + 1)
    }

    /// Whether it has ended, which is final. A sheet that opens is as it was written; only without
    /// one does the place of the row matter.
    fn has_ended(&self) -> bool {
        match &self.state {
            Some(state) => state.is_finished(),
            None => matches!(self.legible.place, Some(Place::Finished(_))),
        }
    }
}

/// Returns the state in a row, if it is readable.
fn state(legible: &LegibleRow, (namespace, id): (i64, &str)) -> Option<Execution> {
    let identity =
        Identity { key: legible.key, namespace, id, queue: legible.queue?, parent: legible.parent? };
    let anchor = Anchor::new(identity, legible.head?, legible.version?);
    Sheet::open(legible.sheet.as_ref()?, &anchor).ok()?.execution().ok()
}

impl Operation for DiscardWork {
    type Output = Discarded;
    const WHAT: &'static str = "discard";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Discarded, Stop> {
        batch.readable(|batch| self.discard(batch))
    }
}

impl DiscardWork {
    fn discard(&self, batch: &mut Batch<'_>) -> Result<Discarded, Stop> {
        let Some(Meant { legible, namespace, address }) = meant(batch, &self.address)? else {
            return Ok(Discarded::Unknown);
        };
        if is_held(batch, legible.place)? {
            return Ok(Discarded::Held);
        }
        // An unreadable execution was examined before.
        if self.salvage.is_none() && !matches!(examined(batch, legible.key)?, Verdict::Damaged(_)) {
            return Ok(Discarded::Sound);
        }
        let damaged = Damaged::of(legible, (namespace, address.id.as_str()), batch.now());
        let kept = unless_damaged(batch.kept_by(damaged.legible.key))?;
        if damaged.has_ended() && (kept.is_some() || !is_awaited(batch, &damaged)?) {
            return Ok(Discarded::Over);
        }
        let first = match &self.salvage {
            Some(salvage) => salvage.first,
            None => journal::first_row(batch.connection, damaged.legible.key)?,
        };
        let Some((start, at)) = beginning(batch, (&damaged, first))? else {
            return Ok(Discarded::Unreadable);
        };
        // The answer that it has given is not lost with its journal.
        match kept.flatten().filter(|_| !planted(Bug::AnswerDiscarded)) {
            Some(kept) => batch.let_go(kept)?,
            None => damaged.legible.parent.flatten().map_or(Ok(()), |parent| batch.settle_answers(parent))?,
        }
        // The request stays as it is: the transaction may be rolled back, and the request repeated.
        let (by, reason, salvage) = (self.by.clone(), self.reason.clone(), self.salvage.clone());
        Self { address, by, reason, salvage }.end(batch, &damaged, (start, at))?;
        Ok(Discarded::Ended)
    }

    fn end(
        &self,
        batch: &mut Batch<'_>,
        damaged: &Damaged,
        (start, at): (Arc<Start>, Timestamp),
    ) -> Result<(), Stop> {
        let now = batch.now();
        let (mut execution, first) = Execution::start(self.address.clone(), Arc::clone(&start), at);
        let terminate = Command::Terminate { by: self.by.clone(), reason: self.reason.clone() };
        let decision = execution.decide(terminate, now)?;
        let outgoing = decision.outgoing.clone();
        let (entries, _) = decision.record(&mut execution, now);
        let entries: Vec<Entry> = std::iter::once(first).chain(entries).collect();
        match &self.salvage {
            Some(salvage) => forget_readable(batch, salvage)?,
            None => forget(batch, damaged)?,
        }
        let owner = journal::owner_bytes(damaged.namespace, &damaged.id);
        let (first, head, row_count) = write_journal(batch, (damaged.legible.key, owner), &entries)?;
        batch.tag(&start, (damaged.namespace, damaged.legible.key))?;
        let cold = Cold { row_count, ..Cold::of_newborn(&start, first, at) };
        self.write_row(batch, damaged, (&execution, cold, head))?;
        if let Some(message) = &outgoing {
            send(batch, message)?;
        }
        self.end_children(batch, damaged.legible.key)
    }

    fn write_row(
        &self,
        batch: &mut Batch<'_>,
        damaged: &Damaged,
        (execution, cold, head): (&Execution, Cold, i64),
    ) -> Result<(), Stop> {
        let route =
            batch.caches.interned(batch.connection)?.intern_route(batch.connection, execution.route())?;
        let queue = ReadyQueue { route, priority: execution.priority() };
        let key = damaged.legible.key;
        // Its start names its parent; the column repeats it.
        let parent = damaged.legible.parent.flatten().filter(|_| !cold.top_level);
        let parent_run = execution.parent().filter(|_| parent.is_some()).map(|parent| parent.run);
        let identity = Identity { key, namespace: damaged.namespace, id: &damaged.id, queue, parent };
        let anchor = Anchor::new(identity, head, damaged.version);
        let summary = execution.summary(&[]);
        let mut sheet = Draft::of(&summary, execution);
        let Columns { place, rank, place_at } = Place::Finished(batch.now()).columns();
        batch.connection.prepare_cached(sql::DISCARD)?.execute(params![
            key,
            queue.number(),
            parent,
            parent_run,
            integer(damaged.version.0),
            indexed(summary.status),
            head,
            sheet.sealed(&cold, &anchor),
            place,
            rank,
            place_at,
            damaged.namespace,
            damaged.id,
            // The holder of an earlier epoch stays fenced.
            damaged.epoch(batch.now())
        ])?;
        batch.caches.rows.remove(&key);
        batch.caches.targets.remove(&key);
        batch.caches.inboxes.remove(&key);
        batch.caches.answers.forget(key);
        Ok(())
    }

    /// Terminates its children, as any terminate does.
    fn end_children(&self, batch: &mut Batch<'_>, key: i64) -> Result<(), Stop> {
        let mut statement = batch.connection.prepare_cached(sql::DISCARD_CHILDREN)?;
        // An unreadable child is damaged itself, and is left for somebody to look at.
        let child = |row: &Row<'_>| Some((row.get(0).ok()?, row.get(1).ok()?, row.get(2).ok()?));
        let children = statement.query_map([key], |row| Ok(child(row)))?;
        let children = children.collect::<rusqlite::Result<Vec<Option<(i64, String, u32)>>>>()?;
        drop(statement);
        for (namespace, id, run) in children.into_iter().flatten() {
            let Ok(to) = address(batch.caches.interned(batch.connection)?, namespace, &id) else { continue };
            let reason = format!("its parent {:?} was discarded: {}", self.address.id, self.reason);
            let body = Body::Terminate { reason: text::cut(reason, Bounds::REASON_BYTES_MAX) };
            let id = discarded_by(&self.address.id);
            let descent = Descent { parent: self.address.id.clone(), run, before: u64::MAX, op: None };
            let message = Message::new(id, to, self.by.clone(), body);
            send(batch, &Message { descent: Some(descent.into()), ..message })?;
        }
        Ok(())
    }
}

/// Returns the id of the message that informs children that their parent was discarded.
pub(crate) fn discarded_by(parent: &ExecutionId) -> MessageId {
    MessageId::new(format!("{parent}/discarded"))
}

/// Sends a message. A target that is gone, has ended or is damaged itself does not keep the other
/// messages from being sent.
fn send(batch: &mut Batch<'_>, message: &Message) -> Result<(), Stop> {
    match batch.put(message) {
        Ok(_) | Err(Stop::Refused(_)) => Ok(()),
        Err(stop) => Err(stop),
    }
}

/// Whether its parent waits for the answer of an execution that has ended, and of which the last
/// entry, with the answer beside it, cannot be read. Nothing else would answer the parent.
fn is_awaited(batch: &mut Batch<'_>, damaged: &Damaged) -> Result<bool, Stop> {
    let Some(parent) = damaged.legible.parent.flatten() else { return Ok(false) };
    let interned = batch.caches.interned(batch.connection)?;
    Ok(waits_for(batch.connection, interned, (parent, &damaged.id))? && !planted(Bug::AnswerAwaitedForEver))
}

/// Returns the start of an execution and its time: from its journal, or else from its state, or
/// else from its queue.
fn beginning(
    batch: &mut Batch<'_>,
    (damaged, first): (&Damaged, Option<i64>),
) -> Result<Option<(Arc<Start>, Timestamp)>, Stop> {
    let entry =
        first.and_then(|row| crate::apply::first_entry(batch.connection, damaged.legible.key, row).ok());
    if let Some(Entry { event: Event::Started(start), at, .. }) = entry {
        return Ok(Some((Arc::new(Start { discarded_at: Some(batch.now()), ..(*start).clone() }), at)));
    }
    let route = match &damaged.state {
        Some(state) => Some(state.route()),
        None => batch
            .caches
            .interned(batch.connection)?
            .route(damaged.legible.queue.map_or(0, |queue| queue.route))
            .map(|route| (**route).clone()),
    };
    let Some(Route { lane, kind, name, requires, .. }) = route else { return Ok(None) };
    let parent = match &damaged.state {
        Some(state) => state.parent().cloned(),
        None => told_parent(batch, damaged)?,
    };
    let now = batch.now();
    let start = Start {
        lane,
        requires: requires.into_iter().collect(),
        priority: damaged.state.as_ref().map_or(0, Execution::priority),
        parent,
        discarded_at: Some(now),
        ..Start::of(kind, name, Payload::from("null"))
    };
    Ok(Some((Arc::new(start), now)))
}

/// Returns the parent that waits for an execution of which only the row can be read. The row names
/// the parent, and the parent's journal names the wait. A damaged parent gets no answer: it has to
/// be discarded itself.
fn told_parent(batch: &Batch<'_>, damaged: &Damaged) -> Result<Option<Parent>, Stop> {
    let mut find = batch.connection.prepare_cached(sql::DISCARD_PARENT)?;
    let found = find.query_row([damaged.legible.key], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, u32>(2)?, row.get::<_, i64>(3)?))
    });
    let Some((key, id, run, head)) = found.optional()? else { return Ok(None) };
    let names = (ExecutionId::new(id), ExecutionId::new(damaged.id.as_str()));
    let (Ok(parent), Ok(child)) = names else { return Ok(None) };
    match run_to(batch.connection, key, head) {
        Ok((_, journal)) => Ok(Parent::told_by((parent, run), &journal, &child)),
        Err(stop) if stop.damage().is_some() => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// Removes everything that belongs to an execution except its row. It scans whole tables: no index
/// serves such a rare request.
fn forget(batch: &Batch<'_>, damaged: &Damaged) -> Result<(), Stop> {
    let key = damaged.legible.key;
    for text in [sql::PRUNE_INBOX, sql::PRUNE_RUNS, sql::DISCARD_TAGS] {
        batch.connection.prepare_cached(text)?.execute([key])?;
    }
    sheaf::remove(batch.connection, &journal::rows_of(batch.connection, key)?)
}

/// Removes the parts that SQLite can free; `verify` reports the rest.
fn forget_readable(batch: &Batch<'_>, salvage: &Salvage) -> Result<(), Stop> {
    let key = salvage.key;
    sheaf::remove(batch.connection, &salvage.journal)?;
    for id in &salvage.inbox {
        batch.connection.prepare_cached(sql::DISCARD_MESSAGE)?.execute(params![key, id])?;
    }
    let tables = [(salvage.has_runs, sql::PRUNE_RUNS), (salvage.has_tags, sql::DISCARD_TAGS)];
    for (_, text) in tables.into_iter().filter(|(is_readable, _)| *is_readable) {
        batch.connection.prepare_cached(text)?.execute([key])?;
    }
    Ok(())
}

/// Writes the new journal. Returns its first row, its last row, and the number of rows.
fn write_journal(
    batch: &mut Batch<'_>,
    (key, owner): (i64, Vec<u8>),
    entries: &[Entry],
) -> Result<(i64, i64, u64), Stop> {
    let records: Vec<Record> = entries.iter().map(Record::of).collect();
    let mut rows = Vec::new();
    let mut owner = Some(owner.as_slice());
    for pack in journal::packed(&records).iter_mut() {
        let row = batch.caches.next_journal_row(batch.connection)?;
        let (previous, happened) = (rows.last().copied(), pack.happened);
        pack.write(batch, &Link { row, key, previous, happened, skip: owner.take() })?;
        rows.push(row);
    }
    let (first, last) = (rows[0], rows[rows.len() - 1]);
    Ok((first, last, rows.len() as u64))
}
