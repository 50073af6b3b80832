//! A worker's knowledge of an execution that it holds, and the commits that it prepares.

use std::sync::Arc;

use abide_core::{
    Command, Entry, Epoch, Execution, Lease, Message, MessageId, Payload, Start, Summary, Suspicion,
    Timestamp, Version, Waiting, codec,
};

use crate::{Changes, Commit, ExecutionKey, Hold, Leased, Record};

/// An execution that a worker holds, or believes it holds.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) key: ExecutionKey,
    pub(crate) lease: Lease,
    pub(crate) version: Version,
    pub(crate) takeover_count: u32,
    pub(crate) suspicion: Option<Suspicion>,
    /// The start of its current run.
    pub(crate) start: Start,
    pub(crate) execution: Execution,
    pub(crate) inbox: Vec<Message>,
}

impl Held {
    pub(crate) fn of(leased: Leased) -> Self {
        let Leased { key, lease, version, takeover_count, suspicion, execution, .. } = leased;
        let start = start_of(&leased.opening.first_entry().expect("it can be read"));
        let inbox = leased.inbox.messages;
        Self { key, lease, version, takeover_count, suspicion, start, execution, inbox }
    }

    pub(crate) fn id(&self) -> &str {
        self.execution.address().id.as_str()
    }

    /// Returns a commit that changes nothing yet and keeps the lease.
    pub(crate) fn draft(&self, now: Timestamp) -> Draft {
        Draft {
            before: self.clone(),
            after: self.execution.clone(),
            now,
            records: Vec::new(),
            next: None,
            waiting: Vec::new(),
            care_at: None,
            cared_epoch: None,
            suspicion: None,
            consumed: Vec::new(),
            outgoing: Vec::new(),
            born_slots: 0,
            hold: Hold::Keep,
        }
    }

    /// Updates the worker's knowledge after `draft` was committed.
    pub(crate) fn follow(&mut self, draft: &Draft) {
        self.version = draft.before.version.next();
        self.execution = draft.after.clone();
        if let Some(first) = &draft.next {
            self.start = start_of(first);
        }
        self.inbox.retain(|message| !draft.consumed.contains(&message.id));
    }

    /// Updates the worker's knowledge after a transaction recorded `record`.
    pub(crate) fn follow_transaction(&mut self, record: &Record) {
        self.version = self.version.next();
        self.execution.apply(&record.entry().expect("it can be read"));
    }
}

/// A commit that is being prepared.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    before: Held,
    after: Execution,
    now: Timestamp,
    records: Vec<Record>,
    next: Option<Entry>,
    waiting: Vec<Waiting>,
    care_at: Option<Timestamp>,
    cared_epoch: Option<Epoch>,
    suspicion: Option<Suspicion>,
    consumed: Vec<MessageId>,
    outgoing: Vec<Message>,
    born_slots: usize,
    hold: Hold,
}

impl Draft {
    /// Records the entries that follow from `command`, and emits its messages.
    pub(crate) fn then(mut self, command: Command) -> Self {
        let decision = self.after.decide(command, self.now).expect("cases ask for what is possible");
        let (entries, outgoing) = decision.record(&mut self.after, self.now);
        self.records.extend(entries.iter().map(Record::of));
        self.outgoing.extend(outgoing);
        self
    }

    /// Ends the run and begins the next one with `input`.
    pub(crate) fn continued(self, input: &str) -> Self {
        let input = Payload::from(input);
        let mut draft = self.then(Command::ContinueAsNew { input: input.clone() });
        let (next, first) = draft.after.continued(&draft.before.start, input, draft.now);
        draft.after = next;
        draft.next = Some(first);
        draft
    }

    /// Ends the run and begins the next one with `input`, unless the execution refuses.
    pub(crate) fn continued_if_possible(self, input: &str) -> Self {
        let command = Command::ContinueAsNew { input: Payload::from(input) };
        if self.after.decide(command, self.now).is_ok() { self.continued(input) } else { self }
    }

    /// Records the entries that follow from `command`, unless the execution refuses.
    pub(crate) fn then_if_possible(self, command: Command) -> Self {
        if self.after.decide(command.clone(), self.now).is_ok() { self.then(command) } else { self }
    }

    /// Returns the version that it was prepared at.
    pub(crate) fn version(&self) -> Version {
        self.before.version
    }

    pub(crate) fn waiting(mut self, waiting: Waiting) -> Self {
        self.waiting.push(waiting);
        self
    }

    pub(crate) fn sleeping(self, until: Timestamp) -> Self {
        self.waiting(Waiting::Sleep { until })
    }

    pub(crate) fn caring(mut self, care_at: Timestamp) -> Self {
        self.care_at = Some(care_at);
        self
    }

    /// Marks the execution as held by caretakers only.
    pub(crate) fn untouched(mut self) -> Self {
        self.cared_epoch = Some(self.before.lease.epoch);
        self
    }

    /// Keeps the execution suspected after this commit.
    pub(crate) fn suspected(mut self, suspicion: Suspicion) -> Self {
        self.suspicion = Some(suspicion);
        self
    }

    pub(crate) fn consuming(mut self, ids: &[&str]) -> Self {
        self.consumed.extend(ids.iter().map(|id| MessageId::new(*id)));
        self
    }

    pub(crate) fn emitting(mut self, message: Message) -> Self {
        self.outgoing.push(message);
        self
    }

    pub(crate) fn born_slots(mut self, count: usize) -> Self {
        self.born_slots = count;
        self
    }

    /// Parks without having seen any message that stays unread.
    pub(crate) fn park(self) -> Self {
        self.park_after(Vec::new())
    }

    /// Parks having seen these messages.
    pub(crate) fn park_seen(self, seen: &[&str]) -> Self {
        self.park_after(seen.iter().map(|id| MessageId::new(*id)).collect())
    }

    pub(crate) fn park_after(mut self, seen: Vec<MessageId>) -> Self {
        self.hold = Hold::Park { seen };
        self
    }

    pub(crate) fn yielded(mut self) -> Self {
        self.hold = Hold::Yield;
        self
    }

    /// Moves the commit to another lease.
    pub(crate) fn under(mut self, lease: Lease) -> Self {
        self.before.lease = lease;
        self
    }

    fn summary(&self) -> Summary {
        let summary = self.after.summary(&self.waiting);
        let (care_at, cared_epoch) = (self.care_at.or(summary.care_at), self.cared_epoch);
        Summary { care_at, cared_epoch, suspicion: self.suspicion.clone(), ..summary }
    }

    /// Returns the commit, ready to be sent, as often as wanted.
    pub(crate) fn commit(&self) -> Commit {
        Commit {
            key: self.before.key,
            lease: self.before.lease,
            expected: self.before.version,
            changes: Arc::new(Changes {
                records: self.records.iter().cloned().collect(),
                next: self.next.as_ref().map(Record::of),
                state: codec::encode(&self.after),
                summary: self.summary(),
                consumed: self.consumed.clone(),
                outgoing: self.outgoing.clone(),
            }),
            born_slots: self.born_slots,
            hold: self.hold.clone(),
            transaction: None,
            alone: false,
        }
    }
}

fn start_of(first: &Entry) -> Start {
    first.began().expect("a run begins with its start").start.clone()
}
