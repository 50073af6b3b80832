//! Records must stay readable forever: one golden line for each kind of record of each format.
//!
//! A new kind of record adds a line, and so does a new optional field (`growable!`). An existing
//! line never changes: if this test fails after a change of a type, the change needs a new format
//! version, not a new golden file.

use abide_core::{
    Ability, Address, Block, Body, By, Command, ContentHash, Descent, Details, Entry, Epoch, Event,
    Execution, ExecutionId, Failure, FailureKind, Fingerprint, Foreign, Happening, Kind, Message, MessageId,
    Name, NameClash, Namespace, Op, OpKind, Origin, OtherInput, Outcome, Parent, Payload, RejectedSignal,
    Remedied, Remedy, Retry, Route, SiteMark, Stand, Start, StepRecord, StepRemedy, Summary, Suspicion, Tag,
    Timestamp, Unrecordable, Waiting, codec,
};
use expect_test::expect_file;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::{Debug, Write as _};
use std::time::Duration;

const GOLDEN: &str = include_str!("golden/format-1.txt");

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn op(kind: OpKind) -> Op {
    Op { kind, name: name("größe"), key: None, nth: 300 }
}

fn by() -> By {
    By("alice".into())
}

fn failure() -> Failure {
    let details = Details {
        kind: FailureKind::Fatal,
        type_name: "app::Declined".to_owned(),
        message: "card declined".to_owned(),
        chain: vec!["code 51".to_owned()],
        value: Some(Payload::from(r#"{"code":51}"#)),
        at: Some(Origin {
            code: "workflow \"checkout\"".to_owned(),
            op: Some("step \"charge\"".to_owned()),
            attempt: Some(2),
            site: Some("src/shop.rs:41".to_owned()),
        }),
    };
    details.into()
}

fn start() -> Start {
    Start {
        kind: Kind::Task,
        name: name("mail"),
        input: Payload::from(r#"{"to":"ann"}"#),
        input_hash: ContentHash::of(br#"{"to":"ann"}"#),
        lane: name("slow, but sure"),
        requires: vec![name("smtp")],
        priority: -3,
        start_at: Some(Timestamp::from_millis(1_000)),
        deadline_at: Some(Timestamp::MAX),
        retry: Some(Retry::exponential(Duration::from_millis(100)).max_attempts(5)),
        tags: vec![Tag { key: name("customer"), value: name("c7") }],
        parent: Some(Parent {
            id: ExecutionId::new("order-1").expect("an id"),
            run: 2,
            op: op(OpKind::ChildResult),
            entry: 7,
            heard: None,
        }),
        discarded_at: None,
        old_names: None,
    }
}

fn fingerprint(input: &str) -> Fingerprint {
    Fingerprint::of(&Payload::from(input))
}

fn events() -> Vec<Event> {
    let child = ExecutionId::new("order-1/2/mail/1").expect("an id");
    let record = |outcome| {
        Event::StepRecorded(StepRecord {
            op: op(OpKind::Step),
            outcome,
            attempt: 2,
            input: Some(fingerprint("7").into()),
        })
    };
    let lost = Unrecordable { reason: "too large".to_owned() };
    let reason = || "lunch".to_owned();
    let text = |text: &str| text.to_owned();
    let remedied = |remedy| {
        let remedied = Remedied { op: op(OpKind::Step), remedy, declared: None };
        Event::Unblocked { by: by(), remedied: Some(remedied) }
    };
    let accepted = Remedied {
        op: Op { key: Some(name("ann")), ..op(OpKind::Child) },
        remedy: Remedy::Accept,
        declared: Some(fingerprint("8").hash.into()),
    };
    let clash = NameClash::Kinds { name: name("x"), first: OpKind::Step, second: OpKind::Promise };
    vec![
        Event::Started(start().into()),
        record(Outcome::Success(Payload::from("1"))),
        record(Outcome::Failure(failure())),
        record(Outcome::Unrecordable(lost)),
        Event::AttemptFailed {
            op: op(OpKind::Task),
            attempt: 1,
            failure: failure(),
            retry_at: Timestamp::from_millis(5),
            first_at: Timestamp::from_millis(2),
        },
        Event::TimerSet { op: op(OpKind::Timer), due_at: Timestamp::from_millis(-1) },
        Event::TimerFired { op: op(OpKind::Timer) },
        Event::SignalReceived {
            op: op(OpKind::Signal),
            message: MessageId::new("m-1"),
            payload: Payload::from("true"),
        },
        Event::SignalRejected(Box::new(RejectedSignal {
            op: op(OpKind::Signal),
            message: MessageId::new("m-2"),
            by: by(),
            arrived_at: Timestamp::from_millis(6),
            payload: Payload::from("7"),
            expected: text("bool"),
            complaint: text("c"),
        })),
        Event::ChildStarted { op: op(OpKind::Child), child, input: fingerprint("7").into() },
        Event::Unblocked { by: by(), remedied: Some(accepted) },
        Event::Blocked {
            reason: Block::OtherInput(Box::new(OtherInput {
                op: op(OpKind::Child),
                recorded: fingerprint("7"),
                declared: fingerprint("8"),
                recorded_site: Some(text("src/a.rs:7")),
                site: None,
            })),
            build: None,
        },
        Event::ChildFinished {
            op: op(OpKind::ChildResult),
            outcome: Outcome::Success(Payload::from("null")),
        },
        Event::ChildCancelled { op: op(OpKind::ChildResult) },
        Event::Paused { by: by(), reason: reason() },
        Event::Resumed { by: by() },
        Event::Inherited { by: by(), number: 7, pause: Some(reason()) },
        Event::Inherited { by: by(), number: 8, pause: None },
        Event::CancelRequested { by: by(), reason: reason() },
        Event::Blocked { reason: Block::Mismatch { expected: text("a"), found: text("b") }, build: None },
        Event::Blocked {
            reason: Block::Undecodable { what: text("w"), expected: text("a"), found: text("b") },
            build: None,
        },
        Event::Blocked {
            reason: Block::Unrecordable { op: op(OpKind::Transaction), reason: reason() },
            build: None,
        },
        Event::Blocked { reason: Block::ForeignAwait { workflow: text("order"), last: None }, build: None },
        Event::Blocked { reason: Block::NameClash { clash, site: text("src/a.rs:7") }, build: None },
        Event::Blocked {
            reason: Block::Misplaced { op: text("step x"), place: text("inside step y") },
            build: None,
        },
        Event::Blocked { reason: Block::Limit { reason: reason() }, build: None },
        Event::Blocked {
            reason: Block::Poison { reason: reason() },
            build: Some(Name::new("2026-11").unwrap()),
        },
        Event::Unblocked { by: by(), remedied: None },
        remedied(Remedy::Rerun),
        remedied(Remedy::Edit(Payload::from("7"))),
        Event::Completed { result: Payload::from("42"), unused: vec![op(OpKind::Step)] },
        Event::Failed(failure()),
        Event::Cancelled { by: by(), reason: reason() },
        Event::ContinuedAsNew { input: Payload::from("2") },
        Event::Retried { by: by() },
        Event::Foreign(Foreign {
            kind: name("activity-scheduled"),
            op: Some(op(OpKind::Foreign)),
            payload: Payload::from(vec![0, 255]),
        }),
        Event::DeadlinePassed { until: Timestamp::from_millis(9) },
    ]
}

fn bodies() -> Vec<Body> {
    let reason = || "lunch".to_owned();
    let step = || "größe#300".to_owned();
    let unblock = |remedy| Body::Unblock { step: Some(StepRemedy { step: step(), remedy }) };
    vec![
        Body::Start(start().into()),
        Body::Signal { name: name("approval"), payload: Payload::from("true") },
        Body::ChildDone { run: 3, op: op(OpKind::ChildResult), outcome: Outcome::Failure(failure()) },
        Body::Pause { reason: reason() },
        Body::Resume,
        Body::Inherit { number: 7, pause: Some(reason()) },
        Body::Cancel { reason: reason() },
        Body::Terminate { reason: reason() },
        Body::Unblock { step: None },
        unblock(Remedy::Rerun),
        unblock(Remedy::Edit(Payload::from("7"))),
        Body::Retry,
    ]
}

fn address() -> Address {
    Address { namespace: Namespace::default(), id: ExecutionId::new("order-1/2/mail/1").expect("an id") }
}

fn executions() -> Vec<Execution> {
    let (fresh, _) = Execution::start(address(), start(), Timestamp::from_millis(1));
    let after = |command| {
        let mut execution = fresh.clone();
        let decision = execution.decide(command, Timestamp::from_millis(2)).expect("a fresh one takes it");
        decision.record(&mut execution, Timestamp::from_millis(2));
        execution
    };
    let mut expiring = fresh.clone();
    let until = Timestamp::from_millis(9);
    expiring.apply(&Entry::new(2, until, Event::DeadlinePassed { until }));
    vec![
        fresh.clone(),
        after(Command::Pause { by: by(), reason: "lunch".to_owned() }),
        after(Command::Inherit { by: by(), number: 7, pause: Some("lunch".to_owned()) }),
        after(Command::block(Block::Limit { reason: "too long".to_owned() })),
        after(Command::Complete { result: Payload::from("1"), unused: Vec::new() }),
        after(Command::Fail(failure())),
        after(Command::Terminate { by: by(), reason: "no".to_owned() }),
        expiring,
    ]
}

fn waits() -> Vec<Waiting> {
    let at = Timestamp::from_millis(9);
    vec![
        Waiting::Step { name: name("a"), attempt: 1 },
        Waiting::Retry { name: name("a"), attempt: 2, at },
        Waiting::Sleep { until: at },
        Waiting::Signal { name: name("s"), until: Some(at) },
        Waiting::Child { id: address().id },
    ]
}

fn ability() -> Ability {
    Ability {
        namespace: Namespace::default(),
        lanes: [name("main")].into(),
        runs: [(Kind::Task, name("mail"))].into(),
        capabilities: [name("smtp")].into(),
        build: None,
    }
}

/// Adds one line for a record: its description, and its bytes.
fn line<T: Serialize>(table: &mut String, what: &str, value: &T) {
    let hex: String = codec::encode(value).iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(table, "{what} {hex}").expect("a string takes everything");
}

/// Returns the record of the next golden line.
fn read<T: DeserializeOwned>(lines: &mut std::str::Lines<'_>, what: &str) -> T {
    let line = lines.next().expect("the golden file has a line for each record");
    let (word, hex) = line.split_once(' ').expect("a line is a word and bytes");
    assert_eq!(word, what);
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    codec::decode(&bytes).expect("an old record can be read")
}

/// Checks that the golden line of a record still reads as that record.
fn check<T: DeserializeOwned + PartialEq + Debug>(lines: &mut std::str::Lines<'_>, what: &str, value: &T) {
    assert_eq!(&read::<T>(lines, what), value);
}

fn summaries() -> [Summary; 4] {
    let summary = executions()[0].summary(&waits());
    let died_at = vec![Timestamp::from_millis(5)];
    let suspicion = Some(Suspicion { died_at, stand: Stand::Alone { takeover_count: 3 } });
    [
        summary.clone(),
        Summary { cared_epoch: Some(Epoch(3)), ..summary.clone() },
        Summary { suspicion, ..summary.clone() },
        Summary { sites: Some([None, Some("src/a.rs:7".into())].into_iter().collect()), ..summary },
    ]
}

fn entry(event: Event) -> Entry {
    Entry::new(129, Timestamp::from_millis(1_750_000_000_000), event)
}

fn message(body: Body) -> Message {
    Message::new(MessageId::new("m-1"), address(), by(), body).arrived(Timestamp::from_millis(7))
}

/// Returns entries that come from a place in the code: the first of their run, and a later one.
fn sited() -> [Entry; 2] {
    let mark = |text: Option<&str>| Some(SiteMark { number: 3, text: text.map(Into::into) });
    let timer = entry(Event::TimerFired { op: op(OpKind::Timer) });
    [Entry { site: mark(Some("src/a.rs:7")), ..timer.clone() }, Entry { site: mark(None), ..timer }]
}

/// Returns the first entry of an execution that was damaged and discarded.
fn discarded() -> Entry {
    entry(Event::Started(Start { discarded_at: Some(Timestamp::from_millis(9)), ..start() }.into()))
}

/// Returns an order for children.
fn order() -> Message {
    let parent = ExecutionId::new("order-1").expect("an id");
    let descent = Descent { parent, run: 2, before: 300, op: Some(op(OpKind::ChildResult)) };
    Message { descent: Some(descent.into()), ..message(Body::Cancel { reason: "lunch".to_owned() }) }
}

#[test]
fn what_is_written_is_the_golden_format() {
    let mut table = String::new();
    events().into_iter().for_each(|event| line(&mut table, event.word(), &entry(event.clone())));
    bodies().into_iter().for_each(|body| line(&mut table, body.word(), &message(body.clone())));
    line(&mut table, "order", &order());
    line(&mut table, "discarded", &discarded());
    sited().iter().for_each(|entry| line(&mut table, "sited", entry));
    executions().iter().for_each(|execution| line(&mut table, "execution", execution));
    line(&mut table, "waiting", &waits());
    summaries().iter().for_each(|summary| line(&mut table, "summary", summary));
    line(&mut table, "route", &executions()[0].route());
    line(&mut table, "ability", &ability());
    expect_file!["golden/format-1.txt"].assert_eq(&table);
}

#[test]
fn what_was_written_in_format_1_can_be_read() {
    let mut lines = GOLDEN.lines();
    events().into_iter().for_each(|event| check(&mut lines, event.word(), &entry(event.clone())));
    bodies().into_iter().for_each(|body| check(&mut lines, body.word(), &message(body.clone())));
    check(&mut lines, "order", &order());
    check(&mut lines, "discarded", &discarded());
    sited().iter().for_each(|entry| check(&mut lines, "sited", entry));
    for execution in executions() {
        // The address belongs to the row, not to the record.
        assert_eq!(read::<Execution>(&mut lines, "execution").at(address()), execution);
    }
    check(&mut lines, "waiting", &waits());
    summaries().iter().for_each(|summary| check(&mut lines, "summary", summary));
    check(&mut lines, "route", &executions()[0].route());
    check(&mut lines, "ability", &ability());
    assert_eq!(lines.next(), None);
}

/// Returns the bytes that a newer program writes: the same record, with one more field in the
/// structure that ends `after` bytes before the end.
fn grown<T: Serialize>(record: &T, after: usize) -> Vec<u8> {
    let mut bytes = codec::encode(record);
    let at = bytes.len() - 1 - after;
    assert_eq!(bytes[at], 0, "a structure ends with the number of fields that it has gained");
    bytes.splice(at..=at, [1, 99, 2, 0xaa, 0xbb]);
    bytes
}

fn check_newer<T: DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let error = codec::decode::<T>(bytes).expect_err("it is newer");
    assert_eq!(error, codec::DecodeError::Newer);
    assert_eq!(
        error.to_string(),
        "the record was written by a newer version of abide: it has something that this program does not know"
    );
}

#[test]
fn a_field_that_a_newer_program_added_is_told_as_such() {
    for event in events() {
        check_newer::<Entry>(&grown(&entry(event), 0));
    }
    for body in bodies() {
        check_newer::<Message>(&grown(&message(body), 0));
    }
    for execution in executions() {
        check_newer::<Execution>(&grown(&execution, 0));
    }
    check_newer::<Ability>(&grown(&ability(), 0));
    check_newer::<Route>(&grown(&executions()[0].route(), 0));
    check_newer::<Summary>(&grown(&summaries()[0], 0));
    // These are inside an entry, whose own list of fields follows.
    for event in &events()[..4] {
        check_newer::<Entry>(&grown(&entry(event.clone()), 1));
    }
    check_newer::<Start>(&grown(&start(), 0));
    check_newer::<Parent>(&grown(&start().parent.expect("it has one"), 0));
    check_newer::<Retry>(&grown(&start().retry.expect("it has one"), 0));
    check_newer::<Failure>(&grown(&failure(), 0));
}

#[test]
fn a_variant_that_a_newer_program_added_is_told_as_such() {
    let at = Timestamp::from_millis(7);
    check_newer::<Entry>(&codec::encode(&(129_u64, at, 99_u32, "what a newer program says", 0_u8)));
    let by = By("ann".into());
    check_newer::<Message>(&codec::encode(&(MessageId::new("m"), address(), by, at, 99_u32, 0_u8)));
    check_newer::<Vec<Waiting>>(&codec::encode(&[(99_u32, "for what")]));
    // A suspect's stand is the last thing in the last field of its summary.
    let suspicion = |stand| Some(Suspicion { died_at: vec![at], stand });
    let summary = |stand| Summary { suspicion: suspicion(stand), ..summaries()[0].clone() };
    let (known, mut bytes) = (codec::encode(&summary(Stand::Aside)), codec::encode(&summary(Stand::Beside)));
    let differing: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] != known[*at]).collect();
    assert_eq!(differing.len(), 1, "{bytes:?}");
    assert_eq!(bytes[differing[0]], 3, "the number of a variant is on disk");
    bytes[differing[0]] = 99;
    check_newer::<Summary>(&bytes);
}

#[test]
fn damage_is_not_taken_for_something_newer() {
    let whole = codec::encode(&entry(events().remove(1)));
    let cut = codec::decode::<Entry>(&whole[..whole.len() - 3]).expect_err("it is cut");
    assert!(matches!(cut, codec::DecodeError::Damaged(_)), "{cut}");
    let longer = codec::decode::<Entry>(&[whole, vec![0]].concat()).expect_err("it is longer");
    assert!(matches!(longer, codec::DecodeError::Damaged(_)), "{longer}");
}

#[test]
fn a_newer_format_is_refused_by_number() {
    let mut bytes = codec::encode(&waits());
    bytes[0] = 2;
    let error = codec::decode::<Vec<Waiting>>(&bytes).expect_err("format 2 is not known");
    assert_eq!(
        error.to_string(),
        "the record was written by a newer version of abide: it has format 2, this program knows formats up to 1"
    );
}

#[test]
fn what_an_entry_means_is_seen_without_reading_all_of_it() {
    for event in events() {
        let at = Timestamp::from_millis(1_700_000_000_123);
        let entry = Entry::new(300, at, event);
        let bytes = codec::encode(&entry);
        let expected = Happening::of(&entry.event).map(|happening| (at, happening));
        assert_eq!(Entry::happening_of(&bytes), expected, "{}", entry.event.word());
        for (seq, at) in [(1, at), (u64::MAX, Timestamp::MAX), (1 << 63, Timestamp::from_micros(-1))] {
            let bytes = codec::encode(&Entry { seq, at, ..entry.clone() });
            assert_eq!(Entry::meaning_of(&bytes), Happening::of(&entry.event), "{}", entry.event.word());
        }
        if let Some((_, happening)) = expected {
            assert_eq!(Entry::happening_of(&bytes[..13]), expected, "the beginning is enough");
            assert_eq!(Happening::from_number(happening as u8), Some(happening));
        }
    }
    assert_eq!(Entry::happening_of(&[]), None);
    for length in 0..20 {
        assert_eq!(Entry::meaning_of(&[1; 20][..length]), None);
        assert_eq!(Entry::meaning_of(&[0xff; 20][..length]), None);
    }
}

#[test]
fn what_a_message_has_to_know_is_seen_without_reading_all_of_a_summary() {
    for execution in executions() {
        let summary = execution.summary(&waits());
        let bytes = codec::encode(&summary);
        assert_eq!(Summary::beginning_of(&bytes[..3]), Some((summary.status, summary.listens)));
    }
    assert_eq!(Summary::beginning_of(&[]), None);
}
