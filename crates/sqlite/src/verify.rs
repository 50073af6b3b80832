//! Whether the database still is what this crate writes.

use std::collections::HashSet;

use abide_core::{
    Address, By, Entry, Execution, ExecutionId, Message, Route, Status, Summary, Timestamp, Version, care,
    check_reason,
};
use abide_store::{Error, Record, Result};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::apply::{
    DiscardWork, Discarded, RepairNamesWork, RepairWork, check_inbox, first_start, is_parent_run, orders,
};
use crate::error::{Stop, complaint, reading};
use crate::interned::Interned;
use crate::journal::{self, Chain, Found, SKIP_DISTANCE};
use crate::place::{Place, Queue};
use crate::reader::in_transaction;
use crate::rows::{count, status, timestamp_maybe};
use crate::sheet::{Base, Cold};
use crate::store::SqliteStore;
use crate::view::{View, address, run_chain, worker};
use crate::writer::Manner;
use crate::{schema, sql};

/// The most problems that are told.
const PROBLEM_COUNT_MAX: usize = 100;
/// How many executions are looked at between two questions for more.
const EXECUTION_COUNT_AT_ONCE: i64 = 256;

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
    /// How many journal rows hold the entries.
    row_count: u64,
    /// How many tags the executions have.
    tag_count: u64,
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

    fn count(&mut self, chain: &Chain) {
        self.entry_count += chain.entry_count;
        self.row_count += chain.row_count;
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
            check_executions(view.connection, (&mut found, view.shared.clock.now()))?;
            check_the_rest(view.connection, &mut found)?;
            Ok(found)
        })
    }

    /// Puts back damaged names and routes that other rows repeat, and rebuilds the states that cannot be read and that fold from a sound journal; says what was rebuilt, and what could not be.
    pub async fn repair(&self) -> Result<Repairs> {
        let names = self.write(RepairNamesWork, Manner::Queued).await?;
        let mut repairs = Repairs { rebuilt: names.rebuilt, left: names.left };
        let mut next = Some(0);
        while let Some(after) = next {
            let repaired = self.write(RepairWork { after }, Manner::Queued).await?;
            repairs.rebuilt.extend(repaired.rebuilt);
            repairs.left.extend(repaired.left);
            next = repaired.next;
        }
        Ok(repairs)
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

/// The row of an execution, as far as it can be wrong.
struct Suspect {
    chain: Chain,
    namespace: i64,
    id: String,
    parent: Option<i64>,
    parent_run: Option<i64>,
    version: Version,
    place: Place,
    queue: Queue,
    status: Status,
    care_at: Option<Timestamp>,
    cold: Cold,
    summary: Summary,
    execution: Execution,
}

impl Suspect {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let base = Base::read(row)?;
        let sheet = base.sheet()?;
        let execution = sheet.execution()?;
        Ok(Self {
            chain: Chain::of(&base, &sheet.cold, &execution),
            namespace: base.namespace,
            id: base.id.to_owned(),
            parent: base.parent,
            parent_run: row.get(14)?,
            version: base.anchor.version,
            place: Place::read(row, 9)?,
            queue: base.queue,
            status: status(row, 12)?,
            care_at: timestamp_maybe(row, 13)?,
            cold: sheet.cold,
            summary: sheet.summary()?,
            execution,
        })
    }
}

/// Whether an id is one of abide's own.
fn is_own(id: &ValueRef<'_>) -> bool {
    id.as_bytes().is_ok_and(|id| id.starts_with(ExecutionId::OWN_PREFIX.as_bytes()))
}

