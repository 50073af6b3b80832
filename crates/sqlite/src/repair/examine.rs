//! Finds the faults of one execution: its row against its journal, its inbox and its tags.

use std::collections::HashSet;

use abide_core::parking::waits_for;
use abide_core::planted::{Bug, planted};
use abide_core::{Address, Entry, Execution, Message, Route, Status, Summary, Timestamp, Version, care};
use abide_store::Record;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::rebuild::is_parent_run;
use crate::apply::{check_inbox, each_unread, first_start, orders};
use crate::error::Stop;
use crate::interned::Interned;
use crate::journal::{self, Chain, Found, SKIP_DISTANCE};
use crate::place::{Columns, Place, ReadyQueue};
use crate::rows::{epoch, indexed, integer, status, timestamp_maybe};
use crate::sheet::{Base, Cold};
use crate::tail::{Current, Steady};
use crate::view::{address, run_chain};
use crate::{newborns, sheaf, sql};

/// The result of an examination of one execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Sound,
    /// A newer program wrote it, and can read it.
    Newer(String),
    Damaged(String),
}

/// The number of things that belong to the examined executions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) entry_count: u64,
    pub(crate) row_count: u64,
    pub(crate) tag_count: u64,
}

impl Counts {
    fn count(&mut self, chain: &Chain) {
        self.entry_count += chain.entry_count;
        self.row_count += chain.row_count;
    }
}

/// Examines the execution in a row of [`sql::EXECUTION_ROWS_AFTER`].
pub(crate) fn examine(
    connection: &Connection,
    (interned, now): (&Interned, Timestamp),
    (row, counts): (&Row<'_>, &mut Counts),
) -> Result<Verdict, Stop> {
    let checked = Suspect::read(row)
        .map_err(Stop::from)
        .and_then(|suspect| suspect.follow(connection))
        .and_then(|suspect| check_execution(connection, (interned, now), (suspect, counts)));
    match checked {
        Ok(None) => Ok(Verdict::Sound),
        Ok(Some(problem)) => Ok(Verdict::Damaged(problem)),
        Err(stop) => match (stop.damage(), stop.is_newer()) {
            (Some(damage), _) => Ok(Verdict::Damaged(damage)),
            (None, true) => Ok(Verdict::Newer(abide_store::Error::from(stop).to_string())),
            (None, false) => Err(stop),
        },
    }
}

/// Examines the execution with this number, if it exists.
pub(crate) fn examine_one(
    connection: &Connection,
    terms: (&Interned, Timestamp),
    key: i64,
) -> Result<Option<Verdict>, Stop> {
    let mut statement = connection.prepare_cached(sql::EXECUTION_ROWS_AFTER)?;
    let mut rows = statement.query([key - 1, 1])?;
    match rows.next()? {
        Some(row) if row.get::<_, i64>(0)? == key => {
            examine(connection, terms, (row, &mut Counts::default())).map(Some)
        }
        _ => Ok(None),
    }
}

/// The columns of an execution's row that can be wrong.
struct Suspect {
    current: Current,
    namespace: i64,
    id: String,
    parent: Option<i64>,
    parent_run: Option<i64>,
    version: Version,
    place: Place,
    columns: Columns,
    queue: ReadyQueue,
    status: Option<Status>,
    care_at: Option<Timestamp>,
    is_sealed: bool,
    cold: Cold,
    summary: Summary,
}

impl Suspect {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let base = Base::read(row)?;
        let (_epoch, _takeover_count): (_, u32) = (epoch(row, 8)?, row.get(15)?);
        let sheet = base.sheet()?;
        Ok(Self {
            current: Current::read(&base, &sheet)?,
            namespace: base.namespace,
            id: base.id.to_owned(),
            parent: base.parent,
            parent_run: row.get(14)?,
            version: base.anchor.version,
            place: Place::read(row, 9)?,
            columns: Columns::read(row, 9)?,
            queue: base.queue,
            status: status(row, 12)?,
            care_at: timestamp_maybe(row, 13)?,
            is_sealed: row.get(16)?,
            cold: sheet.cold,
            summary: sheet.summary()?,
        })
    }

    /// Continues with the tail of its journal, which agrees with the row.
    fn follow(mut self, connection: &Connection) -> Result<Self, Stop> {
        self.current = self.current.follow(connection)?;
        self.version = self.current.version;
        if let Some(last) = self.current.summary.take() {
            if Steady::of(&last) != Steady::of(&self.summary) {
                return Err(Stop::corrupt("its row has another status or time than its journal"));
            }
            self.summary = last;
        }
        Ok(self)
    }
}

