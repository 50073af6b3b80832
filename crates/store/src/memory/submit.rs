//! Messages for inboxes, and new executions.

use std::collections::BTreeSet;

use abide_core::intake::Intake;
use abide_core::{
    Address, Body, By, Epoch, Execution, LeaseRow, Message, MessageId, Namespace, SessionId, Start, Status,
    Timestamp, Version,
};

use super::admission::Ahead;
use super::row::Row;
use super::state::MemoryState;
use crate::{
    CommitOutcome, Error, ExecutionKey, Notice, Record, Result, Stretch, Submissions, Submit, Submitted,
};

impl MemoryState {
    pub(super) fn submit(&mut self, submit: Submit, now: Timestamp) -> Result<Submissions> {
        let mut submit = submit;
        let stretch = submit.stretch.take().filter(|_| submit.messages.len() == 1);
        let mut ahead = Ahead::of(self, now);
        let intakes: Vec<Intake> =
            submit.messages.iter().map(|message| Ok(ahead.admit(message)?)).collect::<Result<_>>()?;
        let begins_at = stretch.as_ref().map(|stretch| stretch.begins_at(now));
        let written = submit
            .messages
            .into_iter()
            .zip(intakes)
            .map(|(message, intake)| {
                (intake, self.write_at(message, intake, submit.born_to, (now, begins_at)))
            })
            .collect::<Vec<_>>();
        // The leases are read after everything is written: an execution that was started together
        // with a signal has it in its inbox.
        let mut submitted: Submissions =
            written.into_iter().map(|(intake, key)| self.submitted(intake, key)).collect();
        if let (Some(stretch), [started]) = (&stretch, submitted.as_mut_slice()) {
            self.follow(stretch, started, now);
        }
        Ok(submitted)
    }

    /// Carries out the first stretch of an execution that was just created.
    fn follow(&mut self, stretch: &Stretch, started: &mut Submitted, now: Timestamp) {
        let Some(key) = stretch.of(started) else { return };
        let committed = match stretch.commit_of(key) {
            None => Ok(Box::default()),
            Some(commit) => match self.commit(commit, now) {
                Ok(CommitOutcome::Committed(committed)) => Ok(Box::new(committed)),
                Err(Error::Refused(refusal)) => Err(refusal),
                Ok(CommitOutcome::Fenced(_)) | Err(_) => return,
            },
        };
        *started = Submitted::Begun(key, committed);
    }

    fn submitted(&self, intake: Intake, key: ExecutionKey) -> Submitted {
        match intake {
            Intake::Create => {
                let row = self.row(key);
                let leased = row.lease.session.map(|_| Box::new(row.leased(&self.page_bounds)));
                Submitted::Started(key, leased)
            }
            Intake::Attach => Submitted::Attached(key),
            Intake::Deliver { .. } | Intake::Retry => Submitted::Delivered(key),
            Intake::Duplicate => Submitted::Duplicate(key),
        }
    }

    /// Carries out the admission of a message. Returns the execution that the message went to.
    pub(super) fn write(
        &mut self,
        message: Message,
        intake: Intake,
        offer: Option<SessionId>,
        now: Timestamp,
    ) -> ExecutionKey {
        self.write_at(message, intake, offer, (now, None))
    }

    /// Does the same. An execution that is created and leased here begins at `begins_at`.
    fn write_at(
        &mut self,
        message: Message,
        intake: Intake,
        offer: Option<SessionId>,
        (now, begins_at): (Timestamp, Option<Timestamp>),
    ) -> ExecutionKey {
        if let (Intake::Create, Body::Start(start)) = (intake, &message.body) {
            return self.create(message.to.clone(), (**start).clone(), offer, (now, begins_at));
        }
        let key =
            *self.by_address.get(&message.to).expect("only messages to existing executions are admitted");
        match intake {
            Intake::Deliver { wakes } => self.deliver(key, message.arrived(now), (wakes, now)),
            Intake::Retry => self.retry(key, (message.id, message.by), now),
            Intake::Create | Intake::Attach | Intake::Duplicate => {}
        }
        key
    }

    fn retry(&mut self, key: ExecutionKey, (id, by): (MessageId, By), now: Timestamp) {
        let (execution, entries) = self.row(key).retried(&by, now).expect("the retry was admitted");
        let (address, run) = (execution.address().clone(), execution.run());
        let records = self.positioned(key, (&address, run), entries.iter().map(Record::of).collect());
        self.change(key, |row| {
            row.retry(execution, records, now);
            row.seen.insert(id);
        });
    }

    fn deliver(&mut self, key: ExecutionKey, message: Message, (wakes, now): (bool, Timestamp)) {
        let row = self.row(key);
        if let Some(session) = row.lease.session {
            let previous = row.inbox.last().map(|(_, newest)| newest.id.clone());
            let (epoch, message) = (row.lease.epoch, message.clone());
            self.notices.push(session, Notice::Message { key, epoch, message, previous });
        }
        let bounds = self.bounds.clone();
        self.change(key, |row| row.receive(message, &bounds, (wakes, now)));
    }

    fn create(
        &mut self,
        address: Address,
        start: Start,
        offer: Option<SessionId>,
        (now, begins_at): (Timestamp, Option<Timestamp>),
    ) -> ExecutionKey {
        let key = self.next_key();
        let (execution, entry) = Execution::start(address, start.clone(), now);
        let (summary, namespace) = (execution.summary_at_start(now), execution.address().namespace.clone());
        let of = (execution.address().clone(), execution.run());
        let mut row = Row {
            key,
            route: execution.route(),
            execution,
            parent: self.parent_key(&start, &namespace),
            start,
            ready_at: (summary.status != Status::Scheduled).then_some(now),
            wake_at: summary.wake_at,
            summary,
            lease: LeaseRow { session: None, epoch: Epoch(0), version: Version(0) },
            given_beat: 0,
            created_at: now,
            finished_at: None,
            takeover_count: 0,
            journal: Vec::new(),
            past: Vec::new(),
            inbox: Vec::new(),
            is_aside: false,
            arrived_count: 0,
            seen: BTreeSet::new(),
        };
        let mut first = entry;
        if let Some(session) = offer.filter(|session| self.takes(*session, &row, now)) {
            row.lease_to(session, &self.bounds, now);
            if let Some(begins_at) = begins_at {
                (row.execution, first) = Execution::start(of.0.clone(), row.start.clone(), begins_at);
            }
        }
        row.journal = self.positioned(key, (&of.0, of.1), vec![Record::of(&first)]);
        self.insert(row);
        key
    }

    /// Returns the parent of a child.
    pub(super) fn parent_key(&self, start: &Start, namespace: &Namespace) -> Option<ExecutionKey> {
        let address = Address { namespace: namespace.clone(), id: start.parent.as_ref()?.id.clone() };
        self.by_address.get(&address).copied()
    }

    /// Whether a new execution is born leased to the session that offers to run it.
    fn takes(&self, session: SessionId, row: &Row, now: Timestamp) -> bool {
        let able = self.live(session, now).is_ok_and(|found| found.worker.ability.serves(&row.route));
        let first = self.queues.get(&row.route).and_then(|queue| queue.first());
        let is_behind = first.is_some_and(|(priority, _, _)| priority.0 >= row.execution.priority());
        able && row.ready_at.is_some() && !is_behind
    }
}
