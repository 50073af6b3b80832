//! The executions in memory, and their leases.
//!
//! An answer of the store brings a lease: to a claim, a start, a commit. Answers come late or not
//! at all, and then the engine finds the lease by [looking](crate::reconcile) and recovers it from
//! the record. Whichever comes first opens the seat; the epoch shows that the other one means the
//! same lease, even when the seat has left by then.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use abide_core::planted::{Bug, planted};
use abide_core::{Digest, Epoch, KeyHasher, Lease, SessionId, Tally};
use abide_store::ExecutionKey;

use crate::inbox::{Arrival, Arrivals};
use crate::mailbox::Mailbox;
use crate::quarantine::Quarantine;

/// The most executions that may have early mail; the next sweep finds mail beyond that.
const EARLY_COUNT_MAX: usize = 1_024;

/// The most bytes that all early mail may carry; beyond that, an execution only learns that there
/// is some.
const EARLY_BYTES_MAX: usize = 16 << 20;

/// The number of recovered leases that are remembered: more than the answers on their way can
/// bring with the default options, which are to starts (`request_count_max`) and to claims
/// (`execution_count_max`). If an older one comes once more, the store refuses its holder, but a
/// closure would begin before that.
const RECOVERED_COUNT_MAX: usize = 1 << 16;

#[derive(Default)]
pub(crate) struct Residents {
    seats: HashMap<ExecutionKey, Resident, KeyHasher>,
    pub(crate) quarantine: Quarantine,
    /// The mail of executions whose lease is known to the store but not yet here.
    early: HashMap<ExecutionKey, Arrivals, KeyHasher>,
    early_bytes: usize,
    /// Executions that were leased to this session anew while they were in memory: the store knows
    /// before the runner that the old lease is returned.
    again: HashSet<ExecutionKey, KeyHasher>,
    /// Whether there was no room for a claim: the next execution that leaves reports it.
    pub(crate) is_full: bool,
    /// The session whose leases are counted.
    session: SessionId,
    tally: Tally,
    /// Executions that have no seat here, and that are looked up in the store because they may be
    /// leased to this session.
    wanted: HashSet<ExecutionKey, KeyHasher>,
    recovered: Recovered,
}

/// The last recovered leases: the answers that bring them may still come. Every entering lease is
/// looked up, so this needs no scan.
#[derive(Default)]
struct Recovered {
    epochs: HashMap<ExecutionKey, Epoch, KeyHasher>,
    /// The keys, oldest first.
    order: VecDeque<ExecutionKey>,
}

impl Recovered {
    fn add(&mut self, key: ExecutionKey, epoch: Epoch) {
        if self.epochs.insert(key, epoch).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > RECOVERED_COUNT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.epochs.remove(&oldest);
        }
    }

    /// Whether this lease was recovered, or a newer one.
    fn has(&self, key: ExecutionKey, epoch: Epoch) -> bool {
        !self.epochs.is_empty() && self.epochs.get(&key).is_some_and(|known| *known >= epoch)
    }
}

/// An execution in memory.
struct Resident {
    lease: Lease,
    given_beat: u64,
    mailbox: Arc<Mailbox>,
}

/// The way in which a lease became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// An answer of the store brought it.
    Told,
    /// The engine found it by looking.
    Recovered,
}

/// The outcome for an entering lease.
pub(crate) enum Entered {
    /// The lease has its seat.
    Seated,
    /// The lease is known already, or over.
    Known,
    /// The seat is taken under an older lease, which is over. The engine looks for the new lease
    /// when that seat has left.
    Taken(Arc<Mailbox>),
}

/// The state of a place after a seat has left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// Another seat has the place, and will see to everything that concerns it.
    OfAnother,
    Vacant,
    /// The execution was leased to this session anew while the seat was taken.
    LeasedAgain,
}

impl Residents {
    /// Begins a session, which holds nothing yet. Returns the mailboxes of seats under an older
    /// session, whose leases are over.
    pub(crate) fn begin_session(&mut self, session: SessionId) -> Vec<Arc<Mailbox>> {
        (self.session, self.tally) = (session, Tally::default());
        self.recovered = Recovered::default();
        let former = self.seats.values().filter(|known| known.lease.session != session);
        former.map(|known| known.mailbox.clone()).collect()
    }

    /// Drops the room that many executions needed.
    pub(crate) fn shrink(&mut self) {
        self.seats.shrink_to_fit();
        self.early.shrink_to_fit();
        self.again.shrink_to_fit();
        self.wanted.shrink_to_fit();
    }

    /// Returns the session, and the digest of its leases as known here, for its next heartbeat.
    pub(crate) fn beat(&mut self) -> (SessionId, Digest) {
        (self.session, self.tally.beat())
    }

