//! Whether the database still is what this crate writes, and what is done about it.

use std::collections::HashMap;

use abide_core::{Address, By, ExecutionId, Timestamp, check_reason};
use abide_store::{Error, Result};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::apply::{
    DiscardWork, Discarded, DropMessagesWork, Lead, MessagesDropped, RepairNamesWork, RepairTagsWork,
    RepairWork, wrong_tags,
};
use crate::error::{Stop, complaint, reading};
use crate::examine::{Counts, Verdict, examine};
use crate::indexes::RebuildWork;
use crate::interned::Interned;
use crate::reader::in_transaction;
use crate::rows::count;
use crate::store::SqliteStore;
use crate::view::{View, worker};
use crate::wreck::Raw;
use crate::writer::Manner;
use crate::{schema, sql};

/// The most problems that are told.
const PROBLEM_COUNT_MAX: usize = 100;
/// How many executions are looked at between two questions for more.
const EXECUTION_COUNT_AT_ONCE: i64 = 256;

/// How many damaged executions share one pass over the journal.
const LEAD_COUNT_MAX: usize = 10_000;
/// How many of them are repaired in one transaction.
const LEAD_COUNT_AT_ONCE: usize = 64;

/// What a look at everything found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// How many executions there are.
    pub execution_count: u64,
    /// How many of them are abide's own, which no list shows.
    pub own_count: u64,
    /// How many journal entries belong to them.
    pub entry_count: u64,
    /// What is wrong, one sentence each; at most 100.
    pub problems: Vec<String>,
}

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// What was rebuilt, one sentence each.
    pub rebuilt: Vec<String>,
    /// What could not be, and why.
    pub left: Vec<String>,
}

impl Verification {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn add(&mut self, problem: String) {
        if self.problems.len() < PROBLEM_COUNT_MAX {
            self.problems.push(problem);
        }
    }
}

impl SqliteStore {
    /// Looks at everything: SQLite's own integrity check, every chain of entries from its head to its beginning, every
    /// state against what its journal adds up to, every lease, and rows that belong to nothing. Works on the calling thread,
    /// in one read transaction; others go on meanwhile.
    pub fn verify(&self) -> Result<Verification> {
        self.view_on_this_thread("verify", |view| {
            let mut found = Verification::default();
            check_integrity(view.connection, &mut found)?;
            check_schema(view.connection, &mut found)?;
            let counts = check_executions(view.connection, (&mut found, view.shared.clock.now()))?;
            if let Some(counts) = counts {
                check_counts(view.connection, counts, &mut found)?;
            }
            check_the_rest(view.connection, &mut found)?;
            Ok(found)
        })
    }

    /// Puts back what is damaged and told elsewhere: names and routes that other rows repeat, every column and every state that can be derived from a
    /// sound journal, and what stands where nobody looks. Says what was put back, and what could not be.
    pub async fn repair(&self) -> Result<Repairs> {
        // The rest is found by way of the indexes.
        let mut repairs = self.repair_indexes().await?;
        let names = self.write(RepairNamesWork, Manner::Queued).await?;
        repairs.rebuilt.extend(names.rebuilt);
        repairs.left.extend(names.left);
        let mut next = Some(0);
        while let Some(after) = next {
            let found = self.view("repair", move |view| search(view, after)).await?;
            for leads in found.leads.chunks(LEAD_COUNT_AT_ONCE) {
                let work = RepairWork { leads: leads.to_vec(), searched_to: found.searched_to };
                let repaired = self.write(work, Manner::Queued).await?;
                repairs.rebuilt.extend(repaired.rebuilt);
                repairs.left.extend(repaired.left);
            }
            next = found.next;
        }
        loop {
            let wrong = self.view("repair", |view| wrong_tags(view.connection)).await?;
            if wrong.is_empty() {
                return Ok(repairs);
            }
            let repaired = self.write(RepairTagsWork(wrong), Manner::Queued).await?;
            repairs.rebuilt.extend(repaired.rebuilt);
        }
    }

