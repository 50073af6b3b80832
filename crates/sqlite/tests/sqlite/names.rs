//! Damaged names and routes: their executions are set aside, and nothing replaces them.

use std::sync::Arc;

use abide_core::{Body, Namespace, Start, Status};
use abide_sqlite::SqliteStore;
use abide_store::conformance::block_on;
use abide_store::{Error, List, Store, View};

use crate::fixture::{
    Fixture, Held, Seat, complete, flow, look, message, name, signal, start, step, submit, worker,
};

/// Damage to route 1, which `bad` and `done` use.
const ROUTE_DAMAGES: [&str; 4] = [
    "UPDATE abide_routes SET route = CAST(x'ff' || substr(route, 2) AS BLOB) WHERE id = 1",
    "UPDATE abide_routes SET route = CAST(replace(CAST(route AS TEXT), 'flow', 'flov') AS BLOB) WHERE id = 1",
    "UPDATE abide_routes SET checksum = checksum + 1 WHERE id = 1",
    "UPDATE abide_routes SET id = 257 WHERE id = 1",
];

/// Damage to the name of the only namespace.
const NAME_DAMAGES: [&str; 4] = [
    "UPDATE abide_names SET name = 'defbult'",
    "UPDATE abide_names SET name = CAST(x'64ff6661756c74' AS TEXT)",
    "UPDATE abide_names SET checksum = checksum + 1",
    "UPDATE abide_names SET id = 257",
];

/// Returns a store in which `bad` is ready and `done` has completed in route 1, and `q-1` is ready
/// in route 2, after this damage.
fn damaged(damage: &str) -> (Fixture, Arc<SqliteStore>) {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut done = seat.born("done");
    seat.record(&mut done, vec![step(1), complete()]);
    seat.retire();
    submit(&store, vec![start("bad"), other_lane("q-1")]).expect("they are taken");
    store.close();
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    let store = fixture.open();
    (fixture, store)
}

fn other_lane(id: &str) -> abide_core::Message {
    message("start", id, Body::Start(Start { lane: name("other"), ..flow() }.into()))
}

/// Registers a worker of both lanes.
fn seat(fixture: &Fixture, store: &Arc<SqliteStore>) -> Seat {
    let mut worker = worker();
    worker.ability.lanes = [name("default"), name("other")].into();
    fixture.seat_of(store, worker)
}

fn claimed(seat: &mut Seat) -> Vec<Held> {
    seat.claim(true).leased.into_iter().map(Held::from).collect()
}

fn ids(held: &[Held]) -> Vec<&str> {
    held.iter().map(|held| held.execution.address().id.as_str()).collect()
}

fn with_status(store: &Arc<SqliteStore>, status: Status) -> Vec<String> {
    let list = List { statuses: vec![status], ..List::of(Namespace::default(), 100) };
    let listing = block_on(store.list(list)).expect("it is listed");
    listing.items.iter().map(|item| item.address.id.to_string()).collect()
}

fn assert_sound(store: &Arc<SqliteStore>, damage: &str) {
    let found = store.verify().expect("it is looked at");
    assert!(found.is_sound(), "{damage}: {:?}", found.problems);
}

#[test]
fn a_damaged_route_sets_aside_what_stands_in_it_and_nobody_else() {
    for damage in ROUTE_DAMAGES {
        let (fixture, store) = damaged(damage);
        let mut seat = seat(&fixture, &store);
        assert_eq!(ids(&claimed(&mut seat)), ["q-1"], "{damage}");
        assert_eq!(with_status(&store, Status::Damaged), ["done", "bad"], "{damage}");
        assert_eq!(look(&store, "bad").summary.status, Status::Damaged, "{damage}");
        assert_eq!(
            look(&store, "done").summary.status,
            Status::Completed,
            "its result can be read: {damage}"
        );
        submit(&store, vec![start("young")]).expect("others of its kind are started");
        assert_eq!(ids(&claimed(&mut seat)), ["young"], "{damage}");
        let problems = store.verify().expect("it is looked at").problems.join("; ");
        assert!(problems.contains("execution \"bad\": its route is damaged"), "{damage}: {problems}");
        let row = if damage.contains("257") { "route 257 is damaged" } else { "route 1 is damaged" };
        assert!(problems.contains(row), "{damage}: {problems}");
    }
}

#[test]
fn a_damaged_route_is_put_back() {
    for damage in ROUTE_DAMAGES {
        // With and without a younger row of the same route.
        for younger in [false, true] {
            let (fixture, store) = damaged(damage);
            let mut seat = seat(&fixture, &store);
            if younger {
                submit(&store, vec![start("young")]).expect("it is started");
            }
            submit(&store, vec![signal("s", "bad")]).expect("it is delivered all the same");
            let repairs = block_on(store.repair()).expect("it is repaired");
            assert!(
                repairs.rebuilt.iter().any(|line| line == "route 1 was put back"),
                "{damage}: {repairs:?}"
            );
            assert!(repairs.left.is_empty(), "{damage}: {repairs:?}");
            assert_sound(&store, damage);
            let held = claimed(&mut seat);
            assert_eq!(held.len(), 2 + usize::from(younger), "{damage}");
            assert!(ids(&held).contains(&"bad"), "{damage}");
            assert_eq!(look(&store, "bad").inbox.messages.len(), 1);
        }
    }
}

