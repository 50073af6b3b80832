//! The transition from one run to the next.

use std::time::Duration;

use abide_core::{
    Address, Began, Body, By, Command, Entry, Event, Execution, ExecutionId, Failure, FailureKind, Kind,
    Message, Name, Namespace, Op, OpKind, Outcome, Parent, Payload, Refusal, Retry, Start, Status, Tag,
    Timestamp,
};

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn by() -> By {
    By("alice".into())
}

/// Returns a start with every field set.
fn start() -> Start {
    let op = Op { kind: OpKind::ChildResult, name: name("order"), key: None, nth: 1 };
    Start {
        lane: name("slow"),
        requires: vec![name("cuda")],
        priority: 7,
        start_at: Some(at(100)),
        deadline_at: Some(at(5_000)),
        retry: Some(Retry::fixed(Duration::from_secs(1))),
        tags: vec![Tag { key: name("k"), value: name("v") }],
        parent: Some(Parent::new(ExecutionId::new("parent").expect("an id"), 3, op, 2)),
        ..Start::of(Kind::Workflow, name("order"), Payload::from("1"))
    }
}

/// Returns a run that began at 1,000 and has recorded `command`.
fn after(command: Command) -> (Execution, Option<Message>) {
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new("o-1").expect("an id") };
    let (mut execution, _) = Execution::start(address, start(), at(1_000));
    let decision = execution.decide(command, at(2_000)).expect("a running one takes it");
    let (_, outgoing) = decision.record(&mut execution, at(2_000));
    (execution, outgoing)
}

fn failed() -> Execution {
    after(Command::Fail(Failure::new(FailureKind::Error, "no"))).0
}

fn retried(execution: &Execution) -> Result<(Execution, Vec<Entry>), Refusal> {
    execution.retried(Began { at: at(1_000), start: &start() }, by(), at(9_000))
}

fn start_of(entry: &Entry) -> &Start {
    entry.began().expect("a run begins with its start").start
}

#[test]
fn continued_run_begins_like_the_one_before_it_with_another_input() {
    let (execution, outgoing) = after(Command::ContinueAsNew { input: Payload::from("2") });
    let (next, first) = execution.continued(&start(), Payload::from("2"), at(2_000));
    let expected = Start { start_at: None, ..start().with_input(Payload::from("2")) };
    assert_eq!(*start_of(&first), expected);
    assert_eq!((first.seq, first.at), (1, at(2_000)));
    assert_eq!((next.run(), next.entry_count(), next.route()), (2, 1, execution.route()));
    assert_eq!(Execution::fold(next.address().clone(), 2, [&first]).as_ref(), Some(&next));
    assert!(outgoing.is_none(), "a run that continues answers nobody");
}

#[test]
fn end_of_a_chain_answers_the_parent_once_and_under_the_name_of_the_last_run() {
    let (execution, _) = after(Command::ContinueAsNew { input: Payload::from("2") });
    let (next, _) = execution.continued(&start(), Payload::from("2"), at(2_000));
    let complete = Command::Complete { result: Payload::from("3"), unused: Vec::new() };
    let decision = next.decide(complete, at(3_000)).expect("a running one completes");
    let Some(answer) = &decision.outgoing else { panic!("expected an answer: {decision:?}") };
    let op = start().parent.expect("it has a parent").op;
    assert_eq!((answer.to.id.as_str(), answer.id.as_str()), ("parent", "done:o-1:2"));
    assert_eq!(answer.body, Body::ChildDone { run: 3, op, outcome: Outcome::Success(Payload::from("3")) });
}

#[test]
fn retried_run_begins_like_the_one_that_failed_and_answers_nobody() {
    let execution = failed();
    let (next, entries) = retried(&execution).expect("what failed can be retried");
    let deadline_at = Some(at(9_000 + 4_000));
    assert_eq!(*start_of(&entries[0]), Start { start_at: None, deadline_at, parent: None, ..start() });
    assert_eq!(entries[1].event, Event::Retried { by: by() });
    assert_eq!(entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((next.run(), next.entry_count(), next.attempt_count()), (2, 2, 0));
    assert_eq!(Execution::fold(next.address().clone(), 2, &entries).as_ref(), Some(&next));
    let again = next.decide(Command::Fail(Failure::new(FailureKind::Error, "no")), at(9_001));
    assert!(again.expect("a running one fails").outgoing.is_none(), "the parent was told already");
}

#[test]
fn only_what_failed_or_was_cancelled_is_retried() {
    let terminate = Command::Terminate { by: by(), reason: String::new() };
    let complete = Command::Complete { result: Payload::from("1"), unused: Vec::new() };
    let finished = Refusal::Finished { status: Status::Completed };
    let rows = [
        (failed(), None),
        (after(terminate).0, None),
        (after(complete).0, Some(finished.clone())),
        (after(Command::ContinueAsNew { input: Payload::from("2") }).0, Some(finished)),
        (after(Command::Pause { by: by(), reason: String::new() }).0, Some(Refusal::NotEnded)),
        (retried(&failed()).expect("what failed can be retried").0, Some(Refusal::NotEnded)),
    ];
    for (execution, refusal) in rows {
        assert_eq!(retried(&execution).err(), refusal, "{:?}", execution.phase());
    }
    let lost = Start { discarded_at: Some(at(500)), ..start() };
    let refused = failed().retried(Began { at: at(1_000), start: &lost }, by(), at(9_000));
    assert_eq!(refused.err(), Some(Refusal::Discarded));
}
