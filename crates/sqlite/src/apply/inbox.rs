//! Messages other than starts: how they come into inboxes.

use std::sync::Arc;

use abide_core::intake::{self, Found, Intake, Standing};
use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Execution, LeaseRow, Message, MessageId, SessionId, Sort, Start, Summary, Timestamp, Version,
    care,
    parking::{self, Parked, Seen},
};
use abide_store::{ExecutionKey, InboxCursor, InboxPage, InboxRead, Leased, PageBounds};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::message::first_start;
use crate::answers::{self, Answer, Keeping};
use crate::batch::Batch;
use crate::caches::Inbox;
use crate::error::Stop;
use crate::mail::{ARRIVED_FAR, encoded, message, place_behind, read_sum, sort_at, sound_place};
use crate::notices::Arrived;
use crate::place::Place;
use crate::rows::{Target, blob, integer, micros, number, unsigned};
use crate::sql;
use crate::statements::Frequent;

/// The outcome of putting a message into an inbox.
pub(crate) enum Put {
    Delivered(ExecutionKey),
    Duplicate(ExecutionKey),
}

impl Batch<'_> {
    /// Puts a message other than a start into its target's inbox. Nobody sends it again, so even an
    /// unreadable execution accepts it: damage may be repaired, and a newer program can read the
    /// executions that it wrote.
    pub(crate) fn put(&mut self, message: &Message) -> Result<Put, Stop> {
        self.put_anywhere(message, Judge::IfReadable)
    }

    /// Does the same for a message that was lost, even if it is kept beside an entry of its sender.
    pub(crate) fn put_again(&mut self, message: &Message) -> Result<Put, Stop> {
        self.put_anywhere(message, Judge::Again)
    }

    fn put_anywhere(&mut self, message: &Message, judge: Judge) -> Result<Put, Stop> {
        let target = match self.target(&message.to).map_err(Stop::aside) {
            Err(stop) if stop.is_unreadable() => self.unreadable(&message.to)?,
            found => found?,
        };
        self.put_into(target, message, judge)
    }

    /// Does the same for a sender that learns of an unreadable target; then the message is put
    /// nowhere.
    pub(crate) fn put_or_tell(&mut self, message: &Message) -> Result<Put, Stop> {
        let target = self.target(&message.to).map_err(Stop::aside)?;
        self.put_into(target, message, Judge::Always)
    }

    fn put_into(
        &mut self,
        target: Option<Arc<Target>>,
        message: &Message,
        judge: Judge,
    ) -> Result<Put, Stop> {
        let now = self.now();
        self.bind_sheaf()?;
        if let Some(target) = &target
            && !planted(Bug::AnswersUnseen)
        {
            self.settle_unknown(target.key, target.keeping)?;
        }
        let intake = self.admit(target.as_ref(), message, (judge, now))?;
        let target = target.ok_or_else(|| Stop::corrupt(format!("{} is found and is not", message.to)))?;
        let key = ExecutionKey(unsigned(target.key));
        let wakes = match intake {
            Intake::Deliver { wakes } => wakes,
            Intake::Retry => return self.retry(&target, message),
            Intake::Create | Intake::Attach | Intake::Duplicate => return Ok(Put::Duplicate(key)),
        };
        if target.keeping != Keeping::Never
            && judge != Judge::Again
            && self.is_kept(target.key, &message.id)?
        {
            return Ok(Put::Duplicate(key));
        }
        let message = message.clone().arrived(now);
        let Some(previous) = self.insert_message(target.key, &message)? else {
            return Ok(Put::Duplicate(key));
        };
        self.care_for(&target, &message)?;
        // The search for mail of held executions goes through the index.
        self.settle((target.key, target.epoch), target.place)?;
        match target.place {
            Place::Held(holder) if self.shared.notices.holds(holder.session) => {
                self.notify_holder(&target, holder.session, (message, previous));
            }
            Place::Waiting | Place::Timer(..) if wakes => {
                // A timer that has gone off made it ready, although no claim has seen that yet.
                let ready_at = match target.place {
                    Place::Timer(_, due_at) => due_at.min(now),
                    _ => now,
                };
                let place = (target.place, Place::Ready(target.queue, ready_at));
                self.relocate((target.key, target.epoch), place)?;
                self.announce(target.queue.route)?;
            }
            // Either a session of another process holds it and sees that the database has changed,
            // or it is ready already.
            Place::Held(_)
            | Place::Ready(..)
            | Place::Waiting
            | Place::Timer(..)
            | Place::Finished(_)
            | Place::Damaged(_) => {}
        }
        Ok(Put::Delivered(key))
    }

    /// Notifies the session that holds an execution of a message that has arrived.
    pub(crate) fn notify_holder(
        &mut self,
        target: &Target,
        session: SessionId,
        (message, Previous(previous)): (Message, Previous),
    ) {
        // If the epoch is lost, no holder accepts the notice: the holder finds the damage with its
        // next commit.
        let (key, epoch) = (ExecutionKey(unsigned(target.key)), target.epoch.unwrap_or_default());
        self.effects.notices.messages.push(Arrived { session, key, epoch, message, previous });
    }

    /// Decides about a message that finds `target` at `now`.
    pub(crate) fn admit(
        &mut self,
        target: Option<&Arc<Target>>,
        message: &Message,
        (judge, now): (Judge, Timestamp),
    ) -> Result<Intake, Stop> {
        let terms = (&self.shared.options.bounds, now);
        let mut found = target.map(|target| Finding { batch: self, target, judge });
        intake::admit(found.as_mut(), message, terms)
    }

    /// Records when a caretaker has to look, after a message has arrived.
    pub(crate) fn care_for(&mut self, target: &Target, message: &Message) -> Result<(), Stop> {
        // Caretakers ignore all other mail.
        if !message.body.is_control() {
            return Ok(());
        }
        let (session, epoch) = (target.place.session(), target.epoch.unwrap_or_default());
        let lease = LeaseRow { session, epoch, version: Version::default() };
        let care_at = care::after_arrival(target.care_at, &lease, message, self.terminate_grace());
        if care_at != target.care_at {
            self.set_care(target.key, care_at)?;
            self.announce_care(target.queue.route)?;
        }
        Ok(())
    }

    /// Sets the time at which a caretaker has to look at an execution.
    pub(crate) fn set_care(&mut self, key: i64, care_at: Option<Timestamp>) -> Result<(), Stop> {
        self.caches.targets.remove(&key);
        if let Some(cached) = self.caches.rows.get_mut(&key) {
            cached.state.care_at = care_at;
        }
        self.connection.prepare_cached(sql::EXECUTION_CARE)?.execute(params![key, micros(care_at)])?;
        Ok(())
    }

    /// Returns the target of a message, from memory or from its row.
    pub(crate) fn target(&mut self, address: &Address) -> Result<Option<Arc<Target>>, Stop> {
        let last = self.caches.last_id.as_ref().filter(|(last, _)| last == address).map(|(_, key)| *key);
        if let Some(key) = last.or_else(|| self.caches.ids.get(address).copied())
            && let Some(known) = self.caches.targets.get(&key)
        {
            if last.is_none() {
                self.caches.last_id = Some((address.clone(), key));
            }
            return Ok(Some(Arc::clone(known)));
        }
        let interned = self.caches.interned(self.connection)?;
        let Some(namespace) = interned.find(&address.namespace)? else { return Ok(None) };
        let Some(found) = Target::read(self.connection, namespace, address)? else { return Ok(None) };
        let target = Arc::new(found);
        self.caches.ids.insert(address.clone(), target.key);
        self.caches.last_id = Some((address.clone(), target.key));
        self.caches.targets.insert(target.key, Arc::clone(&target));
        Ok(Some(target))
    }

    /// Returns a target whose row cannot be read. Memory does not keep it, because it may be
    /// repaired.
    fn unreadable(&mut self, address: &Address) -> Result<Option<Arc<Target>>, Stop> {
        let interned = self.caches.interned(self.connection)?;
        let Some(namespace) = interned.find(&address.namespace)? else { return Ok(None) };
        Ok(Target::unreadable(self.connection, namespace, address)?.map(Arc::new))
    }

    /// Inserts a message, and returns the newest unread message before it; `None` when the message
    /// was there before, read or unread.
    pub(super) fn insert_message(&mut self, key: i64, message: &Message) -> Result<Option<Previous>, Stop> {
        let arrived = place_behind(self.inbox(key)?.newest, message.body.sort());
        let body = encoded(key, message, arrived);
        let insert = self.frequent(Frequent::InboxInsert)?;
        if insert.execute((key, message.id.as_str(), arrived, body.as_slice()))? == 0 {
            return Ok(None);
        }
        self.caches.answers.note(key, &message.id);
        self.arrive(key, (&message.id, arrived)).map(Some)
    }

    /// Counts a message that has arrived, and returns the newest unread message before it.
    pub(crate) fn arrive(&mut self, key: i64, (id, arrived): (&MessageId, i64)) -> Result<Previous, Stop> {
        let inbox = self.inbox(key)?;
        inbox.newest = arrived;
        inbox.unread_count += 1;
        Ok(Previous(inbox.newest_id.replace(id.clone())))
    }

    /// Keeps the id of a read message. Returns `false` when it was there before.
    pub(crate) fn insert_read(&mut self, key: i64, id: &MessageId) -> Result<bool, Stop> {
        self.caches.answers.note(key, id);
        let mut insert = self.connection.prepare_cached(sql::INBOX_INSERT)?;
        let (sum, nothing_to_read): (i64, Option<Vec<u8>>) = (read_sum(key, id.as_str()), None);
        Ok(insert.execute(params![key, id.as_str(), sum, nothing_to_read])? == 1)
    }

    /// Delivers a message to an execution that the same operation created: with its lease, not as a
    /// notice before it.
    pub(crate) fn tell_newborn<'l>(
        &mut self,
        mut born: impl Iterator<Item = &'l mut Leased>,
        put: &Put,
    ) -> Result<(), Stop> {
        let Put::Delivered(key) = put else { return Ok(()) };
        if let Some(leased) = born.find(|leased| leased.key == *key) {
            if leased.inbox.next.is_none() {
                leased.inbox = self.first_page(*key)?.0;
            }
            self.effects.notices.messages.pop_if(|arrived| arrived.key == *key);
        }
        Ok(())
    }

    /// Returns the first page of an inbox, and its size. Its execution keeps no answers.
    pub(crate) fn first_page(&self, key: ExecutionKey) -> rusqlite::Result<(InboxPage, usize)> {
        let bounds = &self.shared.options.page_bounds;
        inbox_page(self.connection, (InboxRead::first(key), Vec::new()), bounds)
    }

    /// Decides how an execution is parked whose holder has `seen` some of the unread messages.
    pub(crate) fn park(
        &mut self,
        key: i64,
        (summary, seen): (&Summary, &[MessageId]),
        now: Timestamp,
    ) -> Result<Parked, Stop> {
        if self.inbox(key)?.unread_count == 0 {
            return Ok(parking::park(summary, std::iter::empty(), now));
        }
        let seen = Seen::of(seen);
        let mut unseen = Vec::new();
        self.each_sort(key, |id, sort| unseen.extend((!id.is_some_and(|id| seen.has(id))).then_some(sort)))?;
        Ok(parking::park(summary, unseen, now))
    }

    /// Passes on the ids of the unread messages and their sorts, as far as these can be read. The
    /// bodies are not read: they may be large.
    pub(super) fn each_sort(
        &self,
        key: i64,
        mut tell: impl FnMut(Option<&str>, Option<Sort>),
    ) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(sql::INBOX_PLACES)?;
        let mut rows = statement.query([key])?;
        while let Some(row) = rows.next()? {
            tell(row.get_ref(0)?.as_str().ok(), number(row, 1)?.and_then(sort_at));
        }
        Ok(())
    }

    /// Returns the cached state of an execution's unread messages.
    pub(crate) fn inbox(&mut self, key: i64) -> Result<&mut Inbox, Stop> {
        if !self.caches.inboxes.contains_key(&key) {
            let found = self.read_inbox(key)?;
            self.caches.inboxes.insert(key, found);
        }
        Ok(self.caches.inboxes.get_mut(&key).expect("it was just found"))
    }

    fn read_inbox(&self, key: i64) -> rusqlite::Result<Inbox> {
        let mut statement = self.connection.prepare_cached(sql::INBOX_NEWEST)?;
        let newest = statement.query_row([key], |row| {
            let id = row.get_ref(0)?.as_str().ok().map(MessageId::new);
            Ok((id, number(row, 1)?.filter(|newest| (0..ARRIVED_FAR).contains(newest))))
        });
        let (kept_count, kept) = self.caches.answers.newest(key);
        let kept = kept.map(|(arrived, id)| (arrived, Some(id.clone())));
        let Some((newest_id, newest)) = newest.optional()? else {
            let (newest, newest_id) = kept.unwrap_or_default();
            return Ok(Inbox { unread_count: kept_count, newest, newest_id });
        };
        let newest = match newest {
            Some(newest) => newest,
            // The last message is damaged: it does not say where the next one belongs.
            None => newest_sound(self.connection, key)?,
        };
        let mut statement = self.connection.prepare_cached(sql::INBOX_COUNT)?;
        let row_count = statement.query_row([key], |row| row.get::<_, i64>(0))?;
        let (newest, newest_id) = kept.filter(|(kept, _)| *kept > newest).unwrap_or((newest, newest_id));
        let unread_count = usize::try_from(row_count).unwrap_or(0) + kept_count;
        Ok(Inbox { unread_count, newest, newest_id })
    }
}