#[test]
fn a_route_is_put_back_from_the_first_entry_where_no_state_can_be_read() {
    let damage = format!(
        "{}; UPDATE abide_executions SET state = x'0109ffffffff' WHERE id IN ('bad', 'done')",
        ROUTE_DAMAGES[0]
    );
    let (fixture, store) = damaged(&damage);
    let repairs = block_on(store.repair()).expect("it is repaired");
    assert_eq!(repairs.rebuilt[0], "route 1 was put back", "{repairs:?}");
    assert!(repairs.left.is_empty(), "{repairs:?}");
    assert_sound(&store, &damage);
    assert_eq!(claimed(&mut seat(&fixture, &store)).len(), 2);
}

#[test]
fn a_route_that_nothing_tells_is_left() {
    let damage = format!(
        "{}; UPDATE abide_executions SET state = x'01' WHERE id IN ('bad', 'done'); UPDATE abide_journal SET body = x'01'",
        ROUTE_DAMAGES[0]
    );
    let (_fixture, store) = damaged(&damage);
    let repairs = block_on(store.repair()).expect("it is repaired");
    assert!(
        repairs
            .left
            .contains(&"route 1 is damaged, and nothing that can be read tells what it was".to_owned()),
        "{repairs:?}"
    );
}

#[test]
fn a_namespace_whose_name_is_damaged_is_not_made_anew() {
    for damage in NAME_DAMAGES {
        let (fixture, store) = damaged(damage);
        let told = |found: Result<(), Error>| match found {
            Err(Error::Corrupt { what }) => {
                assert!(
                    what.contains("name of namespace") && what.contains("abide verify"),
                    "{damage}: {what}"
                );
            }
            other => panic!("{damage}: {other:?}"),
        };
        told(block_on(store.register(worker())).map(drop));
        told(submit(&store, vec![start("done")]).map(drop));
        told(submit(&store, vec![signal("s", "bad")]).map(drop));
        told(block_on(store.list(List::of(Namespace::default(), 10))).map(drop));
        let count: i64 = fixture
            .raw()
            .query_row("SELECT COUNT(*) FROM abide_names", [], |row| row.get(0))
            .expect("they are counted");
        assert_eq!(count, 1, "{damage}");
        let problems = store.verify().expect("it is looked at").problems.join("; ");
        let row =
            if damage.contains("257") { "the name of namespace 257" } else { "the name of namespace 1" };
        assert!(problems.contains(&format!("{row} is damaged")), "{damage}: {problems}");
    }
}

#[test]
fn the_name_of_a_namespace_is_put_back() {
    // The name comes from the sessions, or without sessions from the routes of its executions.
    for forget in ["", "; DELETE FROM abide_sessions"] {
        for damage in NAME_DAMAGES {
            let damage = format!("{damage}{forget}");
            let (fixture, store) = damaged(&damage);
            let repairs = block_on(store.repair()).expect("it is repaired");
            assert_eq!(repairs.rebuilt, ["the name \"default\" of namespace 1 was put back"], "{damage}");
            assert!(repairs.left.is_empty(), "{damage}: {repairs:?}");
            assert_sound(&store, &damage);
            assert_eq!(claimed(&mut seat(&fixture, &store)).len(), 2, "{damage}");
        }
    }
}

#[test]
fn a_name_that_nothing_tells_is_left() {
    let damage =
        format!("{}; DELETE FROM abide_sessions; UPDATE abide_routes SET route = x'01'", NAME_DAMAGES[0]);
    let (_fixture, store) = damaged(&damage);
    let repairs = block_on(store.repair()).expect("it is repaired");
    let left = "the name of namespace 1 is damaged, and nothing that can be read tells what it was";
    assert!(repairs.left.contains(&left.to_owned()), "{repairs:?}");
    assert!(block_on(store.register(worker())).is_err());
}

#[test]
fn the_damaged_name_of_an_empty_namespace_is_deleted() {
    let damage = "INSERT INTO abide_names (name, checksum) VALUES ('empty', 1)";
    let (_fixture, store) = damaged(damage);
    let repairs = block_on(store.repair()).expect("it is repaired");
    assert_eq!(repairs.rebuilt, ["the damaged name of namespace 2, in which there is nothing, was deleted"]);
    assert_sound(&store, damage);
}

/// No other namespace gets the number, and a returning worker does not get another one.
#[test]
fn a_lost_name_is_put_back_and_its_number_given_to_nobody() {
    let (fixture, store) = damaged("DELETE FROM abide_names");
    let mut stranger = worker();
    stranger.ability.namespace = Namespace::new("stranger").expect("a name");
    let list = List::of(stranger.ability.namespace.clone(), 100);
    fixture.seat_of(&store, stranger);
    assert!(block_on(store.list(list)).expect("it is listed").items.is_empty());
    match block_on(store.register(worker())) {
        Err(Error::Corrupt { what }) => {
            assert!(what.contains("the name \"default\" of a namespace is lost"), "{what}");
        }
        other => panic!("expected damage, found {other:?}"),
    }
    assert!(!store.verify().expect("it is looked at").is_sound());
    let repairs = block_on(store.repair()).expect("it is repaired");
    assert_eq!(repairs.rebuilt, ["the name \"default\" of namespace 1 was put back"], "{repairs:?}");
    assert_sound(&store, "a lost name");
    let mut seat = seat(&fixture, &store);
    assert_eq!(ids(&claimed(&mut seat)), ["bad", "q-1"]);
}

#[test]
fn a_lost_name_whose_number_is_disputed_is_told() {
    let (_fixture, store) =
        damaged("DELETE FROM abide_names; UPDATE abide_executions SET namespace = 7 WHERE id = 'bad'");
    let repairs = block_on(store.repair()).expect("it is repaired");
    assert!(repairs.rebuilt.is_empty(), "{repairs:?}");
    assert_eq!(repairs.left[0], "the name \"default\" of a namespace is lost, and so is its number");
}
