//! `discard`: the end of an execution that is damaged and cannot be rebuilt.

use std::sync::Arc;

use abide_core::{
    Address, Body, By, Command, Descent, Entry, Event, Execution, ExecutionId, Limits, Message, MessageId,
    Parent, Payload, Route, Start, Timestamp, Version, codec, text,
};
use abide_store::Record;
use rusqlite::{OptionalExtension, Row, params};

use super::check_inbox;
use super::repair::run_to;
use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::journal::{self, Link};
use crate::place::{Columns, Place, Queue};
use crate::rows::integer;
use crate::sheet::{Anchor, Base, Cold, Draft, Identity};
use crate::sql;
use crate::view::address;

/// Gives a damaged execution a journal that says that it was begun and cancelled, tells whoever waits for it, and ends its children. What it
/// had done is gone.
pub(crate) struct DiscardWork {
    pub(crate) address: Address,
    pub(crate) by: By,
    pub(crate) reason: String,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Discarded {
    /// It is cancelled.
    Ended,
    /// There is no such execution.
    Unknown,
    /// It is not damaged: a terminate ends it.
    Sound,
    /// A worker holds it. What it cannot read it sets aside, and what it can read it writes anew.
    Held,
    /// It has ended. That is final: its result may still be read, and nobody waits for it.
    Over,
    /// Nothing that says what it was can be read.
    Unreadable,
}

/// What is known of the damaged one.
struct Wreck {
    key: i64,
    namespace: i64,
    id: String,
    parent: Option<i64>,
    head: i64,
    version: Version,
    place: Option<Place>,
    route: i64,
    state: Option<Execution>,
}

impl Wreck {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let base = Base::read(row)?;
        Ok(Self {
            key: base.key,
            namespace: base.namespace,
            id: base.id.to_owned(),
            parent: base.parent,
            head: base.anchor.head,
            version: base.anchor.version,
            place: Place::read(row, 9).ok(),
            route: base.queue.route,
            state: base.sheet().and_then(|sheet| sheet.execution()).ok(),
        })
    }
}

impl Operation for DiscardWork {
    type Output = Discarded;
    const WHAT: &'static str = "discard";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Discarded, Stop> {
        let interned = batch.caches.interned(batch.connection)?;
        let Some(namespace) = interned.known(&self.address.namespace) else {
            return Ok(Discarded::Unknown);
        };
        let mut find = batch.connection.prepare_cached(sql::DISCARD_FIND)?;
        let found = find.query_row(params![namespace, self.address.id.as_str()], Wreck::read).optional()?;
        drop(find);
        let Some(wreck) = found else { return Ok(Discarded::Unknown) };
        if let Some(session) = wreck.place.and_then(Place::session)
            && batch.connection.prepare_cached(sql::SESSION_IS_LIVE)?.exists([integer(session.0)])?
        {
            return Ok(Discarded::Held);
        }
        if !is_damaged(batch, &wreck)? {
            return Ok(Discarded::Sound);
        }
        if let Some(Place::Finished(_)) = wreck.place {
            return Ok(Discarded::Over);
        }
        let Some((start, at)) = beginning(batch, &wreck)? else { return Ok(Discarded::Unreadable) };
        self.end(batch, &wreck, (start, at))?;
        Ok(Discarded::Ended)
    }
}

impl DiscardWork {
    fn end(
        &self,
        batch: &mut Batch<'_>,
        wreck: &Wreck,
        (start, at): (Arc<Start>, Timestamp),
    ) -> Result<(), Stop> {
        let now = batch.now();
        let (mut execution, first) = Execution::start(self.address.clone(), Arc::clone(&start), at);
        let terminate = Command::Terminate { by: self.by.clone(), reason: self.reason.clone() };
        let decision = execution.decide(terminate, now)?;
        let emits = decision.emits.clone();
        let (entries, _) = decision.record(&mut execution, now);
        let entries: Vec<Entry> = std::iter::once(first).chain(entries).collect();
        forget(batch, wreck)?;
        let (first, head, row_count) = write_journal(batch, wreck.key, &entries)?;
        batch.tag(&start, (wreck.namespace, wreck.key))?;
        let cold = Cold { row_count, ..Cold::of_newborn(&start, first, at) };
        self.write_row(batch, wreck, (&execution, cold, head))?;
        for message in &emits {
            send(batch, message)?;
        }
        self.end_children(batch, wreck.key)
    }

