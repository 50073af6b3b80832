//! `verify`: whether the database is still as this crate writes it.

use std::collections::HashMap;

use abide_core::parking::waits_for;
use abide_core::{
    Address, Entry, Execution, ExecutionId, Happening, Message, Route, Summary, Tag, Timestamp, codec,
};
use abide_store::Verification;
use tokio_postgres::Row;

use crate::connection::Connection;
use crate::error::Stop;
use crate::rows;
use crate::shared::Shared;
use crate::sql;
use crate::view::refused_row;

/// Verifies everything: every journal, every state against the fold of its journal, every message,
/// and that whatever has to wake an execution would. It reads some executions at a time, each with
/// everything that belongs to it as it was at one moment, and blocks nobody.
pub(crate) async fn verify(shared: &Shared) -> Result<Verification, Stop> {
    let mut found = Verification::default();
    let mut connection = shared.pool.take().await?;
    let routes = check_routes(&connection, &mut found).await?;
    let mut after = 0_i64;
    loop {
        connection.begin(sql::BEGIN_READ).await?;
        let some = connection.rows(sql::VERIFY_EXECUTIONS, &[&after]).await?;
        for row in &some {
            after = row.try_get(0)?;
            check(&connection, (row, &routes), &mut found).await?;
        }
        connection.end(sql::COMMIT).await?;
        if some.is_empty() {
            break;
        }
    }
    for row in connection.rows(sql::VERIFY_ORPHANS, &[]).await? {
        let (what, key): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
        found.add(format!("{what} of execution number {key} belongs to nothing"));
    }
    check_refusals(&connection, &mut found).await?;
    Ok(found)
}

/// Checks the refused rows of the intake table. What stands in that table itself is checked when it
/// is taken: only its author could say that it is wrong.
async fn check_refusals(connection: &Connection, found: &mut Verification) -> Result<(), Stop> {
    let (mut at, mut place) = (i64::MIN, 0_i64);
    loop {
        let some = connection.rows(sql::VERIFY_REFUSALS, &[&at, &place]).await?;
        for row in &some {
            (at, place) = (row.try_get(0)?, row.try_get(1)?);
            let refused: Option<&[u8]> = row.try_get(2)?;
            match refused_row(place, refused.unwrap_or_default()) {
                Ok(_) => {}
                Err(Stop::Told(error)) => found.add(error.to_string()),
                Err(stop) => return Err(stop),
            }
        }
        if some.is_empty() {
            return Ok(());
        }
    }
}

async fn check_routes(
    connection: &Connection,
    found: &mut Verification,
) -> Result<HashMap<i32, Route>, Stop> {
    let mut routes = HashMap::new();
    for row in connection.rows(sql::VERIFY_ROUTES, &[]).await? {
        let (number, ns, body): (i32, String, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        match codec::decode::<Route>(&body) {
            Ok(route) if route.namespace.as_str() == ns => drop(routes.insert(number, route)),
            _ => found.add(format!("route {number} is damaged")),
        }
    }
    Ok(routes)
}

/// Checks one execution, and adds its first fault.
async fn check(
    connection: &Connection,
    (row, routes): (&Row, &HashMap<i32, Route>),
    found: &mut Verification,
) -> Result<(), Stop> {
    found.execution_count += 1;
    let id: String = row.try_get(2)?;
    found.own_count += u64::from(id.starts_with(ExecutionId::OWN_PREFIX));
    let problem = match faults(connection, (row, routes), found).await {
        Ok(problem) => problem,
        Err(Stop::Told(error)) => Some(error.to_string()),
        Err(stop) => return Err(stop),
    };
    if let Some(problem) = problem {
        found.add(format!("execution {id:?}: {problem}"));
    }
    Ok(())
}

/// The columns of an execution's row that can be wrong.
struct Suspect<'a> {
    key: i64,
    address: Address,
    row: &'a Row,
    is_held: bool,
    summary: Summary,
    stored: Execution,
}

impl<'a> Suspect<'a> {
    fn read(row: &'a Row) -> Result<Self, Stop> {
        let key = row.try_get(0)?;
        let address = rows::address(row.try_get(1)?, row.try_get(2)?)?;
        Ok(Self {
            key,
            is_held: row.try_get::<_, Option<i64>>(5)?.is_some(),
            summary: rows::summary(key, row.try_get(15)?)?,
            stored: rows::state(key, &address, row.try_get(16)?)?,
            address,
            row,
        })
    }
}

