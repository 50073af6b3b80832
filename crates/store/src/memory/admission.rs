//! Whether a message may be put where it wants to go.

use std::collections::BTreeMap;

use abide_core::{
    Address, Body, Execution, Limits, Message, MessageId, Refusal, Start, StartMatch, Timestamp, TooLarge,
    start_matches,
};

use super::state::State;

/// What is to be done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Create an execution.
    Create,
    /// Nothing: the execution began the same way.
    Attach,
    /// Put it into the inbox.
    Deliver,
    /// Open the next run.
    Retry,
    /// Nothing: it was there before.
    Duplicate,
}

/// The state as it would be after messages that were admitted but not written yet. All of a submit are admitted before
/// the first is written, so that a refusal leaves no trace.
pub(super) struct Ahead<'a> {
    state: &'a State,
    started: BTreeMap<&'a Address, &'a Start>,
    delivered: BTreeMap<&'a Address, Vec<&'a Message>>,
    retried: BTreeMap<&'a Address, Retried<'a>>,
    now: Timestamp,
}

/// A run that is to be opened, and the message that asks for it.
struct Retried<'a> {
    id: &'a MessageId,
    next: Execution,
}

impl<'a> Ahead<'a> {
    pub(super) fn of(state: &'a State, now: Timestamp) -> Self {
        Self { state, started: BTreeMap::new(), delivered: BTreeMap::new(), retried: BTreeMap::new(), now }
    }

    pub(super) fn admit(&mut self, message: &'a Message) -> Result<Admission, Refusal> {
        match &message.body {
            Body::Start(start) => self.admit_start(message, start),
            _ => self.admit_message(message),
        }
    }

    fn admit_start(&mut self, message: &'a Message, start: &'a Start) -> Result<Admission, Refusal> {
        message.check(&self.state.limits)?;
        let to = &message.to;
        let stored = self.state.at(to).map(|row| &row.start);
        let Some(existing) = self.started.get(to).copied().or(stored) else {
            self.started.insert(to, start);
            return Ok(Admission::Create);
        };
        match start_matches(&to.id, existing, start) {
            StartMatch::Attach => Ok(Admission::Attach),
            StartMatch::Conflict(refusal) => Err(refusal),
        }
    }

    fn admit_message(&mut self, message: &'a Message) -> Result<Admission, Refusal> {
        let to = &message.to;
        let stored = self.state.at(to);
        let delivered = self.delivered.get(to).map_or(&[][..], Vec::as_slice);
        let retried = self.retried.get(to);
        let seen = stored.is_some_and(|row| row.seen.contains(&message.id))
            || delivered.iter().any(|known| known.id == message.id)
            || retried.is_some_and(|retried| *retried.id == message.id);
        if seen {
            return Ok(Admission::Duplicate);
        }
        let created = || Some(Execution::start(to.clone(), (*self.started.get(to)?).clone(), self.now).0);
        let current = retried.map(|retried| &retried.next).or(stored.map(|row| &row.execution));
        let execution = current.cloned().or_else(created);
        let execution = execution.ok_or_else(|| Refusal::Unknown { id: to.id.clone() })?;
        let inbox = stored.map_or(&[][..], |row| row.inbox.as_slice());
        let stays = |known: &&Message| retried.is_none() || known.body.outlives_failure();
        let unread = inbox.iter().map(|(_, message)| message).filter(stays).chain(delivered.iter().copied());
        let unread: Vec<_> = unread.collect();
        if let Err(refusal) = execution.accepts(message, self.now)
            && !execution.accepts_behind(&unread, message, self.now)
        {
            return Err(refusal);
        }
        if let (Body::Retry, Some(row)) = (&message.body, stored) {
            let (next, _) = row.retried(&message.by, self.now)?;
            self.retried.insert(to, Retried { id: &message.id, next });
            return Ok(Admission::Retry);
        }
        check_limits(&self.state.limits, message, unread.len())?;
        self.delivered.entry(to).or_default().push(message);
        Ok(Admission::Deliver)
    }
}

fn check_limits(limits: &Limits, message: &Message, unread_count: usize) -> Result<(), Refusal> {
    message.check(limits)?;
    let max = limits.inbox_room(&message.body);
    if unread_count < max {
        return Ok(());
    }
    let (limit, found) = ("inbox_count_max", unread_count + 1);
    Err(TooLarge { what: format!("the inbox of {}", message.to), limit, found, max }.into())
}