    /// Seats a lease, unless the place is taken.
    pub(crate) fn enter(
        &mut self,
        leased: (ExecutionKey, Lease),
        mailbox: &Arc<Mailbox>,
        source: Source,
    ) -> Entered {
        if !self.is_news(leased, source) {
            return Entered::Known;
        }
        if let Some(former) = self.seats.get(&leased.0) {
            let former = former.mailbox.clone();
            self.again.insert(leased.0);
            return Entered::Taken(former);
        }
        self.seat(leased, mailbox);
        Entered::Seated
    }

    /// Seats a lease, and returns the mailbox of the former seat. Returns `None` if the lease is
    /// known already, or over.
    pub(crate) fn replace(
        &mut self,
        leased: (ExecutionKey, Lease),
        mailbox: &Arc<Mailbox>,
        source: Source,
    ) -> Option<Option<Arc<Mailbox>>> {
        self.is_news(leased, source).then(|| self.seat(leased, mailbox))
    }

    /// Whether a lease is newer than the one known here for its execution.
    fn is_news(&mut self, (key, lease): (ExecutionKey, Lease), source: Source) -> bool {
        let epoch = lease.epoch;
        // This is a late answer to a session that is gone. Nobody would end its seat.
        if lease.session != self.session {
            return false;
        }
        if self.seats.get(&key).is_some_and(|known| known.lease.epoch >= epoch) {
            return false;
        }
        match source {
            Source::Told => !self.recovered.has(key, epoch),
            // If it is no longer wanted, its answer came in between, and perhaps its seat has left
            // since.
            Source::Recovered => {
                let is_wanted = self.wanted.contains(&key);
                if is_wanted {
                    self.recovered.add(key, epoch);
                }
                is_wanted
            }
        }
    }

    fn seat(&mut self, (key, lease): (ExecutionKey, Lease), mailbox: &Arc<Mailbox>) -> Option<Arc<Mailbox>> {
        if let Some(early) = self.early.remove(&key) {
            self.early_bytes -= early.bytes();
            mailbox.deliver(early.into_kept());
        }
        if !self.wanted.is_empty() {
            self.wanted.remove(&key);
        }
        let is_counted = lease.session == self.session;
        let given_beat = if is_counted { self.tally.give(key.0, lease.epoch) } else { 0 };
        let former = self.seats.insert(key, Resident { lease, given_beat, mailbox: mailbox.clone() });
        former.map(|former| {
            self.uncount(key, &former);
            former.mailbox
        })
    }

    /// Removes the seat with this mailbox from memory.
    pub(crate) fn leave(&mut self, key: ExecutionKey, mailbox: &Arc<Mailbox>) -> Departure {
        if !self.seats.get(&key).is_some_and(|known| Arc::ptr_eq(&known.mailbox, mailbox)) {
            return Departure::OfAnother;
        }
        if let Some(former) = self.seats.remove(&key) {
            self.uncount(key, &former);
        }
        match !self.again.is_empty() && self.again.remove(&key) {
            true => Departure::LeasedAgain,
            false => Departure::Vacant,
        }
    }

    fn uncount(&mut self, key: ExecutionKey, former: &Resident) {
        if former.lease.session == self.session {
            self.tally.end(key.0, former.lease.epoch, former.given_beat);
        }
    }

    /// Records that the engine looks whether an execution is leased to this session. Returns
    /// `false` if it has its seat, or is looked for already.
    pub(crate) fn want(&mut self, key: ExecutionKey) -> bool {
        !self.seats.contains_key(&key) && self.wanted.insert(key)
    }

    /// Records that the engine no longer looks for an execution.
    pub(crate) fn forget(&mut self, key: ExecutionKey) {
        self.wanted.remove(&key);
    }

    /// Returns the leases of a session that have seats.
    pub(crate) fn leases(&self, session: SessionId) -> HashMap<ExecutionKey, Epoch, KeyHasher> {
        let of_session = self.seats.iter().filter(|(_, known)| known.lease.session == session);
        of_session.map(|(key, known)| (*key, known.lease.epoch)).collect()
    }

    /// Returns the mailbox of the seat under this lease.
    pub(crate) fn under(&self, key: ExecutionKey, lease: Lease) -> Option<&Arc<Mailbox>> {
        self.seats.get(&key).filter(|known| known.lease == lease).map(|known| &known.mailbox)
    }

    pub(crate) fn contains(&self, key: ExecutionKey) -> bool {
        self.seats.contains_key(&key)
    }

    /// Returns how many executions have mail before their lease is known, and how many are looked
    /// for.
    pub(crate) fn expected_counts(&self) -> (usize, usize) {
        (self.early.len(), self.wanted.len())
    }

    pub(crate) fn count(&self) -> usize {
        self.seats.len()
    }

    pub(crate) fn mailboxes(&self) -> impl Iterator<Item = (&ExecutionKey, &Arc<Mailbox>)> {
        self.seats.iter().map(|(key, known)| (key, &known.mailbox))
    }

