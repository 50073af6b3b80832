//! `commit`: the changes that the holder of a lease writes.

use abide_core::planted::{Bug, planted};
use abide_core::{Address, Body, Epoch, Fence, Lease, Message, Status, Summary, Timestamp};
use abide_store::{
    Changes, Commit, CommitOutcome, Committed, Error, ExecutionKey, Hold, Record, not_unread, refused_start,
};
use rusqlite::params;

use super::claim::{Which, leased};
use super::inbox::Put;
use super::message::Started;
use super::session;
use crate::answers::{self, Keep};
use crate::batch::Batch;
use crate::caches::{CachedRow, Newest};
use crate::error::Stop;
use crate::job::Operation;
use crate::journal::{self, Packs};
use crate::mail::read_sum;
use crate::place::{Columns, Holder, Place};
use crate::rows::{LeaseState, Target, Written, indexed, integer};
use crate::sheet::Draft;
use crate::statements::Frequent;
use crate::tail::{Steady, TAIL_ROWS};
use crate::tallies::Given;
use crate::view::address;
use crate::{room, sql, user_transaction};

pub(crate) struct CommitWork {
    commit: Commit,
    /// Prepared on the caller's thread.
    packs: Packs,
    /// Likewise, unless the commit may go without it.
    sheet: Option<Draft>,
    /// Whether the row of the execution may stay as it is: see [`crate::tail`].
    is_plain: bool,
}

impl CommitWork {
    pub(crate) fn new(commit: Commit) -> Self {
        const SUMMARY_BYTES: usize = 128;
        let is_plain = is_plain(&commit);
        let changes = &commit.changes;
        let beside = match is_plain {
            true => SUMMARY_BYTES,
            false => own_answer(changes).map_or(0, answers::room_for),
        };
        let mut packs = journal::packed_before(&changes.records, beside);
        let is_plain = is_plain && packs.only_mut().is_some_and(|pack| pack.happened.is_none());
        if let Some(pack) = packs.only_mut().filter(|_| is_plain) {
            pack.sum_up(&changes.summary);
        }
        let sheet = (!is_plain).then(|| Draft::new(&changes.summary, &changes.state));
        Self { commit, packs, sheet, is_plain }
    }

    /// Sets the key of an execution that has none until it is created.
    pub(super) fn belongs_to(&mut self, key: ExecutionKey) {
        self.commit.key = key;
    }

    fn key(&self) -> i64 {
        integer(self.commit.key.0)
    }

    fn is_transaction(&self) -> bool {
        self.commit.transaction.is_some()
    }
}

impl Operation for CommitWork {
    type Output = CommitOutcome;
    const WHAT: &'static str = "commit";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<CommitOutcome, Stop> {
        let now = batch.now();
        let is_live = batch.live_session(self.commit.lease.session, now)?.is_some();
        let Some(mut cached) = take_cached(batch, self.key())? else {
            return Ok(CommitOutcome::Fenced(Fence::Released));
        };
        let fence = cached.state.lease.fence(self.commit.lease, self.commit.expected, is_live);
        match fence {
            Fence::Open => {}
            Fence::Applied => {
                let head = cached.state.anchor.head;
                batch.caches.rows.insert(self.key(), cached);
                return self.answer_again(batch, head);
            }
            stale => {
                batch.caches.rows.insert(self.key(), cached);
                return Ok(CommitOutcome::Fenced(stale));
            }
        }
        check_numbers(cached.state.entry_count, &self.commit.changes.records)?;
        let committed = self.write(batch, &mut cached, now)?;
        if cached.state.lease.session.is_some() || !self.commit.changes.summary.status.is_terminal() {
            batch.caches.rows.insert(self.key(), cached);
        }
        Ok(CommitOutcome::Committed(committed))
    }

    fn reads_journal(&self) -> bool {
        let changes = &self.commit.changes;
        self.is_transaction() || changes.next.is_some() || !changes.consumed.is_empty()
    }

    fn runs_user_code(&self) -> bool {
        self.is_transaction()
    }
}

/// Whether a commit only adds to the journal.
fn is_plain(commit: &Commit) -> bool {
    let Commit { changes, hold, transaction, .. } = commit;
    *hold == Hold::Keep
        && transaction.is_none()
        && changes.next.is_none()
        && changes.consumed.is_empty()
        && changes.outgoing.is_empty()
        && Steady::of(&changes.summary).is_some()
}

