//! The problems that `verify` finds.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{Body, Op, OpKind, Parent, Start, Waiting};
use abide_store::conformance::block_on;
use abide_store::{Clock, Commit, Hold, Store};

use crate::fixture::{Fixture, address, flow, message, name, signal, start, step, submit};

fn problems(damage: &str) -> String {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    (1..200).for_each(|nth| seat.record(&mut held, vec![step(nth)]));
    seat.beat();
    submit(&store, vec![start("b"), signal("s", "b")]).expect("it is taken");
    assert!(store.verify().expect("it is looked at").is_sound());
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    store.verify().expect("it is looked at").problems.join("; ")
}

#[test]
fn damage_is_found_and_named() {
    let rows = [
        (
            "DELETE FROM abide_journal WHERE row = 150",
            "execution \"a\": entry 150 should be in journal row 150, which is missing",
        ),
        (
            "UPDATE abide_journal SET seq = 9 WHERE row = 10",
            "execution \"a\": journal row 10 is damaged",
        ),
        ("UPDATE abide_journal SET skip = NULL WHERE row = 128", "execution \"a\": journal row 128 is damaged"),
        (
            "UPDATE abide_journal SET skip = (SELECT skip FROM abide_journal WHERE row = 128) WHERE row = 129;
             UPDATE abide_journal SET skip = x'0100' WHERE row = 128",
            "execution \"a\": journal row 129 is damaged",
        ),
        (
            "UPDATE abide_journal SET body = x'01' WHERE row = 7",
            "execution \"a\": journal row 7 is damaged",
        ),
        (
            "UPDATE abide_executions SET state = (SELECT state FROM abide_executions WHERE key = 2) WHERE key = 1",
            "execution \"a\": the state of execution \"a\" is damaged: its checksum is wrong",
        ),
        (
            "UPDATE abide_executions SET status = 7 WHERE key = 2",
            "execution \"b\": its status is not that of its summary",
        ),
        ("UPDATE abide_executions SET status = 6 WHERE key = 2", "execution \"b\": there is no status 6 in the index"),
        ("UPDATE abide_executions SET place = 4 * 77 + 3 WHERE key = 1", "execution \"a\": it is held by session 77, which is not registered"),
        ("UPDATE abide_executions SET place = 0 WHERE key = 2", "execution \"b\": nobody has had it, and nobody would"),
        ("UPDATE abide_executions SET place = 0, rank = 0, place_at = 0 WHERE key = 1", "execution \"a\": it stands where it does not belong"),
        ("UPDATE abide_executions SET place = 4 WHERE key = 2", "execution \"b\": it stands where it does not belong"),
        ("UPDATE abide_executions SET rank = 3 WHERE key = 2", "execution \"b\": it stands where it does not belong"),
        ("UPDATE abide_executions SET parent = 1 WHERE key = 2", "execution \"b\": the state of execution \"b\" is damaged: its checksum is wrong"),
        ("UPDATE abide_executions SET place = 12 WHERE key = 2", "execution \"b\": there is no place 12"),
        ("UPDATE abide_executions SET place = 8 WHERE key = 2", "execution \"b\": it was set aside because it could not be read, and can be read now"),
        ("UPDATE abide_names SET name = 'defbult'", "the name of namespace 1 is damaged; execution \"a\": the name of its namespace is damaged; \
             execution \"b\": the name of its namespace is damaged"),
        ("UPDATE abide_routes SET route = x'01'", "route 1 is damaged; execution \"a\": its route is damaged; execution \"b\": its route is damaged"),
        ("DROP INDEX abide_executions_trouble", "the tables are not those that this program makes"),
        ("DELETE FROM abide_sessions", "execution \"a\": it is held by session 1, which is not registered"),
        (
            "INSERT INTO abide_inbox VALUES (9, 's', 1, NULL); INSERT INTO abide_tags VALUES (1, 'k', 'v', 8)",
            "there are 1 tags, the executions have 0; the inbox of execution 9 belongs to nothing; the tags of execution 8 belongs to nothing",
        ),
    ];
    for (damage, expected) in rows {
        assert_eq!(problems(damage), expected, "{damage}");
    }
}

