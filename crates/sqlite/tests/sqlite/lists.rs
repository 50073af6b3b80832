//! Lists that find few among many.

use abide_core::{Command, Failure, FailureKind, Namespace, Status};
use abide_sqlite::Options;
use abide_store::conformance::block_on;
use abide_store::{List, ListOrder, View};

use crate::fixture::{Fixture, Seat, complete};

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