/// Whether more commits like this one may follow soon. A commit that ends a sleep or a wait changes
/// the status, and with it the row: a tail would only be in the way of readers.
fn is_at_work(summary: &Summary) -> bool {
    summary.status == Status::Running
}

/// The row of an execution, as a commit leaves it.
struct NewRow<'s> {
    key: i64,
    /// The epoch, the place and the version that it has until then.
    fence: (i64, i64, i64),
    head: i64,
    sheet: &'s [u8],
    version: i64,
}

impl NewRow<'_> {
    /// Writes it, with a new place, if it has one. Returns the number of rows.
    fn write(self, batch: &mut Batch<'_>, to: Option<Place>) -> rusqlite::Result<usize> {
        let Self { key, fence: (epoch, place, before), head, sheet, version } = self;
        match to {
            None => {
                let keep = batch.frequent(Frequent::ExecutionKeep)?;
                keep.keep(&[(2, epoch), (3, place)])?;
                keep.bind(1, key)?;
                keep.bind(4, before)?;
                keep.bind(5, head)?;
                keep.bind(6, sheet)?;
                keep.bind(7, version)?;
                keep.run()
            }
            Some(Place::Finished(at)) => {
                let end = batch.frequent(Frequent::ExecutionEnd)?;
                end.keep(&[(2, epoch), (3, place), (4, before), (8, version)])?;
                end.bind(1, key)?;
                end.bind(5, head)?;
                end.bind(6, sheet)?;
                end.bind(7, at.as_micros())?;
                end.run()
            }
            Some(released) => {
                let Columns { place: to, rank, place_at } = released.columns();
                let release = batch.frequent(Frequent::ExecutionRelease)?;
                release.execute((key, epoch, place, before, head, sheet, to, rank, place_at, version))
            }
        }
    }
}

/// The place and the time for care of an execution that its holder does not keep.
#[derive(Clone, Copy)]
struct After {
    place: Place,
    care_at: Option<Timestamp>,
}

/// Returns the answer of a child that ends. Behind another message it would arrive first, if it
/// were kept.
fn own_answer(changes: &Changes) -> Option<&Message> {
    let [answer] = changes.outgoing.as_slice() else { return None };
    let is_end = changes.summary.status.is_terminal() && changes.next.is_none();
    Some(answer).filter(|answer| is_end && matches!(answer.body, Body::ChildDone { .. }))
}

/// Returns the writer's state of an execution, from memory or from its row.
pub(crate) fn take_cached(batch: &mut Batch<'_>, key: i64) -> Result<Option<CachedRow>, Stop> {
    if let Some(cached) = batch.caches.rows.remove(&key) {
        return Ok(Some(cached));
    }
    batch.bind_sheaf()?;
    let state = LeaseState::read(batch.connection, key).map_err(Stop::aside)?;
    let rows = |head| Newest::from_slice(&[head]);
    Ok(state.map(|state| CachedRow { state, rows: rows(state.anchor.head), is_warm: false }))
}

/// Checks that the records follow the last entry, one by one.
fn check_numbers(entry_count: u64, records: &[Record]) -> Result<(), Stop> {
    let wrong = records.iter().zip(entry_count + 1..).find(|(record, seq)| record.seq != *seq);
    match wrong {
        None => Ok(()),
        Some((record, seq)) => {
            let what = format!("a commit with entry {} where {seq} belongs", record.seq);
            Err(Stop::Refused(Error::Corrupt { what }))
        }
    }
}

