//! From one run to the next: continue-as-new and retry.

use abide_core::{
    Body, Command, Epoch, Event, Failure, FailureKind, Fence, Op, OpKind, Outcome, Payload, Start, Status,
    Version,
};

use super::held::Held;
use super::make::{
    address, by, cancel, child_of, complete, everything, flow, message, name, pause, signal, start_of, step,
    tag, terminate, worker,
};
use super::{Subject, table};
use crate::{CommitOutcome, List, Notice, Record, Snapshot, Submitted, Target};

table![
    p4_continue_opens_the_next_run_under_the_same_lease,
    p4_run_that_continued_can_be_read_and_never_changes,
    next_run_is_read_in_pages_from_its_first_entry,
    earlier_run_is_read_in_pages_as_it_was,
    next_run_of_a_long_one_is_claimed_with_its_own_beginning,
    continue_leaves_unread_what_was_not_read,
    p4_consumed_message_ids_stay_across_runs,
    continue_can_park_and_wakes_by_its_deadline,
    continue_sends_its_messages_when_the_next_run_has_begun,
    repeated_continue_is_committed_and_has_no_second_effect,
    p3_writer_of_an_earlier_run_is_fenced,
    p3_writer_of_an_earlier_run_is_fenced_after_a_takeover,
    takeover_count_is_reset_by_a_next_run,
    start_is_compared_with_what_the_first_run_began_with,
    tags_and_parent_are_those_of_the_first_run,
    p4_retry_opens_the_next_run_of_what_failed_or_was_cancelled,
    p4_retry_of_anything_else_is_refused,
    p4_repeated_retry_is_a_duplicate,
    retried_run_reads_signals_but_no_old_orders,
    p8_orders_that_a_retry_forgets_take_no_room,
    retry_and_a_signal_can_be_sent_together,
    p6_refused_submit_takes_back_its_retry,
    p7_retry_is_told_to_those_who_could_run_it,
    p3_last_writer_of_a_failed_run_cannot_write_the_retried_one,
    p4_answer_to_an_earlier_run_is_dropped,
    p4_child_that_continues_answers_once_and_one_that_is_retried_not_again,
    prune_deletes_every_run,
    prune_counts_from_the_end_of_the_last_run,
    p8_long_chain_costs_the_same_in_every_run,
];

fn fail() -> Command {
    Command::Fail(Failure::new(FailureKind::Fatal, "no"))
}

fn retry(id: &str, to: &str) -> abide_core::Message {
    message(id, to, Body::Retry)
}

fn words(records: &[Record]) -> Vec<&'static str> {
    records.iter().map(|record| record.entry().expect("it can be read").event.word()).collect()
}

/// Reads the records of all runs of an execution.
fn recorded(subject: &Subject, id: &str) -> Vec<Record> {
    subject.history(&Target::Address(address(id))).concat()
}

fn input(found: &Snapshot) -> Payload {
    let first = found.journal[0].entry().expect("it can be read");
    first.began().expect("a run begins with its start").start.input.clone()
}

/// Lets an execution with this id begin and fail now.
fn failed(subject: &Subject, id: &str) -> Held {
    let (_seat, mut held) = subject.held(id);
    subject.record(&mut held, fail());
    held
}

fn p4_continue_opens_the_next_run_under_the_same_lease(subject: &Subject) {
    let (seat, mut held) = subject.held("a");
    let created_at = subject.look("a").created_at;
    subject.advance_ms(5);
    subject.commit(&subject.draft(&held).then(step("one")).continued("2"), &mut held);
    let found = subject.look("a");
    assert_eq!((found.execution.run(), found.summary.status), (2, Status::Running));
    assert_eq!(found.execution, held.execution);
    assert_eq!((words(&found.journal), input(&found)), (vec!["started"], Payload::from("2")));
    assert_eq!((found.lease.session, found.lease.epoch), (Some(seat.session), held.lease.epoch));
    assert_eq!((found.lease.version, found.created_at), (Version(1), created_at));
    assert_eq!(subject.list(everything()).items[0].run, Some(2));
    subject.record(&mut held, step("one"));
    subject.record(&mut held, complete());
    assert_eq!(words(&subject.look("a").journal), ["started", "step-recorded", "completed"]);
}