async fn faults(
    connection: &Connection,
    (row, routes): (&Row, &HashMap<i32, Route>),
    found: &mut Verification,
) -> Result<Option<String>, Stop> {
    let suspect = Suspect::read(row)?;
    let runs = match fold(connection, &suspect, &mut found.entry_count).await? {
        Ok(runs) => runs,
        Err(problem) => return Ok(Some(problem)),
    };
    if let Some(problem) = check_runs(&suspect, &runs)? {
        return Ok(Some(problem));
    }
    let awaited = check_inbox(connection, &suspect).await?;
    if let Some(problem) = check_columns(&suspect, routes)? {
        return Ok(Some(problem.to_owned()));
    }
    if let Some(problem) = check_wakes(&suspect, awaited)? {
        return Ok(Some(problem));
    }
    Ok(check_origin(&suspect, &runs)?.map(str::to_owned))
}

/// One run: its first entry, and what all of them add up to.
struct Folded {
    first: Entry,
    execution: Execution,
    /// Whether it has ended the execution. A run that continued has not.
    is_end: bool,
}

/// Folds the journals of all runs.
async fn fold(
    connection: &Connection,
    suspect: &Suspect<'_>,
    entry_count: &mut u64,
) -> Result<Result<Vec<Folded>, String>, Stop> {
    let (mut runs, mut last) = (Vec::<Folded>::new(), (0, 0));
    loop {
        let page = connection.rows(sql::VERIFY_JOURNAL, &[&suspect.key, &last.0, &last.1]).await?;
        if page.is_empty() {
            return Ok(Ok(runs));
        }
        for row in page {
            let (run, seq): (i32, i64) = (row.try_get(0)?, row.try_get(1)?);
            last = (run, seq);
            let records = rows::unpacked(suspect.key, seq, row.try_get(3)?)?;
            if records.len() as i64 != i64::from(row.try_get::<_, i32>(2)?) {
                return Ok(Err(format!("run {run} has another number of entries at {seq}")));
            }
            for record in records {
                *entry_count += 1;
                if let Err(problem) = add(&mut runs, suspect, (run, record.entry()?)) {
                    return Ok(Err(problem));
                }
            }
        }
    }
}

/// Adds one entry to its run.
fn add(runs: &mut Vec<Folded>, suspect: &Suspect<'_>, (run, entry): (i32, Entry)) -> Result<(), String> {
    let number = u32::try_from(run).unwrap_or(0);
    let known = u32::try_from(runs.len()).unwrap_or(u32::MAX);
    if number == known
        && let Some(folded) = runs.last_mut()
    {
        if entry.seq != folded.execution.entry_count() + 1 {
            return Err(format!("run {run} lacks an entry before number {}", entry.seq));
        }
        folded.execution.apply(&entry);
        folded.is_end |= Happening::of(&entry.event).is_some_and(Happening::is_end);
        return Ok(());
    }
    if Some(number) != known.checked_add(1) || entry.seq != 1 {
        return Err(format!("the beginning of run {run} is missing"));
    }
    let begun = Execution::fold(suspect.address.clone(), number, [&entry]);
    let execution = begun.ok_or_else(|| format!("run {run} does not begin with a start"))?;
    runs.push(Folded { first: entry, execution, is_end: false });
    Ok(())
}

fn check_runs(suspect: &Suspect<'_>, runs: &[Folded]) -> Result<Option<String>, Stop> {
    let (ended_count, run): (i64, i32) = (suspect.row.try_get(20)?, suspect.row.try_get(7)?);
    let Some((last, earlier)) = runs.split_last() else {
        return Ok(Some("its journal is missing".to_owned()));
    };
    if let Some(open) = earlier.iter().find(|run| !run.execution.is_finished()) {
        return Ok(Some(format!("run {} has not ended, and a later one began", open.execution.run())));
    }
    if last.execution != suspect.stored {
        return Ok(Some("its state is not what its journal adds up to".to_owned()));
    }
    if run != rows::run_number(last.execution.run()) {
        return Ok(Some("it has other runs than it says".to_owned()));
    }
    let ended = runs.iter().filter(|run| run.is_end).count();
    Ok((ended as i64 != ended_count).then(|| "the feed tells other ends than its journal".to_owned()))
}

