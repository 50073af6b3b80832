//! Whether the database still is what this crate writes.

use abide_core::{Address, Execution, Status, Timestamp};
use abide_store::{Record, Result};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::apply::unread;
use crate::caches::Interned;
use crate::error::{Stop, reading};
use crate::journal::{Chain, SKIP_DISTANCE, happened};
use crate::place::{Place, Queue};
use crate::reader::in_transaction;
use crate::rows::{count, decoded, status, timestamp_maybe};
use crate::store::SqliteStore;
use crate::view::{View, address};
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
    /// How many journal entries belong to them.
    pub entry_count: u64,
    /// What is wrong, one sentence each; at most 100.
    pub problems: Vec<String>,
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
            check_executions(view.connection, &mut found)?;
            check_the_rest(view.connection, &mut found)?;
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
    place: Place,
    queue: Queue,
    wake_at: Option<Timestamp>,
    status: Status,
    run: u32,
    execution: Execution,
}

impl Suspect {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            namespace: row.get(1)?,
            id: row.get(2)?,
            place: Place::read(row, 3)?,
            status: status(row, 6)?,
            chain: Chain {
                key: row.get(0)?,
                first: row.get(7)?,
                head: row.get(8)?,
                entry_count: count(row.get(9)?),
            },
            run: row.get(10)?,
            execution: decoded(row, 11)?,
            queue: Queue { route: row.get(12)?, priority: row.get(13)? },
            wake_at: timestamp_maybe(row, 14)?,
        })
    }
}

fn check_executions(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
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
            let checked = Suspect::read(row).map_err(Stop::from).and_then(|suspect| {
                check_execution(connection, &interned, (suspect, &mut found.entry_count))
            });
            match checked {
                Ok(None) => {}
                Ok(Some(problem)) => found.add(format!("execution {last}: {problem}")),
                Err(Stop::Sql(error)) => found.add(format!("execution {last}: {error}")),
                Err(Stop::Broken(failure)) => found.add(format!("execution {last}: {}", failure.complaint)),
                Err(Stop::Refused(error)) => found.add(format!("execution {last}: {error}")),
            }
        }
        if seen < EXECUTION_COUNT_AT_ONCE {
            return Ok(());
        }
    }
}

/// What is wrong with one execution, if anything is.
fn check_execution(
    connection: &Connection,
    interned: &Interned,
    (suspect, entry_count): (Suspect, &mut u64),
) -> std::result::Result<Option<String>, Stop> {
    let address = address(interned, suspect.namespace, &suspect.id)?;
    let mut run = Run { number: suspect.run, chain: suspect.chain };
    *entry_count += run.chain.entry_count;
    let folded = match check_run(connection, &address, run)? {
        Ok(folded) => folded,
        Err(problem) => return Ok(Some(problem)),
    };
    while let Some(before) = run_before(connection, run)? {
        run = before;
        *entry_count += run.chain.entry_count;
        match check_run(connection, &address, run)? {
            Ok(Some(ended)) if ended.is_finished() => {}
            Ok(_) => return Ok(Some(format!("run {} has not ended, and a later one began", run.number))),
            Err(problem) => return Ok(Some(format!("run {}: {problem}", run.number))),
        }
    }
    if run.number != 1 {
        return Ok(Some(format!("the runs before run {} are missing", run.number)));
    }
    let suspect_place = (suspect.place, suspect.queue, suspect.wake_at);
    let stored = suspect.execution.at(address);
    unread(connection, suspect.chain.key)?;
    let problem = if folded.as_ref() != Some(&stored) {
        Some("its state is not what its journal adds up to")
    } else if suspect.status.is_terminal() != stored.is_finished() {
        Some("its status and its state disagree")
    } else if !is_well_placed(&suspect_place, stored.is_finished()) {
        Some("it stands where it does not belong")
    } else {
        None
    };
    Ok(problem.map(str::to_owned))
}

/// Whether an execution stands where its row says that it should.
fn is_well_placed((place, queue, wake_at): &(Place, Queue, Option<Timestamp>), is_finished: bool) -> bool {
    match place {
        Place::Finished(_) => is_finished,
        _ if is_finished => false,
        Place::Waiting => wake_at.is_none(),
        Place::Timer(route, at) => *route == queue.route && Some(*at) == *wake_at,
        Place::Ready(found, _) => found == queue,
        Place::Held(_) => true,
    }
}