/// Whether a message is also put into an inbox whose execution could not be judged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judge {
    Always,
    IfReadable,
    /// As before, for a message that is sent again although it is kept.
    Again,
}

/// The execution that a message goes to.
struct Finding<'b, 'c> {
    batch: &'b mut Batch<'c>,
    target: &'b Arc<Target>,
    judge: Judge,
}

impl Found for Finding<'_, '_> {
    type Error = Stop;

    fn standing(&self) -> Standing {
        self.target.standing
    }

    fn execution(&self) -> Result<&Execution, Stop> {
        self.target.execution(self.batch.connection).map_err(Stop::aside)
    }

    fn first_start(&mut self) -> Result<Arc<Start>, Stop> {
        first_start(self.batch.connection, self.target.key, self.target.origin).map_err(Stop::aside)
    }

    fn has_seen(&mut self, id: &MessageId) -> Result<bool, Stop> {
        answers::has_seen(self.batch.connection, self.target.key, id)
    }

    fn unread_count(&mut self) -> Result<usize, Stop> {
        Ok(self.batch.inbox(self.target.key)?.unread_count)
    }

    fn orders(&mut self) -> Result<Vec<Message>, Stop> {
        orders(self.batch.connection, self.target.key).map_err(|error| Stop::from(error).aside())
    }

