//! A damaged execution is set aside, by name, and delays no other.

use std::sync::Arc;

use abide_core::{
    Body, Descent, Kind, Message, Namespace, Outcome, Parent, Payload, Start, Status, Summary, Tag,
};
use abide_sqlite::SqliteStore;
use abide_store::conformance::block_on;
use abide_store::{
    Aside, Changes, Clock, Commit, CommitOutcome, Error, Feed, FeedFrom, Hold, List, Prune, Read, Store,
    Target, Unreadable, View, Workers,
};

use crate::fixture::{
    Fixture, Held, Seat, address, complete, damaged, flow, kid, look, message, name, signal, start, step,
    submit,
};

/// Damage to one part of execution `bad`, and the reported problem.
const DAMAGES: [(&str, &str); 4] = [
    (
        "UPDATE abide_executions SET state = x'0109ffffffff' WHERE key = 1",
        "the state of execution \"bad\" is damaged: it is cut short",
    ),
    (
        "UPDATE abide_executions SET state = (SELECT state FROM abide_executions WHERE key = 2) WHERE key = 1",
        "the state of execution \"bad\" is damaged: its checksum is wrong",
    ),
    ("UPDATE abide_journal SET body = x'0109ffffffff' WHERE row = 1", "journal row 1 is damaged"),
    ("UPDATE abide_inbox SET body = x'0109ffffffff'", "message \"s\" is damaged: its checksum is wrong"),
];

/// Returns a store with six ready executions. The first one is `bad` and has a message.
pub(super) fn six() -> (Fixture, Arc<SqliteStore>) {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("bad"), signal("s", "bad")]).expect("they are taken");
    for nth in 1..6 {
        submit(&store, vec![start(&format!("q-{nth}"))]).expect("it is taken");
    }
    (fixture, store)
}

pub(super) fn with_status(store: &Arc<SqliteStore>, status: Status) -> Vec<String> {
    let list = List { statuses: vec![status], ..List::of(Namespace::default(), 100) };
    let listing = block_on(store.list(list)).expect("it is listed");
    listing.items.iter().map(|item| item.address.id.to_string()).collect()
}

fn feed_count(store: &Arc<SqliteStore>) -> usize {
    let feed = Feed { from: FeedFrom::Beginning, limit: 100 };
    block_on(store.feed(feed)).expect("it is fed").items.len()
}

#[test]
fn a_damaged_execution_does_not_stop_the_others() {
    for (damage, complaint) in DAMAGES {
        let (fixture, store) = six();
        store.close();
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        let store = fixture.open();
        let mut seat: Seat = fixture.seat(&store);
        let claimed = seat.claim(true).leased;
        assert_eq!(claimed.len(), 5, "{damage}");
        for leased in claimed {
            let mut held = Held::from(leased);
            seat.record(&mut held, vec![step(1), complete()]);
        }
        assert!(seat.claim(true).leased.is_empty(), "it is not met again");
        assert_eq!(with_status(&store, Status::Damaged), ["bad"], "{damage}");
        assert_eq!(with_status(&store, Status::Completed).len(), 5);
        let problems = store.verify().expect("it is looked at").problems.join("; ");
        assert!(problems.contains(complaint), "{damage}: {problems}");
        assert!(feed_count(&store) >= 10, "the feed goes on");
        fixture.clock.advance(std::time::Duration::from_secs(1));
        let prune = Prune { finished_before: fixture.clock.now(), limit: 10 };
        assert_eq!(block_on(store.prune(prune)).expect("it is pruned"), 5);
    }
}

#[test]
fn whoever_writes_to_a_damaged_execution_is_told_and_nobody_else() {
    let (damage, complaint) = DAMAGES[1];
    let (fixture, store) = six();
    store.close();
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    let store = fixture.open();
    let send = |messages| submit(&store, messages);
    for messages in
        [vec![signal("x", "bad")], vec![signal("x", "q-1"), signal("x", "bad")], vec![start("bad")]]
    {
        match send(messages) {
            Err(Error::Corrupt { what }) => assert_eq!(what, complaint),
            other => panic!("expected damage, found {other:?}"),
        }
    }
    assert!(look(&store, "q-1").inbox.messages.is_empty(), "a refusal leaves no trace");
    assert_eq!(send(vec![signal("y", "q-1")]).expect("it is taken").len(), 1);
    let read =
        Read { target: Target::Address(address("bad")), run: None, from: 0, limit: 0, with_inbox: false };
    assert!(matches!(block_on(store.read(read)), Err(Error::Corrupt { .. })));
}