/// Returns the fault of one execution, if it has one.
fn check_execution(
    connection: &Connection,
    (interned, now): (&Interned, Timestamp),
    (suspect, found): (Suspect, &mut Counts),
) -> Result<Option<String>, Stop> {
    let mut run = Run { number: suspect.cold.run, chain: suspect.current.chain };
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
    let earlier: u32 = connection
        .prepare_cached(sql::VERIFY_RUN_COUNT)?
        .query_row([suspect.current.chain.key], |row| row.get(0))?;
    if earlier.checked_add(1) != Some(suspect.cold.run) {
        return Ok(Some("it has other runs than it says".to_owned()));
    }
    if run.number != 1 {
        return Ok(Some(format!("the runs before run {} are missing", run.number)));
    }
    if journal::owner(connection, (run.chain.first, run.chain.key))?
        != (suspect.namespace, suspect.id.clone())
    {
        return Ok(Some("its journal is that of another id".to_owned()));
    }
    if let Some(problem) = check_inbox(connection, suspect.current.chain.key)? {
        return Ok(Some(problem));
    }
    let stored = suspect.current.execution.clone().at(address);
    if folded.as_ref() != Some(&stored) {
        return Ok(Some("its state is not what its journal adds up to".to_owned()));
    }
    if let Some(problem) = check_other_rows(connection, &suspect)? {
        return Ok(Some(problem));
    }
    let cared = (suspect.current.chain.key, suspect.care_at);
    if !is_looked_after(connection, cared, (suspect.place, &stored))? {
        return Ok(Some("a caretaker would look at it at a wrong time".to_owned()));
    }
    if let Some(problem) = check_tags(connection, &suspect, (run.chain.first, found))? {
        return Ok(Some(problem));
    }
    let route = interned.route(suspect.queue.route).map(|route| &**route);
    Ok(check_columns(&suspect, &stored, (route, run.chain.first, now)).map(str::to_owned))
}

/// Checks that an execution is found by its tags.
fn check_tags(
    connection: &Connection,
    suspect: &Suspect,
    (origin, found): (i64, &mut Counts),
) -> Result<Option<String>, Stop> {
    if !suspect.cold.tagged {
        return Ok(None);
    }
    let key = suspect.current.chain.key;
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

/// Returns the fault of the columns that repeat the sheet or the journal.
fn check_columns(
    suspect: &Suspect,
    stored: &Execution,
    (route, origin, now): (Option<&Route>, i64, Timestamp),
) -> Option<&'static str> {
    let Suspect { cold, summary, .. } = suspect;
    let status = summary.status;
    if let Place::Damaged(_) = suspect.place {
        return Some("it was set aside because it could not be read, and can be read now");
    }
    // Only the code knows whether it is scheduled, sleeps or waits.
    let is_active = stored.phase().is_active();
    let told = stored.summary(&summary.waiting);
    let queue_is_right = route == Some(&stored.route()) && suspect.queue.priority == stored.priority();
    if suspect.status.and_then(indexed) != indexed(status) {
        Some("its status is not that of its summary")
    } else if status.is_terminal() != stored.is_finished() || (!is_active && status != told.status) {
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
    } else if !suspect.place.fits(suspect.queue, summary, now) || suspect.place.columns() != suspect.columns {
        Some("it stands where it does not belong")
    } else if !suspect.is_sealed {
        Some("its epoch, its place, its count of takeovers or the time of its care is not what was written")
    } else {
        None
    }
}

/// Returns the fault of its place, as far as other rows reveal it.
fn check_other_rows(connection: &Connection, suspect: &Suspect) -> Result<Option<String>, Stop> {
    if let Some(session) = suspect.place.session()
        && !connection.prepare_cached(sql::SESSION_IS_LIVE)?.exists([integer(session.0)])?
    {
        return Ok(Some(format!("it is held by session {}, which is not registered", session.0)));
    }
    if let Some(holder) = suspect.place.holder().filter(|holder| holder.is_newborn)
        && newborns::from(connection, holder.session)? > suspect.current.chain.key
        && !planted(Bug::NewbornSearchUnchecked)
    {
        return Ok(Some(format!("the end of session {} would not find it", holder.session.0)));
    }
    let is_asleep = matches!(suspect.place, Place::Waiting | Place::Timer(..));
    let awaited = is_asleep.then(|| awaited(connection, suspect.current.chain.key, &suspect.summary));
    let awaited = awaited.transpose()?.flatten();
    Ok(awaited.map(|message| format!("message {:?}, which it waits for, would not wake it", message.id)))
}

/// Returns an unread message that an execution waits for. No holder that had seen it would park.
pub(crate) fn awaited(
    connection: &Connection,
    key: i64,
    summary: &Summary,
) -> rusqlite::Result<Option<Message>> {
    if summary.waiting.is_empty() {
        return Ok(None);
    }
    let mut awaited = None;
    each_unread(connection, key, |message| {
        if awaited.is_none() && waits_for(summary, &message) {
            awaited = Some(message);
        }
    })?;
    Ok(awaited)
}

