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
    messages: Vec<Message>,
    /// The first message that is over a limit, by its index, and what is wrong with it.
    over: Option<Box<(usize, Refusal)>>,
    born_to: Option<SessionId>,
}

impl SubmitWork {
    /// Checks the limits on the caller's thread; a message that is over one is refused when its turn comes.
    pub(crate) fn new(submit: Submit, limits: &Limits) -> Self {
        let Submit { messages, born_to, .. } = submit;
        let over = messages
            .iter()
            .enumerate()
            .find_map(|(index, message)| Some(Box::new((index, message.check(limits).err()?))));
        Self { messages, over, born_to }
    }

    /// The messages in their order, as they may be sent.
    fn checked(&self) -> impl Iterator<Item = Result<&Message, Stop>> {
        self.messages.iter().enumerate().map(|(index, message)| match self.over.as_deref() {
            Some((over, refusal)) if *over == index => Err(refusal.clone().into()),
            _ => Ok(message),
        })
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
        if self.messages.len() == 1 {
            // One message is refused before it writes anything.
            return self.checked().map(|message| submit(batch, message?, offer)).collect();
        }
        submit_all(batch, self, offer)
    }
}

/// Several messages: what the first ones wrote must go when a later one is refused.
fn submit_all(
    batch: &mut Batch<'_>,
    work: &SubmitWork,
    offer: Option<SessionId>,
) -> Result<Vec<Submitted>, Stop> {
    batch.connection.prepare_cached(sql::SAVEPOINT)?.execute([])?;
    let notice_count = batch.effects.notices.messages.len();
    let mut submitted: Vec<Submitted> = Vec::with_capacity(work.messages.len());
    for message in work.checked() {
        match message.and_then(|message| submit(batch, message, offer)) {
            Ok(one) => {
                if let Submitted::Delivered(key) = &one {
                    let born = submitted.iter_mut().filter_map(newborn);
                    batch.tell_newborn(born, &Put::Delivered(*key))?;
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

fn submit(batch: &mut Batch<'_>, message: &Message, offer: Option<SessionId>) -> Result<Submitted, Stop> {
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
