//! Hints that something happened. They may come late or twice; because they come at all, idling is
//! free (P7).

use super::block_on::both;
use super::make::{flow, signal, start_of, step, worker};
use super::{Subject, block_on, table};
use crate::{Notice, Submit};

table![
    p7_message_to_a_held_execution_is_told_to_its_holder,
    p7_start_is_told_to_those_who_could_run_it,
    p7_wake_up_of_a_parked_execution_is_told,
    p7_yield_is_told,
    p7_released_work_is_told,
    p7_emitted_message_is_told_to_its_holder,
    notices_that_came_before_the_wait_are_kept,
    dropped_wait_loses_no_notice,
    notice_comes_to_a_wait_that_is_under_way,
];

fn is_about_readiness(notice: &Notice) -> bool {
    matches!(notice, Notice::Ready | Notice::Changed)
}

fn is_message(notice: &Notice, id: &str) -> bool {
    // A store that shares its data with other processes may not know what changed.
    matches!(notice, Notice::Message { message, .. } if message.id.as_str() == id)
        || *notice == Notice::Changed
}

fn p7_message_to_a_held_execution_is_told_to_its_holder(subject: &Subject) {
    let (seat, _held) = subject.held("a");
    subject.send(signal("s", "a"));
    seat.wait_for(|notice| is_message(notice, "s"));
}

fn p7_start_is_told_to_those_who_could_run_it(subject: &Subject) {
    let (one, two) = (subject.seat(worker()), subject.seat(worker()));
    subject.start("a", flow());
    one.wait_for(is_about_readiness);
    two.wait_for(is_about_readiness);
}

fn p7_wake_up_of_a_parked_execution_is_told(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).park(), &mut held);
    let other = subject.seat(worker());
    subject.send(signal("s", "a"));
    other.wait_for(is_about_readiness);
}

fn p7_yield_is_told(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let other = subject.seat(worker());
    subject.commit(&subject.draft(&held).then(step("one")).yielded(), &mut held);
    other.wait_for(is_about_readiness);
}

fn p7_released_work_is_told(subject: &Subject) {
    let (seat, _held) = subject.held("a");
    let other = subject.seat(worker());
    seat.retire();
    other.wait_for(is_about_readiness);
}

fn p7_emitted_message_is_told_to_its_holder(subject: &Subject) {
    let (target, _held) = subject.held("target");
    let (_seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).emitting(signal("s", "target")), &mut held);
    target.wait_for(|notice| is_message(notice, "s"));
}

fn notices_that_came_before_the_wait_are_kept(subject: &Subject) {
    let (seat, _held) = subject.held("a");
    for n in 0..20 {
        subject.send(signal(&format!("{n}"), "a"));
    }
    seat.wait_for(|notice| is_message(notice, "19"));
}

fn dropped_wait_loses_no_notice(subject: &Subject) {
    let (seat, _held) = subject.held("a");
    drop(subject.store.wait(seat.session));
    subject.send(signal("s", "a"));
    drop(subject.store.wait(seat.session));
    seat.wait_for(|notice| is_message(notice, "s"));
}

fn notice_comes_to_a_wait_that_is_under_way(subject: &Subject) {
    let (seat, held) = subject.held("a");
    // Notices that the claim itself caused are taken first, as far as they have come.
    let submit = Submit { messages: vec![signal("s0", "a")], born_to: None, alone: false, stretch: None };
    block_on(subject.store.submit(submit)).expect("it is taken");
    seat.wait_for(|notice| is_message(notice, "s0"));
    let store = subject.store.clone();
    let (told, sent) = block_on(both(store.wait(seat.session), async {
        subject
            .store
            .submit(Submit { messages: vec![signal("s1", "a")], born_to: None, alone: false, stretch: None })
            .await
    }));
    sent.expect("it is taken");
    assert!(!told.expect("a live session may wait").is_empty());
    subject.send(start_of("b", flow()));
    assert_eq!(held.id(), "a");
}
