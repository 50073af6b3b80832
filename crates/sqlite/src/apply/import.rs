//! `import`: a whole execution from another store.

use abide_core::whole::Settled;
use abide_core::{Entry, LeaseRow, Start};
use abide_store::{ExecutionKey, Import, Imported, Read, Record, Target};
use rusqlite::params;

use super::message::{Inserted, existing};
use crate::answers;
use crate::batch::Batch;
use crate::caches::{CachedRow, Newest};
use crate::error::Stop;
use crate::job::Operation;
use crate::journal;
use crate::place::{Place, ReadyQueue};
use crate::room::Room;
use crate::rows::{LeaseState, Written, indexed, integer, unsigned};
use crate::sheet::{Anchor, Cold, Identity};
use crate::sql;
use crate::view::View;

pub(crate) struct ImportWork(pub(crate) Import);

impl Operation for ImportWork {
    type Output = Imported;
    const WHAT: &'static str = "import";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Imported, Stop> {
        let import = &self.0;
        let settled = import.settle(&batch.shared.options.bounds, batch.now()).map_err(Stop::Refused)?;
        let address = import.address();
        let known = batch.caches.interned(batch.connection)?.known(&address.namespace);
        let found = match known {
            Some(namespace) => existing(batch.connection, namespace, address)?,
            None => None,
        };
        if let Some(found) = found {
            return known_as(batch, import, found.key);
        }
        let first = import.runs[0][0].entry().map_err(Stop::Refused)?;
        write(batch, import, &settled, &first)
    }
}

/// Returns the answer to an import whose id exists already.
fn known_as(batch: &Batch<'_>, import: &Import, key: i64) -> Result<Imported, Stop> {
    let view = View { connection: batch.connection, shared: batch.shared, memory: &Default::default() };
    let execution = ExecutionKey(unsigned(key));
    let page = |run, from| {
        let target = Target::Key(execution);
        let read = Read { target, run: Some(run), from, limit: usize::MAX, with_inbox: false };
        Ok::<Vec<Record>, Stop>(view.snapshot(&read)?.map(|found| found.journal).unwrap_or_default())
    };
    if import.is_known(page, |id| answers::has_seen(batch.connection, key, id))? {
        return Ok(Imported::Known(execution));
    }
    Err(Stop::Refused(import.conflict()))
}

fn write(batch: &mut Batch<'_>, import: &Import, settled: &Settled, first: &Entry) -> Result<Imported, Stop> {
    let began = first.began().ok_or_else(|| Stop::corrupt("a run without a start"))?;
    let (execution, now) = (&import.execution, batch.now());
    let interned = batch.caches.interned(batch.connection)?;
    let namespace = interned.intern_name(batch.connection, &import.address().namespace)?;
    let route = interned.intern_route(batch.connection, execution.route())?;
    let queue = ReadyQueue { route, priority: execution.priority() };
    let key = batch.caches.next_execution_key(batch.connection)?;
    let parent = batch.parent_key(began.start, namespace)?;
    let identity = Identity { key, namespace, id: import.address().id.as_str(), queue, parent };
    let mut cached = CachedRow {
        state: unwritten(import, identity, (began.start, first)),
        rows: Newest::new(),
        is_warm: false,
    };
    let owner = journal::owner_bytes(namespace, import.address().id.as_str());
    write_runs(batch, (key, owner), &mut cached, &import.runs)?;
    let place = match settled.finished_at {
        Some(at) => Place::Finished(at),
        None if settled.is_ready => Place::Ready(queue, now),
        None => Place::parked(route, settled.summary.wake_at),
    };
    // Without its parent's key, the run says nothing: `verify` wants both or neither.
    let of = (parent, began.start.parent.as_ref().filter(|_| parent.is_some()).map(|parent| parent.run));
    let inserted = Inserted { key, namespace, of, place, summary: &settled.summary };
    if batch.insert_row(execution, &mut cached.state, &inserted)? != 1 {
        return Err(Stop::corrupt(format!("execution {} is not there and is", import.address())));
    }
    let mut imported = batch.connection.prepare_cached(sql::EXECUTION_IMPORTED)?;
    imported.execute(params![key, integer(import.version.0), import.takeover_count])?;
    batch.tag(began.start, (namespace, key))?;
    for id in &settled.read {
        batch.insert_read(key, id)?;
    }
    for message in &import.unread {
        batch.insert_message(key, message)?;
    }
    if settled.summary.care_at.is_some() {
        batch.set_care(key, settled.summary.care_at)?;
        batch.announce_care(route)?;
    }
    batch.announce(route)?;
    Ok(Imported::New(ExecutionKey(unsigned(key))))
}

/// Returns the row of an execution without any written entries.
fn unwritten(import: &Import, identity: Identity<'_>, (start, first): (&Start, &Entry)) -> LeaseState {
    let Import { epoch, version, takeover_count, .. } = *import;
    LeaseState {
        lease: LeaseRow { session: None, epoch, version },
        queue: identity.queue,
        anchor: Anchor::new(identity, 0, version),
        cold: Cold { row_count: 0, ..Cold::of_newborn(start, 0, first.at) },
        entry_count: 0,
        listed: indexed(import.execution.summary(&[]).status).map(i64::from),
        given_beat: 0,
        is_newborn: false,
        takeover_count,
        care_at: None,
        room: Room::default(),
        written: Written { head: 0, version, steady: None },
    }
}

/// Writes run after run. The first record of each run goes first, because the place of its row is
/// kept.
fn write_runs(
    batch: &mut Batch<'_>,
    (key, owner): (i64, Vec<u8>),
    cached: &mut CachedRow,
    runs: &[Vec<Record>],
) -> Result<(), Stop> {
    for (records, run) in runs.iter().zip(1..) {
        let (first, rest) = records.split_at(1);
        if run == 1 {
            for pack in journal::packed(first).iter_mut() {
                pack.append_first(batch, (key, &owner), cached)?;
            }
            cached.state.cold.first = cached.state.anchor.head;
        } else {
            journal::begin_run(batch, key, cached, first)?;
        }
        for pack in journal::packed(rest).iter_mut() {
            pack.append(batch, key, cached)?;
        }
    }
    Ok(())
}