    /// Makes the indexes anew if SQLite finds fault with the file.
    async fn repair_indexes(&self) -> Result<Repairs> {
        let integrity = |view: &View<'_>| {
            let mut found = Verification::default();
            check_integrity(view.connection, &mut found)?;
            Ok(found)
        };
        let mut repairs = Repairs::default();
        if self.view("repair", integrity).await?.is_sound() {
            return Ok(repairs);
        }
        let failed = self.write(RebuildWork, Manner::Queued).await?;
        match failed.is_empty() {
            true => repairs.rebuilt.push("the indexes were made anew".to_owned()),
            false => {
                let told = failed.into_iter().map(|error| format!("an index cannot be made anew: {error}"));
                repairs.left.extend(told);
            }
        }
        Ok(repairs)
    }

    /// Drops the damaged unread messages of an execution, which [`repair`](Self::repair) then puts where it belongs. They were acknowledged, and
    /// are lost: nothing is left of them. Whoever still has one can send it again, also under the same id.
    pub async fn drop_messages(&self, address: &Address, by: By) -> Result<MessagesDropped> {
        self.write(DropMessagesWork { address: address.clone(), by }, Manner::Queued).await
    }

    /// Ends an execution that is damaged and that [`repair`](Self::repair) cannot rebuild: it is cancelled by `by`, whoever waits for it is told,
    /// and its children are terminated. Its journal and its messages are deleted.
    pub async fn discard(&self, address: &Address, by: By, reason: String) -> Result<Discarded> {
        check_reason("reason", &reason).map_err(|invalid| Error::Refused(invalid.into()))?;
        self.write(DiscardWork { address: address.clone(), by, reason }, Manner::Queued).await
    }

    /// Reads with a connection of its own, without a reader's thread.
    pub(crate) fn view_on_this_thread<T>(
        &self,
        what: &'static str,
        work: impl FnOnce(&View<'_>) -> std::result::Result<T, Stop>,
    ) -> Result<T> {
        let Some(path) = &self.shared.path else { return self.view_of_writer(what, work) };
        let connection =
            schema::open_reader(path, &self.shared.options).map_err(|error| reading(what, &error))?;
        let view = View { connection: &connection, shared: &self.shared, memory: &Default::default() };
        in_transaction(what, &view, work)
    }
}

/// What is to be repaired.
struct Search {
    leads: Vec<Lead>,
    /// The last journal row that was looked at.
    searched_to: i64,
    /// Where to go on; nothing at the end.
    next: Option<i64>,
}

/// Looks for executions behind `after` that are damaged, and for the last journal row of each. No index leads from an execution to its rows: one
/// pass over the journal serves all that were found, and nobody who writes waits for it.
fn search(view: &View<'_>, after: i64) -> std::result::Result<Search, Stop> {
    let (connection, now) = (view.connection, view.shared.clock.now());
    let interned = Interned::load(connection)?;
    let mut last_rows = HashMap::new();
    let (mut last, mut is_done) = (after, false);
    while !is_done && last_rows.len() < LEAD_COUNT_MAX {
        let mut statement = connection.prepare_cached(sql::VERIFY_EXECUTIONS)?;
        let mut rows = statement.query([last, EXECUTION_COUNT_AT_ONCE])?;
        let mut seen = 0;
        while let Some(row) = rows.next()? {
            (seen, last) = (seen + 1, row.get(0)?);
            let examined = examine(connection, (&interned, now), (row, &mut Counts::default()))?;
            if examined != Verdict::Sound {
                last_rows.insert(last, None);
            }
        }
        is_done = seen < EXECUTION_COUNT_AT_ONCE;
    }
    let mut searched_to = 0;
    if !last_rows.is_empty() {
        let mut statement = connection.prepare_cached(sql::REPAIR_ROWS)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            searched_to = row.get(0)?;
            // One that is damaged itself may name nobody.
            if let Some(found) = row.get(1).ok().and_then(|key: i64| last_rows.get_mut(&key)) {
                *found = Some(searched_to);
            }
        }
    }
    let mut leads: Vec<Lead> = last_rows.into_iter().map(|(key, last_row)| Lead { key, last_row }).collect();
    leads.sort_unstable_by_key(|lead| lead.key);
    Ok(Search { leads, searched_to, next: (!is_done).then_some(last) })
}

