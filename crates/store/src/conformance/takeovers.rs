//! The executions of dead sessions.

use abide_core::{Epoch, Stand, Suspicion, Version};

use super::held::{Draft, Held};
use super::make::{complete, flow, step, worker};
use super::subject::ids;
use super::transactions::{committed, transaction};
use super::{Subject, table};
use crate::{Changes, Commit, Heartbeat};

table![
    expired_session_keeps_its_leases_until_somebody_sweeps,
    live_session_is_not_swept,
    takeover_continues_at_the_recorded_state,
    takeovers_are_counted,
    takeover_count_is_reset_by_a_commit_without_suspicion,
    takeover_count_is_reset_by_a_transaction_without_suspicion,
    takeover_count_is_kept_by_a_commit_with_suspicion,
    suspicion_is_told_to_the_next_holder,
    orderly_end_is_no_takeover,
    heartbeat_keeps_all_leases,
    retired_session_gives_everything_back_at_once,
    swept_work_is_ready_since_the_sweep,
    sweep_takes_from_every_dead_session,
];

fn expired_session_keeps_its_leases_until_somebody_sweeps(subject: &Subject) {
    subject.held("a");
    subject.advance_ms(10_000);
    let mut seat = subject.seat(worker());
    assert!(seat.claim_ids(1).is_empty());
    assert_eq!(ids(&seat.sweep(1)), ["a"]);
}

fn live_session_is_not_swept(subject: &Subject) {
    let (first, mut held) = subject.held("a");
    subject.advance_ms(9_999);
    let mut seat = subject.seat(worker());
    assert!(seat.sweep(1).leased.is_empty());
    assert_eq!(first.lease_count(), 1);
    subject.record(&mut held, step("mine"));
}

fn takeover_continues_at_the_recorded_state(subject: &Subject) {
    let (_dead, mut held) = subject.held("a");
    subject.record(&mut held, step("one"));
    subject.advance_ms(10_000);
    let mut seat = subject.seat(worker());
    let taken = seat.sweep(1).leased.remove(0);
    assert_eq!((taken.lease.session, taken.lease.epoch), (seat.session, Epoch(2)));
    assert_eq!((taken.version, &taken.execution), (Version(1), &held.execution));
    let mut taken = Held::of(taken);
    subject.record(&mut taken, step("two"));
    assert_eq!(subject.look("a").journal.len(), 3);
}

/// Lets a new worker take over the execution of a dead one, then waits until the new one is dead
/// too.
fn pass_on(subject: &Subject) -> Held {
    let mut seat = subject.seat(worker());
    let held = Held::of(seat.sweep(1).leased.remove(0));
    subject.advance_ms(10_000);
    held
}

fn takeovers_are_counted(subject: &Subject) {
    subject.start("a", flow());
    let counts: Vec<_> = (0..4).map(|_| pass_on(subject).takeover_count).collect();
    assert_eq!(counts, [0, 1, 2, 3]);
    assert_eq!(subject.look("a").takeover_count, 3);
}

/// Starts an execution whose holder dies, and lets another worker take it over.
fn taken(subject: &Subject, id: &str) -> Held {
    subject.start(id, flow());
    subject.seat(worker()).sweep(9);
    subject.advance_ms(10_000);
    let leased = subject.seat(worker()).sweep(9).leased.into_iter();
    let held = leased.map(Held::of).find(|held| held.id() == id).expect("its holder died");
    assert_eq!((held.takeover_count, &held.suspicion), (1, &None));
    held
}

fn suspicion(subject: &Subject) -> Suspicion {
    Suspicion { died_at: vec![subject.now()], stand: Stand::Alone { takeover_count: 1 } }
}

/// The committer decides whether its commit proves anything. A store does not look.
fn takeover_count_is_reset_by_a_commit_without_suspicion(subject: &Subject) {
    let mut held = taken(subject, "empty");
    subject.commit(&subject.draft(&held).park(), &mut held);
    assert_eq!(subject.look("empty").takeover_count, 0);
    let mut held = taken(subject, "progress");
    subject.record(&mut held, step("progress"));
    assert_eq!(subject.look("progress").takeover_count, 0);
    subject.advance_ms(10_000);
    assert_eq!(pass_on(subject).takeover_count, 1);
}

