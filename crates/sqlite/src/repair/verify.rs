//! `verify`: whether the database is still as this crate writes it.

use std::ops::ControlFlow;

use abide_core::{ExecutionId, Timestamp};
use abide_store::{Result, Verification};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::examine::{Counts, Verdict, examine};
use super::lost_messages::lost_messages;
use crate::error::{Stop, complaint, opening};
use crate::gaps::walk;
use crate::interned::Interned;
use crate::reader::in_transaction;
use crate::rows::{Raw, unsigned};
use crate::store::SqliteStore;
use crate::view::View;
use crate::worker_view::worker;
use crate::{refusals, schema, sheaf, sql};

impl SqliteStore {
    /// Verifies everything: SQLite's own integrity check, every chain of entries from its head to
    /// its beginning, every state against the fold of its journal, every lease, and rows that
    /// belong to nothing. Works on the calling thread, in one read transaction, and blocks nobody.
    pub fn verify(&self) -> Result<Verification> {
        self.view_on_this_thread("verify", |view| {
            let (mut found, connection) = (Verification::default(), view.connection);
            let checked = check_integrity(connection, &mut found);
            told(&mut found, "the file", checked)?;
            let checked = check_schema(connection, &mut found);
            told(&mut found, "the names and the routes", checked)?;
            let checked = check_executions(connection, (&mut found, view.shared.clock.now()));
            if let Some(counts) = told(&mut found, "the executions", checked)?.flatten() {
                let checked = check_counts(connection, counts, &mut found);
                told(&mut found, "the tags and the journal", checked)?;
            }
            let checked = check_lost_messages(connection, &mut found);
            told(&mut found, "the executions", checked)?;
            check_the_rest(connection, &mut found)?;
            Ok(found)
        })
    }

