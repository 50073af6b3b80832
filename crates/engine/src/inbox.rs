//! The unread messages of an execution in memory, in the store's order.
//!
//! Notices are hints: they may be lost, late, doubled or mixed up. Each names its lease and the
//! message before it. So the messages known here are always the first of the unread ones: a message
//! whose predecessor is unknown, or that came under an earlier lease and may have been read since,
//! is taken from the store, not from its notice.
//!
//! Unread mail may be large, and the code may never ask for it. The contents of messages are kept
//! up to a bound (`mail_bytes_max`); beyond it, only their ids, names and places in the store are
//! kept.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};

use abide_core::planted::{Bug, planted};
use abide_core::{Body, Epoch, Execution, Message, MessageId};
use abide_store::{Error, ExecutionKey, InboxCursor, InboxPage, InboxRead, Store};

use crate::read_mail::ReadMail;
use crate::reading::Reading;
use crate::runtime::Runtime;
use crate::text_hasher::TextHasher;

/// News of its mail for an execution in memory.
#[derive(Clone, Debug)]
pub(crate) enum Arrival {
    /// A message arrived under the lease of this epoch, when `previous` was the newest unread one.
    Message { epoch: Epoch, message: Message, previous: Option<MessageId> },
    /// This is the newest unread message.
    Newest(MessageId),
    /// There were more messages than could be kept.
    More,
}

/// The most arrivals that are kept for one execution. Later ones are in its inbox.
const ARRIVAL_COUNT_MAX: usize = 1_024;

/// The most bytes that the messages among them carry, unless a single one carries more.
const ARRIVAL_BYTES_MAX: usize = 1 << 20;

/// The news for an execution until it listens. Many arrivals, or large ones, become one that has
/// the inbox read.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    kept: Vec<Arrival>,
    /// The bytes that the messages among them carry.
    bytes: usize,
}

impl Arrivals {
    pub(crate) fn add(&mut self, arrivals: Vec<Arrival>) {
        let bytes: usize = arrivals.iter().map(Arrival::carried_bytes).sum();
        // Most often all of them are taken as they are.
        if self.kept.is_empty() && arrivals.len() <= ARRIVAL_COUNT_MAX && bytes <= ARRIVAL_BYTES_MAX {
            (self.kept, self.bytes) = (arrivals, bytes);
            return;
        }
        for arrival in arrivals {
            let bytes = arrival.carried_bytes();
            let is_many = self.kept.len() >= ARRIVAL_COUNT_MAX;
            if is_many || (self.bytes > 0 && self.bytes + bytes > ARRIVAL_BYTES_MAX) {
                self.kept.clear();
                self.kept.extend((!planted(Bug::OverflowForgetsMore)).then_some(Arrival::More));
                self.bytes = 0;
            }
            self.kept.push(arrival);
            self.bytes += bytes;
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn into_kept(self) -> Vec<Arrival> {
        self.kept
    }
}

impl Arrival {
    pub(crate) fn carried_bytes(&self) -> usize {
        match self {
            Self::Message { message, .. } => message.body.carried_bytes(),
            Self::Newest(_) | Self::More => 0,
        }
    }
}

/// A message that was not read for good. Its content may have been left in the store.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    /// Its number in the store's order.
    pub(crate) number: u64,
    pub(crate) message: Message,
    /// Where to read it again, if its content was left in the store.
    pub(crate) left: Option<Left>,
}

/// The place of a message that was left in the store: on the page after this cursor, or a later
/// one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left(Option<InboxCursor>);

/// The holder's knowledge of an execution's inbox.
pub(crate) struct Inbox {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    key: ExecutionKey,
    epoch: Epoch,
    /// Orders that the driver has not looked at: they go before everything else.
    orders: VecDeque<Message>,
    /// Other messages that the driver has not looked at.
    mail: VecDeque<Letter>,
    /// The messages that were here, except those read for good that are forgotten. The same message
    /// may arrive by notice and by page; the second one is no news.
    known: HashMap<MessageId, Known, TextHasher>,
    /// Those of them that were read for good.
    read: ReadMail,
    last_number: u64,
    /// How many bytes of their contents are kept, and how many may be.
    kept_bytes: usize,
    kept_bytes_max: usize,
    reading: Option<Box<PageReading>>,
    /// Where the last page that was read begins.
    last_page: Left,
    /// Whether a message came whose predecessor is unknown.
    is_behind: bool,
    look: Look,
    /// The search for a message that was left in the store.
    fetching: Option<Box<Fetching>>,
    /// Whether the search has not been polled yet, so that its answer would wake nothing.
    is_unasked: bool,
    /// The page that was last read again: code that wants one of its messages often wants the next.
    fetched: HashMap<MessageId, Message, TextHasher>,
}

/// A message that was here.
struct Known {
    /// Its number in the store's order.
    number: u64,
    /// How many bytes of its content are kept; `None` once it was read for good.
    kept_bytes: Option<usize>,
}

/// The progress of a [look](Inbox::look).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Wanted,
    UnderWay,
    Over,
}