impl CommitWork {
    /// Writes everything. The row comes last, because it depends on the inbox.
    fn write(
        &mut self,
        batch: &mut Batch<'_>,
        cached: &mut CachedRow,
        now: Timestamp,
    ) -> Result<Committed, Stop> {
        let mut committed = Committed::default();
        if let Some(transaction) = &self.commit.transaction {
            let transacted = user_transaction::run(batch, (self.commit.key, transaction));
            session::outlive(batch, (self.commit.lease.session, now))?;
            let transacted = transacted?;
            if transacted.record.seq != cached.state.entry_count + 1 {
                return Err(user_transaction::broken(
                    "the transaction step gave an entry with a wrong number",
                ));
            }
            self.packs = journal::packed(std::slice::from_ref(&transacted.record));
            self.sheet = Some(Draft::new(&self.commit.changes.summary, &transacted.state));
            committed.transacted = Some(transacted.record);
        }
        let key = self.key();
        self.consume(batch, cached)?;
        self.keep_answers(batch, cached)?;
        let kept = self.keep_answer(batch, cached)?;
        for pack in self.packs.iter_mut() {
            pack.append(batch, key, cached)?;
        }
        let is_kept = kept.is_some();
        if let Some(kept) = kept {
            batch.kept(kept, (cached.state.anchor.head, key))?;
        }
        if let Some(first) = &self.commit.changes.next {
            journal::begin_run(batch, self.key(), cached, std::slice::from_ref(first))?;
        }
        if self.commit.changes.outgoing.is_empty() || self.commit.changes.summary.status.is_terminal() {
            let after = self.after(batch, cached, now)?;
            self.update(batch, cached, after)?;
            if !is_kept {
                self.emit(batch, &mut committed, now)?;
            }
            self.tell(batch, cached, after)?;
            return Ok(committed);
        }
        // The lease is still held while messages go out. A message that the execution sends to
        // itself is then unread when the lease is returned, and the children that it starts do not
        // wait behind it.
        self.update(batch, cached, None)?;
        if self.emit(batch, &mut committed, now)? && !planted(Bug::OwnOrderUnread) {
            batch.bind_sheaf()?;
            let found = LeaseState::read(batch.connection, self.key())?;
            cached.state.care_at = found.and_then(|found| found.care_at);
        }
        let after = self.after(batch, cached, now)?;
        if let Some(After { place, care_at }) = after {
            let holder = self.holder(cached).settled();
            let whose = (self.key(), Some(self.commit.lease.epoch));
            batch.relocate(whose, (Place::Held(holder), place))?;
            self.care(batch, cached, care_at)?;
            self.released(batch, cached);
        }
        self.tell(batch, cached, after)?;
        Ok(committed)
    }

    /// Announces to others that they may run the execution, now or when its timer is due.
    fn tell(&self, batch: &mut Batch<'_>, cached: &CachedRow, after: Option<After>) -> Result<(), Stop> {
        let Some(After { place, care_at }) = after else { return Ok(()) };
        if let Place::Ready(..) | Place::Timer(..) = place {
            batch.announce(cached.state.queue.route)?;
        }
        if care_at.is_some() {
            batch.announce_care(cached.state.queue.route)?;
        }
        Ok(())
    }

    /// Continues to keep answers of the execution's children, begins to, or ends it.
    fn keep_answers(&self, batch: &mut Batch<'_>, cached: &mut CachedRow) -> Result<(), Stop> {
        let Commit { hold, changes, .. } = &self.commit;
        let is_over = changes.summary.status.is_terminal() || changes.next.is_some();
        if *hold != Hold::Keep || is_over {
            return batch.settle_own(self.key(), cached);
        }
        let is_child =
            |message: &&Message| matches!(&message.body, Body::Start(start) if start.parent.is_some());
        match changes.outgoing.iter().filter(is_child).count() {
            0 => Ok(()),
            child_count => batch.open_answers(self.key(), cached, child_count),
        }
    }

    /// Puts the answer of a child that ends into its last journal row, if it may be kept there.
    fn keep_answer(&mut self, batch: &mut Batch<'_>, cached: &CachedRow) -> Result<Option<Keep>, Stop> {
        let Commit { key, changes, .. } = &self.commit;
        // A commit is applied again when its transaction was undone. The parent may be another's
        // by then.
        if let Some(pack) = self.packs.last_mut()
            && !planted(Bug::AnswerOfEarlierAttempt)
        {
            pack.forget_answer();
        }
        let (Some(answer), Some(pack)) = (own_answer(changes), self.packs.last_mut()) else {
            return Ok(None);
        };
        batch.keep((integer(key.0), cached), answer, pack)
    }