fn check_executions(
    connection: &Connection,
    (found, now): (&mut Verification, Timestamp),
) -> std::result::Result<(), Stop> {
    let interned = Interned::load(connection)?;
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
            let checked = Suspect::read(row)
                .map_err(Stop::from)
                .and_then(|suspect| check_execution(connection, (&interned, now), (suspect, found)));
            match checked {
                Ok(None) => {}
                Ok(Some(problem)) => found.add(format!("{whose}: {problem}")),
                Err(Stop::Sql(error)) => found.add(format!("{whose}: {}", complaint(&error))),
                Err(Stop::Broken(failure)) => found.add(format!("{whose}: {}", failure.complaint)),
                Err(Stop::Refused(error)) => found.add(format!("{whose}: {error}")),
            }
        }
        if seen < EXECUTION_COUNT_AT_ONCE {
            return Ok(());
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

/// What is wrong with one execution, if anything is.
fn check_execution(
    connection: &Connection,
    (interned, now): (&Interned, Timestamp),
    (suspect, found): (Suspect, &mut Verification),
) -> std::result::Result<Option<String>, Stop> {
    let mut run = Run { number: suspect.cold.run, chain: suspect.chain };
    found.count(&run.chain);
    if interned.namespace(suspect.namespace).is_none() {
        return Ok(Some("the name of its namespace is damaged".to_owned()));
    }
    let address = address(interned, suspect.namespace, &suspect.id)?;
    let folded = match check_run(connection, &address, run)? {
        Ok(folded) => folded,
        Err(problem) => return Ok(Some(problem)),
    };
    while let Some(before) = run_before(connection, run)? {
        run = before;
        found.count(&run.chain);
        match check_run(connection, &address, run)? {
            Ok(Some(ended)) if ended.is_finished() => {}
            Ok(_) => return Ok(Some(format!("run {} has not ended, and a later one began", run.number))),
            Err(problem) => return Ok(Some(format!("run {}: {problem}", run.number))),
        }
    }
    let earlier: u32 =
        connection.prepare_cached(sql::VERIFY_RUN_COUNT)?.query_row([suspect.chain.key], |row| row.get(0))?;
    if earlier.checked_add(1) != Some(suspect.cold.run) {
        return Ok(Some("it has other runs than it says".to_owned()));
    }
    if run.number != 1 {
        return Ok(Some(format!("the runs before run {} are missing", run.number)));
    }
    if let Some(problem) = check_inbox(connection, suspect.chain.key)? {
        return Ok(Some(problem));
    }
    let stored = suspect.execution.clone().at(address);
    if folded.as_ref() != Some(&stored) {
        return Ok(Some("its state is not what its journal adds up to".to_owned()));
    }
    if !is_looked_after(connection, &suspect, &stored)? {
        return Ok(Some("a caretaker would look at it at a wrong time".to_owned()));
    }
    if let Some(problem) = check_tags(connection, &suspect, (run.chain.first, found))? {
        return Ok(Some(problem));
    }
    let route = interned.route(suspect.queue.route).map(|route| &**route);
    Ok(check_columns(&suspect, &stored, (route, run.chain.first, now)).map(str::to_owned))
}

/// Whether an execution is found by the tags that it was started with.
fn check_tags(
    connection: &Connection,
    suspect: &Suspect,
    (origin, found): (i64, &mut Verification),
) -> std::result::Result<Option<String>, Stop> {
    if !suspect.cold.tagged {
        return Ok(None);
    }
    let key = suspect.chain.key;
    let start = first_start(connection, key, origin)?;
    let tags: HashSet<_> = start.tags.iter().map(|tag| (tag.key.as_str(), tag.value.as_str())).collect();
    found.tag_count += tags.len() as u64;
    let mut has = connection.prepare_cached(sql::TAG_HAS)?;
    for (name, value) in tags {
        if !has.exists(params![suspect.namespace, name, value, key])? {
            return Ok(Some(format!("it is not found by its tag {name:?}")));
        }
    }
    Ok(None)
}

/// What is wrong with the columns that repeat what the sheet or the journal says.
fn check_columns(
    suspect: &Suspect,
    stored: &Execution,
    (route, origin, now): (Option<&Route>, i64, Timestamp),
) -> Option<&'static str> {
    let Suspect { cold, summary, status, .. } = suspect;
    if let Place::Damaged(_) = suspect.place {
        return Some("it was set aside because it could not be read, and can be read now");
    }
    // What is scheduled, sleeps or waits is known by the code alone.
    let is_active = stored.phase().is_active();
    let told = stored.summary(&summary.waiting);
    let queue_is_right = route == Some(&stored.route()) && suspect.queue.priority == stored.priority();
    if status != &summary.status {
        Some("its status is not that of its summary")
    } else if status.is_terminal() != stored.is_finished() || (!is_active && *status != told.status) {
        Some("its status and its state disagree")
    } else if ![told.listens, stored.summary_at_rest().listens].contains(&summary.listens) {
        Some("it listens to something else than its state says")
    } else if cold.run != stored.run() || cold.origin() != origin {
        Some("its runs and its state disagree")
    } else if suspect.parent.is_some() && suspect.cold.top_level {
        Some("it has a parent, and was started by nobody")
    } else if !is_parent_run(suspect.parent_run, suspect.parent, stored) {
        Some("it belongs to another run of its parent")
    } else if route.is_none() {
        Some("its route is damaged")
    } else if !queue_is_right {
        Some("it stands in the queue of something else")
    } else if suspect.place == Place::Waiting && suspect.version.0 == 0 {
        Some("nobody has had it, and nobody would")
    } else if !suspect.place.fits(suspect.queue, summary, now) {
        Some("it stands where it does not belong")
    } else {
        None
    }
}