    fn pass_over(&self, stop: Stop) -> Result<(), Stop> {
        match self.judge {
            Judge::IfReadable | Judge::Again if stop.is_unreadable() => Ok(()),
            Judge::IfReadable | Judge::Again | Judge::Always => Err(stop),
        }
    }
}

/// The newest message that was unread when another one arrived.
pub(crate) struct Previous(Option<MessageId>);

/// Returns a page of the unread messages of an execution, in order of arrival, and its size. `kept`
/// are its answers that stand in no inbox.
pub(crate) fn inbox_page(
    connection: &Connection,
    (read, kept): (InboxRead, Vec<Answer>),
    page_bounds: &PageBounds,
) -> rusqlite::Result<(InboxPage, usize)> {
    let key = integer(read.key.0);
    let limit = read.limit.min(page_bounds.inbox_page_count_max);
    let mut last = read.after.map_or(i64::MIN, |InboxCursor(arrived)| integer(arrived));
    let mut statement = connection.prepare_cached(sql::INBOX_PAGE)?;
    // One more, to see whether there are more.
    let mut rows = statement.query([key, last, integer(limit as u64).saturating_add(1)])?;
    let after = last;
    let mut kept = kept.into_iter().filter(|kept| kept.arrived > after).peekable();
    let (mut page, mut bytes) = (InboxPage::default(), 0);
    let mut row = rows.next()?;
    loop {
        let row_arrived = row.map(|row| row.get::<_, i64>(2)).transpose()?;
        let next = match kept.next_if(|kept| row_arrived.is_none_or(|arrived| kept.arrived < arrived)) {
            Some(answer) => match answer.read(connection, key)? {
                Some(kept) => Some(kept),
                None => continue,
            },
            None => None,
        };
        let size = match (&next, row) {
            (Some(kept), _) => kept.body.len(),
            (None, Some(row)) => blob(row, 3)?.len(),
            (None, None) => break,
        };
        let is_full = page.messages.len() == limit;
        if is_full || (bytes + size > page_bounds.inbox_page_bytes_max && !page.messages.is_empty()) {
            page.next = Some(InboxCursor(unsigned(last)));
            break;
        }
        bytes += size;
        if let Some(kept) = next {
            last = kept.arrived;
            page.messages.push(kept.message(key)?);
        } else if let Some(found) = row {
            last = found.get(2)?;
            page.messages.push(message(found)?);
            row = rows.next()?;
        }
    }
    Ok((page, bytes))
}

