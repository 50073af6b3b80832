//! Hints for the sessions of this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_core::planted::{Bug, planted};
use abide_core::{Ability, Epoch, Message, MessageId, Refusal, Route, SessionId};
use abide_store::{Answer, Error, ExecutionKey, Notice};
use tokio::sync::{Notify, watch};

/// The mailboxes of the sessions that were registered here.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    mailboxes: Mutex<BTreeMap<SessionId, Arc<Mailbox>>>,
    /// The channel to followers of the feed. A value says nothing; its arrival does.
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Mailbox {
    ability: Option<Arc<Ability>>,
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

/// Notices that their session has not yet taken. Only messages need an order.
#[derive(Debug, Default)]
struct Waiting {
    messages: Vec<Notice>,
    ready: bool,
    changed: bool,
    intake: bool,
    ended: Option<Ended>,
}

/// The reason why a session can wait no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Session(SessionId),
    Store,
}

impl Ended {
    fn error(self) -> Error {
        match self {
            Self::Session(session) => not_live(session),
            Self::Store => Error::Closed,
        }
    }
}

/// Returns the error for a session that is dead, or was never alive.
pub(crate) fn not_live(session: SessionId) -> Error {
    Error::Refused(Refusal::Unsupported { what: format!("session {session} is not live") })
}

/// Notices that go out when the transaction is durable.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) messages: Vec<Arrived>,
    pub(crate) ready: BTreeMap<i64, Arc<Route>>,
    /// The sessions of these routes' namespaces have to look, regardless of the routes that they
    /// serve.
    pub(crate) care: BTreeMap<i64, Arc<Route>>,
    /// Rows were put into the intake table.
    pub(crate) intake: bool,
}

impl Pending {
    /// The room that is kept for the next transaction.
    const ROOM: usize = 1_024;

    pub(crate) fn clear(&mut self) {
        self.messages.clear();
        self.messages.shrink_to(Self::ROOM);
        self.ready.clear();
        self.care.clear();
        self.intake = false;
    }
}

/// A message for an execution that a session of this process holds.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) session: SessionId,
    pub(crate) key: ExecutionKey,
    pub(crate) epoch: Epoch,
    pub(crate) message: Message,
    pub(crate) previous: Option<MessageId>,
}

impl Notices {
    pub(crate) fn open(&self, session: SessionId, ability: Arc<Ability>) {
        let mailbox = Mailbox { ability: Some(ability), ..Mailbox::default() };
        self.lock().insert(session, Arc::new(mailbox));
    }

    /// Ends a mailbox, and notifies its waiting session.
    pub(crate) fn end(&self, session: SessionId) {
        if let Some(mailbox) = self.lock().remove(&session) {
            mailbox.put(|waiting| waiting.ended = Some(Ended::Session(session)));
        }
    }