/// Whether somebody looks at an execution in time, which may be too early, and at none where there is nothing to look for.
fn is_looked_after(connection: &Connection, suspect: &Suspect, stored: &Execution) -> rusqlite::Result<bool> {
    let (key, care_at) = (suspect.chain.key, suspect.care_at);
    if stored.is_finished() {
        return Ok(care_at.is_none());
    }
    // Whoever holds it has its time, and what was to be looked for may be done.
    if suspect.place.session().is_some() {
        return Ok(care_at.is_some() || stored.care_at().is_none());
    }
    // Only what nobody but caretakers ever held is looked at for more.
    let is_for_anybody = |message: &Message| care::applies(&message.body, false);
    Ok(match (stored.care_at(), care_at) {
        (Some(deadline), care_at) => care_at.is_some_and(|care_at| care_at <= deadline),
        // The claim of what is ready, whose holder may have been lost, sets it anew.
        (None, Some(_)) if suspect.place.ready_at().is_some() => true,
        (None, Some(_)) => connection.prepare_cached(sql::INBOX_UNREAD)?.exists([key])?,
        (None, None) => !orders(connection, key)?.iter().any(is_for_anybody),
    })
}

/// The rows of a chain from its beginning, or where it breaks.
fn chain_rows(
    connection: &Connection,
    chain: &Chain,
) -> std::result::Result<std::result::Result<Vec<i64>, String>, Stop> {
    let mut body = connection.prepare_cached(sql::JOURNAL_BODY)?;
    let mut rows = Vec::new();
    let mut next = Some(chain.head);
    let mut expected = chain.entry_count;
    for nth in (1..=chain.row_count).rev() {
        let Some(current) = next else { return Ok(Err(format!("entry {expected} is missing"))) };
        let mut found = body.query([current, chain.key])?;
        let Some(found) = found.next()? else {
            return Ok(Err(format!("entry {expected} should be in journal row {current}, which is missing")));
        };
        let found = Found::read(found)?;
        if found.end() != expected || (nth == 1) != (found.seq == 1) {
            let (from, to) = (found.seq, found.end());
            return Ok(Err(format!("journal row {current} has the entries {from} to {to}, not {expected}")));
        }
        rows.push(current);
        next = found.previous;
        expected = found.seq.saturating_sub(1);
    }
    if rows.last() != Some(&chain.first) {
        return Ok(Err(format!("its journal does not begin in row {}", chain.first)));
    }
    rows.reverse();
    Ok(Ok(rows))
}

/// One run of an execution.
#[derive(Clone, Copy)]
struct Run {
    number: u32,
    chain: Chain,
}

/// What the journal of one run adds up to, or what is wrong with it.
fn check_run(
    connection: &Connection,
    address: &Address,
    run: Run,
) -> std::result::Result<std::result::Result<Option<Execution>, String>, Stop> {
    let rows = match chain_rows(connection, &run.chain)? {
        Ok(rows) => rows,
        Err(problem) => return Ok(Err(problem)),
    };
    if let Some(problem) = check_skips(connection, &run.chain, &rows)? {
        return Ok(Err(problem));
    }
    fold(connection, (run, address), &rows).map(Ok)
}

