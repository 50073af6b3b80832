//! One execution as the reference store keeps it.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Bounds, By, Entry, Epoch, Execution, LeaseRow, Message, MessageId, Phase, Refusal, Route,
    SessionId, Start, Status, Summary, Timestamp, care, codec,
    parking::{self, Seen},
};

use super::claim::message_size;
use super::sessions::Ending;
use crate::{
    Commit, Error, ExecutionKey, Hold, InboxCursor, InboxPage, Leased, List, Listed, NEWER_PAUSE, Opening,
    PageBounds, Record, Snapshot, Unreadable, not_unread,
};

/// The longest journal that is folded again at every commit, to check the reported state.
const FOLDED_COUNT_MAX: usize = 64;

/// The position of a ready execution in the queue of its route.
pub(super) type QueuePosition = (Reverse<i16>, Timestamp, ExecutionKey);

pub(super) struct Row {
    pub(super) key: ExecutionKey,
    pub(super) execution: Execution,
    pub(super) route: Route,
    /// The start of its first run.
    pub(super) start: Start,
    /// The execution that started it, if that existed here.
    pub(super) parent: Option<ExecutionKey>,
    pub(super) summary: Summary,
    pub(super) lease: LeaseRow,
    /// The number of its holder's heartbeats before the lease was granted.
    pub(super) given_beat: u64,
    pub(super) created_at: Timestamp,
    /// When the run ended. Nothing changes after that until a retry opens another run.
    pub(super) finished_at: Option<Timestamp>,
    pub(super) ready_at: Option<Timestamp>,
    pub(super) wake_at: Option<Timestamp>,
    pub(super) takeover_count: u32,
    /// Whether a holder could not read it. Only a caretaker's lease ends this state.
    pub(super) is_aside: bool,
    /// The records of the current run and their positions in the feed.
    pub(super) journal: Vec<(u64, Record)>,
    /// The records of earlier runs, run by run.
    pub(super) past: Vec<Vec<(u64, Record)>>,
    /// Unread messages and their numbers, in order of arrival.
    pub(super) inbox: Vec<(u64, Message)>,
    pub(super) arrived_count: u64,
    /// The ids of all messages that ever arrived.
    pub(super) seen: BTreeSet<MessageId>,
}

impl Row {
    pub(super) fn address(&self) -> &Address {
        self.execution.address()
    }

    /// Returns its position in the queue; `None` when it is not ready.
    pub(super) fn place(&self) -> Option<QueuePosition> {
        let priority = if planted(Bug::PriorityIgnored) { 0 } else { self.execution.priority() };
        Some((Reverse(priority), self.ready_at?, self.key))
    }

    /// Returns its timer, if a timer could make it ready.
    pub(super) fn timer(&self) -> Option<(Timestamp, ExecutionKey)> {
        let idle = self.lease.session.is_none() && self.ready_at.is_none() && !self.is_aside;
        Some((self.wake_at.filter(|_| idle)?, self.key))
    }

    /// Returns the session that holds it, and the epoch of the lease.
    pub(super) fn holder(&self) -> Option<(SessionId, Epoch)> {
        Some((self.lease.session?, self.lease.epoch))
    }

    /// Returns when a caretaker is to look at it.
    pub(super) fn care(&self) -> Option<(Timestamp, ExecutionKey)> {
        Some((self.summary.care_at?, self.key))
    }

    /// Looks at it as a caretaker would.
    pub(super) fn look(&self, bounds: &Bounds, now: Timestamp) -> care::Look {
        let unread = self.inbox.iter().map(|(_, message)| message);
        let held = (&self.lease, self.summary.cared_epoch);
        care::look(&self.execution, held, unread, now, bounds.terminate_grace())
    }

    pub(super) fn lease_to(&mut self, session: SessionId, bounds: &Bounds, now: Timestamp) {
        self.lease.session = Some(session);
        self.lease.epoch = self.lease.epoch.next();
        self.ready_at = None;
        self.is_aside = false;
        self.summary.care_at = care::after_lease(self.summary.care_at, now, bounds.terminate_grace());
    }

