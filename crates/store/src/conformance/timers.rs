//! Executions that become ready because time passes.

use abide_core::{Start, Status};

use super::make::{delayed, flow, name, signal, worker};
use super::subject::serving;
use super::{Subject, table};

table![
    delayed_start_is_scheduled,
    delayed_start_is_claimed_when_due_and_not_before,
    delayed_work_waits_in_line_since_it_was_due,
    next_wake_is_the_earliest_timer,
    next_wake_is_of_what_the_session_could_run,
    next_wake_ignores_what_is_held,
    sleeping_execution_is_claimed_when_due,
    timer_of_a_held_execution_makes_nothing_ready,
    deadline_of_a_waiting_execution_wakes_it,
    many_timers_due_at_once_are_all_claimed,
    message_and_timer_wake_once,
];

fn delayed_start_is_scheduled(subject: &Subject) {
    let start_at = subject.later_ms(1_000);
    subject.start("a", delayed(start_at));
    let found = subject.look("a");
    assert_eq!((found.summary.status, found.summary.wake_at), (Status::Scheduled, Some(start_at)));
    assert_eq!((found.ready_at, found.lease.session), (None, None));
}

fn delayed_start_is_claimed_when_due_and_not_before(subject: &Subject) {
    subject.start("a", delayed(subject.later_ms(1_000)));
    let mut seat = subject.seat(worker());
    subject.advance_ms(999);
    assert!(seat.claim_ids(1).is_empty());
    subject.advance_ms(1);
    assert_eq!(seat.claim_ids(1), ["a"]);
}

fn delayed_work_waits_in_line_since_it_was_due(subject: &Subject) {
    subject.start("due late", delayed(subject.later_ms(30)));
    subject.start("due early", delayed(subject.later_ms(10)));
    subject.advance_ms(20);
    subject.start("now", flow());
    subject.advance_ms(20);
    assert_eq!(subject.seat(worker()).claim_ids(9), ["due early", "now", "due late"]);
}

fn next_wake_is_the_earliest_timer(subject: &Subject) {
    let mut seat = subject.seat(worker());
    assert_eq!(seat.claim(1).next_wake_at, None);
    let (soon, late) = (subject.later_ms(1_000), subject.later_ms(2_000));
    subject.start("late", delayed(late));
    subject.start("soon", delayed(soon));
    assert_eq!(seat.claim(1).next_wake_at, Some(soon));
    subject.advance_ms(1_000);
    let claimed = seat.claim(1);
    assert_eq!((claimed.leased.len(), claimed.next_wake_at), (1, Some(late)));
}

fn next_wake_is_of_what_the_session_could_run(subject: &Subject) {
    subject.start("other", Start { lane: name("gpu"), ..delayed(subject.later_ms(5)) });
    let wake_at = subject.later_ms(500);
    subject.start("own", delayed(wake_at));
    assert_eq!(subject.seat(worker()).claim(1).next_wake_at, Some(wake_at));
    assert_eq!(subject.seat(serving(name("nothing"))).claim(1).next_wake_at, None);
}

fn next_wake_ignores_what_is_held(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).sleeping(subject.later_ms(100)), &mut held);
    assert_eq!(seat.claim(1).next_wake_at, None, "its holder knows");
}

fn sleeping_execution_is_claimed_when_due(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let until = subject.later_ms(5_000);
    subject.commit(&subject.draft(&held).sleeping(until).park(), &mut held);
    let found = subject.look("a");
    assert_eq!((found.summary.status, found.summary.wake_at), (Status::Sleeping, Some(until)));
    assert_eq!((found.ready_at, found.lease.session), (None, None));
    let claimed = seat.claim(1);
    assert_eq!((claimed.leased.len(), claimed.next_wake_at), (0, Some(until)));
    subject.advance_ms(5_000);
    assert_eq!(seat.claim_ids(1), ["a"]);
}

fn timer_of_a_held_execution_makes_nothing_ready(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).sleeping(subject.later_ms(100)), &mut held);
    subject.advance_ms(200);
    assert!(subject.seat(worker()).claim_ids(1).is_empty());
    subject.commit(&subject.draft(&held).park(), &mut held);
    assert!(subject.seat(worker()).claim_ids(1).is_empty(), "the commit took the timer away");
}

fn deadline_of_a_waiting_execution_wakes_it(subject: &Subject) {
    subject.start("a", Start { deadline_at: Some(subject.later_ms(100)), ..flow() });
    let mut seat = subject.seat(worker());
    let mut held = seat.claim_one();
    subject.commit(&subject.draft(&held).park(), &mut held);
    subject.advance_ms(99);
    assert!(seat.claim_ids(1).is_empty());
    subject.advance_ms(1);
    assert_eq!(seat.claim_ids(1), ["a"]);
}

fn many_timers_due_at_once_are_all_claimed(subject: &Subject) {
    for n in 0..300 {
        subject.start(&format!("{n}"), delayed(subject.later_ms(1_000)));
    }
    subject.advance_ms(1_000);
    let mut seat = subject.seat(worker());
    let mut count = 0;
    for _ in 0..300 {
        let claimed = seat.claim(100);
        count += claimed.leased.len();
        if !claimed.more && claimed.next_wake_at.is_none_or(|wake_at| wake_at > subject.now()) {
            break;
        }
    }
    assert_eq!(count, 300);
}

fn message_and_timer_wake_once(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).sleeping(subject.later_ms(100)).park(), &mut held);
    subject.send(signal("s", "a"));
    let mut held = seat.claim_one();
    subject.advance_ms(200);
    assert!(seat.claim_ids(1).is_empty());
    subject.commit(&subject.draft(&held).consuming(&["s"]).park(), &mut held);
    assert!(seat.claim_ids(1).is_empty());
}