/// A page on its way.
type PageReading = Reading<InboxRead, InboxPage>;

/// The search for one message.
struct Fetching {
    id: MessageId,
    reading: PageReading,
    /// Whether it began at the beginning of the inbox, not where the message was expected.
    is_from_beginning: bool,
}

fn page_reading(store: &dyn Store, read: InboxRead) -> PageReading {
    Reading::new(store, read, abide_store::View::inbox)
}

impl Inbox {
    /// Makes the inbox whose first page is `page`.
    pub(crate) fn new(
        (store, runtime): (Arc<dyn Store>, Arc<dyn Runtime>),
        kept_bytes_max: usize,
        (key, epoch): (ExecutionKey, Epoch),
        page: InboxPage,
    ) -> Self {
        let mut inbox = Self {
            store,
            runtime,
            key,
            epoch,
            orders: VecDeque::new(),
            mail: VecDeque::new(),
            known: HashMap::default(),
            read: ReadMail::default(),
            last_number: 0,
            kept_bytes: 0,
            kept_bytes_max,
            reading: None,
            last_page: Left(None),
            is_behind: false,
            look: Look::Over,
            fetching: None,
            is_unasked: false,
            fetched: HashMap::default(),
        };
        inbox.take(page, Left(None));
        inbox
    }

    /// Sets the key of an execution that had none until it was created.
    pub(crate) fn belongs_to(&mut self, key: ExecutionKey) {
        self.key = key;
    }

    /// Returns the next order to an execution.
    pub(crate) fn next_order(&mut self, execution: &Execution) -> Option<Message> {
        // Every turn of a runner asks, and mostly there is none.
        if self.orders.is_empty() {
            return None;
        }
        let index = execution.next_order(self.orders.iter().map(|order| &order.body))?;
        self.orders.remove(index)
    }

    /// Returns the next order, unless that is an unblock: it waits, and the orders behind it too.
    pub(crate) fn next_order_but_unblock(&mut self, execution: &Execution) -> Option<Message> {
        let index = execution.next_order(self.orders.iter().map(|order| &order.body))?;
        let is_unblock = |order: &Message| matches!(order.body, Body::Unblock { .. });
        if self.orders.get(index).is_some_and(is_unblock) { None } else { self.orders.remove(index) }
    }

    /// Returns the next message that is no order. Its content may have been left in the store.
    pub(crate) fn next(&mut self) -> Option<Letter> {
        self.mail.pop_front()
    }

    /// Returns the next message that is no order, with its content; `None` also while that is on
    /// its way.
    pub(crate) fn next_whole(&mut self) -> Option<Message> {
        let Letter { message, left, .. } = self.mail.front()?;
        let whole = match *left {
            None => message.clone(),
            Some(left) => {
                let id = message.id.clone();
                self.fetch(&id, left)?
            }
        };
        self.mail.pop_front();
        Some(whole)
    }

    /// Returns a message that was left in the store; `None` while it is on its way.
    pub(crate) fn fetch(&mut self, id: &MessageId, left: Left) -> Option<Message> {
        if let Some(message) = self.fetched.remove(id) {
            return Some(message);
        }
        if self.fetching.is_none() {
            let read = InboxRead { after: left.0, ..InboxRead::first(self.key) };
            let reading = page_reading(&*self.store, read);
            let is_from_beginning = left.0.is_none();
            self.fetching = Some(Box::new(Fetching { id: id.clone(), reading, is_from_beginning }));
            self.is_unasked = true;
        }
        None
    }

    /// Asks the store for the mail that is unread from now on. Notices do not suffice where the
    /// answer must be certain: they may be late or lost.
    pub(crate) fn look(&mut self) {
        self.look = if planted(Bug::OldPageIsLook) { Look::UnderWay } else { Look::Wanted };
        self.is_behind = true;
        self.is_unasked = true;
    }