    /// Puts a message into the inbox, which may make the execution ready if nobody holds it. The
    /// caller notifies a holder.
    pub(super) fn receive(&mut self, message: Message, bounds: &Bounds, (wakes, now): (bool, Timestamp)) {
        self.summary.care_at =
            care::after_arrival(self.summary.care_at, &self.lease, &message, bounds.terminate_grace());
        if wakes && self.lease.session.is_none() && !self.is_aside {
            // A timer that has gone off made it ready, although no claim has seen that yet.
            let due_at = self.wake_at.filter(|wake_at| *wake_at <= now);
            self.ready_at = [self.ready_at, due_at, Some(now)].into_iter().flatten().min();
        }
        assert!(self.seen.insert(message.id.clone()), "a message id is recorded once: {:?}", message.id);
        self.arrived_count += 1;
        self.inbox.push((self.arrived_count, message));
    }

    /// Replaces state and summary and removes consumed messages. The caller appends the records,
    /// because it numbers them in the feed.
    pub(super) fn replace(&mut self, execution: Execution, commit: &Commit) {
        self.execution = execution;
        // A commit does not move `care_at`: while the lease is held, the execution's needs are the
        // holder's business.
        self.summary = Summary { care_at: self.summary.care_at, ..commit.changes.summary.clone() };
        self.wake_at = commit.changes.summary.wake_at;
        self.lease.version = self.lease.version.next();
        self.inbox.retain(|(_, message)| !commit.changes.consumed.contains(&message.id));
        if commit.ends_suspicion() {
            self.takeover_count = 0;
        }
    }

    /// Decides the fate of the lease after a commit.
    pub(super) fn hold(&mut self, commit: &Commit, now: Timestamp) {
        if self.execution.is_finished() {
            self.lease.session = None;
            self.wake_at = None;
            self.summary.care_at = None;
            self.finished_at = Some(now);
            return;
        }
        let (seen, is_yielded) = match &commit.hold {
            Hold::Keep => return,
            Hold::Park { seen } => (seen.as_slice(), false),
            Hold::Yield => (&[][..], true),
        };
        let seen = Seen::of(seen);
        let unread = self.inbox.iter().map(|(_, message)| message);
        let unseen = unread.filter(|message| !seen.has(message.id.as_str()));
        let parked =
            parking::park(&commit.changes.summary, unseen.map(|message| Some(message.body.sort())), now);
        self.ready_at = (is_yielded || parked.is_ready).then_some(now);
        self.lease.session = None;
        self.summary.care_at = parked.care_at;
    }

    /// Takes the execution from its holder, which cannot read it.
    pub(super) fn set_aside(&mut self, unreadable: &Unreadable, now: Timestamp) {
        match unreadable {
            Unreadable::Damaged(_) => {
                self.lease.session = None;
                self.is_aside = true;
            }
            Unreadable::Newer(_) => {
                self.release(Ending::Orderly, now);
                (self.ready_at, self.wake_at) = (None, Some(now.after(NEWER_PAUSE)));
            }
        }
    }

    /// Returns the summary that readers see.
    pub(super) fn told(&self) -> Summary {
        let status = if self.is_aside { Status::Damaged } else { self.summary.status };
        Summary { status, ..self.summary.clone() }
    }

    /// Releases the lease of a session that has ended.
    pub(super) fn release(&mut self, ending: Ending, now: Timestamp) {
        self.lease.session = None;
        self.ready_at = Some(now);
        self.summary.care_at = care::after_release(self.summary.care_at, !self.inbox.is_empty(), now);
        self.takeover_count += u32::from(ending == Ending::Death);
    }

    /// Returns the run that a retry opens, and its first entries.
    pub(super) fn retried(&self, by: &By, now: Timestamp) -> Result<(Execution, Vec<Entry>), Refusal> {
        let (_, first) = self.journal.first().expect("a run begins with its start");
        let first = first.entry().expect("recorded entries can be read");
        self.execution.retried(first.began().expect("a run begins with its start"), by.clone(), now)
    }

    /// Opens the next run of an execution that failed or was cancelled.
    pub(super) fn retry(&mut self, execution: Execution, records: Vec<(u64, Record)>, now: Timestamp) {
        self.summary = execution.summary_at_start(now);
        self.wake_at = self.summary.wake_at;
        self.execution = execution;
        self.finished_at = None;
        self.ready_at = Some(now);
        self.inbox.retain(|(_, message)| message.body.sort().outlives_failure());
        self.open_run(records);
    }

    /// Begins a new journal with `records`.
    pub(super) fn open_run(&mut self, records: Vec<(u64, Record)>) {
        self.past.push(std::mem::replace(&mut self.journal, records));
    }

