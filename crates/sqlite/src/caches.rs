//! The writer's caches between transactions.
//!
//! Everything here is also in the database. All of it is dropped when a transaction is rolled back
//! and when another connection has written, which `PRAGMA data_version` reveals at the beginning of
//! each transaction. If that number has not changed between two of the writer's transactions,
//! everything true at the end of the first is true at the beginning of the second.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use abide_core::{Address, ExecutionId, KeyHasher, MessageId, SessionId};
use rusqlite::Connection;
use smallvec::SmallVec;

use crate::answers::Answers;
use crate::error::Stop;
use crate::interned::Interned;
use crate::rows::{LeaseState, SessionState, Target};
use crate::sheaf::{self, Sheaf};
use crate::sql;

/// The most executions that are cached.
const CACHED_ROW_COUNT_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct Caches {
    pub(crate) interned: Option<Interned>,
    pub(crate) sessions: BySession<SessionState>,
    /// The routes that a session serves, and the number of all routes at that time.
    pub(crate) served: BySession<(usize, Arc<[i64]>)>,
    pub(crate) rows: ByKey<CachedRow>,
    /// Routes without ready executions.
    pub(crate) idle_routes: HashSet<i64, KeyHasher>,
    pub(crate) inboxes: ByKey<Inbox>,
    /// Answers that take no row of the inbox.
    pub(crate) answers: Answers,
    /// The numbers of executions that messages went to.
    pub(crate) ids: HashMap<Address, i64>,
    /// The last of them: answers come in series, and a comparison is cheaper than a hash.
    pub(crate) last_id: Option<(Address, i64)>,
    /// The contents of these executions, until their rows are written.
    pub(crate) targets: ByKey<Arc<Target>>,
    /// The parent of the newest child, by namespace and id: children come in series.
    pub(crate) last_parent: Option<(i64, ExecutionId, i64)>,
    /// Buffers for the owner and the first entry of a new journal, and for its first sheet.
    pub(crate) owner: Vec<u8>,
    pub(crate) body: Vec<u8>,
    pub(crate) sheet: Vec<u8>,
    /// The journal rows of this transaction that are not in the table yet.
    pub(crate) sheaf: Sheaf,
    pub(crate) execution_key_max: Option<i64>,
    pub(crate) journal_row_max: Option<i64>,
}

/// The largest buffer for an entry that is kept.
const BUFFER_BYTES_MAX: usize = 64 * 1_024;

impl Caches {
    /// Takes back the buffer of an entry, unless a large one has made it large.
    pub(crate) fn put_away(&mut self, body: Vec<u8>) {
        if body.capacity() <= BUFFER_BYTES_MAX {
            self.body = body;
        }
    }

    /// Makes room: it is simpler to drop everything than to know the age of each item.
    pub(crate) fn trim(&mut self) {
        if self.rows.len() > CACHED_ROW_COUNT_MAX {
            self.rows.clear();
        }
        if self.inboxes.len() > CACHED_ROW_COUNT_MAX {
            self.inboxes.clear();
        }
        self.answers.trim(CACHED_ROW_COUNT_MAX);
        if self.ids.len() > CACHED_ROW_COUNT_MAX {
            self.ids.clear();
            self.targets.clear();
        }
    }

    pub(crate) fn interned(&mut self, connection: &Connection) -> rusqlite::Result<&mut Interned> {
        if self.interned.is_none() {
            self.interned = Some(Interned::load(connection)?);
        }
        Ok(self.interned.as_mut().expect("it was just filled"))
    }

    pub(crate) fn session(
        &mut self,
        connection: &Connection,
        session: SessionId,
    ) -> rusqlite::Result<Option<&mut SessionState>> {
        Ok(match self.sessions.entry(session) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(place) => SessionState::read(connection, session)?.map(|found| place.insert(found)),
        })
    }

    pub(crate) fn next_execution_key(&mut self, connection: &Connection) -> rusqlite::Result<i64> {
        next(&mut self.execution_key_max, connection, sql::EXECUTION_KEY_MAX)
    }

    /// Returns the greatest key that was ever given.
    pub(crate) fn execution_key_max(&mut self, connection: &Connection) -> rusqlite::Result<i64> {
        max_of(&mut self.execution_key_max, connection, sql::EXECUTION_KEY_MAX)
    }

    pub(crate) fn next_journal_row(&mut self, connection: &Connection) -> Result<i64, Stop> {
        let current = match self.journal_row_max {
            Some(current) => current,
            None => sheaf::row_max(connection)?,
        };
        self.journal_row_max = Some(current + 1);
        Ok(current + 1)
    }

    /// Returns a new session number. SQLite's own counter would not do: it is in a table that a
    /// transaction step may write.
    pub(crate) fn next_session_id(&self, connection: &Connection) -> rusqlite::Result<i64> {
        next(&mut None, connection, sql::SESSION_ID_MAX)
    }
}

/// Returns a number that is never reused, even after the row with the greatest one was pruned.
/// Otherwise, a stale key could write another execution, and a stale session could act as another.
fn next(max: &mut Option<i64>, connection: &Connection, statement: &str) -> rusqlite::Result<i64> {
    let current = max_of(max, connection, statement)?;
    *max = Some(current + 1);
    Ok(current + 1)
}

fn max_of(max: &mut Option<i64>, connection: &Connection, statement: &str) -> rusqlite::Result<i64> {
    let current = match *max {
        Some(current) => current,
        None => connection.prepare_cached(statement)?.query_row([], |row| row.get(0))?,
    };
    *max = Some(current);
    Ok(current)
}

/// A map from the number of an execution.
pub(crate) type ByKey<T> = HashMap<i64, T, KeyHasher>;
/// A map from a session.
pub(crate) type BySession<T> = HashMap<SessionId, T, KeyHasher>;

/// Journal rows of one execution. Most executions are short, and their few rows take no allocation.
pub(crate) type Newest = SmallVec<[i64; 4]>;

/// An execution that was written recently.
#[derive(Debug)]
pub(crate) struct CachedRow {
    pub(crate) state: LeaseState,
    /// Its newest journal rows, oldest first; as far back as known, at most to the last skip row.
    pub(crate) rows: Newest,
    /// Whether this writer has written it and remembered it since. Only then is a tail worth
    /// while: a writer that reads the row again has to look for it.
    pub(crate) is_warm: bool,
}

impl CachedRow {
    /// Notes that the run's journal ends with this row.
    pub(crate) fn append(&mut self, row: i64, entry_count: u64, row_count: u64) {
        self.rows.push(row);
        self.state.anchor.head = row;
        self.state.entry_count = entry_count;
        self.state.cold.row_count = row_count;
    }
}

/// The known facts about an inbox.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) unread_count: usize,
    /// An upper bound of the numbers of unread messages.
    pub(crate) newest: i64,
    /// The newest of the unread messages.
    pub(crate) newest_id: Option<MessageId>,
}
