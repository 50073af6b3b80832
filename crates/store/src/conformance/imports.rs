//! Executions that come from another store.

use std::sync::Arc;

use abide_core::{
    Body, Command, Failure, FailureKind, Op, OpKind, Outcome, Payload, Refusal, Start, Status, StepRecord,
};

use super::held::Held;
use super::make::{
    address, complete, everything, flow, message, name, pause, resume, signal, step, tag, worker,
};
use super::{Subject, block_on, bounds, table};
use crate::memory::MemoryStore;
use crate::{Error, Import, Imported, List, Record, Submitted, Target, export};

table![
    imported_execution_is_what_it_was,
    import_of_what_sleeps_sleeps_on,
    import_of_what_was_held_is_ready_and_goes_on,
    import_with_unread_mail_is_ready,
    import_of_what_is_paused_listens_to_orders_alone,
    import_of_what_has_ended_is_final,
    import_of_several_runs_has_all_of_them,
    import_of_a_long_journal_can_be_read_from_anywhere,
    repeated_import_changes_nothing,
    import_over_something_else_is_refused,
    signals_that_were_read_elsewhere_are_no_news,
    import_is_woken_for_a_timer_that_its_summary_does_not_tell,
    import_of_runs_that_do_not_follow_each_other_is_refused,
    p6_unsound_import_leaves_no_trace,
];

/// Creates another store with the same clock.
fn elsewhere(subject: &Subject) -> Subject {
    Subject::new(MemoryStore::new(subject.clock.clone(), bounds()), subject.clock.clone())
}

fn exported(subject: &Subject, id: &str) -> Import {
    block_on(export(&*subject.store, &address(id))).expect("it is read").expect("it exists")
}

fn import(subject: &Subject, import: &Import) -> Imported {
    block_on(subject.store.import(import.clone())).expect("it is sound")
}

/// Moves an execution, and checks that its new export equals the first.
fn moved(from: &Subject, to: &Subject, id: &str) -> Import {
    let told = exported(from, id);
    assert!(matches!(import(to, &told), Imported::New(_)));
    let again = exported(to, id);
    assert_eq!((&again.runs, &again.execution, &again.unread), (&told.runs, &told.execution, &told.unread));
    let counts = |import: &Import| (import.epoch, import.version, import.takeover_count);
    assert_eq!((counts(&again), &again.summary.waiting), (counts(&told), &told.summary.waiting));
    told
}

fn imported_execution_is_what_it_was(subject: &Subject) {
    let source = elsewhere(subject);
    source.start("a", Start { tags: vec![tag("k", "v")], priority: 3, ..flow() });
    let mut seat = source.seat(worker());
    let mut held = seat.claim_one();
    source.record(&mut held, step("one"));
    source.send(signal("s", "a"));
    subject.advance_ms(7);
    moved(&source, subject, "a");
    let (was, is) = (source.look("a"), subject.look("a"));
    assert_eq!((is.created_at, &is.tags, is.lease.session), (was.created_at, &was.tags, None));
    assert_eq!((is.journal, is.execution), (was.journal, was.execution));
    let tagged = List { tags: vec![tag("k", "v")], ..everything() };
    assert_eq!(subject.list(tagged).items.len(), 1);
    assert_eq!(subject.feed(), source.feed());
}

fn import_of_what_sleeps_sleeps_on(subject: &Subject) {
    let source = elsewhere(subject);
    let (_seat, mut held) = source.held("a");
    let until = source.later_ms(1_000);
    source.commit(&source.draft(&held).then(step("one")).sleeping(until).park(), &mut held);
    moved(&source, subject, "a");
    let mut seat = subject.seat(worker());
    let claimed = seat.claim(1);
    assert_eq!((claimed.leased.len(), claimed.next_wake_at), (0, Some(until)));
    subject.advance_ms(1_000);
    assert_eq!(seat.claim_one().version, held.version);
}

