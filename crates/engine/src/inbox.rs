//! The unread messages of an execution in memory, in the store's order.
//!
//! Notices are hints: they may be lost, late, doubled or mixed up. Each names the message before it, so that what is known here is always the
//! beginning of what is unread: a message whose predecessor is not known is not taken from its notice, but from the store.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use abide_core::{Message, MessageId};
use abide_store::{Answer, Error, ExecutionKey, InboxPage, InboxRead, Store};

use crate::runtime::{BoxFuture, Runtime};

/// What an execution in memory is told of its mail.
#[derive(Clone, Debug)]
pub(crate) enum Arrival {
    /// A message arrived when `previous` was the newest unread one.
    Message { message: Message, previous: Option<MessageId> },
    /// This is the newest unread message.
    Newest(MessageId),
    /// There was more than could be kept.
    More,
}

/// The most arrivals that are kept for one execution. What is beyond is in its inbox.
const ARRIVAL_COUNT_MAX: usize = 1_024;

/// How long to wait before an inbox that could not be read is read again.
const READ_PAUSE: Duration = Duration::from_millis(100);

/// Adds to what an execution is told. Many become one that says: read for yourself.
pub(crate) fn add(kept: &mut Vec<Arrival>, arrivals: impl IntoIterator<Item = Arrival>) {
    for arrival in arrivals {
        if kept.len() >= ARRIVAL_COUNT_MAX {
            kept.clear();
            kept.push(Arrival::More);
        }
        kept.push(arrival);
    }
}

/// What the holder of an execution knows of its inbox.
pub(crate) struct Inbox {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    key: ExecutionKey,
    /// Orders that nobody has looked at: they go before everything else.
    orders: VecDeque<Message>,
    /// Other messages that nobody has looked at.
    mail: VecDeque<Message>,
    /// All that were ever here, numbered in the store's order. The same message may arrive by notice and by page; the second one is no news.
    known: HashMap<MessageId, u64>,
    /// Those of them that nobody has read for good, whether somebody has looked at them or not.
    unread: BTreeMap<u64, MessageId>,
    last_number: u64,
    reading: Option<Reading>,
    /// Something came whose predecessor is not known.
    is_behind: bool,
}

/// A page on its way.
struct Reading {
    read: InboxRead,
    answer: Answer<InboxPage>,
    pause: Option<BoxFuture<()>>,
}

impl Inbox {
    /// The inbox of which `page` is the first page.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        key: ExecutionKey,
        page: InboxPage,
    ) -> Self {
        let mut inbox = Self {
            store,
            runtime,
            key,
            orders: VecDeque::new(),
            mail: VecDeque::new(),
            known: HashMap::new(),
            unread: BTreeMap::new(),
            last_number: 0,
            reading: None,
            is_behind: false,
        };
        inbox.take(page);
        inbox
    }

    /// The next order.
    pub(crate) fn next_order(&mut self) -> Option<Message> {
        self.orders.pop_front()
    }

    /// The next message that is no order.
    pub(crate) fn next(&mut self) -> Option<Message> {
        self.mail.pop_front()
    }

    /// A message was read for good.
    pub(crate) fn consume(&mut self, id: &MessageId) {
        if let Some(number) = self.known.get(id) {
            self.unread.remove(number);
        }
    }

    /// All that are known here and stay unread, in the store's order.
    pub(crate) fn unread(&self) -> impl Iterator<Item = &MessageId> {
        self.unread.values()
    }

    /// Whether everything is here that was unread when it was last told of.
    pub(crate) fn is_complete(&self) -> bool {
        self.reading.is_none() && !self.is_behind
    }

    pub(crate) fn arrive(&mut self, arrivals: Vec<Arrival>) {
        for arrival in arrivals {
            match arrival {
                Arrival::Message { message, previous } => {
                    if previous.is_none_or(|previous| self.known.contains_key(&previous)) {
                        self.push(message);
                    } else if !self.known.contains_key(&message.id) {
                        self.is_behind = true;
                    }
                }
                Arrival::Newest(id) => self.is_behind |= !self.known.contains_key(&id),
                Arrival::More => self.is_behind = true,
            }
        }
    }

    /// Reads what is missing, as far as it is there by now.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            if self.reading.is_none() && std::mem::take(&mut self.is_behind) {
                self.read(InboxRead::first(self.key));
            }
            let Some(reading) = &mut self.reading else { return Ok(()) };
            if let Some(pause) = &mut reading.pause {
                if pause.as_mut().poll(cx).is_pending() {
                    return Ok(());
                }
                reading.pause = None;
                reading.answer = self.store.inbox(reading.read);
            }
            match reading.answer.as_mut().poll(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(page)) => self.take(page),
                Poll::Ready(Err(error)) if error.is_transient() => {
                    reading.pause = Some(self.runtime.sleep(READ_PAUSE));
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
    }

    /// Forgets ids of messages that are read, when there are many: a chain of runs may go on for years.
    pub(crate) fn forget(&mut self) {
        const KNOWN_COUNT_MAX: usize = 10_000;
        if self.known.len() > KNOWN_COUNT_MAX {
            self.known = self.unread.iter().map(|(number, id)| (id.clone(), *number)).collect();
        }
    }

    fn read(&mut self, read: InboxRead) {
        self.reading = Some(Reading { read, answer: self.store.inbox(read), pause: None });
    }

    fn take(&mut self, page: InboxPage) {
        page.messages.into_iter().for_each(|message| self.push(message));
        self.reading = None;
        if page.next.is_some() {
            self.read(InboxRead { after: page.next, ..InboxRead::first(self.key) });
        }
    }

    fn push(&mut self, message: Message) {
        let Entry::Vacant(place) = self.known.entry(message.id.clone()) else { return };
        self.last_number += 1;
        self.unread.insert(self.last_number, message.id.clone());
        place.insert(self.last_number);
        let queue = if message.body.is_control() { &mut self.orders } else { &mut self.mail };
        queue.push_back(message);
    }
}
