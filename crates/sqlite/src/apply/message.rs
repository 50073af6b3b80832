//! The common parts of submits and commits: creating executions and filling inboxes.

use std::sync::Arc;

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Entry, Epoch, Event, Execution, Happening, Lease, LeaseRow, Message, SessionId, Start, Status,
    Summary, Timestamp, Version, care,
};
use abide_store::{ExecutionKey, InboxPage, Leased, Opening, Record};
use rusqlite::{OptionalExtension, params};

use super::inbox::Judge;
use crate::batch::Batch;
use crate::caches::{CachedRow, Inbox, Newest};
use crate::error::Stop;
use crate::journal::{self, Link};
use crate::packing::Pack;
use crate::place::{self, Columns, Holder, Place, ReadyQueue};
use crate::room::{self, Room};
use crate::rows::{LeaseState, Target, Written, indexed, integer, unsigned};
use crate::sheet::{Anchor, Cold, Draft, Identity};
use crate::sql;
use crate::statements::Frequent;

/// The outcome of a start.
pub(crate) enum Started {
    New(ExecutionKey, Option<Box<Leased>>),
    Attached(ExecutionKey),
}

impl Batch<'_> {
    /// Creates an execution at `now`, or finds the one that began the same way. `offer` is a live
    /// session that would run it.
    pub(crate) fn start(
        &mut self,
        message: &Message,
        start: &Arc<Start>,
        offer: (Option<SessionId>, Timestamp),
    ) -> Result<Started, Stop> {
        self.start_at(message, start, offer, None)
    }

    /// Does the same for an execution that begins at this time, if it is leased to that session.
    pub(crate) fn start_at(
        &mut self,
        message: &Message,
        start: &Arc<Start>,
        (offer, now): (Option<SessionId>, Timestamp),
        begins_at: Option<Timestamp>,
    ) -> Result<Started, Stop> {
        let address = &message.to;
        // Most ids are new, and the insert finds out which are not.
        self.admit(None, message, (Judge::Always, now))?;
        let mut begun = Execution::start(address.clone(), Arc::clone(start), begins_at.unwrap_or(now));
        let route = begun.0.route();
        let interned = self.caches.interned(self.connection)?;
        let known_route = interned.route_of_start(&route);
        if known_route.is_none()
            && let Some(namespace) = interned.known(&address.namespace)
            && let Some(existing) = existing(self.connection, namespace, address)?
        {
            // Before the route is created: a refusal leaves no trace.
            return self.attach(message, existing);
        }
        let namespace = interned.intern_name(self.connection, &address.namespace)?;
        let route = match known_route {
            Some(known) => known,
            None => interned.intern_route(self.connection, route)?,
        };
        let born = Newborn { begun: &mut begun, namespace, route, offer, now };
        if let Some((key, lease)) = self.insert(born, start)? {
            return Ok(match lease {
                Some(lease) => Started::New(key, Some(leased(begun, key, lease))),
                None => Started::New(key, None),
            });
        }
        let existing = existing(self.connection, namespace, address)?;
        let existing =
            existing.ok_or_else(|| Stop::corrupt(format!("execution {address} exists and does not")))?;
        self.attach(message, existing)
    }

    /// Inserts a new execution. Returns `None` when its id is taken, and then changes nothing.
    fn insert(
        &mut self,
        born: Newborn<'_>,
        start: &Start,
    ) -> Result<Option<(ExecutionKey, Option<Lease>)>, Stop> {
        let Newborn { begun: (execution, entry), namespace, route, offer, now } = born;
        let summary = execution.summary_at_start(now);
        let queue = ReadyQueue { route, priority: start.priority };
        let place = self.birthplace(&summary, queue, offer, now)?;
        let session = place.session();
        if session.is_none() {
            begin_at((execution, entry), now);
        }
        let key = self.caches.next_execution_key(self.connection)?;
        let row = self.caches.next_journal_row(self.connection)?;
        let epoch = Epoch(u64::from(session.is_some()));
        let parent = self.parent_key(start, namespace)?;
        let id = execution.address().id.as_str();
        let mut state = LeaseState {
            lease: LeaseRow { session, epoch, version: Version(0) },
            given_beat: place.holder().map_or(0, |holder| holder.beat),
            is_newborn: session.is_some(),
            queue,
            anchor: Anchor::new(Identity { key, namespace, id, queue, parent }, row, Version(0)),
            cold: Cold::of_newborn(start, row, now),
            entry_count: 1,
            listed: indexed(summary.status).map(i64::from),
            takeover_count: 0,
            care_at: match session {
                Some(_) => care::after_lease(summary.care_at, now, self.terminate_grace()),
                None => summary.care_at,
            },
            room: Room::default(),
            written: Written { head: row, version: Version(0), steady: None },
        };
        let of = (parent, start.parent.as_ref().map(|parent| parent.run));
        let columns = Inserted { key, namespace, of, place, summary: &summary };
        if self.insert_row(execution, &mut state, &columns)? == 0 {
            self.caches.execution_key_max = Some(key - 1);
            self.caches.journal_row_max = Some(row - 1);
            return Ok(None);
        }
        self.begin_journal((key, row), &Record::of(entry), (namespace, execution.address().id.as_str()))?;
        self.tag(start, (namespace, key))?;
        if state.care_at.is_some() {
            self.set_care(key, state.care_at)?;
            self.announce_care(route)?;
        }
        let execution_key = ExecutionKey(unsigned(key));
        let Some(session) = session else {
            // Also for a later start: the sessions have to learn of the new timer.
            self.announce(route)?;
            return Ok(Some((execution_key, None)));
        };
        self.remember_newborn(key, state);
        self.tallies.bear(key, session, epoch);
        Ok(Some((execution_key, Some(Lease { session, epoch }))))
    }

    /// Writes the first row of a journal.
    fn begin_journal(
        &mut self,
        (key, row): (i64, i64),
        first: &Record,
        owner: (i64, &str),
    ) -> Result<(), Stop> {
        let owner = journal::put_owner(std::mem::take(&mut self.caches.owner), owner);
        let mut pack = Pack::of_one(std::mem::take(&mut self.caches.body), first);
        let happened = Some(Happening::Began as u8);
        pack.write(self, &Link { row, key, previous: None, happened, skip: Some(&owner) })?;
        self.caches.owner = owner;
        self.caches.put_away(pack.body);
        Ok(())
    }

    /// Returns the place of a new execution: with the session that offers to run it, if it may.
    fn birthplace(
        &mut self,
        summary: &Summary,
        queue: ReadyQueue,
        offer: Option<SessionId>,
        now: Timestamp,
    ) -> Result<Place, Stop> {
        if summary.status == Status::Scheduled {
            return Ok(Place::parked(queue.route, summary.wake_at));
        }
        Ok(match offer {
            Some(session) if self.may_be_born_to(session, queue)? => {
                let beat = self.tallies.beat_count(session);
                Place::Held(Holder { session, request: 0, beat, position: 0, is_newborn: true })
            }
            _ => Place::Ready(queue, now),
        })
    }

    /// Inserts the row of a new execution, and returns the number of inserted rows.
    pub(super) fn insert_row(
        &mut self,
        execution: &Execution,
        state: &mut LeaseState,
        inserted: &Inserted<'_>,
    ) -> Result<usize, Stop> {
        let Inserted { key, namespace, of: (parent, parent_run), place, summary } = inserted;
        let columns @ Columns { place, rank, place_at } = place.columns();
        let mut draft = Draft::reusing(std::mem::take(&mut self.caches.sheet), summary, execution);
        let sheet = draft.padded(&state.cold, &[], &state.anchor, |length| room::at_birth(length, state));
        state.sheet_room(Some(columns));
        state.fill(sheet.len());
        let (id, queue) = (execution.address().id.as_str(), state.queue.number());
        let (epoch, status, head) =
            (integer(state.lease.epoch.0), indexed(summary.status), state.anchor.head);
        let is_born_leased = (rank, epoch, summary.status) == (0, 1, Status::Running);
        let born_count = match (is_born_leased, parent, parent_run) {
            (true, None, None) => {
                let bear = self.frequent(Frequent::ExecutionBearTop)?;
                bear.keep(&[(1, *namespace), (3, queue), (4, place), (5, place_at)])?;
                bear.bind(2, id)?;
                bear.bind(6, head)?;
                bear.bind(7, sheet)?;
                bear.run()?
            }
            (true, Some(parent), Some(run)) => {
                let bear = self.frequent(Frequent::ExecutionBear)?;
                bear.keep(&[(1, *namespace), (3, queue), (4, *parent), (5, (*run).into())])?;
                bear.keep(&[(6, place), (7, place_at)])?;
                bear.bind(2, id)?;
                bear.bind(8, head)?;
                bear.bind(9, sheet)?;
                bear.run()?
            }
            _ => {
                let insert = self.frequent(Frequent::ExecutionInsert)?;
                let columns = params![
                    key, namespace, id, queue, parent, parent_run, place, rank, place_at, epoch, status,
                    head, sheet
                ];
                return Ok(insert.execute(columns)?);
            }
        };
        self.caches.sheet = draft.into_buffer();
        if born_count == 1 {
            self.number(*key, sql::EXECUTION_RENUMBER)?;
        }
        Ok(born_count)
    }

    pub(crate) fn tag(&self, start: &Start, (namespace, key): (i64, i64)) -> rusqlite::Result<()> {
        for tag in &start.tags {
            let mut insert = self.connection.prepare_cached(sql::TAG_INSERT)?;
            insert.execute(params![namespace, tag.key.as_str(), tag.value.as_str(), key])?;
        }
        Ok(())
    }

    /// Remembers an execution that was created under a lease: its commit comes soon.
    fn remember_newborn(&mut self, key: i64, state: LeaseState) {
        let rows = Newest::from_slice(&[state.anchor.head]);
        self.caches.rows.insert(key, CachedRow { state, rows, is_warm: true });
        self.caches.inboxes.insert(key, Inbox::default());
    }

    /// Returns the key of the parent of a child execution.
    pub(crate) fn parent_key(&mut self, start: &Start, namespace: i64) -> Result<Option<i64>, Stop> {
        let Some(parent) = &start.parent else { return Ok(None) };
        if let Some((of, id, key)) = &self.caches.last_parent
            && (of, id) == (&namespace, &parent.id)
        {
            return Ok(Some(*key));
        }
        let mut statement = self.connection.prepare_cached(sql::EXECUTION_KEY)?;
        let key = statement.query_row(params![namespace, parent.id.as_str()], |row| row.get(0)).optional()?;
        self.caches.last_parent = key.map(|key| (namespace, parent.id.clone(), key));
        Ok(key)
    }

    /// Whether a new execution may be leased at once: the session serves it, and nothing waits
    /// before it.
    fn may_be_born_to(&mut self, session: SessionId, queue: ReadyQueue) -> Result<bool, Stop> {
        if self.served(session)?.binary_search(&queue.route).is_err() {
            return Ok(false);
        }
        if self.caches.idle_routes.contains(&queue.route) {
            return Ok(true);
        }
        // The first in line has the lowest rank.
        let mut first = self.connection.prepare_cached(sql::READY_FIRST)?;
        let first: Option<i64> = first.query_row([place::ready(queue.route)], |row| row.get(0)).optional()?;
        if first.is_none() {
            self.caches.idle_routes.insert(queue.route);
        }
        Ok(first.is_none_or(|rank| rank > -i64::from(queue.priority)))
    }

    fn attach(&mut self, message: &Message, existing: Target) -> Result<Started, Stop> {
        let key = ExecutionKey(unsigned(existing.key));
        self.bind_sheaf()?;
        self.admit(Some(&Arc::new(existing)), message, (Judge::Always, self.now()))?;
        Ok(Started::Attached(key))
    }

    /// Moves an execution from one place to another, if it is in the first and under `epoch`. An
    /// execution that has lost its epoch is moved by its place alone; its next claim finds the
    /// damage.
    pub(crate) fn relocate(
        &mut self,
        (key, epoch): (i64, Option<Epoch>),
        (from, to): (Place, Place),
    ) -> Result<(), Stop> {
        self.caches.targets.remove(&key);
        let (from, to) = (from.columns(), to.columns());
        let epoch = epoch.filter(|_| !planted(Bug::MoveIgnoresEpoch)).map(|epoch| integer(epoch.0));
        let mut statement = self.connection.prepare_cached(sql::EXECUTION_MOVE)?;
        let moved = statement.execute(params![key, epoch, from.place, to.place, to.rank, to.place_at])?;
        if moved != 1 {
            return Err(Stop::corrupt(format!("execution {key} is not where it was a moment ago")));
        }
        Ok(())
    }
}

