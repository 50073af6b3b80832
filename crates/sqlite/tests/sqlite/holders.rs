//! Damage to an execution that a worker holds: the holder, the process that finds the damage and
//! the repair do not get in each other's way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide_core::{Body, By, Status};
use abide_sqlite::stepped::{Fate, Stepped};
use abide_sqlite::{MessagesDropped, Options, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{Agreement, Aside, Claim, CommitOutcome, Store, Unreadable};

use crate::aside::with_status;
use crate::fixture::{Fixture, Held, Seat, complete, look, message, signal, start, step, submit, worker};
use crate::heartbeats::{believe, while_young};

const JOURNAL: &str = "UPDATE abide_journal SET body = x'00' WHERE execution = 1";

fn aside(held: &Held) -> Aside {
    let unreadable = Unreadable::Damaged("a hole".to_owned());
    Aside { key: held.key, lease: held.lease, unreadable }
}

/// Otherwise, each heartbeat would report a false difference, and the holder would continue to
/// write to an execution that the writer remembers as held.
#[test]
fn what_its_holder_has_set_aside_is_neither_counted_nor_written_any_longer() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let (mut bad, kept) = (seat.born("bad"), seat.born("kept"));
    seat.record(&mut bad, vec![step(1)]);
    while_young(&seat);
    assert_eq!(believe(&seat, &[&bad, &kept]), Agreement::Agreed);
    block_on(store.set_aside(aside(&bad))).expect("it is set aside");
    assert_eq!(believe(&seat, &[&kept]), Agreement::Agreed);
    assert!(matches!(seat.commit(&mut bad, vec![step(2)]), CommitOutcome::Fenced(_)));
}

/// A caretaker of another process meets the damage. The holder loses the lease, learns so from its
/// next heartbeat, and writes nothing any longer.
#[test]
fn what_another_process_has_set_aside_is_lost_to_its_holder() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let (seat, mut caretaker) = (fixture.seat(&one), fixture.seat(&two));
    let (mut bad, kept) = (seat.born("bad"), seat.born("kept"));
    while_young(&seat);
    assert_eq!(believe(&seat, &[&bad, &kept]), Agreement::Agreed);
    let terminate = Body::Terminate { reason: String::new() };
    submit(&two, vec![message("end", "bad", terminate)]).expect("it is taken");
    fixture.raw().execute_batch(JOURNAL).expect("the damage can be done");
    fixture.clock.advance(Duration::from_secs(3));
    assert_eq!(caretaker.claim_with_care().len(), 0, "it cannot be read");
    assert_eq!(with_status(&one, Status::Damaged), ["bad"]);
    assert!(matches!(believe(&seat, &[&bad, &kept]), Agreement::Differs { .. }));
    assert_eq!(believe(&seat, &[&kept]), Agreement::Agreed);
    assert!(matches!(seat.commit(&mut bad, vec![step(1)]), CommitOutcome::Fenced(_)));
}

/// Another process has taken over meanwhile, and can read the execution.
#[test]
fn p3_who_has_lost_a_lease_sets_nothing_aside() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let bad = fixture.seat(&one).born("bad");
    fixture.clock.advance(worker().ttl);
    let mut next = fixture.seat(&two);
    let mut taken = Held::from(next.claim(true).leased.remove(0));
    block_on(one.set_aside(aside(&bad))).expect("it is answered");
    assert_eq!(with_status(&two, Status::Damaged), Vec::<String>::new());
    next.record(&mut taken, vec![complete()]);
}