/// Carries an imported execution on to its end.
fn go_on(subject: &Subject) -> Held {
    let mut held = subject.seat(worker()).claim_one();
    subject.record(&mut held, step("last"));
    subject.record(&mut held, complete());
    assert_eq!(subject.look(held.id()).summary.status, Status::Completed);
    held
}

fn import_of_what_was_held_is_ready_and_goes_on(subject: &Subject) {
    let source = elsewhere(subject);
    let (_seat, mut held) = source.held("a");
    source.record(&mut held, step("one"));
    moved(&source, subject, "a");
    let found = subject.look("a");
    assert_eq!((found.ready_at, found.lease.session), (Some(subject.now()), None));
    let ended = go_on(subject);
    assert!(ended.lease.epoch > held.lease.epoch);
    assert_eq!(subject.look("a").journal.len(), 4);
}

fn import_with_unread_mail_is_ready(subject: &Subject) {
    let source = elsewhere(subject);
    let (_seat, mut held) = source.held("a");
    source.send(signal("s1", "a"));
    source.send(signal("s2", "a"));
    // The export does not say that a holder has seen them.
    source.commit(&source.draft(&held).then(step("one")).park_seen(&["s1", "s2"]), &mut held);
    assert_eq!(source.look("a").ready_at, None);
    moved(&source, subject, "a");
    subject.send(signal("s3", "a"));
    let found = subject.seat(worker()).claim_one();
    let ids: Vec<_> = found.inbox.iter().map(|message| message.id.as_str()).collect();
    assert_eq!(ids, ["s1", "s2", "s3"]);
}

fn import_of_what_is_paused_listens_to_orders_alone(subject: &Subject) {
    let source = elsewhere(subject);
    let (_seat, mut held) = source.held("a");
    let pausing = pause("a").control().expect("a pause is an order");
    source.commit(&source.draft(&held).then(pausing).park(), &mut held);
    source.send(signal("s", "a"));
    moved(&source, subject, "a");
    let mut seat = subject.seat(worker());
    assert!(seat.claim_ids(1).is_empty());
    subject.send(resume("a"));
    assert_eq!(seat.claim_ids(1), ["a"]);
}

fn import_of_what_has_ended_is_final(subject: &Subject) {
    let source = elsewhere(subject);
    let (_seat, mut held) = source.held("a");
    source.send(signal("unread", "a"));
    source.record(&mut held, complete());
    moved(&source, subject, "a");
    let found = subject.look("a");
    assert_eq!((found.summary.status, found.ready_at), (Status::Completed, None));
    assert!(subject.seat(worker()).claim_ids(9).is_empty());
    assert_eq!(subject.refusal(vec![signal("late", "a")]), "it is completed already");
    subject.advance_ms(1);
    assert_eq!(subject.prune(subject.now(), 9), 1);
    assert!(!subject.exists("a"));
}

fn import_of_several_runs_has_all_of_them(subject: &Subject) {
    let source = elsewhere(subject);
    let (mut seat, mut held) = source.held("a");
    source.commit(&source.draft(&held).then(step("one")).continued("2"), &mut held);
    let failing = Command::Fail(Failure::new(FailureKind::Error, "no"));
    source.commit(&source.draft(&held).then(step("two")).then(failing), &mut held);
    source.send(message("again", "a", Body::Retry));
    let mut held = seat.claim_one();
    source.record(&mut held, step("three"));
    moved(&source, subject, "a");
    let target = Target::Address(address("a"));
    assert_eq!(subject.history(&target), source.history(&target));
    assert_eq!(subject.history(&target).len(), 3);
    go_on(subject);
    let again = subject.send(super::make::start_of("a", flow()));
    assert!(matches!(again, Submitted::Attached(_)), "the first run is what a start is compared with");
}

