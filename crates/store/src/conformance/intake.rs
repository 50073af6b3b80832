//! The intake table: rows that somebody has put there in a transaction of their own.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide_core::{Body, Enqueued, Happening, Status, Timestamp};

use super::make::{address, complete, flow, message, worker};
use super::{Subject, TestClock, block_on};
use crate::{FeedFrom, Notice, Store, Submitted, TakeIn, TakenIn, Target};

/// Puts rows into the intake table of a store, in one transaction of somebody else.
pub type Door = Box<dyn Fn(&[Enqueued])>;

/// A store, and the way into its intake table.
pub struct Entrance {
    subject: Subject,
    door: Door,
}

/// One fact about the intake table of every store.
pub struct IntakeCase {
    /// The fact.
    pub name: &'static str,
    /// The check, which panics when the fact does not hold.
    pub run: fn(&Entrance),
}

macro_rules! table {
    ($($case:ident,)*) => {
        /// The facts about the intake table. Every store runs all of them.
        pub const INTAKE_CASES: &[IntakeCase] =
            &[$(IntakeCase { name: stringify!($case), run: $case }),*];
    };
}

table![
    a_row_becomes_an_execution,
    a_row_becomes_a_signal,
    rows_are_taken_in_the_order_in_which_they_were_put,
    rows_are_taken_up_to_the_limit,
    a_row_is_taken_once,
    p4_the_same_start_attaches,
    a_signal_with_a_key_is_delivered_once,
    what_is_refused_is_told_in_the_feed,
    p6_what_is_refused_leaves_nothing_else,
    what_cannot_be_read_delays_nothing_behind_it,
    refused_rows_are_fed_in_pages_and_from_the_end,
    a_follower_hears_of_a_refusal,
    a_claim_that_sweeps_tells_of_rows,
    a_session_hears_that_a_taken_start_is_ready,
    p8_old_refusals_are_pruned,
    rows_are_not_listed,
    lengths_of_time_begin_when_a_row_is_taken,
];

/// Runs every case on a store of its own.
///
/// # Panics
///
/// Panics with the list of the failed cases, if there are any.
pub fn check_intake(make: impl Fn(Arc<TestClock>) -> (Arc<dyn Store>, Door)) {
    let passes = |case: &&IntakeCase| {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let clock = TestClock::new();
            let (store, door) = make(clock.clone());
            (case.run)(&Entrance { subject: Subject::new(store.clone(), clock), door });
            store.close();
        }));
        println!("{} {}", if outcome.is_ok() { "ok    " } else { "FAILED" }, case.name);
        outcome.is_ok()
    };
    let failed: Vec<_> = INTAKE_CASES.iter().filter(|case| !passes(case)).map(|case| case.name).collect();
    assert!(failed.is_empty(), "{} cases failed:\n  {}", failed.len(), failed.join("\n  "));
}

/// Returns a row that starts workflow `flow` in lane `main`.
pub fn enqueued_start(execution: &str) -> Enqueued {
    Enqueued {
        id: fresh(),
        namespace: "default".to_owned(),
        verb: Enqueued::START.to_owned(),
        execution: execution.to_owned(),
        name: "flow".to_owned(),
        input: "1".to_owned(),
        options: r#"{"lane": "main"}"#.to_owned(),
        sender: "ann".to_owned(),
    }
}

/// Returns a row with a signal `note`.
pub fn enqueued_signal(execution: &str, value: &str) -> Enqueued {
    let (name, input) = ("note".to_owned(), value.to_owned());
    let verb = Enqueued::SIGNAL.to_owned();
    Enqueued { verb, name, input, options: "{}".to_owned(), ..enqueued_start(execution) }
}

