//! A repair that breaks off between two transactions loses nothing, and the next one finishes it.

use std::sync::Arc;
use std::task::{Context, Waker};

use abide_sqlite::SqliteStore;
use abide_sqlite::stepped::{Fate, Stepped};
use abide_store::conformance::block_on;

use crate::fixture::Fixture;
use crate::holders::stepped;
use crate::pages::{change_in, tagged};
use crate::repairs::{differences, dump, problems, world};

/// Begins a repair in a process that dies with its transaction number `count`. Returns whether the
/// repair was over before.
fn dies_after(fixture: &Fixture, count: usize) -> bool {
    let store = stepped(fixture);
    let mut repair = Box::pin(store.repair());
    let mut is_over = || repair.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    for _ in 0..count {
        if is_over() {
            return true;
        }
        assert_eq!(store.step(Fate::Committed), Stepped::Done);
    }
    let was_over = is_over();
    store.step(Fate::Killed);
    drop(repair);
    store.crash();
    was_over
}

/// Interrupts the repair of the same damage after each of its transactions. `check` examines the
/// result of the next repair. Returns the number of transactions.
fn check_each(damaged: impl Fn() -> Fixture, check: impl Fn(&Fixture, &Arc<SqliteStore>)) -> usize {
    for count in 0.. {
        let fixture = damaged();
        let was_over = dies_after(&fixture, count);
        let store = fixture.open();
        let repairs = block_on(store.repair()).expect("it is repaired");
        assert_eq!(repairs.left, Vec::<String>::new(), "after {count} transactions");
        assert_eq!(problems(&store), Vec::<String>::new(), "after {count} transactions");
        check(&fixture, &store);
        let again = block_on(store.repair()).expect("it is looked at");
        assert_eq!(again.rebuilt, Vec::<String>::new(), "after {count} transactions");
        if was_over {
            return count;
        }
    }
    unreachable!("it ends")
}

#[test]
fn p2_an_interrupted_repair_is_finished_by_the_next_one() {
    let damage =
        "UPDATE abide_executions SET status = 9, head = head - 1, queue = 'x' WHERE id <> 'elsewhere';
                  UPDATE abide_executions SET care_at = 'x' WHERE id = 'waiting';
                  DELETE FROM abide_runs WHERE run = 1;
                  UPDATE abide_tags SET value = 'c8'";
    let fixture = Fixture::new();
    world(&fixture).close();
    let whole = dump(&fixture);
    let damaged = || {
        let copy = Fixture::new();
        std::fs::copy(fixture.path(), copy.path()).expect("it can be copied");
        copy.raw().execute_batch(damage).expect("the damage can be done");
        copy
    };
    let check = |copy: &Fixture, _: &Arc<SqliteStore>| {
        let left = differences(&whole, &dump(copy));
        assert!(left.is_empty(), "{left:?}");
    };
    let count = check_each(damaged, check);
    assert!(count > 3, "{count} transactions");
}

/// All tags are deleted before they are restored.
#[test]
fn p2_tags_that_an_interrupted_repair_has_deleted_are_put_back() {
    let damaged = || {
        let (fixture, _) = tagged();
        change_in(&fixture, "abide_tags", (b"value5", b"zalue5")).close();
        fixture
    };
    let check = |fixture: &Fixture, _: &Arc<SqliteStore>| {
        let count = "SELECT COUNT(*) FROM abide_tags WHERE value = 'value' || (execution - 1)";
        let found: i64 = fixture.raw().query_row(count, [], |row| row.get(0)).expect("they are counted");
        assert_eq!(found, 10);
    };
    let count = check_each(damaged, check);
    assert!(count > 3, "{count} transactions");
}