fn import_of_a_long_journal_can_be_read_from_anywhere(subject: &Subject) {
    const COUNT: u32 = 300;
    let source = elsewhere(subject);
    let (_seat, mut held) = source.held("a");
    for nth in 1..=COUNT {
        let op = Op { kind: OpKind::Step, name: name("large"), key: None, nth };
        // Each of these entries has a row of its own.
        let outcome = Outcome::Success(Payload::from("x".repeat(20_000).as_str()));
        source.record(&mut held, Command::RecordStep(StepRecord { op, outcome, attempt: 1, input: None }));
    }
    moved(&source, subject, "a");
    for from in [1, 2, 127, 128, 129, 200, 256, 257, 301] {
        assert_eq!(subject.page("a", from, 1), source.page("a", from, 1), "{from}");
    }
    go_on(subject);
}

fn repeated_import_changes_nothing(subject: &Subject) {
    let source = elsewhere(subject);
    let (_seat, mut held) = source.held("a");
    source.record(&mut held, step("one"));
    source.send(signal("s", "a"));
    let told = moved(&source, subject, "a");
    let (key, before) = (subject.look("a").key, subject.picture());
    assert_eq!(import(subject, &told), Imported::Known(key));
    assert_eq!(subject.picture(), before);
    let mut held = subject.seat(worker()).claim_one();
    subject.commit(&subject.draft(&held).then(step("two")).consuming(&["s"]), &mut held);
    let before = subject.picture();
    assert_eq!(import(subject, &told), Imported::Known(key), "it has gone on since");
    assert_eq!(subject.picture(), before);
}