/// The run before this one: what the first row follows.
fn run_before(connection: &Connection, run: Run) -> std::result::Result<Option<Run>, Stop> {
    let mut link = connection.prepare_cached(sql::JOURNAL_LINK)?;
    let key = run.chain.key;
    let head: Option<i64> = link.query_row([run.chain.first], |row| row.get(0))?;
    let Some(head) = head else { return Ok(None) };
    if run.number <= 1 {
        return Err(Stop::corrupt(format!("its first entry follows journal row {head}")));
    }
    let last = journal::record(connection, (head, key), |mut records| records.pop())?;
    // Nothing but the rows themselves says where an earlier run begins.
    let (mut first, mut row_count) = (head, 1);
    loop {
        let found = link.query_row([first], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let (previous, seq): (Option<i64>, i64) = found.ok_or_else(|| journal::missing(first))?;
        if seq <= 1 {
            break;
        }
        let previous =
            previous.ok_or_else(|| Stop::corrupt(format!("journal row {first} has no predecessor")))?;
        first = journal::older(first, previous)?;
        row_count += 1;
    }
    let chain = Chain { key, first, head, entry_count: last.seq, row_count };
    let number = run.number - 1;
    let mut told = connection.prepare_cached(sql::RUN_CHAIN)?;
    let told = told.query_row(params![key, number], |row| run_chain(key, row)).optional()?;
    if told != Some(chain) {
        return Err(Stop::corrupt(format!("run {number} is not where it is said to be")));
    }
    Ok(Some(Run { number, chain }))
}

fn check_skips(
    connection: &Connection,
    chain: &Chain,
    rows: &[i64],
) -> std::result::Result<Option<String>, Stop> {
    for block in 1..=chain.row_count / SKIP_DISTANCE {
        let nth = block * SKIP_DISTANCE;
        let index = usize::try_from(nth - 1).unwrap_or(usize::MAX);
        let (end, listed) = chain.skip_rows(connection, (rows[index], nth))?;
        let expected = rows[..index].iter().rev().take(listed.len());
        let last = journal::record(connection, (rows[index], chain.key), |mut records| records.pop())?;
        if end != last.seq || !listed.iter().eq(expected) {
            return Ok(Some(format!("journal row {} lists wrong predecessors", rows[index])));
        }
    }
    Ok(None)
}

/// What the journal adds up to.
fn fold(
    connection: &Connection,
    (run, address): (Run, &Address),
    rows: &[i64],
) -> std::result::Result<Option<Execution>, Stop> {
    let mut statement = connection.prepare_cached(sql::JOURNAL_BODY)?;
    let mut folded: Option<Execution> = None;
    for row in rows {
        let mut found = statement.query([*row, run.chain.key])?;
        let found = found.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        let found = Found::read(found)?;
        let happened = found.last().and_then(Entry::happening_of).map(|(_, happening)| happening as u8);
        if happened != found.happened {
            return Err(Stop::corrupt(format!("journal row {row} tells the feed something else")));
        }
        for record in found.records() {
            let (seq, bytes) = record?;
            let record = Record { seq, bytes: bytes.to_vec() };
            let entry =
                record.entry().map_err(|error| Stop::corrupt(format!("journal row {row}: {error}")))?;
            match &mut folded {
                Some(execution) => execution.apply(&entry),
                None => folded = Execution::fold(address.clone(), run.number, [&entry]),
            }
        }
        if folded.is_none() {
            return Ok(None);
        }
    }
    Ok(folded)
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

fn check_the_rest(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
    let tags: i64 = connection.query_row(sql::VERIFY_TAG_COUNT, [], |row| row.get(0))?;
    if count(tags) != found.tag_count {
        found.add(format!("there are {tags} tags, the executions have {}", found.tag_count));
    }
    let entries: i64 = connection.query_row(sql::VERIFY_JOURNAL_COUNT, [], |row| row.get(0))?;
    if count(entries) != found.row_count {
        found.add(format!("the journal has {entries} rows, the executions have {}", found.row_count));
    }
    let orphans = [
        (sql::VERIFY_ORPHAN_JOURNAL, "journal row"),
        (sql::VERIFY_ORPHAN_RUNS, "an earlier run of execution"),
        (sql::VERIFY_ORPHAN_INBOX, "the inbox of execution"),
        (sql::VERIFY_ORPHAN_TAGS, "the tags of execution"),
    ];
    for (text, what) in orphans {
        let mut statement = connection.prepare(text)?;
        for row in statement.query_map([], |row| row.get::<_, i64>(0))? {
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
    let mut statement = connection.prepare(sql::VERIFY_LEASES)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (whose, session) = (whose(row.get(0)?, &row.get_ref(1)?), row.get::<_, i64>(2)?);
        found.add(format!("{whose} is held by session {session}, which is not registered"));
    }
    Ok(())
}
