//! What becomes of the work of the dead.

use abide_core::{Epoch, ExecutionId, Name, Summary, Version, Waiting};

use super::held::{Draft, Held};
use super::make::{complete, flow, step, worker};
use super::subject::ids;
use super::{Subject, table};
use crate::Heartbeat;

table![
    expired_session_keeps_its_leases_until_somebody_sweeps,
    live_session_is_not_swept,
    takeover_continues_at_the_recorded_state,
    takeovers_are_counted,
    takeover_count_is_reset_by_progress,
    orderly_end_is_no_takeover,
    takeover_count_is_not_reset_by_an_empty_commit,
    takeover_count_is_reset_by_a_park_that_stands_still,
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

/// Lets a new worker take over what a dead one held, then waits until that one is dead too.
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

fn takeover_count_is_reset_by_progress(subject: &Subject) {
    subject.start("a", flow());
    pass_on(subject);
    let mut seat = subject.seat(worker());
    let mut held = Held::of(seat.sweep(1).leased.remove(0));
    assert_eq!(held.takeover_count, 1);
    subject.record(&mut held, step("progress"));
    assert_eq!(subject.look("a").takeover_count, 0);
    subject.advance_ms(10_000);
    assert_eq!(pass_on(subject).takeover_count, 1);
}

fn orderly_end_is_no_takeover(subject: &Subject) {
    let (seat, _held) = subject.held("a");
    seat.retire();
    assert_eq!(subject.seat(worker()).claim_one().takeover_count, 0, "a deploy makes nobody a suspect");
}

fn takeover_count_is_not_reset_by_an_empty_commit(subject: &Subject) {
    subject.start("a", flow());
    pass_on(subject);
    let mut seat = subject.seat(worker());
    let mut held = Held::of(seat.sweep(1).leased.remove(0));
    subject.commit(&subject.draft(&held).yielded(), &mut held);
    assert_eq!(seat.claim_one().takeover_count, 1);
}

fn takeover_count_is_reset_by_a_park_that_stands_still(subject: &Subject) {
    let name = || Name::new("x").expect("a name");
    let at = subject.later_ms(1_000_000);
    // The last is beyond what a summary tells.
    let mut many = vec![Waiting::Signal { name: name(), until: None }; Summary::WAITING_COUNT_MAX];
    many.push(Waiting::Retry { name: name(), attempt: 2, at });
    let cases: [(&[Waiting], u32); 9] = [
        (&many, 1),
        (&[Waiting::Signal { name: name(), until: None }], 0),
        (&[Waiting::Sleep { until: at }], 0),
        (&[Waiting::Child { id: ExecutionId::new("c").expect("an id") }, Waiting::Sleep { until: at }], 0),
        (&[], 1),
        (&[Waiting::Sleep { until: at }, Waiting::Retry { name: name(), attempt: 2, at }], 1),
        (&[Waiting::Signal { name: name(), until: None }, Waiting::Step { name: name(), attempt: 1 }], 1),
        (&[Waiting::Suspect { died_at: Vec::new(), until: Some(at) }], 1),
        (&[Waiting::Build { until: at }], 1),
    ];
    for (nth, (waiting, expected)) in cases.into_iter().enumerate() {
        let id = format!("{nth}");
        subject.start(&id, flow());
        pass_on(subject);
        let mut held = Held::of(subject.seat(worker()).sweep(1).leased.remove(0));
        let draft = waiting.iter().cloned().fold(subject.draft(&held), Draft::waiting);
        subject.commit(&draft, &mut held);
        assert_eq!(subject.look(&id).takeover_count, 1, "it is still held: {waiting:?}");
        let draft = waiting.iter().cloned().fold(subject.draft(&held), Draft::waiting);
        subject.commit(&draft.park(), &mut held);
        assert_eq!(subject.look(&id).takeover_count, expected, "{waiting:?}");
    }
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
