//! Users' closures inside the store's own transaction.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use abide_core::{Command, MessageId, Op, OpKind, Outcome, Payload, StepRecord, codec};

use super::held::Held;
use super::make::{name, step};
use super::{Subject, block_on, table};
use crate::memory::MemoryTable;
use crate::{Commit, CommitOutcome, Committed, Error, Record, Transacted, Transaction};

table![
    p1_writes_and_record_of_a_transaction_commit_together,
    what_a_transaction_wrote_is_undone_if_it_is_not_kept,
    repeated_transaction_does_not_run_and_gives_its_record_again,
    fenced_transaction_does_not_run,
    what_a_transaction_wrote_is_undone_with_its_commit,
    transaction_that_panics_leaves_no_trace,
    transaction_with_a_wrong_number_leaves_no_trace,
    transactions_see_what_was_written_before_them,
];

/// The functions by which a transaction step reads and writes a user's table, through the
/// connection that the store under test hands to it.
#[derive(Clone, Copy, Debug)]
pub struct UserTable {
    /// Sets the value of a key.
    pub put: fn(&dyn Any, &str, &str),
    /// Returns the value of a key.
    pub get: fn(&dyn Any, &str) -> Option<String>,
}

impl UserTable {
    /// The table of a [`crate::memory::MemoryStore`].
    pub const MEMORY: Self = Self {
        put: |table, key, value| {
            memory(table).put(key, value);
        },
        get: |table, key| memory(table).get(key),
    };
}

fn memory(table: &dyn Any) -> &MemoryTable {
    table.downcast_ref().expect("a store in memory hands out its table")
}

/// Returns a commit of one transaction step that runs `work`. The user's writes are kept if `work`
/// returns `true`.
pub(super) fn transaction(
    subject: &Subject,
    held: &Held,
    work: impl Fn(&dyn Any) -> bool + Send + Sync + 'static,
) -> Commit {
    let (before, now) = (held.execution.clone(), subject.now());
    let run = move |table: &dyn Any| {
        let keep = work(table);
        let op = Op { kind: OpKind::Transaction, name: name("tx"), key: None, nth: 1 };
        let outcome = Outcome::Success(Payload::from(if keep { "kept" } else { "undone" }));
        let record = StepRecord { op, outcome, attempt: 1, input: None };
        let mut after = before.clone();
        let decision = after.decide(Command::RecordStep(record), now).expect("a step may be recorded");
        let (entry, _) = decision.record(&mut after, now);
        let entry = entry.expect("a step is an entry");
        Transacted { keep, record: Record::of(&entry), state: codec::encode(&after) }
    };
    Commit { transaction: Some(Transaction(Arc::new(run))), ..subject.draft(held).commit() }
}

fn putting(subject: &Subject, held: &Held, value: &'static str) -> Commit {
    let put = subject.table.put;
    transaction(subject, held, move |table| {
        put(table, "key", value);
        true
    })
}

pub(super) fn committed(subject: &Subject, commit: Commit) -> Committed {
    match block_on(subject.store.commit(commit)).expect("a commit is answered") {
        CommitOutcome::Committed(committed) => committed,
        CommitOutcome::Fenced(fence) => panic!("expected a commit: {fence}"),
    }
}

/// Reads the value of `key` in a transaction of a new execution.
pub(super) fn found(subject: &Subject, id: &str) -> Option<String> {
    let (_seat, held) = subject.held(id);
    let (get, answer) = (subject.table.get, Arc::new(Mutex::new(None)));
    let told = answer.clone();
    let look = transaction(subject, &held, move |table| {
        *told.lock().expect("nobody panics with it") = get(table, "key");
        true
    });
    committed(subject, look);
    answer.lock().expect("nobody panics with it").take()
}

fn p1_writes_and_record_of_a_transaction_commit_together(subject: &Subject) {
    let (_seat, held) = subject.held("a");
    let committed = committed(subject, putting(subject, &held, "nail"));
    let look = subject.look("a");
    assert_eq!(committed.transacted.as_ref(), look.journal.last(), "the answer has the record");
    assert_eq!(look.journal.len(), 2);
    assert_eq!(look.execution.entry_count(), 2, "the state is that of the transaction");
    assert_eq!(look.lease.version, held.version.next());
    assert_eq!(found(subject, "later").as_deref(), Some("nail"));
}

