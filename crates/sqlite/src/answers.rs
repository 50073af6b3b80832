//! Answers of children that take no row of the inbox.
//!
//! A child sends its answer with its last commit, and its parent mostly reads it with its next one.
//! A row of the inbox, with two indexes, for so short a time is a fifth of all work for a child. So
//! the answer to a parent that a session of this store holds is *kept*: it stands behind the
//! entries of the child's last journal row, and is a message of the parent's inbox nonetheless.
//!
//! - The sheet of the parent says from which child on answers may be kept ([`Keeping`]), and marks
//!   the children whose answers are read ([`Marks`]). It says so before the first of these children
//!   exists. So everybody can find the unread answers, by way of the index of children
//!   ([`unread`]).
//! - The writer also knows the unread answers of the parents that it has seen keeping them
//!   ([`Answers`]). Like all [caches](crate::caches), it may forget them at any time.
//! - Only a commit that keeps the lease of the parent reads answers where they are. It writes the
//!   row of the parent anyway, and the marks with it.
//! - Anything else that writes *settles* the parent first: unread answers become rows of the inbox,
//!   and no more answers are kept. That is the end of its lease, a message to it that a writer
//!   without memory of it delivers, a claim, and the next run or the removal of a child.

mod kept;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::{Arc, PoisonError};

use abide_core::intake::Intake;
use abide_core::planted::{Bug, planted};
use abide_core::{Body, Message, MessageId, Outcome, SessionId};
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};

use crate::apply::Judge;
use crate::batch::Batch;
use crate::caches::{ByKey, CachedRow};
use crate::checksum::SumHasher;
use crate::error::Stop;
use crate::mail::place_behind;
use crate::packing::Pack;
use crate::place::{self, Place};
use crate::rows::{Target, number};
use crate::sheet::{Anchor, Base, Cold, Draft, Identity};
use crate::sql;

pub(crate) use kept::Kept;
use kept::{Unread, kept_in, put, sound};

/// The distance between the first and the last child whose answers are kept. So many bits has the
/// sheet for marks, and so many children may a search look at, which every page of an inbox does.
const CHILD_DISTANCE_MAX: i64 = 2_048;
/// The most unread answers that are kept for all parents together.
const ANSWER_COUNT_MAX: usize = 16_384;
/// The size of the largest answer that is kept: readers of the entries read it too.
const ANSWER_BYTES_MAX: usize = 4 * 1_024;

/// Where the answers of an execution's children are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Keeping {
    /// All have always stood in the inbox.
    Never,
    /// All that are unread stand in the inbox.
    Settled,
    /// Those of the children of the current run from this one on may be kept, unless they are
    /// marked as read.
    Open { child_from: i64 },
}

impl Keeping {
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Open { .. })
    }
}

/// The unread answers that the writer knows, by parent. If a parent is there, all of its are.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    of: ByKey<Known>,
    count: usize,
}

#[derive(Debug)]
struct Known {
    child_from: i64,
    /// The number of children from that one on, and of those whose answers were read.
    child_count: usize,
    read_count: usize,
    marks: Marks,
    /// Whether the inbox has no message with the id of an answer.
    is_clean: bool,
    /// Whether no answer has ever been kept.
    is_first: bool,
    /// There are [`CHILD_DISTANCE_MAX`] at most, so nobody gains by ids that have the same hash.
    unread: HashMap<MessageId, Answer, BuildHasherDefault<SumHasher>>,
}

/// A kept answer that is unread. Its body stays where it is: all of them may take megabytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    child: i64,
    row: i64,
    pub(crate) arrived: i64,
}

impl Answer {
    /// Reads the message. `None` means that it was damaged a moment ago.
    pub(crate) fn read(&self, connection: &Connection, parent: i64) -> rusqlite::Result<Option<Unread>> {
        sound(connection, parent, (self.row, self.child))
    }
}

/// The children whose answers are read: a bit for each, from the first one on that may keep one.
#[derive(Debug, Default)]
struct Marks(Vec<u8>);

impl Marks {
    fn set(&mut self, distance: i64) {
        let byte = usize::try_from(distance / 8).unwrap_or(0);
        if self.0.len() <= byte {
            self.0.resize(byte + 1, 0);
        }
        self.0[byte] |= 1 << (distance % 8);
    }