/// Returns a store with `sleeps`, which sleeps for an hour, `ready`, its child `child`, and
/// `waits`, which waits for a message.
fn standing(change: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<()>) -> (Fixture, Vec<String>) {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut waits = seat.born("waits");
    let waiting = [Waiting::Signal { name: name("s"), until: None }];
    let mut park = seat.draft(&mut waits, vec![step(1)]);
    Arc::make_mut(&mut park.changes).summary = waits.execution.summary(&waiting);
    block_on(store.commit(Commit { hold: Hold::Park { seen: Vec::new() }, ..park })).expect("it is parked");
    seat.retire();
    let start_at = Some(fixture.clock.now().after(Duration::from_secs(3_600)));
    let op = Op { kind: OpKind::ChildResult, name: name("child"), key: None, nth: 1 };
    let parent = Some(Parent::new(address("ready").id, 1, op, 2));
    let begin = |id: &str, start: Start| message("start", id, Body::Start(start.into()));
    let messages = vec![
        begin("sleeps", Start { start_at, ..flow() }),
        start("ready"),
        begin("child", Start { parent, ..flow() }),
    ];
    submit(&store, messages).expect("they are taken");
    assert!(store.verify().expect("it is looked at").is_sound());
    change(&fixture.raw()).expect("it can be done");
    let problems = store.verify().expect("it is looked at").problems;
    store.close();
    (fixture, problems)
}

const PARENT: &str = "
SELECT parent.id
FROM abide_executions AS child
JOIN abide_executions AS parent ON parent.key = child.parent
WHERE child.id = 'child'";

#[test]
fn columns_by_which_others_find_it_are_checked_and_put_right() {
    for (damage, expected) in [
        (
            "UPDATE abide_executions SET rank = 2048 WHERE id = 'sleeps'",
            "execution \"sleeps\": there is no rank 2048 among timers",
        ),
        (
            "UPDATE abide_executions SET place_at = place_at + 60000000 WHERE id = 'sleeps'",
            "execution \"sleeps\": it stands where it does not belong",
        ),
        (
            "UPDATE abide_executions SET parent = key WHERE id = 'child'",
            "execution \"child\": the state of execution \"child\" is damaged: its checksum is wrong",
        ),
        (
            "UPDATE abide_executions SET parent_run = 2 WHERE id = 'child'",
            "execution \"child\": it belongs to another run of its parent",
        ),
        (
            "UPDATE abide_executions SET parent_run = NULL WHERE id = 'child'",
            "execution \"child\": it belongs to another run of its parent",
        ),
        (
            "UPDATE abide_executions SET parent_run = -1 WHERE id = 'child'",
            "execution \"child\": it belongs to another run of its parent",
        ),
        (
            "UPDATE abide_executions SET parent_run = 1 WHERE id = 'ready'",
            "execution \"ready\": it belongs to another run of its parent",
        ),
    ] {
        let (fixture, problems) = standing(|raw| raw.execute_batch(damage));
        assert_eq!(problems.first().map(String::as_str), Some(expected), "{damage}: {problems:?}");
        let store = fixture.open();
        let repairs = block_on(store.repair()).expect("it is repaired");
        assert_eq!((repairs.rebuilt.len(), repairs.left.len()), (1, 0), "{damage}: {repairs:?}");
        let found = store.verify().expect("it is looked at");
        assert!(found.is_sound(), "{damage}: {:?}", found.problems);
        let parent: String = fixture.raw().query_row(PARENT, [], |row| row.get(0)).expect("it has one");
        assert_eq!(parent, "ready", "{damage}");
    }
}

/// An early caretaker does no harm; where a holder was lost, the next claim sets the time again.
#[test]
fn a_caretaker_may_come_too_early_to_what_is_ready() {
    let cared = |id: &str| {
        standing(|raw| raw.execute("UPDATE abide_executions SET care_at = 3 WHERE id = ?1", [id]).map(drop)).1
    };
    assert_eq!(cared("ready"), Vec::<String>::new());
    assert_eq!(cared("waits"), ["execution \"waits\": a caretaker would look at it at a wrong time"]);
}

/// While its holder lived, a caretaker has put off its look behind the deadline. Then the holder
/// died.
#[test]
fn a_caretaker_may_come_late_to_what_has_lost_its_holder() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let deadline_at = Some(fixture.clock.now().after(Duration::from_secs(60)));
    let late = message("start", "late", Body::Start(Start { deadline_at, ..flow() }.into()));
    submit(&store, vec![late]).expect("it is taken");
    let put_off = "UPDATE abide_executions SET care_at = care_at + 1000000";
    fixture.raw().execute_batch(put_off).expect("it can be done");
    assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new());
}

/// A program that is too old for an execution puts it off like this.
#[test]
fn what_was_put_off_for_a_while_is_sound() {
    const PUT_OFF: &str = "
UPDATE abide_executions
SET place = (queue >> 16) * 4 + 2, rank = 0, place_at = ?1
WHERE id = 'waits'";
    let put_off = |seconds: i64| {
        let until = Fixture::new().clock.now().as_micros() + seconds * 1_000_000;
        standing(|raw| raw.execute(PUT_OFF, [until]).map(drop)).1
    };
    assert_eq!(put_off(4), Vec::<String>::new());
    assert_eq!(put_off(60), ["execution \"waits\": it stands where it does not belong"]);
}
