//! Sentences about executions in every situation.

use std::collections::BTreeSet;
use std::time::Duration;

use abide_core::{
    Ability, Address, Block, Epoch, Execution, Failure, FailureKind, Kind, LeaseRow, Message, MessageId,
    Name, Namespace, Op, OpKind, Payload, Remedy, SessionId, Start, Suspicion, Version,
};
use abide_store::{ExecutionKey, Worker};

use super::*;

fn at(secs: i64) -> Timestamp {
    Timestamp::from_millis(secs * 1_000)
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Returns the facts about an execution "x" of workflow "order" that began at 0 s and lived through
/// `events`, one a second, as seen at 100 s.
fn facts(events: Vec<Event>, waiting: &[Waiting]) -> Facts {
    facts_of(start(), events, waiting)
}

fn start() -> Start {
    Start::of(Kind::Workflow, name("order"), Payload::from("1"))
}

fn facts_of(start: Start, events: Vec<Event>, waiting: &[Waiting]) -> Facts {
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new("x").unwrap() };
    let (mut execution, first) = Execution::start(address, start, at(0));
    let mut tail = vec![first];
    for (event, number) in events.into_iter().zip(1i64..) {
        let entry = Entry::new(number as u64 + 1, at(number), event);
        execution.apply(&entry);
        tail.push(entry);
    }
    let snapshot = Snapshot {
        key: ExecutionKey(1),
        summary: execution.summary(waiting),
        execution,
        lease: LeaseRow { session: None, epoch: Epoch(1), version: Version(1) },
        created_at: at(0),
        ready_at: None,
        takeover_count: 0,
        tags: Vec::new(),
        journal: Vec::new(),
        inbox: abide_store::InboxPage::default(),
    };
    Facts {
        snapshot,
        tail,
        workers: Vec::new(),
        is_seated: Some(true),
        ahead: Ahead::default(),
        suspect: None,
        followed: waiting.iter().find_map(super::super::child_of).cloned(),
        child: None,
        trouble: None,
        now: at(100),
    }
}

fn worker(session: u64, workflow: &str, lane: &str) -> WorkerRow {
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: BTreeSet::from([name(lane)]),
        runs: BTreeSet::from([(Kind::Workflow, name(workflow))]),
        capabilities: BTreeSet::new(),
        build: None,
    };
    WorkerRow {
        session: SessionId(session),
        worker: Worker { name: name("w"), ability, ttl: Duration::from_secs(15) },
        registered_at: at(0),
        expires_at: at(110),
        retired: None,
        is_draining: false,
        lease_count: 0,
        damage: None,
    }
}

fn message(by: &str, body: Body) -> Message {
    let to = Address { namespace: Namespace::default(), id: ExecutionId::new("x").unwrap() };
    Message::new(MessageId::new("m"), to, By(by.to_owned().into()), body)
}

fn check(facts: &Facts, expected: &str) {
    assert_eq!(of(facts), expected);
}

#[test]
fn what_has_ended_says_how() {
    let by = || By("ann".into());
    let rows = [
        (
            Event::Completed { result: Payload::from("42"), unused: Vec::new() },
            "completed at 1970-01-01T00:00:01.000Z (1 min 39 s ago) with the result 42.",
        ),
        (
            Event::Failed(Failure::new(FailureKind::Error, "no\nmoney")),
            "failed at 1970-01-01T00:00:01.000Z (1 min 39 s ago): no\\nmoney.",
        ),
        (
            Event::Cancelled { by: by(), reason: "too late".to_owned() },
            "was cancelled at 1970-01-01T00:00:01.000Z (1 min 39 s ago) by ann: too late.",
        ),
    ];
    for (event, expected) in rows {
        check(&facts(vec![event], &[]), &format!("workflow \"x\" {expected}"));
    }
}