/// Whether a caretaker looks at an execution in time. The look may be too early. There must be none
/// if there is nothing to look for.
pub(crate) fn is_looked_after(
    connection: &Connection,
    (key, care_at): (i64, Option<Timestamp>),
    (place, stored): (Place, &Execution),
) -> rusqlite::Result<bool> {
    if stored.is_finished() {
        return Ok(care_at.is_none());
    }
    // The holder knows the deadline, and the reason for the look may be gone.
    if place.session().is_some() {
        return Ok(care_at.is_some() || stored.care_at().is_none());
    }
    // For other orders, a caretaker looks only at executions that only caretakers ever held.
    let is_for_anybody = |message: &Message| care::applies(&message.body, false);
    Ok(match (stored.care_at(), care_at) {
        // A ready execution may have lost its holder. While that lived, a caretaker may have put
        // off its look; the next claim sets the time again.
        (_, Some(_)) if place.ready_at().is_some() && !planted(Bug::LateLookDamaged) => true,
        (Some(deadline), care_at) => care_at.is_some_and(|care_at| care_at <= deadline),
        (None, Some(_)) => connection.prepare_cached(sql::INBOX_NEWEST)?.exists([key])?,
        (None, None) => !orders(connection, key)?.iter().any(is_for_anybody),
    })
}

/// Returns the rows of a chain from its beginning, or the place where it breaks.
fn chain_rows(connection: &Connection, chain: &Chain) -> Result<Result<Vec<i64>, String>, Stop> {
    let mut rows = Vec::new();
    let mut next = Some(chain.head);
    let mut expected = chain.entry_count;
    for nth in (1..=chain.row_count).rev() {
        let Some(current) = next else { return Ok(Err(format!("entry {expected} is missing"))) };
        let found = sheaf::find_of(connection, (current, chain.key), |part| {
            let found = part.found()?;
            Ok((found.seq, found.end(), found.previous))
        })?;
        let Some((from, to, previous)) = found else {
            return Ok(Err(format!("entry {expected} should be in journal row {current}, which is missing")));
        };
        if to != expected || (nth == 1) != (from == 1) {
            return Ok(Err(format!("journal row {current} has the entries {from} to {to}, not {expected}")));
        }
        rows.push(current);
        next = previous;
        expected = from.saturating_sub(1);
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

/// Folds the journal of one run, or returns its fault.
fn check_run(
    connection: &Connection,
    address: &Address,
    run: Run,
) -> Result<Result<Option<Execution>, String>, Stop> {
    let rows = match chain_rows(connection, &run.chain)? {
        Ok(rows) => rows,
        Err(problem) => return Ok(Err(problem)),
    };
    if let Some(problem) = check_skips(connection, &run.chain, &rows)? {
        return Ok(Err(problem));
    }
    fold(connection, (run, address), &rows).map(Ok)
}

/// Returns the run before this one: its last row precedes the first row of this run.
fn run_before(connection: &Connection, run: Run) -> Result<Option<Run>, Stop> {
    let key = run.chain.key;
    let link = |row| {
        let found = sheaf::find(connection, row, |part| Ok((part.previous()?, part.seq()?)))?;
        found.ok_or_else(|| journal::missing(row))
    };
    let (Some(head), _) = link(run.chain.first)? else { return Ok(None) };
    if run.number <= 1 {
        return Err(Stop::corrupt(format!("its first entry follows journal row {head}")));
    }
    let last = journal::record(connection, (head, key), |mut records| records.pop())?;
    // Only the rows themselves say where an earlier run begins.
    let (mut first, mut row_count) = (head, 1);
    loop {
        let (previous, seq) = link(first)?;
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

fn check_skips(connection: &Connection, chain: &Chain, rows: &[i64]) -> Result<Option<String>, Stop> {
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

/// Folds the entries of the journal.
fn fold(
    connection: &Connection,
    (run, address): (Run, &Address),
    rows: &[i64],
) -> Result<Option<Execution>, Stop> {
    let mut folded: Option<Execution> = None;
    for row in rows {
        let found = sheaf::find_of(connection, (*row, run.chain.key), |part| {
            fold_row((run.number, address), (*row, &part.found()?), &mut folded)
        })?;
        found.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        if folded.is_none() {
            return Ok(None);
        }
    }
    Ok(folded)
}

/// Folds the entries of one row.
fn fold_row(
    (run, address): (u32, &Address),
    (row, found): (i64, &Found<'_>),
    folded: &mut Option<Execution>,
) -> Result<(), Stop> {
    let happened = found.last().and_then(Entry::happening_of).map(|(_, happening)| happening as u8);
    if happened != found.happened {
        return Err(Stop::corrupt(format!("journal row {row} tells the feed something else")));
    }
    for record in found.records() {
        let (seq, bytes) = record?;
        let record = Record { seq, bytes: bytes.to_vec() };
        let entry = record.entry().map_err(|error| Stop::corrupt(format!("journal row {row}: {error}")))?;
        match folded {
            Some(execution) => execution.apply(&entry),
            None => *folded = Execution::fold(address.clone(), run, [&entry]),
        }
    }
    Ok(())
}
