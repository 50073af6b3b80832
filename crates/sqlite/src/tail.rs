//! The tail of a journal: rows behind the head that the row of its execution names.
//!
//! A commit that only adds entries, and whose holder keeps the lease, does not write the row of its
//! execution if everything in it follows from the journal. The row says so beforehand
//! ([`Cold::has_tail`](crate::sheet::Cold)). Each row of a tail is one commit, and has the summary
//! of that commit behind its entries. A tail ends within [`TAIL_ROWS`] rows of the table, so a
//! reader finds it without an index. Every reader of a version, a head, a count or a state follows
//! it: this process, another one, the next holder, `verify`.
//!
//! Such a row is *open*, whether a tail follows or not. Readers pay for that, and damage behind it
//! may be damage to the tail, so heartbeats close the rows of executions that are held: see
//! [`OpenTails`].
//!
//! Status, times and the messages that wake an execution are the same in its row and in its tail.
//! Decisions about messages and places are therefore made without it.

mod open;

use std::ops::ControlFlow;

use abide_core::planted::{Bug, planted};
use abide_core::{Execution, Listens, SessionId, Status, Summary, Timestamp, Version, codec};
use abide_store::Record;
use rusqlite::Connection;

use crate::apply::take_cached;
use crate::batch::Batch;
use crate::error::Stop;
use crate::journal::{Chain, Found};
use crate::place::{Columns, Holder, Place};
use crate::rows::{LeaseState, Written, integer};
use crate::sheaf::{self, Part, Wanted};
use crate::sheet::{Base, Draft, Sheet};
use crate::statements::Frequent;
use crate::{room, sql};

pub(crate) use open::OpenTails;

/// How many rows of the table a tail extends over at most, those of other executions included. A
/// reader goes through all of them, which takes about a quarter of a millisecond.
pub(crate) const TAIL_ROWS: i64 = 1_024;

/// The facts in the row of an execution that its tail continues.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    pub(crate) version: Version,
    pub(crate) chain: Chain,
    pub(crate) execution: Execution,
    /// The summary of the last commit in the tail, if there is a tail.
    pub(crate) summary: Option<Summary>,
    pub(crate) has_tail: bool,
}

impl Current {
    /// Returns the facts about an execution that exists.
    pub(crate) fn find(connection: &Connection, key: i64) -> Result<Self, Stop> {
        Self::in_row(connection, key)?.follow(connection)
    }

    /// Returns the facts as they are in the row, and the summary there.
    fn with_summary(connection: &Connection, key: i64) -> rusqlite::Result<(Self, Summary)> {
        let mut statement = connection.prepare_cached(sql::EXECUTION_LEASED)?;
        statement.query_row([key], |row| {
            let base = Base::read(row)?;
            let sheet = base.sheet()?;
            Ok((Self::read(&base, &sheet)?, sheet.summary()?))
        })
    }

