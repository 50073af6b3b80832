//! Tests of tails that change under their writer.

use std::sync::Arc;

use abide_core::{Command, Op, OpKind, Outcome, Payload, StepRecord};
use abide_store::conformance::{TestClock, block_on};
use abide_store::{Beat, Clock as _, CommitOutcome, Error, Hold, Leased, Record, Store as _};

use crate::SqliteStore;
use crate::fixture::{claim_of, commit_of, inside, name, pair, register, start};

/// Records a step in a commit of its own.
fn record(store: &SqliteStore, leased: &mut Leased, nth: u32) -> abide_store::Result<CommitOutcome> {
    let op = Op { kind: OpKind::Step, name: name("step"), key: None, nth };
    let outcome = Outcome::Success(Payload::from("3"));
    let command = Command::RecordStep(StepRecord { op, outcome, attempt: 1, input: None });
    let now = TestClock::new().now();
    let decision = leased.execution.decide(command, now).expect("it may be decided");
    let (entry, _) = decision.record(&mut leased.execution, now);
    let mut commit = commit_of(leased, Hold::Keep, Vec::new());
    Arc::make_mut(&mut commit.changes).records = entry.iter().map(Record::of).collect();
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