/// A session whose expiry is unreadable has expired, however long it had left.
#[test]
fn what_a_session_without_a_time_holds_is_for_others_at_once() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let held = fixture.seat(&store).born("a");
    let damage = "UPDATE abide_sessions SET expires_at = 'soon'; UPDATE abide_executions SET rank = 'x'";
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    let repairs = block_on(store.repair()).expect("it is repaired");
    assert_eq!(repairs.rebuilt, [r#"execution "a": its row was put right: place"#], "nobody holds it");
    let leased = fixture.seat(&store).claim(true).leased;
    assert_eq!(leased.iter().map(|leased| leased.key).collect::<Vec<_>>(), [held.key]);
}

/// The holder may read a message at any time, or has read it. A repair by another process leaves
/// the execution and its messages alone until it is set aside.
#[test]
fn who_repairs_leaves_what_a_worker_of_another_process_holds() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let seat = fixture.seat(&one);
    let mut held = seat.born("bad");
    submit(&one, vec![signal("broken", "bad"), signal("sound", "bad")]).expect("they are taken");
    let damage = "UPDATE abide_inbox SET body = x'00' WHERE id = 'broken'";
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    let unread = || -> i64 {
        let count = "SELECT COUNT(*) FROM abide_inbox WHERE body IS NOT NULL";
        fixture.raw().query_row(count, [], |row| row.get(0)).expect("they are counted")
    };
    let drop = || block_on(two.drop_messages(&held.execution.address().clone(), By::client()));
    assert_eq!(drop().expect("it is looked at"), MessagesDropped::Held);
    let left = block_on(two.repair()).expect("it is looked at").left;
    assert_eq!(left, [r#"execution "bad" is held by a worker, which sets it aside when it reads it"#]);
    assert_eq!(unread(), 2, "nothing was touched");
    seat.record(&mut held, vec![step(1)]);
    block_on(one.set_aside(aside(&held))).expect("it is set aside");
    let drop = || block_on(two.drop_messages(&held.execution.address().clone(), By::client()));
    assert!(matches!(drop(), Ok(MessagesDropped::Dropped(lines)) if lines.len() == 1));
    assert_eq!(block_on(two.repair()).expect("it is repaired").left, Vec::<String>::new());
    let again = fixture.seat(&two).claim(true).leased.remove(0);
    assert_eq!(again.version, held.version, "what was recorded is there");
    assert_eq!(again.inbox.messages.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(), ["sound"]);
}

/// Both are in the same transaction: whichever is first, the execution is set aside, and the
/// committed entry is there.
#[test]
fn a_commit_under_way_and_a_set_aside_of_the_same_execution_do_not_mix() {
    for is_commit_first in [true, false] {
        let fixture = Fixture::new();
        let store = fixture.open();
        let seat = fixture.seat(&store);
        let mut held = seat.born("bad");
        let before = held.version;
        let commit = seat.draft(&mut held, vec![step(1)]);
        let both = stepped(&fixture);
        let send_aside = || both.set_aside(aside(&held));
        let (committed, set_aside) = if is_commit_first {
            let committed = both.commit(commit);
            (committed, send_aside())
        } else {
            let set_aside = send_aside();
            (both.commit(commit), set_aside)
        };
        assert_eq!((both.step(Fate::Committed), both.step(Fate::Committed)), (Stepped::Done, Stepped::Idle));
        block_on(set_aside).expect("it is set aside");
        let committed = block_on(committed).expect("it is answered");
        assert_eq!(matches!(committed, CommitOutcome::Committed(_)), is_commit_first, "{committed:?}");
        assert_eq!(with_status(&store, Status::Damaged), ["bad"]);
        let repairs = block_on(store.repair()).expect("it is repaired");
        assert_eq!((repairs.rebuilt.len(), repairs.left.len()), (1, 0), "{repairs:?}");
        let mut again = Held::from(fixture.seat(&store).claim(true).leased.remove(0));
        assert_eq!(again.version, if is_commit_first { held.version } else { before });
        assert_eq!(look(&store, "bad").journal.len(), if is_commit_first { 2 } else { 1 });
        assert!(again.lease.epoch > held.lease.epoch);
        fixture.seat(&store).record(&mut again, vec![complete()]);
    }
}

/// A store ends sessions whose lock files are missing. It does not end the one that it claims for:
/// the executions that it leases in the same transaction would belong to nobody who is alive.
#[test]
fn p3_a_claim_does_not_end_the_session_that_it_claims_for() {
    let fixture = Fixture::new();
    let millis = Arc::new(AtomicU64::new(0));
    let told = millis.clone();
    let now = move || Duration::from_millis(told.load(Ordering::Relaxed));
    let store =
        SqliteStore::stepped(&fixture.path(), fixture.clock.clone(), Options::default(), now).unwrap();
    let registered = store.register(worker());
    store.step(Fate::Committed);
    let session = block_on(registered).unwrap().session;
    submit(&fixture.open(), vec![start("a")]).unwrap();
    std::fs::remove_file(fixture.folder.path().join(format!("abide.db-session-{}", session.0))).unwrap();
    let mut leased = Vec::new();
    for request in 1..=3 {
        let claim = Claim { session, request, slots: 1, care_slots: 0, with_mail: false, sweep: true };
        let claimed = store.claim(claim);
        store.step(Fate::Committed);
        leased.extend(block_on(claimed).unwrap().leased);
        millis.fetch_add(4_000, Ordering::Relaxed);
    }
    assert_eq!(leased.len(), 1, "it is leased once");
    let mut held = Held::from(leased.remove(0));
    let commit = store.commit(Seat::of(&fixture, &store, session).draft(&mut held, vec![step(1)]));
    store.step(Fate::Committed);
    let outcome = block_on(commit).unwrap();
    assert!(matches!(outcome, CommitOutcome::Committed(_)), "{outcome:?}");
}

/// Opens a store whose writer works on request, so that two operations share a transaction.
pub(super) fn stepped(fixture: &Fixture) -> Arc<SqliteStore> {
    let now = || Duration::ZERO;
    SqliteStore::stepped(&fixture.path(), fixture.clock.clone(), Options::default(), now)
        .expect("the file can be opened")
}