fn check_integrity(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
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

/// Whether an id is one of abide's own.
fn is_own(id: &ValueRef<'_>) -> bool {
    id.as_bytes().is_ok_and(|id| id.starts_with(ExecutionId::OWN_PREFIX.as_bytes()))
}

/// Looks at every execution. What belongs to them can be counted only if all of them can be read.
fn check_executions(
    connection: &Connection,
    (found, now): (&mut Verification, Timestamp),
) -> std::result::Result<Option<Counts>, Stop> {
    let interned = Interned::load(connection)?;
    let (mut counts, mut is_counted) = (Counts::default(), true);
    let mut last = 0;
    loop {
        let mut statement = connection.prepare_cached(sql::VERIFY_EXECUTIONS)?;
        let mut rows = statement.query([last, EXECUTION_COUNT_AT_ONCE])?;
        let mut seen = 0;
        while let Some(row) = rows.next()? {
            seen += 1;
            last = row.get(0)?;
            found.execution_count += 1;
            found.own_count += u64::from(is_own(&row.get_ref(2)?));
            let whose = whose(last, &row.get_ref(2)?);
            let examined = examine(connection, (&interned, now), (row, &mut counts));
            let problem = match examined {
                Ok(Verdict::Sound) => continue,
                Ok(Verdict::Newer(problem) | Verdict::Damaged(problem)) => problem,
                Err(Stop::Sql(error)) => complaint(&error),
                Err(Stop::Broken(failure)) => failure.complaint,
                Err(Stop::Refused(error)) => error.to_string(),
            };
            is_counted = false;
            found.add(format!("{whose}: {problem}"));
        }
        if seen < EXECUTION_COUNT_AT_ONCE {
            found.entry_count = counts.entry_count;
            return Ok(is_counted.then_some(counts));
        }
    }
}

/// An execution by its id, or by its number when that is no text.
fn whose(key: i64, id: &ValueRef<'_>) -> String {
    match id.as_str() {
        Ok(id) => format!("execution {id:?}"),
        Err(_) => format!("execution number {key}"),
    }
}

/// Tables and indexes as they were made, and the names that rows refer to.
fn check_schema(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
    let objects = |connection: &Connection| -> rusqlite::Result<Vec<(String, Option<String>)>> {
        let mut statement = connection.prepare(sql::VERIFY_SCHEMA)?;
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    let fresh = Connection::open_in_memory()?;
    fresh.execute_batch(sql::META_CREATE)?;
    sql::MIGRATIONS.iter().try_for_each(|step| fresh.execute_batch(step))?;
    if objects(connection)? != objects(&fresh)? {
        found.add("the tables are not those that this program makes".to_owned());
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

/// Whether there is anything that belongs to no execution that could be read. Where one could not, it explains what is over.
fn check_counts(
    connection: &Connection,
    counts: Counts,
    found: &mut Verification,
) -> std::result::Result<(), Stop> {
    let tags: i64 = connection.query_row(sql::VERIFY_TAG_COUNT, [], |row| row.get(0))?;
    if count(tags) != counts.tag_count {
        found.add(format!("there are {tags} tags, the executions have {}", counts.tag_count));
    }
    let rows: i64 = connection.query_row(sql::VERIFY_JOURNAL_COUNT, [], |row| row.get(0))?;
    if count(rows) != counts.row_count {
        found.add(format!("the journal has {rows} rows, the executions have {}", counts.row_count));
    }
    Ok(())
}

fn check_the_rest(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
    let orphans = [
        (sql::VERIFY_ORPHAN_JOURNAL, "journal row"),
        (sql::VERIFY_ORPHAN_RUNS, "an earlier run of execution"),
        (sql::VERIFY_ORPHAN_INBOX, "the inbox of execution"),
        (sql::VERIFY_ORPHAN_TAGS, "the tags of execution"),
    ];
    for (text, what) in orphans {
        let mut statement = connection.prepare(text)?;
        for row in statement.query_map([], |row| Raw::read(row, 0))? {
            found.add(format!("{what} {} belongs to nothing", row?));
        }
    }
    let mut statement = connection.prepare(sql::VERIFY_SESSIONS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if let Err(error) = worker(row) {
            found.add(format!("session {}: {}", row.get::<_, i64>(0)?, complaint(&error)));
        }
    }
    Ok(())
}