/// The columns of a new row.
pub(super) struct Inserted<'a> {
    pub(super) key: i64,
    pub(super) namespace: i64,
    /// The key and the run of its parent.
    pub(super) of: (Option<i64>, Option<u32>),
    pub(super) place: Place,
    pub(super) summary: &'a Summary,
}

/// An execution that is about to be inserted.
struct Newborn<'a> {
    /// The execution and its first entry.
    begun: &'a mut (Execution, Entry),
    namespace: i64,
    route: i64,
    offer: Option<SessionId>,
    now: Timestamp,
}

/// Returns an execution, with its first entry, for the session that it was born to.
#[inline(always)]
fn leased((execution, entry): (Execution, Entry), key: ExecutionKey, lease: Lease) -> Box<Leased> {
    // Made where it stays, because it is large.
    let place = Box::<Leased>::new_uninit();
    Box::write(
        place,
        Leased {
            key,
            lease,
            version: Version(0),
            takeover_count: 0,
            suspicion: None,
            unclaimed: None,
            is_first: true,
            execution,
            opening: Opening::Born(entry),
            inbox: InboxPage::default(),
        },
    )
}

/// Lets an execution begin at `now`.
fn begin_at((execution, entry): (&mut Execution, &mut Entry), now: Timestamp) {
    if let Event::Started(start) = &entry.event
        && entry.at != now
    {
        (*execution, *entry) = Execution::start(execution.address().clone(), Arc::clone(start), now);
    }
}

