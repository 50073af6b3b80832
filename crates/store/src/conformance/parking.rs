//! What becomes of an execution that is given back.

use abide_core::Command;

use super::make::{by, cancel, pause, resume, signal, step, worker};
use super::{Subject, table};

table![
    yielded_execution_is_ready_at_once,
    parked_execution_waits,
    parked_execution_is_woken_by_a_message,
    park_with_an_unseen_message_is_ready_at_once,
    park_with_seen_messages_waits,
    park_counts_only_what_is_unread_after_the_commit,
    park_with_an_unseen_message_beside_seen_ones_is_ready_at_once,
    paused_park_with_an_unseen_signal_waits,
    paused_park_with_an_unseen_control_is_ready_at_once,
    message_after_a_park_with_seen_messages_wakes,
    parked_work_is_ready_since_the_message,
];

fn yielded_execution_is_ready_at_once(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.advance_ms(5);
    subject.commit(&subject.draft(&held).then(step("one")).yielded(), &mut held);
    let found = subject.look("a");
    assert_eq!((found.ready_at, found.lease.session), (Some(subject.now()), None));
    assert_eq!(seat.claim_one().version, held.version);
}

fn parked_execution_waits(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).park(0), &mut held);
    let found = subject.look("a");
    assert_eq!((found.ready_at, found.lease.session), (None, None));
    subject.advance_ms(1_000);
    let claimed = seat.claim(1);
    assert_eq!((claimed.leased.len(), claimed.more, claimed.next_wake_at), (0, false, None));
    assert_eq!(seat.lease_count(), 0);
}

fn parked_execution_is_woken_by_a_message(subject: &Subject) {
    for (id, message) in [("a", signal("s", "a")), ("b", cancel("b")), ("c", pause("c"))] {
        let (mut seat, mut held) = subject.held(id);
        subject.commit(&subject.draft(&held).then(step("one")).park(0), &mut held);
        subject.send(message.clone());
        assert_eq!(seat.claim_one().inbox, [subject.arrived(message)]);
    }
}

fn park_with_an_unseen_message_is_ready_at_once(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).then(step("one")).park(0);
    // It arrives after the worker looked into its inbox and before it parks.
    subject.send(signal("s", "a"));
    subject.commit(&draft, &mut held);
    assert_eq!(subject.look("a").ready_at, Some(subject.now()));
    assert_eq!(seat.claim_one().inbox, [subject.arrived(signal("s", "a"))]);
}

fn park_with_seen_messages_waits(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(signal("s1", "a"));
    subject.send(signal("s2", "a"));
    subject.commit(&subject.draft(&held).park(2), &mut held);
    assert_eq!(subject.look("a").ready_at, None);
    assert!(seat.claim_ids(1).is_empty());
    assert_eq!(subject.unread("a").len(), 2, "they stay unread");
}

fn park_counts_only_what_is_unread_after_the_commit(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(signal("s1", "a"));
    subject.send(signal("s2", "a"));
    subject.commit(&subject.draft(&held).consuming(&["s1"]).park(1), &mut held);
    assert!(seat.claim_ids(1).is_empty());
}

fn park_with_an_unseen_message_beside_seen_ones_is_ready_at_once(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    for id in ["s1", "s2", "s3"] {
        subject.send(signal(id, "a"));
    }
    subject.commit(&subject.draft(&held).consuming(&["s1"]).park(1), &mut held);
    assert_eq!(seat.claim_ids(1), ["a"]);
}

fn pausing() -> Command {
    Command::Pause { by: by(), reason: String::new() }
}

fn paused_park_with_an_unseen_signal_waits(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).then(pausing()).park(0);
    subject.send(signal("s", "a"));
    subject.commit(&draft, &mut held);
    assert!(seat.claim_ids(1).is_empty(), "it would be looked at and put back for ever");
    subject.send(resume("a"));
    assert_eq!(seat.claim_one().inbox, [subject.arrived(signal("s", "a")), subject.arrived(resume("a"))]);
}

fn paused_park_with_an_unseen_control_is_ready_at_once(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).then(pausing()).park(0);
    subject.send(cancel("a"));
    subject.commit(&draft, &mut held);
    assert_eq!(seat.claim_one().inbox, [subject.arrived(cancel("a"))]);
}

fn message_after_a_park_with_seen_messages_wakes(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(signal("s1", "a"));
    subject.commit(&subject.draft(&held).park(1), &mut held);
    subject.send(signal("s2", "a"));
    assert_eq!(seat.claim_one().inbox.len(), 2);
}

fn parked_work_is_ready_since_the_message(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).park(0), &mut held);
    subject.advance_ms(1);
    subject.start("b", super::make::flow());
    subject.advance_ms(1);
    subject.send(signal("s", "a"));
    assert_eq!(subject.seat(worker()).claim_ids(9), ["b", "a"]);
}