/// Returns all unread orders of an execution, in order of arrival.
pub(crate) fn orders(connection: &Connection, key: i64) -> rusqlite::Result<Vec<Message>> {
    let mut statement = connection.prepare_cached(sql::INBOX_ORDERS)?;
    let orders = statement.query_map([key], message)?;
    orders.collect()
}

/// Reads the unread messages of an execution one by one, in order of arrival: all of them may be
/// more than fits into memory.
pub(crate) fn each_unread(
    connection: &Connection,
    key: i64,
    mut read: impl FnMut(Message),
) -> rusqlite::Result<()> {
    let mut kept = answers::unread(connection, key)?.into_iter().peekable();
    let mut statement = connection.prepare_cached(sql::INBOX_UNREAD)?;
    let mut rows = statement.query([key])?;
    while let Some(row) = rows.next()? {
        let arrived: i64 = row.get(2)?;
        while let Some(before) = kept.next_if(|kept| kept.arrived < arrived) {
            if let Some(kept) = before.read(connection, key)? {
                read(kept.message(key)?);
            }
        }
        read(message(row)?);
    }
    for last in kept {
        if let Some(kept) = last.read(connection, key)? {
            read(kept.message(key)?);
        }
    }
    Ok(())
}

/// Returns the last place among the undamaged messages of an execution.
fn newest_sound(connection: &Connection, key: i64) -> rusqlite::Result<i64> {
    let mut statement = connection.prepare_cached(sql::INBOX_UNREAD)?;
    let mut rows = statement.query([key])?;
    let mut newest = 0;
    while let Some(row) = rows.next()? {
        newest = newest.max(sound_place(row, key).unwrap_or(0));
    }
    Ok(newest)
}