    fn in_row(connection: &Connection, key: i64) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare_cached(sql::EXECUTION_LEASED)?;
        statement.query_row([key], |row| {
            let base = Base::read(row)?;
            Self::read(&base, &base.sheet()?)
        })
    }

    /// Returns the facts as they are in the row.
    pub(crate) fn read(base: &Base<'_>, sheet: &Sheet<'_>) -> rusqlite::Result<Self> {
        Self::of(base.key, (base.anchor.head, base.anchor.version), sheet)
    }

    pub(crate) fn of(key: i64, (head, version): (i64, Version), sheet: &Sheet<'_>) -> rusqlite::Result<Self> {
        let execution = sheet.execution()?;
        let chain = Chain {
            key,
            first: sheet.cold.first,
            head,
            entry_count: execution.entry_count(),
            row_count: sheet.cold.row_count,
        };
        Ok(Self { version, chain, execution, summary: None, has_tail: sheet.cold.has_tail })
    }

    /// Continues with the tail. The caller has begun a transaction, so rows do not change
    /// meanwhile.
    pub(crate) fn follow(mut self, connection: &Connection) -> Result<Self, Stop> {
        if !self.has_tail || planted(Bug::TailUnread) {
            return Ok(self);
        }
        let head = self.chain.head;
        let (first, last) = (head.saturating_add(1), head.saturating_add(TAIL_ROWS));
        let mut unread = None;
        sheaf::scan(connection, (Wanted::All, first, last), |part| {
            let (owner, previous) = (part.execution().ok(), part.previous().ok().flatten());
            let (is_its, is_next) = (owner == Some(self.chain.key), previous == Some(self.chain.head));
            // A row that has lost its owner or its predecessor is still one of the two. If it were
            // passed over, everything that it records would happen again.
            if !is_its && (!is_next || planted(Bug::TailPassedOver)) {
                // Damage may have taken both from a row in a sheaf, or the whole row.
                unread = if part.may_be_any() { Some(part.number()?) } else { unread };
                return Ok(ControlFlow::Continue(()));
            }
            let (number, found) = (part.number()?, part.found()?);
            if !is_its || !is_next {
                return Err(self.breaks_off_at(number));
            }
            self.add(number, &found)?;
            // It follows the row before it, so nothing between them is missing.
            unread = None;
            Ok(ControlFlow::Continue(()))
        })?;
        match unread {
            Some(row) if !planted(Bug::TailPassedOver) => Err(Stop::corrupt(format!(
                "journal row {row} is damaged, and may be the last one of {}",
                self.chain.key
            ))),
            _ => Ok(self),
        }
    }

    /// Continues with the tail that ends with the row `last`, from row to row. The writer knows
    /// that row: it need not go through those of other executions.
    fn follow_to(mut self, connection: &Connection, last: i64) -> Result<Self, Stop> {
        let mut rows = Vec::new();
        let mut next = last;
        while next != self.chain.head {
            rows.push(next);
            let previous =
                sheaf::find_of(connection, (next, self.chain.key), |part| Ok(part.found()?.previous));
            next = match previous?.flatten() {
                Some(previous) if previous >= self.chain.head => previous,
                _ => return Err(self.breaks_off_at(next)),
            };
        }
        let key = self.chain.key;
        for row in rows.into_iter().rev() {
            let add = |part: &Part<'_>| self.add(row, &part.found()?);
            if sheaf::find_of(connection, (row, key), add)?.is_none() {
                return Err(self.breaks_off_at(row));
            }
        }
        Ok(self)
    }

    fn breaks_off_at(&self, row: i64) -> Stop {
        let Chain { key, head, .. } = self.chain;
        Stop::corrupt(format!("journal row {row} does not follow row {head} of execution {key}"))
    }

    /// Adds one row.
    fn add(&mut self, row: i64, found: &Found<'_>) -> Result<(), Stop> {
        let damaged = |what: String| Stop::corrupt(format!("journal row {row}: {what}"));
        for record in found.records() {
            let (seq, bytes) = record?;
            let expected = self.chain.entry_count + 1;
            if seq != expected {
                return Err(damaged(format!("entry {seq} stands where {expected} belongs")));
            }
            let entry = Record { seq, bytes: bytes.to_vec() }.entry();
            self.execution.apply(&entry.map_err(|error| damaged(error.to_string()))?);
            self.chain.entry_count = seq;
        }
        let summary = found.summary().ok_or_else(|| damaged("it has no summary".to_owned()))?;
        self.summary = Some(codec::decode(summary)?);
        self.chain.head = row;
        self.chain.row_count += 1;
        self.version = self.version.next();
        Ok(())
    }
}

/// Returns the rows one of which is the head, if `last` is the last row of a journal, newest first.
/// Few rows follow a head before its heartbeat.
pub(crate) fn rows_to(connection: &Connection, key: i64, last: i64) -> Result<Vec<i64>, Stop> {
    let mut found = vec![last];
    let mut next = Some(last);
    while let Some(row) = next.take() {
        // Only rows with a summary can be part of a tail, and have their head before them.
        let previous = sheaf::find_of(connection, (row, key), |part| {
            let read = part.found().ok().filter(|read| read.summary().is_some());
            Ok(read.and_then(|read| read.previous))
        })?;
        next = previous.flatten();
        next = next.filter(|previous| last - previous <= TAIL_ROWS);
        found.extend(next);
    }
    Ok(found)
}

