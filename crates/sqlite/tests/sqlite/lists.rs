//! Lists that find few executions among many.

use abide_core::{Command, Failure, FailureKind, Namespace, Status};
use abide_sqlite::Options;
use abide_store::conformance::block_on;
use abide_store::{Error, List, ListOrder, Read, Target, View};

use crate::fixture::{Fixture, Seat, complete, start, submit};

fn with_status(seat: &Seat, status: Status, order: ListOrder) -> Vec<String> {
    let list = List { statuses: vec![status], order, ..List::of(Namespace::default(), 10) };
    let page = block_on(seat.store.list(list)).expect("it is listed");
    page.items.iter().map(|item| item.address.id.to_string()).collect()
}

#[test]
fn what_failed_or_is_blocked_is_found_without_going_through_everything() {
    let fixture = Fixture::new();
    let seat = fixture.seat(&fixture.open_with(Options { list_scan_count_max: 5, ..Options::default() }));
    for nth in 0..20 {
        let mut held = seat.born(&format!("completed-{nth}"));
        seat.record(&mut held, vec![complete()]);
        if nth % 8 == 7 {
            let mut held = seat.born(&format!("failed-{nth}"));
            seat.record(&mut held, vec![Command::Fail(Failure::new(FailureKind::Fatal, "no"))]);
            let mut held = seat.born(&format!("blocked-{nth}"));
            let reason = abide_core::Block::Limit { reason: "too much".to_owned() };
            seat.record(&mut held, vec![Command::block(reason)]);
        }
    }
    assert_eq!(with_status(&seat, Status::Failed, ListOrder::OldestFirst), ["failed-7", "failed-15"]);
    assert_eq!(with_status(&seat, Status::Blocked, ListOrder::NewestFirst), ["blocked-15", "blocked-7"]);
}

/// An execution with an invalid id is listed under a name that can be used to ask for it.
#[test]
fn what_has_no_id_has_a_name() {
    let rows = [
        ("UPDATE abide_executions SET id = CAST(x'fffe' AS TEXT) WHERE id = 'bad'", "invalid utf-8"),
        (
            "UPDATE abide_executions SET id = x'00ff' WHERE id = 'bad'",
            "its id is a value of another type, Blob",
        ),
        ("UPDATE abide_executions SET id = char(1) WHERE id = 'bad'", "its checksum is wrong"),
        (
            "UPDATE abide_executions SET namespace = 'x' WHERE id = 'bad'",
            "its namespace is a value of another type, Text",
        ),
    ];
    for (damage, told) in rows {
        let fixture = Fixture::new();
        let store = fixture.open();
        submit(&store, vec![start("q-1"), start("bad")]).expect("they are taken");
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        let listing = block_on(store.list(List::of(Namespace::default(), 10))).expect("it is listed");
        let names: Vec<&str> = listing.items.iter().map(|item| item.address.id.as_str()).collect();
        assert_eq!(names, ["q-1", "abide:damaged/2"], "{damage}");
        assert_eq!(listing.items[1].summary.status, Status::Damaged, "{damage}");
        let target = Target::Address(listing.items[1].address.clone());
        let read = Read { target, run: None, from: 1, limit: 1, with_inbox: false };
        match block_on(store.read(read)) {
            Err(Error::Corrupt { what }) => assert!(what.contains(told), "{damage}: {what}"),
            other => panic!("{damage}: {other:?}"),
        }
    }
}
