//! Whether the database still is what this crate writes, and what is done about it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use abide_core::{Address, By, ExecutionId, Timestamp, check_reason};
use abide_store::{Error, Result};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::apply::{
    DiscardWork, Discarded, DropMessagesWork, Lead, MessagesDropped, RepairNamesWork, RepairWork, Repaired,
    ResendWork, Salvage,
};
use crate::error::{Stop, complaint, reading};
use crate::examine::{Counts, Verdict, examine};
use crate::gaps::walk;
use crate::indexes::RebuildWork;
use crate::interned::Interned;
use crate::order::{OrderWork, TABLES};
use crate::reader::in_transaction;
use crate::rows::{Raw, unsigned};
use crate::store::SqliteStore;
use crate::view::{View, worker};
use crate::writer::Manner;
use crate::{lost_messages, schema, sql};

/// The most problems that are told.
const PROBLEM_COUNT_MAX: usize = 100;
/// How many damaged executions share one pass over the journal.
const LEAD_COUNT_MAX: usize = 10_000;
/// How many of them are repaired in one transaction.
const LEAD_COUNT_AT_ONCE: usize = 64;
/// How large their journals may be together, but for one that is larger by itself: whoever else writes waits until all of them were read.
const LEAD_BYTES_AT_ONCE: u64 = 1 << 18;

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

impl Repairs {
    fn add(&mut self, repaired: Repaired) {
        self.rebuilt.extend(repaired.rebuilt);
        self.left.extend(repaired.left);
    }
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

    /// What a look at a part of the store gave. A part that SQLite cannot read is told, and hides nothing of the others.
    pub(crate) fn told<T>(
        &mut self,
        part: &str,
        looked: std::result::Result<T, Stop>,
    ) -> std::result::Result<Option<T>, Stop> {
        match looked {
            Ok(found) => Ok(Some(found)),
            Err(stop) if stop.is_unread() => {
                self.add(format!("{part} cannot be read: {}", stop.complaint()));
                Ok(None)
            }
            Err(stop) => Err(stop),
        }
    }
}

impl SqliteStore {
    /// Looks at everything: SQLite's own integrity check, every chain of entries from its head to its beginning, every
    /// state against what its journal adds up to, every lease, and rows that belong to nothing. Works on the calling thread,
    /// in one read transaction; others go on meanwhile.
    pub fn verify(&self) -> Result<Verification> {
        self.view_on_this_thread("verify", |view| {
            let (mut found, connection) = (Verification::default(), view.connection);
            let checked = check_integrity(connection, &mut found);
            found.told("the file", checked)?;
            let checked = check_schema(connection, &mut found);
            found.told("the names and the routes", checked)?;
            let checked = check_executions(connection, (&mut found, view.shared.clock.now()));
            if let Some(counts) = found.told("the executions", checked)?.flatten() {
                let checked = check_counts(connection, counts, &mut found);
                found.told("the tags and the journal", checked)?;
            }
            let checked = check_lost_messages(connection, &mut found);
            found.told("the executions", checked)?;
            check_the_rest(connection, &mut found)?;
            Ok(found)
        })
    }

    /// Puts back what is damaged and told elsewhere: names and routes that other rows repeat, every column and every state that can be derived from a
    /// sound journal, and what stands where nobody looks. Says what was put back, and what could not be.
    pub async fn repair(&self) -> Result<Repairs> {
        match self.check_tables("repair").await {
            Err(Error::Corrupt { what }) => return Ok(Repairs { left: vec![what], ..Repairs::default() }),
            checked => checked?,
        }
        // The rest is found by way of the indexes, and by the order of the tables.
        let mut repairs = self.repair_indexes().await?;
        self.repair_order(&mut repairs).await?;
        self.write_tags_anew(&mut repairs).await?;
        for (what, work) in [("names", RepairNamesWork::Names), ("routes", RepairNamesWork::Routes)] {
            let done = self.write(work, Manner::Queued).await;
            repairs.add(unless_unread(done, || format!("the {what}"))?);
        }
        let mut next = Some(0);
        while let Some(after) = next {
            let found = self.view("repair", move |view| search(view, after)).await?;
            for leads in portions(&found.leads) {
                self.repair_leads((leads, found.searched_to), &mut repairs).await?;
            }
            repairs.left.extend(found.left);
            next = found.next;
        }
        self.repair_tags(&mut repairs).await?;
        // Last: what was damaged can be read by now.
        self.resend_lost_messages(&mut repairs).await?;
        Ok(repairs)
    }