#[test]
fn a_state_is_rebuilt_from_a_sound_journal() {
    for (damage, _) in &DAMAGES[..2] {
        let (fixture, store) = six();
        let mut seat = fixture.seat(&store);
        let mut held: Vec<Held> = seat.claim(true).leased.into_iter().map(Held::from).collect();
        // More than one block of rows, and an earlier run.
        let bad =
            held.iter_mut().find(|held| held.execution.address().id.as_str() == "bad").expect("it is held");
        seat.continue_as_new(bad, vec![step(1)]);
        (1..=140).for_each(|nth| seat.record(bad, vec![step(nth)]));
        seat.retire();
        let before = look(&store, "bad");
        store.close();
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        let store = fixture.open();
        let mut seat = fixture.seat(&store);
        seat.claim(true);
        let repairs = block_on(store.repair()).expect("it is repaired");
        assert_eq!(repairs.rebuilt, [r#"execution "bad": its state was rebuilt"#], "{damage}");
        assert!(repairs.left.is_empty());
        let after = look(&store, "bad");
        assert_eq!((&after.execution, &after.journal), (&before.execution, &before.journal));
        assert_eq!((after.created_at, &after.inbox), (before.created_at, &before.inbox));
        let found = store.verify().expect("it is looked at");
        assert!(found.is_sound(), "{:?}", found.problems);
        let mut again: Held = seat.claim(true).leased.remove(0).into();
        seat.record(&mut again, vec![step(141), complete()]);
        assert!(
            block_on(store.repair()).expect("it is repaired").rebuilt.is_empty(),
            "there is nothing left"
        );
    }
}

#[test]
fn what_cannot_be_rebuilt_says_why_and_stays_as_it_is() {
    for (damage, complaint) in &DAMAGES[2..] {
        let (fixture, store) = six();
        store.close();
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        let store = fixture.open();
        fixture.seat(&store).claim(true);
        let repairs = block_on(store.repair()).expect("it is repaired");
        assert_eq!(repairs.left, [format!(r#"execution "bad" cannot be rebuilt: {complaint}"#)]);
        assert!(repairs.rebuilt.is_empty());
        assert_eq!(with_status(&store, Status::Damaged), ["bad"]);
    }
}

#[test]
fn what_stands_where_nobody_looks_is_put_back() {
    let damages = [
        "UPDATE abide_executions SET place = 0, rank = 0, place_at = 0 WHERE key = 1",
        "UPDATE abide_executions SET place = 4 * 77 + 3 WHERE key = 1",
        "UPDATE abide_executions SET rank = 3 WHERE key = 1",
        "UPDATE abide_executions SET place = 4 WHERE key = 1",
    ];
    for damage in damages {
        let (fixture, store) = six();
        let mut seat = fixture.seat(&store);
        let mut held: Vec<Held> = seat.claim(true).leased.into_iter().map(Held::from).collect();
        let bad =
            held.iter_mut().find(|held| held.execution.address().id.as_str() == "bad").expect("it is held");
        seat.record(bad, vec![step(1)]);
        seat.retire();
        store.close();
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        let store = fixture.open();
        assert!(!store.verify().expect("it is looked at").is_sound(), "{damage}");
        let repairs = block_on(store.repair()).expect("it is repaired");
        assert_eq!((repairs.rebuilt.len(), repairs.left.len()), (1, 0), "{damage}: {repairs:?}");
        let found = store.verify().expect("it is looked at");
        assert!(found.is_sound(), "{damage}: {:?}", found.problems);
        assert_eq!(fixture.seat(&store).claim(true).leased.len(), 6, "{damage}");
    }
}

/// Rebuilt from such a head, the execution would have forgotten the later entries, and would repeat
/// them. Only the state reveals this, because it is sealed with the true head.
#[test]
fn p1_nothing_is_rebuilt_from_a_head_that_is_not_the_last_row() {
    let head = "UPDATE abide_executions SET head = head - 1 WHERE id = 'bad'";
    let both = "UPDATE abide_executions SET head = head - 1, state = x'00' WHERE id = 'bad'";
    let put_right = r#"execution "bad": its row was put right: head"#;
    let left = r#"execution "bad" cannot be rebuilt: its journal goes on behind its head"#;
    let rows = [(head, vec![put_right], Vec::new()), (both, Vec::new(), vec![left])];
    for (damage, rebuilt, left) in rows {
        let (fixture, store) = six();
        let mut seat = fixture.seat(&store);
        let mut held = seat.claim(true).leased.into_iter().map(Held::from);
        let mut bad = held.find(|held| held.execution.address().id.as_str() == "bad").expect("it is held");
        (1..4).for_each(|nth| seat.record(&mut bad, vec![step(nth)]));
        seat.retire();
        let store = damaged(&fixture, &store, damage);
        let repairs = block_on(store.repair()).expect("it is looked at");
        assert_eq!(repairs.rebuilt, rebuilt, "{damage}");
        assert_eq!(repairs.left, left, "{damage}");
    }
}

/// A caretaker would take it every time, and set it aside again.
#[test]
fn nobody_looks_after_what_its_holder_has_set_aside() {
    let (fixture, store) = six();
    let mut seat = fixture.seat(&store);
    let mut held = seat.claim(true).leased.into_iter();
    let bad = held.find(|leased| leased.address().id.as_str() == "bad").expect("it is held");
    let terminate = Body::Terminate { reason: "enough".to_owned() };
    submit(&store, vec![message("end", "bad", terminate)]).expect("it is taken");
    let care_at = || -> Option<i64> {
        let raw = fixture.raw();
        raw.query_row("SELECT care_at FROM abide_executions WHERE id = 'bad'", [], |row| row.get(0))
            .expect("it is there")
    };
    assert!(care_at().is_some(), "its holder has some time to read it");
    let aside =
        Aside { key: bad.key, lease: bad.lease, unreadable: Unreadable::Damaged("a hole".to_owned()) };
    block_on(store.set_aside(aside)).expect("it is set aside");
    assert_eq!(care_at(), None);
}

#[test]
fn a_row_without_a_route_is_listed_by_its_id() {
    let (fixture, store) = six();
    store.close();
    let damage = "UPDATE abide_executions SET queue = 999 << 16 WHERE key = 1";
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    let store = fixture.open();
    assert_eq!(with_status(&store, Status::Damaged), ["bad"]);
    assert_eq!(with_status(&store, Status::Running).len(), 5);
}

/// Only newer programs can read the records of a newer program. Until one takes the execution, it
/// delays no other, and is not offered again and again.
#[test]
fn what_a_newer_program_wrote_is_put_off() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let mut seat = fixture.seat(&store);
    let mut newer = seat.born("newer");
    let commit = seat.draft(&mut newer, vec![step(1)]);
    let mut changes = (*commit.changes).clone();
    // The first byte is the number of the format.
    changes.state[0] += 1;
    let commit = Commit { changes: Arc::new(changes), hold: Hold::Yield, ..commit };
    block_on(store.commit(commit)).expect("it is committed");
    assert!(seat.claim(false).leased.is_empty(), "nobody here can read it");
    let nothing = seat.claim(false);
    assert!(nothing.leased.is_empty() && !nothing.more, "it is not asked for without a pause: {nothing:?}");
    submit(&store, vec![start("good")]).expect("it is taken");
    let ids = |claimed: abide_store::Claimed| -> Vec<String> {
        claimed.leased.iter().map(|leased| leased.address().id.to_string()).collect()
    };
    assert_eq!(ids(seat.claim(false)), ["good"]);
    // Later it is offered again.
    fixture.clock.advance(std::time::Duration::from_secs(6));
    assert!(seat.claim(false).leased.is_empty());
    let before = fixture.raw().query_row(STATE, [], |row| row.get::<_, Vec<u8>>(0)).expect("it is there");
    let repaired = block_on(store.repair()).expect("it is looked at");
    assert!(repaired.rebuilt.is_empty(), "{repaired:?}");
    let after = fixture.raw().query_row(STATE, [], |row| row.get::<_, Vec<u8>>(0)).expect("it is there");
    assert_eq!(before, after, "an older program leaves it as it is");
    let read = Read { target: Target::Key(newer.key), run: None, from: 1, limit: 1, with_inbox: false };
    assert!(matches!(block_on(store.read(read)), Err(Error::Newer { .. })));
}

/// Commits a step of `held` that sends `message`. Returns the number of messages without a target.
pub(super) fn emit(seat: &Seat, held: &mut Held, message: Message) -> usize {
    let commit = seat.draft(held, vec![step(1)]);
    let changes = Changes { outgoing: vec![message], ..(*commit.changes).clone() };
    match block_on(seat.store.commit(Commit { changes: Arc::new(changes), ..commit })) {
        Ok(CommitOutcome::Committed(committed)) => committed.dropped_count,
        other => panic!("it is not committed: {other:?}"),
    }
}

/// Sends a commit that removes its execution from memory, to wait for messages.
pub(super) fn park(seat: &Seat, commit: Commit) {
    let waiting = Summary { status: Status::Waiting, ..commit.changes.summary.clone() };
    let changes = Changes { summary: waiting, ..(*commit.changes).clone() };
    let hold = Hold::Park { seen: Vec::new() };
    let commit = Commit { changes: Arc::new(changes), hold, ..commit };
    block_on(seat.store.commit(commit)).expect("it is parked");
}

/// Returns answers and orders that are sent once, and one for a child of another execution.
pub(super) fn sent_once() -> Vec<Message> {
    let (op, outcome) = (kid().child_result(), Outcome::Success(Payload::from("7")));
    let foreign = Descent { parent: address("other").id, run: 1, before: 9, op: None };
    let cancel = || message("sent", "bad", Body::Cancel { reason: String::new() });
    vec![
        message("sent", "bad", Body::ChildDone { run: 1, op, outcome }),
        message("sent", "bad", Body::Inherit { number: 3, pause: Some(String::new()) }),
        message("sent", "bad", Body::Terminate { reason: String::new() }),
        cancel(),
        Message { descent: Some(foreign.into()), ..cancel() },
    ]
}

/// Nobody sends the message again. After the state was rebuilt, the next holder finds the message.
#[test]
fn what_is_sent_once_waits_for_a_repair() {
    for (damage, _) in &DAMAGES[..2] {
        for sent in sent_once() {
            let fixture = Fixture::new();
            let store = fixture.open();
            let mut seat = fixture.seat(&store);
            let (mut bad, mut other) = (seat.born("bad"), seat.born("other"));
            park(&seat, seat.draft(&mut bad, vec![step(1)]));
            fixture.raw().execute_batch(damage).expect("the damage can be done");
            assert_eq!(emit(&seat, &mut other, sent.clone()), 0, "{sent:?}");
            seat.claim(true);
            assert_eq!(with_status(&store, Status::Damaged), ["bad"]);
            assert_eq!(block_on(store.repair()).expect("it is repaired").rebuilt.len(), 1);
            let leased = seat.claim(true).leased.remove(0);
            let found: Vec<_> = leased.inbox.messages.iter().map(|found| (&found.id, &found.body)).collect();
            assert_eq!(found, [(&sent.id, &sent.body)], "{damage}");
            let is_meant = leased.execution.is_meant_by(&leased.inbox.messages[0]);
            assert_eq!(is_meant, sent.descent.is_none(), "who reads it can judge it");
        }
    }
}

/// Programs that can read the execution find it in its queue.
#[test]
fn what_is_sent_once_waits_for_a_newer_program() {
    for sent in sent_once() {
        let fixture = Fixture::new();
        let store = fixture.open();
        let seat = fixture.seat(&store);
        let (mut newer, mut other) = (seat.born("bad"), seat.born("other"));
        let commit = seat.draft(&mut newer, vec![step(1)]);
        let mut changes = (*commit.changes).clone();
        changes.state[0] += 1;
        park(&seat, Commit { changes: Arc::new(changes), ..commit });
        assert_eq!(emit(&seat, &mut other, sent.clone()), 0, "{sent:?}");
        let unread = "SELECT COUNT(*) FROM abide_inbox WHERE id = 'sent' AND body IS NOT NULL";
        let ready = "SELECT COUNT(*) FROM abide_executions WHERE id = 'bad' AND place % 4 = 1";
        for count in [unread, ready] {
            let found: i64 = fixture.raw().query_row(count, [], |row| row.get(0)).expect("it is counted");
            assert_eq!(found, 1, "{sent:?}: {count}");
        }
    }
}

/// The store cannot tell whether the existing execution was started the same way, and the parent
/// would wait for ever.
#[test]
fn start_of_a_child_that_finds_something_damaged_fails() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let (_bad, mut other) = (seat.born("bad"), seat.born("other"));
    fixture.raw().execute_batch(DAMAGES[1].0).expect("the damage can be done");
    let parent = Some(Parent::new(address("other").id, 1, kid().child_result(), 2));
    let start = message("start", "bad", Body::Start(Start { parent, ..flow() }.into()));
    assert_eq!(emit(&seat, &mut other, start), 0);
    match &look(&store, "other").inbox.messages[..] {
        [Message { body: Body::ChildDone { outcome: Outcome::Failure(failure), .. }, .. }] => {
            assert!(failure.message.contains(DAMAGES[1].1), "{failure:?}");
        }
        other => panic!("expected a failure, found {other:?}"),
    }
}

/// An execution that has ended takes no message, even if it is damaged.
#[test]
fn what_has_ended_takes_nothing_that_is_sent_once() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let (mut bad, mut other) = (seat.born("bad"), seat.born("other"));
    seat.record(&mut bad, vec![complete()]);
    fixture.raw().execute_batch(DAMAGES[1].0).expect("the damage can be done");
    assert_eq!(emit(&seat, &mut other, sent_once().remove(0)), 1);
}

const STATE: &str = "SELECT state FROM abide_executions WHERE id = 'newer'";

/// A worker whose row is unreadable hides no other, and is reported.
#[test]
fn a_session_that_cannot_be_read_is_listed_and_told() {
    let damages = [
        ("UPDATE abide_sessions SET ability = x'0109ffffffff' WHERE id = 1", "the record is damaged"),
        ("UPDATE abide_sessions SET ability = x'02' WHERE id = 1", "written by a newer"),
        ("UPDATE abide_sessions SET name = '' WHERE id = 1", "name"),
        ("UPDATE abide_sessions SET ttl_us = 'soon' WHERE id = 1", "ttl_us"),
        ("UPDATE abide_sessions SET expires_at = 'soon' WHERE id = 1", "expires_at"),
        ("UPDATE abide_sessions SET retired = x'ff' WHERE id = 1", "retired"),
        ("UPDATE abide_sessions SET draining = 'soon' WHERE id = 1", "draining"),
    ];
    for (damage, told) in damages {
        let fixture = Fixture::new();
        let store = fixture.open();
        let sessions = [fixture.seat(&store).session, fixture.seat(&store).session];
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        let query = Workers { namespace: Namespace::default(), after: None, limit: 10 };
        let rows = block_on(store.workers(query)).expect("they are listed");
        assert_eq!(rows.iter().map(|row| row.session).collect::<Vec<_>>(), sessions, "{damage}");
        let problem = rows[0].damage.as_ref().expect("it is told");
        assert!(problem.contains(told), "{damage}: {problem}");
        assert!(rows[1].damage.is_none() && rows[1].is_live(fixture.clock.now()));
        let found = store.verify().expect("it is looked at").problems;
        let problem = format!("session 1: {problem}");
        assert!(found.contains(&problem), "{damage}: {found:?}");
    }
}

#[test]
fn what_is_abides_own_is_counted_apart() {
    let (_fixture, store) = six();
    let own = Start { kind: Kind::Builtin, name: name("tree"), ..flow() };
    submit(&store, vec![message("start", "abide:tree/a/1/2", Body::Start(own.into()))]).expect("it is taken");
    let found = store.verify().expect("it is looked at");
    assert_eq!((found.execution_count, found.own_count, found.is_sound()), (7, 1, true));
}

#[test]
fn a_damaged_journal_keeps_its_execution_from_being_pruned_and_no_other() {
    let damages = [
        "UPDATE abide_journal SET body = x'0109ffffffff' WHERE row = 1",
        "DELETE FROM abide_journal WHERE row = 1",
        "UPDATE abide_journal SET previous = 77 WHERE row = 3",
        "UPDATE abide_journal SET previous = 3 WHERE row = 3",
        "UPDATE abide_journal SET previous = 2 WHERE row = 3",
    ];
    for damage in damages {
        let fixture = Fixture::new();
        let store = fixture.open();
        let mut seat = fixture.seat(&store);
        for id in ["bad", "good"] {
            let tags = vec![Tag { key: name("customer"), value: name("c7") }];
            submit(&store, vec![message("start", id, Body::Start(Start { tags, ..flow() }.into()))])
                .expect("it is taken");
        }
        // The rows 1 and 2 are the starts.
        let mut held: Vec<Held> = seat.claim(true).leased.into_iter().map(Held::from).collect();
        held.iter_mut().for_each(|held| seat.record(held, vec![step(1)]));
        held.iter_mut().for_each(|held| seat.record(held, vec![complete()]));
        store.close();
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        let store = fixture.open();
        fixture.clock.advance(std::time::Duration::from_secs(1));
        let prune = || block_on(store.prune(Prune { finished_before: fixture.clock.now(), limit: 10 }));
        assert_eq!(prune().expect("it is pruned"), 1, "{damage}");
        assert_eq!(prune().expect("it is pruned"), 0, "{damage}");
        assert_eq!(
            with_status(&store, Status::Completed),
            ["bad"],
            "it is for somebody to look at: {damage}"
        );
        let rows: i64 = fixture
            .raw()
            .query_row("SELECT COUNT(*) FROM abide_journal", [], |row| row.get(0))
            .expect("they are counted");
        assert_eq!(rows, if damage.starts_with("DELETE") { 2 } else { 3 }, "all of it stays: {damage}");
    }
}