    fn is_set(marks: &[u8], distance: i64) -> bool {
        let byte = usize::try_from(distance.div_euclid(8)).ok().and_then(|byte| marks.get(byte));
        byte.is_some_and(|byte| byte & (1 << distance.rem_euclid(8)) != 0)
    }
}

impl Answers {
    pub(crate) fn knows(&self, parent: i64) -> bool {
        self.of.contains_key(&parent)
    }

    /// Returns the number of unread answers, and the place and the id of the newest one.
    pub(crate) fn newest(&self, parent: i64) -> (usize, Option<(i64, &MessageId)>) {
        let Some(known) = self.of.get(&parent) else { return (0, None) };
        let newest = known.unread.iter().max_by_key(|(_, answer)| answer.arrived);
        (known.unread.len(), newest.map(|(id, answer)| (answer.arrived, id)))
    }

    /// Returns the marks of a parent, for its sheet.
    pub(crate) fn marks(&self, parent: i64) -> &[u8] {
        self.of.get(&parent).map_or(&[], |known| &known.marks.0)
    }

    /// Notes that a message with this id stands in the inbox.
    pub(crate) fn note(&mut self, parent: i64, id: &MessageId) {
        if let Some(known) = self.of.get_mut(&parent) {
            known.is_clean &= id.answered_by().is_none();
        }
    }

    /// Marks an answer as read. Returns `false` if no such answer is kept.
    pub(crate) fn read(&mut self, parent: i64, id: &MessageId) -> bool {
        let Some(known) = self.of.get_mut(&parent) else { return false };
        let Some(answer) = known.unread.remove(id) else { return false };
        known.marks.set(answer.child - known.child_from);
        known.read_count += 1;
        self.count -= 1;
        true
    }

    /// Whether all answers of a parent are read, and no more are to come.
    fn are_all_read(&self, parent: i64) -> bool {
        self.of.get(&parent).is_some_and(|known| known.read_count >= known.child_count)
    }

    fn open(&mut self, parent: i64, known: Known) {
        self.forget(parent);
        self.of.insert(parent, known);
    }

    /// Forgets the answers of a parent, and returns where they are.
    pub(crate) fn forget(&mut self, parent: i64) -> Option<Vec<(i64, i64)>> {
        let known = self.of.remove(&parent)?;
        self.count -= known.unread.len();
        Some(known.unread.into_values().map(|answer| (answer.row, answer.child)).collect())
    }

    pub(crate) fn trim(&mut self, parent_count_max: usize) {
        if self.of.len() > parent_count_max {
            *self = Self::default();
        }
    }
}

/// Returns the journal rows that may have unread answers, each with its child.
fn search(
    connection: &Connection,
    parent: i64,
    (cold, marks): (&Cold, &[u8]),
) -> rusqlite::Result<Vec<(i64, i64)>> {
    let Keeping::Open { child_from } = cold.keeping else { return Ok(Vec::new()) };
    let mut statement = connection.prepare_cached(sql::CHILD_HEADS)?;
    let mut rows = statement.query([parent, cold.run.into(), child_from, child_from + CHILD_DISTANCE_MAX])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let child: i64 = row.get(0)?;
        if !Marks::is_set(marks, child - child_from) || planted(Bug::AnswersReadTwice) {
            // Without a head, the child is damaged.
            found.extend(number(row, 1)?.map(|head| (head, child)));
        }
    }
    Ok(found)
}

/// An execution that may keep answers, from its row.
struct Keeper {
    cold: Cold,
    marks: Vec<u8>,
    anchor: Anchor,
    draft: Draft,
}

impl Keeper {
    /// Returns `None` for an execution that keeps none, or whose row is damaged.
    fn read(connection: &Connection, key: i64) -> rusqlite::Result<Option<Self>> {
        let mut statement = connection.prepare_cached(sql::EXECUTION_LEASED)?;
        let read = statement.query_row([key], |row| {
            let Ok(base) = Base::read(row) else { return Ok(None) };
            let Ok(sheet) = base.sheet() else { return Ok(None) };
            Ok(sheet.cold.keeping.is_open().then(|| Self {
                cold: sheet.cold,
                marks: sheet.marks.to_vec(),
                anchor: base.anchor,
                draft: Draft::again(&sheet),
            }))
        });
        Ok(read.optional()?.flatten())
    }

