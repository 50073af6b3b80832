//! `verify` and `repair`: whether the database is still as this crate writes it, and how faults are
//! repaired.
//!
//! `verify` looks at everything in one read transaction. `repair` proceeds in steps, each of which
//! relies on the steps before it. It delays nobody for long: it searches with a read-only
//! connection, and examines each finding again in the transaction that repairs it. If a repair
//! breaks off between two transactions, the next one finishes it.
//!
//! 1. The tables are those that this program makes (`verify`), or nothing is touched.
//! 2. Indexes, rebuilt from their tables: all later steps find rows through them.
//! 3. Rows that are not found by their keys (`order`, and `retag` for tags).
//! 4. Names and routes, which all other rows refer to by number (`names`).
//! 5. Executions, each from its journal (`examine` finds them, `truth` reads the journal, `rebuild`
//!    writes; `astray` returns messages to their executions).
//! 6. Tags that no execution was started with (`retag`, `tags`).
//! 7. Answers and orders that were lost on the way (`lost_messages` finds them, `resend` sends
//!    them). This is last, because damaged executions are readable by now.
//!
//! If no step can derive something, a person has to decide: `drop_messages` abandons messages,
//! `discard` an execution. `meant` finds the execution that the person means, and `salvage` the
//! parts of it that SQLite can still free.

mod astray;
mod discard;
mod drop_messages;
mod examine;
mod lost_messages;
mod meant;
mod names;
mod order;
mod rebuild;
mod resend;
mod retag;
mod salvage;
mod tags;
mod truth;
mod verify;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use abide_store::{Error, Result, Verification};
use rusqlite::Connection;

use crate::copies;
use crate::error::Stop;
use crate::gaps::walk;
use crate::indexes::{self, RebuildWork};
use crate::interned::Interned;
use crate::store::SqliteStore;
use crate::view::View;
use crate::writer::Scheduling;
use crate::{sheaf, sql};
use examine::{Counts, Verdict, examine};
use names::RepairNamesWork;
use order::{OrderWork, TABLES};
use rebuild::{Lead, RepairWork};
use resend::ResendWork;
use verify::{FOREIGN, check_integrity, is_schema_known, told, whose};

pub use discard::Discarded;
pub use drop_messages::MessagesDropped;

/// The number of damaged executions that share one pass over the journal.
const LEAD_COUNT_MAX: usize = 10_000;
/// The number of executions that are repaired in one transaction.
const LEAD_COUNT_AT_ONCE: usize = 64;
/// The total size of their journals, unless a single one is larger: other writers wait until all of
/// them have been read.
const LEAD_BYTES_AT_ONCE: u64 = 1 << 18;

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// The repairs that were made, one sentence each.
    pub rebuilt: Vec<String>,
    /// The faults that remain, and why.
    pub left: Vec<String>,
}

impl Repairs {
    fn add(&mut self, other: Self) {
        self.rebuilt.extend(other.rebuilt);
        self.left.extend(other.left);
    }
}

