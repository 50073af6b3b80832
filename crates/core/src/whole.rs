//! A whole execution that comes from another store.
//!
//! Nothing that it says about itself is believed: its state follows from its entries, and the time
//! of the next look may be too early, never too late.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use crate::{
    Address, Body, Bounds, Entry, Event, Execution, Message, MessageId, Op, Phase, Refusal, Status, Summary,
    Timestamp, TooLarge, parking,
};

/// An execution with everything that it ever recorded and everything that it has not read.
#[derive(Clone, Copy, Debug)]
pub struct Whole<'a> {
    /// The entries of each run, from the first run on.
    pub runs: &'a [Vec<Entry>],
    /// Its state, as the other store reports it.
    pub execution: &'a Execution,
    /// Its summary, as the other store reports it.
    pub summary: &'a Summary,
    /// Its unread messages, in order of arrival.
    pub unread: &'a [Message],
    /// Whether it had a holder, or was about to have one.
    pub was_ready: bool,
}

/// The row of a whole execution in its new store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Its summary. Nobody holds it.
    pub summary: Summary,
    /// Whether a worker has to look at it at once.
    pub is_ready: bool,
    /// When it ended, if it did.
    pub finished_at: Option<Timestamp>,
    /// The ids of the messages that it has read, according to its entries.
    pub read: Vec<MessageId>,
}

