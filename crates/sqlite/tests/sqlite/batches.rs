//! Operations that share a transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide_core::{Body, Payload};
use abide_sqlite::stepped::{Fate, Stepped};
use abide_sqlite::{Options, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{CommitOutcome, Error, Store, Submit, Trouble, View};

use crate::fixture::{Fixture, complete, flow, look, message, signal, start, step, submit};

/// Blocks the writer for as long as the guard lives, so that operations queue up.
fn blocked(fixture: &Fixture) -> rusqlite::Connection {
    let other = fixture.raw();
    other.execute_batch("BEGIN IMMEDIATE").expect("nobody else writes");
    other
}

fn queue(
    store: &Arc<SqliteStore>,
    messages: Vec<abide_core::Message>,
) -> abide_store::Answer<abide_store::Submissions> {
    store.submit(Submit { messages, born_to: None, alone: false, stretch: None })
}

#[test]
fn a_refusal_in_a_batch_leaves_no_trace_and_costs_the_others_nothing() {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("taken")]).unwrap();
    let other = blocked(&fixture);
    let conflict = || message("start", "taken", Body::Start(flow().with_input(Payload::from("9")).into()));
    let before = queue(&store, vec![start("a"), signal("s1", "a")]);
    let refused = queue(&store, vec![start("half"), signal("s2", "half"), conflict()]);
    let after = queue(&store, vec![start("b"), signal("s3", "b")]);
    drop(other);
    block_on(before).unwrap();
    assert!(matches!(block_on(refused), Err(Error::Refused(_))));
    block_on(after).unwrap();
    let ids: Vec<_> = ["a", "b"].iter().map(|id| look(&store, id).inbox.messages.len()).collect();
    assert_eq!(ids, [1, 1]);
    assert!(
        matches!(submit(&store, vec![signal("s4", "half")]), Err(Error::Refused(_))),
        "nothing is left of it"
    );
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_failed_operation_in_a_batch_leaves_no_trace_and_costs_the_others_nothing() {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("x")]).unwrap();
    // A database error in the middle of an operation: the execution is inserted, its tag is not.
    fixture
        .raw()
        .execute_batch(
            "CREATE TRIGGER broken BEFORE INSERT ON abide_tags BEGIN SELECT RAISE(ABORT, 'broken on purpose'); END",
        )
        .unwrap();
    let other = blocked(&fixture);
    let tagged = abide_core::Start {
        tags: vec![abide_core::Tag { key: crate::fixture::name("k"), value: crate::fixture::name("v") }],
        ..flow()
    };
    let before = queue(&store, vec![start("a")]);
    let fails = queue(&store, vec![message("start", "tagged", Body::Start(tagged.into()))]);
    let after = queue(&store, vec![start("b")]);
    drop(other);
    block_on(before).unwrap();
    let error = block_on(fails).unwrap_err();
    assert!(error.to_string().contains("broken on purpose"), "{error}");
    block_on(after).unwrap();
    for id in ["a", "b"] {
        assert_eq!(look(&store, id).journal.len(), 1);
    }
    assert!(matches!(submit(&store, vec![signal("s", "tagged")]), Err(Error::Refused(_))));
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn nothing_is_answered_before_it_is_committed() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    let other = blocked(&fixture);
    let draft = seat.draft(&mut held, vec![step(1)]);
    let mut answer = store.commit(draft);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(answer.as_mut().poll(&mut context).is_pending());
    assert_eq!(look(&store, "a").journal.len(), 1, "readers do not wait for the writer");
    drop(other);
    assert!(matches!(block_on(answer), Ok(CommitOutcome::Committed(_))));
    assert_eq!(look(&store, "a").journal.len(), 2);
}

#[test]
fn a_writer_that_is_kept_waiting_says_busy_and_goes_on_afterwards() {
    let fixture = Fixture::new();
    let store = fixture.open_with(Options { busy_ms_max: 100, ..Options::default() });
    let other = blocked(&fixture);
    for _ in 0..2 {
        assert!(matches!(submit(&store, vec![start("a")]), Err(Error::Busy { what: "submit" })));
    }
    drop(other);
    submit(&store, vec![start("a")]).unwrap();
    assert_eq!(look(&store, "a").journal.len(), 1);
}

#[test]
fn another_process_that_keeps_the_writer_waiting_is_told() {
    let fixture = Fixture::new();
    let millis = Arc::new(AtomicU64::new(0));
    let told = millis.clone();
    let now = move || Duration::from_millis(told.load(Ordering::Relaxed));
    let store =
        SqliteStore::stepped(&fixture.path(), fixture.clock.clone(), Options::default(), now).unwrap();
    let other = blocked(&fixture);
    let started = queue(&store, vec![start("a")]);
    for (at, is_told) in [(0, false), (900, false), (1_000, true)] {
        millis.store(at, Ordering::Relaxed);
        assert_eq!(store.step(Fate::Committed), Stepped::Busy);
        let trouble = block_on(store.trouble()).unwrap();
        assert_eq!(matches!(trouble, Some(Trouble::Failing { .. })), is_told, "{trouble:?} after {at} ms");
    }
    drop(other);
    assert_eq!(store.step(Fate::Committed), Stepped::Done);
    block_on(started).unwrap();
    millis.store(60_000, Ordering::Relaxed);
    assert_eq!(block_on(store.trouble()).unwrap(), None);
}

#[test]
fn commits_of_one_execution_are_applied_in_the_order_of_their_calls() {
    let fixture = Fixture::new();
    let store = fixture.open_with(Options { queue_count_max: 8, batch_count_max: 3, ..Options::default() });
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    let other = blocked(&fixture);
    let commits: Vec<_> = (1..=7)
        .map(|nth| {
            let mut draft = seat.draft(&mut held, vec![step(nth)]);
            draft.alone = nth % 2 == 0;
            store.commit(draft)
        })
        .collect();
    drop(other);
    for commit in commits {
        assert!(matches!(block_on(commit), Ok(CommitOutcome::Committed(_))));
    }
    seat.record(&mut held, vec![complete()]);
    assert_eq!(look(&store, "a").journal.len(), 9);
}

#[test]
fn a_full_queue_makes_its_callers_wait() {
    let fixture = Fixture::new();
    let store = fixture.open_with(Options { queue_count_max: 2, ..Options::default() });
    let other = blocked(&fixture);
    let answers: Vec<_> = (0..20).map(|nth| queue(&store, vec![start(&nth.to_string())])).collect();
    drop(other);
    for answer in answers {
        block_on(answer).unwrap();
    }
    assert_eq!(store.verify().unwrap().execution_count, 20);
}

/// SQLite then writes the row in place.
#[test]
fn a_row_keeps_its_size_from_its_birth_to_its_end() {
    const SIZE: &str = "SELECT SUM(payload) FROM dbstat WHERE name = 'abide_executions'";
    for step_count in [0, 1, 50] {
        let fixture = Fixture::new();
        let store = fixture.open();
        let seat = fixture.seat(&store);
        let size = || fixture.raw().query_row(SIZE, [], |row| row.get::<_, i64>(0)).expect("it is told");
        let mut held = seat.born("a");
        let born = size();
        for nth in 1..=step_count {
            seat.record(&mut held, vec![step(nth)]);
            assert_eq!(size(), born, "after step {nth} of {step_count}");
        }
        seat.record(&mut held, vec![step(step_count + 1), complete()]);
        assert_eq!(size(), born, "after {step_count} steps and the end");
        assert!(store.verify().expect("it is looked at").is_sound());
    }
}
