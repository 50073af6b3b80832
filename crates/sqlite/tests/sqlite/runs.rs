//! Several runs of one execution in a file.

use abide_core::{Body, Command, Failure, FailureKind};
use abide_store::conformance::block_on;
use abide_store::{Clock, Prune, Store};

use crate::fixture::{Fixture, Seat, complete, message, step, submit};

fn fail() -> Command {
    Command::Fail(Failure::new(FailureKind::Fatal, "no"))
}

/// Records three runs: the first continued after 150 entries, the second failed, the third
/// completed. Returns the number of entries.
fn three_runs(fixture: &Fixture) -> u64 {
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    (1..=148).for_each(|nth| seat.record(&mut held, vec![step(nth)]));
    seat.continue_as_new(&mut held, Vec::new());
    seat.record(&mut held, vec![step(1), fail()]);
    let retry = message("again", "a", Body::Retry);
    submit(&store, vec![retry]).expect("what failed can be retried");
    // The writer's caches are emptied between the runs.
    store.close();
    let store = fixture.open();
    let mut seat = fixture.seat(&store);
    let mut held = seat.claim(true).leased.remove(0).into();
    (1..=130).for_each(|nth| seat.record(&mut held, vec![step(nth)]));
    seat.record(&mut held, vec![complete()]);
    150 + 3 + 133
}

#[test]
fn every_run_is_looked_at_and_pruned() {
    let fixture = Fixture::new();
    let entry_count = three_runs(&fixture);
    let store = fixture.open();
    let found = store.verify().expect("it is looked at");
    assert_eq!((found.problems, found.entry_count), (Vec::new(), entry_count));
    fixture.clock.advance(std::time::Duration::from_secs(1));
    let prune = Prune { finished_before: fixture.clock.now(), limit: 10 };
    assert_eq!(block_on(store.prune(prune)).expect("it is pruned"), 1);
    let found = store.verify().expect("it is looked at");
    assert_eq!((found.problems, found.execution_count), (Vec::new(), 0));
    let left = "SELECT (SELECT COUNT(*) FROM abide_journal) + (SELECT COUNT(*) FROM abide_inbox)";
    let left: i64 = fixture.raw().query_row(left, [], |row| row.get(0)).expect("it can be counted");
    assert_eq!(left, 0);
}

fn problems(damage: &str) -> String {
    let fixture = Fixture::new();
    three_runs(&fixture);
    abide_sqlite::flaw::unbind(&fixture.raw());
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    fixture.open().verify().expect("it is looked at").problems.join("; ")
}

#[test]
fn damage_to_an_earlier_run_is_found_and_named() {
    let rows = [
        ("UPDATE abide_journal SET seq = 9 WHERE row = 10", "execution \"a\": journal row 10 is damaged"),
        (
            "UPDATE abide_journal SET skip = NULL WHERE row = 128",
            "execution \"a\": journal row 128 is damaged",
        ),
        (
            "UPDATE abide_journal SET happened = NULL WHERE row = 1",
            "execution \"a\": journal row 1 is damaged",
        ),
        (
            "UPDATE abide_journal SET happened = 2 WHERE row = 20",
            "execution \"a\": journal row 20 is damaged",
        ),
        (
            "UPDATE abide_runs SET first = 2 WHERE run = 1",
            "execution \"a\": run 1 is not where it is said to be",
        ),
        ("DELETE FROM abide_runs WHERE run = 2", "execution \"a\": run 2 is not where it is said to be"),
        (
            "INSERT INTO abide_runs VALUES (1, 3, 2, 3, 1, 1)",
            "execution \"a\": it has other runs than it says",
        ),
        (
            "INSERT INTO abide_runs VALUES (7, 3, 2, 3, 1, 1)",
            "an earlier run of execution 7 belongs to nothing",
        ),
        ("DELETE FROM abide_journal WHERE row = 152", "execution \"a\": journal row 152 is missing"),
        (
            "UPDATE abide_journal SET previous = NULL WHERE row = 151",
            "execution \"a\": journal row 151 is damaged",
        ),
        // A reader that followed this link would never end.
        (
            "UPDATE abide_journal SET previous = 10 WHERE row = 10",
            "execution \"a\": journal row 10 follows row 10, which is not older",
        ),
    ];
    for (damage, expected) in rows {
        assert_eq!(problems(damage), expected, "{damage}");
    }
}

/// An endless chain must not fill the writer's caches: of an execution, they keep the current run.
#[test]
fn long_chain_of_short_runs_is_sound() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat: Seat = fixture.seat(&store);
    let mut held = seat.born("a");
    for _ in 0..300 {
        seat.continue_as_new(&mut held, vec![step(1)]);
    }
    (1..=140).for_each(|nth| seat.record(&mut held, vec![step(nth)]));
    let found = store.verify().expect("it is looked at");
    assert_eq!((found.problems, found.entry_count), (Vec::new(), 300 * 3 + 141));
}
