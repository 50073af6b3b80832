//! The replay cursor: which entry comes next, for unchanged and for changed code.

use abide_core::{
    Cursor, Entry, Event, Failure, FailureKind, Name, Next, Op, OpKind, Outcome, Payload, StepRecord,
    Timestamp,
};

fn op(name: &str) -> Op {
    Op { kind: OpKind::Step, name: Name::new(name).expect("a name"), nth: 1 }
}

fn recorded(names: &[&str]) -> Vec<Entry> {
    let number = |(index, name): (usize, &&str)| Entry {
        seq: index as u64 + 1,
        at: Timestamp::from_millis(index as i64),
        event: Event::StepRecorded(StepRecord {
            op: op(name),
            outcome: Outcome::Success(Payload::from("1")),
            attempt: 1,
            input_hash: None,
        }),
    };
    names.iter().enumerate().map(number).collect()
}

/// Replays code that asks for `asked`, one operation after the other, and tells what happened.
fn replayed(journal: &[Entry], asked: &[&str]) -> String {
    let mut cursor = Cursor::new(false);
    let mut story = Vec::new();
    for name in asked {
        cursor.open(op(name).key());
        let delivered = loop {
            match cursor.next() {
                Next::Fetch(seq) => {
                    cursor.fetched(&journal[seq as usize - 1]);
                    break true;
                }
                Next::Offer(seq) if seq as usize > journal.len() => break false,
                Next::Offer(seq) => {
                    if cursor.offer(&journal[seq as usize - 1]).expect("not strict") {
                        break true;
                    }
                }
            }
        };
        story.push(format!("{name} {}", if delivered { "replayed" } else { "runs" }));
        cursor.close(op(name).key());
    }
    let unused: Vec<_> = cursor.unused(9).iter().map(u64::to_string).collect();
    format!(
        "{}; unused {}",
        story.join(", "),
        if unused.is_empty() { "-".to_owned() } else { unused.join(",") }
    )
}

#[test]
fn changed_code_continues_by_name() {
    let journal = recorded(&["a", "b", "c"]);
    let rows = [
        (vec!["a", "b", "c", "d"], "a replayed, b replayed, c replayed, d runs; unused -"),
        (vec!["a", "x", "b", "c"], "a replayed, x runs, b replayed, c replayed; unused -"),
        (vec!["c", "a", "b"], "c replayed, a replayed, b replayed; unused -"),
        (vec!["a", "c"], "a replayed, c replayed; unused 2"),
        (vec!["a", "bb", "c"], "a replayed, bb runs, c replayed; unused 2"),
    ];
    for (asked, story) in rows {
        assert_eq!(replayed(&journal, &asked), story);
    }
}

#[test]
fn the_earliest_recorded_entry_of_an_open_operation_comes_first() {
    let journal = recorded(&["b", "a"]);
    let mut cursor = Cursor::new(false);
    cursor.open(op("a").key());
    cursor.open(op("b").key());
    assert_eq!(cursor.next(), Next::Offer(1));
    assert_eq!(cursor.offer(&journal[0]), Ok(true));
    assert_eq!(cursor.offer(&journal[1]), Ok(true));
}

#[test]
fn a_strict_cursor_names_what_it_expected() {
    let journal = recorded(&["a", "b"]);
    let mut cursor = Cursor::new(true);
    cursor.open(op("b").key());
    let mismatch = cursor.offer(&journal[0]).expect_err("a was not asked for");
    assert_eq!(mismatch.to_string(), r#"the journal has step "a""#);
}

#[test]
fn notes_tell_what_is_recorded_of_an_operation_without_an_outcome() {
    let failure = Failure::new(FailureKind::Error, "no");
    let event = Event::AttemptFailed {
        op: op("a"),
        attempt: 3,
        failure: failure.clone(),
        retry_at: Timestamp::from_millis(7),
    };
    let mut cursor = Cursor::new(false);
    assert_eq!(cursor.offer(&Entry { seq: 1, at: Timestamp::default(), event }), Ok(false));
    let note = cursor.take_note(op("a").key());
    assert_eq!(
        (note.attempt_count, note.failure, note.due_at),
        (3, Some(failure), Some(Timestamp::from_millis(7)))
    );
}
