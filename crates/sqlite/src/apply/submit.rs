//! `submit`: messages from anybody, all or none.

use abide_core::{Body, Limits, Message, Refusal, SessionId};
use abide_store::{Leased, Submit, Submitted};

use super::inbox::Put;
use super::message::Started;
use crate::batch::Batch;
use crate::caches::Caches;
use crate::error::Stop;
use crate::job::Operation;
use crate::sql;

pub(crate) struct SubmitWork {
    messages: Vec<Checked>,
    born_to: Option<SessionId>,
}

/// A message, and whether it is within the limits.
struct Checked {
    message: Message,
    limits: Result<(), Refusal>,
}

impl SubmitWork {
    /// Checks the limits on the caller's thread; a message that is over one is refused when its turn comes.
    pub(crate) fn new(submit: Submit, limits: &Limits) -> Self {
        let checked = |message: Message| Checked { limits: check(&message, limits), message };
        Self { messages: submit.messages.into_iter().map(checked).collect(), born_to: submit.born_to }
    }
}

impl Operation for SubmitWork {
    type Output = Vec<Submitted>;
    const WHAT: &'static str = "submit";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Vec<Submitted>, Stop> {
        let offer = match self.born_to {
            Some(session) => {
                let now = batch.now();
                batch.live_session(session, now)?.map(|_| session)
            }
            None => None,
        };
        match self.messages.as_slice() {
            // One message is refused before it writes anything.
            [message] => Ok(vec![submit(batch, message, offer)?]),
            messages => submit_all(batch, messages, offer),
        }
    }
}

/// Several messages: what the first ones wrote must go when a later one is refused.
fn submit_all(
    batch: &mut Batch<'_>,
    messages: &[Checked],
    offer: Option<SessionId>,
) -> Result<Vec<Submitted>, Stop> {
    batch.connection.prepare_cached(sql::SAVEPOINT)?.execute([])?;
    let notice_count = batch.effects.notices.messages.len();
    let mut submitted: Vec<Submitted> = Vec::with_capacity(messages.len());
    for message in messages {
        match submit(batch, message, offer) {
            Ok(one) => {
                if let Submitted::Delivered(key) = &one {
                    let born = submitted.iter_mut().filter_map(newborn);
                    batch.tell_newborn(born, &Put::Delivered(*key), &message.message);
                }
                submitted.push(one);
            }
            Err(Stop::Refused(error)) => {
                batch.connection.prepare_cached(sql::SAVEPOINT_ROLLBACK)?.execute([])?;
                batch.connection.prepare_cached(sql::SAVEPOINT_RELEASE)?.execute([])?;
                batch.effects.notices.messages.truncate(notice_count);
                *batch.caches = Caches::default();
                return Err(Stop::Refused(error));
            }
            Err(stop) => return Err(stop),
        }
    }
    batch.connection.prepare_cached(sql::SAVEPOINT_RELEASE)?.execute([])?;
    Ok(submitted)
}

fn newborn(submitted: &mut Submitted) -> Option<&mut Leased> {
    match submitted {
        Submitted::Started(_, leased) => leased.as_deref_mut(),
        _ => None,
    }
}

fn submit(batch: &mut Batch<'_>, checked: &Checked, offer: Option<SessionId>) -> Result<Submitted, Stop> {
    let Checked { message, limits } = checked;
    limits.clone()?;
    if let Body::Start(start) = &message.body {
        return Ok(match batch.start(&message.to, start, offer)? {
            Started::New(key, leased) => Submitted::Started(key, leased),
            Started::Attached(key) => Submitted::Attached(key),
        });
    }
    Ok(match batch.put(message)? {
        Put::Delivered(key) => Submitted::Delivered(key),
        Put::Duplicate(key) => Submitted::Duplicate(key),
    })
}

/// Checks what has a limit of its own.
fn check(message: &Message, limits: &Limits) -> Result<(), Refusal> {
    match &message.body {
        Body::Start(start) => start.check(limits),
        Body::Signal { name, payload } => {
            Ok(limits.check_payload(format_args!("the signal {name:?}"), payload)?)
        }
        _ => Ok(()),
    }
}