/// Reads its inbox, and returns an unread message that it waits for.
async fn check_inbox(connection: &Connection, suspect: &Suspect<'_>) -> Result<Option<Message>, Stop> {
    let (mut after, mut awaited) = (0_i64, None);
    loop {
        let page = connection.rows(sql::VERIFY_INBOX, &[&suspect.key, &after]).await?;
        if page.is_empty() {
            return Ok(awaited);
        }
        for row in page {
            after = row.try_get(0)?;
            let (id, sort): (&str, i16) = (row.try_get(1)?, row.try_get(2)?);
            let message = rows::message(suspect.key, row.try_get(3)?)?;
            if message.id.as_str() != id || rows::sort_number(message.body.sort()) != sort {
                return Err(Stop::corrupt(format!("message {id:?} is another one than its row says")));
            }
            if awaited.is_none() && waits_for(&suspect.summary, &message) {
                awaited = Some(message);
            }
        }
    }
}

/// Returns the fault of the columns that repeat the summary or the state.
fn check_columns(suspect: &Suspect<'_>, routes: &HashMap<i32, Route>) -> Result<Option<&'static str>, Stop> {
    let Suspect { row, stored, summary, .. } = suspect;
    let (route, rank): (i32, i32) = (row.try_get(3)?, row.try_get(4)?);
    let (status, listens): (i16, i16) = (row.try_get(8)?, row.try_get(9)?);
    let (is_aside, has_ended): (bool, bool) = (row.try_get(10)?, row.try_get(13)?);
    // Only the code knows whether it is scheduled, sleeps or waits.
    let is_active = stored.phase().is_active();
    let told = stored.summary(&summary.waiting);
    Ok(if is_aside {
        Some("it was set aside because it could not be read, and can be read now")
    } else if status != i16::from(summary.status as u8) {
        Some("its status is not that of its summary")
    } else if has_ended != stored.is_finished() || (!is_active && summary.status != told.status) {
        Some("its status and its state disagree")
    } else if listens != rows::listens_number(summary.listens)
        || ![told.listens, stored.summary_at_rest().listens].contains(&summary.listens)
    {
        Some("it listens to something else than its state says")
    } else if routes.get(&route) != Some(&stored.route()) || rank != rows::rank(stored.priority()) {
        Some("it stands in the queue of something else")
    } else {
        None
    })
}

/// Returns what would not happen in time: a look of its code, or of a caretaker.
fn check_wakes(suspect: &Suspect<'_>, awaited: Option<Message>) -> Result<Option<String>, Stop> {
    let Suspect { row, stored, summary, .. } = suspect;
    let (wake_at, care_at) = (rows::timestamp(row.try_get(11)?), rows::timestamp(row.try_get(19)?));
    let (has_session, has_wake, version): (bool, bool, i64) =
        (row.try_get(17)?, row.try_get(18)?, row.try_get(6)?);
    if stored.is_finished() {
        return Ok(None);
    }
    if suspect.is_held {
        return Ok((!has_session).then(|| "it is held by a session that is not registered".to_owned()));
    }
    let is_late = |at: Option<Timestamp>, wanted: Timestamp| at.is_none_or(|at| at > wanted);
    Ok(if let Some(message) = awaited.filter(|_| !has_wake) {
        Some(format!("message {:?}, which it waits for, would not wake it", message.id))
    } else if let Some(wanted) = summary.wake_at.filter(|_| !has_wake)
        && is_late(wake_at, wanted)
    {
        Some("its timer would not wake it in time".to_owned())
    } else if version == 0 && !has_wake && wake_at.is_none() {
        Some("nobody has had it, and nobody would".to_owned())
    } else if let Some(deadline) = stored.care_at()
        && is_late(care_at, deadline)
    {
        Some("a caretaker would look at it too late".to_owned())
    } else {
        None
    })
}

/// Returns the fault of what the first run began with, whatever later runs say.
fn check_origin(suspect: &Suspect<'_>, runs: &[Folded]) -> Result<Option<&'static str>, Stop> {
    let (keys, values): (Vec<String>, Vec<String>) = (suspect.row.try_get(21)?, suspect.row.try_get(22)?);
    let Some(began) = runs.first().and_then(|run| run.first.began()) else {
        return Ok(Some("its first run does not begin with a start"));
    };
    if began.start.parent.is_some() != suspect.row.try_get::<_, bool>(12)? {
        return Ok(Some("its row and its first run disagree about its parent"));
    }
    let pair = |tag: &Tag| (tag.key.as_str().to_owned(), tag.value.as_str().to_owned());
    let mut wanted: Vec<_> = began.start.tags.iter().map(pair).collect();
    wanted.sort();
    wanted.dedup();
    let is_found = keys.into_iter().zip(values).collect::<Vec<_>>() == wanted;
    Ok((!is_found).then_some("it is not found by its tags"))
}
