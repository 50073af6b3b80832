//! The reference store against the conformance table.

use std::sync::Arc;

use abide_core::{Epoch, Lease, SessionId, Version, codec};
use abide_store::conformance::{
    TestClock, UserTable, block_on, bounds, check_all, check_intake, differential, differential_bounds,
};
use abide_store::memory::MemoryStore;
use abide_store::{Changes, Commit, Hold, Store, Submit, Submitted};

use crate::common::{self, start, worker};

#[test]
fn memory_store_conforms() {
    check_all(|clock| MemoryStore::new(clock, bounds()));
}

#[test]
fn memory_store_takes_rows_in() {
    check_intake(|clock| {
        let store = MemoryStore::new(clock, bounds());
        let door = store.clone();
        (store, Box::new(move |rows| door.enqueue(rows)))
    });
}

#[test]
fn two_memory_stores_do_not_differ() {
    for seed in 0..60 {
        differential(seed, 400, UserTable::MEMORY, |clock| MemoryStore::new(clock, differential_bounds()));
    }
}

/// Returns a store with the execution "a", born leased, and an empty commit of it.
fn held() -> (Arc<MemoryStore>, Commit) {
    let store = MemoryStore::new(TestClock::new(), bounds());
    let session = block_on(store.register(worker())).expect("a worker is registered").session;
    let submit = Submit { messages: vec![start("a")], born_to: Some(session), alone: false, stretch: None };
    let submitted = block_on(store.submit(submit)).expect("it is taken").remove(0);
    let Submitted::Started(key, Some(leased)) = submitted else { panic!("expected a lease: {submitted:?}") };
    let commit = Commit {
        key,
        lease: leased.lease,
        expected: leased.version,
        changes: Arc::new(Changes {
            records: Default::default(),
            next: None,
            state: codec::encode(&leased.execution),
            summary: leased.execution.summary(&[]),
            consumed: Vec::new(),
            outgoing: Vec::new(),
        }),
        born_slots: 0,
        hold: Hold::Keep,
        transaction: None,
        alone: false,
    };
    (store, commit)
}

fn change(commit: &mut Commit) -> &mut Changes {
    Arc::get_mut(&mut commit.changes).expect("nobody else has them")
}

#[test]
#[should_panic(expected = "counts its entries")]
fn state_that_is_ahead_of_its_journal_is_stopped() {
    let (store, mut commit) = held();
    let (mut execution, _) = common::begun("a");
    let pause = abide_core::Command::Pause { by: abide_core::By("ann".into()), reason: String::new() };
    let now = abide_core::Timestamp::from_millis(0);
    execution.decide(pause, now).expect("it may be paused").record(&mut execution, now);
    change(&mut commit).state = codec::encode(&execution);
    let _ = block_on(store.commit(commit));
}

#[test]
fn stale_commit_is_fenced_before_it_is_looked_at() {
    let (store, mut commit) = held();
    commit.lease = Lease { session: SessionId(1), epoch: Epoch(9) };
    commit.expected = Version(9);
    change(&mut commit).state = b"no state".to_vec();
    let outcome = block_on(store.commit(commit)).expect("a commit is answered");
    assert!(matches!(outcome, abide_store::CommitOutcome::Fenced(_)), "{outcome:?}");
}