impl Whole<'_> {
    /// Returns its row at `now`, if all of it is sound.
    pub fn settle(&self, bounds: &Bounds, now: Timestamp) -> Result<Settled, Refusal> {
        self.check_journal(bounds)?;
        self.check_inbox(bounds)?;
        let summary = self.sound_summary()?;
        let is_finished = self.execution.is_finished();
        let parked =
            parking::park(&summary, self.unread.iter().map(|message| Some(message.body.sort())), now);
        let is_ready = summary.status == Status::Running || self.was_ready || parked.is_ready;
        let last = self.runs.last().and_then(|run| run.last());
        Ok(Settled {
            summary: Summary { care_at: parked.care_at.filter(|_| !is_finished), ..summary },
            is_ready: is_ready && !is_finished,
            finished_at: last.filter(|_| is_finished).map(|entry| entry.at),
            read: self.read(),
        })
    }

    fn unsound(&self, what: impl Into<String>) -> Refusal {
        Refusal::Unsound { id: self.address().id.clone(), what: what.into() }
    }

    fn address(&self) -> &Address {
        self.execution.address()
    }

    /// Checks that every run is numbered from 1 and ends as the next one needs it, and that the
    /// last one adds up to the state.
    fn check_journal(&self, bounds: &Bounds) -> Result<(), Refusal> {
        let mut folded: Option<Execution> = None;
        for (entries, run) in self.runs.iter().zip(1..) {
            if let Some(problem) = folded.and_then(|before| broken_link(&before, entries)) {
                return Err(self.unsound(format!("run {run} {problem}")));
            }
            if entries.iter().zip(1..).any(|(entry, seq)| entry.seq != seq) {
                return Err(self.unsound(format!("the entries of run {run} are not numbered one by one")));
            }
            let found = entries.len();
            let max = usize::try_from(bounds.entry_count_max).unwrap_or(usize::MAX);
            if found > max {
                let what = format!("the journal of {}", self.address());
                return Err(TooLarge { what, limit: "entry_count_max", found, max }.into());
            }
            if let Some(began) = entries.first().and_then(Entry::began) {
                began.start.check(bounds)?;
            }
            folded = Execution::fold(self.address().clone(), run, entries);
            if folded.is_none() {
                return Err(self.unsound(format!("run {run} does not begin with a start")));
            }
        }
        match folded {
            Some(folded) if folded == *self.execution && *folded.phase() != Phase::Continued => Ok(()),
            _ => Err(self.unsound("its state is not what its journal adds up to")),
        }
    }

    fn check_inbox(&self, bounds: &Bounds) -> Result<(), Refusal> {
        let mut ids = HashSet::new();
        for message in self.unread {
            message.check(bounds)?;
            let is_misplaced = message.to != *self.address()
                || matches!(message.body, Body::Start(_) | Body::Retry)
                || !ids.insert(&message.id);
            if is_misplaced {
                return Err(self.unsound(format!("message {:?} cannot lie in its inbox", message.id)));
            }
        }
        let signal_count =
            self.unread.iter().filter(|message| matches!(message.body, Body::Signal { .. })).count();
        let max = bounds.inbox_count_max;
        if signal_count > max {
            let what = format!("the inbox of {}", self.address());
            return Err(TooLarge { what, limit: "inbox_count_max", found: signal_count, max }.into());
        }
        Ok(())
    }

    /// Returns the reported summary, as far as it agrees with the state, with a wake no later than
    /// the entries say.
    fn sound_summary(&self) -> Result<Summary, Refusal> {
        let Summary { status, listens, .. } = *self.summary;
        let is_active = self.execution.phase().is_active();
        let told = self.execution.summary(&self.summary.waiting);
        let found = if told.listens == listens { told } else { self.execution.summary_at_rest() };
        // The waits are an excerpt, so nobody can say whether it sleeps or waits.
        let of_code = [Status::Running, Status::Sleeping, Status::Waiting];
        let may_be = is_active && of_code.contains(&status) && of_code.contains(&found.status);
        if found.listens != listens || (found.status != status && !may_be) {
            return Err(self.unsound("its summary and its state disagree"));
        }
        let open = self.open_timer().filter(|_| is_active);
        let wake_at = [self.summary.wake_at, found.wake_at, open].into_iter().flatten().min();
        let wake_at = wake_at.filter(|_| !self.execution.is_finished());
        // These are only shown to people: the places of the waits, and the hint at a renamed
        // operation.
        let is_told =
            |sites: &SmallVec<_>| found.waiting == self.summary.waiting && sites.len() <= found.waiting.len();
        let sites = self.summary.sites.clone().filter(is_told);
        let unclaimed = self.summary.unclaimed.clone();
        Ok(Summary { status, wake_at, sites, unclaimed, ..found })
    }

    /// Returns the earliest time that an operation without a recorded outcome waits for. The code
    /// may no longer wait for it: that costs only a look.
    fn open_timer(&self) -> Option<Timestamp> {
        let mut open: HashMap<&Op, Timestamp> = HashMap::new();
        for entry in self.runs.last()? {
            match &entry.event {
                Event::TimerSet { op, due_at } => _ = open.insert(op, *due_at),
                Event::AttemptFailed { op, retry_at, .. } => _ = open.insert(op, *retry_at),
                // The wait goes on, and so does its timeout.
                Event::SignalRejected(_) => {}
                event => _ = event.op().and_then(|op| open.remove(op)),
            }
        }
        open.into_values().min()
    }

    fn read(&self) -> Vec<MessageId> {
        let unread: HashSet<_> = self.unread.iter().map(|message| &message.id).collect();
        let mut read = HashSet::new();
        let entries = self.runs.iter().flatten();
        let received = entries.filter_map(|entry| match &entry.event {
            Event::SignalReceived { message, .. } => Some(message),
            Event::SignalRejected(rejected) => Some(&rejected.message),
            _ => None,
        });
        received.filter(|id| !unread.contains(id) && read.insert(*id)).cloned().collect()
    }
}

/// Returns why a run with these entries cannot follow one that ended like this.
fn broken_link(before: &Execution, entries: &[Entry]) -> Option<&'static str> {
    let is_retry = entries.get(1).is_some_and(|second| matches!(second.event, Event::Retried { .. }));
    match before.phase() {
        Phase::Continued if !is_retry => None,
        Phase::Failed | Phase::Cancelled if is_retry => None,
        phase if phase.is_active() => Some("began before the one before it had ended"),
        _ => Some("does not follow from how the one before it ended"),
    }
}