/// The rows of a chain from its beginning, or where it breaks.
fn chain_rows(
    connection: &Connection,
    chain: &Chain,
) -> std::result::Result<std::result::Result<Vec<i64>, String>, Stop> {
    let mut link = connection.prepare_cached(sql::JOURNAL_LINK)?;
    let mut rows = Vec::new();
    let mut next = Some(chain.head);
    for expected in (1..=chain.entry_count).rev() {
        let Some(current) = next else { return Ok(Err(format!("entry {expected} is missing"))) };
        let found = link
            .query_row([current], |row| {
                Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
            })
            .optional()?;
        let Some((previous, seq, execution)) = found else {
            return Ok(Err(format!("entry {expected} should be in journal row {current}, which is missing")));
        };
        if (count(seq), execution) != (expected, chain.key) {
            let problem = format!(
                "journal row {current} is entry {seq} of execution {execution}, not entry {expected}"
            );
            return Ok(Err(problem));
        }
        rows.push(current);
        next = previous;
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

/// The run before this one: what the first entry follows.
fn run_before(connection: &Connection, run: Run) -> std::result::Result<Option<Run>, Stop> {
    let mut link = connection.prepare_cached(sql::JOURNAL_LINK)?;
    let head: Option<i64> = link.query_row([run.chain.first], |row| row.get(0))?;
    let Some(head) = head else { return Ok(None) };
    if run.number <= 1 {
        return Err(Stop::corrupt(format!("its first entry follows journal row {head}")));
    }
    let entry_count = count(link.query_row([head], |row| row.get(1))?);
    // Nothing but the entries themselves says where an earlier run begins.
    let mut first = head;
    for _ in 1..entry_count {
        let previous: Option<i64> = link.query_row([first], |row| row.get(0))?;
        first = previous.ok_or_else(|| Stop::corrupt(format!("journal row {first} has no predecessor")))?;
    }
    let number = run.number - 1;
    let mut chain = connection.prepare_cached(sql::RUN_CHAIN)?;
    let told = chain.query_row(params![run.chain.key, number], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, count(row.get(2)?)))
    });
    if told.optional()? != Some((first, head, entry_count)) {
        return Err(Stop::corrupt(format!("run {number} is not where it is said to be")));
    }
    Ok(Some(Run { number, chain: Chain { key: run.chain.key, first, head, entry_count } }))
}

fn check_skips(
    connection: &Connection,
    chain: &Chain,
    rows: &[i64],
) -> std::result::Result<Option<String>, Stop> {
    for block in 1..=chain.entry_count / SKIP_DISTANCE {
        let seq = block * SKIP_DISTANCE;
        let index = usize::try_from(seq - 1).unwrap_or(usize::MAX);
        let listed = chain.skip_rows(connection, (rows[index], seq))?;
        let expected = rows[..index].iter().rev().take(listed.len());
        if !listed.iter().eq(expected) {
            return Ok(Some(format!("entry {seq} lists wrong predecessors")));
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
    let mut statement = connection.prepare_cached(sql::VERIFY_ENTRY)?;
    let mut folded: Option<Execution> = None;
    for row in rows {
        let (record, told) = statement.query_row([*row, run.chain.key], |row| {
            let told: Option<u8> = row.get(2)?;
            Ok((Record { seq: count(row.get(0)?), bytes: row.get(1)? }, told))
        })?;
        if told != happened(&record.bytes) {
            return Err(Stop::corrupt(format!("journal row {row} tells the feed something else")));
        }
        let entry = record.entry().map_err(|error| Stop::corrupt(format!("journal row {row}: {error}")))?;
        match &mut folded {
            Some(execution) => execution.apply(&entry),
            None => folded = Execution::fold(address.clone(), run.number, [&entry]),
        }
        if folded.is_none() {
            return Ok(None);
        }
    }
    Ok(folded)
}

fn check_the_rest(connection: &Connection, found: &mut Verification) -> std::result::Result<(), Stop> {
    let entries: i64 = connection.query_row(sql::VERIFY_JOURNAL_COUNT, [], |row| row.get(0))?;
    if count(entries) != found.entry_count {
        found.add(format!(
            "the journal has {entries} rows, the executions have {} entries",
            found.entry_count
        ));
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
    let mut statement = connection.prepare(sql::VERIFY_LEASES)?;
    for row in statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))? {
        let (key, session) = row?;
        found.add(format!("execution {key} is held by session {session}, which is not registered"));
    }
    Ok(())
}