    fn consume(&self, batch: &mut Batch<'_>, cached: &mut CachedRow) -> Result<(), Stop> {
        batch.settle_forgotten(self.key(), cached)?;
        let consumed = &self.commit.changes.consumed;
        if consumed.is_empty() {
            return Ok(());
        }
        let connection = batch.connection;
        for id in consumed {
            if batch.caches.answers.read(self.key(), id) {
                continue;
            }
            let mut statement = connection.prepare_cached(sql::INBOX_CONSUME)?;
            if statement.execute((self.key(), id.as_str(), read_sum(self.key(), id.as_str())))? == 0 {
                let mut misled = batch.connection.prepare_cached(sql::INBOX_MISLED)?;
                return Err(match misled.exists(params![self.key(), id.as_str()])? {
                    true => Stop::stale_index(self.key()),
                    false => Stop::corrupt(not_unread(self.commit.key, id)),
                });
            }
        }
        batch.settle_read(self.key(), cached)?;
        let Some(inbox) = batch.caches.inboxes.get_mut(&self.key()) else { return Ok(()) };
        inbox.unread_count = inbox.unread_count.saturating_sub(consumed.len());
        if inbox.unread_count == 0 {
            inbox.newest_id = None;
        } else if inbox.newest_id.as_ref().is_some_and(|newest| consumed.contains(newest)) {
            // The newest of the remaining messages is looked up when it matters.
            batch.caches.inboxes.remove(&self.key());
        }
        Ok(())
    }

    /// Sends messages to others. None of them fails the commit. Returns whether the execution sent
    /// one to itself.
    fn emit(&self, batch: &mut Batch<'_>, committed: &mut Committed, now: Timestamp) -> Result<bool, Stop> {
        let mut is_to_itself = false;
        for message in &self.commit.changes.outgoing {
            let Body::Start(start) = &message.body else {
                match batch.put(message) {
                    Ok(put) => {
                        is_to_itself |= matches!(&put, Put::Delivered(key) if *key == self.commit.key);
                        batch.tell_newborn(committed.born.iter_mut().map(|born| &mut **born), &put)?;
                    }
                    Err(Stop::Refused(_)) => committed.dropped_count += 1,
                    Err(stop) => return Err(stop),
                }
                continue;
            };
            let wants_more = committed.born.len() < self.commit.born_slots;
            let offer = wants_more.then_some(self.commit.lease.session);
            match batch.start(message, start, (offer, now)) {
                Ok(Started::New(_, leased)) => committed.born.extend(leased),
                Ok(Started::Attached(_)) => {}
                Err(Stop::Refused(error)) => self.come_back(batch, (message, &error), committed)?,
                Err(stop) => return Err(stop),
            }
        }
        Ok(is_to_itself)
    }

    /// Returns a refused child start to the emitter's inbox, if the emitter waits for it there.
    fn come_back(
        &self,
        batch: &mut Batch<'_>,
        (message, error): (&Message, &Error),
        committed: &mut Committed,
    ) -> Result<(), Stop> {
        let answer = refused_start(&self.address(batch)?, message, error);
        let put = match answer {
            Some(answer) => batch.put(&answer).map(Some),
            None => Ok(None),
        };
        match put {
            Ok(Some(_)) => {}
            Ok(None) | Err(Stop::Refused(_)) => committed.dropped_count += 1,
            Err(stop) => return Err(stop),
        }
        Ok(())
    }

    fn address(&self, batch: &mut Batch<'_>) -> Result<Address, Stop> {
        let mut statement = batch.connection.prepare_cached(sql::EXECUTION_ADDRESS)?;
        let (namespace, id): (i64, String) =
            statement.query_row([self.key()], |row| Ok((row.get(0)?, row.get(1)?)))?;
        address(batch.caches.interned(batch.connection)?, namespace, &id)
    }

    /// Returns where the commit leaves the execution; `None` when its holder keeps it.
    fn after(
        &self,
        batch: &mut Batch<'_>,
        cached: &CachedRow,
        now: Timestamp,
    ) -> Result<Option<After>, Stop> {
        let summary = &self.commit.changes.summary;
        if summary.status.is_terminal() {
            return Ok(Some(After { place: Place::Finished(now), care_at: None }));
        }
        let queue = cached.state.queue;
        let (seen, is_yielded) = match &self.commit.hold {
            Hold::Keep => return Ok(None),
            Hold::Park { seen } => (seen.as_slice(), false),
            Hold::Yield => (&[][..], true),
        };
        let parked = batch.park(self.key(), (summary, seen), now)?;
        let place = if is_yielded || parked.is_ready {
            Place::Ready(queue, now)
        } else {
            Place::parked(queue.route, summary.wake_at)
        };
        Ok(Some(After { place, care_at: parked.care_at }))
    }

