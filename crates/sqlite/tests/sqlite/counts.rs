//! A count that is negative, or larger than possible, is damage to its row.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{By, Status};
use abide_sqlite::{Discarded, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{Aside, Error, Store, Unreadable};

use crate::aside::{emit, park, sent_once, six, with_status};
use crate::fixture::{Fixture, Held, address, complete, damaged, signal, step, submit};

/// Damage to the epoch of execution `bad`, and the reported problem.
const EPOCHS: [(&str, &str); 4] = [
    ("UPDATE abide_executions SET epoch = -126 WHERE id = 'bad'", "there is no epoch -126"),
    (
        "UPDATE abide_executions SET epoch = 9223372036854775807 WHERE id = 'bad'",
        "there is no epoch 9223372036854775807",
    ),
    ("UPDATE abide_executions SET epoch = 'x' WHERE id = 'bad'", "its epoch is a value of another type"),
    ("UPDATE abide_executions SET epoch = NULL WHERE id = 'bad'", "its epoch is a value of another type"),
];

fn problems(store: &Arc<SqliteStore>) -> String {
    store.verify().expect("it is looked at").problems.join("; ")
}

fn check_told(store: &Arc<SqliteStore>, told: &str) {
    let found = problems(store);
    assert!(found.contains(&format!("execution \"bad\": {told}")), "{told}: {found:?}");
}

fn repair(store: &Arc<SqliteStore>) {
    let repairs = block_on(store.repair()).expect("it is repaired");
    assert!(repairs.rebuilt.len() == 1 && repairs.left.is_empty(), "{repairs:?}");
    assert_eq!(problems(store), "");
}

/// The sender is not delayed, and its message is received after a repair.
#[test]
fn who_sends_to_an_execution_with_a_damaged_epoch_is_not_held_up() {
    for (damage, told) in EPOCHS {
        for sent in sent_once() {
            let fixture = Fixture::new();
            let store = fixture.open();
            let mut seat = fixture.seat(&store);
            let (mut bad, mut other) = (seat.born("bad"), seat.born("other"));
            park(&seat, seat.draft(&mut bad, vec![step(1)]));
            fixture.raw().execute_batch(damage).expect("the damage can be done");
            check_told(&store, told);
            match submit(&store, vec![signal("s", "bad")]) {
                Err(Error::Corrupt { what }) => assert!(what.contains(told), "{what}"),
                other => panic!("expected damage, found {other:?}"),
            }
            assert_eq!(emit(&seat, &mut other, sent.clone()), 0, "{damage}: {sent:?}");
            assert!(seat.claim(true).leased.is_empty(), "{damage}: {sent:?}");
            assert_eq!(with_status(&store, Status::Damaged), ["bad"], "{damage}: {sent:?}");
            repair(&store);
            let leased = seat.claim(true).leased.remove(0);
            assert!(leased.lease.epoch > bad.lease.epoch, "who had it is shut out");
            assert_eq!(leased.inbox.messages[0].body, sent.body);
            seat.record(&mut Held::from(leased), vec![complete()]);
            assert_eq!(problems(&store), "");
        }
    }
}

#[test]
fn what_is_ready_with_a_damaged_epoch_is_set_aside_and_repaired() {
    for (damage, told) in EPOCHS {
        let (fixture, store) = six();
        let store = damaged(&fixture, &store, damage);
        check_told(&store, told);
        let mut seat = fixture.seat(&store);
        assert_eq!(seat.claim(true).leased.len(), 5, "{damage}");
        assert_eq!(with_status(&store, Status::Damaged), ["bad"], "{damage}");
        repair(&store);
        let leased = seat.claim(true).leased.remove(0);
        seat.record(&mut Held::from(leased), vec![complete()]);
        assert_eq!(problems(&store), "");
    }
}

/// The holder gets the error. When the epoch no longer identifies the holder, any former holder may
/// set the execution aside.
#[test]
fn the_holder_of_what_has_a_damaged_epoch_sets_it_aside() {
    let places = [
        ("UPDATE abide_executions SET place_at = -1 WHERE id = 'bad'", "there is no place"),
        ("UPDATE abide_executions SET rank = -1 WHERE id = 'bad'", "there is no place"),
        ("UPDATE abide_executions SET place = -1 WHERE id = 'bad'", "there is no place -1"),
    ];
    for (damage, told) in EPOCHS.into_iter().chain(places) {
        let fixture = Fixture::new();
        let store = fixture.open();
        let seat = fixture.seat(&store);
        let mut bad = seat.born("bad");
        seat.record(&mut bad, vec![step(1)]);
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        check_told(&store, told);
        let commit = seat.draft(&mut bad.clone(), vec![step(2)]);
        match block_on(store.commit(commit)) {
            Err(Error::Corrupt { what }) => assert!(what.contains(told), "{what}"),
            other => panic!("{damage}: expected damage, found {other:?}"),
        }
        let aside =
            Aside { key: bad.key, lease: bad.lease, unreadable: Unreadable::Damaged(told.to_owned()) };
        block_on(store.set_aside(aside)).expect("it is set aside");
        assert_eq!(with_status(&store, Status::Damaged), ["bad"], "{damage}");
        repair(&store);
    }
}

#[test]
fn what_is_discarded_has_a_sound_epoch() {
    for (damage, _) in EPOCHS {
        let (fixture, store) = six();
        let store = damaged(&fixture, &store, damage);
        fixture
            .raw()
            .execute_batch("UPDATE abide_journal SET body = x'01' WHERE row = 1")
            .expect("it can be");
        fixture.clock.advance(Duration::from_secs(1));
        let discarded = block_on(store.discard(&address("bad"), By::client(), "enough".to_owned()));
        assert_eq!(discarded.expect("it is answered"), Discarded::Ended, "{damage}");
        assert_eq!(problems(&store), "", "{damage}");
    }
}
