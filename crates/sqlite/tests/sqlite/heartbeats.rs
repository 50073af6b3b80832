//! The comparison in a heartbeat: with several writers, after failures, and with many leases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abide_core::{Body, Digest};
use abide_sqlite::{Options, SqliteStore};
use abide_store::conformance::{TestClock, block_on};
use abide_store::{
    Agreement, Beat, Claim, Commit, CommitOutcome, Error, Heartbeat, Hold, Leases, Store, Submit, View,
};

use crate::fixture::{Fixture, Held, Seat, message, start, step, submit, worker};

/// Sends a heartbeat of a session that believes it holds these executions.
pub(super) fn believe(seat: &Seat, held: &[&Held]) -> Agreement {
    let digests = held.iter().map(|held| Digest::of(held.key.0, held.lease.epoch));
    let digest = Some(digests.fold(Digest::default(), Digest::plus));
    match block_on(seat.store.heartbeat(Beat { digest, ..Beat::of(seat.session) })).expect("it is answered") {
        Heartbeat::Refreshed { leases, .. } => leases,
        Heartbeat::NotRegistered => panic!("expected session {} to live", seat.session),
    }
}

/// Sends the heartbeats in which no lease takes part yet.
pub(super) fn while_young(seat: &Seat) {
    for _ in 0..2 {
        assert_eq!(believe(seat, &[]), Agreement::Agreed);
    }
}

fn differs(agreement: Agreement) -> bool {
    matches!(agreement, Agreement::Differs { .. })
}

/// Sends a terminate and claims care with another session. Returns the number of leases.
fn take_care(fixture: &Fixture, seat: &Seat, id: &str) -> usize {
    let terminate = Body::Terminate { reason: String::new() };
    submit(&seat.store, vec![message("terminate", id, terminate)]).expect("it is taken");
    fixture.clock.advance(Duration::from_secs(3));
    let claim =
        Claim { session: seat.session, request: 1, slots: 0, care_slots: 9, with_mail: false, sweep: false };
    block_on(seat.store.claim(claim)).expect("a live session may claim").care.len()
}

#[test]
fn a_lease_that_another_process_takes_makes_a_difference() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let (seat, caretaker) = (fixture.seat(&one), fixture.seat(&two));
    let (kept, lost) = (seat.born("kept"), seat.born("lost"));
    while_young(&seat);
    assert_eq!(believe(&seat, &[&kept, &lost]), Agreement::Agreed);
    assert_eq!(take_care(&fixture, &caretaker, "lost"), 1);
    assert!(differs(believe(&seat, &[&kept, &lost])));
    assert_eq!(believe(&seat, &[&kept]), Agreement::Agreed);
}

#[test]
fn what_another_process_writes_makes_no_difference() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let (seat, other) = (fixture.seat(&one), fixture.seat(&two));
    let held = seat.born("a");
    while_young(&seat);
    for nth in 0..3 {
        other.born(&format!("of another {nth}"));
        assert_eq!(believe(&seat, &[&held]), Agreement::Agreed);
    }
}

/// The worker should register again. Its executions go to others when its time is over.
#[test]
fn a_session_that_cannot_be_read_is_over() {
    for damage in [
        "UPDATE abide_sessions SET ability = 5",
        "UPDATE abide_sessions SET ability = x'00'",
        "UPDATE abide_sessions SET ttl_us = 'x'",
        "UPDATE abide_sessions SET ttl_us = -1",
        "UPDATE abide_sessions SET expires_at = 'x'",
        "UPDATE abide_sessions SET taken = 'x'",
    ] {
        let fixture = Fixture::new();
        let store = fixture.open();
        let seat = fixture.seat(&store);
        let held = seat.born("a");
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        let beat = block_on(store.heartbeat(Beat::of(seat.session)));
        assert_eq!(beat.expect("it is answered"), Heartbeat::NotRegistered, "{damage}");
        let (session, request) = (seat.session, 1);
        let claim = Claim { session, request, slots: 1, care_slots: 1, with_mail: true, sweep: true };
        assert!(matches!(block_on(store.claim(claim)), Err(Error::Refused(_))), "{damage}");
        let mut late = held.clone();
        assert!(matches!(seat.commit(&mut late, vec![step(1)]), CommitOutcome::Fenced(_)), "{damage}");
        fixture.clock.advance(worker().ttl);
        let leased = fixture.seat(&store).claim(true).leased;
        assert_eq!(leased.iter().map(|leased| leased.key).collect::<Vec<_>>(), [held.key], "{damage}");
    }
}