    fn write_row(
        &self,
        batch: &mut Batch<'_>,
        wreck: &Wreck,
        (execution, cold, head): (&Execution, Cold, i64),
    ) -> Result<(), Stop> {
        let route =
            batch.caches.interned(batch.connection)?.intern_route(batch.connection, execution.route())?;
        let queue = Queue { route, priority: execution.priority() };
        // Who its parent was is told by its start; the column repeats it.
        let parent = wreck.parent.filter(|_| !cold.top_level);
        let parent_run = execution.parent().filter(|_| parent.is_some()).map(|parent| parent.run);
        let identity = Identity { key: wreck.key, namespace: wreck.namespace, id: &wreck.id, queue, parent };
        let anchor = Anchor::new(identity, head, wreck.version.next());
        let summary = execution.summary(&[]);
        let mut sheet = Draft::new(&summary, &codec::encode(execution));
        let Columns { place, rank, since } = Place::Finished(batch.now()).columns();
        batch.connection.prepare_cached(sql::DISCARD)?.execute(params![
            wreck.key,
            queue.number(),
            parent,
            parent_run,
            integer(wreck.version.next().0),
            summary.status as u8,
            head,
            sheet.sealed(&cold, &anchor),
            place,
            rank,
            since
        ])?;
        batch.caches.hot.remove(&wreck.key);
        batch.caches.targets.remove(&wreck.key);
        batch.caches.inboxes.remove(&wreck.key);
        Ok(())
    }