    /// Returns the journal rows that may have unread answers, each with its child.
    fn search(&self, connection: &Connection, key: i64) -> rusqlite::Result<Vec<(i64, i64)>> {
        search(connection, key, (&self.cold, &self.marks))
    }
}

/// Whether the row of an execution can be read. If not, it is damaged, or a newer program wrote it.
fn is_legible(connection: &Connection, key: i64) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(sql::EXECUTION_LEASED)?;
    statement.query_row([key], |row| Ok(Base::read(row).is_ok_and(|base| base.sheet().is_ok())))
}

/// Returns the unread answers of an execution that stand in no inbox, in order of arrival.
pub(crate) fn unread(connection: &Connection, key: i64) -> rusqlite::Result<Vec<Answer>> {
    let Some(keeper) = Keeper::read(connection, key)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for (row, child) in keeper.search(connection, key)? {
        let kept = sound(connection, key, (row, child))?;
        found.extend(kept.map(|kept| Answer { child, row, arrived: kept.arrived }));
    }
    found.sort_unstable_by_key(|answer| answer.arrived);
    Ok(found)
}

/// Whether a message with this id has ever arrived, be it kept or in the inbox.
pub(crate) fn has_seen(connection: &Connection, key: i64, id: &MessageId) -> Result<bool, Stop> {
    let mut seen = connection.prepare_cached(sql::INBOX_SEEN)?;
    Ok(seen.exists(params![key, id.as_str()])? || is_kept(connection, key, id)?)
}

/// Whether the answer with this id is kept, read or unread.
fn is_kept(connection: &Connection, key: i64, id: &MessageId) -> Result<bool, Stop> {
    let Some((child, _)) = id.answered_by() else { return Ok(false) };
    let mut statement = connection.prepare_cached(sql::CHILD_HEAD)?;
    let head = statement.query_row(params![key, child], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some(head) = head else { return Ok(false) };
    match kept_in(connection, key, head) {
        Ok(kept) => Ok(kept.is_some_and(|kept| kept.id == id.as_str())),
        Err(stop) if stop.damage().is_some() => Ok(false),
        Err(stop) => Err(stop),
    }
}

/// Writes the answers in some journal rows into the inbox, one by one.
fn insert_all(connection: &Connection, parent: i64, mut rows: Vec<(i64, i64)>) -> rusqlite::Result<()> {
    // Answers arrive in the order of their rows, in which a map does not have them.
    rows.sort_unstable();
    for row in rows {
        if let Some(kept) = sound(connection, parent, row)? {
            insert(connection, parent, &kept)?;
        }
    }
    Ok(())
}

/// Writes an answer into the inbox.
fn insert(connection: &Connection, parent: i64, kept: &Unread) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(sql::INBOX_INSERT)?;
    insert.execute((parent, kept.id.as_str(), kept.arrived, kept.body.as_slice()))?;
    Ok(())
}

/// Writes the unread answers of an execution into its inbox, and returns whether it kept any.
pub(crate) fn settle(connection: &Connection, key: i64) -> rusqlite::Result<bool> {
    let Some(keeper) = Keeper::read(connection, key)? else { return Ok(false) };
    if !planted(Bug::AnswersForgotten) {
        insert_all(connection, key, keeper.search(connection, key)?)?;
    }
    let Keeper { cold, anchor, mut draft, .. } = keeper;
    let cold = Cold { keeping: Keeping::Settled, ..cold };
    let mut statement = connection.prepare_cached(sql::EXECUTION_SHEET)?;
    statement.execute((key, draft.sealed(&cold, &anchor)))?;
    Ok(true)
}

/// Returns the executions that a query with one parameter finds.
pub(crate) fn found(connection: &Connection, query: &str, place: i64) -> rusqlite::Result<Vec<i64>> {
    let mut statement = connection.prepare_cached(query)?;
    let keys = statement.query_map([place], |row| row.get(0))?;
    keys.collect()
}

/// Returns about as many bytes as an answer takes that is kept.
pub(crate) fn room_for(answer: &Message) -> usize {
    const REST_BYTES: usize = 96;
    let result = match &answer.body {
        Body::ChildDone { outcome: Outcome::Success(result), .. } => result.as_bytes().len(),
        _ => 0,
    };
    (result + 3 * answer.id.as_str().len() + answer.to.id.as_str().len() + REST_BYTES).min(ANSWER_BYTES_MAX)
}

