//! The order in which a replayed workflow receives recorded entries.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use crate::planted::{Bug, planted};
use crate::rename::{Record, Renamed, Renames};
use crate::{
    Block, Entry, Event, Failure, Few, KeyHasher, Op, OpIndex, OpKind, Outcome, Remedied, Remedy, StepRecord,
    Timestamp, Uses,
};

/// Walks a journal beside the workflow that is replayed from it.
///
/// The rule: deliver the earliest recorded entry whose operation is open. An unrecorded operation
/// may start only when no remaining entry matches an open operation. The caller announces which
/// operations are open, offers entries in journal order ([`Cursor::offer`]) and learns what to do
/// with them.
///
/// An entry whose operation is not open when it is passed is *skipped*: its key and number are kept
/// (16 bytes). Its contents are read again if the code asks for it later. Unchanged code skips
/// nothing.
#[derive(Debug, Default)]
pub struct Cursor {
    strict: bool,
    /// Operations that strict code asked for and gave up again: their records are simply unused.
    given_up: HashSet<u64, KeyHasher>,
    passed: u64,
    open: Few<u64, ()>,
    skipped: HashMap<u64, Skipped, KeyHasher>,
    /// Open operations whose entry was skipped before they opened, by entry number.
    wanted: BTreeSet<(u32, u64)>,
    notes: HashMap<u64, Noted, KeyHasher>,
    /// Results that could not be recorded and still await a decision, in order; rarely more than
    /// one.
    lost: Vec<Lost>,
    renames: Renames,
    /// The first operations that were skipped.
    passed_over: Vec<Op>,
}

/// The number of skipped operations that are kept by name.
const PASSED_OVER_COUNT_MAX: usize = 8;

/// An entry that was passed before its operation opened.
#[derive(Clone, Copy, Debug)]
struct Skipped {
    seq: u32,
    /// The number of the place in the code that it comes from; 0 for none.
    site: u32,
}

/// A result that could not be recorded.
#[derive(Debug)]
struct Lost {
    seq: u64,
    op: Op,
    reason: String,
    /// Whether its operation was open when it was passed: the run went no further than this.
    is_awaited: bool,
}

/// The record of an operation that has no outcome yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The number of failed attempts.
    pub attempt_count: u32,
    /// The failure of the last attempt.
    pub failure: Option<Failure>,
    /// When it is due: the next attempt, the end of a sleep, or the timeout of a signal.
    pub due_at: Option<Timestamp>,
    /// When the first attempt began, if one has failed.
    pub first_at: Option<Timestamp>,
    /// Whether a child was asked to stop already.
    pub cancelled: bool,
}

/// An operation that has entries, and no outcome among them.
#[derive(Debug)]
struct Noted {
    /// The operation itself: its index is a hash, which another one may share.
    op: Op,
    note: Note,
    /// The last entry that only code which asks for the operation records.
    begun_by: Option<u64>,
}

impl Noted {
    fn of(op: &Op) -> Self {
        Self { op: op.clone(), note: Note::default(), begun_by: None }
    }
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read this entry again and deliver it.
    Fetch(u64),
    /// Offer the entry with this number.
    Offer(u64),
}

/// The code asks for an operation that the journal does not have at this place. Only strict
/// workflows see it, and code whose operations share an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The operation in the journal.
    pub expected: Op,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the journal has {}", self.expected)
    }
}

impl Cursor {
    /// Creates a cursor before the first entry. A strict one refuses to skip.
    #[inline]
    pub fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// Opens an operation: the workflow waits for its outcome.
    pub fn open(&mut self, key: OpIndex) {
        self.open.insert(key.0, ());
        if let Some(Skipped { seq, .. }) = self.skipped.get(&key.0) {
            self.wanted.insert((*seq, key.0));
        }
    }