    /// Reads with a connection of its own, without a reader's thread.
    pub(crate) fn view_on_this_thread<T>(
        &self,
        what: &'static str,
        work: impl FnOnce(&View<'_>) -> std::result::Result<T, Stop>,
    ) -> Result<T> {
        let Some(path) = &self.shared.path else { return self.view_of_writer(what, work) };
        self.shared.check_name().map_err(|failure| failure.error(what))?;
        let connection =
            schema::open_reader(path, &self.shared.options).map_err(|error| opening(what, &error))?;
        let view = View { connection: &connection, shared: &self.shared, memory: &Default::default() };
        in_transaction(what, &view, work)
    }
}

/// Returns the finding about a part of the store. An unreadable part is reported, and does not hide
/// problems of the others.
pub(super) fn told<T>(
    found: &mut Verification,
    part: &str,
    looked: std::result::Result<T, Stop>,
) -> std::result::Result<Option<T>, Stop> {
    match looked {
        Ok(looked) => Ok(Some(looked)),
        Err(stop) if stop.is_unread() => {
            found.add(format!("{part} cannot be read: {}", stop.complaint()));
            Ok(None)
        }
        Err(stop) => Err(stop),
    }
}

pub(super) fn check_integrity(
    connection: &Connection,
    found: &mut Verification,
) -> std::result::Result<(), Stop> {
    let mut statement = connection.prepare(sql::INTEGRITY)?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
    for line in lines {
        match line {
            Ok(line) if line == "ok" => {}
            Ok(line) => found.add(format!("SQLite: {line}")),
            Err(error) => found.add(format!("SQLite: {error}")),
        }
    }
    Ok(())
}

/// Whether an id belongs to one of abide's own executions.
fn is_own(id: &ValueRef<'_>) -> bool {
    id.as_bytes().is_ok_and(|id| id.starts_with(ExecutionId::OWN_PREFIX.as_bytes()))
}

/// Examines every execution. Their parts can be counted only if all executions can be read.
fn check_executions(
    connection: &Connection,
    (found, now): (&mut Verification, Timestamp),
) -> std::result::Result<Option<Counts>, Stop> {
    let interned = Interned::load(connection)?;
    let (mut counts, mut is_counted) = (Counts::default(), true);
    let gaps = walk(connection, (sql::EXECUTION_ROWS_AFTER, 0), |row| {
        found.execution_count += 1;
        found.own_count += u64::from(is_own(&row.get_ref(2)?));
        let whose = whose(row.get(0)?, &row.get_ref(2)?);
        let problem = match examine(connection, (&interned, now), (row, &mut counts)) {
            Ok(Verdict::Sound) => return Ok(ControlFlow::Continue(())),
            Ok(Verdict::Newer(problem) | Verdict::Damaged(problem)) => problem,
            Err(stop) => stop.complaint(),
        };
        is_counted = false;
        found.add(format!("{whose}: {problem}"));
        Ok(ControlFlow::Continue(()))
    })?;
    gaps.iter().for_each(|gap| found.add(format!("execution number {gap}")));
    found.entry_count = counts.entry_count;
    Ok((is_counted && gaps.is_empty()).then_some(counts))
}

/// Reports answers and orders that were lost on the way.
fn check_lost_messages(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
    let interned = Interned::load(connection)?;
    walk(connection, (sql::EXECUTION_ROWS_AFTER, 0), |row| {
        for lost in lost_messages(connection, &interned, row)? {
            found.add(format!("{}: {}", whose(row.get(0)?, &row.get_ref(2)?), lost.problem));
        }
        Ok(ControlFlow::Continue(()))
    })
    .map(drop)
}

/// Names an execution by its id, or by its number if the id is not text.
pub(super) fn whose(key: i64, id: &ValueRef<'_>) -> String {
    match id.as_str() {
        Ok(id) => format!("execution {id:?}"),
        Err(_) => format!("execution number {key}"),
    }
}

pub(super) const FOREIGN: &str = "the tables are not those that this program makes";

/// Whether tables and indexes are as they were made.
pub(super) fn is_schema_known(connection: &Connection) -> std::result::Result<bool, Stop> {
    let objects = |connection: &Connection| -> rusqlite::Result<Vec<(Raw, Raw)>> {
        let mut statement = connection.prepare(sql::VERIFY_SCHEMA)?;
        statement.query_map([], |row| Ok((Raw::read(row, 0)?, Raw::read(row, 1)?)))?.collect()
    };
    let fresh = Connection::open_in_memory()?;
    fresh.execute_batch(sql::META_CREATE)?;
    sql::MIGRATIONS.iter().try_for_each(|step| fresh.execute_batch(step))?;
    Ok(objects(connection)? == objects(&fresh)?)
}

/// Checks the tables and indexes, and the names that rows refer to.
fn check_schema(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
    if !is_schema_known(connection)? {
        found.add(FOREIGN.to_owned());
    }
    if !schema::is_current(connection)? {
        found.add("the schema version is damaged".to_owned());
    }
    let interned = Interned::load(connection)?;
    for id in &interned.damaged_names {
        found.add(format!("the name of namespace {id} is damaged"));
    }
    for id in &interned.damaged_routes {
        found.add(format!("route {id} is damaged"));
    }
    Ok(())
}

/// Reports rows that belong to no readable execution. An unreadable execution explains a surplus.
fn check_counts(
    connection: &Connection,
    counts: Counts,
    found: &mut Verification,
) -> std::result::Result<(), Stop> {
    let tags: i64 = connection.query_row(sql::VERIFY_TAG_COUNT, [], |row| row.get(0))?;
    if unsigned(tags) != counts.tag_count {
        found.add(format!("there are {tags} tags, the executions have {}", counts.tag_count));
    }
    let mut rows = 0;
    sheaf::walk(connection, |_| {
        rows += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    if rows != counts.row_count {
        found.add(format!("the journal has {rows} rows, the executions have {}", counts.row_count));
    }
    Ok(())
}

fn check_the_rest(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
    let orphans = [
        (sql::VERIFY_ORPHAN_RUNS, "an earlier run of execution"),
        (sql::VERIFY_ORPHAN_INBOX, "the inbox of execution"),
        (sql::VERIFY_ORPHAN_TAGS, "the tags of execution"),
    ];
    for (text, what) in orphans {
        let checked = check_orphans(connection, (text, what), found);
        told(found, what, checked)?;
    }
    let checked = check_journal(connection, found);
    told(found, "journal row", checked)?;
    let checked = check_refusals(connection, found);
    told(found, "the refusals", checked)?;
    let checked = check_sessions(connection, found);
    told(found, "the sessions", checked).map(drop)
}

/// Reports refusals that cannot be read. What stands in the intake table is checked when it is
/// taken: whatever it is, nobody but its author can say that it is wrong.
fn check_refusals(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
    let mut statement = connection.prepare(sql::REFUSALS_AFTER)?;
    let mut rows = statement.query([i64::MIN, -1])?;
    while let Some(row) = rows.next()? {
        match refusals::read(row) {
            Ok(_) => {}
            Err(stop) if stop.damage().is_some() => found.add(stop.complaint()),
            Err(stop) => return Err(stop),
        }
    }
    Ok(())
}

fn check_orphans(
    connection: &Connection,
    (text, what): (&'static str, &str),
    found: &mut Verification,
) -> std::result::Result<(), Stop> {
    let mut statement = connection.prepare(text)?;
    for row in statement.query_map([], |row| Raw::read(row, 0))? {
        found.add(format!("{what} {} belongs to nothing", row?));
    }
    Ok(())
}

/// Reports journal rows of no execution, and bytes behind a row that are none.
fn check_journal(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
    const ORPHAN_COUNT_MAX: usize = 10;
    let mut exists = connection.prepare_cached(sql::EXECUTION_EXISTS)?;
    let mut left = ORPHAN_COUNT_MAX;
    let gaps = sheaf::walk(connection, |row| {
        if row.is_damaged_behind {
            found.add(format!("what is behind journal row {} cannot be read", row.number));
        }
        let is_owned = row.execution.map_or(Ok(false), |key| exists.exists([key]))?;
        if !is_owned && left > 0 {
            left -= 1;
            found.add(format!("journal row {} belongs to nothing", row.number));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    gaps.iter().for_each(|gap| found.add(format!("journal row {gap}")));
    Ok(())
}

fn check_sessions(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
    let mut statement = connection.prepare(sql::VERIFY_SESSIONS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if let Err(error) = worker(row) {
            found.add(format!("session {}: {}", row.get::<_, i64>(0)?, complaint(&error)));
        }
    }
    Ok(())
}
