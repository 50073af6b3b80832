//! Messages to executions that exist.

use abide_core::{Block, Body, Command, Kind, Op, OpKind, Payload, Remedy, Start, Status, StepRemedy};

use super::make::{by, cancel, complete, flow, message, name, pause, resume, signal, step, terminate};
use super::{Subject, table};
use crate::{Notice, Submitted};

table![
    signals_are_unread_in_order_of_arrival,
    message_tells_who_sent_it_and_when_it_arrived,
    holder_is_told_when_a_message_arrived,
    p6_signal_to_an_unknown_execution_is_refused,
    p4_every_message_to_a_finished_execution_is_refused,
    unread_message_is_a_duplicate,
    consumed_message_is_a_duplicate,
    message_ids_stay_after_the_end,
    duplicate_with_another_body_changes_nothing,
    duplicate_in_one_submit_is_told,
    message_ids_belong_to_their_execution,
    control_that_cannot_be_is_refused,
    control_is_judged_by_what_lies_before_it,
    cancel_of_a_task_is_accepted,
    message_does_not_touch_a_held_execution,
    message_to_a_ready_execution_keeps_its_place,
    paused_execution_is_woken_by_resume_and_not_by_a_signal,
    blocked_execution_is_woken_by_unblock_and_not_by_a_signal,
    p1_only_the_step_that_blocks_can_be_decided_about,
    message_to_a_scheduled_execution_makes_it_ready,
];

fn signals_are_unread_in_order_of_arrival(subject: &Subject) {
    subject.start("a", flow());
    for id in ["z", "y", "x"] {
        assert!(matches!(subject.send(signal(id, "a")), Submitted::Delivered(_)));
    }
    subject.submit(vec![signal("w", "a"), signal("v", "a")]).expect("both are taken");
    assert_eq!(subject.unread("a"), ["z", "y", "x", "w", "v"]);
    let held = subject.seat(super::make::worker()).claim_one();
    assert_eq!(held.inbox, subject.look("a").inbox.messages, "a lease brings the inbox");
    assert_eq!(held.inbox[0], subject.arrived(signal("z", "a")));
}

fn message_tells_who_sent_it_and_when_it_arrived(subject: &Subject) {
    let (_seat, mut parent) = subject.held("parent");
    subject.start("a", flow());
    let sent_at = subject.later_ms(5);
    subject.advance_ms(5);
    // The sender cannot choose the time of arrival.
    let mut early = signal("early", "a").arrived(subject.later_ms(9_999));
    early.by = abide_core::By("bob".into());
    subject.send(early.clone());
    subject.advance_ms(5);
    let emitted_at = subject.now();
    subject.commit(&subject.draft(&parent).emitting(signal("emitted", "a")), &mut parent);
    subject.advance_ms(5);
    subject.send(early.clone());
    let expected = [early.arrived(sent_at), signal("emitted", "a").arrived(emitted_at)];
    assert_eq!(subject.look("a").inbox.messages, expected, "a duplicate changes nothing");
    let held = subject.seat(super::make::worker()).claim_one();
    assert_eq!(held.inbox, expected);
}

/// Every message reaches a holder with its time of arrival, whichever way it takes.
fn holder_is_told_when_a_message_arrived(subject: &Subject) {
    let (seat, _held) = subject.held("a");
    subject.advance_ms(5);
    subject.send(signal("s", "a"));
    let wanted = signal("s", "a").arrived(subject.now());
    seat.wait_for(|notice| {
        matches!(notice, Notice::Message { message, .. } if *message == wanted) || *notice == Notice::Changed
    });
    let together = vec![super::make::start_of("b", flow()), signal("s", "b")];
    let started = subject.start_born(&seat, together);
    let Submitted::Started(_, Some(born)) = &started[0] else { panic!("not born: {started:?}") };
    assert_eq!(born.inbox.messages, [subject.arrived(signal("s", "b"))]);
}