fn takeover_count_is_reset_by_a_transaction_without_suspicion(subject: &Subject) {
    let held = taken(subject, "a");
    committed(subject, transaction(subject, &held, |_| true));
    assert_eq!(subject.look("a").takeover_count, 0);
    let held = taken(subject, "b");
    let commit = transaction(subject, &held, |_| true);
    let summary = subject.draft(&held).suspected(suspicion(subject)).commit().changes.summary.clone();
    let changes = Changes { summary, ..(*commit.changes).clone() };
    committed(subject, Commit { changes: changes.into(), ..commit });
    assert_eq!(subject.look("b").takeover_count, 1);
}

fn takeover_count_is_kept_by_a_commit_with_suspicion(subject: &Subject) {
    let holds: [fn(Draft) -> Draft; 3] = [|draft| draft, Draft::park, Draft::yielded];
    for (nth, hold) in holds.into_iter().enumerate() {
        let id = format!("{nth}");
        let mut held = taken(subject, &id);
        subject.commit(&subject.draft(&held).suspected(suspicion(subject)), &mut held);
        assert_eq!(subject.look(&id).takeover_count, 1, "{id}");
        let draft = hold(subject.draft(&held).then(step("more"))).suspected(suspicion(subject));
        subject.commit(&draft, &mut held);
        assert_eq!(subject.look(&id).takeover_count, 1, "{id}");
    }
}

fn suspicion_is_told_to_the_next_holder(subject: &Subject) {
    let mut held = taken(subject, "a");
    let suspicion = suspicion(subject);
    subject.commit(&subject.draft(&held).suspected(suspicion.clone()), &mut held);
    assert_eq!(subject.look("a").summary.suspicion.as_ref(), Some(&suspicion));
    subject.advance_ms(10_000);
    let mut seat = subject.seat(worker());
    let mut held = Held::of(seat.sweep(1).leased.remove(0));
    assert_eq!((held.takeover_count, held.suspicion.as_ref()), (2, Some(&suspicion)));
    subject.commit(&subject.draft(&held).then(step("one")).yielded(), &mut held);
    assert_eq!((seat.claim_one().suspicion, subject.look("a").takeover_count), (None, 0));
}

fn orderly_end_is_no_takeover(subject: &Subject) {
    let (seat, _held) = subject.held("a");
    seat.retire();
    assert_eq!(subject.seat(worker()).claim_one().takeover_count, 0, "a deploy makes nobody a suspect");
}

fn heartbeat_keeps_all_leases(subject: &Subject) {
    for id in ["a", "b", "c"] {
        subject.start(id, flow());
    }
    let mut seat = subject.seat(worker());
    seat.claim(3);
    for _ in 0..5 {
        subject.advance_ms(6_000);
        assert!(matches!(seat.heartbeat(), Heartbeat::Refreshed { .. }));
        assert_eq!(seat.lease_count(), 3);
    }
    assert!(subject.seat(worker()).sweep(9).leased.is_empty());
}

fn retired_session_gives_everything_back_at_once(subject: &Subject) {
    for id in ["a", "b", "c"] {
        subject.start(id, flow());
    }
    let mut seat = subject.seat(worker());
    let mut finished = Held::of(seat.claim(3).leased.remove(0));
    subject.record(&mut finished, complete());
    subject.advance_ms(5);
    seat.retire();
    assert_eq!(subject.look("b").ready_at, Some(subject.now()));
    assert_eq!(subject.look("b").lease.session, None);
    assert_eq!(subject.look("a").ready_at, None, "what has ended is not given to anybody");
    assert_eq!(subject.seat(worker()).claim_ids(9), ["b", "c"]);
}

fn swept_work_is_ready_since_the_sweep(subject: &Subject) {
    subject.held("a");
    subject.advance_ms(10_000);
    subject.start("b", flow());
    subject.advance_ms(1);
    assert_eq!(ids(&subject.seat(worker()).sweep(9)), ["b", "a"]);
}

fn sweep_takes_from_every_dead_session(subject: &Subject) {
    for n in 0..10 {
        subject.start(&format!("{n}"), flow());
        subject.seat(worker()).claim_one();
    }
    subject.advance_ms(10_000);
    assert_eq!(subject.seat(worker()).sweep(99).leased.len(), 10);
}