/// An answer that is about to be kept.
pub(crate) struct Keep {
    target: Arc<Target>,
    session: SessionId,
    message: Message,
    arrived: i64,
}

/// An answer that the child keeps which gave it.
pub(crate) struct KeptBy {
    parent: i64,
    answer: Unread,
}

impl Batch<'_> {
    /// Settles an execution, which need not keep answers.
    pub(crate) fn settle_answers(&mut self, key: i64) -> Result<(), Stop> {
        self.bind_sheaf()?;
        if settle(self.connection, key)? {
            self.forget_answers(key);
            self.caches.targets.remove(&key);
            if let Some(cached) = self.caches.rows.get_mut(&key) {
                cached.state.cold.keeping = Keeping::Settled;
            }
        }
        Ok(())
    }

    /// Settles an execution whose row its own commit is about to write, if the writer does not know
    /// its answers.
    pub(crate) fn settle_forgotten(&mut self, key: i64, cached: &mut CachedRow) -> Result<(), Stop> {
        if !self.settle_unknown(key, cached.state.cold.keeping)? {
            return Ok(());
        }
        if !is_legible(self.connection, key)? && !planted(Bug::DamagedParentWrittenOver) {
            return Err(Stop::corrupt(format!(
                "the row of execution {key} does not say where its answers are"
            )));
        }
        cached.state.cold.keeping = Keeping::Settled;
        Ok(())
    }

    /// Settles an execution whose row says whether it keeps answers.
    pub(crate) fn settle_open(&mut self, key: i64, keeping: Keeping) -> Result<(), Stop> {
        if keeping.is_open() { self.settle_answers(key) } else { Ok(()) }
    }

    /// Settles an execution whose answers the writer does not know. Returns whether it did.
    pub(crate) fn settle_unknown(&mut self, key: i64, keeping: Keeping) -> Result<bool, Stop> {
        let is_unknown = keeping.is_open() && !self.caches.answers.knows(key);
        if is_unknown {
            self.settle_answers(key)?;
        }
        Ok(is_unknown)
    }

    /// Settles an execution whose row its own commit is about to write, and whose answers the
    /// writer knows.
    pub(crate) fn settle_own(&mut self, key: i64, cached: &mut CachedRow) -> Result<(), Stop> {
        if !cached.state.cold.keeping.is_open() {
            return Ok(());
        }
        let is_unused = self.caches.answers.of.get(&key).is_some_and(|known| known.is_first);
        let rows = self.forget_answers(key).unwrap_or_default();
        self.bind_sheaf()?;
        if !planted(Bug::AnswersLostAtPark) {
            insert_all(self.connection, key, rows)?;
        }
        cached.state.cold.keeping = if is_unused { Keeping::Never } else { Keeping::Settled };
        Ok(())
    }

    /// Ends the keeping when all answers are read.
    pub(crate) fn settle_read(&mut self, key: i64, cached: &mut CachedRow) -> Result<(), Stop> {
        match self.caches.answers.are_all_read(key) {
            true => self.settle_own(key, cached),
            false => Ok(()),
        }
    }

    fn forget_answers(&mut self, key: i64) -> Option<Vec<(i64, i64)>> {
        self.effects.settled.push(key);
        self.caches.answers.forget(key)
    }

    /// Settles the executions that a session holds.
    pub(crate) fn settle_held(&mut self, session: SessionId) -> Result<(), Stop> {
        for key in found(self.connection, sql::SESSION_PARENTS, place::held(session))? {
            self.settle_answers(key)?;
        }
        Ok(())
    }

    /// Returns the newest unread messages of the executions that a session holds, as far as the
    /// writer knows unread answers of them. Keepers that it does not know are settled.
    pub(crate) fn newest_kept(&mut self, session: SessionId) -> Result<Vec<(i64, MessageId)>, Stop> {
        let keepers = self.shared.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        let keys: Vec<i64> = keepers.iter().copied().collect();
        drop(keepers);
        let mut newest = Vec::new();
        for key in keys {
            let Some(known) = self.caches.answers.of.get(&key) else {
                self.settle_answers(key)?;
                self.effects.settled.push(key);
                continue;
            };
            if known.unread.is_empty() {
                continue;
            }
            let mut statement = self.connection.prepare_cached(sql::EXECUTION_PLACE)?;
            let place = statement.query_row([key], |row| Ok(Place::read(row, 1).ok())).optional()?;
            if place.flatten().and_then(Place::session) == Some(session) {
                newest.extend(self.inbox(key)?.newest_id.clone().map(|id| (key, id)));
            }
        }
        Ok(newest)
    }

    /// Begins or continues to keep answers for an execution that starts `child_count` children and
    /// keeps its lease.
    pub(crate) fn open_answers(
        &mut self,
        key: i64,
        cached: &mut CachedRow,
        child_count: usize,
    ) -> Result<(), Stop> {
        let child_from = self.caches.execution_key_max(self.connection)? + 1;
        if let Some(known) = self.caches.answers.of.get_mut(&key)
            && child_from < known.child_from + CHILD_DISTANCE_MAX
        {
            known.child_count += child_count;
            return Ok(());
        }
        self.settle_own(key, cached)?;
        let is_clean = !self.connection.prepare_cached(sql::INBOX_ANSWERED)?.exists([key])?;
        let is_first = cached.state.cold.keeping == Keeping::Never;
        cached.state.cold.keeping = Keeping::Open { child_from };
        self.caches.answers.open(
            key,
            Known {
                child_from,
                child_count,
                read_count: 0,
                marks: Marks::default(),
                is_clean,
                is_first,
                unread: HashMap::default(),
            },
        );
        self.effects.settled.retain(|settled| *settled != key);
        self.shared.keepers.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        Ok(())
    }

    /// Puts the answer of a child that ends into its last journal row, if it may be kept there. If
    /// not, it is sent like any other message.
    pub(crate) fn keep(
        &mut self,
        (child, cached): (i64, &CachedRow),
        message: &Message,
        pack: &mut Pack,
    ) -> Result<Option<Keep>, Stop> {
        if self.caches.answers.of.is_empty() {
            return Ok(None);
        }
        let Ok(Some(target)) = self.target(&message.to) else { return Ok(None) };
        let parent = target.key;
        let is_own = self.is_own_answer((child, cached), (parent, message))?;
        let Some(known) = self.caches.answers.of.get(&parent) else { return Ok(None) };
        let is_near = (known.child_from..known.child_from + CHILD_DISTANCE_MAX).contains(&child);
        if !is_own || !is_near || self.caches.answers.count >= ANSWER_COUNT_MAX {
            return Ok(None);
        }
        if !known.is_clean {
            self.bind_sheaf()?;
            if has_seen(self.connection, parent, &message.id)? {
                return Ok(None);
            }
        }
        let session = match target.place {
            Place::Held(holder) if self.shared.notices.holds(holder.session) => holder.session,
            _ => return Ok(None),
        };
        let now = self.now();
        let Ok(Intake::Deliver { .. }) = self.admit(Some(&target), message, (Judge::IfReadable, now)) else {
            return Ok(None);
        };
        let message = message.clone().arrived(now);
        let arrived = place_behind(self.inbox(parent)?.newest, message.body.sort());
        if pack.keep(|body| put(body, (parent, arrived), &message)) > ANSWER_BYTES_MAX {
            pack.forget_answer();
            return Ok(None);
        }
        Ok(Some(Keep { target, session, message, arrived }))
    }

    /// Whether the message has the id of the child's answer to its parent: by that id, a repetition
    /// is recognized.
    fn is_own_answer(
        &mut self,
        (child, cached): (i64, &CachedRow),
        (parent, message): (i64, &Message),
    ) -> Result<bool, Stop> {
        let Some((id, run)) = message.id.answered_by() else { return Ok(false) };
        let Some(namespace) = self.caches.interned(self.connection)?.known(&message.to.namespace) else {
            return Ok(false);
        };
        let (queue, parent) = (cached.state.queue, Some(parent));
        let identity = Identity { key: child, namespace, id, queue, parent };
        Ok(run == cached.state.cold.run && cached.state.anchor.is_of(identity))
    }

    /// Whether the answer with this id is kept for an execution, read or unread.
    pub(crate) fn is_kept(&self, key: i64, id: &MessageId) -> Result<bool, Stop> {
        is_kept(self.connection, key, id)
    }

    /// Notes an answer that is kept in a journal row of the child, and notifies the holder of the
    /// parent.
    pub(crate) fn kept(&mut self, keep: Keep, (row, child): (i64, i64)) -> Result<(), Stop> {
        let Keep { target, session, message, arrived, .. } = keep;
        let previous = self.arrive(target.key, (&message.id, arrived))?;
        if let Some(known) = self.caches.answers.of.get_mut(&target.key) {
            known.is_first = false;
            known.unread.insert(message.id.clone(), Answer { child, row, arrived });
            self.caches.answers.count += 1;
        }
        self.notify_holder(&target, session, (message, previous));
        Ok(())
    }

    /// Returns the answer that a child keeps, read or unread. Damage is found here, before anything
    /// is written.
    pub(crate) fn kept_by(&self, child: i64) -> Result<Option<KeptBy>, Stop> {
        let mut statement = self.connection.prepare_cached(sql::CHILD_OF)?;
        let found = statement.query_row([child], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let Some((parent, head)) = found else { return Ok(None) };
        let kept = kept_in(self.connection, parent, (head, child))?;
        Ok(kept.map(|answer| KeptBy { parent, answer }))
    }

    /// Moves the answer of a child into the inbox of its parent: the child is removed, or begins
    /// another run. The id of an answer that was read stays there too.
    pub(crate) fn let_go(&mut self, KeptBy { parent, answer }: KeptBy) -> Result<(), Stop> {
        if !is_legible(self.connection, parent)? && !planted(Bug::AnswerOfDamagedLost) {
            // Whether it was read cannot be known. A parent ignores a second answer, and waits for
            // ever for a lost one.
            insert(self.connection, parent, &answer)?;
            // The writer remembers the answer in a row that is no longer the child's last. It must
            // not forget the other answers alone: what it knows of the parent would be written over
            // the row that says where they are.
            self.caches.answers.forget(parent);
            if !planted(Bug::DamagedParentWrittenOver) {
                self.caches.rows.remove(&parent);
            }
            self.caches.inboxes.remove(&parent);
            return Ok(());
        }
        self.settle_answers(parent)?;
        if !planted(Bug::AnswerIdForgotten) {
            self.insert_read(parent, &MessageId::new(answer.id))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use abide_store::conformance::block_on;
    use abide_store::{Claim, Error, Hold, InboxRead, Store as _, Submitted, View as _};
    use rusqlite::StatementStatus;

    use super::*;
    use crate::fixture::{
        claim_of, commit_of, end_of, failure_of, inside, message, pair, parent_and_child,
        parent_and_children, register, submit, try_submit,
    };

    fn inbox_row_count(store: &crate::SqliteStore) -> i64 {
        const COUNT: &str = "SELECT COUNT(*) FROM abide_inbox";
        inside(store, |batch| Ok(batch.connection.query_row(COUNT, [], |row| row.get(0))?)).unwrap()
    }

    /// The writer remembers the id of each of them.
    #[test]
    fn p8_an_answer_beside_too_many_others_takes_a_row() {
        for (count, row_count) in [(ANSWER_COUNT_MAX - 1, 0), (ANSWER_COUNT_MAX, 1)] {
            let (_folder, ours, _theirs) = pair();
            let session = register(&ours, "default");
            let (parent, child) = parent_and_child(&ours, session);
            let others = move |batch: &mut Batch<'_>| {
                batch.caches.answers.count = count;
                Ok(())
            };
            inside(&ours, others).unwrap();
            block_on(ours.commit(end_of(child))).unwrap();
            assert_eq!(inbox_row_count(&ours), row_count, "beside {count}");
            let page = block_on(ours.inbox(InboxRead::first(parent.key))).unwrap();
            assert_eq!(page.messages[0].id.as_str(), "done:k:1", "beside {count}");
        }
    }

    /// A kept answer is found by its id. With that of another message, a repetition would not be
    /// recognized.
    #[test]
    fn p1_a_message_with_another_id_than_the_answer_of_its_child_takes_a_row() {
        for id in ["done:l:1", "done:k:2", "other"] {
            let (_folder, ours, _theirs) = pair();
            let session = register(&ours, "default");
            let (_parent, child) = parent_and_child(&ours, session);
            let mut commit = end_of(child);
            let answer = &mut Arc::make_mut(&mut commit.changes).outgoing[0];
            answer.id = MessageId::new(id);
            let again = answer.clone();
            block_on(ours.commit(commit)).unwrap();
            let repeated = try_submit(&ours, again).unwrap();
            assert!(matches!(repeated[..], [Submitted::Duplicate(_)]), "{id}: {repeated:?}");
            assert_eq!(inbox_row_count(&ours), 1, "{id}");
        }
    }

    /// Many parents wait for children, and few have an answer.
    #[test]
    fn a_look_for_mail_reads_no_parent_without_unread_answers() {
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        let (parent, child) = parent_and_child(&ours, session);
        let mut request = 1;
        let mut look = || {
            request += 1;
            let claim = Claim { request, slots: 0, with_mail: true, ..claim_of(session) };
            let found = block_on(ours.claim(claim)).unwrap().mail;
            let read_count = inside(&ours, |batch| {
                let statement = batch.connection.prepare_cached(sql::EXECUTION_PLACE)?;
                Ok(statement.reset_status(StatementStatus::Run))
            });
            (found, read_count.unwrap())
        };
        assert_eq!(look(), (vec![], 0));
        block_on(ours.commit(end_of(child))).unwrap();
        assert_eq!(look(), (vec![(parent.key, MessageId::new("done:k:1"))], 1));
    }

    /// The other session would look for a message of an execution that it does not have.
    #[test]
    fn mail_is_told_to_the_session_that_holds_its_reader() {
        let (_folder, ours, _theirs) = pair();
        let [session, other] = ["default"; 2].map(|lane| register(&ours, lane));
        let (parent, child) = parent_and_child(&ours, session);
        block_on(ours.commit(end_of(child))).unwrap();
        let expected = vec![(parent.key, MessageId::new("done:k:1"))];
        for (session, expected) in [(other, vec![]), (session, expected)] {
            let claim = Claim { request: 9, slots: 0, with_mail: true, ..claim_of(session) };
            assert_eq!(block_on(ours.claim(claim)).unwrap().mail, expected);
        }
    }

    /// What the writer remembers of the parent does not tell where its answers are.
    #[test]
    fn a_damaged_parent_is_not_written_over_while_it_keeps_answers() {
        const DAMAGE: &str = "UPDATE abide_executions SET state = zeroblob(9) WHERE id = 'p'";
        const STATE: &str = "SELECT state FROM abide_executions WHERE id = 'p'";
        const MEND: &str = "UPDATE abide_executions SET state = ?1 WHERE id = 'p'";
        for is_retried in [true, false] {
            let (_folder, ours, _theirs) = pair();
            let session = register(&ours, "default");
            let (mut parent, kids) = parent_and_children(&ours, session, &["k", "l"]);
            for kid in kids {
                block_on(ours.commit(failure_of(kid))).unwrap();
            }
            let state: Vec<u8> =
                inside(&ours, |batch| Ok(batch.connection.query_row(STATE, [], |row| row.get(0))?)).unwrap();
            inside(&ours, |batch| Ok(batch.connection.execute_batch(DAMAGE)?)).unwrap();
            if is_retried {
                submit(&ours, message("again", "k", Body::Retry));
            } else {
                inside(&ours, |batch| {
                    batch.caches.answers = Answers::default();
                    Ok(())
                })
                .unwrap();
            }
            parent.version = parent.version.next();
            let outcome = block_on(ours.commit(commit_of(&parent, Hold::Keep, Vec::new())));
            assert!(matches!(outcome, Err(Error::Corrupt { .. })), "retried: {is_retried}: {outcome:?}");
            inside(&ours, move |batch| Ok(batch.connection.execute(MEND, [&state])?)).unwrap();
            let page = block_on(ours.inbox(InboxRead::first(parent.key))).unwrap();
            let found: Vec<_> = page.messages.iter().map(|message| message.id.as_str()).collect();
            assert_eq!(found, ["done:k:1", "done:l:1"], "retried: {is_retried}");
        }
    }

    #[test]
    fn a_mark_is_that_of_one_child() {
        let mut marks = Marks::default();
        let set = [0, 7, 8, 1_000, CHILD_DISTANCE_MAX - 1];
        set.into_iter().for_each(|distance| marks.set(distance));
        let found: Vec<i64> =
            (-9..CHILD_DISTANCE_MAX + 9).filter(|distance| Marks::is_set(&marks.0, *distance)).collect();
        assert_eq!(found, set);
        assert_eq!(marks.0.len() as i64, CHILD_DISTANCE_MAX / 8);
    }
}