/// Returns an id that no other row has.
fn fresh() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("row-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

impl Entrance {
    fn put(&self, rows: &[Enqueued]) {
        (self.door)(rows);
    }

    fn take(&self, limit: usize) -> TakenIn {
        block_on(self.subject.store.take_in(TakeIn { limit })).expect("rows are taken")
    }

    /// Takes all rows. Returns how many were taken, and how many of them were refused.
    fn take_all(&self) -> (usize, usize) {
        let (mut taken_count, mut refused_count) = (0, 0);
        loop {
            let taken = self.take(1_000);
            taken_count += taken.taken_count;
            refused_count += taken.refused_count;
            if !taken.more {
                return (taken_count, refused_count);
            }
        }
    }

    /// Returns the ids and reasons of the refusals in the feed.
    fn refusals(&self) -> Vec<(String, String)> {
        let items = self.subject.feed().into_iter().filter(|item| item.happening == Happening::Refused);
        items.map(|item| (item.address.id.to_string(), item.refused.expect("it says why").reason)).collect()
    }

    fn values(&self, id: &str) -> Vec<String> {
        let value = |message: abide_core::Message| match message.body {
            Body::Signal { payload, .. } => String::from_utf8_lossy(payload.as_bytes()).into_owned(),
            other => panic!("{other:?}"),
        };
        self.subject.look(id).inbox.messages.into_iter().map(value).collect()
    }
}

fn a_row_becomes_an_execution(door: &Entrance) {
    door.put(&[enqueued_start("a")]);
    assert!(!door.subject.exists("a"), "nobody has taken it");
    assert_eq!(door.take_all(), (1, 0));
    let found = door.subject.look("a");
    assert!(found.ready_at.is_some(), "it waits for a worker");
    let first = found.journal[0].entry().expect("it can be read");
    let start = first.began().expect("it began").start.clone();
    assert_eq!((start.name.as_str(), start.input.as_bytes()), ("flow", &b"1"[..]));
    let mut seat = door.subject.seat(worker());
    assert_eq!(seat.claim_one().id(), "a");
}

fn a_row_becomes_a_signal(door: &Entrance) {
    door.subject.start("a", flow());
    let row = enqueued_signal("a", r#"{"b": 1}"#);
    door.put(std::slice::from_ref(&row));
    assert_eq!(door.take_all(), (1, 0));
    let found = door.subject.look("a").inbox.messages;
    let expected = door.subject.arrived(row.message(door.subject.now()).expect("it is a signal"));
    assert_eq!(found, [expected]);
}

fn rows_are_taken_in_the_order_in_which_they_were_put(door: &Entrance) {
    // Together, and one transaction after the other.
    door.put(&[enqueued_start("a"), enqueued_signal("a", "1"), enqueued_signal("a", "2")]);
    door.put(&[enqueued_signal("a", "3")]);
    door.put(&[enqueued_start("b"), enqueued_signal("a", "4")]);
    assert_eq!(door.take_all(), (6, 0));
    assert_eq!(door.values("a"), ["1", "2", "3", "4"]);
}

fn rows_are_taken_up_to_the_limit(door: &Entrance) {
    let ids = ["a", "b", "c", "d", "e"];
    door.put(&ids.map(enqueued_start));
    let taken = |taken_count, more| TakenIn { taken_count, refused_count: 0, more };
    assert_eq!(door.take(2), taken(2, true));
    assert_eq!(ids.map(|id| door.subject.exists(id)), [true, true, false, false, false]);
    assert_eq!(door.take(2), taken(2, true));
    assert_eq!((door.take(2).taken_count, door.take(2)), (1, taken(0, false)));
}

fn a_row_is_taken_once(door: &Entrance) {
    door.put(&[enqueued_start("a"), enqueued_signal("a", "1")]);
    assert_eq!((door.take_all(), door.take_all()), ((2, 0), (0, 0)));
    assert_eq!(door.values("a"), ["1"]);
}

fn p4_the_same_start_attaches(door: &Entrance) {
    let input = String::from_utf8_lossy(flow().input.as_bytes()).into_owned();
    let same = Enqueued { input, ..enqueued_start("b") };
    door.put(&[same.clone(), Enqueued { id: fresh(), ..same }]);
    assert_eq!(door.take_all(), (2, 0));
    // The one that was put is the one that is sent.
    let sent = door.subject.send(super::make::start_of("b", flow()));
    assert!(matches!(sent, Submitted::Attached(_)), "{sent:?}");
    assert_eq!(door.subject.list(super::make::everything()).items.len(), 1);
}

fn a_signal_with_a_key_is_delivered_once(door: &Entrance) {
    door.subject.start("a", flow());
    let keyed =
        |value: &str| Enqueued { options: r#"{"key": "k"}"#.to_owned(), ..enqueued_signal("a", value) };
    door.put(&[keyed("1"), keyed("2")]);
    assert_eq!(door.take_all(), (2, 0));
    door.put(&[keyed("3")]);
    assert_eq!(door.take_all(), (1, 0));
    assert_eq!(door.values("a"), ["1"]);
}

fn what_is_refused_is_told_in_the_feed(door: &Entrance) {
    let (_seat, mut held) = door.subject.held("done");
    door.subject.record(&mut held, complete());
    door.subject.start("a", flow());
    door.subject.advance_ms(5);
    let rows = [
        enqueued_signal("nobody", "1"),
        enqueued_signal("done", "1"),
        Enqueued { input: "2".to_owned(), ..enqueued_start("a") },
        Enqueued { input: format!("{:?}", "x".repeat(70_000)), ..enqueued_start("large") },
        Enqueued { options: r#"{"lnae": "x"}"#.to_owned(), ..enqueued_start("typo") },
        enqueued_start("abide:own"),
    ];
    door.put(&rows);
    assert_eq!(door.take_all(), (6, 6));
    let items = door.subject.feed();
    let told: Vec<_> = items.iter().filter(|item| item.happening == Happening::Refused).collect();
    let expected = [
        "there is no execution \"nobody\"",
        "it is completed already",
        "\"a\" exists as workflow \"flow\" with input",
        "the input of \"flow\" is over the limit payload_bytes_max: 70002, at most 65536",
        "the options of the start: unknown field `lnae`",
        "execution id \"abide:own\" begins with \"abide:\"",
    ];
    assert_eq!(told.len(), rows.len());
    for ((item, row), reason) in told.iter().zip(&rows).zip(expected) {
        let refused = item.refused.as_ref().expect("it says why");
        assert!(refused.reason.starts_with(reason), "{refused:?}");
        let what = (item.address.id.as_str(), &refused.id, &refused.verb, &refused.name);
        assert_eq!(what, (row.execution.as_str(), &row.id, &row.verb, &row.name));
        assert_eq!((item.at, item.run), (door.subject.now(), 0));
    }
    let others = items.iter().filter(|item| item.happening != Happening::Refused);
    assert!(others.into_iter().all(|item| item.refused.is_none()));
}

fn p6_what_is_refused_leaves_nothing_else(door: &Entrance) {
    let nobody = || Target::Address(address("nobody"));
    door.put(&[enqueued_signal("nobody", "1")]);
    assert_eq!(door.take_all(), (1, 1));
    assert!(door.subject.find(&nobody()).is_none());
    // The signal does not wait for a later start either.
    door.subject.start("nobody", flow());
    assert_eq!((door.take_all(), door.values("nobody").len()), ((0, 0), 0));
}

fn what_cannot_be_read_delays_nothing_behind_it(door: &Entrance) {
    let unreadable = |n: u32| Enqueued { options: "[]]".to_owned(), ..enqueued_start(&format!("bad {n}")) };
    let mut rows: Vec<Enqueued> = (0..20).map(unreadable).collect();
    rows.push(Enqueued { verb: "sing".to_owned(), ..enqueued_start("verse") });
    rows.push(Enqueued { execution: "a\u{202e}b".to_owned(), ..enqueued_start("") });
    rows.push(enqueued_start("good"));
    // A table may refuse such a row when it is put there: then nobody has to.
    for row in &rows {
        drop(catch_unwind(AssertUnwindSafe(|| door.put(std::slice::from_ref(row)))));
    }
    let (taken, refused) = door.take_all();
    assert!(taken == refused + 1 && door.subject.exists("good"));
    let told = door.refusals();
    assert_eq!(told.len(), refused);
    let hidden = told.iter().any(|(id, _)| id == r#""a\u{202e}b""#);
    assert!(hidden, "an id that hides something is told in quotes: {told:?}");
}

fn refused_rows_are_fed_in_pages_and_from_the_end(door: &Entrance) {
    door.subject.start("a", flow());
    let rows: Vec<Enqueued> = (0..7).map(|n| enqueued_signal(&format!("nobody {n}"), "1")).collect();
    door.put(&rows);
    assert_eq!(door.take_all(), (7, 7));
    door.subject.start("b", flow());
    let all = door.subject.feed();
    assert_eq!(all.len(), 9);
    for limit in [1, 2, 5] {
        let (mut found, mut from) = (Vec::new(), FeedFrom::Beginning);
        loop {
            let page = door.subject.feed_page(from, limit);
            assert!(page.items.len() <= limit);
            from = FeedFrom::After(page.next);
            found.extend(page.items);
            if page.is_end {
                break;
            }
        }
        assert_eq!(found.len(), all.len(), "in pages of {limit}");
        let ids: HashSet<_> = found.iter().map(|item| item.address.id.clone()).collect();
        assert_eq!(ids.len(), all.len(), "each of them once");
    }
    let end = door.subject.feed_page(FeedFrom::End, 1).next;
    assert!(door.subject.feed_page(FeedFrom::After(end), 9).items.is_empty());
    door.put(&[enqueued_signal("nobody", "1")]);
    door.take_all();
    let later = door.subject.feed_page(FeedFrom::After(end), 9).items;
    assert_eq!(later.iter().map(|item| item.address.id.as_str()).collect::<Vec<_>>(), ["nobody"]);
}

fn a_follower_hears_of_a_refusal(door: &Entrance) {
    let changed = door.subject.store.changed();
    door.put(&[enqueued_signal("nobody", "1")]);
    door.take_all();
    block_on(changed).expect("it is told");
}

fn a_claim_that_sweeps_tells_of_rows(door: &Entrance) {
    let mut seat = door.subject.seat(worker());
    assert!(!seat.sweep(1).intake);
    door.put(&[enqueued_start("a")]);
    assert!(seat.sweep(1).intake);
    door.take_all();
    assert!(!seat.sweep(1).intake);
}

fn a_session_hears_that_a_taken_start_is_ready(door: &Entrance) {
    let seat = door.subject.seat(worker());
    door.put(&[enqueued_start("a")]);
    door.take_all();
    seat.wait_for(|notice| matches!(notice, Notice::Ready | Notice::Changed));
}

fn p8_old_refusals_are_pruned(door: &Entrance) {
    door.put(&[enqueued_signal("old", "1")]);
    door.take_all();
    door.subject.advance_ms(1_000);
    let horizon = door.subject.now();
    door.put(&[enqueued_signal("new", "1")]);
    door.take_all();
    let end = door.subject.feed_page(FeedFrom::End, 1).next;
    assert_eq!(door.subject.prune(horizon, 100), 0, "no execution is pruned");
    let left: Vec<String> = door.refusals().into_iter().map(|(id, _)| id).collect();
    assert_eq!(left, ["new"]);
    door.subject.prune(Timestamp::MAX, 100);
    assert_eq!(door.refusals(), []);
    // A place in the feed is never used again.
    door.put(&[enqueued_signal("last", "1")]);
    door.take_all();
    assert_eq!(door.subject.feed_page(FeedFrom::After(end), 9).items.len(), 1);
}

fn rows_are_not_listed(door: &Entrance) {
    door.put(&[enqueued_start("a")]);
    assert!(door.subject.list(super::make::everything()).items.is_empty());
    let refusal = door.subject.refusal(vec![message("m", "a", Body::Resume)]);
    assert_eq!(refusal, "there is no execution \"a\"");
}

fn lengths_of_time_begin_when_a_row_is_taken(door: &Entrance) {
    let options = r#"{"lane": "main", "delay_ms": 1000}"#.to_owned();
    door.put(&[Enqueued { options, ..enqueued_start("a") }]);
    door.subject.advance_ms(700);
    door.take_all();
    let found = door.subject.look("a").summary;
    assert_eq!((found.status, found.wake_at), (Status::Scheduled, Some(door.subject.later_ms(1_000))));
}