fn p4_run_that_continued_can_be_read_and_never_changes(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).then(step("one")).continued("2"), &mut held);
    let first_run = recorded(subject, "a");
    let expected = ["started", "step-recorded", "continued-as-new", "started"];
    assert_eq!(words(&first_run), expected);
    assert_eq!(first_run.iter().map(|record| record.seq).collect::<Vec<_>>(), [1, 2, 3, 1]);
    subject.commit(&subject.draft(&held).then(step("one")).then(complete()), &mut held);
    let all = recorded(subject, "a");
    assert_eq!(all[..4], first_run);
    assert_eq!(words(&all[4..]), ["step-recorded", "completed"]);
    let ends = all.iter().filter(|record| record.entry().expect("it can be read").event.is_terminal());
    assert_eq!(ends.count(), 2, "one end a run");
}

/// Records `count` steps, up to 50 per commit. Returns the records.
fn grow(subject: &Subject, held: &mut Held, count: usize) -> Vec<Record> {
    let mut sent = Vec::new();
    for from in (0..count).step_by(50) {
        let steps = (from..count.min(from + 50)).map(|n| step(&format!("{n}")));
        let draft = steps.fold(subject.draft(held), super::held::Draft::then);
        sent.extend(draft.commit().changes.records.clone());
        subject.commit(&draft, held);
    }
    sent
}

fn next_run_is_read_in_pages_from_its_first_entry(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    for count in [0, 126, 127, 300, 1, 255] {
        let sent = grow(subject, &mut held, count);
        let found = subject.look("a");
        assert_eq!(found.journal.len(), count + 1);
        assert_eq!(found.journal[1..], sent);
        assert_eq!(subject.page("a", count as u64 + 2, 10), [], "nothing of another run follows");
        subject.commit(&subject.draft(&held).continued("next"), &mut held);
    }
}

fn earlier_run_is_read_in_pages_as_it_was(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let mut expected = Vec::new();
    for count in [0, 126, 300, 1] {
        grow(subject, &mut held, count);
        expected.push(words(&subject.look("a").journal).len() + 1);
        subject.commit(&subject.draft(&held).continued("next"), &mut held);
    }
    subject.record(&mut held, fail());
    subject.send(retry("again", "a"));
    let target = Target::Key(held.key);
    for (run, length) in (1..).zip(expected) {
        let found = subject.journal_of(&target, run);
        assert_eq!(found.len(), length, "run {run}");
        assert!(found.iter().zip(1..).all(|(record, seq)| record.seq == seq), "run {run}");
        assert_eq!(words(&found[length - 1..]), ["continued-as-new"]);
    }
    assert_eq!(words(&subject.journal_of(&target, 5)), ["started", "failed"]);
    assert_eq!(subject.journal_of(&target, 6), subject.look("a").journal);
    for run in [0, 7, u32::MAX] {
        assert_eq!(subject.journal_of(&target, run), [], "there is no run {run}");
    }
}

fn next_run_of_a_long_one_is_claimed_with_its_own_beginning(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    for (count, word) in [(200, "2"), (3, "3"), (200, "4")] {
        grow(subject, &mut held, count);
        subject.commit(&subject.draft(&held).continued(word), &mut held);
        grow(subject, &mut held, 150);
        subject.commit(&subject.draft(&held).yielded(), &mut held);
        held = seat.claim_one();
        assert_eq!((held.start.input.clone(), held.execution.entry_count()), (Payload::from(word), 151));
    }
}

fn continue_leaves_unread_what_was_not_read(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    for id in ["s1", "s2"] {
        subject.send(signal(id, "a"));
    }
    subject.send(pause("a"));
    subject.commit(&subject.draft(&held).consuming(&["s1"]).continued("2"), &mut held);
    assert_eq!(subject.unread("a"), ["s2", "pause"], "signals and orders are for the execution");
    subject.commit(&subject.draft(&held).consuming(&["s2"]).continued("3"), &mut held);
    assert_eq!(subject.unread("a"), ["pause"]);
}

