//! Executions whose holder releases them.

use abide_core::{Command, Listens, Waiting};

use super::make::{by, cancel, pause, resume, signal, step, worker};
use super::{Subject, table};

table![
    yielded_execution_is_ready_at_once,
    parked_execution_waits,
    parked_execution_is_woken_by_a_message,
    park_with_an_unseen_message_is_ready_at_once,
    park_with_seen_messages_waits,
    park_after_reading_the_older_one_waits,
    park_after_reading_the_newer_one_waits,
    park_with_an_unseen_message_beside_seen_ones_is_ready_at_once,
    park_that_names_a_message_which_was_read_is_ready_at_once,
    park_that_names_a_message_which_never_came_is_ready_at_once,
    park_that_names_the_older_message_is_ready_at_once,
    park_that_names_the_newer_message_is_ready_at_once,
    park_beside_as_many_unread_messages_as_were_seen_is_ready_at_once,
    paused_park_with_an_unseen_signal_waits,
    paused_park_with_an_unseen_control_is_ready_at_once,
    resting_execution_is_woken_by_time_alone,
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
    subject.commit(&subject.draft(&held).park(), &mut held);
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
        subject.commit(&subject.draft(&held).then(step("one")).park(), &mut held);
        subject.send(message.clone());
        assert_eq!(seat.claim_one().inbox, [subject.arrived(message)]);
    }
}

fn park_with_an_unseen_message_is_ready_at_once(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).then(step("one")).park();
    // The message arrives after the worker looked into its inbox and before it parks.
    subject.send(signal("s", "a"));
    subject.commit(&draft, &mut held);
    assert_eq!(subject.look("a").ready_at, Some(subject.now()));
    assert_eq!(seat.claim_one().inbox, [subject.arrived(signal("s", "a"))]);
}

fn park_with_seen_messages_waits(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(signal("s1", "a"));
    subject.send(signal("s2", "a"));
    subject.commit(&subject.draft(&held).park_seen(&["s1", "s2"]), &mut held);
    assert_eq!(subject.look("a").ready_at, None);
    assert!(seat.claim_ids(1).is_empty());
    assert_eq!(subject.unread("a").len(), 2, "they stay unread");
}

fn park_after_reading_the_older_one_waits(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(signal("s1", "a"));
    subject.send(signal("s2", "a"));
    subject.commit(&subject.draft(&held).consuming(&["s1"]).park_seen(&["s2"]), &mut held);
    assert!(seat.claim_ids(1).is_empty());
}

fn park_after_reading_the_newer_one_waits(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(signal("s1", "a"));
    subject.send(signal("s2", "a"));
    subject.commit(&subject.draft(&held).consuming(&["s2"]).park_seen(&["s1"]), &mut held);
    assert!(seat.claim_ids(1).is_empty());
    assert_eq!(subject.unread("a"), ["s1"]);
}

fn park_with_an_unseen_message_beside_seen_ones_is_ready_at_once(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    for id in ["s1", "s2", "s3"] {
        subject.send(signal(id, "a"));
    }
    subject.commit(&subject.draft(&held).consuming(&["s1"]).park_seen(&["s2"]), &mut held);
    assert_eq!(seat.claim_ids(1), ["a"]);
}

/// A wrong or stale id costs one look too many. No message has to wait until the next one comes.
fn check_too_many(subject: &Subject, seen: &[&str]) {
    let (mut seat, mut held) = subject.held("a");
    for id in ["s1", "s2", "s3"] {
        subject.send(signal(id, "a"));
    }
    subject.commit(&subject.draft(&held).consuming(&["s2"]), &mut held);
    subject.commit(&subject.draft(&held).park_seen(seen), &mut held);
    let mut held = seat.claim_one();
    assert_eq!(subject.unread("a"), ["s1", "s3"]);
    subject.commit(&subject.draft(&held).park_seen(&["s3", "s1", "s2"]), &mut held);
    assert!(seat.claim_ids(1).is_empty(), "whoever looked has seen both");
}

fn park_that_names_a_message_which_was_read_is_ready_at_once(subject: &Subject) {
    check_too_many(subject, &["s1", "s2"]);
}

fn park_that_names_a_message_which_never_came_is_ready_at_once(subject: &Subject) {
    check_too_many(subject, &["s1", "s9"]);
}

fn park_that_names_the_older_message_is_ready_at_once(subject: &Subject) {
    check_too_many(subject, &["s1"]);
}

/// A database may let an older message appear after a newer one.
fn park_that_names_the_newer_message_is_ready_at_once(subject: &Subject) {
    check_too_many(subject, &["s3"]);
}

/// One message was read and another has come: the number of unread messages is the same, but they
/// differ.
fn park_beside_as_many_unread_messages_as_were_seen_is_ready_at_once(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(signal("s1", "a"));
    subject.send(signal("s2", "a"));
    subject.commit(&subject.draft(&held).consuming(&["s1", "s2"]), &mut held);
    let draft = subject.draft(&held).park_seen(&["s2"]);
    subject.send(signal("s3", "a"));
    subject.commit(&draft, &mut held);
    assert_eq!(seat.claim_one().inbox, [subject.arrived(signal("s3", "a"))]);
}

fn pausing() -> Command {
    Command::Pause { by: by(), reason: String::new() }
}

fn paused_park_with_an_unseen_signal_waits(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).then(pausing()).park();
    subject.send(signal("s", "a"));
    subject.commit(&draft, &mut held);
    assert!(seat.claim_ids(1).is_empty(), "it would be looked at and put back for ever");
    subject.send(resume("a"));
    assert_eq!(seat.claim_one().inbox, [subject.arrived(signal("s", "a")), subject.arrived(resume("a"))]);
}

fn paused_park_with_an_unseen_control_is_ready_at_once(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).then(pausing()).park();
    subject.send(cancel("a"));
    subject.commit(&draft, &mut held);
    assert_eq!(seat.claim_one().inbox, [subject.arrived(cancel("a"))]);
}

/// An execution that killed its worker rests. No message ends the rest, and no message is lost.
fn resting_execution_is_woken_by_time_alone(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let until = Some(subject.later_ms(1_000));
    let draft = subject.draft(&held).waiting(Waiting::Suspect { died_at: Vec::new(), until }).park();
    subject.send(signal("s1", "a"));
    subject.commit(&draft, &mut held);
    assert_eq!(subject.look("a").summary.listens, Listens::Nothing);
    subject.send(signal("s2", "a"));
    subject.send(cancel("a"));
    assert!(seat.claim_ids(1).is_empty());
    subject.advance_ms(1_000);
    assert_eq!(seat.claim_one().inbox.len(), 3);
}

fn message_after_a_park_with_seen_messages_wakes(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(signal("s1", "a"));
    subject.commit(&subject.draft(&held).park_seen(&["s1"]), &mut held);
    subject.send(signal("s2", "a"));
    assert_eq!(seat.claim_one().inbox.len(), 2);
}

fn parked_work_is_ready_since_the_message(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).park(), &mut held);
    subject.advance_ms(1);
    subject.start("b", super::make::flow());
    subject.advance_ms(1);
    subject.send(signal("s", "a"));
    assert_eq!(subject.seat(worker()).claim_ids(9), ["b", "a"]);
}