    pub(crate) fn holds(&self, session: SessionId) -> bool {
        self.lock().contains_key(&session)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Whether a session or a follower wants to hear of writes by other processes.
    pub(crate) fn is_heard(&self) -> bool {
        self.changes.receiver_count() > 0 || !self.is_empty()
    }

    /// Notifies the followers of a new entry in the database.
    pub(crate) fn tell_followers(&self) {
        if self.changes.receiver_count() > 0 {
            self.changes.send_replace(());
        }
    }

    /// Returns a receiver that hears of every change from now on.
    pub(crate) fn follow(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Publishes notices, and leaves `pending` empty, with its room for the next ones.
    pub(crate) fn publish(&self, pending: &mut Pending, count_max: usize) {
        if std::mem::take(&mut pending.intake) {
            self.intake();
        }
        if pending.messages.is_empty() && pending.ready.is_empty() && pending.care.is_empty() {
            return;
        }
        let mailboxes = self.lock();
        let mut count = pending.messages.len();
        let mut messages = pending.messages.drain(..).peekable();
        // Most are for one session.
        while let Some(session) = messages.peek().map(|arrived| arrived.session) {
            let mut same = std::iter::from_fn(|| messages.next_if(|arrived| arrived.session == session));
            let Some(mailbox) = mailboxes.get(&session) else {
                count -= same.by_ref().count();
                continue;
            };
            mailbox.put(|waiting| {
                waiting.messages.reserve(count.min(count_max.saturating_sub(waiting.messages.len())));
                for Arrived { key, epoch, message, previous, .. } in same {
                    waiting.add(Notice::Message { key, epoch, message, previous }, count_max);
                    count -= 1;
                }
            });
        }
        drop(messages);
        for mailbox in mailboxes.values() {
            let Some(ability) = &mailbox.ability else { continue };
            let is_ready = pending.ready.values().any(|route| ability.serves(route));
            if is_ready || pending.care.values().any(|route| ability.namespace == route.namespace) {
                mailbox.put(|waiting| waiting.ready = true);
            }
        }
        pending.clear();
    }

    /// Notifies every session that the database has changed.
    pub(crate) fn changed(&self) {
        self.lock().values().for_each(|mailbox| mailbox.put(|waiting| waiting.changed = true));
        self.tell_followers();
    }

    /// Notifies every session of rows in the intake table.
    pub(crate) fn intake(&self) {
        self.lock().values().for_each(|mailbox| mailbox.put(|waiting| waiting.intake = true));
    }

    pub(crate) fn close(&self) {
        self.lock().values().for_each(|mailbox| mailbox.put(|waiting| waiting.ended = Some(Ended::Store)));
        self.tell_followers();
    }

    pub(crate) fn wait(&self, session: SessionId) -> Answer<Vec<Notice>> {
        let mailbox = self.lock().get(&session).map(Arc::clone);
        Answer::new(async move {
            let mailbox = mailbox.ok_or_else(|| not_live(session))?;
            loop {
                let arrived = mailbox.arrived.notified();
                tokio::pin!(arrived);
                // Listening begins before looking: a notice in between is heard.
                arrived.as_mut().enable();
                if let Some(answer) = mailbox.take() {
                    return answer;
                }
                arrived.await;
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Mailbox>>> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailbox {
    fn put(&self, change: impl FnOnce(&mut Waiting)) {
        change(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.arrived.notify_waiters();
    }

    fn take(&self) -> Option<abide_store::Result<Vec<Notice>>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notices = std::mem::take(&mut waiting.messages);
        if std::mem::take(&mut waiting.ready) {
            notices.push(Notice::Ready);
        }
        if std::mem::take(&mut waiting.changed) {
            notices.push(Notice::Changed);
        }
        if std::mem::take(&mut waiting.intake) {
            notices.push(Notice::Intake);
        }
        match waiting.ended {
            Some(ended) if notices.is_empty() => Some(Err(ended.error())),
            _ => (!notices.is_empty()).then_some(Ok(notices)),
        }
    }
}

impl Waiting {
    fn add(&mut self, notice: Notice, count_max: usize) {
        if self.messages.len() < count_max {
            self.messages.push(notice);
            return;
        }
        // The session does not take them: one notice stands for all, and the messages are in the
        // inboxes.
        self.messages.clear();
        self.changed |= !planted(Bug::FullMailboxSilent);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use abide_core::{Body, Payload};
    use abide_store::conformance::{TestClock, block_on};
    use abide_store::{Claim, Store};

    use super::*;
    use crate::fixture::{message, name, register, start, submit};
    use crate::{Options, SqliteStore};

    #[test]
    fn one_notice_stands_for_more_than_can_wait() {
        let options = Options { notice_count_max: 2, ..Options::default() };
        let store = SqliteStore::in_memory(TestClock::new(), options).unwrap();
        let session = register(&store, "default");
        start(&store, "a");
        let claim = Claim { session, request: 1, slots: 1, care_slots: 0, with_mail: false, sweep: false };
        assert_eq!(block_on(store.claim(claim)).unwrap().leased.len(), 1);
        assert_eq!(block_on(store.wait(session)).unwrap(), [Notice::Ready]);
        for id in ["one", "two", "three"] {
            submit(&store, message(id, "a", Body::Signal { name: name("go"), payload: Payload::from("1") }));
        }
        let told = store.wait(session).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(notices)) = told else { panic!("the session hears nothing: {told:?}") };
        assert_eq!(notices, [Notice::Changed]);
    }
}