/// The part of a summary that is the same in a row and in its tail: it decides about places and
/// messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steady {
    status: Status,
    listens: Listens,
    wake_at: Option<Timestamp>,
    care_at: Option<Timestamp>,
}

impl Steady {
    /// Returns that part; nothing for a summary with seldom facts, which a store decides by too.
    pub(crate) fn of(summary: &Summary) -> Option<Self> {
        let Summary { status, listens, wake_at, care_at, .. } = *summary;
        let is_usual =
            summary.cared_epoch.is_none() && summary.suspicion.is_none() && summary.unclaimed.is_none();
        is_usual.then_some(Self { status, listens, wake_at, care_at })
    }
}

/// The most tails that one heartbeat closes: the writer does nothing else meanwhile.
const CLOSED_COUNT_MAX: usize = 256;

/// A tail whose last row the writer has forgotten counts as so many: it goes through
/// [all rows](TAIL_ROWS) that may belong to it.
const FORGOTTEN_COUNT: usize = 4;

impl Batch<'_> {
    /// Closes tails: it writes the rows of their executions, the oldest first. A reader need not
    /// look for those tails any longer, and a journal that has lost its last rows is noticed by its
    /// head.
    pub(crate) fn close_tails(&mut self) -> Result<(), Stop> {
        let mut left = if self.tails.rests() { 0 } else { CLOSED_COUNT_MAX };
        while left > 0
            && let Some(key) = self.tails.oldest()
        {
            let is_known = self.caches.rows.contains_key(&key);
            left = left.saturating_sub(if is_known { 1 } else { FORGOTTEN_COUNT });
            match self.close_tail(key) {
                Ok(()) => {}
                // Its holder reads the same rows, and sets it aside.
                Err(stop) if stop.damage().is_some() || stop.is_unreadable() || stop.is_newer() => {
                    tracing::error!(key, damage = stop.complaint(), "the tail of a journal is damaged");
                }
                Err(stop) => {
                    self.tails.give_up(key);
                    return Err(stop);
                }
            }
            self.tails.close(key);
        }
        Ok(())
    }

    fn close_tail(&mut self, key: i64) -> Result<(), Stop> {
        let Some(mut cached) = take_cached(self, key)? else { return Ok(()) };
        // A session of another process closes its own. An execution that nobody holds is left to
        // the next claim.
        let holder = cached.state.lease.session.filter(|session| self.shared.notices.holds(*session));
        let Some(session) = holder else { return Ok(()) };
        if cached.state.cold.has_tail {
            self.take_in(key, session, &mut cached.state)?;
        }
        self.caches.rows.insert(key, cached);
        Ok(())
    }

    fn take_in(&mut self, key: i64, session: SessionId, state: &mut LeaseState) -> Result<(), Stop> {
        let (row, written) = Current::with_summary(self.connection, key)?;
        let current = row.follow_to(self.connection, state.anchor.head)?;
        if (current.chain.head, current.version) != (state.anchor.head, state.anchor.version) {
            return Err(Stop::corrupt(format!("the journal of execution {key} does not end where it did")));
        }
        let summary = current.summary.unwrap_or(written);
        let holder = Holder { session, request: 0, beat: state.given_beat, position: 0, is_newborn: false };
        let Columns { place, .. } = Place::Held(holder).columns();
        let room = state.sheet_room(None);
        state.cold.has_tail = false;
        let mut draft = Draft::of(&summary, &current.execution);
        let sheet = draft.padded(&state.cold, &[], &state.anchor, |length| room::filled(length, room));
        let Written { version: before, .. } = state.written;
        let (head, version) = (state.anchor.head, state.anchor.version);
        let keep = self.frequent(Frequent::ExecutionKeep)?;
        let versions = [before, version].map(|version| integer(version.0));
        let row = (key, integer(state.lease.epoch.0), place, versions[0], head, sheet, versions[1]);
        if keep.execute(row)? != 1 {
            return Err(Stop::corrupt(format!("the row of execution {key} is not what it was a moment ago")));
        }
        state.fill(sheet.len());
        state.written = Written { head, version, ..state.written };
        Ok(())
    }
}