    /// Returns the mailbox for this mail. Without a seat, the mail is kept until there is one.
    pub(crate) fn post(
        &mut self,
        key: ExecutionKey,
        arrivals: Vec<Arrival>,
    ) -> Option<(Arc<Mailbox>, Vec<Arrival>)> {
        if let Some(known) = self.seats.get(&key) {
            return Some((known.mailbox.clone(), arrivals));
        }
        if self.early.len() < EARLY_COUNT_MAX && !planted(Bug::EarlyMailDropped) {
            let bytes: usize = arrivals.iter().map(Arrival::carried_bytes).sum();
            let has_room = self.early_bytes + bytes <= EARLY_BYTES_MAX;
            let early = self.early.entry(key).or_default();
            self.early_bytes -= early.bytes();
            early.add(if has_room { arrivals } else { vec![Arrival::More] });
            self.early_bytes += early.bytes();
        }
        None
    }

    /// Forgets early messages of executions that never came: their inboxes still have them.
    pub(crate) fn forget_early(&mut self) {
        self.early.clear();
        self.early_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use abide_core::{Address, Body, By, ExecutionId, Message, MessageId, Name, Namespace, Payload};

    use super::*;

    const KEY: ExecutionKey = ExecutionKey(7);

    fn leased(epoch: u64) -> (ExecutionKey, Lease) {
        (KEY, Lease { session: SessionId(1), epoch: Epoch(epoch) })
    }

    fn residents() -> Residents {
        let mut residents = Residents::default();
        residents.begin_session(SessionId(1));
        residents
    }

    fn enter(residents: &mut Residents, epoch: u64, source: Source) -> (Arc<Mailbox>, &'static str) {
        let mailbox = Arc::default();
        let entered = match residents.enter(leased(epoch), &mailbox, source) {
            Entered::Seated => "seated",
            Entered::Known => "known",
            Entered::Taken(_) => "taken",
        };
        (mailbox, entered)
    }

    #[test]
    fn an_answer_that_comes_after_its_lease_was_recovered_is_known() {
        let mut residents = residents();
        assert!(residents.want(KEY));
        let (mailbox, entered) = enter(&mut residents, 3, Source::Recovered);
        assert_eq!(entered, "seated");
        assert_eq!(enter(&mut residents, 3, Source::Told).1, "known", "it sits");
        assert_eq!(residents.leave(KEY, &mailbox), Departure::Vacant);
        assert_eq!(enter(&mut residents, 3, Source::Told).1, "known", "it sat");
        assert_eq!(enter(&mut residents, 4, Source::Told).1, "seated", "the next lease is another");
    }

    #[test]
    fn recovered_leases_are_remembered_up_to_a_bound() {
        let mut recovered = Recovered::default();
        let count = RECOVERED_COUNT_MAX as u64;
        for key in 0..=count {
            recovered.add(ExecutionKey(key), Epoch(3));
        }
        recovered.add(ExecutionKey(1), Epoch(4));
        assert!(!recovered.has(ExecutionKey(0), Epoch(3)), "the oldest is forgotten");
        assert!(recovered.has(ExecutionKey(1), Epoch(4)) && recovered.has(ExecutionKey(count), Epoch(3)));
        assert!(!recovered.has(ExecutionKey(count), Epoch(4)), "the next lease is another");
        assert_eq!(
            (recovered.epochs.len(), recovered.order.len()),
            (RECOVERED_COUNT_MAX, RECOVERED_COUNT_MAX)
        );
    }

    #[test]
    fn as_many_recovered_leases_are_remembered_as_answers_may_bring() {
        let options = crate::Options::default();
        assert!(RECOVERED_COUNT_MAX > options.execution_count_max + options.request_count_max);
    }

    #[test]
    fn what_was_read_before_an_answer_came_is_over() {
        let mut residents = residents();
        assert!(residents.want(KEY));
        assert!(!residents.want(KEY), "one look is enough");
        let (mailbox, entered) = enter(&mut residents, 3, Source::Told);
        assert_eq!(entered, "seated");
        assert!(!residents.want(KEY), "it has its seat");
        assert_eq!(residents.leave(KEY, &mailbox), Departure::Vacant);
        assert_eq!(enter(&mut residents, 3, Source::Recovered).1, "known");
    }

    #[test]
    fn who_sits_down_while_a_new_session_is_made_is_told_and_whoever_comes_later_is_refused() {
        let mut residents = residents();
        let (mailbox, entered) = enter(&mut residents, 3, Source::Told);
        assert_eq!(entered, "seated", "its session is not known to be gone");
        let told = residents.begin_session(SessionId(2));
        assert!(told.len() == 1 && Arc::ptr_eq(&told[0], &mailbox));
        assert_eq!(residents.leave(KEY, &mailbox), Departure::Vacant);
        assert_eq!(enter(&mut residents, 4, Source::Told).1, "known", "it is a lease of the old session");
        assert!(residents.replace(leased(4), &Arc::default(), Source::Told).is_none());
        assert!(residents.begin_session(SessionId(2)).is_empty());
    }

    #[test]
    fn early_mail_is_bounded_by_what_it_carries() {
        let mut residents = residents();
        let to = Address { namespace: Namespace::default(), id: ExecutionId::new("a").unwrap() };
        let payload = Payload::from(vec![b'x'; 1 << 20]);
        let body = Body::Signal { name: Name::new("s").unwrap(), payload };
        let message = Message::new(MessageId::new("m"), to, By::client(), body);
        let count = EARLY_BYTES_MAX as u64 >> 20;
        for key in 0..=count {
            let arrival = Arrival::Message { epoch: Epoch(1), message: message.clone(), previous: None };
            assert!(residents.post(ExecutionKey(key), vec![arrival]).is_none());
        }
        assert_eq!(residents.early_bytes, EARLY_BYTES_MAX);
        let last = residents.early.remove(&ExecutionKey(count)).unwrap().into_kept();
        assert!(matches!(last[..], [Arrival::More]), "{last:?}");
        enter(&mut residents, 1, Source::Told);
        assert_eq!(residents.early_bytes, EARLY_BYTES_MAX - (1 << 20), "whoever comes takes it along");
        residents.forget_early();
        assert_eq!(residents.early_bytes, 0);
    }

    #[test]
    fn a_newer_lease_waits_until_the_old_one_has_left() {
        let mut residents = residents();
        let (mailbox, _) = enter(&mut residents, 3, Source::Told);
        assert_eq!(enter(&mut residents, 2, Source::Told).1, "known", "an older one is over");
        assert_eq!(enter(&mut residents, 4, Source::Told).1, "taken");
        assert_eq!(residents.leave(KEY, &mailbox), Departure::LeasedAgain);
    }

    #[test]
    fn a_seat_that_was_replaced_does_not_see_to_the_next_lease() {
        let mut residents = residents();
        let (mailbox, _) = enter(&mut residents, 3, Source::Told);
        let caretaker = Arc::default();
        assert!(residents.replace(leased(4), &caretaker, Source::Told).unwrap().is_some());
        assert_eq!(enter(&mut residents, 5, Source::Told).1, "taken");
        assert_eq!(residents.leave(KEY, &mailbox), Departure::OfAnother);
        assert_eq!(residents.leave(KEY, &caretaker), Departure::LeasedAgain);
    }

    #[test]
    fn mail_that_comes_before_its_lease_is_known_is_kept() {
        let mut residents = residents();
        assert!(residents.post(KEY, vec![Arrival::More]).is_none());
        let (mailbox, _) = enter(&mut residents, 1, Source::Told);
        assert_eq!(mailbox.take().map(|news| news.arrivals.len()), Some(1));
        assert!(residents.post(KEY, vec![Arrival::More]).is_some(), "it has its seat");
    }

    #[test]
    fn a_caretaker_takes_the_place_under_a_newer_lease_only() {
        let mut residents = residents();
        let (mailbox, _) = enter(&mut residents, 3, Source::Told);
        let caretaker = Arc::default();
        assert!(residents.replace(leased(3), &caretaker, Source::Told).is_none());
        assert!(residents.replace(leased(4), &caretaker, Source::Told).unwrap().is_some());
        assert_eq!(residents.leave(KEY, &mailbox), Departure::OfAnother, "the place is the caretaker's");
        assert!(residents.under(KEY, leased(4).1).is_some());
    }

    #[test]
    fn what_is_seated_is_counted_and_what_belongs_to_an_old_session_is_not() {
        let mut residents = residents();
        let of = |epoch| Digest::of(KEY.0, Epoch(epoch));
        let (mailbox, _) = enter(&mut residents, 3, Source::Told);
        assert_eq!(residents.beat(), (SessionId(1), Digest::default()));
        assert_eq!(residents.beat().1, Digest::default());
        assert_eq!(residents.beat(), (SessionId(1), of(3)));
        let caretaker = Arc::default();
        residents.replace(leased(4), &caretaker, Source::Told);
        assert_eq!(residents.beat().1, Digest::default());
        assert_eq!(residents.beat().1, Digest::default());
        assert_eq!(residents.beat().1, of(4));
        residents.begin_session(SessionId(2));
        assert_eq!(residents.leave(KEY, &mailbox), Departure::OfAnother);
        assert_eq!(residents.leave(KEY, &caretaker), Departure::Vacant);
        assert_eq!(residents.beat(), (SessionId(2), Digest::default()));
        assert_eq!(residents.beat().1, Digest::default());
        assert_eq!(residents.beat().1, Digest::default());
    }
}