    /// Opens an operation that had these names before: the workflow waits for its outcome.
    pub fn open_renamed(&mut self, key: OpIndex, olds: &[OpIndex]) {
        self.open(key);
        let has_outcome = |key: &u64| {
            self.skipped.contains_key(key) || self.lost.iter().any(|lost| lost.op.index().0 == *key)
        };
        if has_outcome(&key.0) || planted(Bug::RenamedRunsAgain) {
            return;
        }
        let olds: Vec<u64> = olds.iter().map(|old| old.0).filter(|old| *old != key.0).collect();
        let outcomes = olds.iter().copied().filter(has_outcome);
        let outcomes = outcomes.map(|old| (old, Record { seq: self.outcome_of(old), is_outcome: true }));
        let outcome = outcomes.max_by_key(|(_, record)| record.seq);
        let is_noted = |key: &u64| self.notes.contains_key(key);
        let noted = || olds.iter().copied().find(|old| is_noted(old) && !is_noted(&key.0));
        let begun_by = |old| self.notes.get(&old).and_then(|noted| noted.begun_by).unwrap_or_default();
        let begun = || noted().map(|old| (old, Record { seq: begun_by(old), is_outcome: false }));
        let found = outcome.or_else(begun);
        self.renames.open(key.0, olds, found);
    }

    /// Returns the number of the passed outcome of an operation; 0 for none.
    fn outcome_of(&self, key: u64) -> u64 {
        let skipped = self.skipped.get(&key).map(|skipped| u64::from(skipped.seq));
        let lost = || self.lost.iter().find(|lost| lost.op.index().0 == key).map(|lost| lost.seq);
        skipped.or_else(lost).unwrap_or_default()
    }

    /// Returns an open operation that the journal recorded under an old name before it opened.
    pub fn renamed(&self) -> Option<Renamed> {
        self.renames.first_found()
    }

    /// Returns the open operation that has the name of this entry as an old name.
    pub fn renamed_by(&self, entry: &Entry) -> Option<Renamed> {
        if self.renames.is_empty() {
            return None;
        }
        let old = entry.event.op()?.index();
        let own = self.renames.own(old.0).filter(|_| !self.open.contains(&old.0))?;
        Some(Renamed { own: OpIndex(own), old, record: record_of(entry) })
    }

    /// Takes an entry of the rest of the journal, before the first [adoption](Self::adopt) of an
    /// old name.
    pub fn look_ahead(&mut self, entry: &Entry) {
        match (&entry.event, entry.event.op()) {
            (Event::Unblocked { remedied: Some(Remedied { op, remedy: Remedy::Rerun, .. }), .. }, _) => {
                self.renames.rerun_ahead(op.index().0);
            }
            (_, Some(op)) => self.renames.look_ahead(op.index().0, record_of(entry)),
            (_, None) => {}
        }
    }

    /// Treats an open operation under its old name from now on. Returns `false`, and does not, if
    /// the rest of the journal has a newer record under another of its names.
    pub fn adopt(&mut self, renamed: Renamed) -> bool {
        let is_newest = self.renames.is_newest(renamed);
        // Also if another record is newer: the replay will find that one.
        self.renames.forget(renamed);
        if is_newest {
            // The code still asks for it, by its old name.
            self.detach(renamed.own);
            self.open(renamed.old);
        }
        is_newest
    }

    /// Closes an operation: the workflow no longer waits for it.
    pub fn close(&mut self, key: OpIndex) {
        let was_open = self.open.contains(&key.0);
        let old_names = self.detach(key);
        if was_open && self.strict {
            self.given_up.insert(key.0);
            // Its outcome may be recorded under any of its names.
            let old_names = old_names.into_iter().filter(|_| !planted(Bug::RenamedDemanded));
            self.given_up.extend(old_names);
        }
    }

    /// Forgets an open operation, and returns its old names.
    fn detach(&mut self, key: OpIndex) -> Vec<u64> {
        self.open.remove(&key.0);
        if let Some(Skipped { seq, .. }) = self.skipped.get(&key.0) {
            self.wanted.remove(&(*seq, key.0));
        }
        self.renames.close(key.0)
    }

    /// Returns the next thing to do. The caller knows where the journal ends.
    pub fn next(&self) -> Next {
        match self.wanted.first() {
            Some((seq, _)) => Next::Fetch(u64::from(*seq)),
            None => Next::Offer(self.passed + 1),
        }
    }

    /// Whether an open operation has an entry that was passed before it opened.
    pub fn is_wanted(&self) -> bool {
        !self.wanted.is_empty() || self.renames.first_found().is_some()
    }

    /// Returns the number of the last entry that was passed.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Whether an outcome was passed that no operation has asked for.
    pub fn has_skipped(&self) -> bool {
        !self.skipped.is_empty()
    }