#[test]
fn what_is_stopped_says_by_whom_and_why() {
    let paused = Event::Paused { by: By("ann".into()), reason: "audit".to_owned() };
    let mut facts_of_paused = facts(vec![paused], &[]);
    check(
        &facts_of_paused,
        r#"workflow "x" is paused since 1970-01-01T00:00:01.000Z (1 min 39 s ago) by ann: audit."#,
    );
    facts_of_paused.snapshot.inbox.messages = vec![message("bob", Body::Resume)];
    check(
        &facts_of_paused,
        r#"workflow "x" is paused since 1970-01-01T00:00:01.000Z (1 min 39 s ago) by ann: audit; unread: resume by bob, and no live worker can read it: there is none."#,
    );
    let block = Block::Mismatch { expected: "step \"a\"".to_owned(), found: "step \"b\"".to_owned() };
    check(
        &facts(vec![Event::Blocked { reason: block, build: None }], &[]),
        r#"workflow "x" is blocked since 1970-01-01T00:00:01.000Z (1 min 39 s ago): the code no longer matches its journal: expected step "a", found step "b"."#,
    );
}

#[test]
fn what_is_blocked_at_a_step_says_how_to_go_on() {
    let op = Op { kind: OpKind::Step, name: name("report"), key: None, nth: 2 };
    let block = Block::Unrecordable { op, reason: "large".to_owned() };
    let mut blocked = facts(vec![Event::Blocked { reason: block, build: None }], &[]);
    let said = r#"workflow "x" is blocked since 1970-01-01T00:00:01.000Z (1 min 39 s ago): step "report" #2 has run, but its result could not be recorded: large; to go on: abide unblock x --rerun report#2, or abide unblock x --edit report#2=JSON"#;
    check(&blocked, &format!("{said}."));
    blocked.workers = vec![worker(5, "order", "default")];
    let step = || "report#2".to_owned();
    let decide = |remedy| message("ann", Body::Unblock { step: Some(StepRemedy { step: step(), remedy }) });
    blocked.snapshot.inbox.messages = vec![decide(Remedy::Rerun)];
    check(&blocked, &format!(r#"{said}; unread: unblock of "report#2" to run again by ann."#));
    blocked.snapshot.inbox.messages = vec![decide(Remedy::Edit(Payload::from("7")))];
    check(&blocked, &format!(r#"{said}; unread: unblock of "report#2" with the result 7 by ann."#));
}

#[test]
fn what_is_ready_says_who_could_run_it() {
    let mut ready = facts(Vec::new(), &[]);
    ready.snapshot.ready_at = Some(at(40));
    check(
        &ready,
        r#"workflow "x" is ready since 1970-01-01T00:00:40.000Z (1 min ago), but no live worker can run it: there is none."#,
    );
    ready.workers = vec![worker(3, "other", "default"), worker(4, "order", "gpu")];
    check(
        &ready,
        r#"workflow "x" is ready since 1970-01-01T00:00:40.000Z (1 min ago), but no live worker can run it: worker "w" (session 3) has no workflow "order", worker "w" (session 4) does not serve lane "default"."#,
    );
    ready.workers.push(worker(5, "order", "default"));
    check(
        &ready,
        r#"workflow "x" is ready since 1970-01-01T00:00:40.000Z (1 min ago) and next in its queue for worker "w" (session 5)."#,
    );
    ready.ahead = Ahead { count: 7, is_more: true };
    check(
        &ready,
        r#"workflow "x" is queued since 1970-01-01T00:00:40.000Z (1 min ago) behind at least 7 others for worker "w" (session 5)."#,
    );
}

#[test]
fn a_worker_that_shuts_down_takes_nothing_more() {
    let mut ready = facts(Vec::new(), &[]);
    ready.snapshot.ready_at = Some(at(40));
    ready.workers = vec![WorkerRow { is_draining: true, ..worker(4, "order", "default") }];
    check(
        &ready,
        r#"workflow "x" is ready since 1970-01-01T00:00:40.000Z (1 min ago), but no live worker can run it: worker "w" (session 4) is shutting down."#,
    );
    ready.workers.push(worker(5, "order", "default"));
    check(
        &ready,
        r#"workflow "x" is ready since 1970-01-01T00:00:40.000Z (1 min ago) and next in its queue for worker "w" (session 5)."#,
    );
    let paused = Event::Paused { by: By("ann".into()), reason: "audit".to_owned() };
    let mut paused = facts(vec![paused], &[]);
    paused.snapshot.inbox.messages = vec![message("bob", Body::Resume)];
    paused.workers = vec![WorkerRow { is_draining: true, ..worker(4, "order", "default") }];
    check(
        &paused,
        r#"workflow "x" is paused since 1970-01-01T00:00:01.000Z (1 min 39 s ago) by ann: audit; unread: resume by bob, and no live worker can read it: worker "w" (session 4) is shutting down."#,
    );
}

#[test]
fn many_objections_are_cut_short() {
    let mut ready = facts(Vec::new(), &[]);
    ready.snapshot.ready_at = Some(at(40));
    ready.workers = (1..=5).map(|session| worker(session, "other", "default")).collect();
    assert!(
        of(&ready).ends_with(r#"worker "w" (session 3) has no workflow "order" and 2 more."#),
        "{}",
        of(&ready)
    );
}

#[test]
fn what_waits_says_for_what() {
    let signal = Waiting::Signal { name: name("approval"), until: None };
    let mut waits = facts(Vec::new(), std::slice::from_ref(&signal));
    check(
        &waits,
        r#"workflow "x" is waiting for signal "approval" since 1970-01-01T00:00:00.000Z (1 min 40 s ago)."#,
    );
    let body = || Body::Signal { name: name("aproval"), payload: Payload::from("1") };
    waits.snapshot.inbox.messages = vec![message("ann", body()), message("ann", body())];
    check(
        &waits,
        r#"workflow "x" is waiting for signal "approval" since 1970-01-01T00:00:00.000Z (1 min 40 s ago); unread: signal "aproval" (2)."#,
    );
    let retry = Waiting::Retry { name: name("order"), attempt: 2, at: at(200) };
    let mut task = facts_of(Start { kind: Kind::Task, ..start() }, Vec::new(), &[retry]);
    task.snapshot.inbox.messages = vec![message("ann", body()), message("ann", body())];
    check(
        &task,
        r#"task "x" is waiting until 1970-01-01T00:03:20.000Z (in 1 min 40 s) for attempt 2 of "order", and no live worker can run it then: there is none; unread: signal "aproval" that a task never reads (2)."#,
    );
    let until = Waiting::Signal { name: name("approval"), until: Some(at(160)) };
    check(
        &facts(Vec::new(), &[Waiting::Sleep { until: at(200) }, until]),
        r#"workflow "x" is sleeping until 1970-01-01T00:03:20.000Z (in 1 min 40 s) and waiting for signal "approval" since 1970-01-01T00:00:00.000Z (1 min 40 s ago), and gives up at 1970-01-01T00:02:40.000Z (in 1 min)."#,
    );
}

#[test]
fn what_sleeps_says_until_when_and_whether_anybody_can_wake_it() {
    let mut sleeps = facts(Vec::new(), &[Waiting::Sleep { until: at(200) }]);
    check(
        &sleeps,
        r#"workflow "x" is sleeping until 1970-01-01T00:03:20.000Z (in 1 min 40 s), and no live worker can run it then: there is none."#,
    );
    sleeps.workers = vec![worker(1, "order", "default")];
    check(&sleeps, r#"workflow "x" is sleeping until 1970-01-01T00:03:20.000Z (in 1 min 40 s)."#);
    let overdue = facts(Vec::new(), &[Waiting::Sleep { until: at(99) }]);
    check(
        &overdue,
        r#"workflow "x" is ready since 1970-01-01T00:01:39.000Z (1.0 s ago), but no live worker can run it: there is none."#,
    );
}

#[test]
fn a_failed_attempt_is_the_reason_for_the_next() {
    let op = Op { kind: OpKind::Step, name: name("charge"), key: None, nth: 1 };
    let failure = Failure::new(FailureKind::Error, "503");
    let failed = Event::AttemptFailed { op, attempt: 2, failure, retry_at: at(130), first_at: at(60) };
    let mut retries =
        facts(vec![failed], &[Waiting::Retry { name: name("charge"), attempt: 3, at: at(130) }]);
    retries.workers = vec![worker(1, "order", "default")];
    check(
        &retries,
        r#"workflow "x" is waiting until 1970-01-01T00:02:10.000Z (in 30 s) for attempt 3 of "charge", because attempt 2 failed: 503."#,
    );
    retries.snapshot.lease.session = Some(SessionId(1));
    retries.now = at(133);
    retries.workers[0].expires_at = at(150);
    check(
        &retries,
        r#"workflow "x" is running attempt 3 of "charge", which was due at 1970-01-01T00:02:10.000Z (3.0 s ago), because attempt 2 failed: 503, held by worker "w" (session 1)."#,
    );
}

#[test]
fn what_is_held_says_by_whom() {
    let op = Op { kind: OpKind::Step, name: name("charge"), key: None, nth: 1 };
    let outcome = abide_core::Outcome::Success(Payload::from("1"));
    let record = abide_core::StepRecord { op, outcome, attempt: 1, input: None };
    let mut held = facts(vec![Event::StepRecorded(record)], &[]);
    held.snapshot.lease.session = Some(SessionId(3));
    check(&held, r#"workflow "x" is held by session 3, of which nothing is known."#);
    held.workers = vec![worker(3, "order", "default")];
    check(
        &held,
        r#"workflow "x" is running on worker "w" (session 3) since entry 2 (step-recorded of step "charge") at 1970-01-01T00:00:01.000Z (1 min 39 s ago)."#,
    );
    held.snapshot.summary.waiting = [Waiting::Step { name: name("ship"), attempt: 1 }].into();
    check(&held, r#"workflow "x" is running step "ship", held by worker "w" (session 3)."#);
    held.is_seated = None;
    check(&held, r#"workflow "x" is held by worker "w" (session 3), last seen running step "ship"."#);
    held.snapshot.summary.waiting = Default::default();
    check(
        &held,
        r#"workflow "x" is held by worker "w" (session 3): its code runs there, or is about to, and has recorded nothing since entry 2 (step-recorded of step "charge") at 1970-01-01T00:00:01.000Z (1 min 39 s ago)."#,
    );
    held.is_seated = Some(false);
    check(
        &held,
        r#"workflow "x" is held by worker "w" (session 3), where nobody runs it; it is taken up or given back within 20 s."#,
    );
    held.is_seated = Some(true);
    held.snapshot.summary.waiting = [Waiting::Step { name: name("ship"), attempt: 1 }].into();
    held.snapshot.takeover_count = 1;
    check(
        &held,
        r#"workflow "x" is running step "ship", held by worker "w" (session 3); a worker died while holding it."#,
    );
    held.snapshot.takeover_count = 2;
    for (stand, words) in [
        (Stand::Aside, "it waits aside to run alone"),
        (Stand::Alone { takeover_count: 2 }, "it runs alone"),
        (Stand::Beside, "it ran alone for a while, and others run beside it now"),
    ] {
        held.snapshot.summary.suspicion = Some(Suspicion { died_at: Vec::new(), stand });
        check(
            &held,
            &format!(
                r#"workflow "x" is held by worker "w" (session 3), last seen running step "ship"; 2 workers in a row died while holding it, so {words}."#
            ),
        );
    }
    held.workers[0].expires_at = at(70);
    check(
        &held,
        r#"workflow "x" is held by worker "w" (session 3), which has given no sign of life and expired at 1970-01-01T00:01:10.000Z (30 s ago); no live worker can take it over: there is none; 2 workers in a row died while holding it, so it is to run alone."#,
    );
    held.workers.push(worker(4, "order", "default"));
    held.workers[0].retired = Some("its process is gone".to_owned());
    held.snapshot.takeover_count = 0;
    check(
        &held,
        r#"workflow "x" is held by worker "w" (session 3), which ended: its process is gone; it is about to be taken over."#,
    );
}

#[test]
fn an_order_says_who_applies_it() {
    let reason = String::new;
    let mut ready = facts(Vec::new(), &[]);
    ready.snapshot.ready_at = Some(at(40));
    ready.workers = vec![worker(3, "other", "default")];
    let is_ready = r#"workflow "x" is ready since 1970-01-01T00:00:40.000Z (1 min ago), but no live worker can run it: worker "w" (session 3) has no workflow "order""#;
    ready.snapshot.inbox.messages = vec![message("ann", Body::Pause { reason: reason() })];
    check(&ready, &format!("{is_ready}; unread: pause by ann."));
    ready.snapshot.inbox.messages = vec![message("ann", Body::Cancel { reason: reason() })];
    check(&ready, &format!("{is_ready}; unread: cancel by ann, which is for its code to see."));
    let paused = Event::Paused { by: By("ann".into()), reason: String::new() };
    let mut paused = facts(vec![paused], &[]);
    paused.workers = ready.workers.clone();
    paused.snapshot.inbox.messages = vec![message("ann", Body::Cancel { reason: reason() })];
    check(
        &paused,
        r#"workflow "x" is paused since 1970-01-01T00:00:01.000Z (1 min 39 s ago) by ann; unread: cancel by ann, which is for its code to see, and no live worker can run it: worker "w" (session 3) has no workflow "order"."#,
    );
    let mut held = facts(Vec::new(), &[Waiting::Step { name: name("spin"), attempt: 1 }]);
    held.workers = vec![worker(3, "order", "default")];
    held.snapshot.lease.session = Some(SessionId(3));
    held.snapshot.summary.care_at = Some(at(102));
    held.snapshot.inbox.messages = vec![message("ann", Body::Terminate { reason: reason() })];
    check(
        &held,
        r#"workflow "x" is running step "spin", held by worker "w" (session 3); unread: terminate by ann, which is applied without its holder from 1970-01-01T00:01:42.000Z (in 2.0 s) on."#,
    );
    held.workers[0].is_draining = true;
    check(
        &held,
        r#"workflow "x" is running step "spin", held by worker "w" (session 3); unread: terminate by ann, which is applied without its holder when a worker is live that takes more."#,
    );
    held.workers[0].expires_at = at(50);
    check(
        &held,
        r#"workflow "x" is held by worker "w" (session 3), which has given no sign of life and expired at 1970-01-01T00:00:50.000Z (50 s ago); no live worker can take it over: there is none; unread: terminate by ann, which is applied without its holder when a worker is live that takes more."#,
    );
}

#[test]
fn an_order_to_what_rests_does_not_make_it_ready() {
    let ordered = |mut facts: Facts, body| {
        facts.snapshot.ready_at = Some(at(40));
        facts.snapshot.inbox.messages = vec![message("ann", body)];
        facts
    };
    let pause = || Body::Pause { reason: String::new() };
    let cancel = || Body::Cancel { reason: String::new() };
    let mut scheduled = facts_of(Start { start_at: Some(at(200)), ..start() }, Vec::new(), &[]);
    scheduled.snapshot.summary = scheduled.snapshot.execution.summary_at_start(at(0));
    let none = "and no live worker can run it then: there is none";
    check(
        &ordered(scheduled, pause()),
        &format!(
            r#"workflow "x" is scheduled to start at 1970-01-01T00:03:20.000Z (in 1 min 40 s), {none}; unread: pause by ann, which waits for a worker to apply it."#
        ),
    );
    let sleeps = || facts(Vec::new(), &[Waiting::Sleep { until: at(200) }]);
    let sleeping = r#"workflow "x" is sleeping until 1970-01-01T00:03:20.000Z (in 1 min 40 s)"#;
    let waits = "which waits for a worker to apply it";
    check(&ordered(sleeps(), Body::Resume), &format!("{sleeping}, {none}; unread: resume by ann, {waits}."));
    check(
        &ordered(sleeps(), cancel()),
        &format!("{sleeping}, {none}; unread: cancel by ann, which is for its code to see."),
    );
    let mut sleeper = ordered(sleeps(), pause());
    sleeper.workers = vec![worker(5, "order", "default")];
    check(
        &sleeper,
        &format!(
            r#"{sleeping}; for its unread mail it is ready since 1970-01-01T00:00:40.000Z (1 min ago) and next in its queue for worker "w" (session 5); unread: pause by ann."#
        ),
    );
}

#[test]
fn mail_makes_ready_what_waits_for_it() {
    let approval = Waiting::Signal { name: name("approval"), until: None };
    let signal = |text| Body::Signal { name: name(text), payload: Payload::from("1") };
    let told = |body| {
        let mut facts = facts(Vec::new(), std::slice::from_ref(&approval));
        facts.snapshot.ready_at = Some(at(40));
        facts.snapshot.inbox.messages = vec![message("ann", body)];
        facts
    };
    check(
        &told(signal("approval")),
        r#"workflow "x" is ready since 1970-01-01T00:00:40.000Z (1 min ago), but no live worker can run it: there is none; unread: signal "approval"."#,
    );
    let waiting =
        r#"workflow "x" is waiting for signal "approval" since 1970-01-01T00:00:00.000Z (1 min 40 s ago)"#;
    let nobody = "and no live worker can read it: there is none";
    check(&told(signal("aproval")), &format!(r#"{waiting}; unread: signal "aproval", {nobody}."#));
    let pause = Body::Pause { reason: String::new() };
    check(&told(pause), &format!("{waiting}; unread: pause by ann, {nobody}."));
}

#[test]
fn a_chain_of_children_is_followed() {
    let child = Waiting::Child { id: ExecutionId::new("c").unwrap() };
    let mut parent = facts(Vec::new(), std::slice::from_ref(&child));
    check(&parent, r#"workflow "x" is waiting for child "c"."#);
    parent.child = Some(Child::Missing);
    check(&parent, r#"workflow "x" is waiting for child "c", which does not exist."#);
    parent.child = Some(Child::Unread("disk I/O error".to_owned()));
    check(&parent, r#"workflow "x" is waiting for child "c", which cannot be read now: disk I/O error."#);
    let mut below = facts(Vec::new(), &[child]);
    let paused = Event::Paused { by: By("ann".into()), reason: String::new() };
    below.child = Some(Child::Known(Box::new(facts(vec![paused], &[]))));
    parent.child = Some(Child::Known(Box::new(below)));
    check(
        &parent,
        r#"workflow "x" is waiting for child "c", which is waiting for child "c", which is paused since 1970-01-01T00:00:01.000Z (1 min 39 s ago) by ann."#,
    );
}

#[test]
fn the_described_child_need_not_be_the_first() {
    let children = ["a", "b"].map(|id| Waiting::Child { id: ExecutionId::new(id).unwrap() });
    let mut parent = facts(Vec::new(), &children);
    parent.followed = Some(ExecutionId::new("b").unwrap());
    parent.child = Some(Child::Missing);
    check(
        &parent,
        r#"workflow "x" is waiting for child "a" and waiting for child "b", which does not exist."#,
    );
}

#[test]
fn the_holder_of_a_parent_is_told_before_its_child() {
    let hold = |mut facts: Facts| {
        facts.snapshot.lease.session = Some(SessionId(1));
        facts.workers = vec![worker(1, "order", "default")];
        facts
    };
    let mut parent = hold(facts(Vec::new(), &[Waiting::Child { id: ExecutionId::new("c").unwrap() }]));
    let child = hold(facts(Vec::new(), &[Waiting::Step { name: name("ship"), attempt: 1 }]));
    parent.child = Some(Child::Known(Box::new(child)));
    check(
        &parent,
        r#"workflow "x" is held by worker "w" (session 1), waiting for child "c", which is running step "ship", held by worker "w" (session 1)."#,
    );
}

#[test]
fn deaths_are_counted_in_words() {
    for (count, words) in [(1, "1 death"), (2, "2 deaths")] {
        let died_at = vec![at(1); count];
        let rests = Waiting::Suspect { died_at: died_at.clone(), until: Some(at(9)) };
        let expected = format!("resting until 1970-01-01T00:00:09.000Z after {words} of its worker");
        assert_eq!(rests.to_string(), expected);
        let runs = Waiting::Suspect { died_at, until: None };
        assert_eq!(runs.to_string(), format!("running alone after {words} of its worker"));
    }
    let first = Waiting::Suspect { died_at: Vec::new(), until: None };
    assert_eq!(first.to_string(), "running alone");
}

#[test]
fn a_suspect_that_rests_says_what_it_did_when_its_worker_died() {
    let rests = Waiting::Suspect { died_at: vec![at(1), at(20)], until: Some(at(200)) };
    let due = |attempt_at| Waiting::Retry { name: name("pay"), attempt: 3, at: at(attempt_at) };
    let resting = |waiting: &[Waiting]| {
        let mut facts = facts(Vec::new(), waiting);
        facts.snapshot.summary.wake_at = Some(at(200));
        facts
    };
    check(
        &resting(&[rests.clone(), due(10)]),
        r#"workflow "x" is resting until 1970-01-01T00:03:20.000Z after 2 deaths of its worker; when its worker died it was running attempt 3 of "pay", which was due at 1970-01-01T00:00:10.000Z (1 min 30 s ago)."#,
    );
    // Nobody has begun an attempt since then.
    check(
        &resting(&[rests, due(30), Waiting::Step { name: name("ship"), attempt: 1 }]),
        r#"workflow "x" is resting until 1970-01-01T00:03:20.000Z after 2 deaths of its worker; when its worker died it was waiting until 1970-01-01T00:00:30.000Z (1 min 10 s ago) for attempt 3 of "pay" and running step "ship"."#,
    );
}

#[test]
fn a_suspect_that_is_blocked_or_paused_does_not_run() {
    let block = Event::Blocked { reason: Block::Poison { reason: "it kills".to_owned() }, build: None };
    let pause = Event::Paused { by: By("ann".into()), reason: "lunch".to_owned() };
    for event in [block, pause] {
        let mut facts = facts(vec![event], &[]);
        facts.snapshot.takeover_count = 7;
        let sentence = of(&facts);
        let end = "7 workers in a row died while holding it, so it is to run alone when it goes on.";
        assert!(sentence.ends_with(end), "{sentence}");
    }
}

#[test]
fn what_is_blocked_while_it_is_being_cancelled_says_both() {
    let cancel = Event::CancelRequested { by: By("ann".into()), reason: "too late".to_owned() };
    let block = Event::Blocked { reason: Block::Limit { reason: "full".to_owned() }, build: None };
    check(
        &facts(vec![cancel, block], &[]),
        r#"workflow "x" is blocked since 1970-01-01T00:00:02.000Z (1 min 38 s ago): full; it is being cancelled by ann: too late, and a second cancel, or a terminate, ends it as it is."#,
    );
}

#[test]
fn what_is_blocked_while_its_parent_is_paused_says_both() {
    let block = || Event::Blocked { reason: Block::Limit { reason: "full".to_owned() }, build: None };
    let inherited = || Event::Inherited { by: By("ann".into()), number: 7, pause: Some("audit".to_owned()) };
    let parent = "; it was paused by ann: audit, and stays so until its parent goes on";
    let said = r#"workflow "x" is blocked since 1970-01-01T00:00:01.000Z (1 min 39 s ago): full"#;
    check(&facts(vec![block(), inherited()], &[]), &format!("{said}{parent}."));
    let own = Event::Paused { by: By("bob".into()), reason: String::new() };
    let own_words = "; it was paused by bob and stays so when it is unblocked";
    check(&facts(vec![block(), own, inherited()], &[]), &format!("{said}{own_words}{parent}."));
    let lifted = Event::Inherited { by: By("ann".into()), number: 8, pause: None };
    check(&facts(vec![block(), inherited(), lifted], &[]), &format!("{said}."));
}

#[test]
fn a_cancellation_under_way_is_told() {
    let cancel = Event::CancelRequested { by: By("ann".into()), reason: "changed my mind".to_owned() };
    let mut cancelling = facts(vec![cancel], &[]);
    cancelling.snapshot.ready_at = Some(at(40));
    cancelling.workers = vec![worker(5, "order", "default")];
    check(
        &cancelling,
        r#"workflow "x" is being cancelled by ann: changed my mind and is ready since 1970-01-01T00:00:40.000Z (1 min ago) and next in its queue for worker "w" (session 5)."#,
    );
}

#[test]
fn a_deadline_that_nobody_has_applied_is_told() {
    let late = |deadline, events| {
        let start = Start { deadline_at: Some(at(deadline)), ..start() };
        let mut facts = facts_of(start, events, &[]);
        facts.snapshot.ready_at = Some(at(40));
        facts
    };
    let ready = r#"workflow "x" is ready since 1970-01-01T00:00:40.000Z (1 min ago), but no live worker can run it: "#;
    let passed = "; its deadline passed at 1970-01-01T00:00:50.000Z (50 s ago)";
    let mut overdue = late(50, Vec::new());
    check(&overdue, &format!("{ready}there is none{passed}, and no worker is live to apply it."));
    overdue.workers = vec![worker(5, "other", "default")];
    let objection = r#"worker "w" (session 5) has no workflow "order""#;
    check(&overdue, &format!("{ready}{objection}{passed}."));
    let deadline = "; its deadline is at 1970-01-01T00:01:41.000Z (in 1.0 s)";
    check(&late(101, Vec::new()), &format!("{ready}there is none{deadline}."));
    let paused = Event::Paused { by: By("ann".into()), reason: String::new() };
    let said = r#"workflow "x" is paused since 1970-01-01T00:00:01.000Z (1 min 39 s ago) by ann"#;
    check(&late(101, vec![paused]), &format!("{said}{deadline}."));
    let seen = late(50, vec![Event::DeadlinePassed { until: at(110) }]);
    assert!(!of(&seen).contains("its deadline passed"), "{}", of(&seen));
}

#[test]
fn a_deadline_that_comes_before_the_end_of_a_wait_is_told() {
    let wait = |deadline, waiting: &[Waiting]| {
        let start = Start { deadline_at: Some(at(deadline)), ..start() };
        let mut facts = facts_of(start, Vec::new(), waiting);
        facts.workers = vec![worker(5, "order", "default")];
        facts
    };
    let deadline = "; its deadline is at 1970-01-01T00:02:30.000Z (in 50 s)";
    let sleep = [Waiting::Sleep { until: at(200) }];
    let sleeping = r#"workflow "x" is sleeping until 1970-01-01T00:03:20.000Z (in 1 min 40 s)"#;
    check(&wait(150, &sleep), &format!("{sleeping}{deadline}."));
    check(&wait(200, &sleep), &format!("{sleeping}."));
    let mut held = wait(150, &sleep);
    held.snapshot.lease.session = Some(SessionId(5));
    check(&held, &format!(r#"{sleeping}, held by worker "w" (session 5){deadline}."#));
    let signal = [Waiting::Signal { name: name("go"), until: None }];
    let waiting =
        r#"workflow "x" is waiting for signal "go" since 1970-01-01T00:00:00.000Z (1 min 40 s ago)"#;
    check(&wait(150, &signal), &format!("{waiting}{deadline}."));
    let delayed = Start { start_at: Some(at(200)), deadline_at: Some(at(150)), ..start() };
    let mut scheduled = facts_of(delayed, Vec::new(), &[]);
    scheduled.snapshot.summary = scheduled.snapshot.execution.summary_at_start(at(0));
    scheduled.workers = vec![worker(5, "order", "default")];
    let starts = r#"workflow "x" is scheduled to start at 1970-01-01T00:03:20.000Z (in 1 min 40 s)"#;
    check(&scheduled, &format!("{starts}{deadline}."));
}

#[test]
fn what_keeps_the_store_from_writing_is_told_of_what_has_not_ended() {
    let id = |id: &str| Some(ExecutionId::new(id).unwrap());
    let troubles = [
        (
            Held::Up(Trouble::Full { free_bytes: 12 }),
            "; the disk of the store is full (12 bytes are free), and all goes on when there is room.",
        ),
        (
            Held::Up(Trouble::Failing { since: at(97), complaint: "disk I/O error".to_owned() }),
            "; since 1970-01-01T00:01:37.000Z (3.0 s ago) writes to the store fail, and are tried again: disk I/O error.",
        ),
        (
            Held::By(id("x"), at(97)),
            "; since 1970-01-01T00:01:37.000Z (3.0 s ago) its transaction step runs, and keeps the writer of the store.",
        ),
        (
            Held::By(id("y"), at(97)),
            "; since 1970-01-01T00:01:37.000Z (3.0 s ago) a transaction step of \"y\" keeps the writer of the store.",
        ),
        (
            Held::By(None, at(97)),
            "; since 1970-01-01T00:01:37.000Z (3.0 s ago) a transaction step keeps the writer of the store.",
        ),
    ];
    for (trouble, words) in troubles {
        let mut facts = facts(vec![], &[Waiting::Signal { name: name("go"), until: None }]);
        facts.trouble = Some(trouble);
        let told = of(&facts);
        assert!(told.ends_with(words), "{told}");
    }
    let mut ended = facts(vec![Event::Completed { result: Payload::from("1"), unused: Vec::new() }], &[]);
    ended.trouble = Some(Held::Up(Trouble::Full { free_bytes: 0 }));
    assert!(!of(&ended).contains("full"), "{}", of(&ended));
}
