//! Messages from one execution to another.

use abide_core::{Body, Outcome, Payload, Start};

use super::make::{cancel, child_of, complete, delayed, flow, signal, start_of, step, tag, worker};
use super::{Subject, table};
use crate::Snapshot;

table![
    emitted_message_arrives,
    emit_to_an_unknown_target_is_dropped_and_counted,
    emit_to_a_finished_target_is_dropped_and_counted,
    emit_that_its_target_does_not_accept_is_dropped_and_counted,
    dropped_emit_does_not_hinder_the_others,
    duplicate_emit_is_fine,
    emitted_message_wakes_a_parked_target,
    emit_to_oneself_is_unread_after_a_park,
    emit_to_oneself_at_the_end_is_dropped,
    child_start_creates_a_child,
    delayed_child_start_is_scheduled,
    repeated_child_start_attaches,
    refused_child_start_comes_back_as_a_failure,
    oversize_child_start_comes_back_as_a_failure,
    each_refused_child_start_comes_back,
    refused_child_start_makes_a_parked_parent_ready,
    refused_start_that_nobody_waits_for_is_dropped,
    refused_child_start_of_an_ended_parent_is_dropped,
    child_result_wakes_a_parked_parent,
    child_result_arrives_at_a_full_inbox,
    message_to_a_child_of_the_same_commit_arrives,
];

fn emitted_message_arrives(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.start("b", flow());
    let committed = subject.commit(&subject.draft(&held).emitting(signal("s", "b")), &mut held);
    assert_eq!(committed.dropped_count, 0);
    assert_eq!(subject.look("b").inbox.messages, [subject.arrived(signal("s", "b"))]);
}

fn emit_to_an_unknown_target_is_dropped_and_counted(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).then(step("one")).emitting(signal("s", "nobody"));
    assert_eq!(subject.commit(&draft, &mut held).dropped_count, 1);
    assert_eq!(subject.look("a").journal.len(), 2, "the emitter's commit stands");
    subject.start("nobody", flow());
    assert!(subject.unread("nobody").is_empty());
}

fn emit_to_a_finished_target_is_dropped_and_counted(subject: &Subject) {
    let (_other, mut target) = subject.held("target");
    subject.record(&mut target, complete());
    let before = subject.look("target");
    let (_seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).emitting(signal("s", "target")).emitting(cancel("target"));
    assert_eq!(subject.commit(&draft, &mut held).dropped_count, 2);
    assert_eq!(subject.look("target"), before);
}

fn emit_that_its_target_does_not_accept_is_dropped_and_counted(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.start("b", flow());
    let draft = subject.draft(&held).emitting(super::make::resume("b"));
    assert_eq!(subject.commit(&draft, &mut held).dropped_count, 1);
    assert!(subject.unread("b").is_empty());
}

fn dropped_emit_does_not_hinder_the_others(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.start("b", flow());
    let draft = subject
        .draft(&held)
        .emitting(signal("s1", "b"))
        .emitting(signal("s2", "nobody"))
        .emitting(signal("s3", "b"));
    assert_eq!(subject.commit(&draft, &mut held).dropped_count, 1);
    assert_eq!(subject.unread("b"), ["s1", "s3"]);
}

fn duplicate_emit_is_fine(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.start("b", flow());
    for _ in 0..2 {
        let draft = subject.draft(&held).emitting(signal("s", "b")).emitting(signal("s", "b"));
        assert_eq!(subject.commit(&draft, &mut held).dropped_count, 0);
    }
    assert_eq!(subject.unread("b"), ["s"]);
}

fn emitted_message_wakes_a_parked_target(subject: &Subject) {
    let (mut seat, mut parked) = subject.held("parked");
    subject.commit(&subject.draft(&parked).park(), &mut parked);
    let (_other, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).emitting(signal("s", "parked")), &mut held);
    assert_eq!(seat.claim_one().inbox, [subject.arrived(signal("s", "parked"))]);
}

fn emit_to_oneself_is_unread_after_a_park(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let committed = subject.commit(&subject.draft(&held).emitting(signal("s", "a")).park(), &mut held);
    assert_eq!(committed.dropped_count, 0);
    assert_eq!(seat.claim_one().inbox, [subject.arrived(signal("s", "a"))]);
}

fn emit_to_oneself_at_the_end_is_dropped(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).emitting(signal("s", "a")).then(complete());
    assert_eq!(subject.commit(&draft, &mut held).dropped_count, 1);
    assert!(subject.unread("a").is_empty());
}

fn child_start_creates_a_child(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let start = Start { tags: vec![tag("k", "v")], priority: 3, ..child_of("a", "child") };
    let committed =
        subject.commit(&subject.draft(&held).emitting(start_of("child", start.clone())), &mut held);
    assert!(committed.born.is_empty(), "nobody offered to run it");
    let child = subject.look("child");
    assert_eq!((child.ready_at, child.created_at), (Some(subject.now()), subject.now()));
    assert_eq!((child.execution.parent(), child.tags), (start.parent.as_ref(), start.tags.clone()));
    assert_eq!(seat.claim_ids(1), ["child"]);
}

fn delayed_child_start_is_scheduled(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let start = Start { parent: child_of("a", "child").parent, ..delayed(subject.later_ms(100)) };
    let draft = subject.draft(&held).emitting(start_of("child", start)).born_slots(1);
    assert!(subject.commit(&draft, &mut held).born.is_empty());
    assert!(seat.claim_ids(1).is_empty());
    subject.advance_ms(100);
    assert_eq!(seat.claim_ids(1), ["child"]);
}