/// Imports an execution that must be refused, and checks that it leaves no trace. Returns the
/// refusal.
fn refused(subject: &Subject, told: Import) -> Refusal {
    let before = subject.picture();
    match block_on(subject.store.import(told)) {
        Err(Error::Refused(refusal)) => {
            assert_eq!(subject.picture(), before, "a refusal leaves no trace");
            refusal
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
}

fn import_over_something_else_is_refused(subject: &Subject) {
    let source = elsewhere(subject);
    let (_seat, mut held) = source.held("a");
    source.record(&mut held, step("one"));
    let (_seat, mut other) = subject.held("a");
    subject.record(&mut other, step("other"));
    assert!(matches!(refused(subject, exported(&source, "a")), Refusal::Conflict { .. }));
    // The same entries, and a message that is unknown here.
    let (_seat, mut held) = source.held("b");
    source.record(&mut held, step("one"));
    import(subject, &exported(&source, "b"));
    source.send(signal("s", "b"));
    assert!(matches!(refused(subject, exported(&source, "b")), Refusal::Conflict { .. }));
}

fn signals_that_were_read_elsewhere_are_no_news(subject: &Subject) {
    let source = elsewhere(subject);
    let (_seat, mut held) = source.held("a");
    source.send(signal("s", "a"));
    let op = Op { kind: OpKind::Signal, name: name("note"), key: None, nth: 1 };
    let received = Command::ReceiveSignal { op, message: signal("s", "a").id, payload: Payload::from("s") };
    source.commit(&source.draft(&held).then(received).consuming(&["s"]).park(), &mut held);
    moved(&source, subject, "a");
    assert!(matches!(subject.send(signal("s", "a")), Submitted::Duplicate(_)));
    assert!(subject.unread("a").is_empty());
}

fn import_is_woken_for_a_timer_that_its_summary_does_not_tell(subject: &Subject) {
    let source = elsewhere(subject);
    let (_seat, mut held) = source.held("a");
    let due_at = source.later_ms(500);
    let op = Op { kind: OpKind::Timer, name: name("sleep"), key: None, nth: 1 };
    let draft = source.draft(&held).then(Command::SetTimer { op, due_at });
    let waiting = abide_core::Waiting::Signal { name: name("note"), until: None };
    source.commit(&draft.waiting(waiting).park(), &mut held);
    moved(&source, subject, "a");
    assert_eq!(subject.seat(worker()).claim(1).next_wake_at, Some(due_at));
}

fn import_of_runs_that_do_not_follow_each_other_is_refused(subject: &Subject) {
    let source = elsewhere(subject);
    let (mut seat, mut held) = source.held("a");
    source.commit(&source.draft(&held).continued("2"), &mut held);
    source.record(&mut held, Command::Fail(Failure::new(FailureKind::Error, "no")));
    source.send(message("again", "a", Body::Retry));
    source.record(&mut seat.claim_one(), step("three"));
    let sound = exported(&source, "a");
    let (_seat, mut held) = source.held("b");
    source.record(&mut held, complete());
    let completed = exported(&source, "b").runs.remove(0);
    let (continued, failed) = (&sound.runs[0], &sound.runs[1]);
    let (early, foreign) =
        ("began before the one before it had ended", "does not follow from how the one before it ended");
    let rows = [
        (1, continued[..1].to_vec(), format!("run 2 {early}")),
        (2, failed[..1].to_vec(), format!("run 3 {early}")),
        (1, completed.clone(), format!("run 2 {foreign}")),
        (2, completed, format!("run 3 {foreign}")),
        // A failed run is followed by a retry only, and a continued run never by a retry.
        (1, failed.clone(), format!("run 2 {foreign}")),
        (2, continued.clone(), format!("run 3 {foreign}")),
    ];
    for (run, entries, expected) in rows {
        let mut told = sound.clone();
        told.runs[run - 1] = entries;
        match refused(subject, told) {
            Refusal::Unsound { what, .. } => assert_eq!(what, expected),
            other => panic!("{other}"),
        }
    }
    assert!(matches!(import(subject, &sound), Imported::New(_)), "it was the change that was refused");
}

fn p6_unsound_import_leaves_no_trace(subject: &Subject) {
    let source = elsewhere(subject);
    let (_seat, mut held) = source.held("a");
    source.record(&mut held, step("one"));
    source.record(&mut held, step("two"));
    source.send(signal("s", "a"));
    source.start("b", flow());
    let (sound, other) = (exported(&source, "a"), exported(&source, "b"));
    let changed = |change: &dyn Fn(&mut Import)| {
        let mut import = sound.clone();
        change(&mut import);
        import
    };
    let rows: [(&str, Import); 11] = [
        ("no run", changed(&|import| import.runs.clear())),
        ("an empty run", changed(&|import| import.runs.insert(0, Vec::new()))),
        (
            "a run that has not ended before another",
            changed(&|import| import.runs.insert(0, other.runs[0].clone())),
        ),
        ("a gap", changed(&|import| _ = import.runs[0].remove(1))),
        ("no start", changed(&|import| _ = import.runs[0].remove(0))),
        ("an entry too few for its state", changed(&|import| _ = import.runs[0].pop())),
        (
            "a state of something else",
            changed(&|import| import.execution = other.execution.clone().at(address("a"))),
        ),
        (
            "an entry that cannot be read",
            changed(&|import| import.runs[0][1] = Record { seq: 2, bytes: vec![1, 2] }),
        ),
        ("a status that is not its own", changed(&|import| import.summary.status = Status::Completed)),
        ("a message to somebody else", changed(&|import| import.unread.push(signal("s2", "b")))),
        ("a message twice", changed(&|import| import.unread.push(signal("s", "a")))),
    ];
    for (what, import) in rows {
        assert!(matches!(refused(subject, import), Refusal::Unsound { .. }), "{what}");
    }
    let large = Payload::from("x".repeat(bounds().payload_bytes_max + 1).as_str());
    let large = message("large", "a", Body::Signal { name: name("note"), payload: large });
    let import_of = changed(&|import| import.unread.push(large.clone()));
    assert!(matches!(refused(subject, import_of), Refusal::TooLarge(_)));
    let start = Arc::new(flow());
    let start = message("start", "a", Body::Start(start));
    assert!(matches!(
        refused(subject, changed(&|import| import.unread.push(start.clone()))),
        Refusal::Unsound { .. }
    ));
    assert!(matches!(import(subject, &sound), Imported::New(_)), "it was the change that was refused");
}