    /// Whether all mail is known that was unread when the last [look](Self::look) was requested.
    pub(crate) fn has_looked(&self) -> bool {
        self.look == Look::Over
    }

    /// Returns the number of the newest message that is known.
    pub(crate) fn last_number(&self) -> u64 {
        self.last_number
    }

    /// Whether a message was requested that [`Self::poll`] does not know of yet.
    pub(crate) fn take_unasked(&mut self) -> bool {
        std::mem::take(&mut self.is_unasked)
    }

    /// Forgets a message that was read for good.
    pub(crate) fn consume(&mut self, id: &MessageId) {
        if let Some(kept_bytes) = self.known.get_mut(id).and_then(|known| known.kept_bytes.take()) {
            self.kept_bytes -= kept_bytes;
            self.read.add(id.clone());
        }
        // The code that wanted it no longer does, and soon it is nowhere to be found.
        let is_wanted = self.fetching.as_ref().is_some_and(|fetching| fetching.id == *id);
        if is_wanted && !planted(Bug::MailFetchedAfterRead) {
            self.fetching = None;
        }
    }

    /// Returns all messages that are known here and stay unread, in the store's order.
    pub(crate) fn unread(&self) -> impl Iterator<Item = &MessageId> {
        let unread = self.known.iter().filter(|(_, known)| known.kept_bytes.is_some());
        let mut unread: Vec<_> = unread.map(|(id, known)| (known.number, id)).collect();
        unread.sort_unstable_by_key(|(number, _)| *number);
        unread.into_iter().map(|(_, id)| id)
    }

    /// Whether all mail that notices announced, and all that was requested, is here.
    pub(crate) fn is_complete(&self) -> bool {
        self.reading.is_none() && !self.is_behind && self.fetching.is_none()
    }

    pub(crate) fn arrive(&mut self, arrivals: Vec<Arrival>) {
        self.mail.reserve(arrivals.len());
        for arrival in arrivals {
            match arrival {
                Arrival::Message { epoch, message, previous } => {
                    let is_next = previous.is_none_or(|previous| self.known.contains_key(&previous))
                        || planted(Bug::SignalsOutOfOrder);
                    if is_next && epoch == self.epoch {
                        // It is on the last page that was read, or after it.
                        self.push(message, self.last_page);
                    } else if !self.known.contains_key(&message.id) {
                        self.is_behind = true;
                    }
                }
                Arrival::Newest(id) => self.is_behind |= !self.known.contains_key(&id),
                Arrival::More => self.is_behind = true,
            }
        }
    }