impl SqliteStore {
    /// Restores damaged data that can be derived: names and routes that other rows repeat, every
    /// column and every state that follows from a sound journal, and rows that lookups miss.
    /// Reports the repairs and the faults that remain.
    pub async fn repair(&self) -> Result<Repairs> {
        match self.check_tables("repair").await {
            Err(Error::Corrupt { what }) => return Ok(Repairs { left: vec![what], ..Repairs::default() }),
            checked => checked?,
        }
        let shared = self.view("repair", |view| Ok(indexes::shared_page(view.connection)?)).await;
        if let Some(complaint) = shared? {
            let left = format!("nothing was changed, because a page belongs to two: {complaint}; {WAY_OUT}");
            return Ok(Repairs { left: vec![left], ..Repairs::default() });
        }
        // The later steps need the indexes and the order of the tables.
        let mut repairs = self.repair_indexes().await?;
        self.repair_order(&mut repairs).await?;
        self.write_tags_anew(&mut repairs).await?;
        for (what, work) in [("names", RepairNamesWork::Names), ("routes", RepairNamesWork::Routes)] {
            let done = self.write(work, Scheduling::Queued).await;
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
        // This is last, because damaged executions are readable by now.
        self.resend_lost_messages(&mut repairs).await?;
        Ok(repairs)
    }

    /// Refuses tables that this program did not make: the effect of a statement on them is unknown.
    async fn check_tables(&self, what: &'static str) -> Result<()> {
        match self.view(what, |view| is_schema_known(view.connection)).await? {
            true => Ok(()),
            false => Err(Error::Corrupt { what: format!("{FOREIGN}, and nothing was changed") }),
        }
    }

    /// Resends answers and orders that were lost on the way.
    async fn resend_lost_messages(&self, repairs: &mut Repairs) -> Result<()> {
        let mut next = Some(0);
        while let Some(after) = next {
            let look = move |view: &View<'_>| lost_messages::search(view.connection, (after, LEAD_COUNT_MAX));
            let (keys, rest) = self.view("repair", look).await?;
            for key in keys {
                let done = self.write(ResendWork(key), Scheduling::Queued).await;
                repairs.add(unless_unread(done, || format!("execution number {key}"))?);
            }
            next = rest;
        }
        Ok(())
    }

    /// Repairs some executions, one by one if SQLite cannot read one of them.
    async fn repair_leads(&self, (leads, searched_to): (&[Lead], i64), repairs: &mut Repairs) -> Result<()> {
        let work = |leads: &[Lead]| RepairWork { leads: leads.to_vec(), searched_to };
        match self.write(work(leads), Scheduling::Queued).await {
            Err(Error::Corrupt { .. }) => {}
            done => {
                repairs.add(done?);
                return Ok(());
            }
        }
        for lead in leads {
            let done = self.write(work(&[*lead]), Scheduling::Queued).await;
            repairs.add(unless_unread(done, || format!("execution number {}", lead.key))?);
        }
        Ok(())
    }

    /// Reorders the tables whose rows are not found by their keys.
    async fn repair_order(&self, repairs: &mut Repairs) -> Result<()> {
        let look = |view: &View<'_>| {
            let (mut disordered, mut found) = (Vec::new(), Verification::default());
            for table in TABLES {
                let looked = table.is_in_order(view.connection);
                // A table that cannot be read to its end may still be rewritten, if SQLite allows
                // it.
                if told(&mut found, table.name, looked)? == Some(false) {
                    disordered.push(table);
                }
            }
            Ok((disordered, found.problems))
        };
        let (disordered, unread) = self.view("repair", look).await?;
        repairs.left.extend(unread);
        for table in disordered {
            match self.write(OrderWork(table), Scheduling::Queued).await {
                Ok(()) => repairs.rebuilt.push(format!("{} were put in order", table.name)),
                Err(Error::Corrupt { what }) => {
                    repairs.left.push(format!("{} cannot be put in order: {what}", table.name));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Rebuilds the indexes if SQLite finds a fault in the file.
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
        let copies = self.view("repair", |view| Ok(copies::told(view.connection))).await?;
        let inbox = match self.write(RebuildWork::Inbox(copies), Scheduling::Queued).await {
            // Retry without the copies from the indexes: one of the indexes cannot even be dropped.
            Err(Error::Corrupt { .. }) => Some(RebuildWork::Inbox(Vec::new())),
            done => {
                repairs.left.extend(done?.iter().map(|what| not_made(what)));
                None
            }
        };
        for work in sql::REINDEX.map(RebuildWork::One).into_iter().chain(inbox) {
            let failed = match self.write(work, Scheduling::Queued).await {
                Err(Error::Corrupt { what }) => vec![what],
                done => done?,
            };
            repairs.left.extend(failed.iter().map(|what| not_made(what)));
        }
        if repairs.left.is_empty() {
            repairs.rebuilt.push("the indexes were made anew".to_owned());
        }
        Ok(repairs)
    }
}

/// The advice for damage that cannot be repaired in place.
const WAY_OUT: &str = "`.dump` in the program sqlite3 reads the tables alone, for a new file";

fn not_made(what: &str) -> String {
    format!("an index cannot be made anew: {what}; {WAY_OUT}")
}

/// Returns the repairs, or reports that SQLite cannot read the data.
pub(crate) fn unless_unread(done: Result<Repairs>, what: impl FnOnce() -> String) -> Result<Repairs> {
    match done {
        Err(Error::Corrupt { what: complaint }) => {
            let left = vec![format!("{} cannot be repaired: {complaint}", what())];
            Ok(Repairs { left, ..Repairs::default() })
        }
        done => done,
    }
}

/// The findings of a search.
struct Search {
    leads: Vec<Lead>,
    /// The unreadable parts.
    left: Vec<String>,
    /// The last journal row that was examined.
    searched_to: i64,
    /// The number to continue after; nothing at the end.
    next: Option<i64>,
}

/// Finds damaged executions after `after`, and the last journal row of each. No index leads from an
/// execution to its rows: one pass over the journal serves all findings, and delays no writer.
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

/// Splits leads into groups that may share a transaction.
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

/// Adds the last row and the size of its journal to each lead, and returns the last row of all. If
/// some rows cannot be read, the last row before them is unknown.
fn find_last_rows(
    connection: &Connection,
    leads: &mut BTreeMap<i64, Lead>,
) -> std::result::Result<i64, Stop> {
    let (mut searched_to, mut lost) = (0, None);
    if leads.is_empty() {
        return Ok(searched_to);
    }
    let gaps = sheaf::walk(connection, |row| {
        searched_to = row.number;
        lost = if row.is_damaged_behind { Some(row.number) } else { lost };
        // A damaged row may name no execution.
        if let Some(lead) = row.execution.and_then(|key| leads.get_mut(&key)) {
            lead.last_row = Some(searched_to);
            lead.byte_count = lead.byte_count.saturating_add(row.byte_count);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    // Its last row may be among those that cannot be read.
    if let Some(lost) = lost.max(gaps.last().map(|gap| gap.first)) {
        leads.values_mut().for_each(|lead| lead.last_row = lead.last_row.filter(|last| *last > lost));
    }
    Ok(searched_to)
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