fn p4_consumed_message_ids_stay_across_runs(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(signal("s", "a"));
    subject.commit(&subject.draft(&held).consuming(&["s"]).continued("2"), &mut held);
    assert!(matches!(subject.send(signal("s", "a")), Submitted::Duplicate(_)));
    subject.record(&mut held, fail());
    subject.send(retry("again", "a"));
    assert!(matches!(subject.send(signal("s", "a")), Submitted::Duplicate(_)));
    assert!(seat.claim_one().inbox.is_empty());
}

fn continue_can_park_and_wakes_by_its_deadline(subject: &Subject) {
    subject.start("a", Start { deadline_at: Some(subject.later_ms(100)), ..flow() });
    let mut seat = subject.seat(worker());
    let mut held = seat.claim_one();
    subject.commit(&subject.draft(&held).continued("2").park(), &mut held);
    assert!(seat.claim_ids(1).is_empty());
    assert_eq!(subject.look("a").summary.wake_at, Some(subject.later_ms(100)));
    subject.advance_ms(100);
    let mut held = seat.claim_one();
    assert_eq!((held.execution.run(), held.lease.epoch), (2, Epoch(2)));
    subject.record(&mut held, Command::ExpireDeadline);
    assert_eq!(subject.look("a").summary.status, Status::Failed);
}

fn continue_sends_its_messages_when_the_next_run_has_begun(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.start("taken", flow().with_input(Payload::from("other")));
    let draft = subject
        .draft(&held)
        .emitting(start_of("child", child_of("a", "child")))
        .emitting(start_of("taken", child_of("a", "refused")))
        .emitting(signal("self", "a"))
        .continued("2");
    assert_eq!(subject.commit(&draft, &mut held).dropped_count, 1, "the run that waited has ended");
    assert_eq!(subject.unread("a"), ["self"]);
    assert_eq!(seat.claim_ids(9), ["taken", "child"]);
}

fn repeated_continue_is_committed_and_has_no_second_effect(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.start("other", flow());
    let draft = subject.draft(&held).then(step("one")).emitting(signal("s", "other")).continued("2");
    subject.commit(&draft, &mut held);
    let before = subject.picture();
    for _ in 0..2 {
        assert!(matches!(subject.attempt(&draft), CommitOutcome::Committed(_)));
    }
    assert_eq!(subject.picture(), before);
    subject.record(&mut held, step("one"));
}

fn p3_writer_of_an_earlier_run_is_fenced(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let stale = [
        subject.draft(&held).then(step("late")),
        subject.draft(&held).then(complete()),
        subject.draft(&held).continued("late"),
    ];
    subject.record(&mut held, step("one"));
    subject.commit(&subject.draft(&held).continued("2"), &mut held);
    for draft in &stale {
        assert_eq!(subject.fenced(draft), Fence::StaleVersion { found: Version(0), current: Version(2) });
    }
}

fn p3_writer_of_an_earlier_run_is_fenced_after_a_takeover(subject: &Subject) {
    let (_dead, held) = subject.held("a");
    subject.advance_ms(10_000);
    let mut seat = subject.seat(worker());
    let mut taken = Held::of(seat.sweep(1).leased.remove(0));
    // After one commit, the version alone would make the dead session's commits look like
    // repetitions.
    subject.commit(&subject.draft(&taken).continued("2"), &mut taken);
    for draft in [subject.draft(&held).then(step("late")), subject.draft(&held).continued("late")] {
        assert_eq!(subject.fenced(&draft), Fence::StaleEpoch { found: Epoch(1), current: Epoch(2) });
    }
    subject.record(&mut taken, step("one"));
}

fn takeover_count_is_reset_by_a_next_run(subject: &Subject) {
    subject.held("a");
    subject.advance_ms(10_000);
    let mut seat = subject.seat(worker());
    let mut taken = Held::of(seat.sweep(1).leased.remove(0));
    assert_eq!(taken.takeover_count, 1);
    subject.commit(&subject.draft(&taken).continued("2"), &mut taken);
    assert_eq!(subject.look("a").takeover_count, 0);
}