    /// Returns the journal of `run`, or of the current run.
    pub(super) fn journal_of(&self, run: Option<u32>) -> &[(u64, Record)] {
        match run {
            Some(run) if run != self.execution.run() => {
                let index = usize::try_from(run).ok().and_then(|run| run.checked_sub(1));
                index.and_then(|index| self.past.get(index)).map_or(&[], Vec::as_slice)
            }
            _ => &self.journal,
        }
    }

    /// Returns the page of a journal that begins with entry `from`.
    pub(super) fn page(
        journal: &[(u64, Record)],
        (from, limit): (u64, usize),
        page_bounds: &PageBounds,
    ) -> Vec<Record> {
        let skipped = usize::try_from(from.saturating_sub(1)).unwrap_or(usize::MAX);
        let (mut page, mut bytes) = (Vec::new(), 0);
        let wanted = journal.iter().skip(skipped).take(limit.min(page_bounds.journal_page_count_max));
        for (_, record) in wanted {
            bytes += record.bytes.len();
            if bytes > page_bounds.journal_page_bytes_max && !page.is_empty() {
                break;
            }
            page.push(record.clone());
        }
        page
    }

    /// Returns the page of the inbox after `after`.
    pub(super) fn inbox_page(&self, after: Option<InboxCursor>, page_bounds: &PageBounds) -> InboxPage {
        let after = after.map_or(0, |InboxCursor(arrived)| arrived);
        let rest = self.inbox.iter().skip_while(|(arrived, _)| *arrived <= after);
        let mut page = InboxPage::default();
        let (mut last, mut bytes) = (after, 0);
        for (arrived, message) in rest {
            bytes += message_size(message);
            let is_full = page.messages.len() >= page_bounds.inbox_page_count_max;
            if is_full || (bytes > page_bounds.inbox_page_bytes_max && !page.messages.is_empty()) {
                page.next = Some(InboxCursor(last));
                break;
            }
            last = *arrived;
            page.messages.push(message.clone());
        }
        page
    }

    pub(super) fn leased(&self, page_bounds: &PageBounds) -> Leased {
        let session = self.lease.session.expect("only leased executions are told as leased");
        let lease = abide_core::Lease { session, epoch: self.lease.epoch };
        Leased {
            key: self.key,
            lease,
            version: self.lease.version,
            takeover_count: self.takeover_count,
            suspicion: self.summary.suspicion.clone(),
            unclaimed: self.summary.unclaimed.clone(),
            is_first: lease.is_first(self.summary.cared_epoch),
            execution: self.execution.clone(),
            opening: Opening::Page(Self::page(&self.journal, (1, usize::MAX), page_bounds)),
            inbox: self.inbox_page(None, page_bounds),
        }
    }

    pub(super) fn snapshot(&self, journal: Vec<Record>, inbox: InboxPage) -> Snapshot {
        Snapshot {
            key: self.key,
            execution: self.execution.clone(),
            summary: self.told(),
            lease: self.lease,
            created_at: self.created_at,
            ready_at: self.ready_at,
            takeover_count: self.takeover_count,
            tags: self.start.tags.clone(),
            journal,
            inbox,
        }
    }

    pub(super) fn listed(&self, list: &List) -> Listed {
        Listed {
            key: self.key,
            address: self.address().clone(),
            kind: self.execution.kind(),
            name: self.execution.name().clone(),
            run: Some(self.execution.run()),
            summary: self.told(),
            tags: if list.with_tags { self.start.tags.clone() } else { Vec::new() },
            created_at: Some(self.created_at),
        }
    }
}

/// The invariants before and after every write.
impl Row {
    /// Refuses a commit that consumes a message which is not unread.
    pub(super) fn check_consumed(&self, commit: &Commit) -> crate::Result<()> {
        let mut unread: BTreeSet<_> = self.inbox.iter().map(|(_, message)| &message.id).collect();
        match commit.changes.consumed.iter().find(|id| !unread.remove(id)) {
            Some(id) => Err(Error::Corrupt { what: not_unread(self.key, id) }),
            None => Ok(()),
        }
    }

