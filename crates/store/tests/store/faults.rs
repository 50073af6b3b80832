//! The decorator that makes stores fail.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use abide_store::conformance::{TestClock, block_on, bounds, check_all};
use abide_store::faults::{Chances, Counts, Fault, FaultyStore, NoticeFault};
use abide_store::memory::MemoryStore;
use abide_store::{Error, Feed, FeedFrom, Notice, Store, Submit, View};

use crate::common;

fn memory() -> Arc<MemoryStore> {
    MemoryStore::new(TestClock::new(), bounds())
}

fn start(store: &FaultyStore, id: &str) -> Option<Error> {
    let submit = Submit { messages: vec![common::start(id)], born_to: None, alone: false, stretch: None };
    block_on(store.submit(submit)).err()
}

/// Returns the number of items in the feed: one for each execution that began.
fn begun_count(store: &MemoryStore) -> usize {
    block_on(store.feed(Feed { from: FeedFrom::Beginning, limit: 100 })).expect("it is fed").items.len()
}

#[test]
fn delayed_answers_change_nothing() {
    let chances = Chances { delay_permille: 700, delay_poll_count_max: 4, ..Chances::default() };
    check_all(|clock| FaultyStore::seeded(MemoryStore::new(clock, bounds()), 7, chances));
}

#[test]
fn unavailable_does_not_happen_and_indeterminate_does() {
    let inner = memory();
    let store = FaultyStore::scripted(inner.clone(), vec![Fault::Unavailable, Fault::Indeterminate]);
    assert!(matches!(start(&store, "a"), Some(Error::Unavailable { what: "submit", .. })));
    assert_eq!(begun_count(&inner), 0);
    assert!(matches!(start(&store, "b"), Some(Error::Indeterminate { what: "submit", .. })));
    assert_eq!(begun_count(&inner), 1);
    assert!(start(&store, "c").is_none(), "the script is over");
    let expected = Counts { operations: 3, delayed: 0, unavailable: 1, indeterminate: 1, corrupt: 0 };
    assert_eq!(store.counts(), expected);
}

#[test]
fn delayed_answer_comes_after_its_polls() {
    let inner = memory();
    let store = FaultyStore::scripted(inner.clone(), vec![Fault::Delay { poll_count: 2 }]);
    let submit = Submit { messages: vec![common::start("a")], born_to: None, alone: false, stretch: None };
    let mut answer = store.submit(submit);
    assert_eq!(begun_count(&inner), 1, "the operation happens, its answer is late");
    let mut context = Context::from_waker(Waker::noop());
    let mut poll = || answer.as_mut().poll(&mut context).is_ready();
    assert_eq!([poll(), poll(), poll()], [false, false, true]);
}

#[test]
fn dropped_answer_does_not_undo_the_operation() {
    let inner = memory();
    for (fault, id) in [(Fault::Delay { poll_count: 9 }, "a"), (Fault::Indeterminate, "b")] {
        let store = FaultyStore::scripted(inner.clone(), vec![fault]);
        drop(store.submit(Submit {
            messages: vec![common::start(id)],
            born_to: None,
            alone: false,
            stretch: None,
        }));
    }
    assert_eq!(begun_count(&inner), 2);
}

#[test]
fn faults_are_decided_by_operation() {
    let inner = memory();
    let only_feed = |what| if what == "feed" { Fault::Unavailable } else { Fault::None };
    let store = FaultyStore::deciding(inner, only_feed);
    assert!(start(&store, "a").is_none());
    let feed = block_on(store.feed(Feed { from: FeedFrom::Beginning, limit: 1 }));
    assert!(matches!(feed, Err(Error::Unavailable { what: "feed", .. })));
}

#[test]
fn seed_gives_the_same_faults_until_healed() {
    let chances = Chances { unavailable_permille: 300, indeterminate_permille: 300, ..Chances::default() };
    let run = |seed| {
        let store = FaultyStore::seeded(memory(), seed, chances);
        let outcomes: Vec<_> =
            (0..100).map(|n| start(&store, &format!("{n}")).map(|e| e.to_string())).collect();
        (outcomes, store)
    };
    let ((first, store), (again, _), (other, _)) = (run(1), run(1), run(2));
    assert_eq!(first, again);
    assert_ne!(first, other);
    let counts = store.counts();
    assert!(counts.unavailable > 10 && counts.indeterminate > 10, "{counts:?}");
    store.heal();
    assert!((100..200).all(|n| start(&store, &format!("{n}")).is_none()));
}

#[test]
fn lost_wait_is_woken_by_a_notice() {
    let inner = memory();
    let session = block_on(inner.register(common::worker())).expect("a worker is registered").session;
    let store = FaultyStore::scripted(inner, vec![Fault::Indeterminate]);
    let mut waiting = store.wait(session);
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert!(start(&store, "a").is_none());
    assert!(matches!(waiting.as_mut().poll(&mut context), Poll::Ready(Err(Error::Indeterminate { .. }))));
}

/// Returns the ids of the messages in a session's notices, each with the predecessor that the
/// notice names.
fn told(store: &FaultyStore, session: abide_core::SessionId) -> Vec<(String, Option<String>)> {
    let notices = block_on(store.wait(session)).expect("a live session may wait");
    let messages = notices.into_iter().filter_map(|notice| match notice {
        Notice::Message { message, previous, .. } => Some((message.id, previous)),
        Notice::Ready | Notice::Changed | Notice::Intake => None,
    });
    messages
        .map(|(id, previous)| (id.as_str().to_owned(), previous.map(|id| id.as_str().to_owned())))
        .collect()
}

#[test]
fn notices_are_lost_delayed_doubled_and_mixed_up_without_a_word() {
    let script = [
        NoticeFault::Lose,
        NoticeFault::Repeat,
        NoticeFault::Delay,
        NoticeFault::None,
        NoticeFault::Overtake,
    ];
    let mut script = script.into_iter();
    let inner = memory();
    let store = FaultyStore::disturbing(inner.clone(), move |notice| match notice {
        Notice::Message { .. } => script.next().unwrap_or(NoticeFault::None),
        Notice::Ready | Notice::Changed | Notice::Intake => NoticeFault::Lose,
    });
    let session = block_on(store.register(common::worker())).expect("a worker is registered").session;
    let born_to = Some(session);
    let start = Submit { messages: vec![common::start("a")], born_to, alone: false, stretch: None };
    block_on(store.submit(start)).expect("it is taken");
    for n in 1..=5 {
        let messages = vec![common::signal(&format!("s{n}"), "a")];
        block_on(store.submit(Submit { messages, born_to: None, alone: false, stretch: None }))
            .expect("it is taken");
    }
    let pair = |id: &str, previous: &str| (id.to_owned(), Some(previous.to_owned()));
    let first = [pair("s5", "s4"), pair("s2", "s1"), pair("s2", "s1"), pair("s4", "s3")];
    assert_eq!(told(&store, session), first);
    let messages = vec![common::signal("s6", "a")];
    block_on(store.submit(Submit { messages, born_to: None, alone: false, stretch: None }))
        .expect("it is taken");
    assert_eq!(
        told(&store, session),
        [pair("s6", "s5"), pair("s3", "s2")],
        "late ones come after later ones"
    );
}