    /// Refuses tables that are not those of this program: nobody knows what a statement would do there.
    async fn check_tables(&self, what: &'static str) -> Result<()> {
        match self.view(what, |view| is_schema_known(view.connection)).await? {
            true => Ok(()),
            false => Err(Error::Corrupt { what: format!("{FOREIGN}, and nothing was changed") }),
        }
    }

    /// Sends answers and orders again that were lost on the way.
    async fn resend_lost_messages(&self, repairs: &mut Repairs) -> Result<()> {
        let mut next = Some(0);
        while let Some(after) = next {
            let look = move |view: &View<'_>| lost_messages::search(view.connection, (after, LEAD_COUNT_MAX));
            let (keys, rest) = self.view("repair", look).await?;
            for key in keys {
                let done = self.write(ResendWork(key), Manner::Queued).await;
                repairs.add(unless_unread(done, || format!("execution number {key}"))?);
            }
            next = rest;
        }
        Ok(())
    }

    /// Repairs some executions, one by one where SQLite cannot read one of them.
    async fn repair_leads(&self, (leads, searched_to): (&[Lead], i64), repairs: &mut Repairs) -> Result<()> {
        let work = |leads: &[Lead]| RepairWork { leads: leads.to_vec(), searched_to };
        match self.write(work(leads), Manner::Queued).await {
            Err(Error::Corrupt { .. }) => {}
            done => {
                repairs.add(done?);
                return Ok(());
            }
        }
        for lead in leads {
            let done = self.write(work(&[*lead]), Manner::Queued).await;
            repairs.add(unless_unread(done, || format!("execution number {}", lead.key))?);
        }
        Ok(())
    }

