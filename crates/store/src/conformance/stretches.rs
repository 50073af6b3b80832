//! Executions whose code has begun before their start.

use abide_core::{Address, Epoch, Execution, Lease, SessionId, Start, Timestamp, Version};

use super::held::{Draft, Held};
use super::make::{address, child_of, complete, delayed, flow, requiring, signal, start_of, step, worker};
use super::subject::Seat;
use super::transactions::transaction;
use super::{Subject, block_on, table};
use crate::{Commit, Committed, Error, ExecutionKey, InboxPage, Leased, Opening, Stretch, Submit, Submitted};

table![
    stretch_happens_with_its_start,
    stretch_without_a_commit_keeps_its_time,
    stretch_that_ends_is_over,
    stretch_that_parks_is_woken,
    stretch_begins_the_next_run,
    children_of_a_stretch_are_born,
    p1_transaction_happens_with_the_start,
    transaction_that_panics_leaves_no_more_than_the_start,
    stretch_of_a_start_that_attaches_leaves_no_trace,
    stretch_of_a_refused_start_leaves_no_trace,
    stretch_of_a_start_that_is_not_born_leaves_no_trace,
    repeated_start_attaches_to_what_its_stretch_has_done,
    stretch_of_several_messages_is_left_out,
];

/// An execution whose code begins at a time of its own.
struct Unborn<'a> {
    subject: &'a Subject,
    session: SessionId,
    at: Timestamp,
    start: Start,
    held: Held,
}

impl<'a> Unborn<'a> {
    fn of(subject: &'a Subject, session: SessionId, id: &str, start: Start) -> Self {
        let at = subject.now();
        subject.advance_ms(7);
        let held = held(address(id), (&start, at), session);
        Self { subject, session, at, start, held }
    }

    fn draft(&self) -> Draft {
        self.subject.draft(&self.held)
    }

    fn submit(&self, commit: Option<Commit>) -> Submit {
        let messages = vec![start_of(self.held.id(), self.start.clone())];
        let stretch = Some(Box::new(Stretch { at: self.at, commit }));
        Submit { messages, born_to: Some(self.session), alone: true, stretch }
    }

    fn send(&self, commit: Option<Commit>) -> crate::Result<Submitted> {
        let mut submitted = block_on(self.subject.store.submit(self.submit(commit)))?;
        assert_eq!(submitted.len(), 1, "one answer a message");
        Ok(submitted.remove(0))
    }

    /// Starts it with a stretch that must happen, and returns it as it is held then.
    fn begin(&self, draft: &Draft) -> (Held, Committed) {
        match self.send(Some(draft.commit())) {
            Ok(Submitted::Begun(key, Ok(committed))) => {
                let mut held = Held { key, ..self.held.clone() };
                held.follow(draft);
                (held, *committed)
            }
            other => panic!("expected a stretch to happen, found {other:?}"),
        }
    }
}

/// Returns what a worker knows of an execution that does not exist.
pub(super) fn held(address: Address, (start, at): (&Start, Timestamp), session: SessionId) -> Held {
    let (execution, entry) = Execution::start(address, start.clone(), at);
    Held::of(Leased {
        key: ExecutionKey(0),
        lease: Lease { session, epoch: Epoch(1) },
        version: Version(0),
        takeover_count: 0,
        suspicion: None,
        unclaimed: None,
        is_first: true,
        execution,
        opening: Opening::Born(entry),
        inbox: InboxPage::default(),
    })
}

fn began_at(subject: &Subject, id: &str) -> Timestamp {
    subject.page(id, 1, 1)[0].entry().expect("it can be read").at
}

fn stretch_happens_with_its_start(subject: &Subject) {
    let seat = subject.seat(worker());
    let unborn = Unborn::of(subject, seat.session, "a", flow());
    let (mut held, _) = unborn.begin(&unborn.draft().then(step("one")));
    let found = subject.look("a");
    assert_eq!((found.key, found.journal.len(), &found.execution), (held.key, 2, &held.execution));
    assert_eq!((found.lease.session, found.lease.epoch), (Some(seat.session), Epoch(1)));
    assert_eq!((found.lease.version, found.ready_at), (Version(1), None));
    assert_eq!(began_at(subject, "a"), unborn.at, "the code has seen this time");
    assert_eq!(seat.lease_count(), 1);
    subject.commit(&subject.draft(&held).then(complete()), &mut held);
    assert_eq!((seat.lease_count(), subject.feed().len()), (0, 2), "it began, and it ended");
}