/// Returns the execution that already has the id of a start. Nothing is written yet, so only the
/// sender of the start learns of damage.
pub(super) fn existing(
    connection: &rusqlite::Connection,
    namespace: i64,
    address: &Address,
) -> Result<Option<Target>, Stop> {
    Target::read(connection, namespace, address).map_err(|error| Stop::from(error).aside())
}

/// Returns the first entry of a run.
pub(crate) fn first_entry(connection: &rusqlite::Connection, key: i64, row: i64) -> Result<Entry, Stop> {
    let record = journal::record(connection, (row, key), |records| records.into_iter().next())?;
    record.entry().map_err(|error| Stop::corrupt(error.to_string()))
}

/// Returns the start that a run began with, from the first entry of its journal.
pub(crate) fn first_start(connection: &rusqlite::Connection, key: i64, row: i64) -> Result<Arc<Start>, Stop> {
    match first_entry(connection, key, row)?.event {
        Event::Started(start) => Ok(start),
        other => Err(Stop::corrupt(format!("execution {key} begins with {:?}", other.word()))),
    }
}

#[cfg(test)]
mod tests {
    use abide_core::{Body, Payload};
    use abide_store::Error;

    use super::*;
    use crate::SqliteStore;
    use crate::fixture::{inside, message, name, pair, start, submit};

