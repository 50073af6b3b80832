//! The effects of a commit.

use abide_core::{Command, Event, Failure, FailureKind, OpKind, Status, Version, Waiting};

use super::make::{by, cancel, child_of, complete, everything, flow, name, signal, start_of, step, worker};
use super::{Subject, block_on, table};
use crate::{CommitOutcome, Error, Hold, Target};

table![
    p1_recorded_entries_are_read_back_as_committed,
    p1_recorded_entries_never_change,
    p2_commit_is_seen_by_the_next_read,
    commit_replaces_the_summary,
    care_is_kept_beside_the_timer_and_wakes_nobody,
    commit_without_records_is_a_commit,
    commit_consumes_what_was_read_and_nothing_else,
    p1_message_is_read_once,
    keep_goes_on_under_the_same_lease,
    repeated_commit_is_committed_and_has_no_second_effect,
    repeated_commit_is_committed_after_the_lease_was_parked,
    repeated_commit_is_committed_after_the_end,
    repeated_commit_is_committed_after_the_session_ended,
    p4_end_releases_the_lease_whatever_is_held,
    p4_ended_execution_is_never_claimed_again,
    p4_failed_and_cancelled_are_final_too,
    unread_messages_stay_after_the_end_and_wake_nobody,
    commits_of_two_executions_do_not_meet,
];

fn p1_recorded_entries_are_read_back_as_committed(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).then(step("one")).then(step("two"));
    let sent = draft.commit().changes.records.clone();
    subject.commit(&draft, &mut held);
    let found = subject.look("a");
    assert_eq!(found.journal[1..], *sent);
    assert_eq!(found.execution, held.execution);
    assert_eq!(found.lease.version, Version(1));
}

fn p1_recorded_entries_never_change(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.record(&mut held, step("one"));
    let recorded = subject.look("a").journal;
    subject.commit(&subject.draft(&held).then(step("two")).yielded(), &mut held);
    let mut held = seat.claim_one();
    subject.record(&mut held, complete());
    assert_eq!(subject.look("a").journal[..2], recorded);
}

fn p2_commit_is_seen_by_the_next_read(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    for n in 1..=20 {
        subject.record(&mut held, step(&format!("{n}")));
        assert_eq!(subject.look("a").journal.len(), n + 1);
    }
}

fn commit_replaces_the_summary(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let waits = [
        Waiting::Signal { name: name("approval"), until: Some(subject.later_ms(500)) },
        Waiting::Sleep { until: subject.later_ms(900) },
    ];
    let draft = waits.iter().fold(subject.draft(&held), |draft, wait| draft.waiting(wait.clone()));
    subject.commit(&draft, &mut held);
    let summary = subject.look("a").summary;
    assert_eq!((summary.status, summary.wake_at), (Status::Waiting, Some(subject.later_ms(500))));
    assert_eq!(*summary.waiting, waits);
    subject.record(&mut held, step("one"));
    let summary = subject.look("a").summary;
    assert_eq!(
        (summary.status, summary.wake_at, summary.waiting.into_vec()),
        (Status::Running, None, Vec::new())
    );
}

fn care_is_kept_beside_the_timer_and_wakes_nobody(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let (care_at, wake_at) = (subject.later_ms(10), subject.later_ms(50));
    let draft = subject.draft(&held).then(step("one")).caring(care_at).sleeping(wake_at).park();
    subject.commit(&draft, &mut held);
    let found = subject.look("a").summary;
    assert_eq!((found.care_at, found.wake_at), (Some(care_at), Some(wake_at)));
    assert_eq!(subject.list(everything()).items[0].summary, found, "a list tells the same");
    subject.advance_ms(20);
    let claimed = seat.claim(9);
    assert_eq!((claimed.leased.len(), claimed.next_wake_at), (0, Some(wake_at)));
    subject.advance_ms(40);
    let mut held = seat.claim_one();
    let given = subject.later_ms(super::bounds().terminate_grace_ms);
    assert_eq!(subject.look("a").summary.care_at, Some(given), "the new holder has its time");
    subject.record(&mut held, step("two"));
    assert_eq!(subject.look("a").summary.care_at, Some(given), "whoever keeps the lease changes nothing");
    subject.commit(&subject.draft(&held).then(complete()), &mut held);
    assert_eq!(subject.look("a").summary.care_at, None);
}

fn commit_without_records_is_a_commit(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held), &mut held);
    let found = subject.look("a");
    assert_eq!((found.lease.version, found.journal.len()), (Version(1), 1));
    subject.record(&mut held, step("one"));
}

fn commit_consumes_what_was_read_and_nothing_else(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.start("b", flow());
    for id in ["s1", "s2", "s3", "s4"] {
        subject.send(signal(id, "a"));
        subject.send(signal(id, "b"));
    }
    subject.commit(&subject.draft(&held).consuming(&["s3", "s1"]), &mut held);
    assert_eq!(subject.unread("a"), ["s2", "s4"]);
    assert_eq!(subject.unread("b").len(), 4);
}

fn p1_message_is_read_once(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.send(signal("s1", "a"));
    subject.send(signal("s2", "a"));
    subject.commit(&subject.draft(&held).consuming(&["s1"]), &mut held);
    let before = subject.picture();
    for wrong in [&["s1"][..], &["s2", "s1"], &["s2", "s2"], &["s2", "never sent"]] {
        let draft = subject.draft(&held).consuming(wrong).then(step("of a late copy"));
        let answer = block_on(subject.store.commit(draft.commit()));
        assert!(matches!(answer, Err(Error::Corrupt { .. })), "{wrong:?}: {answer:?}");
        assert_eq!(subject.picture(), before, "{wrong:?} leaves no trace");
    }
    subject.commit(&subject.draft(&held).consuming(&["s2"]), &mut held);
    assert!(subject.unread("a").is_empty());
}