fn repeated_child_start_attaches(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    for _ in 0..2 {
        let draft = subject.draft(&held).emitting(start_of("child", child_of("a", "child")));
        assert_eq!(subject.commit(&draft, &mut held).dropped_count, 0);
    }
    assert!(subject.unread("a").is_empty(), "an attached start is not refused");
    assert_eq!(subject.look("child").journal.len(), 1);
}

/// Checks that every message in the inbox reports a refused child. Returns the operations and
/// failure messages.
fn refusals(found: &Snapshot) -> Vec<(String, String)> {
    let told = found.inbox.messages.iter().map(|message| match &message.body {
        Body::ChildDone { op, outcome: Outcome::Failure(failure), .. } => {
            (op.name.as_str().to_owned(), failure.message.clone())
        }
        other => panic!("expected a refused child, found {other:?}"),
    });
    told.collect()
}

fn refused_child_start_comes_back_as_a_failure(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.start("taken", flow().with_input(Payload::from("other")));
    let before = subject.look("taken");
    let draft = subject.draft(&held).then(step("one")).emitting(start_of("taken", child_of("a", "child")));
    assert_eq!(subject.commit(&draft, &mut held).dropped_count, 0, "it comes back, it is not dropped");
    let told = refusals(&subject.look("a"));
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].0, "child");
    assert!(told[0].1.contains(r#""taken""#) && told[0].1.contains("other"), "{}", told[0].1);
    assert_eq!(subject.look("taken"), before);
    assert_eq!(subject.look("a").lease.version, held.version, "the emitter's commit stands");
}

fn oversize_child_start_comes_back_as_a_failure(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let input = Payload::from(vec![b'1'; super::bounds().payload_bytes_max + 1]);
    let start = child_of("a", "child").with_input(input);
    subject.commit(&subject.draft(&held).emitting(start_of("child", start)), &mut held);
    assert!(!subject.exists("child"));
    assert!(refusals(&subject.look("a"))[0].1.contains("payload_bytes_max"));
}

fn each_refused_child_start_comes_back(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.start("taken", flow());
    let draft = subject
        .draft(&held)
        .emitting(start_of("taken", child_of("a", "one")))
        .emitting(start_of("taken", child_of("a", "two")));
    subject.commit(&draft, &mut held);
    let told = refusals(&subject.look("a"));
    assert_eq!((told[0].0.as_str(), told[1].0.as_str()), ("one", "two"), "each wait gets its answer");
}

fn refused_child_start_makes_a_parked_parent_ready(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let (_other, mut taken) = subject.held("taken");
    subject.commit(&subject.draft(&taken).park(), &mut taken);
    let draft = subject.draft(&held).emitting(start_of("taken", child_of("a", "child"))).park();
    subject.commit(&draft, &mut held);
    assert_eq!(seat.claim_one().inbox.len(), 1);
}

fn refused_start_that_nobody_waits_for_is_dropped(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.start("taken", flow());
    let detached = flow().with_input(Payload::from("other"));
    let draft = subject.draft(&held).emitting(start_of("taken", detached));
    assert_eq!(subject.commit(&draft, &mut held).dropped_count, 1);
    assert!(subject.unread("a").is_empty());
}

fn refused_child_start_of_an_ended_parent_is_dropped(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.start("taken", flow());
    let draft = subject.draft(&held).emitting(start_of("taken", child_of("a", "child"))).then(complete());
    assert_eq!(subject.commit(&draft, &mut held).dropped_count, 1);
    assert!(subject.unread("a").is_empty());
}

/// Claims `child` and completes it. Returns the number of dropped messages.
fn finish_child(subject: &Subject) -> usize {
    let mut seat = subject.seat(worker());
    let mut child = seat.claim_one();
    assert_eq!(child.id(), "child");
    let draft = subject.draft(&child).then(complete());
    subject.commit(&draft, &mut child).dropped_count
}

fn child_result_wakes_a_parked_parent(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).emitting(start_of("child", child_of("a", "child"))).park();
    subject.commit(&draft, &mut held);
    subject.advance_ms(7);
    assert_eq!(finish_child(subject), 0);
    assert_eq!(subject.look("a").ready_at, Some(subject.now()));
    let held = seat.claim_one();
    let Body::ChildDone { op, outcome, .. } = &held.inbox[0].body else {
        panic!("expected a child's result, found {:?}", held.inbox);
    };
    assert_eq!((op.name.as_str(), outcome), ("child", &Outcome::Success(Payload::from("done"))));
}

fn child_result_arrives_at_a_full_inbox(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).emitting(start_of("child", child_of("a", "child"))), &mut held);
    let count = super::bounds().inbox_count_max;
    for n in 0..count {
        subject.send(signal(&format!("{n}"), "a"));
    }
    assert_eq!(finish_child(subject), 0, "a lost result would leave the parent waiting for ever");
    assert_eq!(subject.unread("a").len(), count + 1);
}

fn message_to_a_child_of_the_same_commit_arrives(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let child = start_of("child", child_of("a", "child"));
    let draft = subject.draft(&held).emitting(child).emitting(signal("s", "child"));
    assert_eq!(subject.commit(&draft, &mut held).dropped_count, 0);
    assert_eq!(subject.unread("child"), ["s"]);
}
