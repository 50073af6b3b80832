//! The data that a repair trusts, and the data that it does not.

use std::time::Duration;

use abide_core::Status;
use abide_store::conformance::block_on;
use abide_store::{Changes, Commit, Store};

use crate::aside::with_status;
use crate::fixture::{Fixture, Held, complete, damaged, look, step};
use crate::repairs::problems;

/// The state is correctly sealed, but it is an earlier one: recorded steps would happen again.
#[test]
fn p1_a_state_that_its_journal_does_not_add_up_to_is_not_believed() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    let before = seat.draft(&mut held.clone(), vec![]).changes.state.clone();
    let commit = seat.draft(&mut held, vec![step(1)]);
    let changes = Changes { state: before, ..(*commit.changes).clone() };
    block_on(store.commit(Commit { changes: changes.into(), ..commit })).expect("it is committed");
    seat.retire();
    let told = r#"execution "a": journal row 2 has the entries 2 to 2, not 1"#;
    assert_eq!(problems(&store), [told]);
    let repairs = block_on(store.repair()).expect("it is repaired");
    assert_eq!(repairs.rebuilt, [r#"execution "a": its state was rebuilt"#]);
    assert_eq!(problems(&store), Vec::<String>::new());
    assert_eq!(look(&store, "a").execution, held.execution);
    let mut again = Held::from(fixture.seat(&store).claim(true).leased.remove(0));
    fixture.seat(&store).record(&mut again, vec![step(2), complete()]);
}

/// The time until it is pruned starts with its end, which the store committed after the last
/// entry's own time.
#[test]
fn when_something_ended_is_kept() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    let last = seat.draft(&mut held, vec![complete()]);
    fixture.clock.advance(Duration::from_secs(5));
    block_on(store.commit(last)).expect("it is committed");
    seat.retire();
    let place_at = || -> i64 {
        let text = "SELECT place_at FROM abide_executions";
        fixture.raw().query_row(text, [], |row| row.get(0)).expect("it is there")
    };
    let before = place_at();
    for (damage, is_kept) in [("status = 9", true), ("place = 'x'", false)] {
        let damage = ["UPDATE abide_executions SET ", damage].concat();
        let store = damaged(&fixture, &store, &damage);
        block_on(store.repair()).expect("it is repaired");
        assert_eq!(problems(&store), Vec::<String>::new(), "{damage}");
        assert_eq!(with_status(&store, Status::Completed), ["a"], "{damage}");
        assert_eq!(place_at() == before, is_kept, "{damage}");
    }
}
