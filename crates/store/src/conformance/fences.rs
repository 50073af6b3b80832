//! Commits that must be fenced.

use abide_core::{Epoch, Fence, Lease, SessionId, Version};

use super::make::{cancel, child_of, complete, flow, signal, start_of, step, worker};
use super::{Subject, table};
use crate::{CommitOutcome, ExecutionKey, Heartbeat};

table![
    p3_stale_epoch_is_fenced,
    p3_stale_version_is_fenced,
    p3_future_version_is_fenced,
    p3_released_lease_is_fenced,
    p3_retired_session_is_fenced,
    p3_expired_session_is_fenced_before_anyone_took_over,
    p3_expired_session_is_fenced_after_a_takeover,
    p3_other_session_with_the_right_epoch_is_fenced,
    p3_unknown_execution_is_fenced,
    p3_stale_holder_cannot_complete_while_the_next_runs,
    p4_terminal_execution_takes_no_commit,
    p4_second_completion_is_fenced,
    p6_fenced_commit_leaves_no_trace,
    p3_late_commit_does_not_overwrite_its_successor,
    p3_heartbeat_does_not_revive_an_expired_session,
    epochs_only_grow,
];

fn p3_stale_epoch_is_fenced(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let old = held.clone();
    subject.commit(&subject.draft(&held).yielded(), &mut held);
    seat.claim_one();
    let fence = subject.fenced(&subject.draft(&old).then(step("late")));
    assert_eq!(fence, Fence::StaleEpoch { found: Epoch(1), current: Epoch(2) });
}

fn p3_stale_version_is_fenced(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let old = subject.draft(&held).then(step("late"));
    subject.record(&mut held, step("one"));
    subject.record(&mut held, step("two"));
    assert_eq!(subject.fenced(&old), Fence::StaleVersion { found: Version(0), current: Version(2) });
}

fn p3_future_version_is_fenced(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    held.version = Version(5);
    let fence = subject.fenced(&subject.draft(&held).then(step("early")));
    assert_eq!(fence, Fence::StaleVersion { found: Version(5), current: Version(0) });
}

fn p3_released_lease_is_fenced(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).park(), &mut held);
    assert_eq!(subject.fenced(&subject.draft(&held).then(step("late"))), Fence::Released);
}

fn p3_retired_session_is_fenced(subject: &Subject) {
    let (seat, held) = subject.held("a");
    seat.retire();
    let fence = subject.fenced(&subject.draft(&held).then(complete()));
    assert_eq!(fence, Fence::DeadSession(seat.session));
}

fn p3_expired_session_is_fenced_before_anyone_took_over(subject: &Subject) {
    let (seat, mut held) = subject.held("a");
    subject.advance_ms(9_999);
    subject.record(&mut held, step("in time"));
    subject.advance_ms(1);
    for command in [step("late"), complete()] {
        let fence = subject.fenced(&subject.draft(&held).then(command));
        assert_eq!(fence, Fence::DeadSession(seat.session));
    }
    assert_eq!(subject.look("a").lease.session, Some(seat.session), "nobody took over yet");
}

fn p3_expired_session_is_fenced_after_a_takeover(subject: &Subject) {
    let (_seat, held) = subject.held("a");
    subject.advance_ms(10_000);
    let mut second = subject.seat(worker());
    assert_eq!(second.sweep(1).leased.len(), 1);
    let fence = subject.fenced(&subject.draft(&held).then(step("late")));
    assert!(matches!(fence, Fence::StaleEpoch { .. }), "{fence}");
}

fn p3_other_session_with_the_right_epoch_is_fenced(subject: &Subject) {
    let (_seat, held) = subject.held("a");
    let thief = subject.seat(worker());
    let lease = Lease { session: thief.session, ..held.lease };
    subject.fenced(&subject.draft(&held).then(step("stolen")).under(lease));
    let nobody = Lease { session: SessionId(9_999), ..held.lease };
    subject.fenced(&subject.draft(&held).then(step("stolen")).under(nobody));
}

fn p3_unknown_execution_is_fenced(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    held.key = ExecutionKey(held.key.0 + 1_000);
    subject.fenced(&subject.draft(&held).then(step("nowhere")));
}

fn p3_stale_holder_cannot_complete_while_the_next_runs(subject: &Subject) {
    let (_seat, old) = subject.held("a");
    subject.advance_ms(10_000);
    let mut seat = subject.seat(worker());
    let mut new = super::held::Held::of(seat.sweep(1).leased.remove(0));
    subject.record(&mut new, step("one"));
    subject.fenced(&subject.draft(&old).then(complete()));
    subject.record(&mut new, complete());
    subject.fenced(&subject.draft(&old).then(complete()));
}

fn p4_terminal_execution_takes_no_commit(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let before = held.clone();
    subject.record(&mut held, complete());
    // The same worker, with the newest version, believes that the execution still runs.
    let mut believer = before.clone();
    believer.version = held.version;
    assert_eq!(subject.fenced(&subject.draft(&believer).then(step("more"))), Fence::Released);
}

fn p4_second_completion_is_fenced(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let mut believer = held.clone();
    subject.record(&mut held, complete());
    believer.version = held.version;
    subject.fenced(&subject.draft(&believer).then(complete()));
    let entries = subject.look("a").journal;
    let ends = entries.iter().filter(|record| record.entry().is_ok_and(|entry| entry.event.is_terminal()));
    assert_eq!(ends.count(), 1);
}

fn p6_fenced_commit_leaves_no_trace(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.start("other", flow());
    subject.send(signal("s", "a"));
    let old = subject
        .draft(&held)
        .then(step("late"))
        .consuming(&["s"])
        .emitting(signal("emitted", "other"))
        .emitting(start_of("child", child_of("a", "child")))
        .emitting(cancel("other"))
        .born_slots(9)
        .sleeping(subject.later_ms(5))
        .yielded();
    subject.record(&mut held, step("one"));
    subject.record(&mut held, step("two"));
    subject.fenced(&old);
    assert_eq!(subject.unread("a"), ["s"]);
    assert!(!subject.exists("child"));
    assert!(subject.unread("other").is_empty());
}

fn p3_late_commit_does_not_overwrite_its_successor(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let late = subject.draft(&held).then(step("slow network")).yielded();
    // The first copy arrives and is answered, the work goes on under the next lease, then a second
    // copy arrives.
    assert!(matches!(subject.attempt(&late), CommitOutcome::Committed(_)));
    held = seat.claim_one();
    subject.record(&mut held, step("next"));
    subject.fenced(&late);
    assert_eq!(subject.look("a").journal.len(), 3);
}

fn p3_heartbeat_does_not_revive_an_expired_session(subject: &Subject) {
    let (seat, held) = subject.held("a");
    subject.advance_ms(10_000);
    assert_eq!(seat.heartbeat(), Heartbeat::NotRegistered);
    let fence = subject.fenced(&subject.draft(&held).then(step("late")));
    assert_eq!(fence, Fence::DeadSession(seat.session));
}

fn epochs_only_grow(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    for epoch in 2..6 {
        subject.commit(&subject.draft(&held).yielded(), &mut held);
        assert_eq!(subject.look("a").lease.epoch, Epoch(epoch - 1), "giving back is no lease");
        held = seat.claim_one();
        assert_eq!((held.lease.epoch, held.version), (Epoch(epoch), Version(epoch - 1)));
    }
}
