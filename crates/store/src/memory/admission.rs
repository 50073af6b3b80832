//! The admission of messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_core::intake::{self, Found, Intake, Standing};
use abide_core::{Address, Body, Execution, Message, MessageId, Refusal, Start, Summary, Timestamp};

use super::row::Row;
use super::state::MemoryState;

/// The state as it would be after messages that were admitted but not yet written. All messages of
/// a submit are admitted before the first is written, so a refusal leaves no trace.
pub(super) struct Ahead<'a> {
    state: &'a MemoryState,
    pending: BTreeMap<&'a Address, Pending<'a>>,
    now: Timestamp,
}

/// The admitted messages of one execution.
#[derive(Default)]
struct Pending<'a> {
    start: Option<&'a Arc<Start>>,
    delivered: Vec<&'a Message>,
    retried: Option<Retried<'a>>,
}

/// A run that is to be opened, and the message that asks for it.
struct Retried<'a> {
    id: &'a MessageId,
    next: Execution,
}

impl<'a> Ahead<'a> {
    pub(super) fn of(state: &'a MemoryState, now: Timestamp) -> Self {
        Self { state, pending: BTreeMap::new(), now }
    }

    pub(super) fn admit(&mut self, message: &'a Message) -> Result<Intake, Refusal> {
        let mut target = self.target(&message.to);
        let intake = intake::admit(target.as_mut(), message, (&self.state.bounds, self.now))?;
        let is_known = match &mut target {
            Some(target) => target.has_seen(&message.id)?,
            None => false,
        };
        match intake {
            Intake::Deliver { .. } | Intake::Retry if is_known => return Ok(Intake::Duplicate),
            Intake::Create => {
                let Body::Start(start) = &message.body else { unreachable!("only a start creates") };
                self.pending.entry(&message.to).or_default().start = Some(start);
            }
            Intake::Deliver { .. } => {
                self.pending.entry(&message.to).or_default().delivered.push(message);
            }
            Intake::Retry => {
                let row = self.state.at(&message.to).expect("what is created here has not ended");
                let (next, _) = row.retried(&message.by, self.now)?;
                let retried = Retried { id: &message.id, next };
                self.pending.entry(&message.to).or_default().retried = Some(retried);
            }
            Intake::Attach | Intake::Duplicate => {}
        }
        Ok(intake)
    }

    /// Returns the execution that a message to `address` would find.
    fn target(&self, address: &Address) -> Option<Target<'_>> {
        let (row, pending) = (self.state.at(address), self.pending.get(address));
        let begun = pending.and_then(|pending| pending.start);
        let (execution, summary) = match (row, pending.and_then(|pending| pending.retried.as_ref())) {
            (_, Some(retried)) => (retried.next.clone(), retried.next.summary_at_start(self.now)),
            (Some(row), None) => (row.execution.clone(), row.summary.clone()),
            (None, None) => {
                let (execution, _) = Execution::start(address.clone(), Arc::clone(begun?), self.now);
                let summary = execution.summary_at_start(self.now);
                (execution, summary)
            }
        };
        Some(Target { row, pending, execution, summary })
    }
}

/// An execution as it would be.
struct Target<'a> {
    row: Option<&'a Row>,
    pending: Option<&'a Pending<'a>>,
    execution: Execution,
    summary: Summary,
}

impl Target<'_> {
    fn unread(&self) -> impl Iterator<Item = &Message> {
        let is_retried = self.pending.is_some_and(|pending| pending.retried.is_some());
        let stays = move |message: &&Message| !is_retried || message.body.sort().outlives_failure();
        let stored = self.row.map_or(&[][..], |row| row.inbox.as_slice());
        let stored = stored.iter().map(|(_, message)| message).filter(stays);
        let pending = self.pending.map_or(&[][..], |pending| pending.delivered.as_slice());
        stored.chain(pending.iter().copied())
    }
}

impl Found for Target<'_> {
    type Error = Refusal;

    fn standing(&self) -> Standing {
        let Summary { status, listens, .. } = self.summary;
        Standing { status, listens, run: Some(self.execution.run()) }
    }

    fn execution(&self) -> Result<&Execution, Refusal> {
        Ok(&self.execution)
    }

    fn first_start(&mut self) -> Result<Arc<Start>, Refusal> {
        let started = self.pending.and_then(|pending| pending.start).cloned();
        let stored = self.row.map(|row| Arc::new(row.start.clone()));
        Ok(stored.or(started).expect("what is found has begun"))
    }

    fn has_seen(&mut self, id: &MessageId) -> Result<bool, Refusal> {
        let is_pending = |pending: &Pending<'_>| {
            pending.delivered.iter().any(|known| known.id == *id)
                || pending.retried.as_ref().is_some_and(|retried| retried.id == id)
        };
        Ok(self.row.is_some_and(|row| row.seen.contains(id)) || self.pending.is_some_and(is_pending))
    }

    fn unread_count(&mut self) -> Result<usize, Refusal> {
        Ok(self.unread().count())
    }

    fn orders(&mut self) -> Result<Vec<Message>, Refusal> {
        Ok(self.unread().filter(|message| message.body.is_control()).cloned().collect())
    }

    fn pass_over(&self, error: Refusal) -> Result<(), Refusal> {
        Err(error)
    }
}