    /// Writes the row, fenced once more: remembered state must not overwrite a newer row.
    fn update(
        &mut self,
        batch: &mut Batch<'_>,
        cached: &mut CachedRow,
        after: Option<After>,
    ) -> Result<(), Stop> {
        let key = self.key();
        if self.leaves_row(cached, after) {
            let version = self.commit.expected.next();
            (cached.state.lease.version, cached.state.anchor.version) = (version, version);
            batch.caches.targets.remove(&key);
            debug_assert!(batch.tails.has(key), "its row was written with an open tail");
            return Ok(());
        }
        self.update_seldom(batch, cached, after)?;
        let Commit { lease, expected, changes, .. } = &self.commit;
        let Columns { place, .. } = Place::Held(self.holder(cached)).columns();
        let epoch = integer(lease.epoch.0);
        let before = integer(cached.state.written.version.0);
        let version = expected.next();
        (cached.state.lease.version, cached.state.anchor.version) = (version, version);
        let (head, now) = (cached.state.anchor.head, integer(version.0));
        let settled = cached.state.is_newborn.then(|| Place::Held(self.holder(cached).settled()));
        let to = after.map(|after| after.place).or(settled);
        let room = cached.state.sheet_room(to.map(Place::columns));
        let is_open = cached.state.cold.keeping.is_open();
        let opens_tail =
            self.is_plain && after.is_none() && cached.is_warm && !is_open && is_at_work(&changes.summary);
        cached.state.cold.has_tail = opens_tail;
        let LeaseState { cold, anchor, .. } = &cached.state;
        let marks = if is_open { batch.caches.answers.marks(key) } else { &[] };
        let draft = self.sheet.get_or_insert_with(|| Draft::new(&changes.summary, &changes.state));
        let sheet = draft.padded(cold, marks, anchor, |length| room::filled(length, room));
        let length = sheet.len();
        let row = NewRow { key, fence: (epoch, place, before), head, sheet, version: now };
        let changed = row.write(batch, to)?;
        if changed != 1 {
            let what = format!("the row of execution {key} is not what it was a moment ago");
            return Err(Stop::corrupt(what));
        }
        cached.state.written = Written { head, version, steady: Steady::of(&changes.summary) };
        cached.is_warm = true;
        cached.state.fill(length);
        batch.caches.targets.remove(&key);
        match opens_tail {
            true => batch.tails.open(key),
            false => batch.tails.close(key),
        }
        if after.is_some() {
            self.released(batch, cached);
        } else if settled.is_some() {
            batch.tallies.newborns.remove(self.commit.lease.session, key);
        }
        cached.state.is_newborn = false;
        Ok(())
    }

    /// Whether the row of the execution stays as it is, because its journal says the rest. The
    /// commit is then compared with the remembered lease alone: that is the row's own, because no
    /// other connection has written since, and every change of a lease by this one forgets it.
    fn leaves_row(&self, cached: &CachedRow, after: Option<After>) -> bool {
        let LeaseState { cold, written, anchor, takeover_count, listed, .. } = &cached.state;
        let summary = &self.commit.changes.summary;
        self.is_plain
            && cold.has_tail
            && after.is_none()
            && !cached.state.is_newborn
            && !cold.keeping.is_open()
            && (anchor.head <= written.head.saturating_add(TAIL_ROWS) || planted(Bug::TailTooLong))
            && (written.steady == Steady::of(summary) || planted(Bug::TailChangesTimes))
            && *listed == indexed(summary.status).map(i64::from)
            && (*takeover_count == 0 || !self.commit.ends_suspicion())
    }

    /// Returns the holder, as the row has it.
    fn holder(&self, cached: &CachedRow) -> Holder {
        let LeaseState { given_beat: beat, is_newborn, .. } = cached.state;
        Holder { session: self.commit.lease.session, request: 0, beat, position: 0, is_newborn }
    }

    /// Records that the lease has ended.
    fn released(&self, batch: &mut Batch<'_>, cached: &mut CachedRow) {
        let Lease { session, epoch } = self.commit.lease;
        batch.tallies.end(self.key(), Given { session, epoch, beat: cached.state.given_beat });
        cached.state.lease.session = None;
    }