fn start_is_compared_with_what_the_first_run_began_with(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let check = |word: &str| {
        assert!(matches!(subject.send(start_of("a", flow())), Submitted::Attached(_)), "{word}");
        let other = flow().with_input(Payload::from(word));
        let refusal = subject.refusal(vec![start_of("a", other)]);
        assert!(refusal.contains("with input 1,"), "{refusal}");
    };
    for word in ["2", "3"] {
        subject.commit(&subject.draft(&held).continued(word), &mut held);
        check(word);
    }
    subject.record(&mut held, fail());
    subject.send(retry("again", "a"));
    check("3");
    assert_eq!(input(&subject.look("a")), Payload::from("3"), "the run that failed is tried again");
}

fn tags_and_parent_are_those_of_the_first_run(subject: &Subject) {
    let (_parent, mut parent) = subject.held("parent");
    let start = Start { tags: vec![tag("k", "v")], priority: 3, ..child_of("parent", "a") };
    subject.commit(&subject.draft(&parent).emitting(start_of("a", start)), &mut parent);
    let mut held = subject.seat(worker()).claim_one();
    subject.commit(&subject.draft(&held).continued("2"), &mut held);
    let check = |parent_id: Option<&str>| {
        let found = subject.look("a");
        assert_eq!((found.tags, found.execution.priority()), (vec![tag("k", "v")], 3));
        assert_eq!(found.execution.parent().map(|parent| parent.id.as_str()), parent_id);
        let tagged = List { tags: vec![tag("k", "v")], ..everything() };
        assert_eq!(subject.list(tagged).items.len(), 1);
        assert_eq!(subject.list(List { top_level: true, ..everything() }).items.len(), 1);
    };
    check(Some("parent"));
    subject.record(&mut held, fail());
    subject.send(retry("again", "a"));
    check(None);
}

fn p4_retry_opens_the_next_run_of_what_failed_or_was_cancelled(subject: &Subject) {
    let end = Command::Terminate { by: by(), reason: "no".to_owned() };
    for (id, end, word) in [("f", fail(), "failed"), ("c", end, "cancelled")] {
        let (mut seat, mut held) = subject.held(id);
        subject.commit(&subject.draft(&held).then(step("one")).then(end), &mut held);
        subject.advance_ms(7);
        assert!(matches!(subject.send(retry("again", id)), Submitted::Delivered(_)));
        let found = subject.look(id);
        assert_eq!((found.execution.run(), found.summary.status), (2, Status::Running));
        assert_eq!((found.ready_at, found.lease.session), (Some(subject.now()), None));
        assert_eq!((words(&found.journal), input(&found)), (vec!["started", "retried"], Payload::from("1")));
        let mut held = seat.claim_one();
        assert_eq!((held.lease.epoch, held.version), (Epoch(2), Version(1)));
        subject.record(&mut held, step("one"));
        subject.record(&mut held, complete());
        let all = ["started", "step-recorded", word, "started", "retried", "step-recorded", "completed"];
        assert_eq!(words(&recorded(subject, id)), all);
    }
}

fn p4_retry_of_anything_else_is_refused(subject: &Subject) {
    let (_one, mut completed) = subject.held("completed");
    subject.record(&mut completed, complete());
    let (_two, mut continued) = subject.held("continued");
    subject.commit(&subject.draft(&continued).continued("2"), &mut continued);
    let (_three, mut paused) = subject.held("paused");
    let order = Command::Pause { by: by(), reason: String::new() };
    subject.commit(&subject.draft(&paused).then(order).park(), &mut paused);
    subject.start("ready", flow());
    // A terminate that nobody has applied yet is no end.
    subject.send(terminate("ready"));
    let rows = [
        ("completed", "it is completed already"),
        ("continued", "it has not ended"),
        ("paused", "it has not ended"),
        ("ready", "it has not ended"),
        ("nobody", "there is no execution"),
    ];
    let before = subject.picture();
    for (id, expected) in rows {
        let refusal = subject.refusal(vec![retry("again", id)]);
        assert!(refusal.contains(expected), "{id}: {refusal}");
    }
    assert_eq!(subject.picture(), before);
}