    /// Returns the obstacle that the run cannot get past: a wanted result that could not be
    /// recorded and that nobody has decided about. Call it at the end of the journal, because a
    /// decision comes after the result that it concerns.
    pub fn obstacle(&self) -> Option<Block> {
        let is_wanted = |lost: &&Lost| lost.is_awaited || self.open.contains(&lost.op.index().0);
        let Lost { op, reason, .. } = self.lost.iter().find(is_wanted)?;
        Some(Block::Unrecordable { op: op.clone(), reason: reason.clone() })
    }

    /// Takes the entry after the last one. `true`: deliver it now, its operation is open (and now
    /// closed).
    pub fn offer(&mut self, entry: &Entry) -> Result<bool, Mismatch> {
        self.offer_of(entry, entry.event.op().map(Op::index))
    }

    /// Does the same for a caller that knows the index of the entry's operation.
    pub fn offer_of(&mut self, entry: &Entry, key: Option<OpIndex>) -> Result<bool, Mismatch> {
        debug_assert_eq!(key, entry.event.op().map(Op::index), "it is the entry's own");
        debug_assert_eq!(entry.seq, self.passed + 1, "entries are offered in order");
        self.passed = entry.seq;
        match &entry.event {
            Event::CancelRequested { .. } | Event::DeadlinePassed { .. } => {
                // The waiting code has seen this event instead.
                self.lost.iter_mut().for_each(|lost| lost.is_awaited = false);
                return Ok(true);
            }
            Event::StepRecorded(StepRecord { op, outcome: Outcome::Unrecordable(lost), .. }) => {
                return self.lose(entry.seq, op, &lost.reason);
            }
            // Accepting another input decides nothing about a lost result.
            Event::Unblocked { remedied: Some(Remedied { op, remedy, .. }), .. }
                if *remedy != Remedy::Accept =>
            {
                self.lost.retain(|lost| lost.op != *op);
            }
            _ => {}
        }
        // The decision about a change of the code is known before the replay begins.
        let op = entry.event.op().filter(|op| op.kind != OpKind::Patch);
        let (Some(op), Some(OpIndex(key))) = (op, key) else { return Ok(false) };
        if !entry.event.is_delivery() {
            // Both events are recorded while their operation is open.
            let is_begun = matches!(entry.event, Event::TimerSet { .. } | Event::AttemptFailed { .. });
            if is_begun && !planted(Bug::TimerNotDemanded) {
                self.demand(op)?;
            }
            let noted = self.notes.entry(key).or_insert_with(|| Noted::of(op));
            if noted.op != *op && !planted(Bug::IndexIsIdentity) {
                *noted = Noted::of(op);
            }
            noted.note.take(&entry.event);
            if is_begun {
                noted.begun_by = Some(entry.seq);
            }
            return Ok(false);
        }
        self.notes.remove(&key);
        if self.open.remove(&key).is_some() {
            self.renames.close(key);
            return Ok(true);
        }
        self.demand(op)?;
        if self.passed_over.len() < PASSED_OVER_COUNT_MAX {
            self.passed_over.push(op.clone());
        }
        // A journal is bounded far below 2^32 entries (`entry_count_max`).
        let seq = u32::try_from(entry.seq).expect("journals are bounded");
        let site = entry.site.as_ref().map_or(0, |mark| mark.number);
        self.skipped.insert(key, Skipped { seq, site });
        Ok(false)
    }

    /// Passes the entry after the last one: a result that somebody set and that the code could not
    /// read. Its step waits for the next decision.
    pub fn refute(&mut self, entry: &Entry) {
        debug_assert_eq!(entry.seq, self.passed + 1, "entries are offered in order");
        self.passed = entry.seq;
    }

    /// Notes that the result of this operation could not be recorded. Its failed attempts no longer
    /// count.
    fn lose(&mut self, seq: u64, op: &Op, reason: &str) -> Result<bool, Mismatch> {
        let key = op.index().0;
        self.notes.remove(&key);
        let is_awaited = self.open.contains(&key);
        self.demand(op)?;
        self.lost.push(Lost { seq, op: op.clone(), reason: reason.to_owned(), is_awaited });
        Ok(false)
    }

    /// Checks that strict code has asked for the operation that is recorded at this place. It may
    /// have given the operation up since: several outcomes may be recorded before the code sees the
    /// first of them.
    fn demand(&self, op: &Op) -> Result<(), Mismatch> {
        let key = op.index().0;
        let is_given_up = self.given_up.contains(&key) && !planted(Bug::GivenUpDemanded);
        let is_asked_for = !self.strict || self.open.contains(&key) || is_given_up;
        if is_asked_for { Ok(()) } else { Err(Mismatch { expected: op.clone() }) }
    }

