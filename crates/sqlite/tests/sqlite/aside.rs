//! What is damaged is set aside, by name, and delays nobody.

use std::sync::Arc;

use abide_core::{
    Body, By, Command, Descent, Kind, Message, Namespace, Op, OpKind, Outcome, Parent, Payload, Start,
    Status, Summary, Tag,
};
use abide_sqlite::{Discarded, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{
    Aside, Changes, Clock, Commit, CommitOutcome, Error, Feed, FeedFrom, Hold, List, Prune, Read, Store,
    Target, View, Workers,
};

use crate::fixture::{
    Fixture, Held, Seat, address, complete, flow, look, message, name, signal, start, step, submit,
};

/// Damage to one thing of execution `bad`, and what is said of it.
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

/// Six executions that are ready, of which the first is `bad` and has a message.
fn six() -> (Fixture, Arc<SqliteStore>) {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("bad"), signal("s", "bad")]).expect("they are taken");
    for nth in 1..6 {
        submit(&store, vec![start(&format!("q-{nth}"))]).expect("it is taken");
    }
    (fixture, store)
}

fn with_status(store: &Arc<SqliteStore>, status: Status) -> Vec<String> {
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
        "UPDATE abide_executions SET place = 0, rank = 0, since = 0 WHERE key = 1",
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

/// Rebuilt from there it would have forgotten what is recorded behind, and do it again. The state is sealed with the true head, and tells; without
/// it nothing does.
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

/// Somebody would take it every time, and set it aside again.
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
    let aside = Aside { key: bad.key, lease: bad.lease, damage: "it cannot be read".to_owned() };
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

fn kid() -> Op {
    Op { kind: OpKind::Child, name: name("child"), nth: 1 }
}

/// A child whose parent waits for it in its second run, and the child's own child.
fn family() -> (Fixture, Arc<SqliteStore>) {
    let fixture = Fixture::new();
    let store = fixture.open();
    let child_of = |of: &str, run| {
        let parent = Some(Parent::new(address(of).id, run, kid().child_result(), 3));
        Arc::new(Start { parent, ..flow() })
    };
    let seat = fixture.seat(&store);
    let mut boss = seat.born("boss");
    seat.continue_as_new(&mut boss, vec![step(1)]);
    let begin = Command::StartChild { op: kid(), child: address("bad").id, start: child_of("boss", 2) };
    seat.record(&mut boss, vec![step(1), begin, step(2)]);
    seat.retire();
    let child = |id: &str, start| message("start", id, Body::Start(start));
    let messages = vec![
        child("bad", child_of("boss", 2)),
        signal("s", "bad"),
        child("grand", child_of("bad", 1)),
        start("q"),
    ];
    submit(&store, messages).expect("they are taken");
    (fixture, store)
}

fn discard(store: &Arc<SqliteStore>, id: &str) -> Discarded {
    let by = By("ann".to_owned());
    block_on(store.discard(&address(id), by, "beyond repair".to_owned())).expect("it is looked at")
}

#[test]
fn what_cannot_be_rebuilt_can_be_ended() {
    let state = "UPDATE abide_executions SET state = x'00' WHERE id = 'bad'; ";
    let journal = "UPDATE abide_journal SET body = x'00' WHERE execution = 2; ";
    let queue = "UPDATE abide_executions SET queue = 999 << 16 WHERE id = 'bad'; ";
    let inbox = "UPDATE abide_inbox SET body = x'00' WHERE execution = 2; ";
    let damages = [
        journal.to_owned(),
        inbox.to_owned(),
        format!("{state}{inbox}"),
        format!("{queue}{inbox}"),
        // Only its parent's journal says what its parent waits for.
        format!("{state}{journal}"),
    ];
    for damage in damages {
        let (fixture, store) = family();
        let store = damaged(&fixture, &store, &damage);
        assert_eq!(discard(&store, "bad"), Discarded::Ended, "{damage}");
        let found = store.verify().expect("it is looked at");
        assert!(found.is_sound(), "{damage}: {:?}", found.problems);
        assert_eq!(with_status(&store, Status::Cancelled), ["bad"], "{damage}");
        let told = look(&store, "boss").inbox.messages;
        let is_answer = |body: &Body| match body {
            Body::ChildDone { run, op, outcome: Outcome::Failure(_) } => {
                *run == 2 && *op == kid().child_result()
            }
            _ => false,
        };
        assert!(told.iter().any(|message| is_answer(&message.body)), "{damage}: {told:?}");
        let parent = look(&store, "bad").execution.parent().cloned();
        assert_eq!(parent.map(|parent| parent.id), Some(address("boss").id), "{damage}");
        let grand = look(&store, "grand").inbox.messages;
        let reason = r#"its parent "bad" was discarded: beyond repair"#.to_owned();
        assert_eq!(grand[0].body, Body::Terminate { reason }, "{damage}");
        assert_eq!(fixture.seat(&store).claim(true).leased.len(), 3, "{damage}: the others go on");
    }
}

/// Each of them is told by `verify`, so that each can be ended.
#[test]
fn whatever_the_damage_is_it_can_be_ended() {
    let damages = [
        "UPDATE abide_executions SET queue = 999 << 16 WHERE id = 'bad'",
        "UPDATE abide_executions SET queue = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET epoch = x'00' WHERE id = 'bad'",
        "UPDATE abide_executions SET version = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET head = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET place = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET care_at = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET parent = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET parent_run = 'x' WHERE id = 'grand'; DELETE FROM abide_journal WHERE execution = 2",
        "DELETE FROM abide_routes WHERE id = 1; UPDATE abide_journal SET body = x'00' WHERE execution = 3",
    ];
    for damage in damages {
        let (fixture, store) = family();
        let store = damaged(&fixture, &store, damage);
        assert_eq!(discard(&store, "bad"), Discarded::Ended, "{damage}");
        assert_eq!(with_status(&store, Status::Cancelled), ["bad"], "{damage}");
    }
    let (fixture, store) = family();
    let store = damaged(&fixture, &store, "UPDATE abide_executions SET id = x'00' WHERE id = 'bad'");
    assert_eq!(discard(&store, "abide:damaged/2"), Discarded::Ended);
    assert_eq!(with_status(&store, Status::Cancelled), ["bad"]);
}

/// It may be in there: that its namespace is unknown is not known.
#[test]
fn nothing_is_said_of_a_namespace_whose_name_is_damaged() {
    let (fixture, store) = family();
    let store = damaged(&fixture, &store, "UPDATE abide_names SET name = 'defbult'");
    let told = block_on(store.discard(&address("bad"), By::client(), String::new()));
    assert!(matches!(told, Err(Error::Corrupt { .. })), "{told:?}");
}

/// The store after somebody else wrote to its file.
fn damaged(fixture: &Fixture, store: &Arc<SqliteStore>, damage: &str) -> Arc<SqliteStore> {
    store.close();
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    fixture.open()
}

#[test]
fn a_child_is_discarded_also_when_its_parent_is_damaged_too() {
    let (fixture, store) = family();
    let damage = "UPDATE abide_journal SET body = x'00' WHERE execution < 3;
                  UPDATE abide_executions SET state = x'00' WHERE id IN ('bad', 'boss')";
    let store = damaged(&fixture, &store, damage);
    for id in ["bad", "boss"] {
        assert_eq!(discard(&store, id), Discarded::Ended, "{id}");
    }
    let found = store.verify().expect("it is looked at");
    assert!(found.is_sound(), "{:?}", found.problems);
}

/// Its runs would be counted anew, and give keys and ids of the lost ones a second time.
#[test]
fn what_was_discarded_with_its_input_is_not_retried_either() {
    let (fixture, store) = six();
    let store = damaged(&fixture, &store, "UPDATE abide_inbox SET body = x'00' WHERE execution = 1");
    assert_eq!(discard(&store, "bad"), Discarded::Ended);
    let refused = submit(&store, vec![message("again", "bad", Body::Retry)]).expect_err("it is refused");
    assert_eq!(refused.to_string(), "it was damaged, and was discarded");
}

#[test]
fn p4_what_has_ended_is_not_discarded() {
    let (fixture, store) = six();
    let mut seat = fixture.seat(&store);
    let mut held = seat.claim(true).leased.into_iter().map(Held::from);
    let mut bad = held.find(|held| held.execution.address().id.as_str() == "bad").expect("it is held");
    seat.record(&mut bad, vec![step(1)]);
    seat.record(&mut bad, vec![complete()]);
    seat.retire();
    let store =
        damaged(&fixture, &store, "UPDATE abide_journal SET body = x'00' WHERE execution = 1 AND seq = 2");
    assert_eq!(discard(&store, "bad"), Discarded::Over);
    assert_eq!(with_status(&store, Status::Completed), ["bad"]);
}

#[test]
fn what_was_discarded_without_its_input_is_neither_retried_nor_found_by_a_start() {
    let damage = "UPDATE abide_journal SET body = x'00' WHERE execution = 1;
                  UPDATE abide_executions SET state = x'00' WHERE id = 'bad'";
    let (fixture, store) = six();
    let store = damaged(&fixture, &store, damage);
    assert_eq!(discard(&store, "bad"), Discarded::Ended);
    let refused = |message| match submit(&store, vec![message]) {
        Err(Error::Refused(refusal)) => refusal.to_string(),
        other => panic!("expected a refusal, found {other:?}"),
    };
    assert_eq!(refused(message("again", "bad", Body::Retry)), "it was damaged, and was discarded");
    let null = Start { input: Payload::from("null"), ..flow() };
    let asked = refused(message("start", "bad", Body::Start(null.into())));
    let exists = r#""bad" exists as workflow "flow", which was damaged and discarded, the request is for workflow "flow" with input null"#;
    assert_eq!(asked, exists);
}

#[test]
fn only_what_is_damaged_and_held_by_nobody_is_discarded() {
    let (fixture, store) = family();
    assert_eq!(discard(&store, "nobody"), Discarded::Unknown);
    assert_eq!(discard(&store, "bad"), Discarded::Sound);
    let queue = "UPDATE abide_executions SET queue = 999 << 16, state = x'00' WHERE id = 'bad'";
    fixture
        .raw()
        .execute_batch(&format!("{queue}; UPDATE abide_journal SET body = x'00' WHERE execution = 2"))
        .expect("the damage can be done");
    assert_eq!(discard(&store, "bad"), Discarded::Unreadable);
    let mut seat = fixture.seat(&store);
    seat.claim(true);
    fixture
        .raw()
        .execute_batch("UPDATE abide_executions SET state = x'00' WHERE id = 'q'")
        .expect("the damage can be done");
    assert_eq!(discard(&store, "q"), Discarded::Held);
}

/// What a newer program wrote is for those who can read it. Until they take it, it holds up nobody, and is not asked for again and again.
#[test]
fn what_a_newer_program_wrote_is_put_off() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let mut seat = fixture.seat(&store);
    let mut newer = seat.born("newer");
    let commit = seat.draft(&mut newer, vec![step(1)]);
    let mut changes = (*commit.changes).clone();
    // The number of the format is its first byte.
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

/// Commits a step of `held` that sends `message`; how many messages went nowhere.
fn emit(seat: &Seat, held: &mut Held, message: Message) -> usize {
    let commit = seat.draft(held, vec![step(1)]);
    let changes = Changes { emits: vec![message], ..(*commit.changes).clone() };
    match block_on(seat.store.commit(Commit { changes: Arc::new(changes), ..commit })) {
        Ok(CommitOutcome::Committed(committed)) => committed.dropped_count,
        other => panic!("it is not committed: {other:?}"),
    }
}

/// Sends a commit with which its execution leaves memory, to wait for messages.
fn park(seat: &Seat, commit: Commit) {
    let waiting = Summary { status: Status::Waiting, ..commit.changes.summary.clone() };
    let changes = Changes { summary: waiting, ..(*commit.changes).clone() };
    let hold = Hold::Park { seen: Vec::new() };
    let commit = Commit { changes: Arc::new(changes), hold, ..commit };
    block_on(seat.store.commit(commit)).expect("it is parked");
}

/// Answers and orders that are sent once, and one for a child of somebody else.
fn sent_once() -> Vec<Message> {
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

/// Nobody sends it again: when the state has been rebuilt, whoever claims the execution finds it.
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

/// It stands where those look who can read it.
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

/// Whether it began the same way cannot be seen, and its parent would wait for ever.
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

/// What has ended takes no message, also when it is damaged.
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

/// A worker whose row cannot be read hides no other, and is told.
#[test]
fn a_session_that_cannot_be_read_is_listed_and_told() {
    let damages = [
        ("UPDATE abide_sessions SET ability = x'0109ffffffff' WHERE id = 1", "the record is damaged"),
        ("UPDATE abide_sessions SET ability = x'02' WHERE id = 1", "written by a newer"),
        ("UPDATE abide_sessions SET name = '' WHERE id = 1", "name"),
        ("UPDATE abide_sessions SET ttl_us = 'soon' WHERE id = 1", "ttl_us"),
        ("UPDATE abide_sessions SET expires_at = 'soon' WHERE id = 1", "expires_at"),
        ("UPDATE abide_sessions SET retired = x'ff' WHERE id = 1", "retired"),
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