fn keep_goes_on_under_the_same_lease(subject: &Subject) {
    let (seat, mut held) = subject.held("a");
    for version in 1..5 {
        subject.record(&mut held, step(&format!("{version}")));
        let row = subject.look("a").lease;
        assert_eq!((row.session, row.epoch), (Some(seat.session), held.lease.epoch));
        assert_eq!(row.version, Version(version));
    }
    assert!(subject.seat(worker()).claim_ids(1).is_empty());
}

fn repeated_commit_is_committed_and_has_no_second_effect(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.start("other", flow());
    subject.send(signal("s", "a"));
    let draft = subject
        .draft(&held)
        .then(step("one"))
        .consuming(&["s"])
        .emitting(signal("emitted", "other"))
        .emitting(start_of("child", child_of("a", "child")));
    subject.commit(&draft, &mut held);
    let before = subject.picture();
    for _ in 0..3 {
        assert!(matches!(subject.attempt(&draft), CommitOutcome::Committed(_)));
    }
    assert_eq!(subject.picture(), before);
    subject.record(&mut held, step("two"));
    assert_eq!(seat.claim_ids(9), ["other", "child"]);
}

fn repeated_commit_is_committed_after_the_lease_was_parked(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).then(step("one")).park();
    subject.commit(&draft, &mut held);
    let before = subject.picture();
    assert!(matches!(subject.attempt(&draft), CommitOutcome::Committed(_)));
    assert_eq!(subject.picture(), before);
}

fn repeated_commit_is_committed_after_the_end(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).then(complete());
    subject.commit(&draft, &mut held);
    let before = subject.picture();
    assert!(matches!(subject.attempt(&draft), CommitOutcome::Committed(_)));
    assert_eq!(subject.picture(), before);
}

fn repeated_commit_is_committed_after_the_session_ended(subject: &Subject) {
    let (seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).then(step("one"));
    subject.commit(&draft, &mut held);
    seat.retire();
    let before = subject.picture();
    // The commit did happen; the store must not deny it.
    assert!(matches!(subject.attempt(&draft), CommitOutcome::Committed(_)));
    assert_eq!(subject.picture(), before);
}

fn p4_end_releases_the_lease_whatever_is_held(subject: &Subject) {
    for (id, hold) in
        [("keep", Hold::Keep), ("yield", Hold::Yield), ("park", Hold::Park { seen: Vec::new() })]
    {
        let (seat, mut held) = subject.held(id);
        subject.send(signal("unread", id));
        let draft = subject.draft(&held).then(complete());
        let draft = match hold {
            Hold::Keep => draft,
            Hold::Yield => draft.yielded(),
            Hold::Park { seen } => draft.park_after(seen),
        };
        subject.commit(&draft, &mut held);
        let found = subject.look(id);
        assert_eq!(found.summary.status, Status::Completed);
        assert_eq!((found.lease.session, found.ready_at, found.summary.wake_at), (None, None, None), "{id}");
        assert_eq!(seat.lease_count(), 0);
    }
}

fn p4_ended_execution_is_never_claimed_again(subject: &Subject) {
    subject.start("a", abide_core::Start { deadline_at: Some(subject.later_ms(100)), ..flow() });
    let mut seat = subject.seat(worker());
    let mut held = seat.claim_one();
    subject.record(&mut held, complete());
    let before = subject.picture();
    subject.advance_ms(200);
    seat.retire();
    subject.advance_ms(20_000);
    let mut other = subject.seat(worker());
    let claimed = other.sweep(9);
    assert_eq!((claimed.leased.len(), claimed.more, claimed.next_wake_at), (0, false, None));
    assert_eq!(subject.picture(), before);
}

fn p4_failed_and_cancelled_are_final_too(subject: &Subject) {
    let failed = Command::Fail(Failure::new(FailureKind::Fatal, "no"));
    let cancelled = Command::Terminate { by: by(), reason: "no".to_owned() };
    for (id, end, status) in [("f", failed, Status::Failed), ("c", cancelled, Status::Cancelled)] {
        let (mut seat, mut held) = subject.held(id);
        subject.record(&mut held, end);
        assert_eq!(subject.look(id).summary.status, status);
        assert!(subject.refusal(vec![cancel(id)]).contains(status.word()));
        assert!(seat.claim_ids(9).is_empty());
    }
}

fn unread_messages_stay_after_the_end_and_wake_nobody(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.send(signal("s", "a"));
    subject.record(&mut held, complete());
    assert_eq!(subject.unread("a"), ["s"]);
    assert!(seat.claim_ids(9).is_empty());
}

fn commits_of_two_executions_do_not_meet(subject: &Subject) {
    let (_one, mut a) = subject.held("a");
    let (_two, mut b) = subject.held("b");
    for n in 0..5 {
        subject.record(&mut a, step(&format!("a{n}")));
        subject.record(&mut b, step(&format!("b{n}")));
    }
    for (id, key) in [("a", a.key), ("b", b.key)] {
        let found = subject.find(&Target::Key(key)).expect("it exists");
        let steps = found.journal[1..].iter().map(|record| record.entry().expect("it can be read").event);
        let is_own = |event: Event| {
            event.op().is_some_and(|op| op.kind == OpKind::Step && op.name.as_str().starts_with(id))
        };
        assert_eq!(steps.filter(|event| is_own(event.clone())).count(), 5);
    }
}