fn stretch_without_a_commit_keeps_its_time(subject: &Subject) {
    let seat = subject.seat(worker());
    let unborn = Unborn::of(subject, seat.session, "a", flow());
    let Ok(Submitted::Begun(key, Ok(_))) = unborn.send(None) else { panic!("it is born") };
    assert_eq!((began_at(subject, "a"), subject.look("a").lease.version), (unborn.at, Version(0)));
    let mut held = Held { key, ..unborn.held };
    subject.record(&mut held, step("one"));
}

fn stretch_that_ends_is_over(subject: &Subject) {
    let seat = subject.seat(worker());
    let unborn = Unborn::of(subject, seat.session, "a", flow());
    unborn.begin(&unborn.draft().then(complete()));
    assert!(subject.look("a").summary.status.is_terminal());
    assert_eq!((seat.lease_count(), subject.feed().len()), (0, 2));
    assert!(subject.seat(worker()).claim_ids(1).is_empty());
}

fn stretch_that_parks_is_woken(subject: &Subject) {
    let mut seat = subject.seat(worker());
    let unborn = Unborn::of(subject, seat.session, "a", flow());
    unborn.begin(&unborn.draft().then(step("one")).park());
    assert_eq!(seat.lease_count(), 0);
    assert!(seat.claim_ids(1).is_empty());
    subject.send(signal("s", "a"));
    let held = seat.claim_one();
    assert_eq!((held.lease.epoch, held.version), (Epoch(2), Version(1)));
}

fn stretch_begins_the_next_run(subject: &Subject) {
    let seat = subject.seat(worker());
    let unborn = Unborn::of(subject, seat.session, "a", flow());
    let (mut held, _) = unborn.begin(&unborn.draft().then(step("one")).continued("2"));
    assert_eq!(subject.look("a").execution.run(), 2);
    subject.record(&mut held, step("one"));
}

fn children_of_a_stretch_are_born(subject: &Subject) {
    let seat = subject.seat(worker());
    let unborn = Unborn::of(subject, seat.session, "a", flow());
    let child = start_of("child", child_of("a", "child"));
    let (_, mut committed) = unborn.begin(&unborn.draft().emitting(child).born_slots(1).park());
    assert_eq!((committed.born.len(), seat.lease_count()), (1, 1));
    let mut child = Held::of(*committed.born.remove(0));
    subject.record(&mut child, complete());
    assert_eq!(subject.unread("a").len(), 1, "its parent was there before it");
}

fn p1_transaction_happens_with_the_start(subject: &Subject) {
    let seat = subject.seat(worker());
    let unborn = Unborn::of(subject, seat.session, "a", flow());
    let put = subject.table.put;
    let commit = transaction(subject, &unborn.held, move |table| {
        put(table, "key", "nail");
        true
    });
    let Ok(Submitted::Begun(_, Ok(committed))) = unborn.send(Some(commit)) else { panic!("it begins") };
    let found = subject.look("a");
    assert_eq!((committed.transacted.as_ref(), found.journal.len()), (found.journal.last(), 2));
    assert_eq!(super::transactions::found(subject, "later").as_deref(), Some("nail"));
}

/// A statement of the closure may have ended the transaction, and the start with it. A store that
/// cannot keep the start then refuses it, and is asked for the start alone.
fn transaction_that_panics_leaves_no_more_than_the_start(subject: &Subject) {
    let seat = subject.seat(worker());
    let unborn = Unborn::of(subject, seat.session, "a", flow());
    let put = subject.table.put;
    let commit = transaction(subject, &unborn.held, move |table| {
        put(table, "key", "nail");
        panic!("on purpose")
    });
    match unborn.send(Some(commit)) {
        Ok(Submitted::Begun(_, Err(_))) => {
            let found = subject.look("a");
            assert_eq!((found.journal.len(), found.lease.version), (1, Version(0)));
        }
        Err(Error::Refused(_)) => assert!(!subject.exists("a")),
        other => panic!("expected a refusal, found {other:?}"),
    }
    assert_eq!(super::transactions::found(subject, "later"), None);
}