    /// Panics for a commit that no correct caller makes. Returns the state that the commit reports.
    pub(super) fn checked(&self, commit: &Commit) -> Execution {
        let address = self.address();
        for (record, seq) in commit.changes.records.iter().zip(self.execution.entry_count() + 1..) {
            assert_eq!(record.seq, seq, "the journal of {address} has no gaps");
            record.entry().expect("appended records can be read");
        }
        let execution: Execution =
            codec::decode(&commit.changes.state).expect("a reported state can be read");
        let execution = execution.at(address.clone());
        let (mut run, mut entry_count) = (self.execution.run(), self.execution.entry_count());
        entry_count += commit.changes.records.len() as u64;
        if let Some(next) = &commit.changes.next {
            assert_eq!(next.seq, 1, "the next run of {address} begins with its first entry");
            (run, entry_count) = (run + 1, 1);
        }
        assert_eq!(execution.run(), run, "the state of {address} counts its runs");
        assert_eq!(execution.entry_count(), entry_count, "the state of {address} counts its entries");
        assert_eq!(
            commit.changes.summary.status.is_terminal(),
            execution.is_finished(),
            "state and summary of {address} agree about its end"
        );
        assert_ne!(execution.phase(), &Phase::Continued, "{address} goes on in its next run");
        self.check_fold(&execution, commit);
        execution
    }

    fn check_fold(&self, reported: &Execution, commit: &Commit) {
        let (appended, next) = (&commit.changes.records, &commit.changes.next);
        if !cfg!(debug_assertions) || self.journal.len() + appended.len() > FOLDED_COUNT_MAX {
            return;
        }
        let records = self.journal.iter().map(|(_, record)| record).chain(appended);
        let folded = self.folded(self.execution.run(), records);
        let Some(first) = next else {
            assert_eq!(folded.as_ref(), Some(reported), "the state is what the journal adds up to");
            return;
        };
        let phase = folded.as_ref().map(Execution::phase);
        assert_eq!(phase, Some(&Phase::Continued), "only what continues as new has a next run");
        let folded = self.folded(reported.run(), [first]);
        assert_eq!(folded.as_ref(), Some(reported), "the state is what the next run begins with");
    }

    fn folded<'a>(&self, run: u32, records: impl IntoIterator<Item = &'a Record>) -> Option<Execution> {
        let entry = |record: &Record| record.entry().expect("recorded entries can be read");
        let entries: Vec<Entry> = records.into_iter().map(entry).collect();
        Execution::fold(self.address().clone(), run, &entries)
    }

    /// Returns the number of entries of all runs.
    fn entry_count(&self) -> usize {
        self.past.iter().map(Vec::len).sum::<usize>() + self.journal.len()
    }

    pub(super) fn marks(&self) -> Marks {
        Marks {
            lease: self.lease,
            run: self.execution.run(),
            seen_count: self.seen.len(),
            entry_count: self.entry_count(),
            finished: self.finished_at.is_some(),
        }
    }

    /// Checks the change since `before`: no operation may break these rules.
    pub(super) fn check_since(&self, before: &Marks) {
        let address = self.address();
        let (old, new) = (before.lease, self.lease);
        let run = self.execution.run();
        assert!(run == before.run || run == before.run + 1, "runs of {address} are counted one by one");
        assert!(!before.finished || run > before.run, "a run of {address} has ended and nothing changes it");
        assert!(new.epoch == old.epoch || new.epoch == old.epoch.next(), "epochs of {address} grow by one");
        assert!(new.version == old.version || new.version == old.version.next(), "versions grow by one");
        let taken = new.session.is_some() && new.session != old.session;
        assert!(!taken || new.epoch != old.epoch, "a lease of {address} is an epoch");
        assert!(new.session.is_some() || new.epoch == old.epoch, "an epoch of {address} is a lease");
        assert!(self.seen.len() >= before.seen_count, "message ids of {address} stay");
        assert!(self.entry_count() >= before.entry_count, "entries of {address} stay");
        self.check();
    }

    /// Checks the invariants of every row.
    pub(super) fn check(&self) {
        let address = self.address();
        assert_eq!(self.journal.len() as u64, self.execution.entry_count(), "{address} has its entries");
        let held = self.lease.session.is_some();
        assert!(!held || self.ready_at.is_none(), "{address} is held or ready, not both");
        if self.finished_at.is_some() {
            assert!(!held && self.ready_at.is_none() && self.wake_at.is_none(), "{address} has ended");
            assert_eq!(self.summary.care_at, None, "{address} has ended");
        }
        let scheduled = self.summary.status == Status::Scheduled;
        assert!(!scheduled || self.summary.wake_at.is_some(), "{address} is scheduled for a time");
        assert!(
            self.inbox.iter().all(|(_, message)| self.seen.contains(&message.id)),
            "unread ids are recorded"
        );
    }
}

/// The marks that a changed row may not fall behind.
pub(super) struct Marks {
    lease: LeaseRow,
    run: u32,
    seen_count: usize,
    entry_count: usize,
    finished: bool,
}
