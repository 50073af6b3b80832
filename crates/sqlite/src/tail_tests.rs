//! Tests of tails that change under their writer.

use std::sync::Arc;

use abide_core::{Command, Op, OpKind, Outcome, Payload, Status, StepRecord};
use abide_store::conformance::{TestClock, block_on};
use abide_store::{Beat, Clock as _, CommitOutcome, Error, Hold, Leased, Record, Store as _};

use crate::fixture::{claim_of, commit_of, inside, name, pair, register, start};
use crate::sheet::Base;
use crate::{SqliteStore, sql};

/// Records a step in a commit of its own.
fn record(store: &SqliteStore, leased: &mut Leased, nth: u32) -> abide_store::Result<CommitOutcome> {
    record_with(store, leased, (nth, Status::Running))
}

/// Records a step, after which the execution has this status.
fn record_with(
    store: &SqliteStore,
    leased: &mut Leased,
    (nth, status): (u32, Status),
) -> abide_store::Result<CommitOutcome> {
    let op = Op { kind: OpKind::Step, name: name("step"), key: None, nth };
    let outcome = Outcome::Success(Payload::from("3"));
    let command = Command::RecordStep(StepRecord { op, outcome, attempt: 1, input: None });
    let now = TestClock::new().now();
    let decision = leased.execution.decide(command, now).expect("it may be decided");
    let (entry, _) = decision.record(&mut leased.execution, now);
    let mut commit = commit_of(leased, Hold::Keep, Vec::new());
    let changes = Arc::make_mut(&mut commit.changes);
    changes.records = entry.iter().map(Record::of).collect();
    changes.summary.status = status;
    leased.version = leased.version.next();
    block_on(store.commit(commit))
}

/// The row of an execution: its head, its version and its sheet.
fn row(store: &SqliteStore) -> (i64, i64, Vec<u8>) {
    const ROW: &str = "SELECT head, version, state FROM abide_executions WHERE id = 'a'";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    inside(store, move |batch| Ok(batch.connection.query_row(ROW, [], read)?)).expect("it is read")
}

/// What the writer remembers says that there was one more. With the state of the others, the row
/// would be that of an execution in which the last step never happened.
#[test]
fn p1_a_tail_that_has_lost_its_last_row_is_not_taken_in() {
    for lost in ["", "DELETE FROM abide_journal WHERE row = (SELECT MAX(row) FROM abide_journal)"] {
        let (_folder, ours, _theirs) = pair();
        let session = register(&ours, "default");
        start(&ours, "a");
        let mut leased = block_on(ours.claim(claim_of(session))).expect("it claims").leased.remove(0);
        (1..=5).for_each(|nth| _ = record(&ours, &mut leased, nth).expect("it is written"));
        let before = row(&ours);
        inside(&ours, move |batch| Ok(batch.connection.execute_batch(lost)?)).expect("it is lost");
        block_on(ours.heartbeat(Beat::of(session))).expect("it is answered");
        assert_eq!(row(&ours) == before, !lost.is_empty(), "{lost:?}");
        let next = record(&ours, &mut leased, 6);
        match lost {
            "" => assert!(matches!(next, Ok(CommitOutcome::Committed(_))), "{next:?}"),
            _ => {
                assert!(
                    matches!(next, Ok(CommitOutcome::Fenced(_)) | Err(Error::Corrupt { .. })),
                    "{next:?}"
                );
            }
        }
    }
}

/// Whether its row says that there may be a tail.
fn is_open(store: &SqliteStore, leased: &Leased) -> bool {
    let key = leased.key.0;
    let read = |row: &rusqlite::Row<'_>| Ok(Base::read(row)?.sheet()?.cold.has_tail);
    inside(store, move |batch| Ok(batch.connection.query_row(sql::EXECUTION_LEASED, [key as i64], read)?))
        .expect("it is read")
}

/// A reader of such a row goes through the rows behind its head. What ends a sleep or a wait writes
/// the row, so there is no tail to be found.
#[test]
fn only_an_execution_at_work_may_have_a_tail() {
    let (_folder, ours, _theirs) = pair();
    let session = register(&ours, "default");
    start(&ours, "a");
    let mut leased = block_on(ours.claim(claim_of(session))).expect("it claims").leased.remove(0);
    let statuses = [Status::Running, Status::Sleeping, Status::Running, Status::Waiting, Status::Running];
    for (nth, status) in (1..).zip(statuses) {
        record_with(&ours, &mut leased, (nth, status)).expect("it is written");
        // The first commit after a claim reads the row.
        assert_eq!(is_open(&ours, &leased), nth > 1 && status == Status::Running, "{nth}, {status:?}");
    }
    block_on(ours.heartbeat(Beat::of(session))).expect("it is answered");
    assert!(!is_open(&ours, &leased), "though there is no tail to be taken in");
    assert!(ours.verify().expect("it is looked at").is_sound());
}