fn what_a_transaction_wrote_is_undone_if_it_is_not_kept(subject: &Subject) {
    let (_seat, held) = subject.held("a");
    let put = subject.table.put;
    let undone = transaction(subject, &held, move |table| {
        put(table, "key", "nail");
        false
    });
    assert!(committed(subject, undone).transacted.is_some());
    assert_eq!(subject.look("a").journal.len(), 2, "its record stays");
    assert_eq!(found(subject, "later"), None);
}

fn repeated_transaction_does_not_run_and_gives_its_record_again(subject: &Subject) {
    let (_seat, held) = subject.held("a");
    let first = committed(subject, putting(subject, &held, "nail"));
    let before = subject.picture();
    let again = committed(subject, putting(subject, &held, "screw"));
    assert_eq!(again.transacted, first.transacted);
    assert_eq!(subject.picture(), before);
    assert_eq!(found(subject, "later").as_deref(), Some("nail"));
}

fn fenced_transaction_does_not_run(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let stale = putting(subject, &held, "nail");
    subject.record(&mut held, step("one"));
    subject.record(&mut held, step("two"));
    let before = subject.picture();
    let outcome = block_on(subject.store.commit(stale)).expect("a commit is answered");
    assert!(matches!(outcome, CommitOutcome::Fenced(_)), "{outcome:?}");
    assert_eq!(subject.picture(), before);
    assert_eq!(found(subject, "later"), None);
}

fn what_a_transaction_wrote_is_undone_with_its_commit(subject: &Subject) {
    let (_seat, held) = subject.held("a");
    let mut commit = putting(subject, &held, "nail");
    Arc::make_mut(&mut commit.changes).consumed.push(MessageId::new("never came"));
    let before = subject.picture();
    let outcome = block_on(subject.store.commit(commit));
    assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{outcome:?}");
    assert_eq!(subject.picture(), before);
    assert_eq!(found(subject, "later"), None);
}

fn transaction_that_panics_leaves_no_trace(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let put = subject.table.put;
    let panics = transaction(subject, &held, move |table| {
        put(table, "key", "nail");
        panic!("on purpose")
    });
    let before = subject.picture();
    let outcome = block_on(subject.store.commit(panics));
    assert!(matches!(outcome, Err(Error::Refused(_))), "{outcome:?}");
    assert_eq!(subject.picture(), before);
    assert_eq!(found(subject, "later"), None);
    subject.record(&mut held, step("one"));
}

fn transaction_with_a_wrong_number_leaves_no_trace(subject: &Subject) {
    let (_seat, held) = subject.held("a");
    let Some(Transaction(run)) = putting(subject, &held, "nail").transaction else {
        unreachable!("it has a transaction")
    };
    let wrong = move |table: &dyn Any| {
        let transacted = run(table);
        let record = Record { seq: transacted.record.seq + 1, ..transacted.record };
        Transacted { record, ..transacted }
    };
    let commit = Commit { transaction: Some(Transaction(Arc::new(wrong))), ..subject.draft(&held).commit() };
    let before = subject.picture();
    let outcome = block_on(subject.store.commit(commit));
    assert!(matches!(outcome, Err(Error::Refused(_))), "{outcome:?}");
    assert_eq!(subject.picture(), before);
    assert_eq!(found(subject, "later"), None);
}

fn transactions_see_what_was_written_before_them(subject: &Subject) {
    let run_count = Arc::new(AtomicU32::new(0));
    for nth in 0..5 {
        let (_seat, held) = subject.held(&format!("{nth}"));
        let (UserTable { put, get }, counted) = (subject.table, run_count.clone());
        let adds = transaction(subject, &held, move |table| {
            counted.fetch_add(1, Ordering::Relaxed);
            let so_far = get(table, "key").unwrap_or_default();
            put(table, "key", &format!("{so_far}+"));
            true
        });
        committed(subject, adds);
    }
    assert!(run_count.load(Ordering::Relaxed) >= 5, "a store may run each more than once");
    assert_eq!(found(subject, "later").as_deref(), Some("+++++"), "and each happens once");
}