    /// Puts the tables in order whose rows are not found by their keys.
    async fn repair_order(&self, repairs: &mut Repairs) -> Result<()> {
        let look = |view: &View<'_>| {
            let (mut disordered, mut found) = (Vec::new(), Verification::default());
            for table in TABLES {
                let looked = table.is_in_order(view.connection);
                // One that cannot be read to its end may still be written anew as far as that goes; SQLite says whether.
                if found.told(table.name, looked)? == Some(false) {
                    disordered.push(table);
                }
            }
            Ok((disordered, found.problems))
        };
        let (disordered, unread) = self.view("repair", look).await?;
        repairs.left.extend(unread);
        for table in disordered {
            match self.write(OrderWork(table), Manner::Queued).await {
                Ok(()) => repairs.rebuilt.push(format!("{} were put in order", table.name)),
                Err(Error::Corrupt { what }) => {
                    repairs.left.push(format!("{} cannot be put in order: {what}", table.name));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
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
        for statement in sql::REINDEX {
            match self.write(RebuildWork(statement), Manner::Queued).await {
                Ok(()) => {}
                Err(Error::Corrupt { what }) => {
                    repairs.left.push(format!("an index cannot be made anew: {what}"));
                }
                Err(error) => return Err(error),
            }
        }
        if repairs.left.is_empty() {
            repairs.rebuilt.push("the indexes were made anew".to_owned());
        }
        Ok(repairs)
    }

    /// Drops the damaged unread messages of an execution, which [`repair`](Self::repair) then puts where it belongs. They were acknowledged, and
    /// are lost: nothing is left of them. Whoever still has one can send it again, also under the same id.
    pub async fn drop_messages(&self, address: &Address, by: By) -> Result<MessagesDropped> {
        self.check_tables("drop messages").await?;
        let work = || DropMessagesWork { address: address.clone(), by: by.clone() };
        let done = self.write(work(), Manner::Queued).await;
        let Err(Error::Corrupt { .. }) = done else { return done };
        // One that stands out of order is not where an index says.
        let mut repairs = self.repair_indexes().await?;
        self.repair_order(&mut repairs).await?;
        self.write(work(), Manner::Queued).await
    }

    /// Ends an execution that is damaged and that [`repair`](Self::repair) cannot rebuild: it is cancelled by `by`, whoever waits for it is told,
    /// and its children are terminated. Its journal and its messages are deleted.
    pub async fn discard(&self, address: &Address, by: By, reason: String) -> Result<Discarded> {
        check_reason("reason", &reason).map_err(|invalid| Error::Refused(invalid.into()))?;
        self.check_tables("discard").await?;
        let work = |salvage| DiscardWork {
            address: address.clone(),
            by: by.clone(),
            reason: reason.clone(),
            salvage,
        };
        let done = self.write(work(None), Manner::Queued).await;
        let Err(Error::Corrupt { .. }) = done else { return done };
        let target = address.clone();
        let salvage = self.view("discard", move |view| Salvage::of(view.connection, &target)).await?;
        match salvage {
            Some(salvage) => self.write(work(Some(salvage)), Manner::Queued).await,
            None => done,
        }
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

/// What was repaired, or that it could not be because SQLite cannot read it.
pub(crate) fn unless_unread(done: Result<Repaired>, what: impl FnOnce() -> String) -> Result<Repaired> {
    match done {
        Err(Error::Corrupt { what: complaint }) => {
            let left = vec![format!("{} cannot be repaired: {complaint}", what())];
            Ok(Repaired { left, ..Repaired::default() })
        }
        done => done,
    }
}

/// What is to be repaired.
struct Search {
    leads: Vec<Lead>,
    /// What cannot be read.
    left: Vec<String>,
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
    let (mut leads, mut left) = (BTreeMap::new(), Vec::new());
    let mut next = None;
    let gaps = walk(connection, (sql::EXECUTION_ROWS_AFTER, after), |row| {
        let key: i64 = row.get(0)?;
        match examine(connection, (&interned, now), (row, &mut Counts::default())) {
            Ok(Verdict::Sound) => {}
            Ok(Verdict::Newer(_) | Verdict::Damaged(_)) => drop(leads.insert(key, Lead::new(key))),
            Err(stop) if stop.is_unread() => {
                left.push(format!("{} cannot be read: {}", whose(key, &row.get_ref(2)?), stop.complaint()));
            }
            Err(stop) => return Err(stop),
        }
        next = (leads.len() >= LEAD_COUNT_MAX).then_some(key);
        Ok(if next.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    left.extend(gaps.iter().map(|gap| format!("execution number {gap}")));
    let searched_to = find_last_rows(connection, &mut leads)?;
    Ok(Search { leads: leads.into_values().collect(), left, searched_to, next })
}

/// Leads that may share a transaction.
fn portions(leads: &[Lead]) -> impl Iterator<Item = &[Lead]> {
    let mut byte_count = 0_u64;
    let mut count = 0;
    leads.chunk_by(move |before, after| {
        (byte_count, count) = (byte_count.saturating_add(before.byte_count), count + 1);
        let fits =
            count < LEAD_COUNT_AT_ONCE && byte_count.saturating_add(after.byte_count) <= LEAD_BYTES_AT_ONCE;
        if !fits {
            (byte_count, count) = (0, 0);
        }
        fits
    })
}

/// Finds the journal of each of these executions, as far as a lead tells of it; gives the last row of all. Behind rows that cannot be read nobody knows which was the last before them.
fn find_last_rows(
    connection: &Connection,
    leads: &mut BTreeMap<i64, Lead>,
) -> std::result::Result<i64, Stop> {
    let mut searched_to = 0;
    if leads.is_empty() {
        return Ok(searched_to);
    }
    let gaps = walk(connection, (sql::REPAIR_ROWS, 0), |row| {
        searched_to = row.get(0)?;
        // One that is damaged itself may name nobody.
        if let Some(lead) = row.get(1).ok().and_then(|key: i64| leads.get_mut(&key)) {
            lead.last_row = Some(searched_to);
            lead.byte_count = lead.byte_count.saturating_add(row.get(2).map_or(0, unsigned));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if let Some(gap) = gaps.last() {
        leads.values_mut().for_each(|lead| lead.last_row = lead.last_row.filter(|last| *last > gap.first));
    }
    Ok(searched_to)
}

pub(crate) fn check_integrity(
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

/// Looks for answers and orders that were lost on the way.
fn check_lost_messages(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
    let interned = Interned::load(connection)?;
    walk(connection, (sql::EXECUTION_ROWS_AFTER, 0), |row| {
        for lost in lost_messages::lost_messages(connection, &interned, row)? {
            found.add(format!("{}: {}", whose(row.get(0)?, &row.get_ref(2)?), lost.problem));
        }
        Ok(ControlFlow::Continue(()))
    })
    .map(drop)
}

/// An execution by its id, or by its number when that is no text.
fn whose(key: i64, id: &ValueRef<'_>) -> String {
    match id.as_str() {
        Ok(id) => format!("execution {id:?}"),
        Err(_) => format!("execution number {key}"),
    }
}

const FOREIGN: &str = "the tables are not those that this program makes";

/// Whether tables and indexes are as they were made.
fn is_schema_known(connection: &Connection) -> std::result::Result<bool, Stop> {
    let objects = |connection: &Connection| -> rusqlite::Result<Vec<(Raw, Raw)>> {
        let mut statement = connection.prepare(sql::VERIFY_SCHEMA)?;
        statement.query_map([], |row| Ok((Raw::read(row, 0)?, Raw::read(row, 1)?)))?.collect()
    };
    let fresh = Connection::open_in_memory()?;
    fresh.execute_batch(sql::META_CREATE)?;
    sql::MIGRATIONS.iter().try_for_each(|step| fresh.execute_batch(step))?;
    Ok(objects(connection)? == objects(&fresh)?)
}

/// Tables and indexes as they were made, and the names that rows refer to.
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

/// Whether there is anything that belongs to no execution that could be read. Where one could not, it explains what is over.
fn check_counts(
    connection: &Connection,
    counts: Counts,
    found: &mut Verification,
) -> std::result::Result<(), Stop> {
    let tags: i64 = connection.query_row(sql::VERIFY_TAG_COUNT, [], |row| row.get(0))?;
    if unsigned(tags) != counts.tag_count {
        found.add(format!("there are {tags} tags, the executions have {}", counts.tag_count));
    }
    let rows: i64 = connection.query_row(sql::VERIFY_JOURNAL_COUNT, [], |row| row.get(0))?;
    if unsigned(rows) != counts.row_count {
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
        let checked = check_orphans(connection, (text, what), found);
        found.told(what, checked)?;
    }
    let checked = check_sessions(connection, found);
    found.told("the sessions", checked).map(drop)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sizes: &[u64], expected: &[usize]) {
        let leads: Vec<Lead> =
            sizes.iter().map(|byte_count| Lead { byte_count: *byte_count, ..Lead::new(1) }).collect();
        assert_eq!(portions(&leads).map(<[Lead]>::len).collect::<Vec<_>>(), expected, "{sizes:?}");
    }

    #[test]
    fn repairs_that_share_a_transaction_are_few_and_small_together() {
        const HALF: u64 = LEAD_BYTES_AT_ONCE / 2;
        check(&[], &[]);
        check(&[u64::MAX], &[1]);
        check(&[HALF, HALF, 1, HALF, HALF], &[2, 2, 1]);
        check(&[1, u64::MAX, 1, 1], &[1, 1, 2]);
        check(&[0; 2 * LEAD_COUNT_AT_ONCE + 1], &[LEAD_COUNT_AT_ONCE, LEAD_COUNT_AT_ONCE, 1]);
    }
}
