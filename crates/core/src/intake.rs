//! Decides what a message does to the execution that it finds.
//!
//! A store looks for the execution that a message goes to, describes it ([`Found`]), and does what
//! [`admit`] returns. So two stores cannot disagree about which messages create, are delivered or
//! are refused.

use std::sync::Arc;

use crate::planted::{Bug, planted};
use crate::{
    Body, Bounds, Execution, Kind, Listens, Message, MessageId, Refusal, Start, StartMatch, Status,
    Timestamp, TooLarge, start_matches,
};

/// The action for a message that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// Create an execution.
    Create,
    /// Nothing: the execution began the same way.
    Attach,
    /// Put it into the inbox. A message whose id is there already, read or unread, is a
    /// [`Duplicate`](Self::Duplicate): a store may find that out when it inserts.
    Deliver {
        /// Whether the execution is ready from now on, if nobody holds it.
        wakes: bool,
    },
    /// Open the next run, and keep the id as that of a message that was read. If the id is there
    /// already, it is a duplicate, as with [`Deliver`](Self::Deliver).
    Retry,
    /// Nothing: the message was taken before, and is no news, whatever became of its target since.
    Duplicate,
}

/// The part of an execution that can be seen without its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its status.
    pub status: Status,
    /// The sorts of messages that wake it.
    pub listens: Listens,
    /// Its current run, if that can be read.
    pub run: Option<u32>,
}

/// An execution that a message finds. Anything that costs the store a read is asked for only when
/// it decides.
pub trait Found {
    /// A refusal, or the error of a read.
    type Error: From<Refusal>;

    /// Returns what its row says.
    fn standing(&self) -> Standing;
    /// Returns its state.
    fn execution(&self) -> Result<&Execution, Self::Error>;
    /// Returns the start of its first run.
    fn first_start(&mut self) -> Result<Arc<Start>, Self::Error>;
    /// Whether a message with this id has ever arrived.
    fn has_seen(&mut self, id: &MessageId) -> Result<bool, Self::Error>;
    /// Returns the number of unread messages.
    fn unread_count(&mut self) -> Result<usize, Self::Error>;
    /// Returns the unread orders, in order of arrival. Other unread messages may be large, and
    /// decide nothing.
    fn orders(&mut self) -> Result<Vec<Message>, Self::Error>;
    /// Passes over an unreadable part of the execution, where its sender could not hear of it: its
    /// message is delivered, and the reader judges it. Returns any other error.
    fn pass_over(&self, error: Self::Error) -> Result<(), Self::Error>;
}

/// Decides about `message` at `now`, where it finds an execution or none. A refusal leaves no
/// trace.
pub fn admit<F: Found>(
    found: Option<&mut F>,
    message: &Message,
    (bounds, now): (&Bounds, Timestamp),
) -> Result<Intake, F::Error> {
    message.check(bounds)?;
    let id = &message.to.id;
    match (&message.body, found) {
        (Body::Start(start), None) => {
            if start.kind != Kind::Builtin {
                id.check_free().map_err(Refusal::from)?;
            }
            Ok(Intake::Create)
        }
        (_, None) => Err(Refusal::Unknown { id: id.clone() }.into()),
        (Body::Start(start), Some(found)) => match start_matches(id, &*found.first_start()?, start) {
            StartMatch::Attach => Ok(Intake::Attach),
            StartMatch::Conflict(refusal) => Err(refusal.into()),
        },
        (_, Some(found)) => {
            let refusal = match judged(found, message, now)? {
                None => has_room(found, message, bounds)?.err(),
                refusal => refusal,
            };
            match refusal {
                None => Ok(taken(found.standing(), &message.body)),
                Some(_) if found.has_seen(&message.id)? => Ok(Intake::Duplicate),
                Some(refusal) => Err(refusal.into()),
            }
        }
    }
}

fn taken(standing: Standing, body: &Body) -> Intake {
    match body {
        Body::Retry => Intake::Retry,
        body => Intake::Deliver { wakes: standing.listens.to(body.sort()) },
    }
}

/// Judges a message like [`refusal_of`], but passes over damage. An answer or an order that is sent
/// once would be lost with the damage that keeps it from being judged. A retry never lies in an
/// inbox, so nobody could judge it later.
fn judged<F: Found>(found: &mut F, message: &Message, now: Timestamp) -> Result<Option<Refusal>, F::Error> {
    match refusal_of(found, message, now) {
        Err(error) if !matches!(message.body, Body::Retry) => found.pass_over(error).map(|()| None),
        judged => judged,
    }
}

/// Returns why a message that is no start may not be put into the inbox now.
fn refusal_of<F: Found>(
    found: &mut F,
    message: &Message,
    now: Timestamp,
) -> Result<Option<Refusal>, F::Error> {
    let Standing { status, run, .. } = found.standing();
    if let Body::Retry = message.body {
        // A retry never lies in the inbox: taking it opens the next run at once.
        return Ok(match found.execution()?.may_be_retried() {
            Ok(()) => found.first_start()?.may_be_repeated().err(),
            Err(refusal) => Some(refusal),
        });
    }
    if status.is_terminal() {
        return Ok(Some(Refusal::Finished { status }));
    }
    if let (Some(addressed), Some(current)) = (message.body.addressed_run(), run)
        && addressed != current
    {
        return Ok(Some(Refusal::OtherRun { current }));
    }
    if message.descent.is_some()
        && let Some(objection) = found.execution()?.objection_to(message)
    {
        return Ok(Some(objection));
    }
    let Some(command) = message.control() else { return Ok(None) };
    let refusal = found.execution()?.decide(command.clone(), now).err();
    let is_decision =
        matches!(message.body, Body::Unblock { step: Some(_) }) && !planted(Bug::DecisionBehindUnblock);
    if (refusal.is_none() && !is_decision) || found.unread_count()? == 0 {
        return Ok(refusal);
    }
    // A resume is in place behind a pause that nobody has read yet. A decision about a step is lost
    // behind an unblock: there is nothing left to decide.
    let orders = found.orders()?;
    let behind = found.execution()?.after_orders(&orders, now);
    Ok(behind.decide(command, now).err().map(|refusal| match refusal {
        // The sender can see that the execution is blocked, so name the unread unblock instead.
        Refusal::NotBlocked if status == Status::Blocked => Refusal::UnblockUnread,
        refusal => refusal,
    }))
}

/// Checks that the inbox has room for one more message.
fn has_room<F: Found>(
    found: &mut F,
    message: &Message,
    bounds: &Bounds,
) -> Result<Result<(), Refusal>, F::Error> {
    let max = bounds.inbox_room(&message.body);
    let unread_count = found.unread_count()?;
    if unread_count < max {
        return Ok(Ok(()));
    }
    let what = format!("the inbox of {}", message.to);
    Ok(Err(TooLarge { what, limit: "inbox_count_max", found: unread_count + 1, max }.into()))
}

impl Execution {
    /// Returns the execution as it will be when these orders have been read.
    fn after_orders(&self, orders: &[Message], now: Timestamp) -> Self {
        let mut later = self.clone();
        for command in orders.iter().filter(|order| self.is_meant_by(order)).filter_map(Message::control) {
            if let Ok(decision) = later.decide(command, now) {
                decision.record(&mut later, now);
            }
        }
        later
    }
}