    /// Reads the missing messages, as far as they have come.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        self.poll_fetching(cx)?;
        loop {
            if self.reading.is_none() && std::mem::take(&mut self.is_behind) {
                self.read(InboxRead::first(self.key));
                if self.look == Look::Wanted {
                    self.look = Look::UnderWay;
                }
            }
            let Some(reading) = &mut self.reading else { return Ok(()) };
            match reading.poll(&*self.store, &*self.runtime, cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(page) => {
                    let begins = Left(reading.request().after);
                    self.reading = None;
                    self.take(page?, begins);
                    // A page that was on its way when the look was requested is older than the
                    // request.
                    if self.reading.is_none() && self.look == Look::UnderWay {
                        self.look = Look::Over;
                    }
                }
            }
        }
    }

    /// Searches for the wanted message, page by page.
    fn poll_fetching(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        while let Some(fetching) = &mut self.fetching {
            let Poll::Ready(page) = fetching.reading.poll(&*self.store, &*self.runtime, cx) else {
                return Ok(());
            };
            let page = page?;
            if page.messages.iter().any(|message| message.id == fetching.id) {
                self.fetched =
                    page.messages.into_iter().map(|message| (message.id.clone(), message)).collect();
                self.fetching = None;
                return Ok(());
            }
            let after = match page.next {
                Some(next) => Some(next),
                // Places are the store's own. A search that finds nothing at its place starts at
                // the beginning, which is never wrong.
                None if !fetching.is_from_beginning => {
                    fetching.is_from_beginning = true;
                    None
                }
                // No damaged record was read: the next holder begins anew and believes the store.
                None => {
                    let source = format!("message {:?} is unread and not there", fetching.id).into();
                    return Err(Error::Unread { what: "inbox", source });
                }
            };
            let read = InboxRead { after, ..InboxRead::first(self.key) };
            fetching.reading = page_reading(&*self.store, read);
        }
        Ok(())
    }

    /// Notes that a commit with all messages that were read so far is on its way.
    pub(crate) fn sent(&mut self) {
        self.read.sent();
    }

    /// Notes that the commit is durable, and forgets the messages that nobody can bring again.
    pub(crate) fn committed(&mut self) {
        for id in self.read.committed(self.reading.is_some()) {
            self.known.remove(&id);
        }
    }

    fn read(&mut self, read: InboxRead) {
        self.read.page_requested();
        self.reading = Some(Box::new(page_reading(&*self.store, read)));
    }

    fn take(&mut self, page: InboxPage, begins: Left) {
        self.last_page = begins;
        page.messages.into_iter().for_each(|message| self.push(message, begins));
        if page.next.is_some() {
            self.read(InboxRead { after: page.next, ..InboxRead::first(self.key) });
        }
    }

    fn push(&mut self, message: Message, place: Left) {
        let Entry::Vacant(vacant) = self.known.entry(message.id.clone()) else { return };
        let bytes = message.body.carried_bytes();
        let is_kept = self.kept_bytes + bytes <= self.kept_bytes_max;
        let kept_bytes = if is_kept { bytes } else { 0 };
        self.last_number += 1;
        let number = self.last_number;
        vacant.insert(Known { number, kept_bytes: Some(kept_bytes) });
        self.kept_bytes += kept_bytes;
        if message.body.is_control() {
            self.orders.push_back(message);
        } else if is_kept {
            self.mail.push_back(Letter { number, message, left: None });
        } else {
            let message = Message { body: message.body.emptied(), ..message };
            self.mail.push_back(Letter { number, message, left: Some(place) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_mail::READ_COUNT_MAX;
    use crate::sim::Sim;
    use abide_core::{Address, Body, Bounds, By, ExecutionId, Name, Namespace, Payload};
    use abide_store::faults::{Fault, FaultyStore};
    use abide_store::memory::MemoryStore;
    use abide_store::{Answer, Submit, View};
    use std::task::Waker;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn message(id: &str, body: Body) -> Message {
        let to = Address { namespace: Namespace::default(), id: ExecutionId::new("one").expect("an id") };
        Message::new(MessageId::new(id), to, By::client(), body)
    }

    /// Answers at once, or never.
    fn now<T>(answer: Answer<T>) -> T {
        let mut answer = answer;
        match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(value)) => value,
            Poll::Ready(Err(error)) => panic!("{error}"),
            Poll::Pending => panic!("the store in memory does not wait"),
        }
    }

    const EPOCH: Epoch = Epoch(2);

    /// Makes an inbox that keeps ten bytes, with signals of these sizes.
    fn inbox(sizes: &[usize]) -> (Sim, Inbox) {
        let sim = Sim::new(1);
        let store = MemoryStore::new(Arc::new(sim.clone()), Bounds::default());
        let start = abide_core::fixture::flow();
        let mut messages = vec![message("start", Body::Start(start.into()))];
        for (n, size) in sizes.iter().enumerate() {
            let payload = Payload::from(vec![b'x'; *size]);
            messages.push(message(&n.to_string(), Body::Signal { name: name("s"), payload }));
        }
        let submitted = now(store.submit(Submit { messages, born_to: None, alone: false, stretch: None }));
        let key = submitted[0].key();
        let page = now(store.inbox(InboxRead::first(key)));
        let mut inbox = Inbox::new((store, sim.process(1)), 10, (key, EPOCH), page);
        poll(&mut inbox);
        (sim, inbox)
    }

    fn poll(inbox: &mut Inbox) {
        inbox.poll(&mut Context::from_waker(Waker::noop())).expect("the store answers");
    }

    fn left(inbox: &mut Inbox) -> Vec<bool> {
        std::iter::from_fn(|| inbox.next()).map(|letter| letter.left.is_some()).collect()
    }

    #[test]
    fn what_is_beyond_the_bound_is_left_in_the_store() {
        let (_sim, mut inbox) = inbox(&[4, 7, 6, 1]);
        assert_eq!(left(&mut inbox), [false, true, false, true]);
    }

    #[test]
    fn arrivals_are_bounded_by_count_and_by_what_they_carry() {
        let signal = |size: usize| {
            let payload = Payload::from(vec![b'x'; size]);
            let message = message("s", Body::Signal { name: name("s"), payload });
            Arrival::Message { epoch: EPOCH, message, previous: None }
        };
        let kept = |size: usize, count: usize| {
            let mut arrivals = Arrivals::default();
            (0..count).for_each(|_| arrivals.add(vec![signal(size)]));
            let is_cut = matches!(arrivals.kept[0], Arrival::More);
            (is_cut, arrivals.kept.len(), arrivals.bytes())
        };
        assert_eq!(kept(1, ARRIVAL_COUNT_MAX), (false, ARRIVAL_COUNT_MAX, ARRIVAL_COUNT_MAX));
        assert_eq!(kept(1, ARRIVAL_COUNT_MAX + 1), (true, 2, 1));
        let half = ARRIVAL_BYTES_MAX / 2;
        assert_eq!(kept(half, 2), (false, 2, ARRIVAL_BYTES_MAX));
        assert_eq!(kept(half, 3), (true, 2, half));
        assert_eq!(kept(2 * ARRIVAL_BYTES_MAX, 1), (false, 1, 2 * ARRIVAL_BYTES_MAX), "a single one is kept");
    }

    /// A page that was on its way, or a late notice, brings it again: the store knows only after
    /// the commit that it was read.
    #[test]
    fn a_message_that_was_read_lately_is_no_news() {
        let (_sim, mut inbox) = inbox(&[]);
        let arrive = |inbox: &mut Inbox, nth: usize| {
            let payload = Payload::from("");
            let message = message(&nth.to_string(), Body::Signal { name: name("s"), payload });
            inbox.arrive(vec![Arrival::Message { epoch: EPOCH, message, previous: None }]);
        };
        for nth in 0..2 * READ_COUNT_MAX {
            arrive(&mut inbox, nth);
            let letter = inbox.next().expect("it has come");
            inbox.consume(&letter.message.id);
            inbox.sent();
            inbox.committed();
            assert!(inbox.known.len() <= READ_COUNT_MAX, "old ones are forgotten");
            arrive(&mut inbox, nth);
            arrive(&mut inbox, nth.saturating_sub(ARRIVAL_COUNT_MAX));
            assert!(inbox.next().is_none(), "{nth}");
        }
    }

    /// The store has them all unread, and a page brings them again.
    #[test]
    fn a_message_whose_commit_is_not_durable_is_no_news() {
        let (_sim, mut inbox) = inbox(&[]);
        let arrive = |inbox: &mut Inbox, nth: usize| {
            let message =
                message(&nth.to_string(), Body::Signal { name: name("s"), payload: Payload::from("") });
            inbox.arrive(vec![Arrival::Message { epoch: EPOCH, message, previous: None }]);
        };
        let count = READ_COUNT_MAX + 2_000;
        for nth in 0..count {
            arrive(&mut inbox, nth);
            let letter = inbox.next().expect("it has come");
            inbox.consume(&letter.message.id);
            if nth == 100 {
                inbox.sent();
            }
        }
        (0..count).for_each(|nth| arrive(&mut inbox, nth));
        assert!(inbox.next().is_none());
        inbox.committed();
        (101..count).for_each(|nth| arrive(&mut inbox, nth));
        assert!(inbox.next().is_none(), "the first commit had 101 of them");
        inbox.sent();
        inbox.committed();
        assert_eq!(inbox.known.len(), READ_COUNT_MAX);
    }

    /// Mail comes so fast that a page is always on its way.
    #[test]
    fn read_messages_are_forgotten_between_pages() {
        let (sim, whole) = inbox(&[]);
        let slow = FaultyStore::deciding(whole.store.clone(), |_| Fault::Delay { poll_count: 1 });
        let mut inbox = Inbox { store: slow, runtime: sim.process(2), ..whole };
        for nth in 0..2 * READ_COUNT_MAX {
            let body = Body::Signal { name: name("s"), payload: Payload::from("") };
            let message = message(&nth.to_string(), body);
            inbox.arrive(vec![Arrival::Message { epoch: EPOCH, message, previous: None }, Arrival::More]);
            let letter = inbox.next().expect("it has come");
            inbox.consume(&letter.message.id);
            inbox.sent();
            poll(&mut inbox);
            assert!(inbox.reading.is_some());
            inbox.committed();
        }
        assert!(inbox.known.len() <= READ_COUNT_MAX + 2, "{}", inbox.known.len());
    }

    #[test]
    fn what_was_read_for_good_makes_room() {
        let (_sim, mut inbox) = inbox(&[10]);
        inbox.consume(&MessageId::new("0"));
        inbox.consume(&MessageId::new("0"));
        let payload = Payload::from(vec![b'x'; 10]);
        let arrived = message("new", Body::Signal { name: name("s"), payload });
        inbox.arrive(vec![Arrival::Message { epoch: EPOCH, message: arrived, previous: None }]);
        assert_eq!(left(&mut inbox), [false, false]);
    }

    /// The notice is so late that its message was read for good under the previous lease.
    #[test]
    fn notice_of_an_earlier_lease_is_looked_up() {
        let (_sim, mut inbox) = inbox(&[1]);
        let payload = Payload::from("1");
        let late = message("late", Body::Signal { name: name("s"), payload });
        inbox.arrive(vec![Arrival::Message { epoch: Epoch(1), message: late, previous: None }]);
        assert!(!inbox.is_complete(), "the store knows");
        poll(&mut inbox);
        assert!(inbox.is_complete());
        assert_eq!(inbox.unread().count(), 1);
    }

    #[test]
    fn message_is_found_wherever_the_search_begins() {
        let (_sim, mut inbox) = inbox(&[20; 40]);
        let letters: Vec<_> = std::iter::from_fn(|| inbox.next()).collect();
        assert_eq!(letters.len(), 40);
        // Its known place, a place too far, and the beginning.
        for place in [letters[39].left.expect("it was left"), Left(Some(InboxCursor(1_000))), Left(None)] {
            assert!(inbox.fetch(&letters[39].message.id, place).is_none());
            assert!(!inbox.is_complete(), "nobody parks while it is on its way");
            poll(&mut inbox);
            let found = inbox.fetch(&letters[39].message.id, place).expect("it was read");
            assert_eq!(found.body.carried_bytes(), 20);
            assert!(inbox.is_complete());
        }
    }

    /// The last notice is a copy of an old one, and does not mention the arrivals beyond the bound.
    #[test]
    fn too_many_arrivals_have_the_inbox_read() {
        let (_sim, mut inbox) = inbox(&[1]);
        let new = |n: usize| {
            let body = Body::Signal { name: name("s"), payload: Payload::from("1") };
            let previous = (n > 0).then(|| MessageId::new(format!("new-{}", n - 1)));
            Arrival::Message { epoch: EPOCH, message: message(&format!("new-{n}"), body), previous }
        };
        let mut arrivals = Arrivals::default();
        arrivals.add((0..ARRIVAL_COUNT_MAX).map(new).collect());
        arrivals.add(vec![Arrival::Newest(MessageId::new("0"))]);
        assert!(arrivals.kept.len() < ARRIVAL_COUNT_MAX);
        inbox.arrive(arrivals.into_kept());
        assert!(!inbox.is_complete());
    }

    /// The page that is on its way when the look is requested lacks a message that came later.
    #[test]
    fn page_that_is_older_than_a_look_is_not_the_look() {
        let sim = Sim::new(1);
        let store = MemoryStore::new(Arc::new(sim.clone()), Bounds::default());
        let start = message("start", Body::Start(abide_core::fixture::flow().into()));
        let submit = |message| Submit { messages: vec![message], born_to: None, alone: false, stretch: None };
        let key = now(store.submit(submit(start)))[0].key();
        let page = now(store.inbox(InboxRead::first(key)));
        let slow = FaultyStore::deciding(store.clone(), |_| Fault::Delay { poll_count: 1 });
        let mut inbox = Inbox::new((slow, sim.process(1)), 10, (key, EPOCH), page);
        inbox.arrive(vec![Arrival::More]);
        poll(&mut inbox);
        let body = Body::Signal { name: name("s"), payload: Payload::from("1") };
        now(store.submit(submit(message("unnoticed", body))));
        inbox.look();
        poll(&mut inbox);
        assert!(!inbox.has_looked(), "the page is older than the message");
        poll(&mut inbox);
        assert!(inbox.has_looked());
        assert!(inbox.known.contains_key(&MessageId::new("unnoticed")));
    }

    #[test]
    fn message_that_is_nowhere_is_told() {
        let (_sim, mut inbox) = inbox(&[20; 40]);
        assert!(inbox.fetch(&MessageId::new("other"), Left(None)).is_none());
        let told = inbox.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(told, Err(Error::Unread { .. })), "{told:?}");
    }

    /// The answer of an abandoned child is requested, and then read for good by a faster commit.
    #[test]
    fn message_that_was_read_is_looked_for_no_longer() {
        let (_sim, mut inbox) = inbox(&[20; 40]);
        let read = MessageId::new("other");
        assert!(inbox.fetch(&read, Left(None)).is_none());
        inbox.consume(&read);
        poll(&mut inbox);
        assert!(inbox.is_complete());
    }
}