/// Sends a stretch that must come to nothing, and checks that it leaves no trace.
fn left_out(subject: &Subject, unborn: &Unborn<'_>) -> crate::Result<Submitted> {
    let before = subject.picture();
    let child = start_of("child", child_of("a", "child"));
    let draft = unborn.draft().then(step("one")).emitting(child).born_slots(1);
    let answer = unborn.send(Some(draft.commit()));
    assert!(!subject.exists("child"), "{answer:?}");
    match &answer {
        Ok(Submitted::Started(..)) => {}
        _ => assert_eq!(subject.picture(), before, "{answer:?}"),
    }
    answer
}

fn stretch_of_a_start_that_attaches_leaves_no_trace(subject: &Subject) {
    let seat = subject.seat(worker());
    // Under the same lease, at the same version.
    subject.start_born(&seat, vec![start_of("a", flow())]);
    let unborn = Unborn::of(subject, seat.session, "a", flow());
    assert!(matches!(left_out(subject, &unborn), Ok(Submitted::Attached(_))));
    assert_eq!(seat.lease_count(), 1);
}

fn stretch_of_a_refused_start_leaves_no_trace(subject: &Subject) {
    let seat = subject.seat(worker());
    subject.start("a", requiring(&["cuda"]));
    let other = Start { name: super::make::name("other"), ..flow() };
    let unborn = Unborn::of(subject, seat.session, "a", other);
    assert!(matches!(left_out(subject, &unborn), Err(Error::Refused(_))));
}

fn stretch_of_a_start_that_is_not_born_leaves_no_trace(subject: &Subject) {
    let check = |seat: &Seat<'_>, id: &str, start: Start| {
        let unborn = Unborn::of(subject, seat.session, id, start);
        assert!(matches!(left_out(subject, &unborn), Ok(Submitted::Started(_, None))), "{id}");
        let found = subject.look(id);
        assert_eq!((found.journal.len(), found.lease.version), (1, Version(0)), "{id}");
        assert_eq!(began_at(subject, id), subject.now(), "{id} begins when it is started");
    };
    let (retired, seat) = (subject.seat(worker()), subject.seat(worker()));
    retired.retire();
    check(&retired, "of the dead", flow());
    check(&seat, "behind another", flow());
    check(&seat, "for others", requiring(&["cuda"]));
    check(&seat, "later", delayed(subject.later_ms(50)));
    assert_eq!(seat.lease_count(), 0);
}

fn repeated_start_attaches_to_what_its_stretch_has_done(subject: &Subject) {
    let seat = subject.seat(worker());
    let unborn = Unborn::of(subject, seat.session, "a", flow());
    let draft = unborn.draft().then(step("one"));
    unborn.begin(&draft);
    let before = subject.picture();
    for commit in [Some(draft.commit()), None] {
        assert!(matches!(unborn.send(commit), Ok(Submitted::Attached(_))));
    }
    assert_eq!(subject.picture(), before);
    let repeated = unborn.draft().then(step("one")).under(unborn.held.lease).commit();
    let repeated = Commit { key: subject.look("a").key, ..repeated };
    block_on(subject.store.commit(repeated)).expect("it happened, and is answered as if it did now");
    assert_eq!(subject.picture(), before);
}

fn stretch_of_several_messages_is_left_out(subject: &Subject) {
    let seat = subject.seat(worker());
    let unborn = Unborn::of(subject, seat.session, "a", flow());
    let submit = unborn.submit(Some(unborn.draft().then(step("one")).commit()));
    let messages = submit.messages.iter().cloned().chain([signal("s", "a")]).collect();
    let submitted = block_on(subject.store.submit(Submit { messages, ..submit })).expect("they are taken");
    assert!(matches!(submitted[0], Submitted::Started(_, Some(_))), "{submitted:?}");
    assert_eq!((subject.look("a").journal.len(), subject.unread("a").len()), (1, 1));
}