fn p4_repeated_retry_is_a_duplicate(subject: &Subject) {
    failed(subject, "a");
    subject.send(retry("again", "a"));
    let before = subject.picture();
    assert!(matches!(subject.send(retry("again", "a")), Submitted::Duplicate(_)));
    assert!(subject.refusal(vec![retry("another", "a")]).contains("it has not ended"));
    assert_eq!(subject.picture(), before);
    let mut held = subject.seat(worker()).claim_one();
    subject.record(&mut held, fail());
    assert!(matches!(subject.send(retry("again", "a")), Submitted::Duplicate(_)));
    assert_eq!(subject.look("a").summary.status, Status::Failed, "one retry opens one run");
    subject.send(retry("another", "a"));
    assert_eq!(subject.look("a").execution.run(), 3);
}

fn retried_run_reads_signals_but_no_old_orders(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let op = Op { kind: OpKind::ChildResult, name: name("child"), key: None, nth: 1 };
    let outcome = Outcome::Success(Payload::from("1"));
    subject.send(signal("s1", "a"));
    subject.send(cancel("a"));
    subject.send(message("done", "a", Body::ChildDone { run: 1, op, outcome }));
    subject.send(terminate("a"));
    subject.send(signal("s2", "a"));
    subject.record(&mut held, fail());
    subject.send(retry("again", "a"));
    assert_eq!(subject.unread("a"), ["s1", "s2"]);
    assert!(matches!(subject.send(cancel("a")), Submitted::Duplicate(_)), "it was for the other run");
    subject.send(signal("s3", "a"));
    let ids: Vec<_> = seat.claim_one().inbox.iter().map(|found| found.id.as_str().to_owned()).collect();
    assert_eq!(ids, ["s1", "s2", "s3"]);
}

fn p8_orders_that_a_retry_forgets_take_no_room(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let max = super::bounds().inbox_count_max;
    (1..max).for_each(|n| drop(subject.send(signal(&format!("s{n}"), "a"))));
    subject.send(cancel("a"));
    subject.record(&mut held, fail());
    subject.send(retry("again", "a"));
    subject.send(signal("one more", "a"));
    assert!(subject.refusal(vec![signal("too many", "a")]).contains("inbox_count_max"));
}

fn retry_and_a_signal_can_be_sent_together(subject: &Subject) {
    failed(subject, "a");
    let both = subject.submit(vec![retry("again", "a"), signal("s", "a")]).expect("both are taken");
    assert!(matches!(both.as_slice(), [Submitted::Delivered(_), Submitted::Delivered(_)]), "{both:?}");
    assert_eq!(subject.unread("a"), ["s"]);
    let again = subject.submit(vec![retry("again", "a"), signal("s", "a")]).expect("both are known");
    assert!(matches!(again.as_slice(), [Submitted::Duplicate(_), Submitted::Duplicate(_)]), "{again:?}");
}

fn p6_refused_submit_takes_back_its_retry(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(cancel("a"));
    subject.record(&mut held, fail());
    let before = subject.picture();
    subject.refusal(vec![retry("again", "a"), retry("another", "a")]);
    subject.refusal(vec![retry("again", "a"), signal("s", "nobody")]);
    assert_eq!(subject.picture(), before);
    assert!(seat.claim_ids(9).is_empty());
    subject.send(retry("again", "a"));
    assert_eq!(seat.claim_ids(9), ["a"]);
}

fn p7_retry_is_told_to_those_who_could_run_it(subject: &Subject) {
    failed(subject, "a");
    let seat = subject.seat(worker());
    subject.send(retry("again", "a"));
    seat.wait_for(|notice| matches!(notice, Notice::Ready | Notice::Changed));
}

fn p3_last_writer_of_a_failed_run_cannot_write_the_retried_one(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let last = subject.draft(&held).then(fail());
    subject.commit(&last, &mut held);
    subject.send(retry("again", "a"));
    assert!(matches!(subject.attempt(&last), CommitOutcome::Committed(_)), "it did happen");
    let retried = Held { execution: subject.look("a").execution, ..held };
    let late = subject.draft(&retried).then(step("late"));
    assert_eq!(subject.fenced(&late), Fence::Released);
    let mut taken = seat.claim_one();
    for stale in [&last, &late] {
        assert_eq!(subject.fenced(stale), Fence::StaleEpoch { found: Epoch(1), current: Epoch(2) });
    }
    subject.record(&mut taken, step("one"));
}