    const KEY: i64 = 1;

    fn place(batch: &Batch<'_>) -> Place {
        let mut statement = batch.connection.prepare_cached(sql::EXECUTION_PLACE).unwrap();
        statement.query_row([KEY], |row| Place::read(row, 1)).unwrap()
    }

    /// Tries to move an execution from its place, and returns its place after that.
    fn moved(store: &SqliteStore, epoch: Option<Epoch>) -> abide_store::Result<Place> {
        inside(store, move |batch| {
            let from = place(batch);
            batch.relocate((KEY, epoch), (from, Place::Timer(7, Timestamp::default())))?;
            Ok(place(batch))
        })
    }

    #[test]
    fn p3_nothing_is_moved_under_another_epoch() {
        let (_folder, ours, _theirs) = pair();
        start(&ours, "a");
        for stale in [1, 7] {
            let outcome = moved(&ours, Some(Epoch(stale)));
            assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{outcome:?}");
        }
        assert!(matches!(inside(&ours, |batch| Ok(place(batch))).unwrap(), Place::Ready(..)));
        assert_eq!(moved(&ours, Some(Epoch(0))).unwrap(), Place::Timer(7, Timestamp::default()));
    }

    #[test]
    fn what_has_lost_its_epoch_is_moved_by_its_place() {
        for lost in ["UPDATE abide_executions SET epoch = -1", "UPDATE abide_executions SET epoch = 'x'"] {
            let (_folder, ours, _theirs) = pair();
            start(&ours, "a");
            inside(&ours, move |batch| Ok(batch.connection.execute_batch(lost)?)).unwrap();
            assert!(moved(&ours, Some(Epoch(0))).is_err(), "{lost}");
            assert_eq!(moved(&ours, None).unwrap(), Place::Timer(7, Timestamp::default()), "{lost}");
        }
    }

    /// A remembered target must not be able to move an execution that another worker has leased
    /// since.
    #[test]
    fn p3_a_message_moves_nothing_under_another_epoch() {
        const TAKEN: &str = "UPDATE abide_executions SET epoch = epoch + 1";
        for (change, is_delivered) in [("", true), (TAKEN, false)] {
            let (_folder, ours, _theirs) = pair();
            let signal =
                |id: &str| message(id, "a", Body::Signal { name: name("s"), payload: Payload::from("1") });
            let (known, new) = (signal("known"), signal("new"));
            start(&ours, "a");
            submit(&ours, known.clone());
            moved(&ours, Some(Epoch(0))).unwrap();
            let delivered = inside(&ours, move |batch| {
                // The message is there already, and its target is remembered.
                batch.put(&known)?;
                batch.connection.execute_batch(change)?;
                batch.put(&new)?;
                Ok(place(batch))
            });
            match delivered {
                Ok(Place::Ready(..)) if is_delivered => {}
                Err(Error::Corrupt { .. }) if !is_delivered => {}
                other => panic!("{change:?}: {other:?}"),
            }
        }
    }
}
