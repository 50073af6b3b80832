//! What `verify` finds.

use crate::fixture::{Fixture, signal, start, step, submit};

fn problems(damage: &str) -> String {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    (1..200).for_each(|nth| seat.record(&mut held, vec![step(nth)]));
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
            "execution \"a\": entry 150 should be in journal row 150, which is missing; \
             the journal has 200 rows, the executions have 201",
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
            "execution \"a\": the state of execution \"a\" is damaged: its checksum is wrong; \
             the journal has 201 rows, the executions have 1",
        ),
        (
            "UPDATE abide_executions SET status = 6 WHERE key = 2",
            "execution \"b\": its status is not that of its summary",
        ),
        ("UPDATE abide_executions SET place = 4 * 77 + 3 WHERE key = 1", "execution \"a\" is held by session 77, which is not registered"),
        ("UPDATE abide_executions SET place = 0 WHERE key = 2", "execution \"b\": nobody has had it, and nobody would"),
        ("UPDATE abide_executions SET place = 0, rank = 0, since = 0 WHERE key = 1", "execution \"a\": it stands where it does not belong"),
        ("UPDATE abide_executions SET place = 4 WHERE key = 2", "execution \"b\": it stands where it does not belong"),
        ("UPDATE abide_executions SET rank = 3 WHERE key = 2", "execution \"b\": it stands where it does not belong"),
        ("DELETE FROM abide_inbox; UPDATE abide_executions SET care_at = 3 WHERE key = 2", "execution \"b\": a caretaker would look at it at a wrong time"),
        ("UPDATE abide_executions SET parent = 1 WHERE key = 2", "execution \"b\": the state of execution \"b\" is damaged: its checksum is wrong; \
             the journal has 201 rows, the executions have 200"),
        ("UPDATE abide_executions SET place = 12 WHERE key = 2", "execution \"b\": there is no place 12; the journal has 201 rows, the executions have 200"),
        ("UPDATE abide_executions SET place = 8 WHERE key = 2", "execution \"b\": it was set aside because it could not be read, and can be read now"),
        ("UPDATE abide_names SET name = 'defbult'", "the name \"defbult\" is damaged; execution \"a\": it stands in the queue of something else; \
             execution \"b\": it stands in the queue of something else"),
        ("DROP INDEX abide_executions_trouble", "the tables are not those that this program makes"),
        ("DELETE FROM abide_sessions", "execution \"a\" is held by session 1, which is not registered"),
        (
            "INSERT INTO abide_inbox VALUES (9, 's', 1, NULL); INSERT INTO abide_tags VALUES (1, 'k', 'v', 8)",
            "there are 1 tags, the executions have 0; the inbox of execution 9 belongs to nothing; the tags of execution 8 belongs to nothing",
        ),
    ];
    for (damage, expected) in rows {
        assert_eq!(problems(damage), expected, "{damage}");
    }
}