    /// Updates the columns that hardly any commit changes.
    fn update_seldom(
        &self,
        batch: &mut Batch<'_>,
        cached: &mut CachedRow,
        after: Option<After>,
    ) -> Result<(), Stop> {
        // The time for care of a held execution is not the holder's business.
        if let Some(After { care_at, .. }) = after {
            self.care(batch, cached, care_at)?;
        }
        if cached.state.takeover_count > 0 && self.commit.ends_suspicion() {
            batch.connection.prepare_cached(sql::EXECUTION_PROGRESS)?.execute([self.key()])?;
            cached.state.takeover_count = 0;
        }
        let listed = indexed(self.commit.changes.summary.status).map(i64::from);
        if listed != cached.state.listed {
            batch.connection.prepare_cached(sql::EXECUTION_STATUS)?.execute((self.key(), listed))?;
            cached.state.listed = listed;
        }
        Ok(())
    }

    fn care(
        &self,
        batch: &mut Batch<'_>,
        cached: &mut CachedRow,
        care_at: Option<Timestamp>,
    ) -> Result<(), Stop> {
        if care_at != cached.state.care_at {
            batch.set_care(self.key(), care_at)?;
            cached.state.care_at = care_at;
        }
        Ok(())
    }

    /// Answers a commit that was applied before: its results are still in the store.
    fn answer_again(&self, batch: &mut Batch<'_>, head: i64) -> Result<CommitOutcome, Stop> {
        let mut committed = Committed::default();
        batch.bind_sheaf()?;
        if self.is_transaction() {
            let record = journal::record(batch.connection, (head, self.key()), |mut records| records.pop())?;
            committed.transacted = Some(record);
        }
        for message in
            self.commit.changes.outgoing.iter().filter(|message| matches!(message.body, Body::Start(_)))
        {
            let interned = batch.caches.interned(batch.connection)?;
            let Some(namespace) = interned.known(&message.to.namespace) else { continue };
            let Some(child) = Target::read(batch.connection, namespace, &message.to)? else {
                continue;
            };
            let ours =
                child.place.session() == Some(self.commit.lease.session) && child.epoch == Some(Epoch(1));
            if committed.born.len() < self.commit.born_slots && ours {
                let which = (self.commit.lease.session, Which::Held);
                committed.born.push(Box::new(leased(batch, child.key, which)?.0));
            }
        }
        Ok(CommitOutcome::Committed(committed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Waker};

    use abide_core::Payload;
    use abide_store::conformance::block_on;
    use abide_store::{InboxRead, Store, View as _};

    use super::*;
    use crate::fixture::{
        claim_of, commit_of, end_of, inside, message, name, pair, parent_and_child, register, start, submit,
    };

    /// The index of statuses lists an execution for as long as it has one of the listed statuses.
    #[test]
    fn a_commit_writes_the_status_that_it_tells() {
        const STATUS: &str = "SELECT status FROM abide_executions WHERE id = 'a'";
        const RUNNING: (Status, Option<u8>) = (Status::Running, None);
        const BLOCKED: (Status, Option<u8>) = (Status::Blocked, Some(5));
        let ends = [(Status::Completed, None), (Status::Failed, Some(7)), (Status::Cancelled, Some(8))];
        let cases = ends.map(|end| [RUNNING, end]).map(Vec::from).into_iter();
        let cases = cases.chain(ends.map(|end| [BLOCKED, BLOCKED, RUNNING, BLOCKED, end]).map(Vec::from));
        for case in cases {
            let (_folder, ours, _theirs) = pair();
            let session = register(&ours, "default");
            start(&ours, "a");
            let mut leased = block_on(ours.claim(claim_of(session))).unwrap().leased.remove(0);
            for (status, expected) in case {
                let mut commit = commit_of(&leased, Hold::Keep, Vec::new());
                let changes = Arc::make_mut(&mut commit.changes);
                changes.summary.status = status;
                block_on(ours.commit(commit)).unwrap();
                leased.version = leased.version.next();
                let found: Option<u8> =
                    inside(&ours, |batch| Ok(batch.connection.query_row(STATUS, [], |row| row.get(0))?))
                        .unwrap();
                assert_eq!(found, expected, "{status:?}");
            }
        }
    }

    /// The holder has seen the order that it sends, and asks for no care. A time that is left from
    /// the arrival of the order would have a caretaker look for nothing.
    #[test]
    fn an_order_to_itself_that_its_holder_has_seen_leaves_no_time_for_care() {
        const CARE_AT: &str = "SELECT care_at FROM abide_executions WHERE id = 'a'";
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        start(&ours, "a");
        let leased = block_on(ours.claim(claim_of(session))).unwrap().leased.remove(0);
        let order = message("end", "a", Body::Terminate { reason: String::new() });
        let hold = Hold::Park { seen: vec![order.id.clone()] };
        block_on(ours.commit(commit_of(&leased, hold, vec![order]))).unwrap();
        let care_at: Option<i64> =
            inside(&ours, |batch| Ok(batch.connection.query_row(CARE_AT, [], |row| row.get(0))?)).unwrap();
        assert_eq!(care_at, None);
    }

    /// The writer's memory says that the lease is valid, and the row says that it is not. That
    /// should never happen, and then nothing is written.
    #[test]
    fn p3_what_is_remembered_of_a_lease_is_compared_with_the_row() {
        let changes = ["", "epoch = epoch + 1", "version = version + 1", "place = place + 4"];
        let holds = [Hold::Keep, Hold::Yield, Hold::Park { seen: Vec::new() }];
        let cases = changes.iter().flat_map(|change| holds.iter().map(move |hold| (*change, hold)));
        for ((change, hold), sends) in cases.flat_map(|case| [(case, false), (case, true)]) {
            let (_folder, ours, _theirs) = pair();
            let session = register(&ours, "default");
            start(&ours, "a");
            start(&ours, "b");
            let mut leased = block_on(ours.claim(claim_of(session))).unwrap().leased.remove(0);
            block_on(ours.commit(commit_of(&leased, Hold::Keep, Vec::new()))).unwrap();
            leased.version = leased.version.next();
            if !change.is_empty() {
                let text = ["UPDATE abide_executions SET ", change, " WHERE id = 'a'"].concat();
                inside(&ours, move |batch| Ok(batch.connection.execute_batch(&text)?)).unwrap();
            }
            let signal = Body::Signal { name: name("s"), payload: Payload::from("1") };
            let outgoing = if sends { vec![message("s", "b", signal)] } else { Vec::new() };
            let outcome = block_on(ours.commit(commit_of(&leased, hold.clone(), outgoing)));
            let case = format!("{change:?}, {hold:?}, sends: {sends}");
            match outcome {
                Ok(CommitOutcome::Committed(_)) if change.is_empty() => {}
                Err(Error::Corrupt { .. }) if !change.is_empty() => {}
                other => panic!("{case}: {other:?}"),
            }
        }
    }

    /// The writer undoes a transaction when a later operation in it fails, and applies the others
    /// again. Another process may write before that.
    #[test]
    fn the_answer_of_a_commit_that_is_applied_again_is_told_and_found() {
        for is_foreign in [true, false] {
            let (_folder, ours, theirs) = pair();
            let session = register(&ours, "default");
            let (parent, child) = parent_and_child(&ours, session);
            let work = Arc::new(Mutex::new(CommitWork::new(end_of(child))));
            let first = Arc::clone(&work);
            let failed = inside(&ours, move |batch| {
                first.lock().unwrap().apply(batch)?;
                Err::<(), _>(Stop::corrupt("a neighbour fails"))
            });
            failed.unwrap_err();
            if is_foreign {
                let signal = Body::Signal { name: name("s"), payload: Payload::from("1") };
                submit(&theirs, message("s", "p", signal));
            }
            let mut context = Context::from_waker(Waker::noop());
            _ = ours.wait(session).as_mut().poll(&mut context);
            let outcome = inside(&ours, move |batch| work.lock().unwrap().apply(batch)).unwrap();
            assert!(matches!(outcome, CommitOutcome::Committed(_)));
            let page = block_on(ours.inbox(InboxRead::first(parent.key))).unwrap();
            let found: Vec<_> = page.messages.iter().map(|message| message.id.as_str()).collect();
            assert_eq!(found.last(), Some(&"done:k:1"), "{is_foreign}: {found:?}");
            assert!(ours.wait(session).as_mut().poll(&mut context).is_ready(), "{is_foreign}: it is told");
            assert_eq!(ours.verify().unwrap().problems, Vec::<String>::new());
        }
    }
}
