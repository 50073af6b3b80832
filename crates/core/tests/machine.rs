//! The state machine: its table, and the rules that hold for every sequence of commands.

use std::fmt::Write as _;
use std::time::Duration;

use abide_core::{
    Address, Began, Block, By, Command, Entry, Event, Execution, ExecutionId, Failure, FailureKind, Foreign,
    Kind, Listens, MessageId, Name, Namespace, Op, OpKind, Outcome, Payload, Phase, Refusal, RejectedSignal,
    Remedied, Remedy, Retry, Start, StartMatch, StepRecord, StepRemedy, Timestamp, Unrecordable, codec,
    start_matches,
};
use expect_test::expect_file;
use proptest::prelude::*;

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn address() -> Address {
    Address { namespace: Namespace::default(), id: ExecutionId::new("order-1").expect("an id") }
}

fn op(kind: OpKind) -> Op {
    Op { kind, name: name("charge"), key: None, nth: 1 }
}

fn by() -> By {
    By("alice".into())
}

fn start(kind: Kind) -> Start {
    let start = Start::of(kind, name("order"), Payload::from("{}"));
    Start { deadline_at: Some(at(1_000)), retry: Some(Retry::never()), ..start }
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// Returns every command once, by name.
fn commands() -> Vec<(&'static str, Command)> {
    let failure = |kind| Failure::new(kind, "no");
    let record = StepRecord {
        op: op(OpKind::Step),
        outcome: Outcome::Success(Payload::from("1")),
        attempt: 1,
        input: None,
    };
    let child = ExecutionId::new("child").expect("an id");
    let block = |reason: &str| Command::block(Block::Limit { reason: reason.to_owned() });
    let retry_at = at(5);
    vec![
        ("record-step", Command::RecordStep(record)),
        (
            "record-foreign",
            Command::RecordForeign(Foreign {
                kind: name("activity-scheduled"),
                op: None,
                payload: Payload::from("1"),
            }),
        ),
        (
            "fail-attempt",
            Command::FailAttempt {
                op: op(OpKind::Step),
                attempt: 1,
                failure: failure(FailureKind::Error),
                retry_at,
                first_at: at(1),
            },
        ),
        ("set-timer", Command::SetTimer { op: op(OpKind::Timer), due_at: at(9) }),
        ("fire-timer", Command::FireTimer { op: op(OpKind::Timer) }),
        (
            "receive-signal",
            Command::ReceiveSignal {
                op: op(OpKind::Signal),
                message: MessageId::new("m"),
                payload: Payload::from("1"),
            },
        ),
        (
            "reject-signal",
            Command::RejectSignal(Box::new(RejectedSignal {
                op: op(OpKind::Signal),
                message: MessageId::new("m"),
                by: by(),
                arrived_at: at(1),
                payload: Payload::from("1"),
                expected: "bool".to_owned(),
                complaint: "no".to_owned(),
            })),
        ),
        (
            "start-child",
            Command::StartChild {
                op: op(OpKind::Child),
                child: child.clone(),
                start: start(Kind::Task).into(),
            },
        ),
        (
            "finish-child",
            Command::FinishChild {
                op: op(OpKind::ChildResult),
                outcome: Outcome::Success(Payload::from("1")),
            },
        ),
        ("cancel-child", Command::CancelChild { op: op(OpKind::ChildResult), child }),
        ("pause", Command::Pause { by: by(), reason: "lunch".to_owned() }),
        ("resume", Command::Resume { by: by() }),
        ("inherit-pause", Command::Inherit { by: by(), number: 7, pause: Some("lunch".to_owned()) }),
        ("inherit-resume", Command::Inherit { by: by(), number: 8, pause: None }),
        ("cancel", Command::Cancel { by: by(), reason: "no".to_owned() }),
        ("terminate", Command::Terminate { by: by(), reason: "no".to_owned() }),
        ("show-deadline", Command::ShowDeadline { until: at(3_000) }),
        ("expire-deadline", Command::ExpireDeadline),
        ("block", block("first")),
        ("block-again", block("second")),
        ("unblock", Command::Unblock { by: by(), step: None }),
        ("lose-step", Command::RecordStep(lost_step())),
        (
            "block-lost",
            Command::block(Block::Unrecordable { op: lost_step().op, reason: "large".to_owned() }),
        ),
        ("rerun-lost", unblock_step("report#2", Remedy::Rerun)),
        ("edit-lost", unblock_step("report#2", Remedy::Edit(Payload::from("7")))),
        ("rerun-sound", unblock_step("charge", Remedy::Rerun)),
        ("edit-unknown", unblock_step("report", Remedy::Edit(Payload::from("7")))),
        ("complete", Command::Complete { result: Payload::from("1"), unused: Vec::new() }),
        ("fail", Command::Fail(failure(FailureKind::Error))),
        ("fail-cancelled", Command::Fail(failure(FailureKind::Cancelled))),
        ("continue-as-new", Command::ContinueAsNew { input: Payload::from("2") }),
    ]
}

/// Returns a step that has run, and whose result could not be recorded.
fn lost_step() -> StepRecord {
    StepRecord {
        op: Op { kind: OpKind::Step, name: name("report"), key: None, nth: 2 },
        outcome: Outcome::Unrecordable(Unrecordable { reason: "large".to_owned() }),
        attempt: 1,
        input: None,
    }
}

fn unblock_step(step: &str, remedy: Remedy) -> Command {
    Command::Unblock { by: by(), step: Some(StepRemedy { step: step.to_owned(), remedy }) }
}

/// Returns an execution in each phase, reached by real commands.
fn phases(kind: Kind) -> Vec<(&'static str, Execution)> {
    let named = |wanted: &str| {
        let found = commands().into_iter().find(|(name, _)| *name == wanted);
        found.unwrap_or_else(|| panic!("no command {wanted}")).1
    };
    let reach = |path: &[&str]| {
        let (mut execution, _) = Execution::start(address(), start(kind), at(0));
        for step in path {
            let now = if *step == "show-deadline" { at(1_000) } else { at(1) };
            let decision =
                execution.decide(named(step), now).unwrap_or_else(|refusal| panic!("{step}: {refusal}"));
            decision.record(&mut execution, now);
        }
        execution
    };
    let mut all = vec![("started", reach(&[]))];
    if kind == Kind::Workflow {
        all.extend([
            ("running", reach(&["record-step"])),
            ("paused", reach(&["record-step", "pause"])),
            ("cancelling", reach(&["record-step", "cancel"])),
            ("expiring", reach(&["record-step", "show-deadline"])),
            ("blocked", reach(&["record-step", "block"])),
            ("paused+blocked", reach(&["record-step", "block", "pause"])),
            ("cancelling+blocked", reach(&["record-step", "cancel", "block"])),
            ("blocked at a step", reach(&["record-step", "lose-step", "block-lost"])),
            ("cancelling+blocked at a step", reach(&["record-step", "cancel", "lose-step", "block-lost"])),
            ("continued", reach(&["continue-as-new"])),
        ]);
    } else {
        all.extend([
            ("retrying", reach(&["fail-attempt"])),
            ("expiring", reach(&["show-deadline"])),
            ("paused", reach(&["pause"])),
            ("blocked", reach(&["block"])),
        ]);
    }
    all.extend([
        ("completed", reach(&["complete"])),
        ("failed", reach(&["fail"])),
        ("cancelled", reach(&["terminate"])),
    ]);
    all
}

/// Compares starts of an existing id with the one that it began with, whatever the phase.
fn starts(kind: Kind) -> [(&'static str, String); 2] {
    let existing = start(kind);
    let other = existing.clone().with_input(Payload::from("[]"));
    let outcome = |requested: &Start| match start_matches(&address().id, &existing, requested) {
        StartMatch::Attach => "attached to what is there".to_owned(),
        StartMatch::Conflict(refusal) => format!("refused: {refusal}"),
    };
    [("start-same", outcome(&existing)), ("start-other", outcome(&other))]
}

/// Retries an ended run, which opens the next one. The keeper of the ended run decides this.
fn retry(execution: &Execution) -> String {
    let began = start(execution.kind());
    match execution.retried(Began { at: at(0), start: &began }, by(), at(2_000)) {
        Err(refusal) => format!("refused: {refusal}"),
        Ok((next, entries)) => {
            let words: Vec<_> = entries.iter().map(|entry| entry.event.word()).collect();
            format!("run {}: {} -> {}", next.run(), words.join(", "), phase_word(next.phase()))
        }
    }
}

fn outcome_of(execution: &Execution, command: Command) -> String {
    match execution.decide(command, at(2_000)) {
        Err(refusal) => format!("refused: {refusal}"),
        Ok(decision) if decision.event.is_none() => "nothing: it is so already".to_owned(),
        Ok(decision) => {
            let words: Vec<_> = decision.event.iter().map(Event::word).collect();
            let mut after = execution.clone();
            let outgoing = decision.outgoing.iter().map(|message| message.body.word()).collect::<Vec<_>>();
            decision.record(&mut after, at(2_000));
            let outgoing =
                if outgoing.is_empty() { String::new() } else { format!(", sends {}", outgoing.join(", ")) };
            format!("{} -> {}{outgoing}", words.join(", "), phase_word(after.phase()))
        }
    }
}

fn phase_word(phase: &Phase) -> &'static str {
    match phase {
        Phase::Running => "running",
        Phase::Paused { .. } => "paused",
        Phase::Cancelling { .. } => "cancelling",
        Phase::Expiring { .. } => "expiring",
        Phase::Blocked { cancelling: Some(_), .. } => "cancelling+blocked",
        Phase::Blocked { paused: Some(_), .. } => "paused+blocked",
        Phase::Blocked { .. } => "blocked",
        Phase::Completed => "completed",
        Phase::Failed => "failed",
        Phase::Cancelled => "cancelled",
        Phase::Continued => "continued",
    }
}

#[test]
fn the_table_of_phases_and_commands_is_the_golden_one() {
    let mut table = String::new();
    for (kind, word) in [(Kind::Workflow, "workflow"), (Kind::Task, "task")] {
        for (phase, execution) in phases(kind) {
            writeln!(table, "{word}, {phase}").expect("a string takes everything");
            for (command, outcome) in starts(kind) {
                writeln!(table, "  {command:16} {outcome}").expect("a string takes everything");
            }
            for (command, value) in commands() {
                let outcome = outcome_of(&execution, value);
                writeln!(table, "  {command:16} {outcome}").expect("a string takes everything");
            }
            writeln!(table, "  {:16} {}", "retry", retry(&execution)).expect("a string takes everything");
        }
    }
    expect_file!["golden/machine.txt"].assert_eq(&table);
}

#[test]
fn terminal_phases_accept_nothing() {
    for kind in [Kind::Workflow, Kind::Task] {
        for (phase, execution) in phases(kind) {
            if !execution.is_finished() {
                continue;
            }
            for (command, value) in commands() {
                let refused = matches!(execution.decide(value, at(2_000)), Err(Refusal::Finished { .. }));
                assert!(refused, "{phase} accepted {command}");
            }
            assert_eq!(execution.summary(&[]).listens, Listens::Nothing, "{phase}");
        }
    }
}

#[test]
fn children_are_open_until_they_are_recorded_as_finished() {
    let (mut execution, _) = Execution::start(address(), start(Kind::Workflow), at(0));
    let count_after = |execution: &mut Execution, wanted: &str| {
        let (_, command) = commands().into_iter().find(|(name, _)| *name == wanted).expect("a command");
        let decision = execution.decide(command, at(1)).expect("it runs");
        decision.record(execution, at(1));
        execution.open_child_count()
    };
    let rows = [("start-child", 1), ("start-child", 2), ("cancel-child", 2), ("finish-child", 1)];
    for (command, expected) in rows {
        assert_eq!(count_after(&mut execution, command), expected, "{command}");
    }
    assert_eq!(count_after(&mut execution, "finish-child"), 0);
    assert_eq!(count_after(&mut execution, "finish-child"), 0, "what is recorded can always be applied");
}

#[test]
fn a_deadline_expires_only_when_it_has_passed() {
    let (execution, _) = Execution::start(address(), start(Kind::Workflow), at(0));
    assert_eq!(execution.decide(Command::ExpireDeadline, at(999)), Err(Refusal::NotDue));
    assert!(execution.decide(Command::ExpireDeadline, at(1_000)).is_ok());
    let show = Command::ShowDeadline { until: at(3_000) };
    assert_eq!(execution.decide(show, at(999)), Err(Refusal::NotDue));
}

/// Returns an execution that has seen its deadline pass.
fn expiring(kind: Kind) -> Execution {
    let (mut execution, _) = Execution::start(address(), start(kind), at(0));
    let decision = execution.decide(Command::ShowDeadline { until: at(3_000) }, at(1_000)).expect("it runs");
    decision.record(&mut execution, at(1_000));
    execution
}

#[test]
fn code_that_has_seen_its_deadline_has_its_grace() {
    let execution = expiring(Kind::Workflow);
    assert_eq!(execution.expires_at(), Some(at(3_000)));
    assert_eq!(execution.summary(&[]).wake_at, Some(at(3_000)));
    assert_eq!(execution.decide(Command::ExpireDeadline, at(2_999)), Err(Refusal::NotDue));
    assert!(execution.decide(Command::ExpireDeadline, at(3_000)).is_ok());
}

#[test]
fn a_run_that_has_seen_its_deadline_fails_with_it_whatever_its_code_returns() {
    let attempt = Command::FailAttempt {
        op: op(OpKind::Task),
        attempt: 1,
        failure: Failure::new(FailureKind::Error, "no"),
        retry_at: at(2_000),
        first_at: at(1_000),
    };
    let returned = [
        (Command::Complete { result: Payload::from("1"), unused: Vec::new() }, vec![]),
        (Command::Fail(Failure::new(FailureKind::Deadline, "seen")), vec![]),
        (Command::Fail(Failure::new(FailureKind::Error, "the disk is full")), vec!["the disk is full"]),
        (attempt, vec!["no"]),
    ];
    for (command, told) in returned {
        let decision = expiring(Kind::Task).decide(command.clone(), at(1_500)).expect("it ends");
        let Some(Event::Failed(failure)) = &decision.event else { panic!("{command:?}: {decision:?}") };
        assert_eq!(failure.kind, FailureKind::Deadline, "{command:?}");
        assert_eq!(failure.chain, told, "{command:?}");
    }
}

#[test]
fn what_has_not_begun_sees_no_deadline() {
    let start = Start { start_at: Some(at(5_000)), ..start(Kind::Workflow) };
    let (execution, _) = Execution::start(address(), start, at(0));
    let decision =
        execution.decide(Command::ShowDeadline { until: at(3_000) }, at(1_000)).expect("it is due");
    assert!(matches!(decision.event, Some(Event::Failed(_))), "{decision:?}");
}

/// Whether an event may follow as far as steps are concerned: a decision is about the step that
/// blocks, and only a decision goes on with that step.
fn is_allowed_at(event: &Event, before: &Execution) -> bool {
    let lost = match before.phase() {
        Phase::Blocked { reason, .. } => reason.lost(),
        _ => None,
    };
    match event {
        Event::Unblocked { remedied: Some(Remedied { op, .. }), .. } => lost == Some(op),
        Event::Unblocked { remedied: None, .. } => lost.is_none(),
        Event::StepRecorded(record) => lost != Some(&record.op),
        Event::AttemptFailed { op, .. } => lost != Some(op),
        _ => true,
    }
}

#[test]
fn only_the_step_that_blocks_can_be_decided_about() {
    let blocked = |reason| {
        let (mut execution, _) = Execution::start(address(), start(Kind::Workflow), at(0));
        let decision = execution.decide(Command::block(reason), at(1)).expect("it runs");
        decision.record(&mut execution, at(1));
        execution
    };
    let at_step = blocked(Block::Unrecordable { op: lost_step().op, reason: "large".to_owned() });
    let refused = |execution: &Execution, command| match execution.decide(command, at(2)) {
        Err(refusal) => refusal.to_string(),
        Ok(decision) => panic!("it was accepted: {decision:?}"),
    };
    assert_eq!(
        refused(&at_step, Command::Unblock { by: by(), step: None }),
        r#"step "report" #2 has run, but its result could not be recorded; to go on: abide unblock order-1 --rerun report#2, or abide unblock order-1 --edit report#2=JSON"#
    );
    for remedy in [Remedy::Rerun, Remedy::Edit(Payload::from("1"))] {
        for other in ["charge", "report", "report#1", "report#3", ""] {
            assert_eq!(
                refused(&at_step, unblock_step(other, remedy.clone())),
                format!(
                    r#"it is not blocked at a step {other:?}, and a recorded result never changes; it is blocked at step "report" #2"#
                )
            );
        }
        let otherwise = blocked(Block::Limit { reason: "too long".to_owned() });
        assert_eq!(
            refused(&otherwise, unblock_step("report#2", remedy)),
            r#"it is not blocked at a step "report#2", and a recorded result never changes"#
        );
    }
}

proptest! {
    #[test]
    fn any_sequence_of_commands_keeps_the_promises(
        is_task in any::<bool>(),
        sequence in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..2_000), 0..60),
    ) {
        let kind = if is_task { Kind::Task } else { Kind::Workflow };
        let (mut execution, first) = Execution::start(address(), start(kind), at(0));
        let mut journal: Vec<Entry> = vec![first];
        let commands = commands();
        for (index, millis) in sequence {
            let now = Timestamp::default().after(Duration::from_millis(millis));
            let before = execution.clone();
            let decided = execution.decide(index.get(&commands).1.clone(), now);
            prop_assert_eq!(&before, &execution, "deciding changes nothing");
            match decided {
                Err(_) => {}
                Ok(decision) => {
                    prop_assert!(!before.is_finished(), "terminal is final");
                    prop_assert!(decision.event.iter().all(|event| is_allowed_at(event, &before)));
                    let (entries, _) = decision.record(&mut execution, now);
                    journal.extend(entries);
                }
            }
        }
        let seqs: Vec<_> = journal.iter().map(|entry| entry.seq).collect();
        prop_assert_eq!(seqs, (1..=journal.len() as u64).collect::<Vec<_>>());
        let terminal_count = journal.iter().filter(|entry| entry.event.is_terminal()).count();
        prop_assert!(terminal_count <= 1, "one completion a run");
        let folded = Execution::fold(address(), 1, &journal).expect("the journal begins with its start");
        prop_assert_eq!(&folded, &execution, "folding the journal equals the live state");
        let bytes = codec::encode(&execution);
        let read: Execution = codec::decode(&bytes).expect("what was written can be read");
        prop_assert_eq!(read.at(address()), execution);
        for entry in journal {
            let read: Entry = codec::decode(&codec::encode(&entry)).expect("what was written can be read");
            prop_assert_eq!(read, entry);
        }
    }

    #[test]
    fn damaged_bytes_are_an_error_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = codec::decode::<Entry>(&bytes);
        let _ = codec::decode::<Execution>(&bytes);
    }
}