/// There is nobody to inform about the taken lease.
#[test]
fn a_lease_is_taken_also_from_a_session_that_cannot_be_read() {
    for damage in
        ["UPDATE abide_sessions SET taken = 'x' WHERE id = 1", "DELETE FROM abide_sessions WHERE id = 1"]
    {
        let fixture = Fixture::new();
        let (one, two) = (fixture.open(), fixture.open());
        let (seat, caretaker) = (fixture.seat(&one), fixture.seat(&two));
        seat.born("lost");
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        assert_eq!(take_care(&fixture, &caretaker, "lost"), 1, "{damage}");
    }
}

/// The tallies are empty for a session of another process, or of an earlier life.
#[test]
fn what_was_not_counted_is_counted_from_the_rows() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let (seat, caretaker) = (fixture.seat(&one), fixture.seat(&two));
    let (kept, lost, mut parked) = (seat.born("kept"), seat.born("lost"), seat.born("parked"));
    while_young(&seat);
    assert_eq!(take_care(&fixture, &caretaker, "lost"), 1);
    let elsewhere = fixture.open();
    let digest = |held: &Held| Digest::of(held.key.0, held.lease.epoch);
    let beat = |digest| {
        let beat = Beat { digest: Some(digest), ..Beat::of(seat.session) };
        match block_on(elsewhere.heartbeat(beat)).expect("it is answered") {
            Heartbeat::Refreshed { leases, .. } => leases,
            Heartbeat::NotRegistered => panic!("it lives"),
        }
    };
    assert_eq!(beat(digest(&kept).plus(digest(&parked))), Agreement::Agreed);
    assert!(differs(beat(digest(&kept).plus(digest(&lost)).plus(digest(&parked)))));
    let park = Commit { hold: Hold::Park { seen: Vec::new() }, ..seat.draft(&mut parked, vec![step(1)]) };
    block_on(elsewhere.commit(park)).expect("it is committed");
    assert_eq!(beat(digest(&kept)), Agreement::Agreed);
}

/// This measures the writer's own time: a database in memory has no disk to wait for.
#[test]
#[expect(clippy::disallowed_methods, reason = "it is about real time")]
fn a_heartbeat_costs_at_most_a_millisecond_with_100_000_leases() {
    const LEASE_COUNT: usize = 100_000;
    let store: Arc<SqliteStore> =
        SqliteStore::in_memory(TestClock::new(), Options::default()).expect("it is made");
    let session = block_on(store.register(worker())).expect("a worker is registered").session;
    let beat = |digest| {
        let begun = Instant::now();
        let answer = block_on(store.heartbeat(Beat { digest: Some(digest), ..Beat::of(session) }));
        let Ok(Heartbeat::Refreshed { leases, .. }) = answer else { panic!("it lives: {answer:?}") };
        (leases, begun.elapsed())
    };
    for number in 0..LEASE_COUNT / 1_000 {
        let messages = (0..1_000).map(|nth| start(&format!("{number}-{nth}"))).collect();
        let submit = Submit { messages, born_to: Some(session), alone: true, stretch: None };
        block_on(store.submit(submit)).expect("they are started");
    }
    (0..2).for_each(|_| _ = beat(Digest::default()));
    let read = || {
        let begun = Instant::now();
        let (mut held, mut after, mut count) = (Digest::default(), None, 0);
        loop {
            let page =
                block_on(store.leases(Leases { session, after, limit: usize::MAX })).expect("they are told");
            count += page.leases.len();
            held = page.leases.iter().fold(held, |sum, lease| sum.plus(Digest::of(lease.key.0, lease.epoch)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(count, LEASE_COUNT);
        (begun.elapsed(), held)
    };
    // The quickest counts: a machine may stall during one.
    let (took, held) = (0..3).map(|_| read()).min_by_key(|(took, _)| *took).expect("three were made");
    println!("{LEASE_COUNT} leases are read in {took:?}");
    assert!(
        took <= Duration::from_secs(2),
        "each page is found at once, also among those born together: {took:?}"
    );
    let mut took: Vec<Duration> = (0..101)
        .map(|nth| {
            // A heartbeat costs the same whether the two sides agree or not.
            let believed = if nth % 2 == 0 { held } else { Digest::default() };
            let (leases, took) = beat(believed);
            assert_eq!(differs(leases), nth % 2 == 1);
            took
        })
        .collect();
    took.sort();
    let median = took[took.len() / 2];
    println!("a heartbeat with {LEASE_COUNT} leases: {median:?}, at most {:?}", took[took.len() - 1]);
    assert!(median <= Duration::from_millis(1), "{median:?}");
}