    /// Takes an entry that [`Next::Fetch`] asked for; the caller delivers it.
    pub fn fetched(&mut self, entry: &Entry) {
        let Some(op) = entry.event.op() else { return };
        let key = op.index().0;
        self.open.remove(&key);
        self.renames.close(key);
        if let Some(Skipped { seq, .. }) = self.skipped.remove(&key) {
            self.wanted.remove(&(seq, key));
        }
    }

    /// Takes the record of an operation that turned out to have no outcome yet. Fails if the record
    /// belongs to another operation with the same index: its attempts and times are not for this
    /// one.
    pub fn take_note(&mut self, op: &Op) -> Result<Note, Mismatch> {
        if self.notes.is_empty() {
            return Ok(Note::default());
        }
        let key = op.index().0;
        let recorded = self.notes.get(&key).map(|noted| &noted.op);
        match recorded.filter(|recorded| *recorded != op && !planted(Bug::IndexIsIdentity)) {
            Some(recorded) => Err(Mismatch { expected: recorded.clone() }),
            None => Ok(self.notes.remove(&key).map(|noted| noted.note).unwrap_or_default()),
        }
    }

    /// Whether the journal has an outcome of this operation that the code has not asked for.
    pub fn is_skipped(&self, key: OpIndex) -> bool {
        self.skipped.contains_key(&key.0) || self.lost.iter().any(|lost| lost.op.index() == key)
    }

    /// Returns the number of the place that such an outcome comes from, if its entry names one.
    pub fn skipped_site(&self, key: OpIndex) -> Option<u32> {
        self.skipped.get(&key.0).map(|skipped| skipped.site).filter(|number| *number > 0)
    }

    /// Whether entries were passed that no operation has taken.
    pub fn has_left(&self) -> bool {
        self.has_skipped() || !self.notes.is_empty()
    }

    /// Returns the first operations that have passed entries which no operation has taken: an
    /// outcome, or what comes before one.
    pub fn unclaimed(&self) -> Vec<Op> {
        let is_left = |op: &&Op| self.skipped.contains_key(&op.index().0);
        let mut begun: Vec<_> = self.begun().collect();
        begun.sort_unstable_by_key(|(seq, _)| *seq);
        let begun = begun.into_iter().map(|(_, op)| op).take(PASSED_OVER_COUNT_MAX);
        self.passed_over.iter().filter(is_left).chain(begun).cloned().collect()
    }

    /// Returns the operations that were begun and have no outcome, and the last entry of each.
    fn begun(&self) -> impl Iterator<Item = (u64, &Op)> {
        self.notes.values().filter_map(|noted| noted.begun_by.map(|seq| (seq, &noted.op)))
    }

    /// Returns the numbers of passed entries that the code never asked for, in order, at most
    /// `limit`. `uses` are the names that the code has used: it may have asked for an operation
    /// without an outcome, and have given it up before it began.
    pub fn unused(&self, limit: usize, uses: &Uses) -> Vec<u64> {
        if !self.has_left() && self.lost.is_empty() {
            return Vec::new();
        }
        let skipped = self.skipped.values().map(|skipped| u64::from(skipped.seq));
        let begun = self.begun().filter(|(_, op)| !uses.has_asked_for(op)).map(|(seq, _)| seq);
        let mut seqs: Vec<_> = skipped.chain(begun).chain(self.lost.iter().map(|lost| lost.seq)).collect();
        seqs.sort_unstable();
        seqs.truncate(limit);
        seqs
    }
}

impl Note {
    fn take(&mut self, event: &Event) {
        match event {
            Event::AttemptFailed { attempt, failure, retry_at, first_at, .. } => {
                self.attempt_count = *attempt;
                self.failure = Some(failure.clone());
                self.due_at = Some(*retry_at);
                self.first_at = Some(*first_at);
            }
            Event::TimerSet { due_at, .. } => self.due_at = Some(*due_at),
            Event::ChildCancelled { .. } => self.cancelled = true,
            _ => {}
        }
    }
}

/// Whether this event is the end of an operation, even if the code never receives it.
fn is_outcome(event: &Event) -> bool {
    event.is_delivery() || matches!(event, Event::StepRecorded(_))
}

fn record_of(entry: &Entry) -> Record {
    Record { seq: entry.seq, is_outcome: is_outcome(&entry.event) }
}
