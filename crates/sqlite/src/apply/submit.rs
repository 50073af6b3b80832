//! `submit`: messages from any sender, all or none.

use abide_core::planted::{Bug, planted};
use abide_core::{Body, Message, SessionId, Timestamp};
use abide_store::{Leased, Submissions, Submit, Submitted};

use super::inbox::Put;
use super::message::Started;
use super::stretch::StretchWork;
use crate::batch::Batch;
use crate::caches::Caches;
use crate::error::Stop;
use crate::job::Operation;
use crate::sql;

pub(crate) struct SubmitWork {
    messages: Vec<Message>,
    born_to: Option<SessionId>,
    /// In a box, because most have none, and it is large.
    stretch: Option<Box<StretchWork>>,
}

impl SubmitWork {
    pub(crate) fn new(submit: Submit) -> Self {
        let Submit { messages, born_to, stretch, .. } = submit;
        let stretch = stretch.filter(|_| messages.len() == 1);
        let stretch = stretch.map(|stretch| Box::new(StretchWork::new(*stretch)));
        Self { messages, born_to, stretch }
    }
}

impl Operation for SubmitWork {
    type Output = Submissions;
    const WHAT: &'static str = "submit";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Submissions, Stop> {
        let now = batch.now();
        let offer = match self.born_to {
            Some(session) => batch.live_session(session, now)?.map(|_| session),
            None => None,
        };
        if let [message] = self.messages.as_slice() {
            // A single message is refused before it writes anything.
            let begins_at = self.stretch.as_ref().map(|stretch| stretch.begins_at(now));
            let submitted = submit(batch, message, (offer, now), begins_at)?;
            return Ok(Submissions::from([match &mut self.stretch {
                Some(stretch) => stretch.follow(batch, submitted)?,
                None => submitted,
            }]));
        }
        submit_all(batch, self, (offer, now))
    }

    fn reads_journal(&self) -> bool {
        // Most starts are of new executions. Several messages need a savepoint.
        match self.messages.as_slice() {
            [Message { body, .. }] => !matches!(body, Body::Start(_)),
            _ => !planted(Bug::SheafBehindSavepoint),
        }
    }

    fn runs_user_code(&self) -> bool {
        self.stretch.as_ref().is_some_and(|stretch| stretch.runs_user_code())
    }
}

/// Submits several messages: if a later one is refused, the writes of the first ones must go.
fn submit_all(
    batch: &mut Batch<'_>,
    work: &SubmitWork,
    offer: (Option<SessionId>, Timestamp),
) -> Result<Submissions, Stop> {
    batch.connection.prepare_cached(sql::SAVEPOINT)?.execute([])?;
    let notice_count = batch.effects.notices.messages.len();
    let settled_count = batch.effects.settled.len();
    let (counted, closed) = (batch.tallies.mark(), batch.tails.mark());
    let mut submitted: Submissions = Submissions::with_capacity(work.messages.len());
    for message in &work.messages {
        match submit(batch, message, offer, None) {
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
                batch.effects.settled.truncate(settled_count);
                batch.tallies.undo_to(counted);
                batch.tails.undo_to(closed);
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

/// Carries out one message. If it is refused, nothing was written.
pub(super) fn submit(
    batch: &mut Batch<'_>,
    message: &Message,
    offer: (Option<SessionId>, Timestamp),
    begins_at: Option<Timestamp>,
) -> Result<Submitted, Stop> {
    if let Body::Start(start) = &message.body {
        return Ok(match batch.start_at(message, start, offer, begins_at)? {
            Started::New(key, leased) => Submitted::Started(key, leased),
            Started::Attached(key) => Submitted::Attached(key),
        });
    }
    Ok(match batch.put_or_tell(message)? {
        Put::Delivered(key) => Submitted::Delivered(key),
        Put::Duplicate(key) => Submitted::Duplicate(key),
    })
}