fn p4_answer_to_an_earlier_run_is_dropped(subject: &Subject) {
    let (_parent, mut parent) = subject.held("parent");
    let draft = subject.draft(&parent).emitting(start_of("child", child_of("parent", "child")));
    subject.commit(&draft, &mut parent);
    subject.commit(&subject.draft(&parent).continued("2"), &mut parent);
    let mut child = subject.seat(worker()).claim_one();
    assert_eq!(subject.commit(&subject.draft(&child).then(complete()), &mut child).dropped_count, 1);
    assert!(subject.unread("parent").is_empty(), "run 2 has other children");
}

fn p4_child_that_continues_answers_once_and_one_that_is_retried_not_again(subject: &Subject) {
    let (_parent, mut parent) = subject.held("parent");
    let draft = subject.draft(&parent).emitting(start_of("child", child_of("parent", "child")));
    subject.commit(&draft, &mut parent);
    let mut seat = subject.seat(worker());
    let mut child = seat.claim_one();
    for word in ["2", "3"] {
        subject.commit(&subject.draft(&child).continued(word), &mut child);
        assert!(subject.unread("parent").is_empty(), "a run that continues is no completion");
    }
    subject.record(&mut child, fail());
    assert_eq!(subject.unread("parent"), ["done:child:3"]);
    subject.send(retry("again", "child"));
    let mut child = seat.claim_one();
    subject.record(&mut child, complete());
    assert_eq!(subject.unread("parent"), ["done:child:3"]);
}

fn prune_deletes_every_run(subject: &Subject) {
    subject.start("a", Start { tags: vec![tag("k", "v")], ..flow() });
    let mut seat = subject.seat(worker());
    let mut held = seat.claim_one();
    grow(subject, &mut held, 140);
    subject.commit(&subject.draft(&held).continued("2"), &mut held);
    subject.send(signal("s", "a"));
    subject.record(&mut held, fail());
    subject.send(retry("again", "a"));
    let mut held = seat.claim_one();
    subject.record(&mut held, complete());
    subject.advance_ms(1);
    assert_eq!(subject.prune(subject.now(), 10), 1);
    assert!(subject.feed().is_empty());
    assert!(subject.list(List { tags: vec![tag("k", "v")], ..everything() }).items.is_empty());
    subject.start("a", flow());
    assert_eq!((subject.look("a").execution.run(), subject.unread("a").len()), (1, 0));
}

fn prune_counts_from_the_end_of_the_last_run(subject: &Subject) {
    failed(subject, "a");
    failed(subject, "b");
    subject.advance_ms(1_000);
    subject.send(retry("again", "a"));
    let mut held = subject.seat(worker()).claim_one();
    let horizon = subject.now();
    assert_eq!(subject.prune(horizon, 10), 1, "only the one that was left alone");
    assert!(subject.exists("a"));
    subject.record(&mut held, fail());
    assert_eq!(subject.prune(horizon, 10), 0);
    subject.advance_ms(1);
    assert_eq!(subject.prune(subject.now(), 10), 1);
    assert!(subject.feed().is_empty());
}

fn p8_long_chain_costs_the_same_in_every_run(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    for n in 0..300 {
        subject.commit(&subject.draft(&held).then(step("one")).continued(&n.to_string()), &mut held);
    }
    subject.commit(&subject.draft(&held).yielded(), &mut held);
    let mut claimed = seat.claim(1);
    let leased = claimed.leased.remove(0);
    assert_eq!(
        (leased.execution.run(), leased.opening.clone().into_records().len()),
        (301, 1),
        "only the current run is read"
    );
    let mut held = Held::of(leased);
    assert_eq!(held.start.input, Payload::from("299"));
    subject.record(&mut held, complete());
    let is_end = |record: &&Record| {
        matches!(record.entry().expect("it can be read").event, Event::ContinuedAsNew { .. })
    };
    assert_eq!(recorded(subject, "a").iter().filter(is_end).count(), 300);
    subject.advance_ms(1);
    assert_eq!(subject.prune(subject.now(), 10), 1);
    assert!(subject.feed().is_empty());
}