fn p6_signal_to_an_unknown_execution_is_refused(subject: &Subject) {
    let refusal = subject.refusal(vec![signal("s", "nobody")]);
    assert!(refusal.contains(r#""nobody""#), "{refusal}");
    subject.start("nobody", flow());
    assert!(subject.unread("nobody").is_empty(), "the refused signal left no trace");
    assert!(matches!(subject.send(signal("s", "nobody")), Submitted::Delivered(_)));
}

fn p4_every_message_to_a_finished_execution_is_refused(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.record(&mut held, complete());
    let before = subject.picture();
    for message in [signal("s", "a"), pause("a"), resume("a"), cancel("a"), terminate("a")] {
        let refusal = subject.refusal(vec![message]);
        assert!(refusal.contains("completed"), "{refusal}");
    }
    assert_eq!(subject.picture(), before);
    assert!(seat.claim_ids(9).is_empty());
}

fn unread_message_is_a_duplicate(subject: &Subject) {
    let key = subject.start("a", flow());
    subject.send(signal("s", "a"));
    let before = subject.picture();
    let again = subject.send(signal("s", "a"));
    assert!(matches!(again, Submitted::Duplicate(found) if found == key), "{again:?}");
    assert_eq!(subject.picture(), before);
}

fn consumed_message_is_a_duplicate(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(signal("s", "a"));
    subject.commit(&subject.draft(&held).consuming(&["s"]).park(), &mut held);
    let again = subject.send(signal("s", "a"));
    assert!(matches!(again, Submitted::Duplicate(_)), "{again:?}");
    assert!(subject.unread("a").is_empty());
    assert!(seat.claim_ids(1).is_empty(), "a duplicate wakes nobody");
}

fn message_ids_stay_after_the_end(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.send(signal("read", "a"));
    subject.send(signal("unread", "a"));
    subject.commit(&subject.draft(&held).consuming(&["read"]).then(complete()), &mut held);
    for id in ["read", "unread"] {
        // The sender did not get the first answer, but its message has arrived.
        assert!(matches!(subject.send(signal(id, "a")), Submitted::Duplicate(_)));
    }
}

fn duplicate_with_another_body_changes_nothing(subject: &Subject) {
    subject.start("a", flow());
    subject.send(signal("s", "a"));
    let other = Body::Signal { name: name("other"), payload: "other".into() };
    assert!(matches!(subject.send(message("s", "a", other)), Submitted::Duplicate(_)));
    assert_eq!(subject.look("a").inbox.messages, [subject.arrived(signal("s", "a"))]);
}

fn duplicate_in_one_submit_is_told(subject: &Subject) {
    subject.start("a", flow());
    let submitted = subject.submit(vec![signal("s", "a"), signal("s", "a")]).expect("both are taken");
    assert!(
        matches!(submitted.as_slice(), [Submitted::Delivered(_), Submitted::Duplicate(_)]),
        "{submitted:?}"
    );
    assert_eq!(subject.unread("a"), ["s"]);
}

fn message_ids_belong_to_their_execution(subject: &Subject) {
    subject.start("a", flow());
    subject.start("b", flow());
    subject.send(signal("s", "a"));
    assert!(matches!(subject.send(signal("s", "b")), Submitted::Delivered(_)));
    assert_eq!((subject.unread("a").len(), subject.unread("b").len()), (1, 1));
}

fn control_that_cannot_be_is_refused(subject: &Subject) {
    subject.start("a", flow());
    let before = subject.picture();
    assert!(subject.refusal(vec![resume("a")]).contains("not paused"));
    let unblock = message("unblock", "a", Body::Unblock { step: None });
    assert!(subject.refusal(vec![unblock]).contains("not blocked"));
    assert_eq!(subject.picture(), before);
}

fn control_is_judged_by_what_lies_before_it(subject: &Subject) {
    let pause = |id: &str| message(id, "a", Body::Pause { reason: String::new() });
    subject.start("a", flow());
    subject.send(pause("p1"));
    assert!(matches!(subject.send(resume("a")), Submitted::Delivered(_)), "it will be paused by then");
    let again = |id: &str| message(id, "a", Body::Resume);
    assert!(subject.refusal(vec![again("r2")]).contains("not paused"), "it will go on by then");
    subject.submit(vec![pause("p3"), again("r3")]).expect("both are in place");
    assert_eq!(subject.unread("a").len(), 4);
    let before = subject.picture();
    let both = vec![pause("p4"), again("r4"), again("r5")];
    assert!(subject.refusal(both).contains("not paused"), "only the last one is out of place");
    assert_eq!(subject.picture(), before);
}

fn cancel_of_a_task_is_accepted(subject: &Subject) {
    subject.start("a", Start { kind: Kind::Task, ..flow() });
    assert!(matches!(subject.send(cancel("a")), Submitted::Delivered(_)));
    assert_eq!(subject.look("a").summary.status, Status::Running, "the store itself applies no control");
}

fn message_does_not_touch_a_held_execution(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let before = subject.look("a");
    subject.send(signal("s", "a"));
    let mut after = subject.look("a");
    assert_eq!(after.inbox.messages.len(), 1);
    after.inbox.messages.clear();
    assert_eq!(after, before);
    subject.record(&mut held, step("still mine"));
}

fn message_to_a_ready_execution_keeps_its_place(subject: &Subject) {
    subject.start("a", flow());
    let ready_at = subject.look("a").ready_at;
    subject.advance_ms(5);
    subject.start("b", flow());
    subject.advance_ms(5);
    subject.send(signal("s", "a"));
    assert_eq!(subject.look("a").ready_at, ready_at);
    assert_eq!(subject.seat(super::make::worker()).claim_ids(9), ["a", "b"]);
}

fn paused_execution_is_woken_by_resume_and_not_by_a_signal(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let pausing = Command::Pause { by: by(), reason: String::new() };
    subject.commit(&subject.draft(&held).then(pausing).park(), &mut held);
    subject.send(signal("s", "a"));
    assert_eq!(subject.look("a").summary.status, Status::Paused);
    assert_eq!(subject.look("a").ready_at, None, "a pause is not disturbed");
    assert!(seat.claim_ids(1).is_empty());
    subject.send(resume("a"));
    let held = seat.claim_one();
    assert_eq!(held.inbox.len(), 2, "the signal waited");
}

fn blocked_execution_is_woken_by_unblock_and_not_by_a_signal(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let block = Command::block(Block::Limit { reason: "too long".to_owned() });
    subject.commit(&subject.draft(&held).then(block).park(), &mut held);
    subject.send(signal("s", "a"));
    assert!(seat.claim_ids(1).is_empty());
    subject.send(message("unblock", "a", Body::Unblock { step: None }));
    assert_eq!(seat.claim_ids(1), ["a"]);
}

fn p1_only_the_step_that_blocks_can_be_decided_about(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let op = Op { kind: OpKind::Step, name: name("report"), key: None, nth: 2 };
    let block = Command::block(Block::Unrecordable { op, reason: "large".to_owned() });
    subject.commit(&subject.draft(&held).then(step("sound")).then(block).park(), &mut held);
    let before = subject.picture();
    let decide = |step: &str, remedy| {
        message("unblock", "a", Body::Unblock { step: Some(StepRemedy { step: step.to_owned(), remedy }) })
    };
    for remedy in [Remedy::Rerun, Remedy::Edit(Payload::from("1"))] {
        let refusal = subject.refusal(vec![decide("sound", remedy)]);
        assert!(refusal.contains("a recorded result never changes"), "{refusal}");
    }
    let refusal = subject.refusal(vec![message("unblock", "a", Body::Unblock { step: None })]);
    assert!(refusal.contains("--rerun report#2"), "{refusal}");
    assert_eq!(subject.picture(), before, "a refusal leaves no trace");
    assert!(seat.claim_ids(1).is_empty());
    subject.send(decide("report#2", Remedy::Rerun));
    assert_eq!(seat.claim_ids(1), ["a"]);
}

fn message_to_a_scheduled_execution_makes_it_ready(subject: &Subject) {
    subject.start("a", super::make::delayed(subject.later_ms(1_000)));
    let mut seat = subject.seat(super::make::worker());
    assert!(seat.claim_ids(1).is_empty());
    subject.send(cancel("a"));
    assert_eq!(seat.claim_ids(1), ["a"], "a cancel does not wait for the time to come");
}