/// Returns the flaw in the messages of an execution, read or unread, if they have one.
pub(crate) fn check_inbox(connection: &Connection, key: i64) -> rusqlite::Result<Option<String>> {
    let mut statement = connection.prepare_cached(sql::VERIFY_INBOX)?;
    let mut rows = statement.query([key])?;
    while let Some(row) = rows.next()? {
        if row.get_ref(3)? != ValueRef::Null {
            let message = message(row)?;
            if sort_at(row.get(2)?) != Some(message.body.sort()) {
                let (id, word) = (&message.id, message.body.word());
                return Ok(Some(format!("message {id:?}, a {word}, stands among messages of another kind")));
            }
            continue;
        }
        let id = row.get_ref(1)?.as_str()?;
        if row.get::<_, i64>(2)? != read_sum(key, id) {
            return Ok(Some(format!("the id of message {id:?}, which was read, is damaged")));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use abide_core::{Body, Payload};
    use abide_store::conformance::{TestClock, block_on};
    use abide_store::{Claim, Clock, Store};
    use rusqlite::StatementStatus;

    use super::*;
    use crate::checksum::{self, CHECKSUM_BYTES, Checksum};
    use crate::fixture::{message, name, register, start, submit};
    use crate::mail::unread_sum;
    use crate::{Options, SqliteStore};

    fn signal(id: &str) -> Message {
        message(id, "a", Body::Signal { name: name("go"), payload: Payload::from("1") })
    }

    fn resume(id: &str) -> Message {
        message(id, "a", Body::Resume)
    }

    fn insert(connection: &Connection, message: &Message, (arrived, body): (i64, Vec<u8>)) {
        let id = message.id.as_str();
        connection.execute(sql::INBOX_INSERT, params![7, id, arrived, body]).unwrap();
    }

    fn connection() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(sql::MIGRATIONS[0]).unwrap();
        connection
    }

    /// The signals cannot be read: a reader of the inbox finds out.
    #[test]
    fn orders_are_found_without_reading_the_mail_around_them() {
        let connection = connection();
        let (mut arrived, orders) = (0, [resume("one"), resume("two")]);
        for order in &orders {
            for n in 0..500 {
                let signal = signal(&format!("{}-{n}", order.id.as_str()));
                arrived = place_behind(arrived, Sort::Signal);
                insert(&connection, &signal, (arrived, vec![0]));
            }
            arrived = place_behind(arrived, Sort::Order);
            insert(&connection, order, (arrived, encoded(7, order, arrived)));
        }
        assert_eq!(super::orders(&connection, 7).unwrap(), orders);
        let step_count =
            connection.prepare_cached(sql::INBOX_ORDERS).unwrap().get_status(StatementStatus::VmStep);
        assert!((1..100).contains(&step_count), "{step_count} steps for two orders among 1,000 signals");
    }

    #[test]
    fn a_message_among_those_of_another_kind_is_told() {
        let order = resume("resume");
        for (message, arrived) in [(&order, 4), (&order, 6), (&signal("go"), 5)] {
            let connection = connection();
            insert(&connection, message, (arrived, encoded(7, message, arrived)));
            let problem = check_inbox(&connection, 7).unwrap();
            assert!(problem.is_some_and(|problem| problem.contains("of another kind")), "{arrived}");
        }
    }

    /// Readers begin behind place zero.
    #[test]
    fn a_message_in_a_place_that_none_has_is_told() {
        for arrived in [-4, 0, i64::MAX - 1] {
            let connection = connection();
            insert(&connection, &signal("go"), (arrived, encoded(7, &signal("go"), arrived)));
            let problem = check_inbox(&connection, 7).unwrap_err();
            assert!(problem.to_string().contains("is damaged: there is no place"), "{problem}");
        }
    }

    /// A worker that can read it may come later: caretakers look at it until then.
    #[test]
    fn what_has_mail_of_a_newer_program_is_looked_after_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, clock) = (folder.path().join("a.db"), TestClock::new());
        let store = SqliteStore::open(&path, clock.clone(), Options::default()).unwrap();
        start(&store, "a");
        submit(&store, signal("s"));
        submit(&store, message("end", "a", Body::Terminate { reason: String::new() }));
        let raw = Connection::open(&path).unwrap();
        let found = "SELECT execution, arrived FROM abide_inbox WHERE id = 's'";
        let (key, arrived) = raw.query_row(found, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let mut body = encoded(key, &signal("s"), arrived);
        // The version of the format.
        body[CHECKSUM_BYTES] += 1;
        let sum = Checksum::new().bytes(&body[CHECKSUM_BYTES..]);
        checksum::put(&mut body, unread_sum(sum, (key, "s"), arrived));
        raw.execute("UPDATE abide_inbox SET body = ?1 WHERE id = 's'", [body]).unwrap();
        clock.advance(care::ORDER_GRACE);
        let session = register(&store, "elsewhere");
        let claim = Claim { session, request: 1, slots: 9, care_slots: 9, with_mail: false, sweep: false };
        let claimed = block_on(store.claim(claim)).unwrap();
        assert!(claimed.care.is_empty(), "it cannot be read here");
        let later = clock.now().after(std::time::Duration::from_secs(60));
        assert_eq!(claimed.next_care_at, Some(later));
    }
}