    /// A terminate goes down as a terminate.
    fn end_children(&self, batch: &mut Batch<'_>, key: i64) -> Result<(), Stop> {
        let mut statement = batch.connection.prepare_cached(sql::DISCARD_CHILDREN)?;
        let children = statement.query_map([key], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let children = children.collect::<rusqlite::Result<Vec<(i64, String, u32)>>>()?;
        drop(statement);
        for (namespace, id, run) in children {
            let to = address(batch.caches.interned(batch.connection)?, namespace, &id)?;
            let reason = format!("its parent {:?} was discarded: {}", self.address.id, self.reason);
            let body = Body::Terminate { reason: text::cut(reason, Limits::REASON_BYTES_MAX) };
            let id = MessageId::new(format!("{}/discarded", self.address.id));
            let descent = Descent { parent: self.address.id.clone(), run, before: u64::MAX, op: None };
            let message = Message::new(id, to, self.by.clone(), body);
            send(batch, &Message { descent: Some(descent.into()), ..message })?;
        }
        Ok(())
    }
}

/// Sends a message. A target that is gone, has ended or is damaged itself keeps nobody else from being told.
fn send(batch: &mut Batch<'_>, message: &Message) -> Result<(), Stop> {
    match batch.put(message) {
        Ok(_) | Err(Stop::Refused(_)) => Ok(()),
        Err(stop) => Err(stop),
    }
}

/// Whether anything of it cannot be read.
fn is_damaged(batch: &Batch<'_>, wreck: &Wreck) -> Result<bool, Stop> {
    let inbox =
        check_inbox(batch.connection, wreck.key).map_err(Stop::from).and_then(|problem| match problem {
            Some(problem) => Err(Stop::corrupt(problem)),
            None => Ok(()),
        });
    let looks = inbox.and_then(|()| run_to(batch, wreck.key, wreck.head).map(|_| ()));
    match looks {
        Ok(()) => Ok(wreck.state.is_none()),
        Err(stop) if stop.damage().is_some() => Ok(true),
        Err(stop) => Err(stop),
    }
}

/// How it began and when: from its journal, or else from its state, or else from the queue that it stands in.
fn beginning(batch: &mut Batch<'_>, wreck: &Wreck) -> Result<Option<(Arc<Start>, Timestamp)>, Stop> {
    let mut first = batch.connection.prepare_cached(sql::DISCARD_FIRST_ROW)?;
    let first: Option<i64> = first.query_row([wreck.key], |row| row.get(0))?;
    let entry = first.and_then(|row| super::message::first_entry(batch.connection, wreck.key, row).ok());
    if let Some(Entry { event: Event::Started(start), at, .. }) = entry {
        return Ok(Some((Arc::new(Start { discarded_at: Some(batch.now()), ..(*start).clone() }), at)));
    }
    let route = match &wreck.state {
        Some(state) => Some(state.route()),
        None => batch.caches.interned(batch.connection)?.route(wreck.route).map(|route| (**route).clone()),
    };
    let Some(Route { lane, kind, name, requires, .. }) = route else { return Ok(None) };
    let parent = match &wreck.state {
        Some(state) => state.parent().cloned(),
        None => told_parent(batch, wreck)?,
    };
    let now = batch.now();
    let start = Start {
        lane,
        requires: requires.into_iter().collect(),
        priority: wreck.state.as_ref().map_or(0, Execution::priority),
        parent,
        discarded_at: Some(now),
        ..Start::of(kind, name, Payload::from("null"))
    };
    Ok(Some((Arc::new(start), now)))
}

/// Who waits for an execution of which nothing can be read but its row: the row names its parent, and the parent's journal the wait. A parent that is
/// damaged too gets no answer: it has to be discarded itself.
fn told_parent(batch: &Batch<'_>, wreck: &Wreck) -> Result<Option<Parent>, Stop> {
    let mut find = batch.connection.prepare_cached(sql::DISCARD_PARENT)?;
    let found = find.query_row([wreck.key], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, u32>(2)?, row.get::<_, i64>(3)?))
    });
    let Some((key, id, run, head)) = found.optional()? else { return Ok(None) };
    let names = (ExecutionId::new(id), ExecutionId::new(wreck.id.as_str()));
    let (Ok(parent), Ok(child)) = names else { return Ok(None) };
    match run_to(batch, key, head) {
        Ok((_, journal)) => Ok(Parent::told_by((parent, run), &journal, &child)),
        Err(stop) if stop.damage().is_some() => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// Removes everything that belongs to it but its row. Goes through whole tables: no index is kept for what nearly nobody ever asks.
fn forget(batch: &Batch<'_>, wreck: &Wreck) -> rusqlite::Result<()> {
    for text in [sql::PRUNE_INBOX, sql::PRUNE_RUNS, sql::DISCARD_JOURNAL, sql::DISCARD_TAGS] {
        batch.connection.prepare_cached(text)?.execute([wreck.key])?;
    }
    Ok(())
}

/// Writes the new journal; where it begins, where it ends, and how many rows it has.
fn write_journal(batch: &mut Batch<'_>, key: i64, entries: &[Entry]) -> Result<(i64, i64, u64), Stop> {
    let records: Vec<Record> = entries.iter().map(Record::of).collect();
    let mut packs = journal::packed(&records);
    let mut rows = Vec::with_capacity(packs.len());
    for pack in &mut packs {
        let row = batch.caches.next_journal_row(batch.connection)?;
        let (previous, happened) = (rows.last().copied(), pack.happened());
        pack.write(batch, &Link { row, key, previous, happened, skip: None })?;
        rows.push(row);
    }
    let (first, last) = (rows[0], rows[rows.len() - 1]);
    Ok((first, last, rows.len() as u64))
}
